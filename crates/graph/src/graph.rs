//! The graph of a training step, and the methods that build it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::adapters::Adapters;
use crate::cost::NodeView;
use crate::ops::add::AddRounded;
use crate::ops::cast::Cast;
use crate::value::{DType, MemorySpace, Role, Shape, Storage, StorageId, Value, ValueId};
use crate::{Cost, Op};

/// Index of a node in [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// Index of a block: nodes that the planner may recompute together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub usize);

/// Index of a parameter in [`Graph::parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// Sections of a step, in the order in which they run, and the programs beside the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    /// Not part of the step: refreshes the weights' copies in the compute format after weights were written from outside.
    Refresh,
    /// Once per step: loss sums are set to zero.
    Begin,
    /// Per micro-batch: the forward pass, up to the features that the whole step needs and the separable losses.
    Forward,
    /// Once per step: gradients are set to zero, then the losses over the whole effective batch and their gradients are computed.
    Loss,
    /// Per micro-batch: from the gradients of losses and features to the gradients of parameters.
    Backward,
    /// Once per step, in a run of several processes: gradients and loss sums are added over all processes.
    Reduce,
    /// Once per step: gradient norm, overflow check, optimizer.
    Update,
    /// Not part of the step: a forward program over the same weights, by its index in [`Graph::forward_programs`].
    ForwardProgram(usize),
}

/// Whether a node replaces an output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    Overwrite,
    Accumulate,
}

/// One output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    pub value: ValueId,
    pub mode: Write,
}

impl Output {
    pub fn overwrite(value: ValueId) -> Output {
        Output {
            value,
            mode: Write::Overwrite,
        }
    }

    pub fn accumulate(value: ValueId) -> Output {
        Output {
            value,
            mode: Write::Accumulate,
        }
    }
}

/// An operation with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub op: Op,
    /// Operands, in the order that the operation defines.
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<Output>,
    pub section: Section,
    /// The recomputation block that the node belongs to.
    pub block: Option<BlockId>,
    /// An independent branch: nodes of different lanes that follow each other do not depend on one another.
    pub lane: Option<usize>,
}

/// Whether weight decay applies to a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decay {
    /// Matrices and embeddings.
    Yes,
    /// Norms, biases, scales.
    No,
}

/// A weight tensor; training changes it unless it is frozen.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name of the tensor in Hugging Face checkpoints.
    pub name: String,
    /// View of a weight storage; several parameters may share one storage (q, k and v).
    pub value: ValueId,
    /// Frozen parameters get no gradient and no optimizer state.
    pub trainable: bool,
    pub decay: Decay,
    /// Optimizer group: index of its learning rate in the schedule.
    pub rate: usize,
    /// Upper bound that the optimizer keeps (`logit_scale`).
    pub maximum: Option<f64>,
}

/// Lifetime of the weights' copies in a compute format that is narrower than the weights' own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Copies {
    /// The copy stays in memory; the optimizer writes it along with the weight.
    #[default]
    Resident,
    /// Each use of a matrix makes its copy and drops it: less memory, more traffic.
    PerUse,
}

/// Where the next node belongs.
#[derive(Clone, Copy, Debug)]
struct Position {
    section: Section,
    block: Option<BlockId>,
    lane: Option<usize>,
}

/// The weights' copies in a compute format that is narrower than the weights' own.
#[derive(Clone, Debug)]
struct WeightCopies {
    lifetime: Copies,
    /// Weight storage -> its resident copy.
    resident: HashMap<StorageId, StorageId>,
    /// Storage of a copy -> the view of the weight that was copied.
    originals: HashMap<StorageId, Value>,
}

/// A training step: its storages, values, nodes and parameters.
#[derive(Clone, Debug)]
pub struct Graph {
    storages: Vec<Storage>,
    values: Vec<Value>,
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
    blocks: Vec<String>,
    compute: DType,
    position: Position,
    /// Weight storage -> the storage of its gradient.
    weight_gradients: HashMap<StorageId, StorageId>,
    copies: WeightCopies,
    /// Names of the forward programs beside the step.
    forward_programs: Vec<String>,
    /// Values that are written or read from outside, by name.
    endpoints: BTreeMap<String, ValueId>,
    /// Storages that the first pass over the micro-batches writes for the losses of the whole effective batch.
    left_by_first_pass: HashSet<StorageId>,
    /// The same step for shorter texts, by the length of the texts.
    shorter: Arc<Vec<(usize, Graph)>>,
    /// Low-rank adapters of the linear layers.
    adapters: Option<Arc<Adapters>>,
}

impl Graph {
    /// An empty graph with this number format of activations. Parameters, their gradients, statistics and sums are at least f32.
    pub fn new(compute: DType) -> Graph {
        Graph::with_copies(compute, Copies::default())
    }

    /// Like [`Graph::new`], with the lifetime of the weights' copies in a narrower format.
    pub fn with_copies(compute: DType, copies: Copies) -> Graph {
        Graph {
            copies: WeightCopies {
                lifetime: copies,
                resident: HashMap::new(),
                originals: HashMap::new(),
            },
            forward_programs: Vec::new(),
            endpoints: BTreeMap::new(),
            left_by_first_pass: HashSet::new(),
            shorter: Arc::default(),
            adapters: None,
            storages: Vec::new(),
            values: Vec::new(),
            nodes: Vec::new(),
            parameters: Vec::new(),
            blocks: Vec::new(),
            compute,
            position: Position {
                section: Section::Forward,
                block: None,
                lane: None,
            },
            weight_gradients: HashMap::new(),
        }
    }

    /// Linear layers that are appended from here on have these adapters.
    pub fn adapt(&mut self, adapters: Adapters) {
        self.adapters = Some(Arc::new(adapters));
    }

    pub(crate) fn adapters(&self) -> Option<Arc<Adapters>> {
        self.adapters.clone()
    }

    /// Number format of activations.
    pub fn compute(&self) -> DType {
        self.compute
    }

    /// Number format of parameters, gradients, statistics and sums.
    pub fn full(&self) -> DType {
        match self.compute {
            DType::F16 | DType::Bf16 => DType::F32,
            compute => compute,
        }
    }

    pub fn storages(&self) -> &[Storage] {
        &self.storages
    }

    /// Nodes in the order of execution within each section.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Names of the recomputation blocks.
    pub fn blocks(&self) -> &[String] {
        &self.blocks
    }

    pub fn storage(&self, id: StorageId) -> &Storage {
        &self.storages[id.0]
    }

    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    pub fn shape(&self, id: ValueId) -> Shape {
        self.values[id.0].shape
    }

    pub fn dtype(&self, id: ValueId) -> DType {
        self.storages[self.values[id.0].storage.0].dtype
    }

    /// Cost of a node by the rule of its operation.
    pub fn cost(&self, node: &Node) -> Cost {
        node.op.rules().cost(NodeView { graph: self, node })
    }

    /// Nodes appended from here on belong to `section`.
    pub fn enter(&mut self, section: Section) {
        self.position.section = section;
    }

    pub fn section(&self) -> Section {
        self.position.section
    }

    /// Nodes appended by `write` form a block that the planner may recompute as a whole. In a forward program beside the step,
    /// nodes have no block: there is no backward pass.
    pub fn block<T>(&mut self, name: &str, write: impl FnOnce(&mut Graph) -> T) -> T {
        if let Section::ForwardProgram(_) = self.position.section {
            return write(self);
        }
        self.blocks.push(name.to_owned());
        let outer = self.position.block.replace(BlockId(self.blocks.len() - 1));
        let result = write(self);
        self.position.block = outer;
        result
    }

    /// Nodes appended by `write` belong to a lane: an independent branch that a device may run in parallel with other lanes.
    pub fn in_lane<T>(&mut self, lane: usize, write: impl FnOnce(&mut Graph) -> T) -> T {
        let outer = self.position.lane.replace(lane);
        let result = write(self);
        self.position.lane = outer;
        result
    }

    /// For the backward pass: nodes appended from here on belong to the block and the lane of their forward node.
    pub fn resume(&mut self, block: Option<BlockId>, lane: Option<usize>) {
        self.position.block = block;
        self.position.lane = lane;
    }

    pub fn add_storage(
        &mut self,
        name: impl Into<String>,
        num_elements: usize,
        dtype: DType,
        role: Role,
    ) -> StorageId {
        self.storages.push(Storage {
            name: name.into(),
            num_elements,
            dtype,
            space: MemorySpace::Device,
            role,
        });
        StorageId(self.storages.len() - 1)
    }

    pub fn add_value(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() - 1)
    }

    /// Adds a storage and the value that covers it.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        dims: &[usize],
        dtype: DType,
        role: Role,
    ) -> ValueId {
        let shape = Shape::new(dims);
        let storage = self.add_storage(name, shape.num_elements(), dtype, role);
        self.add_value(Value::whole(storage, shape))
    }

    /// Adds an activation in the compute format.
    pub fn activation(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let compute = self.compute;
        self.tensor(name, dims, compute, Role::Activation)
    }

    /// Adds an activation that keeps full precision: a mean, a norm, a logarithm of a sum.
    pub fn statistic(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let full = self.full();
        self.tensor(name, dims, full, Role::Activation)
    }

    /// Adds an endpoint that is written from outside before the program runs.
    pub fn input(&mut self, name: &str, dims: &[usize], dtype: DType) -> ValueId {
        let value = self.tensor(name, dims, dtype, Role::Input);
        self.name_endpoint(name, value);
        value
    }

    /// Adds an f32 endpoint that outlives programs: it is read from outside or by the whole step.
    pub fn output(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let value = self.tensor(name, dims, DType::F32, Role::Feature);
        self.name_endpoint(name, value);
        value
    }

    /// Adds an endpoint in the compute format in which forward programs leave data for each other, until a step runs: it shares memory
    /// with the activations of the step.
    pub fn forward_cache(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let value = self.tensor(name, dims, self.compute, Role::Cache);
        self.name_endpoint(name, value);
        value
    }

    /// Names a value that is written or read from outside. The name survives planning; within a forward program, it is prefixed with
    /// the program's name and a slash.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn name_endpoint(&mut self, name: &str, value: ValueId) {
        let name = match self.position.section {
            Section::ForwardProgram(index) => format!("{}/{name}", self.forward_programs[index]),
            _ => name.to_owned(),
        };
        if let Some(taken) = self.endpoints.insert(name.clone(), value) {
            panic!("endpoint {name} is {taken:?} already, and {value:?} was to have that name");
        }
    }

    /// The value of an endpoint.
    pub fn endpoint(&self, name: &str) -> Option<ValueId> {
        self.endpoints.get(name).copied()
    }

    pub fn endpoints(&self) -> impl Iterator<Item = (&str, ValueId)> {
        let endpoints = self.endpoints.iter();
        endpoints.map(|(name, &value)| (name.as_str(), value))
    }

    /// Nodes appended by `write` form a forward program with this name beside the step.
    pub fn forward_program<T>(&mut self, name: &str, write: impl FnOnce(&mut Graph) -> T) -> T {
        self.forward_programs.push(name.to_owned());
        let program = Section::ForwardProgram(self.forward_programs.len() - 1);
        let outer = std::mem::replace(&mut self.position.section, program);
        let result = write(self);
        self.position.section = outer;
        result
    }

    pub fn forward_programs(&self) -> &[String] {
        &self.forward_programs
    }

    /// Marks the storage of a value that the losses of the whole effective batch read: the first pass over the micro-batches
    /// writes it. An output that replaces (features: each micro-batch has its own rows) may be written again by a second pass;
    /// an output that adds (sums) is computed once.
    pub fn leave_by_first_pass(&mut self, value: ValueId) {
        let storage = self.value(value).storage;
        self.left_by_first_pass.insert(storage);
    }

    /// Adds the same step for texts of another length, which micro-batches of short texts run instead. It has the same nodes in the
    /// same order; only dimensions that are a length of text are smaller.
    pub fn add_shorter(&mut self, length: usize, graph: Graph) {
        Arc::make_mut(&mut self.shorter).push((length, graph));
    }

    /// The same step for shorter texts, by the length of the texts.
    pub fn shorter(&self) -> &[(usize, Graph)] {
        &self.shorter
    }

    /// Whether the storage was passed to [`Graph::leave_by_first_pass`].
    pub fn is_left_by_first_pass(&self, storage: StorageId) -> bool {
        self.left_by_first_pass.contains(&storage)
    }

    /// Columns `start..start + width` of a value: a view, no work.
    pub fn columns(&mut self, of: ValueId, start: usize, width: usize) -> ValueId {
        let base = *self.value(of);
        let mut dims = base.shape.dims().to_vec();
        let last = dims.len() - 1;
        assert!(
            start + width <= dims[last],
            "columns {start}..{} of a value {} wide",
            start + width,
            dims[last]
        );
        dims[last] = width;
        self.add_value(Value {
            offset: base.offset + start,
            shape: Shape::new(&dims),
            ..base
        })
    }

    /// Rows `start..start + count` of the outermost dimension: a view, no work.
    pub fn rows(&mut self, of: ValueId, start: usize, count: usize) -> ValueId {
        let base = *self.value(of);
        let mut dims = base.shape.dims().to_vec();
        assert!(
            start + count <= dims[0],
            "rows {start}..{} of {}",
            start + count,
            dims[0]
        );
        dims[0] = count;
        self.add_value(Value {
            offset: base.offset + start * base.strides.dims()[0],
            shape: Shape::new(&dims),
            ..base
        })
    }

    /// The `count` rows of `of` that belong to the current micro-batch; the view advances by `count` rows from one to the next.
    pub fn micro_rows(&mut self, of: ValueId, count: usize) -> ValueId {
        let rows = self.rows(of, 0, count);
        self.values[rows.0].micro_stride = count * self.values[rows.0].strides.dims()[0];
        rows
    }

    /// The first token of every sample of `[batch, tokens, width]`: a view, no work.
    pub fn first_tokens(&mut self, of: ValueId) -> ValueId {
        let base = *self.value(of);
        let [batch, _, width] = *base.shape.dims() else {
            panic!(
                "first tokens of {:?}, expected [batch, tokens, width]",
                base.shape
            );
        };
        self.add_value(Value {
            shape: Shape::new(&[batch, 1, width]),
            ..base
        })
    }

    /// Pictures within rows of bytes `[n, row_bytes]`, from `byte_offset` on: a view `[n, height, width, channels]` or
    /// `[n, height, width]`, where `dims` is all but `n`.
    pub fn picture_view(&mut self, rows: ValueId, byte_offset: usize, dims: &[usize]) -> ValueId {
        let base = *self.value(rows);
        let ([n, row_bytes], DType::U8) = (base.shape.dims(), self.dtype(rows)) else {
            panic!(
                "pictures of {:?}, expected rows of bytes [n, row_bytes]",
                base.shape
            );
        };
        let bytes: usize = dims.iter().product();
        assert!(
            byte_offset + bytes <= *row_bytes,
            "pictures {dims:?} from byte {byte_offset} on of rows of {row_bytes}"
        );
        let inner = Shape::new(dims).contiguous_strides();
        let shape: Vec<usize> = [*n].iter().chain(dims).copied().collect();
        let row = base.strides.dims()[0];
        let strides: Vec<usize> = [row].iter().chain(inner.dims()).copied().collect();
        self.add_value(Value {
            offset: base.offset + byte_offset,
            shape: Shape::new(&shape),
            strides: Shape::new(&strides),
            ..base
        })
    }

    /// Every `step`-th pixel of `[n, height, width]` in both directions, beginning with the first: a view, no work.
    pub fn every_pixel(&mut self, labels: ValueId, step: usize) -> ValueId {
        let base = *self.value(labels);
        let ([n, height, width], [sample, line, pixel]) = (base.shape.dims(), base.strides.dims())
        else {
            panic!(
                "every pixel of {:?}, expected [n, height, width]",
                base.shape
            );
        };
        self.add_value(Value {
            shape: Shape::new(&[*n, height.div_ceil(step), width.div_ceil(step)]),
            strides: Shape::new(&[*sample, line * step, pixel * step]),
            ..base
        })
    }

    /// The same elements under another shape; the value must be contiguous.
    pub fn reshape(&mut self, of: ValueId, dims: &[usize]) -> ValueId {
        let base = *self.value(of);
        let shape = Shape::new(dims);
        assert!(
            base.is_contiguous(),
            "reshape of a strided value {:?}",
            base.shape
        );
        assert_eq!(base.shape.num_elements(), shape.num_elements(), "reshape");
        self.add_value(Value {
            shape,
            strides: shape.contiguous_strides(),
            ..base
        })
    }

    /// A parameter in a storage of its own. The same name again returns the same storage.
    pub fn parameter(&mut self, name: &str, dims: &[usize], decay: Decay) -> ValueId {
        self.packed_parameters(&[(name.to_owned(), dims.to_vec())], decay)
    }

    /// Several parameters of the same width one behind the other in one storage. Returns a value that covers them all, stacked along
    /// the first dimension: one product computes q, k and v. The same names again return the same storage.
    pub fn packed_parameters(
        &mut self,
        parameters: &[(String, Vec<usize>)],
        decay: Decay,
    ) -> ValueId {
        let (first_name, _) = &parameters[0];
        let num_elements = parameters
            .iter()
            .map(|(_, dims)| dims.iter().product::<usize>())
            .sum();
        let known = self
            .parameters
            .iter()
            .find(|known| known.name == *first_name);
        if let Some(known) = known {
            let storage = self.values[known.value.0].storage;
            assert_eq!(
                self.storages[storage.0].num_elements, num_elements,
                "{first_name} again, with another shape"
            );
            return self.stacked(storage, parameters);
        }
        let storage = self.add_storage(first_name.clone(), num_elements, self.full(), Role::Weight);
        let mut offset = 0;
        for (name, dims) in parameters {
            let shape = Shape::new(dims);
            let value = self.add_value(Value {
                offset,
                ..Value::whole(storage, shape)
            });
            offset += shape.num_elements();
            self.parameters.push(Parameter {
                name: name.clone(),
                value,
                trainable: true,
                decay,
                rate: 0,
                maximum: None,
            });
        }
        self.stacked(storage, parameters)
    }

    fn stacked(&mut self, storage: StorageId, parameters: &[(String, Vec<usize>)]) -> ValueId {
        let mut dims = parameters[0].1.clone();
        if parameters.len() > 1 {
            dims[0] = parameters.iter().map(|(_, dims)| dims[0]).sum();
        }
        self.add_value(Value::whole(storage, Shape::new(&dims)))
    }

    /// A weight in the format `dtype`, as a product reads it: the weight itself, or a copy in that format.
    pub(crate) fn weight_as(&mut self, weight: ValueId, dtype: DType) -> ValueId {
        if self.dtype(weight) == dtype {
            return weight;
        }
        let value = *self.value(weight);
        let is_matrix = value.shape.dims().len() > 1;
        if self.copies.lifetime == Copies::PerUse && is_matrix {
            let name = format!("{} as {dtype:?}", self.storage(value.storage).name);
            let copy = self.tensor(name, value.shape.dims(), dtype, Role::Activation);
            self.copies
                .originals
                .insert(self.value(copy).storage, value);
            self.push_new(Cast {}, vec![weight], &[copy]);
            return copy;
        }
        let storage = match self.copies.resident.get(&value.storage) {
            Some(&copy) => copy,
            None => self.make_resident_copy(value.storage, dtype),
        };
        self.add_value(Value { storage, ..value })
    }

    fn make_resident_copy(&mut self, weight: StorageId, dtype: DType) -> StorageId {
        let Storage {
            name, num_elements, ..
        } = self.storage(weight).clone();
        let name = format!("{name} as {dtype:?}");
        let copy = self.add_storage(name, num_elements, dtype, Role::Weight);
        self.copies.resident.insert(weight, copy);
        let shape = Shape::new(&[num_elements]);
        self.copies
            .originals
            .insert(copy, Value::whole(weight, shape));
        let [from, to] = [weight, copy].map(|storage| self.add_value(Value::whole(storage, shape)));
        let outer = self.position;
        self.position = Position {
            section: Section::Refresh,
            block: None,
            lane: None,
        };
        self.push_new(Cast {}, vec![from], &[to]);
        self.position = outer;
        copy
    }

    /// The view of a weight that `value` copies; `value` itself if it is not a copy.
    pub(crate) fn original(&self, value: Value) -> Value {
        match self.copies.originals.get(&value.storage) {
            Some(of) => Value {
                storage: of.storage,
                offset: of.offset + value.offset,
                ..value
            },
            None => value,
        }
    }

    /// Storages of copies in the compute format, each with the weight storage it copies.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (StorageId, StorageId)> {
        let originals = self.copies.originals.iter();
        originals.map(|(&copy, of)| (copy, of.storage))
    }

    /// A parameter's resident copy in the compute format.
    pub fn parameter_copy(&self, parameter: &Parameter) -> Option<Value> {
        let value = self.values[parameter.value.0];
        let storage = *self.copies.resident.get(&value.storage)?;
        Some(Value { storage, ..value })
    }

    /// Weight storages of token, position and class embeddings.
    pub fn embeddings(&self) -> HashSet<StorageId> {
        let is_of_embedding = |node: &&Node| {
            matches!(
                node.op,
                Op::Embedding(_) | Op::AddPositions(_) | Op::ClassToken(_)
            )
        };
        let nodes = self.nodes.iter().filter(is_of_embedding);
        let read = nodes.flat_map(|node| &node.inputs);
        let storages = read.map(|&input| self.original(self.values[input.0]).storage);
        storages
            .filter(|&storage| self.storage(storage).role == Role::Weight)
            .collect()
    }

    /// Whether a node only casts weights to the compute format: the planner recomputes it for every use.
    pub fn is_weight_copy(&self, node: &Node) -> bool {
        let reads_weight =
            |&input: &ValueId| self.storage(self.value(input).storage).role == Role::Weight;
        matches!(node.op, Op::Cast(_)) && node.inputs.iter().all(reads_weight)
    }

    /// Changes the flags of parameters before the backward pass is appended. Parameters that share a storage are frozen together.
    pub fn configure_parameters(&mut self, mut configure: impl FnMut(&mut Parameter)) {
        for parameter in &mut self.parameters {
            configure(parameter);
        }
        for parameter in &self.parameters {
            let storage = self.values[parameter.value.0].storage;
            assert!(
                self.parameters
                    .iter()
                    .filter(|other| self.values[other.value.0].storage == storage)
                    .all(|other| other.trainable == parameter.trainable),
                "{} shares its storage with a parameter that is frozen differently",
                parameter.name
            );
        }
    }

    /// Trainable weight storages.
    pub(crate) fn trainable_storages(&self) -> Vec<StorageId> {
        let mut storages: Vec<StorageId> = self
            .parameters
            .iter()
            .filter(|parameter| parameter.trainable)
            .map(|parameter| self.values[parameter.value.0].storage)
            .collect();
        storages.dedup();
        storages
    }

    /// The gradient storage of a weight storage; created on first use.
    pub fn weight_gradient(&mut self, weight: StorageId) -> StorageId {
        if let Some(&gradient) = self.weight_gradients.get(&weight) {
            return gradient;
        }
        let storage = &self.storages[weight.0];
        let (name, num_elements) = (format!("{}.grad", storage.name), storage.num_elements);
        let gradient = self.add_storage(name, num_elements, self.full(), Role::Gradient);
        self.weight_gradients.insert(weight, gradient);
        gradient
    }

    pub fn parameter_gradient(&self, parameter: &Parameter) -> Option<Value> {
        let value = self.values[parameter.value.0];
        self.weight_gradients
            .get(&value.storage)
            .map(|&storage| Value { storage, ..value })
    }

    /// Moves a storage to another memory, before planning.
    pub(crate) fn set_space(&mut self, storage: StorageId, space: MemorySpace) {
        self.storages[storage.0].space = space;
    }

    /// Appends a node to the current section, block and lane.
    pub fn push(
        &mut self,
        op: impl Into<Op>,
        inputs: Vec<ValueId>,
        outputs: Vec<Output>,
    ) -> NodeId {
        self.nodes.push(Node {
            op: op.into(),
            inputs,
            outputs,
            section: self.position.section,
            block: self.position.block,
            lane: self.position.lane,
        });
        NodeId(self.nodes.len() - 1)
    }

    /// Appends a node whose outputs replace.
    pub fn push_new(
        &mut self,
        op: impl Into<Op>,
        inputs: Vec<ValueId>,
        outputs: &[ValueId],
    ) -> NodeId {
        let outputs = outputs.iter().copied().map(Output::overwrite).collect();
        self.push(op, inputs, outputs)
    }

    /// Stores the gradients of matrices in bf16. Each product writes its contribution in f32, from where it is added and rounded. A
    /// gradient that any node other than a whole product writes stays in f32.
    pub fn round_gradients(&mut self) {
        let is_product = |node: &Node| matches!(&node.op, Op::LinearWeightGrad(op) if op.weight);
        // Clearing and exchanging work on any format.
        let is_plain = |node: &Node| matches!(node.op, Op::Fill(_) | Op::Collective(_));
        let mut of_products: HashMap<StorageId, bool> = HashMap::new();
        for node in self.nodes.iter().filter(|node| !is_plain(node)) {
            for (index, output) in node.outputs.iter().enumerate() {
                let value = self.values[output.value.0];
                let storage = &self.storages[value.storage.0];
                if storage.role == Role::Gradient {
                    let is_whole =
                        value.is_contiguous() && value.shape.num_elements() == storage.num_elements;
                    let is_share = is_product(node) && index == 0 && is_whole;
                    *of_products.entry(value.storage).or_insert(true) &= is_share;
                }
            }
        }
        of_products.retain(|_, is_product| *is_product);
        for storage in of_products.keys() {
            self.storages[storage.0].dtype = DType::Bf16;
        }
        for mut node in std::mem::take(&mut self.nodes) {
            let gradient = node.outputs.first().copied();
            let gradient = gradient.filter(|output| {
                let storage = self.values[output.value.0].storage;
                is_product(&node) && of_products.contains_key(&storage)
            });
            let Some(gradient) = gradient else {
                self.nodes.push(node);
                continue;
            };
            let value = self.values[gradient.value.0];
            let name = format!("{} of a micro-batch", self.storages[value.storage.0].name);
            let share = self.statistic(&name, value.shape.dims());
            node.outputs[0] = Output::overwrite(share);
            let added = Node {
                op: AddRounded {}.into(),
                inputs: vec![share],
                outputs: vec![gradient],
                ..node.clone()
            };
            self.nodes.extend([node, added]);
        }
    }

    /// For rewriting passes: removes the nodes whose index satisfies `removed`.
    pub fn remove_nodes(&mut self, mut removed: impl FnMut(usize) -> bool) {
        let mut index = 0;
        self.nodes.retain(|_| {
            index += 1;
            !removed(index - 1)
        });
    }

    /// For rewriting passes: mutable access to a node.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }
}
