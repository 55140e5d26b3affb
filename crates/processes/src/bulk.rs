//! Collectives on tensors: rounds of point-to-point messages through fixed staging buffers.
//!
//! ```text
//! gather:  every process sends chunk c of its part to all others, for c = 0, 1, ...
//! reduce:  the values are split into blocks of `size` segments; segment p of every process goes to process p,
//!          which adds them up in rank order (((x0 + x1) + x2) + ...) and sends the sum to all others
//! ```
//!
//! A sum has the same bits whatever the timing, the transport and the staging size. Staging is allocated once.

use std::time::Instant;

use crate::error::GroupError;

/// Largest message to or from one process.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes of all chunks in one direction; with more processes, chunks are smaller.
const STAGING_BYTES: usize = 32 << 20;

/// A range of a staging buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: usize,
    pub len: usize,
}

/// One round of messages: a span to each process and a span from each. The spans of the own rank are empty.
pub(crate) struct Round<'a> {
    pub outgoing: &'a [u8],
    pub sends: &'a [Span],
    pub incoming: &'a mut [u8],
    pub receives: &'a [Span],
}

/// Why a round was aborted.
pub(crate) enum Interruption {
    /// The caller asked to stop.
    Stopped,
    /// One process cannot be reached.
    Peer { rank: usize, seen: String },
    /// The transport failed without naming a process.
    Transport { said: String },
}

/// Carries rounds of messages: TCP or MPI.
pub(crate) trait Transport: Send {
    /// Sends and receives all spans; gives up when `must_stop` returns true.
    fn exchange(
        &mut self,
        round: Round<'_>,
        must_stop: &dyn Fn() -> bool,
    ) -> Result<(), Interruption>;

    /// Memory of the transport beside staging.
    fn held_bytes(&self) -> u64;

    /// Display name: `TCP`, or the MPI library.
    fn name(&self) -> &str;

    /// Whether a round was aborted while messages from or to staging were still in flight.
    fn has_unfinished(&self) -> bool;

    /// Whether [`Transport::finish`] waits for all other processes.
    fn ends_together(&self) -> bool;

    /// Closes the transport when all processes are done with it; not called after an error.
    fn finish(&mut self);
}

/// Collectives over a transport.
pub(crate) struct Bulk {
    rank: usize,
    size: usize,
    chunk_bytes: usize,
    transport: Box<dyn Transport>,
    /// Staging buffers of floats, so that sums can be read from them; empty before the first call.
    outgoing: Vec<f32>,
    incoming: Vec<f32>,
    sends: Vec<Span>,
    receives: Vec<Span>,
    num_calls: u32,
}

/// Kind of a collective; the processes compare it before each one.
#[derive(Clone, Copy)]
enum Collective {
    Gather = 1,
    Reduce = 2,
    GatherBytes = 3,
    FromOwners = 4,
    Reserve = 5,
}

const HEADER_BYTES: usize = 16;

/// The group as seen by [`Bulk`]: failure flag, deadlines, errors.
pub(crate) trait Watch {
    fn has_failed(&self) -> bool;
    /// Called at the start of a collective.
    fn begin(&self);
    /// Whether a round that started at `began` has exceeded the deadline.
    fn is_stalled(&self, began: Instant) -> bool;
    /// The error for a stalled round; it names the process at fault.
    fn stalled(&self) -> GroupError;
    fn explain(&self, interruption: Interruption) -> GroupError;
    fn mismatch(&self, text: String) -> GroupError;
}

impl Bulk {
    pub fn new(rank: usize, size: usize, transport: Box<dyn Transport>) -> Bulk {
        let chunk = (STAGING_BYTES / size).min(CHUNK_BYTES) / 64 * 64;
        Bulk {
            rank,
            size,
            chunk_bytes: chunk.max(4096),
            transport,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            sends: vec![Span::default(); size],
            receives: vec![Span::default(); size],
            num_calls: 0,
        }
    }

    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    pub fn finish(&mut self) {
        self.transport.finish();
    }

    /// Both staging buffers, and the transport's memory.
    pub fn held_bytes(&self) -> u64 {
        2 * (self.size * self.chunk_bytes) as u64 + self.transport.held_bytes()
    }

    /// See [`crate::Group::reserve_staging`].
    pub fn reserve(&mut self, watch: &dyn Watch) -> Result<(), GroupError> {
        self.begin(Collective::Reserve, self.chunk_bytes, watch)?;
        // Writing the pages makes them resident.
        self.outgoing.fill(1.0);
        self.incoming.fill(1.0);
        for peer in self.peers() {
            self.sends[peer] = self.chunk_of(self.rank, self.chunk_bytes);
            self.receives[peer] = self.chunk_of(peer, self.chunk_bytes);
        }
        self.exchange(watch)
    }

    /// See [`crate::Group::all_gather`].
    pub fn all_gather(&mut self, parts: &mut [u8], watch: &dyn Watch) -> Result<(), GroupError> {
        assert_eq!(parts.len() % self.size, 0, "equal parts");
        let part = parts.len() / self.size;
        self.begin(Collective::Gather, part, watch)?;
        let mut done = 0;
        while done < part {
            let len = (part - done).min(self.chunk_bytes);
            let own = self.rank * part + done;
            self.outgoing_bytes(len)
                .copy_from_slice(&parts[own..own + len]);
            for peer in self.peers() {
                self.sends[peer] = Span { start: 0, len };
                self.receives[peer] = self.chunk_of(peer, len);
            }
            self.exchange(watch)?;
            for peer in self.peers() {
                let from = peer * part + done;
                let received = self.incoming_bytes(self.receives[peer]);
                parts[from..from + len].copy_from_slice(received);
            }
            done += len;
        }
        Ok(())
    }

    /// See [`crate::Group::all_reduce_f32`].
    pub fn all_reduce(
        &mut self,
        values: &mut [&mut [f32]],
        watch: &dyn Watch,
    ) -> Result<(), GroupError> {
        let total: usize = values.iter().map(|slice| slice.len()).sum();
        self.begin(Collective::Reduce, total, watch)?;
        let chunk = self.chunk_bytes / size_of::<f32>();
        let mut done = 0;
        while done < total {
            let block = (total - done).min(self.size * chunk);
            let segment = block.div_ceil(self.size);
            let span = |rank: usize| {
                let start = (rank * segment).min(block);
                let end = ((rank + 1) * segment).min(block);
                (start, end - start)
            };
            // Scatter: segment p of every process goes to process p.
            visit(values, done, block, |at, part| {
                self.outgoing[at..at + part.len()].copy_from_slice(part);
            });
            let (own, own_len) = span(self.rank);
            for peer in self.peers() {
                let (start, len) = span(peer);
                self.sends[peer] = floats(start, len);
                self.receives[peer] = self.chunk_of(peer, own_len * size_of::<f32>());
            }
            self.exchange(watch)?;
            self.add_in_rank_order(own, own_len, chunk);
            // Gather: process p sends the sum of segment p to all others.
            for peer in self.peers() {
                let (start, len) = span(peer);
                self.sends[peer] = floats(own, own_len);
                self.receives[peer] = floats(start, len);
            }
            // The own sum goes between the places of the other ranks' sums.
            self.incoming[own..own + own_len].copy_from_slice(&self.outgoing[own..own + own_len]);
            self.exchange(watch)?;
            visit(values, done, block, |at, part| {
                part.copy_from_slice(&self.incoming[at..at + part.len()]);
            });
            done += block;
        }
        Ok(())
    }

    /// See [`crate::Group::take_from_owners`].
    pub fn take_from_owners(
        &mut self,
        values: &mut [&mut [f32]],
        owners: &[usize],
        watch: &dyn Watch,
    ) -> Result<(), GroupError> {
        let total: usize = values.iter().map(|slice| slice.len()).sum();
        self.begin(Collective::FromOwners, total, watch)?;
        let chunk = self.chunk_bytes / size_of::<f32>();
        for (slice, &owner) in values.iter_mut().zip(owners) {
            for part in slice.chunks_mut(chunk) {
                self.sends.fill(Span::default());
                self.receives.fill(Span::default());
                if owner == self.rank {
                    self.outgoing[..part.len()].copy_from_slice(part);
                    for peer in self.peers() {
                        self.sends[peer] = floats(0, part.len());
                    }
                } else {
                    self.receives[owner] = floats(0, part.len());
                }
                self.exchange(watch)?;
                if owner != self.rank {
                    part.copy_from_slice(&self.incoming[..part.len()]);
                }
            }
        }
        Ok(())
    }

    /// Replaces the own segment in `outgoing` by the sum over all processes.
    fn add_in_rank_order(&mut self, own: usize, own_len: usize, chunk: usize) {
        let sum = &mut self.outgoing[own..own + own_len];
        let received = |rank: usize| &self.incoming[rank * chunk..][..own_len];
        // Additions start with rank 0's value; two operands may swap, three may not be regrouped.
        match self.rank {
            0 => {}
            1 => add(sum, received(0)),
            rank => {
                for (at, sum) in sum.iter_mut().enumerate() {
                    let mut before = received(0)[at];
                    for peer in 1..rank {
                        before += received(peer)[at];
                    }
                    *sum += before;
                }
            }
        }
        for peer in self.rank + 1..self.size {
            add(sum, received(peer));
        }
    }

    /// See [`crate::Group::gather_bytes`]; `lengths` holds the length of every process's bytes.
    pub fn gather_bytes(
        &mut self,
        own: &[u8],
        lengths: &[usize],
        watch: &dyn Watch,
    ) -> Result<Vec<Vec<u8>>, GroupError> {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        self.begin(Collective::GatherBytes, longest, watch)?;
        let mut all: Vec<Vec<u8>> = lengths.iter().map(|&len| Vec::with_capacity(len)).collect();
        let mut done = 0;
        while done < longest {
            let left = |len: usize| len.saturating_sub(done).min(self.chunk_bytes);
            let len = left(own.len());
            for peer in self.peers() {
                self.sends[peer] = Span { start: 0, len };
                self.receives[peer] = self.chunk_of(peer, left(lengths[peer]));
            }
            if len > 0 {
                self.outgoing_bytes(len)
                    .copy_from_slice(&own[done..done + len]);
            }
            self.exchange(watch)?;
            for peer in self.peers() {
                all[peer].extend(self.incoming_bytes(self.receives[peer]));
            }
            done += self.chunk_bytes;
        }
        all[self.rank].extend(own);
        Ok(all)
    }

    /// Compares the kind and length of the collective across processes, so that a bug is an error rather than a hang or garbage.
    fn begin(
        &mut self,
        collective: Collective,
        len: usize,
        watch: &dyn Watch,
    ) -> Result<(), GroupError> {
        if self.outgoing.is_empty() {
            let num_floats = self.size * self.chunk_bytes / size_of::<f32>();
            self.outgoing = vec![0.0; num_floats];
            self.incoming = vec![0.0; num_floats];
        }
        watch.begin();
        self.num_calls = self.num_calls.wrapping_add(1);
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&self.num_calls.to_le_bytes());
        header[4] = collective as u8;
        header[8..].copy_from_slice(&(len as u64).to_le_bytes());
        self.outgoing_bytes(HEADER_BYTES).copy_from_slice(&header);
        for peer in self.peers() {
            self.sends[peer] = Span {
                start: 0,
                len: HEADER_BYTES,
            };
            self.receives[peer] = self.chunk_of(peer, HEADER_BYTES);
        }
        self.exchange(watch)?;
        for peer in self.peers() {
            let theirs = self.incoming_bytes(self.receives[peer]);
            if theirs != header {
                return Err(watch.mismatch(format!(
                    "ranks {} and {peer} are out of step: {header:?} here, {theirs:?} there\n\
                     hint: this is a bug; please report it",
                    self.rank
                )));
            }
        }
        Ok(())
    }

    fn exchange(&mut self, watch: &dyn Watch) -> Result<(), GroupError> {
        let round = Round {
            outgoing: bytemuck::cast_slice(&self.outgoing),
            sends: &self.sends,
            incoming: bytemuck::cast_slice_mut(&mut self.incoming),
            receives: &self.receives,
        };
        let began = Instant::now();
        let must_stop = || watch.has_failed() || watch.is_stalled(began);
        match self.transport.exchange(round, &must_stop) {
            Err(Interruption::Stopped) if !watch.has_failed() => Err(watch.stalled()),
            exchanged => exchanged.map_err(|interruption| watch.explain(interruption)),
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |&peer| peer != rank)
    }

    fn chunk_of(&self, peer: usize, len: usize) -> Span {
        Span {
            start: peer * self.chunk_bytes,
            len,
        }
    }

    fn outgoing_bytes(&mut self, len: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.outgoing)[..len]
    }

    fn incoming_bytes(&self, span: Span) -> &[u8] {
        &bytemuck::cast_slice(&self.incoming)[span.start..span.start + span.len]
    }
}

fn add(sum: &mut [f32], more: &[f32]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

fn floats(start: usize, len: usize) -> Span {
    Span {
        start: start * size_of::<f32>(),
        len: len * size_of::<f32>(),
    }
}

/// Calls `with` on the pieces of `slices` that make up `start..start + len` of their concatenation, each with its offset in that range.
fn visit(
    slices: &mut [&mut [f32]],
    start: usize,
    len: usize,
    mut with: impl FnMut(usize, &mut [f32]),
) {
    let mut first = 0;
    for slice in slices {
        let from = start.clamp(first, first + slice.len());
        let to = (start + len).clamp(first, first + slice.len());
        if from < to {
            with(from - start, &mut slice[from - first..to - first]);
        }
        first += slice.len();
        if first >= start + len {
            break;
        }
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        if self.transport.has_unfinished() {
            // Messages may still be written to the buffers: they are leaked.
            std::mem::forget(std::mem::take(&mut self.incoming));
            std::mem::forget(std::mem::take(&mut self.outgoing));
        }
    }
}
