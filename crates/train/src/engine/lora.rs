//! Low-rank adapters of a run: the adapted layers, initial values, and the parameters trained beside them.
//!
//! ```text
//! y = x W^T + b + (alpha / rank) (x A^T) B^T        W frozen; A uniform as in peft, B zero: the model starts unchanged
//! ```
//!
//! The adapters are trained, and parameters without pretrained weights: heads, and layers that the model folder lacks. All
//! other parameters are frozen, `logit_scale` too, as in peft.

use std::collections::BTreeSet;
use std::path::PathBuf;

use holdall_data::loader::Loaded;
use holdall_device::HostRow;
use holdall_graph::adapters::{AdapterDropout, Adapters, adapted_module, name_of_a, name_of_b};
use holdall_graph::{Graph, ValueId};
use holdall_models::init::Start;

use crate::config::{LoraSection, LoraTargets, matches};
use crate::engine::batch::{Batch, Scope};
use crate::engine::saved_adapter::{self, SavedAdapter};
use crate::engine::step_graph::{SAMPLE_IDS, STREAM, StepConfig, write_parameters};
use crate::error::TrainError;

/// Layers adapted by default: query and value projections, by the names that CLIP, BERT, ViT and decoders have for them. This
/// is the choice of LoRA's authors, and of peft for BERT and most decoders; peft has no default for CLIP and ViT.
const DEFAULT_TARGETS: [&str; 4] = ["q_proj", "v_proj", "query", "value"];

/// Name part of layers that are convolutions in other frameworks: adapters of a linear layer's shape could not be exchanged.
const CONVOLUTION: &str = "patch_embedding";

#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// Scale numerator: the adapter's output is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Dropout probability of the adapter's input.
    pub dropout: f64,
    /// Names of the adapted layers.
    pub modules: BTreeSet<String>,
    /// `target_modules` for peft: last parts of names, if those match no other layer.
    pub target_modules: Vec<String>,
    /// Parameters without pretrained weights, which are trained in full.
    pub trained_in_full: BTreeSet<String>,
    /// The base model, as the config names it.
    pub base_model: String,
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Folder of the adapter to start from.
    pub adapter: Option<PathBuf>,
}

impl Lora {
    /// Resolves the adapted layers of a config among those of a step.
    pub fn resolve(
        section: &LoraSection,
        step: &StepConfig,
        base_model: &str,
        seed: u64,
    ) -> Result<Lora, TrainError> {
        let graph = write_parameters(step);
        let trained_in_full: BTreeSet<String> = step.task.new_parameters().into_iter().collect();
        let is_adaptable = |module: &String| {
            let weight = format!("{module}.weight");
            let is_frozen = step.frozen.contains(&weight);
            !trained_in_full.contains(&weight) && !is_frozen && !module.contains(CONVOLUTION)
        };
        let every_linear = graph.linear_modules();
        let linear: BTreeSet<String> = every_linear
            .iter()
            .filter(|one| is_adaptable(one))
            .cloned()
            .collect();
        if linear.is_empty() {
            return Err(TrainError::Config(format!(
                "train.lora: expected a model with pretrained linear layers, found none in task {}\n\
                 hint: leave `lora` out",
                step.task.name()
            )));
        }
        let saved = section
            .adapter
            .as_deref()
            .map(saved_adapter::read)
            .transpose()?;
        let modules: BTreeSet<String> = match (&section.targets, &saved) {
            (None, None) => {
                let usual = DEFAULT_TARGETS.iter();
                usual.flat_map(|target| targeted(target, &linear)).collect()
            }
            (Some(targets), _) => named(targets, &linear)?,
            (None, Some(saved)) => {
                let modules = saved.tensors.keys().filter_map(|name| adapted_module(name));
                modules.map(str::to_owned).collect()
            }
        };
        if modules.is_empty() {
            return Err(TrainError::Config(format!(
                "train.lora.targets: expected layers called {}, found none that is not frozen\n\
                 hint: `targets: all`, or some of {}",
                DEFAULT_TARGETS.join(", "),
                last_parts(&linear).join(", ")
            )));
        }
        check_rank(section.rank, &modules, &graph)?;
        if let Some(saved) = &saved {
            check_saved(section, saved, &modules, &linear, &graph)?;
        }
        let alpha = match (&saved, section.alpha) {
            (Some(saved), None) => saved.alpha,
            _ => section.alpha(),
        };
        Ok(Lora {
            rank: section.rank,
            alpha,
            adapter: section.adapter.clone(),
            dropout: section.dropout,
            target_modules: target_modules(&modules, &every_linear),
            modules,
            trained_in_full,
            base_model: base_model.to_owned(),
            seed,
        })
    }

    /// Factor of the adapter's output.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// The adapters in the form that a graph takes; `masks` are sample ids and stream, given with dropout.
    pub(crate) fn adapters(&self, masks: Option<[ValueId; 2]>) -> Adapters {
        Adapters {
            rank: self.rank,
            scale: self.scale(),
            modules: self.modules.clone(),
            dropout: masks.map(|[sample_ids_b, stream_2]| AdapterDropout {
                rate: self.dropout,
                sample_ids_b,
                stream_2,
            }),
        }
    }

    /// Whether a parameter is trained.
    pub(crate) fn trains(&self, parameter: &str) -> bool {
        adapted_module(parameter).is_some() || self.trained_in_full.contains(parameter)
    }

    /// Reads the adapter to start from.
    pub(crate) fn read_start(&self) -> Result<Option<SavedAdapter>, TrainError> {
        self.adapter.as_deref().map(saved_adapter::read).transpose()
    }

    /// Fills an adapter matrix from the adapter to start from, or at random; returns whether the parameter is an adapter.
    pub(crate) fn fill(
        &self,
        start: Option<&SavedAdapter>,
        seed: u64,
        name: &str,
        values: &mut [f32],
    ) -> bool {
        let Some(module) = adapted_module(name) else {
            return false;
        };
        if let Some(start) = start {
            // The shapes were checked when the adapter was resolved.
            values.copy_from_slice(&start.tensors[name].1);
            return true;
        }
        if name == name_of_a(module) {
            // Kaiming's uniform initialisation with a = sqrt 5, whose bound is 1 / sqrt(inputs).
            let inputs = values.len() / self.rank;
            Start::Uniform((inputs as f64).powf(-0.5)).fill(seed, name, values);
        } else {
            values.fill(0.0);
        }
        true
    }

    /// Sets the inputs that decide a batch's dropout masks, if there is dropout.
    pub fn set_stream(&self, batch: &mut Batch, samples: impl Iterator<Item = i64>, epoch: u64) {
        if self.dropout == 0.0 {
            return;
        }
        let ids = batch.indices(SAMPLE_IDS, Scope::MicroBatch);
        ids.clear();
        ids.extend(samples);
        let stream = batch.indices(STREAM, Scope::Step);
        stream.clear();
        stream.extend([self.seed as i64, epoch as i64]);
    }

    /// Last parts of the layers' names, each once, in alphabetical order: `q_proj, v_proj`.
    pub fn short_names(&self) -> Vec<String> {
        last_parts(&self.modules)
    }

    pub fn describe(&self) -> String {
        format!(
            "LoRA: rank {}, alpha {} on {} layers ({})",
            self.rank,
            self.alpha,
            self.modules.len(),
            self.short_names().join(", "),
        )
    }
}

impl StepConfig {
    /// Fills `batch` with the loaded pictures, and with the inputs of the adapters.
    pub fn fill_batch(&self, batch: &mut Batch, loaded: &Loaded<HostRow>, epoch: u64) {
        self.task.fill_batch(batch, loaded, epoch);
        if let Some(lora) = &self.lora {
            let samples = loaded.samples.iter().map(|&sample| i64::from(sample));
            lora.set_stream(batch, samples, epoch);
        }
    }

    /// Random samples, with the inputs of the adapters.
    pub fn random_batch(&self, num_samples: usize, seed: u64) -> Batch {
        let mut batch = self.task.random_batch(num_samples, seed);
        if let Some(lora) = &self.lora {
            lora.set_stream(&mut batch, 0..num_samples as i64, 0);
        }
        batch
    }
}

/// Layers that a target matches: by full name, by last parts as in peft, or by pattern.
fn targeted(target: &str, linear: &BTreeSet<String>) -> Vec<String> {
    let is_meant = |module: &&String| {
        let ends = module
            .strip_suffix(target)
            .is_some_and(|before| before.ends_with('.'));
        *module == target
            || ends
            || matches(target, module)
            || matches(target, &format!("{module}.weight"))
    };
    linear.iter().filter(is_meant).cloned().collect()
}

fn named(targets: &LoraTargets, linear: &BTreeSet<String>) -> Result<BTreeSet<String>, TrainError> {
    if let LoraTargets::One(word) = targets
        && LoraTargets::ALL.contains(&word.as_str())
    {
        return Ok(linear.clone());
    }
    let mut modules = BTreeSet::new();
    for target in targets.names() {
        let found = targeted(target, linear);
        if found.is_empty() {
            let example = linear
                .iter()
                .nth(linear.len() / 2)
                .map_or("", String::as_str);
            return Err(TrainError::Config(format!(
                "train.lora.targets: `{target}`, expected a linear layer that has pretrained weights and is not frozen, found none\n\
                 hint: layers are {}; whole names are such as {example}, `*` stands for anything, and `targets: all` is all of them",
                last_parts(linear).join(", ")
            )));
        }
        modules.extend(found);
    }
    Ok(modules)
}

/// Checks that the adapter to start from has the configured rank and layers, in the shapes of the model.
fn check_saved(
    section: &LoraSection,
    saved: &SavedAdapter,
    modules: &BTreeSet<String>,
    linear: &BTreeSet<String>,
    graph: &Graph,
) -> Result<(), TrainError> {
    if saved.rank != section.rank {
        return Err(TrainError::Config(format!(
            "train.lora.rank: {}, expected {}, that of the adapter\nhint: `lora: {{adapter: FOLDER, rank: {}}}`",
            section.rank, saved.rank, saved.rank
        )));
    }
    let refused = |what: String| {
        let hint =
            "leave `targets` out for the adapter's own layers; the adapter must be of this model";
        TrainError::Config(format!("train.lora.adapter: {what}\nhint: {hint}"))
    };
    if let Some(unknown) = modules.difference(linear).next() {
        return Err(refused(format!(
            "it has `{unknown}`, which is no linear layer of this model"
        )));
    }
    let shape_of = |module: &str| {
        let weight = format!("{module}.weight");
        let parameter = graph.parameters().iter().find(|one| one.name == weight);
        parameter.map(|one| graph.shape(one.value))
    };
    for module in modules {
        let Some(shape) = shape_of(module) else {
            continue;
        };
        let expected = [
            vec![section.rank, shape.width()],
            vec![shape.rows(), section.rank],
        ];
        for (name, expected) in names(module).into_iter().zip(expected) {
            let found = saved.tensors.get(&name).map(|(shape, _)| shape);
            if found != Some(&expected) {
                return Err(refused(format!(
                    "{name}, expected {expected:?}, found {found:?}"
                )));
            }
        }
    }
    if saved.tensors.len() != 2 * modules.len() {
        return Err(refused(format!(
            "it has {} layers, and {} are asked for",
            saved.tensors.len() / 2,
            modules.len()
        )));
    }
    Ok(())
}

/// Refuses a rank that is larger than a dimension of an adapted matrix.
fn check_rank(rank: usize, modules: &BTreeSet<String>, graph: &Graph) -> Result<(), TrainError> {
    for module in modules {
        let weight = format!("{module}.weight");
        let parameter = graph.parameters().iter().find(|one| one.name == weight);
        let Some(parameter) = parameter else { continue };
        let shape = graph.shape(parameter.value);
        let [outputs, inputs] = [shape.rows(), shape.width()];
        if rank > outputs.min(inputs) {
            return Err(TrainError::Config(format!(
                "train.lora.rank: {rank}, expected at most {}, the smaller side of {weight} [{outputs}, {inputs}]\n\
                 hint: `lora: {{rank: 16}}` is usual",
                outputs.min(inputs)
            )));
        }
    }
    Ok(())
}

/// Names by which peft finds exactly these layers.
fn target_modules(modules: &BTreeSet<String>, every_linear: &BTreeSet<String>) -> Vec<String> {
    let short = last_parts(modules);
    let meant = short.iter().flat_map(|name| targeted(name, every_linear));
    if meant.collect::<BTreeSet<String>>() == *modules {
        short
    } else {
        modules.iter().cloned().collect()
    }
}

/// Adds `scale B A` to a weight.
pub(crate) fn merge(weight: &mut [f32], [a, b]: [&[f32]; 2], rank: usize, scale: f64) {
    let inputs = a.len() / rank;
    let mut added = vec![0.0f32; inputs];
    for (weight, b) in weight.chunks_exact_mut(inputs).zip(b.chunks_exact(rank)) {
        added.fill(0.0);
        for (a, &b) in a.chunks_exact(inputs).zip(b) {
            let factor = (f64::from(b) * scale) as f32;
            for (added, &a) in added.iter_mut().zip(a) {
                *added += factor * a;
            }
        }
        for (weight, &added) in weight.iter_mut().zip(&added) {
            *weight += added;
        }
    }
}

fn last_parts(modules: &BTreeSet<String>) -> Vec<String> {
    let last = |module: &String| module.rsplit('.').next().unwrap_or(module).to_owned();
    let parts: BTreeSet<String> = modules.iter().map(last).collect();
    parts.into_iter().collect()
}

/// Names of both adapter matrices of a layer.
pub(crate) fn names(module: &str) -> [String; 2] {
    [name_of_a(module), name_of_b(module)]
}
