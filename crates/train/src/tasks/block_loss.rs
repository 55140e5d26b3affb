//! Contrastive loss of an evaluation over blocks of the training batch size, so that it compares with the training loss.

use holdall_device::cpu::Cpu;
use holdall_metrics::contrastive::{self, PairedFeatures, Positives, contrastive_loss};

use crate::engine::forward::Forward;
use crate::engine::scores::EvaluatedLoss;
use crate::engine::task::Unfinished;

/// Host memory of the loss beside the features, in bytes.
pub(super) fn host_bytes(num_queries: usize) -> u64 {
    contrastive::held_bytes(num_queries)
}

/// Settings of the blockwise contrastive loss.
#[derive(Clone, Copy)]
pub(super) struct BlockLoss {
    /// Factor of the similarities: `exp(logit_scale)`.
    scale: f64,
    /// Block size: samples of a training step.
    effective_batch: usize,
}

impl BlockLoss {
    /// Reads the model's current temperature. `None` if no losses are asked for.
    pub(super) fn new(
        forward: &Forward<'_>,
        effective_batch: Option<usize>,
    ) -> Result<Option<BlockLoss>, Unfinished> {
        let Some(effective_batch) = effective_batch else {
            return Ok(None);
        };
        let logit_scale = forward.parameter("logit_scale")?;
        Ok(logit_scale.map(|logit_scale| BlockLoss {
            scale: f64::from(logit_scale[0]).exp(),
            effective_batch,
        }))
    }

    /// Sets the loss, and the loss of random guessing at that block size.
    pub(super) fn set(
        &self,
        cpu: &Cpu,
        loss: &mut EvaluatedLoss,
        features: PairedFeatures<'_>,
        positives: Positives,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Unfinished> {
        let found = cpu.scope(|| {
            contrastive_loss(
                features,
                positives,
                self.scale,
                self.effective_batch,
                &|| is_wanted(),
            )
        });
        let found = found.ok_or(Unfinished::Stopped)?;
        loss.mean = Some(found.mean);
        loss.chance = Some((found.candidates as f64).ln());
        Ok(())
    }
}
