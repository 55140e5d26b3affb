//! From a config to everything that planning needs: the samples, and the task.

use std::path::PathBuf;
use std::sync::Arc;

use holdall_data::samples::{BadRow, Samples};
use holdall_device::cuda::cards::Card;
use holdall_plan::Plan;

use crate::config::{RunConfig, Subset};
use crate::error::TrainError;
use crate::planning::plan_race::Choosing;
use crate::planning::setup::Setup;
use crate::planning::site::Site;
use crate::tasks;

/// A run before planning.
pub struct Prepared {
    pub setup: Setup,
    /// Training samples.
    pub train: Arc<Samples>,
    /// Validation samples.
    pub validation: Option<Arc<Samples>>,
    /// File or folder that lists the samples.
    pub csv: PathBuf,
    /// Rows of the file that are not valid samples.
    pub bad_rows: Vec<BadRow>,
    /// Messages for the log.
    pub notes: Vec<String>,
}

impl Prepared {
    /// Reads the data and opens the model.
    pub fn new<'a>(config: &RunConfig, site: impl Into<Site<'a>>) -> Result<Prepared, TrainError> {
        tasks::prepare(config, site.into())
    }

    /// The samples of a subset.
    pub fn samples(&self, subset: Subset) -> Option<&Arc<Samples>> {
        match subset {
            Subset::Train => Some(&self.train),
            Subset::Validation => self.validation.as_ref(),
        }
    }

    /// All subsets with their samples.
    pub fn subsets(&self) -> impl Iterator<Item = (Subset, &Arc<Samples>)> {
        let all = [Subset::Train, Subset::Validation].into_iter();
        all.filter_map(|subset| Some((subset, self.samples(subset)?)))
    }

    /// Adds a note if the effective batch is larger than the data.
    pub(crate) fn note_on_effective_batch(&mut self, effective_batch: usize) {
        let samples = self.train.len();
        if effective_batch > samples {
            self.notes.push(format!(
                "Effective batch {effective_batch} is larger than the {samples} pictures: every step sees all of them, \
                 and room for the rest\nhint: --effective-batch {samples} gives the same gradients in less"
            ));
        }
    }

    /// Plans for a card that is not in this machine; no more data is read.
    pub fn plan_for_card(&mut self, card: &'static Card) -> Result<Plan, TrainError> {
        let effective_batch = self.setup.request.samples_per_step()?;
        self.note_on_effective_batch(effective_batch);
        self.setup.plan(Site::Card(card), 0, Choosing::Predicted)
    }
}
