//! One interface to all devices: the device, and the memory and programs of a plan on it.

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
    /// 32-bit floats; products round their factors to 10 bits of mantissa.
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

    /// Value of the option in the config.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::F32 => "f32",
            Arithmetic::Tf32 => "tf32",
            Arithmetic::Bf16 => "bf16",
            Arithmetic::F16 => "fp16",
        }
    }
}

/// The user's choice of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU if there is one, else the CPU.
    #[default]
    Auto,
    Cpu,
    /// The GPU with this index.
    Cuda(usize),
}

/// A device that cannot be opened, or that fails.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device, or a library that it needs, is missing.
    #[error("{0}")]
    Missing(String),
    /// The memory that the plan needs cannot be reserved.
    #[error("{found}\nhint: {hint}")]
    Memory {
        /// Message: bytes that are needed and bytes that are free.
        found: String,
        /// Advice for the user.
        hint: String,
    },
    /// The device failed while it worked.
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

/// A thread pool and an optional GPU.
pub struct Device {
    cpu: Cpu,
    gpu: Option<Cuda>,
    /// Why no GPU is used although there is a driver.
    notes: Vec<String>,
    /// Number of processes on this machine that share the device's memory, this process included.
    num_sharers: u64,
}

impl Device {
    /// Opens the chosen device; `None` threads: one per core.
    pub fn open(wish: DeviceChoice, num_threads: Option<usize>) -> Result<Device, DeviceError> {
        let (gpu, notes) = match wish {
            DeviceChoice::Cpu => (None, Vec::new()),
            DeviceChoice::Cuda(ordinal) => (Some(Cuda::open(ordinal)?), Vec::new()),
            DeviceChoice::Auto => match cuda::count() {
                Ok(0) => (None, Vec::new()),
                Ok(_) => (Some(Cuda::open(0)?), Vec::new()),
                // There is a driver, but not the libraries for computing: use the CPU, and note what to install.
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

    /// A device without a GPU.
    pub fn on_cpu(cpu: Cpu) -> Device {
        Device {
            cpu,
            gpu: None,
            notes: Vec::new(),
            num_sharers: 1,
        }
    }

    /// The same device, its memory shared by this many processes of the machine.
    pub fn with_sharers(self, num_sharers: usize) -> Device {
        Device {
            num_sharers: num_sharers.max(1) as u64,
            ..self
        }
    }

    /// Divisor of the device's memory if no budget is given.
    pub fn num_sharers(&self) -> u64 {
        self.num_sharers
    }

    /// The thread pool: it decodes, counts ranks and, without a GPU, runs programs.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The same device as a member of a group of processes that train together. Reserves the buffers of exchanges, so that memory
    /// forecasts include them.
    ///
    /// # Errors
    /// If a process is lost, or the GPUs cannot be connected.
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

    /// The processes that train together; by default this process alone.
    pub fn group(&self) -> &Group {
        self.cpu.group()
    }

    /// Transport of exchanges between processes, with every setting that the order of additions depends on; `None` for one process.
    pub fn exchanges_through(&self) -> Option<String> {
        let transport = self.group().transport()?;
        Some(match &self.gpu {
            Some(gpu) => gpu.exchanges_through().unwrap_or_default(),
            None => transport.to_owned(),
        })
    }

    pub fn gpu(&self) -> Option<&Cuda> {
        self.gpu.as_ref()
    }

    pub fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// `cpu` or `cuda`, for JSON output.
    pub fn kind(&self) -> &'static str {
        if self.is_gpu() { "cuda" } else { "cpu" }
    }

    /// Description for people: model, memory, libraries.
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

    /// Default number format of the device.
    pub fn best_arithmetic(&self) -> Arithmetic {
        match &self.gpu {
            Some(gpu) => gpu.best_arithmetic(),
            None => Arithmetic::F32,
        }
    }

    pub fn supports(&self, arithmetic: Arithmetic) -> bool {
        match &self.gpu {
            Some(gpu) => gpu.supports(arithmetic),
            None => arithmetic == Arithmetic::F32,
        }
    }

    /// Whether the gradient of an embedding needs token ids in sorted order.
    pub fn wants_sorted_ids(&self) -> bool {
        self.is_gpu()
    }

    /// The device as a target of the planner. `host_bytes` is host memory outside the arena that the run will allocate later. On a
    /// GPU, loads everything that a run needs first.
    pub fn target(
        &self,
        arithmetic: Arithmetic,
        host_bytes: u64,
    ) -> Result<Box<dyn Target>, DeviceError> {
        self.target_with_more(arithmetic, host_bytes, 0)
    }

    /// Like [`Device::target`], for a process that was measured to hold `more_bytes` on a GPU beyond the forecast.
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

    /// Rows of host memory that inputs can be [copied from](Machine::input_rows); page-locked if there is a GPU.
    pub fn host_rows(&self, count: usize, bytes: usize) -> Result<Vec<HostRow>, DeviceError> {
        if let Some(gpu) = &self.gpu {
            gpu.bind()?;
        }
        rows::rows(count, bytes, self.is_gpu())
    }

    /// Memory of the device, of which a budget may be a share; `None` where the system does not report it.
    pub fn total_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.total_bytes(),
            None => cpu::total_bytes(),
        }
    }

    /// Memory that this process holds or could still allocate.
    pub fn available_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.available_bytes(),
            None => Some(cpu::available_bytes()? + cpu::resident_bytes().unwrap_or(0)),
        }
    }

    /// Memory that this process holds now, by the same count as a budget.
    pub fn held_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.held_bytes(),
            None => {
                cpu::give_back_freed();
                cpu::resident_bytes_exactly()
            }
        }
    }

    /// Peak memory of this process, by the same count as a budget.
    pub fn peak_bytes(&self) -> Option<u64> {
        match &self.gpu {
            Some(gpu) => gpu.peak_bytes(),
            None => cpu::peak_resident_bytes(),
        }
    }

    /// A gauge of the device's memory, for use from any thread during a run.
    pub fn gauge(&self) -> Gauge {
        match &self.gpu {
            Some(gpu) => gpu.gauge(),
            None => Gauge::of_cpu(),
        }
    }

    /// Algorithms that the device chose among several, as text: a checkpoint stores them, so that a resumed run computes the same
    /// bits.
    pub fn algorithms(&self) -> Option<String> {
        self.gpu.as_ref().map(Cuda::algorithms)
    }

    /// Sets the algorithms that a checkpoint stored; to be called before a machine is created.
    pub fn prefer_algorithms(&self, text: &str) {
        if let Some(gpu) = &self.gpu {
            gpu.prefer_algorithms(text);
        }
    }
}

/// The arena of a plan, and its programs ready to run in it.
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
    /// Reserves the arena and prepares the programs.
    pub fn new(
        device: &Device,
        plan: &StepPlan,
        arithmetic: Arithmetic,
    ) -> Result<Machine, DeviceError> {
        cpu::give_back_freed();
        let kind = match device.gpu() {
            Some(gpu) => Backend::Cuda(Box::new(CudaMachine::new(gpu, plan, arithmetic)?)),
            None => Backend::Cpu(Arena::new(plan.arena_bytes)?),
        };
        Ok(Machine {
            kind,
            arithmetic,
            group: device.group().clone(),
        })
    }

    pub fn arena_bytes(&self) -> u64 {
        match &self.kind {
            Backend::Cpu(arena) => arena.bytes(),
            Backend::Cuda(machine) => machine.arena_bytes(),
        }
    }

    /// Reads a contiguous tensor that outlives programs; waits for running programs.
    pub fn read<T: Element>(&self, place: &Place) -> Result<Cow<'_, [T]>, DeviceError> {
        match &self.kind {
            Backend::Cpu(arena) => Ok(Cow::Borrowed(arena.read(place, 0))),
            Backend::Cuda(machine) => machine.read(place),
        }
    }

    /// Writes a contiguous tensor that outlives programs; waits for running programs.
    pub fn write<T: Element, R>(&mut self, place: &Place, fill: impl FnOnce(&mut [T]) -> R) -> R {
        match &mut self.kind {
            Backend::Cpu(arena) => fill(arena.write(place, 0)),
            Backend::Cuda(machine) => machine.write(place, fill),
        }
    }

    /// Writes an input of the next [`Machine::run`]; does not wait. The initial contents that `fill` gets are arbitrary.
    pub fn input<T: Element, R>(&mut self, place: &Place, fill: impl FnOnce(&mut [T]) -> R) -> R {
        match &mut self.kind {
            Backend::Cpu(arena) => fill(arena.write(place, 0)),
            Backend::Cuda(machine) => machine.input(place, fill),
        }
    }

    /// Copies an input from rows, one behind the other; does not wait. The machine holds the rows until [`Machine::wait`].
    ///
    /// # Panics
    /// If the total length of the rows differs from the input's.
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

    /// Starts the copy of written inputs to the device while it still computes; otherwise [`Machine::run`] starts it.
    pub fn send(&mut self) {
        if let Backend::Cuda(machine) = &mut self.kind {
            machine.send();
        }
    }

    /// Runs a program for a micro-batch; `slot` selects the activations. Does not wait on a GPU.
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

    /// Like [`Machine::run`], for the last pass of a step: GPUs exchange gradients with other processes during the pass.
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

    /// Keeps the host at most [`Machine::most_ahead`] calls of this method ahead of the device: waits for the programs that were
    /// launched before the call that many calls ago.
    pub fn keep_pace(&mut self) {
        if let Backend::Cuda(machine) = &mut self.kind {
            machine.keep_pace();
        }
    }

    /// Number of programs that may still run when [`Machine::keep_pace`] returns.
    pub fn most_ahead(&self) -> usize {
        match &self.kind {
            Backend::Cpu(_) => 0,
            Backend::Cuda(_) => cuda::MOST_AHEAD,
        }
    }

    /// Runs a program and returns the time of each instruction.
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

    /// Waits for running programs; returns an error if the device failed.
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
