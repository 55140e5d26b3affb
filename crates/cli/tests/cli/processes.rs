//! `--processes`, and the variables of launchers.

use std::net::TcpListener;

use crate::typed::{Answer, BAD_INPUT, DONE, FOUND, holdall, holdall_with};

const STEP: &str = "bench clip --small --steps 1 --effective-batch 8";

#[test]
fn launchers_that_contradict_are_refused() {
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "4")];
    holdall_with(&torchrun, &format!("{STEP} --processes 4")).refused_with(&[
        "--processes 4: expected a process that nobody else has started, found rank 1 of 4, started by torchrun",
        "leave --processes out",
    ]);
    holdall_with(&[("RANK", "1")], STEP)
        .refused_with(&["RANK=1: expected WORLD_SIZE beside it, found none"]);
    let both = [&torchrun[..], &[("PMI_RANK", "0"), ("PMI_SIZE", "2")]].concat();
    holdall_with(&both, STEP).refused_with(&[
        "RANK=1 and WORLD_SIZE=4, but PMI_RANK=0 and PMI_SIZE=2: expected launchers that agree",
    ]);
    holdall_with(&[("HOLDALL_DEADLINE", "soon")], STEP)
        .refused_with(&["HOLDALL_DEADLINE=soon: expected seconds"]);
    for wrong in ["0", "x", "257"] {
        holdall(&format!("{STEP} --processes {wrong}"))
            .refused_with(&["--processes", "expected a whole number from 1 to 256"]);
    }
}

/// Two processes of one job, as torchrun would start them.
fn started_together(lines: [&'static str; 2]) -> [Answer; 2] {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    // Rank 0 listens on the port after this one.
    let port = (free.local_addr().unwrap().port() - 1).to_string();
    drop(free);
    let processes = [0, 1].map(|rank| {
        let (port, line) = (port.clone(), lines[rank]);
        std::thread::spawn(move || {
            let rank = rank.to_string();
            let variables = [
                ("RANK", rank.as_str()),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", &rank),
                ("LOCAL_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port),
            ];
            holdall_with(&variables, line)
        })
    });
    processes.map(|process| process.join().unwrap())
}

#[test]
fn processes_that_were_asked_for_different_things_are_refused_on_both_sides() {
    for (lines, difference) in [
        (
            ["train a.csv --device cpu", "train b.csv --device cpu"],
            "config.data.train is \"b.csv\", expected \"a.csv\" as on rank 0",
        ),
        (
            ["train a.csv --device cpu", "eval runs/a --device cpu"],
            "command is \"eval\", expected \"train DATA\" as on rank 0",
        ),
    ] {
        for answer in started_together(lines) {
            // One may hear of it from the other.
            let Answer { code, stderr, .. } = &answer;
            assert!([FOUND, BAD_INPUT].contains(code), "{stderr}");
            for part in [
                difference,
                "hint: start all processes with the same command",
            ] {
                assert!(stderr.contains(part), "lacks `{part}`: {stderr}");
            }
        }
    }
}

#[test]
fn a_batch_script_of_slurm_is_one_process() {
    let batch = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_JOB_ID", "7"),
    ];
    holdall_with(&batch, &format!("{STEP} --json"))
        .exits(DONE)
        .json();
}

#[test]
fn of_several_processes_the_first_talks() {
    let answer = holdall(&format!("{STEP} --json --processes 2")).exits(DONE);
    answer.json();
    assert_eq!(
        answer
            .stderr
            .matches("Processes: 2 on this machine, bulk data by TCP\n")
            .count(),
        1,
        "{}",
        answer.stderr
    );
    assert!(!answer.stderr.contains("[1]"), "{}", answer.stderr);
    // One is as if nothing had been said.
    let alone = holdall(&format!("{STEP} --json --processes 1")).exits(DONE);
    assert!(!alone.stderr.contains("Processes:"), "{}", alone.stderr);
}

#[test]
fn bad_input_is_reported_once() {
    let answer = holdall("train no-such.yml --processes 3");
    assert_eq!(
        answer.stderr.matches("error: ").count(),
        1,
        "{}",
        answer.stderr
    );
    answer.refused_with(&["no-such.yml"]);
}
