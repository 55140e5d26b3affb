//! Finds the fastest plan that fits.
//!
//! The candidates do not depend on the budget: micro-batch x recomputation x number of kept micro-batches x copies of weights
//! x state in host memory, within the settings that the user left open. They are sorted by predicted time and the first one
//! that fits is taken, so a larger budget never has a slower plan. Of the plans within half a per cent of the fastest, the
//! smallest is taken (see [`thriftiest`]). Offsets are computed only for candidates whose lower bound fits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdall_graph::{Copies, Graph};

use crate::advice::{changes, suggestion};
use crate::candidate::{Build, Candidate, Choice, StepShape, WeightCopies};
use crate::curve::{Point, levels, thriftiest, without_dominated};
use crate::error::PlanError;
use crate::frozen_blocks::num_trained_blocks;
use crate::host_state::{HostState, OnHost};
use crate::layout::{Layout, StepPlan};
use crate::lifetimes::{lifetimes_of, lifetimes_of_rewritten};
use crate::recompute::{RecomputePolicy, Rewritten, rewrite};
use crate::request::{Request, kept_counts, policies};
use crate::target::Target;

/// The chosen plan and its alternatives.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Samples per step.
    pub effective_batch: usize,
    pub chosen: Candidate,
    /// The chosen plan with addresses.
    pub step: StepPlan,
    /// Alternatives, fastest first: candidates that fit, and candidates that need more memory.
    pub alternatives: Vec<Candidate>,
    /// A faster batch size within the same budget, if the user fixed a slower one.
    pub suggestion: Option<Candidate>,
    /// Memory against time: the fastest candidate for each budget from the smallest possible on, ascending in memory and
    /// descending in time. The choice is one of them.
    pub curve: Vec<Candidate>,
}

/// A choice with its predicted time and a lower bound of its memory, without offsets.
#[derive(Clone, Copy)]
struct Entry {
    choice: Choice,
    seconds: f64,
    bound_process: u64,
    /// State in host memory.
    host_bytes: u64,
}

/// Entries for a batch size; empty if copies per use are requested and the step needs no copies.
fn entries_of(
    request: &Request,
    (batch_size, copies): (usize, Copies),
    effective: usize,
    build: Build<'_>,
    target: &dyn Target,
) -> Vec<Entry> {
    let gradient_accumulation = effective.div_ceil(batch_size);
    // Lanes in turn, then side by side.
    let mut entries = [Vec::new(), Vec::new()];
    let graph = build(&StepShape {
        batch_size,
        gradient_accumulation,
        copies,
    });
    let weight_copies = match (graph.compute() != graph.full(), copies) {
        (false, Copies::Resident) => WeightCopies::None,
        (false, Copies::PerUse) => return Vec::new(),
        (true, Copies::Resident) => WeightCopies::Resident,
        (true, Copies::PerUse) => WeightCopies::PerUse,
    };
    let num_blocks = num_trained_blocks(&graph);
    let host_states = host_states(request, &graph, target);
    let split = (batch_size, gradient_accumulation);
    let all = policies(request, num_blocks, split, target.has_lanes());
    // The nodes do not depend on the lanes: policies that differ only in lanes are adjacent, and share the rewritten graph.
    let mut grouped = all.clone();
    grouped.sort_by_key(|one| all.iter().position(|other| *other == one.in_turn()));
    let mut shared: Option<(RecomputePolicy, Arc<Rewritten>)> = None;
    for recompute in grouped {
        let in_turn = recompute.in_turn();
        let rewritten = match shared.take().filter(|(of, _)| *of == in_turn) {
            Some((_, rewritten)) => rewritten,
            None => Arc::new(rewrite(&graph, &in_turn)),
        };
        shared = Some((in_turn, Arc::clone(&rewritten)));
        let lifetimes = lifetimes_of_rewritten(rewritten, &recompute, target);
        let entry = |kept, bound: u64, &(host_state, ref on_host): &(HostState, OnHost)| {
            let arena = bound - on_host.bytes;
            let process = lifetimes.process_bytes(arena, kept, gradient_accumulation);
            let moving = match target.host_bytes_per_second() {
                Some(rate) => on_host.moved_bytes as f64 / rate,
                None => 0.0,
            };
            Entry {
                choice: Choice {
                    batch_size,
                    gradient_accumulation,
                    kept_micro_batches: kept,
                    recompute,
                    weight_copies,
                    host_state,
                },
                seconds: lifetimes.seconds(kept, gradient_accumulation) + moving,
                bound_process: process + target.pinned_bytes(on_host.bytes),
                host_bytes: on_host.bytes,
            }
        };
        let counts = kept_counts(request, gradient_accumulation, lifetimes.is_coupled());
        // If programs are captured for each slot, more slots cost seconds before the first step.
        let is_ready =
            |&kept: &usize| !target.has_lanes() || kept <= MOST_SLOTS || request.kept == Some(kept);
        for kept in counts.into_iter().filter(is_ready) {
            let bound = lifetimes.bound_bytes(kept, gradient_accumulation);
            let found = host_states.iter().map(|state| entry(kept, bound, state));
            entries[usize::from(recompute != in_turn)].extend(found);
        }
    }
    entries.concat()
}

/// Maximum number of slots with captured programs: a capture takes a few milliseconds, and each length of text has its own.
const MOST_SLOTS: usize = 128;

/// Levels of state in host memory to try: nothing, and each level that differs from the others.
fn host_states(request: &Request, graph: &Graph, target: &dyn Target) -> Vec<(HostState, OnHost)> {
    let mut found: Vec<(HostState, OnHost)> = vec![(HostState::Nothing, OnHost::default())];
    let room = match target.host_bytes_per_second() {
        Some(_) => request.host_bytes.unwrap_or(0),
        None => 0,
    };
    if let Some(state) = request.host_state {
        return vec![(state, OnHost::new(graph, state, target.spacing()))];
    }
    for state in HostState::ALL {
        let on_host = OnHost::new(graph, state, target.spacing());
        let is_new = found.iter().all(|(_, other)| other.bytes != on_host.bytes);
        if is_new && on_host.bytes <= room {
            found.push((state, on_host));
        }
    }
    found
}

/// All candidates of a request, fastest first. Offsets are computed on demand and only the last layout is kept: keeping every
/// layout would itself take the memory that is planned.
struct Field<'a> {
    build: Build<'a>,
    target: &'a dyn Target,
    precision: &'static str,
    optimizer_state: &'static str,
    entries: Vec<Entry>,
    layout: Option<(Choice, Layout)>,
}

impl<'a> Field<'a> {
    fn new(
        request: &Request,
        batches: &[usize],
        effective: usize,
        build: Build<'a>,
        target: &'a dyn Target,
    ) -> Field<'a> {
        let of = |which: (usize, Copies)| entries_of(request, which, effective, build, target);
        // Graphs are written one at a time, and only if needed: their remains count in the budget.
        let in_turn = |size: usize| {
            let resident = of((size, Copies::Resident));
            let mut choices = resident.iter().map(|entry| entry.choice.weight_copies);
            let is_narrow = choices.any(|copies| copies == WeightCopies::Resident);
            let per_use = is_narrow.then(|| of((size, Copies::PerUse)));
            [Some(resident), per_use].into_iter().flatten()
        };
        let found: Vec<Vec<Entry>> = if target.has_lanes() {
            // For a separate device, memory that threads leave in this process counts in no budget.
            side_by_side(batches, &of)
        } else {
            batches.iter().flat_map(|&size| in_turn(size)).collect()
        };
        let mut entries: Vec<Entry> = found.into_iter().flatten().collect();
        entries.sort_by(|a, b| {
            a.seconds
                .total_cmp(&b.seconds)
                .then(a.bound_process.cmp(&b.bound_process))
        });
        Field {
            build,
            target,
            precision: request.precision,
            optimizer_state: request.optimizer_state,
            entries,
            layout: None,
        }
    }

    fn layout(&mut self, choice: &Choice) -> &Layout {
        let shared = choice.layout();
        if self.layout.as_ref().is_none_or(|(of, _)| *of != shared) {
            let graph = (self.build)(&choice.shape());
            let lifetimes = lifetimes_of(&graph, &choice.recompute, self.target);
            let lifetimes = lifetimes.with_host_state(choice.host_state, self.target);
            let lifetimes = lifetimes.with_shorter(self.target);
            self.layout = Some((shared, lifetimes.pack()));
        }
        &self.layout.as_ref().expect("made above").1
    }

    fn candidate(&mut self, index: usize) -> Candidate {
        let Entry {
            choice, seconds, ..
        } = self.entries[index];
        let (kept, accumulation) = (choice.kept_micro_batches, choice.gradient_accumulation);
        let (precision, optimizer_state) = (self.precision, self.optimizer_state);
        let layout = self.layout(&choice);
        let arena_bytes = layout.arena_bytes(kept, accumulation);
        let lifetimes = layout.lifetimes();
        Candidate {
            choice,
            is_coupled: lifetimes.is_coupled(),
            precision,
            optimizer_state,
            arena_bytes,
            process_bytes: lifetimes.process_bytes(arena_bytes, kept, accumulation),
            host_bytes: lifetimes.outliving.host_bytes,
            breakdown: layout.breakdown(kept, accumulation),
            step_ms: seconds * 1e3,
            measured: false,
        }
    }

    /// Index and candidate of the first of these that fits.
    fn first_that_fits(
        &mut self,
        indices: impl Iterator<Item = usize>,
        budget_bytes: u64,
    ) -> Option<(usize, Candidate)> {
        for index in indices {
            if self.entries[index].bound_process <= budget_bytes {
                let candidate = self.candidate(index);
                if candidate.process_bytes <= budget_bytes {
                    return Some((index, candidate));
                }
            }
        }
        None
    }

    /// Index and candidate of the smallest that is as fast as the fastest one that fits.
    fn chosen(&mut self, budget_bytes: u64) -> Option<(usize, Candidate)> {
        let all = 0..self.entries.len();
        let (fastest, _) = self.first_that_fits(all, budget_bytes)?;
        let as_fast = thriftiest(&self.points(), fastest);
        self.first_that_fits(as_fast.into_iter(), budget_bytes)
    }

    fn points(&self) -> Vec<Point> {
        let entries = self.entries.iter();
        entries
            .map(|entry| Point {
                bytes: entry.bound_process,
                host_bytes: entry.host_bytes,
                seconds: entry.seconds,
            })
            .collect()
    }

    /// The smallest candidate, at any time.
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

    /// The best candidate of each kind, to show the effect of the settings.
    fn alternatives(
        &mut self,
        chosen: usize,
        chosen_candidate: &Candidate,
        budget_bytes: u64,
    ) -> Vec<Candidate> {
        let mut seen = vec![self.kind(chosen)];
        let mut alternatives: Vec<Candidate> = Vec::new();
        // Up to six, one per kind, fastest first. A slower candidate is listed only if it is a tenth smaller than the one
        // before, which the lower bound often decides without offsets.
        for index in 0..self.entries.len() {
            let kind = self.kind(index);
            let before = alternatives.last().unwrap_or(chosen_candidate);
            // Recomputation varies by single blocks: without this margin such candidates would fill the list.
            let most = before.process_bytes - before.process_bytes / 10;
            if alternatives.len() >= 6
                || seen.contains(&kind)
                || self.entries[index].bound_process > most
            {
                continue;
            }
            let candidate = self.candidate(index);
            if candidate.process_bytes <= most {
                seen.push(kind);
                alternatives.push(candidate);
            }
        }
        // The fastest of all, to show the effect of more memory.
        if self.entries[0].seconds < self.entries[chosen].seconds {
            let fastest = self.candidate(0);
            if fastest.process_bytes > budget_bytes {
                alternatives.push(fastest);
            }
        }
        self.keep_on_device(chosen_candidate, &mut alternatives);
        alternatives
    }

    /// If state is in host memory, adds the same plan with all state on the device.
    fn keep_on_device(&mut self, chosen: &Candidate, alternatives: &mut Vec<Candidate>) {
        let on_device = Choice {
            host_state: HostState::Nothing,
            ..chosen.choice
        };
        let is_listed = alternatives.iter().any(|other| other.choice == on_device);
        let index = self
            .entries
            .iter()
            .position(|entry| entry.choice == on_device);
        if let Some(index) = index
            && chosen.choice.host_state.costs_time()
            && !is_listed
        {
            alternatives.push(self.candidate(index));
        }
    }

    fn kind(&self, index: usize) -> Choice {
        self.entries[index].choice.kind()
    }

    /// The fastest candidate for each budget, with the chosen one. Lower bounds select them, and only their offsets are
    /// computed.
    fn curve(&mut self, chosen: &Candidate, budget_bytes: u64) -> Vec<Candidate> {
        let mut indices = levels(&self.points(), budget_bytes);
        // Candidates with the same layout are adjacent.
        let layout = |index: usize| self.entries[index].choice.layout();
        indices.sort_by_cached_key(|&index| format!("{:?}", layout(index)));
        let mut curve = vec![chosen.clone()];
        for index in indices {
            if self.entries[index].choice == chosen.choice {
                continue;
            }
            let candidate = self.candidate(index);
            // A candidate that is as fast as the chosen one with more memory is not on the curve.
            let was_open = candidate.process_bytes <= budget_bytes;
            if !was_open || candidate.step_ms >= chosen.step_ms {
                curve.push(candidate);
            }
        }
        without_dominated(curve, &chosen.choice)
    }

    /// The fastest candidates that fit, one of each kind, none slower than [`CONTENDERS_WITHIN`] allows. One of each batch
    /// size comes first: predictions are less accurate between sizes than among plans of one size.
    fn contenders(&mut self, count: usize, budget_bytes: u64) -> Vec<(usize, Candidate)> {
        let mut found: Vec<(usize, Candidate)> = Vec::new();
        for of_other_sizes in [true, false] {
            for index in 0..self.entries.len() {
                let fastest = found.iter().map(|&(index, _)| index).min();
                let too_slow = fastest.is_some_and(|first| {
                    self.entries[index].seconds > CONTENDERS_WITHIN * self.entries[first].seconds
                });
                if too_slow || found.len() >= count {
                    break;
                }
                let kind = self.kind(index);
                let is_known = found.iter().any(|&(other, _)| {
                    let other = self.kind(other);
                    other == kind || (of_other_sizes && other.batch_size == kind.batch_size)
                });
                if is_known || self.entries[index].bound_process > budget_bytes {
                    continue;
                }
                let candidate = self.candidate(index);
                if candidate.process_bytes <= budget_bytes {
                    found.push((index, candidate));
                }
            }
        }
        found.sort_by_key(|&(index, _)| index);
        found
    }

    /// The plan of a candidate, with addresses.
    fn step(&mut self, index: usize) -> StepPlan {
        let choice = self.entries[index].choice;
        let (kept, accumulation) = (choice.kept_micro_batches, choice.gradient_accumulation);
        self.layout(&choice).plan(kept, accumulation)
    }
}

/// Entries of every batch size with both kinds of copies, in order, computed by one thread per core.
fn side_by_side(
    batches: &[usize],
    of: &(dyn Fn((usize, Copies)) -> Vec<Entry> + Sync),
) -> Vec<Vec<Entry>> {
    let sizes = batches.iter();
    let both = |&size: &usize| [Copies::Resident, Copies::PerUse].map(|copies| (size, copies));
    let all: Vec<(usize, Copies)> = sizes.flat_map(both).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let indices = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let indices = indices.take_while(|&index| index < all.len());
        indices.map(|index| (index, of(all[index]))).collect()
    };
    let mut found: Vec<(usize, Vec<Entry>)> = std::thread::scope(|scope| {
        let workers = (0..cores.min(all.len())).map(|_| scope.spawn(work));
        let workers: Vec<_> = workers.collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        let joined: Vec<Vec<_>> = joined
            .map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        joined.concat()
    });
    found.sort_by_key(|&(index, _)| index);
    found.into_iter().map(|(_, entries)| entries).collect()
}

/// Predictions are off by several per cent: a candidate within this factor of the fastest may be the fastest.
const CONTENDERS_WITHIN: f64 = 1.15;

/// The fastest candidate that fits, without addresses: for exploring.
pub fn search(
    request: &Request,
    build: Build<'_>,
    target: &dyn Target,
) -> Result<Candidate, PlanError> {
    let (effective, batches) = request.sizes()?;
    let mut field = Field::new(request, &batches, effective, build, target);
    match field.chosen(request.budget_bytes.unwrap_or(u64::MAX)) {
        Some((_, candidate)) => Ok(candidate),
        None => Err(PlanError::DoesNotFit {
            budget_bytes: request.budget_bytes.unwrap_or(u64::MAX),
            smallest_bytes: field.smallest().process_bytes,
            changes: Vec::new(),
            available_bytes: None,
            note: None,
        }),
    }
}

/// Chooses a plan and computes its addresses. `build` writes the graph of a step.
pub fn plan(request: &Request, build: Build<'_>, target: &dyn Target) -> Result<Plan, PlanError> {
    let mut plans = contenders(request, build, target, 1)?;
    Ok(plans.remove(0))
}

/// Up to `count` plans to measure: the fastest by prediction and those of other kinds that come close, fastest first. Only
/// the first has alternatives, suggestion and curve.
pub fn contenders(
    request: &Request,
    build: Build<'_>,
    target: &dyn Target,
    count: usize,
) -> Result<Vec<Plan>, PlanError> {
    let (effective_batch, batches) = request.sizes()?;
    let budget_bytes = request.budget_bytes.unwrap_or(u64::MAX);
    let mut field = Field::new(request, &batches, effective_batch, build, target);
    // Plans with equal predicted times may differ when measured, so measuring does not prefer the smallest.
    let found = match count {
        0 | 1 => Vec::from_iter(field.chosen(budget_bytes)),
        count => field.contenders(count, budget_bytes),
    };
    let Some((first, fastest)) = found.first() else {
        let smallest = field.smallest();
        return Err(PlanError::DoesNotFit {
            budget_bytes,
            smallest_bytes: smallest.process_bytes,
            changes: changes(request, effective_batch, &smallest, build, target),
            available_bytes: None,
            note: None,
        });
    };
    let mut alternatives = field.alternatives(*first, fastest, budget_bytes);
    let mut curve = field.curve(fastest, budget_bytes);
    let mut suggestion = suggestion(request, effective_batch, fastest, build, target);
    let plans = found.into_iter().map(|(index, chosen)| Plan {
        effective_batch,
        chosen,
        step: field.step(index),
        alternatives: std::mem::take(&mut alternatives),
        suggestion: suggestion.take(),
        curve: std::mem::take(&mut curve),
    });
    Ok(plans.collect())
}

/// The plan of an earlier choice; `None` if the request excludes it, or if it does not fit.
pub fn plan_of(
    choice: &Choice,
    request: &Request,
    build: Build<'_>,
    target: &dyn Target,
) -> Result<Option<Plan>, PlanError> {
    let (effective_batch, batches) = request.sizes()?;
    let budget_bytes = request.budget_bytes.unwrap_or(u64::MAX);
    let mut field = Field::new(request, &batches, effective_batch, build, target);
    let found = field
        .entries
        .iter()
        .position(|entry| entry.choice == *choice);
    let Some(index) = found.filter(|&index| field.entries[index].bound_process <= budget_bytes)
    else {
        return Ok(None);
    };
    let chosen = field.candidate(index);
    if chosen.process_bytes > budget_bytes {
        return Ok(None);
    }
    Ok(Some(Plan {
        effective_batch,
        alternatives: field.alternatives(index, &chosen, budget_bytes),
        suggestion: suggestion(request, effective_batch, &chosen, build, target),
        curve: field.curve(&chosen, budget_bytes),
        step: field.step(index),
        chosen,
    }))
}
