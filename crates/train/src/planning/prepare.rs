//! From a config to all that a run needs before it is planned: the samples, and the task that will see them.

use std::path::PathBuf;
use std::sync::Arc;

use holdall_data::samples::Samples;
use holdall_data::source::BadRow;
use holdall_device::cuda::cards::Card;
use holdall_plan::Plan;

use crate::config::{RunConfig, Subset};
use crate::error::TrainError;
use crate::planning::plan_race::Choosing;
use crate::planning::setup::Setup;
use crate::planning::site::Site;
use crate::tasks;

/// A run before its plan.
pub struct Prepared {
    /// What is computed, from which weights, within what.
    pub setup: Setup,
    /// What is trained on.
    pub train: Arc<Samples>,
    /// What is held out.
    pub validation: Option<Arc<Samples>>,
    /// Where the samples are listed.
    pub csv: PathBuf,
    /// Rows of it that are no samples.
    pub bad_rows: Vec<BadRow>,
    /// What was found and decided, for the log.
    pub notes: Vec<String>,
}

impl Prepared {
    /// Reads the data and opens the model.
    pub fn new<'a>(config: &RunConfig, site: impl Into<Site<'a>>) -> Result<Prepared, TrainError> {
        tasks::prepare(config, site.into())
    }

    /// The samples that a name in `eval_on` means.
    pub fn samples(&self, subset: Subset) -> Option<&Arc<Samples>> {
        match subset {
            Subset::Train => Some(&self.train),
            Subset::Validation => self.validation.as_ref(),
        }
    }

    /// All that there are, with their names.
    pub fn subsets(&self) -> impl Iterator<Item = (Subset, &Arc<Samples>)> {
        let all = [Subset::Train, Subset::Validation].into_iter();
        all.filter_map(|subset| Some((subset, self.samples(subset)?)))
    }

    /// A batch that the data cannot fill is said.
    pub(crate) fn note_on_effective_batch(&mut self, effective_batch: usize) {
        let samples = self.train.len();
        if effective_batch > samples {
            self.notes.push(format!(
                "Effective batch {effective_batch} is larger than the {samples} pictures: every step sees all of them, \
                 and room for the rest\nhint: --effective-batch {samples} gives the same gradients in less"
            ));
        }
    }

    /// Plans for a card that is not there: nothing is read beyond what [`Prepared::new`] has read.
    pub fn plan_for_card(&mut self, card: &'static Card) -> Result<Plan, TrainError> {
        let effective_batch = self.setup.request.samples_per_step()?;
        self.note_on_effective_batch(effective_batch);
        self.setup.plan(Site::Card(card), 0, Choosing::Predicted)
    }
}
