//! `x[b, 0] = class + positions[0]`, `x[b, 1 + i] = patches[b, i] + positions[1 + i]`.
//!
//! Backward: `dpatches` is `dx` without its first token, `dclass` and `dpositions` sum over the batch.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Forward. Inputs `patches_bnd, class_d, positions_td` with `t = n + 1`; output `x_btd`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassToken {}

/// Input `dx_btd`; outputs `dpatches_bnd, [dclass_d, dpositions_td]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassTokenGrad {
    /// Whether class token and positions are trained.
    pub parameters: bool,
}

impl Graph {
    /// Puts the class token before the patches and adds positions.
    pub fn class_token(
        &mut self,
        name: &str,
        patches_bnd: ValueId,
        class_d: ValueId,
        positions_td: ValueId,
    ) -> ValueId {
        let (patches, positions) = (self.shape(patches_bnd), self.shape(positions_td));
        let [batch, num_patches, width] = *patches.dims() else {
            panic!("class token {name}: patches {patches:?}, expected [batch, patches, width]");
        };
        assert_eq!(
            (positions.rows(), positions.width()),
            (num_patches + 1, width),
            "class token {name}: patches {patches:?}, positions {positions:?}"
        );
        assert_eq!(
            self.shape(class_d).num_elements(),
            width,
            "class token {name}"
        );
        let x_btd = self.activation(name, &[batch, num_patches + 1, width]);
        self.push_new(
            ClassToken {},
            vec![patches_bnd, class_d, positions_td],
            &[x_btd],
        );
        x_btd
    }
}

impl Operation for ClassToken {
    fn name(&self) -> &'static str {
        "class token"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dx_btd) = pass.reached(node, 0) else {
            return;
        };
        let parameters = pass.wants(node.inputs[1]);
        assert_eq!(
            parameters,
            pass.wants(node.inputs[2]),
            "class token and positions are frozen together"
        );
        let mut outputs: Vec<Output> = vec![pass.target(node.inputs[0])];
        if parameters {
            outputs.push(pass.target(node.inputs[1]));
            outputs.push(pass.target(node.inputs[2]));
        }
        pass.graph()
            .push(ClassTokenGrad { parameters }, vec![dx_btd], outputs);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(1)
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None // its input, the embedded patches, is as large and would have to be kept instead
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }
}

undifferentiated!(ClassTokenGrad, "class token gradient", |_, node| node
    .element_wise(2));
