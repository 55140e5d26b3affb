//! One face for all devices: where programs run, and the memory that they run in.

use std::borrow::Cow;

use holdall_graph::DType;
use holdall_plan::{Place, ProgramId, StepPlan, Target};
use holdall_processes::Group;

use crate::cpu::{self, Arena, ArenaError, Cpu, CpuTarget, Element};
use crate::cuda::{self, Cuda, CudaMachine};
use crate::gauge::Gauge;
use crate::rows::{self, HostRow};

/// Number formats of the arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// 32-bit floats.
    #[default]
    F32,
    /// 32-bit floats, products with 10-bit factors.
    Tf32,
    /// 16-bit brain floats.
    Bf16,
    /// 16-bit IEEE floats.
    F16,
}

impl Arithmetic {
    /// Number format of activations.
    pub fn compute(self) -> DType {
        match self {
            Arithmetic::F32 | Arithmetic::Tf32 => DType::F32,
            Arithmetic::Bf16 => DType::Bf16,
            Arithmetic::F16 => DType::F16,
        }
    }

    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::F32 => "f32",
            Arithmetic::Tf32 => "tf32",
            Arithmetic::Bf16 => "bf16",
            Arithmetic::F16 => "fp16",
        }
    }
}

/// Where the user wants to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU where there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this number.
    Cuda(usize),
}

/// Why a device cannot be had, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no such device, or something that it needs is missing.
    #[error("{0}")]
    Missing(String),
    /// The memory that the plan asks for is not there.
    #[error("{found}\nhint: {hint}")]
    Memory {
        /// What is asked for, and what there is.
        found: String,
        /// What helps.
        hint: String,
    },
    /// The device failed.
    #[error("{0}")]
    Failed(String),
}

impl From<ArenaError> for DeviceError {
    fn from(error: ArenaError) -> DeviceError {
        DeviceError::Memory {
            found: error.to_string(),
            hint: "free memory, or give a smaller `--memory`".to_owned(),
        }
    }
}

/// Threads and, where there is one, a GPU.
pub struct Device {
    cpu: Cpu,
    gpu: Option<Cuda>,
    /// Why there is no GPU although there is a driver.
    notes: Vec<String>,
    /// Processes of this machine that have this memory between them, this one among them.
    num_sharers: u64,
}

impl Device {
    /// Opens what is wished for; `num_threads` for the pool, or one per core.
    pub fn open(wish: DeviceChoice, num_threads: Option<usize>) -> Result<Device, DeviceError> {
        let (gpu, notes) = match wish {
            DeviceChoice::Cpu => (None, Vec::new()),
            DeviceChoice::Cuda(ordinal) => (Some(Cuda::open(ordinal)?), Vec::new()),
            DeviceChoice::Auto => match cuda::count() {
                Ok(0) => (None, Vec::new()),
                Ok(_) => (Some(Cuda::open(0)?), Vec::new()),
                // A driver without the libraries that computing needs: the CPU, and what to install.
                Err(missing) => (None, vec![missing.to_string()]),
            },
        };
        let cpu = Cpu::open(num_threads).map_err(|cause| {
            DeviceError::Failed(format!(
                "no threads to compute with: {cause}\n\
                 hint: fewer --num-threads, or raise the limits on processes and memory (ulimit -u, ulimit -v)"
            ))
        })?;
        Ok(Device {
            cpu,
            gpu,
            notes,
            num_sharers: 1,
        })
    }

    /// Programs run on a thread pool.
    pub fn on_cpu(cpu: Cpu) -> Device {
        Device {
            cpu,
            gpu: None,
            notes: Vec::new(),
            num_sharers: 1,
        }
    }

    /// The same where so many processes of this machine have its memory between them.
    pub fn with_sharers(self, num_sharers: usize) -> Device {
        Device {
            num_sharers: num_sharers.max(1) as u64,
            ..self
        }
    }

    /// What the device's memory is divided by where nobody says how much this process may have.
    pub fn num_sharers(&self) -> u64 {
        self.num_sharers
    }

    /// The threads: they decode, count ranks and, without a GPU, compute.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The same as one of several processes that train together. What exchanges hold is held from here on, so that forecasts have it.
    ///
    /// # Errors
    /// If a process is lost, or their cards cannot be joined.
    pub fn with_group(self, group: Group) -> Result<Device, DeviceError> {
        let gpu = self.gpu.map(|gpu| gpu.with_group(&group)).transpose()?;
        if gpu.is_none() {
            let reserved = group.reserve_staging();
            reserved.map_err(|error| DeviceError::Failed(error.to_string()))?;
        }
        Ok(Device {
            cpu: self.cpu.with_group(group),
            gpu,
            ..self
        })
    }

    /// The processes that train together: this one alone, where nobody said otherwise.
    pub fn group(&self) -> &Group {
        self.cpu.group()
    }

    /// What processes exchange through, with all that the order of additions depends on; `None` for one process.
    pub fn exchanges_through(&self) -> Option<String> {
        let transport = self.group().transport()?;
        Some(match &self.gpu {
            Some(gpu) => gpu.exchanges_through().unwrap_or_default(),
            None => transport.to_owned(),
        })
    }

    /// The GPU that programs run on, if they do.
    pub fn gpu(&self) -> Option<&Cuda> {
        self.gpu.as_ref()
    }

    /// Whether programs run on a GPU.
    pub fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// `cpu`, or `cuda`: for JSON.
    pub fn kind(&self) -> &'static str {
        if self.is_gpu() { "cuda" } else { "cpu" }
    }

    /// For people: what it is, and what it was found with.
    pub fn describe(&self) -> Vec<String> {
        match &self.gpu {
            Some(gpu) => gpu.describe(),
            None => {
                let mut lines = self.notes.clone();
                lines.push(format!("Device: CPU, {} threads", self.cpu.num_threads()));
                lines
            }
        }
    }

    /// The number format that suits it when the user does not say.
    pub fn best_arithmetic(&self) -> Arithmetic {
        match &self.gpu {
            Some(gpu) => gpu.best_arithmetic(),
            None => Arithmetic::F32,
        }
    }

    /// Whether it computes in a number format.
    pub fn supports(&self, arithmetic: Arithmetic) -> bool {
        match &self.gpu {
            Some(gpu) => gpu.supports(arithmetic),
            None => arithmetic == Arithmetic::F32,
        }
    }

    /// Whether gradients of equal token ids need the order in which they are added.
    pub fn wants_sorted_ids(&self) -> bool {
        self.is_gpu()
    }

    /// The device as the planner sees it. `host_bytes` is what the run will hold on the host beside the arena, and
    /// does not hold yet. On a GPU, everything that a run needs is loaded first.
    pub fn target(
        &self,
        arithmetic: Arithmetic,
        host_bytes: u64,
    ) -> Result<Box<dyn Target>, DeviceError> {
        self.target_with_more(arithmetic, host_bytes, 0)
    }

    /// The same, where the process was measured to hold `more_bytes` on a GPU beyond what was foreseen.
    pub fn target_with_more(
        &self,
        arithmetic: Arithmetic,
        host_bytes: u64,
        more_bytes: u64,
    ) -> Result<Box<dyn Target>, DeviceError> {
        Ok(match &self.gpu {
            Some(gpu) => {
                let more_bytes = more_bytes + gpu.exchange_bytes();
                Box::new(gpu.target(arithmetic)?.with_more_bytes(more_bytes))
            }
            None => {
                let target = CpuTarget::new(self.cpu.num_threads());
                Box::new(target.with_host_bytes(host_bytes))
            }
        })
    }

    /// Rows of host memory that inputs can be [taken from](Machine::input_rows); pinned where there is a GPU.
    pub fn host_rows(&self, count: usize, bytes: usize) -> Result<Vec<HostRow>, DeviceError> {
        if let Some(gpu) = &self.gpu {
            gpu.bind()?;
        }
        rows::rows(count, bytes, self.is_gpu())
    }

    /// Memory that budgets are shares of; `None` where the system does not tell.
    pub fn total_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.total_bytes(),
            None => cpu::total_bytes(),
        }
    }

    /// Memory that this process holds or could have.
    pub fn available_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.available_bytes(),
            None => Some(cpu::available_bytes()? + cpu::resident_bytes().unwrap_or(0)),
        }
    }

    /// What this process holds now, as a budget counts it.
    pub fn held_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.held_bytes(),
            None => {
                cpu::give_back_freed();
                cpu::resident_bytes_exactly()
            }
        }
    }

    /// The most that this process has held, as a budget counts it.
    pub fn peak_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.peak_bytes(),
            None => cpu::peak_resident_bytes(),
        }
    }

    /// What looks at its memory while a run goes on, from any thread.
    pub fn gauge(&self) -> Gauge {
        match &self.gpu {
            Some(gpu) => gpu.gauge(),
            None => Gauge::of_cpu(),
        }
    }

    /// How the device computes what it computes, where there is a choice: a checkpoint remembers it, so that the same
    /// bits follow.
    pub fn algorithms(&self) -> Option<String> {
        self.gpu.as_ref().map(Cuda::algorithms)
    }

    /// Takes the choices of an earlier process, before a machine is made.
    pub fn prefer_algorithms(&self, text: &str) {
        if let Some(gpu) = &self.gpu {
            gpu.prefer_algorithms(text);
        }
    }
}

/// A plan's memory, and its programs made ready to run in it.
pub struct Machine {
    kind: Backend,
    arithmetic: Arithmetic,
    group: Group,
}

enum Backend {
    Cpu(Arena),
    Cuda(Box<CudaMachine>),
}

impl Machine {
    /// Reserves the arena and makes the programs ready.
    pub fn new(
        device: &Device,
        plan: &StepPlan,
        arithmetic: Arithmetic,
    ) -> Result<Machine, DeviceError> {
        cpu::give_back_freed();
        let kind = match device.gpu() {
            Some(gpu) => Backend::Cuda(Box::new(CudaMachine::new(gpu, plan, arithmetic)?)),
            None => {
                device.cpu().touch_slabs(plan.packing_bytes);
                Backend::Cpu(Arena::new(plan.arena_bytes)?)
            }
        };
        Ok(Machine {
            kind,
            arithmetic,
            group: device.group().clone(),
        })
    }

    /// Size of the arena, as reserved.
    pub fn arena_bytes(&self) -> u64 {
        match &self.kind {
            Backend::Cpu(arena) => arena.bytes(),
            Backend::Cuda(machine) => machine.arena_bytes(),
        }
    }

    /// A contiguous tensor that outlives programs; waits for what still runs.
    pub fn read<T: Element>(&self, place: &Place) -> Result<Cow<'_, [T]>, DeviceError> {
        match &self.kind {
            Backend::Cpu(arena) => Ok(Cow::Borrowed(arena.read(place, 0))),
            Backend::Cuda(machine) => machine.read(place),
        }
    }

    /// Writes a contiguous tensor that outlives programs; waits for what still runs.
    pub fn write<T: Element, R>(&mut self, place: &Place, fill: impl FnOnce(&mut [T]) -> R) -> R {
        match &mut self.kind {
            Backend::Cpu(arena) => fill(arena.write(place, 0)),
            Backend::Cuda(machine) => machine.write(place, fill),
        }
    }

    /// Writes an input for the next [`Machine::run`]; does not wait. What `fill` finds in it is arbitrary.
    pub fn input<T: Element, R>(&mut self, place: &Place, fill: impl FnOnce(&mut [T]) -> R) -> R {
        match &mut self.kind {
            Backend::Cpu(arena) => fill(arena.write(place, 0)),
            Backend::Cuda(machine) => machine.input(place, fill),
        }
    }

    /// Takes an input from rows, one behind the other; does not wait. The machine holds on to them until [`Machine::wait`].
    ///
    /// # Panics
    /// If they are not as long together as the input.
    pub fn input_rows<'a>(&mut self, place: &Place, rows: impl Iterator<Item = &'a HostRow>) {
        let place = &place.as_bytes();
        match &mut self.kind {
            Backend::Cpu(arena) => {
                let mut rest = arena.write::<u8>(place, 0);
                for row in rows {
                    let (to, behind) = rest.split_at_mut(row.as_ref().len());
                    to.copy_from_slice(row.as_ref());
                    rest = behind;
                }
                assert!(rest.is_empty(), "rows as long together as the input");
            }
            Backend::Cuda(machine) => {
                let mut rows = rows;
                machine.input_rows(place, &mut rows);
            }
        }
    }

    /// Lets inputs that were written travel to the device while it still computes; [`Machine::run`] does it otherwise.
    pub fn send(&mut self) {
        if let Backend::Cuda(machine) = &mut self.kind {
            machine.send();
        }
    }

    /// Runs a program for a micro-batch and the slot it keeps its activations in; on a GPU, does not wait.
    pub fn run(
        &mut self,
        device: &Device,
        plan: &StepPlan,
        program: ProgramId,
        micro: usize,
        slot: usize,
    ) {
        match &mut self.kind {
            Backend::Cpu(arena) => {
                let program = &plan.programs[program.0];
                device.cpu().run(program, arena, micro, slot);
            }
            Backend::Cuda(machine) => machine.run(program, micro, slot),
        }
    }

    /// Runs the last pass of a step, as [`Machine::run`] does; where several processes take part, GPUs let gradients travel meanwhile.
    pub fn run_last(
        &mut self,
        device: &Device,
        plan: &StepPlan,
        program: ProgramId,
        micro: usize,
        slot: usize,
    ) {
        match &mut self.kind {
            Backend::Cpu(_) => self.run(device, plan, program, micro, slot),
            Backend::Cuda(machine) => machine.run_last(program, micro, slot),
        }
    }

    /// Keeps the host at most [`Machine::most_ahead`] calls of this ahead of the device: waits until what was launched before
    /// the call that many calls ago is done.
    pub fn keep_pace(&mut self) {
        if let Backend::Cuda(machine) = &mut self.kind {
            machine.keep_pace();
        }
    }

    /// Programs that may still run when [`Machine::keep_pace`] returns.
    pub fn most_ahead(&self) -> usize {
        match &self.kind {
            Backend::Cpu(_) => 0,
            Backend::Cuda(_) => cuda::MOST_AHEAD,
        }
    }

    /// Runs a program and tells how long each instruction took.
    pub fn profile(
        &mut self,
        device: &Device,
        plan: &StepPlan,
        program: ProgramId,
        [micro, slot]: [usize; 2],
        told: &mut (dyn FnMut(&'static str, f64) + Send),
    ) -> Result<(), DeviceError> {
        match (&mut self.kind, device.gpu()) {
            (Backend::Cuda(machine), Some(gpu)) => {
                machine.profile(gpu, plan, self.arithmetic, program, [micro, slot], told)
            }
            (Backend::Cuda(_), None) => unreachable!("a machine on a GPU comes from one"),
            (Backend::Cpu(arena), _) => {
                let program = &plan.programs[program.0];
                device.cpu().profile(program, arena, micro, slot, told);
                Ok(())
            }
        }
    }

    /// Waits for what still runs, and tells whether the device failed.
    pub fn wait(&mut self) -> Result<(), DeviceError> {
        match &mut self.kind {
            Backend::Cpu(_) => match self.group.error() {
                Some(error) => Err(DeviceError::Failed(error.to_string())),
                None => Ok(()),
            },
            Backend::Cuda(machine) => machine.wait(),
        }
    }
}
