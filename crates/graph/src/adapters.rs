//! Low-rank adapters (LoRA): a trainable product of two narrow matrices is added to a frozen matrix.
//!
//! ```text
//! y = x W^T + b + scale (x A^T) B^T        A [rank, inputs], B [outputs, rank]
//! ```
//!
//! The graph holds the names of the layers with an adapter, so that the code that appends a linear layer need not know of them.
//! Matrices that one product computes together (q, k and v) have their `A` in one storage, so that one narrow product serves
//! them all; each `B` adds to its own columns within the wide product's node ([`crate::ops::linear`]).
//!
//! Legend: `n` rows, `i` inputs, `o` outputs, `r` rank.

use std::collections::BTreeSet;

use crate::ops::dropout::{Dropout, DropoutMode};
use crate::ops::linear::LowRank;
use crate::{Decay, Graph, Parameter, Section, Shape, Value, ValueId};

/// Low-rank adapters of linear layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapters {
    /// Number of rows of `A` and of columns of `B`.
    pub rank: usize,
    /// Factor of the adapter's contribution.
    pub scale: f64,
    /// Names of the layers: the names of their weights without `.weight`.
    pub modules: BTreeSet<String>,
    /// Dropout of `x` before `A`, in the training step alone.
    pub dropout: Option<AdapterDropout>,
}

/// Dropout of an adapter's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterDropout {
    /// Share of elements that are dropped.
    pub rate: f64,
    /// Index of each sample in the data set, `[b]`.
    pub sample_ids_b: ValueId,
    /// Seed and epoch, `[2]`.
    pub stream_2: ValueId,
}

/// Name of a layer's `A`, as in peft.
pub fn name_of_a(module: &str) -> String {
    format!("{module}.lora_A.weight")
}

/// Name of a layer's `B`, as in peft.
pub fn name_of_b(module: &str) -> String {
    format!("{module}.lora_B.weight")
}

/// Name of the layer whose adapter a parameter belongs to.
pub fn adapted_module(parameter: &str) -> Option<&str> {
    let suffixes = [".lora_A.weight", ".lora_B.weight"];
    suffixes
        .into_iter()
        .find_map(|suffix| parameter.strip_suffix(suffix))
}

/// Name of the layer that a weight belongs to.
pub fn module_of_weight(parameter: &str) -> Option<&str> {
    parameter.strip_suffix(".weight")
}

/// A matrix with an adapter, within the storage of a product's weight.
struct Adapted {
    module: String,
    /// Offset of its first element in the storage.
    offset: usize,
    outputs: usize,
}

impl Graph {
    /// Names of the layers that the step computes by linear nodes: an adapter can be added to each.
    pub fn linear_modules(&self) -> BTreeSet<String> {
        let is_linear = |node: &&crate::Node| {
            node.section == Section::Forward && matches!(node.op, crate::Op::Linear(_))
        };
        let mut modules = BTreeSet::new();
        for node in self.nodes().iter().filter(is_linear) {
            let weight = self.original(*self.value(node.inputs[1]));
            let extent = weight.offset..weight.offset + weight.shape.num_elements();
            let parameters = self.parameters().iter().filter(|parameter| {
                let value = self.value(parameter.value);
                value.storage == weight.storage && extent.contains(&value.offset)
            });
            modules.extend(
                parameters.filter_map(|one| module_of_weight(&one.name).map(str::to_owned)),
            );
        }
        modules
    }

    /// Appends `x A^T` for the adapters of a weight. Returns the inputs that the wide product's node reads and where they go.
    pub(crate) fn adapt_linear(
        &mut self,
        name: &str,
        x_ni: ValueId,
        weight_oi: ValueId,
    ) -> (Option<LowRank>, Vec<ValueId>) {
        let Some(adapters) = self.adapters() else {
            return (None, Vec::new());
        };
        let (rank, weight) = (adapters.rank, *self.value(weight_oi));
        let inputs = weight.shape.width();
        let of_storage = self.adapted_in_storage(weight_oi, &adapters);
        let extent = weight.offset..weight.offset + weight.shape.num_elements();
        let within = |one: &&Adapted| extent.contains(&one.offset);
        let Some(first) = of_storage.iter().position(|one| within(&one)) else {
            return (None, Vec::new());
        };
        let terms: Vec<&Adapted> = of_storage.iter().filter(within).collect();
        let all_a: Vec<_> = of_storage
            .iter()
            .map(|one| (name_of_a(&one.module), vec![rank, inputs]))
            .collect();
        let all_a = self.packed_parameters(&all_a, Decay::Yes);
        let a_ri = self.rows(all_a, first * rank, terms.len() * rank);
        let x_ni = self.drop_before_adapter(name, x_ni, &adapters, &terms[0].module);
        let h_nr = self.linear(&format!("{name}.low rank"), x_ni, a_ri, None, None);
        let format = self.dtype(h_nr);
        let mut read = Vec::new();
        let mut columns = Vec::new();
        for (index, term) in terms.into_iter().enumerate() {
            let b_or = self.parameter(&name_of_b(&term.module), &[term.outputs, rank], Decay::Yes);
            read.push(self.columns(h_nr, index * rank, rank));
            read.push(self.weight_as(b_or, format));
            let start = (term.offset - weight.offset) / inputs;
            columns.push(start..start + term.outputs);
        }
        let scale = adapters.scale;
        (Some(LowRank { scale, columns }), read)
    }

    /// Matrices with adapters in the storage of a weight, in order of offset.
    fn adapted_in_storage(&self, weight: ValueId, adapters: &Adapters) -> Vec<Adapted> {
        let storage = self.value(weight).storage;
        let adapted = |parameter: &Parameter| {
            let value = self.value(parameter.value);
            let module = module_of_weight(&parameter.name)?;
            (value.storage == storage && adapters.modules.contains(module)).then(|| Adapted {
                module: module.to_owned(),
                offset: value.offset,
                outputs: value.shape.rows(),
            })
        };
        self.parameters().iter().filter_map(adapted).collect()
    }

    /// Appends one dropout mask for all adapters of a product. The number of its random stream comes from the name of the first
    /// adapter, so that shorter texts and splits drop the same elements.
    fn drop_before_adapter(
        &mut self,
        name: &str,
        x: ValueId,
        adapters: &Adapters,
        module: &str,
    ) -> ValueId {
        let Some(dropout) = adapters.dropout else {
            return x;
        };
        if self.section() != Section::Forward {
            return x;
        }
        let samples = self.shape(dropout.sample_ids_b).num_elements();
        let shape = self.shape(x);
        // All frames of a clip belong to one sample.
        let x = if shape.dims()[0] == samples {
            x
        } else {
            self.rows_by_sample(x, samples)
        };
        let op = Dropout {
            rate: dropout.rate,
            layer: layer_number(module),
            mode: DropoutMode::Element,
        };
        let name = format!("{name}.low rank dropout");
        let dropped = self.dropout(&name, x, dropout.sample_ids_b, dropout.stream_2, op);
        self.reshape(dropped, shape.dims())
    }
}

impl Graph {
    /// The rows of a value as `[samples, rows of one sample, width]`: a view, no work.
    fn rows_by_sample(&mut self, of: ValueId, samples: usize) -> ValueId {
        let base = *self.value(of);
        let row = base.row_stride();
        let row = row.expect("what a product reads has evenly spaced rows");
        let (each, width) = (base.shape.rows() / samples, base.shape.width());
        self.add_value(Value {
            shape: Shape::new(&[samples, each, width]),
            strides: Shape::new(&[each * row, row, 1]),
            ..base
        })
    }
}

/// FNV-1a hash of the name with the top bit set: never the number of a model's own layer.
fn layer_number(module: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    module.bytes().fold(0xcbf2_9ce4_8422_2325, fold) | 1 << 63
}
