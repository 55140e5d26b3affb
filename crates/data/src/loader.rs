//! Pictures read ahead by threads of their own, in the order in which they are wanted.
//!
//! ```text
//! stream    which picture is next
//! workers   take a free row, decode into it                        as many as it takes, or as asked
//! queue     what was read, in order; what cannot be read is named
//! batch     rows handed to whoever trains; they come back with the next batch
//! ```
//!
//! Rows are made once: when none is free, workers wait. What decoding takes beside them comes out of one allowance: a worker waits until
//! there is enough for its picture, and a picture that costs more than all of it is refused. What comes out depends neither on how many
//! workers there are nor on how fast they are.

mod pace;
mod queue;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::allowance::Allowance;
use crate::clips::ClipFraming;
use crate::config::{Augment, Decode};
use crate::error::DataError;
use crate::picture::{self, Framing, PictureCost};
use crate::samples::Samples;
use crate::segmentation::PairFraming;
use crate::stored_rows::StoredRows;
use pace::Pace;
use queue::{Pass, Shared, work};

pub use pace::{Bottleneck, Waits};
pub use stream::{Course, Cursor, Epochs, Share};

/// What happens to a picture on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The same every time.
    Evaluation,
    /// As augmentation draws it: a function of (seed, epoch, sample).
    Training {
        /// The run's.
        seed: u64,
    },
}

/// What rows hold.
#[derive(Clone, Debug, PartialEq)]
pub enum RowFormat {
    /// A square of RGB, as the model's image processor frames it.
    Picture(PictureFormat),
    /// A picture and its mask.
    Pair(Arc<PairFraming>),
    /// Frames of one or several clips, one behind the other.
    Clip(Arc<ClipFraming>),
    /// What was computed from clips once, and lies on disk.
    Stored(Arc<StoredRows>),
}

/// What rows of pictures hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PictureFormat {
    /// How a picture becomes a square.
    pub framing: Framing,
    /// What training does to it.
    pub augment: Augment,
    /// How much training decodes.
    pub decode: Decode,
}

impl From<Framing> for RowFormat {
    /// For evaluations; training augments as usual.
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
    /// What reading a sample takes at its peak, from headers alone.
    pub fn cost(&self, samples: &Samples, sample: usize) -> Result<PictureCost, DataError> {
        match self {
            RowFormat::Picture(format) => {
                picture::cost(&samples.image_path(sample), format.framing)
            }
            RowFormat::Pair(framing) => framing.cost(samples, sample),
            RowFormat::Clip(framing) => framing.cost(samples, sample),
            RowFormat::Stored(_) => Ok(PictureCost {
                width: 0,
                height: 0,
                bytes: 0,
            }),
        }
    }

    /// What a worker's buffers hold of a sample when it begins the next one, beside what that takes.
    pub fn between_bytes(&self, cost: &PictureCost) -> u64 {
        let framing = match self {
            RowFormat::Picture(format) => format.framing,
            RowFormat::Clip(clip) => clip.framing,
            // Buffers of pairs are used for the next one.
            RowFormat::Pair(_) | RowFormat::Stored(_) => return 0,
        };
        picture::resizer_bytes((cost.width, cost.height), framing)
    }

    /// What a sample takes that stays in memory once it is decoded; pictures and clips do not.
    pub fn kept_bytes(&self, cost: &PictureCost) -> u64 {
        match self {
            RowFormat::Picture(_) | RowFormat::Clip(_) | RowFormat::Stored(_) => 0,
            RowFormat::Pair(framing) => framing.kept_bytes(cost),
        }
    }
}

/// How many threads read, and how far ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// At least.
    pub least: usize,
    /// At most, and to begin with: where there is room between the two, as many as keep the trainer from waiting.
    pub most: usize,
    /// Pictures that may wait before anyone asks for them.
    pub ahead: usize,
}

impl Workers {
    /// So many, all the time.
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
    /// The sample.
    pub sample: u32,
    /// What is wrong with it.
    pub error: DataError,
}

/// Pictures of a batch.
#[derive(Debug)]
pub struct Loaded<R> {
    /// Pixels.
    pub rows: Vec<R>,
    /// Whose.
    pub samples: Vec<u32>,
    /// Of rows of clips, how many frames are there: the others are to be masked. Empty for other rows.
    pub frame_counts: Vec<u32>,
    /// What was left out since the batch before, in order; each sample once in a loader's life.
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

/// Threads that read pictures into rows.
pub struct Loader<R: Send + 'static> {
    shared: Arc<Shared<R>>,
    threads: Vec<JoinHandle<()>>,
    num_rows: usize,
    format: RowFormat,
    pace: Pace,
    is_paced: bool,
    allowance: Allowance,
}

impl<R: AsMut<[u8]> + Send + 'static> Loader<R> {
    /// Reads pictures into `rows`, which must have their length. An error if the system has not one thread left.
    pub fn new(
        rows: Vec<R>,
        format: impl Into<RowFormat>,
        workers: Workers,
        allowance: Allowance,
    ) -> io::Result<Loader<R>> {
        assert!(workers.least > 0 && workers.least <= workers.most && !rows.is_empty());
        let num_rows = rows.len();
        let mut loader = Loader {
            shared: Arc::new(Shared::new(rows, workers.most, workers.ahead)),
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

    /// Calls `hear` whenever a worker is done with a picture, from its thread: for who watches whether reading goes on. Once.
    pub fn on_read(&self, hear: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.on_read.set(Box::new(hear));
    }

    /// Reads other pictures from here on; what was read ahead is dropped.
    pub fn begin(&mut self, samples: Arc<Samples>, course: Course, view: View) {
        let pass = Pass {
            view,
            format: self.format.clone(),
        };
        // How fast an evaluation goes says nothing about the training around it.
        self.is_paced = matches!(course, Course::Epochs(_));
        self.shared.begin(samples, course, pass);
    }

    /// Samples of a list that are known to be broken, so that they are neither read nor reported again.
    pub fn leave_out(&mut self, samples: &Arc<Samples>, broken: impl IntoIterator<Item = u32>) {
        self.shared.leave_out(samples, broken);
    }

    /// The next `count` pictures of a list, or as many as it still has: none at the end. Of epochs, this process's share of the next
    /// batch, which may be empty and has at most `count` places. Rows that `batch` held are used again.
    ///
    /// # Panics
    /// If there are not as many rows, the share is larger, or a worker panicked.
    pub fn next(&mut self, count: usize, batch: &mut Loaded<R>) {
        self.next_unless(&AtomicBool::new(false), count, batch);
    }

    /// As [`Loader::next`], where a wait ends when it is to `stop`: then `batch` has as many as were there, and what comes behind them
    /// is no whole batch until [`Loader::begin`] is called again.
    ///
    /// # Panics
    /// As [`Loader::next`].
    pub fn next_unless(&mut self, stop: &AtomicBool, count: usize, batch: &mut Loaded<R>) {
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
            // Where no more can be had, those that are there go on.
            let _ = self.employ(workers);
        }
    }

    /// Takes a batch back.
    pub fn release(&mut self, batch: &mut Loaded<R>) {
        self.shared.give_back(&mut batch.rows);
        batch.samples.clear();
        batch.frame_counts.clear();
        batch.skipped.clear();
    }

    /// Whether [`Loader::next`] would return at once with the next batch of an epoch.
    pub fn has_batch(&self) -> bool {
        self.shared.has_batch()
    }

    /// Where the time went so far.
    pub fn waits(&self) -> Waits {
        self.pace.waits(&self.shared.times())
    }

    /// Forgets where the time went, so that [`Loader::waits`] tells of what comes.
    pub fn begin_waits(&mut self) {
        self.pace.restart(&self.shared.count_from_now());
    }

    /// What pairs that were decoded may take that stay in memory, beside rows and decoding; nothing until this is called. Rows are the same
    /// with and without.
    pub fn keep_decoded(&self, most_bytes: u64) {
        self.shared.cache.set_most_bytes(most_bytes);
    }

    /// What such pairs take now.
    pub fn kept_bytes(&self) -> u64 {
        self.shared.cache.held_bytes()
    }

    /// What decoding may take beside the rows.
    pub fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// Pictures that there is room for.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Threads at work.
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
                // Fewer are slower, and one is enough.
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
            // A worker that panicked has said so where its batch was wanted.
            let _ = thread.join();
        }
    }
}

/// Seconds of a stretch of time.
fn seconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}
