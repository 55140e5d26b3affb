//! Loaded kernels, and launches: the blocks of a grid over the cores of this machine.
//!
//! A module is a library of the host. It has the memory of one block, so it is opened once for each core, from as many files in memory;
//! a block runs in the copy of the core that took it. Blocks are taken in an order drawn from the launch's seed.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::faults::{self, Trap};
use crate::foreign::{get, list, slice};
use crate::memory::Memory;
use crate::model::{BYTES_PER_SECOND, Draws, SECONDS_PER_KERNEL};
use crate::streams::{CardFault, Task, code};

/// Cores that blocks run on at most.
const MOST_CORES: usize = 4;

/// Threads of a grid below which one core runs all of it: handing a block over takes longer.
const SHARED_THREADS: u64 = 2048;

/// `Launch` of card.h.
#[repr(C)]
struct Launch {
    kernel: unsafe extern "C" fn(*const *const c_void),
    arguments: *const *const c_void,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    stacks: *mut c_void,
    /// The arena whose tensors are guarded, and a byte for each of its bytes; no bytes where none is.
    arena: u64,
    arena_bytes: u64,
    is_inside: *const u8,
}

/// Threads of a block at most, and bytes of the stack that each has: `MOST_THREADS` and `STACK_BYTES` of card.h.
const MOST_THREADS: usize = 1024;
const STACK_BYTES: usize = 256 << 10;

/// Stacks for the threads of a core's block, made once: each ends in a page that nobody may touch. Null where there is no memory.
fn stacks(core: usize) -> *mut c_void {
    static STACKS: [OnceLock<usize>; MOST_CORES] = [const { OnceLock::new() }; MOST_CORES];
    let made = STACKS[core].get_or_init(|| {
        // SAFETY: fresh pages, kept for good; they are written when a thread gets there.
        unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let bytes = MOST_THREADS * STACK_BYTES;
            let stacks = libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0);
            if stacks == libc::MAP_FAILED {
                return 0;
            }
            for index in 0..MOST_THREADS {
                libc::mprotect(
                    stacks.wrapping_byte_add(index * STACK_BYTES),
                    4096,
                    libc::PROT_NONE,
                );
            }
            stacks as usize
        }
    });
    *made as *mut c_void
}

/// `Extent` of card.h, which C passes by value.
#[repr(C)]
struct Extent([c_uint; 3]);

/// `Kernel` of card.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelEntry {
    name: *const c_char,
    call: unsafe extern "C" fn(*const *const c_void),
    num_arguments: c_uint,
    most_threads: c_uint,
    argument_bytes: *const c_uint,
}

/// A kernel.
pub struct Kernel {
    pub name: String,
    pub argument_bytes: Vec<u32>,
    pub most_threads: u32,
}

type RunBlock = unsafe extern "C" fn(*const Launch, Extent, u64) -> *const c_char;

/// A library, opened: the memory of one block.
pub struct Copy {
    library: *mut c_void,
    run_block: RunBlock,
    abandon: *const c_void,
    current_thread: unsafe extern "C" fn() -> c_uint,
    /// Address and instruction of an access outside of every tensor; zeros without one.
    stray_access: unsafe extern "C" fn(*mut [u64; 2]),
    calls: Vec<unsafe extern "C" fn(*const *const c_void)>,
    /// The loader knows libraries by their names, and this one's has the number of the file: another may not have it meanwhile.
    _file: OwnedFd,
}

// SAFETY: a copy is used by one thread at a time: by whoever runs the machine's work, or by the helper of its index.
unsafe impl Send for Copy {}
// SAFETY: as above.
unsafe impl Sync for Copy {}

/// Kernels that were compiled together.
pub struct Module {
    kernels: Vec<Kernel>,
    copies: Vec<Copy>,
    image: Vec<u8>,
}

fn num_cores() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(MOST_CORES)
}

/// Bytes of an ELF file in memory, which ends with its table of sections; `None` where it is not for this machine.
fn image_bytes(address: u64) -> Option<usize> {
    const X86_64: u16 = 62;
    let header: &[u8] = slice(address, 64);
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if !header.starts_with(b"\x7fELF") || short(0x12) != X86_64 {
        return None;
    }
    let table = get((address + 0x28) as usize as *const u64)?;
    Some(table as usize + usize::from(short(0x3a)) * usize::from(short(0x3c)))
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the library is open.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl Copy {
    fn open(image: &[u8]) -> Option<(Copy, Vec<KernelEntry>, u32)> {
        // SAFETY: a file in memory that is this library's own, and stays open as long as the library; symbols have the types of card.h.
        unsafe {
            let file = libc::memfd_create(c"kernels".as_ptr(), 0);
            if file < 0 {
                return None;
            }
            let owner = OwnedFd::from_raw_fd(file);
            std::io::Write::write_all(&mut std::fs::File::from(owner.try_clone().ok()?), image)
                .ok()?;
            let path = format!("/proc/self/fd/{file}\0");
            let library = libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return None;
            }
            type Table = unsafe extern "C" fn() -> *const KernelEntry;
            type Number = unsafe extern "C" fn() -> c_uint;
            let table: Table = std::mem::transmute(symbol(library, c"holdall_kernels")?);
            let architecture: Number =
                std::mem::transmute(symbol(library, c"holdall_architecture")?);
            let current_thread: Number =
                std::mem::transmute(symbol(library, c"holdall_current_thread")?);
            type Access = unsafe extern "C" fn(*mut [u64; 2]);
            let stray_access: Access =
                std::mem::transmute(symbol(library, c"holdall_stray_access")?);
            let mut entries = Vec::new();
            let mut entry = table();
            while !(*entry).name.is_null() {
                entries.push(*entry);
                entry = entry.add(1);
            }
            let copy = Copy {
                library,
                run_block: std::mem::transmute::<*mut c_void, RunBlock>(symbol(
                    library,
                    c"holdall_run_block",
                )?),
                abandon: symbol(library, c"holdall_abandon")?,
                current_thread,
                stray_access,
                calls: entries.iter().map(|entry| entry.call).collect(),
                _file: owner,
            };
            Some((copy, entries, architecture()))
        }
    }
}

impl Copy {
    /// The access outside of every tensor that ended the last block.
    fn stray_access(&self) -> Option<Trap> {
        let mut access = [0; 2];
        // SAFETY: writes two numbers of this thread's copy.
        unsafe { (self.stray_access)(&mut access) };
        let [address, instruction] = access;
        (address != 0).then_some(Trap {
            address: Some(address),
            instruction,
        })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: opened once, and nothing of it runs any more.
        unsafe { libc::dlclose(self.library) };
    }
}

impl Module {
    /// Opens what the compiler made for a card of this capability.
    pub fn load(address: u64, capability: u32) -> Result<Module, i32> {
        let bytes = image_bytes(address).ok_or(code::NO_BINARY)?;
        let image = slice::<u8>(address, bytes).to_vec();
        let mut copies = Vec::new();
        let mut kernels = Vec::new();
        for _ in 0..num_cores() {
            let (copy, entries, architecture) = Copy::open(&image).ok_or(code::INVALID_IMAGE)?;
            if architecture != capability {
                return Err(code::NO_BINARY);
            }
            kernels = entries
                .iter()
                .map(|entry| Kernel {
                    name: crate::foreign::text(entry.name),
                    argument_bytes: list(entry.argument_bytes, entry.num_arguments as usize),
                    most_threads: entry.most_threads,
                })
                .collect();
            copies.push(copy);
        }
        Ok(Module {
            kernels,
            copies,
            image,
        })
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.kernels.iter().position(|kernel| kernel.name == name)
    }

    pub fn kernel(&self, index: usize) -> &Kernel {
        &self.kernels[index]
    }

    pub fn num_kernels(&self) -> usize {
        self.kernels.len()
    }
}

/// A launch.
pub struct KernelTask {
    pub module: Arc<Module>,
    pub kernel: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub arguments: Vec<u64>,
    pub seed: u64,
}

/// A fault that ended a block.
struct BlockFault {
    message: String,
    trap: Option<Trap>,
    block: [u32; 3],
    thread: u32,
    core: usize,
}

/// A launch while its blocks are taken.
struct RunningLaunch {
    module: Arc<Module>,
    kernel: usize,
    grid: [u32; 3],
    block: [u32; 3],
    arguments: Vec<u64>,
    seed: u64,
    /// As in [`Launch`].
    arena: [u64; 2],
    is_inside: usize,
    /// Places in the order of blocks: `(place * step + first) % total`.
    order: [u64; 2],
    total: u64,
    next: AtomicUsize,
    has_fault: AtomicBool,
    fault: Mutex<Option<BlockFault>>,
    num_helping: Mutex<usize>,
    helped: Condvar,
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        greatest_divisor(b, a % b)
    }
}

impl RunningLaunch {
    fn new(task: &KernelTask, memory: &Memory) -> RunningLaunch {
        let tensors = memory.tensors();
        let arena = tensors.map(|tensors| [tensors.base, tensors.is_inside.len() as u64]);
        let total: u64 = task.grid.iter().map(|&extent| u64::from(extent)).product();
        let mut draws = Draws::new(task.seed);
        let first = draws.below(total as usize) as u64;
        // In order, from the end, or with strides.
        let mut step = match draws.below(3) {
            0 => 1,
            1 => total - 1,
            _ => 1 + draws.below(total as usize) as u64,
        };
        while total > 1 && greatest_divisor(step.max(1), total) != 1 {
            step += 1;
        }
        RunningLaunch {
            module: task.module.clone(),
            kernel: task.kernel,
            grid: task.grid,
            block: task.block,
            arguments: task.arguments.clone(),
            seed: task.seed,
            arena: arena.unwrap_or_default(),
            is_inside: tensors.map_or(0, |tensors| tensors.is_inside.as_ptr() as usize),
            order: [step.max(1), first],
            total,
            next: AtomicUsize::new(0),
            has_fault: AtomicBool::new(false),
            fault: Mutex::new(None),
            num_helping: Mutex::new(0),
            helped: Condvar::new(),
        }
    }

    /// Runs blocks in a core's copy until none is left.
    fn run_blocks(&self, core: usize) {
        let copy = &self.module.copies[core];
        let arguments: Vec<*const c_void> = self
            .arguments
            .iter()
            .map(|argument| (&raw const *argument).cast())
            .collect();
        let launch = Launch {
            kernel: copy.calls[self.kernel],
            arguments: arguments.as_ptr(),
            grid: self.grid,
            block: self.block,
            stacks: stacks(core),
            arena: self.arena[0],
            arena_bytes: self.arena[1],
            is_inside: self.is_inside as *const u8,
        };
        assert!(!launch.stacks.is_null(), "memory for a block's stacks");
        let [step, first] = self.order;
        faults::with_traps(copy.abandon, || {
            while !self.has_fault.load(Ordering::Relaxed) {
                let place = self.next.fetch_add(1, Ordering::Relaxed) as u64;
                if place >= self.total {
                    break;
                }
                let at = ((u128::from(place) * u128::from(step) + u128::from(first))
                    % u128::from(self.total)) as u64;
                let [x, y] = [self.grid[0], self.grid[1]].map(u64::from);
                let block = [at % x, at / x % y, at / x / y].map(|index| index as u32);
                let seed = self.seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // SAFETY: the launch and its arguments outlive the call, and this copy is this thread's. What the kernel touches is
                // the point: guards and signals catch what it must not.
                let fault = unsafe { (copy.run_block)(&launch, Extent(block), seed) };
                if !fault.is_null() {
                    self.note_fault(copy, fault, block, core);
                    break;
                }
            }
        });
    }

    fn note_fault(&self, copy: &Copy, message: *const c_char, block: [u32; 3], core: usize) {
        let fault = BlockFault {
            message: crate::foreign::text(message),
            trap: faults::take_trap().or_else(|| copy.stray_access()),
            block,
            // SAFETY: reads a number of this thread's copy.
            thread: unsafe { (copy.current_thread)() },
            core,
        };
        self.has_fault.store(true, Ordering::Relaxed);
        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(fault);
    }

    fn helped(&self) {
        let mut num_helping = self
            .num_helping
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *num_helping -= 1;
        self.helped.notify_all();
    }
}

/// Threads that run blocks beside the one that waits: one for each further core.
fn helpers() -> &'static Mutex<Vec<Sender<Arc<RunningLaunch>>>> {
    static HELPERS: OnceLock<Mutex<Vec<Sender<Arc<RunningLaunch>>>>> = OnceLock::new();
    HELPERS.get_or_init(|| {
        let helper = |core: usize| {
            let (sender, receiver) = channel::<Arc<RunningLaunch>>();
            std::thread::spawn(move || {
                for run in receiver {
                    run.run_blocks(core);
                    run.helped();
                }
            });
            sender
        };
        Mutex::new((1..num_cores()).map(helper).collect())
    })
}

impl Task for KernelTask {
    fn run(&self, memory: &Memory) -> Result<(), CardFault> {
        let run = Arc::new(RunningLaunch::new(self, memory));
        let threads: u64 = self.block.iter().map(|&extent| u64::from(extent)).product();
        if run.total > 1 && run.total * threads >= SHARED_THREADS {
            let helpers = helpers().lock().unwrap_or_else(PoisonError::into_inner);
            for helper in helpers.iter().take(run.total as usize - 1) {
                *run.num_helping
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) += 1;
                if helper.send(run.clone()).is_err() {
                    run.helped();
                }
            }
        }
        run.run_blocks(0);
        let mut num_helping = run
            .num_helping
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while *num_helping > 0 {
            num_helping = run
                .helped
                .wait(num_helping)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let fault = run
            .fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match fault {
            None => Ok(()),
            Some(fault) => Err(self.describe(&fault, memory)),
        }
    }

    fn seconds(&self) -> f64 {
        let threads: f64 = [self.grid, self.block]
            .iter()
            .flatten()
            .map(|&extent| f64::from(extent))
            .product();
        SECONDS_PER_KERNEL + 16.0 * threads / BYTES_PER_SECOND
    }
}

impl KernelTask {
    fn describe(&self, fault: &BlockFault, memory: &Memory) -> CardFault {
        let kernel = &self.module.kernels[self.kernel].name;
        let (block, thread) = (fault.block, fault.thread);
        let (code, what, source) = match &fault.trap {
            None => (code::LAUNCH_FAILED, fault.message.clone(), String::new()),
            Some(trap) => {
                let copy = &self.module.copies[fault.core];
                let source =
                    faults::source_line(&self.module.image, trap.instruction, copy.abandon);
                let (code, what) = match trap.address {
                    Some(address) => (
                        code::ILLEGAL_ADDRESS,
                        format!("an access of {address:#x}, {}", memory.describe(address)),
                    ),
                    None => (
                        code::LAUNCH_FAILED,
                        "undefined behaviour: an index outside of its array, an address that is not aligned, or a shift or \
                         a sum out of range"
                            .to_owned(),
                    ),
                };
                (code, what, source)
            }
        };
        CardFault {
            code,
            message: format!("kernel {kernel}, block {block:?}, thread {thread}: {what}{source}"),
        }
    }
}
