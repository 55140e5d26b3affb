//! Matrix products by cuBLASLt. For each shape, an algorithm is chosen once by timing, and kept.
//!
//! Matrices here are row-major, `y[rows, outputs] = left[rows, inner] right[inner, outputs]`; either factor may be transposed in
//! memory. cuBLASLt is column-major and computes the transposed equation: the factors swap places.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue,
    cublasLtMatmulDescAttributes_t as Describe, cublasLtMatmulPreferenceAttributes_t as Prefer,
    cublasStatus_t as Status, cudaDataType_t as Data,
};

use super::driver::{Event, Stream};
use crate::DeviceError;

/// Number format of a matrix, and of the arithmetic on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ProductFormat {
    F32,
    /// f32 in memory; products round their factors to 10 bits of mantissa.
    Tf32,
    F16,
    Bf16,
}

impl ProductFormat {
    fn data(self) -> Data {
        match self {
            ProductFormat::F32 | ProductFormat::Tf32 => Data::CUDA_R_32F,
            ProductFormat::F16 => Data::CUDA_R_16F,
            ProductFormat::Bf16 => Data::CUDA_R_16BF,
        }
    }

    fn compute(self) -> Compute {
        match self {
            ProductFormat::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => Compute::CUBLAS_COMPUTE_32F,
        }
    }
}

/// A row-major matrix, or the transpose of one: its address and row stride.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factor {
    pub address: u64,
    pub stride: usize,
    pub transposed: bool,
}

/// Everything that decides which algorithms are available. Addresses count only by their alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    sizes: [usize; 3],
    strides: [usize; 4],
    transposed: [bool; 2],
    inputs: ProductFormat,
    output: ProductFormat,
    bias: bool,
    /// The result is added to `added`: the previous contents, or another matrix.
    adds: bool,
    alignment: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:?} {:?} {:?} {:?} {} {} {}",
            self.sizes,
            self.strides,
            self.transposed,
            self.inputs,
            self.output,
            self.bias,
            self.adds,
            self.alignment
        )
    }
}

/// `y = scale left right + bias + added`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub rows: usize,
    pub outputs: usize,
    pub inner: usize,
    pub left: Factor,
    pub right: Factor,
    pub inputs: ProductFormat,
    pub scale: f32,
    /// Address and row stride.
    pub y: (u64, usize),
    pub output: ProductFormat,
    pub bias: Option<u64>,
    pub added: Option<(u64, usize)>,
}

impl Product {
    fn key(&self) -> Key {
        let added = self.added.unwrap_or(self.y);
        let element = |format| match format {
            ProductFormat::F32 | ProductFormat::Tf32 => 4,
            _ => 2,
        };
        let mut all = self.left.address | self.right.address | self.y.0 | added.0;
        all |= ((self.left.stride | self.right.stride) * element(self.inputs)) as u64;
        all |= ((self.y.1 | added.1) * element(self.output)) as u64;
        all |= self.bias.unwrap_or(0);
        Key {
            sizes: [self.rows, self.outputs, self.inner],
            strides: [self.left.stride, self.right.stride, self.y.1, added.1],
            transposed: [self.left.transposed, self.right.transposed],
            inputs: self.inputs,
            output: self.output,
            bias: self.bias.is_some(),
            adds: self.added.is_some(),
            alignment: 1 << all.trailing_zeros().min(8),
        }
    }
}

/// cuBLASLt's descriptors of a shape, and the chosen algorithm.
struct Ready {
    operation: sys::cublasLtMatmulDesc_t,
    /// In order: right, left, added, y.
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// The library, and the algorithms chosen so far.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    ready: Mutex<HashMap<Key, Ready>>,
    /// Text of a key -> its algorithm, chosen in this run or an earlier one.
    chosen: Mutex<HashMap<String, [u64; 8]>>,
}

// SAFETY: cuBLASLt's handle may be used from several threads; everything else is behind a lock.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

/// Number of algorithms that are timed for a shape: the library's proposals, in its order.
const TIMED: usize = 12;
const REPEATS: usize = 4;

/// Seconds of one run of `work` within a captured graph, without the host's part.
pub(super) fn timed(
    stream: &Stream,
    mut work: impl FnMut() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    let (before, after) = (Event::with_clock()?, Event::with_clock()?);
    let replay = stream.capture(|| (0..REPEATS).try_for_each(|_| work()))?;
    stream.replay(&replay)?;
    before.record(stream)?;
    stream.replay(&replay)?;
    after.record(stream)?;
    after.wait()?;
    Ok(after.seconds_since(&before)? / REPEATS as f64)
}

/// Seconds of a single run, with the host's part if that is slower.
pub(super) fn timed_once(
    stream: &Stream,
    work: impl FnOnce() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    let (before, after) = (Event::with_clock()?, Event::with_clock()?);
    before.record(stream)?;
    work()?;
    after.record(stream)?;
    after.wait()?;
    after.seconds_since(&before)
}

fn check(status: Status, call: &str) -> Result<(), DeviceError> {
    if status == Status::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Failed(format!(
        "cuBLASLt failed in {call}: {status:?}\nhint: another version of the library may be found first; see the log's `cublasLt` line"
    )))
}

fn describe<T>(
    operation: sys::cublasLtMatmulDesc_t,
    attribute: Describe,
    value: T,
) -> Result<(), DeviceError> {
    // SAFETY: the value has the type and size of the attribute's documentation.
    let status = unsafe {
        sys::cublasLtMatmulDescSetAttribute(
            operation,
            attribute,
            (&raw const value).cast(),
            size_of::<T>(),
        )
    };
    check(status, "cublasLtMatmulDescSetAttribute")
}

impl Products {
    pub fn new() -> Result<Products, DeviceError> {
        let mut handle = null_mut();
        // SAFETY: the library is loaded (by the caller); the handle is written to a local.
        let status = unsafe { sys::cublasLtCreate(&mut handle) };
        check(status, "cublasLtCreate")?;
        Ok(Products {
            handle,
            ready: Mutex::default(),
            chosen: Mutex::default(),
        })
    }

    pub fn version() -> usize {
        // SAFETY: takes no arguments and returns a number.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Sets the algorithms of an earlier run, for shapes that have none yet.
    pub fn prefer(&self, chosen: impl IntoIterator<Item = (String, [u64; 8])>) {
        let mut all = self
            .chosen
            .lock()
            .expect("never poisoned: nothing panics with it");
        for (key, algorithm) in chosen {
            all.entry(key).or_insert(algorithm);
        }
    }

    /// Chosen algorithms, in a fixed order.
    pub fn chosen(&self) -> Vec<(String, [u64; 8])> {
        let all = self
            .chosen
            .lock()
            .expect("never poisoned: nothing panics with it");
        let mut all: Vec<_> = all
            .iter()
            .map(|(key, &value)| (key.clone(), value))
            .collect();
        all.sort();
        all
    }

    /// Chooses an algorithm for a shape that has none; overwrites the result while timing. `workspace` is address and size.
    pub fn prepare(
        &self,
        product: &Product,
        workspace: (u64, u64),
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let key = product.key();
        let mut ready = self
            .ready
            .lock()
            .expect("never poisoned: nothing panics with it");
        if ready.contains_key(&key) {
            return Ok(());
        }
        let mut made = Products::describe(product)?;
        let text = key.to_string();
        let known = self
            .chosen
            .lock()
            .expect("never poisoned: nothing panics with it")
            .get(&text)
            .copied();
        let algorithm = match known.filter(|&data| self.works(&made, data, workspace.1)) {
            Some(data) => {
                // Run once: the driver loads the algorithm's code now, and not during the capture of a program.
                made.algorithm.data = data;
                self.issue(product, &made, workspace, stream)?;
                data
            }
            None => {
                let data = self.fastest(product, &mut made, &key, workspace, stream)?;
                self.chosen
                    .lock()
                    .expect("never poisoned: nothing panics with it")
                    .insert(text, data);
                data
            }
        };
        made.algorithm.data = algorithm;
        ready.insert(key, made);
        Ok(())
    }

    fn describe(product: &Product) -> Result<Ready, DeviceError> {
        let (inputs, output) = (product.inputs.data(), product.output.data());
        let mut operation = null_mut();
        // SAFETY: the descriptor is written to a local and kept for the life of the process.
        let status = unsafe {
            sys::cublasLtMatmulDescCreate(
                &mut operation,
                product.inputs.compute(),
                Data::CUDA_R_32F,
            )
        };
        check(status, "cublasLtMatmulDescCreate")?;
        // In column-major order the right factor comes first, and a factor that is transposed for us is not transposed for cuBLASLt.
        let flag = |transposed: bool| i32::from(transposed);
        describe(
            operation,
            Describe::CUBLASLT_MATMUL_DESC_TRANSA,
            flag(product.right.transposed),
        )?;
        describe(
            operation,
            Describe::CUBLASLT_MATMUL_DESC_TRANSB,
            flag(product.left.transposed),
        )?;
        if product.bias.is_some() {
            let epilogue = Epilogue::CUBLASLT_EPILOGUE_BIAS as u32;
            describe(operation, Describe::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
            let pointer = Describe::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            describe(operation, pointer, product.bias.unwrap_or(0))?;
        }
        let layout = |format: Data, rows: usize, columns: usize, stride: usize| {
            let mut layout = null_mut();
            // SAFETY: as above.
            let status = unsafe {
                sys::cublasLtMatrixLayoutCreate(
                    &mut layout,
                    format,
                    rows as u64,
                    columns as u64,
                    stride as i64,
                )
            };
            check(status, "cublasLtMatrixLayoutCreate").map(|()| layout)
        };
        let factor = |factor: &Factor, [rows, columns]: [usize; 2]| {
            if factor.transposed {
                layout(inputs, rows, columns, factor.stride)
            } else {
                // Our row-major [rows, columns] is cuBLASLt's [columns, rows].
                layout(inputs, columns, rows, factor.stride)
            }
        };
        let Product {
            rows,
            outputs,
            inner,
            ..
        } = *product;
        let added = product.added.unwrap_or(product.y);
        Ok(Ready {
            operation,
            layouts: [
                factor(&product.right, [inner, outputs])?,
                factor(&product.left, [rows, inner])?,
                layout(output, outputs, rows, added.1)?,
                layout(output, outputs, rows, product.y.1)?,
            ],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        })
    }

    /// Whether an algorithm of an earlier run supports this shape within the workspace.
    fn works(&self, made: &Ready, data: [u64; 8], workspace_bytes: u64) -> bool {
        let algorithm = sys::cublasLtMatmulAlgo_t { data };
        // SAFETY: an all-zero result is valid, and is written by the call; all other arguments are alive.
        unsafe {
            let mut result: sys::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let [right, left, added, y] = made.layouts;
            let status = sys::cublasLtMatmulAlgoCheck(
                self.handle,
                made.operation,
                right,
                left,
                added,
                y,
                &algorithm,
                &mut result,
            );
            status == Status::CUBLAS_STATUS_SUCCESS
                && result.workspaceSize as u64 <= workspace_bytes
        }
    }

    fn fastest(
        &self,
        product: &Product,
        made: &mut Ready,
        key: &Key,
        workspace: (u64, u64),
        stream: &Stream,
    ) -> Result<[u64; 8], DeviceError> {
        let candidates = self.candidates(made, key, workspace.1)?;
        let mut best: Option<(f64, [u64; 8])> = None;
        let mut failure = None;
        for algorithm in candidates {
            made.algorithm = algorithm;
            // The first run loads code.
            if let Err(error) = self.issue(product, made, workspace, stream) {
                failure = Some(error);
                continue;
            }
            // Timed as a graph: otherwise small products would be limited by the host's launch rate.
            let seconds = timed(stream, || self.issue(product, made, workspace, stream))?;
            if best.is_none_or(|(fastest, _)| seconds < fastest) {
                best = Some((seconds, algorithm.data));
            }
        }
        match (best, failure) {
            (Some((_, data)), _) => Ok(data),
            (None, Some(error)) => Err(error),
            (None, None) => Err(DeviceError::Failed(format!(
                "cuBLASLt has no algorithm for a product of {key}\n\
                 hint: other sizes, or precision f32"
            ))),
        }
    }

    fn candidates(
        &self,
        made: &Ready,
        key: &Key,
        workspace_bytes: u64,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, DeviceError> {
        let mut preference = null_mut();
        // SAFETY: the preference is written to a local and destroyed below; values have the documented types; results are plain data, and
        // only those that were returned are read.
        unsafe {
            check(
                sys::cublasLtMatmulPreferenceCreate(&mut preference),
                "cublasLtMatmulPreferenceCreate",
            )?;
            // Partial sums of split products are added by a separate pass, in f32: no order depends on timing.
            const REDUCE_IN_COMPUTE_TYPE: u32 = 2;
            let prefer = |attribute, value: *const c_void, bytes| {
                sys::cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes)
            };
            let mut status = prefer(
                Prefer::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace_bytes).cast(),
                8,
            );
            let scheme = REDUCE_IN_COMPUTE_TYPE;
            if status == Status::CUBLAS_STATUS_SUCCESS {
                status = prefer(
                    Prefer::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    (&raw const scheme).cast(),
                    4,
                );
            }
            let alignment = key.alignment as u32;
            for attribute in [
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                if status == Status::CUBLAS_STATUS_SUCCESS {
                    status = prefer(attribute, (&raw const alignment).cast(), 4);
                }
            }
            let mut results: [sys::cublasLtMatmulHeuristicResult_t; TIMED] = std::mem::zeroed();
            let mut count = 0;
            if status == Status::CUBLAS_STATUS_SUCCESS {
                let [right, left, added, y] = made.layouts;
                status = sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    made.operation,
                    right,
                    left,
                    added,
                    y,
                    preference,
                    TIMED as i32,
                    results.as_mut_ptr(),
                    &mut count,
                );
            }
            sys::cublasLtMatmulPreferenceDestroy(preference);
            if status != Status::CUBLAS_STATUS_SUCCESS {
                return Err(DeviceError::Failed(format!(
                    "cuBLASLt has no algorithm for a product of {key}: {status:?}\n\
                     hint: other sizes, or precision f32"
                )));
            }
            let found = results[..count as usize].iter();
            Ok(found
                .filter(|result| result.state == Status::CUBLAS_STATUS_SUCCESS)
                .map(|result| result.algo)
                .collect())
        }
    }

    /// Enqueues a prepared product in a stream.
    pub fn run(
        &self,
        product: &Product,
        workspace: (u64, u64),
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let ready = self
            .ready
            .lock()
            .expect("never poisoned: nothing panics with it");
        let made = ready.get(&product.key()).ok_or_else(|| {
            DeviceError::Failed(format!(
                "no algorithm was prepared for a product of {}",
                product.key()
            ))
        })?;
        self.issue(product, made, workspace, stream)
    }

    fn issue(
        &self,
        product: &Product,
        made: &Ready,
        workspace: (u64, u64),
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        if let Some(bias) = product.bias {
            describe(
                made.operation,
                Describe::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                bias,
            )?;
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let scale = product.scale;
        let beta = if product.added.is_some() { &one } else { &zero };
        let added = product.added.unwrap_or(product.y).0;
        let pointer = |address: u64| address as *const c_void;
        let [right, left, added_layout, y] = made.layouts;
        // SAFETY: addresses, extents and strides describe matrices within the arena (checked when operands were resolved); alpha and beta
        // are read before the call returns.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                made.operation,
                (&raw const scale).cast(),
                pointer(product.right.address),
                right,
                pointer(product.left.address),
                left,
                (&raw const *beta).cast(),
                pointer(added),
                added_layout,
                product.y.0 as *mut c_void,
                y,
                match made.algorithm.data {
                    [0, 0, 0, 0, 0, 0, 0, 0] => null(),
                    _ => &raw const made.algorithm,
                },
                workspace.0 as *mut c_void,
                workspace.1 as usize,
                stream.raw.cast(),
            )
        };
        check(status, "cublasLtMatmul")
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: created in `new`. Descriptors are small and few; they are freed with the process.
        unsafe {
            sys::cublasLtDestroy(self.handle);
        }
    }
}
