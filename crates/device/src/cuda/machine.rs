//! A plan's memory on the card, and its programs as captured graphs. The host never waits within a step; `inputs.rs` draws how.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use holdall_graph::{MemorySpace, Op};
use holdall_plan::{Place, Program, ProgramId, Stage, StepPlan};

use super::driver::{Buffer, Event, Pinned, Replay, Stream};
use super::inputs::InputQueue;
use super::kernels::Kernels;
use super::launch::{Issuer, LaunchPass, Tables};
use super::nccl::Nccl;
use super::product::timed;
use super::progress::told_if_slow;
use super::{Cuda, buckets};
use crate::cpu::Element;
use crate::{Arithmetic, DeviceError, HostRow};

/// Maximum number of programs that the host may be ahead of the card. Launched programs cannot be cancelled: a stop waits for them. The
/// two mirrors limit the host about as much.
pub(crate) const MOST_AHEAD: usize = 4;

/// A plan, ready to run on the card.
pub(crate) struct CudaMachine {
    kernels: Arc<Kernels>,
    arena: Buffer,
    /// State that the plan keeps on the host; kernels access it by address.
    host: Pinned,
    tables: Tables,
    captured: CapturedPrograms,
    exchange: Exchange,
    compute: Stream,
    /// Streams for lanes other than the first, during the capture of programs.
    beside: Vec<Stream>,
    inputs: InputQueue,
    pace: Pace,
    failure: Option<DeviceError>,
}

/// Programs as graphs that the card replays.
struct CapturedPrograms {
    replays: HashMap<(ProgramId, usize), Replay>,
    /// The last pass of a step in a run of several processes, which exchanges gradients while it runs.
    last_replays: HashMap<ProgramId, Replay>,
    /// Programs that read or write slots.
    with_slots: HashSet<ProgramId>,
}

impl CapturedPrograms {
    /// None captured yet.
    fn of(plan: &StepPlan) -> CapturedPrograms {
        let with_slots = programs(plan).filter(|(_, program)| program.stage.has_slot());
        CapturedPrograms {
            replays: HashMap::new(),
            last_replays: HashMap::new(),
            with_slots: with_slots.map(|(id, _)| id).collect(),
        }
    }

    fn slot_of(&self, program: ProgramId, slot: usize) -> usize {
        if self.with_slots.contains(&program) {
            slot
        } else {
            0
        }
    }
}

/// Exchange with the GPUs of other processes; all empty in a run of one process.
pub(super) struct Exchange {
    /// Waits end if the connection is lost.
    nccl: Option<Arc<Nccl>>,
    /// Stream for the exchange of gradients during the capture of programs.
    stream: Option<Stream>,
    /// Offsets of the gradients that the last pass exchanges.
    sent_early: HashSet<u64>,
}

impl Exchange {
    /// Waits for all work of the stream.
    fn wait_for_stream(&self, stream: &Stream) -> Result<(), DeviceError> {
        match &self.nccl {
            Some(nccl) => nccl.wait(stream),
            None => stream.wait(),
        }
    }

    /// Waits until the card has passed the event.
    pub fn wait_for_event(&self, event: &Event) -> Result<(), DeviceError> {
        match &self.nccl {
            Some(nccl) => nccl.wait_until(|| event.is_done()),
            None => event.wait(),
        }
    }
}

/// Position of the compute stream at the last calls of [`CudaMachine::keep_pace`], as a ring.
struct Pace {
    passed: [Event; MOST_AHEAD],
    next: usize,
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
        let inputs = InputQueue::new(plan, arena.address)?;
        let mut machine = CudaMachine {
            kernels,
            tables: Tables::new(plan)?,
            captured: CapturedPrograms::of(plan),
            exchange: Exchange {
                stream: cuda.nccl().map(|_| Stream::new()).transpose()?,
                sent_early: buckets::travelling(plan),
                nccl: cuda.nccl().cloned(),
            },
            compute: Stream::new()?,
            beside: streams_beside(plan)?,
            inputs,
            pace: Pace {
                passed: [Event::new()?, Event::new()?, Event::new()?, Event::new()?],
                next: 0,
            },
            failure: None,
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
            travelled: &self.exchange.sent_early,
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
                self.captured.replays.insert((id, slot), replay);
            }
            if let (Some(exchange), true) = (
                &self.exchange.stream,
                buckets::last_stage(plan) == Some(program.stage),
            ) {
                let buckets = buckets::buckets(plan, program);
                let issuer = Issuer {
                    meanwhile: Some((&buckets, exchange)),
                    ..self.issuer(cuda, arithmetic, LaunchPass::Issue, id, 0)
                };
                let replay = self.compute.capture(|| issuer.program(program))?;
                self.captured.last_replays.insert(id, replay);
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
        self.exchange.wait_for_stream(&self.compute)
    }

    fn note(&mut self, result: Result<(), DeviceError>) {
        if let (Err(error), None) = (result, &self.failure) {
            self.failure = Some(error);
        }
    }

    pub fn input<T: Element, R>(&mut self, place: &Place, fill: impl FnOnce(&mut [T]) -> R) -> R {
        let (_, elements) = self.address::<T>(place);
        let ready = self.inputs.wait_for_mirror(&self.exchange);
        self.note(ready);
        fill(self.inputs.elements(place, elements))
    }

    /// Adds an input whose samples are in rows, which are copied from there.
    pub fn input_rows(&mut self, place: &Place, rows: &mut dyn Iterator<Item = &HostRow>) {
        let (_, bytes) = self.address::<u8>(place);
        self.inputs.add_rows(place, bytes, rows);
    }

    /// Starts the copy of filled inputs to the card, in parallel with running programs.
    pub fn send(&mut self) {
        let sent = self.inputs.send(&self.compute);
        self.note(sent);
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
        self.begin(micro)?;
        let slot = self.captured.slot_of(program, slot);
        match self.captured.replays.get(&(program, slot)) {
            Some(replay) => self.compute.replay(replay),
            None => Ok(()),
        }
    }

    /// Gives the card the inputs and the number of the micro-batch that the next program is for.
    fn begin(&mut self, micro: usize) -> Result<(), DeviceError> {
        self.inputs.take(&self.compute)?;
        self.compute.set(self.tables.micro(), micro as u32)
    }

    /// Runs the last pass of a step; in a run of several processes, gradients are exchanged during the pass.
    pub fn run_last(&mut self, program: ProgramId, micro: usize, slot: usize) {
        if !self.captured.last_replays.contains_key(&program) {
            return self.run(program, micro, slot);
        }
        assert_eq!(slot, 0, "the last pass has the first slot");
        if self.failure.is_none() {
            let ran = self
                .begin(micro)
                .and_then(|()| self.compute.replay(&self.captured.last_replays[&program]));
            self.note(ran);
        }
    }

    /// Waits until the card has reached its position of [`MOST_AHEAD`] calls ago. The programs queued after that keep it busy.
    pub fn keep_pace(&mut self) {
        if self.failure.is_none() {
            let passed = &self.pace.passed[self.pace.next];
            let waited = self.exchange.wait_for_event(passed);
            let kept = waited.and_then(|()| passed.record(&self.compute));
            self.pace.next = (self.pace.next + 1) % MOST_AHEAD;
            self.note(kept);
        }
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
        self.begin(micro)?;
        let slot = self.captured.slot_of(id, slot);
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
            // those of a step: an instruction that adds does so several times.
            let seconds = timed(&self.compute, || issuer.instruction(program, index))?;
            told(instruction.op.rules().name(), seconds);
        }
        Ok(())
    }

    pub fn wait(&mut self) -> Result<(), DeviceError> {
        let waited = self.settle();
        let waited = self.inputs.wait(waited);
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
        self.inputs.abandon();
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

/// One stream for each lane but the first.
fn streams_beside(plan: &StepPlan) -> Result<Vec<Stream>, DeviceError> {
    let instructions = plan.programs.iter().flat_map(|one| &one.instructions);
    let last = instructions.filter_map(|one| one.lane).max();
    (0..last.unwrap_or(0).max(1))
        .map(|_| Stream::new())
        .collect()
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
