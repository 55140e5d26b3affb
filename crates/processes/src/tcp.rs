//! Rounds over TCP: one non-blocking connection with every other process.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::bulk::{Interruption, Round, Transport};

/// How long a wait may last before the group's error is checked again.
const LOOK: Duration = Duration::from_millis(20);
/// Connections per poll.
#[cfg(unix)]
const MOST_WAITED: usize = 32;

/// A connection with every other process; `None` for the own rank.
pub(crate) struct Tcp {
    streams: Vec<Option<TcpStream>>,
    /// Bytes of the current round sent to and received from each rank.
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl Tcp {
    /// A connection breaks when nothing on it is acknowledged for the time of `silence`.
    pub fn new(streams: Vec<Option<TcpStream>>, silence: Duration) -> std::io::Result<Tcp> {
        for stream in streams.iter().flatten() {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            notice_silence(stream, silence);
        }
        let size = streams.len();
        Ok(Tcp {
            streams,
            sent: vec![0; size],
            received: vec![0; size],
        })
    }

    /// Sends to and receives from a process without blocking; returns whether any bytes moved.
    fn advance(&mut self, peer: usize, round: &mut Round<'_>) -> std::io::Result<bool> {
        let Some(stream) = &mut self.streams[peer] else {
            return Ok(false);
        };
        let mut has_moved = false;
        let send = round.sends[peer];
        while self.sent[peer] < send.len {
            let rest = &round.outgoing[send.start + self.sent[peer]..send.start + send.len];
            match stream.write(rest) {
                Ok(count) => {
                    self.sent[peer] += count;
                    has_moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let receive = round.receives[peer];
        while self.received[peer] < receive.len {
            let start = receive.start + self.received[peer];
            let rest = &mut round.incoming[start..receive.start + receive.len];
            match stream.read(rest) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.received[peer] += count;
                    has_moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(has_moved)
    }

    fn is_done(&self, peer: usize, round: &Round<'_>) -> bool {
        self.sent[peer] == round.sends[peer].len && self.received[peer] == round.receives[peer].len
    }

    /// Waits until a connection has room or data, or for a short time.
    #[cfg(unix)]
    fn wait(&self, round: &Round<'_>) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut waited = (0..self.streams.len()).filter_map(|peer| {
            let stream = self.streams[peer].as_ref()?;
            let mut flags = PollFlags::empty();
            if self.sent[peer] < round.sends[peer].len {
                flags |= PollFlags::OUT;
            }
            if self.received[peer] < round.receives[peer].len {
                flags |= PollFlags::IN;
            }
            (!flags.is_empty()).then_some((stream, flags))
        });
        let Some(first) = waited.next() else {
            return;
        };
        // On the stack: nothing may be allocated here. Unused entries repeat the first connection.
        let mut descriptors: [PollFd<'_>; MOST_WAITED] = std::array::from_fn(|place| {
            let (stream, flags) = match place {
                0 => first,
                _ => waited.next().unwrap_or(first),
            };
            PollFd::new(stream, flags)
        });
        let look = match waited.next() {
            // More connections wait than fit one poll.
            Some(_) => Duration::from_millis(1),
            None => LOOK,
        };
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(look.subsec_nanos()),
        };
        // An interrupted wait is a short one.
        let _ = poll(&mut descriptors, Some(&timeout));
    }

    #[cfg(not(unix))]
    fn wait(&self, _round: &Round<'_>) {
        std::thread::sleep(LOOK / 200);
    }
}

/// TCP keepalive on a bulk connection: heartbeats go through rank 0, so only the connection itself can notice that two other ranks cannot
/// reach each other. Where the system has no such setting, the stall deadline applies. A slow process is not cut off: tensors are sent only
/// to processes in the same call, which read them, and the header of a call fits the system's buffers.
#[cfg(target_os = "linux")]
fn notice_silence(stream: &TcpStream, silence: Duration) {
    use rustix::net::sockopt;
    let probe = (silence / 4).max(Duration::from_secs(1));
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, probe);
    let _ = sockopt::set_tcp_keepintvl(stream, probe);
    let milliseconds = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(stream, milliseconds);
}

#[cfg(not(target_os = "linux"))]
fn notice_silence(_stream: &TcpStream, _silence: Duration) {}

impl Transport for Tcp {
    fn exchange(
        &mut self,
        mut round: Round<'_>,
        must_stop: &dyn Fn() -> bool,
    ) -> Result<(), Interruption> {
        self.sent.fill(0);
        self.received.fill(0);
        loop {
            let (mut is_done, mut has_moved) = (true, false);
            for peer in 0..self.streams.len() {
                if self.is_done(peer, &round) {
                    continue;
                }
                has_moved |= self.advance(peer, &mut round).map_err(|error| {
                    let seen = match error.kind() {
                        ErrorKind::UnexpectedEof
                        | ErrorKind::ConnectionReset
                        | ErrorKind::BrokenPipe => {
                            "its connection for tensors closed: it was killed or crashed".to_owned()
                        }
                        _ => format!("its connection for tensors broke: {error}"),
                    };
                    Interruption::Peer { rank: peer, seen }
                })?;
                is_done &= self.is_done(peer, &round);
            }
            if is_done {
                return Ok(());
            }
            if must_stop() {
                return Err(Interruption::Stopped);
            }
            if !has_moved {
                self.wait(&round);
            }
        }
    }

    fn held_bytes(&self) -> u64 {
        0
    }

    fn name(&self) -> &str {
        "TCP"
    }

    fn has_unfinished(&self) -> bool {
        false
    }

    fn ends_together(&self) -> bool {
        false
    }

    fn finish(&mut self) {}
}
