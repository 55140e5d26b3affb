//! Kills at random instants, of runs that begin, that go on, and that are made longer.

use std::fs;
use std::time::{Duration, Instant};

use super::{Dice, all_go_well, came_out_as};
use crate::training::{Home, RunFiles, at_full_size, copy_folder};
use crate::typed::{DONE, Running, start, test_device};

const BEGIN: &str =
    "--batch-size 4 --gradient-accumulation 2 --epochs 2 --lr 1e-3 --set train.save_every=2";
const EXTEND: &str = "--epochs 3";
const NUM_CARS: usize = 32;

/// Options, and the device that is tested.
fn on_device(options: &str) -> String {
    format!("{options} --device {}", test_device())
}

/// Kills a run after `delay`; says whether it was still running.
fn kill_after(mut running: Running, delay: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < delay && running.goes_on() {
        std::thread::sleep(Duration::from_micros(300));
    }
    running.kill()
}

/// A life of a run: killed `kills` times at most while it begins, then as often while it is made longer.
struct Life {
    seed: u64,
}

const KILLS_OF_A_LIFE: usize = 6;

struct Campaign {
    home: Home,
    base: RunFiles,
    expected: RunFiles,
    longest: Duration,
}

impl Campaign {
    fn survives(&self, life: &Life, index: usize) -> Result<usize, String> {
        let run = self.home.run_named(&format!("life-{index}"));
        let mut dice = Dice::new(life.seed);
        let mut kills = 0;
        for (half, expected) in [(0, &self.base), (1, &self.expected)] {
            // Half of the lives begin with a run that is there already.
            if half == 0 && dice.below(2) == 0 {
                copy_folder(&self.base.path, &run.path);
                continue;
            }
            for _ in 0..KILLS_OF_A_LIFE / 2 {
                let delay = Duration::from_micros(dice.below(self.longest.as_micros() as u64));
                if !kill_after(self.go_on(&run, half), delay) {
                    break;
                }
                kills += 1;
            }
            let answer = self.go_on(&run, half).answer();
            if answer.code != DONE {
                return Err(format!("{}\n{}", answer.typed, answer.stderr));
            }
            came_out_as(&run, expected)?;
        }
        let _ = fs::remove_dir_all(&run.path);
        Ok(kills)
    }

    fn go_on(&self, run: &RunFiles, half: usize) -> Running {
        let name = run.path.file_name().unwrap().to_str().unwrap();
        match (half, run.file("config.yml").is_file()) {
            (0, false) => self.home.start(name, &on_device(BEGIN)),
            (0, true) => start(run.resume_words(&on_device(""))),
            _ => start(run.resume_words(&on_device(EXTEND))),
        }
    }
}

#[test]
fn campaign_of_kills() {
    let home = Home::with_cars(NUM_CARS);
    fs::write(home.path("cars/images/000007.jpg"), "no picture").unwrap();
    let began = Instant::now();
    let base = home.trained("base", &on_device(BEGIN));
    let longest = began.elapsed();
    let expected = home.run_named("expected");
    copy_folder(&base.path, &expected.path);
    expected.resume(&on_device(EXTEND)).exits(DONE);
    let campaign = Campaign {
        home,
        base,
        expected,
        longest,
    };
    let all = std::sync::atomic::AtomicUsize::new(0);
    let num_lives = if test_device() == "cpu" {
        at_full_size(480, 4)
    } else {
        at_full_size(24, 4)
    };
    let lives: Vec<Life> = (0..num_lives).map(|seed| Life { seed }).collect();
    all_go_well("lives with kills", &lives, |life, index| {
        let kills = campaign.survives(life, index)?;
        all.fetch_add(kills, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    });
    let all = all.into_inner();
    println!("kills at random instants: {all}");
    assert!(all > lives.len(), "too few kills to tell: {all}");
}
