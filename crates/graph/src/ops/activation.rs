//! `y = activation(z)`; backward `dz = dy * activation'(z)`.
//!
//! quick GELU: `z * sigmoid(1.702 z)`. erf GELU: `z * Phi(z)`, `Phi` the normal distribution function. ReLU: `max(z, 0)`. Leaky
//! ReLU: `z` above zero, `0.01 z` elsewhere. At zero, both ReLUs have the slope that they have below zero.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Non-linearities of transformers and of convolutional models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// OpenAI's GELU: `z * sigmoid(1.702 z)`.
    QuickGelu,
    /// The exact GELU: `z * Phi(z)`.
    Gelu,
    /// `max(z, 0)`.
    Relu,
    /// `z` above zero, [`LEAKY_SLOPE`] times `z` elsewhere.
    LeakyRelu,
}

/// Slope of [`Activation::LeakyRelu`] below zero.
pub const LEAKY_SLOPE: f64 = 0.01;

/// Forward. Input `z`; output `y`.
#[derive(Clone, Debug, PartialEq)]
pub struct Activate {
    pub activation: Activation,
}

/// Backward, in place on `dy`. Inputs `dy, z`; output `dz`.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivateGrad {
    pub activation: Activation,
}

impl Graph {
    /// Appends `activation(z)`. After a product, [`Graph::linear_activated`] saves a pass over memory.
    pub fn activate(&mut self, name: &str, z: ValueId, activation: Activation) -> ValueId {
        let shape = self.shape(z);
        let y = self.activation(name, shape.dims());
        self.push_new(Activate { activation }, vec![z], &[y]);
        y
    }
}

impl Operation for Activate {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        pass.through_activation(self.activation, dy, node.inputs[0]);
        pass.donate(node.inputs[0], dy);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(12)
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }
}

undifferentiated!(ActivateGrad, "activation gradient", |_, node| node
    .element_wise(16));
