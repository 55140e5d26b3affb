//! A long run holds no more at its end than at its start.

use std::fs;
use std::ops::Range;
use std::time::Duration;

use crate::training::{Home, RunFiles, at_full_size};
use crate::typed::{DONE, Running};

/// How much more of it may be resident at the end.
const MOST_GROWTH_KIB: u64 = 1024;
/// Steps until everything that is made once has been made.
const WARM_UP: usize = 100;
/// Steps that are watched: enough to see a checkpoint being written.
const WATCHED: usize = 60;

#[test]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "NOT CHECKED whether a long run grows: this system has no /proc"
)]
fn a_long_run_does_not_grow() {
    let num_steps: usize = at_full_size(10_000, 320);
    let home = Home::with_cars(32);
    let run = home.run();
    let options = format!(
        "--effective-batch 2 --epochs {} --set data.validation=none --set train.eval_every=none \
         --set train.save_every=50",
        num_steps / 16
    );
    let mut running = home.start("run", &options);
    let [start, end] = [WARM_UP, num_steps - WATCHED - 20]
        .map(|first| most_resident_kib(&run, &mut running, first..first + WATCHED));
    running.answer().exits(DONE);
    println!("{num_steps} steps: {start} KiB after {WARM_UP}, {end} KiB at the end");
    assert!(
        end <= start + MOST_GROWTH_KIB,
        "{start} KiB, then {end} KiB"
    );
    assert_eq!(run.lines("step").len(), num_steps);
}

/// The most that the process held while it did these steps.
fn most_resident_kib(run: &RunFiles, running: &mut Running, steps: Range<usize>) -> u64 {
    let mut most = 0;
    loop {
        let step = run.num_lines();
        if step >= steps.end {
            assert!(most > 0, "the steps {steps:?} went by unseen");
            return most;
        }
        assert!(running.goes_on(), "ended before step {}", steps.end);
        if steps.contains(&step) {
            most = most.max(resident_kib(running.id()));
            std::thread::sleep(Duration::from_millis(5));
        } else {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// `VmRSS` of a process.
fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
