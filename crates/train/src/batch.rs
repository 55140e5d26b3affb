//! The samples of one effective batch, on the host.

use holdall_models::clip::end_token;
use holdall_models::config::ClipConfig;
use holdall_models::init::Draw;

/// Pictures, sample by sample, row by row, channels last.
#[derive(Clone, Debug, PartialEq)]
pub enum Pixels {
    /// As decoded; normalised on the device.
    Bytes(Vec<u8>),
    /// Normalised already.
    Floats(Vec<f32>),
}

/// Label of a sample that the label loss leaves out.
pub const IGNORED: i64 = -1;

/// An effective batch.
#[derive(Clone, Debug, PartialEq)]
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

    /// No samples yet: buffers that [`Batch::resize`] fills.
    pub fn empty(num_tokens: usize) -> Batch {
        Batch {
            num_samples: 0,
            num_tokens,
            pixels: Pixels::Bytes(Vec::new()),
            ids: Vec::new(),
            ends: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Makes room for `num_samples` pictures of `picture_bytes` each; what was there may remain.
    pub fn resize(&mut self, num_samples: usize, picture_bytes: usize) {
        self.num_samples = num_samples;
        match &mut self.pixels {
            Pixels::Bytes(bytes) => bytes.resize(num_samples * picture_bytes, 0),
            Pixels::Floats(_) => {
                self.pixels = Pixels::Bytes(vec![0; num_samples * picture_bytes]);
            }
        }
        self.ids.resize(num_samples * self.num_tokens, 0);
        self.labels.resize(num_samples, IGNORED);
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
