//! Every file-system call of a run goes wrong once, one by one.

use std::fs;
use std::path::{Path, PathBuf};

use super::attempt::{Attempt, Ending, Fault, library};
use super::{all_go_well, came_out_as};
use crate::training::{Home, RunFiles, at_full_size, copy_folder};
use crate::typed::DONE;

/// An epoch of three steps with an evaluation, then an epoch more.
const BEGIN: &str = "--batch-size 4 --gradient-accumulation 2 --epochs 1 --lr 1e-3 --set train.save_every=2 --device cpu";
const EXTEND: &str = "--epochs 2 --device cpu";
const NUM_CARS: usize = 24;

const NO_SPACE: i32 = 28;
const INPUT_OUTPUT: i32 = 5;

/// The two halves of a run's life, each with its own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Begin,
    Extend,
}

/// What can go wrong with an operation.
fn actions(operation: &str) -> Vec<String> {
    let once = |error: i32| format!("once:{error}");
    let full = format!("always:{NO_SPACE}");
    let half = format!("half:{NO_SPACE}");
    let kill = "kill".to_owned();
    match operation {
        "write" => vec![once(NO_SPACE), full, half, kill, "torn".to_owned()],
        "create" | "mkdir" | "copy" | "link" => vec![once(NO_SPACE), full, kill],
        "fsync" => vec![once(INPUT_OUTPUT), full, kill],
        "rename" | "unlink" | "rmdir" | "truncate" => vec![once(INPUT_OUTPUT), kill],
        "open" | "read" | "map" | "list" | "lock" => vec![once(INPUT_OUTPUT)],
        // Nobody looks at what closing a file that was read says; one that was written is synced before.
        "close" => Vec::new(),
        other => panic!("the library of faults has a new operation: {other}"),
    }
}

/// The occurrences that stand for all: every one of few, the ends and the middle of many.
fn occurrences(count: u64) -> Vec<u64> {
    match count {
        0..=4 => (1..=count).collect(),
        _ => vec![1, 2, count / 2, count - 1, count],
    }
}

fn faults_of(calls: Vec<(String, String, u64)>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (operation, file, count) in calls {
        // How often memory is looked at is a matter of time.
        let count = if file == "memory.jsonl" {
            count.min(2)
        } else {
            count
        };
        for occurrence in occurrences(count) {
            faults.extend(actions(&operation).into_iter().map(|action| Fault {
                operation: operation.clone(),
                file: file.clone(),
                occurrence,
                action,
            }));
        }
    }
    faults
}

struct Campaign {
    home: Home,
    library: PathBuf,
    /// After the first half.
    base: RunFiles,
    /// After both.
    expected: RunFiles,
}

impl Campaign {
    fn attempt(&self, part: Part, run: &RunFiles, fault: Option<&Fault>) -> Result<Ending, String> {
        let name = run.path.file_name().unwrap().to_str().unwrap();
        let has_begun = run.file("config.yml").is_file();
        let words = match (part, has_begun) {
            (Part::Begin, false) => self.home.words(name, BEGIN),
            (Part::Begin, true) => run.resume_words("--device cpu"),
            (Part::Extend, _) => run.resume_words(EXTEND),
        };
        let attempt = Attempt {
            words,
            under: Some(&run.path),
            fault,
            ..Attempt::default()
        };
        attempt.run(&self.library)
    }

    /// The fault, then a run without it.
    fn survives(&self, part: Part, fault: &Fault, index: usize) -> Result<(), String> {
        let run = self.home.run_named(&format!("{part:?}-{index}"));
        if part == Part::Extend {
            copy_folder(&self.base.path, &run.path);
        }
        let checked = self.survives_in(part, fault, &run);
        if checked.is_ok() {
            let _ = fs::remove_dir_all(&run.path);
        }
        checked.map_err(|error| format!("{part:?} {fault}: {error}"))
    }

    fn survives_in(&self, part: Part, fault: &Fault, run: &RunFiles) -> Result<(), String> {
        let ending = self.attempt(part, run, Some(fault))?;
        ending.is_in_order()?;
        let told = &ending.stderr;
        if !run.file("config.yml").is_file() && told.contains("--resume") {
            return Err(format!("hints at --resume where nothing began\n{told}"));
        }
        if ending.code != Some(DONE) {
            let again = self.attempt(part, run, None)?;
            if again.code != Some(DONE) {
                let (code, now) = (again.code, again.stderr);
                return Err(format!(
                    "then {code:?} without the fault\n{now}\nafter\n{told}"
                ));
            }
        }
        let expected = match part {
            Part::Begin => &self.base,
            Part::Extend => &self.expected,
        };
        came_out_as(run, expected)
    }
}

fn calls(campaign: &Campaign, part: Part, run: &RunFiles) -> Vec<(String, String, u64)> {
    let ending = campaign.attempt(part, run, None).unwrap();
    assert_eq!(ending.code, Some(DONE), "{}", ending.stderr);
    ending.calls
}

#[test]
fn campaign_of_file_system_errors() {
    let Some(library) = library() else {
        return;
    };
    let home = Home::with_cars(NUM_CARS);
    fs::write(home.path("cars/images/000005.jpg"), "no picture").unwrap();
    let campaign = Campaign {
        base: home.run_named("base"),
        expected: home.run_named("expected"),
        home,
        library,
    };
    let of_begin = calls(&campaign, Part::Begin, &campaign.base);
    copy_folder(&campaign.base.path, &campaign.expected.path);
    let of_extend = calls(&campaign, Part::Extend, &campaign.expected);
    assert!(
        of_begin.len() > 100 && of_extend.len() > 100,
        "calls are not seen"
    );
    let of = |part: Part, calls| faults_of(calls).into_iter().map(move |fault| (part, fault));
    let all: Vec<(Part, Fault)> = of(Part::Begin, of_begin)
        .chain(of(Part::Extend, of_extend))
        .collect();
    println!("file-system calls that can go wrong: {}", all.len());
    let step = at_full_size(1, all.len().div_ceil(40));
    let chosen: Vec<_> = all.into_iter().step_by(step).collect();
    all_go_well("file-system faults", &chosen, |(part, fault), index| {
        campaign.survives(*part, fault, index)
    });
}

/// The library of faults does what it says: a campaign that injects nothing proves nothing.
#[test]
fn a_fault_is_felt() {
    let Some(library) = library() else {
        return;
    };
    let home = Home::with_cars(16);
    let felt = |action: &str, under: &Path| {
        let fault = Fault {
            operation: "write".into(),
            file: "config.yml.partial".into(),
            occurrence: 1,
            action: action.into(),
        };
        let words = home.words("run", "--effective-batch 8 --epochs 1 --device cpu");
        let attempt = Attempt {
            words,
            under: Some(under),
            fault: Some(&fault),
            ..Attempt::default()
        };
        attempt.run(&library).unwrap()
    };
    let run = home.run();
    let full = felt("once:28", &run.path);
    assert_eq!(full.code, Some(1), "{}", full.stderr);
    assert!(full.stderr.contains("No space left"), "{}", full.stderr);
    assert_eq!(felt("kill", &run.path).code, None);
    let elsewhere = felt("kill", &home.path("elsewhere"));
    assert_eq!(elsewhere.code, Some(DONE), "{}", elsewhere.stderr);
    assert!(elsewhere.peak_bytes.unwrap() > 10 << 20);
}
