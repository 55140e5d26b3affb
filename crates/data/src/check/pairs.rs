//! Check of a segmentation set: finds unreadable files, masks of another size or with values that are no class, empty masks, and images on
//! two sides of the split. `clean_pairs` writes a CSV without the pairs that cannot be used.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdall_files::Existing;
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use serde::Serialize;

use super::clean::copy_rows;
use super::pair_report::{PairExample, PairFault, PairFinding, PairReport};
use super::{Conflicts, Copies, Duplicates, Outcome, Severity, Watch};
use crate::config::{DataConfig, PairAugment};
use crate::decode::{
    Allowance, Fingerprint, Limits, ReadAs, Scratch, native_cost, near_pairs, read_native,
};
use crate::error::DataError;
use crate::samples::Samples;
use crate::segmentation::{
    Fit, IGNORED, Outline, PairFraming, PairSummary, RowShape, SegmentationSet, are_fields_of_view,
};
use crate::table::{Row, Table, cleaned_names};

/// Settings of a check of pairs.
#[derive(Clone, Debug)]
pub struct PairCheck {
    /// The set, as in training.
    pub data: DataConfig,
    /// Seed of the validation split.
    pub seed: u64,
    /// Smallest accepted side of an image, in pixels.
    pub min_size: u32,
    /// Pairs listed for each finding.
    pub num_examples: usize,
    /// Decoding threads; `None` for one per core.
    pub num_workers: Option<usize>,
    /// Memory budget of decoding, for all threads together.
    pub allowance: Allowance,
}

/// Result of cleaning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CleanPairs {
    /// Folder or table of the set.
    pub place: PathBuf,
    /// Pairs of all splits.
    pub pairs: usize,
    /// The CSV that was written.
    pub csv: PathBuf,
    /// Rows of the CSV that was written.
    pub rows: usize,
    /// Number of removed pairs, by defect.
    pub gone: Vec<(PairFault, usize)>,
    /// Whether rows of a table were copied with all their columns, rather than pairs of folders listed.
    #[serde(skip)]
    pub is_copy: bool,
}

/// Facts about one pair.
struct Look {
    faults: Vec<(PairFault, String)>,
    /// Hash of the image's pixels.
    contents: u128,
    /// Hash of the mask's classes.
    mask: Option<u128>,
    fingerprint: Option<Fingerprint>,
    counts: Vec<u64>,
    /// Whether an earlier pair has the same image.
    is_repeat: bool,
    /// Outline of a mask that may be a field of view.
    outline: Option<Outline>,
}

struct Looked {
    set: SegmentationSet,
    /// Per split, its name and the facts by sample.
    looks: Vec<(&'static str, Vec<Look>)>,
}

/// Decodes every pair and reports the findings.
pub fn check_pairs(config: &PairCheck, watch: Watch<'_>) -> Result<Outcome<PairReport>, DataError> {
    let set = SegmentationSet::open(&config.data, config.seed)?;
    inspect_all(config, set, watch)?.then(|looked| Ok(report(&looked, config.num_examples)))
}

/// Checks every pair, and writes a CSV of the usable pairs: the unchanged rows of a table, or the pairs of folders with a `split` column.
pub fn clean_pairs(
    config: &PairCheck,
    copies: Copies,
    existing: Existing,
    watch: Watch<'_>,
) -> Result<Outcome<CleanPairs>, DataError> {
    let set = SegmentationSet::open(&config.data, config.seed)?;
    existing.check_file(&cleaned_csv(&set.place))?;
    inspect_all(config, set, watch)?.then(|looked| write_clean(&looked, &config.data, copies))
}

fn lists(set: &SegmentationSet) -> impl Iterator<Item = (&'static str, &Samples)> {
    let all = [
        ("train", Some(&set.train)),
        ("validation", set.validation.as_ref()),
        ("test", set.test.as_ref()),
    ];
    all.into_iter()
        .filter_map(|(name, samples)| Some((name, samples?)))
}

fn inspect_all(
    config: &PairCheck,
    set: SegmentationSet,
    watch: Watch<'_>,
) -> Result<Outcome<Looked>, DataError> {
    set.check_has_masks()?;
    set.notes.iter().for_each(|note| (watch.on_note)(note));
    let num_rows = lists(&set).map(|(_, samples)| samples.len()).sum();
    (watch.on_start)(num_rows);
    let threads = ThreadPoolBuilder::new().num_threads(config.num_workers.unwrap_or(0));
    let threads = threads.build().map_err(|cause| DataError::Io {
        path: set.place.clone(),
        action: "start threads for it",
        cause: std::io::Error::other(cause),
    })?;
    let framing = PairFraming {
        shape: RowShape {
            height: 1,
            width: 1,
            channels: set.survey.channels,
            depth: set.survey.depth,
        },
        fit: Fit::Patch { foreground: 0.0 },
        coding: Arc::new(set.coding.clone()),
        augment: PairAugment::NONE,
    };
    let num_done = AtomicUsize::new(0);
    let mut looks = Vec::new();
    for (name, samples) in lists(&set) {
        let look = |scratch: &mut Scratch, sample: usize| {
            if watch.stop.load(Ordering::Relaxed) {
                return None;
            }
            let look = inspect(&framing, samples, sample, config.min_size, scratch);
            scratch.free_if_wanted();
            num_done.fetch_add(1, Ordering::Relaxed);
            (watch.on_progress)(1);
            Some(look)
        };
        let found: Option<Vec<Look>> = threads.install(|| {
            let all = (0..samples.len()).into_par_iter();
            all.map_init(|| Scratch::within(&config.allowance), look)
                .collect()
        });
        let Some(found) = found else {
            return Ok(Outcome::Stopped {
                num_done: num_done.into_inner(),
                num_rows,
                is_kept: false,
            });
        };
        looks.push((name, found));
    }
    add_repeats(&mut looks, &set);
    add_fields_of_view(&mut looks);
    Ok(Outcome::Done(Looked { set, looks }))
}

/// Reads a pair as training does; where that fails, [`kind_of`] tries its files one by one to find the defect.
fn inspect(
    framing: &PairFraming,
    samples: &Samples,
    sample: usize,
    min_size: u32,
    scratch: &mut Scratch,
) -> Look {
    let image = samples.image_path(sample);
    let mut look = Look {
        faults: Vec::new(),
        contents: 0,
        mask: None,
        fingerprint: None,
        counts: vec![0; framing.coding.classes().len()],
        is_repeat: false,
        outline: None,
    };
    match framing.classes_of(samples, sample, scratch) {
        Ok(PairSummary {
            size: (width, height),
            counts,
            pixels,
            mask,
            outline,
            fingerprint,
        }) => {
            look.contents = pixels;
            look.mask = mask;
            look.outline = outline;
            look.fingerprint = fingerprint;
            for (class, count) in look.counts.iter_mut().enumerate() {
                *count = counts[class];
            }
            let counted: u64 = look.counts.iter().sum();
            if width.min(height) < min_size as usize {
                look.faults
                    .push((PairFault::TooSmall, format!("{width} x {height}")));
            }
            if counted == 0 {
                let ignored = counts[usize::from(IGNORED)];
                look.faults.push((
                    PairFault::NothingCounted,
                    format!("{ignored} pixels are ignored"),
                ));
            } else if counted == look.counts[0] {
                look.faults.push((PairFault::EmptyMask, String::new()));
            }
        }
        Err(error) => {
            let kind = kind_of(framing, samples, sample, &image, scratch);
            look.faults.push((kind, first_line(&error)));
        }
    }
    look
}

fn first_line(error: &DataError) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Defect of a pair that cannot be read, found by decoding each of its files.
fn kind_of(
    framing: &PairFraming,
    samples: &Samples,
    sample: usize,
    image: &Path,
    scratch: &mut Scratch,
) -> PairFault {
    let mut pixels = Vec::new();
    let mut size_of = |path: &Path, read_as: ReadAs| {
        // The header alone rejects a file that is too large to decode.
        native_cost(path, Limits::default()).ok()?;
        let native = read_native(path, read_as, scratch, &mut pixels).ok()?;
        Some((native.width, native.height))
    };
    let mut images = vec![size_of(image, ReadAs::Picture)];
    images.extend(
        samples
            .further_image_paths(sample)
            .map(|path| size_of(&path, ReadAs::Picture)),
    );
    if images.iter().any(Option::is_none) {
        return PairFault::ImageUnreadable;
    }
    let masks = [
        samples.mask_path(sample),
        samples.field_of_view_path(sample),
    ];
    let masks = masks.into_iter().flatten();
    let masks: Vec<_> = masks
        .map(|path| size_of(&path, framing.coding.read_as()))
        .collect();
    if masks.iter().any(Option::is_none) {
        return PairFault::MaskUnreadable;
    }
    let mut all = images.iter().chain(&masks);
    if all.all(|size| *size == images[0]) {
        PairFault::UnknownValue
    } else {
        PairFault::SizesDiffer
    }
}

/// Hash of a mask's classes, and its (list, sample).
type MaskOf = (Option<u128>, (usize, usize));

/// Marks repeated images (of the same split or of an earlier one), near copies, and images with two masks.
fn add_repeats(looks: &mut [(&'static str, Vec<Look>)], set: &SegmentationSet) {
    let samples: Vec<&Samples> = lists(set).map(|(_, samples)| samples).collect();
    let all: Vec<(usize, usize)> = (0..looks.len())
        .flat_map(|list| (0..looks[list].1.len()).map(move |sample| (list, sample)))
        .filter(|(list, sample)| {
            let faults = &looks[*list].1[*sample].faults;
            !faults.iter().any(|(kind, _)| kind.is_fatal())
        })
        .collect();
    let mut first_of: HashMap<u128, (usize, usize)> = HashMap::new();
    // By the image's contents: its different masks, each with its first pair.
    let mut masks_of: HashMap<u128, Vec<MaskOf>> = HashMap::new();
    let (mut unique, mut fingerprints) = (Vec::new(), Vec::new());
    for &at in &all {
        let look = &looks[at.0].1[at.1];
        let masks = masks_of.entry(look.contents).or_default();
        if masks.iter().all(|(mask, _)| *mask != look.mask) {
            masks.push((look.mask, at));
        }
        let is_first = *first_of.entry(look.contents).or_insert(at) == at;
        if let (true, Some(fingerprint)) = (is_first, look.fingerprint) {
            unique.push(at);
            fingerprints.push(fingerprint);
        }
    }
    let mut near_of: HashMap<(usize, usize), (usize, usize)> = HashMap::new();
    for (first, later) in near_pairs(&fingerprints) {
        let first = unique[first as usize];
        near_of.entry(unique[later as usize]).or_insert(first);
    }
    let leaking_images: HashSet<&str> = set.group_leaks.images.iter().map(String::as_str).collect();
    let names: Vec<&'static str> = looks.iter().map(|(name, _)| *name).collect();
    for at in all {
        let look = &mut looks[at.0].1[at.1];
        let mut masks = masks_of[&look.contents].iter();
        let other = masks.find(|(mask, _)| *mask != look.mask);
        let first = first_of[&look.contents];
        let of = |at: (usize, usize)| format!("{} of {}", samples[at.0].image(at.1), names[at.0]);
        if first != at && first.0 != at.0 {
            look.faults.push((PairFault::Leak, of(first)));
        }
        look.is_repeat = first != at;
        if let Some((_, other)) = other {
            look.faults.push((PairFault::TwoMasks, of(*other)));
        } else if first != at && first.0 == at.0 {
            look.faults.push((PairFault::Duplicate, of(first)));
        }
        if leaking_images.contains(samples[at.0].image(at.1)) {
            let detail = format!("by `{}`", set.group_leaks.column);
            look.faults.push((PairFault::GroupLeak, detail));
        }
        if let Some(&near) = near_of.get(&at) {
            let kind = if near.0 == at.0 {
                PairFault::NearDuplicate
            } else {
                PairFault::NearLeak
            };
            look.faults.push((kind, of(near)));
        }
    }
}

/// Marks masks that are fields of view, if the masks of the whole set look like fields of view.
fn add_fields_of_view(looks: &mut [(&'static str, Vec<Look>)]) {
    let is_usable = |look: &&Look| !look.faults.iter().any(|(kind, _)| kind.is_fatal());
    let all = looks.iter().flat_map(|(_, looks)| looks);
    let outlines: Vec<_> = all.filter(is_usable).map(|look| look.outline).collect();
    if !are_fields_of_view(&outlines) {
        return;
    }
    let all = looks.iter_mut().flat_map(|(_, looks)| looks);
    for look in all.filter(|look| look.outline.is_some()) {
        let detail = "all but a dark border is marked, as in the others".to_owned();
        look.faults.push((PairFault::FieldOfView, detail));
    }
}

fn report(looked: &Looked, num_examples: usize) -> PairReport {
    let samples: Vec<&Samples> = lists(&looked.set).map(|(_, samples)| samples).collect();
    let pairs: usize = looked.looks.iter().map(|(_, looks)| looks.len()).sum();
    let mut findings = Vec::new();
    for kind in PairFault::ALL {
        let mut examples = Vec::new();
        let mut rows = Vec::new();
        let mut count = 0;
        for ((split, looks), samples) in looked.looks.iter().zip(&samples) {
            for (sample, look) in looks.iter().enumerate() {
                let Some((_, detail)) = look.faults.iter().find(|(found, _)| *found == kind) else {
                    continue;
                };
                count += 1;
                if looked.set.place.is_file() && !is_elsewhere(&looked.set, split) {
                    rows.push(samples.row(sample));
                }
                if examples.len() < num_examples {
                    examples.push(PairExample {
                        split,
                        image: samples.image(sample).to_owned(),
                        detail: detail.clone(),
                    });
                }
            }
        }
        if count > 0 {
            findings.push(PairFinding {
                kind,
                severity: kind.severity(),
                count,
                share: count as f64 / pairs as f64,
                rows,
                examples,
            });
        }
    }
    if let Some(text) = &looked.set.split_not_understood {
        findings.push(PairFinding {
            kind: PairFault::SplitNotUnderstood,
            severity: PairFault::SplitNotUnderstood.severity(),
            count: pairs,
            share: 1.0,
            rows: Vec::new(),
            examples: vec![PairExample {
                split: "train",
                image: String::new(),
                detail: text.clone(),
            }],
        });
    }
    findings.sort_by_key(|finding| finding.severity == Severity::Warning);
    let all = || looked.looks.iter().flat_map(|(_, looks)| looks);
    let is_usable = |look: &&Look| !look.faults.iter().any(|(kind, _)| kind.is_fatal());
    let classes = looked.set.coding.classes().to_vec();
    let counts: Vec<u64> = (0..classes.len())
        .map(|class| all().map(|look| look.counts[class]).sum())
        .collect();
    let counted = counts.iter().sum::<u64>().max(1);
    PairReport {
        place: looked.set.place.clone(),
        splits: looked
            .looks
            .iter()
            .map(|(name, looks)| (*name, looks.len()))
            .collect(),
        pairs,
        usable_pairs: all().filter(is_usable).count(),
        class_shares: counts
            .iter()
            .map(|count| *count as f64 / counted as f64)
            .collect(),
        classes,
        findings,
    }
}

/// Path of the CSV that cleaning writes: in the set's folder, or beside its table.
fn cleaned_csv(place: &Path) -> PathBuf {
    if place.is_dir() {
        return place.join("pairs_cleaned.csv");
    }
    let [cleaned, _] = cleaned_names(place);
    cleaned
}

/// Whether each pair stays, list by list; counts both into `clean`. Pairs of a separate validation file all stay in that file, and their
/// images are removed from this set.
fn staying(looked: &Looked, copies: Copies, clean: &mut CleanPairs) -> Vec<Vec<bool>> {
    let is_elsewhere = |split: &str| is_elsewhere(&looked.set, split);
    let elsewhere = looked.looks.iter().filter(|(split, _)| is_elsewhere(split));
    let held_out: HashSet<u128> = elsewhere
        .flat_map(|(_, looks)| looks.iter().map(|look| look.contents))
        .collect();
    let mut stays_of = |look: &Look| {
        clean.pairs += 1;
        let is_gone = |kind: PairFault| match kind {
            PairFault::Leak | PairFault::Duplicate => copies.duplicates != Duplicates::Keep,
            PairFault::NearLeak | PairFault::NearDuplicate => {
                copies.duplicates == Duplicates::KeepFirstNear
            }
            PairFault::TwoMasks => match copies.conflicts {
                Conflicts::LeaveOut => true,
                Conflicts::KeepFirst => look.is_repeat,
                Conflicts::Keep => false,
            },
            kind => kind.is_fatal(),
        };
        let mut faults = look.faults.iter();
        let fault = faults.find(|(kind, _)| is_gone(*kind));
        let is_leak = copies.duplicates != Duplicates::Keep && held_out.contains(&look.contents);
        let fault = fault.map(|(kind, _)| *kind);
        let Some(kind) = fault.or(is_leak.then_some(PairFault::Leak)) else {
            clean.rows += 1;
            return true;
        };
        match clean.gone.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => clean.gone.push((kind, 1)),
        }
        false
    };
    let lists = looked.looks.iter();
    lists
        .map(|(split, looks)| {
            if is_elsewhere(split) {
                vec![true; looks.len()]
            } else {
                looks.iter().map(&mut stays_of).collect()
            }
        })
        .collect()
}

fn write_clean(
    looked: &Looked,
    config: &DataConfig,
    copies: Copies,
) -> Result<CleanPairs, DataError> {
    let place = &looked.set.place;
    let csv = cleaned_csv(place);
    let mut clean = CleanPairs {
        place: place.clone(),
        pairs: 0,
        csv: csv.clone(),
        rows: 0,
        gone: Vec::new(),
        is_copy: false,
    };
    let stays = staying(looked, copies, &mut clean);
    if clean.rows == 0 {
        return Err(DataError::invalid(
            place.display(),
            "pairs that can be used",
            "none: cleaning would remove every pair",
            "`holdall data check` says what is wrong with each",
        ));
    }
    if place.is_file() {
        let table = Table::open_separated(place, config.separator)?;
        if table.has_lines() {
            let gone = gone_lines(looked, &stays);
            let stays = |_: usize, row: Row<'_>| Some(!gone.contains(&row.line()));
            copy_rows(&table, None, [(&csv, &stays)])?;
            clean.is_copy = true;
            return Ok(clean);
        }
    }
    let text = listed_pairs(looked, &stays, csv.parent().unwrap_or(Path::new("")))?;
    holdall_files::write_whole(&csv, text.as_bytes()).map_err(|cause| DataError::Io {
        path: csv,
        action: "write it",
        cause,
    })?;
    Ok(clean)
}

/// Line numbers in the set's own table whose pairs are removed.
fn gone_lines(looked: &Looked, stays: &[Vec<bool>]) -> HashSet<u32> {
    let mut gone = HashSet::new();
    for ((_, samples), stays) in lists(&looked.set).zip(stays) {
        let leaving = (0..samples.len()).filter(|sample| !stays[*sample]);
        gone.extend(leaving.map(|sample| samples.row(sample)));
    }
    gone
}

/// Whether the pairs of a split come from a separate table or folder.
fn is_elsewhere(set: &SegmentationSet, split: &str) -> bool {
    split == "validation" && set.validation_place.is_some()
}

/// Pairs of folders as a CSV, with paths relative to `folder`.
fn listed_pairs(looked: &Looked, stays: &[Vec<bool>], folder: &Path) -> Result<String, DataError> {
    let mut text = String::from("image,mask,fov,split\n");
    for ((split, samples), stays) in lists(&looked.set).zip(stays) {
        if is_elsewhere(&looked.set, split) {
            continue;
        }
        for sample in (0..samples.len()).filter(|sample| stays[*sample]) {
            if samples.further_image_paths(sample).next().is_some() {
                return Err(DataError::invalid(
                    samples.image_path(sample).display(),
                    "one file for each image",
                    "a file for each channel",
                    "a CSV of pairs has no place for further channels; remove what `data check` names",
                ));
            }
            let cell = |path: Option<PathBuf>| {
                let path = path.unwrap_or_default();
                let within = path.strip_prefix(folder).unwrap_or(&path);
                quoted(&within.to_string_lossy().replace('\\', "/"))
            };
            text += &cell(Some(samples.image_path(sample)));
            for companion in [
                samples.mask_path(sample),
                samples.field_of_view_path(sample),
            ] {
                text.push(',');
                text += &cell(companion);
            }
            text += &format!(",{split}\n");
        }
    }
    Ok(text)
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests;
