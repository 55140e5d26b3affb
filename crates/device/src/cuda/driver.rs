//! Checked wrappers of the driver's calls; each resource is freed with its owner.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use memmap2::MmapMut;

use crate::DeviceError;
use crate::cpu::Element;

/// Turns a driver's status into an error that names the call.
pub(super) fn check(result: CUresult, call: &str) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the driver writes a pointer to a string that it owns for ever, or leaves the null.
    let said = unsafe {
        sys::cuGetErrorString(result, &mut text);
        if text.is_null() {
            "no text".into()
        } else {
            CStr::from_ptr(text).to_string_lossy()
        }
    };
    let name = format!("{result:?}");
    Err(DeviceError::Failed(format!(
        "the GPU failed in {call}: {said} ({name})\n\
         hint: `nvidia-smi` shows whether the driver still answers; a checkpoint lets the run go on"
    )))
}

/// A GPU and its primary context.
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be used from any thread that makes it current; `bind` does.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's calls are safe to make at the same time.
unsafe impl Sync for Context {}

/// Number of GPUs that the driver sees.
pub(super) fn count() -> Result<usize, DeviceError> {
    let mut count = 0;
    // SAFETY: the driver's library is loaded (by the caller); the count is written to a local.
    unsafe {
        check(sys::cuInit(0), "cuInit")?;
        check(sys::cuDeviceGetCount(&mut count), "cuDeviceGetCount")?;
    }
    Ok(count as usize)
}

/// PCI bus address of a GPU, as NVML knows it; needs no context.
pub(super) fn pci_bus_id(ordinal: usize) -> Result<String, DeviceError> {
    let mut text = [0 as c_char; 32];
    let mut device = 0;
    // SAFETY: the driver writes at most as many bytes as the buffer has, with a zero at the end.
    unsafe {
        check(sys::cuDeviceGet(&mut device, ordinal as i32), "cuDeviceGet")?;
        check(
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device),
            "cuDeviceGetPCIBusId",
        )?;
        Ok(CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
    }
}

impl Context {
    pub fn new(ordinal: usize) -> Result<Context, DeviceError> {
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: results go to locals; the primary context is released on drop.
        unsafe {
            check(sys::cuDeviceGet(&mut device, ordinal as i32), "cuDeviceGet")?;
            check(
                sys::cuDevicePrimaryCtxRetain(&mut context, device),
                "cuDevicePrimaryCtxRetain",
            )?;
        }
        let context = Context { device, context };
        context.bind()?;
        Ok(context)
    }

    /// Makes the context current on this thread.
    pub fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is alive as long as `self`.
        check(
            unsafe { sys::cuCtxSetCurrent(self.context) },
            "cuCtxSetCurrent",
        )
    }

    fn attribute(&self, attribute: Attribute) -> Result<usize, DeviceError> {
        let mut value = 0;
        // SAFETY: the value is written to a local.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) };
        check(result, "cuDeviceGetAttribute")?;
        Ok(value as usize)
    }

    pub fn name(&self) -> Result<String, DeviceError> {
        let mut text = [0 as c_char; 128];
        // SAFETY: the driver writes at most as many bytes as the buffer has, with a zero at the end.
        unsafe {
            check(
                sys::cuDeviceGetName(text.as_mut_ptr(), text.len() as i32, self.device),
                "cuDeviceGetName",
            )?;
            Ok(CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
        }
    }

    /// Compute capability: 90 for a Hopper.
    pub fn capability(&self) -> Result<u32, DeviceError> {
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major * 10 + minor) as u32)
    }

    pub fn num_processors(&self) -> Result<usize, DeviceError> {
        self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// Maximum shared memory of a block.
    pub fn shared_bytes(&self) -> Result<usize, DeviceError> {
        self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    }

    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: results go to locals.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check(result, "cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`.
        unsafe {
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Number of allocations so far, for tests.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Number of allocations that this process has made on a device, or pinned for one.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Memory on the device.
pub(super) struct Buffer {
    pub address: u64,
    pub bytes: u64,
}

impl Buffer {
    pub fn new(bytes: u64) -> Result<Buffer, DeviceError> {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let mut address = 0;
        let bytes = bytes.max(256);
        // SAFETY: the address is written to a local and freed on drop.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DeviceError::Memory {
                found: format!("the card has no {bytes} bytes left in one piece"),
                hint: "stop what holds its memory, or give a smaller `--memory`".to_owned(),
            });
        }
        check(result, "cuMemAlloc")?;
        Ok(Buffer { address, bytes })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; the owner of the buffer has waited for all work that used it.
        unsafe {
            sys::cuMemFree_v2(self.address);
        }
    }
}

/// Page-locked host memory, which the card's copy engine reads directly.
pub(crate) struct Pinned {
    pointer: *mut u8,
    bytes: usize,
    /// The pages, if they are the system's and not the driver's.
    registered: Option<MmapMut>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

/// From this size on, all cores touch the pages, which are then registered: the driver alone would take 20 seconds for 31 GiB of pictures.
const REGISTERED_BYTES: usize = 64 << 20;

impl Pinned {
    /// Allocates zeroed memory.
    pub fn new(bytes: usize) -> Result<Pinned, DeviceError> {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        if bytes >= REGISTERED_BYTES
            && let Some(pinned) = Pinned::registered(bytes)
        {
            return Ok(pinned);
        }
        let mut pointer = null_mut();
        // SAFETY: the pointer is written to a local and freed on drop.
        let result = unsafe { sys::cuMemHostAlloc(&mut pointer, bytes.max(64), 0) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DeviceError::Failed(format!(
                "{bytes} bytes of host memory could not be pinned for the GPU: the driver has no more\n\
                 hint: end other programs that use the GPU, or give a smaller `host_memory`"
            )));
        }
        check(result, "cuMemHostAlloc")?;
        let pointer = pointer.cast::<u8>();
        // SAFETY: new memory of that size.
        unsafe { pointer.write_bytes(0, bytes.max(64)) };
        Ok(Pinned {
            pointer,
            bytes,
            registered: None,
        })
    }

    /// Resident pages of the system that the card accesses at the same address; `None` if the driver does not support that.
    fn registered(bytes: usize) -> Option<Pinned> {
        let mut pages = MmapMut::map_anon(bytes).ok()?;
        // Small pages do as well on systems without large pages.
        #[cfg(unix)]
        let _ = pages.advise(memmap2::Advice::HugePage);
        touch(&mut pages);
        let pointer = pages.as_mut_ptr();
        const PORTABLE_AND_MAPPED: u32 = 3;
        // SAFETY: the pages live until they are unregistered, on drop or below.
        let result =
            unsafe { sys::cuMemHostRegister_v2(pointer.cast(), bytes, PORTABLE_AND_MAPPED) };
        check(result, "cuMemHostRegister").ok()?;
        let pinned = Pinned {
            pointer,
            bytes,
            registered: Some(pages),
        };
        let mut address = 0;
        // SAFETY: the address is written to a local.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, pointer.cast(), 0) };
        let is_same = result == CUresult::CUDA_SUCCESS && address == pointer as u64;
        is_same.then_some(pinned)
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.pointer
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Elements from a byte offset on. The caller must wait for a device that writes them.
    pub fn elements<T: Element>(&self, offset: u64, count: usize) -> &[T] {
        let start = self.start_of::<T>(offset, count);
        // SAFETY: in bounds and aligned, as checked above; every bit pattern of an `Element` is valid, and all bytes are initialised.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Mutable access to elements from a byte offset on.
    pub fn elements_mut<T: Element>(&mut self, offset: u64, count: usize) -> &mut [T] {
        let start = self.start_of::<T>(offset, count);
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.cast_mut(), count) }
    }

    fn start_of<T>(&self, offset: u64, count: usize) -> *const T {
        let end = offset as usize + count * size_of::<T>();
        assert!(end <= self.bytes, "{end} of {} pinned bytes", self.bytes);
        let start = self.pointer.wrapping_add(offset as usize).cast::<T>();
        assert!(start.is_aligned());
        start
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size and initialised; borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated or registered in `new`; registered pages are unmapped after this.
        unsafe {
            match self.registered {
                Some(_) => sys::cuMemHostUnregister(self.pointer.cast()),
                None => sys::cuMemFreeHost(self.pointer.cast()),
            };
        }
    }
}

/// Makes every page resident, with as many threads as cores.
fn touch(pages: &mut [u8]) {
    const PAGE: usize = 4096;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = pages.len().div_ceil(threads).next_multiple_of(2 << 20);
    std::thread::scope(|scope| {
        for part in pages.chunks_mut(share) {
            scope.spawn(|| part.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0));
        }
    });
}

/// A CUDA stream.
pub(super) struct Stream {
    pub raw: sys::CUstream,
}

// SAFETY: streams may be used from any thread with the context current.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new() -> Result<Stream, DeviceError> {
        let mut raw = null_mut();
        const NON_BLOCKING: u32 = 1;
        // SAFETY: the handle is written to a local and destroyed on drop.
        let result = unsafe { sys::cuStreamCreate(&mut raw, NON_BLOCKING) };
        check(result, "cuStreamCreate")?;
        Ok(Stream { raw })
    }

    pub fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream is alive.
        check(
            unsafe { sys::cuStreamSynchronize(self.raw) },
            "cuStreamSynchronize",
        )
    }

    /// Whether all work of the stream is done; does not wait.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result, "cuStreamQuery").map(|()| true),
        }
    }

    /// The handle, for libraries.
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.raw.cast()
    }

    pub fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        // SAFETY: both are alive.
        check(
            unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) },
            "cuStreamWaitEvent",
        )
    }

    /// Fills memory with zero bytes.
    pub fn clear(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller passes memory that it owns.
        check(
            unsafe { sys::cuMemsetD8Async(address, 0, bytes as usize, self.raw) },
            "cuMemsetD8Async",
        )
    }

    /// Writes one 32-bit number.
    pub fn set(&self, address: u64, value: u32) -> Result<(), DeviceError> {
        // SAFETY: the caller passes memory that it owns.
        check(
            unsafe { sys::cuMemsetD32Async(address, value, 1, self.raw) },
            "cuMemsetD32Async",
        )
    }

    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller passes memory that it owns.
        check(
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.raw) },
            "cuMemcpyDtoDAsync",
        )
    }

    /// Copies from the host; `from` must stay unchanged until the copy is done.
    pub fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller passes memory that it owns on both sides.
        check(
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw) },
            "cuMemcpyHtoDAsync",
        )
    }

    /// Copies to the host; `to` must stay valid until the copy is done.
    pub fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller passes memory that it owns on both sides.
        check(
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.raw) },
            "cuMemcpyDtoHAsync",
        )
    }

    /// Captures the work that `issue` enqueues in the stream, as a graph.
    pub fn capture(
        &self,
        issue: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Replay, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: the stream is alive; the graph is destroyed here, the executable one on drop.
        unsafe {
            check(
                sys::cuStreamBeginCapture_v2(self.raw, mode),
                "cuStreamBeginCapture",
            )?;
            let issued = issue();
            let ended = sys::cuStreamEndCapture(self.raw, &mut graph);
            if let Err(error) = issued {
                if !graph.is_null() {
                    sys::cuGraphDestroy(graph);
                }
                return Err(error);
            }
            check(ended, "cuStreamEndCapture")?;
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            sys::cuGraphDestroy(graph);
            check(made, "cuGraphInstantiate")?;
            check(sys::cuGraphUpload(exec, self.raw), "cuGraphUpload")?;
            Ok(Replay { raw: exec })
        }
    }

    pub fn replay(&self, graph: &Replay) -> Result<(), DeviceError> {
        // SAFETY: both are alive.
        check(
            unsafe { sys::cuGraphLaunch(graph.raw, self.raw) },
            "cuGraphLaunch",
        )
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        unsafe {
            sys::cuStreamDestroy_v2(self.raw);
        }
    }
}

/// A captured program.
pub(super) struct Replay {
    raw: sys::CUgraphExec,
}

// SAFETY: launched from one thread at a time: it belongs to a machine that is borrowed exclusively.
unsafe impl Send for Replay {}

impl Drop for Replay {
    fn drop(&mut self) {
        // SAFETY: instantiated in `capture`.
        unsafe {
            sys::cuGraphExecDestroy(self.raw);
        }
    }
}

/// A CUDA event: a position in a stream.
pub(super) struct Event {
    raw: sys::CUevent,
}

// SAFETY: events may be used from any thread with the context current.
unsafe impl Send for Event {}

impl Event {
    /// An event that orders streams, without a clock.
    pub fn new() -> Result<Event, DeviceError> {
        const DISABLE_TIMING: u32 = 2;
        Event::with_flags(DISABLE_TIMING)
    }

    /// An event with a clock.
    pub fn with_clock() -> Result<Event, DeviceError> {
        Event::with_flags(0)
    }

    fn with_flags(flags: u32) -> Result<Event, DeviceError> {
        let mut raw = null_mut();
        // SAFETY: the handle is written to a local and destroyed on drop.
        let result = unsafe { sys::cuEventCreate(&mut raw, flags) };
        check(result, "cuEventCreate")?;
        Ok(Event { raw })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both are alive.
        check(
            unsafe { sys::cuEventRecord(self.raw, stream.raw) },
            "cuEventRecord",
        )
    }

    /// Whether the stream has reached the event; does not wait.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result, "cuEventQuery").map(|()| true),
        }
    }

    pub fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the event is alive.
        check(
            unsafe { sys::cuEventSynchronize(self.raw) },
            "cuEventSynchronize",
        )
    }

    /// Seconds from `earlier` to this event; the stream must have reached both.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64, DeviceError> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
        static ELAPSED: OnceLock<Elapsed> = OnceLock::new();
        // SAFETY: the unversioned name exists in every driver, old and new, with this signature.
        let elapsed = ELAPSED.get_or_init(|| unsafe {
            *sys::culib()
                .get::<Elapsed>(b"cuEventElapsedTime\0")
                .expect("every driver has it")
        });
        let mut milliseconds = 0.0;
        // SAFETY: the time is written to a local; both events are alive.
        let result = unsafe { elapsed(&mut milliseconds, earlier.raw, self.raw) };
        check(result, "cuEventElapsedTime")?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `with_flags`.
        unsafe {
            sys::cuEventDestroy_v2(self.raw);
        }
    }
}

/// A module of kernels on the device.
pub(super) struct Module {
    raw: sys::CUmodule,
}

// SAFETY: modules may be used from any thread with the context current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a module that lives as long as the process's context.
#[derive(Clone, Copy)]
pub(super) struct Function {
    raw: sys::CUfunction,
}

// SAFETY: as `Module`.
unsafe impl Send for Function {}
// SAFETY: as `Module`.
unsafe impl Sync for Function {}

impl Module {
    pub fn new(image: &[u8]) -> Result<Module, DeviceError> {
        let mut raw = null_mut();
        // SAFETY: the image is machine code from the compiler; the handle is unloaded on drop.
        let result = unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) };
        check(result, "cuModuleLoadData")?;
        Ok(Module { raw })
    }

    /// The kernel with this name; `None` if the module does not contain it.
    pub fn function(&self, name: &CStr) -> Result<Option<Function>, DeviceError> {
        let mut raw = null_mut();
        // SAFETY: the module is alive; the handle is written to a local.
        let result = unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, name.as_ptr()) };
        if result == CUresult::CUDA_ERROR_NOT_FOUND {
            return Ok(None);
        }
        check(result, "cuModuleGetFunction")?;
        Ok(Some(Function { raw }))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `new`.
        unsafe {
            sys::cuModuleUnload(self.raw);
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Argument {
    Address(u64),
    Int(i32),
    Long(i64),
    Float(f32),
}

impl From<u64> for Argument {
    fn from(address: u64) -> Argument {
        Argument::Address(address)
    }
}

impl From<Option<u64>> for Argument {
    fn from(address: Option<u64>) -> Argument {
        Argument::Address(address.unwrap_or(0))
    }
}

impl From<i32> for Argument {
    fn from(value: i32) -> Argument {
        Argument::Int(value)
    }
}

impl From<i64> for Argument {
    fn from(value: i64) -> Argument {
        Argument::Long(value)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Argument {
        Argument::Float(value)
    }
}

/// When a kernel may start, relative to the kernel before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// After the end of the other kernel.
    AtItsEnd,
    /// During the other kernel; the kernel itself waits for its end (`follow` in `kernels/common.cuh`).
    Early,
}

const MOST_ARGUMENTS: usize = 32;

impl Function {
    /// Raises the limit of a block's shared memory beyond the default of 48 KiB.
    pub fn allow_shared(&self, bytes: usize) -> Result<(), DeviceError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is alive.
        let result = unsafe { sys::cuFuncSetAttribute(self.raw, attribute, bytes as i32) };
        check(result, "cuFuncSetAttribute")
    }

    pub fn launch(
        &self,
        stream: &Stream,
        grid: [usize; 3],
        block: usize,
        follows: Follows,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        self.launch_with(stream, grid, block, 0, follows, arguments)
    }

    /// Like [`Function::launch`], with dynamic shared memory.
    pub fn launch_with(
        &self,
        stream: &Stream,
        grid: [usize; 3],
        block: usize,
        shared_bytes: usize,
        follows: Follows,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        // Each argument has eight bytes, with the value in the first of them (little endian, like all hosts of CUDA).
        let mut values = [0u64; MOST_ARGUMENTS];
        let mut pointers = [null_mut::<c_void>(); MOST_ARGUMENTS];
        assert!(arguments.len() <= MOST_ARGUMENTS, "arguments of a kernel");
        for (index, argument) in arguments.iter().enumerate() {
            values[index] = match *argument {
                Argument::Address(value) => value,
                Argument::Int(value) => u64::from(value as u32),
                Argument::Long(value) => value as u64,
                Argument::Float(value) => u64::from(value.to_bits()),
            };
            pointers[index] = (&raw mut values[index]).cast();
        }
        let [x, y, z] = grid.map(|extent| extent as u32);
        if follows == Follows::AtItsEnd {
            // SAFETY: the arguments match the kernel's declaration (tests run every kernel against the CPU); the driver copies them before
            // it
            // returns.
            let result = unsafe {
                sys::cuLaunchKernel(
                    self.raw,
                    x,
                    y,
                    z,
                    block as u32,
                    1,
                    1,
                    shared_bytes as u32,
                    stream.raw,
                    pointers.as_mut_ptr(),
                    null_mut(),
                )
            };
            return check(result, "cuLaunchKernel");
        }
        // SAFETY: all zeros is a valid configuration, and fields that are not set stay zero. Otherwise as above.
        let result = unsafe {
            let mut early: sys::CUlaunchAttribute = std::mem::zeroed();
            early.id =
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            early.value.programmaticStreamSerializationAllowed = 1;
            let mut config: sys::CUlaunchConfig = std::mem::zeroed();
            (config.gridDimX, config.gridDimY, config.gridDimZ) = (x, y, z);
            (config.blockDimX, config.blockDimY, config.blockDimZ) = (block as u32, 1, 1);
            config.sharedMemBytes = shared_bytes as u32;
            config.hStream = stream.raw;
            config.attrs = &mut early;
            config.numAttrs = 1;
            sys::cuLaunchKernelEx(&config, self.raw, pointers.as_mut_ptr(), null_mut())
        };
        check(result, "cuLaunchKernelEx")
    }
}
