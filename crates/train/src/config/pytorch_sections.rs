//! Whole sections of PyTorch scripts, `trainer:` and `dataset:`, answered with the lines that say the same here.
//!
//! ```text
//! trainer: {gradient_accumulation_steps: 4, mixed_precision: true}     train: {gradient_accumulation: 4}
//! dataset: {FIVES: {batch_size: 1, image_size: 1024, train_ratio: 0.8}}  precision: fp16
//!                                                                      data: {train: FIVES, image_size: 1024, validation: 20%}
//! ```

use serde_json::{Map, Value};

/// Sections that scripts keep their settings in.
const SECTIONS: [&str; 5] = ["trainer", "training", "dataset", "datasets", "dataloader"];

/// A key as scripts spell it, and where it stands here. Others are answered one by one, once the section is gone.
const KEYS: [(&[&str], &str); 13] = [
    (&["batch_size", "micro_batch_size"], "train.batch_size"),
    (
        &[
            "gradient_accumulation_steps",
            "accumulation_steps",
            "gradient_accumulation",
        ],
        "train.gradient_accumulation",
    ),
    (&["epochs", "num_epochs", "max_epochs"], "train.epochs"),
    (&["lr", "learning_rate"], "train.lr"),
    (
        &["max_grad_norm", "clip_grad_norm", "grad_clip"],
        "train.clip_norm",
    ),
    (&["mixed_precision", "use_amp", "amp"], "precision"),
    (&["num_workers"], "num_workers"),
    (&["seed"], "seed"),
    (&["image_size", "img_size"], "data.image_size"),
    (&["image_subdir"], "data.image_subdir"),
    (&["label_subdir", "mask_subdir"], "data.label_subdir"),
    (
        &["train_ratio", "val_ratio", "val_split"],
        "data.validation",
    ),
    (
        &["root", "path", "data_dir", "data_root", "root_dir"],
        "data.train",
    ),
];

/// What to write instead of a section; `None` where the key is no such section, or says nothing that is known here.
pub(super) fn lines_for(key: &str, layer: &Value) -> Option<String> {
    let section = layer.get(key).and_then(Value::as_object)?;
    if !SECTIONS.contains(&key.to_lowercase().as_str()) {
        return None;
    }
    let mut lines = Lines::default();
    lines.read(section, None);
    (!lines.0.is_empty()).then(|| format!("write instead\n{}", lines.show()))
}

/// Paths with their values, in the order of the file.
#[derive(Default)]
struct Lines(Vec<(String, String)>);

impl Lines {
    /// Settings of a section; a section within it, such as `FIVES:`, names the data.
    fn read(&mut self, section: &Map<String, Value>, name: Option<&str>) {
        if let Some(name) = name {
            self.add("data.train", name.to_owned());
        }
        for (key, value) in section {
            if let Value::Object(inner) = value {
                self.read(inner, Some(key));
                continue;
            }
            let spelt = key.to_lowercase().replace('-', "_");
            let known = KEYS.iter().find(|(keys, _)| keys.contains(&spelt.as_str()));
            if let Some(&(_, path)) = known
                && let Some(value) = meant(&spelt, value)
            {
                self.add(path, value);
            }
        }
    }

    /// A path that is said again counts.
    fn add(&mut self, path: &str, value: String) {
        self.0.retain(|(known, _)| known != path);
        self.0.push((path.to_owned(), value));
    }

    /// Keys of one section beside each other.
    fn show(&self) -> String {
        let mut sections: Vec<(&str, Vec<String>)> = Vec::new();
        for (path, value) in &self.0 {
            let (section, entry) = match path.split_once('.') {
                Some((section, key)) => (section, format!("{key}: {value}")),
                None => ("", format!("{path}: {value}")),
            };
            match sections
                .iter_mut()
                .find(|(known, _)| *known == section && !section.is_empty())
            {
                Some((_, entries)) => entries.push(entry),
                None => sections.push((section, vec![entry])),
            }
        }
        let lines = sections.iter().map(|(section, entries)| match *section {
            "" => format!("  {}", entries.join(", ")),
            _ => format!("  {section}: {{{}}}", entries.join(", ")),
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// The value as it is written here.
fn meant(key: &str, value: &Value) -> Option<String> {
    let percent = |share: f64| format!("{}%", (share * 1e4).round() / 1e2);
    Some(match (key, value) {
        ("mixed_precision" | "use_amp" | "amp", Value::Bool(is_on)) => {
            if *is_on { "fp16" } else { "f32" }.to_owned()
        }
        ("mixed_precision", Value::String(word)) if word == "no" => "f32".to_owned(),
        ("train_ratio", value) => percent(1.0 - value.as_f64().filter(|share| *share <= 1.0)?),
        ("val_ratio" | "val_split", value) => percent(value.as_f64()?),
        (_, Value::String(text)) if text.contains([':', '#', ',', '{', '[']) => value.to_string(),
        (_, Value::String(text)) => text.clone(),
        (_, Value::Null) => return None,
        (_, value) => value.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{parse, refusal};

    #[test]
    fn a_section_of_a_script_is_answered_with_lines_that_are_accepted() {
        let found = refusal(
            "trainer:\n  gradient_accumulation_steps: 4\n  mixed_precision: true\nmemory: 8GiB\n",
        );
        let expected = "run.yml: line 1: unknown key `trainer`: found `trainer:`\nhint: write instead\n  \
                        train: {gradient_accumulation: 4}\n  precision: fp16";
        assert_eq!(found, expected);
        let dataset = "dataset:\n  FIVES:\n    batch_size: 1\n    image_size: 1024\n    num_workers: 4\n    train_ratio: 0.8\n    \
                       image_subdir: Original\n    label_subdir: Ground truth\n";
        let found = refusal(dataset);
        let (_, lines) = found.split_once("write instead\n").unwrap();
        let expected = "  data: {train: FIVES, image_size: 1024, validation: 20%, image_subdir: Original, label_subdir: Ground truth}\n  \
                        train: {batch_size: 1}\n  num_workers: 4";
        assert_eq!(lines, expected);
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        let config = parse(&lines.join("\n")).unwrap();
        assert_eq!(config.train.batch_size, Some(1));
        // A section that says nothing known, or is none, is answered as any other key.
        assert!(refusal("dataset: cars.csv").contains("`data: {train:"));
        assert!(refusal("trainer: {strategy: ddp}").contains("`train: {batch_size: 1"));
    }
}
