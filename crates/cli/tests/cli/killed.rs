//! Runs that are ended at any instant and go on as if nothing had happened: the same losses, none lost, none doubled,
//! and the same model, bit by bit. On the GPU with `HOLDALL_TEST_DEVICE=cuda`.

use std::fs;
use std::time::{Duration, Instant};

use holdall_files::SplitMix64;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, at_full_size};
use crate::typed::{Answer, DONE, Running, start, test_device};

/// Forty steps in five epochs, each of which ends with six samples too few and an evaluation.
const FORTY_STEPS: &str = "--batch-size 4 --gradient-accumulation 2 --epochs 5 --lr 1e-3 \
                           --set train.save_every=3";
const NUM_CARS: usize = 64;

/// Options, and the device that is tested.
fn on_device(options: &str) -> String {
    format!("{options} --device {}", test_device())
}

/// When a run is killed: so long after its start, or then the next time that a file is half written.
struct Moment {
    delay: Duration,
    partial: Option<&'static str>,
}

const PARTIALS: [&str; 2] = ["last.safetensors.partial", "best-"];

/// Whether something in `checkpoints` whose name begins so is half written.
fn is_half_written(run: &RunFiles, name: &str) -> bool {
    let entries = fs::read_dir(run.file("checkpoints"));
    let mut names = entries.into_iter().flatten().flatten();
    names.any(|entry| {
        let found = entry.file_name().into_string().unwrap();
        found.starts_with(name) && found.ends_with(".partial")
    })
}

/// The latest moment on the CPU, where a run begins at once.
const ON_CPU: Duration = Duration::from_millis(1950);

/// Moments that are the same whenever the tests run; `longest` is the latest.
fn moments(longest: Duration) -> impl Iterator<Item = Moment> {
    let mut random = SplitMix64(1);
    let mut below = move |limit: u64| random.bits() % limit;
    (0..).map(move |number| match number % 4 {
        1 => Moment {
            delay: Duration::from_millis(50 + below(950)),
            partial: Some(PARTIALS[0]),
        },
        3 => Moment {
            delay: Duration::from_millis(50),
            partial: Some(PARTIALS[1]),
        },
        _ => Moment {
            delay: Duration::from_millis(50 + below(longest.as_millis() as u64)),
            partial: None,
        },
    })
}

impl Moment {
    /// Returns when it has come, or the run has ended.
    fn wait(&self, running: &mut Running, run: &RunFiles) {
        let started = Instant::now();
        // What an earlier kill left says nothing about this process.
        let partial = self.partial.filter(|name| !is_half_written(run, name));
        let has_come = || {
            started.elapsed() >= self.delay && partial.is_none_or(|name| is_half_written(run, name))
        };
        while !has_come() && running.goes_on() {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

/// Lines of `skipped.csv`, in any order: a run that goes on may meet a picture of the validation before one of the training.
fn skipped(run: &RunFiles) -> Vec<String> {
    let text = fs::read_to_string(run.file("skipped.csv")).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[derive(Default, Debug)]
struct Kills {
    all: usize,
    /// Those that left a file half written, by [`PARTIALS`].
    in_writes: [usize; 2],
}

impl Kills {
    /// Kills a run again and again, and goes on with it each time, until it comes to its end.
    fn kill_until_done(
        &mut self,
        home: &Home,
        run: &RunFiles,
        moments: &mut impl Iterator<Item = Moment>,
        most: usize,
    ) {
        loop {
            let left = PARTIALS.map(|name| is_half_written(run, name));
            let mut running = if run.file("config.yml").is_file() {
                start(run.resume_words(&on_device("")))
            } else {
                // Killed before it had begun: there is nothing to go on with.
                let _ = fs::remove_dir_all(&run.path);
                let name = run.path.file_name().unwrap().to_str().unwrap();
                home.start(name, &on_device(FORTY_STEPS))
            };
            if self.all == most {
                running.answer().exits(DONE);
                return;
            }
            moments.next().unwrap().wait(&mut running, run);
            if !running.kill() {
                return;
            }
            self.all += 1;
            for (index, name) in PARTIALS.iter().enumerate() {
                self.in_writes[index] += usize::from(!left[index] && is_half_written(run, name));
            }
        }
    }
}

#[test]
fn a_run_killed_at_any_moment_goes_on_as_if_nothing_had_happened() {
    let home = Home::with_cars(NUM_CARS);
    // Some cannot be read: which samples a step sees depends on what came before it.
    for broken in [5, 20, 41, 60] {
        let path = home.path(&format!("cars/images/{broken:06}.jpg"));
        fs::write(path, "no picture").unwrap();
    }
    let trained = |name: &str| home.trained(name, &on_device(FORTY_STEPS));
    let mut longest = ON_CPU;
    let mut whole = trained("whole");
    assert_eq!(whole.lines("step").len(), 40);
    assert_eq!(whole.lines("evaluation").len(), 5);
    if test_device() != "cpu" {
        // The first run may compile kernels and choose algorithms; the second finds both, and is as long as those to come.
        // Most of it is opening the card: moments up to its end are spread over the training as well.
        let (first, began) = (whole, Instant::now());
        whole = trained("again");
        longest = began.elapsed();
        assert_same_lines(&whole, &first);
        assert_same_model(&whole, &first);
    }
    let most = at_full_size(20, 6);
    let (mut kills, mut moments, mut num_runs) = (Kills::default(), moments(longest), 0);
    while kills.all < most {
        num_runs += 1;
        let run = home.run_named(&format!("killed-{num_runs}"));
        kills.kill_until_done(&home, &run, &mut moments, most);
        assert_same_lines(&run, &whole);
        assert_same_model(&run, &whole);
        assert_eq!(skipped(&run), skipped(&whole));
        fs::remove_dir_all(&run.path).unwrap();
    }
    println!("{num_runs} runs, {kills:?}");
    assert!(kills.in_writes[0] > 0, "{kills:?}");
}

/// What a kill leaves beside the files is neither read nor in the way.
#[test]
fn half_written_files_are_ignored_and_overwritten() {
    let home = Home::with_cars(24);
    let one_epoch = on_device("--effective-batch 8 --epochs 1");
    let [clean, littered] = ["clean", "littered"].map(|name| home.trained(name, &one_epoch));
    let litter = littered.file("checkpoints/last.safetensors.partial");
    fs::write(&litter, "garbage").unwrap();
    fs::write(littered.file("summary.json.partial"), "garbage").unwrap();
    let best = littered.json("summary.json")["best"]["folder"].clone();
    let best = format!("checkpoints/{}", best.as_str().unwrap());
    fs::write(
        littered.file(&best).join("model.safetensors.partial"),
        "garbage",
    )
    .unwrap();
    fs::create_dir(littered.file(&format!("{best}.partial"))).unwrap();
    fs::create_dir(littered.file("model.partial")).unwrap();
    fs::write(littered.file("model.partial/config.json"), "garbage").unwrap();
    for run in [&clean, &littered] {
        run.resume(&on_device("--epochs 2")).exits(DONE);
    }
    assert_same_lines(&littered, &clean);
    assert_same_model(&littered, &clean);
    assert!(!litter.exists());
    assert!(!littered.file("model.partial").exists());
    assert!(!littered.file("summary.json.partial").exists());
    let names = fs::read_dir(littered.file("model")).unwrap();
    for name in names.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        assert!(!name.contains("partial"), "{name} was copied");
    }
}

/// Killed after its folder was made and before its config was in it: there is no run to go on with, so the same command
/// must be able to begin it.
#[test]
fn a_run_killed_before_it_began_can_begin_again() {
    let home = Home::with_cars(16);
    fs::create_dir_all(home.path("run/checkpoints")).unwrap();
    fs::write(home.path("run/.lock"), "").unwrap();
    fs::write(home.path("run/config.yml.partial"), "model: sm").unwrap();
    home.train("--effective-batch 8 --epochs 1").exits(DONE);
}

/// Whatever a checkpoint holds, the answer names the file; it is never a panic.
#[test]
fn a_damaged_checkpoint_is_named() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let whole = fs::read(run.last()).unwrap();
    let refuses = |what: &str, bytes: &[u8]| {
        fs::write(run.last(), bytes).unwrap();
        let Answer { code, stderr, .. } = run.resume("--epochs 2");
        assert!(matches!(code, 1 | 2), "{what}: {code}\n{stderr}");
        let error = stderr.split("error: ").nth(1);
        let error = error.unwrap_or_else(|| panic!("{what}: {stderr}"));
        assert!(error.contains("last.safetensors"), "{what}: {stderr}");
        assert!(error.contains("\nhint: "), "{what}: {stderr}");
    };
    for length in [0, 7, 100, 60_000, whole.len() - 1] {
        refuses(&format!("cut to {length} bytes"), &whole[..length]);
    }
    refuses("longer", &[&whole[..], b"more"].concat());
    refuses("text", b"this is no checkpoint at all, and never was");
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = whole.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    refuses("a header of 2^64 bytes", &with(0, &[0xff; 8]));
    refuses("a header that is no JSON", &with(8, b"????????"));
    refuses(
        "weights",
        &fs::read(run.file("model/model.safetensors")).unwrap(),
    );
    let state = b"\\\"step\\\":";
    let at = whole.windows(state.len()).position(|bytes| bytes == state);
    refuses("another state", &with(at.unwrap(), b"\\\"stop\\\":"));
    fs::write(run.last(), &whole).unwrap();
    run.resume("--epochs 2").exits(DONE);
}

#[test]
fn a_journal_that_was_cut_is_named() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let journal = run.file("metrics.jsonl");
    let whole = fs::read_to_string(&journal).unwrap();
    let remembered = format!("expected the {} bytes", whole.len());
    fs::write(&journal, &whole[..whole.len() / 2]).unwrap();
    let parts = ["metrics.jsonl", &remembered, "found"];
    run.resume("--epochs 2").ends_with(1, &parts);
    fs::remove_file(&journal).unwrap();
    run.resume("--epochs 2").ends_with(1, &parts);
    // Lines beyond the checkpoint are those of steps that are done again.
    fs::write(&journal, format!("{whole}{{\"kind\":\"step\"")).unwrap();
    run.resume("--epochs 2").exits(DONE);
    assert_eq!(run.lines("step").len(), 4);
}
