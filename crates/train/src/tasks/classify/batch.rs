//! Pictures and targets as the columns of a batch.

use holdall_data::loader::Loaded;
use holdall_data::samples::{Mix, Samples, TargetKind, TargetValues};
use holdall_device::HostRow;
use holdall_models::init::Draw;

use super::{ClassifyTask, Head};
use crate::engine::batch::{Batch, Column, IGNORED, Scope, Values, random_bytes};
use crate::engine::step_graph::{SAMPLE_IDS, STREAM};
use crate::engine::task::Task;

/// Pictures, `[b, height, width, 3]`.
pub(super) const PIXELS: &str = "pixels";
/// Pictures of the mixup partners.
pub(super) const PARTNER_PIXELS: &str = "partner pixels";
/// Mixup's lambda and cutmix's box, `[b, 5]`.
pub(super) const MIX: &str = "mix";

/// Targets of one head.
pub enum Targets<'a> {
    /// Label index per sample; negative means unknown.
    Class(&'a [i64]),
    /// One number per output: 0 or 1 for labels; NaN means unknown.
    Numbers(&'a [f32]),
}

/// Builds a batch from pictures and one entry of targets per head. With mixup or cutmix, the pictures must be bytes.
pub fn batch_of(task: &ClassifyTask, pixels: Values, targets: &[Targets<'_>]) -> Batch {
    let num_samples = match (targets.first(), task.heads.first()) {
        (Some(Targets::Class(labels)), _) => labels.len(),
        (Some(Targets::Numbers(numbers)), Some(head)) => numbers.len() / head.num_outputs(),
        _ => 0,
    };
    let mut batch = Batch {
        num_samples,
        columns: vec![Column {
            endpoint: PIXELS.to_owned(),
            scope: Scope::MicroBatch,
            values: pixels,
        }],
    };
    let ids: Vec<u32> = (0..num_samples as u32).collect();
    set_stream(task, &mut batch, &ids, 0);
    let mixes = mixes(task, &mut batch, &ids, 0);
    if let (true, Values::Bytes(pixels)) = (task.mixing.is_on(), &batch.columns[0].values) {
        let each = task.picture_bytes();
        let partners = mixes
            .iter()
            .flat_map(|mix| &pixels[mix.partner * each..][..each]);
        let values = Values::Bytes(partners.copied().collect());
        batch.columns.push(Column {
            endpoint: PARTNER_PIXELS.to_owned(),
            scope: Scope::MicroBatch,
            values,
        });
    }
    set_targets(
        &task.heads,
        &mut batch,
        &mixes,
        task.mixing.is_on(),
        targets,
    );
    batch
}

/// Writes the targets of all heads.
pub(in crate::tasks) fn set_targets(
    heads: &[Head],
    batch: &mut Batch,
    mixes: &[Mix],
    is_mixed: bool,
    targets: &[Targets<'_>],
) {
    for (head, targets) in heads.iter().zip(targets) {
        match targets {
            Targets::Class(labels) => set_labels(head, batch, mixes, is_mixed, |row| labels[row]),
            Targets::Numbers(numbers) => {
                let width = head.num_outputs();
                set_numbers(head, batch, mixes, |row, output| {
                    numbers[row * width + output]
                });
            }
        }
    }
}

pub(super) fn fill(task: &ClassifyTask, batch: &mut Batch, loaded: &Loaded<HostRow>, epoch: u64) {
    let train = task.train.as_ref();
    let train = train.expect("a task that was prepared with data");
    batch.num_samples = loaded.rows.len();
    batch.set_rows(PIXELS, loaded.rows.iter());
    set_stream(task, batch, &loaded.samples, epoch);
    let mixes = mixes(task, batch, &loaded.samples, epoch);
    if task.mixing.is_on() {
        batch.set_rows(
            PARTNER_PIXELS,
            mixes.iter().map(|mix| &loaded.rows[mix.partner]),
        );
    }
    let is_mixed = task.mixing.is_on();
    fill_targets(&task.heads, batch, &mixes, is_mixed, &loaded.samples, train);
}

/// Like [`set_targets`], from the data's targets at these rows.
pub(in crate::tasks) fn fill_targets(
    heads: &[Head],
    batch: &mut Batch,
    mixes: &[Mix],
    is_mixed: bool,
    rows: &[u32],
    samples: &Samples,
) {
    for (head, values) in heads.iter().zip(samples.targets()) {
        let sample = |row: usize| rows[row] as usize;
        match values {
            TargetValues::Class(labels) => {
                set_labels(head, batch, mixes, is_mixed, |row| {
                    i64::from(labels[sample(row)])
                });
            }
            TargetValues::Number(numbers) => {
                set_numbers(head, batch, mixes, |row, _| numbers[sample(row)]);
            }
            TargetValues::Classes(rows) => {
                set_numbers(head, batch, mixes, |row, output| {
                    match rows.get(sample(row)) {
                        None => f32::NAN,
                        Some(labels) => {
                            f32::from(u8::from(labels.binary_search(&(output as u32)).is_ok()))
                        }
                    }
                });
            }
        }
    }
}

/// Writes the inputs of the dropout masks: sample ids, and seed and epoch.
fn set_stream(task: &ClassifyTask, batch: &mut Batch, samples: &[u32], epoch: u64) {
    if !task.has_dropout() {
        return;
    }
    let ids = batch.indices(SAMPLE_IDS, Scope::MicroBatch);
    ids.clear();
    ids.extend(samples.iter().map(|&sample| i64::from(sample)));
    let stream = batch.indices(STREAM, Scope::Step);
    stream.clear();
    stream.extend([task.seed as i64, epoch as i64]);
}

/// Draws the mixup partners, and writes the `mix` column.
fn mixes(task: &ClassifyTask, batch: &mut Batch, samples: &[u32], epoch: u64) -> Vec<Mix> {
    let sides = [task.image_size() as u32; 2];
    let mixes = task.mixing.of_batch(task.seed, epoch, samples, sides);
    if task.mixing.is_on() {
        let column = batch.floats(MIX, Scope::MicroBatch);
        column.clear();
        for mix in &mixes {
            // Inside the box every pixel is the partner's. Outside, mixup blends by lambda; cutmix keeps the sample's own pixels.
            let numbers = match mix.cut {
                Some(cut) => [1, cut.y0, cut.x0, cut.y1, cut.x1].map(|number| number as f32),
                None => [mix.lambda, 0.0, 0.0, 0.0, 0.0],
            };
            column.extend(numbers);
        }
    }
    mixes
}

fn set_labels(
    head: &Head,
    batch: &mut Batch,
    mixes: &[Mix],
    is_mixed: bool,
    label: impl Fn(usize) -> i64,
) {
    let weight = |label: i64| match usize::try_from(label) {
        Err(_) => 0.0,
        Ok(_) if head.weighs_smoothing() => 1.0,
        Ok(label) => head.class_weight(label),
    };
    if head.weighs_smoothing() {
        let weights = batch.floats(&head.endpoints.class_weights, Scope::Step);
        weights.clone_from(&head.class_weights);
    }
    let names = &head.endpoints;
    let mut set = |labels_name: &str, weights_name: &str, of: &dyn Fn(usize) -> (i64, f32)| {
        let rows = 0..mixes.len();
        let labels = batch.indices(labels_name, Scope::OwnBatch);
        labels.clear();
        labels.extend(rows.clone().map(|row| of(row).0.max(IGNORED)));
        let weights = batch.floats(weights_name, Scope::OwnBatch);
        weights.clear();
        weights.extend(rows.map(|row| of(row).1));
    };
    set(&names.labels, &names.weights, &|row| {
        let own = label(row);
        (own, mixes[row].lambda * weight(own))
    });
    if is_mixed {
        set(&names.partner_labels, &names.partner_weights, &|row| {
            let partner = label(mixes[row].partner);
            (partner, (1.0 - mixes[row].lambda) * weight(partner))
        });
    }
}

fn set_numbers(
    head: &Head,
    batch: &mut Batch,
    mixes: &[Mix],
    number: impl Fn(usize, usize) -> f32,
) {
    let width = head.num_outputs();
    let (mean, std) = match head.kind {
        TargetKind::Number { mean, std } => (mean, std),
        TargetKind::Class { .. } | TargetKind::Classes { .. } => (0.0, 1.0),
    };
    let standardized = |number: f32| ((f64::from(number) - mean) / std) as f32;
    // Where the partner's number is unknown, the sample's own is the target.
    let mixed = |row: usize, output: usize| {
        let own = number(row, output);
        let Mix {
            partner, lambda, ..
        } = mixes[row];
        match number(partner, output) {
            partner if partner.is_nan() || lambda == 1.0 => own,
            partner => lambda * own + (1.0 - lambda) * partner,
        }
    };
    let pairs = (0..mixes.len()).flat_map(|row| (0..width).map(move |output| (row, output)));
    let targets = batch.floats(&head.endpoints.targets, Scope::OwnBatch);
    targets.clear();
    targets.extend(pairs.clone().map(|(row, output)| {
        let number = mixed(row, output);
        if number.is_nan() {
            0.0
        } else {
            standardized(number)
        }
    }));
    let weights = batch.floats(&head.endpoints.weights, Scope::OwnBatch);
    weights.clear();
    weights.extend(pairs.map(|(row, output)| {
        if number(row, output).is_nan() {
            0.0
        } else {
            head.class_weight(output)
        }
    }));
}

pub(super) fn count_losses(task: &ClassifyTask, batch: &Batch, counts: &mut [f64]) {
    count_heads(&task.heads, batch, task.mixing.is_on(), counts);
}

/// Denominators of the head losses.
pub(in crate::tasks) fn count_heads(
    heads: &[Head],
    batch: &Batch,
    is_mixed: bool,
    counts: &mut [f64],
) {
    let sum = |head: &Head, labels: &str, weights: &str| -> f64 {
        let weights = batch.read_floats(weights).iter();
        let weights = weights.map(|&weight| f64::from(weight));
        if !head.weighs_smoothing() {
            return weights.sum();
        }
        let labels = batch.read_indices(labels).iter();
        let of_label = labels
            .map(|&label| usize::try_from(label).map_or(0.0, |label| head.class_weight(label)));
        weights
            .zip(of_label)
            .map(|(weight, of_label)| weight * f64::from(of_label))
            .sum()
    };
    for (count, head) in counts.iter_mut().zip(heads) {
        let names = &head.endpoints;
        *count = sum(head, &names.labels, &names.weights);
        if let (TargetKind::Class { .. }, true) = (&head.kind, is_mixed) {
            *count += sum(head, &names.partner_labels, &names.partner_weights);
        }
    }
}

pub(super) fn random(task: &ClassifyTask, num_samples: usize, seed: u64) -> Batch {
    let mut draw = Draw::new(seed, "batch");
    let pixels = random_bytes(&mut draw, num_samples * task.picture_bytes());
    let drawn = random_targets(&task.heads, &mut draw, num_samples);
    let targets: Vec<Targets<'_>> = drawn.iter().map(OwnedTargets::targets).collect();
    batch_of(task, Values::Bytes(pixels), &targets)
}

/// Like [`Targets`], with owned values.
pub(in crate::tasks) enum OwnedTargets {
    Class(Vec<i64>),
    Numbers(Vec<f32>),
}

impl OwnedTargets {
    pub fn targets(&self) -> Targets<'_> {
        match self {
            OwnedTargets::Class(labels) => Targets::Class(labels),
            OwnedTargets::Numbers(numbers) => Targets::Numbers(numbers),
        }
    }
}

/// Draws random targets for each head.
pub(in crate::tasks) fn random_targets(
    heads: &[Head],
    draw: &mut Draw,
    num_samples: usize,
) -> Vec<OwnedTargets> {
    let mut of_head = |head: &Head| match &head.kind {
        TargetKind::Class { names } => {
            let drawn = (0..num_samples).map(|_| (draw.bits() % names.len() as u64) as i64);
            OwnedTargets::Class(drawn.collect())
        }
        kind => {
            let count = num_samples * head.num_outputs();
            let drawn = (0..count).map(|_| match kind {
                TargetKind::Number { mean, std } => (mean + std * draw.normal()) as f32,
                _ => (draw.bits() & 1) as f32,
            });
            OwnedTargets::Numbers(drawn.collect())
        }
    };
    heads.iter().map(&mut of_head).collect()
}
