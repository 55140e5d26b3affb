//! Rounds over TCP: one connection with every other process, none of them ever blocked on.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::bulk::{Interruption, Round, Transport};

/// How long a wait may last before the group's error is looked at again.
const LOOK: Duration = Duration::from_millis(20);
/// Connections waited for at a time.
#[cfg(unix)]
const MOST_WAITED: usize = 32;

/// A connection with every other process; `None` for the own rank.
pub(crate) struct Tcp {
    streams: Vec<Option<TcpStream>>,
    /// Of the round so far, by rank.
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl Tcp {
    /// Connections on which nothing is acknowledged for the time of `silence` break.
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

    /// Moves what can be moved to and from a process without waiting; whether anything was.
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

    /// Waits until a connection has room or data, or a moment.
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
        // On the stack: nothing may be allocated here. Places that are left repeat the first.
        let mut descriptors: [PollFd<'_>; MOST_WAITED] = std::array::from_fn(|place| {
            let (stream, flags) = match place {
                0 => first,
                _ => waited.next().unwrap_or(first),
            };
            PollFd::new(stream, flags)
        });
        let look = match waited.next() {
            // Some are not among those waited for.
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

/// Heartbeats go through rank 0: that two others cannot reach each other is for their connection to notice. Where the system has no such
/// setting, they are given up with all that does not come. Who is slow is not cut off: tensors are sent to those who are in the same call and take
/// them, and what a call begins with fits the system's buffers.
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
