//! The samples of one effective batch, on the host.

use holdall_data::loader::Loaded;
use holdall_device::HostRow;
use holdall_models::clip::end_token;
use holdall_models::config::ClipConfig;
use holdall_models::init::Draw;

use crate::prepare::Part;
use crate::step_graph::StepConfig;

/// Pictures, sample by sample, row by row, channels last.
#[derive(Clone, Debug, PartialEq)]
pub enum Pixels {
    /// As decoded; normalised on the device.
    Bytes(Vec<u8>),
    /// The same, each where it was decoded to.
    Rows(Vec<HostRow>),
    /// Normalised already.
    Floats(Vec<f32>),
}

impl Default for Pixels {
    /// None.
    fn default() -> Pixels {
        Pixels::Rows(Vec::new())
    }
}

/// Label of a sample that the label loss leaves out.
pub const IGNORED: i64 = -1;

/// An effective batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// How many samples.
    pub num_samples: usize,
    /// Tokens per caption, padding included.
    pub num_tokens: usize,
    /// Pictures.
    pub pixels: Pixels,
    /// `num_samples x num_tokens`.
    pub ids: Vec<i64>,
    /// Position of each caption's end token.
    pub ends: Vec<i64>,
    /// Class of each sample, negative where it has none.
    pub labels: Vec<i64>,
}

impl Batch {
    /// Finds the end tokens.
    pub fn new(
        config: &ClipConfig,
        num_tokens: usize,
        pixels: Pixels,
        ids: Vec<i64>,
        labels: Vec<i64>,
    ) -> Batch {
        let mut batch = Batch {
            num_samples: labels.len(),
            num_tokens,
            pixels,
            ids,
            ends: Vec::new(),
            labels,
        };
        batch.find_ends(config);
        batch
    }

    /// Lets go of the rows, so that they can be written again.
    pub(crate) fn let_go(&mut self) {
        if let Pixels::Rows(rows) = &mut self.pixels {
            rows.clear();
        }
    }

    /// Becomes the batch of these pictures, with their captions and labels.
    pub(crate) fn take(&mut self, loaded: &Loaded<HostRow>, part: &Part, config: &StepConfig) {
        self.num_samples = loaded.rows.len();
        self.num_tokens = config.num_tokens;
        match &mut self.pixels {
            Pixels::Rows(rows) => rows.extend(loaded.rows.iter().cloned()),
            other => *other = Pixels::Rows(loaded.rows.clone()),
        }
        self.ids.resize(self.num_samples * self.num_tokens, 0);
        self.labels.clear();
        let captions = self.ids.chunks_mut(self.num_tokens);
        for (&sample, ids) in loaded.samples.iter().zip(captions) {
            let caption = part.samples.caption_id(sample as usize);
            part.tokens.write(caption as usize, ids);
            let label = part.samples.label(sample as usize);
            self.labels.push(i64::from(label));
        }
        self.find_ends(&config.model);
    }

    /// Finds every caption's end token.
    pub fn find_ends(&mut self, config: &ClipConfig) {
        let captions = self.ids.chunks(self.num_tokens);
        self.ends.clear();
        self.ends
            .extend(captions.map(|caption| end_token(caption, config.text.pooling) as i64));
    }

    /// Random pictures, captions of varied length and labels: for benchmarks and certificates.
    pub fn random(
        config: &ClipConfig,
        num_samples: usize,
        num_tokens: usize,
        num_labels: Option<usize>,
        seed: u64,
    ) -> Batch {
        let mut draw = Draw::new(seed, "batch");
        let size = config.vision.image_size;
        let mut pixels = vec![0u8; num_samples * size * size * 3];
        for eight in pixels.chunks_mut(8) {
            let bits = draw.bits().to_le_bytes();
            eight.copy_from_slice(&bits[..eight.len()]);
        }
        let vocabulary = config.text.vocab_size as u64;
        let end = match config.text.pooling {
            holdall_models::config::TextPooling::HighestId => vocabulary as i64 - 1,
            holdall_models::config::TextPooling::FirstEos(eos) => eos,
        };
        let mut ids = Vec::with_capacity(num_samples * num_tokens);
        let mut labels = Vec::with_capacity(num_samples);
        for _ in 0..num_samples {
            let shortest = num_tokens.div_ceil(2) as u64;
            let length = (shortest + draw.bits() % (num_tokens as u64 - shortest + 1)) as usize;
            let caption = (0..num_tokens).map(|position| {
                let id = (draw.bits() % (vocabulary - 1)) as i64;
                match position + 1 {
                    at if at == length => end,
                    at if at > length => 0,
                    _ if id == end => (id + 1) % vocabulary as i64,
                    _ => id,
                }
            });
            ids.extend(caption.collect::<Vec<_>>());
            labels.push(num_labels.map_or(IGNORED, |labels| (draw.bits() % labels as u64) as i64));
        }
        Batch::new(config, num_tokens, Pixels::Bytes(pixels), ids, labels)
    }

    /// Bytes that a batch of byte pictures takes on the host.
    pub fn host_bytes(config: &ClipConfig, num_samples: usize, num_tokens: usize) -> u64 {
        let size = config.vision.image_size;
        let indices = num_tokens + 2;
        num_samples as u64 * (size * size * 3 + indices * size_of::<i64>()) as u64
    }

    /// Samples that the label loss counts.
    pub fn num_labelled(&self) -> usize {
        self.labels.iter().filter(|&&label| label >= 0).count()
    }
}
