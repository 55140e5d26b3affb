//! Flat configs of multi-task scripts for clips and reports (`multitask_config.yaml`), answered with the config that says the same.
//!
//! ```text
//! data_filename: reports.csv         task: video-text
//! target_label: Report               data: {train: reports.csv, caption: Report, video: FileName, frames: 16}
//! datapoint_loc_label: FileName      losses: {contrastive: 2.0, caption: 0.3}
//! frames: !!int 16
//! loss_weights: {contrastive: 2.0, captioning: 0.3}
//! ```

use serde_json::{Map, Value};

/// Keys that only such files have: two of them at the top level tell one.
const TELLING: [&str; 14] = [
    "data_filename",
    "target_label",
    "datapoint_loc_label",
    "groupby_column",
    "multi_video",
    "video_freeze_ratio",
    "text_freeze_ratio",
    "decoder_layers",
    "decoder_heads",
    "captioning_lr",
    "text_lr",
    "loss_weights",
    "max_text_length",
    "max_generation_length",
];

/// A key that is said elsewhere here, with the value as it is.
const MOVED: [(&str, &str); 25] = [
    ("data_filename", "data.train"),
    ("root", "data.image_root"),
    ("target_label", "data.caption"),
    ("datapoint_loc_label", "data.video"),
    ("frames", "data.frames"),
    ("stride", "data.stride"),
    ("groupby_column", "data.group"),
    ("num_videos", "data.num_videos"),
    ("batch_size", "train.batch_size"),
    ("gradient_accumulation_steps", "train.gradient_accumulation"),
    ("epochs", "train.epochs"),
    ("lr", "train.lr"),
    ("text_lr", "train.lr_by.\"text_model.*\""),
    ("captioning_lr", "train.lr_by.\"decoder.*\""),
    ("max_grad_norm", "train.clip_norm"),
    ("num_workers", "num_workers"),
    ("seed", "seed"),
    ("output_dir", "out"),
    ("max_text_length", "tokens"),
    ("decoder_layers", "video_text.decoder.layers"),
    ("decoder_heads", "video_text.decoder.heads"),
    ("decoder_intermediate_size", "video_text.decoder.inner"),
    ("label_smoothing", "losses.caption_smoothing"),
    ("max_generation_length", "generation.max_tokens"),
    ("captioning_temperature", "generation.temperature"),
];

/// The config that says the same as such a file; `None` where the layer is none, or `key` is not one of its own.
pub(super) fn lines_for(key: &str, layer: &Value) -> Option<String> {
    let entries = layer.as_object()?;
    let telling = TELLING.iter().filter(|key| entries.contains_key(**key));
    if telling.count() < 2 || !entries.contains_key(key) {
        return None;
    }
    let mut config = Config::default();
    config.say("task", "video-text".into());
    let is_alone = entries.get("multi_video") == Some(&Value::Bool(false));
    let mut left_out = Vec::new();
    for (key, value) in entries {
        let is_of_several = ["groupby_column", "num_videos"].contains(&key.as_str());
        if value.is_null() || key == "multi_video" || (is_alone && is_of_several) {
            continue;
        }
        if !config.read(key, value) {
            left_out.push(key.as_str());
        }
    }
    let mut lines = config.show();
    if !left_out.is_empty() {
        lines.push_str("\n  # without a line here: ");
        lines.push_str(&left_out.join(", "));
    }
    Some(format!("write instead\n{lines}"))
}

/// What is said, section by section.
#[derive(Default)]
struct Config(Map<String, Value>);

impl Config {
    /// Whether there is something to say.
    fn read(&mut self, key: &str, value: &Value) -> bool {
        if let Some((_, path)) = MOVED.iter().find(|(known, _)| *known == key) {
            self.say(path, value.clone());
            return true;
        }
        match (key, value) {
            ("aggregator_depth", depth) => {
                self.say("video_text.temporal_layers", depth.clone());
            }
            ("video_pooling_mode", Value::String(mode)) => {
                let pooling = match mode.as_str() {
                    "mean" => "mean",
                    "attention" => "attention",
                    _ => "temporal",
                };
                self.say("video_text.pooling", pooling.into());
            }
            ("max_position_embeddings", tokens) => {
                self.say("video_text.decoder.tokens", tokens.clone());
            }
            ("video_freeze_ratio", share) => return self.freeze("vision_model", share),
            ("text_freeze_ratio", share) => return self.freeze("text_model", share),
            ("weight_decay" | "video_weight_decay", decay) => {
                self.say("train.optimizer.weight_decay", decay.clone());
            }
            ("num_warmup_percent", share) => {
                if let Some(share) = share.as_f64() {
                    let percent = if share <= 1.0 { 100.0 * share } else { share };
                    self.say("train.warmup", format!("{percent}%").into());
                }
            }
            ("scheduler_name", Value::String(name)) => {
                let schedule = match name.contains("cos") {
                    true => "cosine",
                    false => "constant",
                };
                self.say("train.schedule", schedule.into());
            }
            ("use_amp", Value::Bool(is_on)) => {
                let precision = if *is_on { "auto" } else { "f32" };
                self.say("precision", precision.into());
            }
            ("captioning_do_sample", Value::Bool(true)) => {
                self.say("generation.method", "sample".into());
            }
            ("loss_weights", Value::Object(weights)) => {
                for (name, path) in [
                    ("contrastive", "losses.contrastive"),
                    ("captioning", "losses.caption"),
                ] {
                    if let Some(weight) = weights.get(name) {
                        self.say(path, weight.clone());
                    }
                }
            }
            _ => return false,
        }
        true
    }

    /// Such a ratio is the share of a tower's tensors that is trained, from the top: here a number of blocks of twelve.
    fn freeze(&mut self, tower: &str, share: &Value) -> bool {
        let Some(share) = share.as_f64().filter(|share| (0.0..=1.0).contains(share)) else {
            return false;
        };
        let blocks = (share * 12.0).round() as usize;
        let frozen = match blocks {
            0 => "all".to_owned(),
            12 => return true,
            blocks => format!("all but {blocks}"),
        };
        self.say(&format!("train.freeze.{tower}"), frozen.into());
        true
    }

    fn say(&mut self, path: &str, value: Value) {
        // Patterns are quoted, and have points in them.
        let (sections, key) = match path.split_once(".\"") {
            Some((sections, pattern)) => (sections.split('.').collect(), format!("\"{pattern}")),
            None => {
                let mut parts: Vec<&str> = path.split('.').collect();
                let key = parts.pop().unwrap_or(path).to_owned();
                (parts, key)
            }
        };
        let mut place = &mut self.0;
        for section in sections {
            let below = place.entry(section).or_insert_with(|| Map::new().into());
            let Value::Object(below) = below else { return };
            place = below;
        }
        place.insert(key, value);
    }

    fn show(&self) -> String {
        let order = [
            "task",
            "data",
            "video_text",
            "tokens",
            "losses",
            "train",
            "generation",
        ];
        let place = |key: &str| order.iter().position(|known| *known == key);
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by_key(|(key, _)| place(key).unwrap_or(order.len()));
        let lines = entries
            .into_iter()
            .map(|(key, value)| format!("  {key}: {}", flow(value)));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A value as it is written here, sections in braces.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) if text.contains([':', '#', ',', '{', '[', '*', ' ', '"']) => {
            value.to_string()
        }
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{parse, refusal};
    use super::super::{Freeze, FrozenShare, GenerationMethod, TaskName};

    const FILE: &str = "data_filename: !!str data/reports.csv\nroot: \"/data\"\ntarget_label: Report\n\
        datapoint_loc_label: FileName\nframes: !!int 16\nstride: !!int 2\nmulti_video: true\nnum_videos: !!int 4\n\
        groupby_column: StudyInstanceUID\nshuffle_videos: true\nbatch_size: !!int 12\nnum_workers: !!int 8\n\
        max_text_length: !!int 128\nmodel_name: mvit\naggregator_depth: 2\nvideo_freeze_ratio: 0.8\ntext_freeze_ratio: 0.0\n\
        dropout: !!float 0.1\ndecoder_layers: !!int 6\ndecoder_heads: 8\ndecoder_intermediate_size: 1024\n\
        max_position_embeddings: 512\nlr: !!float 0.00005\ntext_lr: 0.00002\ncaptioning_lr: 0.0001\nvideo_weight_decay: 0.01\n\
        gradient_accumulation_steps: 4\nnum_warmup_percent: 0.1\nscheduler_name: cosine_with_warmup\nuse_amp: !!bool true\n\
        epochs: 30\nseed: 42\nloss_weights:\n  contrastive: 2.0\n  captioning: 0.3\n  masked_modeling: 0.1\n\
        label_smoothing: 0.079\nrecall_k: [1, 5, 10]\nmax_generation_length: 128\ncaptioning_do_sample: true\n";

    #[test]
    fn a_whole_file_is_answered_with_a_config_that_is_accepted() {
        let found = refusal(FILE);
        let (_, lines) = found.split_once("write instead\n").unwrap();
        let left_out = "# without a line here: shuffle_videos, model_name, dropout, recall_k";
        assert!(lines.ends_with(left_out), "{lines}");
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        let config = parse(&lines.join("\n")).unwrap();
        assert_eq!(config.task, Some(TaskName::VideoText));
        assert_eq!(config.data.caption.as_deref(), Some("Report"));
        assert_eq!(config.tokens, Some(128));
        assert_eq!(config.train.batch_size, Some(12));
        assert_eq!(config.train.gradient_accumulation, Some(4));
        assert_eq!(config.losses.contrastive, 2.0);
        assert_eq!(config.losses.caption, Some(0.3));
        assert_eq!(config.losses.caption_smoothing, 0.079);
        assert_eq!(config.generation.method, GenerationMethod::Sample);
        assert_eq!(config.train.lr_by.0.len(), 2);
        let frozen = [
            ("vision_model", FrozenShare::AllBut(10)),
            ("text_model", FrozenShare::All),
        ];
        let Freeze::Names(names) = &config.train.freeze else {
            panic!("{:?}", config.train.freeze);
        };
        for (name, share) in frozen {
            assert!(names.contains(&(name.to_owned(), share)), "{names:?}");
        }
        assert_eq!(config.video_text.temporal_layers, Some(2));
    }

    #[test]
    fn a_key_alone_is_answered_alone() {
        let found = refusal("data_filename: reports.csv\n");
        assert!(found.contains("`data: {train: "), "{found}");
        let found = refusal("train: {captioning_lr: 1e-4}\n");
        assert!(found.contains("lr_by"), "{found}");
    }
}
