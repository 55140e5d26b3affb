//! A limit on the process is to it what the machine's memory is where there is none: budgets are shares of it, and one above it is
//! planned within it or refused.

use std::process::{Command, Output};

use crate::typed::{DOES_NOT_FIT, DONE, program};

const LIMIT_KIB: u64 = 1536 << 10;

/// Types a command in a shell with that limit on what may be mapped.
fn limited(limit_kib: u64, line: &str) -> Output {
    let script = format!("ulimit -v {limit_kib}; exec \"$0\" \"$@\"");
    Command::new("sh")
        .args(["-c", &script])
        .arg(program())
        .args(line.split(' '))
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap()
}

/// What it wrote, if it ended so.
fn answer(output: Output, code: i32) -> (String, String) {
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
    (stdout, stderr)
}

fn budget_bytes(stdout: &str) -> u64 {
    let plan: serde_json::Value = serde_json::from_str(stdout).unwrap();
    plan["budget_bytes"].as_u64().unwrap()
}

#[test]
fn budgets_are_shares_of_the_limit() {
    let typed = "plan small --effective-batch 8 --num-threads 2 --json";
    let (stdout, stderr) = answer(limited(LIMIT_KIB, typed), DONE);
    assert!(
        stderr.contains("Memory: 1.50 GiB (limit by ulimit -v)"),
        "{stderr}"
    );
    let limit = LIMIT_KIB << 10;
    assert!(
        (limit / 4..limit).contains(&budget_bytes(&stdout)),
        "{stdout}"
    );
    let (stdout, _) = answer(limited(LIMIT_KIB, &format!("{typed} --memory 50%")), DONE);
    assert_eq!(budget_bytes(&stdout), limit / 2);
}

#[test]
fn a_budget_above_the_limit_is_planned_within_it() {
    let typed = "plan small --effective-batch 8 --num-threads 2 --memory 4GiB --json";
    let (stdout, stderr) = answer(limited(LIMIT_KIB, typed), DONE);
    let note = "Memory: planned within ";
    let why = ": 4.00 GiB was asked for, ";
    let owner = " of 1.50 GiB can be had (limit by ulimit -v)";
    for part in [note, why, owner] {
        assert!(stderr.contains(part), "lacks `{part}`: {stderr}");
    }
    assert!(budget_bytes(&stdout) < LIMIT_KIB << 10, "{stdout}");
}

/// 768 pictures at once without recomputation take more than 1.5 GiB.
#[test]
fn what_does_not_fit_the_limit_is_refused_whatever_the_budget() {
    let typed = "bench clip --small --batch-size 768 --gradient-accumulation 1 --recompute none \
                 --num-threads 2 --memory 64GiB --steps 1 --json";
    let (_, stderr) = answer(limited(LIMIT_KIB, typed), DOES_NOT_FIT);
    for part in [
        "error: the run does not fit: ",
        "Memory: planned within ",
        ": 64.00 GiB was asked for, ",
    ] {
        assert!(stderr.contains(part), "lacks `{part}`: {stderr}");
    }
    assert!(!stderr.contains("hint: --memory"), "{stderr}");
}

/// `data check` has no budget: what is free bounds it, and it says where it stopped.
#[test]
fn a_table_beyond_the_limit_is_refused_by_row() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("line.csv");
    std::fs::write(
        &path,
        format!("image,caption\n1.png,{}", "x".repeat(100 << 20)),
    )
    .unwrap();
    let typed = format!("data check {}", path.display());
    let (_, stderr) = answer(limited(500 << 10, &typed), DOES_NOT_FIT);
    assert!(
        stderr.contains("line.csv, row 2: the first bytes of this row take more"),
        "{stderr}"
    );
}
