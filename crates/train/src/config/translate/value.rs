//! Conversions of other tools' values, by the names that `pytorch_keys.txt` uses.

use serde_json::{Map, Value, json};

use super::{LOSS_NAME, value_at};

/// Keys of a Holdall config.
pub(super) struct Converted {
    pub(super) keys: Vec<(String, Value)>,
    /// Reason why the effect differs; an empty text stands for the answer of the table.
    pub(super) difference: Option<String>,
}

/// YAML 1.1 words as values: `True`, `None`.
pub(super) fn plain(value: &Value) -> Value {
    match value.as_str() {
        Some("True" | "TRUE") => true.into(),
        Some("False" | "FALSE") => false.into(),
        Some("None" | "null" | "~") => Value::Null,
        _ => value.clone(),
    }
}

/// A value as a lower-case word, as the table spells it.
pub(super) fn word(value: &Value) -> String {
    match plain(value) {
        Value::String(text) => text.to_lowercase(),
        other => other.to_string(),
    }
}

/// Applies a conversion by name; `None` if the value has no counterpart. `config` holds the translated settings so far.
pub(super) fn convert(
    by: &str,
    path: &str,
    value: &Value,
    config: &Map<String, Value>,
) -> Option<Converted> {
    let one = |value: Value| vec![(path.to_owned(), value)];
    let below = |key: &str| format!("{path}.{key}");
    let mut difference = None;
    let keys = match by {
        "percent" => one(percent(value.as_f64()?)?),
        "rest" => one(percent(1.0 - value.as_f64()?)?),
        "GB" => one(format!("{}GB", value.as_f64()?).into()),
        "betas" => match &value.as_array()?[..] {
            [first, second] => vec![
                (below("beta1"), first.clone()),
                (below("beta2"), second.clone()),
            ],
            _ => return None,
        },
        "epochs" => {
            let epochs = value_at(config, "train.epochs")?.as_f64()?;
            // A warmup that is longer than the run cannot be written as a share.
            let share = value.as_f64()? / epochs;
            one(percent(share).filter(|_| share <= 1.0)?)
        }
        "lr" => {
            let share = value.as_f64()? / value_at(config, "train.lr")?.as_f64()?;
            one(((share * 1e6).round() / 1e6).into())
        }
        "list" => one(value
            .as_array()
            .filter(|list| !list.is_empty())?
            .clone()
            .into()),
        "side" => {
            let side = match value {
                Value::Array(sides) if sides.iter().all(|side| side == &sides[0]) => {
                    sides.first()?
                }
                other => other,
            };
            one(side.as_u64()?.into())
        }
        "jitter" => {
            let spread = value.as_f64()?;
            let keys = ["brightness", "contrast", "saturation"];
            keys.map(|key| (below(key), spread.into())).to_vec()
        }
        "pair jitter" => {
            difference = Some("hue and saturation of pictures with masks stay".to_owned());
            let spreads = value.as_object()?.iter();
            spreads
                .filter(|(key, _)| ["brightness", "contrast"].contains(&key.as_str()))
                .map(|(key, value)| (below(key), value.clone()))
                .collect()
        }
        "positive" => one(json!([1.0, value.as_f64()?])),
        LOSS_NAME => {
            let weight = |key: &&str| match *key {
                "focal" | "tversky" => json!({"weight": 1}),
                _ => 1.into(),
            };
            let names = loss_by_name(&word(value))?.iter();
            names.map(|key| (below(key), weight(key))).collect()
        }
        "loss weights" => {
            let weights = value.as_object()?;
            let mut keys = Vec::new();
            let mut others = Vec::new();
            for (name, weight) in weights {
                match name.as_str() {
                    "contrastive" => keys.push((below("contrastive"), weight.clone())),
                    "captioning" | "caption" => keys.push((below("caption"), weight.clone())),
                    _ if weight.as_f64() == Some(0.0) => {}
                    name => others.push(name),
                }
            }
            if !others.is_empty() {
                difference = Some(format!("there are no losses {} here", others.join(", ")));
            }
            keys
        }
        "trained share" => {
            let share = value.as_f64().filter(|share| (0.0..=1.0).contains(share))?;
            difference = Some(
                "the ratio counts tensors from the top, here it is blocks of twelve".to_owned(),
            );
            match (share * 12.0).round() as usize {
                0 => one("all".into()),
                12 => {
                    difference = None;
                    Vec::new()
                }
                blocks => one(format!("all but {blocks}").into()),
            }
        }
        "video model" => {
            difference = Some(String::new());
            one("openai/clip-vit-base-patch32".into())
        }
        _ => return None,
    };
    Some(Converted { keys, difference })
}

/// `0.113958` as `11.396%`; numbers above 1 are percentages already.
fn percent(share: f64) -> Option<Value> {
    let percent = if share <= 1.0 { 100.0 * share } else { share };
    let rounded = (percent * 1e3).round() / 1e3;
    (0.0..=100.0)
        .contains(&rounded)
        .then(|| format!("{rounded}%").into())
}

fn loss_by_name(name: &str) -> Option<&'static [&'static str]> {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let letters = letters.strip_suffix("loss").unwrap_or(&letters);
    Some(match letters {
        "bce" | "bcewithlogits" | "binarycrossentropy" => &["bce"],
        "ce" | "crossentropy" => &["cross_entropy"],
        "dice" | "softdice" => &["dice"],
        "dicebce" | "bcedice" => &["bce", "dice"],
        "dicece" | "cedice" => &["cross_entropy", "dice"],
        "focal" => &["focal"],
        "tversky" => &["tversky"],
        _ => return None,
    })
}
