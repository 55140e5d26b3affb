//! The update of a step, written down: gradient norm, AdamW over every trained parameter with its state, and the programs beside the
//! step that averages of weights need.

use holdall_graph::ops::update::{
    AverageAction, GradientNorm, MOMENT_BLOCK, MomentFormat, WeightAverages,
};
use holdall_graph::{DType, Graph, Parameter, Role, ValueId};

use crate::optimizer::{Averaging, OptimizerConfig, StatePart};

/// Programs beside the step that weights and their averages have.
pub(crate) mod averages {
    /// Each gets the other's place.
    pub const EXCHANGE: &str = "exchange averages";
    /// Averages become the weights.
    pub const RESTART: &str = "restart averages";
    /// Averages, which are the starting weights, come nearer to the weights.
    pub const INTERPOLATE: &str = "interpolate averages";
}

/// Writes the update of all trainable parameters.
pub(crate) fn write_update(
    g: &mut Graph,
    optimizer: &OptimizerConfig,
    schedule: ValueId,
    norm: ValueId,
) {
    let parameters: Vec<_> = g
        .parameters()
        .iter()
        .filter(|parameter| parameter.trainable)
        .cloned()
        .collect();
    let operation = optimizer.operation(g);
    let mut gradients = Vec::new();
    let mut outputs = Vec::new();
    let mut averaged = Vec::new();
    for (parameter, update) in parameters.iter().zip(&operation.parameters) {
        let gradient = g
            .parameter_gradient(parameter)
            .expect("every trainable parameter has a gradient");
        gradients.push(g.add_value(gradient));
        outputs.push(parameter.value);
        for part in StatePart::of_moments(update.moments) {
            outputs.push(write_state(g, parameter, *part, update.moments));
        }
        if let Some(copy) = g.parameter_copy(parameter) {
            outputs.push(g.add_value(copy));
        }
        if optimizer.averaging != Averaging::None {
            let average = write_state(g, parameter, StatePart::Average, update.moments);
            averaged.extend([parameter.value, average]);
            if operation.average_decay.is_some() {
                outputs.push(average);
            }
        }
    }
    g.push_new(GradientNorm {}, gradients.clone(), &[norm]);
    let mut inputs = vec![schedule, norm];
    inputs.extend(&gradients);
    g.push_new(operation, inputs, &outputs);
    let programs = match optimizer.averaging {
        Averaging::None => return,
        Averaging::OverSteps { .. } => (averages::RESTART, AverageAction::Restart),
        Averaging::WithStart { share } => {
            (averages::INTERPOLATE, AverageAction::Interpolate { share })
        }
    };
    for (name, action) in [programs, (averages::EXCHANGE, AverageAction::Exchange)] {
        g.forward_program(name, |g| {
            g.push_new(WeightAverages { action }, Vec::new(), &averaged)
        });
    }
}

/// A tensor of a parameter's state.
fn write_state(
    g: &mut Graph,
    parameter: &Parameter,
    part: StatePart,
    moments: MomentFormat,
) -> ValueId {
    let shape = g.shape(parameter.value);
    let blocks = [shape.num_elements().div_ceil(MOMENT_BLOCK)];
    let (dims, dtype) = match (part, moments) {
        (StatePart::FirstScales | StatePart::SecondScales, _) => (&blocks[..], DType::F32),
        (StatePart::Average, _) | (_, MomentFormat::F32) => (shape.dims(), DType::F32),
        (_, MomentFormat::Bf16) => (shape.dims(), DType::Bf16),
        (_, MomentFormat::EightBit) => (shape.dims(), DType::U8),
    };
    let name = part.endpoint(&parameter.name);
    let value = g.tensor(name.as_str(), dims, dtype, Role::Optimizer);
    g.name_endpoint(&name, value);
    value
}
