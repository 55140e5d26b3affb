//! Real `mpirun`: gradients of every task, losses of a run, and a signal to one rank, under Open MPI and MPICH.

use std::ffi::OsString;
use std::path::Path;

use crate::report::say;
use crate::several_processes::{assert_close, children_of, signal};
use crate::training::Home;
use crate::typed::{Answer, DONE, FOUND, Running, TERMINATED, holdall_words, start_under};

/// A launcher, as it is started here.
struct Mpirun {
    program: &'static str,
    options: &'static [&'static str],
    transport: &'static str,
}

const OPEN_MPI: Mpirun = Mpirun {
    program: "mpirun.openmpi",
    // Root in a container, more processes than cores.
    options: &[
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "--mca",
        "btl_vader_single_copy_mechanism",
        "none",
    ],
    transport: "Open MPI",
};
const MPICH: Mpirun = Mpirun {
    program: "mpiexec.hydra",
    options: &[],
    transport: "MPICH",
};

impl Mpirun {
    /// Without one nothing is started, which must not go unseen.
    fn is_here(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_here =
            std::env::split_paths(&path).any(|folder| folder.join(self.program).is_file());
        if !is_here {
            assert!(
                std::env::var_os("HOLDALL_REQUIRE_MPI").is_none(),
                "HOLDALL_REQUIRE_MPI is set, and {} is not in PATH",
                self.program
            );
            say(&format!(
                "SKIPPED: nothing was started by {}: it is not here",
                self.program
            ));
        }
        is_here
    }

    fn start(&self, size: usize, words: Vec<OsString>) -> Running {
        let mut launcher: Vec<OsString> = vec![self.program.into(), "-n".into()];
        launcher.push(size.to_string().into());
        launcher.extend(self.options.iter().map(OsString::from));
        start_under(&launcher, words)
    }

    fn run(&self, size: usize, words: &str) -> Answer {
        let words = words.split_whitespace().map(OsString::from);
        self.start(size, words.collect()).answer()
    }
}

/// A model of each task that a CPU computes in no time, with an effective batch that no number of processes divides.
const TASKS: [&str; 4] = [
    "verify small --labels 5 --tokens 16 --effective-batch 11",
    "verify unet-demo --effective-batch 5",
    "verify video-text-demo --effective-batch 5",
    "verify vit-demo --labels 5 --effective-batch 7",
];

#[test]
fn gradients_of_every_task_are_those_of_one_process() {
    for (launcher, sizes) in [(OPEN_MPI, &[1, 2, 3, 4][..]), (MPICH, &[2, 4])] {
        if !launcher.is_here() {
            continue;
        }
        for (task, &size) in TASKS
            .iter()
            .flat_map(|task| sizes.iter().map(move |size| (task, size)))
        {
            let answer = launcher
                .run(
                    size,
                    &format!("{task} --json --num-threads 1 --split 2 --recompute cheap"),
                )
                .exits(DONE);
            let certificate = answer.json();
            assert_eq!(certificate["exact"], true, "{task}, {size}: {certificate}");
            assert_eq!(certificate["tolerance"], 1e-5);
            let talk = format!(
                "Processes: {size} on this machine, bulk data by {}",
                launcher.transport
            );
            assert!(
                size == 1 || answer.stderr.contains(&talk),
                "{}",
                answer.stderr
            );
        }
    }
}

/// Tasks, totals, splits and numbers of processes as a fixed seed draws them; most totals leave some processes less than others.
#[test]
fn gradients_of_random_splits_are_those_of_one_process() {
    let mut random = holdall_files::SplitMix64(19);
    let mut below = |bound: usize| random.bits() as usize % bound;
    for number in 0..12 {
        let launcher = &[OPEN_MPI, MPICH][number % 2];
        let (task, most) = [
            ("verify small --labels 5 --tokens 16", 24),
            ("verify unet-demo", 6),
            ("verify video-text-demo", 6),
            ("verify vit-demo --labels 5", 24),
        ][number / 2 % 4];
        let size = 2 + below(3);
        let total = size + below(most);
        let split = 1 + below(total.div_ceil(size));
        let recompute = ["none", "cheap", "blocks"][below(3)];
        if !launcher.is_here() {
            continue;
        }
        let words = format!(
            "{task} --effective-batch {total} --split {split} --recompute {recompute} --json --num-threads 1"
        );
        let certificate = launcher.run(size, &words).exits(DONE).json();
        assert_eq!(certificate["exact"], true, "{words}, {size}: {certificate}");
        assert_eq!(certificate["tolerance"], 1e-5);
    }
}

/// The certificate can say no.
#[test]
fn plain_accumulation_is_found_out() {
    for (launcher, task) in [(OPEN_MPI, TASKS[0]), (MPICH, TASKS[1])] {
        if !launcher.is_here() {
            continue;
        }
        let words = format!("{task} --json --num-threads 1 --plain-accumulation --split 1");
        let answer = launcher.run(2, &words);
        let mut lines = answer.stdout.lines().filter(|line| line.starts_with('{'));
        let certificate: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(certificate["exact"], false, "{certificate}");
        answer.exits(FOUND);
    }
}

const SIX_STEPS: &str = "--effective-batch 8 --batch-size 2 --epochs 1 --lr 1e-3 --num-threads 1 --set data.validation=none";

#[test]
fn a_run_has_the_losses_of_one_process() {
    let home = Home::with_cars(45);
    let one = home.trained("one", SIX_STEPS);
    for (launcher, size) in [(OPEN_MPI, 3), (MPICH, 2)] {
        if !launcher.is_here() {
            continue;
        }
        let name = format!("{} of {size}", launcher.transport);
        let answer = launcher
            .start(size, home.words(&name, SIX_STEPS))
            .answer()
            .exits(DONE);
        assert_close(&home.run_named(&name), &one);
        let said = format!("Effective batch size: 8 ({size} processes x 2 x 2)");
        assert!(answer.stderr.contains(&said), "{}", answer.stderr);
        assert_eq!(answer.stderr.matches("Run folder: ").count(), 1);
    }
}

/// One rank is asked to stop: all save once, end with its code, and one process goes on.
#[test]
fn a_signal_to_one_rank_saves_and_stops_all() {
    if !OPEN_MPI.is_here() {
        return;
    }
    let home = Home::with_cars(45);
    let long = format!("{SIX_STEPS} --epochs 2000").replace("--epochs 1 ", "");
    let run = home.run_named("run");
    let mut running = OPEN_MPI.start(2, home.words("run", &long));
    run.wait_until(&mut running, |run| run.num_lines() >= 3);
    let ranks: Vec<u32> = children_of(running.id())
        .into_iter()
        .filter(|pid| is_holdall(*pid))
        .collect();
    assert_eq!(ranks.len(), 2, "{}", running.said());
    signal(ranks[1], "TERM");
    let answer = running.answer().exits(TERMINATED);
    assert!(answer.stderr.contains("--resume"), "{}", answer.stderr);
    let steps = run.num_lines();
    let more = format!("--epochs {}", steps / 6 + 1);
    holdall_words(run.resume_words(&more)).exits(DONE);
    assert!(run.num_lines() > steps);
}

fn is_holdall(pid: u32) -> bool {
    let link = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe"));
    link.is_ok_and(|link| link.file_name() == Path::new(&crate::typed::program()).file_name())
}
