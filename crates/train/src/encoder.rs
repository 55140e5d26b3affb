//! Evaluation: pictures and captions to features, each tower by itself, forward alone.
//!
//! The programs have no backward pass, so gradients cannot leak; they run in the arena of the step, or in an arena of
//! their own ([`Encoders`]) where nothing is trained.

use holdall_device::cpu::{Arena, Cpu, CpuTarget};
use holdall_graph::{DType, Graph, Role, Section, ValueId};
use holdall_models::clip::{self, ClipInputs, end_token};
use holdall_models::config::ClipConfig;
use holdall_plan::{PlanError, Policy, Recompute, StepPlan, prepare};

use crate::error::TrainError;
use crate::step::fill_parameters;
use crate::step_graph::StepConfig;

const PICTURES: usize = 0;
const CAPTIONS: usize = 1;

/// Where the evaluation programs meet the outside.
#[derive(Clone, Copy, Debug)]
pub struct EncoderReach {
    /// Samples at a time.
    pub batch: usize,
    inputs: ClipInputs,
    features: [ValueId; 2],
    logits: Option<ValueId>,
}

impl EncoderReach {
    /// Programs with inputs and outputs of their own.
    pub fn write(g: &mut Graph, config: &StepConfig, batch: usize) -> EncoderReach {
        let inputs = clip::inputs(g, &config.model, batch, config.num_tokens, config.pixels);
        let features = ["evaluated pictures", "evaluated captions"].map(|name| {
            let dims = [batch, config.model.projection_dim];
            g.tensor(name, &dims, DType::F32, Role::Feature)
        });
        EncoderReach::write_sharing(g, config, batch, inputs, features)
    }

    /// Programs that read the step's inputs and write over the first rows of its features.
    pub(crate) fn write_sharing(
        g: &mut Graph,
        config: &StepConfig,
        batch: usize,
        inputs: ClipInputs,
        features: [ValueId; 2],
    ) -> EncoderReach {
        let features = features.map(|all| g.rows(all, 0, batch));
        g.enter(Section::Evaluate(PICTURES));
        clip::vision(g, &config.model, inputs.pixels, features[PICTURES]);
        let heads = clip::heads(g, &config.model, config.num_labels);
        let logits = heads.label.map(|[weight, bias]| {
            let dims = [batch, g.shape(bias).num_elements()];
            let logits = g.tensor("evaluated labels", &dims, DType::F32, Role::Feature);
            g.linear_into(features[PICTURES], weight, bias, logits);
            logits
        });
        g.enter(Section::Evaluate(CAPTIONS));
        clip::text(g, &config.model, &inputs, features[CAPTIONS]);
        EncoderReach {
            batch,
            inputs,
            features,
            logits,
        }
    }
}

/// The evaluation programs, with the memory that they run in.
pub struct Encoder<'a> {
    pub(crate) model: &'a ClipConfig,
    pub(crate) plan: &'a StepPlan,
    pub(crate) arena: &'a mut Arena,
    pub(crate) reach: EncoderReach,
}

/// What pictures became: rows of unit length and, with a label head, its logits.
pub struct EncodedPictures<'a> {
    /// `rows x projection`.
    pub features: &'a [f32],
    /// `rows x labels`.
    pub logits: Option<&'a [f32]>,
}

impl Encoder<'_> {
    /// Samples at a time, at most.
    pub fn batch(&self) -> usize {
        self.reach.batch
    }

    /// Length of a feature.
    pub fn projection(&self) -> usize {
        self.model.projection_dim
    }

    /// Tokens per caption.
    pub fn num_tokens(&self) -> usize {
        self.plan.place(self.reach.inputs.ids).shape.width()
    }

    /// Encodes as many pictures as `load` says it wrote; the rest of the batch is whatever was there.
    pub fn pictures<E>(
        &mut self,
        cpu: &Cpu,
        load: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<EncodedPictures<'_>, E> {
        let place = self.plan.place(self.reach.inputs.pixels);
        let rows = load(self.arena.write(&place, 0))?;
        let programs = &self.plan.programs;
        cpu.scope(|| cpu.run(&programs.evaluate[PICTURES], self.arena, 0, 0));
        let projection = self.model.projection_dim;
        let features: &[f32] = self.read(self.reach.features[PICTURES]);
        let logits = self.reach.logits.map(|logits| -> &[f32] {
            let all: &[f32] = self.read(logits);
            &all[..rows * (all.len() / self.reach.batch)]
        });
        Ok(EncodedPictures {
            features: &features[..rows * projection],
            logits,
        })
    }

    /// Encodes captions: `ids` are rows of as many tokens as the plan has.
    pub fn captions(&mut self, cpu: &Cpu, ids: &[i64]) -> &[f32] {
        let place = |value: ValueId| self.plan.place(value);
        let inputs = &self.reach.inputs;
        let to: &mut [i64] = self.arena.write(&place(inputs.ids), 0);
        let num_tokens = to.len() / self.reach.batch;
        assert!(
            !ids.is_empty() && ids.len().is_multiple_of(num_tokens),
            "whole captions"
        );
        assert!(
            ids.len() <= to.len(),
            "at most {} captions",
            self.reach.batch
        );
        to[..ids.len()].copy_from_slice(ids);
        // Rows beyond the captions repeat the first: ids that are in the vocabulary.
        for row in to[ids.len()..].chunks_mut(num_tokens) {
            row.copy_from_slice(&ids[..num_tokens]);
        }
        let ends: Vec<i64> = to
            .chunks(num_tokens)
            .map(|caption| end_token(caption, self.model.text.pooling) as i64)
            .collect();
        let lengths: &mut [i64] = self.arena.write(&place(inputs.lengths), 0);
        for (length, end) in lengths.iter_mut().zip(&ends) {
            *length = end + 1;
        }
        self.arena
            .write(&place(inputs.end), 0)
            .copy_from_slice(&ends);
        let programs = &self.plan.programs;
        cpu.scope(|| cpu.run(&programs.evaluate[CAPTIONS], self.arena, 0, 0));
        let features: &[f32] = self.read(self.reach.features[CAPTIONS]);
        &features[..ids.len() / num_tokens * self.model.projection_dim]
    }

    fn read(&self, value: ValueId) -> &[f32] {
        self.arena.read(&self.plan.place(value), 0)
    }
}

/// A model that is only read: its weights and the evaluation programs in an arena of their own.
pub struct Encoders {
    model: ClipConfig,
    plan: StepPlan,
    arena: Arena,
    reach: EncoderReach,
}

/// Samples at a time, unless the user says otherwise or memory does.
const BATCHES: [usize; 8] = [64, 32, 16, 8, 4, 3, 2, 1];

impl Encoders {
    /// Plans the largest batch that fits the budget, or the one asked for, and reserves the arena.
    pub fn new(
        cpu: &Cpu,
        config: &StepConfig,
        batch: Option<usize>,
        budget_bytes: Option<u64>,
        host_bytes: u64,
    ) -> Result<Encoders, TrainError> {
        let target = CpuTarget::new(cpu.num_threads()).with_host_bytes(host_bytes);
        let asked = batch.map(|batch| vec![batch]);
        let mut smallest = u64::MAX;
        for batch in asked.unwrap_or(BATCHES.to_vec()) {
            let mut graph = Graph::new(DType::F32);
            let reach = EncoderReach::write(&mut graph, config, batch);
            let nothing_again = Policy::uniform(Recompute::None, 0);
            let plan = prepare(&graph, &nothing_again, &target).pack().plan(0, 0);
            smallest = smallest.min(plan.process_bytes);
            if budget_bytes.is_none_or(|budget| plan.process_bytes <= budget) {
                let arena = Arena::new(plan.arena_bytes)?;
                let model = config.model.clone();
                return Ok(Encoders {
                    model,
                    plan,
                    arena,
                    reach,
                });
            }
        }
        Err(PlanError::DoesNotFit {
            budget_bytes: budget_bytes.unwrap_or(0),
            smallest_bytes: smallest,
            changes: Vec::new(),
        }
        .into())
    }

    /// What was planned.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Fills every parameter: `fill` gets its name and its elements.
    pub fn set_weights<E>(
        &mut self,
        fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        fill_parameters(&self.plan, &mut self.arena, fill)
    }

    /// The programs at work.
    pub fn encoder(&mut self) -> Encoder<'_> {
        Encoder {
            model: &self.model,
            plan: &self.plan,
            arena: &mut self.arena,
            reach: self.reach,
        }
    }
}
