//! Tokenizers of a run, for the text tower and the decoder: opening them, fitting the model to them, and token weights.

use std::path::{Path, PathBuf};

use holdall_data::config::TokenizerChoice;
use holdall_data::text::TextEncoder;
use holdall_files::thousands;
use holdall_graph::ops::vocabulary_loss::vocabulary_tile;
use holdall_models::config::TextPooling;
use holdall_models::video_text::config::TextTower;
use regex::Regex;

use super::export::CAPTION_TOKENIZER;
use super::opened_model::OpenedVideoText;
use super::{TokenizedTexts, VideoTextTask};
use crate::config::RunConfig;
use crate::error::TrainError;

/// The tokenizer file at `path`, which is the file or its folder; errors name `key`.
fn tokenizer_file(key: &str, path: &Path) -> Result<PathBuf, TrainError> {
    let file = if path.is_dir() {
        path.join("tokenizer.json")
    } else {
        path.to_owned()
    };
    if file.is_file() {
        return Ok(file);
    }
    Err(TrainError::Config(format!(
        "{key}: `{}`, expected a tokenizer.json or a folder with one, found none\n\
         hint: a tokenizer of the hub has to be here: `AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)` writes it, \
         then `{key}=FOLDER`",
        path.display()
    )))
}

/// Opens the tokenizer of the config or of the text tower's folder, or trains one on the texts.
pub(super) fn text_encoder(
    config: &RunConfig,
    opened: &mut OpenedVideoText,
    texts: &[String],
    room: u64,
    notes: &mut Vec<String>,
) -> Result<TextEncoder, TrainError> {
    let model = &mut opened.model;
    let (vocabulary, positions) = (model.text_vocab_size(), model.max_text_tokens());
    let folder = opened.weights.tokenizer_folder();
    let in_folder = folder.map(|folder| folder.join("tokenizer.json"));
    let text = match (&config.data.tokenizer, in_folder) {
        (TokenizerChoice::File(path), _) => {
            let file = tokenizer_file("data.tokenizer", path)?;
            TextEncoder::open(&file, vocabulary, positions, room)?
        }
        (TokenizerChoice::Auto, Some(path)) if path.is_file() => {
            TextEncoder::open(&path, vocabulary, positions, room)?
        }
        (TokenizerChoice::Auto, Some(path)) => {
            return Err(TrainError::Config(format!(
                "{}: expected the tokenizer that the weights were trained with, found nothing\n\
                 hint: `data: {{tokenizer: FILE}}` names one; `AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)` writes \
                 tokenizer.json beside a vocab.txt",
                path.display()
            )));
        }
        (TokenizerChoice::Train, _) | (TokenizerChoice::Auto, None) => {
            let text = TextEncoder::train(texts.iter().map(String::as_str), vocabulary, positions)?;
            notes.push(format!(
                "Tokenizer: trained on {} texts, {} tokens",
                thousands(texts.len()),
                thousands(text.vocab_size())
            ));
            text
        }
    };
    let end = text.eos_id();
    let TextTower::Clip(tower) = &mut model.text else {
        return Ok(text);
    };
    if opened.weights.are_random() {
        // Random weights may pool at this tokenizer's end token.
        tower.pooling = TextPooling::FirstEos(end);
        return Ok(text);
    }
    let pooled = match tower.pooling {
        TextPooling::FirstEos(id) => id,
        TextPooling::HighestId => vocabulary as i64 - 1,
    };
    if pooled != end {
        return Err(TrainError::Config(format!(
            "{}: texts end with token {end}, expected {pooled}, where the text tower reads them\n\
             hint: use the tokenizer.json that belongs to the model",
            folder.unwrap_or(Path::new("")).display()
        )));
    }
    Ok(text)
}

/// Opens the decoder's own tokenizer, if there is one. A new decoder gets the vocabulary and special tokens of its tokenizer.
pub(super) fn caption_encoder(
    config: &RunConfig,
    opened: &mut OpenedVideoText,
    text: &TextEncoder,
    room: u64,
) -> Result<Option<TextEncoder>, TrainError> {
    let text_vocabulary = opened.model.text_vocab_size();
    let Some(decoder) = &mut opened.model.decoder else {
        return Ok(None);
    };
    let saved = opened.weights.model.as_ref();
    let saved = saved.map(|folder| folder.path().join(CAPTION_TOKENIZER));
    let asked = config.video_text.tokenizer.as_deref().map(PathBuf::from);
    let path = asked.or(saved.filter(|path| path.is_dir() && !opened.has_new_decoder));
    let most = if opened.has_new_decoder {
        usize::MAX
    } else {
        decoder.vocab_size
    };
    let own = path
        .map(|path| -> Result<TextEncoder, TrainError> {
            let file = tokenizer_file("video_text.tokenizer", &path)?;
            Ok(TextEncoder::open(&file, most, decoder.max_positions, room)?)
        })
        .transpose()?;
    if opened.has_new_decoder {
        let of_captions = own.as_ref().unwrap_or(text);
        decoder.vocab_size = match &own {
            Some(own) => own.vocab_size(),
            None => text_vocabulary,
        };
        decoder.bos = of_captions.start_id();
        decoder.eos = of_captions.eos_id();
        decoder.pad = of_captions.pad_id();
    }
    Ok(own)
}

/// Log lines about texts that are cut to the text tower's or the decoder's positions.
pub(super) fn note_on_long_texts(
    texts: &[&[String]],
    tables: &[&TokenizedTexts],
    text: (&TextEncoder, usize),
    captions: Option<(&TextEncoder, usize)>,
) -> Result<Vec<String>, TrainError> {
    let mut cut = [0, 0];
    for (texts, tables) in texts.iter().zip(tables) {
        for (index, words) in texts.iter().enumerate() {
            // Only texts that fill all positions may have been cut.
            let is_cut = |encoder: &TextEncoder, most: usize, found: usize| {
                Ok::<bool, TrainError>(found == most && encoder.num_tokens(words)? > most)
            };
            let found = tables.texts.caption(index).len();
            cut[0] += usize::from(is_cut(text.0, text.1, found)?);
            if let (Some((encoder, most)), Some(table)) = (captions, &tables.captions) {
                let found = table.caption(index).len();
                cut[1] += usize::from(is_cut(encoder, most + 1, found)?);
            }
        }
    }
    let [of_text, of_captions] = cut.map(thousands);
    let mut notes = Vec::new();
    if cut[0] > 0 {
        let most = text.1;
        notes.push(format!(
            "Texts longer than the text tower's {most} tokens: {of_text}, cut at the end"
        ));
    }
    if let (true, Some((_, most))) = (cut[1] > 0, captions) {
        notes.push(format!(
            "Captions longer than the decoder's {most} tokens: {of_captions}, cut at the end"
        ));
    }
    Ok(notes)
}

/// Sets token weights from the patterns of `losses.caption_weights`; the first pattern that matches a token applies.
pub(super) fn weigh_tokens(
    task: &mut VideoTextTask,
    config: &RunConfig,
    encoder: &TextEncoder,
    notes: &mut Vec<String>,
) -> Result<(), TrainError> {
    let Some(vocab_size) = task.decoder().map(|decoder| decoder.vocab_size) else {
        return Ok(());
    };
    task.loss.vocabulary_tile = vocabulary_tile(vocab_size);
    let patterns = &config.losses.caption_weights;
    if patterns.is_empty() {
        return Ok(());
    }
    let mut weights = vec![None; vocab_size];
    for (pattern, &weight) in patterns {
        let regex = Regex::new(pattern).map_err(|error| {
            TrainError::Config(format!(
                "losses.caption_weights: `{pattern}`, expected a regular expression: {error}\n\
                 hint: `caption_weights: {{\"[0-9]+\": 5}}`"
            ))
        })?;
        let mut count = 0;
        for (id, known) in weights.iter_mut().enumerate() {
            let matches = encoder
                .token_text(id)
                .is_some_and(|text| regex.is_match(&text));
            if matches && known.is_none() {
                *known = Some(weight as f32);
                count += 1;
            }
        }
        if count == 0 {
            return Err(TrainError::Config(format!(
                "losses.caption_weights: `{pattern}`, expected a pattern that matches a token of the decoder, found none\n\
                 hint: patterns match single tokens, such as `{}`; an earlier pattern may have taken them",
                sample_tokens(encoder, vocab_size)
            )));
        }
        let count = thousands(count);
        notes.push(format!(
            "Caption tokens that match `{pattern}`: {count}, each counts {weight}"
        ));
    }
    task.loss.token_weights = weights
        .into_iter()
        .map(|weight| weight.unwrap_or(1.0))
        .collect();
    Ok(())
}

/// A few tokens as examples for an error message.
fn sample_tokens(encoder: &TextEncoder, vocab_size: usize) -> String {
    let tokens = (0..vocab_size).filter_map(|id| encoder.token_text(id));
    let words = tokens.filter(|text| text.trim().chars().count() > 2);
    let last: Vec<String> = words.take(3).map(|text| text.trim().to_owned()).collect();
    last.join("`, `")
}

#[cfg(test)]
mod tests {
    use holdall_models::video_text::config::VideoTextConfig;

    use super::*;
    use crate::engine::batch::IGNORED;

    #[test]
    fn tokens_that_match_a_pattern_count_by_it() {
        let texts = ["a red ball moves 12 steps", "3 blue balls, 45 steps"];
        let text = TextEncoder::train(texts.into_iter(), 640, 16).unwrap();
        let model = VideoTextConfig::preset("video-text-demo").unwrap();
        let mut task = VideoTextTask::new(model, Vec::new());
        let mut config = RunConfig::default();
        let weights = &mut config.losses.caption_weights;
        weights.insert("[0-9]".to_owned(), 5.0);
        let mut notes = Vec::new();
        weigh_tokens(&mut task, &config, &text, &mut notes).unwrap();
        assert_eq!(task.loss.token_weights.len(), 640);
        assert!(notes[0].contains("each counts 5"), "{notes:?}");
        let mut ids = [0; 16];
        let length = text.encode_into("moves 12 steps", &mut ids).unwrap();
        let weights = ids[1..length].iter().map(|&id| task.token_weight(id));
        let weights: Vec<f32> = weights.collect();
        assert_eq!((weights[0], weights[weights.len() - 1]), (1.0, 1.0));
        assert!(weights.contains(&5.0), "{weights:?}");
        assert_eq!(task.token_weight(text.eos_id()), 1.0);
        assert_eq!(task.token_weight(IGNORED), 0.0);
    }
}
