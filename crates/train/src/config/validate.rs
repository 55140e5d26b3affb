//! Range checks of config values.

use holdall_data::config::DataConfig;

use super::choices::{Count, EvalEvery};
use super::{RunConfig, TrainSection};
use crate::error::TrainError;

/// Upper bounds that catch typing errors.
const MOST_LABELS: usize = 1 << 24;
const MOST_THREADS: usize = 1024;

/// A value out of range.
pub(crate) struct Wrong {
    /// Dotted path of the key.
    pub(super) path: String,
    found: String,
    expected: String,
    pub(super) hint: &'static str,
}

impl Wrong {
    /// The value found, and the range expected.
    pub(super) fn what(&self) -> String {
        format!("{}, expected {}", self.found, self.expected)
    }
}

impl From<Wrong> for TrainError {
    fn from(wrong: Wrong) -> TrainError {
        TrainError::Config(format!(
            "{}: {}\nhint: {}",
            wrong.path,
            wrong.what(),
            wrong.hint
        ))
    }
}

impl RunConfig {
    /// Refuses values out of range, and combinations that contradict each other.
    pub fn validate(&self) -> Result<(), TrainError> {
        check_numbers(self)?;
        check_together(self)?;
        Ok(())
    }
}

pub(crate) fn check(
    is_right: bool,
    path: &str,
    found: impl std::fmt::Display,
    expected: &str,
    hint: &'static str,
) -> Result<(), Wrong> {
    if is_right {
        return Ok(());
    }
    Err(Wrong {
        path: path.to_owned(),
        found: found.to_string(),
        expected: expected.to_owned(),
        hint,
    })
}

/// Checks of single values, which each layer must pass on its own.
pub(super) fn check_numbers(config: &RunConfig) -> Result<(), Wrong> {
    check_machine(config)?;
    config.losses.check_numbers()?;
    config.unet.check_values()?;
    config.video_text.check_values()?;
    config.generation.check_numbers()?;
    check_rates(&config.train)?;
    check_moments(&config.train)?;
    if let Some(lora) = &config.train.lora {
        lora.check_numbers()?;
    }
    check_data(&config.data)
}

fn check_machine(config: &RunConfig) -> Result<(), Wrong> {
    if let Some(labels) = config.labels {
        check(
            (1..=MOST_LABELS).contains(&labels),
            "labels",
            labels,
            &format!("1 to {MOST_LABELS}"),
            "leave `labels` out for no label head",
        )?;
    }
    if let Some(threads) = config.num_threads {
        check(
            (1..=MOST_THREADS).contains(&threads),
            "num_threads",
            threads,
            &format!("1 to {MOST_THREADS}"),
            "leave it out for one per core",
        )?;
    }
    if let Count::Exactly(workers) = config.num_workers {
        check(
            workers <= MOST_THREADS,
            "num_workers",
            workers,
            &format!("auto, or 0 to {MOST_THREADS}"),
            "`num_workers: auto` suits the machine",
        )?;
    }
    if let Count::Exactly(prefetch) = config.prefetch {
        check(
            prefetch > 0,
            "prefetch",
            prefetch,
            "auto, or at least 1",
            "`prefetch: auto` suits the machine",
        )?;
    }
    Ok(())
}

fn check_rates(train: &TrainSection) -> Result<(), Wrong> {
    let positive = |number: f64| number.is_finite() && number > 0.0;
    check(
        train.lr.is_none_or(positive),
        "train.lr",
        train.rate(),
        "a number above 0",
        "`lr: 1e-3`; without it, task and weights decide",
    )?;
    check(
        train.lr_head.is_none_or(positive),
        "train.lr_head",
        train.head_rate(),
        "a number above 0",
        "`lr_head: 1e-3` is usual for a new head",
    )?;
    for (pattern, rate) in &train.lr_by.0 {
        check(
            rate.is_finite() && *rate >= 0.0,
            &format!("train.lr_by.{pattern}"),
            rate,
            "a number of at least 0",
            "`lr_by: {\"vision_model.*\": 1e-6}`; 0 holds them still",
        )?;
    }
    check(
        (0.0..=1.0).contains(&train.lr_end),
        "train.lr_end",
        train.lr_end,
        "0 to 1, a share of the learning rate",
        "`lr_end: 0.1` leaves a tenth of `lr` at the end of the cosine",
    )?;
    if let Some(norm) = train.clip_norm {
        check(
            positive(norm),
            "train.clip_norm",
            norm,
            "a number above 0, or none",
            "`clip_norm: 1.0`",
        )?;
    }
    let optimizer = &train.optimizer;
    for (path, beta) in [
        ("train.optimizer.beta1", optimizer.beta1),
        ("train.optimizer.beta2", optimizer.beta2),
    ] {
        check(
            (0.0..1.0).contains(&beta),
            path,
            beta,
            "at least 0 and less than 1",
            "`optimizer: {beta1: 0.9, beta2: 0.98}`",
        )?;
    }
    if let Some(decay) = train.ema {
        check(
            decay > 0.0 && decay < 1.0,
            "train.ema",
            decay,
            "a decay above 0 and below 1, or none",
            "`ema: 0.999` averages over about a thousand steps",
        )?;
    }
    if let Some(share) = train.interpolate {
        check(
            share > 0.0 && share < 1.0,
            "train.interpolate",
            share,
            "a share above 0 and below 1, or none",
            "`interpolate: 0.5` evaluates and exports the middle between the starting and the trained weights",
        )?;
    }
    check(
        positive(optimizer.eps),
        "train.optimizer.eps",
        optimizer.eps,
        "a number above 0",
        "`eps: 1e-6`",
    )?;
    check(
        optimizer.weight_decay.is_finite() && optimizer.weight_decay >= 0.0,
        "train.optimizer.weight_decay",
        optimizer.weight_decay,
        "a number of at least 0",
        "`weight_decay: 0.1`, or 0 for none",
    )
}

fn check_moments(train: &TrainSection) -> Result<(), Wrong> {
    check(
        train.epochs != Some(0),
        "train.epochs",
        0,
        "at least 1",
        "`holdall plan` looks at a run without training",
    )?;
    check(
        train.max_steps != Some(0),
        "train.max_steps",
        0,
        "at least 1",
        "leave it out, and `epochs` say how long a run is",
    )?;
    for (key, share) in [
        ("train.dropout", train.dropout),
        ("train.stochastic_depth", train.stochastic_depth),
    ] {
        check(
            (0.0..1.0).contains(&share),
            key,
            share,
            "a share from 0 to below 1",
            "0.1 drops a tenth; 0 leaves it out",
        )?;
    }
    check(
        train.eval_batch_size != Some(0),
        "train.eval_batch_size",
        0,
        "at least 1",
        "leave it out for the batch size of the training",
    )?;
    check(
        train.early_stop != Some(0),
        "train.early_stop",
        0,
        "at least 1 evaluation, or none",
        "`early_stop: 5` ends a run after five evaluations without improvement",
    )?;
    let splits = format!("{:?}", train.eval_on).to_lowercase();
    let mut seen = Vec::new();
    for split in &train.eval_on {
        check(
            !seen.contains(split),
            "train.eval_on",
            &splits,
            "each split once",
            "`eval_on: [validation, train]`",
        )?;
        seen.push(*split);
    }
    check(
        !seen.is_empty(),
        "train.eval_on",
        &splits,
        "validation, train or both",
        "`eval_every: none` evaluates nothing",
    )
}

fn check_data(data: &DataConfig) -> Result<(), Wrong> {
    check(
        data.augment.crop > 0.0 && data.augment.crop <= 1.0,
        "data.augment.crop",
        data.augment.crop,
        "above 0, at most 1",
        "`crop: 1` leaves pictures whole",
    )?;
    let augment = &data.augment;
    for (key, spread) in [
        ("data.augment.brightness", augment.brightness),
        ("data.augment.contrast", augment.contrast),
        ("data.augment.saturation", augment.saturation),
    ] {
        check(
            spread >= 0.0 && spread.is_finite(),
            key,
            spread,
            "0 or more",
            "0.4 multiplies by 0.6 to 1.4; 0 leaves it alone",
        )?;
    }
    check(
        (0.0..=0.5).contains(&augment.hue),
        "data.augment.hue",
        augment.hue,
        "0 to 0.5",
        "in turns: 0.1 turns hues by up to 36 degrees; 0 leaves them alone",
    )
}

/// Checks of combinations, which only the merged config must pass.
fn check_together(config: &RunConfig) -> Result<(), Wrong> {
    config.losses.check_together()?;
    config.generation.check_together()?;
    check(
        config.train.interpolate.is_none() || config.train.ema.is_none(),
        "train.interpolate",
        config.train.interpolate.unwrap_or_default(),
        "no `ema` beside it: one kind of average is evaluated and exported",
        "leave one of the two out",
    )?;
    check(
        config.train.interpolate.is_none() || config.train.lora.is_none(),
        "train.interpolate",
        config.train.interpolate.unwrap_or_default(),
        "no `lora` beside it: the middle between two adapters is not that of two models",
        "leave `interpolate` out; a smaller `alpha` in adapter_config.json merges less of an adapter",
    )?;
    check(
        config.train.early_stop.is_none() || config.train.eval_every != EvalEvery::Never,
        "train.early_stop",
        config.train.early_stop.unwrap_or_default(),
        "evaluations to judge by, but `eval_every` is none",
        "`eval_every: epoch`",
    )
}
