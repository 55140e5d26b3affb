//! Evaluation: pictures and captions to features, each tower by itself, forward alone.
//!
//! The programs have no backward pass, so gradients cannot leak; they run in the arena of the step, or in an arena of
//! their own ([`Encoders`]) where nothing is trained.

use std::borrow::Cow;

use holdall_device::{Device, DeviceError, HostRow, Machine};
use holdall_graph::{DType, Graph, Role, Section, ValueId};
use holdall_models::clip::{self, ClipInputs, end_token};
use holdall_models::config::ClipConfig;
use holdall_plan::{Phase, PlanError, Recompute, RecomputePolicy, StepPlan, lifetimes_of};

use crate::error::TrainError;
use crate::step::{fill_parameters, on_its_threads};
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
    pub(crate) machine: &'a mut Machine,
    pub(crate) reach: EncoderReach,
}

/// What pictures became: rows of unit length and, with a label head, its logits.
pub struct EncodedPictures<'a> {
    /// `rows x projection`.
    pub features: Cow<'a, [f32]>,
    /// `rows x labels`.
    pub logits: Option<Cow<'a, [f32]>>,
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

    /// Encodes pictures; at least one, at most a batch.
    pub fn pictures(
        &mut self,
        device: &Device,
        pictures: &[HostRow],
    ) -> Result<EncodedPictures<'_>, DeviceError> {
        let (rows, batch) = (pictures.len(), self.reach.batch);
        assert!(
            (1..=batch).contains(&rows),
            "{rows} pictures, at most {batch}"
        );
        let place = self.plan.place(self.reach.inputs.pixels);
        // Rows beyond the pictures repeat the first.
        let padding = std::iter::repeat_n(&pictures[0], batch - rows);
        self.machine
            .input_rows(&place, pictures.iter().chain(padding));
        self.run(device, Phase::EvaluateFirst)?;
        Ok(EncodedPictures {
            features: self.read_rows(self.reach.features[PICTURES], rows)?,
            logits: match self.reach.logits {
                Some(logits) => Some(self.read_rows(logits, rows)?),
                None => None,
            },
        })
    }

    /// Encodes captions: `ids` are rows of as many tokens as the plan has.
    pub fn captions(
        &mut self,
        device: &Device,
        ids: &[i64],
    ) -> Result<Cow<'_, [f32]>, DeviceError> {
        let place = |value: ValueId| self.plan.place(value);
        let (inputs, num_tokens) = (self.reach.inputs, self.num_tokens());
        assert!(
            !ids.is_empty() && ids.len().is_multiple_of(num_tokens),
            "whole captions"
        );
        let rows = ids.len() / num_tokens;
        assert!(
            rows <= self.reach.batch,
            "at most {} captions",
            self.reach.batch
        );
        // Rows beyond the captions repeat the first: ids that are in the vocabulary.
        self.machine.input(&place(inputs.ids), |to: &mut [i64]| {
            to[..ids.len()].copy_from_slice(ids);
            for row in to[ids.len()..].chunks_mut(num_tokens) {
                row.copy_from_slice(&ids[..num_tokens]);
            }
        });
        let pooling = self.model.text.pooling;
        let mut ends: Vec<i64> = ids
            .chunks(num_tokens)
            .map(|caption| end_token(caption, pooling) as i64)
            .collect();
        ends.resize(self.reach.batch, ends[0]);
        self.machine
            .input(&place(inputs.end), |to| to.copy_from_slice(&ends));
        self.machine
            .input(&place(inputs.lengths), |lengths: &mut [i64]| {
                for (length, end) in lengths.iter_mut().zip(&ends) {
                    *length = end + 1;
                }
            });
        self.run(device, Phase::EvaluateSecond)?;
        self.read_rows(self.reach.features[CAPTIONS], rows)
    }

    fn run(&mut self, device: &Device, phase: Phase) -> Result<(), DeviceError> {
        on_its_threads(device, || {
            self.machine.run(device, self.plan, phase, 0, 0);
        });
        // A synchronisation per batch: its results are read next.
        self.machine.wait()
    }

    /// The first rows of a value.
    fn read_rows(&self, value: ValueId, rows: usize) -> Result<Cow<'_, [f32]>, DeviceError> {
        let all = self.machine.read(&self.plan.place(value))?;
        let count = rows * (all.len() / self.reach.batch);
        Ok(match all {
            Cow::Borrowed(all) => Cow::Borrowed(&all[..count]),
            Cow::Owned(mut all) => {
                all.truncate(count);
                Cow::Owned(all)
            }
        })
    }
}

/// A model that is only read: its weights and the evaluation programs in an arena of their own.
pub struct Encoders {
    model: ClipConfig,
    plan: StepPlan,
    machine: Machine,
    reach: EncoderReach,
}

/// Samples at a time, unless the user says otherwise or memory does.
const BATCHES: [usize; 8] = [64, 32, 16, 8, 4, 3, 2, 1];

impl Encoders {
    /// Plans the largest batch that fits the budget, or the one asked for, and reserves the arena.
    pub fn new(
        device: &Device,
        config: &StepConfig,
        batch: Option<usize>,
        budget_bytes: Option<u64>,
        host_bytes: u64,
    ) -> Result<Encoders, TrainError> {
        // On the CPU the pictures of a batch are part of what the budget bounds.
        let row_bytes = match device.is_gpu() {
            true => 0,
            false => (config.model.vision.image_size.pow(2) * 3) as u64,
        };
        let arithmetic = config.arithmetic;
        let target = device.target(arithmetic, host_bytes)?;
        let asked = batch.map(|batch| vec![batch]);
        let mut smallest = u64::MAX;
        for batch in asked.unwrap_or(BATCHES.to_vec()) {
            let mut graph = Graph::new(arithmetic.compute());
            let reach = EncoderReach::write(&mut graph, config, batch);
            let nothing_again = RecomputePolicy::uniform(Recompute::None, 0);
            let mut plan = lifetimes_of(&graph, &nothing_again, &*target)
                .pack()
                .plan(0, 0);
            plan.process_bytes += batch as u64 * row_bytes;
            smallest = smallest.min(plan.process_bytes);
            if budget_bytes.is_none_or(|budget| plan.process_bytes <= budget) {
                let machine = Machine::new(device, &plan, arithmetic)?;
                let model = config.model.clone();
                return Ok(Encoders {
                    model,
                    plan,
                    machine,
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

    /// Counts bytes that the process may hold beside what was planned.
    pub fn hold_more(&mut self, bytes: u64) {
        self.plan.process_bytes += bytes;
    }

    /// What was planned.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Fills every parameter: `fill` gets its name and its elements.
    pub fn set_weights<E>(
        &mut self,
        device: &Device,
        fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        fill_parameters(device, &self.plan, &mut self.machine, fill)
    }

    /// The programs at work.
    pub fn encoder(&mut self) -> Encoder<'_> {
        Encoder {
            model: &self.model,
            plan: &self.plan,
            machine: &mut self.machine,
            reach: self.reach,
        }
    }
}
