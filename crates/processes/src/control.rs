//! Small messages, heartbeats and the first error, over a star of TCP connections: every process with rank 0.
//!
//! ```text
//! share:      r -> 0: own bytes        0 -> all: every process's bytes, in rank order
//! broadcast:                           0 -> all: rank 0's bytes
//! error:      r -> 0: what it saw      0 -> all: the first error
//! heartbeat:  both directions, whenever nothing else was sent for a sixth of the deadline
//! ```
//!
//! Each connection has a writer and a reader thread, so that no call blocks on a socket: a process that does not read its messages
//! delays no other process, and is lost when it has been silent for the deadline. Before a call returns an error, all messages about the
//! error are written, so that a process that exits because of it does not look like its cause.
//!
//! A process may be alive and yet never make the call that all others wait in. Within work made of small parts it detects its own hang
//! ([`Pulse`]). Otherwise rank 0 decides, after a much longer deadline, and names the process that did not come; the other ranks wait half
//! as long again for rank 0, and then name rank 0.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, Thread};

use crate::deadlines::Deadlines;
use crate::deadlines::interval;
use crate::error::GroupError;
use crate::frame::{self, Call, FrameKind};
use crate::pulse::Pulse;
use crate::state::{Link, Mail, Shared, lock};
use crate::wire::{Reader, put_counted};

/// This process's end of the star.
pub(crate) struct Control {
    shared: Arc<Shared>,
    /// Number of calls so far; locked during a call, so that calls do not interleave.
    calls: Mutex<u32>,
    /// The thread that detects when this process hangs.
    watch: Thread,
}

impl Control {
    /// Takes over the connections: rank 0's with every other process, or another rank's with rank 0.
    pub fn new(
        rank: usize,
        hosts: Vec<String>,
        connections: Vec<Option<TcpStream>>,
        deadlines: Deadlines,
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
            deadlines,
            bulk_calls: (0..size).map(|_| AtomicU32::new(0)).collect(),
            mail: Mutex::new(Mail {
                inboxes: (0..size).map(|_| VecDeque::new()).collect(),
                has_left: vec![false; size],
                is_failing: false,
                error: None,
            }),
            changed: Condvar::new(),
            has_failed: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            pulse: Pulse::new(),
            links,
        });
        for (peer, stream, receiver, num_unwritten) in ends {
            let begin = || -> std::io::Result<()> {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(interval(deadlines.silence)))?;
                stream.set_write_timeout(Some(deadlines.silence))?;
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
            begin().map_err(|error| no_room(&format!("talk to rank {peer}"), &error))?;
        }
        let watched = shared.clone();
        let watch = thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || watched.watch_itself())
            .map_err(|error| no_room("watch this process", &error))?;
        Ok(Control {
            shared,
            calls: Mutex::new(0),
            watch: watch.thread().clone(),
        })
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn share(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        self.share_for(Call::Share, own)
    }

    /// Waits until all other processes leave as well.
    pub fn leave_together(&self) -> Result<(), GroupError> {
        self.share_for(Call::Leave, &[]).map(|_| ())
    }

    /// Rank 0's answer to `share` holds the messages of all processes and must fit one frame.
    fn check_length(&self, len: usize) -> Result<(), GroupError> {
        let most = frame::MOST_BYTES / self.shared.hosts.len() - 16;
        if len <= most {
            return Ok(());
        }
        Err(self.shared.fail(GroupError::Mismatch(format!(
            "a message of {len} bytes, expected at most {most}\nhint: this is a bug; please report it"
        ))))
    }

    fn share_for(&self, call: Call, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        self.check_length(own.len())?;
        let mut calls = lock(&self.calls);
        self.shared.check()?;
        *calls = calls.wrapping_add(1);
        let shared = &*self.shared;
        let size = shared.hosts.len();
        if shared.rank != 0 {
            shared.post(0, &[own], call, *calls);
            let bytes = shared.take(0, call, *calls)?;
            return split(&bytes, size).ok_or_else(|| shared.garbled(0));
        }
        let mut all = Vec::with_capacity(size);
        all.push(own.to_vec());
        for peer in 1..size {
            all.push(shared.take(peer, call, *calls)?);
        }
        let mut bytes = Vec::new();
        for part in &all {
            put_counted(&mut bytes, part);
        }
        shared.post_to_all(&bytes, call, *calls);
        Ok(all)
    }

    pub fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<(), GroupError> {
        self.check_length(bytes.len())?;
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
    /// Sends a goodbye, so that no other process takes the end of this one for a failure.
    fn drop(&mut self) {
        let shared = &*self.shared;
        shared.is_closing.store(true, Ordering::Release);
        self.watch.unpark();
        let goodbye = Arc::new(frame::frame(FrameKind::Goodbye, 0, 0, &[]));
        for link in shared.links.iter().flatten() {
            link.send(&goodbye);
        }
        shared.wait_until_written(None);
    }
}

fn no_room(purpose: &str, error: &std::io::Error) -> GroupError {
    GroupError::Start(format!(
        "no thread or socket to {purpose}: {error}\n\
         hint: raise the limits on processes and open files (ulimit -u, ulimit -n)"
    ))
}

fn split(bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut reader = Reader::new(bytes);
    let parts: Option<Vec<Vec<u8>>> = (0..count)
        .map(|_| reader.counted().ok().map(<[u8]>::to_vec))
        .collect();
    reader.end().ok()?;
    parts
}
