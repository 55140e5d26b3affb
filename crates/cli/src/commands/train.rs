//! `holdall train`: trains a model from a CSV within a memory budget.

mod arguments;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use holdall_device::Device;
use holdall_files::counted;
use holdall_processes::Group;
use holdall_train::TrainError;
use holdall_train::config::{RunConfig, TaskName};
use holdall_train::error::Diverged;
use holdall_train::planning::disk_space::DiskSpace;
use holdall_train::planning::plan_race::Choosing;
use holdall_train::planning::planned_run::PlannedRun;
use holdall_train::planning::processes;
use holdall_train::run::failure_file::FailureFile;
use holdall_train::run::report::Outcome;
use holdall_train::run::resume;
use holdall_train::run::trainer::{End, Trainer};
use holdall_train::run_folder::checkpoint::Checkpoint;
use holdall_train::run_folder::folder::{RunFolder, last_of, next_free};
use holdall_train::run_folder::sealed_config;
use holdall_train::tasks;

use crate::commands::{Opened, open_device_for, plan, report, tell_of_other_cards};
use crate::invocation::quoted;
use crate::options::is_yaml;
use crate::run_log;
use crate::screen::{packed, print, print_json, tell};
use crate::stop;
use crate::watch::{self, Watcher};

pub use self::arguments::{TrainArguments, TrainingOptions};

pub fn run(arguments: TrainArguments) -> Result<ExitCode> {
    run_log::begin();
    let request = TrainRequest::new(&arguments)?;
    let command = match (request.resume, request.guesses_label) {
        (true, _) => "train --resume",
        (false, true) => "train DATA",
        (false, false) => "train CONFIG",
    };
    let device = match open_device_for(command, &request.config, &arguments.options)? {
        Opened::Here(device) => device,
        Opened::Elsewhere(code) => return Ok(code),
    };
    tell_of_other_cards(&device);
    let outcome = train(request, device, arguments.options.output.json)?;
    Ok(match outcome {
        Outcome::Finished(_) | Outcome::FinishedByFirst | Outcome::NothingToDo => ExitCode::SUCCESS,
        Outcome::Interrupted { .. } => stop::exit_code(),
    })
}

/// The run that the arguments describe.
pub struct TrainRequest {
    pub config: RunConfig,
    pub out: PathBuf,
    pub resume: bool,
    /// Whether a label column may be guessed from its name.
    pub guesses_label: bool,
    pub tensorboard: bool,
    pub notes: Vec<String>,
}

impl TrainRequest {
    fn new(arguments: &TrainArguments) -> Result<TrainRequest> {
        if arguments.resume {
            return TrainRequest::resumed(arguments);
        }
        let target = arguments.target.as_deref();
        if let Some(run) = target.filter(|target| Path::new(target).join("config.yml").is_file()) {
            return Err(TrainError::Config(format!(
                "{run}: expected a config or data, found the folder of a run\n\
                 hint: holdall train --resume --out {} continues it; holdall train {} runs it again",
                quoted(Path::new(run)),
                quoted(&Path::new(run).join("config.yml"))
            ))
            .into());
        }
        let is_config = target.is_some_and(is_yaml);
        let mut config = arguments
            .options
            .over(target.filter(|_| is_config).map(Path::new))?;
        if let (false, Some(target)) = (is_config, target) {
            config.data.train = Some(PathBuf::from(target));
        }
        arguments.training.lay_over(&mut config);
        let out = config.out.clone();
        let out = out.unwrap_or_else(|| next_free(&run_name(&config, target)));
        config.out = Some(std::path::absolute(&out)?);
        Ok(TrainRequest {
            guesses_label: tasks::may_guess_label(&config, is_config),
            config,
            out,
            resume: false,
            tensorboard: arguments.tensorboard,
            notes: Vec::new(),
        })
    }

    /// An existing run with the typed options applied: the original command plus `--resume` is enough.
    fn resumed(arguments: &TrainArguments) -> Result<TrainRequest> {
        let target = arguments.target.as_deref();
        let run = target.filter(|target| Path::new(target).join("config.yml").is_file());
        let is_config = target.is_some_and(is_yaml);
        let typed_config = target.filter(|_| is_config).map(Path::new);
        let out = match (&arguments.training.out, run) {
            (Some(out), _) => out.clone(),
            (None, Some(run)) => PathBuf::from(run),
            (None, None) if target.is_none() && arguments.options.sets.is_empty() => {
                return Err(no_run_named());
            }
            (None, None) => {
                let typed = arguments.options.over(typed_config)?;
                match (typed.out.clone(), &typed.run_name, target) {
                    (Some(out), ..) => out,
                    (None, None, None) => return Err(no_run_named()),
                    (None, ..) => last_of(&run_name(&typed, target)),
                }
            }
        };
        let begun_file = out.join("config.yml");
        if !begun_file.is_file() {
            // Fails with a message on what is missing.
            RunFolder::open(&out)?;
        }
        sealed_config::check(&begun_file)?;
        let mut begun = RunConfig::read(&begun_file)?;
        let layers: Vec<&Path> = [Some(&*begun_file), typed_config]
            .into_iter()
            .flatten()
            .collect();
        let mut config = arguments.options.over_layers(&layers)?;
        if let (false, None, Some(data)) = (is_config, run, target) {
            config.data.train = Some(PathBuf::from(data));
        }
        arguments.training.lay_over(&mut config);
        config.out = begun.out.clone();
        if let Some(model) = tasks::model_of_older_run(&begun) {
            let is_same = config.model == begun.model;
            model.clone_into(&mut begun.model);
            if is_same {
                config.model.clone_from(&begun.model);
            }
        }
        let notes = resume::changes(&begun, &config)?;
        Ok(TrainRequest {
            config,
            out,
            resume: true,
            guesses_label: false,
            tensorboard: arguments.tensorboard,
            notes,
        })
    }
}

/// Name of a run's folder in `runs`: from the config's `run_name`, or the stem of the config or data file.
fn run_name(config: &RunConfig, target: Option<&str>) -> String {
    let stem = target.and_then(|target| Path::new(target).file_stem());
    let named = config.run_name.clone();
    named.unwrap_or_else(|| stem.map_or("run".into(), |stem| stem.to_string_lossy().into_owned()))
}

fn no_run_named() -> anyhow::Error {
    TrainError::Config(
        "--resume needs the folder of a run\n\
         hint: add --out RUN, or add --resume to the command that began the run"
            .to_owned(),
    )
    .into()
}

impl TrainRequest {
    /// Guesses the label from the columns where neither config nor arguments name one.
    fn guess_label(&mut self, group: &Group) -> Result<()> {
        if self.guesses_label {
            let note = tasks::guess_label_together(group, &mut self.config)?;
            self.notes.extend(note);
        }
        Ok(())
    }

    /// Takes over rank 0's choice of the run folder.
    fn take_folder_of_first(&mut self, group: &Group) -> Result<()> {
        if group.size() > 1 {
            (self.out, self.config.out) =
                processes::paths_of_first(group, &self.out, &self.config.out)?;
        }
        Ok(())
    }
}

/// Plans and trains; of several processes, only rank 0 writes files and messages.
pub fn train(mut request: TrainRequest, device: Device, json: bool) -> Result<Outcome> {
    let group = device.group().clone();
    let is_first = group.rank() == 0;
    let words = std::env::args_os();
    let command: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    run_log::begin();
    request.take_folder_of_first(&group)?;
    request.guess_label(&group)?;
    let TrainRequest {
        config,
        out,
        resume,
        tensorboard,
        notes,
        ..
    } = request;
    let (held, checkpoint) = open_folder(&out, resume, &group)?;
    let of_checkpoint = checkpoint.iter().flat_map(|checkpoint| &checkpoint.notes);
    for note in without_details(notes.iter().chain(of_checkpoint)) {
        tell(note);
    }
    let resumed_step = checkpoint.as_ref().map(|checkpoint| checkpoint.state.step);
    let Some(planned) = plan_run(config, device, checkpoint, json && is_first)? else {
        tell("Stopped before the first step: nothing was written");
        group.fail("stopped before the first step");
        let (step, total) = (resumed_step.unwrap_or(0), 0);
        return Ok(Outcome::Interrupted { step, total });
    };
    tell_plan(&planned, is_first.then_some(&*out))?;
    // Nothing was written so far: a signal ends the process at once, even while it reads or plans.
    let _orderly = stop::orderly(
        "Saving and stopping at the next micro-batch; Ctrl-C once more stops at once, without saving",
    );
    let folder = match held {
        None if is_first => Some(RunFolder::create(&out)?),
        held => held,
    };
    tell_run_folder(&planned, &out);
    if is_first {
        run_log::open(&out);
    }
    let failure = is_first.then(|| FailureFile::new(&planned, &out, command.clone()));
    let mut trainer = begin(planned, folder, &failure)?;
    let end = trainer.end()?;
    if let End::Complete(summary) = end {
        tell_complete(&trainer);
        if is_first && !out.join("report.html").exists() {
            // The process ended between the end of the run and its report.
            drop(trainer);
            report::write_beside(&out);
        }
        if json && is_first {
            print(&summary)?;
        }
        run_log::close();
        return Ok(Outcome::NothingToDo);
    }
    tell_beginning(&trainer, end, resume, resumed_step);
    // The plan may have changed when its memory was reserved.
    let failure = is_first.then(|| FailureFile::new(trainer.planned(), &out, command));
    if tensorboard {
        failing_into(&failure, || Ok(trainer.write_tensorboard()?))?;
    }
    let mut watcher = is_first.then(|| Watcher::new(&trainer));
    let outcome = failing_into(&failure, || {
        let outcome = trainer.run(stop::requests(), &mut |event| {
            if let Some(watcher) = &mut watcher {
                watcher.tell(event);
            }
        });
        watcher.iter().for_each(Watcher::finish);
        Ok(outcome?)
    });
    // Free the trainer's memory first: the report is not part of the plan.
    drop(trainer);
    if is_first {
        report::write_beside(&out);
    }
    let outcome = outcome?;
    if is_first {
        watch::tell_outcome(&outcome, &out);
    }
    run_log::close();
    if let (true, Outcome::Finished(summary)) = (json, &outcome) {
        print_json(summary)?;
    }
    Ok(outcome)
}

/// The folder and the newest checkpoint of a run that resumes; for a new run its folder must be free.
fn open_folder(
    out: &Path,
    resume: bool,
    group: &Group,
) -> Result<(Option<RunFolder>, Option<Checkpoint>)> {
    if resume {
        return Ok(processes::open_run(group, out)?);
    }
    if group.rank() == 0 {
        RunFolder::check_free(out)?;
    }
    Ok((None, None))
}

/// Plans the run; `None` if it was stopped meanwhile.
fn plan_run(
    config: RunConfig,
    device: Device,
    checkpoint: Option<Checkpoint>,
    json: bool,
) -> Result<Option<PlannedRun>> {
    let kind = device.kind();
    let mut say = tell;
    let choosing = Choosing::Measured(&mut say);
    let planned =
        PlannedRun::new_interruptible(&stop::requests().stop, config, device, checkpoint, choosing);
    plan::fitting(json, kind, planned)
}

/// Says what was found and planned, and what a run in `out` needs of the disk.
fn tell_plan(planned: &PlannedRun, out: Option<&Path>) -> Result<()> {
    let prepared = &planned.prepared;
    let notes = prepared.notes.iter().chain(&prepared.setup.notes);
    for line in packed(without_details(notes)) {
        tell(&line);
    }
    tell(plan::short(planned).trim_end());
    if let Some(out) = out {
        for line in disk_space(planned, out)? {
            tell(&line);
        }
    }
    Ok(())
}

fn tell_run_folder(planned: &PlannedRun, out: &Path) {
    let sample = match planned.config.task {
        Some(TaskName::VideoText) => "clip",
        _ => "picture",
    };
    tell(&format!(
        "Run folder: {} ({}; {} an epoch, {} in all)",
        out.display(),
        counted(planned.prepared.train.len(), sample),
        counted(planned.steps_per_epoch(), "step"),
        planned.total_steps()
    ));
}

/// Reserves the memory of the run. A request that cannot be met is no failure of the run.
fn begin(
    planned: PlannedRun,
    folder: Option<RunFolder>,
    failure: &Option<FailureFile>,
) -> Result<Trainer> {
    let begun = failing_into(failure, || {
        match Trainer::begin(planned, folder, &mut { tell }) {
            Err(error @ TrainError::Config(_)) => Ok(Err(error)),
            begun => Ok(Ok(begun?)),
        }
    });
    Ok(begun??)
}

fn tell_complete(trainer: &Trainer) {
    tell(&format!(
        "The run is complete: step {} of {}; its settings stay as they were\n\
         hint: {} asks for more, --set train.early_stop=none for patience",
        trainer.steps_done(),
        trainer.planned().total_steps(),
        match trainer.planned().config.train.max_steps {
            Some(_) => "--set train.max_steps=STEPS",
            None => "--epochs",
        }
    ));
}

/// Says from which step a run resumes.
fn tell_beginning(trainer: &Trainer, end: End, resume: bool, resumed_step: Option<u64>) {
    match (end, resumed_step) {
        (End::Unfinished(reason), Some(step)) => tell(&format!(
            "All steps were done by step {step}; finishing again: {reason}"
        )),
        (_, Some(step)) => tell(&format!(
            "Resuming after step {step} of {}",
            trainer.planned().total_steps()
        )),
        (_, None) if resume => tell("No checkpoint was written yet: beginning at step 0"),
        (_, None) => {}
    }
}

/// Prefixes of notes that go to `train.log` only: columns with their usual names, default settings.
const DETAILS: [&str; 7] = [
    "Label column: ",
    "Image column: ",
    "Caption column: ",
    "Video column: ",
    "Tokenizer: trained on ",
    "Tokens per ",
    "Loader: ",
];

/// Notes for the terminal; the others go to the run's log.
fn without_details<'a>(notes: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let notes = notes.into_iter().map(String::as_str);
    let is_detail = |note: &&str| DETAILS.iter().any(|start| note.starts_with(start));
    let (details, shown): (Vec<&str>, Vec<&str>) = notes.partition(is_detail);
    details.into_iter().for_each(run_log::add);
    shown
}

/// Lines on the disk space that the run needs; an error if not even the first save would fit.
fn disk_space(planned: &PlannedRun, out: &Path) -> Result<Vec<String>> {
    let there = out.ancestors().find(|folder| folder.is_dir());
    let free_bytes = there
        .or(Some(Path::new(".")))
        .and_then(holdall_files::free_bytes);
    let used_bytes = if planned.is_resumed() {
        ["checkpoints", "model"]
            .map(|name| folder_bytes(&out.join(name)))
            .into_iter()
            .sum()
    } else {
        0
    };
    Ok(DiskSpace::new(planned).check(out, free_bytes, used_bytes)?)
}

/// Size of all readable files below a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// Runs a part of training; if it fails, writes `failure.json`.
fn failing_into<T>(failure: &Option<FailureFile>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let save = |error: &str, diverged: Option<&Diverged>| {
        let written = failure.as_ref().map(|file| file.write(error, diverged));
        if let Some(path) = written.flatten() {
            tell(&format!("What led to it: {}", path.display()));
        }
    };
    // A panic propagates: no state that it left is used afterwards.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Err(error)) => {
            let diverged = match error.downcast_ref() {
                Some(TrainError::Diverged(diverged)) => Some(&**diverged),
                _ => None,
            };
            save(&format!("{error:#}"), diverged);
            Err(error)
        }
        Ok(done) => done,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("without a word");
            save(&format!("panicked: {text}"), None);
            resume_unwind(panic)
        }
    }
}
