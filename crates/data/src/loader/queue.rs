//! State shared by workers and trainer: free rows, and a queue of pictures being read or ready. One lock is enough: it is held for
//! microseconds, and a picture takes milliseconds.

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use holdall_buffers::Keeping;

use super::pace::Times;
use super::stream::{Course, CoursePlace, CourseStream};
use super::{Loaded, PictureFormat, RowFormat, Skipped, View, seconds_since};
use crate::decode::{Allowance, Occasion, Scratch, augmented_into, evaluated_into};
use crate::error::DataError;
use crate::samples::Samples;
use crate::segmentation::PairCache;

/// Number of frames of a row of clips that are not masked.
type Frames = Option<u32>;

/// Settings of every picture of a course.
#[derive(Clone)]
pub(super) struct CourseSettings {
    pub view: View,
    pub format: RowFormat,
}

enum ReadOutcome<R> {
    /// Sample, row, number of frames.
    Good(u32, R, Frames),
    /// Neither the picture of the place nor any substitute can be read.
    Missing,
    Panicked(Box<dyn Any + Send>),
}

/// A place in the queue; it has no outcome while its picture is being read.
struct Ticket<R> {
    outcome: Option<ReadOutcome<R>>,
    /// Pictures of the place that could not be read.
    skipped: Vec<Skipped>,
}

/// A picture to read, and the row to read it into.
struct ReadJob<R> {
    generation: u64,
    number: u64,
    place: CoursePlace,
    samples: Arc<Samples>,
    settings: CourseSettings,
    row: R,
}

struct QueueState<R> {
    /// Incremented by every [`SharedQueue::begin`]; results of an older generation are dropped.
    generation: u64,
    stream: Option<CourseStream>,
    settings: Option<CourseSettings>,
    free: VecDeque<R>,
    queue: VecDeque<Ticket<R>>,
    /// Number of the first ticket in the queue.
    first_ticket: u64,
    /// Pictures that the trainer is waiting for.
    num_waiting: usize,
    prefetch_limit: usize,
    active_workers: usize,
    /// Unreadable samples, one set per sample list.
    broken: Vec<(Arc<Samples>, HashSet<u32>)>,
    /// Index in `broken`.
    current_list: usize,
    /// Batches of the course delivered so far.
    delivered: u64,
    times: Times,
    /// Start of the measurement of waiting times.
    counted_from: Instant,
    is_closed: bool,
}

pub(super) struct SharedQueue<R> {
    state: Mutex<QueueState<R>>,
    /// Wakes workers: there may be a job.
    work: Condvar,
    /// Wakes the trainer: a picture is ready.
    done: Condvar,
    /// Cache of decoded pairs.
    pub cache: PairCache,
    /// Called for every picture that a worker has finished.
    pub on_read: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl<R> SharedQueue<R> {
    pub(super) fn new(
        rows: Vec<R>,
        active_workers: usize,
        prefetch_limit: usize,
    ) -> SharedQueue<R> {
        SharedQueue {
            state: Mutex::new(QueueState {
                generation: 0,
                stream: None,
                settings: None,
                queue: VecDeque::with_capacity(rows.len()),
                free: rows.into(),
                first_ticket: 0,
                num_waiting: 0,
                prefetch_limit,
                active_workers,
                broken: Vec::new(),
                current_list: 0,
                delivered: 0,
                times: Times::default(),
                counted_from: Instant::now(),
                is_closed: false,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
            cache: PairCache::default(),
            on_read: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<R>> {
        // No code panics while it holds the lock; decoding happens outside.
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }

    pub(super) fn begin(&self, samples: Arc<Samples>, course: Course, settings: CourseSettings) {
        let mut state = self.lock();
        state.generation += 1;
        state.delivered = 0;
        state.current_list = state.known(&samples);
        state.stream = Some(CourseStream::new(samples, course));
        state.settings = Some(settings);
        for ticket in std::mem::take(&mut state.queue) {
            state.first_ticket += 1;
            if let Some(ReadOutcome::Good(_, row, _)) = ticket.outcome {
                state.free.push_back(row);
            }
        }
        self.work.notify_all();
    }

    pub(super) fn leave_out(&self, samples: &Arc<Samples>, broken: impl IntoIterator<Item = u32>) {
        let mut state = self.lock();
        let at = state.known(samples);
        state.broken[at].1.extend(broken);
    }

    pub(super) fn employ(&self, workers: usize) {
        self.lock().active_workers = workers;
        self.work.notify_all();
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
    }

    pub(super) fn times(&self) -> Times {
        self.lock().times
    }

    /// Restarts the measurement, also for workers that are waiting already.
    pub(super) fn count_from_now(&self) -> Times {
        let mut state = self.lock();
        state.counted_from = Instant::now();
        state.times
    }

    pub(super) fn give_back(&self, rows: &mut Vec<R>) {
        self.lock().free.extend(rows.drain(..));
        self.work.notify_all();
    }

    /// Whether the next batch of a course of epochs is ready.
    pub(super) fn has_batch(&self) -> bool {
        let state = self.lock();
        let Some(places) = state.size_of_batch() else {
            return false;
        };
        let read = state.queue.iter().take(places);
        read.filter(|ticket| ticket.outcome.is_some()).count() == places
    }

    /// Moves pictures from the head of the queue into `batch`: all of the next batch, or `count` pictures where the course has no batches,
    /// or those that are ready when `stop` is set. Returns the waiting time in seconds.
    pub(super) fn collect(&self, count: usize, batch: &mut Loaded<R>, stop: &AtomicBool) -> f64 {
        let began = Instant::now();
        let mut waited = 0.0;
        let mut state = self.lock();
        let mut open = state.size_of_batch().unwrap_or(count);
        assert!(
            open <= count,
            "a batch of {open} pictures, {count} asked for"
        );
        loop {
            let is_full = state.deliver(&mut open, batch);
            if is_full || stop.load(Ordering::Relaxed) {
                break;
            }
            state.num_waiting = open;
            if state.has_room() {
                self.work.notify_all();
            }
            // A timeout, because a hanging file system never signals the condition.
            state = match self.done.wait_timeout(state, BETWEEN_LOOKS) {
                Ok((state, _)) => state,
                Err(error) => error.into_inner().0,
            };
            waited = seconds_since(began);
        }
        state.num_waiting = 0;
        state.delivered += 1;
        // The delivered pictures leave room in the queue.
        self.work.notify_all();
        waited
    }

    /// Waits for a job; `None` when the loader is closed.
    fn take(&self, index: usize, room: &mut Room) -> Option<ReadJob<R>> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            let began = Instant::now();
            if index >= state.active_workers {
                room.scratch.free();
                state = self.wait(state);
                continue;
            }
            let has_room = state.has_room();
            match state.job() {
                Some(job) => return Some(job),
                None => {
                    if state.has_news() {
                        self.done.notify_all();
                    }
                    // A waiting worker holds no buffer: between two batches all decoding memory is free.
                    room.scratch.free();
                    state = self.wait(state);
                    if !has_room {
                        let from = began.max(state.counted_from);
                        state.times.without_room += seconds_since(from);
                    }
                }
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, QueueState<R>>) -> MutexGuard<'a, QueueState<R>> {
        self.work
            .wait(state)
            .unwrap_or_else(|error| error.into_inner())
    }

    fn tell_read(&self) {
        if let Some(on_read) = self.on_read.get() {
            on_read();
        }
    }

    fn put(&self, job: (u64, u64), outcome: ReadOutcome<R>, (seconds, pixels): (f64, u64)) {
        self.tell_read();
        let mut state = self.lock();
        state.times.count(seconds);
        state.times.pixels += pixels;
        // A readable picture keeps its row and its place, so it leaves no room for others.
        let mut makes_room = !matches!(outcome, ReadOutcome::Good(..));
        match state.ticket(job) {
            Some(ticket) => ticket.outcome = Some(outcome),
            None => {
                if let ReadOutcome::Good(_, row, _) = outcome {
                    state.free.push_back(row);
                }
                makes_room = true;
            }
        }
        // Pictures are delivered in order: only the ticket at the head of the queue wakes the trainer.
        let is_waited_for = state.num_waiting > 0 && state.has_news();
        drop(state);
        if is_waited_for {
            self.done.notify_all();
        }
        if makes_room {
            self.work.notify_all();
        }
    }

    /// Moves a place to the substitute of an unreadable picture; returns whether one is left.
    fn move_on(
        &self,
        job: (u64, u64),
        place: &mut CoursePlace,
        error: DataError,
        seconds: f64,
    ) -> bool {
        self.tell_read();
        let mut state = self.lock();
        let sample = place.sample();
        let Some(ticket) = state.ticket(job) else {
            return false;
        };
        ticket.skipped.push(Skipped { sample, error });
        let is_another = place.move_on() && state.pass_broken(place);
        if is_another {
            state.times.count(seconds);
        }
        is_another
    }

    /// Returns an unused row.
    fn free(&self, row: R) {
        self.lock().free.push_front(row);
    }
}

impl<R> QueueState<R> {
    /// Index in `broken` of a sample list, which is added if it is new.
    fn known(&mut self, samples: &Arc<Samples>) -> usize {
        let found = self
            .broken
            .iter()
            .position(|(list, _)| Arc::ptr_eq(list, samples));
        found.unwrap_or_else(|| {
            self.broken.push((Arc::clone(samples), HashSet::new()));
            self.broken.len() - 1
        })
    }

    /// Places of the next batch of a course of epochs.
    fn size_of_batch(&self) -> Option<usize> {
        self.stream.as_ref()?.size_of_batch(self.delivered)
    }

    /// Moves a place past pictures that are known to be broken; returns whether one is left to try.
    fn pass_broken(&self, place: &mut CoursePlace) -> bool {
        let broken = &self.broken[self.current_list].1;
        while broken.contains(&place.sample()) {
            if !place.move_on() {
                return false;
            }
        }
        true
    }

    /// The ticket of a job, unless the job is of an older course.
    fn ticket(&mut self, (generation, number): (u64, u64)) -> Option<&mut Ticket<R>> {
        if generation == self.generation {
            self.queue.get_mut((number - self.first_ticket) as usize)
        } else {
            None
        }
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.queue.len() < self.num_waiting + self.prefetch_limit
    }

    /// Whether the trainer can take the head of the queue, or the queue is empty.
    fn has_news(&self) -> bool {
        self.queue
            .front()
            .is_none_or(|ticket| ticket.outcome.is_some())
    }

    fn job(&mut self) -> Option<ReadJob<R>> {
        while self.has_room() {
            let (Some(stream), Some(settings)) = (&mut self.stream, &self.settings) else {
                return None;
            };
            let mut place = stream.next()?;
            let (samples, settings) = (Arc::clone(stream.samples()), settings.clone());
            let is_there = self.pass_broken(&mut place);
            self.queue.push_back(Ticket {
                outcome: (!is_there).then_some(ReadOutcome::Missing),
                skipped: Vec::new(),
            });
            if is_there {
                return Some(ReadJob {
                    generation: self.generation,
                    number: self.first_ticket + self.queue.len() as u64 - 1,
                    place,
                    samples,
                    settings,
                    row: self.free.pop_front()?,
                });
            }
        }
        None
    }

    /// Moves ready pictures into `batch` until no place is open; returns whether the batch is complete.
    fn deliver(&mut self, open: &mut usize, batch: &mut Loaded<R>) -> bool {
        let has_batches = self.size_of_batch().is_some();
        while *open > 0 {
            let Some(ticket) = self.queue.front_mut() else {
                return self.stream.as_ref().is_none_or(CourseStream::is_over);
            };
            let Some(outcome) = ticket.outcome.take() else {
                return false;
            };
            let skipped = std::mem::take(&mut ticket.skipped);
            self.queue.pop_front();
            self.first_ticket += 1;
            let broken = &mut self.broken[self.current_list].1;
            let is_new = |one: &Skipped| broken.insert(one.sample);
            batch.skipped.extend(skipped.into_iter().filter(is_new));
            match outcome {
                ReadOutcome::Good(sample, row, frames) => {
                    batch.frame_counts.extend(frames);
                    batch.rows.push(row);
                    batch.samples.push(sample);
                    *open -= 1;
                }
                // A batch gets smaller; a list continues with its next picture.
                ReadOutcome::Missing => *open -= usize::from(has_batches),
                ReadOutcome::Panicked(panic) => std::panic::resume_unwind(panic),
            }
        }
        true
    }
}

/// Interval at which a waiting trainer checks `stop`.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Buffers that a worker reuses for every picture.
struct Room {
    scratch: Scratch,
    path: PathBuf,
}

/// Main function of a worker thread.
pub(super) fn work<R: AsMut<[u8]>>(shared: &SharedQueue<R>, index: usize, allowance: &Allowance) {
    let _keeping = Keeping::on_this_thread();
    let mut room = Room {
        scratch: Scratch::within(allowance),
        path: PathBuf::new(),
    };
    while let Some(job) = shared.take(index, &mut room) {
        let ReadJob {
            generation,
            number,
            mut place,
            samples,
            settings,
            mut row,
        } = job;
        let number = (generation, number);
        let outcome = loop {
            let began = Instant::now();
            let read = catch_unwind(AssertUnwindSafe(|| {
                let cache = &shared.cache;
                read(cache, &samples, &place, &settings, &mut room, row.as_mut())
            }));
            let seconds = seconds_since(began);
            match read {
                Ok(Ok(frames)) => {
                    let sample = place.sample();
                    break (ReadOutcome::Good(sample, row, frames), seconds);
                }
                Ok(Err(error)) => {
                    if !shared.move_on(number, &mut place, error, seconds) {
                        shared.free(row);
                        break (ReadOutcome::Missing, seconds);
                    }
                }
                Err(panic) => break (ReadOutcome::Panicked(panic), seconds),
            }
        };
        room.scratch.free_if_wanted();
        let pixels = room.scratch.take_num_pixels();
        shared.put(number, outcome.0, (outcome.1, pixels));
    }
}

fn read(
    cache: &PairCache,
    samples: &Samples,
    place: &CoursePlace,
    settings: &CourseSettings,
    room: &mut Room,
    out: &mut [u8],
) -> Result<Frames, DataError> {
    let Room { scratch, path } = room;
    let sample = place.sample() as usize;
    let occasion = match settings.view {
        View::Evaluation => None,
        View::Training { seed } => Some(Occasion {
            seed,
            epoch: place.epoch,
            sample: sample as u64,
        }),
    };
    match (&settings.format, occasion) {
        (RowFormat::Clip(framing), occasion) => {
            return framing
                .write_row(samples, sample, occasion, scratch, out)
                .map(Some);
        }
        (RowFormat::Stored(rows), occasion) => {
            return rows.read(samples, sample, occasion, scratch, out).map(Some);
        }
        (RowFormat::Pair(framing), occasion) => {
            framing.write_row_by(cache, samples, sample, occasion, scratch, out)
        }
        (RowFormat::Picture(format), None) => {
            samples.image_path_into(sample, path);
            evaluated_into(path, format.framing, scratch, out)
        }
        (RowFormat::Picture(format), Some(occasion)) => {
            let PictureFormat {
                framing,
                augment,
                decode,
            } = *format;
            samples.image_path_into(sample, path);
            augmented_into(path, framing, (augment, decode), occasion, scratch, out)
        }
    }
    .map(|()| None)
}
