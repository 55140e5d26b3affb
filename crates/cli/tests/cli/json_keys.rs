//! Keys that others rely on, as `design.md` lists them: one object on stdout, talk on stderr.

use serde_json::Value;

use crate::typed::{Answer, BAD_INPUT, DONE, bytes, holdall};

const OF_CANDIDATES: [&str; 9] = [
    "batch_size",
    "gradient_accumulation",
    "recompute",
    "precision",
    "optimizer_state",
    "arena_bytes",
    "process_bytes",
    "breakdown",
    "step_ms",
];
const OF_THE_BREAKDOWN: [&str; 7] = [
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "inputs",
    "features",
    "workspace",
];

#[track_caller]
fn assert_has(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object.get(key).is_some(), "no `{key}` in {object}");
    }
}

fn assert_candidate(candidate: &Value) {
    assert_has(candidate, &OF_CANDIDATES);
    assert_has(&candidate["breakdown"], &OF_THE_BREAKDOWN);
    let parts = candidate["breakdown"].as_object().unwrap();
    let sum: u64 = parts.values().map(|part| part.as_u64().unwrap()).sum();
    assert_eq!(sum, bytes(candidate, "arena_bytes"), "{candidate}");
    assert!(bytes(candidate, "process_bytes") > sum);
    assert!(candidate["step_ms"].as_f64().unwrap() > 0.0);
}

/// Ascending in memory, descending in time, with the choice and the knee on it.
fn assert_curve(plan: &Value) {
    let curve = plan["curve"].as_array().unwrap();
    curve.iter().for_each(assert_candidate);
    for pair in curve.windows(2) {
        assert!(bytes(&pair[0], "process_bytes") < bytes(&pair[1], "process_bytes"));
        assert!(pair[0]["step_ms"].as_f64() > pair[1]["step_ms"].as_f64());
    }
    assert!(curve.contains(&plan["chosen"]), "{plan}");
    if let Some(knee) = plan["knee_bytes"].as_u64() {
        let mut sizes = curve.iter().map(|one| bytes(one, "process_bytes"));
        assert!(sizes.any(|size| size == knee));
    }
}

#[test]
fn plan() {
    for options in [
        "--effective-batch 32",
        "--effective-batch 128 --memory 100MiB --labels 10",
        "--batch-size 3 --gradient-accumulation 5 --recompute cheap",
        "--batch-size 1 --effective-batch 64",
    ] {
        let plan = holdall(&format!("plan small {options} --json")).exits(DONE);
        let plan = plan.json();
        assert_has(&plan, &["device", "budget_bytes", "chosen", "alternatives"]);
        assert_eq!(plan["device"], "cpu");
        assert_curve(&plan);
        let alternatives = plan["alternatives"].as_array().unwrap();
        let suggestion = plan.get("suggestion").filter(|value| !value.is_null());
        for candidate in alternatives
            .iter()
            .chain([&plan["chosen"]])
            .chain(suggestion)
        {
            assert_candidate(candidate);
        }
        assert!(bytes(&plan["chosen"], "process_bytes") <= bytes(&plan, "budget_bytes"));
    }
}

#[test]
fn verify() {
    let options = "--effective-batch 8 --split 3 --recompute cheap";
    let answer = holdall(&format!("verify small {options} --json")).exits(DONE);
    assert_has(
        &answer.json(),
        &[
            "exact",
            "max_relative_error",
            "worst_parameter",
            "loss_difference",
            "splits",
        ],
    );
}

#[test]
fn bench_clip() {
    let options = "--small --steps 1 --batch-size 2 --gradient-accumulation 2 --recompute cheap";
    for json in ["", " --json"] {
        let bench = holdall(&format!("bench clip {options}{json}")).exits(DONE);
        let bench = bench.json();
        assert_has(
            &bench,
            &[
                "job",
                "micro_batch",
                "accum",
                "dtype",
                "recompute",
                "exact",
                "step_ms",
                "samples_per_s",
                "planned_bytes",
                "arena_bytes",
                "process_bytes",
            ],
        );
        assert_eq!(bench["micro_batch"], 2);
        assert_eq!(bench["accum"], 2);
        assert_eq!(bench["dtype"], "f32");
        assert_eq!(bench["recompute"], "cheap");
        assert_eq!(bench["exact"], true);
        let number = |key: &str| bench[key].as_f64().unwrap();
        let samples = number("samples_per_s") * number("step_ms") / 1e3;
        assert!((samples - 4.0).abs() < 1e-6, "{samples}");
    }
}

#[test]
fn every_bench_takes_json() {
    let jobs = [
        "clip",
        "classify",
        "segment",
        "video-text",
        "loader",
        "captions",
        "retrieval",
    ];
    for job in jobs {
        let help = holdall(&format!("bench {job} --help")).exits(DONE).stdout;
        assert!(help.contains("\n      --json\n"), "bench {job}\n{help}");
    }
    let ranked = "bench retrieval --queries 20 --gallery 10 --repeat 1 --device cpu";
    for json in ["", " --json"] {
        let bench = holdall(&format!("{ranked}{json}")).exits(DONE).json();
        assert_has(&bench, &["queries", "gallery", "ms", "peak_bytes"]);
    }
}

/// Beside its PyTorch script, whose names for the options are accepted.
#[test]
fn bench_segment() {
    let options = "--small --size 32 --micro-batch 1 --accum 3 --dtype f32 --exact --steps 1 --device cpu --threads 1";
    let bench = holdall(&format!("bench segment {options}")).exits(DONE);
    let bench = bench.json();
    let keys = [
        "job",
        "dtype",
        "recompute",
        "step_ms",
        "arena_bytes",
        "process_bytes",
    ];
    assert_has(&bench, &keys);
    assert_eq!(bench["job"], "segment-small");
    assert_eq!(
        (&bench["micro_batch"], &bench["accum"]),
        (&1.into(), &3.into())
    );
    assert_eq!(bench["samples_per_s"], bench["images_per_s"]);
    assert_eq!(bench["exact"], true);
    let refused = holdall("bench segment --small --size 36 --device cpu").exits(BAD_INPUT);
    assert!(
        refused.stderr.contains("expected a multiple of 8"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("`data: {image_size: 40}`"),
        "{}",
        refused.stderr
    );
}

/// Talk is on stderr, whether or not stdout is for machines.
#[test]
fn talk_goes_to_stderr() {
    let options = "--precision fp16 --effective-batch 8 --labels 2";
    let says_so = |answer: Answer| {
        let answer = answer.exits(DONE);
        answer.json();
        assert!(
            answer.stderr.contains("the CPU computes in f32"),
            "{}: {}",
            answer.typed,
            answer.stderr
        );
    };
    says_so(holdall(&format!("plan small {options} --json")));
    says_so(holdall(&format!("verify small {options} --split 4 --json")));
    says_so(holdall(&format!("bench clip --small --steps 1 {options}")));
    let profile = "bench clip --small --steps 1 --effective-batch 2 --profile";
    let answer = holdall(profile).exits(DONE);
    answer.json();
    assert!(answer.stderr.contains("linear"), "{}", answer.stderr);
}

/// What people bring along from their scripts.
#[test]
fn other_spellings_are_accepted() {
    let chosen = |options: &str| {
        let plan = holdall(&format!("plan small --json {options}")).exits(DONE);
        let plan = plan.json();
        let of = |key: &str| plan["chosen"][key].as_u64().unwrap();
        (of("batch_size"), of("gradient_accumulation"))
    };
    let expected = chosen("--batch-size 4 --gradient-accumulation 3");
    assert_eq!(expected, (4, 3));
    for options in [
        "--batch_size 4 --gradient_accumulation 3",
        "--batch_size 4 --gradient_accumulation_steps 3 --num_threads 2",
        "--micro-batch 4 --accum 3 --threads 1 --dtype f32",
        "--batch_size 4 --effective_batch 12",
        "--effective_batch 12 --gradient-accumulation-steps 3",
    ] {
        assert_eq!(chosen(options), expected, "{options}");
    }
    let bench = "bench clip --small --steps 1 --batch_size 2 --accum 1 --num_threads 1";
    assert_eq!(holdall(bench).exits(DONE).json()["threads"], 1);
}
