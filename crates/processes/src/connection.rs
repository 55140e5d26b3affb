//! The two threads of a control connection: one writes queued messages and heartbeats, one reads and detects silence.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use crate::deadlines::interval;
use crate::frame::{self, FrameKind, HEADER_BYTES, Header, decode_error};
use crate::state::{Message, Shared, lock};

/// Size of one read.
const READ_BYTES: usize = 1 << 16;

impl Shared {
    /// Writer thread of the connection to `peer`.
    pub fn write(
        &self,
        peer: usize,
        mut stream: TcpStream,
        queue: Receiver<Arc<Vec<u8>>>,
        num_unwritten: &AtomicUsize,
    ) {
        loop {
            let (written, is_last) = match queue.recv_timeout(interval(self.deadlines.silence)) {
                Ok(frame) => {
                    let written = stream.write_all(&frame);
                    num_unwritten.fetch_sub(1, Ordering::AcqRel);
                    (written, frame[0] == FrameKind::Goodbye as u8)
                }
                Err(RecvTimeoutError::Timeout) => {
                    let num_calls = self.bulk_calls[self.rank].load(Ordering::Acquire);
                    let heartbeat = frame::frame(FrameKind::Heartbeat, 0, num_calls, &[]);
                    (stream.write_all(&heartbeat), false)
                }
                Err(RecvTimeoutError::Disconnected) => (Ok(()), true),
            };
            if let Err(error) = written {
                // The reader thread reports a broken connection; this thread reports one that accepts no data.
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
            let seconds = self.deadlines.silence.as_secs_f64();
            self.fail(self.lost(
                peer,
                format!("nothing was heard of it for {seconds} s: it is stopped, or the network between is down"),
            ));
        }
    }

    /// Reader thread of the connection to `peer`.
    pub fn read(&self, peer: usize, mut stream: TcpStream) {
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
                FrameKind::Heartbeat => {
                    self.bulk_calls[peer].store(header.number, Ordering::Release)
                }
                FrameKind::Message => {
                    let message = Message {
                        call: header.call,
                        number: header.number,
                        bytes: body,
                    };
                    lock(&self.mail).inboxes[peer].push_back(message);
                    self.changed.notify_all();
                }
                FrameKind::Error => match decode_error(&body) {
                    // Rank 0 forwards the error to every process; all other ranks got it from rank 0.
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
                FrameKind::Goodbye => {
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

    /// Reads until `bytes` is full, as long as data keeps arriving within the deadline.
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
                    if heard.elapsed() > self.deadlines.silence {
                        return Err(Ended::Silent);
                    }
                }
                Err(error) => return Err(Ended::Broken(error)),
            }
        }
        Ok(())
    }
}

/// Why the reader thread stopped.
enum Ended {
    Closing,
    Silent,
    Garbled,
    Broken(std::io::Error),
}
