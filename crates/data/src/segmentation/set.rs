//! Opens a segmentation set from a config: the pairs, the split, the coding of masks, and a survey of the pictures' headers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use serde::{Deserialize, Serialize};

use super::coding::{Asked, MaskCoding, decide};
use super::field_of_view;
use super::histogram::Histogram;
use super::table::{self, PairGroups};
use crate::config::{Augment, DataConfig, Validation};
use crate::decode::{self, Limits, Native, PixelDepth, Scratch};
use crate::error::DataError;
use crate::samples::{Companions, Samples, SamplesBuilder, held_out, held_out_groups};
use crate::table::nnunet;
use crate::table::pair_layout::{self, Layout, Subfolders};
use crate::table::{PairFiles, are_shards, stem};
use crate::words::{counted, percent};

#[derive(Debug, Serialize, Deserialize)]
pub struct SegmentationSet {
    /// Training samples.
    pub train: Samples,
    /// Validation samples.
    pub validation: Option<Samples>,
    /// The set's own test split, unless it serves as validation.
    pub test: Option<Samples>,
    /// Pictures of splits whose masks are not published.
    pub unlabelled: Option<Samples>,
    /// Classes by mask value.
    pub coding: MaskCoding,
    /// Size and pixel format of the pictures.
    pub survey: Survey,
    /// Folder or CSV of the set.
    pub place: PathBuf,
    /// Folder or CSV of the validation set, where it has its own.
    pub validation_place: Option<PathBuf>,
    pub group_leaks: GroupLeaks,
    /// Message where a column is named like a split column and its values are not understood.
    pub split_not_understood: Option<String>,
    /// Files found instead of masks, in words, where the set has images only.
    pub withheld: Option<String>,
    /// Findings and decisions, for the log.
    pub notes: Vec<String>,
}

/// Images of a table whose group, such as a patient, is on an earlier side of the split too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLeaks {
    /// Group column; empty where the table has none.
    pub column: String,
    /// Paths as the table has them.
    pub images: Vec<String>,
}

/// Size and pixel format of a set's pictures, from their headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Channels of a sample, all files together: 3 per file if any picture is coloured, else 1.
    pub channels: usize,
    /// 16 bits if any picture has them.
    pub depth: PixelDepth,
    pub width: u32,
    pub height: u32,
    /// Whether all pictures have this size.
    pub is_uniform: bool,
}

/// Masks that are read to find the coding.
const NUM_PROBED: usize = 6;

impl SegmentationSet {
    /// Opens the set that the config names. The seed decides which samples are held out.
    pub fn open(config: &DataConfig, seed: u64) -> Result<SegmentationSet, DataError> {
        config.validate()?;
        if config.augment != Augment::default() {
            return Err(DataError::Setting {
                key: "augment",
                expected: "nothing: pictures with masks have `pair_augment`",
                found: "changes to it".to_owned(),
                hint: "`data: {pair_augment: {flip: true, rotation: 15, brightness: 0.1}}`",
            });
        }
        let Some(root) = &config.train else {
            return Err(DataError::Setting {
                key: "train",
                expected: "a folder of images and masks, or a CSV",
                found: "nothing".to_owned(),
                hint: "`data: {train: FIVES}`, or `holdall train FIVES`",
            });
        };
        let Found {
            layout,
            place,
            asked,
            groups,
            split_not_understood,
        } = Found::of(config, root)?;
        let Layout {
            root: start,
            train: pairs,
            validation: own_validation,
            test: own_test,
            unlabelled,
            withheld,
            mut notes,
        } = layout;
        let marked = [&own_validation, &own_test].into_iter().flatten();
        let num_pairs = pairs.len() + marked.map(Vec::len).sum::<usize>();
        notes.insert(
            0,
            format!(
                "Data: {} in {}",
                counted(num_pairs, "pair"),
                place.display()
            ),
        );
        let drawn_share = config.validation.drawn_share(own_validation.is_some());
        let (train, validation, test) = split(
            config,
            seed,
            pairs,
            own_validation,
            own_test,
            groups.as_ref(),
            &mut notes,
        )?;
        if let Some(test) = test.as_ref().filter(|test| !test.is_empty()) {
            notes.push(format!(
                "Test: {}; only `holdall eval RUN --part test` reads them",
                counted(test.len(), "pair")
            ));
        }
        let mut group_leaks = GroupLeaks::default();
        if let Some(groups) = &groups {
            let held: &[PairFiles] = match &validation {
                Held::Own(pairs) => pairs,
                Held::Other(_) => &[],
            };
            let test = test.as_deref().unwrap_or_default();
            let (images, num_groups) = groups.leaks(&[&train, held, test]);
            notes.extend(note_on_groups(groups, num_groups, drawn_share));
            group_leaks.column.clone_from(&groups.column);
            group_leaks.images = images;
        }
        let samples = |pairs: &[PairFiles]| samples_of(&start, pairs);
        let train = samples(&train);
        let mut validation_place = None;
        let validation = match validation {
            Held::Own(pairs) => Some(samples(&pairs)).filter(|samples| !samples.is_empty()),
            Held::Other(path) => {
                let config = DataConfig {
                    validation: Validation::UNSPLIT,
                    ..config.clone()
                };
                let other = Found::of(&config, &path)?;
                let mut pairs = other.layout.train;
                if pairs.is_empty() {
                    pairs = other
                        .layout
                        .test
                        .or(other.layout.validation)
                        .unwrap_or_default();
                }
                notes.push(format!(
                    "Validation: {} in {}",
                    counted(pairs.len(), "pair"),
                    path.display()
                ));
                let samples = samples_of(&other.layout.root, &pairs);
                validation_place = Some(path);
                Some(samples)
            }
        };
        let test = test.map(|pairs| samples(&pairs));
        let unlabelled = Some(samples(&unlabelled)).filter(|samples| !samples.is_empty());
        let lists: Vec<&Samples> = [Some(&train), validation.as_ref(), test.as_ref()]
            .into_iter()
            .flatten()
            .collect();
        let coding = probe_masks(&asked, &place, &train)?;
        let survey = survey(&lists)?;
        notes.push(coding.describe());
        notes.push(survey.describe());
        notes.extend(field_of_view::note(&train, &survey, &coding));
        Ok(SegmentationSet {
            train,
            validation,
            test,
            unlabelled,
            coding,
            survey,
            place,
            validation_place,
            group_leaks,
            split_not_understood,
            withheld,
            notes,
        })
    }

    /// Refuses a set whose masks are not published: nothing can be learnt or scored from it.
    pub fn check_has_masks(&self) -> Result<(), DataError> {
        let Some(found) = &self.withheld else {
            return Ok(());
        };
        Err(DataError::invalid(
            self.place.display(),
            "masks of its images",
            found,
            format_args!(
                "`holdall predict RUN {}` needs none; `image_subdir` and `label_subdir` under `data:` name folders of masks",
                self.place.display()
            ),
        ))
    }
}

/// Pairs found, and the config's settings for their masks.
struct Found {
    layout: Layout,
    place: PathBuf,
    asked: Asked,
    /// Groups of a table's rows.
    groups: Option<PairGroups>,
    split_not_understood: Option<String>,
}

impl Found {
    fn of(config: &DataConfig, root: &Path) -> Result<Found, DataError> {
        let mut asked = Asked {
            classes: config.classes.clone(),
            colours: config.colours.list(),
            binarize: config.binarize,
            ignore: config.ignore,
        };
        let is_json = root.extension().is_some_and(|end| end == "json");
        let root = match (is_json, root.parent()) {
            (true, Some(folder)) => folder,
            _ => root,
        };
        if root.is_file() || (are_shards(root) && !pair_layout::is_layout(root)?) {
            let (layout, groups, split_not_understood) = table::read(config, root)?;
            return Ok(Found {
                layout,
                place: root.to_owned(),
                asked,
                groups,
                split_not_understood,
            });
        }
        let column = match &config.validation {
            Validation::Column { column, .. } => Some(column.as_str()),
            validation => validation.group(),
        };
        if let Some(column) = column {
            return Err(DataError::Setting {
                key: "validation",
                expected: "a share, a folder or `test`",
                found: format!("a column, `{column}`"),
                hint: "only a CSV has columns; `validation: 10%` holds a tenth out",
            });
        }
        if !root.exists() {
            return Err(DataError::NoFile {
                path: root.to_owned(),
            });
        }
        let layout = pair_layout::find(root, Subfolders::of(config))?;
        let place = layout.root.clone();
        if nnunet::is_layout(&place) && asked.classes.is_empty() && asked.colours.is_empty() {
            let description = nnunet::describe(&place)?;
            asked.classes = description.classes;
            asked.ignore = asked.ignore.or(description.ignore);
        }
        Ok(Found {
            layout,
            place,
            asked,
            groups: None,
            split_not_understood: None,
        })
    }
}

/// Validation side of the split.
enum Held {
    Own(Vec<PairFiles>),
    /// Another folder or CSV.
    Other(PathBuf),
}

type Pairs = Vec<PairFiles>;

/// Splits the pairs into training, validation and test.
fn split(
    config: &DataConfig,
    seed: u64,
    mut pairs: Pairs,
    own_validation: Option<Pairs>,
    own_test: Option<Pairs>,
    groups: Option<&PairGroups>,
    notes: &mut Vec<String>,
) -> Result<(Pairs, Held, Option<Pairs>), DataError> {
    let mut say = |pairs: &Pairs, what: &str| {
        notes.push(format!(
            "Validation: {} ({what})",
            counted(pairs.len(), "pair")
        ));
    };
    match &config.validation {
        Validation::None => Ok((pairs, Held::Own(Vec::new()), own_test)),
        Validation::Unsplit { .. } => {
            let marked = [own_validation, own_test].into_iter().flatten();
            pairs.extend(marked.flatten());
            Ok((pairs, Held::Own(Vec::new()), None))
        }
        // The name of a split, where no file of this name exists.
        Validation::File { path, .. } if !path.exists() && !are_shards(path) => {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().to_lowercase());
            match (name.as_deref(), own_validation, own_test) {
                (Some("test" | "testing"), _, Some(test)) => {
                    say(&test, "the set's own test split");
                    Ok((pairs, Held::Own(test), None))
                }
                (Some("val" | "valid" | "validation"), Some(validation), test) => {
                    say(&validation, "the set's own validation split");
                    Ok((pairs, Held::Own(validation), test))
                }
                _ => Err(DataError::NoFile { path: path.clone() }),
            }
        }
        Validation::File { path, .. } => Ok((pairs, Held::Other(path.clone()), own_test)),
        validation => {
            let is_share = matches!(validation, Validation::Share { .. });
            match own_validation {
                Some(marked) if !is_share => {
                    say(&marked, "the set's own validation split");
                    return Ok((pairs, Held::Own(marked), own_test));
                }
                // A share is taken of all pairs outside the test split.
                Some(marked) => pairs.extend(marked),
                None => {}
            }
            let share = validation
                .drawn_share(false)
                .unwrap_or(Validation::DEFAULT_SHARE);
            let conditions = conditions(&pairs);
            let groups = groups.filter(|groups| groups.is_asked);
            let marks = match groups {
                Some(groups) => held_out_groups(&conditions, &groups.of(&pairs), share, seed),
                None => held_out(&conditions, share, seed),
            };
            let (held, kept): (Vec<_>, Vec<_>) = pairs
                .into_iter()
                .zip(marks)
                .partition(|(_, is_held)| *is_held);
            let files =
                |list: Vec<(PairFiles, bool)>| list.into_iter().map(|(pair, _)| pair).collect();
            let (held, kept): (Pairs, Pairs) = (files(held), files(kept));
            let grouped = match groups {
                Some(groups) => format!(", grouped by `{}`,", groups.column),
                None => String::new(),
            };
            say(
                &held,
                &format!("{}{grouped} by seed {seed}", percent(share)),
            );
            if held.is_empty() {
                notes.push(format!(
                    "Careful: nothing is held out: {} of {} is less than one; `--set data.validation=30%` holds out more",
                    percent(share),
                    counted(kept.len(), "pair")
                ));
            }
            Ok((kept, Held::Own(held), own_test))
        }
    }
}

/// Warning about groups whose pairs are on more than one side.
fn note_on_groups(groups: &PairGroups, both: usize, drawn_share: Option<f64>) -> Option<String> {
    let column = &groups.column;
    (both > 0).then(|| {
        let careful = format!(
            "Careful: {} of `{column}` on both sides of the split",
            counted(both, "group")
        );
        match drawn_share.filter(|_| !groups.is_asked) {
            Some(share) => format!(
                "{careful}; `--set 'data.validation={{share: {}, group: {column}}}'` keeps each on one",
                percent(share)
            ),
            None => careful,
        }
    })
}

/// Strata for the split of FIVES, whose file names end with the condition of the eye (`12_A.png`: A, D, G or N); other sets have none.
fn conditions(pairs: &[PairFiles]) -> Vec<i32> {
    let condition = |pair: &PairFiles| {
        let name = pair.image.rsplit('/').next().unwrap_or_default();
        let (number, letter) = stem(name).rsplit_once('_')?;
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let at = "ADGN".find(letter).filter(|_| letter.len() == 1);
        at.filter(|_| is_number).map(|at| at as i32)
    };
    let found: Option<Vec<i32>> = pairs.iter().map(condition).collect();
    found.unwrap_or_else(|| vec![-1; pairs.len()])
}

fn samples_of(root: &Path, pairs: &[PairFiles]) -> Samples {
    let mut builder = SamplesBuilder::new(root.to_owned());
    for (at, pair) in pairs.iter().enumerate() {
        let companions = Companions {
            mask: pair.mask.as_deref(),
            field_of_view: pair.field_of_view.as_deref(),
            further_images: &pair.further_images,
        };
        let row = if pair.line > 0 {
            pair.line
        } else {
            at as u32 + 1
        };
        builder.push_with(&pair.image, &companions, row);
    }
    builder.finish(Vec::new())
}

/// Reads some masks, spread over the list, and decides how their values code classes.
fn probe_masks(asked: &Asked, place: &Path, samples: &Samples) -> Result<MaskCoding, DataError> {
    let mut histogram = Histogram::default();
    let mut scratch = Scratch::default();
    let mut pixels = Vec::new();
    let stride = samples.len().div_ceil(NUM_PROBED).max(1);
    let mut num_probed = 0;
    let mut first_error = None;
    let read_as = if asked.colours.is_empty() {
        decode::ReadAs::Mask
    } else {
        decode::ReadAs::ColourMask
    };
    for sample in (0..samples.len()).step_by(stride) {
        let Some(path) = samples.mask_path(sample) else {
            continue;
        };
        // The loader reports a mask that cannot be read.
        match decode::read_native(&path, read_as, &mut scratch, &mut pixels) {
            Ok(native) => {
                histogram.add(&pixels, native);
                num_probed += 1;
            }
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    match (num_probed, first_error) {
        (0, Some(error)) => Err(error),
        _ => decide(asked, place, &histogram, num_probed),
    }
}

/// Distinct heights and widths of all pictures whose headers can be read.
pub fn picture_sizes(samples: &Samples) -> Vec<[usize; 2]> {
    let size = |sample: usize| {
        let cost = decode::native_cost(&samples.image_path(sample), Limits::default());
        let native = cost.ok()?.native;
        (native.width > 0).then_some([native.height as usize, native.width as usize])
    };
    let sizes: BTreeSet<[usize; 2]> = (0..samples.len())
        .into_par_iter()
        .filter_map(size)
        .collect();
    sizes.into_iter().collect()
}

fn survey(lists: &[&Samples]) -> Result<Survey, DataError> {
    let headers = lists.iter().flat_map(|samples| {
        let samples: &Samples = samples;
        (0..samples.len()).map(move |sample| (samples, sample))
    });
    let headers: Vec<(&Samples, usize)> = headers.collect();
    let found: Vec<Option<(Native, usize)>> = headers
        .par_iter()
        .map(|(samples, sample)| {
            let cost = decode::native_cost(&samples.image_path(*sample), Limits::default());
            let native = cost.ok()?.native;
            let num_files = 1 + samples.further_image_paths(*sample).count();
            (native.width > 0).then_some((native, num_files))
        })
        .collect();
    let mut survey: Option<Survey> = None;
    let mut num_files = 1;
    for (native, files) in found.into_iter().flatten() {
        num_files = files;
        let known = survey.get_or_insert(Survey {
            channels: 1,
            depth: PixelDepth::Eight,
            width: native.width,
            height: native.height,
            is_uniform: true,
        });
        known.is_uniform &= (native.width, native.height) == (known.width, known.height);
        known.width = known.width.max(native.width);
        known.height = known.height.max(native.height);
        known.channels = known.channels.max(native.channels);
        known.depth = known.depth.max(native.depth);
    }
    match survey {
        Some(survey) => Ok(Survey {
            channels: survey.channels * num_files,
            ..survey
        }),
        None => {
            // No header can be read: report the first error.
            let Some((samples, sample)) = headers.first() else {
                return Err(DataError::invalid(
                    "data",
                    "pairs",
                    "none",
                    "name a set that has some",
                ));
            };
            let path = samples.image_path(*sample);
            let mut pixels = Vec::new();
            decode::read_native(
                &path,
                decode::ReadAs::Picture,
                &mut Scratch::default(),
                &mut pixels,
            )?;
            Err(DataError::broken_picture(&path, "no size"))
        }
    }
}

impl Survey {
    /// Summary for the log.
    pub fn describe(&self) -> String {
        let up_to = if self.is_uniform { "" } else { "up to " };
        let bits = 8 * self.depth.bytes();
        let channels = counted(self.channels, "channel");
        format!(
            "Pictures: {up_to}{} x {} pixels, {channels} of {bits} bits",
            self.width, self.height
        )
    }
}

#[cfg(test)]
mod tests;
