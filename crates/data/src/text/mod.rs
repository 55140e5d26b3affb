//! Captions to token ids, as CLIP's text tower reads them:
//!
//! `<|startoftext|> a photo of a ford <|endoftext|> <|endoftext|> ...`
//!
//! The feature is taken at the first end token, so the padding after it does not matter; rows are padded with the end
//! token.

mod saving;
#[cfg(test)]
mod tests;
mod training;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use crate::error::DataError;
use crate::words::listed;

/// Lengths that captions are padded to, besides the model's number of positions.
pub const BUCKETS: [usize; 4] = [16, 32, 48, 77];

/// Peak memory of parsing a tokenizer, per byte of its file: measured as 17.
const PARSED_PER_BYTE: u64 = 18;

/// Shortest padded length for captions of up to `longest` tokens; at most `positions`.
pub fn bucket(longest: usize, positions: usize) -> usize {
    let fitting = BUCKETS.into_iter().find(|bucket| *bucket >= longest);
    fitting.unwrap_or(positions).min(positions)
}

/// A tokenizer that puts a start and an end token around every caption.
#[derive(Clone, Debug)]
pub struct TextEncoder {
    tokenizer: Tokenizer,
    /// Bytes of `tokenizer.json`.
    json: Vec<u8>,
    /// Folder that it was read from.
    folder: Option<PathBuf>,
    start: u32,
    end: u32,
    vocab_size: usize,
    positions: usize,
}

impl TextEncoder {
    /// Reads a `tokenizer.json` for a model with this many token embeddings and positions, if that takes at most `most_bytes`
    /// of memory.
    pub fn open(
        path: &Path,
        model_vocab_size: usize,
        positions: usize,
        most_bytes: u64,
    ) -> Result<TextEncoder, DataError> {
        let failed = |cause: io::Error| DataError::Io {
            path: path.to_owned(),
            action: "read the tokenizer",
            cause,
        };
        let (file, metadata) = holdall_files::open_regular(path).map_err(failed)?;
        let needed_bytes = metadata.len().saturating_mul(PARSED_PER_BYTE);
        if needed_bytes > most_bytes {
            return Err(DataError::TokenizerOverBudget {
                path: path.to_owned(),
                file_bytes: metadata.len(),
                needed_bytes,
                allowed_bytes: most_bytes,
            });
        }
        let mut json = Vec::with_capacity(metadata.len() as usize);
        let read = file.take(metadata.len()).read_to_end(&mut json);
        read.map_err(failed)?;
        let folder = path.parent().map(Path::to_owned);
        let encoder = TextEncoder::from_json(path, json, folder, positions)?;
        if encoder.vocab_size > model_vocab_size {
            return Err(DataError::invalid(
                path.display(),
                format_args!("ids below {model_vocab_size}, the model's vocabulary"),
                encoder.vocab_size - 1,
                "use the tokenizer that belongs to the model, or `tokenizer: train` with random weights",
            ));
        }
        Ok(encoder)
    }

    fn from_json(
        path: &Path,
        json: Vec<u8>,
        folder: Option<PathBuf>,
        positions: usize,
    ) -> Result<TextEncoder, DataError> {
        let broken = |cause: tokenizers::Error| {
            DataError::invalid(
                path.display(),
                "a tokenizer.json of Hugging Face",
                format_args!("one that does not load: {cause}"),
                "copy it again from the model's folder; `save_pretrained` writes it",
            )
        };
        let mut tokenizer = Tokenizer::from_bytes(&json).map_err(broken)?;
        // This type pads and truncates itself, to the length of each batch.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(broken)?;
        let around_nothing = tokenizer.encode_fast("", true).map_err(broken)?;
        let &[start, end] = around_nothing.get_ids() else {
            return Err(DataError::invalid(
                path.display(),
                "a start and an end token around an empty caption",
                listed(around_nothing.get_tokens()),
                "CLIP's tokenizers add <|startoftext|> and <|endoftext|> in their post-processor",
            ));
        };
        let highest_id = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        Ok(TextEncoder {
            tokenizer,
            json,
            folder,
            start,
            end,
            vocab_size: highest_id as usize + 1,
            positions,
        })
    }

    /// Writes a caption's ids to all of `ids`: truncated so that the last is the end token, or padded with it. Returns the
    /// caption's number of ids, start and end included, at most `ids.len()`.
    pub fn encode_into(&self, text: &str, ids: &mut [i64]) -> Result<usize, DataError> {
        let encoding = self.encoding(text)?;
        let num_tokens = encoding.len().min(ids.len());
        ids.fill(i64::from(self.end));
        for (id, &token) in ids.iter_mut().zip(encoding.get_ids()) {
            *id = i64::from(token);
        }
        if let Some(last) = ids.last_mut() {
            *last = i64::from(self.end);
        }
        Ok(num_tokens)
    }

    /// Number of ids of a caption, start and end included, without truncation.
    pub fn num_tokens(&self, text: &str) -> Result<usize, DataError> {
        Ok(self.encoding(text)?.len())
    }

    fn encoding(&self, text: &str) -> Result<tokenizers::Encoding, DataError> {
        self.tokenizer.encode_fast(text, true).map_err(|cause| {
            let start: String = text.chars().take(80).collect();
            let hint = "check it for unusual characters, or use another tokenizer";
            DataError::invalid(format_args!("caption `{start}`"), "token ids", cause, hint)
        })
    }

    /// Text of token ids, without start, end and other special tokens.
    pub fn decode(&self, ids: &[i64]) -> Result<String, DataError> {
        let ids: Vec<u32> = ids
            .iter()
            .filter_map(|&id| u32::try_from(id).ok())
            .filter(|&id| id != self.start && id != self.end)
            .collect();
        let words = self.tokenizer.decode(&ids, true).map_err(|cause| {
            let hint = "the decoder's tokenizer may not be the one that it was trained with";
            DataError::invalid(format_args!("token ids {ids:?}"), "words", cause, hint)
        })?;
        // CLIP's tokenizers end every word with `</w>`, which transformers removes too.
        Ok(words.replace("</w>", " ").trim().to_owned())
    }

    /// Text of a token without its word-joining marks (`##ing`, `</w>`). `None` for an unknown or special id.
    pub fn token_text(&self, id: usize) -> Option<String> {
        let id = u32::try_from(id).ok()?;
        let token = self.tokenizer.id_to_token(id)?;
        let added = self.tokenizer.get_added_vocabulary();
        if added.is_special_token(&token) || id == self.start || id == self.end {
            return None;
        }
        let token = token.strip_prefix("##").unwrap_or(&token);
        let token = token.strip_suffix("</w>").unwrap_or(token);
        Some(token.trim_start_matches(['\u{120}', '\u{2581}']).to_owned())
    }

    /// Id that begins every caption.
    pub fn start_id(&self) -> i64 {
        i64::from(self.start)
    }

    /// Padding id after a caption's end: `[PAD]` where the tokenizer has one, else the end token.
    pub fn pad_id(&self) -> i64 {
        let pad = ["[PAD]", "<pad>", "<|pad|>"]
            .iter()
            .find_map(|name| self.tokenizer.token_to_id(name));
        i64::from(pad.unwrap_or(self.end))
    }

    /// Id that ends every caption, and pads it.
    pub fn eos_id(&self) -> i64 {
        i64::from(self.end)
    }

    /// Highest id plus one.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}
