//! Convolutions by cuDNN. For each shape, an engine is chosen once by timing, among those whose sums have a fixed order, and kept.
//!
//! Tensors are channels-last, `y[n, p, q, o] = sum over k, l, c of x[n, p s + k - pad, q s + l - pad, c] w[o, k, l, c]`; a pixel's
//! channels are contiguous, pixels may have a larger stride. An engine with its settings has a name made of numbers,
//! `ENGINE KNOB=VALUE ...`, which is stored on disk and in checkpoints.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use super::cudnn::{
    Descriptor, DescriptorKind, HEURISTIC_A, HEURISTIC_FALLBACK, Handle, Type, attribute, note,
};
use super::driver::Stream;
use super::product::{ProductFormat, timed, timed_once};
use crate::DeviceError;

/// The tensor that is computed from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Computed {
    /// y from x and w.
    Output,
    /// dx from dy and w.
    InputGrad,
    /// dw from dy and x.
    WeightGrad,
}

/// Shape of pictures, `[n, h, w, c]`, and their distance between pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Picture {
    pub dims: [usize; 4],
    pub pixel_stride: usize,
}

/// Shape of a convolution, or of one of its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Convolution {
    pub computed: Computed,
    pub x: Picture,
    /// `[out, kh, kw, in]`, contiguous.
    pub weight: [usize; 4],
    pub y: Picture,
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    /// Format of the two tensors that are read.
    pub inputs: ProductFormat,
    /// Format of the tensor that is computed.
    pub output: ProductFormat,
    /// The result is added to the previous contents.
    pub adds: bool,
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:?}/{} {:?} {:?}/{} {:?} {:?} {:?} {:?} {}",
            self.computed,
            self.x.dims,
            self.x.pixel_stride,
            self.weight,
            self.y.dims,
            self.y.pixel_stride,
            self.stride,
            self.padding,
            self.inputs,
            self.output,
            self.adds
        )
    }
}

/// Addresses of x, w and y.
pub(super) type Addresses = [u64; 3];

/// Offsets in the plan are multiples of 256; a slice of channels begins at a multiple of 16 bytes.
const ALIGNMENT: i64 = 16;

/// Number of engines that are timed for a shape. The library's order is a guess: the fastest was the 40th of 40 for some shapes of a U-Net
/// on an H200, and timing all of them takes a tenth of a second. For large shapes, timing stops after [`TIMING_SECONDS`], with at least
/// [`TIMED_AT_LEAST`] engines.
const TIMED: usize = 40;
const TIMED_AT_LEAST: usize = 8;
const TIMING_SECONDS: f64 = 0.4;

/// A run that takes this long, or this many times as long as the fastest, is not repeated: with repetitions, choosing engines for 25
/// pictures of 2048 x 2048 in f32 took 90 s.
const SLOW_SECONDS: f64 = 5e-3;
const SLOWER: f64 = 3.0;

struct Ready {
    plan: Descriptor,
    name: String,
    workspace_bytes: u64,
}

/// The library, and the engines chosen so far.
pub(super) struct Convolutions {
    handle: Mutex<Option<Handle>>,
    ready: Mutex<HashMap<Convolution, Ready>>,
    /// Text of a convolution -> name of its engine, chosen in this run or an earlier one.
    chosen: Mutex<HashMap<String, String>>,
}

// SAFETY: the handle and descriptors are used behind locks alone; the library lets any thread use them.
unsafe impl Send for Convolutions {}
// SAFETY: as above.
unsafe impl Sync for Convolutions {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("never poisoned: nothing panics with it")
}

fn data_type(format: ProductFormat) -> i32 {
    match format {
        ProductFormat::F32 | ProductFormat::Tf32 => 0,
        ProductFormat::F16 => 2,
        ProductFormat::Bf16 => 9,
    }
}

fn tensor(
    id: i64,
    format: ProductFormat,
    [n, h, w, c]: [usize; 4],
    pixel_stride: usize,
) -> Result<Descriptor, DeviceError> {
    let number = |value: usize| value as i64;
    let tensor = Descriptor::new(DescriptorKind::Tensor)?;
    // cuDNN's order of dimensions is batch, channels, height, width, whatever the strides are.
    let dims = [n, c, h, w].map(number);
    let strides = [h * w * pixel_stride, 1, w * pixel_stride, pixel_stride].map(number);
    tensor.set(
        attribute::TENSOR_DATA_TYPE,
        Type::Format,
        &[data_type(format)],
    )?;
    tensor.set(attribute::TENSOR_DIMENSIONS, Type::Int64, &dims)?;
    tensor.set(attribute::TENSOR_STRIDES, Type::Int64, &strides)?;
    tensor.set(attribute::TENSOR_ID, Type::Int64, &[id])?;
    tensor.set(attribute::TENSOR_ALIGNMENT, Type::Int64, &[ALIGNMENT])?;
    tensor.finalized()
}

impl Convolution {
    /// The operation as a graph of one node.
    fn graph(&self, handle: &Handle) -> Result<Descriptor, DeviceError> {
        let format = |is_result: bool| if is_result { self.output } else { self.inputs };
        let of = |computed: Computed| format(self.computed == computed);
        let x = tensor(0, of(Computed::InputGrad), self.x.dims, self.x.pixel_stride)?;
        let w = tensor(1, of(Computed::WeightGrad), self.weight, self.weight[3])?;
        let y = tensor(2, of(Computed::Output), self.y.dims, self.y.pixel_stride)?;
        let convolution = Descriptor::new(DescriptorKind::Convolution)?;
        let numbers = |values: [usize; 2]| values.map(|value| value as i64);
        let in_f32 = data_type(ProductFormat::F32);
        const CROSS_CORRELATION: i32 = 1;
        convolution.set(attribute::CONVOLUTION_COMPUTE_TYPE, Type::Format, &[in_f32])?;
        convolution.set(
            attribute::CONVOLUTION_MODE,
            Type::ConvolutionMode,
            &[CROSS_CORRELATION],
        )?;
        convolution.set(attribute::CONVOLUTION_SPATIAL_DIMS, Type::Int64, &[2i64])?;
        for (attribute, values) in [
            (attribute::CONVOLUTION_DILATIONS, [1, 1]),
            (attribute::CONVOLUTION_STRIDES, self.stride),
            (attribute::CONVOLUTION_PRE_PADDINGS, self.padding),
            (attribute::CONVOLUTION_POST_PADDINGS, self.padding),
        ] {
            convolution.set(attribute, Type::Int64, &numbers(values))?;
        }
        let convolution = convolution.finalized()?;
        let (kind, names) = match self.computed {
            Computed::Output => (DescriptorKind::Forward, attribute::FORWARD),
            Computed::InputGrad => (DescriptorKind::InputGrad, attribute::INPUT_GRAD),
            Computed::WeightGrad => (DescriptorKind::WeightGrad, attribute::WEIGHT_GRAD),
        };
        let operation = Descriptor::new(kind)?;
        let beta = if self.adds { 1f32 } else { 0f32 };
        operation.set(names[0], Type::Float, &[1f32])?;
        operation.set(names[1], Type::Float, &[beta])?;
        for (name, one) in names[2..].iter().zip([&convolution, &x, &w, &y]) {
            operation.set_descriptors(*name, &[one])?;
        }
        let operation = operation.finalized()?;
        let graph = Descriptor::new(DescriptorKind::Graph)?;
        graph.set_handle(attribute::GRAPH_HANDLE, handle)?;
        graph.set_descriptors(attribute::GRAPH_OPERATIONS, &[&operation])?;
        graph.finalized()
    }
}

/// Whether an engine is deterministic and computes in the full precision of the format.
fn is_exact(engine: &Descriptor, inputs: ProductFormat) -> Result<bool, DeviceError> {
    let mut notes = [0i32; 16];
    let count = engine.get(
        attribute::ENGINE_NUMERICAL_NOTES,
        Type::NumericalNote,
        &mut notes,
    )?;
    let refused = |one: &i32| match *one {
        note::NONDETERMINISTIC | note::REDUCED_PRECISION_SUMS | note::FFT | note::WINOGRAD => true,
        note::DOWN_CONVERT_INPUTS => inputs != ProductFormat::Tf32,
        note::TENSOR_CORE => inputs == ProductFormat::F32,
        _ => false,
    };
    Ok(!notes[..count].iter().any(refused))
}

/// Name of an engine: its number and the settings of its knobs.
fn name_of(config: &Descriptor, engine: &Descriptor) -> Result<String, DeviceError> {
    let mut index = [0i64];
    engine.get(attribute::ENGINE_INDEX, Type::Int64, &mut index)?;
    let mut name = index[0].to_string();
    const MOST_KNOBS: usize = 64;
    for choice in config.get_descriptors(
        attribute::CONFIG_KNOBS,
        DescriptorKind::KnobChoice,
        MOST_KNOBS,
    )? {
        let (mut knob, mut value) = ([0i32], [0i64]);
        choice.get(attribute::KNOB_TYPE, Type::Knob, &mut knob)?;
        choice.get(attribute::KNOB_VALUE, Type::Int64, &mut value)?;
        name += &format!(" {}={}", knob[0], value[0]);
    }
    Ok(name)
}

/// The engine configuration with this name.
fn config_of(name: &str, graph: &Descriptor) -> Result<Option<Descriptor>, DeviceError> {
    let mut words = name.split(' ');
    let Some(index) = words.next().and_then(|word| word.parse::<i64>().ok()) else {
        return Ok(None);
    };
    let engine = Descriptor::new(DescriptorKind::Engine)?;
    engine.set_descriptors(attribute::ENGINE_GRAPH, &[graph])?;
    engine.set(attribute::ENGINE_INDEX, Type::Int64, &[index])?;
    let engine = engine.finalized()?;
    let mut choices = Vec::new();
    for word in words {
        let knob = word.split_once('=');
        let knob = knob.and_then(|(knob, value)| {
            Some((knob.parse::<i32>().ok()?, value.parse::<i64>().ok()?))
        });
        let Some((knob, value)) = knob else {
            return Ok(None);
        };
        let choice = Descriptor::new(DescriptorKind::KnobChoice)?;
        choice.set(attribute::KNOB_TYPE, Type::Knob, &[knob])?;
        choice.set(attribute::KNOB_VALUE, Type::Int64, &[value])?;
        choices.push(choice.finalized()?);
    }
    let config = Descriptor::new(DescriptorKind::EngineConfig)?;
    config.set_descriptors(attribute::CONFIG_ENGINE, &[&engine])?;
    if !choices.is_empty() {
        let choices: Vec<&Descriptor> = choices.iter().collect();
        config.set_descriptors(attribute::CONFIG_KNOBS, &choices)?;
    }
    config.finalized().map(Some)
}

fn plan_of(handle: &Handle, config: &Descriptor, name: String) -> Result<Ready, DeviceError> {
    let plan = Descriptor::new(DescriptorKind::Plan)?;
    plan.set_handle(attribute::PLAN_HANDLE, handle)?;
    plan.set_descriptors(attribute::PLAN_CONFIG, &[config])?;
    let plan = plan.finalized()?;
    let mut bytes = [0i64];
    plan.get(attribute::PLAN_WORKSPACE_BYTES, Type::Int64, &mut bytes)?;
    Ok(Ready {
        plan,
        name,
        workspace_bytes: bytes[0].max(0) as u64,
    })
}

fn issue(
    handle: &Handle,
    ready: &Ready,
    addresses: Addresses,
    workspace: u64,
    stream: &Stream,
) -> Result<(), DeviceError> {
    let pack = Descriptor::new(DescriptorKind::VariantPack)?;
    pack.set(attribute::PACK_IDS, Type::Int64, &[0i64, 1, 2])?;
    pack.set(attribute::PACK_POINTERS, Type::Pointer, &addresses)?;
    pack.set(attribute::PACK_WORKSPACE, Type::Pointer, &[workspace])?;
    handle.execute(&ready.plan, &pack.finalized()?, stream)
}

impl Convolutions {
    /// Opens nothing; the first convolution opens the library.
    pub fn new() -> Convolutions {
        Convolutions {
            handle: Mutex::new(None),
            ready: Mutex::default(),
            chosen: Mutex::default(),
        }
    }

    /// Sets the engines of an earlier run, for shapes that have none yet.
    pub fn prefer(&self, chosen: impl IntoIterator<Item = (String, String)>) {
        let mut all = lock(&self.chosen);
        for (key, name) in chosen {
            all.entry(key).or_insert(name);
        }
    }

    /// Chosen engines, in a fixed order.
    pub fn chosen(&self) -> Vec<(String, String)> {
        let all = lock(&self.chosen);
        let mut all: Vec<_> = all
            .iter()
            .map(|(key, name)| (key.clone(), name.clone()))
            .collect();
        all.sort();
        all
    }

    pub fn is_open(&self) -> bool {
        lock(&self.handle).is_some()
    }

    /// Opens the library, which allocates its own memory now.
    pub fn open(&self) -> Result<(), DeviceError> {
        let mut handle = lock(&self.handle);
        if handle.is_none() {
            *handle = Some(Handle::new()?);
        }
        Ok(())
    }

    /// Chooses an engine for a shape that has none; overwrites the result while timing. `workspace` is address and size.
    pub fn prepare(
        &self,
        convolution: &Convolution,
        addresses: Addresses,
        workspace: (u64, u64),
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        self.open()?;
        let mut all = lock(&self.ready);
        if all.contains_key(convolution) {
            return Ok(());
        }
        let handle = lock(&self.handle);
        let handle = handle.as_ref().expect("opened above");
        let graph = convolution.graph(handle)?;
        let text = format!("{} {convolution}", handle.version());
        let known = lock(&self.chosen).get(&text).cloned();
        let ready = match known.and_then(|name| kept(handle, &graph, name, workspace.1)) {
            // Run once: the driver loads the engine's code now, and not during the capture of a program.
            Some(ready) => {
                issue(handle, &ready, addresses, workspace.0, stream)?;
                ready
            }
            None => {
                let issue = |ready: &Ready| issue(handle, ready, addresses, workspace.0, stream);
                let ready = fastest(
                    handle,
                    &graph,
                    (&text, convolution.inputs),
                    workspace.1,
                    stream,
                    &issue,
                )?;
                lock(&self.chosen).insert(text, ready.name.clone());
                ready
            }
        };
        all.insert(*convolution, ready);
        Ok(())
    }

    /// Enqueues a prepared convolution in a stream.
    pub fn run(
        &self,
        convolution: &Convolution,
        addresses: Addresses,
        workspace: (u64, u64),
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let all = lock(&self.ready);
        let handle = lock(&self.handle);
        let (Some(handle), Some(ready)) = (handle.as_ref(), all.get(convolution)) else {
            return Err(DeviceError::Failed(format!(
                "no engine was prepared for a convolution of {convolution}"
            )));
        };
        assert!(ready.workspace_bytes <= workspace.1, "granted by the plan");
        issue(handle, ready, addresses, workspace.0, stream)
    }
}

/// The engine of an earlier run, if it still exists and supports this shape within the workspace.
fn kept(handle: &Handle, graph: &Descriptor, name: String, workspace_bytes: u64) -> Option<Ready> {
    let config = config_of(&name, graph).ok()??;
    let ready = plan_of(handle, &config, name).ok()?;
    (ready.workspace_bytes <= workspace_bytes).then_some(ready)
}

fn fastest(
    handle: &Handle,
    graph: &Descriptor,
    (text, inputs): (&str, ProductFormat),
    workspace_bytes: u64,
    stream: &Stream,
    issue: &dyn Fn(&Ready) -> Result<(), DeviceError>,
) -> Result<Ready, DeviceError> {
    let started = Instant::now();
    let mut best: Option<(f64, Ready)> = None;
    let mut failure = None;
    for mode in [HEURISTIC_A, HEURISTIC_FALLBACK] {
        if best.is_some() {
            break;
        }
        let mut num_timed = 0;
        for (config, name) in proposals(graph, mode, inputs)? {
            let is_long = started.elapsed().as_secs_f64() > TIMING_SECONDS;
            if num_timed == TIMED || (is_long && num_timed >= TIMED_AT_LEAST) {
                break;
            }
            // An engine that does not support the operation fails here, or when it runs.
            let Ok(ready) = plan_of(handle, &config, name) else {
                continue;
            };
            if ready.workspace_bytes > workspace_bytes {
                continue;
            }
            let fastest = best.as_ref().map_or(f64::INFINITY, |(seconds, _)| *seconds);
            let seconds = issue(&ready)
                .and_then(|()| timed_once(stream, || issue(&ready)))
                .and_then(|once| {
                    if once > SLOW_SECONDS || once > SLOWER * fastest {
                        Ok(once)
                    } else {
                        timed(stream, || issue(&ready))
                    }
                });
            match seconds {
                Ok(seconds) => {
                    num_timed += 1;
                    if seconds < fastest {
                        best = Some((seconds, ready));
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
    }
    match (best, failure) {
        (Some((_, ready)), _) => Ok(ready),
        (None, Some(error)) => Err(error),
        (None, None) => Err(DeviceError::Failed(format!(
            "cuDNN has no engine with a fixed order of sums for a convolution of {text} in {} of workspace\n\
             hint: channels that are a multiple of 8, or precision f32",
            holdall_files::show_bytes(workspace_bytes)
        ))),
    }
}

/// Engines that the library proposes, without those whose sums have no fixed order.
fn proposals(
    graph: &Descriptor,
    mode: i32,
    inputs: ProductFormat,
) -> Result<Vec<(Descriptor, String)>, DeviceError> {
    let heuristic = Descriptor::new(DescriptorKind::Heuristic)?;
    heuristic.set_descriptors(attribute::HEURISTIC_GRAPH, &[graph])?;
    heuristic.set(attribute::HEURISTIC_MODE, Type::HeuristicMode, &[mode])?;
    let heuristic = heuristic.finalized()?;
    const MOST: usize = 64;
    let configs = heuristic.get_descriptors(
        attribute::HEURISTIC_RESULTS,
        DescriptorKind::EngineConfig,
        MOST,
    )?;
    let mut found = Vec::new();
    for config in configs {
        let engines =
            config.get_descriptors(attribute::CONFIG_ENGINE, DescriptorKind::Engine, 1)?;
        let Some(engine) = engines.first() else {
            continue;
        };
        if is_exact(engine, inputs)? {
            let name = name_of(&config, engine)?;
            found.push((config, name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::driver::{Buffer, Context};
    use super::*;

    /// Times every proposal for the shapes of a U-Net: `HOLDALL_REQUIRE_GPU=1 ... --ignored every_engine`.
    #[test]
    #[ignore = "needs a GPU; prints a table"]
    fn every_engine_of_a_u_net() {
        super::super::libraries::load().unwrap();
        let context = Context::new(0).unwrap();
        context.bind().unwrap();
        let stream = Stream::new().unwrap();
        let memory = || context.memory().unwrap().0 >> 20;
        let before = memory();
        let convolutions = Convolutions::new();
        convolutions.open().unwrap();
        println!("opening cuDNN took {} MiB", before - memory());
        let workspace = Buffer::new(1 << 30).unwrap();
        let sizes = [1usize << 30; 3];
        let tensors = sizes.map(|bytes| Buffer::new(bytes as u64).unwrap());
        let full: Vec<u16> = (0..1usize << 29)
            .map(|i| 0x2c00 | (((i as u32).wrapping_mul(2654435761) >> 16) as u16 & 0x83ff))
            .collect();
        for tensor in &tensors {
            stream
                .upload(tensor.address, full.as_ptr().cast(), 1 << 30)
                .unwrap();
        }
        stream.wait().unwrap();
        let addresses = [0, 1, 2].map(|index| tensors[index].address);
        let side = |levels: usize| 1024 >> levels;
        let mut shapes = vec![(3usize, 8usize, 64usize, 1024usize, 0usize)];
        for level in 0..5 {
            let c = 64 << level;
            shapes.push((3, c, c, side(level), 0));
            if level < 4 {
                shapes.push((3, 2 * c, c, side(level), 0));
                shapes.push((3, c, 2 * c, side(level + 1), 0));
                // Transposed: the input gradient of a 2 x 2 convolution.
                shapes.push((2, c, 2 * c, side(level), 0));
            }
        }
        // Pictures that are a slice of channels.
        shapes.push((2, 64, 128, 1024, 128));
        shapes.push((3, 64, 64, 1024, 128));
        shapes.push((1, 64, 8, 1024, 0));
        for (kernel, c, o, edge, pixel_stride) in shapes {
            let (stride, padding, out) = match kernel {
                2 => ([2, 2], [0, 0], edge / 2),
                1 => ([1, 1], [0, 0], edge),
                _ => ([1, 1], [1, 1], edge),
            };
            let flops = 2.0 * (out * out * o * kernel * kernel * c) as f64;
            for computed in [Computed::Output, Computed::InputGrad, Computed::WeightGrad] {
                let outputs: &[(ProductFormat, bool)] = match computed {
                    Computed::WeightGrad => &[
                        (ProductFormat::F16, false),
                        (ProductFormat::F32, false),
                        (ProductFormat::F32, true),
                    ],
                    _ => &[(ProductFormat::F16, false)],
                };
                for &(output, adds) in outputs {
                    let convolution = Convolution {
                        computed,
                        x: Picture {
                            dims: [1, edge, edge, c],
                            pixel_stride: pixel_stride.max(c),
                        },
                        weight: [o, kernel, kernel, c],
                        y: Picture {
                            dims: [1, out, out, o],
                            pixel_stride: o,
                        },
                        stride,
                        padding,
                        inputs: ProductFormat::F16,
                        output,
                        adds,
                    };
                    let handle = lock(&convolutions.handle);
                    let handle = handle.as_ref().unwrap();
                    let graph = match convolution.graph(handle) {
                        Ok(graph) => graph,
                        Err(error) => {
                            println!("{convolution}: {error}");
                            continue;
                        }
                    };
                    let all = proposals(&graph, HEURISTIC_A, ProductFormat::F16).unwrap();
                    let mut rows = Vec::new();
                    let (count, started) = (all.len(), std::time::Instant::now());
                    for (place, (config, name)) in all.into_iter().enumerate() {
                        let Ok(ready) = plan_of(handle, &config, name) else {
                            continue;
                        };
                        if ready.workspace_bytes > 1 << 30 {
                            continue;
                        }
                        let issue = || issue(handle, &ready, addresses, workspace.address, &stream);
                        if issue().is_err() {
                            continue;
                        }
                        let Ok(seconds) = timed(&stream, issue) else {
                            continue;
                        };
                        rows.push((seconds, place, ready.workspace_bytes >> 10, ready.name));
                    }
                    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
                    println!(
                        "{computed:?} k{kernel} {c}->{o} at {edge} stride {pixel_stride} {output:?} adds {adds}: {count} proposals, {:.1} s, memory {} MiB",
                        started.elapsed().as_secs_f64(),
                        before - memory(),
                    );
                    for (seconds, place, kib, name) in rows.iter().take(4) {
                        println!(
                            "   {:8.1} us {:6.0} TFLOP/s  place {place:2}  {kib} KiB  {name}",
                            seconds * 1e6,
                            flops / seconds / 1e12
                        );
                    }
                }
            }
        }
    }
}
