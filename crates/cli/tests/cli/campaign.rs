//! A campaign of faults: every file-system call of a run failed or killed at, kills at random instants, damaged files, tight
//! budgets.
//!
//! ```text
//! a run, untouched                            -> what must come out in the end
//! the same run, with a fault                  -> an end with a sentence, or none (it was killed), or nothing noticed
//! holdall train --resume, without the fault   -> the same lines, model and scores, bit for bit; or the damage by its name
//! ```
//!
//! Here it takes about a minute. With `HOLDALL_FULL_SIZE=1` it is the long one, whose counts are in docs/reliability.md:
//! `HOLDALL_FULL_SIZE=1 cargo test --release -p holdall-cli --test cli campaign -- --nocapture --test-threads 1`.

mod attempt;
mod budgets;
mod cards;
mod corruption;
mod file_system;
mod kills;

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdall_files::SplitMix64;

use crate::training::{RunFiles, at_full_size, same_results};

/// Numbers that are the same whenever the campaign runs; `HOLDALL_CAMPAIGN_SEED` gives others.
pub struct Dice(SplitMix64);

impl Dice {
    pub fn new(stream: u64) -> Dice {
        let seed = std::env::var("HOLDALL_CAMPAIGN_SEED");
        let seed: u64 = seed.ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        Dice(SplitMix64(seed.wrapping_mul(1 << 20).wrapping_add(stream)))
    }

    /// In `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.bits() % bound
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// Does every piece of work, several at once where the campaign is long, and says how many there were and what went wrong.
#[track_caller]
fn all_go_well<T: Sync>(
    what: &str,
    work: &[T],
    check: impl Fn(&T, usize) -> Result<(), String> + Sync,
) {
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..at_full_size(cores.min(6), 1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(piece) = work.get(index) else {
                        return;
                    };
                    if let Err(fault) = check(piece, index) {
                        println!("{what} {index}: {fault}");
                        faults.lock().unwrap().push(fault);
                    }
                    if index % 100 == 99 {
                        println!("{what}: {} of {}", index + 1, work.len());
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    println!("{what}: {} tried, {} went wrong", work.len(), faults.len());
    assert!(
        faults.is_empty(),
        "{what}: {} of {} went wrong, such as\n{}",
        faults.len(),
        work.len(),
        faults[0]
    );
}

/// The results of a run are those of another, bit for bit, and it left nothing half written.
fn came_out_as(run: &RunFiles, expected: &RunFiles) -> Result<(), String> {
    same_results(run, expected)?;
    let litter = half_written(&run.path);
    if litter.is_empty() {
        Ok(())
    } else {
        Err(format!("left half written: {litter:?}"))
    }
}

/// Files and folders that a run writes before it renames them.
fn half_written(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().unwrap().is_dir() {
            found.extend(half_written(&entry.path()));
        }
        if name.ends_with(".partial") {
            found.push(name);
        }
    }
    found
}
