//! Averages of the weights, which are evaluated and exported in their place.
//!
//! Weights and averages are swapped, bit for bit, around an evaluation or an export, so that the code for both needs no
//! special case. Checkpoints are written between swaps, with the weights that training continues from.

use holdall_device::{Device, DeviceError};
use holdall_files::RunningChecksum;
use holdall_plan::Stage;

use super::{LoadedInputs, Step, on_its_threads, place};
use crate::engine::optimizer::{Averaging, StatePart};
use crate::engine::task::FillWeights;
use crate::engine::update_graph::averages;
use crate::error::TrainError;

impl Step {
    /// Weights to evaluate and export.
    pub fn averaging(&self) -> Averaging {
        self.config.optimizer.averaging
    }

    /// Whether averages are in the place of the weights now.
    pub fn is_averaged(&self) -> bool {
        self.is_averaged
    }

    /// Swaps weights and averages.
    pub fn exchange_averages(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.run_beside(device, averages::EXCHANGE)?;
        self.is_averaged = !self.is_averaged;
        // Copies in the compute format are refreshed from the values in the place of the weights.
        if !self.plan.program(Stage::Refresh).instructions.is_empty() {
            let (machine, plan) = (&mut self.machine, &self.plan);
            machine.run(device, plan, Stage::Refresh.id(), 0, 0);
        }
        self.machine.wait()
    }

    /// Sets the averages over steps to the current weights.
    pub fn restart_averages(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.run_beside(device, averages::RESTART)
    }

    /// Sets the averages to `(1 - share) start + share weight`: `start` fills a parameter with its starting weights. Returns
    /// the checksum of the starting weights.
    pub fn interpolate(
        &mut self,
        device: &Device,
        mut start: FillWeights<'_>,
    ) -> Result<String, TrainError> {
        let mut checksum = RunningChecksum::default();
        for parameter in self.plan.graph.parameters() {
            if !parameter.trainable {
                continue;
            }
            let average = StatePart::Average.endpoint(&parameter.name);
            let place = place(&self.plan, &average);
            self.machine.write(&place, |values| {
                start(&parameter.name, values)?;
                add_to(&mut checksum, values);
                Ok::<(), TrainError>(())
            })?;
        }
        self.run_beside(device, averages::INTERPOLATE)?;
        Ok(checksum.value().to_string())
    }

    /// Checksum of the trainable weights, comparable with that of [`Step::interpolate`].
    pub fn checksum_of_weights(&self) -> Result<String, DeviceError> {
        let mut checksum = RunningChecksum::default();
        let trainable = self.parameters().iter().filter(|one| one.trainable);
        for parameter in trainable {
            add_to(&mut checksum, &self.weight(parameter)?);
        }
        Ok(checksum.value().to_string())
    }

    /// Runs a program outside of the step's passes, and waits for it.
    fn run_beside(&mut self, device: &Device, program: &str) -> Result<(), DeviceError> {
        self.loaded = LoadedInputs::default();
        let id = self.plan.forward_program(program);
        let id = id.unwrap_or_else(|| panic!("the graph has no program `{program}`"));
        on_its_threads(device, || self.machine.run(device, &self.plan, id, 0, 0));
        self.machine.wait()
    }
}

pub(super) fn add_to(checksum: &mut RunningChecksum, values: &[f32]) {
    const AT_ONCE: usize = 1 << 12;
    let mut bytes = [0; AT_ONCE * size_of::<f32>()];
    for piece in values.chunks(AT_ONCE) {
        for (to, value) in bytes.chunks_mut(size_of::<f32>()).zip(piece) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        checksum.add(&bytes[..size_of_val(piece)]);
    }
}
