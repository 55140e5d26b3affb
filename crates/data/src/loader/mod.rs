//! Reads pictures ahead of the trainer, by worker threads, in the order of a stream.
//!
//! ```text
//! stream    picks the next picture
//! workers   take a free row, decode into it                        as many as reading needs, or a fixed number
//! queue     rows that were read, in order; unreadable pictures by name
//! batch     rows handed to the trainer; they come back with the next batch
//! ```
//!
//! Rows are allocated once: when none is free, workers wait. Decoding memory comes out of one allowance: a worker waits until it can claim
//! the cost of its picture, and a picture that costs more than the whole allowance is refused. Batches depend neither on the number of
//! workers nor on their speed.

mod clip_framing;
mod pace;
mod queue;
mod rows_file;
mod stored_rows;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::config::{Augment, Decode};
use crate::decode::{self, Allowance, Framing, PictureCost};
use crate::error::DataError;
use crate::samples::Samples;
use crate::segmentation::PairFraming;
use pace::Pace;
use queue::{CourseSettings, SharedQueue, work};

pub use clip_framing::ClipFraming;
pub use pace::{Bottleneck, Waits};
pub use rows_file::{FoundRows, RowsFile, RowsHeader, RowsWriter};
pub use stored_rows::{StoredList, StoredRows};
pub use stream::{Course, Cursor, Epochs, Share};

/// Whether pictures are augmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Without augmentation: the same every time.
    Evaluation,
    /// With augmentation: a function of (seed, epoch, sample).
    Training {
        /// The run's seed.
        seed: u64,
    },
}

/// Contents of rows.
#[derive(Clone, Debug, PartialEq)]
pub enum RowFormat {
    /// A square of RGB, resized and cropped by the model's image processor.
    Picture(PictureFormat),
    /// A picture and its mask.
    Pair(Arc<PairFraming>),
    /// Frames of one or several clips, one after another.
    Clip(Arc<ClipFraming>),
    /// Precomputed outputs of a frozen tower, read from disk.
    Stored(Arc<StoredRows>),
}

/// Contents of rows of pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PictureFormat {
    /// Resize and crop to a square.
    pub framing: Framing,
    /// Augmentation in training.
    pub augment: Augment,
    /// Whether training decodes at full size.
    pub decode: Decode,
}

impl From<Framing> for RowFormat {
    /// For evaluation; training uses the default augmentation.
    fn from(framing: Framing) -> RowFormat {
        RowFormat::Picture(PictureFormat {
            framing,
            augment: Augment::default(),
            decode: Decode::default(),
        })
    }
}

impl From<PictureFormat> for RowFormat {
    fn from(format: PictureFormat) -> RowFormat {
        RowFormat::Picture(format)
    }
}

impl From<PairFraming> for RowFormat {
    fn from(framing: PairFraming) -> RowFormat {
        RowFormat::Pair(Arc::new(framing))
    }
}

impl From<Arc<PairFraming>> for RowFormat {
    fn from(framing: Arc<PairFraming>) -> RowFormat {
        RowFormat::Pair(framing)
    }
}

impl From<ClipFraming> for RowFormat {
    fn from(framing: ClipFraming) -> RowFormat {
        RowFormat::Clip(Arc::new(framing))
    }
}

impl RowFormat {
    /// Peak memory of reading a sample, estimated from headers alone.
    pub fn cost(&self, samples: &Samples, sample: usize) -> Result<PictureCost, DataError> {
        match self {
            RowFormat::Picture(format) => decode::cost(&samples.image_path(sample), format.framing),
            RowFormat::Pair(framing) => framing.cost(samples, sample),
            RowFormat::Clip(framing) => framing.cost(samples, sample),
            RowFormat::Stored(_) => Ok(PictureCost {
                width: 0,
                height: 0,
                bytes: 0,
            }),
        }
    }

    /// Bytes that a worker's buffers still hold of a sample when it begins the next one, in addition to the cost of the next one.
    pub fn between_bytes(&self, cost: &PictureCost) -> u64 {
        let framing = match self {
            RowFormat::Picture(format) => format.framing,
            RowFormat::Clip(clip) => clip.framing,
            // Buffers of pairs are reused for the next pair.
            RowFormat::Pair(_) | RowFormat::Stored(_) => return 0,
        };
        decode::resizer_bytes((cost.width, cost.height), framing)
    }

    /// Bytes of a decoded sample in the in-memory cache; pictures and clips are not cached.
    pub fn kept_bytes(&self, cost: &PictureCost) -> u64 {
        match self {
            RowFormat::Picture(_) | RowFormat::Clip(_) | RowFormat::Stored(_) => 0,
            RowFormat::Pair(framing) => framing.kept_bytes(cost),
        }
    }
}

/// Number of worker threads, and how far they read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Smallest number of workers.
    pub least: usize,
    /// Largest number of workers, and the number at the start. In between, the loader uses as many as keep the trainer from waiting.
    pub most: usize,
    /// Pictures read ahead of the trainer's requests.
    pub ahead: usize,
}

impl Workers {
    /// A fixed number of workers.
    pub fn exactly(workers: usize, ahead: usize) -> Workers {
        Workers {
            least: workers,
            most: workers,
            ahead,
        }
    }
}

/// A picture that was left out.
#[derive(Debug)]
pub struct Skipped {
    pub sample: u32,
    pub error: DataError,
}

/// Pictures of a batch.
#[derive(Debug)]
pub struct Loaded<R> {
    /// Pixels.
    pub rows: Vec<R>,
    /// Sample of each row.
    pub samples: Vec<u32>,
    /// Rows of clips: number of frames that are not to be masked. Empty for other rows.
    pub frame_counts: Vec<u32>,
    /// Pictures left out since the previous batch, in order; each sample at most once in a loader's life.
    pub skipped: Vec<Skipped>,
}

impl<R> Default for Loaded<R> {
    fn default() -> Loaded<R> {
        Loaded {
            rows: Vec::new(),
            samples: Vec::new(),
            frame_counts: Vec::new(),
            skipped: Vec::new(),
        }
    }
}

/// Worker threads that read pictures into rows.
pub struct Loader<R: Send + 'static> {
    shared: Arc<SharedQueue<R>>,
    threads: Vec<JoinHandle<()>>,
    num_rows: usize,
    format: RowFormat,
    pace: Pace,
    is_paced: bool,
    allowance: Allowance,
}

impl<R: AsMut<[u8]> + Send + 'static> Loader<R> {
    /// Starts workers that read into `rows`, which must have the length of the format's rows. An error if the system cannot start a single
    /// thread.
    pub fn new(
        rows: Vec<R>,
        format: impl Into<RowFormat>,
        workers: Workers,
        allowance: Allowance,
    ) -> io::Result<Loader<R>> {
        assert!(workers.least > 0 && workers.least <= workers.most && !rows.is_empty());
        let num_rows = rows.len();
        let mut loader = Loader {
            shared: Arc::new(SharedQueue::new(rows, workers.most, workers.ahead)),
            threads: Vec::new(),
            num_rows,
            format: format.into(),
            pace: Pace::new(workers.most, workers),
            is_paced: false,
            allowance,
        };
        loader.employ(workers.most)?;
        Ok(loader)
    }

    /// Sets a callback for every picture that a worker has finished, called from the worker's thread, for a watchdog of stalled reading.
    /// Only the first call has an effect.
    pub fn on_read(&self, hear: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.on_read.set(Box::new(hear));
    }

    /// Starts to read other pictures; pictures read ahead are dropped.
    pub fn begin(&mut self, samples: Arc<Samples>, course: Course, view: View) {
        let pass = CourseSettings {
            view,
            format: self.format.clone(),
        };
        // The speed of an evaluation says nothing about the training around it.
        self.is_paced = matches!(course, Course::Epochs(_));
        self.shared.begin(samples, course, pass);
    }

    /// Marks samples of a list as broken, so that they are neither read nor reported again.
    pub fn leave_out(&mut self, samples: &Arc<Samples>, broken: impl IntoIterator<Item = u32>) {
        self.shared.leave_out(samples, broken);
    }

    /// Replaces `batch` by the next `count` pictures of a list, fewer at its end. For epochs, by this process's share of the next batch,
    /// which may be empty and must have at most `count` places. Reuses the rows that `batch` held.
    ///
    /// # Panics
    /// If the loader has fewer rows than `count`, the share is larger than `count`, or a worker panicked.
    pub fn next(&mut self, count: usize, batch: &mut Loaded<R>) {
        self.next_interruptible(&AtomicBool::new(false), count, batch);
    }

    /// Like [`Loader::next`], interrupted by `stop`: then `batch` has the pictures read so far, and the following batches are incomplete
    /// until [`Loader::begin`] is called again.
    ///
    /// # Panics
    /// Like [`Loader::next`].
    pub fn next_interruptible(&mut self, stop: &AtomicBool, count: usize, batch: &mut Loaded<R>) {
        assert!(
            count <= self.num_rows,
            "{count} pictures at a time, of {} rows",
            self.num_rows
        );
        self.release(batch);
        let waited = self.shared.collect(count, batch, stop);
        if self.is_paced
            && let Some(workers) = self.pace.observe(waited, &self.shared.times())
        {
            // If no more threads can be started, the existing ones continue.
            let _ = self.employ(workers);
        }
    }

    /// Takes a batch's rows back.
    pub fn release(&mut self, batch: &mut Loaded<R>) {
        self.shared.give_back(&mut batch.rows);
        batch.samples.clear();
        batch.frame_counts.clear();
        batch.skipped.clear();
    }

    /// Whether [`Loader::next`] would return the next batch of an epoch without waiting.
    pub fn has_batch(&self) -> bool {
        self.shared.has_batch()
    }

    /// Waiting times so far.
    pub fn waits(&self) -> Waits {
        self.pace.waits(&self.shared.times())
    }

    /// Restarts the count of [`Loader::waits`].
    pub fn begin_waits(&mut self) {
        self.pace.restart(&self.shared.count_from_now());
    }

    /// Sets the size of the cache of decoded pairs, in addition to rows and decoding; 0 until this is called. The cache does not change any
    /// row.
    pub fn keep_decoded(&self, most_bytes: u64) {
        self.shared.cache.set_most_bytes(most_bytes);
    }

    /// Bytes of the cached pairs.
    pub fn kept_bytes(&self) -> u64 {
        self.shared.cache.held_bytes()
    }

    /// Memory budget of decoding, besides the rows.
    pub fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// Number of rows, and so of pictures that may be read ahead.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Number of active workers.
    pub fn num_workers(&self) -> usize {
        self.pace.workers()
    }

    fn employ(&mut self, workers: usize) -> io::Result<()> {
        while self.threads.len() < workers {
            let (shared, index) = (Arc::clone(&self.shared), self.threads.len());
            let thread = std::thread::Builder::new().name(format!("reader {index}"));
            let allowance = self.allowance.clone();
            match thread.spawn(move || work(&shared, index, &allowance)) {
                Ok(thread) => self.threads.push(thread),
                // Fewer threads are slower, but one is enough.
                Err(_) if !self.threads.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        self.shared.employ(workers.min(self.threads.len()));
        Ok(())
    }
}

impl<R: Send + 'static> Drop for Loader<R> {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            // A worker's panic was raised where its batch was collected.
            let _ = thread.join();
        }
    }
}

fn seconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}
