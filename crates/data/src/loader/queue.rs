//! What workers and the trainer share: free rows, what is being read, what was read. One lock: it is held for
//! microseconds, and a picture takes milliseconds.

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::pace::Times;
use super::stream::{Course, Cursor, Next, Place, Stream};
use super::{Loaded, PictureFormat, RowFormat, Skipped, View, seconds_since};
use crate::allowance::Allowance;
use crate::error::DataError;
use crate::picture::{Occasion, Scratch, augmented_into, evaluated_into};
use crate::samples::Samples;
use crate::segmentation::PairCache;

/// How many frames a clip has, where the row is one.
type Frames = Option<u32>;

/// What is done to every picture of a course.
#[derive(Clone)]
pub(super) struct Pass {
    pub view: View,
    pub format: RowFormat,
}

enum Outcome<R> {
    Good(R, Frames),
    Bad(Option<DataError>),
    Panicked(Box<dyn Any + Send>),
}

/// A place in the queue: empty while it is being read.
struct Ticket<R> {
    place: Place,
    outcome: Option<Outcome<R>>,
}

/// Something to read, and where to.
struct Job<R> {
    course: u64,
    number: u64,
    place: Place,
    samples: Arc<Samples>,
    pass: Pass,
    row: R,
}

struct State<R> {
    /// Counts courses: what was begun in an earlier one is of no use when it is done.
    course: u64,
    stream: Option<Stream>,
    pass: Option<Pass>,
    free: VecDeque<R>,
    queue: VecDeque<Ticket<R>>,
    /// Number of the first ticket in the queue.
    first: u64,
    /// Tickets that are being read, or were read well.
    promising: usize,
    /// Pictures that someone waits for now.
    wanted: usize,
    ahead: usize,
    employed: usize,
    /// Of every list of samples that was read from, which are broken.
    broken: Vec<(Arc<Samples>, HashSet<u32>)>,
    /// The list at hand.
    at: usize,
    delivered: Cursor,
    times: Times,
    /// Waiting before this moment does not count.
    counted_from: Instant,
    is_closed: bool,
}

pub(super) struct Shared<R> {
    state: Mutex<State<R>>,
    /// For workers: there may be something to do.
    work: Condvar,
    /// For the trainer: something was read.
    done: Condvar,
    /// Pairs that stay in memory.
    pub cache: PairCache,
}

impl<R> Shared<R> {
    pub(super) fn new(rows: Vec<R>, employed: usize, ahead: usize) -> Shared<R> {
        Shared {
            state: Mutex::new(State {
                course: 0,
                stream: None,
                pass: None,
                queue: VecDeque::with_capacity(rows.len()),
                free: rows.into(),
                first: 0,
                promising: 0,
                wanted: 0,
                ahead,
                employed,
                broken: Vec::new(),
                at: 0,
                delivered: Cursor::default(),
                times: Times::default(),
                counted_from: Instant::now(),
                is_closed: false,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
            cache: PairCache::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // Nobody panics while holding it; what a decoder does happens outside.
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }

    pub(super) fn begin(&self, samples: Arc<Samples>, course: Course, pass: Pass) {
        let mut state = self.lock();
        state.course += 1;
        state.delivered = match course {
            Course::Once | Course::From { .. } | Course::Drawn { .. } => Cursor::default(),
            Course::Epochs { from, .. } => from,
        };
        state.at = state.known(&samples);
        state.stream = Some(Stream::new(samples, course));
        state.pass = Some(pass);
        state.promising = 0;
        for ticket in std::mem::take(&mut state.queue) {
            state.first += 1;
            if let Some(Outcome::Good(row, _)) = ticket.outcome {
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
        self.lock().employed = workers;
        self.work.notify_all();
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
    }

    pub(super) fn times(&self) -> Times {
        self.lock().times
    }

    /// Counts from here on, those too that wait already.
    pub(super) fn count_from_now(&self) -> Times {
        let mut state = self.lock();
        state.counted_from = Instant::now();
        state.times
    }

    pub(super) fn give_back(&self, rows: &mut Vec<R>) {
        self.lock().free.extend(rows.drain(..));
        self.work.notify_all();
    }

    /// Whether so many pictures are read, one behind the other.
    pub(super) fn has(&self, count: usize) -> bool {
        let state = self.lock();
        let read = state
            .queue
            .iter()
            .map_while(|ticket| ticket.outcome.as_ref());
        let good = read.filter(|outcome| matches!(outcome, Outcome::Good(..)));
        good.take(count).count() == count
    }

    /// Moves pictures from the head of the queue into `batch`, or as many as there are when it is to `stop`. Returns the seconds that it
    /// had to wait.
    pub(super) fn collect(&self, count: usize, batch: &mut Loaded<R>, stop: &AtomicBool) -> f64 {
        let began = Instant::now();
        let mut waited = 0.0;
        let mut state = self.lock();
        loop {
            let is_full = state.deliver(count, batch);
            if is_full || stop.load(Ordering::Relaxed) {
                break;
            }
            if state.wanted == 0 {
                self.work.notify_all();
            }
            state.wanted = count - batch.rows.len();
            // A file system that hangs rings no bell.
            state = match self.done.wait_timeout(state, BETWEEN_LOOKS) {
                Ok((state, _)) => state,
                Err(error) => error.into_inner().0,
            };
            waited = seconds_since(began);
        }
        state.wanted = 0;
        batch.end = state.delivered;
        // What was delivered made room.
        self.work.notify_all();
        waited
    }

    /// Waits for something to do; `None` when all is over.
    fn take(&self, index: usize, room: &mut Room) -> Option<Job<R>> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            let began = Instant::now();
            if index >= state.employed {
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
                    // Who waits holds nothing: between two batches the memory of all pictures is free.
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

    fn wait<'a>(&self, state: MutexGuard<'a, State<R>>) -> MutexGuard<'a, State<R>> {
        self.work
            .wait(state)
            .unwrap_or_else(|error| error.into_inner())
    }

    fn put(&self, job: (u64, u64), outcome: Outcome<R>, seconds: f64) {
        let mut state = self.lock();
        state.times.busy += seconds;
        state.times.pictures += 1;
        let (course, number) = job;
        // A picture that was read well makes no room for others, unless they wait for how it turns out.
        let mut makes_room = !matches!(outcome, Outcome::Good(..));
        if course == state.course {
            state.settle(number, outcome);
            makes_room |= state.stream.as_ref().is_some_and(Stream::is_in_doubt);
        } else if let Outcome::Good(row, _) = outcome {
            state.free.push_back(row);
            makes_room = true;
        }
        drop(state);
        self.done.notify_all();
        if makes_room {
            self.work.notify_all();
        }
    }

    /// A row that nothing was read into.
    fn free(&self, row: R) {
        self.lock().free.push_front(row);
    }
}

impl<R> State<R> {
    /// Where it is kept what is broken of a list.
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

    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.promising < self.wanted + self.ahead
    }

    /// Whether the head of the queue is something that the trainer can take, or the course is over.
    fn has_news(&self) -> bool {
        self.queue
            .front()
            .is_none_or(|ticket| ticket.outcome.is_some())
    }

    fn job(&mut self) -> Option<Job<R>> {
        let (Some(stream), Some(pass)) = (&mut self.stream, &self.pass) else {
            return None;
        };
        loop {
            if self.free.is_empty() || self.promising >= self.wanted + self.ahead {
                return None;
            }
            let Next::Read(place) = stream.next() else {
                return None;
            };
            let is_broken = self.broken[self.at].1.contains(&place.sample);
            let outcome = is_broken.then_some(Outcome::Bad(None));
            self.queue.push_back(Ticket { place, outcome });
            if is_broken {
                stream.settle(false);
                continue;
            }
            self.promising += 1;
            return Some(Job {
                course: self.course,
                number: self.first + self.queue.len() as u64 - 1,
                place,
                samples: Arc::clone(stream.samples()),
                pass: pass.clone(),
                row: self.free.pop_front()?,
            });
        }
    }

    fn settle(&mut self, number: u64, outcome: Outcome<R>) {
        let is_good = matches!(outcome, Outcome::Good(..));
        if let Some(stream) = &mut self.stream {
            stream.settle(is_good);
        }
        if !is_good {
            self.promising -= 1;
        }
        // Numbers before the first were of another course.
        let at = (number - self.first) as usize;
        self.queue[at].outcome = Some(outcome);
    }

    /// Moves what is ready into `batch`; whether it has all that it will get.
    fn deliver(&mut self, count: usize, batch: &mut Loaded<R>) -> bool {
        while batch.rows.len() < count {
            let Some(ticket) = self.queue.front_mut() else {
                let in_flight = self.promising > 0;
                let at_end = !in_flight && self.stream.as_ref().is_none_or(Stream::is_over);
                return at_end;
            };
            let place = ticket.place;
            let is_next_epoch = place.epoch != self.delivered.epoch;
            if is_next_epoch && !batch.rows.is_empty() {
                return true;
            }
            let Some(outcome) = ticket.outcome.take() else {
                return false;
            };
            self.queue.pop_front();
            self.first += 1;
            if is_next_epoch {
                self.delivered = Cursor {
                    epoch: place.epoch,
                    ..Cursor::default()
                };
            }
            match outcome {
                Outcome::Good(row, frames) => {
                    self.promising -= 1;
                    batch.frame_counts.extend(frames);
                    self.delivered.position = place.position + 1;
                    self.delivered.given += 1;
                    batch.rows.push(row);
                    batch.samples.push(place.sample);
                }
                Outcome::Bad(error) => {
                    if let Some(error) = error
                        && self.broken[self.at].1.insert(place.sample)
                    {
                        let sample = place.sample;
                        batch.skipped.push(Skipped { sample, error });
                    }
                }
                Outcome::Panicked(panic) => std::panic::resume_unwind(panic),
            }
        }
        true
    }
}

/// How often someone who waits for pictures looks whether to stop.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What one worker uses again for every picture.
struct Room {
    scratch: Scratch,
    path: PathBuf,
}

/// A worker's life.
pub(super) fn work<R: AsMut<[u8]>>(shared: &Shared<R>, index: usize, allowance: &Allowance) {
    let mut room = Room {
        scratch: Scratch::within(allowance),
        path: PathBuf::new(),
    };
    while let Some(job) = shared.take(index, &mut room) {
        let began = Instant::now();
        let Job {
            course,
            number,
            place,
            samples,
            pass,
            mut row,
        } = job;
        let read = catch_unwind(AssertUnwindSafe(|| {
            read(
                &shared.cache,
                &samples,
                place,
                &pass,
                &mut room,
                row.as_mut(),
            )
        }));
        let outcome = match read {
            Ok(Ok(frames)) => Outcome::Good(row, frames),
            Ok(Err(error)) => {
                shared.free(row);
                Outcome::Bad(Some(error))
            }
            Err(panic) => Outcome::Panicked(panic),
        };
        room.scratch.free_if_wanted();
        shared.put((course, number), outcome, seconds_since(began));
    }
}

fn read(
    cache: &PairCache,
    samples: &Samples,
    place: Place,
    pass: &Pass,
    room: &mut Room,
    out: &mut [u8],
) -> Result<Frames, DataError> {
    let Room { scratch, path } = room;
    let sample = place.sample as usize;
    let occasion = match pass.view {
        View::Evaluation => None,
        View::Training { seed } => Some(Occasion {
            seed,
            epoch: place.epoch,
            sample: u64::from(place.sample),
        }),
    };
    match (&pass.format, occasion) {
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
