//! Output files of predicted masks.
//!
//! ```text
//! OUT/masks/NAME.png            0 and 255; class numbers if there are several classes; at the size of the picture's file
//! OUT/probabilities/NAME.png    16 bits, or NAME.npy: height x width x outputs in f32
//! OUT/overlays/NAME.png         the picture with the prediction; with truth: hits, misses and false positives
//! OUT/scores.csv                a row for each picture with a true mask
//! ```

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use holdall_data::samples::Samples;
use holdall_data::segmentation::case_of;
use holdall_files::{Existing, counted, write_whole};
use holdall_metrics::segmentation::{METRICS, MaskScores};
use holdall_train::TrainError;
use holdall_train::tasks::segment::png_file::{self, Pixels};
use holdall_train::tasks::segment::{PredictedPicture, SavedSegmenter, SegmentTask, overlay_png};
use serde::Serialize;

use super::segment::{ProbabilityFormat, SegmentOptions};
use crate::array_file;
use crate::options::{output_is_input, resolved};
use crate::screen::tell;

/// Output of one picture.
#[derive(Serialize)]
pub(super) struct PredictedMask {
    pub image: String,
    pub mask: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<MaskScores>,
}

/// File names by list and sample: the picture's stem, with a number if several pictures share it.
pub(super) struct MaskFileNames(Vec<Vec<String>>);

impl MaskFileNames {
    pub fn of(lists: &[Arc<Samples>]) -> MaskFileNames {
        let mut taken: HashMap<String, usize> = HashMap::new();
        let mut name = |samples: &Samples, sample: usize| {
            let path = samples.image_path(sample);
            let stem = path
                .file_stem()
                .map_or("picture".into(), |stem| stem.to_string_lossy());
            // As nnU-Net names it: channel files of one case share one mask, and one file for all channels ends in _0000.
            let is_first_of_several = samples.further_image_paths(sample).next().is_some();
            let is_case = is_first_of_several || stem.ends_with("_0000");
            let stem = match case_of(&stem).filter(|_| is_case) {
                Some(case) => case.to_owned(),
                None => stem.into_owned(),
            };
            let times = taken.entry(stem.clone()).or_insert(0);
            *times += 1;
            match times {
                1 => stem,
                times => format!("{stem}-{times}"),
            }
        };
        let names = lists.iter().map(|samples| {
            let all = 0..samples.len();
            all.map(|sample| name(samples, sample)).collect()
        });
        MaskFileNames(names.collect())
    }
}

/// Writes the output files.
pub(super) struct Writer<'a> {
    pub out: &'a Path,
    pub options: &'a SegmentOptions,
    pub saved: &'a SavedSegmenter,
    pub names: &'a MaskFileNames,
}

impl Writer<'_> {
    /// Memory for making one picture's files, one after another.
    pub fn bytes(&self, task: &SegmentTask, [height, width]: [usize; 2]) -> u64 {
        let outputs = task.model.num_outputs();
        // Bytes per pixel: mask (raw and encoded); overlay colours (raw and encoded); probabilities (raw), plus 16-bit values and their
        // PNG, or the array file.
        let mask = 3;
        let overlay = if self.options.overlays { 6 } else { 0 };
        let probabilities = match self.options.probabilities {
            Some(ProbabilityFormat::Npy) => 8 * outputs,
            Some(ProbabilityFormat::Png) => 4 + 6 * outputs,
            None => 0,
        };
        let classes = 1;
        (height * width * (classes + mask.max(overlay).max(probabilities))) as u64
    }

    /// Refuses to overwrite existing masks, whether predictions or a data set's truth, unless allowed; always refuses to overwrite
    /// inputs.
    pub fn check_free(&self, existing: Existing, lists: &[Arc<Samples>]) -> Result<(), TrainError> {
        let inputs: LazyCell<HashSet<PathBuf>, _> = LazyCell::new(|| {
            let samples = lists
                .iter()
                .flat_map(|list| (0..list.len()).map(move |at| (list, at)));
            let files =
                samples.flat_map(|(list, at)| list.clip_paths(at).chain(list.mask_path(at)));
            files.map(|file| resolved(&file)).collect()
        });
        let refuse = |path: PathBuf| {
            if path.exists() && inputs.contains(&resolved(&path)) {
                return Err(output_is_input("--out", &path));
            }
            let checked = existing.check_file(&path);
            checked.map_err(|occupied| TrainError::Config(format!("--out {occupied}")))
        };
        for name in self.names.0.iter().flatten() {
            refuse(self.mask(name))?;
            if self.options.overlays {
                refuse(self.overlay(name))?;
            }
            if let Some(format) = self.options.probabilities {
                let mut files = self.probability_files(format, name).into_iter();
                files.try_for_each(refuse)?;
            }
        }
        refuse(self.scores())
    }

    fn mask(&self, name: &str) -> PathBuf {
        self.out.join("masks").join(format!("{name}.png"))
    }

    fn overlay(&self, name: &str) -> PathBuf {
        self.out.join("overlays").join(format!("{name}.png"))
    }

    fn scores(&self) -> PathBuf {
        self.out.join("scores.csv")
    }

    /// Path of the array, or one PNG per output.
    fn probability_files(&self, format: ProbabilityFormat, name: &str) -> Vec<PathBuf> {
        let folder = self.out.join("probabilities");
        match (format, self.saved.model().num_outputs()) {
            (ProbabilityFormat::Npy, _) => vec![folder.join(format!("{name}.npy"))],
            (ProbabilityFormat::Png, 1) => vec![folder.join(format!("{name}.png"))],
            (ProbabilityFormat::Png, outputs) => (0..outputs)
                .map(|output| folder.join(format!("{name}-{output}.png")))
                .collect(),
        }
    }

    pub fn make_folders(&self) -> Result<()> {
        let mut folders = vec!["masks"];
        folders.extend(self.options.probabilities.map(|_| "probabilities"));
        folders.extend(self.options.overlays.then_some("overlays"));
        for folder in folders {
            let path = self.out.join(folder);
            std::fs::create_dir_all(&path).map_err(|cause| unwritten(&path, &cause))?;
        }
        Ok(())
    }

    pub fn write(
        &self,
        samples: &Samples,
        list: usize,
        predicted: PredictedPicture<'_>,
    ) -> Result<PredictedMask, TrainError> {
        let sample = predicted.sample as usize;
        let name = &self.names.0[list][sample];
        // Masks match the pixels of the picture's file, before any EXIF rotation.
        let (classes, size) = predicted.picture.in_file(predicted.classes, 1);
        let write = |path: &Path, bytes: &[u8]| {
            write_whole(path, bytes).map_err(|cause| unwritten(path, &cause))
        };
        let mask = self.mask(name);
        let num_outputs = self.saved.model().num_outputs();
        let classes: Vec<u8> = match num_outputs {
            1 => classes.iter().map(|class| class * 255).collect(),
            _ => classes.into_owned(),
        };
        write(&mask, &png_file::encode(&Pixels::Grey(&classes), size))?;
        if let Some(format) = self.options.probabilities {
            let files = self.probability_files(format, name);
            let lying = predicted
                .picture
                .in_file(predicted.probabilities_hwk, num_outputs);
            let contents = self.probabilities(format, size, &lying.0);
            for (path, bytes) in files.iter().zip(contents) {
                write(path, &bytes)?;
            }
        }
        if self.options.overlays {
            let path = self.overlay(name);
            write(&path, &overlay_png(predicted.picture, predicted.classes))?;
        }
        Ok(PredictedMask {
            image: samples.image(sample).to_owned(),
            mask,
            scores: predicted.scores.map(|scores| scores.mean()),
        })
    }

    /// Contents of the files of [`Self::probability_files`].
    fn probabilities(
        &self,
        format: ProbabilityFormat,
        [height, width]: [usize; 2],
        probabilities_hwk: &[f32],
    ) -> Vec<Vec<u8>> {
        let outputs = self.saved.model().num_outputs();
        if format == ProbabilityFormat::Npy {
            let numbers = probabilities_hwk
                .iter()
                .flat_map(|value| value.to_le_bytes());
            let mut file = array_file::npy_header_of("<f4", &[height, width, outputs]);
            file.reserve_exact(4 * probabilities_hwk.len());
            file.extend(numbers);
            return vec![file];
        }
        let of_output = |output: usize| {
            let values = probabilities_hwk.iter().skip(output).step_by(outputs);
            let values: Vec<u16> = values
                .map(|value| (value * 65535.0).round() as u16)
                .collect();
            png_file::encode(&Pixels::Grey16(&values), [height, width])
        };
        (0..outputs).map(of_output).collect()
    }

    /// Writes a row for each picture with a true mask.
    pub fn write_scores(&self, predictions: &[PredictedMask]) -> Result<()> {
        let scored = predictions
            .iter()
            .filter_map(|one| Some((&one.image, one.scores?)));
        let scored: Vec<(&String, MaskScores)> = scored.collect();
        if scored.is_empty() {
            return Ok(());
        }
        let mut rows = csv::Writer::from_writer(Vec::new());
        rows.write_record(["image"].iter().chain(&METRICS))?;
        for (image, scores) in &scored {
            let values = scores
                .values()
                .map(|value| value.map_or(String::new(), |value| format!("{value:.6}")));
            rows.write_record([(*image).clone()].iter().chain(&values))?;
        }
        let path = self.scores();
        let text = rows.into_inner()?;
        write_whole(&path, &text).map_err(|cause| unwritten(&path, &cause))?;
        let count = counted(scored.len(), "score");
        tell(&format!("{count}: {}", path.display()));
        Ok(())
    }
}

fn unwritten(path: &Path, cause: &std::io::Error) -> TrainError {
    TrainError::Config(format!(
        "{}: {cause}\nhint: choose another folder for --out",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use holdall_data::segmentation::without_masks;

    use super::*;

    #[test]
    fn masks_are_named_after_pictures_and_cases() {
        let names = |files: &[&str], channel_files| {
            let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
            let samples = without_masks("in".into(), &files, channel_files).unwrap();
            MaskFileNames::of(&[Arc::new(samples)]).0.remove(0)
        };
        assert_eq!(
            names(&["a.png", "b/a.png", "x_0001.png"], 1),
            ["a", "a-2", "x_0001"]
        );
        assert_eq!(names(&["a_0000.png", "a_0001.png"], 2), ["a"]);
        // nnU-Net's pictures of one file with all channels.
        assert_eq!(names(&["a_0000.png", "b_0000.png"], 1), ["a", "b"]);
    }
}
