//! cuDNN's graph interface: descriptors with attributes, and a handle.
//!
//! The library is opened when the first convolution is prepared: no other operation needs it. The numbers below are those of
//! `cudnn_graph.h`, version 9.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use libloading::Library;

use super::driver::Stream;
use super::libraries::{Missing, cudnn};
use crate::DeviceError;

type Raw = *mut c_void;
type Status = i32;

/// cuDNN's functions.
struct Api {
    set_stream: unsafe extern "C" fn(Raw, Raw) -> Status,
    last_error: unsafe extern "C" fn(*mut c_char, usize),
    create_descriptor: unsafe extern "C" fn(i32, *mut Raw) -> Status,
    destroy_descriptor: unsafe extern "C" fn(Raw) -> Status,
    finalize: unsafe extern "C" fn(Raw) -> Status,
    set_attribute: unsafe extern "C" fn(Raw, i32, i32, i64, *const c_void) -> Status,
    get_attribute: unsafe extern "C" fn(Raw, i32, i32, i64, *mut i64, *mut c_void) -> Status,
    execute: unsafe extern "C" fn(Raw, Raw, Raw) -> Status,
    version: unsafe extern "C" fn() -> usize,
    create: unsafe extern "C" fn(*mut Raw) -> Status,
    destroy: unsafe extern "C" fn(Raw) -> Status,
}

/// Version of an open library, such as `9.13.0`.
pub(super) fn version_of(library: &Library) -> Option<String> {
    type Version = unsafe extern "C" fn() -> usize;
    // SAFETY: takes no arguments and returns a number, as the type declares.
    let version = unsafe { library.get::<Version>(b"cudnnGetVersion").ok()?() };
    Some(format!(
        "{}.{}.{}",
        version / 10_000,
        version / 100 % 100,
        version % 100
    ))
}

fn symbols(library: &Library) -> Result<Api, libloading::Error> {
    // SAFETY: the types are those of the header, for every version 9.
    unsafe {
        Ok(Api {
            set_stream: *library.get(b"cudnnSetStream")?,
            last_error: *library.get(b"cudnnGetLastErrorString")?,
            create_descriptor: *library.get(b"cudnnBackendCreateDescriptor")?,
            destroy_descriptor: *library.get(b"cudnnBackendDestroyDescriptor")?,
            finalize: *library.get(b"cudnnBackendFinalize")?,
            set_attribute: *library.get(b"cudnnBackendSetAttribute")?,
            get_attribute: *library.get(b"cudnnBackendGetAttribute")?,
            execute: *library.get(b"cudnnBackendExecute")?,
            version: *library.get(b"cudnnGetVersion")?,
            create: *library.get(b"cudnnCreate")?,
            destroy: *library.get(b"cudnnDestroy")?,
        })
    }
}

fn api() -> Result<&'static Api, DeviceError> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    let api = API.get_or_init(|| {
        let library = cudnn().map_err(|missing: Missing| missing.to_string())?;
        symbols(library).map_err(|error| {
            format!(
                "cuDNN is not version 9: {error}\nhint: `holdall doctor` says which one was found"
            )
        })
    });
    api.as_ref()
        .map_err(|reason| DeviceError::Missing(reason.clone()))
}

impl Api {
    fn check(&self, status: Status, call: &str) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        let mut text = [0 as c_char; 512];
        // SAFETY: writes at most `text.len()` bytes, the last of them zero.
        let said = unsafe {
            (self.last_error)(text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr())
        };
        Err(DeviceError::Failed(format!(
            "cuDNN failed in {call}: status {status}: {}\nhint: `holdall doctor` says which cuDNN was found; another version may do it",
            said.to_string_lossy()
        )))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DescriptorKind {
    Convolution = 1,
    Engine = 2,
    EngineConfig = 3,
    Heuristic = 4,
    Plan = 5,
    KnobChoice = 7,
    Forward = 10,
    WeightGrad = 11,
    InputGrad = 12,
    Graph = 15,
    VariantPack = 16,
    Tensor = 17,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Type {
    Handle = 0,
    Format = 1,
    Int64 = 3,
    Float = 4,
    Pointer = 6,
    ConvolutionMode = 7,
    HeuristicMode = 8,
    Knob = 9,
    NumericalNote = 11,
    Descriptor = 15,
}

pub(super) mod attribute {
    pub const CONVOLUTION_COMPUTE_TYPE: i32 = 100;
    pub const CONVOLUTION_MODE: i32 = 101;
    pub const CONVOLUTION_DILATIONS: i32 = 102;
    pub const CONVOLUTION_STRIDES: i32 = 103;
    pub const CONVOLUTION_POST_PADDINGS: i32 = 104;
    pub const CONVOLUTION_PRE_PADDINGS: i32 = 105;
    pub const CONVOLUTION_SPATIAL_DIMS: i32 = 106;
    pub const HEURISTIC_MODE: i32 = 200;
    pub const HEURISTIC_GRAPH: i32 = 201;
    pub const HEURISTIC_RESULTS: i32 = 202;
    pub const CONFIG_ENGINE: i32 = 300;
    pub const CONFIG_KNOBS: i32 = 302;
    pub const PLAN_HANDLE: i32 = 400;
    pub const PLAN_CONFIG: i32 = 401;
    pub const PLAN_WORKSPACE_BYTES: i32 = 402;
    pub const KNOB_TYPE: i32 = 600;
    pub const KNOB_VALUE: i32 = 601;
    /// In order: alpha, beta, convolution, then the tensors, whose order differs between operations.
    pub const FORWARD: [i32; 6] = [700, 701, 702, 704, 703, 705];
    pub const INPUT_GRAD: [i32; 6] = [706, 707, 708, 710, 709, 711];
    pub const WEIGHT_GRAD: [i32; 6] = [712, 713, 714, 716, 715, 717];
    pub const GRAPH_HANDLE: i32 = 800;
    pub const GRAPH_OPERATIONS: i32 = 801;
    pub const TENSOR_ALIGNMENT: i32 = 900;
    pub const TENSOR_DATA_TYPE: i32 = 901;
    pub const TENSOR_DIMENSIONS: i32 = 902;
    pub const TENSOR_STRIDES: i32 = 903;
    pub const TENSOR_ID: i32 = 906;
    pub const PACK_IDS: i32 = 1000;
    pub const PACK_POINTERS: i32 = 1001;
    pub const PACK_WORKSPACE: i32 = 1003;
    pub const ENGINE_GRAPH: i32 = 1300;
    pub const ENGINE_INDEX: i32 = 1301;
    pub const ENGINE_NUMERICAL_NOTES: i32 = 1303;
}

/// Numerical notes of engines.
pub(super) mod note {
    /// Uses tensor cores; they round f32 to 10 bits of mantissa.
    pub const TENSOR_CORE: i32 = 0;
    /// Rounds f32 operands to TF32.
    pub const DOWN_CONVERT_INPUTS: i32 = 1;
    /// Sums in less precision than f32.
    pub const REDUCED_PRECISION_SUMS: i32 = 2;
    /// Uses a Fourier transform.
    pub const FFT: i32 = 3;
    /// Sums without a fixed order.
    pub const NONDETERMINISTIC: i32 = 4;
    /// Uses Winograd's algorithm: fewer products, larger errors.
    pub const WINOGRAD: i32 = 5;
}

/// Heuristics: A is the library's best guess; the fallback lists engines that support every operation.
pub(super) const HEURISTIC_A: i32 = 3;
pub(super) const HEURISTIC_FALLBACK: i32 = 2;

pub(super) struct Descriptor {
    raw: Raw,
    api: &'static Api,
}

impl Descriptor {
    pub fn new(kind: DescriptorKind) -> Result<Descriptor, DeviceError> {
        let api = api()?;
        let mut raw = null_mut();
        // SAFETY: the descriptor is written to a local, and destroyed with this value.
        let status = unsafe { (api.create_descriptor)(kind as i32, &mut raw) };
        api.check(status, "cudnnBackendCreateDescriptor")?;
        Ok(Descriptor { raw, api })
    }

    /// Sets an attribute; `T` must be the type of the attribute.
    pub fn set<T>(&self, attribute: i32, of: Type, values: &[T]) -> Result<(), DeviceError> {
        let count = values.len() as i64;
        // SAFETY: reads `count` values of the attribute's type, which are copied.
        let status = unsafe {
            (self.api.set_attribute)(
                self.raw,
                attribute,
                of as i32,
                count,
                values.as_ptr().cast(),
            )
        };
        self.api.check(status, "cudnnBackendSetAttribute")
    }

    pub fn set_descriptors(&self, attribute: i32, all: &[&Descriptor]) -> Result<(), DeviceError> {
        let raw: Vec<Raw> = all.iter().map(|one| one.raw).collect();
        self.set(attribute, Type::Descriptor, &raw)
    }

    pub fn set_handle(&self, attribute: i32, handle: &Handle) -> Result<(), DeviceError> {
        self.set(attribute, Type::Handle, &[handle.raw])
    }

    pub fn finalized(self) -> Result<Descriptor, DeviceError> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { (self.api.finalize)(self.raw) };
        self.api.check(status, "cudnnBackendFinalize")?;
        Ok(self)
    }

    /// Reads at most `values.len()` values; returns the number of values that the attribute has.
    pub fn get<T>(&self, attribute: i32, of: Type, values: &mut [T]) -> Result<usize, DeviceError> {
        let mut count = 0;
        // SAFETY: writes at most `values.len()` values.
        let status = unsafe {
            (self.api.get_attribute)(
                self.raw,
                attribute,
                of as i32,
                values.len() as i64,
                &mut count,
                values.as_mut_ptr().cast(),
            )
        };
        self.api.check(status, "cudnnBackendGetAttribute")?;
        Ok((count.max(0) as usize).min(values.len()))
    }

    /// Reads up to `most` descriptors of a kind.
    pub fn get_descriptors(
        &self,
        attribute: i32,
        kind: DescriptorKind,
        most: usize,
    ) -> Result<Vec<Descriptor>, DeviceError> {
        let mut all = (0..most)
            .map(|_| Descriptor::new(kind))
            .collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<Raw> = all.iter().map(|one| one.raw).collect();
        let count = self.get(attribute, Type::Descriptor, &mut raw)?;
        all.truncate(count);
        Ok(all)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and owned by this value alone.
        unsafe { (self.api.destroy_descriptor)(self.raw) };
    }
}

/// A handle of the library for the current device.
pub(super) struct Handle {
    raw: Raw,
    api: &'static Api,
}

impl Handle {
    pub fn new() -> Result<Handle, DeviceError> {
        let api = api()?;
        let mut raw = null_mut();
        // SAFETY: the handle is written to a local, and destroyed with this value.
        let status = unsafe { (api.create)(&mut raw) };
        api.check(status, "cudnnCreate")?;
        Ok(Handle { raw, api })
    }

    /// Version of the library; engine numbers are valid for one version.
    pub fn version(&self) -> usize {
        // SAFETY: takes no arguments and returns a number.
        unsafe { (self.api.version)() }
    }

    /// Enqueues a plan's work in a stream.
    pub fn execute(
        &self,
        plan: &Descriptor,
        pack: &Descriptor,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: the stream is alive, and belongs to the context in which the handle was created.
        let status = unsafe { (self.api.set_stream)(self.raw, stream.raw.cast()) };
        self.api.check(status, "cudnnSetStream")?;
        // SAFETY: plan and pack are finalized; the pack's addresses describe tensors within the arena.
        let status = unsafe { (self.api.execute)(self.raw, plan.raw, pack.raw) };
        self.api.check(status, "cudnnBackendExecute")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and owned by this value alone.
        unsafe { (self.api.destroy)(self.raw) };
    }
}
