//! The contrastive loss of an evaluation, over blocks of a training step's size: what the training loss can be compared with.

use holdall_metrics::contrastive::{self, PairedFeatures, Positives, contrastive_loss};

use crate::engine::forward::Forward;
use crate::engine::scores::EvaluatedLoss;
use crate::engine::task::Unfinished;

/// Bytes that it holds on the host beside the features.
pub(super) fn host_bytes(num_queries: usize) -> u64 {
    contrastive::held_bytes(num_queries)
}

/// How scores become a loss.
#[derive(Clone, Copy)]
pub(super) struct BlockLoss {
    /// What similarities are multiplied by.
    scale: f64,
    /// Samples of a training step.
    effective_batch: usize,
}

impl BlockLoss {
    /// With the temperature that the model has now; `None` where no losses are wanted.
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

    /// Computes the loss, and what guessing gives in blocks of that size.
    pub(super) fn set(
        &self,
        loss: &mut EvaluatedLoss,
        features: PairedFeatures<'_>,
        positives: Positives,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Unfinished> {
        let found = contrastive_loss(
            features,
            positives,
            self.scale,
            self.effective_batch,
            &|| is_wanted(),
        );
        let found = found.ok_or(Unfinished::Stopped)?;
        loss.mean = Some(found.mean);
        loss.chance = Some((found.candidates as f64).ln());
        Ok(())
    }
}
