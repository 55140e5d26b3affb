//! The same on a GPU: every function of its libraries fails, and other processes take its memory. With `HOLDALL_TEST_DEVICE=cuda`.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use super::attempt::{Attempt, Ending, Fault, library};
use super::{all_go_well, came_out_as};
use crate::training::{Home, RunFiles};
use crate::typed::{DONE, test_device};

const BEGIN: &str = "--batch-size 4 --gradient-accumulation 2 --epochs 1 --lr 1e-3 --recompute none \
                     --set train.save_every=2";

/// Whether a GPU is tested; the tests of training say once for all where not.
fn has_card() -> bool {
    test_device() != "cpu"
}

/// They return text or a number, not whether they failed.
const NEVER_FAIL: [&str; 6] = [
    "cublasLtGetVersion",
    "cublasLtGetCudartVersion",
    "cublasLtGetStatusName",
    "cublasLtGetStatusString",
    "nvrtcGetErrorString",
    "nvmlErrorString",
];

/// Errors that a function may return: an internal one, and for those that reserve memory, that there is none.
fn errors(function: &str) -> Vec<i32> {
    match function {
        name if name.starts_with("cublas") => vec![14],
        name if name.starts_with("nvrtc") => vec![11],
        name if name.contains("Alloc") => vec![999, 2],
        _ => vec![999],
    }
}

struct Campaign {
    home: Home,
    library: PathBuf,
    expected: RunFiles,
    /// Where kernels and algorithms are kept: what a fault does to it must not harm those after it.
    cache: PathBuf,
}

impl Campaign {
    fn attempt(&self, run: &RunFiles, fault: Option<&Fault>) -> Result<Ending, String> {
        let name = run.path.file_name().unwrap().to_str().unwrap();
        let device = test_device();
        let words = if run.file("config.yml").is_file() {
            run.resume_words(&format!("--device {device}"))
        } else {
            self.home.words(name, &format!("{BEGIN} --device {device}"))
        };
        let cache = self.cache.display().to_string();
        let attempt = Attempt {
            words,
            under: Some(&run.path),
            fault,
            variables: vec![("HOLDALL_CACHE", cache)],
        };
        attempt.run(&self.library)
    }

    fn survives(&self, fault: &Fault, index: usize) -> Result<(), String> {
        let run = self.home.run_named(&format!("card-{index}"));
        let checked = self.survives_in(fault, &run);
        let _ = fs::remove_dir_all(&run.path);
        checked.map_err(|error| format!("{fault}: {error}"))
    }

    fn survives_in(&self, fault: &Fault, run: &RunFiles) -> Result<(), String> {
        let ending = self.attempt(run, Some(fault))?;
        ending.is_in_order()?;
        if ending.code != Some(DONE) {
            let again = self.attempt(run, None)?;
            if again.code != Some(DONE) {
                let (code, now, told) = (again.code, again.stderr, ending.stderr);
                return Err(format!(
                    "then {code:?} without the fault\n{now}\nafter\n{told}"
                ));
            }
        }
        came_out_as(run, &self.expected)
    }
}

#[test]
fn campaign_of_driver_errors() {
    let Some(library) = library().filter(|_| has_card()) else {
        return;
    };
    let home = Home::with_cars(24);
    let campaign = Campaign {
        expected: home.run_named("expected"),
        cache: home.path("cache"),
        home,
        library,
    };
    // The first run compiles and chooses; the second is what the others are like.
    let first = campaign.home.run_named("first");
    assert_eq!(campaign.attempt(&first, None).unwrap().code, Some(DONE));
    let ending = campaign.attempt(&campaign.expected, None).unwrap();
    assert_eq!(ending.code, Some(DONE), "{}", ending.stderr);
    let mut faults = Vec::new();
    for (operation, function, count) in ending.calls {
        if operation != "call" || NEVER_FAIL.contains(&&*function) {
            continue;
        }
        let mut occurrences = vec![1, count.div_ceil(2), count];
        occurrences.dedup();
        for (occurrence, error) in occurrences.into_iter().flat_map(|occurrence| {
            errors(&function)
                .into_iter()
                .map(move |error| (occurrence, error))
        }) {
            faults.push(Fault {
                operation: operation.clone(),
                file: function.clone(),
                occurrence,
                action: format!("once:{error}"),
            });
        }
    }
    assert!(faults.len() > 40, "calls are not seen: {faults:?}");
    all_go_well("driver faults", &faults, |fault, index| {
        campaign.survives(fault, index)
    });
}

/// More processes than the card has room for begin at once, each of which times candidates and reserves while the others do.
#[test]
fn campaign_of_neighbours() {
    let Some(library) = library().filter(|_| has_card()) else {
        return;
    };
    let begin = |number: usize| {
        let line = format!(
            "bench clip --device {} --precision bf16 --effective-batch {} --memory 30GiB --steps 2 --json",
            test_device(),
            1024 + 128 * number
        );
        let words = line.split_whitespace().map(OsString::from).collect();
        let attempt = Attempt {
            words,
            ..Attempt::default()
        };
        attempt.run(&library)
    };
    let endings: Vec<Result<Ending, String>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..9)
            .map(|number| scope.spawn(move || begin(number)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let mut num_done = 0;
    for ending in endings {
        let ending = ending.unwrap();
        ending.is_in_order().unwrap();
        num_done += usize::from(ending.code == Some(DONE));
        let said = ending
            .stderr
            .lines()
            .filter(|line| line.contains("planned again") || line.contains("error"));
        println!("{:?} {:?}", ending.code, said.collect::<Vec<_>>());
    }
    assert!(num_done >= 4, "only {num_done} of 9 found room");
}
