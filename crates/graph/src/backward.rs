//! The backward pass: reads nodes in reverse and appends the nodes that carry gradients.
//!
//! Gradients belong to storages, and the gradient of a view is the same view of the storage's gradient: the gradients of `q`, `k` and
//! `v` land side by side in the gradient of `qkv` without a copy. The first contribution overwrites, later ones accumulate in
//! place. If only part of a storage is read (the class token of the last layer), its gradient is first filled with zero, unless the
//! first contribution covers the whole of it (a skip join: the decoder reads all channels, the next encoder stage some).
//!
//! Nodes that do not lead to a trainable parameter are pruned: a frozen branch has no backward nodes at all.

use std::collections::{HashMap, HashSet};

use crate::ops::activation::{ActivateGrad, Activation};
use crate::ops::add::AddInto;
use crate::ops::fill::Fill;
use crate::value::{Role, StorageId, Value, ValueId};
use crate::{Graph, Node, NodeId, Op, Output, Section, Write};

struct StorageGradient {
    gradient: StorageId,
    /// Views that already hold a contribution.
    written: Vec<Value>,
    /// The whole storage was zeroed, seeded or donated: the next contribution to any view adds.
    whole: bool,
    /// Every view that is read covers the whole storage, in one shape or another: all views are one region.
    one_region: bool,
}

/// A backward pass under construction; the rules of operations append to it.
pub struct Backward<'g> {
    graph: &'g mut Graph,
    gradients: HashMap<StorageId, StorageGradient>,
    needs: Vec<bool>,
    /// Storage -> the different views of it that nodes on the path to a seed read.
    reads: HashMap<StorageId, Vec<Value>>,
}

/// Appends to section `into` the nodes that carry the given gradients back through the nodes of section `of`.
///
/// `seeds` pairs values with their gradients. `wanted` names values other than trainable parameters whose gradients are needed;
/// returns these gradients in the same order. The pass may add to the storage of a seed's gradient: the caller gives it up.
pub fn backward(
    graph: &mut Graph,
    of: Section,
    into: Section,
    seeds: &[(ValueId, ValueId)],
    wanted: &[ValueId],
) -> Vec<Option<ValueId>> {
    let mut pass = Backward::run(graph, [of, into], seeds, wanted, &[]);
    wanted.iter().map(|&value| pass.upstream(value)).collect()
}

/// Like [`backward`], with given destinations: `targets` pairs whole values with the tensors that receive their gradients.
pub fn backward_into(
    graph: &mut Graph,
    of: Section,
    into: Section,
    seeds: &[(ValueId, ValueId)],
    targets: &[(ValueId, ValueId)],
) {
    let wanted: Vec<ValueId> = targets.iter().map(|&(value, _)| value).collect();
    Backward::run(graph, [of, into], seeds, &wanted, targets);
}

impl<'g> Backward<'g> {
    fn run(
        graph: &'g mut Graph,
        [of, into]: [Section; 2],
        seeds: &[(ValueId, ValueId)],
        wanted: &[ValueId],
        targets: &[(ValueId, ValueId)],
    ) -> Backward<'g> {
        let forward = nodes_of(graph, of);
        let needs = what_needs_gradients(graph, &forward, wanted);
        let reads = views_on_the_way(graph, &forward, seeds);
        let mut gradients = HashMap::new();
        for &(value, gradient) in seeds {
            let (value, gradient) = (*graph.value(value), *graph.value(gradient));
            assert_eq!(
                value.shape, gradient.shape,
                "a seed has the shape of its value"
            );
            gradients.insert(
                value.storage,
                StorageGradient {
                    gradient: gradient.storage,
                    written: vec![value],
                    whole: true,
                    one_region: true,
                },
            );
        }
        for &(value, gradient) in targets {
            gradients.insert(
                graph.value(value).storage,
                StorageGradient {
                    gradient: graph.value(gradient).storage,
                    written: Vec::new(),
                    whole: false,
                    one_region: true,
                },
            );
        }
        let mut pass = Backward {
            graph,
            gradients,
            needs,
            reads,
        };
        let outer = pass.graph.section();
        pass.graph.enter(into);
        for &index in forward.iter().rev() {
            let node = pass.graph.nodes()[index].clone();
            let reached = node.outputs.iter().any(|output| {
                pass.gradients
                    .contains_key(&pass.graph.value(output.value).storage)
            });
            let needed = node.inputs.iter().any(|&input| pass.wants(input));
            if reached && needed {
                pass.graph.resume(node.block, node.lane);
                node.op.rules().backward(&node, &mut pass);
            }
        }
        pass.graph.resume(None, None);
        pass.graph.enter(outer);
        pass
    }
}

impl Backward<'_> {
    /// The graph under construction.
    pub fn graph(&mut self) -> &mut Graph {
        self.graph
    }

    /// Whether a gradient of this value leads to a trainable parameter or a wanted value.
    pub fn wants(&self, value: ValueId) -> bool {
        let storage = self.graph.original(*self.graph.value(value)).storage;
        self.needs.get(storage.0).copied().unwrap_or(false)
    }

    /// The gradient of a value, if any node contributed to it.
    pub fn upstream(&mut self, value: ValueId) -> Option<ValueId> {
        let view = *self.graph.value(value);
        let gradient = self.gradients.get(&view.storage)?.gradient;
        Some(self.graph.add_value(Value {
            storage: gradient,
            ..view
        }))
    }

    /// The tensor in which a node leaves its contribution to the gradient of `value`, and whether it overwrites or adds.
    pub fn target(&mut self, value: ValueId) -> Output {
        let view = self.graph.original(*self.graph.value(value));
        if self.graph.storage(view.storage).role == Role::Weight {
            let gradient = self.graph.weight_gradient(view.storage);
            let value = self.graph.add_value(Value {
                storage: gradient,
                ..view
            });
            return Output::accumulate(value);
        }
        if !self.gradients.contains_key(&view.storage) {
            self.open_gradient(view);
        }
        let covers = self.covers(view);
        let entry = self
            .gradients
            .get_mut(&view.storage)
            .expect("inserted above");
        let again = if entry.one_region {
            !entry.written.is_empty()
        } else {
            entry.written.contains(&view)
        };
        let mode = if entry.whole || again {
            Write::Accumulate
        } else {
            Write::Overwrite
        };
        entry.written.push(view);
        entry.whole |= covers;
        let value = self.graph.add_value(Value {
            storage: entry.gradient,
            ..view
        });
        Output { value, mode }
    }

    /// Like [`Backward::target`], for a node that must write the output even if the parameter is frozen: then a scratch tensor with the
    /// name `scrap`.
    pub fn target_or_scrap(&mut self, parameter: ValueId, scrap: &str) -> Output {
        if self.wants(parameter) {
            return self.target(parameter);
        }
        let shape = self.graph.shape(parameter);
        let scrap = self.graph.statistic(scrap, shape.dims());
        let zero = Fill { value: 0.0 };
        self.graph.push_new(zero, Vec::new(), &[scrap]);
        Output::accumulate(scrap)
    }

    /// Like [`Backward::target`], for a node that can only add: the target is filled with zero first if it is empty.
    pub fn added(&mut self, value: ValueId) -> Output {
        let target = self.target(value);
        if target.mode == Write::Overwrite {
            let zero = Fill { value: 0.0 };
            self.graph.push_new(zero, Vec::new(), &[target.value]);
        }
        Output::accumulate(target.value)
    }

    /// Whether a view covers the whole of its storage.
    fn covers(&self, view: Value) -> bool {
        view.is_contiguous()
            && view.shape.num_elements() == self.graph.storage(view.storage).num_elements
    }

    /// Creates the gradient of the storage of `first`, the view that receives the first contribution. Fills it with zero unless `first`
    /// covers the storage or the views that are read tile it.
    fn open_gradient(&mut self, first: Value) {
        let storage = first.storage;
        let forward = self.graph.storage(storage).clone();
        let gradient = self.graph.add_storage(
            format!("{}.grad", forward.name),
            forward.num_elements,
            forward.dtype,
            Role::Activation,
        );
        let views = &self.reads[&storage];
        let tiled = tile(views, forward.num_elements);
        // Several shapes of the whole storage (a reshape) are one region.
        let each_whole = views
            .iter()
            .all(|view| view.shape.num_elements() == forward.num_elements);
        let whole = !tiled && !each_whole && !self.covers(first);
        if whole {
            let all = self.graph.add_value(Value::whole(
                gradient,
                crate::Shape::new(&[forward.num_elements]),
            ));
            self.graph.push_new(Fill { value: 0.0 }, Vec::new(), &[all]);
        }
        self.gradients.insert(
            storage,
            StorageGradient {
                gradient,
                written: Vec::new(),
                whole,
                one_region: each_whole,
            },
        );
    }

    /// Whether [`Backward::donate`] needs no copy.
    pub fn takes_over(&self, value: ValueId, gradient: ValueId) -> bool {
        let (view, given) = (*self.graph.value(value), *self.graph.value(gradient));
        !self.gradients.contains_key(&view.storage)
            && self.graph.storage(view.storage).role != Role::Weight
            && self.covers(view)
            && self.covers(given)
    }

    /// Makes `gradient` the gradient of `value`; no later node may read it. There is no copy if this is the first contribution.
    pub fn donate(&mut self, value: ValueId, gradient: ValueId) {
        let (view, given) = (*self.graph.value(value), *self.graph.value(gradient));
        if self.takes_over(value, gradient) {
            self.gradients.insert(
                view.storage,
                StorageGradient {
                    gradient: given.storage,
                    written: vec![view],
                    whole: true,
                    one_region: true,
                },
            );
        } else {
            let target = self.target(value);
            self.graph.push(AddInto {}, vec![gradient], vec![target]);
        }
    }

    /// Turns the gradient of `activation(z)` into the gradient of `z`, in place; within the product that computed the gradient where
    /// that is possible, which saves a pass over memory.
    pub fn through_activation(&mut self, activation: Activation, gradient: ValueId, z: ValueId) {
        let view = *self.graph.value(gradient);
        let last = self.graph.nodes().len() - 1;
        let node = &self.graph.nodes()[last];
        // Whether the product replaced or added does not matter: this was the last contribution.
        let fusable = matches!(&node.op, Op::LinearInputGrad(op) if op.activation.is_none())
            && self.graph.value(node.outputs[0].value).storage == view.storage
            && self.graph.value(node.outputs[0].value).shape.num_elements()
                == view.shape.num_elements();
        if fusable {
            let node = self.graph.node_mut(NodeId(last));
            if let Op::LinearInputGrad(op) = &mut node.op {
                op.activation = Some(activation);
            }
            node.inputs.push(z);
        } else {
            self.graph.push(
                ActivateGrad { activation },
                vec![gradient, z],
                vec![Output::overwrite(gradient)],
            );
        }
    }

    /// The gradient of a node's output; `None` if the output is unused.
    pub fn reached(&mut self, node: &Node, output: usize) -> Option<ValueId> {
        self.upstream(node.outputs[output].value)
    }
}

/// For each storage: whether it depends on a trainable parameter through the nodes of the section.
pub fn needs_gradients(graph: &Graph, section: Section) -> Vec<bool> {
    what_needs_gradients(graph, &nodes_of(graph, section), &[])
}

fn nodes_of(graph: &Graph, section: Section) -> Vec<usize> {
    (0..graph.nodes().len())
        .filter(|&index| graph.nodes()[index].section == section)
        .collect()
}

/// For each storage: whether it depends on a trainable parameter or a wanted value.
fn what_needs_gradients(graph: &Graph, forward: &[usize], wanted: &[ValueId]) -> Vec<bool> {
    let mut needs = vec![false; graph.storages().len()];
    for storage in graph.trainable_storages() {
        needs[storage.0] = true;
    }
    for &value in wanted {
        needs[graph.value(value).storage.0] = true;
    }
    for (copy, weight) in graph.copies() {
        needs[copy.0] = needs[weight.0];
    }
    for &index in forward {
        let node = &graph.nodes()[index];
        let mut inputs = node.inputs.iter();
        if inputs.any(|&input| needs[graph.value(input).storage.0]) {
            for output in &node.outputs {
                needs[graph.value(output.value).storage.0] = true;
            }
        }
    }
    needs
}

/// Storage -> the views of it that are read on the path to a seed.
fn views_on_the_way(
    graph: &Graph,
    forward: &[usize],
    seeds: &[(ValueId, ValueId)],
) -> HashMap<StorageId, Vec<Value>> {
    let storage_of = |value: ValueId| graph.value(value).storage;
    let mut leads: HashSet<StorageId> = seeds.iter().map(|&(value, _)| storage_of(value)).collect();
    let mut reads: HashMap<StorageId, Vec<Value>> = HashMap::new();
    for &index in forward.iter().rev() {
        let node = &graph.nodes()[index];
        let mut outputs = node.outputs.iter();
        if !outputs.any(|output| leads.contains(&storage_of(output.value))) {
            continue;
        }
        for &input in &node.inputs {
            let value = *graph.value(input);
            leads.insert(value.storage);
            let views = reads.entry(value.storage).or_default();
            if !views.contains(&value) {
                views.push(value);
            }
        }
    }
    reads
}

/// Whether the views cut a storage of `num_elements` into equal columns or equal runs of rows, with none left out.
fn tile(views: &[Value], num_elements: usize) -> bool {
    let first = views[0];
    let alike = views.iter().all(|view| {
        (view.shape, view.strides, view.micro_stride)
            == (first.shape, first.strides, first.micro_stride)
    });
    let each = first.shape.num_elements();
    let (Some(row_stride), true) = (
        first.row_stride(),
        alike && views.len() * each == num_elements,
    ) else {
        return false;
    };
    let width = first.shape.width();
    let step = if row_stride == width * views.len() {
        width // columns
    } else if row_stride == width {
        each // runs of rows
    } else {
        return false;
    };
    let mut offsets: Vec<usize> = views.iter().map(|view| view.offset).collect();
    offsets.sort_unstable();
    offsets
        .iter()
        .enumerate()
        .all(|(index, &offset)| offset == index * step)
}
