//! Reading ahead: the same steps, and errors where they belong.

use holdall_data::cars::{self, CarsConfig};
use holdall_data::order::Order;
use holdall_device::cpu::Cpu;

use super::*;
use crate::config::RunConfig;
use crate::measure::Choosing;

/// Three steps an epoch.
fn trainer(folder: &std::path::Path, reads_ahead: bool) -> Trainer {
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
    let device = Device::on_cpu(Cpu::new(Some(2)));
    let ready = Ready::new(config, device, None, Choosing::Predicted).unwrap();
    let run = RunFolder::create(&folder.join(format!("run-{reads_ahead}"))).unwrap();
    let mut trainer = Trainer::begin(ready, run, &mut |_| ()).unwrap();
    trainer.reads_ahead = reads_ahead;
    trainer
}

fn draw(folder: &std::path::Path) {
    let cars = CarsConfig {
        count: 22,
        ..CarsConfig::default()
    };
    cars::write(&folder.join("data"), &cars, |_| ()).unwrap();
}

/// Number, samples, bits of the loss.
type Steps = Vec<(u64, usize, u64)>;

/// What each step was like, and how it ended.
fn run(trainer: &mut Trainer) -> (Steps, Result<Outcome, TrainError>) {
    let mut steps = Vec::new();
    let outcome = trainer.run(&AtomicBool::new(false), &mut |event| {
        if let Event::Step(line) = event {
            steps.push((line.step, line.samples, line.loss.to_bits()));
        }
    });
    (steps, outcome)
}

#[test]
fn reading_ahead_changes_no_step() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let (expected, outcome) = run(&mut trainer(folder.path(), false));
    outcome.unwrap();
    assert_eq!(expected.len(), 6);
    let (found, outcome) = run(&mut trainer(folder.path(), true));
    outcome.unwrap();
    assert_eq!(found, expected);
}

#[test]
fn a_bad_picture_fails_the_step_that_it_belongs_to() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    for reads_ahead in [false, true] {
        let mut trainer = trainer(folder.path(), reads_ahead);
        let samples = &trainer.ready.prepared.train.samples;
        let order = Order::new(0, 0, samples, trainer.ready.config.train.sampling);
        let bad = order.as_slice()[16] as usize;
        let mut path = std::path::PathBuf::new();
        samples.image_path_into(bad, &mut path);
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, "no picture").unwrap();
        let row = format!("row {}", samples.row(bad));
        let (steps, outcome) = run(&mut trainer);
        assert_eq!(steps.len(), 2, "reads ahead: {reads_ahead}");
        assert_eq!(trainer.steps_done(), 2);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(&row), "{error}");
        std::fs::write(&path, good).unwrap();
    }
}
