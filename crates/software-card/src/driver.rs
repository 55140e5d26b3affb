//! libcuda: the driver's calls as the program makes them, each with the driver's checks.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::foreign::{Handle, get, handle, list, number, put, put_text, text};
use crate::model::model;
use crate::module::{KernelTask, Module};
use crate::nvrtc::planted;
use crate::streams::{Attempt, Copy, CopySource, Fill, Goal, Machine, code, machine, run_until};

/// CUDA 13.0.
const VERSION: c_int = 13_000;

/// Card memory of a captured graph, and of each of its nodes, as measured on a real card.
const GRAPH_BYTES: u64 = 124 << 10;
const NODE_BYTES: u64 = 4545;

thread_local! {
    /// The card whose context is current on this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Captures that this thread has begun and not ended: meanwhile it may not allocate.
    static NUM_CAPTURES: Cell<usize> = const { Cell::new(0) };
}

type Answer = Result<(), i32>;

fn status(answer: Answer) -> c_int {
    answer.err().unwrap_or(code::SUCCESS)
}

/// The machine and the current card, where the call may be made at all.
fn current() -> Result<(MutexGuard<'static, Machine>, usize), i32> {
    let machine = machine()?;
    let card = CURRENT.get().ok_or(code::INVALID_CONTEXT)?;
    match machine.cards[card].fault {
        Some(code) => Err(code),
        None if machine.cards[card].num_retained == 0 => Err(code::INVALID_CONTEXT),
        None => Ok((machine, card)),
    }
}

/// The card that is current on this thread, for libraries.
pub fn current_card() -> Result<(MutexGuard<'static, Machine>, usize), i32> {
    current()
}

/// Counts what a library takes of the current card's memory; whether there is room.
pub fn open_library(bytes: u64) -> Result<bool, i32> {
    let (mut machine, card) = current()?;
    Ok(machine.cards[card].memory.take_small(bytes))
}

/// Refuses calls that a thread may not make while it captures.
fn while_not_capturing() -> Answer {
    match NUM_CAPTURES.get() {
        0 => Ok(()),
        _ => Err(code::CAPTURE_UNSUPPORTED),
    }
}

fn card_of(device: c_int) -> Result<(MutexGuard<'static, Machine>, usize), i32> {
    let machine = machine()?;
    let card = usize::try_from(device).map_err(|_| code::INVALID_DEVICE)?;
    if card >= machine.cards.len() {
        return Err(code::INVALID_DEVICE);
    }
    Ok((machine, card))
}

/// For tests: a byte for each byte of the arena of a plan, 0 where no tensor lies; the arena is then full of NaNs. 0, or an error where
/// there is no card, or not exactly one allocation of that size.
#[unsafe(no_mangle)]
pub extern "C" fn holdall_software_card_tensors(is_inside: *const u8, bytes: usize) -> c_int {
    let is_inside = crate::foreign::list(is_inside, bytes);
    let is_known =
        machine().is_ok_and(|mut machine| machine.cards[0].memory.describe_tensors(&is_inside));
    c_int::from(!is_known)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> c_int {
    if flags != 0 {
        return code::INVALID_VALUE;
    }
    model().map_or(code::NO_DEVICE, |_| code::SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    put(version, VERSION);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    status(
        model()
            .map_err(|_| code::NO_DEVICE)
            .map(|model| put(count, model.count as c_int)),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    status(card_of(ordinal).map(|_| put(device, ordinal)))
}

/// Where a card sits on the bus.
pub fn bus_id(card: usize) -> String {
    format!("0000:{:02X}:00.0", card + 1)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, room: c_int, device: c_int) -> c_int {
    status(card_of(device).map(|(_, card)| put_text(to, room.max(0) as usize, &bus_id(card))))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(to: *mut c_char, room: c_int, device: c_int) -> c_int {
    status(
        card_of(device).map(|(machine, _)| put_text(to, room.max(0) as usize, &machine.model.name)),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> c_int {
    const MULTIPROCESSORS: c_int = 16;
    const CAPABILITY_MAJOR: c_int = 75;
    const CAPABILITY_MINOR: c_int = 76;
    const SHARED_OPTIN: c_int = 97;
    status(card_of(device).and_then(|(machine, _)| {
        let model = machine.model;
        let found = match attribute {
            MULTIPROCESSORS => model.num_processors,
            CAPABILITY_MAJOR => (model.capability / 10) as c_int,
            CAPABILITY_MINOR => (model.capability % 10) as c_int,
            SHARED_OPTIN => model.shared_bytes,
            _ => return Err(code::INVALID_VALUE),
        };
        put(value, found);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int {
    status(card_of(device).and_then(|(mut machine, card)| {
        if !machine.cards[card].memory.set_context(true) {
            return Err(code::OUT_OF_MEMORY);
        }
        machine.cards[card].num_retained += 1;
        put(context, handle(card as u64 + 1));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    status(card_of(device).and_then(|(mut machine, card)| {
        let made = &mut machine.cards[card];
        if made.num_retained == 0 {
            return Err(code::INVALID_CONTEXT);
        }
        made.num_retained -= 1;
        if made.num_retained == 0 {
            made.memory.set_context(false);
            made.fault = None;
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> c_int {
    status(machine().and_then(|machine| {
        let card = match number(context) {
            0 => None,
            context if context as usize <= machine.cards.len() => Some(context as usize - 1),
            _ => return Err(code::INVALID_CONTEXT),
        };
        if let Some(fault) = card.and_then(|card| machine.cards[card].fault) {
            return Err(fault);
        }
        CURRENT.set(card);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(error: c_int, to: *mut *const c_char) -> c_int {
    let text: &CStr = match error {
        code::SUCCESS => c"no error",
        code::INVALID_VALUE => c"invalid argument",
        code::OUT_OF_MEMORY => c"out of memory",
        code::NO_DEVICE => c"no CUDA-capable device is detected",
        code::INVALID_DEVICE => c"invalid device ordinal",
        code::INVALID_IMAGE => c"device kernel image is invalid",
        code::INVALID_CONTEXT => c"invalid device context",
        code::NO_BINARY => c"no kernel image is available for execution on the device",
        code::INVALID_HANDLE => c"invalid resource handle",
        code::NOT_FOUND => c"named symbol not found",
        code::NOT_READY => c"device not ready",
        code::ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        code::LAUNCH_OUT_OF_RESOURCES => c"too many resources requested for launch",
        code::HOST_MEMORY_ALREADY_REGISTERED => {
            c"part or all of the requested memory range is already mapped"
        }
        code::HOST_MEMORY_NOT_REGISTERED => {
            c"pointer does not correspond to a registered memory region"
        }
        code::LAUNCH_FAILED => c"unspecified launch failure",
        code::CAPTURE_UNSUPPORTED => c"operation not permitted when stream is capturing",
        code::CAPTURE_MERGE => c"operation would result in a merge of separate capture sequences",
        code::CAPTURE_UNJOINED => c"capturing stream has unjoined work",
        code::CAPTURE_ISOLATION => c"dependency created on uncaptured work in another stream",
        code::CAPTURED_EVENT => {
            c"operation not permitted on an event last recorded in a capturing stream"
        }
        _ => return code::INVALID_VALUE,
    };
    put(to, text.as_ptr());
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    status(current().map(|(mut machine, card)| {
        let memory = &mut machine.cards[card].memory;
        memory.note_question();
        put(free, memory.free_bytes() as usize);
        put(total, memory.total_bytes() as usize);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    status(while_not_capturing().and_then(|()| {
        let (mut machine, card) = current()?;
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        machine.forget_last();
        let made = machine.cards[card].memory.allocate(bytes as u64);
        put(address, made.ok_or(code::OUT_OF_MEMORY)?);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    status(while_not_capturing().and_then(|()| {
        let (machine, card) = current()?;
        // The driver waits for the card first.
        let mut machine = run_until(machine, Goal::Card(card))?;
        machine.forget_last();
        if machine.cards[card].memory.free(address) {
            Ok(())
        } else {
            Err(code::INVALID_VALUE)
        }
    }))
}

/// Bytes of host memory that the driver allocated, by address.
static HOST_ALLOCATIONS: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);

fn host_allocations() -> MutexGuard<'static, Option<HashMap<u64, usize>>> {
    HOST_ALLOCATIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn host_layout(bytes: usize) -> Result<std::alloc::Layout, i32> {
    std::alloc::Layout::from_size_align(bytes, 4096).map_err(|_| code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    status(while_not_capturing().and_then(|()| {
        let (mut machine, _) = current()?;
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let layout = host_layout(bytes)?;
        // SAFETY: the size is not 0.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() {
            return Err(code::OUT_OF_MEMORY);
        }
        if !machine.pin(memory as u64, bytes as u64) {
            // SAFETY: allocated above with this layout, and nobody has seen it.
            unsafe { std::alloc::dealloc(memory, layout) };
            return Err(code::OUT_OF_MEMORY);
        }
        // The driver does not clear memory that it hands out.
        crate::foreign::slice_mut::<u8>(memory as u64, bytes).fill(0xff);
        host_allocations()
            .get_or_insert_default()
            .insert(memory as u64, bytes);
        put(to, memory.cast());
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> c_int {
    status(current().and_then(|(machine, card)| {
        let mut machine = run_until(machine, Goal::Card(card))?;
        let address = number(pointer);
        let bytes = host_allocations()
            .get_or_insert_default()
            .remove(&address)
            .ok_or(code::INVALID_VALUE)?;
        machine.unpin(address);
        // SAFETY: allocated in `cuMemHostAlloc` with this layout.
        unsafe { std::alloc::dealloc(pointer.cast(), host_layout(bytes)?) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(
    pointer: *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> c_int {
    status(current().and_then(|(mut machine, _)| {
        let address = number(pointer);
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let end = address + bytes as u64;
        let overlaps = machine
            .pinned
            .range(..end)
            .next_back()
            .is_some_and(|(start, size)| start + size > address);
        if overlaps {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if machine.pin(address, bytes as u64) {
            Ok(())
        } else {
            Err(code::OUT_OF_MEMORY)
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(pointer: *mut c_void) -> c_int {
    status(current().and_then(|(machine, card)| {
        let mut machine = run_until(machine, Goal::Card(card))?;
        let known = machine.unpin(number(pointer));
        known.map(|_| ()).ok_or(code::HOST_MEMORY_NOT_REGISTERED)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostGetDevicePointer_v2(
    address: *mut u64,
    pointer: *mut c_void,
    _flags: c_uint,
) -> c_int {
    status(current().and_then(|(machine, _)| {
        if !machine.is_pinned(number(pointer), 1) {
            return Err(code::INVALID_VALUE);
        }
        put(address, number(pointer));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> c_int {
    status(current().map(|(mut machine, card)| put(stream, handle(machine.new_stream(card)))))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> c_int {
    status(current().and_then(|(machine, _)| {
        let mut machine = run_until(machine, Goal::Stream(number(stream)))?;
        machine.destroy_stream(number(stream));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> c_int {
    status(current().and_then(|(machine, card)| {
        if machine.is_captured(number(stream)) {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        let machine = run_until(machine, Goal::Stream(number(stream)))?;
        machine.cards[card].fault.map_or(Ok(()), Err)
    }))
}

/// Whether something is reached, after as many pieces of work as are drawn: who asks again and again gets there.
fn query(mut machine: MutexGuard<'static, Machine>, card: usize, goal: Goal) -> Answer {
    for _ in 0..machine.draws.below(4) {
        if machine.is_reached(goal) {
            break;
        }
        if machine.step() != Attempt::Made {
            break;
        }
    }
    match machine.cards[card].fault {
        Some(fault) => Err(fault),
        None if machine.is_reached(goal) => Ok(()),
        None => Err(code::NOT_READY),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> c_int {
    status(current().and_then(|(machine, card)| {
        if machine.is_captured(number(stream)) {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        query(machine, card, Goal::Stream(number(stream)))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> c_int {
    if planted() == "cuStreamWaitEvent" {
        return code::SUCCESS;
    }
    status(
        current()
            .and_then(|(mut machine, _)| machine.wait_for_event(number(stream), number(event))),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: *mut Handle, flags: c_uint) -> c_int {
    const DISABLE_TIMING: c_uint = 2;
    let has_clock = flags & DISABLE_TIMING == 0;
    status(current().map(|(mut machine, _)| put(event, handle(machine.new_event(has_clock)))))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> c_int {
    status(current().and_then(|(mut machine, _)| {
        let known = machine.destroy_event(number(event));
        if known {
            Ok(())
        } else {
            Err(code::INVALID_HANDLE)
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> c_int {
    status(current().and_then(|(mut machine, _)| machine.record(number(event), number(stream))))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> c_int {
    status(current().and_then(
        |(machine, card)| match machine.goal_of_event(number(event))? {
            Some(goal) => query(machine, card, goal),
            None => Ok(()),
        },
    ))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> c_int {
    status(current().and_then(|(machine, card)| {
        let Some(goal) = machine.goal_of_event(number(event))? else {
            return Ok(());
        };
        let machine = run_until(machine, goal)?;
        machine.cards[card].fault.map_or(Ok(()), Err)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(to: *mut f32, from: Handle, until: Handle) -> c_int {
    status(current().and_then(|(machine, _)| {
        put(to, machine.elapsed(number(from), number(until))?);
        Ok(())
    }))
}

fn fill(to: u64, value: u32, count: usize, is_wide: bool, stream: Handle) -> Answer {
    let (mut machine, card) = current()?;
    let bytes = count as u64 * if is_wide { 4 } else { 1 };
    if count > 0 && !machine.reaches(card, to, bytes) {
        return Err(code::INVALID_VALUE);
    }
    let task = Fill {
        to,
        value,
        count,
        is_wide,
    };
    machine.put(number(stream), Arc::new(task))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Handle) -> c_int {
    status(fill(to, value.into(), bytes, false, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) -> c_int {
    status(fill(to, value, count, true, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> c_int {
    status(current().and_then(|(mut machine, card)| {
        let reaches = |address| bytes == 0 || machine.reaches(card, address, bytes as u64);
        if !reaches(to) || !reaches(from) {
            return Err(code::INVALID_VALUE);
        }
        let from = CopySource::Address(from);
        machine.put(number(stream), Arc::new(Copy { to, from, bytes }))
    }))
}

/// From pinned memory a copy reads when it runs. Pageable memory is read before the call returns.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> c_int {
    status(current().and_then(|(mut machine, card)| {
        if bytes > 0 && !machine.reaches(card, to, bytes as u64) {
            return Err(code::INVALID_VALUE);
        }
        let from = if machine.is_pinned(from as u64, bytes as u64) {
            CopySource::Address(from as u64)
        } else {
            CopySource::Snapshot(crate::foreign::slice::<u8>(from as u64, bytes).to_vec())
        };
        machine.put(number(stream), Arc::new(Copy { to, from, bytes }))
    }))
}

/// To pinned memory a copy writes when it runs. For pageable memory the call waits.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: Handle,
) -> c_int {
    status(current().and_then(|(mut machine, card)| {
        if bytes > 0 && !machine.reaches(card, from, bytes as u64) {
            return Err(code::INVALID_VALUE);
        }
        let is_pinned = machine.is_pinned(to as u64, bytes as u64);
        let (to, from) = (to as u64, CopySource::Address(from));
        machine.put(number(stream), Arc::new(Copy { to, from, bytes }))?;
        if is_pinned || machine.is_captured(number(stream)) {
            return Ok(());
        }
        let machine = run_until(machine, Goal::Stream(number(stream)))?;
        machine.cards[card].fault.map_or(Ok(()), Err)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_uint) -> c_int {
    status(current().and_then(|(mut machine, _)| {
        machine.begin_capture(number(stream))?;
        NUM_CAPTURES.set(NUM_CAPTURES.get() + 1);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int {
    status(current().and_then(|(mut machine, _)| {
        NUM_CAPTURES.set(NUM_CAPTURES.get().saturating_sub(1));
        put(graph, handle(machine.end_capture(number(stream))?));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> c_int {
    status(current().and_then(|(mut machine, _)| {
        let known = machine.destroy_graph(number(graph));
        known.map(|_| ()).ok_or(code::INVALID_HANDLE)
    }))
}

fn graph_bytes(num_nodes: usize) -> u64 {
    GRAPH_BYTES + NODE_BYTES * num_nodes as u64
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(
    made: *mut Handle,
    graph: Handle,
    _flags: u64,
) -> c_int {
    status(current().and_then(|(mut machine, card)| {
        let bytes = graph_bytes(machine.graph(number(graph))?.num_nodes());
        if !machine.cards[card].memory.take_small(bytes) {
            return Err(code::OUT_OF_MEMORY);
        }
        put(made, handle(machine.instantiate(number(graph))?));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(graph: Handle, _stream: Handle) -> c_int {
    status(current().and_then(|(machine, _)| machine.graph(number(graph)).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(graph: Handle, stream: Handle) -> c_int {
    status(
        current().and_then(|(mut machine, _)| machine.launch_graph(number(graph), number(stream))),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(graph: Handle) -> c_int {
    status(current().and_then(|(mut machine, card)| {
        let graph = machine.destroy_graph(number(graph));
        let graph = graph.ok_or(code::INVALID_HANDLE)?;
        let bytes = graph_bytes(graph.num_nodes());
        machine.cards[card].memory.give_small(bytes);
        Ok(())
    }))
}

/// A kernel of a module.
#[derive(Clone)]
struct Function {
    module: u64,
    code: Arc<Module>,
    kernel: usize,
    /// Dynamic shared memory that a launch may ask for.
    shared_bytes: u32,
}

/// Modules and functions by handle.
#[derive(Default)]
struct Loaded {
    modules: HashMap<u64, Arc<Module>>,
    functions: HashMap<u64, Function>,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

fn with_loaded<R>(work: impl FnOnce(&mut Loaded) -> R) -> R {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    work(loaded.get_or_insert_default())
}

/// Card memory of a module.
fn module_bytes(module: &Module) -> u64 {
    (module.num_kernels() as u64) << 14
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(to: *mut Handle, image: *const c_void) -> c_int {
    status(while_not_capturing().and_then(|()| {
        let (mut machine, card) = current()?;
        let module = Module::load(image as u64, machine.model.capability)?;
        if !machine.cards[card].memory.take_small(module_bytes(&module)) {
            return Err(code::OUT_OF_MEMORY);
        }
        let made = machine.new_number();
        with_loaded(|loaded| loaded.modules.insert(made, Arc::new(module)));
        put(to, handle(made));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> c_int {
    status(current().and_then(|(machine, card)| {
        let mut machine = run_until(machine, Goal::Card(card))?;
        let module = number(module);
        let code = with_loaded(|loaded| {
            loaded
                .functions
                .retain(|_, function| function.module != module);
            loaded.modules.remove(&module)
        });
        let code = code.ok_or(code::INVALID_HANDLE)?;
        let bytes = module_bytes(&code);
        machine.cards[card].memory.give_small(bytes);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(
    to: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> c_int {
    status(current().and_then(|(mut machine, _)| {
        let made = machine.new_number();
        with_loaded(|loaded| {
            let module = number(module);
            let code = loaded.modules.get(&module).ok_or(code::INVALID_HANDLE)?;
            let kernel = code.find(&text(name)).ok_or(code::NOT_FOUND)?;
            let function = Function {
                module,
                code: code.clone(),
                kernel,
                shared_bytes: 48 << 10,
            };
            loaded.functions.insert(made, function);
            put(to, handle(made));
            Ok(())
        })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) -> c_int {
    const MOST_DYNAMIC_SHARED: c_int = 8;
    status(current().and_then(|(machine, _)| {
        if attribute != MOST_DYNAMIC_SHARED || !(0..=machine.model.shared_bytes).contains(&value) {
            return Err(code::INVALID_VALUE);
        }
        with_loaded(|loaded| {
            let function = loaded.functions.get_mut(&number(function));
            function.ok_or(code::INVALID_HANDLE)?.shared_bytes = value as u32;
            Ok(())
        })
    }))
}

struct LaunchShape {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
}

fn launch(function: Handle, shape: &LaunchShape, arguments: *const *const c_void) -> Answer {
    let (mut machine, _) = current()?;
    let function = with_loaded(|loaded| loaded.functions.get(&number(function)).cloned());
    let function = function.ok_or(code::INVALID_HANDLE)?;
    let [x, y, z] = shape.grid;
    let is_grid = (1..=i32::MAX as u32).contains(&x)
        && (1..=65_535).contains(&y)
        && (1..=65_535).contains(&z);
    let threads: u64 = shape
        .block
        .iter()
        .map(|&extent| u64::from(extent))
        .product();
    if !is_grid || !(1..=1024).contains(&threads) || shape.shared_bytes > function.shared_bytes {
        return Err(code::INVALID_VALUE);
    }
    let kernel = function.code.kernel(function.kernel);
    if threads > u64::from(kernel.most_threads) {
        return Err(code::LAUNCH_OUT_OF_RESOURCES);
    }
    let pointers = list(arguments, kernel.argument_bytes.len());
    let mut values = Vec::new();
    for (&pointer, &bytes) in pointers.iter().zip(&kernel.argument_bytes) {
        let value = get(pointer.cast::<u64>()).ok_or(code::INVALID_VALUE)?;
        // Eight bytes are read of each: the caller has them in slots of eight.
        if bytes > 8 {
            return Err(code::INVALID_VALUE);
        }
        values.push(value);
    }
    let task = KernelTask {
        module: function.code.clone(),
        kernel: function.kernel,
        grid: shape.grid,
        block: shape.block,
        arguments: values,
        seed: machine.draws.next(),
    };
    machine.put(number(shape.stream), Arc::new(task))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    arguments: *const *const c_void,
    _extra: *const *const c_void,
) -> c_int {
    let shape = LaunchShape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
        stream,
    };
    status(launch(function, &shape, arguments))
}

/// As `cuda.h` has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const c_void,
    num_attributes: c_uint,
}

/// Attributes are taken and change nothing: a kernel that may begin early begins at the end of the one before it.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Handle,
    arguments: *const *const c_void,
    _extra: *const *const c_void,
) -> c_int {
    let Some(config) = get(config) else {
        return code::INVALID_VALUE;
    };
    let shape = LaunchShape {
        grid: config.grid,
        block: config.block,
        shared_bytes: config.shared_bytes,
        stream: config.stream,
    };
    status(launch(function, &shape, arguments))
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};
    use std::sync::Once;

    use super::*;

    /// The machine's own cards: a card of its own for each test, since faults stay.
    fn open(card: c_int) {
        static NAMED: Once = Once::new();
        // SAFETY: nothing of the card has been asked before this, and nobody else writes the environment.
        NAMED
            .call_once(|| unsafe { std::env::set_var("HOLDALL_SOFTWARE_GPU", "rtx-4060,count=5") });
        let mut context = null_mut();
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, card), 0);
        assert_eq!(cuCtxSetCurrent(context), 0);
    }

    fn allocate(bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(cuMemAlloc_v2(&mut address, bytes), 0);
        address
    }

    fn new_stream() -> Handle {
        let mut stream = null_mut();
        assert_eq!(cuStreamCreate(&mut stream, 1), 0);
        stream
    }

    fn fetch(from: u64, count: usize, stream: Handle) -> Vec<u32> {
        let mut values = vec![0u32; count];
        let to = values.as_mut_ptr().cast();
        assert_eq!(cuMemcpyDtoHAsync_v2(to, from, 4 * count, stream), 0);
        values
    }

    /// A kernel; `None`, and a line that says so, where there is no compiler.
    fn kernel(source: &str) -> Option<Handle> {
        use crate::nvrtc::*;
        let text = |text: &str| std::ffi::CString::new(text).unwrap();
        let (source, name) = (text(source), text("test.cu"));
        let mut program = null_mut();
        nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            0,
            null(),
            null(),
        );
        let options = ["--gpu-architecture=sm_89", "-DELEMENT=0"].map(text);
        let pointers = options.each_ref().map(|option| option.as_ptr());
        if nvrtcCompileProgram(program, 2, pointers.as_ptr()) != 0 {
            let mut log = vec![0u8; 4096];
            nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            let log = String::from_utf8_lossy(&log);
            assert!(log.contains("no C++ compiler"), "{log}");
            eprintln!("SKIPPED: no C++ compiler for the software card");
            return None;
        }
        let mut bytes = 0;
        nvrtcGetCUBINSize(program, &mut bytes);
        let mut cubin = vec![0u8; bytes];
        nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast());
        let (mut module, mut function) = (null_mut(), null_mut());
        assert_eq!(cuModuleLoadData(&mut module, cubin.as_ptr().cast()), 0);
        let name = text("kernel");
        assert_eq!(cuModuleGetFunction(&mut function, module, name.as_ptr()), 0);
        Some(function)
    }

    fn start(function: Handle, blocks: u32, threads: u32, argument: u64, stream: Handle) {
        let arguments = [(&raw const argument).cast::<c_void>()];
        let started = cuLaunchKernel(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream,
            arguments.as_ptr(),
            null(),
        );
        assert_eq!(started, 0);
    }

    #[test]
    fn a_thread_without_a_context_is_refused() {
        open(0);
        let refused = std::thread::spawn(|| cuMemAlloc_v2(&mut 0, 256))
            .join()
            .unwrap();
        assert_eq!(refused, code::INVALID_CONTEXT);
    }

    /// A value is copied in one stream and read in another; whether the reader saw it, in each of many rounds.
    fn seen_through_streams(waits: bool) -> Vec<bool> {
        let (from, to, result) = (allocate(4), allocate(4), allocate(4));
        let (writer, reader) = (new_stream(), new_stream());
        let mut event = null_mut();
        assert_eq!(cuEventCreate(&mut event, 2), 0);
        let round = |round: u32| {
            assert_eq!(cuMemsetD32Async(from, round, 1, writer), 0);
            assert_eq!(cuMemcpyDtoDAsync_v2(to, from, 4, writer), 0);
            assert_eq!(cuEventRecord(event, writer), 0);
            if waits {
                assert_eq!(cuStreamWaitEvent(reader, event, 0), 0);
            }
            assert_eq!(cuMemcpyDtoDAsync_v2(result, to, 4, reader), 0);
            fetch(result, 1, reader) == [round]
        };
        (1..40).map(round).collect()
    }

    #[test]
    fn a_missing_event_is_seen() {
        open(1);
        let seen = seen_through_streams(true);
        assert!(seen.iter().all(|seen| *seen), "{seen:?}");
        let seen = seen_through_streams(false);
        assert!(seen.iter().any(|seen| !*seen), "{seen:?}");
    }

    /// Threads of a block hand numbers to each other through shared memory.
    fn reversed(barrier: &str) -> Option<Vec<u32>> {
        let source = format!(
            "extern \"C\" __global__ void kernel(unsigned *to) {{ __shared__ unsigned all[256]; all[threadIdx.x] = threadIdx.x; \
             {barrier} to[blockIdx.x * 256 + threadIdx.x] = all[255 - threadIdx.x]; }}"
        );
        let (function, stream, to) = (kernel(&source)?, new_stream(), allocate(4 * 256 * 16));
        start(function, 16, 256, to, stream);
        Some(fetch(to, 256 * 16, stream))
    }

    #[test]
    fn a_missing_barrier_is_seen() {
        open(2);
        let expected: Vec<u32> = (0..16).flat_map(|_| (0..256).rev()).collect();
        let (Some(with), Some(without)) = (reversed("__syncthreads();"), reversed("")) else {
            return;
        };
        assert_eq!(with, expected);
        assert_ne!(without, expected);
    }

    #[test]
    fn an_access_outside_of_its_allocation_ends_the_card() {
        open(3);
        let source = "extern \"C\" __global__ void kernel(unsigned *to) { to[threadIdx.x] = 1; }";
        let Some(function) = kernel(source) else {
            return;
        };
        let (stream, to) = (new_stream(), allocate(256));
        start(function, 1, 64, to, stream);
        assert_eq!(cuStreamSynchronize(stream), 0);
        start(function, 1, 65, to, stream);
        assert_eq!(cuStreamSynchronize(stream), code::ILLEGAL_ADDRESS);
        assert_eq!(cuMemAlloc_v2(&mut 0, 256), code::ILLEGAL_ADDRESS);
    }

    #[test]
    fn a_graph_must_join_what_it_forked() {
        open(4);
        let (first, second, to) = (new_stream(), new_stream(), allocate(8));
        let (mut fork, mut join, mut graph) = (null_mut(), null_mut(), null_mut());
        assert_eq!(
            [cuEventCreate(&mut fork, 2), cuEventCreate(&mut join, 2)],
            [0, 0]
        );
        let capture = |joins: bool, graph: &mut Handle| {
            assert_eq!(cuStreamBeginCapture_v2(first, 1), 0);
            assert_eq!(cuMemAlloc_v2(&mut 0, 256), code::CAPTURE_UNSUPPORTED);
            assert_eq!(cuMemsetD32Async(to, 1, 1, first), 0);
            assert_eq!(cuEventRecord(fork, first), 0);
            assert_eq!(cuStreamWaitEvent(second, fork, 0), 0);
            assert_eq!(cuMemcpyDtoDAsync_v2(to + 4, to, 4, second), 0);
            if joins {
                assert_eq!(cuEventRecord(join, second), 0);
                assert_eq!(cuStreamWaitEvent(first, join, 0), 0);
            }
            cuStreamEndCapture(first, graph)
        };
        assert_eq!(capture(false, &mut graph), code::CAPTURE_UNJOINED);
        assert_eq!(capture(true, &mut graph), 0);
        let mut replay = null_mut();
        assert_eq!(cuGraphInstantiateWithFlags(&mut replay, graph, 0), 0);
        assert_eq!(cuGraphLaunch(replay, first), 0);
        assert_eq!(fetch(to, 2, first), [1, 1]);
    }
}
