//! libcudnn: convolutions and their gradients, through the graph interface of version 9.
//!
//! Descriptors are maps of attributes; a descriptor that an attribute refers to is copied, so that the caller may destroy the original.
//! The heuristic proposes several engines: plain engines with and without a workspace, one in TF32, one whose sums have no fixed order, one
//! that fails to make a plan, and a slow one.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::{current_card, open_library};
use crate::foreign::{Handle, list, number, put, put_list, put_text};
use crate::memory::Memory;
use crate::model::{BYTES_PER_SECOND, FLOPS_PER_SECOND, SECONDS_PER_KERNEL};
use crate::numbers::{Matrix, NumberFormat, product, round_to_tf32};
use crate::streams::{CardFault, Task, code};

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 1001;
const BAD_PARAMETER: c_int = 2000;
const NOT_SUPPORTED: c_int = 3000;
const ALLOCATION_FAILED: c_int = 4000;
const EXECUTION_FAILED: c_int = 5000;

/// Card memory that the library takes when it is opened, as measured on a real card.
const LIBRARY_BYTES: u64 = (65 << 20) / 10;

const ENGINE: c_int = 2;
const ENGINE_CONFIG: c_int = 3;
const PLAN: c_int = 5;
const KNOB_CHOICE: c_int = 7;
const FORWARD: c_int = 10;
const WEIGHT_GRAD: c_int = 11;
const INPUT_GRAD: c_int = 12;

const HEURISTIC_MODE: c_int = 200;
const HEURISTIC_GRAPH: c_int = 201;
const HEURISTIC_RESULTS: c_int = 202;
const CONFIG_ENGINE: c_int = 300;
const CONFIG_KNOBS: c_int = 302;
const PLAN_CONFIG: c_int = 401;
const PLAN_WORKSPACE: c_int = 402;
const KNOB_TYPE: c_int = 600;
const KNOB_VALUE: c_int = 601;
const GRAPH_OPERATIONS: c_int = 801;
const PACK_IDS: c_int = 1000;
const PACK_POINTERS: c_int = 1001;
const PACK_WORKSPACE: c_int = 1003;
const ENGINE_GRAPH: c_int = 1300;
const ENGINE_INDEX: c_int = 1301;
const ENGINE_NOTES: c_int = 1303;

const INT64: c_int = 3;
const KNOB: c_int = 9;
const NOTE: c_int = 11;
const DESCRIPTOR: c_int = 15;

/// Engine numbers.
const PLAIN: i64 = 0;
const TENSOR_CORE: i64 = 1;
const UNORDERED: i64 = 5;
const SLOW: i64 = 7;
const PLANLESS: i64 = 9;

/// Knob of the tensor cores' engine: number of parts that sums are split into.
const SPLIT_KNOB: i32 = 11;

/// Workspace of the engine with a workspace.
const WORKSPACE_BYTES: i64 = 1 << 20;

#[derive(Clone, Debug)]
enum AttributeValue {
    /// Bytes of the values, and the size of one value.
    Plain(Vec<u8>, usize),
    Descriptors(Vec<Arc<Descriptor>>),
}

#[derive(Clone, Debug)]
struct Descriptor {
    kind: c_int,
    attributes: HashMap<c_int, AttributeValue>,
}

impl Descriptor {
    fn new(kind: c_int) -> Descriptor {
        Descriptor {
            kind,
            attributes: HashMap::new(),
        }
    }

    fn with_number(mut self, attribute: c_int, value: i64) -> Descriptor {
        let value = AttributeValue::Plain(value.to_ne_bytes().to_vec(), 8);
        self.attributes.insert(attribute, value);
        self
    }

    fn with_words(mut self, attribute: c_int, values: &[i32]) -> Descriptor {
        let bytes = values.iter().flat_map(|value| value.to_ne_bytes());
        let value = AttributeValue::Plain(bytes.collect(), 4);
        self.attributes.insert(attribute, value);
        self
    }

    fn with_descriptors(mut self, attribute: c_int, all: Vec<Arc<Descriptor>>) -> Descriptor {
        self.attributes
            .insert(attribute, AttributeValue::Descriptors(all));
        self
    }

    fn numbers(&self, attribute: c_int) -> Result<Vec<i64>, c_int> {
        match self.attributes.get(&attribute) {
            Some(AttributeValue::Plain(bytes, 8)) => Ok(bytes
                .chunks_exact(8)
                .filter_map(|eight| eight.try_into().ok().map(i64::from_ne_bytes))
                .collect()),
            Some(AttributeValue::Plain(bytes, 4)) => Ok(bytes
                .chunks_exact(4)
                .filter_map(|four| four.try_into().ok().map(i32::from_ne_bytes))
                .map(i64::from)
                .collect()),
            _ => Err(BAD_PARAMETER),
        }
    }

    fn number(&self, attribute: c_int) -> Result<i64, c_int> {
        self.numbers(attribute)?
            .first()
            .copied()
            .ok_or(BAD_PARAMETER)
    }

    fn float(&self, attribute: c_int) -> Result<f32, c_int> {
        let bits = self.number(attribute)?;
        Ok(f32::from_bits(bits as u32))
    }

    fn descriptor(&self, attribute: c_int) -> Result<&Arc<Descriptor>, c_int> {
        match self.attributes.get(&attribute) {
            Some(AttributeValue::Descriptors(all)) => all.first().ok_or(BAD_PARAMETER),
            _ => Err(BAD_PARAMETER),
        }
    }
}

/// The object behind a caller's descriptor handle.
struct Held {
    contents: Mutex<Arc<Descriptor>>,
}

impl Held {
    fn contents(&self) -> Arc<Descriptor> {
        self.contents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn replace(&self, contents: Descriptor) {
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(contents);
    }
}

fn held(handle: Handle) -> Result<&'static Held, c_int> {
    // SAFETY: created in `cudnnBackendCreateDescriptor`, and alive until the caller destroys it.
    unsafe { handle.cast::<Held>().as_ref() }.ok_or(BAD_PARAMETER)
}

fn status(answer: Result<(), c_int>) -> c_int {
    answer.err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    91_300
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetLastErrorString(to: *mut c_char, room: usize) {
    put_text(to, room, "the software card does not do this");
}

/// A library handle, with the stream of its work.
struct Library {
    stream: Mutex<u64>,
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnCreate(to: *mut Handle) -> c_int {
    match open_library(LIBRARY_BYTES) {
        Ok(true) => {
            let library = Library {
                stream: Mutex::new(0),
            };
            put(to, Box::into_raw(Box::new(library)).cast());
            SUCCESS
        }
        Ok(false) => ALLOCATION_FAILED,
        Err(_) => NOT_INITIALIZED,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(handle: Handle) -> c_int {
    if handle.is_null() {
        return BAD_PARAMETER;
    }
    if let Ok((mut machine, card)) = current_card() {
        machine.cards[card].memory.give_small(LIBRARY_BYTES);
    }
    // SAFETY: created in `cudnnCreate`, and destroyed once.
    drop(unsafe { Box::from_raw(handle.cast::<Library>()) });
    SUCCESS
}

fn library(handle: Handle) -> Result<&'static Library, c_int> {
    // SAFETY: created in `cudnnCreate`, and alive until the caller destroys it.
    unsafe { handle.cast::<Library>().as_ref() }.ok_or(BAD_PARAMETER)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(handle: Handle, stream: Handle) -> c_int {
    status(library(handle).map(|library| {
        *library
            .stream
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = number(stream);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendCreateDescriptor(kind: c_int, to: *mut Handle) -> c_int {
    let made = Held {
        contents: Mutex::new(Arc::new(Descriptor::new(kind))),
    };
    put(to, Box::into_raw(Box::new(made)).cast());
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendDestroyDescriptor(handle: Handle) -> c_int {
    if handle.is_null() {
        return BAD_PARAMETER;
    }
    // SAFETY: created in `cudnnBackendCreateDescriptor`, and destroyed once.
    drop(unsafe { Box::from_raw(handle.cast::<Held>()) });
    SUCCESS
}

/// Size of one value of an attribute's type.
fn size_of_type(of: c_int) -> Result<usize, c_int> {
    match of {
        // Formats, modes, knobs and notes are C's enums.
        1 | 4 | 7 | 8 | KNOB | NOTE => Ok(4),
        0 | INT64 | 6 => Ok(8),
        _ => Err(BAD_PARAMETER),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendSetAttribute(
    handle: Handle,
    attribute: c_int,
    of: c_int,
    count: i64,
    values: *const c_void,
) -> c_int {
    let set = || -> Result<(), c_int> {
        let held = held(handle)?;
        let count = count.max(0) as usize;
        let value = if of == DESCRIPTOR {
            let mut all = Vec::new();
            for one in list(values.cast::<Handle>(), count) {
                all.push(self::held(one)?.contents());
            }
            AttributeValue::Descriptors(all)
        } else {
            let size = size_of_type(of)?;
            AttributeValue::Plain(list(values.cast::<u8>(), count * size), size)
        };
        let mut contents = (*held.contents()).clone();
        contents.attributes.insert(attribute, value);
        held.replace(contents);
        Ok(())
    };
    status(set())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendFinalize(handle: Handle) -> c_int {
    let finalize = || -> Result<(), c_int> {
        let held = held(handle)?;
        let contents = held.contents();
        match contents.kind {
            ENGINE => {
                let index = contents.number(ENGINE_INDEX)?;
                Convolution::new(contents.descriptor(ENGINE_GRAPH)?)?;
                let notes = notes(index).ok_or(NOT_SUPPORTED)?;
                held.replace((*contents).clone().with_words(ENGINE_NOTES, notes));
            }
            PLAN => {
                let config = contents.descriptor(PLAN_CONFIG)?;
                let engine = config.descriptor(CONFIG_ENGINE)?;
                let index = engine.number(ENGINE_INDEX)?;
                if index == PLANLESS {
                    return Err(NOT_SUPPORTED);
                }
                let bytes = match index {
                    TENSOR_CORE | UNORDERED => WORKSPACE_BYTES,
                    _ => 0,
                };
                held.replace((*contents).clone().with_number(PLAN_WORKSPACE, bytes));
            }
            _ => {}
        }
        Ok(())
    };
    status(finalize())
}

/// Numerical notes of an engine: 0 tensor cores, 1 inputs rounded to fewer digits, 4 no fixed order.
fn notes(engine: i64) -> Option<&'static [i32]> {
    match engine {
        PLAIN | SLOW | PLANLESS => Some(&[]),
        TENSOR_CORE => Some(&[0, 1]),
        UNORDERED => Some(&[0, 4]),
        _ => None,
    }
}

/// Engine configurations that the heuristic proposes for a graph, best first.
fn proposals(graph: &Arc<Descriptor>, mode: i64) -> Result<Vec<Descriptor>, c_int> {
    const FALLBACK: i64 = 2;
    let convolution = Convolution::new(graph)?;
    let is_float = convolution.inputs() == NumberFormat::F32;
    let engines: &[(i64, Option<i64>)] = if mode == FALLBACK {
        &[(PLAIN, None)]
    } else {
        &[
            (UNORDERED, None),
            (PLANLESS, None),
            (TENSOR_CORE, Some(2)),
            (TENSOR_CORE, Some(1)),
            (SLOW, None),
            (PLAIN, None),
        ]
    };
    let config = |&(index, split): &(i64, Option<i64>)| {
        // 16-bit inputs lose no digits on tensor cores.
        let notes: Vec<i32> = notes(index)
            .unwrap_or_default()
            .iter()
            .copied()
            .filter(|&note| note != 1 || is_float)
            .collect();
        let engine = Descriptor::new(ENGINE)
            .with_descriptors(ENGINE_GRAPH, vec![graph.clone()])
            .with_number(ENGINE_INDEX, index)
            .with_words(ENGINE_NOTES, &notes);
        let knobs = split.map(|split| {
            let knob = Descriptor::new(KNOB_CHOICE)
                .with_words(KNOB_TYPE, &[SPLIT_KNOB])
                .with_number(KNOB_VALUE, split);
            Arc::new(knob)
        });
        Descriptor::new(ENGINE_CONFIG)
            .with_descriptors(CONFIG_ENGINE, vec![Arc::new(engine)])
            .with_descriptors(CONFIG_KNOBS, knobs.into_iter().collect())
    };
    Ok(engines.iter().map(config).collect())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendGetAttribute(
    handle: Handle,
    attribute: c_int,
    of: c_int,
    room: i64,
    count: *mut i64,
    values: *mut c_void,
) -> c_int {
    let fetch = || -> Result<(), c_int> {
        let contents = held(handle)?.contents();
        let room = room.max(0) as usize;
        let value = if attribute == HEURISTIC_RESULTS {
            let mode = contents.number(HEURISTIC_MODE)?;
            let all = proposals(contents.descriptor(HEURISTIC_GRAPH)?, mode)?;
            AttributeValue::Descriptors(all.into_iter().map(Arc::new).collect())
        } else {
            let known = contents.attributes.get(&attribute).cloned();
            known.unwrap_or(AttributeValue::Descriptors(Vec::new()))
        };
        match value {
            AttributeValue::Descriptors(all) => {
                // The caller passes descriptors to be filled.
                let to = list(values.cast_const().cast::<Handle>(), room.min(all.len()));
                for (to, one) in to.into_iter().zip(&all) {
                    held(to)?.replace((**one).clone());
                }
                put(count, all.len() as i64);
            }
            AttributeValue::Plain(bytes, size) => {
                if size != size_of_type(of)? {
                    return Err(BAD_PARAMETER);
                }
                let there = bytes.len() / size;
                put_list(values.cast::<u8>(), &bytes[..room.min(there) * size]);
                put(count, there as i64);
            }
        }
        Ok(())
    };
    status(fetch())
}

/// Dimensions `[n, c, h, w]` and their strides, in elements.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    format: NumberFormat,
    dims: [usize; 4],
    strides: [usize; 4],
    id: i64,
}

impl Tensor {
    fn new(descriptor: &Descriptor) -> Result<Tensor, c_int> {
        let four = |attribute: c_int| -> Result<[usize; 4], c_int> {
            let all = descriptor.numbers(attribute)?;
            let all: Vec<usize> = all.into_iter().map(|one| one as usize).collect();
            all.try_into().map_err(|_| NOT_SUPPORTED)
        };
        let format = match descriptor.number(901)? {
            0 => NumberFormat::F32,
            2 => NumberFormat::F16,
            9 => NumberFormat::Bf16,
            _ => return Err(NOT_SUPPORTED),
        };
        let tensor = Tensor {
            format,
            dims: four(902)?,
            strides: four(903)?,
            id: descriptor.number(906)?,
        };
        if tensor.strides[1] != 1 {
            return Err(NOT_SUPPORTED);
        }
        Ok(tensor)
    }

    fn bytes(&self) -> u64 {
        let last: usize = self
            .dims
            .iter()
            .zip(self.strides)
            .map(|(dim, stride)| (dim - 1) * stride)
            .sum();
        ((last + 1) * self.format.bytes()) as u64
    }

    fn pixel(&self, address: u64, n: usize, h: usize, w: usize) -> u64 {
        let at = n * self.strides[0] + h * self.strides[2] + w * self.strides[3];
        address + (at * self.format.bytes()) as u64
    }

    /// Reads a sample's pixels in order, `[h, w, c]`.
    fn read(&self, address: u64, n: usize, in_tf32: bool) -> Vec<f32> {
        let [_, c, h, w] = self.dims;
        let mut values = vec![0f32; c * h * w];
        for (index, pixel) in values.chunks_exact_mut(c).enumerate() {
            let at = self.pixel(address, n, index / w, index % w);
            self.format.read(at, c, 1, pixel);
        }
        if in_tf32 {
            round_to_tf32(&mut values);
        }
        values
    }

    /// Writes `alpha values + beta previous` to a sample.
    fn write(&self, address: u64, n: usize, values: &[f32], [alpha, beta]: [f32; 2]) {
        let [_, c, _, w] = self.dims;
        let mut old = vec![0f32; c];
        for (index, pixel) in values.chunks_exact(c).enumerate() {
            let at = self.pixel(address, n, index / w, index % w);
            if beta != 0.0 {
                self.format.read(at, c, 1, &mut old);
            }
            for (old, new) in old.iter_mut().zip(pixel) {
                let kept = if beta == 0.0 { 0.0 } else { beta * *old };
                *old = alpha * new + kept;
            }
            self.format.write(at, &old);
        }
    }
}

/// A convolution or one of its gradients.
#[derive(Clone, Copy, Debug)]
struct Convolution {
    kind: c_int,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    stride: [usize; 2],
    padding: [usize; 2],
    factors: [f32; 2],
}

impl Convolution {
    fn new(graph: &Descriptor) -> Result<Convolution, c_int> {
        let operation = graph.descriptor(GRAPH_OPERATIONS)?;
        // In order: alpha, beta, convolution, x, weight, y.
        let names: [c_int; 6] = match operation.kind {
            FORWARD => [700, 701, 702, 704, 703, 705],
            INPUT_GRAD => [706, 707, 708, 710, 709, 711],
            WEIGHT_GRAD => [712, 713, 714, 716, 715, 717],
            _ => return Err(NOT_SUPPORTED),
        };
        let settings = operation.descriptor(names[2])?;
        let two = |attribute: c_int| -> Result<[usize; 2], c_int> {
            let all = settings.numbers(attribute)?;
            let all: Vec<usize> = all.into_iter().map(|one| one as usize).collect();
            all.try_into().map_err(|_| NOT_SUPPORTED)
        };
        // Only undilated convolutions with equal padding on both sides are supported.
        if two(102)? != [1, 1] || two(104)? != two(105)? || settings.number(101)? != 1 {
            return Err(NOT_SUPPORTED);
        }
        let convolution = Convolution {
            kind: operation.kind,
            x: Tensor::new(operation.descriptor(names[3])?)?,
            weight: Tensor::new(operation.descriptor(names[4])?)?,
            y: Tensor::new(operation.descriptor(names[5])?)?,
            stride: two(103)?,
            padding: two(105)?,
            factors: [operation.float(names[0])?, operation.float(names[1])?],
        };
        convolution.check()?;
        Ok(convolution)
    }

    fn check(&self) -> Result<(), c_int> {
        let [n, c, h, w] = self.x.dims;
        let [o, inputs, kh, kw] = self.weight.dims;
        let extent = |size: usize, kernel: usize, axis: usize| {
            (size + 2 * self.padding[axis])
                .checked_sub(kernel)
                .map(|rest| rest / self.stride[axis] + 1)
        };
        let dims = [Some(n), Some(o), extent(h, kh, 0), extent(w, kw, 1)];
        let fits = c == inputs && self.y.dims.map(Some) == dims;
        if fits { Ok(()) } else { Err(BAD_PARAMETER) }
    }

    fn inputs(&self) -> NumberFormat {
        match self.kind {
            FORWARD => self.x.format,
            _ => self.y.format,
        }
    }

    fn tensors(&self) -> [Tensor; 3] {
        [self.x, self.weight, self.y]
    }

    /// Calls `work` for each element of a picture under a window: offset in the columns, offset in the picture.
    fn for_places(&self, mut work: impl FnMut(usize, usize)) {
        let [_, c, h, w] = self.x.dims;
        let [_, _, kh, kw] = self.weight.dims;
        let [_, _, p, q] = self.y.dims;
        for row in 0..p * q {
            for tap in 0..kh * kw {
                let at = |place: usize, tap: usize, axis: usize, size: usize| {
                    (place * self.stride[axis] + tap)
                        .checked_sub(self.padding[axis])
                        .filter(|&at| at < size)
                };
                let (Some(i), Some(j)) = (at(row / q, tap / kw, 0, h), at(row % q, tap % kw, 1, w))
                else {
                    continue;
                };
                work((row * kh * kw + tap) * c, (i * w + j) * c);
            }
        }
    }
}

struct ConvolutionTask {
    convolution: Convolution,
    /// Addresses of x, weight and y.
    addresses: [u64; 3],
    engine: i64,
    split: i64,
}

impl ConvolutionTask {
    /// im2col: the elements of a picture under each window, one row per pixel of y.
    fn columns(&self, picture: &[f32], width: usize, rows: usize) -> Vec<f32> {
        let c = self.convolution.x.dims[1];
        let mut columns = vec![0f32; rows * width];
        self.convolution.for_places(|to, from| {
            columns[to..to + c].copy_from_slice(&picture[from..from + c]);
        });
        columns
    }
}

fn rows_of(values: &[f32], width: usize) -> Matrix<'_> {
    Matrix {
        values,
        row_stride: width,
        column_stride: 1,
    }
}

fn columns_of(values: &[f32], width: usize) -> Matrix<'_> {
    Matrix {
        values,
        row_stride: 1,
        column_stride: width,
    }
}

impl Task for ConvolutionTask {
    fn run(&self, _memory: &Memory) -> Result<(), CardFault> {
        let all = &self.convolution;
        let [x_at, weight_at, y_at] = self.addresses;
        let in_tf32 = self.engine == TENSOR_CORE && all.inputs() == NumberFormat::F32;
        let [n, c, h, w] = all.x.dims;
        let [o, _, kh, kw] = all.weight.dims;
        let (rows, width) = (all.y.dims[2] * all.y.dims[3], kh * kw * c);
        let weight = |tensor: &Tensor| -> Vec<f32> {
            (0..o)
                .flat_map(|out| tensor.read(weight_at, out, in_tf32))
                .collect()
        };
        match all.kind {
            FORWARD => {
                let weight = weight(&all.weight);
                for sample in 0..n {
                    let columns = self.columns(&all.x.read(x_at, sample, in_tf32), width, rows);
                    let y = product(
                        rows,
                        o,
                        width,
                        rows_of(&columns, width),
                        columns_of(&weight, width),
                    );
                    all.y.write(y_at, sample, &y, all.factors);
                }
            }
            INPUT_GRAD => {
                let weight = weight(&all.weight);
                for sample in 0..n {
                    let dy = all.y.read(y_at, sample, in_tf32);
                    let columns = product(rows, width, o, rows_of(&dy, o), rows_of(&weight, width));
                    let mut dx = vec![0f32; h * w * c];
                    all.for_places(|from, to| {
                        let added = &columns[from..from + c];
                        dx[to..to + c]
                            .iter_mut()
                            .zip(added)
                            .for_each(|(to, one)| *to += one);
                    });
                    all.x.write(x_at, sample, &dx, all.factors);
                }
            }
            _ => {
                // Samples are split over as many sums as the knob says, which are added at the end.
                let parts = self.split.max(1) as usize;
                let mut sums = vec![vec![0f32; o * width]; parts];
                for sample in 0..n {
                    let columns = self.columns(&all.x.read(x_at, sample, in_tf32), width, rows);
                    let dy = all.y.read(y_at, sample, in_tf32);
                    let part =
                        product(o, width, rows, columns_of(&dy, o), rows_of(&columns, width));
                    let sum = &mut sums[sample % parts];
                    sum.iter_mut().zip(&part).for_each(|(sum, one)| *sum += one);
                }
                let dw: Vec<f32> = (0..o * width)
                    .map(|index| sums.iter().map(|sum| sum[index]).sum())
                    .collect();
                for (out, row) in dw.chunks_exact(width).enumerate() {
                    all.weight.write(weight_at, out, row, all.factors);
                }
            }
        }
        Ok(())
    }

    fn seconds(&self) -> f64 {
        let all = &self.convolution;
        let y: usize = all.y.dims.iter().product();
        let per_place: usize = all.weight.dims[1..].iter().product();
        let bytes: u64 = all.tensors().iter().map(Tensor::bytes).sum();
        let flops = 2.0 * y as f64 * per_place as f64;
        let rate = match self.engine {
            TENSOR_CORE => (4 + self.split) as f64,
            SLOW => 0.1,
            _ => 1.0,
        };
        SECONDS_PER_KERNEL + flops / (rate * FLOPS_PER_SECOND) + bytes as f64 / BYTES_PER_SECOND
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendExecute(handle: Handle, plan: Handle, pack: Handle) -> c_int {
    let execute = || -> Result<(), c_int> {
        let library = library(handle)?;
        let stream = *library
            .stream
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (plan, pack) = (held(plan)?.contents(), held(pack)?.contents());
        let config = plan.descriptor(PLAN_CONFIG)?;
        let engine = config.descriptor(CONFIG_ENGINE)?;
        let convolution = Convolution::new(engine.descriptor(ENGINE_GRAPH)?)?;
        let split = match config.descriptor(CONFIG_KNOBS) {
            Ok(knob) => knob.number(KNOB_VALUE)?,
            Err(_) => 1,
        };
        let ids = pack.numbers(PACK_IDS)?;
        let pointers = pack.numbers(PACK_POINTERS)?;
        let workspace = pack.number(PACK_WORKSPACE)? as u64;
        let (mut machine, card) = current_card().map_err(|_| EXECUTION_FAILED)?;
        let mut addresses = [0u64; 3];
        let mut ranges = vec![("workspace", workspace, plan.number(PLAN_WORKSPACE)? as u64)];
        for (index, (name, tensor)) in ["x", "weight", "y"]
            .iter()
            .zip(convolution.tensors())
            .enumerate()
        {
            let place = ids
                .iter()
                .position(|&id| id == tensor.id)
                .ok_or(BAD_PARAMETER)?;
            addresses[index] = *pointers.get(place).ok_or(BAD_PARAMETER)? as u64;
            ranges.push((name, addresses[index], tensor.bytes()));
        }
        for (name, address, bytes) in ranges {
            if bytes > 0 && !machine.reaches(card, address, bytes) {
                let place = machine.cards[card].memory.describe(address);
                eprintln!(
                    "software card: cudnnBackendExecute: {name} of {bytes} bytes at {address:#x} ({place}) does not lie in one allocation"
                );
                machine.cards[card].fault = Some(code::ILLEGAL_ADDRESS);
                return Err(EXECUTION_FAILED);
            }
        }
        let task = ConvolutionTask {
            convolution,
            addresses,
            engine: engine.number(ENGINE_INDEX)?,
            split,
        };
        machine
            .put(stream, Arc::new(task))
            .map_err(|_| EXECUTION_FAILED)
    };
    status(execute())
}
