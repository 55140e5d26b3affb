//! Writes the update of a step: gradient norm, AdamW over every trained parameter with its state, and the separate programs
//! for averages of the weights.

use holdall_graph::ops::collective::{Exchange, Processes};
use holdall_graph::ops::update::{
    AverageAction, GradientNorm, MOMENT_BLOCK, MomentFormat, WeightAverages,
};
use holdall_graph::{DType, Graph, Parameter, Role, ValueId};

use crate::engine::optimizer::{Averaging, OptimizerConfig, StatePart};

/// Names of the programs for averages of the weights, which run outside of a step.
pub(crate) mod averages {
    /// Swaps weights and averages.
    pub const EXCHANGE: &str = "exchange averages";
    /// Copies the weights to the averages.
    pub const RESTART: &str = "restart averages";
    /// Moves the averages, which hold the starting weights, towards the weights.
    pub const INTERPOLATE: &str = "interpolate averages";
}

/// Writes the update of all trainable parameters.
pub(crate) fn write_update(
    g: &mut Graph,
    optimizer: &OptimizerConfig,
    schedule: ValueId,
    norm: ValueId,
    sharding: Option<Processes>,
) {
    let parameters: Vec<_> = g
        .parameters()
        .iter()
        .filter(|parameter| parameter.trainable)
        .cloned()
        .collect();
    let mut operation = optimizer.operation(g);
    let owners = sharding.map(|processes| owners(g, &parameters, processes.count));
    let is_own = |index: usize| match (&owners, sharding) {
        (Some(owners), Some(processes)) => owners[index] == processes.rank,
        _ => true,
    };
    let mut gradients = Vec::new();
    let mut outputs = Vec::new();
    let mut averaged = Vec::new();
    let mut own_gradients = Vec::new();
    let updates = std::mem::take(&mut operation.parameters);
    for (index, (parameter, update)) in parameters.iter().zip(updates).enumerate() {
        let gradient = g
            .parameter_gradient(parameter)
            .expect("every trainable parameter has a gradient");
        let gradient = g.add_value(gradient);
        gradients.push(gradient);
        if !is_own(index) {
            continue;
        }
        own_gradients.push(gradient);
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
        operation.parameters.push(update);
    }
    g.push_new(GradientNorm {}, gradients.clone(), &[norm]);
    let mut inputs = vec![schedule, norm];
    inputs.extend(&own_gradients);
    g.push_new(operation, inputs, &outputs);
    if let (Some(owners), Some(processes)) = (owners, sharding) {
        let weights: Vec<ValueId> = parameters.iter().map(|one| one.value).collect();
        g.collective(Exchange::FromOwners(owners), processes, &weights);
    }
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

/// Assigns each parameter's state and update to a process: the largest parameter first, each to the process with the smallest
/// load.
pub(crate) fn owners(g: &Graph, parameters: &[Parameter], count: usize) -> Vec<usize> {
    let size = |index: usize| g.shape(parameters[index].value).num_elements();
    let mut order: Vec<usize> = (0..parameters.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(size(index)));
    let mut loads = vec![0; count];
    let mut owners = vec![0; parameters.len()];
    for index in order {
        let least = (0..count).min_by_key(|&rank| loads[rank]).unwrap_or(0);
        loads[least] += size(index);
        owners[index] = least;
    }
    owners
}

/// Adds a tensor of a parameter's state.
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
