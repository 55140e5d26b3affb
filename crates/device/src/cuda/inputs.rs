//! Inputs on their way from the host to the card.
//!
//! ```text
//! host      fill mirror 0 | fill mirror 1 | ...
//! copies                  | mirror 0 -> landing |        | mirror 1 -> landing |
//! compute                                       | landing -> inputs, program ...   | landing -> inputs, program ...
//! ```
//!
//! The host never waits within a step: it fills the next mirror while the card computes. Pictures bypass the mirror: they are copied
//! from the rows that they were decoded into.

use std::ops::Range;

use holdall_plan::{InputRegion, Place, StepPlan};

use super::driver::{Event, Pinned, Stream};
use super::machine::Exchange;
use crate::cpu::Element;
use crate::{DeviceError, HostRow};

/// Host buffers of the inputs: one is filled while the other is copied.
const MIRRORS: usize = 2;

/// Inputs with at most this gap between them are copied together; a wider gap may contain an input that must not change.
const JOINED_BYTES: u64 = 255;

struct Mirror {
    memory: Pinned,
    /// Recorded after the copy from this mirror.
    sent: Event,
    /// Bytes of the inputs that are filled and not yet copied.
    filled: Vec<Range<u64>>,
}

/// Inputs that the host has filled, and their copies.
pub(super) struct InputQueue {
    copies: Stream,
    /// Address of the arena.
    base: u64,
    /// Byte range of the inputs in the arena.
    range: Range<u64>,
    /// Offset of the landing buffer in the arena; laid out like the inputs.
    landing: u64,
    mirrors: Vec<Mirror>,
    /// Index of the mirror that is being filled.
    current: usize,
    /// Rows to be copied, with the offset among the inputs of each.
    rows: Vec<(u64, HostRow)>,
    /// Rows whose copy may still run: they must not be written.
    travelling: Vec<HostRow>,
    /// Bytes in the landing buffer that wait for the next program.
    landed: Vec<Range<u64>>,
    /// Recorded after a program has taken its inputs from the landing buffer.
    taken: Event,
}

impl InputQueue {
    /// Pins the mirrors; `base` is the arena's address.
    pub fn new(plan: &StepPlan, base: u64) -> Result<InputQueue, DeviceError> {
        let InputRegion { range, landing } = &plan.inputs;
        let input_bytes = (range.end - range.start) as usize;
        let mirrors = (0..MIRRORS).map(|_| {
            Ok(Mirror {
                memory: Pinned::new(input_bytes)?,
                sent: Event::new()?,
                filled: Vec::new(),
            })
        });
        Ok(InputQueue {
            mirrors: mirrors.collect::<Result<Vec<_>, DeviceError>>()?,
            copies: Stream::new()?,
            base,
            range: range.clone(),
            landing: landing.unwrap_or(range.start),
            current: 0,
            rows: Vec::new(),
            travelling: Vec::new(),
            landed: Vec::new(),
            taken: Event::new()?,
        })
    }

    /// Before the first input of a mirror is filled: the copy of its last contents must be done.
    pub fn wait_for_mirror(&self, exchange: &Exchange) -> Result<(), DeviceError> {
        let mirror = &self.mirrors[self.current];
        if !mirror.filled.is_empty() {
            return Ok(());
        }
        exchange.wait_for_event(&mirror.sent)
    }

    /// Elements of an input in the current mirror, to be filled and sent.
    pub fn elements<T: Element>(&mut self, place: &Place, elements: usize) -> &mut [T] {
        let bytes = elements * size_of::<T>();
        assert!(
            self.range.contains(&place.offset) || bytes == 0,
            "an input lies among the inputs"
        );
        let start = place.offset - self.range.start;
        let mirror = &mut self.mirrors[self.current];
        mirror.filled.push(start..start + bytes as u64);
        let memory = &mut mirror.memory.bytes_mut()[start as usize..][..bytes];
        assert!(memory.as_ptr().cast::<T>().is_aligned());
        // SAFETY: in bounds (sliced above) and aligned; every bit pattern of an `Element` is valid.
        unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<T>(), elements) }
    }

    /// Adds an input of so many bytes whose samples are in rows, which are copied from there.
    pub fn add_rows(
        &mut self,
        place: &Place,
        bytes: usize,
        rows: &mut dyn Iterator<Item = &HostRow>,
    ) {
        assert!(
            self.range.contains(&place.offset),
            "an input lies among the inputs"
        );
        let mut at = place.offset - self.range.start;
        let end = at + bytes as u64;
        for row in rows {
            let next = at + row.as_ref().len() as u64;
            assert!(next <= end, "rows of {bytes} bytes together");
            self.rows.push((at, row.clone()));
            at = next;
        }
        assert_eq!(at, end, "rows of {bytes} bytes together");
    }

    /// Starts the copy of what is filled to the landing buffer.
    pub fn send(&mut self, compute: &Stream) -> Result<(), DeviceError> {
        let mirror = &mut self.mirrors[self.current];
        if mirror.filled.is_empty() && self.rows.is_empty() {
            return Ok(());
        }
        let ranges = joined(std::mem::take(&mut mirror.filled));
        if self.landed.is_empty() {
            // The landing buffer is free once the last program has taken its inputs.
            self.copies.wait_for(&self.taken)?;
        }
        for range in &ranges {
            let from = mirror.memory.as_ptr().wrapping_add(range.start as usize);
            let to = self.base + self.landing + range.start;
            let bytes = (range.end - range.start) as usize;
            self.copies.upload(to, from, bytes)?;
        }
        // After the mirror: small gaps in it are copied too, and rows may belong in a gap.
        for (to, from, bytes) in runs(&self.rows) {
            self.copies
                .upload(self.base + self.landing + to, from, bytes)?;
            self.landed.push(to..to + bytes as u64);
        }
        self.travelling
            .extend(self.rows.drain(..).map(|(_, row)| row));
        mirror.sent.record(&self.copies)?;
        compute.wait_for(&mirror.sent)?;
        self.landed.extend(ranges);
        self.current = (self.current + 1) % self.mirrors.len();
        Ok(())
    }

    /// Sends what is filled, and copies what has landed to the inputs, before a program.
    pub fn take(&mut self, compute: &Stream) -> Result<(), DeviceError> {
        self.send(compute)?;
        if self.landed.is_empty() {
            return Ok(());
        }
        for range in joined(std::mem::take(&mut self.landed)) {
            compute.copy(
                self.base + self.range.start + range.start,
                self.base + self.landing + range.start,
                range.end - range.start,
            )?;
        }
        self.taken.record(compute)
    }

    /// Waits for rows of the next step that were sent early; an error of the wait before it comes first.
    pub fn wait(&mut self, waited: Result<(), DeviceError>) -> Result<(), DeviceError> {
        let rows = std::mem::take(&mut self.travelling);
        if rows.is_empty() {
            return waited;
        }
        waited.and(self.copies.wait())
    }

    /// Waits for copies whatever they end in.
    pub fn abandon(&self) {
        let _ = self.copies.wait();
    }
}

/// Joins rows that are consecutive at both source and destination: destination offset, source address, bytes.
fn runs(rows: &[(u64, HostRow)]) -> impl Iterator<Item = (u64, *const u8, usize)> {
    let follows = |(a, first): &(u64, HostRow), (b, second): &(u64, HostRow)| {
        let bytes = first.as_ref().len();
        let there = first.as_ref().as_ptr().wrapping_add(bytes);
        a + bytes as u64 == *b && there == second.as_ref().as_ptr()
    };
    rows.chunk_by(follows).map(|run| {
        let bytes = run.iter().map(|(_, row)| row.as_ref().len()).sum();
        (run[0].0, run[0].1.as_ref().as_ptr(), bytes)
    })
}

/// Sorted ranges, with nearly adjacent ones joined.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut result: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match result.last_mut() {
            Some(last) if range.start <= last.end + JOINED_BYTES => {
                last.end = last.end.max(range.end);
            }
            _ => result.push(range),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_nearly_touch_travel_together() {
        let ranges = vec![4096..5000, 0..100, 256..300, 100_000..100_008];
        assert_eq!(joined(ranges), vec![0..300, 4096..5000, 100_000..100_008]);
    }
}
