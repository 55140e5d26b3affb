//! The listener of a process while it starts, and who is let in.
//!
//! Whoever connects has five seconds to say hello in a thread of its own; who does not know the token is closed and counted.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::GroupError;
use crate::hello::{Hello, MOST_DETAILS, Member, NotAHello, PREFIX_BYTES, Purpose, Token};
use crate::rendezvous::Arrival;

/// How long a connection may take to say hello.
pub(crate) const HELLO_TIME: Duration = Duration::from_secs(5);
/// Connections that may be saying hello at the same time, beside two of every rank.
const MOST_STRANGERS: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);

/// A listener, and the threads that hear who is there. It closes when this is dropped.
pub(crate) struct Door {
    listener: TcpListener,
    token: Token,
    size: usize,
    sender: Sender<(TcpStream, Hello)>,
    guests: Receiver<(TcpStream, Hello)>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    saying_hello: AtomicUsize,
    garbage: AtomicUsize,
    wrong_tokens: AtomicUsize,
}

impl Door {
    pub fn open(listener: TcpListener, token: Token, size: usize) -> Result<Door, GroupError> {
        listener
            .set_nonblocking(true)
            .map_err(|error| GroupError::Start(format!("no listener: {error}")))?;
        let (sender, guests) = channel();
        Ok(Door {
            listener,
            token,
            size,
            sender,
            guests,
            counts: Arc::default(),
        })
    }

    pub fn refused(&self) -> (usize, usize) {
        let counts = &*self.counts;
        (
            counts.garbage.load(Ordering::Relaxed),
            counts.wrong_tokens.load(Ordering::Relaxed),
        )
    }

    /// The next process that knows the token; `None` when time is up.
    pub fn next(&self, end: Instant) -> Result<Option<(TcpStream, Hello)>, GroupError> {
        loop {
            while let Ok((stream, _)) = self.listener.accept() {
                self.listen_to(stream);
            }
            if let Ok(guest) = self.guests.recv_timeout(PAUSE) {
                return Ok(Some(guest));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
        }
    }

    /// In a thread of its own: who says nothing keeps nobody waiting.
    fn listen_to(&self, mut stream: TcpStream) {
        let counts = self.counts.clone();
        if counts.saying_hello.fetch_add(1, Ordering::AcqRel) >= 2 * self.size + MOST_STRANGERS {
            counts.saying_hello.fetch_sub(1, Ordering::AcqRel);
            counts.garbage.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (sender, token) = (self.sender.clone(), self.token.clone());
        let heard = counts.clone();
        let spawned = thread::Builder::new().spawn(move || {
            match hear(&mut stream, &token) {
                // Where nobody waits any more, the connection closes.
                Ok(hello) => drop(sender.send((stream, hello))),
                Err(NotAHello::WrongToken) => {
                    heard.wrong_tokens.fetch_add(1, Ordering::Relaxed);
                }
                Err(NotAHello::Garbage) => {
                    heard.garbage.fetch_add(1, Ordering::Relaxed);
                }
            }
            heard.saying_hello.fetch_sub(1, Ordering::AcqRel);
        });
        if spawned.is_err() {
            counts.saying_hello.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Connections for tensors, from every higher rank.
    pub fn take_bulk(
        &self,
        arrival: &Arrival,
        members: &[Member],
        bulk: &mut [Option<TcpStream>],
        end: Instant,
    ) -> Result<(), GroupError> {
        while let Some(missing) =
            (arrival.rank + 1..arrival.size).find(|&rank| bulk[rank].is_none())
        {
            let Some((stream, hello)) = self.next(end + HELLO_TIME)? else {
                return Err(GroupError::Start(format!(
                    "rank {missing} on {} did not connect to rank {} on {} for tensors\n\
                     hint: what it printed last says more; a firewall between the machines may be the cause",
                    members[missing].host, arrival.rank, arrival.host
                )));
            };
            let is_expected = hello.purpose == Purpose::Bulk
                && hello.size == arrival.size
                && (arrival.rank + 1..arrival.size).contains(&hello.rank)
                && bulk[hello.rank].is_none();
            if is_expected {
                bulk[hello.rank] = Some(stream);
            }
        }
        Ok(())
    }
}

fn hear(stream: &mut TcpStream, token: &Token) -> Result<Hello, NotAHello> {
    let end = Instant::now() + HELLO_TIME;
    let mut read =
        |bytes: &mut [u8]| read_until(stream, bytes, end).map_err(|_| NotAHello::Garbage);
    let mut prefix = [0; PREFIX_BYTES];
    read(&mut prefix)?;
    let num_details = Hello::parse_prefix(&prefix, token)?;
    let mut details = [0; MOST_DETAILS];
    let details = &mut details[..num_details];
    read(details)?;
    Hello::parse_details(details)
}

/// Fills `bytes` or fails by `end`, however slowly they come.
pub(crate) fn read_until(
    stream: &mut TcpStream,
    mut bytes: &mut [u8],
    end: Instant,
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
