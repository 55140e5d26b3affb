//! Checks of the frame cache: the vision tower must be frozen and see the same frames in every epoch.

use holdall_data::config::{Augment, ClipStart, DataConfig, Decode, Stride};
use holdall_data::samples::Samples;
use holdall_models::video_text::config::VideoTextConfig;

use crate::config::FrameCacheChoice;
use crate::engine::step_graph::StepConfig;
use crate::error::TrainError;

/// Name prefix of the vision tower's parameters.
const TOWER: &str = "vision_model.";

/// Augmentation that draws nothing at random: no crop has an infinite share of the area, so that every draw falls back to the largest
/// centred part with sides between 3:4 and 4:3. With `crop: 1` a random part may fit by chance and lose a column of pixels to rounding.
pub(super) const WHOLE_FRAMES: Augment = Augment {
    crop: f64::INFINITY,
    flip: false,
    brightness: 0.0,
    contrast: 0.0,
    saturation: 0.0,
    hue: 0.0,
};

/// Refuses a cache unless frames are the same in every epoch and the vision tower is frozen.
pub(super) fn check(
    choice: FrameCacheChoice,
    data: &DataConfig,
    model: &VideoTextConfig,
    step: &StepConfig,
    train: &Samples,
) -> Result<(), TrainError> {
    let word = match choice {
        FrameCacheChoice::ClassTokens => "class_tokens",
        _ => "features",
    };
    let refused = |expected: &str, hint: &str| {
        Err(TrainError::Config(format!(
            "video_text.cache: {word}, expected {expected}\nhint: {hint}"
        )))
    };
    if choice == FrameCacheChoice::ClassTokens && model.reads_all_tokens() {
        let reader = match model.decoder {
            Some(_) => "its decoder reads all tokens of every frame",
            None => "attention pooling reads all tokens of every frame",
        };
        return refused(
            &format!("a model that needs class tokens alone: {reader}"),
            "`cache: features` keeps all tokens; `decoder: none` with `pooling: mean` or `temporal` needs class tokens alone",
        );
    }
    let lora = step.lora.as_ref();
    let mut adapted = lora.into_iter().flat_map(|lora| &lora.modules);
    if let Some(module) = adapted.find(|module| module.starts_with(TOWER)) {
        return refused(
            &format!("nothing of the vision tower trained; `train.lora` adapts {module}"),
            "name `targets` of `train.lora` that are not in vision_model",
        );
    }
    let tensors = model.tensors();
    let of_tower = tensors.iter().map(|(name, _)| name);
    let of_tower = of_tower.filter(|name| name.starts_with(TOWER));
    let is_trained =
        |name: &&String| !step.frozen.contains(*name) && lora.is_none_or(|lora| lora.trains(name));
    let (trained, frozen): (Vec<&String>, Vec<&String>) = of_tower.partition(is_trained);
    if let Some(trained) = trained.first() {
        let expected = format!("all of the vision tower frozen; {trained} is trained");
        return if !frozen.is_empty() {
            refused(
                &expected,
                "what a part of the tower computes is not cached: `train: {freeze: [vision_model]}` freezes all of it",
            )
        } else {
            refused(&expected, "`train: {freeze: [vision_model]}`")
        };
    }
    let still = Augment {
        crop: 1.0,
        ..WHOLE_FRAMES
    };
    if data.augment != still {
        return refused(
            "frames that are the same in every epoch; `data.augment` changes them",
            "`data: {augment: {crop: 1}}`, without flip, brightness, contrast, saturation and hue",
        );
    }
    if data.decode != Decode::Full {
        return refused(
            "frames that are the same in every epoch; what `data.decode: fast` decodes depends on the crop",
            "`data: {decode: full}`",
        );
    }
    if data.stride != Stride::Spread && data.start == ClipStart::Random {
        return refused(
            "the same frames of a clip in every epoch; `data.start: random` begins anywhere",
            "`data: {start: centred}`, or `data: {stride: spread}`",
        );
    }
    let num_videos = data.num_videos();
    let most = (0..train.len()).map(|sample| train.clip_paths(sample).count());
    if let Some(most) = most.max().filter(|&most| most > num_videos) {
        return refused(
            &format!(
                "the same clips of a sample in every epoch; `data.num_videos: {num_videos}` draws from up to {most} of them"
            ),
            &format!("`data: {{num_videos: {most}}}` shows all of them"),
        );
    }
    Ok(())
}
