//! The listener of a process while it starts, and who is let in.
//!
//! Whoever connects has a second to say the job's token, and who does not is closed and counted. Where many connect, those that have said
//! nothing yet are closed first, the oldest before all: a process of the job says hello as soon as it is connected, and comes back when it
//! was closed.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::GroupError;
use crate::hello::{Hello, MOST_DETAILS, Member, NotAHello, PREFIX_BYTES, Purpose, Token};
use crate::rendezvous::Arrival;

/// How long a process that has said the token may take for the rest of its hello, and how long a connection may take.
pub(crate) const HELLO_TIME: Duration = Duration::from_secs(5);
/// How long a connection may take to say the token.
const TOKEN_TIME: Duration = Duration::from_secs(1);
/// Connections that may be saying hello at the same time, beside two of every rank.
const MOST_STRANGERS: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);
/// Answer to a hello for bulk data.
pub(crate) const LET_IN: u8 = b'+';

/// A listener, and the connections that are saying hello. It closes when this is dropped.
pub(crate) struct Door {
    listener: TcpListener,
    token: Token,
    size: usize,
    /// In the order in which they came.
    visitors: VecDeque<Visitor>,
    num_garbage: usize,
    num_wrong_tokens: usize,
}

/// A connection that has not said all of its hello.
struct Visitor {
    stream: TcpStream,
    said: Vec<u8>,
    /// Bytes of its whole hello, once the token was right.
    expected: Option<usize>,
    end: Instant,
}

impl Door {
    pub fn open(listener: TcpListener, token: Token, size: usize) -> Result<Door, GroupError> {
        listener
            .set_nonblocking(true)
            .map_err(|error| GroupError::Start(format!("no listener: {error}")))?;
        Ok(Door {
            listener,
            token,
            size,
            visitors: VecDeque::new(),
            num_garbage: 0,
            num_wrong_tokens: 0,
        })
    }

    /// Connections that were closed: those that did not say hello, and those with another job's token.
    pub fn refused(&self) -> (usize, usize) {
        (self.num_garbage, self.num_wrong_tokens)
    }

    /// The next process that knows the token; `None` when time is up.
    pub fn next(&mut self, end: Instant) -> Option<(TcpStream, Hello)> {
        loop {
            // As many as there is room for: a stream of connections must not keep those from being heard that are here.
            for _ in 0..self.most_visitors() {
                match self.listener.accept() {
                    Ok((stream, _)) => self.receive(stream),
                    Err(_) => break,
                }
            }
            if let Some(guest) = self.hear_all() {
                return Some(guest);
            }
            if Instant::now() >= end {
                return None;
            }
            thread::sleep(PAUSE);
        }
    }

    fn most_visitors(&self) -> usize {
        2 * self.size + MOST_STRANGERS
    }

    fn receive(&mut self, stream: TcpStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut visitor = Visitor {
            stream,
            said: Vec::new(),
            expected: None,
            end: Instant::now() + TOKEN_TIME,
        };
        // What it said before it was accepted counts before anybody is closed for it.
        visitor.listen(PREFIX_BYTES);
        self.visitors.push_back(visitor);
        if self.visitors.len() > self.most_visitors() {
            let silent = self.visitors.iter().position(|one| one.said.is_empty());
            self.visitors.remove(silent.unwrap_or(0));
            self.num_garbage += 1;
        }
    }

    /// Listens to every visitor; the first that has said all of a hello.
    fn hear_all(&mut self) -> Option<(TcpStream, Hello)> {
        for _ in 0..self.visitors.len() {
            let mut visitor = self.visitors.pop_front()?;
            match visitor.hear(&self.token) {
                Ok(None) => self.visitors.push_back(visitor),
                Ok(Some(hello)) if visitor.stream.set_nonblocking(false).is_ok() => {
                    return Some((visitor.stream, hello));
                }
                Ok(Some(_)) | Err(NotAHello::Garbage) => self.num_garbage += 1,
                Err(NotAHello::WrongToken) => self.num_wrong_tokens += 1,
            }
        }
        None
    }

    /// Connections for tensors, from every higher rank.
    pub fn take_bulk(
        &mut self,
        arrival: &Arrival,
        members: &[Member],
        bulk: &mut [Option<TcpStream>],
        end: Instant,
    ) -> Result<(), GroupError> {
        while let Some(missing) =
            (arrival.rank + 1..arrival.size).find(|&rank| bulk[rank].is_none())
        {
            let Some((mut stream, hello)) = self.next(end + HELLO_TIME) else {
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
            // Who is not told that it is let in comes back.
            if is_expected && stream.write_all(&[LET_IN]).is_ok() {
                bulk[hello.rank] = Some(stream);
            }
        }
        Ok(())
    }
}

impl Visitor {
    /// Its hello, once all of it has come.
    fn hear(&mut self, token: &Token) -> Result<Option<Hello>, NotAHello> {
        let is_open = self.listen(self.expected.unwrap_or(PREFIX_BYTES));
        if self.expected.is_none()
            && let Some((prefix, _)) = self.said.split_first_chunk::<PREFIX_BYTES>()
        {
            let num_details = Hello::parse_prefix(prefix, token)?;
            self.expected = Some(PREFIX_BYTES + num_details);
            self.end = Instant::now() + HELLO_TIME;
            return self.hear(token);
        }
        if self.expected == Some(self.said.len()) {
            return Hello::parse_details(&self.said[PREFIX_BYTES..]).map(Some);
        }
        if is_open && Instant::now() < self.end {
            Ok(None)
        } else {
            Err(NotAHello::Garbage)
        }
    }

    /// Reads what has come, up to `most` bytes in all; whether more may come.
    fn listen(&mut self, most: usize) -> bool {
        let mut bytes = [0; PREFIX_BYTES + MOST_DETAILS];
        while self.said.len() < most {
            match self.stream.read(&mut bytes[..most - self.said.len()]) {
                Ok(0) => return false,
                Ok(count) => self.said.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
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
