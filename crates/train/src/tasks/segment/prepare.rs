//! Opens a segmentation run: model, classes and losses, before memory is planned.

use std::path::Path;
use std::sync::Arc;

use holdall_data::config::ImageSize;
use holdall_data::decode::ImageProcessor;
use holdall_data::loader::RowFormat;
use holdall_data::segmentation::{
    Fit, MaskCoding, PairFraming, SegmentationSet, Survey, picture_sizes,
};
use holdall_graph::ops::normalize_pixels::PixelDepth;
use holdall_models::model_config::ModelConfig;
use holdall_models::unet::config::{MOST_CLASSES, PictureInput, UnetConfig};

use super::super::opened_model::open_folder;
use super::evaluate::tunes_threshold;
use super::{LossTerm, SegmentTask, loss_terms};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::planning::prepare::Prepared;
use crate::planning::setup::{Setup, Weights};
use crate::planning::site::Site;
use crate::tasks::starting_folder;

/// Default height and width if neither config nor model has any.
const USUAL_SIZE: [usize; 2] = [1024; 2];

/// A U-Net from a folder or a preset.
pub(super) struct OpenedUnet {
    pub model: UnetConfig,
    pub weights: Weights,
}

/// Opens the folder or the cached model that `model:` names, or the preset of that name with the changes of `unet:`.
pub(super) fn open_model(config: &RunConfig) -> Result<OpenedUnet, TrainError> {
    let name = config.model.as_str();
    let Some(path) = starting_folder(config) else {
        let Some(preset) = UnetConfig::preset(name) else {
            return Err(TrainError::Config(format!(
                "model `{name}`: expected a folder of a U-Net, or a preset; found none\n\
                 hint: presets are {}; `unet: {{channels: [...]}}` changes one",
                UnetConfig::PRESETS.join(", ")
            )));
        };
        let weights = Weights::Random {
            preset: Some(name.to_owned()),
        };
        let model = config.unet.apply(preset)?;
        return Ok(OpenedUnet { model, weights });
    };
    let folder = open_folder(&path)?;
    let ModelConfig::Unet(model) = folder.config() else {
        return Err(TrainError::Config(format!(
            "model `{name}`: expected a U-Net, found {}\nhint: a folder that `holdall train --task segment` wrote, or a preset: {}",
            folder.config().describe(),
            UnetConfig::PRESETS.join(", ")
        )));
    };
    if !config.unet.is_empty() {
        return Err(TrainError::Config(format!(
            "unet: expected nothing beside the folder {}, which says what its model is\nhint: leave `unet:` out",
            path.display()
        )));
    }
    Ok(OpenedUnet {
        model: model.clone(),
        weights: Weights::Folder(Box::new(folder)),
    })
}

/// Opens the model without data; the config's `labels` is the number of classes.
pub fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    let mut opened = open_model(config)?;
    let is_random = opened.weights.are_random();
    if let (Some(labels), true) = (config.labels, is_random) {
        let names = 0..labels.min(MOST_CLASSES + 1);
        opened.model.classes = names.map(|label| format!("class {label}")).collect();
        opened.model.validate(Path::new("labels"))?;
    }
    set_sizes(&mut opened.model, config)?;
    let sides = opened.model.patch.map(|side| [side; 2]);
    let sides = sides.or(opened.model.image_size).unwrap_or(USUAL_SIZE);
    let task = task(config, opened, sides)?;
    let processor = ImageProcessor::vit(sides[0] as u32);
    Setup::new(config, site, Arc::new(task), processor, None, Vec::new())
}

fn task(
    config: &RunConfig,
    opened: OpenedUnet,
    sides: [usize; 2],
) -> Result<SegmentTask, TrainError> {
    let OpenedUnet { model, weights } = opened;
    let terms = LossTerm::of_config(&config.losses, model.num_outputs())?;
    let class_weights = loss_terms::class_weights(&config.losses, model.num_mask_values())?;
    Ok(SegmentTask {
        terms,
        class_weights,
        tunes_threshold: tunes_threshold(config.train.best_metric.as_deref()),
        weights: Arc::new(weights),
        ..SegmentTask::new(model, sides)
    })
}

pub fn prepare(config: &RunConfig, site: Site<'_>) -> Result<Prepared, TrainError> {
    let set = site.listed(|| SegmentationSet::open(&config.data, config.seed))?;
    set.check_has_masks()?;
    let SegmentationSet {
        train,
        validation,
        coding,
        survey,
        place,
        mut notes,
        ..
    } = set;
    let mut opened = open_model(config)?;
    if let Some(labels) = config.labels {
        notes.push(format!(
            "warning: labels: {labels} has no effect, the masks say which classes there are"
        ));
    }
    let config = &with_size(config, &opened, &survey, &mut notes);
    let is_new_head = fit_to_data(&mut opened, config, &coding, &survey, &mut notes)?;
    let model = &opened.model;
    let own = [survey.height as usize, survey.width as usize];
    let rounded = own.map(|side| side.next_multiple_of(model.size_multiple()));
    let fit = match (model.patch, model.image_size) {
        (Some(_), _) => Fit::Patch {
            foreground: config.data.foreground.0,
        },
        (None, Some(_)) => Fit::Resize,
        (None, None) => Fit::Pad,
    };
    let sides = model.patch.map(|side| [side; 2]);
    let sides = sides.or(model.image_size).unwrap_or(rounded);
    if fit == Fit::Resize {
        notes.extend(note_on_shape(sides, &survey));
    }
    let mut task = task(config, opened, sides)?;
    task.is_new_head = is_new_head;
    task.largest = own;
    task.tile = task.model.patch;
    task.shows_examples = true;
    let evaluated = match (&validation, survey.is_uniform) {
        (Some(validation), false) => picture_sizes(validation),
        _ => vec![own],
    };
    notes.extend(task.add_evaluated_sizes(&evaluated));
    let framing = Arc::new(PairFraming {
        shape: task.row_shape(),
        fit,
        coding: Arc::new(coding),
        augment: config.data.pair_augment,
    });
    task.framing = Some(Arc::clone(&framing));
    let processor = ImageProcessor::vit(sides[0] as u32);
    let (task, num_samples) = (Arc::new(task), Some(train.len()));
    let mut setup = Setup::new(config, site, task, processor, num_samples, Vec::new())?;
    setup.rows = RowFormat::Pair(framing);
    Ok(Prepared {
        setup,
        train: Arc::new(train),
        validation: validation.map(Arc::new),
        csv: place,
        bad_rows: Vec::new(),
        notes,
    })
}

/// Sets classes, channels and sizes from the data. Returns whether a folder's heads have to be replaced for other classes.
fn fit_to_data(
    opened: &mut OpenedUnet,
    config: &RunConfig,
    coding: &MaskCoding,
    survey: &Survey,
    notes: &mut Vec<String>,
) -> Result<bool, TrainError> {
    let model = &mut opened.model;
    let classes = match coding.classes() {
        [_, only] => vec![only.clone()],
        classes => classes.to_vec(),
    };
    let is_random = opened.weights.are_random();
    let is_new_head = !is_random && classes.len() != model.classes.len();
    if is_new_head {
        notes.push(format!(
            "Heads: RANDOM (the folder's are for {} classes, the data has {})",
            model.num_mask_values(),
            coding.classes().len()
        ));
    }
    model.classes = classes;
    let depth = match survey.depth.bytes() {
        1 => PixelDepth::Eight,
        _ => PixelDepth::Sixteen,
    };
    let unsaid = config.unet.input_channels.is_none() && config.unet.bits.is_none();
    let found = (survey.channels, depth);
    if is_random && unsaid && found != (model.input.channels, model.input.depth) {
        model.input = PictureInput::of(survey.channels, depth);
    }
    set_sizes(model, config)?;
    model.validate(Path::new("data"))?;
    Ok(is_new_head)
}

/// Sets the model's image size and patch from the config.
fn set_sizes(model: &mut UnetConfig, config: &RunConfig) -> Result<(), TrainError> {
    match config.data.image_size {
        ImageSize::Auto if config.data.patch.is_some() => model.image_size = None,
        ImageSize::Auto => {}
        ImageSize::None => model.image_size = None,
        ImageSize::Exactly { height, width } => {
            model.image_size = Some([height as usize, width as usize]);
        }
    }
    if let Some(side) = config.data.patch {
        model.patch = Some(side as usize);
    }
    let multiple = model.size_multiple();
    let patch = model.patch.map(|side| [side; 2]);
    for (key, sides) in [("image_size", model.image_size), ("patch", patch)] {
        let mut sides = sides.into_iter().flatten();
        if let Some(side) = sides.find(|side| !side.is_multiple_of(multiple)) {
            return Err(TrainError::Config(format!(
                "data.{key}: {side}, expected a multiple of {multiple}: a U-Net of {} stages halves it {} times\n\
                 hint: `data: {{{key}: {}}}`",
                model.num_stages(),
                model.num_stages() - 1,
                side.next_multiple_of(multiple)
            )));
        }
    }
    Ok(())
}

/// Sets the image size from the pictures if the config has none and the model's weights are random. Pictures keep their own size,
/// mirrored to a size that the stages can halve; larger ones are reduced to about as many pixels as the preset has, in their
/// proportions.
fn with_size(
    config: &RunConfig,
    opened: &OpenedUnet,
    survey: &Survey,
    notes: &mut Vec<String>,
) -> RunConfig {
    let mut config = config.clone();
    let is_open = config.data.image_size == ImageSize::Auto && config.data.patch.is_none();
    let is_random = opened.weights.are_random();
    if let (true, true, Some(most)) = (is_open, is_random, opened.model.image_size) {
        let own = [survey.height as usize, survey.width as usize];
        let up_to = if survey.is_uniform { "" } else { "up to " };
        let pictures = format!("pictures of {up_to}{} x {}", own[1], own[0]);
        let multiple = opened.model.size_multiple();
        let says_another = "`--set data.image_size=...` says another";
        match smaller(own, most, multiple) {
            Some([height, width]) => {
                config.data.image_size = exactly([height, width]);
                notes.push(format!(
                    "Image size: {width} x {height} (width x height), from {pictures}; {says_another}"
                ));
            }
            None if survey.is_uniform && own.iter().all(|side| side.is_multiple_of(multiple)) => {
                config.data.image_size = exactly(own);
            }
            None => {
                let [height, width] = own.map(|side| side.next_multiple_of(multiple));
                config.data.image_size = ImageSize::None;
                notes.push(format!(
                    "Image size: {pictures} at their own size, mirrored to {width} x {height} (width x height); {says_another}"
                ));
            }
        }
    }
    config
}

fn exactly([height, width]: [usize; 2]) -> ImageSize {
    ImageSize::Exactly {
        height: height as u32,
        width: width as u32,
    }
}

/// A height and width, multiples of `multiple`, with the proportions of `own` and about as many pixels as `most`. `None` if `own`
/// has no more pixels than `most`.
fn smaller(own: [usize; 2], most: [usize; 2], multiple: usize) -> Option<[usize; 2]> {
    let pixels = |[height, width]: [usize; 2]| (height * width) as f64;
    let scale = (pixels(most) / pixels(own)).sqrt();
    (scale < 1.0).then(|| {
        own.map(|side| {
            let multiples = (side as f64 * scale / multiple as f64).round();
            multiple * (multiples as usize).max(1)
        })
    })
}

/// Warns that pictures are stretched: the model's proportions differ from theirs, or they have several sizes.
fn note_on_shape([height, width]: [usize; 2], survey: &Survey) -> Option<String> {
    let shape = |width: f64, height: f64| (width / height).ln();
    let own = shape(f64::from(survey.width), f64::from(survey.height));
    let stretch = (shape(width as f64, height as f64) - own).abs();
    if survey.is_uniform && stretch < MIN_STRETCH {
        return None;
    }
    let up_to = if survey.is_uniform { "" } else { "up to " };
    Some(format!(
        "Careful: pictures of {up_to}{} x {} are stretched to {width} x {height} (width x height); `--set data.image_size=none` keeps \
         their own size, `--set data.patch=SIDE` trains on parts of them",
        survey.width, survey.height
    ))
}

/// Smallest stretch that is reported, as the logarithm of a ratio; rounding to multiples of the stages stretches less.
const MIN_STRETCH: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_keep_their_shape() {
        for (own, most, multiple, expected) in [
            // No more pixels than the preset: own size, mirrored.
            ([64, 80], [1024, 1024], 64, None),
            ([584, 565], [1024, 1024], 16, None),
            ([2048, 2048], [1024, 1024], 16, Some([1024, 1024])),
            ([2000, 3000], [1024, 1024], 16, Some([832, 1248])),
            ([9, 4000], [64, 64], 16, Some([16, 1344])),
        ] {
            assert_eq!(smaller(own, most, multiple), expected, "{own:?}");
        }
    }

    #[test]
    fn stretched_pictures_are_said() {
        let survey = |width: u32, height: u32, is_uniform: bool| Survey {
            channels: 3,
            depth: holdall_data::segmentation::PixelDepth::Eight,
            width,
            height,
            is_uniform,
        };
        assert_eq!(note_on_shape([64, 64], &survey(128, 128, true)), None);
        assert_eq!(note_on_shape([592, 576], &survey(565, 584, true)), None);
        assert!(note_on_shape([64, 64], &survey(128, 128, false)).is_some());
        let note = note_on_shape([64, 64], &survey(90, 60, true)).unwrap();
        assert!(
            note.starts_with(
                "Careful: pictures of 90 x 60 are stretched to 64 x 64 (width x height)"
            ),
            "{note}"
        );
    }
}
