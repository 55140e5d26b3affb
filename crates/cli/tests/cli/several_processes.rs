//! Runs of several processes that `--processes N` starts: the batches and losses of one, the same bits every time, and a run that ends by
//! a kill or a signal of any of them goes on with as many, or with others.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, on};
use crate::typed::{DONE, FOUND, Running, TERMINATED, holdall_words};

/// Twelve steps in two epochs, the last of each smaller; a checkpoint after every second one.
const TWELVE_STEPS: &str = "--effective-batch 8 --batch-size 2 --epochs 2 --lr 1e-3 --num-threads 1 \
                            --set train.save_every=2 --set data.validation=none";
const NUM_CARS: usize = 45;

fn with_processes(count: usize) -> String {
    format!("{TWELVE_STEPS} --processes {count}")
}

/// Which samples each step saw.
fn digests(run: &RunFiles) -> Vec<String> {
    let lines = run.lines("step");
    lines
        .iter()
        .map(|line| line["samples_digest"].as_str().unwrap().to_owned())
        .collect()
}

fn bits(run: &RunFiles) -> Vec<u64> {
    run.of_steps("loss")
        .iter()
        .map(|loss| loss.to_bits())
        .collect()
}

#[track_caller]
pub fn assert_close(found: &RunFiles, expected: &RunFiles) {
    assert_eq!(digests(found), digests(expected));
    for key in ["loss", "contrastive", "label", "gradient_norm"] {
        let [found, expected] = [found, expected].map(|run| run.of_steps(key));
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let difference = (found - expected).abs() / expected.abs().max(1e-3);
            assert!(
                difference < 1e-4,
                "{key} of step {}: {found}, {expected}",
                step + 1
            );
        }
    }
}

/// The processes that another has started, oldest first.
pub fn children_of(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind the name, which may have anything in it: state, then the parent.
        let behind = stat.rsplit(')').next().unwrap_or_default();
        if behind.split_whitespace().nth(1) == Some(&parent.to_string()) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// Starts or goes on, and sends a signal to one of the processes once so many lines are there.
fn signalled(
    home: &Home,
    run: &RunFiles,
    count: usize,
    lines: usize,
    (rank, name): (usize, &str),
) -> Running {
    let mut running = if run.file("config.yml").is_file() {
        crate::typed::start(run.resume_words(&format!("--processes {count}")))
    } else {
        let name = run.path.file_name().unwrap().to_str().unwrap();
        home.start(name, &with_processes(count))
    };
    run.wait_until(&mut running, |run| run.num_lines() >= lines);
    let processes = children_of(running.id());
    assert_eq!(processes.len(), count, "{}", running.said());
    signal(processes[rank], name);
    running
}

#[test]
fn several_processes_train_as_one_and_the_same_twice() {
    let home = Home::with_cars(NUM_CARS);
    // Broken pictures are skipped the same everywhere.
    for broken in [7, 30] {
        let path = home.path(&format!("cars/images/{broken:06}.jpg"));
        fs::write(path, "no picture").unwrap();
    }
    let one = home.trained("one", TWELVE_STEPS);
    assert_eq!(one.lines("step").len(), 12);
    let [two, again, three] = [("two", 2), ("again", 2), ("three", 3)]
        .map(|(name, count)| home.trained(name, &with_processes(count)));
    assert_close(&two, &one);
    assert_close(&three, &one);
    assert_eq!(bits(&two), bits(&again));
    assert_same_model(&two, &again);
    assert_eq!(two.json("summary.json")["effective_batch"], 8);
    let rows = |run: &RunFiles| {
        let text = fs::read_to_string(run.file("skipped.csv")).unwrap();
        let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
        rows.sort();
        rows
    };
    assert_eq!(rows(&two), rows(&one));
}

/// Killed twice and stopped once, by two and by three processes: no step is lost and none is done twice.
#[test]
fn a_process_that_is_killed_or_asked_to_stop_ends_all_and_the_run_goes_on() {
    let home = Home::with_cars(NUM_CARS);
    let whole = home.trained("whole", &with_processes(2));
    let run = home.run_named("killed");
    for (rank, lines) in [(1, 3), (0, 7)] {
        let running = signalled(&home, &run, 2, lines, (rank, "KILL"));
        let answer = running.answer().exits(FOUND);
        let lost = format!("rank {rank}");
        assert!(answer.stderr.contains(&lost), "{}", answer.stderr);
    }
    holdall_words(run.resume_words("--processes 2")).exits(DONE);
    assert_eq!(bits(&run), bits(&whole));
    assert_same_model(&run, &whole);
    // Another number goes on where it stopped, with the same batches.
    let run = home.run_named("stopped");
    let running = signalled(&home, &run, 2, 3, (1, "TERM"));
    let answer = running.answer().exits(TERMINATED);
    assert!(answer.stderr.contains("--resume"), "{}", answer.stderr);
    let answer = holdall_words(run.resume_words("--processes 3")).exits(DONE);
    let changed = "Processes: 3 now, 2 before; the same 8 samples a step, 2 x 2 of them on each";
    assert!(answer.stderr.contains(changed), "{}", answer.stderr);
    assert_close(&run, &whole);
}

/// Stops one thread of a process and lets its others run, as a disk does that never answers.
#[cfg(target_os = "linux")]
struct StoppedThread(nix::unistd::Pid);

#[cfg(target_os = "linux")]
impl StoppedThread {
    fn named(process: u32, name: &str) -> StoppedThread {
        use nix::sys::ptrace;
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let mut threads = threads.map(|thread| thread.unwrap());
        let is_named = |thread: &fs::DirEntry| {
            let found = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            found.trim() == name
        };
        let thread = threads
            .find(is_named)
            .unwrap_or_else(|| panic!("no {name}"));
        let number = thread.file_name().to_str().unwrap().parse().unwrap();
        let thread = nix::unistd::Pid::from_raw(number);
        ptrace::seize(thread, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(thread).unwrap();
        StoppedThread(thread)
    }

    /// Takes note of its end, without which its process cannot end: whether it has.
    fn has_ended(&self) -> bool {
        use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
        match waitpid(self.0, Some(flags)) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => true,
            Ok(_) => false,
        }
    }
}

/// The others end long before the half hour that a process may plan or save for; the one that hangs ends as well.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_is_alive_and_hangs_ends_all_and_the_run_goes_on() {
    let home = Home::with_cars(NUM_CARS);
    // More steps than are done before a thread is stopped, however busy the machine is.
    let options = with_processes(2).replace("--epochs 2", "--epochs 10");
    let whole = home.trained("whole", &options);
    assert_eq!(whole.lines("step").len(), 60);
    for rank in [0, 1] {
        let name = format!("hung-{rank}");
        let run = home.run_named(&name);
        let words = home.words(&name, &options);
        let mut running = crate::typed::start_after("export HOLDALL_DEADLINE=5", words);
        run.wait_until(&mut running, |run| run.num_lines() >= 3);
        let processes = children_of(running.id());
        let stopped = StoppedThread::named(processes[rank], "holdall-cpu-0");
        while !stopped.has_ended() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let answer = running.answer().exits(FOUND);
        let lost = format!("lost rank {rank} on ");
        assert!(answer.stderr.contains(&lost), "{}", answer.stderr);
        let why = "it is alive, but nothing in it has gone on for 5 s";
        assert!(answer.stderr.contains(why), "{}", answer.stderr);
        holdall_words(run.resume_words("--processes 2")).exits(DONE);
        assert_eq!(bits(&run), bits(&whole));
        assert_same_model(&run, &whole);
    }
}

/// Any rank at any moment of training, evaluating and saving: what is left after twenty kills is the run that nobody touched.
#[test]
fn a_run_that_is_killed_twenty_times_has_the_same_losses() {
    const KILLS: usize = 20;
    const MOST_LINES: usize = 8;
    let home = Home::with_cars(48);
    // An epoch is six steps and an evaluation: more lines than the kills can see.
    let options = "--effective-batch 8 --batch-size 2 --epochs 25 --lr 1e-3 --num-threads 1 --set train.save_every=4 --processes 2";
    let whole = home.trained("whole", options);
    assert!(whole.num_lines() > KILLS * MOST_LINES);
    let run = home.run_named("killed");
    let mut random = holdall_files::SplitMix64(1);
    let mut below = |bound: usize| random.bits() as usize % bound;
    for _ in 0..KILLS {
        let is_begun = run.file("config.yml").is_file();
        let mut running = if is_begun {
            crate::typed::start(run.resume_words("--processes 2"))
        } else {
            home.start("killed", options)
        };
        // When this is said, lines beyond the checkpoint are gone.
        running.until_said(match (is_begun, run.last().is_file()) {
            (false, _) => "Run folder: ",
            (true, false) => "beginning at step 0",
            (true, true) => "Resuming after step ",
        });
        let lines = run.num_lines() + below(MOST_LINES);
        run.wait_until(&mut running, |run| run.num_lines() >= lines);
        std::thread::sleep(Duration::from_millis(below(20) as u64));
        let rank = below(2);
        signal(children_of(running.id())[rank], "KILL");
        let answer = running.answer().exits(FOUND);
        let lost = format!("lost rank {rank} on ");
        assert!(answer.stderr.contains(&lost), "{}", answer.stderr);
    }
    holdall_words(run.resume_words("--processes 2")).exits(DONE);
    assert_same_lines(&run, &whole);
    assert_same_model(&run, &whole);
}

/// What two processes find of a model is what one finds, to the last digit.
#[test]
fn an_evaluation_by_several_processes_is_that_of_one() {
    let home = Home::with_cars(NUM_CARS);
    let run = home.trained("run", "--effective-batch 8 --epochs 1 --lr 1e-3");
    fs::write(home.path("cars/images/000011.jpg"), "no picture").unwrap();
    let data = home.csv();
    let [one, two] = ["", "--processes 2"].map(|processes| {
        let words = format!("{} --json --num-threads 1 {processes}", data.display());
        let mut answer = on("eval", &run.path, &words).exits(DONE).json();
        for measured in ["planned_bytes", "process_bytes"] {
            answer[measured].take();
        }
        answer
    });
    assert_eq!(one["skipped"], 1, "{one}");
    assert_eq!(one, two);
}
