//! The fastest plan that fits.
//!
//! The candidates do not depend on the budget: micro-batch x recomputation x number of kept micro-batches, within what
//! the user left open. They are sorted by predicted time and the first that fits is taken, so a larger
//! budget never has a slower plan. Offsets are only worked out for candidates whose lower bound fits.

use holdall_graph::Graph;
use serde::Serialize;

use crate::error::PlanError;
use crate::layout::{Breakdown, Layout, StepPlan, prepare};
use crate::recompute::{Policy, Recompute};
use crate::target::Target;

/// What the user said; `None` is left open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Samples per optimizer step.
    pub effective_batch: Option<usize>,
    /// Samples per micro-batch.
    pub batch_size: Option<usize>,
    /// Micro-batches per optimizer step.
    pub gradient_accumulation: Option<usize>,
    /// What to recompute.
    pub recompute: Option<Recompute>,
    /// Micro-batches that keep their activations; open except in tests.
    pub kept: Option<usize>,
    /// What the process may hold.
    pub budget_bytes: Option<u64>,
}

/// Effective batch when nothing was said.
const DEFAULT_EFFECTIVE_BATCH: usize = 128;

/// A way to run the step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub gradient_accumulation: usize,
    /// What is recomputed.
    pub recompute: String,
    /// Micro-batches that keep their activations between the passes.
    pub kept_micro_batches: usize,
    /// Number format of the arithmetic.
    pub precision: &'static str,
    /// Number format of the optimizer's state.
    pub optimizer_state: &'static str,
    /// The one allocation.
    pub arena_bytes: u64,
    /// The whole process.
    pub process_bytes: u64,
    /// The arena by purpose.
    pub breakdown: Breakdown,
    /// Predicted time of a step.
    pub step_ms: f64,
}

/// A change that would make a run fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What to type.
    pub change: String,
    /// What the process would then hold.
    pub process_bytes: u64,
    /// What a step would then take.
    pub step_ms: f64,
}

/// What was chosen, and what else there is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Samples per step.
    pub effective_batch: usize,
    /// The choice.
    pub chosen: Candidate,
    /// The choice with addresses.
    pub step: StepPlan,
    /// Other ways, fastest first: those that fit and, marked by their bytes, those that would with more memory.
    pub alternatives: Vec<Candidate>,
    /// A faster batch size within the same budget, where the user fixed a slower one.
    pub suggestion: Option<Candidate>,
}

/// More samples than this per step is a slip of the finger.
const MOST_SAMPLES: usize = 1 << 26;

impl Request {
    /// Samples per optimizer step: as said, or from batch size and accumulation, or the default.
    pub fn samples_per_step(&self) -> Result<usize, PlanError> {
        Ok(self.sizes()?.0)
    }

    /// The effective batch, and the batch sizes that are open.
    fn sizes(&self) -> Result<(usize, Vec<usize>), PlanError> {
        for (name, value) in [
            ("effective batch", self.effective_batch),
            ("batch size", self.batch_size),
            ("gradient accumulation", self.gradient_accumulation),
        ] {
            if value.is_some_and(|value| value == 0 || value > MOST_SAMPLES) {
                return Err(contradiction(
                    format!(
                        "{name} is {}, expected 1 to {MOST_SAMPLES}",
                        value.unwrap_or(0)
                    ),
                    "leave it out for a sensible one",
                ));
            }
        }
        let effective = self.effective()?;
        let larger = |name: &str, value: usize| {
            contradiction(
                format!("{name} {value} is larger than the effective batch {effective}"),
                &format!("--effective-batch {value}, or a smaller {name}"),
            )
        };
        let batches = match (self.batch_size, self.gradient_accumulation) {
            (Some(batch), _) if batch > effective => return Err(larger("batch size", batch)),
            (Some(batch), _) => vec![batch],
            (None, Some(accumulation)) if accumulation > effective => {
                return Err(larger("gradient accumulation", accumulation));
            }
            (None, Some(accumulation)) => vec![effective.div_ceil(accumulation)],
            (None, None) => open_batches(effective),
        };
        Ok((effective, batches))
    }

    fn effective(&self) -> Result<usize, PlanError> {
        let numbers = (
            self.effective_batch,
            self.batch_size,
            self.gradient_accumulation,
        );
        Ok(match numbers {
            (Some(effective), Some(batch), Some(accumulation)) => {
                // Both at most 2^26: the product is far from overflow.
                let holds = batch * accumulation;
                if effective > holds || effective <= holds - batch {
                    return Err(contradiction(
                        format!(
                            "effective batch {effective} does not take {accumulation} micro-batches of \
                             {batch} (they hold {holds})"
                        ),
                        "leave one of the three out",
                    ));
                }
                effective
            }
            (Some(effective), _, _) => effective,
            (None, Some(batch), Some(accumulation)) if batch * accumulation > MOST_SAMPLES => {
                return Err(contradiction(
                    format!(
                        "{batch} x {accumulation} samples per step, expected at most {MOST_SAMPLES}"
                    ),
                    "a smaller batch size or accumulation",
                ));
            }
            (None, Some(batch), Some(accumulation)) => batch * accumulation,
            (None, None, Some(accumulation)) => DEFAULT_EFFECTIVE_BATCH.max(accumulation),
            (None, Some(batch), None) => DEFAULT_EFFECTIVE_BATCH.max(batch),
            (None, None, None) => DEFAULT_EFFECTIVE_BATCH,
        })
    }
}

fn contradiction(what: String, hint: &str) -> PlanError {
    PlanError::Contradiction(format!("{what}\nhint: {hint}"))
}

/// Batch sizes worth a look: powers of two, and even shares of the effective batch up to the whole.
fn open_batches(effective: usize) -> Vec<usize> {
    let mut batches: Vec<usize> = (0..)
        .map(|power| 1 << power)
        .take_while(|&batch| batch < effective && batch <= 4096)
        .collect();
    batches.extend(
        [1, 2, 3, 4, 6, 8]
            .iter()
            .map(|parts| effective.div_ceil(*parts))
            .filter(|&batch| batch <= 4096),
    );
    batches.sort_unstable();
    batches.dedup();
    batches
}

fn policies(request: &Request, num_blocks: usize) -> Vec<Policy> {
    match request.recompute {
        Some(recompute) => vec![Policy::uniform(recompute, num_blocks)],
        None => {
            let mut policies = vec![
                Policy::uniform(Recompute::None, num_blocks),
                Policy::uniform(Recompute::Cheap, num_blocks),
            ];
            policies.extend([1, 2, 3].map(|quarters| Policy {
                blocks_again: num_blocks * quarters / 4,
                rest: Recompute::Cheap,
            }));
            policies.push(Policy::uniform(Recompute::Blocks, num_blocks));
            policies.dedup();
            policies
        }
    }
}

/// How many micro-batches might keep their activations.
fn kept_counts(request: &Request, accumulation: usize, coupled: bool) -> Vec<usize> {
    if let Some(kept) = request.kept {
        return vec![kept.min(accumulation)];
    }
    // Without a first pass there is nothing to bridge.
    if !coupled {
        return vec![0];
    }
    let mut counts: Vec<usize> = (0..=accumulation.min(32)).collect();
    counts.extend((1..=8).map(|eighths| accumulation * eighths / 8));
    counts.sort_unstable();
    counts.dedup();
    counts
}

struct Entry {
    kind: usize,
    kept: usize,
    accumulation: usize,
    seconds: f64,
    bound_process: u64,
}

/// All candidates of a request, fastest first. Offsets are worked out on demand and only the last ones are kept: a
/// planner that holds every layout would itself need the memory that it plans.
struct Field<'a> {
    build: &'a dyn Fn(usize, usize) -> Graph,
    target: &'a dyn Target,
    effective: usize,
    /// Micro-batch size and policy.
    kinds: Vec<(usize, Policy)>,
    entries: Vec<Entry>,
    num_blocks: usize,
    layout: Option<(usize, Layout)>,
}

impl<'a> Field<'a> {
    fn new(
        request: &Request,
        batches: &[usize],
        effective: usize,
        build: &'a dyn Fn(usize, usize) -> Graph,
        target: &'a dyn Target,
    ) -> Field<'a> {
        let mut field = Field {
            build,
            target,
            effective,
            kinds: Vec::new(),
            entries: Vec::new(),
            num_blocks: 0,
            layout: None,
        };
        for &batch_size in batches {
            let accumulation = effective.div_ceil(batch_size);
            let graph = build(batch_size, accumulation);
            field.num_blocks = graph.blocks().len();
            for policy in policies(request, field.num_blocks) {
                let draft = prepare(&graph, &policy, target);
                for kept in kept_counts(request, accumulation, draft.is_coupled()) {
                    field.entries.push(Entry {
                        kind: field.kinds.len(),
                        kept,
                        accumulation,
                        seconds: draft.seconds(kept, accumulation),
                        bound_process: draft.process_bytes(draft.bound_bytes(kept, accumulation)),
                    });
                }
                field.kinds.push((batch_size, policy));
            }
        }
        field.entries.sort_by(|a, b| {
            a.seconds
                .total_cmp(&b.seconds)
                .then(a.bound_process.cmp(&b.bound_process))
        });
        field
    }

    fn layout(&mut self, kind: usize) -> &Layout {
        if self.layout.as_ref().is_none_or(|(of, _)| *of != kind) {
            let (batch_size, policy) = self.kinds[kind];
            let graph = (self.build)(batch_size, self.effective.div_ceil(batch_size));
            self.layout = Some((kind, prepare(&graph, &policy, self.target).pack()));
        }
        &self.layout.as_ref().expect("made above").1
    }

    fn candidate(&mut self, index: usize) -> Candidate {
        let num_blocks = self.num_blocks;
        let entry = &self.entries[index];
        let (kept, accumulation, step_ms) = (entry.kept, entry.accumulation, entry.seconds * 1e3);
        let kind = entry.kind;
        let (batch_size, policy) = self.kinds[kind];
        let layout = self.layout(kind);
        let arena_bytes = layout.arena_bytes(kept, accumulation);
        Candidate {
            batch_size,
            gradient_accumulation: accumulation,
            recompute: policy.label(num_blocks),
            kept_micro_batches: kept,
            precision: "f32",
            optimizer_state: "f32",
            arena_bytes,
            process_bytes: layout.draft().process_bytes(arena_bytes),
            breakdown: layout.breakdown(kept, accumulation),
            step_ms,
        }
    }

    /// Index and candidate of the fastest that fits.
    fn fastest(&mut self, budget_bytes: u64) -> Option<(usize, Candidate)> {
        for index in 0..self.entries.len() {
            if self.entries[index].bound_process <= budget_bytes {
                let candidate = self.candidate(index);
                if candidate.process_bytes <= budget_bytes {
                    return Some((index, candidate));
                }
            }
        }
        None
    }

    /// The smallest, whatever it takes.
    fn smallest(&mut self) -> Candidate {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&index| self.entries[index].bound_process);
        let mut best: Option<Candidate> = None;
        for index in order {
            if let Some(best) = &best
                && self.entries[index].bound_process >= best.process_bytes
            {
                break;
            }
            let candidate = self.candidate(index);
            if best
                .as_ref()
                .is_none_or(|best| candidate.process_bytes < best.process_bytes)
            {
                best = Some(candidate);
            }
        }
        best.expect("a request has at least one candidate")
    }

    /// The best of each kind of choice, to show what the knobs do.
    fn alternatives(&mut self, chosen: usize, budget_bytes: u64) -> Vec<Candidate> {
        let mut seen = vec![self.kind(chosen)];
        let mut alternatives = Vec::new();
        // The next best that fit, one per micro-batch size or recomputation ...
        for index in 0..self.entries.len() {
            let kind = self.kind(index);
            if alternatives.len() >= 6
                || seen.contains(&kind)
                || self.entries[index].bound_process > budget_bytes
            {
                continue;
            }
            let candidate = self.candidate(index);
            if candidate.process_bytes <= budget_bytes {
                seen.push(kind);
                alternatives.push(candidate);
            }
        }
        // ... and the fastest of all, to show what more memory would buy.
        if self.entries[0].seconds < self.entries[chosen].seconds {
            let fastest = self.candidate(0);
            if fastest.process_bytes > budget_bytes {
                alternatives.push(fastest);
            }
        }
        alternatives
    }

    fn kind(&self, index: usize) -> (usize, Policy) {
        self.kinds[self.entries[index].kind]
    }
}

/// The fastest candidate that fits, without addresses: for exploring.
pub fn search(
    request: &Request,
    build: &dyn Fn(usize, usize) -> Graph,
    target: &dyn Target,
) -> Result<Candidate, PlanError> {
    let (effective, batches) = request.sizes()?;
    let mut field = Field::new(request, &batches, effective, build, target);
    match field.fastest(request.budget_bytes.unwrap_or(u64::MAX)) {
        Some((_, candidate)) => Ok(candidate),
        None => Err(PlanError::DoesNotFit {
            budget_bytes: request.budget_bytes.unwrap_or(u64::MAX),
            smallest_bytes: field.smallest().process_bytes,
            changes: Vec::new(),
        }),
    }
}

/// Chooses, and works out addresses for the choice. `build` writes the graph of a step for a batch size and an
/// accumulation.
pub fn plan(
    request: &Request,
    build: &dyn Fn(usize, usize) -> Graph,
    target: &dyn Target,
) -> Result<Plan, PlanError> {
    let (effective_batch, batches) = request.sizes()?;
    let budget_bytes = request.budget_bytes.unwrap_or(u64::MAX);
    let mut field = Field::new(request, &batches, effective_batch, build, target);
    let Some((index, chosen)) = field.fastest(budget_bytes) else {
        let smallest = field.smallest();
        return Err(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes: smallest.process_bytes,
            changes: changes(request, effective_batch, &smallest, build, target),
        });
    };
    let alternatives = field.alternatives(index, budget_bytes);
    let kind = field.entries[index].kind;
    let step = field
        .layout(kind)
        .plan(chosen.kept_micro_batches, chosen.gradient_accumulation);
    Ok(Plan {
        effective_batch,
        suggestion: suggestion(request, effective_batch, &chosen, build, target),
        chosen,
        step,
        alternatives,
    })
}

/// A batch size that would be at least 5% faster in the same budget. Shown, never taken.
fn suggestion(
    request: &Request,
    effective_batch: usize,
    chosen: &Candidate,
    build: &dyn Fn(usize, usize) -> Graph,
    target: &dyn Target,
) -> Option<Candidate> {
    if request.batch_size.is_none() && request.gradient_accumulation.is_none() {
        return None;
    }
    let open = Request {
        effective_batch: Some(effective_batch),
        batch_size: None,
        gradient_accumulation: None,
        kept: None,
        ..request.clone()
    };
    search(&open, build, target)
        .ok()
        .filter(|better| better.step_ms < 0.95 * chosen.step_ms)
}

/// `--memory` that holds so many bytes, rounded up: in MiB, from 10 GiB on in GiB.
fn more_memory(bytes: u64) -> String {
    match bytes >> 30 {
        0..10 => format!("--memory {}MiB", bytes.div_ceil(1 << 20)),
        _ => format!("--memory {}GiB", bytes.div_ceil(1 << 30)),
    }
}

/// What would make it fit: more memory, or some of the user's numbers changed. Each change names every number
/// that it touches, so that it can be typed as it stands. The fastest two and the memory, fastest first.
fn changes(
    request: &Request,
    effective_batch: usize,
    smallest: &Candidate,
    build: &dyn Fn(usize, usize) -> Graph,
    target: &dyn Target,
) -> Vec<Change> {
    let split_fixed = request.batch_size.is_some() || request.gradient_accumulation.is_some();
    let open_split = Request {
        effective_batch: Some(effective_batch),
        batch_size: None,
        gradient_accumulation: None,
        ..request.clone()
    };
    let mut asked = Vec::new();
    if split_fixed {
        asked.push((open_split.clone(), false));
    }
    if request.recompute.is_some() {
        let recompute = None;
        asked.push((
            Request {
                recompute,
                ..request.clone()
            },
            true,
        ));
        if split_fixed {
            asked.push((
                Request {
                    recompute,
                    ..open_split.clone()
                },
                true,
            ));
        }
    }
    let mut found: Vec<Change> = Vec::new();
    for (relaxed, recompute) in asked {
        let Ok(candidate) = search(&relaxed, build, target) else {
            continue;
        };
        let mut words = Vec::new();
        if recompute {
            words.push("--recompute auto".to_owned());
        }
        if relaxed.batch_size.is_none() && split_fixed && relaxed.gradient_accumulation.is_none() {
            words.push(split_words(&candidate));
        }
        let change = format!("{} (the same gradient)", words.join(" "));
        let same = |other: &Change| other.process_bytes == candidate.process_bytes;
        if !found.iter().any(same) {
            found.push(Change {
                change,
                process_bytes: candidate.process_bytes,
                step_ms: candidate.step_ms,
            });
        }
    }
    let fewer = |effective: usize| {
        let relaxed = Request {
            effective_batch: Some(effective),
            ..open_split.clone()
        };
        search(&relaxed, build, target).ok()
    };
    let halves = std::iter::successors(Some(effective_batch / 2), |&half| Some(half / 2));
    // Where not even a single sample fits, no effective batch does.
    if effective_batch > 1 && fewer(1).is_some() {
        let fitting = halves
            .take_while(|&half| half >= 1)
            .find_map(|half| fewer(half).map(|candidate| (half, candidate)));
        if let Some((half, candidate)) = fitting {
            let split = if split_fixed {
                format!(" {}", split_words(&candidate))
            } else {
                String::new()
            };
            found.push(Change {
                change: format!(
                    "--effective-batch {half}{split} (another gradient: fewer negatives)"
                ),
                process_bytes: candidate.process_bytes,
                step_ms: candidate.step_ms,
            });
        }
    }
    found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    found.truncate(2);
    found.push(Change {
        change: more_memory(smallest.process_bytes),
        process_bytes: smallest.process_bytes,
        step_ms: smallest.step_ms,
    });
    found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    found
}

fn split_words(candidate: &Candidate) -> String {
    format!(
        "--batch-size {} --gradient-accumulation {}",
        candidate.batch_size, candidate.gradient_accumulation
    )
}
