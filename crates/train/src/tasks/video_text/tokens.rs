//! Texts of the samples as token ids, for the text tower and the decoder.

use std::sync::Arc;

use holdall_data::samples::Samples;
use holdall_data::text::TextEncoder;

use super::super::clip::TokenTable;
use crate::config::Subset;
use crate::error::TrainError;

/// Token ids of each distinct text.
pub struct TokenizedTexts {
    /// Input of the text tower, with start and end tokens.
    pub texts: TokenTable,
    /// Captions for the decoder: its input is all but the last token, its targets are all but the first.
    pub captions: Option<TokenTable>,
}

/// The data of a run, and its preprocessing.
pub struct VideoTextData {
    pub train: Arc<Samples>,
    pub(super) train_texts: TokenizedTexts,
    pub(super) validation_texts: Option<TokenizedTexts>,
    /// Tokenizer of the text tower.
    pub text: TextEncoder,
    /// Tokenizer of the decoder, if it differs.
    pub(super) own_caption_text: Option<TextEncoder>,
    pub caption_template: String,
    /// Contents of `preprocessor_config.json`.
    pub(super) processor: String,
}

impl VideoTextData {
    /// The texts of a subset.
    pub fn texts(&self, subset: Subset) -> &TokenizedTexts {
        match subset {
            Subset::Train => &self.train_texts,
            Subset::Validation => {
                let texts = self.validation_texts.as_ref();
                texts.expect("samples that are held out have texts")
            }
        }
    }

    /// Tokenizer of captions.
    pub fn caption_text(&self) -> &TextEncoder {
        self.own_caption_text.as_ref().unwrap_or(&self.text)
    }
}

impl TokenizedTexts {
    /// Encodes every text; with a decoder, its captions for up to `caption_tokens` input tokens.
    pub fn new(
        texts: &[String],
        text: &TextEncoder,
        text_tokens: usize,
        decoder: Option<(&TextEncoder, usize)>,
    ) -> Result<TokenizedTexts, TrainError> {
        let captions = decoder.map(|(caption_text, caption_tokens)| {
            TokenTable::new(caption_text, texts, caption_tokens + 1)
        });
        Ok(TokenizedTexts {
            texts: TokenTable::new(text, texts, text_tokens)?,
            captions: captions.transpose()?,
        })
    }

    /// Number of input tokens of the text tower or of the decoder, whichever is larger.
    pub(super) fn length(&self, text: usize) -> usize {
        let captions = self.captions.as_ref();
        let caption = captions.map_or(0, |table| table.caption(text).len() - 1);
        self.texts.caption(text).len().max(caption)
    }
}
