//! Delivers batches to the step: samples, their loader rows, and the samples that were skipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdall_data::loader::{Course, Cursor, Epochs, Loaded, Loader, Share, Skipped, View, Waits};
use holdall_data::samples::Samples;
use holdall_device::{Device, HostRow};

use crate::config::RunConfig;
use crate::engine::batch::Batch;
use crate::error::TrainError;
use crate::planning::loader_budget::{Reading, ReadingReport};
use crate::planning::picture_costs::PictureCosts;
use crate::planning::prepare::Prepared;
use crate::run_folder::checkpoint::Clock;

/// A batch, and the loader rows that it refers to.
#[derive(Default)]
struct Slot {
    loaded: Loaded<HostRow>,
    batch: Batch,
}

/// The batches of a run.
pub(crate) struct Feed {
    reading: Reading,
    loader: Loader<HostRow>,
    /// The whole reading order from the first epoch on.
    course: Epochs,
    steps_per_epoch: u64,
    /// Batch of the current step, and of the step after it.
    slots: [Slot; 2],
    /// Steps of the two batches, if they are loaded.
    now: Option<u64>,
    ahead: Option<u64>,
    /// Step of the loader's next batch.
    next: u64,
    /// Whether the loader was stopped within that batch.
    is_cut: bool,
    /// Skipped samples that are not reported yet.
    skipped: Vec<Skipped>,
    /// Waiting times of training, up to the last evaluation.
    waits: Waits,
}

impl Feed {
    /// Opens a feed of this process's share of every batch, starting after step `done`. Nothing is read before
    /// [`Feed::train`].
    pub fn new(
        device: &Device,
        config: &RunConfig,
        prepared: &Prepared,
        (effective_batch, share): (usize, Share),
        done: u64,
        costs: &PictureCosts,
    ) -> Result<Feed, TrainError> {
        let picture_bytes = prepared.setup.step.task.picture_bytes();
        let most = effective_batch.div_ceil(share.count);
        let reading = Reading::new(config, device, most, picture_bytes, costs)?;
        let samples = prepared.train.len();
        let steps_per_epoch = samples.div_ceil(effective_batch) as u64;
        Ok(Feed {
            reading,
            loader: reading.open(device, prepared.setup.rows.clone())?,
            course: Epochs {
                seed: config.seed,
                sampling: config.train.sampling,
                batch: effective_batch,
                share,
                from: Cursor::default(),
                until: config.train.epochs_begun(steps_per_epoch),
            },
            steps_per_epoch,
            slots: [Slot::default(), Slot::default()],
            now: None,
            ahead: None,
            next: done + 1,
            is_cut: false,
            skipped: Vec::new(),
            waits: Waits::default(),
        })
    }

    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Sets the memory allowance of decoding.
    pub fn allow(&mut self, decode_bytes: u64) {
        self.reading.decode_bytes = decode_bytes;
        self.loader.allowance().set_total(decode_bytes);
    }

    /// Lets the loader keep decoded samples in memory, within its budget and `most_bytes`. Returns the bytes.
    pub fn keep_decoded(&mut self, most_bytes: u64) -> u64 {
        let bytes = self.reading.cache_bytes.min(most_bytes);
        self.reading.cache_bytes = bytes;
        self.loader.keep_decoded(bytes);
        bytes
    }

    /// Waits until no picture is being decoded, or until `stop`: the process memory then contains no picture.
    pub fn rest(&self, stop: &AtomicBool) {
        while self.loader.allowance().claimed_bytes() > 0 && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Skips training pictures, and starts again with the batch of the current step.
    pub fn begin_without(&mut self, skipped: Vec<Skipped>, prepared: &Prepared) {
        let done = self.now.map_or(0, |number| number - 1);
        self.lend(done);
        self.waits = Waits::default();
        self.leave_out(&prepared.train, skipped.iter().map(|one| one.sample));
        // These reasons replace the ones that were recorded when the first batch was read.
        let is_among = |one: &Skipped| skipped.iter().any(|other| other.sample == one.sample);
        self.skipped.retain(|one| !is_among(one));
        self.skipped.extend(skipped);
        self.train(prepared);
    }

    /// Optimizer steps of an epoch; the last step may have fewer samples.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Starts reading training pictures.
    pub fn train(&mut self, prepared: &Prepared) {
        let course = Course::Epochs(Epochs {
            from: Cursor::after(self.next - 1, self.steps_per_epoch),
            ..self.course
        });
        let view = View::Training {
            seed: self.course.seed,
        };
        let samples = Arc::clone(&prepared.train);
        self.loader.begin(samples, course, view);
        self.loader.begin_waits();
        self.is_cut = false;
    }

    /// Lends rows and workers to an evaluation after step `done`; [`Feed::train`] takes them back. Batches that were read
    /// ahead are read again.
    pub fn lend(&mut self, done: u64) -> &mut Loader<HostRow> {
        self.waits = self.waits_so_far();
        self.next = done + 1;
        (self.now, self.ahead) = (None, None);
        self.release(0);
        self.release(1);
        &mut self.loader
    }

    fn release(&mut self, slot: usize) {
        let Slot { loaded, batch, .. } = &mut self.slots[slot];
        batch.release_rows();
        self.loader.release(loaded);
    }

    fn waits_so_far(&self) -> Waits {
        let now = self.loader.waits();
        let before = self.waits;
        Waits {
            seconds: before.seconds + now.seconds,
            for_data: before.for_data + now.for_data,
            reading: before.reading + now.reading,
            for_room: before.for_room + now.for_room,
            pictures: before.pictures + now.pictures,
            pixels: before.pixels + now.pixels,
            workers: now.workers,
        }
    }

    /// Resets the waiting times before the first step, so that planning does not count.
    pub fn begin_waits(&mut self) {
        self.loader.begin_waits();
    }

    /// Statistics of reading so far, with the times of the run's steps.
    pub fn report(&self, clock: &Clock, num_threads: usize) -> ReadingReport {
        let waits = Waits {
            seconds: clock.waited + clock.computed,
            for_data: clock.waited,
            ..self.waits_so_far()
        };
        ReadingReport::new(&self.reading, &waits, num_threads)
    }

    /// Tells the loader about unreadable samples.
    pub fn leave_out(&mut self, samples: &Arc<Samples>, broken: impl IntoIterator<Item = u32>) {
        self.loader.leave_out(samples, broken);
    }

    /// Makes the batch of a step the current one, waiting if necessary; `false` if stopped. Skipped samples are in
    /// [`Feed::take_skipped`].
    pub fn bring(&mut self, number: u64, prepared: &Prepared, stop: &AtomicBool) -> bool {
        if self.now == Some(number) {
            return true;
        }
        if self.ahead.take() == Some(number) {
            self.slots.swap(0, 1);
            // Frees the rows of the previous step's batch.
            self.release(1);
        } else {
            if self.is_cut || self.next != number {
                self.next = number;
                self.train(prepared);
            }
            if !self.read(0, prepared, stop) {
                return false;
            }
        }
        self.now = Some(number);
        true
    }

    /// Takes the batch of a step early, if it has been read.
    pub fn read_ahead(&mut self, number: u64, prepared: &Prepared) {
        if self.next == number && !self.is_cut && self.loader.has_batch() {
            self.read(1, prepared, &AtomicBool::new(false));
            self.ahead = Some(number);
        }
    }

    /// Reads the next batch; `false` if stopped before it was complete.
    fn read(&mut self, slot: usize, prepared: &Prepared, stop: &AtomicBool) -> bool {
        let Slot { loaded, batch } = &mut self.slots[slot];
        batch.release_rows();
        self.loader
            .next_interruptible(stop, self.reading.batch, loaded);
        self.skipped.append(&mut loaded.skipped);
        // A partial batch is dropped: it is read again from its beginning.
        if stop.load(Ordering::Relaxed) {
            self.is_cut = true;
            return false;
        }
        let epoch = (self.next - 1) / self.steps_per_epoch;
        self.next += 1;
        prepared.setup.step.fill_batch(batch, loaded, epoch);
        true
    }

    /// Batch of the current step.
    pub fn batch(&self) -> &Batch {
        &self.slots[0].batch
    }

    /// Samples of the current step.
    pub fn samples(&self) -> &[u32] {
        &self.slots[0].loaded.samples
    }

    /// Batch of the next step, if it was read ahead.
    pub fn next_batch(&self) -> Option<&Batch> {
        self.ahead.map(|_| &self.slots[1].batch)
    }

    /// Samples that were skipped since the last call, in order.
    pub fn take_skipped(&mut self) -> Vec<Skipped> {
        std::mem::take(&mut self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use holdall_device::cpu::Cpu;
    use holdall_sample_data::cars::{self, CarsConfig};

    use super::*;
    use crate::config::Count;

    /// Otherwise workers would claim decoding memory before the allowance is set.
    #[test]
    fn nothing_is_read_before_it_is_to_train() {
        let folder = tempfile::tempdir().unwrap();
        let drawn = CarsConfig {
            size: 64,
            count: 24,
            ..CarsConfig::default()
        };
        cars::write(folder.path(), &drawn, |_| true).unwrap();
        let mut config = RunConfig {
            model: "small".to_owned(),
            num_workers: Count::Exactly(2),
            ..RunConfig::default()
        };
        config.data.train = Some(folder.path().join("image_labels.csv"));
        let device = Device::on_cpu(Cpu::new(Some(2)));
        let prepared = Prepared::new(&config, &device).unwrap();
        let (stop, all) = (AtomicBool::new(false), (8, Share::default()));
        let format = prepared.setup.rows.clone();
        let lists = [&prepared.train];
        let costs = PictureCosts::read(&device, &lists, format, &stop).unwrap();
        let mut feed = Feed::new(&device, &config, &prepared, all, 0, &costs).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let claimed = |feed: &Feed| feed.loader.allowance().most_claimed_bytes();
        assert_eq!(claimed(&feed), 0);
        feed.train(&prepared);
        assert!(feed.bring(1, &prepared, &stop));
        assert!(claimed(&feed) > 0);
    }
}
