//! `x[b, t] = table[ids[b, t]] + positions[t]`.
//!
//! Backward: `dtable[id] += dx[b, t]` for every position `(b, t)` of the id, `dpositions[t] += sum over b`.

use super::add_positions::AddPositionsGrad;
use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Inputs `ids_bt, table_vd, positions_td`; output `x_btd`.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Positions in `ids` sorted by id, then -1 for positions whose gradient is zero. A device that adds many rows in parallel
    /// needs the order to add equal ids in a fixed sequence.
    pub order_bt: Option<ValueId>,
}

/// Inputs `dx_btd, ids_bt, [order_bt]`; outputs `dtable_vd, dpositions_td`.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingGrad {}

impl Graph {
    /// Token embedding plus position embedding.
    pub fn embedding(
        &mut self,
        name: &str,
        ids_bt: ValueId,
        table_vd: ValueId,
        positions_td: ValueId,
        order_bt: Option<ValueId>,
    ) -> ValueId {
        let (ids, table, positions) = (
            self.shape(ids_bt),
            self.shape(table_vd),
            self.shape(positions_td),
        );
        assert_eq!(self.dtype(ids_bt), DType::I64, "embedding {name}: ids");
        assert_eq!(
            (ids.width(), table.width()),
            (positions.rows(), positions.width()),
            "embedding {name}: ids {ids:?}, table {table:?}, positions {positions:?}"
        );
        let x_btd = self.activation(name, &[ids.rows(), ids.width(), table.width()]);
        self.push_new(
            Embedding { order_bt },
            vec![ids_bt, table_vd, positions_td],
            &[x_btd],
        );
        x_btd
    }
}

impl Operation for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dx_btd) = pass.reached(node, 0) else {
            return;
        };
        let [table_vd, positions_td] = [node.inputs[1], node.inputs[2]];
        if !pass.wants(table_vd) {
            // The table is frozen: the gradient of positions alone is a sum over samples.
            let dpositions_td = pass.added(positions_td);
            let op = AddPositionsGrad { repeat: 1 };
            pass.graph().push(op, vec![dx_btd], vec![dpositions_td]);
            return;
        }
        let outputs = vec![
            pass.target(table_vd),
            pass.target_or_scrap(positions_td, "frozen positions.grad"),
        ];
        let mut inputs = vec![dx_btd, node.inputs[0]];
        inputs.extend(self.order_bt);
        pass.graph().push(EmbeddingGrad {}, inputs, outputs);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        traffic(node, node.output(0))
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }
}

undifferentiated!(EmbeddingGrad, "embedding gradient", |_, node| traffic(
    node,
    node.input(0)
));

/// Traffic of the rows that are looked up, not of the whole table.
fn traffic(node: NodeView<'_>, x: crate::Shape) -> Cost {
    let bytes = node.graph.compute().bytes() as u64;
    Cost {
        product_flops: 0,
        element_flops: x.num_elements() as u64,
        bytes: 3 * x.num_elements() as u64 * bytes,
    }
}
