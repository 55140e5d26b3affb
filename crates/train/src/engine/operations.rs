//! `plan-tensors.json` and `operations.json`: the plan with readable names.
//!
//! Both files are bounded: for very large graphs they contain the largest tensors and the slowest operations, and the number
//! of omitted ones.

use std::collections::HashMap;

use holdall_graph::Role;
use holdall_plan::{MappedOperation, MemoryMap, PlacedBox, Stage, StepPlan, Tenant};
use serde::Serialize;

/// Maximum number of tensors in `plan-tensors.json`.
const MAX_TENSORS: usize = 8000;
/// Maximum number of operations in `operations.json`; the totals by kind cover all operations.
const MAX_OPERATIONS: usize = 200;

/// Purposes of tensors, as `plan.json` breaks the arena down.
const CATEGORIES: [&str; 7] = [
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "inputs",
    "features",
    "workspace",
];

#[derive(Serialize)]
struct TensorsFile<'a> {
    arena_bytes: u64,
    /// Programs: name, first and last moment, runs in a step.
    programs: Vec<(&'a str, usize, usize, usize)>,
    categories: [&'static str; CATEGORIES.len()],
    names: Vec<&'a str>,
    /// Index into `names`, one per operation.
    operations: Vec<usize>,
    /// Index into `names`, index into `categories`, offset, bytes, first and last operation.
    tensors: Vec<(usize, usize, u64, u64, usize, usize)>,
    left_out: usize,
}

/// Interned texts.
#[derive(Default)]
struct InternedTexts<'a> {
    all: Vec<&'a str>,
    places: HashMap<&'a str, usize>,
}

impl<'a> InternedTexts<'a> {
    fn place(&mut self, name: &'a str) -> usize {
        *self.places.entry(name).or_insert_with(|| {
            self.all.push(name);
            self.all.len() - 1
        })
    }
}

/// The text of `plan-tensors.json`.
pub fn tensors_json(plan: &StepPlan) -> String {
    let map = &plan.memory_map;
    let slots: Vec<String> = (1..plan.kept)
        .map(|micro| format!("all that micro-batch {micro} keeps"))
        .collect();
    let mut names = InternedTexts::default();
    let operations = map.operations.iter();
    let operations = operations
        .map(|operation| names.place(operation.operation))
        .collect();
    let mut boxes: Vec<&PlacedBox> = map.boxes.iter().collect();
    boxes.sort_by_key(|placed| std::cmp::Reverse(placed.bytes));
    let left_out = boxes.len().saturating_sub(MAX_TENSORS);
    boxes.truncate(MAX_TENSORS);
    let tensors = boxes
        .into_iter()
        .map(|placed| {
            let (name, category) = match placed.tenant {
                Tenant::Storage(id) => {
                    let storage = plan.graph.storage(id);
                    (storage.name.as_str(), category(storage.role))
                }
                Tenant::Scratch(moment) => (map.operations[moment].operation, "workspace"),
                Tenant::Slot(slot) => (slots[slot].as_str(), "activations"),
                Tenant::Landing => ("the next inputs", "inputs"),
            };
            let category = CATEGORIES.iter().position(|one| *one == category);
            (
                names.place(name),
                category.expect("every role has its category"),
                placed.offset,
                placed.bytes,
                placed.first,
                placed.last,
            )
        })
        .collect();
    let file = TensorsFile {
        arena_bytes: plan.arena_bytes,
        programs: map
            .programs
            .iter()
            .map(|one| {
                (
                    plan.program(one.stage).name.as_str(),
                    one.first,
                    one.last,
                    one.runs,
                )
            })
            .collect(),
        categories: CATEGORIES,
        names: names.all,
        operations,
        tensors,
        left_out,
    };
    serde_json::to_string(&file).expect("a map is plain data")
}

fn category(role: Role) -> &'static str {
    match role {
        Role::Weight => "weights",
        Role::Gradient => "gradients",
        Role::Optimizer => "optimizer",
        Role::Activation | Role::Cache => "activations",
        Role::Input => "inputs",
        Role::Feature => "features",
    }
}

/// Seconds of every instruction of a program, summed over all its runs in a step.
pub type Times = HashMap<Stage, Vec<f64>>;

#[derive(Serialize)]
struct OperationsFile<'a> {
    /// The measured step; `null` if times are predicted.
    step: Option<u64>,
    kinds: Vec<KindLine>,
    operations: Vec<OperationLine<'a>>,
    left_out: usize,
}

#[derive(Clone, Serialize)]
struct KindLine {
    operation: &'static str,
    /// Runs per step.
    runs: usize,
    predicted_ms: f64,
    measured_ms: Option<f64>,
}

#[derive(Serialize)]
struct OperationLine<'a> {
    program: &'a str,
    block: Option<&'a str>,
    writes: Option<&'a str>,
    #[serde(flatten)]
    times: KindLine,
}

/// The text of `operations.json`: slowest first, by measured times if a step was timed.
pub fn operations_json(map: &MemoryMap, plan: &StepPlan, timed: Option<(u64, &Times)>) -> String {
    let mut lines: Vec<OperationLine<'_>> = Vec::new();
    for program in map.programs.iter().filter(|program| program.runs > 0) {
        let measured = timed.and_then(|(_, times)| times.get(&program.stage));
        let operations = &map.operations[program.first..=program.last];
        lines.extend(operations.iter().enumerate().map(|(index, operation)| {
            let seconds = measured.and_then(|seconds| seconds.get(index));
            line(operation, program.runs, seconds.copied(), plan)
        }));
    }
    let mut kinds: Vec<KindLine> = Vec::new();
    for OperationLine { times, .. } in &lines {
        match kinds
            .iter_mut()
            .find(|kind| kind.operation == times.operation)
        {
            Some(kind) => {
                kind.runs += times.runs;
                kind.predicted_ms += times.predicted_ms;
                kind.measured_ms = kind.measured_ms.zip(times.measured_ms).map(|(a, b)| a + b);
            }
            None => kinds.push(times.clone()),
        }
    }
    let slowness = |times: &KindLine| times.measured_ms.unwrap_or(times.predicted_ms);
    kinds.sort_by(|a, b| slowness(b).total_cmp(&slowness(a)));
    lines.sort_by(|a, b| slowness(&b.times).total_cmp(&slowness(&a.times)));
    let left_out = lines.len().saturating_sub(MAX_OPERATIONS);
    lines.truncate(MAX_OPERATIONS);
    let file = OperationsFile {
        step: timed.map(|(step, _)| step),
        kinds,
        operations: lines,
        left_out,
    };
    serde_json::to_string(&file).expect("operations are plain data")
}

fn line<'a>(
    operation: &MappedOperation,
    runs: usize,
    measured: Option<f64>,
    plan: &'a StepPlan,
) -> OperationLine<'a> {
    let graph = &plan.graph;
    OperationLine {
        program: &plan.program(operation.stage).name,
        block: operation
            .block
            .map(|block| graph.blocks()[block.0].as_str()),
        writes: operation.output.map(|id| graph.storage(id).name.as_str()),
        times: KindLine {
            operation: operation.operation,
            runs,
            predicted_ms: 1e3 * operation.seconds * runs as f64,
            measured_ms: measured.map(|seconds| 1e3 * seconds),
        },
    }
}
