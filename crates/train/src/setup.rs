//! From a config to a planned step.

use std::path::Path;

use holdall_data::image_processor::ImageProcessor;
use holdall_device::cpu::Bound;
use holdall_device::{Arithmetic, Device};
use holdall_models::clip::init;
use holdall_models::config::{ClipConfig, Normalization};
use holdall_models::folder::ModelFolder;
use holdall_models::hub_cache;
use holdall_plan::{Candidate, Plan, PlanError, Request, Variant, plan};

use crate::budget::{Memory, show_bytes};
use crate::config::{Precision, RunConfig, matches};
use crate::error::TrainError;
use crate::measure::{self, Choosing};
use crate::site::Site;
use crate::step::Step;
use crate::step_graph::{StepConfig, write_step};

/// Where weights come from.
pub enum Weights {
    /// A folder, checked.
    Folder(Box<ModelFolder>),
    /// A preset's sizes, random numbers.
    Random {
        /// The preset.
        preset: String,
    },
}

impl Weights {
    /// The line people look for in a log.
    pub fn describe(&self) -> String {
        match self {
            Weights::Folder(folder) => {
                format!("Weights: pretrained from {}", folder.path().display())
            }
            Weights::Random { preset } => format!("Weights: RANDOM (preset {preset})"),
        }
    }
}

/// A run, resolved.
pub struct Setup {
    /// What to train.
    pub step: StepConfig,
    /// Where weights come from.
    pub weights: Weights,
    /// What pictures go through, and what is saved with the model.
    pub processor: ImageProcessor,
    /// What the planner is asked.
    pub request: Request,
    /// The same as the user put it, a budget that nobody named rounded: what measured times are remembered by.
    pub(crate) asked: Request,
    /// What the process may hold; `None` where the machine does not tell and the user did not say.
    pub budget_bytes: Option<u64>,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether the folder's label head is for these labels.
    pub keep_head: bool,
    /// Things to say: what was asked for and cannot be had.
    pub notes: Vec<String>,
}

impl Setup {
    /// Opens the model and resolves the budget, without data: `labels` and `tokens` are what the config says.
    pub fn new<'a>(config: &RunConfig, site: impl Into<Site<'a>>) -> Result<Setup, TrainError> {
        let opened = open_model(&config.model)?;
        let tokens = config.tokens.unwrap_or(opened.model.text.max_positions);
        Setup::assemble(config, site.into(), opened, config.labels, tokens)
    }

    /// Puts together what is computed, and resolves the budget.
    pub(crate) fn assemble(
        config: &RunConfig,
        site: Site<'_>,
        OpenedModel {
            model,
            weights,
            processor,
        }: OpenedModel,
        labels: Option<usize>,
        tokens: usize,
    ) -> Result<Setup, TrainError> {
        let positions = model.text.max_positions;
        if tokens == 0 || tokens > positions {
            return Err(TrainError::Config(format!(
                "tokens: {tokens}, expected 1 to {positions}, the model's positions\nhint: leave `tokens` out"
            )));
        }
        config.validate()?;
        let mut notes = Vec::new();
        if let Weights::Folder(_) = weights {
            notes.push(processor.describe());
        }
        let arithmetic = resolve_precision(config.precision, site, &mut notes)?;
        if let (Weights::Folder(folder), Some(labels)) = (&weights, labels) {
            match folder.read_head()? {
                Some(head) if head.num_labels == labels => {}
                Some(head) => notes.push(format!(
                    "Label head: RANDOM (the folder's head has {} classes, {labels} were asked for)",
                    head.num_labels
                )),
                None => notes.push("Label head: RANDOM (the folder has none)".to_owned()),
            }
        }
        let budget_bytes = resolve_budget(config.memory, site)?;
        notes.extend(notes_on_memory(site, budget_bytes));
        let mut step = StepConfig::new(model, labels);
        step.num_tokens = tokens;
        step.contrastive_weight = config.losses.contrastive;
        step.label_weight = config.losses.label;
        step.label_smoothing = config.losses.label_smoothing;
        step.optimizer = config.train.optimizer_config();
        let patterns = config.train.lr_by.0.iter();
        step.rate_patterns = patterns.map(|(pattern, _)| pattern.clone()).collect();
        check_patterns(&step)?;
        step.evaluation_batch = config.train.eval_batch_size;
        step.arithmetic = arithmetic;
        step.sorted_ids = site.wants_sorted_ids();
        let request = config.request(budget_bytes, arithmetic);
        let mut asked = request.clone();
        if config.memory == Memory::Auto {
            asked.budget_bytes = budget_bytes.map(rounded);
        }
        Ok(Setup {
            step,
            weights,
            processor,
            request,
            asked,
            budget_bytes,
            seed: config.seed,
            keep_head: true,
            notes,
        })
    }

    /// Plans for a device or a card. `host_bytes` is what the run will hold beside the arena, such as its batches, and does not
    /// hold yet. The CPU and cards that are not here go by predictions.
    pub fn plan<'a>(
        &self,
        site: impl Into<Site<'a>>,
        host_bytes: u64,
        choosing: Choosing<'_>,
    ) -> Result<Plan, TrainError> {
        let site = site.into();
        if let Site::Here(device) = site
            && device.is_gpu()
        {
            return measure::choose(self, device, choosing);
        }
        let build = |variant: &Variant| write_step(&self.step, variant).graph;
        let planned = |more_bytes: u64| -> Result<Plan, TrainError> {
            let target = site.target(self.step.arithmetic, host_bytes + more_bytes)?;
            Ok(plan(&self.request, &build, &*target)?)
        };
        let device = match site {
            Site::Here(device) if !device.is_gpu() => device,
            _ => return planned(0),
        };
        // Planning leaves traces in the process, and the plan itself takes room: what the process holds once it is made counts.
        // Where that no longer fits, planning begins again with it in view.
        let held = || device.held_bytes().unwrap_or(0);
        let mut foreseen = 0;
        for _ in 0..MOST_PLANS {
            let before = held();
            let mut made = match planned(foreseen) {
                // Refusals count it too, and what differs from start to start: what they offer must fit when it is typed.
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
            foreseen = grown + (128 << 10);
        }
        planned(foreseen)
    }

    /// Reserves the arena and fills the weights. Returns what was reserved: where memory has gone meanwhile, that is another
    /// candidate, and `tell` hears of it.
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
            let variant = plan.chosen.variant();
            let step = Step::new(device, self.step.clone(), plan.step, &variant)?;
            (step, plan.chosen)
        };
        self.fill(device, &mut step)?;
        Ok((step, chosen))
    }

    /// Fills the weights of a step: from the folder, or drawn.
    pub fn fill(&self, device: &Device, step: &mut Step) -> Result<(), TrainError> {
        match &self.weights {
            Weights::Random { .. } => step.set_weights(device, |name, values| {
                Ok(init::fill(&self.step.model, self.seed, name, values)?)
            }),
            Weights::Folder(folder) => {
                let head = match self.keep_head {
                    true => folder.read_head()?,
                    false => None,
                };
                step.set_weights(device, |name, values| {
                    match (name, &head) {
                        ("head.weight", Some(head)) if head.weight.len() == values.len() => {
                            values.copy_from_slice(&head.weight);
                        }
                        ("head.bias", Some(head)) if head.bias.len() == values.len() => {
                            values.copy_from_slice(&head.bias);
                        }
                        ("head.weight" | "head.bias", _) => {
                            init::fill_new_head(&self.step.model, self.seed, name, values)?;
                        }
                        _ => folder.read_f32(name, values)?,
                    }
                    Ok(())
                })
            }
        }
    }
}

/// Counts bytes that the process holds and nobody foresaw.
pub(crate) fn hold_more(plan: &mut Plan, bytes: u64) {
    recount(plan, 0, bytes);
}

/// Counts bytes that the process holds in the place of those that were foreseen and are counted.
fn recount(plan: &mut Plan, foreseen_bytes: u64, held_bytes: u64) {
    let recount = |bytes: &mut u64| *bytes = *bytes - foreseen_bytes + held_bytes;
    recount(&mut plan.step.process_bytes);
    let others = plan.alternatives.iter_mut().chain(&mut plan.suggestion);
    for candidate in others.chain([&mut plan.chosen]) {
        recount(&mut candidate.process_bytes);
    }
}

/// In steps of 3 to 6%: what is free differs from start to start, and times that were measured should be found again.
fn rounded(bytes: u64) -> u64 {
    let step = (bytes / 16).next_power_of_two() / 2;
    bytes - bytes % step.max(1)
}

/// A pattern that matches nothing is a misspelling, not a wish.
fn check_patterns(step: &StepConfig) -> Result<(), TrainError> {
    let mut names: Vec<String> = step
        .model
        .tensors()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    names.extend(["head.weight", "head.bias"].map(str::to_owned));
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

/// How much the memory that a process holds after planning may differ between two starts.
const START_TO_START_BYTES: u64 = 3 << 19;

/// How often a run is planned until its own plan fits into it.
const MOST_PLANS: usize = 3;

/// A model before anything is planned.
pub(crate) struct OpenedModel {
    /// Sizes, and what its pictures are normalised by.
    pub model: ClipConfig,
    /// Where weights come from.
    pub weights: Weights,
    /// What its pictures go through.
    pub processor: ImageProcessor,
}

impl OpenedModel {
    fn new(mut model: ClipConfig, weights: Weights, processor: ImageProcessor) -> OpenedModel {
        model.vision.normalization = Normalization {
            mean: processor.mean,
            std: processor.std,
        };
        OpenedModel {
            model,
            weights,
            processor,
        }
    }
}

/// The folder that `name` is, or has in the local Hugging Face cache; else a preset.
pub(crate) fn open_model(name: &str) -> Result<OpenedModel, TrainError> {
    let path = Path::new(name);
    let found = match path.exists() {
        true => Some(path.to_owned()),
        false => hub_cache::find(name),
    };
    if let Some(path) = found {
        let folder = ModelFolder::open(&path)?;
        folder.check()?;
        let config = folder.clip_config()?.clone();
        let processor = ImageProcessor::read(&path, config.vision.image_size as u32)?;
        let weights = Weights::Folder(Box::new(folder));
        return Ok(OpenedModel::new(config, weights, processor));
    }
    match ClipConfig::preset(name) {
        Some(config) => {
            let preset = name.to_owned();
            let processor = ImageProcessor::clip(config.vision.image_size as u32);
            Ok(OpenedModel::new(
                config,
                Weights::Random { preset },
                processor,
            ))
        }
        None => Err(TrainError::Config(format!(
            "model `{name}`: expected a folder with config.json and model.safetensors, a name in the local \
             Hugging Face cache, or a preset; found none\n\
             hint: presets are {}",
            ClipConfig::PRESETS.join(", ")
        ))),
    }
}

/// What the user asked for, or what suits the device. The CPU computes in f32 and says so; a GPU that lacks a format is not
/// the one that the user had in mind.
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

/// What bounds the memory there, where that is not the machine; and whether the budget is above it.
fn notes_on_memory(site: Site<'_>, budget_bytes: Option<u64>) -> Vec<String> {
    let (Some(total), Some(bound)) = (site.total_bytes(), site.bound()) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if bound != Bound::Machine {
        let (total, bound) = (show_bytes(total), bound.noun());
        notes.push(format!("Memory: {total} ({bound})"));
    }
    if let Some(budget) = budget_bytes.filter(|&budget| budget > total) {
        let (budget, total) = (show_bytes(budget), show_bytes(total));
        notes.push(match bound {
            Bound::Machine => format!(
                "warning: memory: {budget} is more than {} has ({total})",
                site.noun()
            ),
            bound => format!(
                "warning: memory: {budget} is more than can be had ({total}, {}): the system may end the run",
                bound.noun()
            ),
        });
    }
    notes
}

/// What a budget is in bytes there; `None` where it is open and the system does not tell.
pub fn resolve_budget<'a>(
    memory: Memory,
    site: impl Into<Site<'a>>,
) -> Result<Option<u64>, TrainError> {
    if let Memory::Bytes(bytes) = memory {
        return Ok(Some(bytes));
    }
    let site = site.into();
    match (site.total_bytes(), site.available_bytes(), memory) {
        (Some(total), Some(available), memory) => Ok(Some(memory.resolve(total, available))),
        (_, _, Memory::Auto) => Ok(None),
        _ => Err(TrainError::Config(format!(
            "memory {}: this system does not tell how much memory it has\nhint: give a size, such as --memory 8GiB",
            String::from(memory)
        ))),
    }
}

/// What opening a model may take on the host: what the budget leaves on the CPU, a quarter of what is free behind a GPU.
pub fn room_to_open<'a>(site: impl Into<Site<'a>>, budget_bytes: Option<u64>) -> u64 {
    let on_cpu = match site.into() {
        Site::Here(device) if !device.is_gpu() => {
            budget_bytes.map(|budget| budget.saturating_sub(device.held_bytes().unwrap_or(0)))
        }
        _ => None,
    };
    let free = || holdall_device::cpu::available_bytes().map(|free| free / 4);
    let room = on_cpu.or_else(free).unwrap_or(u64::MAX);
    room.max(LEAST_ROOM_BYTES)
}

/// A budget that leaves less than this has no plan either, and that says what would do.
const LEAST_ROOM_BYTES: u64 = 4 << 20;

/// `3.10 GiB of 8.00 GiB`, for people.
pub fn show_budget(bytes: u64, budget: Option<u64>) -> String {
    match budget {
        Some(budget) => format!("{} of {}", show_bytes(bytes), show_bytes(budget)),
        None => show_bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are written down twice, for pictures and for graphs; a bit between them would move every loss.
    #[test]
    fn the_image_processor_of_a_preset_has_the_bits_of_clip() {
        let opened = open_model("small").unwrap();
        let Normalization { mean, std } = Normalization::CLIP;
        assert_eq!(
            opened.processor.mean.map(f32::to_bits),
            mean.map(f32::to_bits)
        );
        assert_eq!(
            opened.processor.std.map(f32::to_bits),
            std.map(f32::to_bits)
        );
        assert_eq!(opened.processor.differing_from_clip(), None);
    }
}
