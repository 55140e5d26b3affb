//! Tests of reading (the same steps for any reader, unreadable images in their places) and of saving (failed writes, and
//! which best models are kept).

use holdall_data::config::{BadPictures, PictureCheck, ReplacedPictures};
use holdall_data::samples::Order;
use holdall_device::Device;
use holdall_device::cpu::Cpu;
use holdall_sample_data::cars::{self, CarsConfig};

use super::*;
use crate::config::{Count, EvalEvery, RunConfig, Subset};
use crate::planning::plan_race::Choosing;
use crate::run_folder::appended_file::Prefix;
use crate::run_folder::checkpoint::Checkpoint;
use crate::run_folder::folder::RunFolder;
use crate::run_folder::journal::Journal;

mod key_effects;
mod several_processes;
mod state_formats;

impl Trainer {
    fn files(&self) -> &Records {
        self.records.as_ref().expect("the first process")
    }
}

/// A trainer with three steps per epoch.
fn trainer(folder: &std::path::Path, out: &str, change: impl Fn(&mut RunConfig)) -> Trainer {
    let run = RunFolder::create(&folder.join(out)).unwrap();
    trainer_in(folder, run, change)
}

/// A trainer that resumes from the folder's checkpoint.
fn trainer_in(
    folder: &std::path::Path,
    run: RunFolder,
    change: impl Fn(&mut RunConfig),
) -> Trainer {
    let checkpoint = Checkpoint::newest(&run).unwrap();
    Trainer::begin(planned(folder, checkpoint, change), run, &mut |_| ()).unwrap()
}

fn planned(
    folder: &std::path::Path,
    checkpoint: Option<Checkpoint>,
    change: impl Fn(&mut RunConfig),
) -> PlannedRun {
    let device = Device::on_cpu(Cpu::new(Some(2)));
    let config = small(folder, change);
    PlannedRun::new(config, device, checkpoint, Choosing::Predicted).unwrap()
}

fn small(folder: &std::path::Path, change: impl Fn(&mut RunConfig)) -> RunConfig {
    let mut config = RunConfig {
        model: "small".to_owned(),
        ..RunConfig::default()
    };
    config.data.train = Some(folder.join("data/image_labels.csv"));
    config.data.validation = holdall_data::config::Validation::None;
    config.train.effective_batch = Some(8);
    config.train.batch_size = Some(4);
    config.train.epochs = Some(2);
    config.train.eval_every = EvalEvery::Never;
    change(&mut config);
    config
}

/// Resumes a run; returns its messages with the trainer or the error.
fn resumed(
    folder: &std::path::Path,
    change: impl Fn(&mut RunConfig),
) -> (Result<Trainer, TrainError>, String) {
    let run = RunFolder::open(&folder.join("run")).unwrap();
    let checkpoint = Checkpoint::newest(&run).unwrap();
    assert!(checkpoint.is_some());
    let mut said = String::new();
    let trainer = Trainer::begin(planned(folder, checkpoint, change), run, &mut |line| {
        said.push_str(line);
        said.push('\n');
    });
    (trainer, said)
}

fn draw(folder: &std::path::Path) {
    let cars = CarsConfig {
        count: 22,
        ..CarsConfig::default()
    };
    cars::write(&folder.join("data"), &cars, |_| true).unwrap();
}

/// Step number, samples, their digest, bits of the loss.
type Steps = Vec<(u64, usize, String, u64)>;

fn step_of(line: &StepLine) -> (u64, usize, String, u64) {
    let digest = line.samples_digest.clone();
    (line.step, line.samples, digest, line.loss.to_bits())
}

/// Runs the trainer; returns its steps, the number of skipped images, and the outcome.
fn run(trainer: &mut Trainer) -> (Steps, usize, Result<Outcome, TrainError>) {
    let (mut steps, mut skipped) = (Vec::new(), 0);
    let outcome = trainer.run(&Requests::new(), &mut |event| match event {
        Event::Step(line) => steps.push(step_of(line)),
        Event::Skipped { total, .. } => skipped = total,
        _ => {}
    });
    (steps, skipped, outcome)
}

/// Overwrites the image at a place in the first epoch's order with text; returns its row.
fn break_picture(trainer: &Trainer, place: usize) -> u32 {
    let samples = &trainer.planned.prepared.train;
    let order = Order::new(0, 0, samples, trainer.planned.config.train.sampling);
    let sample = order.as_slice()[place] as usize;
    std::fs::write(samples.image_path(sample), "no picture").unwrap();
    samples.row(sample)
}

#[test]
fn who_reads_changes_no_step() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let (expected, _, outcome) = run(&mut trainer(folder.path(), "by turns", |_| ()));
    outcome.unwrap();
    assert_eq!(expected.len(), 6);
    for (workers, prefetch) in [(1, 1), (2, 3), (3, 20)] {
        let out = format!("{workers} ahead");
        let mut trainer = trainer(folder.path(), &out, |config| {
            config.num_workers = Count::Exactly(workers);
            config.prefetch = Count::Exactly(prefetch);
        });
        let (found, _, outcome) = run(&mut trainer);
        outcome.unwrap();
        assert_eq!(found, expected, "{workers} workers");
    }
}

#[test]
fn a_bad_picture_fails_the_step_that_it_belongs_to_where_none_may_be_skipped() {
    for workers in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        draw(folder.path());
        let mut trainer = trainer(folder.path(), "run", |config| {
            config.num_workers = Count::Exactly(workers);
            config.prefetch = Count::Exactly(1);
            config.data.bad_pictures = BadPictures::Fail;
        });
        let row = format!("row {}", break_picture(&trainer, 16));
        let (steps, _, outcome) = run(&mut trainer);
        assert_eq!(steps.len(), 2, "{workers} workers");
        assert_eq!(trainer.steps_done(), 2);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(&row), "{error}");
    }
}

#[test]
fn bad_pictures_are_skipped_and_named_and_steps_keep_their_size() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut runs = Vec::new();
    for workers in [0, 2] {
        let mut trainer = trainer(folder.path(), &format!("run {workers}"), |config| {
            config.num_workers = Count::Exactly(workers);
            config.prefetch = Count::Exactly(1);
        });
        let rows = [10, 21].map(|place| break_picture(&trainer, place));
        let (steps, skipped, outcome) = run(&mut trainer);
        let Outcome::Finished(summary) = outcome.unwrap() else {
            panic!("it was not stopped");
        };
        assert_eq!((skipped, summary.skipped), (2, 2));
        let sizes: Vec<usize> = steps.iter().map(|(_, samples, ..)| *samples).collect();
        assert_eq!(sizes, [8, 8, 6, 8, 8, 6]);
        let listed = std::fs::read_to_string(trainer.files().folder.skipped()).unwrap();
        for row in rows {
            assert!(listed.contains(&format!("train,{row},images/")), "{listed}");
        }
        assert_eq!(listed.lines().count(), 3);
        runs.push(steps);
    }
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn too_many_bad_pictures_stop_a_run_that_can_go_on() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut trainer = trainer(folder.path(), "run", |_| ());
    for place in [9, 17, 18] {
        break_picture(&trainer, place);
    }
    let (steps, _, outcome) = run(&mut trainer);
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("3 of 22 pictures cannot be read"), "{error}");
    assert_eq!(steps.len(), 2);
    assert!(trainer.files().folder.last().is_file());
}

/// Lines of `metrics.jsonl` without their times.
fn lines(folder: &RunFolder) -> Vec<String> {
    let text = std::fs::read_to_string(folder.journal()).unwrap();
    let untimed = text.lines().map(|line| line.split(",\"seconds\":").next());
    untimed.map(|line| line.unwrap().to_owned()).collect()
}

/// A step of many micro-batches that is interrupted in the middle, once per step, leaves no trace: neither in the same
/// process nor in a process that resumes from the checkpoint.
#[test]
fn a_step_that_is_stopped_before_its_update_is_done_again_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let single = |config: &mut RunConfig| config.train.batch_size = Some(1);
    let mut whole = trainer(folder.path(), "whole", single);
    let (expected, _, outcome) = run(&mut whole);
    outcome.unwrap();
    let out = folder.path().join("run");
    let mut steps = Vec::new();
    let mut interrupted = trainer(folder.path(), "run", single);
    loop {
        // A step expected to be long reports progress as it begins.
        interrupted.passes.finished(60.0);
        let requests = Requests::new();
        let mut places = Vec::new();
        let outcome = interrupted.run(&requests, &mut |event| {
            if let Event::InStep(progress) = event {
                places.push((progress.step as usize, progress.done, progress.total));
                requests.stop.store(true, Ordering::Relaxed);
            }
        });
        assert!(
            matches!(outcome, Ok(Outcome::Interrupted { step, .. }) if step as usize == steps.len())
        );
        assert_eq!(places, [(steps.len() + 1, 0, 8)]);
        // Resumes in the same process, then in another trainer.
        let requests = Requests::new();
        let outcome = interrupted.run(&requests, &mut |event| {
            if let Event::Step(line) = event {
                steps.push(step_of(line));
                requests.stop.store(true, Ordering::Relaxed);
            }
        });
        if let Outcome::Finished(_) = outcome.unwrap() {
            break;
        }
        drop(interrupted);
        interrupted = trainer_in(folder.path(), RunFolder::open(&out).unwrap(), single);
        assert_eq!(interrupted.steps_done() as usize, steps.len());
    }
    assert_eq!(steps, expected);
    let weights = |of: &Trainer| of.step.named_weights().unwrap();
    assert_eq!(weights(&interrupted), weights(&whole));
}

/// SIGUSR1 in a long step: the checkpoint is written before the step ends, and the step continues.
#[test]
fn a_checkpoint_that_is_asked_for_in_a_step_does_not_wait_for_its_end() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let single = |config: &mut RunConfig| config.train.batch_size = Some(1);
    let (expected, _, outcome) = run(&mut trainer(folder.path(), "whole", single));
    outcome.unwrap();
    let mut trainer = trainer(folder.path(), "run", single);
    trainer.passes.finished(60.0);
    let last = trainer.files().folder.last();
    let requests = Requests::new();
    let (mut steps, mut saved) = (Vec::new(), Vec::new());
    let outcome = trainer.run(&requests, &mut |event| match event {
        Event::InStep(progress) if progress.step == 1 => {
            requests.save.store(saved.is_empty(), Ordering::Relaxed);
        }
        Event::Saved {
            step,
            is_asked: true,
        } => saved.push((step, last.is_file())),
        Event::Step(line) => steps.push(step_of(line)),
        _ => {}
    });
    assert!(matches!(outcome, Ok(Outcome::Finished(_))));
    assert_eq!(saved, [(0, true)]);
    assert_eq!(steps, expected);
}

/// Stops after a step, and saves.
fn run_until(trainer: &mut Trainer, step: u64) {
    let requests = Requests::new();
    let outcome = trainer.run(&requests, &mut |event| {
        if let Event::Step(line) = event {
            requests.stop.store(line.step == step, Ordering::Relaxed);
        }
    });
    assert!(matches!(outcome, Ok(Outcome::Interrupted { .. })));
}

/// The weights are those after the step, but the journal lacks its line: this state must not be saved.
#[test]
fn a_step_whose_line_cannot_be_written_is_not_done() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let change = |config: &mut RunConfig| {
        config.train.eval_every = EvalEvery::Steps(2);
        config.train.eval_on = vec![Subset::Train];
    };
    let mut whole = trainer(folder.path(), "whole", change);
    run(&mut whole).2.unwrap();
    let mut failing = trainer(folder.path(), "failing", change);
    run_until(&mut failing, 3);
    let before = std::fs::read(failing.files().folder.last()).unwrap();
    let nowhere = folder.path().join("no such folder/metrics.jsonl");
    failing.records.as_mut().unwrap().journal =
        Journal::open(&nowhere, &Prefix::default()).unwrap();
    let error = run(&mut failing).2.unwrap_err().to_string();
    assert!(error.contains("metrics.jsonl"), "{error}");
    assert_eq!(failing.steps_done(), 3);
    assert!(std::fs::read(failing.files().folder.last()).unwrap() == before);
    let path = failing.files().folder.path().to_owned();
    drop(failing);
    let mut resumed = trainer_in(folder.path(), RunFolder::open(&path).unwrap(), change);
    run(&mut resumed).2.unwrap();
    assert_eq!(lines(&resumed.files().folder), lines(&whole.files().folder));
    assert_eq!(resumed.state.best, whole.state.best);
    let model = |trainer: &Trainer| {
        std::fs::read(trainer.files().folder.model().join("model.safetensors")).unwrap()
    };
    assert!(model(&resumed) == model(&whole));
}

#[test]
fn an_evaluation_whose_lines_cannot_be_written_is_still_due() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut trainer = trainer(folder.path(), "run", |config| {
        config.train.eval_every = EvalEvery::Epoch;
        config.train.eval_on = vec![Subset::Train];
    });
    run_until(&mut trainer, 2);
    let nowhere = folder.path().join("no such folder/metrics.jsonl");
    let journal = Journal::open(&nowhere, &Prefix::default()).unwrap();
    trainer.state.next = Next::Evaluate;
    let journal = std::mem::replace(&mut trainer.records.as_mut().unwrap().journal, journal);
    let requests = Requests::new();
    assert!(trainer.evaluate_all(&requests, &mut |_| ()).is_err());
    assert_eq!(trainer.state.next, Next::Evaluate);
    assert_eq!(
        (&trainer.state.best, trainer.state.last_scores.len()),
        (&None, 0)
    );
    trainer.records.as_mut().unwrap().journal = journal;
    assert!(trainer.evaluate_all(&requests, &mut |_| ()).is_ok());
    assert_eq!(trainer.state.next, Next::Step);
    assert_eq!(lines(&trainer.files().folder).len(), 3);
}

fn bests(folder: &RunFolder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.checkpoints()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("best")).collect();
    names.sort();
    names
}

/// A best model is kept as long as a checkpoint names it, and a later one does not overwrite it.
#[test]
fn every_best_model_that_a_checkpoint_names_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut trainer = trainer(folder.path(), "run", |_| ());
    let save_best = |trainer: &mut Trainer| {
        let best = trainer.save_best(0.5, &[]).unwrap();
        let path = trainer.files().folder.checkpoints().join(&best.folder);
        (best, std::fs::read(path.join("model.safetensors")).unwrap())
    };
    run_until(&mut trainer, 1);
    let (first, first_model) = save_best(&mut trainer);
    trainer.state.best = Some(first.clone());
    trainer.save(&mut |_| ()).unwrap();
    // Written, and killed before a checkpoint names it.
    run_until(&mut trainer, 2);
    let (second, second_model) = save_best(&mut trainer);
    assert_eq!(
        bests(&trainer.files().folder),
        ["best-000001", "best-000002"]
    );
    assert!(first_model != second_model);
    let path = trainer.files().folder.path().to_owned();
    let kept = path.join("checkpoints/best-000001/model.safetensors");
    assert!(std::fs::read(&kept).unwrap() == first_model);
    // Resume from the last checkpoint, which names the first best model only.
    drop(trainer);
    let mut trainer = trainer_in(folder.path(), RunFolder::open(&path).unwrap(), |_| ());
    assert_eq!(trainer.state.best, Some(first));
    assert_eq!(trainer.state.step, 2);
    trainer.save(&mut |_| ()).unwrap();
    assert_eq!(
        bests(&trainer.files().folder),
        ["best-000001"],
        "the other is named by nothing"
    );
    let (third, _) = save_best(&mut trainer);
    assert_eq!(third, second);
    trainer.state.best = Some(third);
    trainer.save(&mut |_| ()).unwrap();
    assert_eq!(
        bests(&trainer.files().folder),
        ["best-000001", "best-000002"],
        "each is named by one"
    );
    assert!(std::fs::read(&kept).unwrap() == first_model);
    trainer.save(&mut |_| ()).unwrap();
    assert_eq!(bests(&trainer.files().folder), ["best-000002"]);
    // A damaged checkpoint names nothing; the previous checkpoint keeps its best model.
    run_until(&mut trainer, 3);
    trainer.state.best = Some(save_best(&mut trainer).0);
    trainer.save(&mut |_| ()).unwrap();
    drop(trainer);
    let last = path.join("checkpoints/last.safetensors");
    let mut bytes = std::fs::read(&last).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&last, bytes).unwrap();
    let mut trainer = trainer_in(folder.path(), RunFolder::open(&path).unwrap(), |_| ());
    assert_eq!(trainer.state.best, Some(second));
    trainer.save(&mut |_| ()).unwrap();
    assert_eq!(bests(&trainer.files().folder), ["best-000002"]);
    let previous = Checkpoint::newest(&trainer.files().folder)
        .unwrap()
        .unwrap();
    assert!(previous.notes.is_empty(), "{:?}", previous.notes);
}

/// Bad CSV rows change only the row numbers: every bit of the losses stays.
#[test]
fn a_list_with_bad_rows_trains_as_the_list_without_them() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let (expected, ..) = run(&mut trainer(folder.path(), "clean", |_| ()));
    let csv = folder.path().join("data/image_labels.csv");
    let list = std::fs::read_to_string(&csv).unwrap();
    let mut lines: Vec<&str> = list.lines().collect();
    let columns = lines[0].split(',').count();
    let empty = ",".repeat(columns - 1);
    lines.insert(9, &empty);
    lines.insert(3, "images/000000.jpg");
    std::fs::write(&csv, lines.join("\n") + "\n").unwrap();
    let mut trainer = trainer(folder.path(), "run", |_| ());
    let (found, _, outcome) = run(&mut trainer);
    let Outcome::Finished(summary) = outcome.unwrap() else {
        panic!("it was not stopped");
    };
    assert_eq!(found, expected);
    assert_eq!(summary.skipped, 2);
    let listed = std::fs::read_to_string(trainer.files().folder.skipped()).unwrap();
    let fields = format!("train,4,images/000000.jpg,1 of {columns} fields");
    assert_eq!(
        listed.lines().collect::<Vec<_>>(),
        ["part,row,image,reason", &fields, "train,11,,no image named"]
    );
    // Each bad row is listed once, however often the run is resumed.
    drop(trainer);
    let (trainer, _) = resumed(folder.path(), |config| config.train.epochs = Some(3));
    let trainer = trainer.unwrap();
    assert_eq!(
        std::fs::read_to_string(trainer.files().folder.skipped()).unwrap(),
        listed
    );
}

#[test]
fn replaced_pictures_are_noticed_when_a_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    run(&mut trainer(folder.path(), "run", |_| ())).2.unwrap();
    let longer = |config: &mut RunConfig| config.train.epochs = Some(3);
    let (trainer, said) = resumed(folder.path(), longer);
    let samples = std::sync::Arc::clone(&trainer.unwrap().planned.prepared.train);
    assert_eq!(said, "");
    // A file with the same size and another modification time is reported, and accepted as the same image.
    let picture = samples.image_path(5);
    let bytes = std::fs::read(&picture).unwrap();
    let touch = |path: &std::path::Path, seconds: u64| {
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(time).unwrap();
    };
    touch(&picture, 1_000_000);
    let (trainer, said) = resumed(folder.path(), longer);
    trainer.unwrap();
    let touched = format!(
        "1 of 22 pictures have the size that they had and another time of change: {}",
        samples.image(5)
    );
    assert!(said.contains(&touched), "{said}");
    // Reported once; from here on the contents are recorded.
    let hashed = |config: &mut RunConfig| {
        longer(config);
        config.data.picture_check = PictureCheck::Hash;
    };
    let (trainer, said) = resumed(folder.path(), hashed);
    trainer.unwrap();
    assert_eq!(said, "");
    touch(&picture, 2_000_000);
    let (trainer, said) = resumed(folder.path(), longer);
    trainer.unwrap();
    assert_eq!(said, "", "the same contents");
    // Another image under the same name.
    std::fs::copy(samples.image_path(7), &picture).unwrap();
    let config_before = std::fs::read(folder.path().join("run/config.yml")).unwrap();
    let (trainer, _) = resumed(folder.path(), longer);
    let error = trainer.err().unwrap();
    assert!(matches!(error, TrainError::Config(_)));
    let error = error.to_string();
    for part in [
        "1 of 22 pictures are not those that the run began with",
        samples.image(5),
        "data.replaced_pictures=warn",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let config_after = std::fs::read(folder.path().join("run/config.yml")).unwrap();
    assert_eq!(config_before, config_after, "nothing is touched");
    let ignored = |config: &mut RunConfig| {
        longer(config);
        config.data.replaced_pictures = ReplacedPictures::Ignore;
    };
    resumed(folder.path(), ignored).0.unwrap();
    let warned = |config: &mut RunConfig| {
        longer(config);
        config.data.replaced_pictures = ReplacedPictures::Warn;
    };
    let (trainer, said) = resumed(folder.path(), warned);
    trainer.unwrap();
    assert!(said.contains("1 of 22 pictures are not those"), "{said}");
    // The run has recorded the new image.
    let (trainer, said) = resumed(folder.path(), longer);
    trainer.unwrap();
    assert_eq!(said, "");
    std::fs::write(&picture, bytes).unwrap();
    assert!(resumed(folder.path(), longer).0.is_err());
}

/// An image that could not be read stays skipped; repairing it later does not stop the run.
#[test]
fn a_mended_picture_that_was_skipped_is_still_skipped() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut trainer = trainer(folder.path(), "run", |_| ());
    let samples = std::sync::Arc::clone(&trainer.planned.prepared.train);
    let row = break_picture(&trainer, 10);
    run(&mut trainer).2.unwrap();
    drop(trainer);
    let sample = (0..samples.len()).find(|&sample| samples.row(sample) == row);
    let mended = samples.image_path(sample.unwrap());
    std::fs::copy(samples.image_path(0), mended).unwrap();
    let (trainer, said) = resumed(folder.path(), |config| config.train.epochs = Some(3));
    trainer.unwrap();
    assert_eq!(said, "");
}
