//! `L = sum over outputs of <seed, y>`: the backward pass against finite differences of `L`, in f64.
//!
//! Differences are of fourth order, `(8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h`: at `h = 1e-3` neither truncation nor
//! rounding reaches 1e-10 of a gradient's norm.

use std::sync::OnceLock;

use holdall_device::cpu::{Arena, Cpu};
use holdall_graph::ops::add::AddInto;
use holdall_graph::{
    DType, Decay, Graph, Node, Output, Role, Section, StorageId, Value, ValueId, backward,
};
use holdall_plan::{Recompute, RecomputePolicy, Stage};

use super::step::{
    Contents, Kept, Planned, Random, Step, flat, norm, read, total, trainable, write,
    zero_gradients,
};

const STEP: f64 = 1e-3;
/// Of the norm of a tensor's gradient. The worst seen is 6e-11.
const TOLERANCE: f64 = 1e-9;
/// Elements of a tensor that are moved one by one; of larger ones, as many at random.
const NUM_MOVED: usize = 160;

pub fn cpu() -> &'static Cpu {
    static CPU: OnceLock<Cpu> = OnceLock::new();
    CPU.get_or_init(|| Cpu::new(Some(2)))
}

/// A forward pass in the making.
pub struct Sketch {
    pub graph: Graph,
    pub random: Random,
    inputs: Vec<(ValueId, Vec<Contents>)>,
    wanted: Vec<ValueId>,
}

impl Sketch {
    pub fn new(dtype: DType) -> Sketch {
        Sketch {
            graph: Graph::new(dtype),
            random: Random(7),
            inputs: Vec::new(),
            wanted: Vec::new(),
        }
    }

    /// An input whose gradient is checked.
    pub fn input(&mut self, dims: &[usize]) -> ValueId {
        let value = self.constant(dims);
        self.wanted.push(value);
        value
    }

    /// The same, of these numbers.
    pub fn moved(&mut self, dims: &[usize], numbers: Vec<f64>) -> ValueId {
        let value = self.given(dims, Contents::Floats(numbers));
        self.wanted.push(value);
        value
    }

    /// An input without a gradient.
    pub fn constant(&mut self, dims: &[usize]) -> ValueId {
        let contents = self.random.floats(dims.iter().product());
        self.given(dims, contents)
    }

    pub fn given(&mut self, dims: &[usize], contents: Contents) -> ValueId {
        let dtype = match contents {
            Contents::Floats(_) => self.graph.compute(),
            Contents::Indices(_) => DType::I64,
            Contents::Bytes(_) => DType::U8,
        };
        let name = format!("input {}", self.inputs.len());
        let value = self.graph.input(&name, dims, dtype);
        self.inputs.push((value, vec![contents]));
        value
    }

    pub fn indices(&mut self, dims: &[usize], indices: &[i64]) -> ValueId {
        self.given(dims, Contents::Indices(indices.to_vec()))
    }

    pub fn parameter(&mut self, dims: &[usize]) -> ValueId {
        let name = format!("parameter {}", self.graph.parameters().len());
        self.graph.parameter(&name, dims, Decay::Yes)
    }

    pub fn freeze(&mut self, value: ValueId) {
        let storage = self.graph.value(value).storage;
        let values: Vec<ValueId> = (self.graph.parameters().iter())
            .map(|parameter| parameter.value)
            .filter(|&value| self.graph.value(value).storage == storage)
            .collect();
        self.graph.configure_parameters(|parameter| {
            if values.contains(&parameter.value) {
                parameter.trainable = false;
            }
        });
    }

    /// What `write` writes forms a block.
    pub fn block<T>(&mut self, write: impl FnOnce(&mut Sketch) -> T) -> T {
        // The graph lends itself to the closure, so the sketch takes it back for the while.
        let mut graph = std::mem::replace(&mut self.graph, Graph::new(DType::F64));
        let result = graph.block("block", |graph| {
            std::mem::swap(&mut self.graph, graph);
            let result = write(self);
            std::mem::swap(&mut self.graph, graph);
            result
        });
        self.graph = graph;
        result
    }

    /// Inputs whose gradient is checked.
    pub fn wanted(&self) -> &[ValueId] {
        &self.wanted
    }

    /// What an input holds.
    pub fn floats(&self, value: ValueId) -> Vec<f64> {
        let (_, contents) = self.inputs.iter().find(|(id, _)| *id == value).unwrap();
        match &contents[0] {
            Contents::Floats(values) => values.clone(),
            other => panic!("not numbers: {other:?}"),
        }
    }

    /// The forward pass alone, with its weights.
    pub fn into_step(mut self) -> Step {
        Step::new(self.graph, self.inputs, &mut self.random, 0.8)
    }

    pub fn total(&mut self) -> ValueId {
        total(&mut self.graph, "total")
    }
}

/// Something that is moved to see what the loss does.
struct Checked {
    name: String,
    place: Value,
    values: Vec<f64>,
    /// Where the backward pass left its gradient.
    gradient: Value,
}

/// Writes the backward pass of `outputs`, plans and runs both, and compares. Returns the graph, for a look at its nodes.
pub fn check_gradients(write_forward: impl FnOnce(&mut Sketch) -> Vec<ValueId>) -> Graph {
    let mut sketch = Sketch::new(DType::F64);
    let outputs = write_forward(&mut sketch);
    check_sketch(
        sketch,
        &outputs,
        RecomputePolicy::uniform(Recompute::None, 0),
    )
}

pub fn check_sketch(mut sketch: Sketch, outputs: &[ValueId], policy: RecomputePolicy) -> Graph {
    let wanted = sketch.wanted.clone();
    zero_gradients(&mut sketch.graph);
    let mut seeds = Vec::new();
    for &output in outputs {
        let shape = sketch.graph.shape(output);
        let seed = sketch.constant(shape.dims());
        seeds.push((output, seed));
    }
    let graph = &mut sketch.graph;
    let found = backward(graph, Section::Forward, Section::Backward, &seeds, &wanted);
    let observe = |graph: &mut Graph, value: ValueId, section| {
        let shape = graph.shape(value);
        let copy = graph.tensor("observed", shape.dims(), DType::F64, Role::Feature);
        graph.enter(section);
        let output = vec![Output::overwrite(copy)];
        graph.push(AddInto {}, vec![value], output);
        copy
    };
    let observed: Vec<ValueId> = outputs
        .iter()
        .map(|&output| {
            let storage = graph.value(output).storage;
            match graph.storage(storage).role {
                Role::Feature => output,
                _ => observe(graph, output, Section::Forward),
            }
        })
        .collect();
    let gradients: Vec<ValueId> = wanted
        .iter()
        .zip(found)
        .map(|(&value, gradient)| {
            let gradient = gradient.unwrap_or_else(|| panic!("no gradient reached {value:?}"));
            observe(graph, gradient, Section::Backward)
        })
        .collect();
    let step = Step::new(sketch.graph, sketch.inputs, &mut sketch.random, 0.8);
    let mut checked = Vec::new();
    for (&value, &gradient) in wanted.iter().zip(&gradients) {
        let (_, contents) = step.inputs.iter().find(|(id, _)| *id == value).unwrap();
        let Contents::Floats(values) = &contents[0] else {
            panic!("indices have no gradient");
        };
        checked.push(Checked {
            name: step
                .graph
                .storage(step.graph.value(value).storage)
                .name
                .clone(),
            place: *step.graph.value(value),
            values: values.clone(),
            gradient: *step.graph.value(gradient),
        });
    }
    for storage in trainable(&step.graph) {
        checked.push(weight(&step, storage));
    }
    let seeds: Vec<ValueId> = seeds.iter().map(|&(_, seed)| seed).collect();
    compare(&step, policy, &checked, &observed, &seeds);
    step.graph
}

fn weight(step: &Step, storage: StorageId) -> Checked {
    let (_, values) = step.initial.iter().find(|(id, _)| *id == storage).unwrap();
    let gradient = step.graph.clone().weight_gradient(storage);
    Checked {
        name: step.graph.storage(storage).name.clone(),
        place: flat(&step.graph, storage),
        values: values.clone(),
        gradient: flat(&step.graph, gradient),
    }
}

fn compare(
    step: &Step,
    policy: RecomputePolicy,
    checked: &[Checked],
    observed: &[ValueId],
    seeds: &[ValueId],
) {
    let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, 2);
    let plan = &planned.plan;
    let mut arena = Arena::new(plan.arena_bytes).unwrap();
    let run = |moved: Option<(Value, &[f64])>, arena: &mut Arena| -> f64 {
        step.write_initial(plan, arena);
        step.write_inputs(plan, arena, 0);
        if let Some((place, values)) = moved {
            write(
                arena,
                &plan.place_of(&place),
                &Contents::Floats(values.to_vec()),
            );
        }
        // The backward pass may add to seeds: they count as they were.
        let seeds: Vec<Vec<f64>> = seeds
            .iter()
            .map(|&id| read(arena, &plan.place(id)))
            .collect();
        for program in [
            plan.program(Stage::Begin),
            plan.program(Stage::Loss),
            plan.program(Stage::ForwardBackward),
        ] {
            cpu().run(program, arena, 0, 0);
        }
        let outputs = observed.iter().map(|&id| read(arena, &plan.place(id)));
        outputs
            .zip(&seeds)
            .map(|(y, seed)| y.iter().zip(seed).map(|(y, seed)| y * seed).sum::<f64>())
            .sum()
    };
    run(None, &mut arena);
    let analytic: Vec<Vec<f64>> = checked
        .iter()
        .map(|checked| read(&arena, &plan.place_of(&checked.gradient)))
        .collect();
    let mut random = Random(11);
    for (checked, analytic) in checked.iter().zip(analytic) {
        let count = checked.values.len();
        let moved: Vec<usize> = if count <= NUM_MOVED {
            (0..count).collect()
        } else {
            (0..NUM_MOVED).map(|_| random.below(count)).collect()
        };
        let mut values = checked.values.clone();
        let mut loss_at = |index: usize, shift: f64| {
            values[index] = checked.values[index] + shift;
            let loss = run(Some((checked.place, &values)), &mut arena);
            values[index] = checked.values[index];
            loss
        };
        let numeric: Vec<f64> = moved
            .iter()
            .map(|&index| {
                let near = loss_at(index, STEP) - loss_at(index, -STEP);
                let far = loss_at(index, 2.0 * STEP) - loss_at(index, -2.0 * STEP);
                (8.0 * near - far) / (12.0 * STEP)
            })
            .collect();
        let expected = norm(numeric.iter().copied());
        let difference = moved
            .iter()
            .zip(&numeric)
            .map(|(&index, n)| n - analytic[index]);
        // The floor is for gradients that are zero, such as that of a key bias.
        let error = norm(difference) / expected.max(1e-2);
        println!(
            "{}: gradient {expected:.3e}, relative error {error:.1e}",
            checked.name
        );
        assert!(
            error < TOLERANCE,
            "{}: relative error {error:e} of a gradient of norm {expected:e}",
            checked.name
        );
    }
}

/// Nodes of the backward pass.
pub fn backward_nodes(graph: &Graph) -> Vec<&Node> {
    let nodes = graph.nodes().iter();
    nodes
        .filter(|node| node.section == Section::Backward)
        .collect()
}
