//! Whether the pictures are still those that the run began with: another picture under the same name gives other losses, and
//! nobody would know why. `pictures.bin` in the run's folder has their sizes and times, or hashes.

use std::path::Path;

use holdall_data::config::{DataConfig, ReplacedPictures};
use holdall_data::picture_record::{Compared, compare, record};
use holdall_data::samples::Samples;
use holdall_data::words::thousands;

use crate::config::Split;
use crate::error::TrainError;
use crate::prepare::Prepared;
use crate::run_folder::failed;
use crate::skipped::SkippedFile;

/// Records the pictures of a new run in `file`; compares those of a run that goes on, but for those that it leaves out.
/// `tell` hears what is worth knowing.
pub(crate) fn check_pictures(
    file: &Path,
    prepared: &Prepared,
    config: &DataConfig,
    left_out: Option<&SkippedFile>,
    tell: &mut dyn FnMut(&str),
) -> Result<(), TrainError> {
    if config.replaced_pictures == ReplacedPictures::Ignore {
        return Ok(());
    }
    let parts = [Some(&prepared.train), prepared.validation.as_ref()];
    let parts: Vec<&Samples> = parts
        .into_iter()
        .flatten()
        .map(|part| &*part.samples)
        .collect();
    let check = config.picture_check;
    let is_up_to_date = match left_out {
        None => false,
        Some(left_out) => {
            let is_left_out = |part: usize, sample: u32| {
                let split = [Split::Train, Split::Validation][part];
                left_out.is_known(split, parts[part].row(sample as usize))
            };
            match compare(file, &parts, check, is_left_out).map_err(failed(file, "read"))? {
                Compared::NoRecord => {
                    tell(
                        "Pictures: not recorded when the run began, so replaced ones cannot be told",
                    );
                    false
                }
                Compared::Damaged => {
                    tell(&format!(
                        "Careful: {} is damaged: pictures that were replaced since the run began cannot be told",
                        file.display()
                    ));
                    false
                }
                Compared::With {
                    recorded,
                    replaced,
                    touched,
                } => {
                    let all: usize = parts.iter().map(|samples| samples.len()).sum();
                    if replaced.count > 0 {
                        let changed = format!(
                            "{} of {} pictures are not those that the run began with: {}",
                            thousands(replaced.count),
                            thousands(all),
                            replaced.named()
                        );
                        if config.replaced_pictures == ReplacedPictures::Fail {
                            return Err(TrainError::Config(format!(
                                "{}: {changed}\n\
                             hint: restore them, or begin a new run; `--set data.replaced_pictures=warn` goes on with \
                             the new ones, and with other losses than the run would have had",
                                prepared.csv.display()
                            )));
                        }
                        tell(&format!(
                            "Careful: {changed}; going on, as `replaced_pictures: warn` says"
                        ));
                    }
                    if touched.count > 0 {
                        tell(&format!(
                            "Careful: {} of {} pictures have the size that they had and another time of change: {}; taken \
                         for the same. `data: {{picture_check: hash}}` records contents",
                            thousands(touched.count),
                            thousands(all),
                            touched.named()
                        ));
                    }
                    recorded == check && replaced.count + touched.count == 0
                }
            }
        }
    };
    match is_up_to_date {
        true => Ok(()),
        false => record(file, &parts, check).map_err(failed(file, "written")),
    }
}
