//! The listener of a process during start-up; it admits only processes that know the job's token.
//!
//! A new connection has one second to send the token; otherwise it is closed and counted. When there are too many connections, those that
//! have sent nothing yet are closed first, oldest first: a process of the job sends its hello as soon as it is connected, and reconnects
//! when it was closed.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::GroupError;
use crate::hello::{
    ConnectionPurpose, Hello, MOST_DETAILS, Member, NotAHello, PREFIX_BYTES, Token,
};
use crate::rendezvous::Arrival;

/// Time for the rest of a hello after its token, and for a connection attempt.
pub(crate) const HELLO_TIME: Duration = Duration::from_secs(5);
/// Time from connection to token.
const TOKEN_TIME: Duration = Duration::from_secs(1);
/// Most connections that may be mid-hello at the same time, beside two per rank.
const MOST_STRANGERS: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);
/// Reply to an accepted hello on a bulk connection.
pub(crate) const LET_IN: u8 = b'+';

/// A listener and its connections that have not finished their hello. Dropping it closes them.
pub(crate) struct Door {
    listener: TcpListener,
    token: Token,
    size: usize,
    /// In order of arrival.
    visitors: VecDeque<Visitor>,
    num_garbage: usize,
    num_wrong_tokens: usize,
}

/// A connection whose hello is incomplete.
struct Visitor {
    stream: TcpStream,
    said: Vec<u8>,
    /// Length of the whole hello, known once the token was right.
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

    /// Number of connections closed because they sent no hello, and because they sent another job's token.
    pub fn refused(&self) -> (usize, usize) {
        (self.num_garbage, self.num_wrong_tokens)
    }

    /// The next process that knows the token; `None` once `end` has passed.
    pub fn next(&mut self, end: Instant) -> Option<(TcpStream, Hello)> {
        loop {
            // At most as many accepts as there is room for: a flood of connections must not starve those that are already here.
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
        // Bytes that arrived before the accept are read before any silent connection is closed.
        visitor.listen(PREFIX_BYTES);
        self.visitors.push_back(visitor);
        if self.visitors.len() > self.most_visitors() {
            let silent = self.visitors.iter().position(|one| one.said.is_empty());
            self.visitors.remove(silent.unwrap_or(0));
            self.num_garbage += 1;
        }
    }

    /// Reads from every visitor; returns the first whose hello is complete.
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

    /// Accepts the bulk connections of all higher ranks.
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
            let is_expected = hello.purpose == ConnectionPurpose::Bulk
                && hello.size == arrival.size
                && (arrival.rank + 1..arrival.size).contains(&hello.rank)
                && bulk[hello.rank].is_none();
            // A process that gets no `LET_IN` reconnects.
            if is_expected && stream.write_all(&[LET_IN]).is_ok() {
                bulk[hello.rank] = Some(stream);
            }
        }
        Ok(())
    }
}

impl Visitor {
    /// The visitor's hello, once it is complete.
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

    /// Reads available bytes, up to `most` in all; false once the connection is closed or broken.
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

/// Fills `bytes`, or fails at `end` however slowly they arrive.
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
