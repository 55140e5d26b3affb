//! `y[b, i] = x[b, i] + table[i / repeat]`: a learned row for every token, or for every `repeat` consecutive tokens.
//!
//! For the frames of a clip, `repeat` is the number of tokens per frame. Backward: `dx` is `dy`,
//! `dtable[n] += sum over b, then over the tokens of row n, of dy`.
//!
//! Legend: `b` samples, `t` tokens, `n` rows of the table, `d` width.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Inputs `x_btd, table_nd` with `n * repeat = t`; output `y_btd`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddPositions {
    /// Tokens that share a row of the table.
    pub repeat: usize,
}

/// Input `dy_btd`; output `dtable_nd`, which is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct AddPositionsGrad {
    /// Tokens that share a row of the table.
    pub repeat: usize,
}

impl Graph {
    /// Adds a row of `table_nd` to every token; `repeat` consecutive tokens share a row.
    pub fn add_positions(
        &mut self,
        name: &str,
        x_btd: ValueId,
        table_nd: ValueId,
        repeat: usize,
    ) -> ValueId {
        let (x, table) = (self.shape(x_btd), self.shape(table_nd));
        let [batch, tokens, width] = *x.dims() else {
            panic!("add positions {name}: x {x:?}, expected [batch, tokens, width]");
        };
        assert_eq!(
            (table.rows() * repeat, table.width()),
            (tokens, width),
            "add positions {name}: x {x:?}, table {table:?}, each row for {repeat} tokens"
        );
        let y_btd = self.activation(name, &[batch, tokens, width]);
        self.push_new(AddPositions { repeat }, vec![x_btd, table_nd], &[y_btd]);
        y_btd
    }
}

impl Operation for AddPositions {
    fn name(&self) -> &'static str {
        "add positions"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy_btd) = pass.reached(node, 0) else {
            return;
        };
        let [x_btd, table_nd] = [node.inputs[0], node.inputs[1]];
        if pass.wants(table_nd) {
            let dtable_nd = pass.added(table_nd);
            let op = AddPositionsGrad {
                repeat: self.repeat,
            };
            pass.graph().push(op, vec![dy_btd], vec![dtable_nd]);
        }
        // Donated last: no later node may read dy.
        if pass.wants(x_btd) {
            pass.donate(x_btd, dy_btd);
        }
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(1)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None // its input is as large and would have to be kept instead
    }
}

undifferentiated!(AddPositionsGrad, "add positions gradient", |_, node| {
    sum_over_tokens(node)
});

/// Cost of adding up every element of the first input.
pub(super) fn sum_over_tokens(node: NodeView<'_>) -> Cost {
    Cost {
        product_flops: 0,
        element_flops: node.input(0).num_elements() as u64,
        bytes: node.operand_bytes(),
    }
}
