//! Several processes as threads: the batches of a single process, one run folder, and requests to one process that all
//! follow.

use holdall_data::config::ImageSize;
use holdall_processes::Group;
use holdall_processes::testing::loopback;
use holdall_sample_data::moving_shapes::{self, MovingShapesConfig};
use holdall_sample_data::vessels::{self, VesselsConfig};

use super::*;
use crate::config::Shard;
use crate::config::TaskName;
use crate::planning::processes::open_run;
use crate::run_folder::folder::RunFolder;

/// Runs one closure per process, each on a thread.
fn on_each<T: Send>(size: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|threads| {
        let groups = loopback(size).into_iter();
        let started: Vec<_> = groups.map(|group| threads.spawn(|| work(group))).collect();
        let joined = started.into_iter();
        joined
            .map(|one| {
                one.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

/// The trainer of one process, for a new or a resumed run; the first process has the folder.
fn one_of(
    folder: &std::path::Path,
    out: &str,
    group: &Group,
    change: impl Fn(&mut RunConfig),
) -> Result<Trainer, TrainError> {
    let path = folder.join(out);
    let config = RunConfig {
        out: Some(path.clone()),
        ..small(folder, |config| {
            config.train.batch_size = Some(2);
            change(config);
        })
    };
    let is_begun = path.join("config.yml").exists();
    // All processes look before the first one writes.
    group.share(&[])?;
    let (held, checkpoint) = if is_begun {
        open_run(group, &path)?
    } else if group.rank() == 0 {
        (Some(RunFolder::create(&path)?), None)
    } else {
        (None, None)
    };
    let device = Device::on_cpu(Cpu::new(Some(1)))
        .with_group(group.clone())
        .unwrap();
    let planned = PlannedRun::new(config, device, checkpoint, Choosing::Predicted)?;
    Trainer::begin(planned, held, &mut |_| ())
}

/// The samples that each step saw.
fn seen(steps: &Steps) -> Vec<(u64, usize, String)> {
    let without_loss = |(number, samples, digest, _): &(u64, usize, String, u64)| {
        (*number, *samples, digest.clone())
    };
    steps.iter().map(without_loss).collect()
}

/// Asserts that losses agree up to rounding.
#[track_caller]
fn assert_close(found: &Steps, expected: &Steps) {
    for ((number, .., found), (.., expected)) in found.iter().zip(expected) {
        let [found, expected] = [*found, *expected].map(f64::from_bits);
        let difference = (found - expected).abs();
        assert!(
            difference < 1e-4 * expected,
            "step {number}: {found}, {expected}"
        );
    }
}

/// The last step of an epoch has two samples for four processes.
#[test]
fn processes_without_a_sample_in_a_step_take_part_in_it() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let few = |config: &mut RunConfig| {
        config.train.effective_batch = Some(5);
        config.train.batch_size = Some(1);
    };
    let (expected, _, outcome) = run(&mut trainer(folder.path(), "one", few));
    outcome.unwrap();
    let found = on_each(4, |group| {
        let mut trainer = one_of(folder.path(), "four", &group, few).unwrap();
        let (steps, _, outcome) = run(&mut trainer);
        outcome.unwrap();
        steps
    });
    for steps in &found {
        assert_eq!(seen(steps), seen(&expected));
        assert_eq!(steps, &found[0]);
        assert_close(steps, &expected);
    }
}

fn rows_of(list: &str) -> Vec<&str> {
    // Without the reason, which may differ for a picture that was broken after planning.
    let mut rows: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split(".jpg,").next())
        .collect();
    rows.sort_unstable();
    rows
}

#[test]
fn several_processes_see_the_batches_of_one_and_list_what_none_can_read() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let mut alone = trainer(folder.path(), "one", |_| ());
    for place in [10, 21] {
        break_picture(&alone, place);
    }
    let (steps, _, outcome) = run(&mut alone);
    outcome.unwrap();
    let list = std::fs::read_to_string(alone.files().folder.skipped()).unwrap();
    for size in [2, 3] {
        let out = format!("{size} processes");
        let found = on_each(size, |group| {
            let mut trainer = one_of(folder.path(), &out, &group, |_| ()).unwrap();
            assert_eq!(trainer.records.is_some(), group.rank() == 0);
            let (steps, skipped, outcome) = run(&mut trainer);
            let is_first = matches!(outcome.unwrap(), Outcome::Finished(_));
            assert_eq!(is_first, group.rank() == 0);
            assert_eq!(skipped, 2);
            steps
        });
        for (rank, of_rank) in found.iter().enumerate() {
            assert_eq!(seen(of_rank), seen(&steps), "rank {rank} of {size}");
            assert_eq!(of_rank, &found[0], "rank {rank} of {size}");
            assert_close(of_rank, &steps);
        }
        let path = folder.path().join(&out);
        let found = std::fs::read_to_string(path.join("skipped.csv")).unwrap();
        assert_eq!(rows_of(&found), rows_of(&list));
        let summary = std::fs::read_to_string(path.join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(summary["effective_batch"], 8);
        let bytes = summary["processes"]["process_bytes"].as_array().unwrap();
        assert_eq!(bytes.len(), size);
        let seconds = summary["processes"]["seconds"].as_array().unwrap();
        assert!(
            seconds
                .iter()
                .all(|seconds| seconds.as_f64().unwrap() > 0.0)
        );
        let lines = std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 6);
        let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        assert_eq!(last["processes"], size);
        assert!(last["slowest_ratio"].as_f64().unwrap() >= 1.0);
    }
}

/// A signal to any process stops all; then the run resumes with the same or another number of processes.
#[test]
fn a_stop_of_one_saves_and_stops_all_and_any_number_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let (expected, _, outcome) = run(&mut trainer(folder.path(), "one", |_| ()));
    outcome.unwrap();
    let mut found = Vec::new();
    for (size, until) in [(2, 2), (3, 5), (1, 6)] {
        let ended = on_each(size, |group| {
            let mut trainer = one_of(folder.path(), "run", &group, |_| ()).unwrap();
            let requests = Requests::new();
            let mut steps = Vec::new();
            let asked = size - 1;
            let outcome = trainer.run(&requests, &mut |event| {
                if let Event::Step(line) = event {
                    steps.push(step_of(line));
                    let is_asked = group.rank() == asked && line.step == until;
                    requests.stop.store(is_asked, Ordering::Relaxed);
                }
            });
            let split = trainer.state.split;
            (seen(&steps), outcome.unwrap(), split)
        });
        for (steps, outcome, split) in &ended {
            assert_eq!(steps, &ended[0].0);
            match until {
                6 => assert!(!matches!(outcome, Outcome::Interrupted { .. })),
                _ => {
                    assert!(matches!(outcome, Outcome::Interrupted { step, .. } if *step == until))
                }
            }
            assert_eq!((split.effective_batch, split.processes), (8, size));
            let holds = split.batch_size * split.gradient_accumulation;
            assert!(holds >= 8_usize.div_ceil(size), "{split:?}");
        }
        found.extend(ended[0].0.clone());
    }
    assert_eq!(found, seen(&expected));
}

/// A checkpoint that one process is asked for, and an unreadable picture that only one process reads.
#[test]
fn a_save_of_one_is_one_of_all_and_so_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let saved = on_each(2, |group| {
        let mut trainer = one_of(folder.path(), "saved", &group, |_| ()).unwrap();
        let requests = Requests::new();
        requests.save.store(group.rank() == 1, Ordering::Relaxed);
        let mut saved = Vec::new();
        let outcome = trainer.run(&requests, &mut |event| {
            if let Event::Saved {
                step,
                is_asked: true,
            } = event
            {
                saved.push(step);
            }
        });
        outcome.unwrap();
        saved
    });
    assert_eq!(saved, [[0], [0]]);
    let strict = |config: &mut RunConfig| config.data.bad_pictures = BadPictures::Fail;
    let errors = on_each(2, |group| {
        let mut trainer = one_of(folder.path(), "failed", &group, strict).unwrap();
        if group.rank() == 0 {
            break_picture(&trainer, 17);
        }
        group.share(&[]).unwrap();
        let (steps, _, outcome) = run(&mut trainer);
        assert_eq!(steps.len(), 2);
        outcome.unwrap_err().to_string()
    });
    // The slower process receives the error from the other.
    let [first, second] = [&errors[0], &errors[1]];
    assert!(first.ends_with(&**second) || second.ends_with(&**first));
    assert!(errors[0].contains("row "), "{}", errors[0]);
    assert!(
        folder
            .path()
            .join("failed/checkpoints/last.safetensors")
            .is_file()
    );
}

#[test]
fn processes_that_mean_different_runs_are_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let refused = |name: &str, size: usize, change: fn(&mut RunConfig, usize)| {
        let errors = on_each(size, |group| {
            let change = |config: &mut RunConfig| change(config, group.rank());
            match one_of(folder.path(), name, &group, change) {
                Ok(_) => panic!("rank {} began", group.rank()),
                Err(error) => error.to_string(),
            }
        });
        for error in &errors {
            assert_eq!(error, &errors[0]);
        }
        assert!(!folder.path().join(name).join("config.yml").exists());
        errors[0].clone()
    };
    let error = refused("rates", 3, |config, rank| {
        config.train.lr = Some(if rank == 2 { 1e-3 } else { 1e-4 });
    });
    assert!(
        error.starts_with("rank 2 on loopback: train.lr is 0.001, expected 0.0001 as on rank 0"),
        "{error}"
    );
    let error = refused("small", 3, |config, _| {
        config.train.effective_batch = Some(2);
        config.train.batch_size = None;
    });
    assert!(error.contains("number of processes 3"), "{error}");
    let error = refused("mixed", 2, |config, _| config.data.mixing.mixup = 0.5);
    assert!(error.contains("data.mixing"), "{error}");
}

/// Batch size and accumulation, if both are given, apply to each process.
#[test]
fn batch_size_and_accumulation_are_those_of_each_process() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let each = |config: &mut RunConfig| {
        config.train.effective_batch = None;
        config.train.batch_size = Some(2);
        config.train.gradient_accumulation = Some(3);
    };
    let steps = on_each(2, |group| {
        let mut trainer = one_of(folder.path(), "run", &group, each).unwrap();
        assert_eq!(trainer.planned.split.effective_batch, 12);
        let (steps, ..) = run(&mut trainer);
        steps
            .iter()
            .map(|(_, samples, ..)| *samples)
            .collect::<Vec<_>>()
    });
    assert_eq!(steps, [[12, 10, 12, 10], [12, 10, 12, 10]]);
}

/// With frozen weights, several processes compute the scores of a single process to the last digit.
#[test]
fn an_evaluation_by_several_processes_finds_what_one_finds() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let change = |config: &mut RunConfig| {
        config.data.label = Some("make".into());
        config.train.lr = Some(1e-30);
        config.train.lr_head = Some(1e-30);
        config.train.epochs = Some(1);
        config.train.eval_every = EvalEvery::Epoch;
        config.train.eval_on = vec![Subset::Train];
    };
    let mut alone = trainer(folder.path(), "one", change);
    break_picture(&alone, 3);
    run(&mut alone).2.unwrap();
    let scores = |state: &RunState| serde_json::to_string(&state.last_scores).unwrap();
    let expected = scores(&alone.state);
    let samples = |path: &std::path::Path| {
        let text = std::fs::read_to_string(path.join("samples.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    for size in [2, 3] {
        let out = format!("{size} processes");
        let found = on_each(size, |group| {
            let mut trainer = one_of(folder.path(), &out, &group, change).unwrap();
            run(&mut trainer).2.unwrap();
            let best = trainer.state.best.as_ref().unwrap();
            (scores(&trainer.state), best.value.to_bits())
        });
        assert_eq!(found[0].0, expected, "{size}");
        let best = alone.state.best.as_ref().unwrap().value.to_bits();
        assert!(found.iter().all(|(_, value)| *value == best));
        let [one, many] = ["one", &out].map(|out| samples(&folder.path().join(out)));
        assert_eq!(one["captions"], many["captions"]);
        let pictures = |file: &serde_json::Value| -> Vec<serde_json::Value> {
            let all = file["samples"].as_array().unwrap().iter();
            all.map(|one| one["jpeg"].clone()).collect()
        };
        assert_eq!(pictures(&one), pictures(&many));
    }
}

/// Pairs the numbers of two JSON values of the same shape.
fn numbers_of(one: &serde_json::Value, other: &serde_json::Value, to: &mut Vec<(f64, f64)>) {
    use serde_json::Value;
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            assert!(one.keys().eq(other.keys()), "{one:?}, {other:?}");
            let values = one.values().zip(other.values());
            values.for_each(|(one, other)| numbers_of(one, other, to));
        }
        (Value::Array(one), Value::Array(other)) => {
            assert_eq!(one.len(), other.len());
            let values = one.iter().zip(other);
            values.for_each(|(one, other)| numbers_of(one, other, to));
        }
        (Value::Number(one), Value::Number(other)) => {
            to.push((one.as_f64().unwrap(), other.as_f64().unwrap()));
        }
        (one, other) => assert_eq!(one, other),
    }
}

/// Asserts that one process and several have the same scores and files, in a run that does not move the weights.
fn assert_found_alike(
    folder: &std::path::Path,
    files: &[&str],
    tolerance: f64,
    change: impl Fn(&mut RunConfig) + Sync,
) {
    let still = |config: &mut RunConfig| {
        change(config);
        config.train.batch_size = Some(2);
        config.train.effective_batch = Some(4);
        (config.train.lr, config.train.lr_head) = (Some(1e-30), Some(1e-30));
        config.train.epochs = Some(1);
        config.train.eval_every = EvalEvery::Epoch;
        config.train.eval_on = vec![Subset::Train];
    };
    let mut alone = trainer(folder, "one", still);
    run(&mut alone).2.unwrap();
    let scores = |state: &RunState| serde_json::to_value(&state.last_scores).unwrap();
    let expected = scores(&alone.state);
    let found = on_each(2, |group| {
        let mut trainer = one_of(folder, "two", &group, still).unwrap();
        run(&mut trainer).2.unwrap();
        scores(&trainer.state)
    });
    let read = |out: &str, name: &str| {
        let text = std::fs::read_to_string(folder.join(out).join(name)).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let of_files = files
        .iter()
        .map(|name| (read("one", name), read("two", name)));
    let mut numbers = Vec::new();
    for (one, two) in of_files.chain(found.into_iter().map(|found| (expected.clone(), found))) {
        numbers_of(&one, &two, &mut numbers);
    }
    assert!(numbers.len() > 3);
    for (one, two) in numbers {
        assert!((one - two).abs() <= tolerance * one.abs(), "{one}, {two}");
    }
}

#[test]
fn classes_are_counted_by_several_processes_as_by_one() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let files = ["samples.json", "confusion.json"];
    // Numbers of the examples are exchanged as decimal digits.
    assert_found_alike(folder.path(), &files, 1e-15, |config| {
        config.model = "vit-demo".to_owned();
        config.task = Some(TaskName::Classify);
        config.data.label = Some("make".into());
    });
}

#[test]
fn masks_are_scored_by_several_processes_as_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = VesselsConfig {
        count: 8,
        size: 64,
        seed: 1,
    };
    vessels::write(&folder.path().join("data"), &drawn, |_| true).unwrap();
    assert_found_alike(folder.path(), &["segmentation.json"], 0.0, |config| {
        config.model = "unet-demo".to_owned();
        config.data.train = Some(config.data.train.as_ref().unwrap().with_file_name("train"));
        let [height, width] = [64, 64];
        config.data.image_size = ImageSize::Exactly { height, width };
    });
}

/// The caption loss is summed batch by batch: its last digits depend on where batches begin.
#[test]
fn clips_are_scored_by_several_processes_as_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = MovingShapesConfig {
        count: 11,
        size: 32,
        frames: 4,
        ..MovingShapesConfig::default()
    };
    moving_shapes::write(&folder.path().join("data"), &drawn, |_| true).unwrap();
    assert_found_alike(folder.path(), &["captions.json"], 1e-6, |config| {
        config.model = "video-text-demo".to_owned();
        let csv = config.data.train.as_ref().unwrap();
        config.data.train = Some(csv.with_file_name("clips.csv"));
        config.losses.caption = Some(1.0);
        config.evaluation.captions = 7;
    });
}

/// Steps have the losses of a single process for any number of processes, up to the order of additions.
#[test]
fn several_processes_have_the_losses_of_one() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let losses = |steps: &Steps| -> Vec<f64> {
        let of = |step: &(u64, usize, String, u64)| f64::from_bits(step.3);
        steps.iter().map(of).collect()
    };
    let (steps, _, outcome) = run(&mut trainer(folder.path(), "one", |_| ()));
    outcome.unwrap();
    let expected = losses(&steps);
    for size in [2, 3] {
        let found = on_each(size, |group| {
            let out = format!("{size} processes");
            let mut trainer = one_of(folder.path(), &out, &group, |_| ()).unwrap();
            let (steps, ..) = run(&mut trainer);
            losses(&steps)
        });
        for one in &found {
            assert_eq!(one, &found[0]);
            for (found, expected) in one.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= 1e-5 * expected,
                    "{found} and {expected}"
                );
            }
        }
    }
}

/// Sharded optimizer state changes no bit, and a run may resume from a checkpoint of either kind.
#[test]
fn state_in_parts_is_saved_whole() {
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path());
    let finished = |out: &str, stages: &[(u64, Shard)]| {
        for &(until, shard) in stages {
            on_each(2, |group| {
                let mut trainer = one_of(folder.path(), out, &group, |config| {
                    config.train.shard = shard;
                })
                .unwrap();
                let requests = Requests::new();
                let outcome = trainer.run(&requests, &mut |event| {
                    if let Event::Step(line) = event {
                        requests.stop.store(line.step == until, Ordering::Relaxed);
                    }
                });
                outcome.unwrap();
            });
        }
        std::fs::read(folder.path().join(out).join("model/model.safetensors")).unwrap()
    };
    let whole = finished("whole", &[(9, Shard::None)]);
    let parts = finished("parts", &[(9, Shard::Optimizer)]);
    assert!(parts == whole);
    let turns = [
        (2, Shard::Optimizer),
        (4, Shard::None),
        (9, Shard::Optimizer),
    ];
    assert!(finished("in turns", &turns) == whole);
}
