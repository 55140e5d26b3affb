//! Saves a tokenizer as a folder that `transformers` loads.

use std::fs;
use std::path::Path;

use holdall_files::write_whole;
use serde_json::json;

use super::TextEncoder;
use crate::error::DataError;

const CONFIG: &str = "tokenizer_config.json";
/// Files of a slow tokenizer of `transformers`, and settings of a fast one.
const SIBLINGS: [&str; 4] = [
    CONFIG,
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
];

impl TextEncoder {
    /// Writes `tokenizer.json` into a folder, byte for byte as it was read or trained, with its sibling files, or else a
    /// `tokenizer_config.json`.
    pub fn save(&self, folder: &Path) -> Result<(), DataError> {
        write(&folder.join("tokenizer.json"), &self.json)?;
        let mut has_config = false;
        for name in SIBLINGS {
            let beside = self.folder.as_ref().map(|source| source.join(name));
            if let Some(path) = beside.filter(|path| path.is_file()) {
                let bytes = fs::read(&path).map_err(|cause| DataError::Io {
                    path,
                    action: "read what lies beside the tokenizer",
                    cause,
                })?;
                write(&folder.join(name), &bytes)?;
                has_config |= name == CONFIG;
            }
        }
        if has_config {
            return Ok(());
        }
        write(&folder.join(CONFIG), self.config().as_bytes())
    }

    fn config(&self) -> String {
        let token = |id| self.tokenizer.id_to_token(id).unwrap_or_default();
        let (start, end) = (token(self.start), token(self.end));
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": start,
            "eos_token": end,
            "pad_token": end,
            "unk_token": end,
            "model_max_length": self.positions,
            "clean_up_tokenization_spaces": false,
        });
        format!("{config:#}\n")
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    write_whole(path, bytes).map_err(|cause| DataError::Io {
        path: path.to_owned(),
        action: "write it",
        cause,
    })
}
