//! Reading: the same steps whoever reads, and broken pictures where they belong.

use holdall_data::cars::{self, CarsConfig};
use holdall_data::config::BadPictures;
use holdall_data::order::Order;
use holdall_device::Device;
use holdall_device::cpu::Cpu;

use super::*;
use crate::config::{Count, RunConfig};
use crate::measure::Choosing;

/// Three steps an epoch.
fn trainer(folder: &std::path::Path, out: &str, change: impl Fn(&mut RunConfig)) -> Trainer {
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
    let ready = Ready::new(config, device, None, Choosing::Predicted).unwrap();
    let run = RunFolder::create(&folder.join(out)).unwrap();
    Trainer::begin(ready, run, &mut |_| ()).unwrap()
}

fn draw(folder: &std::path::Path) {
    let cars = CarsConfig {
        count: 22,
        ..CarsConfig::default()
    };
    cars::write(&folder.join("data"), &cars, |_| true).unwrap();
}

/// Number, samples, which, bits of the loss.
type Steps = Vec<(u64, usize, String, u64)>;

/// What each step was like, how many pictures were left out, and how it ended.
fn run(trainer: &mut Trainer) -> (Steps, usize, Result<Outcome, TrainError>) {
    let (mut steps, mut skipped) = (Vec::new(), 0);
    let outcome = trainer.run(&Requests::new(), &mut |event| match event {
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
