//! NVIDIA GPUs. Every library is loaded at run time: the same binary runs on machines without CUDA.
//!
//! ```text
//! libraries   finds and opens libcuda, NVRTC and cuBLASLt
//! driver      the driver's calls, checked
//! compile     kernels/*.cu -> machine code, kept on disk
//! product     matrix products: an algorithm per shape, timed once, kept on disk
//! cudnn, convolution   the same for convolutions; opened by the first of them
//! launch      an instruction -> products and kernels, in a stream
//! machine     a plan's memory and its programs as graphs
//! demand      what each operation takes of a card: scratch, products, kernels
//! target      the card as a target of the planner; profile: its measured rates
//! ranks       retrieval's counts of scores: on tensor cores, then undecided ones in f64
//! progress    messages about slow preparations
//! gpus        status of every card, as nvidia-smi shows it
//! ```
//!
//! There are no floating-point atomics, and no order of additions depends on timing: the same program on the same numbers gives the
//! same bits.

mod buckets;
pub mod cards;
pub mod compile;
mod convolution;
mod cudnn;
mod demand;
mod driver;
pub mod gpus;
mod inputs;
mod kernels;
mod launch;
pub mod libraries;
mod machine;
pub mod memory;
mod nccl;
mod product;
mod profile;
mod progress;
pub mod ranks;
mod target;
mod tuning_cache;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use driver::Pinned;
pub use driver::allocations;
pub use progress::on_progress;
pub use target::CudaTarget;

pub(crate) use machine::{CudaMachine, MOST_AHEAD};

use holdall_files::show_bytes;
use holdall_processes::Group;

use convolution::Convolutions;
use driver::{Buffer, Context, Stream};
use kernels::Kernels;
use libraries::{LibraryFile, Missing};
use memory::CardId;
use nccl::Nccl;
use product::{ProductFormat, Products};
use profile::Profile;

use crate::gauge::Gauge;
use crate::{Arithmetic, DeviceError};

/// Oldest compute capability that the kernels are compiled for: 7.5.
pub const OLDEST_CAPABILITY: u32 = 75;

/// An open GPU.
pub struct Cuda {
    // Fields are dropped in this order: the context comes last.
    nccl: Option<Arc<Nccl>>,
    kernels: Mutex<[Option<Arc<Kernels>>; 3]>,
    profiles: Mutex<Vec<(Arithmetic, Profile)>>,
    products: Products,
    convolutions: Convolutions,
    ordinal: usize,
    name: String,
    capability: u32,
    num_processors: usize,
    pci_bus_id: String,
    found: Vec<LibraryFile>,
    /// Bytes of the card that were in use before this process used it, where the driver reports them.
    others_bytes: Option<u64>,
    peak_bytes: Mutex<u64>,
    /// Time spent on choosing algorithms.
    time_of_choosing: Mutex<Duration>,
    context: Context,
}

/// Number of GPUs: zero without a driver, an error if there is a driver without the libraries for computing.
pub fn count() -> Result<usize, DeviceError> {
    match libraries::load() {
        Ok(_) => driver::count(),
        Err(Missing::Driver { .. }) => Ok(0),
        Err(missing) => Err(DeviceError::Missing(missing.to_string())),
    }
}

impl Cuda {
    /// Time spent on choosing algorithms: once for each product of a machine; choices are stored on disk.
    pub fn time_of_choosing(&self) -> Duration {
        *self
            .time_of_choosing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn count_choosing(&self, time: Duration) {
        *self
            .time_of_choosing
            .lock()
            .unwrap_or_else(PoisonError::into_inner) += time;
    }

    /// Opens the GPU with this index.
    pub fn open(ordinal: usize) -> Result<Cuda, DeviceError> {
        let found = libraries::load().map_err(|missing| match missing {
            Missing::Driver { .. } => DeviceError::Missing(format!(
                "{missing}\nhint: `holdall doctor` says what was found; `--device cpu` needs no GPU"
            )),
            missing => DeviceError::Missing(missing.to_string()),
        })?;
        let there = driver::count()?;
        if ordinal >= there {
            return Err(DeviceError::Missing(format!(
                "cuda:{ordinal}: expected a GPU with that number, found {there}\n\
                 hint: they count from 0; `--device auto` takes the first"
            )));
        }
        let pci_bus_id = driver::pci_bus_id(ordinal)?;
        let others_bytes =
            memory::device_memory(CardId::PciBusId(&pci_bus_id)).map(|memory| memory.used_bytes);
        let context = Context::new(ordinal)?;
        let capability = context.capability()?;
        let name = context.name()?;
        if capability < OLDEST_CAPABILITY {
            return Err(DeviceError::Missing(format!(
                "{name}: expected compute capability 7.5 or newer, found {}.{}\nhint: `--device cpu`",
                capability / 10,
                capability % 10
            )));
        }
        Ok(Cuda {
            nccl: None,
            kernels: Mutex::default(),
            profiles: Mutex::default(),
            products: Products::new()?,
            convolutions: Convolutions::new(),
            ordinal,
            name,
            capability,
            num_processors: context.num_processors()?,
            pci_bus_id,
            found,
            others_bytes,
            peak_bytes: Mutex::default(),
            time_of_choosing: Mutex::default(),
            context,
        })
    }

    /// The same GPU as a member of a group of processes: connects it to their GPUs.
    pub(crate) fn with_group(self, group: &Group) -> Result<Cuda, DeviceError> {
        if group.size() == 1 {
            return Ok(self);
        }
        self.bind()?;
        let nccl = Some(Arc::new(Nccl::open(group)?));
        Ok(Cuda { nccl, ..self })
    }

    pub(crate) fn exchanges_through(&self) -> Option<String> {
        self.nccl.as_ref().map(|nccl| nccl.describe())
    }

    /// Card memory of exchanges after programs with exchanges are captured: 1.0 to 3.4 MiB were measured.
    pub(crate) fn exchange_bytes(&self) -> u64 {
        match self.nccl {
            Some(_) => 4 << 20,
            None => 0,
        }
    }

    /// The connection to the GPUs of other processes.
    fn nccl(&self) -> Option<&Arc<Nccl>> {
        self.nccl.as_ref()
    }

    /// Address of the card on the machine's PCI bus: the same in every process that uses the card.
    pub fn pci_bus_id(&self) -> &str {
        &self.pci_bus_id
    }

    fn card(&self) -> CardId<'_> {
        CardId::PciBusId(&self.pci_bus_id)
    }

    pub(crate) fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind()
    }

    /// Description for people: the card, and where each library was found.
    pub fn describe(&self) -> Vec<String> {
        let memory = self.context.memory().map_or(0, |(_, total)| total);
        let mut lines = vec![format!(
            "Device: {} ({:.1} GiB, compute capability {}.{}, {} multiprocessors)",
            self.name,
            memory as f64 / (1u64 << 30) as f64,
            self.capability / 10,
            self.capability % 10,
            self.num_processors
        )];
        for LibraryFile {
            name, path, origin, ..
        } in &self.found
        {
            lines.push(format!("  {name}: {path} ({origin})"));
        }
        lines
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// bf16 if the card supports it, else fp16.
    pub fn best_arithmetic(&self) -> Arithmetic {
        if self.supports(Arithmetic::Bf16) {
            Arithmetic::Bf16
        } else {
            Arithmetic::F16
        }
    }

    /// Whether the card's tensor cores support the format.
    pub fn supports(&self, arithmetic: Arithmetic) -> bool {
        match arithmetic {
            Arithmetic::F32 | Arithmetic::F16 => true,
            Arithmetic::Bf16 | Arithmetic::Tf32 => self.capability >= 80,
        }
    }

    /// The kernels for a number format; compiled or read from disk, and loaded, at the first call.
    fn kernels(&self, arithmetic: Arithmetic) -> Result<Arc<Kernels>, DeviceError> {
        let element = match arithmetic {
            Arithmetic::F32 | Arithmetic::Tf32 => 0,
            Arithmetic::F16 => 1,
            Arithmetic::Bf16 => 2,
        };
        let mut all = self
            .kernels
            .lock()
            .expect("never poisoned: nothing panics with it");
        if let Some(kernels) = &all[element] {
            return Ok(kernels.clone());
        }
        let kernels = Arc::new(Kernels::load(self.capability, element as u32)?);
        all[element] = Some(kernels.clone());
        Ok(kernels)
    }

    /// Loads everything that a run in this format needs, so that the memory in use afterwards is the baseline of the plan.
    pub fn warm_up(&self, arithmetic: Arithmetic) -> Result<(), DeviceError> {
        self.bind()?;
        self.kernels(arithmetic)?;
        tuning_cache::read_algorithms(self);
        self.profile(arithmetic)?;
        Ok(())
    }

    /// Measured rates of the card, from this process or stored by an earlier one.
    fn profile(&self, arithmetic: Arithmetic) -> Result<Profile, DeviceError> {
        let mut profiles = self
            .profiles
            .lock()
            .expect("never poisoned: nothing panics with it");
        if let Some((_, profile)) = profiles.iter().find(|(of, _)| *of == arithmetic) {
            return Ok(*profile);
        }
        let profile = match tuning_cache::read_profile(self, arithmetic) {
            Some(profile) => profile,
            None => {
                let profile = Profile::measure(self, arithmetic)?;
                tuning_cache::write_profile(self, arithmetic, &profile);
                profile
            }
        };
        profiles.push((arithmetic, profile));
        Ok(profile)
    }

    /// The card as a target of the planner.
    pub fn target(&self, arithmetic: Arithmetic) -> Result<CudaTarget, DeviceError> {
        self.warm_up(arithmetic)?;
        let held = self.held_bytes().unwrap_or(0);
        Ok(CudaTarget::new(
            self.profile(arithmetic)?,
            self.num_processors,
            arithmetic,
            held,
            target::cudnn_bytes(arithmetic, self.convolutions.is_open()),
        ))
    }

    pub fn total_bytes(&self) -> Option<u64> {
        self.context.memory().ok().map(|(_, total)| total)
    }

    /// Free and total bytes of the card. On Windows CUDA counts host memory as free, NVML does not.
    fn free_and_total_bytes(&self) -> Result<(u64, u64), DeviceError> {
        let (free, total) = self.context.memory()?;
        let on_card = memory::device_memory(self.card()).map(|memory| memory.free_bytes);
        Ok((on_card.map_or(free, |on_card| on_card.min(free)), total))
    }

    /// Memory that this process holds on the card or could still allocate.
    pub fn available_bytes(&self) -> Option<u64> {
        let (free, _) = self.free_and_total_bytes().ok()?;
        Some(free + self.held_bytes().unwrap_or(0))
    }

    /// Memory that this process holds on the card, context and code included: from the driver, or else the change in free memory since
    /// before the process used the card.
    pub fn held_bytes(&self) -> Option<u64> {
        let held = memory::process_bytes(self.card()).or_else(|| {
            let (free, total) = self.free_and_total_bytes().ok()?;
            Some((total - free).saturating_sub(self.others_bytes.unwrap_or(0)))
        })?;
        let mut peak = self
            .peak_bytes
            .lock()
            .expect("never poisoned: nothing panics with it");
        *peak = held.max(*peak);
        Some(held)
    }

    /// The largest result of [`Cuda::held_bytes`]: nothing is allocated within a step, so that is the peak.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.held_bytes()?;
        let peak = self.peak_bytes.lock();
        Some(*peak.expect("never poisoned: nothing panics with it"))
    }

    /// A gauge of the card's memory, for use during a run.
    pub fn gauge(&self) -> Gauge {
        let name = format!("cuda:{}", self.ordinal);
        Gauge::of_card(name, &self.pci_bus_id, self.held_bytes())
    }

    /// Allocates card memory; the error names the processes that hold it.
    fn reserve(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        // Some drivers (Windows) lend host memory instead of refusing, which would make the run crawl: refuse here.
        let (free, total) = self.free_and_total_bytes()?;
        if free < bytes {
            return Err(self.who_holds(bytes, free, total));
        }
        Buffer::new(bytes).map_err(|error| match error {
            DeviceError::Memory { .. } => self.who_holds(bytes, free, total),
            error => error,
        })
    }

    fn who_holds(&self, bytes: u64, free: u64, total: u64) -> DeviceError {
        let mut found = format!(
            "{}: the plan needs {} in one piece, {} of {} are free",
            self.name,
            show_bytes(bytes),
            show_bytes(free),
            show_bytes(total)
        );
        let mut holders = memory::holders(self.card());
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        for holder in holders {
            let held = holder
                .bytes
                .map_or("an unknown amount".to_owned(), show_bytes);
            found.push_str(&format!(
                "\n  process {} ({}) holds {held}",
                holder.pid, holder.name
            ));
        }
        DeviceError::Memory {
            found,
            hint: "stop what holds the memory, or give a smaller `--memory`".to_owned(),
        }
    }

    /// Algorithms chosen so far, as text for [`Cuda::prefer_algorithms`].
    pub fn algorithms(&self) -> String {
        tuning_cache::algorithms_to_text(&self.products.chosen())
            + &tuning_cache::engines_to_text(&self.convolutions.chosen())
    }

    /// Sets the algorithms of an earlier process for shapes that have none yet, so that the same bits follow.
    pub fn prefer_algorithms(&self, text: &str) {
        self.products
            .prefer(tuning_cache::algorithms_from_text(text));
        self.convolutions
            .prefer(tuning_cache::engines_from_text(text));
    }

    /// Stores the algorithms chosen so far on disk, for later processes.
    fn keep_algorithms(&self) {
        tuning_cache::write_algorithms(self);
    }
}

/// The format of the product library for an arithmetic.
fn format_of(arithmetic: Arithmetic) -> ProductFormat {
    match arithmetic {
        Arithmetic::F32 => ProductFormat::F32,
        Arithmetic::Tf32 => ProductFormat::Tf32,
        Arithmetic::Bf16 => ProductFormat::Bf16,
        Arithmetic::F16 => ProductFormat::F16,
    }
}
