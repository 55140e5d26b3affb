//! The card, small runs on it, and what tests leave out where it is the software card.

use std::io::Write;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use holdall_device::{Arithmetic, Device, DeviceChoice, cuda};
use holdall_models::clip::config::{TextConfig, TextPooling};
use holdall_models::config::ClipConfig;
use holdall_models::folder::Elements;
use holdall_models::vit::config::VisionConfig;
use holdall_plan::{HostState, Recompute};
use holdall_train::config::{Precision, RunConfig};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::scaler::LossScaler;
use holdall_train::engine::schedule::LearningRates;
use holdall_train::engine::step::{Step, StepReport};
use holdall_train::engine::step_graph::StepConfig;
use holdall_train::engine::task::Task;
use holdall_train::planning::setup::Setup;
use holdall_train::tasks::clip::ClipTask;

use crate::support::{self, Split, config_of, draw_weights, without_some_labels};

pub const ALL: [Arithmetic; 4] = [
    Arithmetic::F32,
    Arithmetic::Tf32,
    Arithmetic::Bf16,
    Arithmetic::F16,
];

pub const NUM_LABELS: usize = 10;

/// Four micro-batches of eight, some of each kind: kept, and recomputed.
pub const EIGHT_BY_FOUR: Split = Split {
    batch_size: 8,
    kept: 1,
    recompute: Recompute::Cheap,
};
const EFFECTIVE_BATCH: usize = 32;

/// Writes a line where it is seen: of a test that passes, what `eprintln` writes is swallowed.
pub fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr can be written");
}

/// One test at a time uses the card: allocations and bytes are those of the whole process.
pub fn take_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the card is the software card, where a kernel takes a thousand times as long.
fn is_software() -> bool {
    std::env::var_os("HOLDALL_SOFTWARE_GPU").is_some()
}

/// The first on a real card, the second on the software card.
pub fn card_or_software<T>(on_card: T, on_software: T) -> T {
    if is_software() { on_software } else { on_card }
}

/// All cases on a real card; `count` of them on the software card. Its seed and the calling line choose them, so that with other seeds
/// each test runs in other number formats, and each format with other cases.
#[track_caller]
pub fn drawn<T: Copy>(all: &[T], count: usize) -> Vec<T> {
    if !is_software() {
        return all.to_vec();
    }
    let seed = std::env::var("HOLDALL_SOFTWARE_GPU_SEED").unwrap_or_default();
    let place = format!("{seed} {}", Location::caller());
    let first = holdall_files::fnv1a(holdall_files::FNV_START, place.as_bytes()) >> 32;
    let from_first = all.iter().cycle().skip(first as usize % all.len());
    from_first.take(count.min(all.len())).copied().collect()
}

/// Each of the first with each of the second.
pub fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    let with_each = |&one: &A| second.iter().map(move |&other| (one, other));
    first.iter().flat_map(with_each).collect()
}

/// Whether a test is left out because the software card would take hours for it; a line that says so.
pub fn is_left_out(name: &str, reason: &str) -> bool {
    if is_software() {
        say(&format!("SKIPPED on the software card: {name}: {reason}"));
    }
    is_software()
}

/// Says that there is no card, once and behind the runner's own last line; fails where one is required. These tests are the last of
/// the workspace, so that whoever has run all of them sees it.
pub fn skip(missing: &str) {
    assert!(
        std::env::var_os("HOLDALL_REQUIRE_GPU").is_none(),
        "HOLDALL_REQUIRE_GPU is set: {missing}"
    );
    static MISSING: OnceLock<String> = OnceLock::new();
    extern "C" fn at_end() {
        let missing = MISSING.get().map_or("", String::as_str);
        say(&format!(
            "SKIPPED: nothing was tested on a GPU, neither operations nor training nor ranks: {missing}\n"
        ));
    }
    unsafe extern "C" {
        fn atexit(call: extern "C" fn()) -> std::ffi::c_int;
    }
    let first_line = missing.lines().next().unwrap_or_default();
    if MISSING.set(first_line.to_owned()).is_ok() {
        // SAFETY: a function of the C library that every program has; what it calls takes nothing and unwinds nowhere.
        let registered = unsafe { atexit(at_end) };
        assert_eq!(registered, 0, "a process may do something at its end");
    }
}

/// Whether there is a card, without opening it; a line that says so where not.
pub fn is_there() -> bool {
    match cuda::count() {
        Ok(0) => skip("none was found"),
        Ok(_) => return true,
        Err(missing) => skip(&missing.to_string()),
    }
    false
}

/// The card, for one test at a time.
pub struct Gpu {
    pub device: &'static Device,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    /// `None`, and a line that says so, where there is no card.
    pub fn open() -> Option<Gpu> {
        static DEVICE: OnceLock<Result<Device, String>> = OnceLock::new();
        let turn = take_turn();
        let opened = DEVICE.get_or_init(|| {
            Device::open(DeviceChoice::Cuda(0), Some(2)).map_err(|missing| missing.to_string())
        });
        match opened {
            Ok(device) => Some(Gpu {
                device,
                _turn: turn,
            }),
            Err(missing) => {
                skip(missing);
                None
            }
        }
    }

    /// Those of these that the card computes in; a line for each of the others. On the software card one of them is drawn.
    #[track_caller]
    pub fn supported<const N: usize>(&self, wanted: [Arithmetic; N]) -> Vec<Arithmetic> {
        let supports = |arithmetic: &Arithmetic| {
            let supported = self.device.supports(*arithmetic);
            if !supported {
                say(&format!("SKIPPED: this card has no {}", arithmetic.name()));
            }
            supported
        };
        let supported: Vec<Arithmetic> = wanted.into_iter().filter(supports).collect();
        drawn(&supported, 1)
    }

    /// The same as they are written in a config.
    #[track_caller]
    pub fn supported_precisions<const N: usize>(&self, wanted: [Precision; N]) -> Vec<Precision> {
        let supported = self.supported(wanted.map(|one| one.arithmetic().unwrap()));
        let is_supported = |one: &Precision| supported.contains(&one.arithmetic().unwrap());
        wanted.into_iter().filter(is_supported).collect()
    }
}

/// The model that most tests train: the preset `small`. On the software card a smaller one of the same kind, with heads as wide.
pub fn small_model() -> ClipConfig {
    let preset = ClipConfig::preset("small").unwrap();
    let smaller = ClipConfig {
        text: TextConfig {
            hidden_size: 64,
            intermediate_size: 128,
            num_layers: 2,
            num_heads: 2,
            vocab_size: 80,
            max_positions: 8,
            pooling: TextPooling::FirstEos(79),
            ..preset.text
        },
        vision: VisionConfig {
            hidden_size: 64,
            intermediate_size: 128,
            num_layers: 2,
            num_heads: 2,
            image_size: 16,
            ..preset.vision
        },
        projection_dim: 64,
        ..preset
    };
    card_or_software(preset, smaller)
}

/// [`small_model`] with a label head.
pub fn small_task(device: &Device) -> ClipTask {
    let mut task = ClipTask::new(small_model(), Some(NUM_LABELS));
    task.sorted_ids = device.wants_sorted_ids();
    task
}

/// The setup of a run of [`small_task`]; of `run`, the model and the number of labels are replaced.
pub fn small_setup(run: RunConfig, device: &Device) -> Setup {
    let run = RunConfig {
        model: "small".to_owned(),
        labels: Some(NUM_LABELS),
        ..run
    };
    let mut setup = Setup::without_data(&run, device).unwrap();
    if is_software() {
        // What is frozen or adapted was found by its name in the preset, which has all layers of the smaller model.
        setup.step.task = Arc::new(small_task(device));
    }
    setup
}

/// A step of it in a number format.
pub fn small(device: &Device, arithmetic: Arithmetic) -> StepConfig {
    let mut config = config_of(&small_task(device));
    config.arithmetic = arithmetic;
    config
}

/// Three batches: whole, with samples that have no label, and with a tail.
pub fn batches(task: &ClipTask) -> [Batch; 3] {
    [
        task.random_batch(EFFECTIVE_BATCH, 1),
        without_some_labels(task, task.random_batch(EFFECTIVE_BATCH, 2)),
        task.random_batch(EFFECTIVE_BATCH - 3, 3),
    ]
}

/// fp16's scaler, beginning at this scale.
pub fn scaler_from(scale: f64) -> LossScaler {
    let mut written = serde_json::to_value(LossScaler::suiting(Arithmetic::F16)).unwrap();
    let largest = written["largest"].as_f64().unwrap().max(scale);
    (written["scale"], written["largest"]) = (scale.into(), largest.into());
    serde_json::from_value(written).unwrap()
}

/// The scaler that a run begins with. Gradients of the smaller model are larger: fp16's usual scale would leave its first steps out.
fn scaler(arithmetic: Arithmetic) -> LossScaler {
    let usual = LossScaler::suiting(arithmetic);
    match arithmetic {
        Arithmetic::F16 => card_or_software(usual, scaler_from(4096.0)),
        Arithmetic::F32 | Arithmetic::Tf32 | Arithmetic::Bf16 => usual,
    }
}

/// A run as a trainer does it, without files.
pub struct Run<'a> {
    pub device: &'a Device,
    pub step: Step,
    pub batches: [Batch; 3],
    pub scaler: LossScaler,
    pub number: u64,
    rates: LearningRates,
}

/// Every number that training changes, as bits.
pub type Bits = Vec<(String, Vec<u32>)>;

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
pub fn assert_same_bits(found: &Bits, expected: &Bits, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        assert!(found == expected, "{what}: {name} differs");
    }
}

impl<'a> Run<'a> {
    /// Weights drawn, nothing done yet; `total` steps are what the learning rates are for.
    pub fn begin(device: &'a Device, config: &StepConfig, total: usize) -> Run<'a> {
        Run::with_host_state(device, config, total, HostState::Nothing)
    }

    /// The same with some of its state in host memory.
    pub fn with_host_state(
        device: &'a Device,
        config: &StepConfig,
        total: usize,
        host_state: HostState,
    ) -> Run<'a> {
        let (batch, split) = (EFFECTIVE_BATCH, EIGHT_BY_FOUR);
        let mut step = support::step_with_host_state(device, config, batch, split, host_state);
        let task = small_task(device);
        draw_weights(device, &mut step, &task.model, 5);
        let mut run = RunConfig::default();
        // Not so fast that the batches are known by heart: of a loss that is gone, every difference is large.
        run.train.lr = Some(card_or_software(4e-5, 4e-4));
        Run {
            device,
            step,
            batches: batches(&task),
            scaler: scaler(config.arithmetic),
            number: 0,
            rates: LearningRates::new(&run, total),
        }
    }

    /// The next step, on the batch whose turn it is.
    pub fn step(&mut self) -> StepReport {
        let report = self.launched(|step, device, batch, scalars| step.run(device, batch, scalars));
        self.scaler.observe(report.gradients).unwrap();
        report
    }

    /// The next step, and the inputs of the one after it travel meanwhile.
    pub fn step_and_preload(&mut self) -> StepReport {
        let next = self.batches[(self.number as usize + 1) % self.batches.len()].clone();
        let report = self.launched(|step, device, batch, scalars| {
            step.launch(device, batch, scalars);
            step.preload(device, &next);
            step.finish()
        });
        self.scaler.observe(report.gradients).unwrap();
        report
    }

    fn launched<E: std::fmt::Debug>(
        &mut self,
        run: impl FnOnce(&mut Step, &Device, &Batch, &StepScalars<'_>) -> Result<StepReport, E>,
    ) -> StepReport {
        let batch = &self.batches[self.number as usize % self.batches.len()];
        self.number += 1;
        let mut rates = Vec::new();
        self.rates.write(self.number, &mut rates);
        let scalars = StepScalars {
            step: self.number - self.scaler.skipped_steps(),
            rates: &rates,
            loss_scale: self.scaler.scale(),
        };
        run(&mut self.step, self.device, batch, &scalars).unwrap()
    }

    pub fn losses(&mut self, num_steps: usize) -> Vec<f64> {
        (0..num_steps).map(|_| self.step().loss).collect()
    }

    /// Weights and moments.
    pub fn state(&self) -> Bits {
        let parameters = self.step.parameters().iter();
        let weights =
            parameters.map(|one| (one.name.clone(), bits(&self.step.weight(one).unwrap())));
        let moments = self
            .step
            .optimizer_state()
            .map(|(parameter, part, stored)| {
                let name = format!("{part:?} of {}", parameter.name);
                let bits = match stored.elements().unwrap() {
                    Elements::F32(values) => bits(&values),
                    Elements::Bf16(values) | Elements::F16(values) => {
                        values.iter().map(|&bits| u32::from(bits)).collect()
                    }
                    Elements::U8(values) => values.iter().map(|&bits| u32::from(bits)).collect(),
                };
                (name, bits)
            });
        weights.chain(moments).collect()
    }
}

pub fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}
