//! Trains a tokenizer on captions, where no pretrained one fits. CLIP's recipe: lower case, words and runs of punctuation,
//! bytes as the alphabet (so no text is unknown), the most frequent pairs merged until the vocabulary is full. Unlike
//! CLIP, a number is one word, since captions of cars differ by years and model numbers.
//!
//! Ids: 0 start, 1 end, then 256 bytes inside words, 256 that end one, and merges. The end is not 2, which Hugging Face's
//! CLIP treats as "the highest id of the caption".

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use holdall_files::{FNV_START, OverLimit, check_memory, fnv1a};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::{Lowercase, NFC, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::tokenizer::{
    AddedToken, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, SplitDelimiterBehavior, Tokenizer, Trainer,
};

use super::TextEncoder;
use crate::error::DataError;
use crate::words::thousands;

pub(super) const START: &str = "<|startoftext|>";
pub(super) const END: &str = "<|endoftext|>";
const END_OF_WORD: &str = "</w>";
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+";
/// Smallest count of a merged pair: a pair seen once says more about its caption than about the language.
const LEAST_PAIRS: u64 = 2;
/// Smallest vocabulary: start, end, and each byte inside a word and at its end.
const LEAST_VOCAB: usize = 2 + 2 * 256;

impl TextEncoder {
    /// Trains a tokenizer of at most `vocab_size` ids. Equal captions give the same tokenizer, byte for byte.
    pub fn train<'a>(
        captions: impl Iterator<Item = &'a str> + Send,
        vocab_size: usize,
        positions: usize,
    ) -> Result<TextEncoder, DataError> {
        if vocab_size < LEAST_VOCAB {
            return Err(DataError::invalid(
                "tokenizer",
                format_args!("a vocabulary of at least {LEAST_VOCAB}"),
                vocab_size,
                "raise the model's `vocab_size`",
            ));
        }
        let json = trained(captions, vocab_size).map_err(|cause| {
            if let Some(over) = cause.downcast_ref::<TooManyWords>() {
                return DataError::OverBudget {
                    place: "training a tokenizer on the captions".to_owned(),
                    what: format!("the first {} words", thousands(over.num_words)),
                    over: over.over,
                    hint: "a ready one, by `tokenizer: path/to/tokenizer.json` under `data:`",
                    is_all: false,
                };
            }
            let hint = "name a ready one: `tokenizer: path/to/tokenizer.json`";
            DataError::invalid("tokenizer", "to train on the captions", cause, hint)
        })?;
        let path = Path::new("the trained tokenizer");
        TextEncoder::from_json(path, json.into_bytes(), None, positions)
    }
}

fn trained<'a>(
    captions: impl Iterator<Item = &'a str> + Send,
    vocab_size: usize,
) -> tokenizers::Result<String> {
    let normalizer = Normalizers::new(vec![
        NFC.into(),
        Replace::new(
            tokenizers::normalizers::replace::ReplacePattern::Regex(r"\s+".to_owned()),
            " ",
        )?
        .into(),
        Lowercase.into(),
    ]);
    let words = SplitPattern::Regex(WORDS.to_owned());
    let pre_tokenizer = PreTokenizers::new(vec![
        Split::new(words, SplitDelimiterBehavior::Removed, true)?.into(),
        ByteLevel::new(false, true, false).into(),
    ]);
    let mut trainer = trainer(vocab_size);
    let vocabulary = Mutex::new(Vocabulary::default());
    trainer.feed(captions, |caption| {
        let mut normalized = NormalizedString::from(caption);
        normalizer.normalize(&mut normalized)?;
        let mut pieces = PreTokenizedString::from(normalized);
        pre_tokenizer.pre_tokenize(&mut pieces)?;
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        let pieces = pieces.into_iter().map(|(word, ..)| word);
        let words: Vec<String> = pieces.map(str::to_owned).collect();
        let mut known = vocabulary.lock().unwrap_or_else(PoisonError::into_inner);
        known.add(&words)?;
        Ok(words)
    })?;
    let mut model = BPE::default();
    trainer.train(&mut model)?;

    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(Some(normalizer))?;
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, false)));
    tokenizer.with_post_processor(Some(
        TemplateProcessing::builder()
            .try_single(format!("{START} $A {END}"))?
            .special_tokens(vec![(START, 0), (END, 1)])
            .build()?,
    ));
    tokenizer.add_special_tokens([START, END].map(|token| AddedToken::from(token, true)))?;
    tokenizer.to_string(false)
}

/// Distinct words of captions, by hash, to estimate the trainer's memory.
#[derive(Default)]
struct Vocabulary {
    words: HashSet<u64>,
    num_bytes: usize,
    /// Number of words at the last memory check.
    num_checked: usize,
}

/// The trainer would need more memory than the budget leaves.
#[derive(Debug, thiserror::Error)]
#[error("{num_words} words: {over}")]
struct TooManyWords {
    num_words: usize,
    over: OverLimit,
}

/// Peak memory of the trainer per distinct word, and per byte of it; measured over words of 4, 8 and 16 letters.
const PER_WORD_BYTES: usize = 256;
const PER_LETTER_BYTES: usize = 104;
/// Distinct words between two memory checks.
const WORDS_BETWEEN_CHECKS: usize = 8192;

impl Vocabulary {
    fn add(&mut self, words: &[String]) -> Result<(), TooManyWords> {
        for word in words {
            if self.words.insert(fnv1a(FNV_START, word.as_bytes())) {
                self.num_bytes += word.len();
            }
        }
        let num_words = self.words.len();
        if num_words < self.num_checked + WORDS_BETWEEN_CHECKS {
            return Ok(());
        }
        self.num_checked = num_words;
        let needed = num_words * PER_WORD_BYTES + self.num_bytes * PER_LETTER_BYTES;
        check_memory(needed as u64).map_err(|over| TooManyWords { num_words, over })
    }
}

/// The trainer numbers the bytes that end a word in the order of a hash map, which differs between runs, and breaks ties by
/// these numbers. The explicit alphabet fixes the order.
fn trainer(vocab_size: usize) -> BpeTrainer {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let inside = bytes.iter().map(char::to_string);
    let last = bytes.iter().map(|byte| format!("{byte}{END_OF_WORD}"));
    let numbered = [START, END].map(str::to_owned).into_iter();
    let numbered = numbered.chain(inside).chain(last);
    BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocab_size)
        .min_frequency(LEAST_PAIRS)
        .end_of_word_suffix(END_OF_WORD.to_owned())
        .special_tokens(
            numbered
                .map(|token| AddedToken::from(token, true))
                .collect(),
        )
        .build()
}
