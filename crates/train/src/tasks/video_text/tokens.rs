//! Texts of the run's samples as token ids: for the text tower, and for the decoder.

use std::sync::Arc;

use holdall_data::samples::Samples;
use holdall_data::text::TextEncoder;

use super::super::clip::TokenTable;
use crate::config::Subset;
use crate::error::TrainError;

/// Every text of some samples once.
pub struct TokenizedTexts {
    /// As the text tower reads them: start and end around each.
    pub texts: TokenTable,
    /// As the decoder learns them: what it reads is all but the last token, what it is to say all but the first.
    pub captions: Option<TokenTable>,
}

/// What a run's data is to the task.
pub struct VideoTextData {
    /// What is trained on.
    pub train: Arc<Samples>,
    pub(super) train_texts: TokenizedTexts,
    pub(super) validation_texts: Option<TokenizedTexts>,
    /// Texts to ids of the text tower.
    pub text: TextEncoder,
    /// Captions to ids of the decoder, where its tokenizer is another.
    pub(super) own_caption_text: Option<TextEncoder>,
    /// How texts are made from columns.
    pub caption_template: String,
    /// What frames go through, as `preprocessor_config.json` has it.
    pub(super) processor: String,
}

impl VideoTextData {
    /// The texts of a part of the data.
    pub fn texts(&self, subset: Subset) -> &TokenizedTexts {
        match subset {
            Subset::Train => &self.train_texts,
            Subset::Validation => {
                let texts = self.validation_texts.as_ref();
                texts.expect("samples that are held out have texts")
            }
        }
    }

    /// Captions to ids of the decoder, and back.
    pub fn caption_text(&self) -> &TextEncoder {
        self.own_caption_text.as_ref().unwrap_or(&self.text)
    }
}

impl TokenizedTexts {
    /// Encodes every text; where there is a decoder, for up to `caption_tokens` tokens that it reads.
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

    /// Tokens that the text tower reads of a text, and the decoder of its caption: the larger number.
    pub(super) fn length(&self, text: usize) -> usize {
        let captions = self.captions.as_ref();
        let caption = captions.map_or(0, |table| table.caption(text).len() - 1);
        self.texts.caption(text).len().max(caption)
    }
}
