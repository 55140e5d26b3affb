//! Which plan is the fastest: predictions name a few, the card decides.
//!
//! ```text
//! contenders by prediction -> a few runs of each one's programs on noise -> the fastest, remembered on disk
//! ```
//!
//! Steps of a few micro-batches are run whole, longer ones are told from a few runs of each program (`stage_times`). The
//! race ends when its time is up: whoever waits for the first step has that in mind, not the last few per cent.
//!
//! What was measured is known by a text of everything that it depends on: the next start with the same text takes the
//! same plan and runs nothing. A file that cannot be read or written is as good as none.

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

/// How a plan is chosen on a GPU.
pub enum Choosing<'a> {
    /// By what was measured earlier, else by prediction: nothing runs.
    Predicted,
    /// By running what might be the fastest; lines for people go to the function.
    Measured(&'a mut dyn FnMut(&str)),
    /// As the first process of the run has chosen.
    Taken(Choice),
}

/// Plans that are run, at most: each takes a second or two.
const MOST_CONTENDERS: usize = 4;

/// No further plan is run if it would end later than this, going by those before it.
const TIME_OF_RACE: Duration = Duration::from_secs(9);

/// Steps that are not counted: the driver loads code at its first use.
const WARM_UP_STEPS: usize = 2;

/// Steps whose median counts.
const COUNTED_STEPS: usize = 3;

/// Long steps are run fewer times, twice at least.
const LONG_ENOUGH: Duration = Duration::from_millis(1500);

/// What running a plan for the first time makes the driver load beside the forecast: 2.6 to 3.9 MiB were seen, two pages.
const LEFT_BY_RUNNING: u64 = 4 << 20;

/// Samples of the batch that is run. The rest of an effective batch is padding, which costs the card the same and the
/// host nothing.
const MOST_SAMPLES: usize = 512;

/// What a plan was measured to take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timing {
    choice: Choice,
    step_ms: f64,
}

/// Chooses a plan for a GPU.
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
        // A run that goes on has its split; what is open changes no bits, and was measured when it began.
        Choosing::Measured(tell) if request.kept.is_none() => tell,
        _ => return Ok(plan(request, &build, &*target)?),
    };
    // The first that runs leaves more in the process than was foreseen: all must stay within the budget with that.
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
    // Algorithms are chosen once, for whatever wins: that is no part of the race.
    let choosing = || device.gpu().map_or(Duration::ZERO, Cuda::time_of_choosing);
    let chosen_before = choosing();
    let timings = race(
        &plans,
        &mut |plan| run_for_real(setup, device, plan, &batch),
        &|| began.elapsed().saturating_sub(choosing() - chosen_before),
        tell,
    )?;
    // What they have made the driver load stays loaded, and memory of their captured programs is kept for the next ones.
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

/// Where the plan of the first process has no room.
pub(crate) fn does_not_fit_here(choice: &Choice) -> TrainError {
    TrainError::DoesNotFit(format!(
        "{} x {}, recompute {}: the plan of the first process does not fit here\n\
         hint: a smaller --memory on all processes, or end what else uses the memory of this machine",
        choice.batch_size,
        choice.gradient_accumulation,
        choice.recompute.label()
    ))
}

/// Runs contenders as long as there is time, the first whatever it takes; tells the times of those that could be run, fastest
/// first. One whose memory is not there is out.
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

/// The fastest by its time that fits into the budget where the process holds `held` bytes without an arena. It takes over what
/// the first knows of other ways.
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

/// Puts times into a plan: measured ones where there are, elsewhere predictions scaled by what the chosen plan was found to
/// take, so that they can still be compared with it.
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

/// Milliseconds of a step, its memory reserved and given back.
fn run_for_real(
    setup: &Setup,
    device: &Device,
    plan: &Plan,
    batch: &Batch,
) -> Result<f64, TrainError> {
    let batch_size = plan.chosen.choice.batch_size;
    // One process measures: what it would exchange is left out.
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
        // The same places; programs are made ready for the slots that will be used alone.
        made.kept = made.kept.min(1 + MOST_RUNS_OF_A_GROUP);
    }
    let mut step = Step::new(device, config, made, batch_size)?;
    // Small and never all zero: a card computes faster on zeros, and slower on what is not a number.
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

/// Milliseconds of a step, told from whole ones.
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
        // The next batch travels meanwhile, as it does where it is at hand.
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

/// Where times are kept, and what they hold for.
struct Remembered {
    file: PathBuf,
    key: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    key: String,
    /// Fastest first.
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

    /// What was measured, fastest first; never empty.
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
        // What cannot be kept is measured again.
        let _ = fs::create_dir_all(folder)
            .and_then(|()| holdall_files::write_shared(&self.file, text.as_bytes()));
    }
}

/// All that times depend on; numbers that change no time are left out.
fn key(card: &str, asked: &Request, step: &StepConfig) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("holdall {version}\n{card}\n{asked:?}\n{step:?}")
}

#[cfg(test)]
mod tests;
