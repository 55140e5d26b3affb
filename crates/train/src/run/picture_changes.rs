//! Detects pictures that were replaced since the run began: they would change the losses without a visible cause.
//! `pictures.bin` in the run folder has the sizes and times, or the hashes, of the picture files.

use holdall_data::config::{BadPictures, DataConfig, ReplacedPictures};
use holdall_data::samples::Samples;
use holdall_data::samples::picture_record::{Compared, compare, record};
use holdall_files::thousands;

use crate::config::Subset;
use crate::error::TrainError;
use crate::planning::prepare::Prepared;
use crate::run_folder::folder::{RunFolder, failed};
use crate::run_folder::skipped::SkippedFile;
use holdall_telemetry::run_files::FAILURE_FILE;

/// Records the picture files of a run, unless the config ignores replaced pictures.
pub(crate) fn record_pictures(
    folder: &RunFolder,
    prepared: &Prepared,
    config: &DataConfig,
) -> Result<(), TrainError> {
    if config.replaced_pictures == ReplacedPictures::Ignore {
        return Ok(());
    }
    let file = folder.pictures();
    let recorded = record(&file, &parts(prepared), config.picture_check);
    recorded.map_err(failed(&file, "written"))
}

/// Compares the pictures of a resumed run, except the skipped ones, with the recorded ones. `tell` receives the warnings,
/// each once, because the new files are recorded afterwards.
pub(crate) fn compare_pictures(
    folder: &RunFolder,
    prepared: &Prepared,
    config: &DataConfig,
    left_out: &SkippedFile,
    tell: &mut dyn FnMut(&str),
) -> Result<(), TrainError> {
    if config.replaced_pictures == ReplacedPictures::Ignore {
        return Ok(());
    }
    let (file, parts) = (folder.pictures(), parts(prepared));
    let is_left_out = |part: usize, sample: u32| {
        let split = [Subset::Train, Subset::Validation][part];
        left_out.is_known(split, parts[part].row(sample as usize))
    };
    let compared = compare(&file, &parts, config.picture_check, is_left_out);
    match compared.map_err(failed(&file, "read"))? {
        Compared::NoRecord => {
            tell("Pictures: not recorded when the run began, so replaced ones cannot be told");
        }
        Compared::Damaged => tell(&format!(
            "Careful: {} is damaged: pictures that were replaced since the run began cannot be told",
            file.display()
        )),
        Compared::With {
            recorded,
            replaced,
            touched,
        } => {
            let all: usize = parts.iter().map(|samples| samples.len()).sum();
            if recorded == config.picture_check && replaced.count + touched.count == 0 {
                return Ok(());
            }
            if replaced.count > 0 {
                let changed = format!(
                    "{} of {} pictures are not those that the run began with: {}",
                    thousands(replaced.count),
                    thousands(all),
                    replaced.named()
                );
                // A run that failed at an unreadable picture may be resumed after the picture is repaired.
                let may_be_mended = config.bad_pictures == BadPictures::Fail
                    && folder.path().join(FAILURE_FILE).exists();
                let why = match (config.replaced_pictures, may_be_mended) {
                    (ReplacedPictures::Fail, false) => {
                        return Err(TrainError::Config(format!(
                            "{}: {changed}\n\
                             hint: restore them, or begin a new run; `--set data.replaced_pictures=warn` goes on with \
                             the new ones, and with other losses than the run would have had",
                            prepared.csv.display()
                        )));
                    }
                    (ReplacedPictures::Fail, true) => "the run had failed, and they may be mended",
                    _ => "as `replaced_pictures: warn` says",
                };
                tell(&format!("Careful: {changed}; going on: {why}"));
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
        }
    }
    record_pictures(folder, prepared, config)
}

fn parts(prepared: &Prepared) -> Vec<&Samples> {
    prepared.subsets().map(|(_, samples)| &**samples).collect()
}
