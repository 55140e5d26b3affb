//! Evaluation of a segmentation model: one forward pass over every picture, scored at the picture's own size.
//!
//! Metrics without a prefix are means over pictures; `pooled` metrics count the pixels of all pictures together. Pixels outside
//! the field of view and ignored pixels count in neither. With one class, metrics use the model's threshold. The evaluation also
//! finds the threshold with the highest mean Dice; training saves the one of its validation pictures with the model.

use holdall_data::samples::Samples;
use holdall_metrics::segmentation::{
    CurvePoint, Image, ImageScorer, ImageScores, METRICS, MaskScores, PerImageAndPooled,
    PooledScores, ThresholdCounts,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::SegmentTask;
use super::examples::{self, ImageTable};
use super::picture_losses::PictureLosses;
use super::predict::{self, Pictures, Segmented};
use crate::config::Subset;
use crate::engine::scores::{Direction, LOSS, Scores};
use crate::engine::similarity::percent;
use crate::engine::task::{Evaluated, Evaluation, Unfinished, nothing_readable};
use crate::error::TrainError;
use crate::planning::processes::share_of;
use crate::run::shared_evaluation::{PartReader, PartWriter, exchange};

/// Host memory of an evaluation, in bytes.
pub(super) fn host_bytes(task: &SegmentTask, samples: &Samples, threads: usize) -> u64 {
    let costs = task.framing.as_deref().map(|framing| {
        let costs = (0..samples.len()).map(|sample| framing.whole_cost(samples, sample));
        // Reading reports the unreadable pictures.
        costs.filter_map(Result::ok).collect::<Vec<_>>()
    });
    predict::host_bytes(task, &costs.unwrap_or_default(), threads, true, 0)
        + PooledScores::bytes(task.model.num_outputs())
        + ImageTable::bytes(samples.len())
        + if task.shows_examples {
            examples::overlay_bytes(task.largest)
        } else {
            0
        }
}

/// Evaluates samples. Unreadable pictures are skipped and listed.
pub(super) fn evaluate(
    task: &SegmentTask,
    evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    let Evaluation {
        device,
        mut forward,
        subset,
        samples,
        step,
        effective_batch,
        stop,
        is_wanted,
        tell,
        ..
    } = evaluation;
    let group = device.group();
    let all: Vec<u32> = (0..samples.len() as u32).collect();
    let own = &all[share_of(group).of(all.len())];
    let pictures = Pictures {
        samples,
        coding: task.framing.as_deref().map(|framing| &*framing.coding),
        chosen: own,
        stop,
    };
    let mut totals = Totals::new(task, samples.len());
    let mut own_images = OwnImages::default();
    let progressing = group.expect_progress();
    let read = predict::predict(
        task,
        device,
        &mut forward,
        &pictures,
        |_, segmented| {
            let truth_hw = segmented.picture.mask.as_deref();
            let losses = truth_hw
                .map(|truth_hw| PictureLosses::of(task, truth_hw, segmented.probabilities_hwk));
            Ok(losses.zip(score(segmented)))
        },
        |sample, scorer, scored| {
            if let (Some((losses, scores)), true) = (&scored, group.size() > 1) {
                own_images.add(sample, scores, scorer.thresholds());
                own_images.losses.extend(losses.numbers());
            }
            totals.add(sample, scorer, scored.as_ref());
            tell(totals.done, own.len());
            group.goes_on();
            is_wanted()
        },
    );
    drop(progressing);
    if group.size() > 1 {
        own_images.odds = totals.pooled.odds();
        own_images.others = [totals.done as u64, totals.without_mask];
        // Counts again over the results of all processes, in the order of samples.
        totals = Totals::new(task, samples.len());
    }
    let write_own = || own_images.to_part();
    let skipped = exchange(group, read, write_own, |part| {
        totals.add_part(OwnImages::read(part)?)
    })?;
    if totals.done == 0 {
        return Err(nothing_readable(samples, &skipped).into());
    }
    if totals.pooled.images() == 0 {
        return Err(no_masks(samples).into());
    }
    if let (Some(best), Subset::Validation, Some(_), true) =
        (totals.best(), subset, step, task.tunes_threshold)
    {
        task.tune_threshold(hundredths(best.threshold));
    }
    let mut scores = Scores::of(&totals.scores(samples, step.is_none()));
    if effective_batch.is_some() {
        scores.set_losses(&totals.losses.means(task));
    }
    let files = match step {
        Some(step) if group.rank() == 0 => {
            let table = &totals.table;
            let overlays = examples::overlays(task, device, &mut forward, &pictures, table)?;
            let file = examples::File {
                step,
                subset,
                task,
                pooled: &totals.pooled,
                table,
                overlays,
            };
            vec![(examples::FILE_NAME, file.json(samples))]
        }
        _ => Vec::new(),
    };
    Ok(Evaluated {
        scores,
        skipped,
        files,
        ranks: None,
    })
}

/// Results over all pictures so far.
struct Totals<'t> {
    task: &'t SegmentTask,
    pooled: PooledScores,
    table: ImageTable,
    losses: PictureLosses,
    /// Pictures that were read.
    done: usize,
    without_mask: u64,
}

impl<'t> Totals<'t> {
    fn new(task: &'t SegmentTask, num_samples: usize) -> Totals<'t> {
        Totals {
            task,
            pooled: PooledScores::new(task.model.num_outputs()),
            table: ImageTable::new(num_samples),
            losses: PictureLosses::none(task),
            done: 0,
            without_mask: 0,
        }
    }

    /// Adds a picture; one without a mask has no scores.
    fn add(
        &mut self,
        sample: u32,
        scorer: &ImageScorer,
        scored: Option<&(PictureLosses, ImageScores)>,
    ) {
        self.done += 1;
        let Some((losses, scores)) = scored else {
            self.without_mask += 1;
            return;
        };
        self.losses.add(losses);
        self.table.add(sample, scores.mean());
        self.pooled.add(scorer, scores);
    }

    /// Adds the pictures of a process; `None` if the part has another shape.
    fn add_part(&mut self, part: OwnImages) -> Option<()> {
        for index in 0..part.samples.len() {
            let (scores, thresholds) = part.image(index)?;
            let losses = PictureLosses::from_numbers(self.task, part.losses(index))?;
            self.losses.add(&losses);
            self.table.add(part.samples[index], scores.mean());
            self.pooled.add_without_odds(&scores, thresholds.as_ref());
        }
        let [read, without_mask] = part.others;
        self.done += read as usize;
        self.without_mask += without_mask;
        self.pooled.add_odds(&part.odds).then_some(())
    }

    /// The threshold with the highest mean Dice; only for models with one output.
    fn best(&self) -> Option<CurvePoint> {
        self.pooled.curve()?.best()
    }

    /// The scores as fields; `detailed` adds those of each picture.
    fn scores(&self, samples: &Samples, detailed: bool) -> Value {
        let Totals { task, pooled, .. } = self;
        let mut scores = fields(&pooled.mean().per_image);
        let mut set = |name: &str, value: Value| scores.insert(name.to_owned(), value);
        set("pooled", Value::Object(fields(&pooled.mean().pooled)));
        if let Some(best) = self.best() {
            set("threshold", json!(task.model.threshold));
            // Rounded: an f32 prints as more digits than the threshold has.
            set("best_threshold", json!(hundredths(best.threshold)));
            set(TUNED_DICE, json!(best.dice));
        }
        if task.model.num_outputs() > 1 {
            set("classes", class_rows(task, &pooled.classes()));
        }
        set("pictures", json!(pooled.images()));
        let protocol = examples::protocol(task, pooled, samples);
        set("protocol", json!(protocol));
        set("skipped", json!(samples.len() - self.done));
        if self.without_mask > 0 {
            set("without_mask", json!(self.without_mask));
        }
        if detailed {
            set("images", self.table.rows(samples));
        }
        Value::Object(scores)
    }
}

/// Results of one process, until all processes exchange theirs. Each list has the same count of numbers per picture.
#[derive(Default)]
struct OwnImages {
    samples: Vec<u32>,
    figures: Vec<f64>,
    counts: Vec<u64>,
    thresholds: Vec<u64>,
    losses: Vec<f64>,
    /// Over all pictures of the process.
    odds: Vec<u64>,
    /// Number of pictures that were read, and number of those without a mask.
    others: [u64; 2],
}

impl OwnImages {
    fn add(&mut self, sample: u32, scores: &ImageScores, thresholds: Option<&ThresholdCounts>) {
        let (figures, counts) = scores.numbers();
        self.samples.push(sample);
        self.figures.extend(figures);
        self.counts.extend(counts);
        let thresholds = thresholds.map_or(&[][..], ThresholdCounts::numbers);
        self.thresholds.extend(thresholds);
    }

    fn to_part(&self) -> PartWriter {
        let part = PartWriter::default().numbers(&self.samples);
        let part = part.numbers(&self.figures).numbers(&self.counts);
        let part = part.numbers(&self.thresholds).numbers(&self.losses);
        let part = part.numbers(&self.odds);
        part.numbers(&self.others)
    }

    fn read(mut part: PartReader<'_>) -> Option<OwnImages> {
        Some(OwnImages {
            samples: part.numbers()?,
            figures: part.numbers()?,
            counts: part.numbers()?,
            thresholds: part.numbers()?,
            losses: part.numbers()?,
            odds: part.numbers()?,
            others: part.numbers()?.try_into().ok()?,
        })
    }

    /// The numbers of one picture from a list with equally many per picture.
    fn of<'a, T>(&self, all: &'a [T], index: usize) -> &'a [T] {
        let each = all.len() / self.samples.len();
        &all[index * each..][..each]
    }

    fn losses(&self, index: usize) -> &[f64] {
        self.of(&self.losses, index)
    }

    fn image(&self, index: usize) -> Option<(ImageScores, Option<ThresholdCounts>)> {
        let figures = self.of(&self.figures, index);
        let scores = ImageScores::from_numbers(figures, self.of(&self.counts, index))?;
        let thresholds = match self.of(&self.thresholds, index) {
            [] => None,
            numbers => Some(ThresholdCounts::from_numbers(numbers)?),
        };
        Some((scores, thresholds))
    }
}

/// `None` for a picture without a mask.
pub(super) fn score(segmented: Segmented<'_>) -> Option<ImageScores> {
    let picture = segmented.picture;
    let truth_hw = picture.mask.as_deref()?;
    let image = Image {
        size: [picture.height, picture.width],
        truth_hw,
        probabilities_hwk: segmented.probabilities_hwk,
    };
    Some(segmented.scorer.score(&image))
}

fn no_masks(samples: &Samples) -> TrainError {
    TrainError::Config(format!(
        "none of {} pictures has a mask: nothing to evaluate\nhint: `holdall predict` needs no masks",
        samples.len()
    ))
}

/// Thresholds are whole hundredths.
pub(super) fn hundredths(threshold: f32) -> f64 {
    f64::from((threshold * 100.0).round()) / 100.0
}

/// Metrics by name, in the order of [`METRICS`].
pub(super) fn fields(scores: &MaskScores) -> Map<String, Value> {
    let each = METRICS.iter().zip(scores.values());
    each.map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect()
}

fn class_rows(task: &SegmentTask, classes: &[PerImageAndPooled]) -> Value {
    let names = task.model.classes.iter().skip(1);
    let rows = names.zip(classes).map(|(name, class)| {
        let mut row = fields(&class.per_image);
        row.insert("class".to_owned(), json!(name));
        row.insert("pooled".to_owned(), Value::Object(fields(&class.pooled)));
        Value::Object(row)
    });
    rows.collect()
}

/// Mean Dice at the threshold where it is highest.
pub(super) const TUNED_DICE: &str = "dice_at_best_threshold";

/// Whether the model that is best by this metric is saved with the best threshold of its evaluation: for Dice at that threshold,
/// and for metrics without a threshold. Other metrics are computed at the model's own threshold, which the model keeps.
pub(super) fn tunes_threshold(best_metric: Option<&str>) -> bool {
    best_metric.is_none_or(|metric| [TUNED_DICE, "auc", "pooled.auc", LOSS].contains(&metric))
}

/// Metric and direction that choose the best model. The default with one class is Dice at the threshold that is saved with the
/// model.
pub(super) fn best_metric(
    task: &SegmentTask,
    asked: Option<&str>,
) -> Result<(String, Direction), TrainError> {
    let usual = match task.model.num_outputs() {
        1 => TUNED_DICE,
        _ => METRICS[0],
    };
    let asked = asked.unwrap_or(usual);
    let metric = asked.strip_prefix("pooled.").unwrap_or(asked);
    let is_pooled = metric != asked;
    let is_known = METRICS.contains(&metric) && !(is_pooled && metric == "hd95");
    if !is_known && asked != usual {
        return Err(TrainError::Config(format!(
            "train.best_metric: {asked}, expected one of {}, dice_at_best_threshold, loss, or one of the first but hd95 as pooled.dice\nhint: leave it out for {usual}",
            METRICS.join(", ")
        )));
    }
    let direction = if metric == "hd95" {
        Direction::Lower
    } else {
        Direction::Higher
    };
    Ok((asked.to_owned(), direction))
}

/// The evaluation protocol, for the log.
pub(super) fn describe_size(scores: &Scores) -> Option<String> {
    #[derive(Deserialize)]
    struct Protocol {
        protocol: String,
    }
    let Protocol { protocol } = scores.read()?;
    Some(protocol)
}

/// One line of means per picture, one of pooled metrics, and with several classes one per class.
pub(super) fn describe_scores(scores: &Scores) -> String {
    let line = |name: &str, prefix: &str| {
        let words = METRICS.iter().filter_map(|metric| {
            let value = scores.number(&format!("{prefix}{metric}"))?;
            Some(format!("{} {}", word(metric), shown(metric, value)))
        });
        format!("  {name:13} {}", words.collect::<Vec<_>>().join(", "))
    };
    let mut lines = vec![line("per image", ""), line("pooled", "pooled.")];
    let numbers = ["threshold", "best_threshold", TUNED_DICE];
    if let [Some(threshold), Some(best), Some(dice)] = numbers.map(|name| scores.number(name)) {
        lines.push(format!(
            "  {:13} {threshold:.2}; the best is {best:.2}, with Dice {} per image",
            "threshold",
            percent(dice)
        ));
    }
    for class in scores.list("classes").unwrap_or_default() {
        let words = METRICS.iter().filter_map(|metric| {
            let value = class[*metric].as_f64()?;
            Some(format!("{} {}", word(metric), shown(metric, value)))
        });
        let name: String = class["class"]
            .as_str()
            .unwrap_or("")
            .chars()
            .take(24)
            .collect();
        let words: Vec<String> = words.collect();
        lines.push(format!("    {name:11} {}", words.join(", ")));
    }
    lines.join("\n")
}

fn word(metric: &str) -> &str {
    match metric {
        "dice" => "Dice",
        "iou" => "IoU",
        "mcc" => "MCC",
        "auc" => "AUC",
        "hd95" => "HD95",
        "cldice" => "clDice",
        other => other,
    }
}

fn shown(metric: &str, value: f64) -> String {
    match metric {
        "hd95" => format!("{value:.1} px"),
        "mcc" | "auc" => format!("{value:.3}"),
        _ => percent(value),
    }
}
