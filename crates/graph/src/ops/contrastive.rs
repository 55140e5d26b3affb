//! The contrastive loss of CLIP over all pairs, as a sum, in tiles: `O(B D)` memory, the full matrix of logits is never stored.
//!
//! With `s[i, j] = exp(logit_scale) * image[i] . text[j]` over the rows that count (`w = 1`):
//! `sum += sum over i of ((logsumexp_j s[i, j] - s[i, i]) + (logsumexp_j s[j, i] - s[i, i])) / 2`.
//!
//! Rows of weight zero are padding: they are left out as rows and as columns. Backward, from the log-sum-exps `row_lse` and
//! `column_lse` of the forward pass, with
//! `g[i, j] = seed / 2 * (exp(s - row_lse[i]) + exp(s - column_lse[j])) - seed * (i == j)`:
//! `dimage = scale * g text`, `dtext = scale * g^T image`, `dlogit_scale += sum g s`.
//!
//! With groups, several pairs may match (`same_text: positive`): the positives of row `i` are all rows `j` of nonzero weight in the
//! same group, each with target `shares[i]`, which is one divided by their number. The diagonal `s[i, i]` above becomes
//! `shares[i] * sum over the positives of s[i, j]`, and `(i == j)` becomes `shares[i]` at every positive.
//!
//! In a run of several processes, each computes its own rows: their part of the sum, their log-sum-exps and, from the log-sum-exps of
//! all rows, their gradients. `dlogit_scale` comes from the process's own rows of pictures, so that each pair counts once.

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::collective::{Exchange, Processes};
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, Output, ValueId};

/// Forward. Inputs `image_bd, text_bd, weights_b, logit_scale, [groups_b, shares_b]`; outputs the sum (added to), `row_lse_b`,
/// `column_lse_b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrastive {
    /// Rows and columns of a tile.
    pub tile: usize,
    /// The process whose rows are computed.
    pub processes: Processes,
}

/// Inputs `seed, image_bd, text_bd, weights_b, logit_scale, row_lse_b, column_lse_b, [groups_b, shares_b]`; outputs `dimage_bd,
/// dtext_bd, dlogit_scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct ContrastiveGrad {
    /// Rows and columns of a tile.
    pub tile: usize,
    /// The process whose rows are computed.
    pub processes: Processes,
}

/// Rows and columns of a tile: large enough for fast products, small enough for the cache.
pub const CONTRASTIVE_TILE: usize = 512;

impl Graph {
    /// Adds the contrastive loss over all rows of `image_bd` and `text_bd` to `sum`.
    pub fn contrastive_into(
        &mut self,
        [image_bd, text_bd]: [ValueId; 2],
        weights_b: ValueId,
        logit_scale: ValueId,
        sum: ValueId,
        tile: usize,
    ) {
        let inputs = vec![image_bd, text_bd, weights_b, logit_scale];
        self.push_contrastive(inputs, sum, tile);
    }

    /// Like [`Graph::contrastive_into`], where all rows of a group are positives of each other. `groups_b` are indices, -1 for padding;
    /// `shares_b` is one divided by the number of rows in the group.
    #[allow(clippy::too_many_arguments)] // the arguments of `contrastive_into` and the groups
    pub fn contrastive_groups_into(
        &mut self,
        [image_bd, text_bd]: [ValueId; 2],
        weights_b: ValueId,
        groups_b: ValueId,
        shares_b: ValueId,
        logit_scale: ValueId,
        sum: ValueId,
        tile: usize,
    ) {
        let rows = self.shape(image_bd).rows();
        let [groups, shares] = [groups_b, shares_b].map(|id| self.shape(id).num_elements());
        assert_eq!(
            (self.dtype(groups_b), groups, shares),
            (DType::I64, rows, rows),
            "contrastive: one group and one share per row"
        );
        let inputs = vec![
            image_bd,
            text_bd,
            weights_b,
            logit_scale,
            groups_b,
            shares_b,
        ];
        self.push_contrastive(inputs, sum, tile);
    }

    /// Restricts the contrastive losses that are already in the graph, and have no gradients yet, to the rows of this process.
    pub fn share_contrastive(&mut self, processes: Processes) {
        let mut logarithms = Vec::new();
        for index in 0..self.nodes().len() {
            let node = self.node_mut(crate::NodeId(index));
            if let crate::Op::Contrastive(op) = &mut node.op {
                op.processes = processes;
                logarithms.extend(node.outputs[1..].iter().map(|output| output.value));
            }
        }
        self.collective(Exchange::AllGather, processes, &logarithms);
    }

    fn push_contrastive(&mut self, inputs: Vec<ValueId>, sum: ValueId, tile: usize) {
        let [image_bd, text_bd, weights_b] = [inputs[0], inputs[1], inputs[2]];
        let (image, text) = (self.shape(image_bd), self.shape(text_bd));
        assert_eq!(image, text, "contrastive: image {image:?}, text {text:?}");
        assert_eq!(
            image.rows(),
            self.shape(weights_b).num_elements(),
            "contrastive: one weight per row"
        );
        let row_lse = self.statistic("contrastive.row_lse", &[image.rows()]);
        let column_lse = self.statistic("contrastive.column_lse", &[image.rows()]);
        self.push(
            Contrastive {
                tile,
                processes: Processes::default(),
            },
            inputs,
            vec![
                Output::accumulate(sum),
                Output::overwrite(row_lse),
                Output::overwrite(column_lse),
            ],
        );
    }
}

impl Operation for Contrastive {
    fn name(&self) -> &'static str {
        "contrastive"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(seed) = pass.reached(node, 0) else {
            return;
        };
        let mut inputs = vec![seed];
        inputs.extend(&node.inputs[..4]);
        inputs.extend(node.outputs[1..].iter().map(|output| output.value));
        inputs.extend(&node.inputs[4..]);
        let outputs = [0, 1, 3].map(|input| {
            let value = node.inputs[input];
            if pass.wants(value) {
                return pass.target(value);
            }
            let shape = pass.graph().shape(value);
            let scrap = pass.graph().statistic("frozen scale.grad", shape.dims());
            Output::overwrite(scrap)
        });
        pass.graph().push(
            ContrastiveGrad {
                tile: self.tile,
                processes: self.processes,
            },
            inputs,
            outputs.to_vec(),
        );
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        pairs(node.input(0), node, 1, self.processes)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }

    fn is_shared_by_processes(&self) -> bool {
        true
    }
}

undifferentiated!(ContrastiveGrad, "contrastive gradient", |op, node| pairs(
    node.input(1),
    node,
    3,
    op.processes
));

/// Cost over the tiles of this process's rows and columns: all tiles in a run of one process.
fn pairs(image: crate::Shape, node: NodeView<'_>, num_products: u64, of: Processes) -> Cost {
    let (rows, own) = (image.rows(), of.own(image.rows()).len());
    let pairs = (2 * rows * own - own * own) as u64;
    Cost {
        product_flops: num_products * 2 * pairs * image.width() as u64,
        element_flops: pairs * 24,
        bytes: node.operand_bytes(),
    }
}
