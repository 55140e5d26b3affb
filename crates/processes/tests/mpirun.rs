#![cfg(unix)]
//! Processes under real launchers. This test program is its own worker: launchers start it with `worker` as the only test.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up should stop

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use holdall_processes::{Group, GroupError, Launch};
use nix::sys::signal::{Signal, raise};

/// What a worker does.
const WORK: &str = "HOLDALL_TEST_WORK";

#[test]
#[ignore = "started by the other tests, as one of several processes"]
fn worker() {
    let work = std::env::var(WORK).unwrap();
    let launch = Launch::from_environment().unwrap();
    let group = match Group::start(&launch, "test") {
        Ok(group) => group,
        Err(error) => end(&error),
    };
    println!(
        "rank {} of {}, {} of {} here, by {:?}",
        group.rank(),
        group.size(),
        group.local_rank(),
        group.local_size(),
        group.transport().unwrap_or("nothing")
    );
    match work.as_str() {
        "sums" => sums(&group),
        "killed" => lose_one(&group, Signal::SIGKILL),
        "stopped" => lose_one(&group, Signal::SIGSTOP),
        other => panic!("{other}"),
    }
}

fn end(error: &GroupError) -> ! {
    println!("error: {error}");
    std::process::exit(1);
}

fn sums(group: &Group) {
    let size = group.size();
    // More than a round of staging, and no multiple of anything.
    let len = size * (1 << 18) + 12_345;
    let value = |rank: usize, at: usize| ((at % 1013) as f32 + 0.1) * (rank as f32 + 0.3);
    let mut values: Vec<f32> = (0..len).map(|at| value(group.rank(), at)).collect();
    let (first, rest) = values.split_at_mut(777);
    group.all_reduce_f32(&mut [first, &mut [], rest]).unwrap();
    for (at, sum) in values.iter().enumerate() {
        let expected = (1..size).fold(value(0, at), |sum, rank| sum + value(rank, at));
        assert_eq!(sum.to_bits(), expected.to_bits(), "{at}");
    }
    let mut parts = vec![0; size * 3_000_001];
    let own = group.rank() * 3_000_001;
    parts[own..own + 3_000_001].fill(group.rank() as u8 + 1);
    group.all_gather(&mut parts).unwrap();
    let of_rank = |(rank, part): (usize, &[u8])| part.iter().all(|&byte| byte == rank as u8 + 1);
    assert!(parts.chunks(3_000_001).enumerate().all(of_rank));
    let rows = group
        .gather_bytes(&vec![7; group.rank() * 1_500_000])
        .unwrap();
    let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
    assert_eq!(
        lengths,
        (0..size).map(|rank| rank * 1_500_000).collect::<Vec<_>>()
    );
    let mut count = [1.0];
    group.sum(&mut count).unwrap();
    assert_eq!(count, [size as f64]);
    println!("rank {} has all sums", group.rank());
}

/// The last rank dies or stops between two sums.
fn lose_one(group: &Group, signal: Signal) {
    let mut values = vec![1.0; 100_000];
    for step in 0.. {
        if group.rank() == group.size() - 1 && step == 3 {
            raise(signal).unwrap();
        }
        if let Err(error) = group.all_reduce_f32(&mut [&mut values]) {
            end(&error);
        }
    }
}

/// Which launcher, and what makes it leave the survivors alone.
struct Mpirun {
    program: &'static str,
    options: &'static [&'static str],
    leave_survivors: &'static [&'static str],
    transport: &'static str,
}

const LAUNCHERS: [Mpirun; 2] = [
    Mpirun {
        program: "mpirun.openmpi",
        options: &["--allow-run-as-root", "--oversubscribe"],
        leave_survivors: &["--enable-recovery"],
        transport: "Open MPI",
    },
    Mpirun {
        program: "mpiexec.hydra",
        options: &[],
        leave_survivors: &["-disable-auto-cleanup"],
        transport: "MPICH",
    },
];

impl Mpirun {
    fn is_here(&self) -> bool {
        let is_here = Command::new(self.program).arg("--version").output().is_ok();
        assert!(
            is_here || std::env::var_os("HOLDALL_REQUIRE_MPI").is_none(),
            "{} is not here",
            self.program
        );
        if !is_here {
            println!("SKIPPED: {} is not here", self.program);
        }
        is_here
    }

    fn run(&self, size: usize, work: &str, options: &[&str]) -> Output {
        Command::new(self.program)
            .args(self.options)
            .args(options)
            .args(["-n", &size.to_string()])
            // Launchers that leave survivors alone do not tell their codes; MPICH's sends them SIGUSR1 instead.
            .args([
                "sh",
                "-c",
                "trap '' USR1; \"$0\" \"$@\"; echo \"exit code $?\"",
            ])
            .arg(std::env::current_exe().unwrap())
            .args(["worker", "--exact", "--ignored", "--nocapture"])
            .env(WORK, work)
            .env("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
            .output()
            .unwrap()
    }
}

fn text(output: &Output) -> String {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{stdout}\n{stderr}")
}

#[test]
fn sums_under_mpirun() {
    for launcher in LAUNCHERS.iter().filter(|launcher| launcher.is_here()) {
        for size in 1..=4 {
            let output = launcher.run(size, "sums", &[]);
            let text = text(&output);
            assert_eq!(text.matches("exit code 0\n").count(), size, "{text}");
            for rank in 0..size {
                assert!(
                    text.contains(&format!("rank {rank} has all sums")),
                    "{text}"
                );
                let place = format!("rank {rank} of {size}, {rank} of {size} here, by \"");
                assert!(size == 1 || text.contains(&place), "{text}");
            }
            assert!(size == 1 || text.contains(launcher.transport), "{text}");
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_by_all_others() {
    for launcher in LAUNCHERS.iter().filter(|launcher| launcher.is_here()) {
        let began = Instant::now();
        let output = launcher.run(3, "killed", launcher.leave_survivors);
        let text = text(&output);
        assert_eq!(text.matches("error: lost rank 2 on ").count(), 2, "{text}");
        assert_eq!(text.matches("exit code 1\n").count(), 2, "{text}");
        assert!(began.elapsed() < Duration::from_secs(30), "{text}");
    }
}

/// Workers without a launcher, as `--processes` starts them.
fn by_hand(size: usize, work: &str, deadline: &str) -> Vec<std::process::Child> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let start = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["worker", "--exact", "--ignored", "--nocapture"])
            .env(WORK, work)
            .env("HOLDALL_RANK", rank.to_string())
            .env("HOLDALL_SIZE", size.to_string())
            .env("HOLDALL_ADDRESS", "127.0.0.1")
            .env("HOLDALL_PORT", port.to_string())
            .env("HOLDALL_TOKEN", "of this test")
            .env("HOLDALL_DEADLINE", deadline)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..size).map(start).collect()
}

#[test]
fn a_rank_that_stops_is_named_after_the_deadline() {
    let mut workers = by_hand(3, "stopped", "2");
    let mut stopped = workers.pop().unwrap();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        let text = text(&output);
        let expected = "error: lost rank 2 on ";
        assert!(
            text.contains(expected) && text.contains("nothing was heard of it for 2 s"),
            "{text}"
        );
        assert_eq!(output.status.code(), Some(1), "{text}");
    }
    assert_eq!(stopped.try_wait().unwrap(), None);
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}

#[test]
fn a_rank_that_is_killed_is_named_at_once_whichever_it_is() {
    for (size, deadline) in [(2, "600"), (4, "600")] {
        let mut workers = by_hand(size, "killed", deadline);
        assert_eq!(workers.pop().unwrap().wait().unwrap().code(), None);
        for worker in workers {
            let text = text(&worker.wait_with_output().unwrap());
            let expected = format!("error: lost rank {} on ", size - 1);
            assert!(text.contains(&expected), "{text}");
        }
    }
}
