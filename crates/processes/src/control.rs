//! Small messages, heartbeats and the first error, over a star of TCP connections: every process with rank 0.
//!
//! ```text
//! share:      r -> 0: own          0 -> all: everyone's, in rank order
//! broadcast:                       0 -> all: its bytes
//! error:      r -> 0: what it saw  0 -> all: the first of all
//! heartbeat:  both ways, whenever nothing else was sent for a sixth of the deadline
//! ```
//!
//! Each connection has a thread that writes and one that reads, so that no call waits for a socket: a process that does not
//! take what it is sent delays nobody but itself, and is lost when it has been silent for the deadline. All that must be told
//! is written before a call returns an error, so that a process that ends on it does not look like the cause.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::GroupError;
use crate::frame::{self, Call, HEADER_BYTES, Header, Kind, decode_error, encode_error};
use crate::wire::{Reader, put_counted};

/// What is read from a connection at a time.
const READ_BYTES: usize = 1 << 16;
/// How long an error may take to be written to the others before it is acted on.
const TELL_OTHERS: Duration = Duration::from_millis(1000);

/// This process's end of the star.
pub(crate) struct Control {
    shared: Arc<Shared>,
    /// Calls so far; held during a call, so that they do not mix.
    calls: Mutex<u32>,
}

/// What calls and the threads of connections share.
pub(crate) struct Shared {
    rank: usize,
    hosts: Vec<String>,
    deadline: Duration,
    mail: Mutex<Mail>,
    changed: Condvar,
    has_failed: AtomicBool,
    is_closing: AtomicBool,
    /// By rank: `None` where there is no connection.
    links: Vec<Option<Link>>,
}

#[derive(Default)]
struct Mail {
    /// Messages that came and were not asked for yet, by rank.
    inboxes: Vec<VecDeque<Message>>,
    /// Who said goodbye.
    has_left: Vec<bool>,
    /// An error is on its way to the others.
    is_failing: bool,
    error: Option<GroupError>,
}

struct Message {
    call: u8,
    number: u32,
    bytes: Vec<u8>,
}

/// Where messages to a process queue up.
struct Link {
    queue: Mutex<Sender<Arc<Vec<u8>>>>,
    num_unwritten: Arc<AtomicUsize>,
}

impl Link {
    fn send(&self, frame: &Arc<Vec<u8>>) {
        self.num_unwritten.fetch_add(1, Ordering::AcqRel);
        let queue = lock(&self.queue);
        if queue.send(frame.clone()).is_err() {
            // The thread that writes has ended: so has the connection, and whoever reads from it says so.
            self.num_unwritten.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Control {
    /// Takes over connections: with every other process for rank 0, with rank 0 for every other.
    pub fn new(
        rank: usize,
        hosts: Vec<String>,
        connections: Vec<Option<TcpStream>>,
        deadline: Duration,
    ) -> Result<Control, GroupError> {
        let size = hosts.len();
        let mut links = Vec::new();
        let mut ends = Vec::new();
        for (peer, stream) in connections.into_iter().enumerate() {
            let Some(stream) = stream else {
                links.push(None);
                continue;
            };
            let (sender, receiver) = channel();
            let num_unwritten = Arc::new(AtomicUsize::new(0));
            links.push(Some(Link {
                queue: Mutex::new(sender),
                num_unwritten: num_unwritten.clone(),
            }));
            ends.push((peer, stream, receiver, num_unwritten));
        }
        let shared = Arc::new(Shared {
            rank,
            hosts,
            deadline,
            mail: Mutex::new(Mail {
                inboxes: (0..size).map(|_| VecDeque::new()).collect(),
                has_left: vec![false; size],
                is_failing: false,
                error: None,
            }),
            changed: Condvar::new(),
            has_failed: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            links,
        });
        for (peer, stream, receiver, num_unwritten) in ends {
            let begin = || -> std::io::Result<()> {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(interval(deadline)))?;
                stream.set_write_timeout(Some(deadline))?;
                let reads = stream.try_clone()?;
                let (for_reads, for_writes) = (shared.clone(), shared.clone());
                thread::Builder::new()
                    .name(format!("from rank {peer}"))
                    .spawn(move || for_reads.read(peer, reads))?;
                thread::Builder::new()
                    .name(format!("to rank {peer}"))
                    .spawn(move || for_writes.write(peer, stream, receiver, &num_unwritten))?;
                Ok(())
            };
            begin().map_err(|error| {
                GroupError::Start(format!(
                    "no thread or socket to talk to rank {peer}: {error}\n\
                     hint: raise the limits on processes and open files (ulimit -u, ulimit -n)"
                ))
            })?;
        }
        Ok(Control {
            shared,
            calls: Mutex::new(0),
        })
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn share(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        let mut calls = lock(&self.calls);
        self.shared.check()?;
        *calls = calls.wrapping_add(1);
        let shared = &*self.shared;
        let size = shared.hosts.len();
        if shared.rank != 0 {
            shared.post(0, &[own], Call::Share, *calls);
            let bytes = shared.take(0, Call::Share, *calls)?;
            return split(&bytes, size).ok_or_else(|| shared.garbled(0));
        }
        let mut all = Vec::with_capacity(size);
        all.push(own.to_vec());
        for peer in 1..size {
            all.push(shared.take(peer, Call::Share, *calls)?);
        }
        let mut bytes = Vec::new();
        for part in &all {
            put_counted(&mut bytes, part);
        }
        shared.post_to_all(&bytes, Call::Share, *calls);
        Ok(all)
    }

    pub fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<(), GroupError> {
        let mut calls = lock(&self.calls);
        self.shared.check()?;
        *calls = calls.wrapping_add(1);
        if self.shared.rank == 0 {
            self.shared.post_to_all(bytes, Call::Broadcast, *calls);
        } else {
            *bytes = self.shared.take(0, Call::Broadcast, *calls)?;
        }
        Ok(())
    }
}

impl Drop for Control {
    /// Says goodbye, so that nobody takes the end of this process for a failure.
    fn drop(&mut self) {
        let shared = &*self.shared;
        shared.is_closing.store(true, Ordering::Release);
        let goodbye = Arc::new(frame::frame(Kind::Goodbye, 0, 0, &[]));
        for link in shared.links.iter().flatten() {
            link.send(&goodbye);
        }
        shared.wait_until_written(None);
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

    /// Makes `error` the group's, unless there is one already; the others are told first. Returns the group's.
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
        let bytes = Arc::new(frame::frame(Kind::Error, 0, 0, &[&encode_error(&error)]));
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

    /// An error that the others know.
    fn accept(&self, error: GroupError) -> GroupError {
        let mut mail = lock(&self.mail);
        let error = mail.error.get_or_insert(error).clone();
        self.has_failed.store(true, Ordering::Release);
        self.changed.notify_all();
        error
    }

    /// The group's error where there is one within two seconds, else `error`: what is seen on a connection for bulk data is
    /// often the consequence of what rank 0 is about to tell.
    pub fn fail_unless_told(&self, error: GroupError) -> GroupError {
        let end = Instant::now() + Duration::from_secs(2);
        let mut mail = lock(&self.mail);
        while mail.error.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(mail, left);
            mail = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(mail);
        self.fail(error)
    }

    fn garbled(&self, peer: usize) -> GroupError {
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

    fn wait_until_written(&self, but: Option<usize>) {
        let end = Instant::now() + TELL_OTHERS;
        let is_unwritten = |(peer, link): (usize, &Option<Link>)| {
            let link = link.as_ref().filter(|_| Some(peer) != but);
            link.is_some_and(|link| link.num_unwritten.load(Ordering::Acquire) > 0)
        };
        while self.links.iter().enumerate().any(is_unwritten) && Instant::now() < end {
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn post(&self, peer: usize, parts: &[&[u8]], call: Call, number: u32) {
        if let Some(link) = &self.links[peer] {
            let frame = frame::frame(Kind::Message, call as u8, number, parts);
            link.send(&Arc::new(frame));
        }
    }

    fn post_to_all(&self, bytes: &[u8], call: Call, number: u32) {
        let frame = frame::frame(Kind::Message, call as u8, number, &[bytes]);
        let frame = Arc::new(frame);
        for link in self.links.iter().flatten() {
            link.send(&frame);
        }
    }

    /// Waits for the next message of a process.
    fn take(&self, peer: usize, call: Call, number: u32) -> Result<Vec<u8>, GroupError> {
        let mut mail = lock(&self.mail);
        let message = loop {
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
            mail = self.wait(mail);
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

    /// The thread that writes to a process.
    fn write(
        &self,
        peer: usize,
        mut stream: TcpStream,
        queue: Receiver<Arc<Vec<u8>>>,
        num_unwritten: &AtomicUsize,
    ) {
        let heartbeat = frame::frame(Kind::Heartbeat, 0, 0, &[]);
        loop {
            let (written, is_last) = match queue.recv_timeout(interval(self.deadline)) {
                Ok(frame) => {
                    let written = stream.write_all(&frame);
                    num_unwritten.fetch_sub(1, Ordering::AcqRel);
                    (written, frame[0] == Kind::Goodbye as u8)
                }
                Err(RecvTimeoutError::Timeout) => (stream.write_all(&heartbeat), false),
                Err(RecvTimeoutError::Disconnected) => (Ok(()), true),
            };
            if let Err(error) = written {
                // A connection that broke is for the reader to explain; one that takes nothing is explained here.
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
                    self.silent(peer);
                }
                break;
            }
            if is_last {
                let _ = stream.shutdown(Shutdown::Write);
                break;
            }
        }
        while queue.try_recv().is_ok() {
            num_unwritten.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn silent(&self, peer: usize) {
        if !self.is_closing.load(Ordering::Acquire) {
            let seconds = self.deadline.as_secs_f64();
            self.fail(self.lost(
                peer,
                format!("nothing was heard of it for {seconds} s: it is stopped, or the network between is down"),
            ));
        }
    }

    /// The thread that reads from a process.
    fn read(&self, peer: usize, mut stream: TcpStream) {
        let mut heard = Instant::now();
        loop {
            let mut header = [0; HEADER_BYTES];
            let mut body = Vec::new();
            let read = self
                .fill(&mut stream, &mut header, &mut heard)
                .and_then(|()| {
                    let header = Header::parse(&header).map_err(|_| Ended::Garbled)?;
                    while body.len() < header.num_bytes {
                        let old = body.len();
                        body.resize(header.num_bytes.min(old + READ_BYTES), 0);
                        self.fill(&mut stream, &mut body[old..], &mut heard)?;
                    }
                    Ok(header)
                });
            let header = match read {
                Ok(header) => header,
                Err(ended) => return self.explain(peer, ended),
            };
            match header.kind {
                Kind::Heartbeat => {}
                Kind::Message => {
                    let message = Message {
                        call: header.call,
                        number: header.number,
                        bytes: body,
                    };
                    lock(&self.mail).inboxes[peer].push_back(message);
                    self.changed.notify_all();
                }
                Kind::Error => match decode_error(&body) {
                    // Rank 0 tells everyone; the others have it from rank 0.
                    Ok(error) if self.rank == 0 => {
                        self.fail(error);
                    }
                    Ok(error) => {
                        self.accept(error);
                    }
                    Err(_) => {
                        self.garbled(peer);
                    }
                },
                Kind::Goodbye => {
                    lock(&self.mail).has_left[peer] = true;
                    self.changed.notify_all();
                    return;
                }
            }
        }
    }

    fn explain(&self, peer: usize, ended: Ended) {
        match ended {
            Ended::Closing => {}
            Ended::Silent => self.silent(peer),
            Ended::Garbled => {
                self.garbled(peer);
            }
            Ended::Broken(error) if !self.is_closing.load(Ordering::Acquire) => {
                let seen = match error.kind() {
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                        "its connection closed without a goodbye: it was killed or crashed"
                            .to_owned()
                    }
                    _ => format!("its connection broke: {error}"),
                };
                self.fail(self.lost(peer, seen));
            }
            Ended::Broken(_) => {}
        }
    }

    /// Reads until `bytes` is full, as long as something comes within the deadline.
    fn fill(
        &self,
        stream: &mut TcpStream,
        mut bytes: &mut [u8],
        heard: &mut Instant,
    ) -> Result<(), Ended> {
        while !bytes.is_empty() {
            match stream.read(bytes) {
                Ok(0) => return Err(Ended::Broken(ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    *heard = Instant::now();
                    bytes = &mut bytes[count..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if self.is_closing.load(Ordering::Acquire) {
                        return Err(Ended::Closing);
                    }
                    if heard.elapsed() > self.deadline {
                        return Err(Ended::Silent);
                    }
                }
                Err(error) => return Err(Ended::Broken(error)),
            }
        }
        Ok(())
    }
}

/// Why a connection is not read any more.
enum Ended {
    Closing,
    Silent,
    Garbled,
    Broken(std::io::Error),
}

/// Between heartbeats, and between looks at whether they come.
fn interval(deadline: Duration) -> Duration {
    (deadline / 6).clamp(Duration::from_millis(20), Duration::from_secs(5))
}

fn split(bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader::new(bytes);
    let parts: Option<Vec<Vec<u8>>> = (0..count)
        .map(|_| reader.counted().ok().map(<[u8]>::to_vec))
        .collect();
    reader.end().ok()?;
    parts
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
