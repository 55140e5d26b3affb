//! Which samples a step sees, and how they come into its batch: a slice of the epoch's order.

use holdall_data::order::Order;
use holdall_device::cpu::Cpu;

use crate::batch::Batch;
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::pictures::{Pictures, View};
use crate::prepare::Prepared;
use crate::ready::fill;

/// Reads batches, wherever they go.
pub(crate) struct Reader<'a> {
    pub config: &'a RunConfig,
    pub prepared: &'a Prepared,
    pub cpu: &'a Cpu,
    pub pictures: &'a Pictures,
    /// Of the epoch that it was made for.
    pub order: &'a mut Option<(u64, Order)>,
    pub effective_batch: usize,
    pub steps_per_epoch: u64,
}

impl Reader<'_> {
    /// The batch of a step, counted from 1.
    pub fn read(&mut self, number: u64, batch: &mut Batch) -> Result<(), TrainError> {
        let (config, samples) = (self.config, &self.prepared.train.samples);
        let (epoch, within) = (
            (number - 1) / self.steps_per_epoch,
            (number - 1) % self.steps_per_epoch,
        );
        if self.order.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let order = Order::new(config.seed, epoch, samples, config.train.sampling);
            *self.order = Some((epoch, order));
        }
        let (_, order) = self.order.as_ref().expect("made above");
        let start = within as usize * self.effective_batch;
        let end = (start + self.effective_batch).min(samples.len());
        let view = View::Training {
            augment: config.data.augment,
            seed: config.seed,
            epoch,
        };
        fill(
            batch,
            self.prepared,
            self.pictures,
            self.cpu,
            &order.as_slice()[start..end],
            view,
        )
    }
}
