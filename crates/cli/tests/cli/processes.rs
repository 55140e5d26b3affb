//! `--processes`, and the variables of launchers.

use crate::typed::{DONE, holdall, holdall_with};

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
