//! Random initialisation of U-Nets.
//!
//! With leaky ReLU, like nnU-Net: weights normal with standard deviation `sqrt(2 / (1 + 0.01^2) / fan in)`, biases zero.
//! Otherwise like `nn.Conv2d`'s default: weights and biases uniform within `1 / sqrt(fan in)`. Norms are 1 and 0; with leaky
//! ReLU, the last norm of a residual block is 0 and 0, so that the block starts as its shortcut.

use holdall_graph::ops::activation::Activation;

use super::config::{Module, UnetConfig};
use crate::error::ModelError;
use crate::init::Start;

/// Negative slope of leaky ReLU.
const SLOPE: f64 = 0.01;

/// Fills a parameter of a model with random weights.
pub fn fill(
    config: &UnetConfig,
    seed: u64,
    name: &str,
    values: &mut [f32],
) -> Result<(), ModelError> {
    let start = start_of(config, name).ok_or_else(|| ModelError::UnknownParameter {
        model: super::ARCHITECTURE,
        name: name.into(),
    })?;
    start.fill(seed, name, values);
    Ok(())
}

/// Initial distribution of a parameter; `None` for an unknown name.
pub(crate) fn start_of(config: &UnetConfig, name: &str) -> Option<Start> {
    let (module_name, kind) = name.rsplit_once('.')?;
    let modules = config.modules();
    let (_, module) = modules.iter().find(|(name, _)| name == module_name)?;
    let is_weight = match kind {
        "weight" => true,
        "bias" => false,
        _ => return None,
    };
    let as_nnunet = config.activation == Activation::LeakyRelu;
    let convolution = |fan_in: usize| match (as_nnunet, is_weight) {
        (true, true) => Start::Normal((2.0 / (1.0 + SLOPE * SLOPE) / fan_in as f64).sqrt()),
        (true, false) => Start::Constant(0.0),
        (false, _) => Start::Uniform((fan_in as f64).powf(-0.5)),
    };
    match *module {
        Module::Conv { bias: false, .. } if !is_weight => None,
        Module::Conv { inputs, kernel, .. } => Some(convolution(inputs * kernel * kernel)),
        // PyTorch's fan in uses the second dimension of a weight, even where that is the outputs.
        Module::Transposed { outputs, .. } => Some(convolution(outputs * 2 * 2)),
        Module::LastNormOfBlock { .. } if as_nnunet => Some(Start::Constant(0.0)),
        Module::Norm { .. } | Module::LastNormOfBlock { .. } => {
            Some(Start::Constant(if is_weight { 1.0 } else { 0.0 }))
        }
    }
}
