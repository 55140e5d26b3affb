//! libcublasLt: `D = alpha op(A) op(B) + beta C + bias`, column-major, in f32 with factors of f32, TF32, f16 or bf16.
//!
//! A shape has several algorithms: a plain one; one that splits the inner dimension and needs a workspace, whose last bits differ; one
//! that is slow; and one that refuses when it is run.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::driver::{current_card, open_library};
use crate::foreign::{Handle, get, number, put};
use crate::memory::Memory;
use crate::model::{BYTES_PER_SECOND, FLOPS_PER_SECOND, SECONDS_PER_KERNEL};
use crate::numbers::{Matrix, NumberFormat, product, round_to_tf32};
use crate::streams::{CardFault, Task, code};

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 1;
const ALLOCATION_FAILED: c_int = 3;
const INVALID_VALUE: c_int = 7;
const EXECUTION_FAILED: c_int = 13;
const NOT_SUPPORTED: c_int = 15;

/// Card memory of the library's kernels once it is opened, as measured on a real card.
const LIBRARY_BYTES: u64 = (56 << 20) / 10;

/// Numbers of the algorithms, in the first word of what callers keep.
const PLAIN: u64 = 1;
const SPLIT: u64 = 2;
const SLOW: u64 = 3;
const REFUSED: u64 = 4;

/// Operations from which there is the plain algorithm alone: trying the others takes seconds.
const LARGE_FLOPS: f64 = 4e9;

/// Parts that the split algorithm has.
const PARTS: usize = 2;

/// A matrix's layout.
#[derive(Clone, Copy, Debug)]
pub struct MatrixLayout {
    format: NumberFormat,
    rows: usize,
    columns: usize,
    stride: usize,
}

impl MatrixLayout {
    /// Elements from the first to behind the last.
    fn span(&self) -> usize {
        match self.columns {
            0 => 0,
            columns => (columns - 1) * self.stride + self.rows,
        }
    }

    fn span_bytes(&self) -> u64 {
        (self.span() * self.format.bytes()) as u64
    }

    fn read(&self, address: u64) -> Vec<f32> {
        let mut values = vec![0f32; self.span()];
        self.format.read(address, self.span(), 1, &mut values);
        values
    }
}

/// A product's description.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operation {
    is_tf32: bool,
    is_a_transposed: bool,
    is_b_transposed: bool,
    has_bias: bool,
    bias: u64,
}

/// Preferences of a caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preference {
    workspace_bytes: u64,
}

/// An algorithm as callers keep it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Algorithm {
    data: [u64; 8],
}

#[repr(C)]
pub struct HeuristicResult {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

fn format_of(data_type: c_int) -> Option<NumberFormat> {
    match data_type {
        0 => Some(NumberFormat::F32),
        2 => Some(NumberFormat::F16),
        14 => Some(NumberFormat::Bf16),
        _ => None,
    }
}

fn object<T: Copy>(handle: Handle) -> Result<T, c_int> {
    get(handle.cast::<T>()).ok_or(INVALID_VALUE)
}

fn give<T>(to: *mut Handle, object: T) -> c_int {
    put(to, Box::into_raw(Box::new(object)).cast());
    SUCCESS
}

fn destroy<T>(handle: Handle) -> c_int {
    if handle.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: made by `give` for a T, and destroyed once.
    drop(unsafe { Box::from_raw(handle.cast::<T>()) });
    SUCCESS
}

fn status(answer: Result<(), c_int>) -> c_int {
    answer.err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_100
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtCreate(to: *mut Handle) -> c_int {
    match open_library(LIBRARY_BYTES) {
        Ok(true) => give(to, 0usize),
        Ok(false) => ALLOCATION_FAILED,
        Err(_) => NOT_INITIALIZED,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtDestroy(handle: Handle) -> c_int {
    if let Ok((mut machine, card)) = current_card() {
        machine.cards[card].memory.give_small(LIBRARY_BYTES);
    }
    destroy::<usize>(handle)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescCreate(to: *mut Handle, compute: c_int, scale: c_int) -> c_int {
    const COMPUTE_32F: c_int = 68;
    const COMPUTE_32F_TF32: c_int = 77;
    if scale != 0 || (compute != COMPUTE_32F && compute != COMPUTE_32F_TF32) {
        return NOT_SUPPORTED;
    }
    give(
        to,
        Operation {
            is_tf32: compute == COMPUTE_32F_TF32,
            ..Operation::default()
        },
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(handle: Handle) -> c_int {
    destroy::<Operation>(handle)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescSetAttribute(
    handle: Handle,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    const TRANSPOSE_A: c_int = 3;
    const TRANSPOSE_B: c_int = 4;
    const EPILOGUE: c_int = 7;
    const BIAS_POINTER: c_int = 8;
    const NO_EPILOGUE: u32 = 1;
    const BIAS_EPILOGUE: u32 = 4;
    let set = || -> Result<(), c_int> {
        let mut operation: Operation = object(handle)?;
        let word = || match bytes {
            4 => get(value.cast::<u32>()).ok_or(INVALID_VALUE),
            _ => Err(INVALID_VALUE),
        };
        match attribute {
            TRANSPOSE_A => operation.is_a_transposed = word()? != 0,
            TRANSPOSE_B => operation.is_b_transposed = word()? != 0,
            EPILOGUE => {
                operation.has_bias = match word()? {
                    NO_EPILOGUE => false,
                    BIAS_EPILOGUE => true,
                    _ => return Err(NOT_SUPPORTED),
                }
            }
            BIAS_POINTER if bytes == 8 => {
                operation.bias = get(value.cast::<u64>()).ok_or(INVALID_VALUE)?;
            }
            _ => return Err(NOT_SUPPORTED),
        }
        put(handle.cast(), operation);
        Ok(())
    };
    status(set())
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutCreate(
    to: *mut Handle,
    data_type: c_int,
    rows: u64,
    columns: u64,
    stride: i64,
) -> c_int {
    let Some(format) = format_of(data_type) else {
        return NOT_SUPPORTED;
    };
    if stride < rows as i64 {
        return INVALID_VALUE;
    }
    give(
        to,
        MatrixLayout {
            format,
            rows: rows as usize,
            columns: columns as usize,
            stride: stride as usize,
        },
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutDestroy(handle: Handle) -> c_int {
    destroy::<MatrixLayout>(handle)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceCreate(to: *mut Handle) -> c_int {
    give(to, Preference::default())
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceDestroy(handle: Handle) -> c_int {
    destroy::<Preference>(handle)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    handle: Handle,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    const WORKSPACE_BYTES: c_int = 1;
    if attribute == WORKSPACE_BYTES {
        let (Some(workspace_bytes), 8) = (get(value.cast::<u64>()), bytes) else {
            return INVALID_VALUE;
        };
        put(handle.cast(), Preference { workspace_bytes });
    }
    SUCCESS
}

/// A product with its matrices' layouts, checked against each other.
#[derive(Clone, Copy)]
struct CheckedProduct {
    operation: Operation,
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    d: MatrixLayout,
    inner: usize,
}

/// Operands of a product.
const OPERANDS: [&str; 6] = ["A", "B", "C", "D", "bias", "workspace"];

impl CheckedProduct {
    /// Address and bytes of each of the [`OPERANDS`]; no bytes where one is not used.
    fn ranges(&self, addresses: [u64; 6], beta: f32, workspace_bytes: u64) -> [(u64, u64); 6] {
        let c_bytes = if beta == 0.0 { 0 } else { self.c.span_bytes() };
        let bias_bytes = if self.operation.has_bias {
            (self.d.rows * self.d.format.bytes()) as u64
        } else {
            0
        };
        let [a, b, d] = [&self.a, &self.b, &self.d].map(|one| one.span_bytes());
        let bytes = [a, b, c_bytes, d, bias_bytes, workspace_bytes];
        std::array::from_fn(|index| (addresses[index], bytes[index]))
    }

    fn new(operation: Handle, layouts: [Handle; 4]) -> Result<CheckedProduct, c_int> {
        let operation: Operation = object(operation)?;
        let [a, b, c, d]: [MatrixLayout; 4] = {
            let mut all = Vec::new();
            for layout in layouts {
                all.push(object(layout)?);
            }
            [all[0], all[1], all[2], all[3]]
        };
        let extents = |layout: MatrixLayout, is_transposed: bool| {
            if !is_transposed {
                (layout.rows, layout.columns)
            } else {
                (layout.columns, layout.rows)
            }
        };
        let (rows, inner) = extents(a, operation.is_a_transposed);
        let (other_inner, columns) = extents(b, operation.is_b_transposed);
        let fits = inner == other_inner
            && [c, d]
                .iter()
                .all(|one| (one.rows, one.columns) == (rows, columns))
            && a.format == b.format
            && c.format == d.format
            && (d.format == a.format || d.format == NumberFormat::F32);
        if !fits {
            return Err(INVALID_VALUE);
        }
        Ok(CheckedProduct {
            operation,
            a,
            b,
            c,
            d,
            inner,
        })
    }

    fn flops(&self) -> f64 {
        2.0 * self.d.rows as f64 * self.d.columns as f64 * self.inner as f64
    }

    /// Workspace that an algorithm needs; `None` where it does not do this shape.
    fn workspace_bytes(&self, algorithm: u64) -> Option<u64> {
        match algorithm {
            PLAIN | SLOW | REFUSED => Some(0),
            SPLIT if self.inner >= 2 * PARTS && self.flops() < LARGE_FLOPS => {
                Some((PARTS * self.d.rows * self.d.columns * 4) as u64)
            }
            _ => None,
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: Handle,
    operation: Handle,
    a: Handle,
    b: Handle,
    c: Handle,
    d: Handle,
    preference: Handle,
    most: c_int,
    results: *mut HeuristicResult,
    count: *mut c_int,
) -> c_int {
    let list = || -> Result<(), c_int> {
        let shape = CheckedProduct::new(operation, [a, b, c, d])?;
        let Preference { workspace_bytes } = object(preference)?;
        let all: &[u64] = if shape.flops() < LARGE_FLOPS {
            &[REFUSED, SLOW, PLAIN, SPLIT]
        } else {
            &[PLAIN]
        };
        let fitting = all.iter().filter_map(|&algorithm| {
            let bytes = shape.workspace_bytes(algorithm)?;
            (bytes <= workspace_bytes).then_some((algorithm, bytes))
        });
        let mut num_listed = 0;
        for (algorithm, bytes) in fitting.take(most.max(0) as usize) {
            let result = HeuristicResult {
                algorithm: Algorithm {
                    data: [algorithm, 0, 0, 0, 0, 0, 0, 0],
                },
                workspace_bytes: bytes as usize,
                state: SUCCESS,
                waves: 1.0,
                reserved: [0; 4],
            };
            put(results.wrapping_add(num_listed), result);
            num_listed += 1;
        }
        put(count, num_listed as c_int);
        Ok(())
    };
    status(list())
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoCheck(
    _handle: Handle,
    operation: Handle,
    a: Handle,
    b: Handle,
    c: Handle,
    d: Handle,
    algorithm: *const Algorithm,
    result: *mut HeuristicResult,
) -> c_int {
    let check = || -> Result<(), c_int> {
        let shape = CheckedProduct::new(operation, [a, b, c, d])?;
        let algorithm = get(algorithm).ok_or(INVALID_VALUE)?;
        let bytes = shape
            .workspace_bytes(algorithm.data[0])
            .ok_or(NOT_SUPPORTED)?;
        put(
            result,
            HeuristicResult {
                algorithm,
                workspace_bytes: bytes as usize,
                state: SUCCESS,
                waves: 1.0,
                reserved: [0; 4],
            },
        );
        Ok(())
    };
    status(check())
}

struct ProductTask {
    shape: CheckedProduct,
    algorithm: u64,
    alpha: f32,
    beta: f32,
    /// Addresses of the [`OPERANDS`].
    addresses: [u64; 6],
    workspace_bytes: u64,
    key: Option<Vec<u64>>,
}

impl ProductTask {
    /// The product of a part of the inner dimension, `[columns, rows]` row-major: D as it lies.
    fn part(&self, a: &[f32], b: &[f32], inner: std::ops::Range<usize>) -> Vec<f32> {
        let CheckedProduct {
            operation,
            a: a_layout,
            b: b_layout,
            d,
            ..
        } = &self.shape;
        // Transposed, D is B A, row-major.
        let (a_inner, a_row) = if !operation.is_a_transposed {
            (a_layout.stride, 1)
        } else {
            (1, a_layout.stride)
        };
        let (b_column, b_inner) = if !operation.is_b_transposed {
            (b_layout.stride, 1)
        } else {
            (1, b_layout.stride)
        };
        let left = Matrix {
            values: &b[inner.start * b_inner..],
            row_stride: b_column,
            column_stride: b_inner,
        };
        let right = Matrix {
            values: &a[inner.start * a_inner..],
            row_stride: a_inner,
            column_stride: a_row,
        };
        product(d.columns, d.rows, inner.len(), left, right)
    }
}

impl Task for ProductTask {
    fn run(&self, memory: &Memory) -> Result<(), CardFault> {
        let shape = &self.shape;
        let ranges = shape.ranges(self.addresses, self.beta, self.workspace_bytes);
        for (name, (address, bytes)) in OPERANDS.iter().zip(ranges) {
            if memory.leaves_tensors(address, bytes) {
                return Err(CardFault {
                    code: code::ILLEGAL_ADDRESS,
                    message: format!("cublasLtMatmul: {name} of {bytes} bytes leaves its tensor"),
                });
            }
        }
        let [a_at, b_at, c_at, d_at, bias_at, workspace] = self.addresses;
        if shape.d.rows == 0 || shape.d.columns == 0 {
            return Ok(());
        }
        let (mut a, mut b) = (shape.a.read(a_at), shape.b.read(b_at));
        if shape.operation.is_tf32 {
            round_to_tf32(&mut a);
            round_to_tf32(&mut b);
        }
        let sum = match self.algorithm {
            SPLIT => {
                let size = shape.d.rows * shape.d.columns;
                let middle = shape.inner / PARTS;
                for (index, inner) in [0..middle, middle..shape.inner].into_iter().enumerate() {
                    let part = self.part(&a, &b, inner);
                    NumberFormat::F32.write(workspace + (index * size * 4) as u64, &part);
                }
                let mut parts = vec![0f32; PARTS * size];
                NumberFormat::F32.read(workspace, PARTS * size, 1, &mut parts);
                let (first, second) = parts.split_at(size);
                first
                    .iter()
                    .zip(second)
                    .map(|(one, other)| one + other)
                    .collect()
            }
            _ => self.part(&a, &b, 0..shape.inner),
        };
        let rows = shape.d.rows;
        let mut bias = vec![0f32; rows];
        if shape.operation.has_bias {
            shape.d.format.read(bias_at, rows, 1, &mut bias);
        }
        let mut column = vec![0f32; rows];
        for (index, sum) in sum.chunks_exact(rows).enumerate() {
            if self.beta != 0.0 {
                let offset = (index * shape.c.stride * shape.c.format.bytes()) as u64;
                shape.c.format.read(c_at + offset, rows, 1, &mut column);
            }
            for ((to, sum), bias) in column.iter_mut().zip(sum).zip(&bias) {
                let added = if self.beta == 0.0 {
                    0.0
                } else {
                    self.beta * *to
                };
                *to = self.alpha * sum + added + bias;
            }
            let offset = (index * shape.d.stride * shape.d.format.bytes()) as u64;
            shape.d.format.write(d_at + offset, &column);
        }
        Ok(())
    }

    fn seconds(&self) -> f64 {
        let bytes =
            self.shape.a.span_bytes() + self.shape.b.span_bytes() + self.shape.d.span_bytes();
        let rate = match self.shape.a.format {
            NumberFormat::F32 if !self.shape.operation.is_tf32 => FLOPS_PER_SECOND,
            NumberFormat::F32 => 2.0 * FLOPS_PER_SECOND,
            NumberFormat::F16 | NumberFormat::Bf16 => 4.0 * FLOPS_PER_SECOND,
        };
        let seconds =
            SECONDS_PER_KERNEL + self.shape.flops() / rate + bytes as f64 / BYTES_PER_SECOND;
        // Splitting pays where there are few results.
        let is_long = self.shape.inner > 4 * (self.shape.d.rows + self.shape.d.columns);
        match self.algorithm {
            SLOW => 10.0 * seconds,
            SPLIT if is_long => 0.8 * seconds,
            SPLIT => 1.2 * seconds,
            _ => seconds,
        }
    }

    fn key(&self) -> Option<&[u64]> {
        self.key.as_deref()
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmul(
    _handle: Handle,
    operation: Handle,
    alpha: *const f32,
    a: u64,
    a_layout: Handle,
    b: u64,
    b_layout: Handle,
    beta: *const f32,
    c: u64,
    c_layout: Handle,
    d: u64,
    d_layout: Handle,
    algorithm: *const Algorithm,
    workspace: u64,
    workspace_bytes: usize,
    stream: Handle,
) -> c_int {
    let issue = || -> Result<(), c_int> {
        let shape = CheckedProduct::new(operation, [a_layout, b_layout, c_layout, d_layout])?;
        let algorithm = get(algorithm).map_or(PLAIN, |algorithm| algorithm.data[0]);
        let needed = shape.workspace_bytes(algorithm).ok_or(NOT_SUPPORTED)?;
        if algorithm == REFUSED {
            return Err(NOT_SUPPORTED);
        }
        let (alpha, beta) = (get(alpha), get(beta));
        let (Some(alpha), Some(beta)) = (alpha, beta) else {
            return Err(INVALID_VALUE);
        };
        if needed > workspace_bytes as u64 {
            return Err(INVALID_VALUE);
        }
        let (mut machine, card) = current_card().map_err(|_| EXECUTION_FAILED)?;
        let addresses = [a, b, c, d, shape.operation.bias, workspace];
        let ranges = shape.ranges(addresses, beta, needed);
        for (name, (address, bytes)) in OPERANDS.iter().zip(ranges) {
            if bytes > 0 && !machine.reaches(card, address, bytes) {
                let place = machine.cards[card].memory.describe(address);
                eprintln!(
                    "software card: cublasLtMatmul: {name} of {bytes} bytes at {address:#x} ({place}) does not lie in one allocation"
                );
                machine.cards[card].fault = Some(code::ILLEGAL_ADDRESS);
                return Err(EXECUTION_FAILED);
            }
        }
        let is_on_card =
            |(address, bytes): (u64, u64)| machine.cards[card].memory.contains(address, bytes);
        let can_repeat = beta == 0.0 && ranges[..2].iter().all(|&range| is_on_card(range));
        let overlaps =
            |(address, bytes): (u64, u64)| address < d + ranges[3].1 && d < address + bytes;
        let can_repeat = can_repeat
            && !ranges[..2].iter().any(|&range| overlaps(range))
            && !shape.operation.has_bias;
        let key = can_repeat.then(|| {
            let layouts = [shape.a, shape.b, shape.d];
            let extents = layouts
                .iter()
                .flat_map(|one| [one.rows, one.columns, one.stride]);
            let flags = [
                shape.operation.is_tf32,
                shape.operation.is_a_transposed,
                shape.operation.is_b_transposed,
            ];
            let formats = layouts.map(|one| one.format as u64);
            let mut key: Vec<u64> = extents.map(|extent| extent as u64).collect();
            key.extend(flags.map(u64::from));
            key.extend(formats);
            key.extend(addresses);
            key.extend([algorithm, u64::from(alpha.to_bits())]);
            key
        });
        let task = ProductTask {
            shape,
            algorithm,
            alpha,
            beta,
            addresses,
            workspace_bytes: needed,
            key,
        };
        machine
            .put(number(stream), Arc::new(task))
            .map_err(|_| EXECUTION_FAILED)
    };
    status(issue())
}
