//! Chooses the fastest plan: predictions select a few contenders, and the GPU decides between them.
//!
//! ```text
//! contenders by prediction -> a few runs of each one's programs on noise -> the fastest, remembered on disk
//! ```
//!
//! Steps of a few micro-batches are run whole; the time of longer steps is estimated from a few runs of each program (`stage_times`). The
//! race ends after a fixed time, because the user waits for the first step and not for the last few per cent of speed.
//!
//! Measured times are cached under a text of everything that they depend on: the next start with the same text takes the same plan and runs
//! nothing. A cache file that cannot be read or written is ignored.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdall_device::cuda::Cuda;
use holdall_device::cuda::compile::cache_folder;
use holdall_device::{Device, DeviceError};
use holdall_files::SplitMix64;
use holdall_graph::ops::collective::Processes;
use holdall_plan::{
    Candidate, Choice, Plan, PlanError, Request, StepShape, contenders, plan, plan_of,
    without_dominated,
};
use serde::{Deserialize, Serialize};

use crate::config::budget::show_time;
use crate::engine::batch::Batch;
use crate::engine::optimizer::StepScalars;
use crate::engine::step::Step;
use crate::engine::step_graph::{StepConfig, write_step};
use crate::error::TrainError;
use crate::planning::setup::{Setup, hold_more};

mod stage_times;

use stage_times::{MOST_RUNS_OF_A_GROUP, MOST_RUNS_OF_A_WHOLE_STEP, RunsOfStep, step_seconds};

/// How to choose a plan on a GPU.
pub enum Choosing<'a> {
    /// By cached measurements, otherwise by prediction; nothing runs.
    Predicted,
    /// By running the contenders; the function receives lines for the user.
    Measured(&'a mut dyn FnMut(&str)),
    /// The choice of the run's first process.
    Taken(Choice),
}

/// Maximum number of plans that are run: each takes a second or two.
const MOST_CONTENDERS: usize = 4;

/// Time limit: a further plan runs only if it should end before it, judged by the earlier ones.
const TIME_OF_RACE: Duration = Duration::from_secs(9);

/// Steps before the measurement, because the driver loads code at its first use.
const WARM_UP_STEPS: usize = 2;

/// Measured steps, of which the median counts.
const COUNTED_STEPS: usize = 3;

/// Time after which a contender runs no more steps; every contender runs at least twice.
const LONG_ENOUGH: Duration = Duration::from_millis(1500);

/// Memory that the driver takes when a plan first runs, beside the forecast: 2.6 to 3.9 MiB, two pages, were measured.
const LEFT_BY_RUNNING: u64 = 4 << 20;

/// Samples of the batch that is run. The rest of an effective batch is padding, which costs the same time on the GPU and
/// nothing on the host.
const MOST_SAMPLES: usize = 512;

/// Measured time of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timing {
    choice: Choice,
    step_ms: f64,
}

pub(crate) fn choose(
    setup: &Setup,
    device: &Device,
    choosing: Choosing<'_>,
) -> Result<Plan, TrainError> {
    let build = |shape: &StepShape| setup.write(shape);
    let (request, arithmetic) = (&setup.request, setup.step.arithmetic);
    let target = device.target(arithmetic, 0)?;
    if let Choosing::Taken(choice) = choosing {
        let taken = plan_of(&choice, request, &build, &*target)?;
        return taken.ok_or_else(|| does_not_fit_here(&choice));
    }
    let remembered = Remembered::new(setup, device);
    if let Some(timings) = remembered.as_ref().and_then(Remembered::read)
        && let Some(mut plan) = plan_of(&timings[0].choice, request, &build, &*target)?
    {
        tell_times(&mut plan, &timings);
        return Ok(plan);
    }
    let tell = match choosing {
        // A resumed run has its split; the open settings change no bits, and were measured when the run began.
        Choosing::Measured(tell) if request.kept.is_none() => tell,
        _ => return Ok(plan(request, &build, &*target)?),
    };
    // The first plan that runs leaves memory in the process beyond the forecast: all plans must fit the budget with it.
    let within = Request {
        budget_bytes: request
            .budget_bytes
            .map(|bytes| bytes.saturating_sub(LEFT_BY_RUNNING)),
        ..request.clone()
    };
    let mut plans = match contenders(&within, &build, &*target, MOST_CONTENDERS) {
        Err(PlanError::DoesNotFit { .. }) => return Ok(plan(request, &build, &*target)?),
        found => found?,
    };
    if plans.len() == 1 {
        return Ok(plans.remove(0));
    }
    let samples = plans[0].effective_batch.min(MOST_SAMPLES);
    let batch = setup.step.random_batch(samples, setup.seed);
    let began = Instant::now();
    // Algorithms are chosen once, for any winner: their time does not count.
    let choosing = || device.gpu().map_or(Duration::ZERO, Cuda::time_of_choosing);
    let chosen_before = choosing();
    let timings = race(
        &plans,
        &mut |plan| run_for_real(setup, device, plan, &batch),
        &|| began.elapsed().saturating_sub(choosing() - chosen_before),
        tell,
    )?;
    // The code that the driver loaded stays loaded, and the memory of captured programs is kept for the next ones.
    let held = device.held_bytes().unwrap_or(0);
    match winner(plans, &timings, held, setup.budget_bytes) {
        Some(plan) => {
            if let Some(remembered) = &remembered {
                remembered.write(&timings);
            }
            Ok(plan)
        }
        None => Ok(plan(request, &build, &*device.target(arithmetic, 0)?)?),
    }
}

/// Error for a process where the first process's plan does not fit.
pub(crate) fn does_not_fit_here(choice: &Choice) -> TrainError {
    TrainError::DoesNotFit(format!(
        "{} x {}, recompute {}: the plan of the first process does not fit here\n\
         hint: a smaller --memory on all processes, or end what else uses the memory of this machine",
        choice.batch_size,
        choice.gradient_accumulation,
        choice.recompute.label()
    ))
}

/// Runs contenders within the time limit, the first in any case. Returns the times of those that could run, fastest first. A
/// contender whose memory is not available is dropped.
fn race(
    plans: &[Plan],
    run: &mut dyn FnMut(&Plan) -> Result<f64, TrainError>,
    elapsed: &dyn Fn() -> Duration,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Timing>, TrainError> {
    let mut timings = Vec::new();
    let mut longest = Duration::ZERO;
    for (index, plan) in plans.iter().enumerate() {
        let began = elapsed();
        if index > 0 && began + longest > TIME_OF_RACE {
            tell(&format!(
                "Measured {index} of {} plans in {:.1} s: the fastest of them is taken",
                plans.len(),
                began.as_secs_f64()
            ));
            break;
        }
        let chosen = &plan.chosen;
        let (result, words) = match run(plan) {
            Ok(step_ms) => (Some(step_ms), format!("{} a step", show_time(step_ms))),
            Err(TrainError::Device(DeviceError::Memory { .. }) | TrainError::DoesNotFit(_)) => {
                (None, "left out: its memory is not there".to_owned())
            }
            Err(error) => return Err(error),
        };
        longest = longest.max(elapsed() - began);
        tell(&format!(
            "Measured plan {} of {}: {} x {}, recompute {}: {words} ({} predicted)",
            index + 1,
            plans.len(),
            chosen.choice.batch_size,
            chosen.choice.gradient_accumulation,
            chosen.choice.recompute.label(),
            show_time(chosen.step_ms),
        ));
        timings.extend(result.map(|step_ms| Timing {
            choice: chosen.choice,
            step_ms,
        }));
    }
    timings.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    Ok(timings)
}

/// The fastest measured plan that fits the budget if the process holds `held` bytes without an arena. It takes over the
/// alternatives and the curve of the first plan.
fn winner(
    plans: Vec<Plan>,
    timings: &[Timing],
    held: u64,
    budget_bytes: Option<u64>,
) -> Option<Plan> {
    let place = |plan: &Plan| {
        let choice = plan.chosen.choice;
        timings.iter().position(|timing| timing.choice == choice)
    };
    let unforeseen =
        |plan: &Plan| (held + plan.step.arena_bytes).saturating_sub(plan.step.process_bytes);
    let fits = |plan: &Plan| {
        let process_bytes = plan.step.process_bytes + unforeseen(plan);
        budget_bytes.is_none_or(|budget| process_bytes <= budget)
    };
    let fitting = plans.iter().enumerate().filter(|(_, plan)| fits(plan));
    let (index, _) = fitting
        .filter_map(|(index, plan)| Some((index, place(plan)?)))
        .min_by_key(|&(_, place)| place)?;
    let mut plans = plans.into_iter();
    let mut first = plans.next().expect("one of them was found above");
    let mut plan = match index {
        0 => first,
        _ => {
            let mut plan = plans.nth(index - 1).expect("one of them was found above");
            let choice = plan.chosen.choice;
            first.alternatives.retain(|other| other.choice != choice);
            plan.alternatives = vec![first.chosen];
            plan.alternatives.append(&mut first.alternatives);
            plan.suggestion = first.suggestion;
            plan.curve = first.curve;
            plan.curve.retain(|other| other.choice != choice);
            plan.curve.push(plan.chosen.clone());
            plan
        }
    };
    let more = unforeseen(&plan);
    hold_more(&mut plan, more);
    tell_times(&mut plan, timings);
    Some(plan)
}

/// Enters times into a plan: measured ones where available, otherwise predictions scaled by the ratio of the chosen plan, so
/// that they remain comparable.
fn tell_times(plan: &mut Plan, timings: &[Timing]) {
    let measured = |candidate: &Candidate| {
        let choice = candidate.choice;
        let found = timings.iter().find(|timing| timing.choice == choice);
        found.map(|timing| timing.step_ms)
    };
    let Some(step_ms) = measured(&plan.chosen) else {
        return;
    };
    let scale = step_ms / plan.chosen.step_ms;
    let others = plan.alternatives.iter_mut().chain(&mut plan.suggestion);
    let others = others.chain(&mut plan.curve);
    for candidate in others.chain([&mut plan.chosen]) {
        let found = measured(candidate);
        candidate.step_ms = found.unwrap_or(scale * candidate.step_ms);
        candidate.measured = found.is_some();
    }
    let curve = std::mem::take(&mut plan.curve);
    plan.curve = without_dominated(curve, &plan.chosen.choice);
}

/// Measures the milliseconds of a step; its memory is reserved and released.
fn run_for_real(
    setup: &Setup,
    device: &Device,
    plan: &Plan,
    batch: &Batch,
) -> Result<f64, TrainError> {
    let batch_size = plan.chosen.choice.batch_size;
    // A single process measures, without exchanges.
    let config = StepConfig {
        processes: Processes::default(),
        ..setup.step.clone()
    };
    let mut made = if setup.step.processes.is_alone() {
        plan.step.clone()
    } else {
        let build = |shape: &StepShape| write_step(&config, shape);
        let target = device.target(config.arithmetic, 0)?;
        let alone = plan_of(&plan.chosen.choice, &setup.request, &build, &*target)?;
        let alone = alone.ok_or_else(|| does_not_fit_here(&plan.chosen.choice));
        alone?.step
    };
    let runs = RunsOfStep {
        kept: made.kept,
        twice: made.accumulation - made.kept,
        coupled: made.coupled,
    };
    let is_whole = runs.count() <= MOST_RUNS_OF_A_WHOLE_STEP;
    if !is_whole {
        // The same layout; only the slots that will be used are prepared.
        made.kept = made.kept.min(1 + MOST_RUNS_OF_A_GROUP);
    }
    let mut step = Step::new(device, config, made, batch_size)?;
    // Small and never all zero: a GPU computes faster on zeros, and slower on NaN.
    let mut random = SplitMix64(0);
    step.set_weights(device, |_, values| -> Result<(), TrainError> {
        for value in values {
            *value = (random.unit() as f32 - 0.5) * 0.04;
        }
        Ok(())
    })?;
    let rates = vec![1e-6; setup.step.num_rates()];
    let scalars = |count: usize| StepScalars {
        step: count as u64,
        rates: &rates,
        loss_scale: 1.0,
    };
    if is_whole {
        return whole_steps(&mut step, device, batch, scalars);
    }
    step.start(batch, &scalars(1));
    let seconds = step_seconds(runs, &mut |runs| step.time_runs(device, batch, runs))?;
    Ok(seconds * 1e3)
}

/// Milliseconds of a step, measured on whole steps.
fn whole_steps<'a>(
    step: &mut Step,
    device: &Device,
    batch: &Batch,
    scalars: impl Fn(usize) -> StepScalars<'a>,
) -> Result<f64, TrainError> {
    let began = Instant::now();
    let mut times = Vec::new();
    for count in 1..=WARM_UP_STEPS + COUNTED_STEPS {
        let started = Instant::now();
        step.launch(device, batch, &scalars(count));
        // The next batch is uploaded meanwhile, as in training.
        step.preload(device, batch);
        step.finish()?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        if times.len() > 1 && began.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    let warm_up = WARM_UP_STEPS.min(times.len() - 1);
    let counted = &mut times[warm_up..];
    counted.sort_by(f64::total_cmp);
    Ok(counted[counted.len() / 2])
}

/// Cache file of measured times, and the text that they are valid for.
struct Remembered {
    file: PathBuf,
    key: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    key: String,
    timings: Vec<Timing>,
}

impl Remembered {
    fn new(setup: &Setup, device: &Device) -> Option<Remembered> {
        let card = device.gpu()?.identity()?;
        let key = key(&card, &setup.asked, &setup.step);
        Some(Remembered::within(&cache_folder()?, key))
    }

    fn within(folder: &Path, key: String) -> Remembered {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let name = format!("{:016x}.json", hasher.finish());
        Remembered {
            file: folder.join("plans").join(name),
            key,
        }
    }

    /// Cached times, fastest first; never empty.
    fn read(&self) -> Option<Vec<Timing>> {
        let text = fs::read_to_string(&self.file).ok()?;
        let contents: Contents = serde_json::from_str(&text).ok()?;
        let mut times = contents.timings.iter().map(|timing| timing.step_ms);
        let is_sound = contents.key == self.key
            && !contents.timings.is_empty()
            && times.all(|step_ms| step_ms.is_finite() && step_ms > 0.0);
        is_sound.then_some(contents.timings)
    }

    fn write(&self, timings: &[Timing]) {
        let contents = Contents {
            key: self.key.clone(),
            timings: timings.to_vec(),
        };
        let text = serde_json::to_string_pretty(&contents).expect("times are plain data");
        let folder = self.file.parent().expect("a file in a folder");
        // Times that cannot be cached are measured again.
        let _ = fs::create_dir_all(folder)
            .and_then(|()| holdall_files::write_shared(&self.file, text.as_bytes()));
    }
}

/// Text of everything that times depend on; settings that change no time are left out.
fn key(card: &str, asked: &Request, step: &StepConfig) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("holdall {version}\n{card}\n{asked:?}\n{step:?}")
}

#[cfg(test)]
mod tests;
