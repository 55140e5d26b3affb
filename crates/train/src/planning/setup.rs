//! From a config to a planned step.

use std::path::Path;
use std::sync::Arc;

use holdall_data::decode::ImageProcessor;
use holdall_data::loader::{PictureFormat, RowFormat};
use holdall_device::cpu::{self, Bound, HostMemory};
use holdall_device::{Arithmetic, Device};
use holdall_files::counted;
use holdall_graph::Graph;
use holdall_graph::ops::collective::Processes;
use holdall_graph::ops::update::MomentFormat;
use holdall_models::folder::ModelFolder;
use holdall_models::hub_cache;
use holdall_plan::{
    Candidate, Change, ChangeKind, Plan, PlanError, Request, StepShape, Variant, plan, plan_of,
    search, variants_that_fit,
};

use crate::config::budget::{Memory, show_bytes};
use crate::config::{
    Freeze, LoraSection, Precision, RunConfig, Shard, TaskName, TrainingDefaults, matches,
};
use crate::engine::frozen::{self, ParameterCount};
use crate::engine::lora::{self, Lora};
use crate::engine::optimizer::HEAD_RATE;
use crate::engine::step::Step;
use crate::engine::step_graph::{StepConfig, write_parameters, write_step};
use crate::engine::task::{Task, best_metric};
use crate::error::TrainError;
use crate::planning::plan_race::{self, Choosing};
use crate::planning::plan_together::split_among;
use crate::planning::site::Site;
use crate::tasks;

/// Source of the weights.
pub enum Weights {
    /// A model folder, checked.
    Folder(Box<ModelFolder>),
    /// Random weights.
    Random {
        /// Preset that the sizes are from.
        preset: Option<String>,
    },
}

impl Default for Weights {
    fn default() -> Weights {
        Weights::Random { preset: None }
    }
}

impl Weights {
    /// The model folder; `None` for random weights.
    pub fn folder(&self) -> Option<&ModelFolder> {
        match self {
            Weights::Folder(folder) => Some(folder),
            Weights::Random { .. } => None,
        }
    }

    pub fn are_random(&self) -> bool {
        self.folder().is_none()
    }

    /// Description for the log.
    pub fn describe(&self) -> String {
        match self {
            Weights::Folder(folder) => {
                format!("Weights: pretrained from {}", folder.path().display())
            }
            Weights::Random { preset } => describe_random(preset.as_deref()),
        }
    }
}

/// Description of random weights. For a hub name, it offers the command that downloads the pretrained weights.
pub(crate) fn describe_random(preset: Option<&str>) -> String {
    let Some(preset) = preset else {
        return "Weights: RANDOM".to_owned();
    };
    let offer = hub_cache::command_for(preset);
    let offer = offer.map_or(String::new(), |command| {
        format!("; pretrained ones: {command}")
    });
    format!("Weights: RANDOM (preset {preset}{offer})")
}

/// A run with its config resolved.
pub struct Setup {
    /// The config, with the defaults that suit task, weights and data filled in.
    pub config: RunConfig,
    /// The training step's model, losses and optimizer.
    pub step: StepConfig,
    /// Preprocessing of pictures, saved with the model.
    pub processor: ImageProcessor,
    /// Row format of the loader.
    pub rows: RowFormat,
    /// The request to the planner.
    pub request: Request,
    /// The request as the user put it, with an automatic budget rounded; measured step times are cached under it.
    pub(crate) asked: Request,
    /// Memory budget of the process; `None` if the machine does not report its memory and the user set none.
    pub budget_bytes: Option<u64>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Whether the run resumes: a refusal offers nothing that would make it another run.
    pub(crate) is_resumed: bool,
    /// Whether the effective batch is the default.
    has_default_batch: bool,
    /// Whether the config allows adapters (LoRA): it has none, and nothing that excludes them.
    is_lora_open: bool,
    /// Messages about settings that cannot be honoured.
    pub notes: Vec<String>,
}

impl Setup {
    /// Opens the model and resolves the budget, without data.
    pub fn without_data<'a>(
        config: &RunConfig,
        site: impl Into<Site<'a>>,
    ) -> Result<Setup, TrainError> {
        tasks::setup(config, site.into())
    }

    /// Combines the parts of a run, fills in the defaults for the number of training samples, and resolves the budget.
    pub(crate) fn new(
        written: &RunConfig,
        site: Site<'_>,
        task: Arc<dyn Task>,
        processor: ImageProcessor,
        num_samples: Option<usize>,
        mut notes: Vec<String>,
    ) -> Result<Setup, TrainError> {
        written.validate()?;
        let config = &fill_defaults(written, site, &task, num_samples, &mut notes);
        best_metric(&*task, config.train.best_metric.as_deref())?;
        let arithmetic = resolve_precision(config.precision, site, &mut notes)?;
        let budget_bytes = resolve_budget(config.memory, site)?;
        notes.extend(notes_on_memory(config, site, budget_bytes));
        let frozen = frozen::resolve(&config.train.freeze, &task)?;
        let patterns = config.train.lr_by.0.iter();
        let mut step = StepConfig {
            optimizer: config.train.optimizer_config(),
            rate_patterns: patterns.map(|(pattern, _)| pattern.clone()).collect(),
            frozen,
            evaluation_batch: config.train.eval_batch_size,
            arithmetic,
            gradients: config.train.gradients,
            processes: site.processes(),
            is_sharded: config.train.shard == Shard::Optimizer,
            ..StepConfig::new(task)
        };
        check_sharding(config, &step)?;
        if step.is_sharded && step.processes.count == 1 {
            notes.push("warning: train.shard: no effect, one process holds all state".to_owned());
        }
        if let Some(section) = &config.train.lora {
            let lora = Lora::resolve(section, &step, &full_name(&config.model), config.seed)?;
            notes.push(lora.describe());
            step.lora = Some(lora);
        }
        if config.train.freeze != Freeze::Nothing || step.lora.is_some() {
            notes.push(ParameterCount::of(&write_parameters(&step)).describe());
        }
        notes.extend(warnings_of_random_layers(config, &step));
        check_patterns(&step)?;
        let mut request = config.request(budget_bytes, arithmetic);
        request.smaller_batch_note = step.task.smaller_batch_note();
        if site.is_gpu() {
            request.host_bytes = host_room(config.host_memory, site.num_local_processes());
        }
        let mut asked = request.clone();
        if config.host_memory == Memory::Auto {
            asked.host_bytes = request.host_bytes.map(rounded);
        }
        let is_cut = note_on_budget(config.memory, site, budget_bytes).is_some();
        if config.memory == Memory::Auto || is_cut {
            asked.budget_bytes = budget_bytes.map(rounded);
        }
        Ok(Setup {
            config: config.clone(),
            is_resumed: false,
            has_default_batch: written.train.effective_batch.is_none(),
            step,
            rows: RowFormat::from(PictureFormat {
                framing: processor.framing,
                augment: config.data.augment,
                decode: config.data.decode,
            }),
            processor,
            request,
            asked,
            budget_bytes,
            seed: config.seed,
            is_lora_open: is_lora_open(config),
            notes,
        })
    }

    /// Writes the graph of a step.
    pub(crate) fn write(&self, shape: &StepShape) -> Graph {
        write_step(&self.step, shape)
    }

    /// Predicted plans of the same run with pictures of other sizes.
    pub fn plan_by_image_size<'a>(
        &self,
        site: impl Into<Site<'a>>,
    ) -> Vec<(String, Result<Candidate, TrainError>)> {
        let site = site.into();
        let plan_of = |task: Arc<dyn Task>| {
            let step = StepConfig {
                task,
                ..self.step.clone()
            };
            let build = |shape: &StepShape| write_step(&step, shape);
            let target = site.target(step.arithmetic, 0)?;
            Ok(search(&self.request, &build, &*target)?)
        };
        let sizes = self.step.task.variants_by_image_size().into_iter();
        sizes.map(|(size, task)| (size, plan_of(task))).collect()
    }

    /// Variants of the run with other numerics and less memory: the option to type, the difference, and the step. A refusal
    /// offers the variants that fit.
    fn variants(&self) -> Vec<(&'static str, &'static str, StepConfig)> {
        let mut found = Vec::new();
        if self.step.optimizer.moments == MomentFormat::F32 {
            let mut step = self.step.clone();
            step.optimizer.moments = MomentFormat::EightBit;
            let note = "other numbers: the optimizer's moments are rounded to 8 bits";
            found.push(("--set train.optimizer_state=8bit", note, step));
        }
        let adapters = || Lora::resolve(&LoraSection::default(), &self.step, "", self.seed).ok();
        if let Some(lora) = self.is_lora_open.then(adapters).flatten() {
            let step = StepConfig {
                lora: Some(lora),
                ..self.step.clone()
            };
            let note = "other numbers: adapters of rank 16 are trained, not the weights";
            found.push(("--set train.lora.rank=16", note, step));
        }
        found
    }

    /// Extends a refusal by the variants that would fit, and by the reason why the budget is smaller than requested.
    fn refusal(&self, error: TrainError, site: Site<'_>, host_bytes: u64) -> TrainError {
        let TrainError::Plan(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes,
            mut changes,
            ..
        }) = error
        else {
            return error;
        };
        let steps = if self.is_resumed {
            Vec::new()
        } else {
            self.variants()
        };
        let builds: Vec<_> = steps
            .iter()
            .map(|(_, _, step)| |shape: &StepShape| write_step(step, shape))
            .collect();
        let variants = steps.iter().zip(&builds);
        let variants: Vec<Variant<'_>> = variants
            .map(|((change, note, _), build)| Variant {
                change,
                note,
                build,
            })
            .collect();
        // Memory that planning leaves in the process, and the variation between starts, count too.
        let host_bytes = host_bytes + 2 * START_TO_START_BYTES;
        if let (false, Ok(target)) = (
            variants.is_empty(),
            site.target(self.step.arithmetic, host_bytes),
        ) {
            changes.extend(variants_that_fit(&self.request, &variants, &*target));
        }
        let available_bytes = site.available_bytes_each();
        let is_there = |change: &Change| {
            change.kind != ChangeKind::Memory
                || available_bytes.is_none_or(|available| change.process_bytes <= available)
        };
        let may_resume =
            |change: &Change| matches!(change.kind, ChangeKind::Memory | ChangeKind::Recompute);
        changes.retain(|change| is_there(change) && (!self.is_resumed || may_resume(change)));
        TrainError::Plan(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes,
            changes,
            available_bytes,
            note: note_on_budget(self.config.memory, site, Some(budget_bytes)),
        })
    }

    /// Makes this the setup of one of several processes; the request to the planner becomes that of one process. Returns the
    /// samples of the whole step.
    pub fn share_among(&mut self, rank: usize, count: usize) -> Result<usize, TrainError> {
        self.step.processes = Processes { rank, count };
        if let (true, Some(batch)) = (self.has_default_batch, self.request.effective_batch) {
            let each = self.request.batch_size.unwrap_or(1);
            self.request.effective_batch = Some(batch.next_multiple_of((each * count).max(1)));
        }
        split_among(count, &mut self.request)
    }

    /// Plans for a device or a card. `host_bytes` is host memory that the run will use beside the arena, for example for
    /// batches, and that is not allocated yet. CPU plans and plans for absent cards use predicted times.
    pub fn plan<'a>(
        &self,
        site: impl Into<Site<'a>>,
        host_bytes: u64,
        choosing: Choosing<'_>,
    ) -> Result<Plan, TrainError> {
        let site = site.into();
        let planned = self.plan_what_fits(site, host_bytes, choosing);
        planned.map_err(|error| self.refusal(error, site, host_bytes))
    }

    fn plan_what_fits(
        &self,
        site: Site<'_>,
        host_bytes: u64,
        choosing: Choosing<'_>,
    ) -> Result<Plan, TrainError> {
        if let Site::Here(device) = site
            && device.is_gpu()
        {
            return plan_race::choose(self, device, choosing);
        }
        let build = |shape: &StepShape| self.write(shape);
        let planned = |more_bytes: u64| -> Result<Plan, TrainError> {
            let target = site.target(self.step.arithmetic, host_bytes + more_bytes)?;
            match choosing {
                Choosing::Taken(choice) => plan_of(&choice, &self.request, &build, &*target)?
                    .ok_or_else(|| plan_race::does_not_fit_here(&choice)),
                _ => Ok(plan(&self.request, &build, &*target)?),
            }
        };
        let device = match site {
            Site::Here(device) if !device.is_gpu() => device,
            _ => return planned(0),
        };
        // Planning leaves memory in the process, and the plan itself takes some: the memory measured after planning counts.
        // If that no longer fits, planning starts over. The next target counts what the process still holds by then; `foreseen`
        // is only what was given back in between and will be taken again.
        let held = || device.held_bytes().unwrap_or(0);
        let mut expected_after_planning = 0;
        for _ in 0..MOST_PLANS {
            let before = held();
            let foreseen = u64::saturating_sub(expected_after_planning, before);
            let mut made = match planned(foreseen) {
                // Refusals include that amount and the variation between starts, so that the offered options fit when they
                // are used.
                Err(TrainError::Plan(PlanError::DoesNotFit { .. })) => {
                    let traces = foreseen.max(held().saturating_sub(before));
                    planned(traces + START_TO_START_BYTES)?
                }
                made => made?,
            };
            let grown = held().saturating_sub(before);
            recount(&mut made, foreseen, grown);
            let process_bytes = made.step.process_bytes;
            if self
                .budget_bytes
                .is_none_or(|budget| process_bytes <= budget)
            {
                return Ok(made);
            }
            expected_after_planning = held() + (128 << 10);
        }
        planned(expected_after_planning.saturating_sub(held()))
    }

    /// Reserves the arena and fills the weights. Returns the reserved candidate; it is another one if less memory is free
    /// now, and `tell` receives a message then.
    pub fn start(
        &self,
        device: &Device,
        plan: Plan,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(Step, Candidate), TrainError> {
        let (mut step, chosen) = if device.is_gpu() {
            let reserved = self.reserve(device, plan, tell)?;
            (reserved.machine, reserved.plan.chosen)
        } else {
            let batch_size = plan.chosen.choice.batch_size;
            let step = Step::new(device, self.step.clone(), plan.step, batch_size)?;
            (step, plan.chosen)
        };
        self.fill(device, &mut step)?;
        Ok((step, chosen))
    }

    /// Fills the weights of a step, from the folder or at random.
    pub fn fill(&self, device: &Device, step: &mut Step) -> Result<(), TrainError> {
        let fill = self.step.weights(self.seed)?;
        step.set_weights(device, fill)
    }
}

/// Fills in defaults for settings that the user left out. A hub model counts as pretrained: a plan without its weights is for
/// a run with them.
fn fill_defaults(
    asked: &RunConfig,
    site: Site<'_>,
    task: &Arc<dyn Task>,
    num_samples: Option<usize>,
    notes: &mut Vec<String>,
) -> RunConfig {
    let mut config = asked.clone();
    let Some(name) = TaskName::by_name(task.name()) else {
        return config;
    };
    let has_random_weights = task.has_random_weights() && !tasks::lacks_weights(asked);
    // Without data nothing is trained: the plan is for pretrained weights.
    let is_random = has_random_weights && num_samples.is_some();
    let graph = write_parameters(&StepConfig::new(Arc::clone(task)));
    let has_heads = graph.parameters().iter().any(|one| one.rate == HEAD_RATE);
    let defaults = TrainingDefaults::of(name, is_random);
    let num_processes = site.processes().count;
    let (train, filled) = defaults.fill(&asked.train, num_samples, num_processes, has_heads);
    config.train = train;
    if let (Some(samples), false) = (num_samples, filled.is_empty()) {
        let weights = if is_random { "random" } else { "pretrained" };
        notes.push(format!(
            "Defaults: {} ({}, {weights} weights, {})",
            filled.join(", "),
            name.name(),
            counted(samples, "sample")
        ));
    }
    if let (Some(rate), false) = (asked.train.lr_head, has_heads) {
        notes.push(format!(
            "warning: train.lr_head: {rate:e} has no effect: this model has no head with a rate of its own\n\
             hint: leave it out; `train: {{lr_by: ...}}` sets rates of parameters by name"
        ));
    }
    config
}

/// Warnings about layers with random weights that are not trained.
fn warnings_of_random_layers(config: &RunConfig, step: &StepConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    if tasks::lacks_weights(config) {
        return warnings;
    }
    let is_random = step.task.has_random_weights();
    let new = step.task.new_parameters();
    let graph = write_parameters(step);
    let has_rate_zero = |name: &str| {
        let mut rates = config.train.lr_by.0.iter();
        // The first matching pattern sets the rate.
        let found = rates.find(|(pattern, _)| matches(pattern, name));
        found.is_some_and(|(_, rate)| *rate == 0.0)
    };
    let (mut frozen, mut held) = (Vec::new(), Vec::new());
    for parameter in graph.parameters() {
        let name = &parameter.name;
        if !is_random && !new.contains(name) {
            continue;
        }
        if step.frozen.contains(name) {
            frozen.push(parameter);
        } else if has_rate_zero(name) {
            held.push(parameter);
        }
    }
    for (key, parameters) in [("train.freeze", frozen), ("train.lr_by", held)] {
        let Some(first) = parameters.first() else {
            continue;
        };
        let sizes = parameters.iter().map(|one| graph.shape(one.value));
        let numbers: usize = sizes.map(|shape| shape.num_elements()).sum();
        warnings.push(format!(
            "warning: {key}: holds {} at random weights, which never learn: {}{}\n\
             hint: hold still layers of a pretrained model: `model: FOLDER`, or a name after `holdall model get`",
            counted(numbers, "parameter"),
            first.name,
            match parameters.len() {
                1 => String::new(),
                tensors => format!(" and {} more", counted(tensors - 1, "tensor")),
            }
        ));
    }
    if is_random && step.lora.is_some() {
        warnings.push(
            "warning: train.lora: the adapters stand on random weights, which are not trained\n\
             hint: adapt a pretrained model: `model: FOLDER`, or a name after `holdall model get`"
                .to_owned(),
        );
    }
    warnings
}

/// Refuses averages of the weights together with sharded optimizer state, because every process evaluates with all averages.
fn check_sharding(config: &RunConfig, step: &StepConfig) -> Result<(), TrainError> {
    let averages = config.train.ema.is_some() || config.train.interpolate.is_some();
    if step.shards_state() && averages {
        return Err(TrainError::Config(
            "train.shard: `optimizer`, expected none beside `ema` or `interpolate`: every process evaluates with all averages\n\
             hint: leave `shard` out, or the average"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Absolute path of a model folder, or the name of a model.
fn full_name(model: &str) -> String {
    let path = Path::new(model);
    let absolute = path
        .is_dir()
        .then(|| std::path::absolute(path).ok())
        .flatten();
    absolute.map_or(model.to_owned(), |path| path.display().to_string())
}

fn is_lora_open(config: &RunConfig) -> bool {
    let mut adapted = config.clone();
    let asked = adapted.train.lora.replace(LoraSection::default());
    asked.is_none() && adapted.validate().is_ok()
}

/// Adds unplanned bytes that the process holds.
pub(crate) fn hold_more(plan: &mut Plan, bytes: u64) {
    recount(plan, 0, bytes);
}

/// Replaces planned host bytes by those that the process holds.
fn recount(plan: &mut Plan, foreseen_bytes: u64, held_bytes: u64) {
    let recount = |bytes: &mut u64| *bytes = *bytes - foreseen_bytes + held_bytes;
    recount(&mut plan.step.process_bytes);
    let others = plan.alternatives.iter_mut().chain(&mut plan.suggestion);
    let others = others.chain(&mut plan.curve);
    for candidate in others.chain([&mut plan.chosen]) {
        recount(&mut candidate.process_bytes);
    }
}

/// Host memory for offloaded state: the user's limit, or this process's share of half of the free memory. The caller
/// subtracts the loader's reserve, if there is a loader.
fn host_room(host_memory: Memory, sharers: u64) -> Option<u64> {
    let memory = cpu::host_memory()?;
    Some(match host_memory {
        Memory::Auto => memory.available_bytes / 2 / sharers,
        said => said.resolve(memory.total_bytes, memory.available_bytes),
    })
}

/// Rounds down to steps of 3 to 6%: free memory differs between starts, and cached timings should be found again.
fn rounded(bytes: u64) -> u64 {
    let step = (bytes / 16).next_power_of_two() / 2;
    bytes - bytes % step.max(1)
}

/// Refuses a pattern that matches no parameter, which is a misspelling.
fn check_patterns(step: &StepConfig) -> Result<(), TrainError> {
    let mut names = step.task.parameter_names();
    let adapted = step.lora.iter().flat_map(|lora| &lora.modules);
    names.extend(adapted.flat_map(|module| lora::names(module)));
    for pattern in &step.rate_patterns {
        if !names.iter().any(|name| matches(pattern, name)) {
            return Err(TrainError::Config(format!(
                "train.lr_by: pattern `{pattern}`, expected one that matches a parameter, found none\n\
                 hint: names are such as {}, and `*` stands for anything",
                names[names.len() / 2]
            )));
        }
    }
    Ok(())
}

/// Variation of the process memory after planning between two starts: 1.7 MiB was seen once, in a busy test run; the cause is
/// not known.
const START_TO_START_BYTES: u64 = 5 << 19;

/// Attempts to plan until the memory that planning itself takes is covered by the plan.
const MOST_PLANS: usize = 3;

/// The configured precision, or the best one of the device. The CPU falls back to f32 with a message; a GPU without the
/// format is refused, because the user probably meant another card.
fn resolve_precision(
    precision: Precision,
    site: Site<'_>,
    notes: &mut Vec<String>,
) -> Result<Arithmetic, TrainError> {
    let best = site.best_arithmetic();
    match precision.arithmetic() {
        None => {
            if site.is_gpu() {
                let (name, noun) = (best.name(), site.noun());
                notes.push(format!("Precision: {name} (auto: {noun} has it)"));
            }
            Ok(best)
        }
        Some(asked) if site.supports(asked) => Ok(asked),
        Some(asked) if site.is_gpu() => Err(TrainError::Config(format!(
            "precision: {}, expected a number format that {} computes in\n\
             hint: --precision {}, or auto",
            asked.name(),
            site.noun(),
            best.name()
        ))),
        Some(asked) => {
            notes.push(format!(
                "Precision: f32 ({} was asked for; the CPU computes in f32)",
                asked.name()
            ));
            Ok(Arithmetic::F32)
        }
    }
}

/// Messages about the available memory: its bound if that is not the machine, and requested sizes that are not available.
fn notes_on_memory(config: &RunConfig, site: Site<'_>, budget_bytes: Option<u64>) -> Vec<String> {
    let bound = match (site.total_bytes(), site.bound()) {
        (Some(total), Some(bound)) if bound != Bound::Machine => {
            Some(format!("Memory: {} ({})", show_bytes(total), bound.noun()))
        }
        _ => None,
    };
    let budget = note_on_budget(config.memory, site, budget_bytes);
    let host = note_on_host_memory(config.host_memory, cpu::host_memory());
    [bound, budget, host].into_iter().flatten().collect()
}

/// Message if `host_memory` is more than the host's free memory.
fn note_on_host_memory(asked: Memory, host: Option<HostMemory>) -> Option<String> {
    let host = host?;
    let [total, available] = [host.total_bytes, host.available_bytes];
    let asked = asked
        .asked_bytes(total)
        .filter(|&asked| asked > available)?;
    Some(format!(
        "Host memory: planned within {}: host_memory asks for {}, {} of {} can be had ({})",
        show_bytes(available),
        show_bytes(asked),
        show_bytes(available.min(total)),
        show_bytes(total),
        host.bound.noun()
    ))
}

/// Message if the budget is smaller than the requested one.
pub fn note_on_budget<'a>(
    memory: Memory,
    site: impl Into<Site<'a>>,
    budget_bytes: Option<u64>,
) -> Option<String> {
    let site = site.into();
    let (total, available) = (site.total_bytes()?, site.available_bytes()?);
    let asked = memory.asked_bytes(total)?;
    let budget = budget_bytes.filter(|&budget| budget < asked)?;
    let owner = match site.bound()? {
        Bound::Machine => site.noun(),
        bound => bound.noun(),
    };
    let sharers = match site.num_sharers() {
        1 => String::new(),
        sharers => format!(", for {sharers} processes"),
    };
    Some(format!(
        "Memory: planned within {}: {} was asked for, {} of {} can be had ({owner}{sharers})",
        show_bytes(budget),
        show_bytes(asked),
        show_bytes(available.min(total)),
        show_bytes(total)
    ))
}

/// The budget in bytes, bounded by the memory that this process holds or could get; `None` if it is `auto` and the system
/// does not report its memory.
pub fn resolve_budget<'a>(
    memory: Memory,
    site: impl Into<Site<'a>>,
) -> Result<Option<u64>, TrainError> {
    let site = site.into();
    let sharers = site.num_sharers();
    match (site.total_bytes(), site.available_bytes_each(), memory) {
        (Some(total), Some(available), Memory::Percent(_)) => {
            // A percentage refers to the whole device; the upper bound is each process's part of it.
            let asked = memory.asked_bytes(total).map_or(memory, Memory::Bytes);
            Ok(Some(asked.resolve(total / sharers, available)))
        }
        (Some(total), Some(available), memory) => {
            Ok(Some(memory.resolve(total / sharers, available)))
        }
        (_, _, Memory::Auto) => Ok(None),
        (_, _, Memory::Bytes(bytes)) => Ok(Some(bytes)),
        (_, _, Memory::Percent(_)) => Err(TrainError::Config(format!(
            "memory {}: this system does not tell how much memory it has\nhint: give a size, such as --memory 8GiB",
            String::from(memory)
        ))),
    }
}

/// Limits readers of tables, texts and headers to the host memory of the run, for the rest of this process.
pub fn limit_reading<'a>(site: impl Into<Site<'a>>, budget_bytes: Option<u64>) {
    let held = holdall_device::cpu::resident_bytes().unwrap_or(0);
    holdall_files::set_memory_limit(held.saturating_add(room_to_open(site, budget_bytes)));
}

/// Host memory for opening a model: on the CPU the rest of the budget, with a GPU a quarter of the free memory.
pub fn room_to_open<'a>(site: impl Into<Site<'a>>, budget_bytes: Option<u64>) -> u64 {
    let site = site.into();
    let on_cpu = match site {
        Site::Here(device) if !device.is_gpu() => {
            budget_bytes.map(|budget| budget.saturating_sub(device.held_bytes().unwrap_or(0)))
        }
        _ => None,
    };
    let part = 4 * site.num_local_processes();
    let free = || holdall_device::cpu::available_bytes().map(|free| free / part);
    let room = on_cpu.or_else(free).unwrap_or(u64::MAX);
    room.max(LEAST_ROOM_BYTES)
}

/// Minimum room for opening a model. A smaller budget has no plan either, and the planner's message says what would help.
const LEAST_ROOM_BYTES: u64 = 4 << 20;

/// For example `3.10 GiB of 8.00 GiB`.
pub fn show_budget(bytes: u64, budget: Option<u64>) -> String {
    match budget {
        Some(budget) => format!("{} of {}", show_bytes(bytes), show_bytes(budget)),
        None => show_bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_beyond_the_machine_is_said() {
        let host = HostMemory {
            machine_bytes: 16 << 30,
            machine_available_bytes: 12 << 30,
            total_bytes: 16 << 30,
            bound: Bound::Machine,
            available_bytes: 12 << 30,
        };
        let note = |asked: Memory| note_on_host_memory(asked, Some(host));
        assert_eq!(note(Memory::Auto), None);
        assert_eq!(note(Memory::Bytes(12 << 30)), None);
        assert_eq!(
            note(Memory::Bytes(100 << 30)).as_deref(),
            Some(
                "Host memory: planned within 12.00 GiB: host_memory asks for 100.00 GiB, 12.00 GiB of 16.00 GiB can be had \
                 (this machine)"
            )
        );
    }
}
