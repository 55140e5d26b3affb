//! `segmentation.json`: scores of every picture, the Dice curve over thresholds, and overlays of the best, the median and the
//! worst picture. The overlays' pictures are predicted again once all scores are known, so that no prediction is kept until then.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdall_data::decode::WholePicture;
use holdall_data::samples::Samples;
use holdall_data::segmentation::PixelDepth;
use holdall_device::Device;
use holdall_metrics::segmentation::{IGNORED, MaskScores, PooledScores, predict_classes};
use serde_json::{Value, json};

use super::SegmentTask;
use super::evaluate::{fields, hundredths};
use super::png_file::{self, Pixels};
use super::predict::{self, Pictures, Segmented};
use crate::config::Subset;
use crate::engine::forward::Forward;
use crate::engine::task::Unfinished;

/// In the run's folder, and next to its best model.
pub(super) const FILE_NAME: &str = "segmentation.json";
const MOST_LISTED: usize = 2000;
/// Longest side of an overlay.
const MOST_SIDE: usize = 384;

/// True positive: white.
const FOUND: [u8; 3] = [255, 255, 255];
/// False negative, or the wrong class: orange.
const MISSED: [u8; 3] = [0xe6, 0x9f, 0x00];
/// False positive: sky blue.
const INVENTED: [u8; 3] = [0x56, 0xb4, 0xe9];
/// Colours of classes 1, 2, ...: the palette of Okabe and Ito, safe for colour-blind readers.
const CLASS_COLOURS: [[u8; 3]; 7] = [
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
    [0x00, 0x9e, 0x73],
    [0xf0, 0xe4, 0x42],
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0xcc, 0x79, 0xa7],
];

/// Scores of each picture; beyond the first [`MOST_LISTED`] only its Dice, which ranks it.
pub(super) struct ImageTable {
    rows: Vec<(u32, MaskScores)>,
    /// Sample and Dice of every picture with a Dice.
    dice: Vec<(u32, f32)>,
}

impl ImageTable {
    pub fn new(num_samples: usize) -> ImageTable {
        ImageTable {
            rows: Vec::with_capacity(num_samples.min(MOST_LISTED)),
            dice: Vec::with_capacity(num_samples),
        }
    }

    /// Memory of the table and of the file that is written from it.
    pub fn bytes(num_samples: usize) -> u64 {
        const LINE_BYTES: usize = 512;
        let listed = num_samples.min(MOST_LISTED);
        (listed * (size_of::<(u32, MaskScores)>() + LINE_BYTES) + num_samples * 8) as u64
    }

    pub fn add(&mut self, sample: u32, scores: MaskScores) {
        if self.rows.len() < MOST_LISTED {
            self.rows.push((sample, scores));
        }
        if let Some(dice) = scores.dice {
            self.dice.push((sample, dice as f32));
        }
    }

    pub fn rows(&self, samples: &Samples) -> Value {
        let row = |(sample, scores): &(u32, MaskScores)| {
            let mut row = fields(scores);
            row.insert("name".to_owned(), json!(samples.image(*sample as usize)));
            Value::Object(row)
        };
        self.rows.iter().map(row).collect()
    }

    /// Best, median and worst picture; fewer for fewer pictures.
    fn ranked(&self) -> Vec<(&'static str, u32, f32)> {
        let mut order = self.dice.clone();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let Some(last) = order.len().checked_sub(1) else {
            return Vec::new();
        };
        let mut ranks = vec![("best", 0), ("median", last / 2), ("worst", last)];
        ranks.dedup_by_key(|(_, at)| *at);
        let named = ranks.into_iter();
        named
            .map(|(rank, at)| (rank, order[at].0, order[at].1))
            .collect()
    }
}

/// Contents of `segmentation.json`.
pub(super) struct File<'a> {
    pub step: u64,
    pub subset: Subset,
    pub task: &'a SegmentTask,
    pub pooled: &'a PooledScores,
    pub table: &'a ImageTable,
    pub overlays: Vec<Value>,
}

impl File<'_> {
    pub fn json(self, samples: &Samples) -> String {
        let mean = self.pooled.mean();
        let model = &self.task.model;
        let mut classes = model.classes.clone();
        if classes.len() == 1 {
            classes.insert(0, "background".to_owned());
        }
        let mut file = json!({
            "step": self.step,
            "on": self.subset,
            "protocol": protocol(self.task, self.pooled, samples),
            "classes": classes,
            "images": self.table.rows(samples),
            "mean": mean.per_image,
            "pooled": mean.pooled,
            "overlays": self.overlays,
        });
        if let Some(curve) = self.pooled.curve() {
            let points = curve.points();
            let points = points.iter();
            file["threshold_curve"] = points
                .map(|point| json!([hundredths(point.threshold), point.dice]))
                .collect();
            let best = curve.best().filter(|_| self.task.tunes_threshold);
            let best = best.map(|best| hundredths(best.threshold));
            file["threshold"] = json!(best.unwrap_or(self.task.model.threshold));
        } else {
            let names = model.classes.iter().skip(1);
            let of_classes = self.pooled.classes();
            let rows = names.zip(&of_classes).map(|(name, class)| {
                let mut row = fields(&class.per_image);
                row.insert("class".to_owned(), json!(name));
                Value::Object(row)
            });
            file["per_class"] = rows.collect();
        }
        file.to_string()
    }
}

/// The evaluation protocol in words: number of pictures, sizes, field of view, threshold.
pub(super) fn protocol(task: &SegmentTask, pooled: &PooledScores, samples: &Samples) -> String {
    let model = &task.model;
    let mut words = vec![holdall_files::counted(pooled.images(), "picture")];
    words.push(match model.image_size {
        Some([height, width]) => format!("resized to {width} x {height}"),
        None => "not resized".to_owned(),
    });
    let base = model.image_size.unwrap_or(task.largest);
    let tiled = task
        .tile
        .filter(|&tile| base.iter().any(|&side| side > tile));
    words.push(match tiled {
        Some(tile) => format!("in tiles of {tile} x {tile}"),
        None => "whole".to_owned(),
    });
    if task.mirror {
        words.push("mean of four mirrorings".to_owned());
    }
    let whose = if pooled.images() == 1 { "its" } else { "their" };
    words.push(format!("scored at {whose} own size"));
    if (0..samples.len()).any(|sample| samples.field_of_view_path(sample).is_some()) {
        words.push("inside the field of view".to_owned());
    }
    if model.num_outputs() == 1 {
        words.push(format!("threshold {:.2}", model.threshold));
    }
    words.join(", ")
}

/// Memory of the overlays of pictures of this size, and of the file while it is written.
pub(super) fn overlay_bytes(size: [usize; 2]) -> u64 {
    /// Bytes per pixel of the three overlays together: two colour pictures each, as PNG, in base64 and in the file; the masks take
    /// little.
    const PIXEL_BYTES: usize = 40;
    let [height, width] = small_size(size);
    (height * width * PIXEL_BYTES) as u64
}

/// Draws the overlays of the best, the median and the worst picture.
pub(super) fn overlays(
    task: &SegmentTask,
    device: &Device,
    forward: &mut Forward<'_>,
    pictures: &Pictures<'_>,
    table: &ImageTable,
) -> Result<Vec<Value>, Unfinished> {
    let mut overlays = Vec::new();
    for (rank, sample, dice) in table.ranked() {
        let chosen = Pictures {
            chosen: &[sample],
            ..*pictures
        };
        let name = pictures.samples.image(sample as usize);
        let work = |_, segmented: Segmented<'_>| Ok(Overlay::new(task, &segmented));
        predict::look_at(task, device, forward, &chosen, work, |_, _, overlay| {
            overlays.push(overlay.json(name, rank, dice));
            true
        })?;
    }
    Ok(overlays)
}

/// Four small PNGs.
struct Overlay {
    picture: Vec<u8>,
    truth: Vec<u8>,
    prediction: Vec<u8>,
    difference: Vec<u8>,
}

impl Overlay {
    fn new(task: &SegmentTask, segmented: &Segmented<'_>) -> Overlay {
        let picture = segmented.picture;
        let size = [picture.height, picture.width];
        let outputs = task.model.num_outputs();
        let threshold = task.model.threshold as f32;
        let predicted: Vec<u8> =
            predict_classes(segmented.probabilities_hwk, outputs, threshold).collect();
        let truth = picture.mask.as_deref().unwrap_or(&predicted);
        let of_class = |class: u8| match class {
            0 | IGNORED => [0; 3],
            _ if outputs == 1 => [255; 3],
            class => class_colour(class),
        };
        Overlay {
            picture: small_png(size, |at| colour_at(picture, at)),
            truth: small_png(size, |at| of_class(truth[at])),
            prediction: small_png(size, |at| of_class(predicted[at])),
            difference: small_png(size, |at| {
                difference(Some(truth), &predicted, at).unwrap_or_else(|| dimmed(picture, at))
            }),
        }
    }

    fn json(&self, name: &str, rank: &str, dice: f32) -> Value {
        let uri = |png: &[u8]| format!("data:image/png;base64,{}", STANDARD.encode(png));
        json!({
            "name": name,
            "rank": rank,
            "dice": dice,
            "picture": uri(&self.picture),
            "truth": uri(&self.truth),
            "prediction": uri(&self.prediction),
            "difference": uri(&self.difference),
        })
    }
}

/// A PNG of the picture's own size that marks true positives, false negatives and false positives. Without a mask: the predicted
/// classes in their colours.
pub fn overlay_png(picture: &WholePicture, predicted: &[u8]) -> Vec<u8> {
    let truth = picture.mask.as_deref();
    let pixels: Vec<u8> = (0..picture.num_pixels())
        .flat_map(|at| difference(truth, predicted, at).unwrap_or_else(|| dimmed(picture, at)))
        .collect();
    let size = [picture.height, picture.width];
    png_file::encode(&Pixels::Colour(&pixels), size)
}

/// Colour of a marked pixel; `None` where both truth and prediction are background, and for ignored pixels.
fn difference(truth: Option<&[u8]>, predicted: &[u8], at: usize) -> Option<[u8; 3]> {
    match (truth.map(|truth| truth[at]), predicted[at]) {
        (Some(IGNORED), _) | (Some(0) | None, 0) => None,
        (None, class) => Some(class_colour(class)),
        (Some(0), _) => Some(INVENTED),
        (Some(truth), predicted) if truth == predicted => Some(FOUND),
        (Some(_), _) => Some(MISSED),
    }
}

fn class_colour(class: u8) -> [u8; 3] {
    CLASS_COLOURS[usize::from(class.max(1) - 1) % CLASS_COLOURS.len()]
}

/// A pixel in 8 bits: the first three channels, or the first as grey.
fn colour_at(picture: &WholePicture, at: usize) -> [u8; 3] {
    let bytes = match picture.depth {
        PixelDepth::Eight => 1,
        PixelDepth::Sixteen => 2,
    };
    let pixel = &picture.pixels[at * picture.channels * bytes..];
    // The high byte of 16 bits, which is the second.
    let channel = |channel: usize| pixel[channel * bytes + bytes - 1];
    match picture.channels {
        3.. => [channel(0), channel(1), channel(2)],
        _ => [channel(0); 3],
    }
}

/// Grey at half contrast, so that the marks stand out.
fn dimmed(picture: &WholePicture, at: usize) -> [u8; 3] {
    let [r, g, b] = colour_at(picture, at).map(u32::from);
    [((r * 299 + g * 587 + b * 114) / 2000 + 32) as u8; 3]
}

/// Size with the same proportions and a longest side of at most [`MOST_SIDE`].
fn small_size(size: [usize; 2]) -> [usize; 2] {
    let longest = size[0].max(size[1]).max(MOST_SIDE);
    size.map(|side| (side * MOST_SIDE / longest).max(1))
}

/// A PNG of [`small_size`], by averaging the pixels under each pixel.
fn small_png([height, width]: [usize; 2], colour: impl Fn(usize) -> [u8; 3]) -> Vec<u8> {
    let [small_height, small_width] = small_size([height, width]);
    let range = |at: usize, side: usize, of: usize| {
        let start = at * side / of;
        start..((at + 1) * side / of).max(start + 1)
    };
    let mut pixels = Vec::with_capacity(small_height * small_width * 3);
    for y in 0..small_height {
        for x in 0..small_width {
            let (mut sums, mut count) = ([0u32; 3], 0);
            for from_y in range(y, height, small_height) {
                for from_x in range(x, width, small_width) {
                    let values = colour(from_y * width + from_x);
                    sums.iter_mut()
                        .zip(values)
                        .for_each(|(sum, value)| *sum += u32::from(value));
                    count += 1;
                }
            }
            pixels.extend(sums.map(|sum| (sum / count) as u8));
        }
    }
    png_file::encode(&Pixels::Colour(&pixels), [small_height, small_width])
}
