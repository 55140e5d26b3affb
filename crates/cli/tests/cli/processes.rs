//! `--processes`, and the variables of launchers.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::typed::{Answer, BAD_INPUT, DONE, FOUND, holdall, holdall_in, holdall_with};

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
    started_in([Path::new("."); 2], lines)
}

/// The same, each in its own folder: two machines with their own files.
fn started_in(folders: [&Path; 2], lines: [&'static str; 2]) -> [Answer; 2] {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    // Rank 0 listens on the port after this one.
    let port = (free.local_addr().unwrap().port() - 1).to_string();
    drop(free);
    let processes = [0, 1].map(|rank| {
        let (port, line) = (port.clone(), lines[rank]);
        let folder = folders[rank].to_owned();
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
            holdall_in(&folder, &variables, line)
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

/// The list of samples is the first machine's; its files and the model's weights may be others on the next one.
#[test]
fn machines_with_other_pictures_or_weights_are_refused_before_the_first_step() {
    const TRAIN: &str = "train photos.csv --model small --out run --device cpu --num-threads 1 --memory 300MiB \
                         --effective-batch 4 --set train.max_steps=2 --set data.validation=none";
    const EVAL: &str = "eval run photos.csv --device cpu --num-threads 1 --memory 300MiB";
    let home = tempfile::tempdir().unwrap();
    let machines = ["a", "b"].map(|name| home.path().join(name));
    for machine in &machines {
        fs::create_dir(machine).unwrap();
        let mut rows = "image,caption\n".to_owned();
        for number in 0..40u8 {
            image::RgbImage::from_pixel(32, 32, image::Rgb([number, 90, 200]))
                .save(machine.join(format!("{number}.png")))
                .unwrap();
            rows += &format!("{number}.png,a picture of colour {number}\n");
        }
        fs::write(machine.join("photos.csv"), rows).unwrap();
    }
    let [first, second] = &machines;
    holdall_in(first, &[], TRAIN).exits(DONE);
    holdall_in(second, &[], &format!("{TRAIN} --lr 0.01")).exits(DONE);
    let together = |line, difference: &str| {
        for Answer { code, stderr, .. } in started_in([first, second], [line; 2]) {
            assert!([FOUND, BAD_INPUT].contains(&code), "{stderr}");
            assert!(
                stderr.contains(difference),
                "lacks `{difference}`: {stderr}"
            );
        }
    };
    together(EVAL, "run has other weights than on rank 0 on ");
    const GO_ON: &str = "train photos.csv --model run/model --out next --device cpu --num-threads 1 --memory 300MiB \
                         --effective-batch 4 --set train.max_steps=2 --set data.validation=none";
    together(GO_ON, "run/model has other weights than on rank 0 on ");
    // One picture that is not among every few.
    image::RgbImage::new(32, 48)
        .save(second.join("17.png"))
        .unwrap();
    together(GO_ON, ": 17.png is ");
    together(EVAL, ": 17.png is ");
    assert!(!first.join("next/metrics.jsonl").exists());
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
