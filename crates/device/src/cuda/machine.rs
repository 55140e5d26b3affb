//! A plan's memory on the card, and its programs as captured graphs.
//!
//! ```text
//! host      fill mirror 0 | fill mirror 1 | ...
//! copies                  | mirror 0 -> landing |        | mirror 1 -> landing |
//! compute                                       | landing -> inputs, program ...   | landing -> inputs, program ...
//! ```
//!
//! The host never waits within a step: it fills the next mirror while the card computes. Pictures bypass the mirror: they are copied
//! from the rows that they were decoded into.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use holdall_graph::{MemorySpace, Op};
use holdall_plan::{Place, Program, ProgramId, Stage, StepPlan};

use super::driver::{Buffer, Event, Pinned, Replay, Stream};
use super::kernels::Kernels;
use super::launch::{Issuer, LaunchPass, Tables};
use super::nccl::Nccl;
use super::product::timed;
use super::progress::told_if_slow;
use super::{Cuda, buckets};
use crate::cpu::Element;
use crate::{Arithmetic, DeviceError, HostRow};

/// Host buffers of the inputs: one is filled while the other is copied.
const MIRRORS: usize = 2;

/// Maximum number of programs that the host may be ahead of the card. Launched programs cannot be cancelled: a stop waits for them. The
/// two mirrors limit the host about as much.
pub(crate) const MOST_AHEAD: usize = 4;

/// Inputs with at most this gap between them are copied together; a wider gap may contain an input that must not change.
const JOINED_BYTES: u64 = 255;

struct Mirror {
    memory: Pinned,
    /// Recorded after the copy from this mirror.
    sent: Event,
    /// Bytes of the inputs that are filled and not yet copied.
    filled: Vec<Range<u64>>,
}

/// A plan, ready to run on the card.
pub(crate) struct CudaMachine {
    kernels: Arc<Kernels>,
    arena: Buffer,
    /// State that the plan keeps on the host; kernels access it by address.
    host: Pinned,
    tables: Tables,
    replays: HashMap<(ProgramId, usize), Replay>,
    /// The last pass of a step in a run of several processes, which exchanges gradients while it runs.
    last_replays: HashMap<ProgramId, Replay>,
    /// Offsets of the gradients that the last pass exchanges.
    sent_early: HashSet<u64>,
    /// Stream for the exchange of gradients during the capture of programs; `None` in a run of one process.
    exchange: Option<Stream>,
    /// Programs that read or write slots.
    with_slots: HashSet<ProgramId>,
    compute: Stream,
    /// Streams for lanes other than the first, during the capture of programs.
    beside: Vec<Stream>,
    copies: Stream,
    inputs: Range<u64>,
    landing: u64,
    mirrors: Vec<Mirror>,
    at: usize,
    /// Rows to be copied, with the offset among the inputs of each.
    rows: Vec<(u64, HostRow)>,
    /// Rows whose copy may still run: they must not be written.
    travelling: Vec<HostRow>,
    /// Bytes in the landing buffer that wait for the next program.
    landed: Vec<Range<u64>>,
    /// Recorded after a program has taken its inputs from the landing buffer.
    taken: Event,
    /// Position of the compute stream at the last calls of `keep_pace`, as a ring.
    passed: [Event; MOST_AHEAD],
    next_passed: usize,
    failure: Option<DeviceError>,
    /// Connection to the GPUs of other processes: a wait ends if one of them is lost.
    nccl: Option<Arc<Nccl>>,
}

impl CudaMachine {
    /// Reserves the arena, chooses algorithms and captures every program.
    pub fn new(
        cuda: &Cuda,
        plan: &StepPlan,
        arithmetic: Arithmetic,
    ) -> Result<CudaMachine, DeviceError> {
        cuda.bind()?;
        let kernels = cuda.kernels(arithmetic)?;
        let host = pin(plan.host_bytes)?;
        let arena = cuda.reserve(plan.arena_bytes)?;
        let input_bytes = (plan.inputs.end - plan.inputs.start) as usize;
        let mirrors = (0..MIRRORS)
            .map(|_| {
                Ok(Mirror {
                    memory: Pinned::new(input_bytes)?,
                    sent: Event::new()?,
                    filled: Vec::new(),
                })
            })
            .collect::<Result<Vec<_>, DeviceError>>()?;
        let mut machine = CudaMachine {
            kernels,
            tables: Tables::new(plan)?,
            replays: HashMap::new(),
            last_replays: HashMap::new(),
            sent_early: buckets::travelling(plan),
            exchange: cuda.nccl().map(|_| Stream::new()).transpose()?,
            with_slots: with_slots(plan),
            compute: Stream::new()?,
            beside: streams_beside(plan)?,
            copies: Stream::new()?,
            inputs: plan.inputs.clone(),
            landing: plan.landing.unwrap_or(plan.inputs.start),
            mirrors,
            at: 0,
            rows: Vec::new(),
            travelling: Vec::new(),
            landed: Vec::new(),
            taken: Event::new()?,
            passed: [Event::new()?, Event::new()?, Event::new()?, Event::new()?],
            next_passed: 0,
            failure: None,
            nccl: cuda.nccl().cloned(),
            arena,
            host,
        };
        machine.prepare(cuda, plan, arithmetic)?;
        machine.capture(cuda, plan, arithmetic)?;
        Ok(machine)
    }

    fn issuer<'a>(
        &'a self,
        cuda: &'a Cuda,
        arithmetic: Arithmetic,
        pass: LaunchPass,
        program: ProgramId,
        slot: usize,
    ) -> Issuer<'a> {
        Issuer {
            cuda,
            kernels: &self.kernels,
            stream: &self.compute,
            beside: &self.beside,
            base: self.arena.address,
            bytes: self.arena.bytes,
            host: (self.host.as_ptr() as u64, self.host.len() as u64),
            tables: &self.tables,
            arithmetic,
            pass,
            program,
            slot,
            meanwhile: None,
            travelled: &self.sent_early,
        }
    }

    /// Chooses an algorithm for every product, on noise: on zeros the card would run unrealistically fast.
    fn prepare(
        &mut self,
        cuda: &Cuda,
        plan: &StepPlan,
        arithmetic: Arithmetic,
    ) -> Result<(), DeviceError> {
        self.issuer(cuda, arithmetic, LaunchPass::Issue, Stage::Begin.id(), 0)
            .noise()?;
        let began = Instant::now();
        told_if_slow("Choosing product algorithms (once; kept on disk)", || {
            programs(plan).try_for_each(|(id, program)| {
                let issuer = self.issuer(cuda, arithmetic, LaunchPass::Prepare, id, 0);
                issuer.program(program)
            })
        })?;
        cuda.count_choosing(began.elapsed());
        cuda.keep_algorithms();
        // The noise must not be mistaken for data, above all for indices.
        self.compute.clear(self.arena.address, self.arena.bytes)?;
        self.compute.wait()
    }

    fn capture(
        &mut self,
        cuda: &Cuda,
        plan: &StepPlan,
        arithmetic: Arithmetic,
    ) -> Result<(), DeviceError> {
        for (id, program) in programs(plan) {
            if program.instructions.is_empty() {
                continue;
            }
            let slots = if program.stage.has_slot() {
                plan.kept
            } else {
                1
            };
            for slot in 0..slots {
                let issuer = self.issuer(cuda, arithmetic, LaunchPass::Issue, id, slot);
                let replay = self.compute.capture(|| issuer.program(program))?;
                self.replays.insert((id, slot), replay);
            }
            if let (Some(exchange), true) = (
                &self.exchange,
                buckets::last_stage(plan) == Some(program.stage),
            ) {
                let buckets = buckets::buckets(plan, program);
                let issuer = Issuer {
                    meanwhile: Some((&buckets, exchange)),
                    ..self.issuer(cuda, arithmetic, LaunchPass::Issue, id, 0)
                };
                let replay = self.compute.capture(|| issuer.program(program))?;
                self.last_replays.insert(id, replay);
            }
        }
        self.compute.wait()
    }

    pub fn arena_bytes(&self) -> u64 {
        self.arena.bytes
    }

    /// Address of a tensor on the card, and its number of elements.
    fn address<T>(&self, place: &Place) -> (u64, usize) {
        assert_eq!(place.space, MemorySpace::Device, "on the card");
        let elements = elements_of::<T>(place);
        assert!(place.offset + (elements * size_of::<T>()) as u64 <= self.arena.bytes);
        (self.arena.address + place.offset, elements)
    }

    /// Copies a tensor to the host, unless it is on the host already.
    pub fn read<T: Element>(&self, place: &Place) -> Result<Cow<'_, [T]>, DeviceError> {
        if place.space == MemorySpace::PinnedHost {
            self.settle()?;
            return Ok(Cow::Borrowed(
                self.host.elements(place.offset, elements_of::<T>(place)),
            ));
        }
        let (address, elements) = self.address::<T>(place);
        let mut values: Vec<T> = zeros(elements);
        let bytes = elements * size_of::<T>();
        self.compute
            .download(values.as_mut_ptr().cast(), address, bytes)?;
        self.settle()?;
        Ok(Cow::Owned(values))
    }

    pub fn write<T: Element, R>(&mut self, place: &Place, fill: impl FnOnce(&mut [T]) -> R) -> R {
        if place.space == MemorySpace::PinnedHost {
            let waited = self.settle();
            self.note(waited);
            return fill(
                self.host
                    .elements_mut(place.offset, elements_of::<T>(place)),
            );
        }
        let (address, elements) = self.address::<T>(place);
        let mut values: Vec<T> = zeros(elements);
        let result = fill(&mut values);
        let written = self
            .compute
            .upload(address, values.as_ptr().cast(), elements * size_of::<T>())
            .and_then(|()| self.settle());
        self.note(written);
        result
    }

    /// Waits for all launched work.
    fn settle(&self) -> Result<(), DeviceError> {
        match &self.nccl {
            Some(nccl) => nccl.wait(&self.compute),
            None => self.compute.wait(),
        }
    }

    fn note(&mut self, result: Result<(), DeviceError>) {
        if let (Err(error), None) = (result, &self.failure) {
            self.failure = Some(error);
        }
    }

    pub fn input<T: Element, R>(&mut self, place: &Place, fill: impl FnOnce(&mut [T]) -> R) -> R {
        let (_, elements) = self.address::<T>(place);
        let bytes = elements * size_of::<T>();
        assert!(
            self.inputs.contains(&place.offset) || bytes == 0,
            "an input lies among the inputs"
        );
        let start = place.offset - self.inputs.start;
        let mirror = &mut self.mirrors[self.at];
        if mirror.filled.is_empty() {
            // The copy of the mirror's last contents must be done.
            let left = match &self.nccl {
                Some(nccl) => nccl.wait_until(|| mirror.sent.is_done()),
                None => mirror.sent.wait(),
            };
            self.note(left);
        }
        let mirror = &mut self.mirrors[self.at];
        mirror.filled.push(start..start + bytes as u64);
        let memory = &mut mirror.memory.bytes_mut()[start as usize..][..bytes];
        assert!(memory.as_ptr().cast::<T>().is_aligned());
        // SAFETY: in bounds (sliced above) and aligned; every bit pattern of an `Element` is valid.
        let values =
            unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<T>(), elements) };
        fill(values)
    }

    /// Adds an input whose samples are in rows, which are copied from there.
    pub fn input_rows(&mut self, place: &Place, rows: &mut dyn Iterator<Item = &HostRow>) {
        let (_, bytes) = self.address::<u8>(place);
        assert!(
            self.inputs.contains(&place.offset),
            "an input lies among the inputs"
        );
        let mut at = place.offset - self.inputs.start;
        let end = at + bytes as u64;
        for row in rows {
            let next = at + row.as_ref().len() as u64;
            assert!(next <= end, "rows of {bytes} bytes together");
            self.rows.push((at, row.clone()));
            at = next;
        }
        assert_eq!(at, end, "rows of {bytes} bytes together");
    }

    /// Starts the copy of filled inputs to the card, in parallel with running programs.
    pub fn send(&mut self) {
        let sent = self.try_send();
        self.note(sent);
    }

    fn try_send(&mut self) -> Result<(), DeviceError> {
        let mirror = &mut self.mirrors[self.at];
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
            let to = self.arena.address + self.landing + range.start;
            let bytes = (range.end - range.start) as usize;
            self.copies.upload(to, from, bytes)?;
        }
        // After the mirror: small gaps in it are copied too, and rows may belong in a gap.
        for (to, from, bytes) in runs(&self.rows) {
            self.copies
                .upload(self.arena.address + self.landing + to, from, bytes)?;
            self.landed.push(to..to + bytes as u64);
        }
        self.travelling
            .extend(self.rows.drain(..).map(|(_, row)| row));
        mirror.sent.record(&self.copies)?;
        self.compute.wait_for(&mirror.sent)?;
        self.landed.extend(ranges);
        self.at = (self.at + 1) % self.mirrors.len();
        Ok(())
    }

    pub fn run(&mut self, program: ProgramId, micro: usize, slot: usize) {
        if self.failure.is_none() {
            let ran = self.try_run(program, micro, slot);
            self.note(ran);
        }
    }

    fn try_run(
        &mut self,
        program: ProgramId,
        micro: usize,
        slot: usize,
    ) -> Result<(), DeviceError> {
        self.take_inputs()?;
        self.compute.set(self.tables.micro(), micro as u32)?;
        let slot = self.slot_of(program, slot);
        match self.replays.get(&(program, slot)) {
            Some(replay) => self.compute.replay(replay),
            None => Ok(()),
        }
    }

    /// Runs the last pass of a step; in a run of several processes, gradients are exchanged during the pass.
    pub fn run_last(&mut self, program: ProgramId, micro: usize, slot: usize) {
        if !self.last_replays.contains_key(&program) {
            return self.run(program, micro, slot);
        }
        assert_eq!(slot, 0, "the last pass has the first slot");
        if self.failure.is_none() {
            let ran = self.take_inputs().and_then(|()| {
                self.compute.set(self.tables.micro(), micro as u32)?;
                self.compute.replay(&self.last_replays[&program])
            });
            self.note(ran);
        }
    }

    /// Waits until the card has reached its position of [`MOST_AHEAD`] calls ago. The programs queued after that keep it busy.
    pub fn keep_pace(&mut self) {
        if self.failure.is_none() {
            let passed = &self.passed[self.next_passed];
            let waited = match &self.nccl {
                Some(nccl) => nccl.wait_until(|| passed.is_done()),
                None => passed.wait(),
            };
            let kept = waited.and_then(|()| passed.record(&self.compute));
            self.next_passed = (self.next_passed + 1) % MOST_AHEAD;
            self.note(kept);
        }
    }

    fn slot_of(&self, program: ProgramId, slot: usize) -> usize {
        if self.with_slots.contains(&program) {
            slot
        } else {
            0
        }
    }

    fn take_inputs(&mut self) -> Result<(), DeviceError> {
        self.try_send()?;
        if self.landed.is_empty() {
            return Ok(());
        }
        for range in joined(std::mem::take(&mut self.landed)) {
            let base = self.arena.address;
            self.compute.copy(
                base + self.inputs.start + range.start,
                base + self.landing + range.start,
                range.end - range.start,
            )?;
        }
        self.taken.record(&self.compute)
    }

    /// Runs a program instruction by instruction and reports the time of each.
    pub fn profile(
        &mut self,
        cuda: &Cuda,
        plan: &StepPlan,
        arithmetic: Arithmetic,
        id: ProgramId,
        [micro, slot]: [usize; 2],
        told: &mut dyn FnMut(&'static str, f64),
    ) -> Result<(), DeviceError> {
        self.take_inputs()?;
        self.compute.set(self.tables.micro(), micro as u32)?;
        let slot = self.slot_of(id, slot);
        let issuer = self.issuer(cuda, arithmetic, LaunchPass::Issue, id, slot);
        let program = &plan.programs[id.0];
        for (index, instruction) in program.instructions.iter().enumerate() {
            // Exchanges are issued once and not timed: other processes would have to repeat them as often.
            if matches!(instruction.op, Op::Collective(_)) {
                issuer.instruction(program, index)?;
                told(instruction.op.rules().name(), 0.0);
                continue;
            }
            // Each instruction is timed as a graph of its own, several times over: this excludes the host's part. The results differ from
            // those of a
            // step: an instruction that adds does so several times.
            let seconds = timed(&self.compute, || issuer.instruction(program, index))?;
            told(instruction.op.rules().name(), seconds);
        }
        Ok(())
    }

    pub fn wait(&mut self) -> Result<(), DeviceError> {
        let mut waited = self.settle();
        if !self.travelling.is_empty() {
            // Rows of the next step that were sent early.
            waited = waited.and(self.copies.wait());
        }
        self.travelling.clear();
        self.note(waited);
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Drop for CudaMachine {
    fn drop(&mut self) {
        // Memory is freed next: nothing may still use it. If the card failed, nothing does.
        let _ = self.copies.wait();
        let _ = self.compute.wait();
    }
}

/// Allocates pinned memory for state that a plan keeps on the host.
fn pin(bytes: u64) -> Result<Pinned, DeviceError> {
    Pinned::new(bytes as usize).map_err(|cause| DeviceError::Memory {
        found: format!(
            "{} of pinned host memory for optimizer state could not be had: {cause}",
            holdall_files::show_bytes(bytes)
        ),
        hint: "free host memory, raise the limit on locked memory (ulimit -l), or give a smaller `host_memory`: more state then stays on the card"
            .to_owned(),
    })
}

/// Number of elements of a tensor that is read or written as a whole.
fn elements_of<T>(place: &Place) -> usize {
    assert_eq!(
        place.strides,
        place.shape.contiguous_strides(),
        "read and written as a whole"
    );
    assert_eq!(size_of::<T>(), place.dtype.bytes(), "{:?}", place.dtype);
    place.shape.num_elements()
}

fn programs(plan: &StepPlan) -> impl Iterator<Item = (ProgramId, &Program)> {
    let programs = plan.programs.iter().enumerate();
    programs.map(|(index, program)| (ProgramId(index), program))
}

fn with_slots(plan: &StepPlan) -> HashSet<ProgramId> {
    let with_slots = programs(plan).filter(|(_, program)| program.stage.has_slot());
    with_slots.map(|(id, _)| id).collect()
}

/// One stream for each lane but the first.
fn streams_beside(plan: &StepPlan) -> Result<Vec<Stream>, DeviceError> {
    let instructions = plan.programs.iter().flat_map(|one| &one.instructions);
    let last = instructions.filter_map(|one| one.lane).max();
    (0..last.unwrap_or(0).max(1))
        .map(|_| Stream::new())
        .collect()
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

fn zeros<T: Element>(elements: usize) -> Vec<T> {
    let mut values = Vec::with_capacity(elements);
    // SAFETY: the vector has capacity for this many elements; every bit pattern of an `Element` is valid, zeros included.
    unsafe {
        std::ptr::write_bytes::<T>(values.as_mut_ptr(), 0, elements);
        values.set_len(elements);
    }
    values
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
