//! `x[b, i] = class[i] + positions[i]` for `i < k`, `x[b, k + i] = patches[b, i] + positions[k + i]`.
//!
//! `k` is 1, or 2 if a distillation token follows the class token. Backward: `dpatches` is `dx` without its first `k` tokens,
//! `dclass` and `dpositions` are sums over the batch.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Forward. Inputs `patches_bnd, class_kd, positions_td` with `t = n + k`; output `x_btd`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassToken {}

/// Input `dx_btd`; outputs `dpatches_bnd, [dclass_kd, dpositions_td]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassTokenGrad {
    /// Tokens before the patches.
    pub num_prefix: usize,
    /// Whether class token or positions are trained.
    pub parameters: bool,
}

impl Graph {
    /// Prepends the class token (and a distillation token) to the patches and adds positions.
    pub fn class_token(
        &mut self,
        name: &str,
        patches_bnd: ValueId,
        class_kd: ValueId,
        positions_td: ValueId,
    ) -> ValueId {
        let (patches, positions) = (self.shape(patches_bnd), self.shape(positions_td));
        let [batch, num_patches, width] = *patches.dims() else {
            panic!("class token {name}: patches {patches:?}, expected [batch, patches, width]");
        };
        let class = self.shape(class_kd);
        let num_prefix = class.num_elements() / width;
        assert!(
            num_prefix > 0 && class.num_elements() == num_prefix * width,
            "class token {name}: {class:?} before patches {patches:?}"
        );
        assert_eq!(
            (positions.rows(), positions.width()),
            (num_patches + num_prefix, width),
            "class token {name}: {class:?} before patches {patches:?}, positions {positions:?}"
        );
        let x_btd = self.activation(name, &[batch, num_patches + num_prefix, width]);
        self.push_new(
            ClassToken {},
            vec![patches_bnd, class_kd, positions_td],
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
        let [class_kd, positions_td] = [node.inputs[1], node.inputs[2]];
        let parameters = pass.wants(class_kd) || pass.wants(positions_td);
        let mut outputs: Vec<Output> = vec![pass.target(node.inputs[0])];
        if parameters {
            outputs.push(pass.target_or_scrap(class_kd, "frozen class token.grad"));
            outputs.push(pass.target_or_scrap(positions_td, "frozen positions.grad"));
        }
        let [class, x] = [node.inputs[1], dx_btd].map(|id| pass.graph().shape(id));
        let op = ClassTokenGrad {
            num_prefix: class.num_elements() / x.width(),
            parameters,
        };
        pass.graph().push(op, vec![dx_btd], outputs);
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
