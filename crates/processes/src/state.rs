//! State shared by a process's calls and connection threads: received messages, processes that left, the first error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::deadlines::Deadlines;
use crate::deadlines::interval;
use crate::error::GroupError;
use crate::frame::{self, Call, FrameKind, encode_error};
use crate::pulse::Pulse;

/// How long writing an error to the other processes may take before this process acts on it.
const TELL_OTHERS: Duration = Duration::from_millis(1000);

pub(crate) struct Shared {
    pub rank: usize,
    pub hosts: Vec<String>,
    pub deadlines: Deadlines,
    /// Bulk calls begun by each rank, by its last heartbeat.
    pub bulk_calls: Vec<AtomicU32>,
    pub mail: Mutex<Mail>,
    pub changed: Condvar,
    pub has_failed: AtomicBool,
    pub is_closing: AtomicBool,
    pub pulse: Pulse,
    /// By rank; `None` where there is no connection.
    pub links: Vec<Option<Link>>,
}

#[derive(Default)]
pub(crate) struct Mail {
    /// Received messages that no call has taken yet, by rank.
    pub inboxes: Vec<VecDeque<Message>>,
    /// Ranks that said goodbye.
    pub has_left: Vec<bool>,
    /// An error is being sent to the other processes.
    pub is_failing: bool,
    pub error: Option<GroupError>,
}

pub(crate) struct Message {
    pub call: u8,
    pub number: u32,
    pub bytes: Vec<u8>,
}

/// Queue of messages to a process.
pub(crate) struct Link {
    pub queue: Mutex<Sender<Arc<Vec<u8>>>>,
    pub num_unwritten: Arc<AtomicUsize>,
}

impl Link {
    pub fn send(&self, frame: &Arc<Vec<u8>>) {
        self.num_unwritten.fetch_add(1, Ordering::AcqRel);
        let queue = lock(&self.queue);
        if queue.send(frame.clone()).is_err() {
            // The writer thread has ended, and with it the connection; the reader thread reports it.
            self.num_unwritten.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Shared {
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    pub fn error(&self) -> Option<GroupError> {
        if !self.has_failed() {
            return None;
        }
        lock(&self.mail).error.clone()
    }

    pub fn check(&self) -> Result<(), GroupError> {
        self.error().map_or(Ok(()), Err)
    }

    pub fn lost(&self, rank: usize, seen: impl Into<String>) -> GroupError {
        GroupError::Lost {
            rank,
            host: self.hosts[rank].clone(),
            seen: seen.into(),
        }
    }

    pub fn failed(&self, message: impl Into<String>) -> GroupError {
        GroupError::Failed {
            rank: self.rank,
            host: self.hosts[self.rank].clone(),
            message: message.into(),
        }
    }

    /// Makes `error` the group's error unless there is one already, and sends it to the other processes first. Returns the group's error.
    pub fn fail(&self, error: GroupError) -> GroupError {
        {
            let mut mail = lock(&self.mail);
            if mail.is_failing {
                while mail.error.is_none() {
                    mail = self.wait(mail);
                }
            }
            if let Some(error) = &mail.error {
                return error.clone();
            }
            mail.is_failing = true;
        }
        let bytes = Arc::new(frame::frame(
            FrameKind::Error,
            0,
            0,
            &[&encode_error(&error)],
        ));
        for link in self.links.iter().flatten() {
            link.send(&bytes);
        }
        let gone = match &error {
            GroupError::Lost { rank, .. } => Some(*rank),
            _ => None,
        };
        self.wait_until_written(gone);
        self.accept(error)
    }

    /// Sets an error that the other processes already know.
    pub fn accept(&self, error: GroupError) -> GroupError {
        let mut mail = lock(&self.mail);
        let error = mail.error.get_or_insert(error).clone();
        self.has_failed.store(true, Ordering::Release);
        self.changed.notify_all();
        error
    }

    /// The group's error if one arrives within two seconds, else `error`: a failure on a bulk connection is often the consequence of an
    /// error that rank 0 is about to report.
    pub fn fail_unless_told(&self, error: GroupError) -> GroupError {
        let end = Instant::now() + Duration::from_secs(2);
        let mut mail = lock(&self.mail);
        while mail.error.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            mail = self.wait_for(mail, left);
        }
        drop(mail);
        self.fail(error)
    }

    /// Whether progress of this process is overdue.
    pub fn hangs(&self) -> bool {
        self.pulse.is_still(self.deadlines.silence)
    }

    /// Thread that detects when this process hangs and reports it to the others; a thread blocked on a disk or a library cannot.
    pub fn watch_itself(&self) {
        while !self.is_closing.load(Ordering::Acquire) && !self.has_failed() {
            if self.hangs() {
                let seconds = self.deadlines.silence.as_secs_f64();
                self.fail(self.lost(
                    self.rank,
                    format!("it is alive, but nothing in it has gone on for {seconds} s: a file system or a device hangs"),
                ));
            }
            thread::park_timeout(interval(self.deadlines.silence));
        }
    }

    pub fn garbled(&self, peer: usize) -> GroupError {
        self.fail(self.lost(
            peer,
            "what it sent is no message of Holdall's: the connection is damaged",
        ))
    }

    fn wait<'a>(&self, mail: MutexGuard<'a, Mail>) -> MutexGuard<'a, Mail> {
        self.changed
            .wait(mail)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'a>(&self, mail: MutexGuard<'a, Mail>, most: Duration) -> MutexGuard<'a, Mail> {
        let waited = self.changed.wait_timeout(mail, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// How long a call waits for processes that are alive.
    fn patience(&self) -> Duration {
        match self.rank {
            0 => self.deadlines.stall,
            _ => self.deadlines.stall.saturating_mul(3) / 2,
        }
    }

    fn stuck(&self, peer: usize) -> GroupError {
        self.lost(
            peer,
            format!(
                "it is alive, but the others have waited {} s for it",
                self.deadlines.stall.as_secs_f64()
            ),
        )
    }

    /// Counts the start of a bulk call.
    pub fn begin_bulk(&self) {
        self.bulk_calls[self.rank].fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a bulk round has exceeded the deadline.
    pub fn is_stalled(&self, began: Instant) -> bool {
        began.elapsed() > self.patience()
    }

    /// The error that names the process missing from the current bulk call.
    pub fn stalled(&self) -> GroupError {
        if self.rank != 0 {
            return self.stuck(0);
        }
        let calls = |rank: usize| self.bulk_calls[rank].load(Ordering::Acquire);
        match (1..self.hosts.len()).find(|&rank| calls(rank) != calls(0)) {
            Some(rank) => self.stuck(rank),
            None => self.failed(format!(
                "tensors did not arrive for {} s, and all processes wait for them: the network between them is at fault",
                self.deadlines.stall.as_secs_f64()
            )),
        }
    }

    pub fn wait_until_written(&self, but: Option<usize>) {
        let end = Instant::now() + TELL_OTHERS;
        let is_unwritten = |(peer, link): (usize, &Option<Link>)| {
            let link = link.as_ref().filter(|_| Some(peer) != but);
            link.is_some_and(|link| link.num_unwritten.load(Ordering::Acquire) > 0)
        };
        while self.links.iter().enumerate().any(is_unwritten) && Instant::now() < end {
            thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn post(&self, peer: usize, parts: &[&[u8]], call: Call, number: u32) {
        if let Some(link) = &self.links[peer] {
            let frame = frame::frame(FrameKind::Message, call as u8, number, parts);
            link.send(&Arc::new(frame));
        }
    }

    pub fn post_to_all(&self, bytes: &[u8], call: Call, number: u32) {
        let frame = frame::frame(FrameKind::Message, call as u8, number, &[bytes]);
        let frame = Arc::new(frame);
        for link in self.links.iter().flatten() {
            link.send(&frame);
        }
    }

    /// Waits for the next message from a process.
    pub fn take(&self, peer: usize, call: Call, number: u32) -> Result<Vec<u8>, GroupError> {
        let began = Instant::now();
        let mut mail = lock(&self.mail);
        let message = loop {
            self.pulse.beat();
            if let Some(error) = &mail.error {
                return Err(error.clone());
            }
            if let Some(message) = mail.inboxes[peer].pop_front() {
                break message;
            }
            if mail.has_left[peer] {
                drop(mail);
                return Err(self.fail(self.lost(peer, "it ended before the others")));
            }
            let left = self.patience().saturating_sub(began.elapsed());
            // The final Leave call has no deadline: no work waits for it.
            if left.is_zero() && call != Call::Leave {
                drop(mail);
                return Err(self.fail(self.stuck(peer)));
            }
            let look = interval(self.deadlines.silence);
            mail = self.wait_for(mail, left.clamp(Duration::from_millis(10), look));
        };
        drop(mail);
        if (message.call, message.number) != (call as u8, number) {
            return Err(self.fail(GroupError::Mismatch(format!(
                "ranks {} and {peer} are out of step: call {number} is a {call:?} here, rank {peer} sent call {} of kind {}\n\
                 hint: this is a bug; please report it",
                self.rank, message.number, message.call
            ))));
        }
        Ok(message.bytes)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
