//! Reading: the same steps whoever reads, and broken pictures where they belong.

use holdall_data::cars::{self, CarsConfig};
use holdall_data::config::{BadPictures, PictureCheck, ReplacedPictures};
use holdall_data::order::Order;
use holdall_device::Device;
use holdall_device::cpu::Cpu;

use super::*;
use crate::checkpoint::Checkpoint;
use crate::config::{Count, RunConfig};
use crate::measure::Choosing;

/// Three steps an epoch.
fn trainer(folder: &std::path::Path, out: &str, change: impl Fn(&mut RunConfig)) -> Trainer {
    let ready = ready(folder, None, change);
    let run = RunFolder::create(&folder.join(out)).unwrap();
    Trainer::begin(ready, run, &mut |_| ()).unwrap()
}

fn ready(
    folder: &std::path::Path,
    checkpoint: Option<Checkpoint>,
    change: impl Fn(&mut RunConfig),
) -> Ready {
    let mut config = RunConfig {
        model: "small".to_owned(),
        ..RunConfig::default()
    };
    config.data.train = Some(folder.join("data/image_labels.csv"));
    config.data.validation = holdall_data::config::Validation::None;
    config.train.effective_batch = Some(8);
    config.train.batch_size = Some(4);
    config.train.epochs = 2;
    config.train.eval_every = EvalEvery::Never;
    change(&mut config);
    let device = Device::on_cpu(Cpu::new(Some(2)));
    Ready::new(config, device, checkpoint, Choosing::Predicted).unwrap()
}

/// Goes on with a run; what it said, or why it does not.
fn resumed(
    folder: &std::path::Path,
    change: impl Fn(&mut RunConfig),
) -> (Result<Trainer, TrainError>, String) {
    let run = RunFolder::open(&folder.join("run")).unwrap();
    let checkpoint = Checkpoint::open(&run.last()).unwrap();
    assert!(checkpoint.is_some());
    let mut said = String::new();
    let trainer = Trainer::begin(ready(folder, checkpoint, change), run, &mut |line| {
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
    cars::write(&folder.join("data"), &cars, |_| ()).unwrap();
}

/// Number, samples, which, bits of the loss.
type Steps = Vec<(u64, usize, String, u64)>;

/// What each step was like, how many pictures were left out, and how it ended.
fn run(trainer: &mut Trainer) -> (Steps, usize, Result<Outcome, TrainError>) {
    let (mut steps, mut skipped) = (Vec::new(), 0);
    let outcome = trainer.run(&AtomicBool::new(false), &mut |event| match event {
        Event::Step(line) => {
            let digest = line.samples_digest.clone();
            steps.push((line.step, line.samples, digest, line.loss.to_bits()));
        }
        Event::Skipped { total, .. } => skipped = total,
        _ => {}
    });
    (steps, skipped, outcome)
}

/// The picture at a place in the first epoch's order is no picture any more.
fn break_picture(trainer: &Trainer, place: usize) -> u32 {
    let samples = &trainer.ready.prepared.train.samples;
    let order = Order::new(0, 0, samples, trainer.ready.config.train.sampling);
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
        let listed = std::fs::read_to_string(trainer.folder.skipped()).unwrap();
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
    assert!(trainer.folder.last().is_file());
}

/// Rows that are no samples change nothing but their own number: not a bit of a loss.
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
    let listed = std::fs::read_to_string(trainer.folder.skipped()).unwrap();
    let fields = format!("train,4,images/000000.jpg,1 of {columns} fields");
    assert_eq!(
        listed.lines().collect::<Vec<_>>(),
        ["part,row,image,reason", &fields, "train,11,,no image named"]
    );
    // Listed once, however often the run goes on.
    drop(trainer);
    let (trainer, _) = resumed(folder.path(), |config| config.train.epochs = 3);
    let trainer = trainer.unwrap();
    assert_eq!(
        std::fs::read_to_string(trainer.folder.skipped()).unwrap(),
        listed
    );
}

#[test]
fn replaced_pictures_are_noticed_when_a_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    run(&mut trainer(folder.path(), "run", |_| ())).2.unwrap();
    let longer = |config: &mut RunConfig| config.train.epochs = 3;
    let (trainer, said) = resumed(folder.path(), longer);
    let samples = std::sync::Arc::clone(&trainer.unwrap().ready.prepared.train.samples);
    assert_eq!(said, "");
    // The same bytes with another time are not known to be the same, and taken for it.
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
    // Said once; from here on the contents are recorded.
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
    // Another picture under the name of one.
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
    // The run knows the new one now.
    let (trainer, said) = resumed(folder.path(), longer);
    trainer.unwrap();
    assert_eq!(said, "");
    std::fs::write(&picture, bytes).unwrap();
    assert!(resumed(folder.path(), longer).0.is_err());
}

/// A picture that could not be read stays left out: to mend it later is no reason to stop.
#[test]
fn a_mended_picture_that_was_skipped_is_still_skipped() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut trainer = trainer(folder.path(), "run", |_| ());
    let samples = std::sync::Arc::clone(&trainer.ready.prepared.train.samples);
    let row = break_picture(&trainer, 10);
    run(&mut trainer).2.unwrap();
    drop(trainer);
    let sample = (0..samples.len()).find(|&sample| samples.row(sample) == row);
    let mended = samples.image_path(sample.unwrap());
    std::fs::copy(samples.image_path(0), mended).unwrap();
    let (trainer, said) = resumed(folder.path(), |config| config.train.epochs = 3);
    trainer.unwrap();
    assert_eq!(said, "");
}
