//! From a config to all that a run needs before it is planned: samples, tokens, the model, what is computed.

use std::path::PathBuf;
use std::sync::Arc;

use holdall_data::config::TokenizerChoice;
use holdall_data::order::balanced_class_weights;
use holdall_data::samples::Samples;
use holdall_data::source::{self, BadRow, Captions, DataSet};
use holdall_data::text::{TextEncoder, bucket};
use holdall_device::cuda::cards::Card;
use holdall_models::config::TextPooling;
use holdall_plan::Plan;

use crate::budget::show_bytes;
use crate::config::{ClassWeights, RunConfig};
use crate::error::TrainError;
use crate::export::LabelNames;
use crate::measure::Choosing;
use crate::setup::{OpenedModel, Setup, Weights, open_model, resolve_budget, room_to_open};
use crate::site::Site;

/// Every caption once, as token ids, one behind the other.
pub struct TokenTable {
    ids: Vec<u32>,
    ends: Vec<u32>,
}

impl TokenTable {
    /// Encodes every caption to at most `longest` tokens, start and end included.
    pub fn new(
        text: &TextEncoder,
        captions: &[String],
        longest: usize,
    ) -> Result<TokenTable, TrainError> {
        let (mut ids, mut ends) = (Vec::new(), Vec::new());
        let mut row = vec![0; longest];
        for caption in captions {
            let length = text.encode_into(caption, &mut row)?;
            ids.extend(row[..length].iter().map(|&id| id as u32));
            ends.push(ids.len() as u32);
        }
        ids.shrink_to_fit();
        Ok(TokenTable { ids, ends })
    }

    fn caption(&self, index: usize) -> &[u32] {
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        &self.ids[start..self.ends[index] as usize]
    }

    /// Captions.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Tokens of the longest caption.
    pub fn longest(&self) -> usize {
        (0..self.len())
            .map(|index| self.caption(index).len())
            .max()
            .unwrap_or(0)
    }

    /// Writes a caption's ids over `row`, filled up with its end token.
    pub fn write(&self, index: usize, row: &mut [i64]) {
        let caption = self.caption(index);
        let end = caption.last().copied().unwrap_or(0);
        let ids = caption.iter().copied().chain(std::iter::repeat(end));
        for (to, id) in row.iter_mut().zip(ids) {
            *to = i64::from(id);
        }
    }
}

/// Samples with their captions as token ids.
pub struct Part {
    /// Pictures, captions, labels.
    pub samples: Arc<Samples>,
    /// Their different captions.
    pub tokens: TokenTable,
}

/// A run before its plan.
pub struct Prepared {
    /// What is computed, from which weights, within what.
    pub setup: Setup,
    /// What is trained on.
    pub train: Part,
    /// What is held out.
    pub validation: Option<Part>,
    /// Where the samples are listed.
    pub csv: PathBuf,
    /// Rows of it that are no samples.
    pub bad_rows: Vec<BadRow>,
    /// Names of the labels.
    pub labels: Vec<String>,
    /// How captions are made from columns.
    pub caption_template: String,
    /// Captions to ids.
    pub text: TextEncoder,
    /// What was found and decided, for the log.
    pub notes: Vec<String>,
}

impl Prepared {
    /// Reads the data, opens the model, finds or trains the tokenizer.
    pub fn new<'a>(config: &RunConfig, site: impl Into<Site<'a>>) -> Result<Prepared, TrainError> {
        let site = site.into();
        let data = source::read(&config.data, Captions::Required, config.seed)?;
        let mut opened = open_model(&config.model)?;
        let mut notes = data.notes.clone();
        let room = room_to_open(site, resolve_budget(config.memory, site)?);
        let text = text_encoder(config, &mut opened, &data, room, &mut notes)?;
        let positions = opened.model.text.max_positions;
        let part = |samples: Samples| -> Result<Part, TrainError> {
            let tokens = TokenTable::new(&text, samples.captions(), positions)?;
            Ok(Part {
                samples: Arc::new(samples),
                tokens,
            })
        };
        let train = part(data.train)?;
        let validation = data.validation.map(part).transpose()?;
        let parts = [Some(&train), validation.as_ref()];
        let longest = parts.iter().flatten().map(|part| part.tokens.longest());
        let tokens = match config.tokens {
            Some(tokens) => tokens,
            None => bucket(longest.max().unwrap_or(1), positions),
        };
        notes.push(format!(
            "Tokens per caption: {tokens} of the model's {positions}"
        ));
        let labels = num_labels(config, &data.labels, data.label_column.is_some())?;
        let mut setup = Setup::assemble(config, site, opened, labels, tokens)?;
        if let (Weights::Folder(folder), Some(_)) = (&setup.weights, labels) {
            let names = LabelNames::read(folder.path())?.map(|names| names.labels);
            let same_number = names
                .as_ref()
                .is_some_and(|names| names.len() == data.labels.len());
            setup.keep_head = names.as_ref() == Some(&data.labels);
            if same_number && !setup.keep_head {
                notes.push("Label head: RANDOM (the folder's head is for other labels)".to_owned());
            }
        }
        if let (Some(labels), ClassWeights::Balanced) = (labels, config.losses.class_weights) {
            setup.step.class_weights = balanced_class_weights(train.samples.labels(), labels);
        }
        notes.extend(note_on_long_captions(
            &text,
            [Some(&train), validation.as_ref()],
            positions,
        )?);
        notes.extend(note_on_similarities(validation.as_ref().unwrap_or(&train)));
        Ok(Prepared {
            setup,
            train,
            validation,
            csv: data.csv,
            bad_rows: data.bad_rows,
            labels: data.labels,
            caption_template: data.caption_template,
            text,
            notes,
        })
    }

    /// A batch that the data cannot fill is said.
    pub(crate) fn note_on_effective_batch(&mut self) -> Result<usize, TrainError> {
        let effective_batch = self.setup.request.samples_per_step()?;
        let samples = self.train.samples.len();
        if effective_batch > samples {
            self.notes.push(format!(
                "Effective batch {effective_batch} is larger than the {samples} pictures: every step sees all of them, \
                 and room for the rest\nhint: --effective-batch {samples} gives the same gradients in less"
            ));
        }
        Ok(effective_batch)
    }

    /// Plans for a card that is not there: nothing is read beyond what [`Prepared::new`] has read.
    pub fn plan_for_card(&mut self, card: &'static Card) -> Result<Plan, TrainError> {
        self.note_on_effective_batch()?;
        self.setup.plan(Site::Card(card), 0, Choosing::Predicted)
    }
}

/// Data with labels says how many there are.
fn num_labels(
    config: &RunConfig,
    names: &[String],
    labelled: bool,
) -> Result<Option<usize>, TrainError> {
    match (config.labels, labelled) {
        (Some(asked), true) if asked != names.len() => Err(TrainError::Config(format!(
            "labels: {asked}, expected {}: the data has that many\nhint: leave `labels` out",
            names.len()
        ))),
        (Some(asked), false) => Err(TrainError::Config(format!(
            "labels: {asked}, found no column of labels\nhint: `data: {{label: COLUMN}}` says where labels are"
        ))),
        (_, true) => Ok(Some(names.len())),
        (None, false) => Ok(None),
    }
}

/// The folder's tokenizer, the one asked for, or one trained on the captions.
fn text_encoder(
    config: &RunConfig,
    OpenedModel { model, weights, .. }: &mut OpenedModel,
    data: &DataSet,
    room: u64,
    notes: &mut Vec<String>,
) -> Result<TextEncoder, TrainError> {
    let (vocabulary, positions) = (model.text.vocab_size, model.text.max_positions);
    let in_folder = match weights {
        Weights::Folder(folder) => Some(folder.path().join("tokenizer.json")),
        Weights::Random { .. } => None,
    };
    let text = match (&config.data.tokenizer, in_folder) {
        (TokenizerChoice::File(path), _) => TextEncoder::open(path, vocabulary, positions, room)?,
        (TokenizerChoice::Auto, Some(path)) if path.is_file() => {
            TextEncoder::open(&path, vocabulary, positions, room)?
        }
        (TokenizerChoice::Auto, Some(path)) => {
            return Err(TrainError::Config(format!(
                "{}: expected the tokenizer that the weights were trained with, found nothing\n\
                 hint: `data: {{tokenizer: FILE}}` names one; `tokenizer: train` makes a new one, and the text tower \
                 has to learn its tokens from the beginning",
                path.display()
            )));
        }
        (TokenizerChoice::Train, _) | (TokenizerChoice::Auto, None) => {
            let captions = data.train.captions();
            let text =
                TextEncoder::train(captions.iter().map(String::as_str), vocabulary, positions)?;
            notes.push(format!(
                "Tokenizer: trained on {} captions, {} tokens",
                captions.len(),
                text.vocab_size()
            ));
            text
        }
    };
    let end = text.eos_id();
    match weights {
        // Nothing was learnt yet, so the model may pool where this tokenizer ends.
        Weights::Random { .. } => model.text.pooling = TextPooling::FirstEos(end),
        Weights::Folder(folder) => {
            let pooled = match model.text.pooling {
                TextPooling::FirstEos(id) => id,
                TextPooling::HighestId => vocabulary as i64 - 1,
            };
            if pooled != end {
                return Err(TrainError::Config(format!(
                    "{}: captions end with token {end}, expected {pooled}, where the model reads them\n\
                     hint: use the tokenizer.json that belongs to the model",
                    folder.path().display()
                )));
            }
        }
    }
    Ok(text)
}

/// Captions that do not fit are cut, and that is said.
fn note_on_long_captions(
    text: &TextEncoder,
    parts: [Option<&Part>; 2],
    positions: usize,
) -> Result<Option<String>, TrainError> {
    let mut cut = 0;
    for part in parts.into_iter().flatten() {
        for (index, caption) in part.samples.captions().iter().enumerate() {
            // Only those that fill every position may have been cut.
            let full = part.tokens.caption(index).len() == positions;
            cut += usize::from(full && text.num_tokens(caption)? > positions);
        }
    }
    Ok((cut > 0).then(|| {
        format!("Captions longer than the model's {positions} tokens: {cut}, cut at the end")
    }))
}

/// People look for this line, because elsewhere evaluation dies there.
fn note_on_similarities(part: &Part) -> Option<String> {
    let bytes = part.samples.len() as u64 * part.tokens.len() as u64 * 4;
    (bytes > 1 << 30).then(|| {
        format!(
            "The similarity matrix would take {}: ranks are counted row by row instead",
            show_bytes(bytes)
        )
    })
}
