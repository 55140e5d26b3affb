//! `generation_config.json`, as transformers reads and writes it.
//!
//! Keys that do not concern generation are ignored. Keys that would change tokens and are not supported here are refused.

use std::path::Path;

use holdall_files::read_regular;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DecoderTokens, EarlyStopping, Generation, Method};
use crate::error::TrainError;
use crate::run_folder::folder::failed;

pub const GENERATION_CONFIG: &str = "generation_config.json";

/// Largest accepted file.
const MOST_BYTES: u64 = 1 << 20;

/// Keys that are written.
#[derive(Serialize)]
struct Written<'a> {
    bos_token_id: i64,
    eos_token_id: &'a [i64],
    pad_token_id: i64,
    max_new_tokens: usize,
    #[serde(skip_serializing_if = "is_zero")]
    min_new_tokens: usize,
    do_sample: bool,
    num_beams: usize,
    #[serde(skip_serializing_if = "is_zero")]
    no_repeat_ngram_size: usize,
    #[serde(flatten)]
    beam: Option<BeamKeys>,
    #[serde(flatten)]
    sample: Option<SampleKeys>,
}

/// Written with several beams only, because transformers warns of these keys otherwise.
#[derive(Serialize)]
struct BeamKeys {
    length_penalty: f64,
    early_stopping: EarlyStopping,
}

/// Written for sampling only, because transformers warns of these keys otherwise.
#[derive(Serialize)]
struct SampleKeys {
    temperature: f64,
    top_k: usize,
    top_p: f64,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

pub fn generation_config_json(settings: &Generation, special: &DecoderTokens) -> String {
    let written = Written {
        bos_token_id: special.bos,
        eos_token_id: &special.eos,
        pad_token_id: special.pad,
        max_new_tokens: settings.num_steps(special),
        min_new_tokens: settings.min_tokens,
        do_sample: settings.method == Method::Sample,
        num_beams: settings.rows_per_sample(),
        no_repeat_ngram_size: settings.no_repeat_ngram,
        beam: (settings.method == Method::Beam).then_some(BeamKeys {
            length_penalty: settings.length_penalty,
            early_stopping: settings.early_stopping,
        }),
        sample: (settings.method == Method::Sample).then_some(SampleKeys {
            temperature: settings.temperature,
            top_k: settings.top_k,
            top_p: settings.top_p,
        }),
    };
    let text = serde_json::to_string_pretty(&written).expect("settings are plain data");
    text + "\n"
}

/// Keys that are read; `null` stands for the default.
#[derive(Deserialize)]
struct Read {
    max_new_tokens: Option<usize>,
    max_length: Option<usize>,
    min_new_tokens: Option<usize>,
    min_length: Option<usize>,
    do_sample: Option<bool>,
    num_beams: Option<usize>,
    length_penalty: Option<f64>,
    early_stopping: Option<EarlyStopping>,
    no_repeat_ngram_size: Option<usize>,
    temperature: Option<f64>,
    top_k: Option<usize>,
    top_p: Option<f64>,
}

/// Unsupported keys that change tokens, each with the value that changes nothing.
const OTHERS: [(&str, f64); 7] = [
    ("repetition_penalty", 1.0),
    ("encoder_repetition_penalty", 1.0),
    ("num_beam_groups", 1.0),
    ("diversity_penalty", 0.0),
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
];

/// Settings in a folder's file, `None` if it has none. The begin and end tokens come from the decoder.
///
/// # Errors
/// If the file cannot be read, or contains unsupported settings.
pub fn read_generation_config(folder: &Path) -> Result<Option<Generation>, TrainError> {
    let path = folder.join(GENERATION_CONFIG);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read_regular(&path, MOST_BYTES).map_err(failed(&path, "read"))?;
    parse(&path, &String::from_utf8_lossy(&bytes)).map(Some)
}

fn parse(path: &Path, text: &str) -> Result<Generation, TrainError> {
    let refuse = |what: String, hint: &str| {
        TrainError::Config(format!("{}: {what}\nhint: {hint}", path.display()))
    };
    let no_json = |error: serde_json::Error| {
        refuse(
            format!("expected generation settings, found {error}"),
            "take the file away for greedy captions, or write it again with transformers",
        )
    };
    let all: Value = serde_json::from_str(text).map_err(no_json)?;
    let read = Read::deserialize(&all).map_err(no_json)?;
    for (key, neutral) in OTHERS {
        let value = all.get(key).and_then(Value::as_f64).unwrap_or(neutral);
        if value != neutral {
            return Err(refuse(
                format!("{key}: {value}, expected {neutral}"),
                "captions are greedy, by beam search, or sampled by top_k, top_p and temperature; take the key away",
            ));
        }
    }
    let usual = Generation::default();
    let beams = read.num_beams.unwrap_or(1);
    let is_sampled = read.do_sample.unwrap_or(false);
    let method = match (is_sampled, beams > 1) {
        (false, false) => Method::Greedy,
        (false, true) => Method::Beam,
        (true, false) => Method::Sample,
        (true, true) => {
            return Err(refuse(
                format!("do_sample with num_beams: {beams}, expected one of them"),
                "`num_beams: 1` samples, `do_sample: false` searches with beams",
            ));
        }
    };
    // Lengths in transformers include BOS.
    let behind_bos = |length: Option<usize>| length.map(|length| length.saturating_sub(1));
    let settings = Generation {
        method,
        beams: if beams > 1 { beams } else { usual.beams },
        max_tokens: read.max_new_tokens.or(behind_bos(read.max_length)),
        min_tokens: read
            .min_new_tokens
            .or(behind_bos(read.min_length))
            .unwrap_or(0),
        length_penalty: read.length_penalty.unwrap_or(usual.length_penalty),
        early_stopping: read.early_stopping.unwrap_or(usual.early_stopping),
        no_repeat_ngram: read.no_repeat_ngram_size.unwrap_or(0),
        top_k: read.top_k.unwrap_or(usual.top_k),
        top_p: read.top_p.unwrap_or(usual.top_p),
        temperature: read.temperature.unwrap_or(usual.temperature),
        seed: usual.seed,
    };
    settings.check_numbers()?;
    settings.check_together()?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Generation, String> {
        let path = Path::new("generation_config.json");
        parse(path, text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let special = DecoderTokens {
            bos: 1,
            eos: vec![2],
            pad: 0,
            longest: 32,
        };
        for method in [Method::Greedy, Method::Beam, Method::Sample] {
            let mut settings = Generation {
                method,
                max_tokens: Some(20),
                min_tokens: 3,
                no_repeat_ngram: 2,
                ..Generation::default()
            };
            match method {
                Method::Greedy => {}
                Method::Beam => {
                    settings.beams = 6;
                    settings.length_penalty = 0.5;
                    settings.early_stopping = EarlyStopping::Never;
                }
                Method::Sample => {
                    settings.top_k = 7;
                    settings.top_p = 0.9;
                    settings.temperature = 0.7;
                }
            }
            let text = generation_config_json(&settings, &special);
            assert_eq!(read(&text), Ok(settings), "{text}");
        }
    }

    #[test]
    fn files_of_transformers_are_read() {
        let text = r#"{"bos_token_id": 1, "max_length": 60, "min_length": 20, "num_beams": 10, "length_penalty": 0.65,
            "encoder_no_repeat_ngram_size": 3, "forced_eos_token_id": null, "early_stopping": true, "transformers_version": "5.0"}"#;
        let settings = read(text).expect("a file of transformers");
        assert_eq!(settings.method, Method::Beam);
        assert_eq!((settings.max_tokens, settings.min_tokens), (Some(59), 19));
        assert_eq!(settings.early_stopping, EarlyStopping::WhenFull);
        assert_eq!(read("{}").map(|settings| settings.max_tokens), Ok(None));
    }

    #[test]
    fn what_would_change_tokens_unknown_to_us_is_refused() {
        for (text, what) in [
            (
                r#"{"repetition_penalty": 1.2}"#,
                "repetition_penalty: 1.2, expected 1",
            ),
            (
                r#"{"do_sample": true, "num_beams": 2}"#,
                "expected one of them",
            ),
            (r#"{"num_beams": "two"}"#, "expected generation settings"),
            (
                r#"{"early_stopping": "soon"}"#,
                "expected true, false or never",
            ),
            (
                r#"{"top_p": 0.0, "do_sample": true}"#,
                "above 0 and at most 1",
            ),
            ("[", "expected generation settings"),
        ] {
            let error = read(text).expect_err(text);
            assert!(
                error.contains(what) && error.contains("\nhint: "),
                "{error}"
            );
        }
    }
}
