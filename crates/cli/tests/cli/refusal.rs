//! What cannot fit is refused with a way out that works; what the user fixed stays fixed.

use serde_json::Value;

use crate::typed::{BAD_INPUT, DOES_NOT_FIT, DONE, bytes, holdall};

const MIB: u64 = 1 << 20;

/// Runs that do not fit, each with other numbers fixed.
const TOO_LARGE: [&str; 10] = [
    "--effective-batch 128 --memory 20MiB",
    "--effective-batch 1024 --memory 36MiB",
    "--effective-batch 64 --batch-size 16 --memory 42MiB",
    "--effective-batch 64 --batch-size 64 --recompute none --memory 100MiB",
    "--effective-batch 64 --gradient-accumulation 2 --memory 50MiB",
    "--batch-size 16 --gradient-accumulation 4 --recompute none --memory 60MiB",
    "--batch-size 128 --memory 50MiB",
    "--gradient-accumulation 1 --recompute none --memory 60MiB",
    "--effective-batch 256 --batch-size 128 --gradient-accumulation 2 --memory 60MiB",
    "--effective-batch 100 --batch-size 12 --recompute cheap --memory 53MiB --labels 1000 --num-threads 1",
];

/// The options with those of `change` in the place of their namesakes, as a user would edit the line. Remarks in
/// brackets are not typed.
fn edited(options: &str, change: &str) -> String {
    let change = change.split(" (").next().unwrap();
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for text in [options, change] {
        let words: Vec<&str> = text.split(' ').collect();
        for pair in words.chunks_exact(2) {
            pairs.retain(|(name, _)| *name != pair[0]);
            pairs.push((pair[0], pair[1]));
        }
    }
    let words: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    words.join(" ")
}

/// The refusal of a plan, as JSON.
fn refusal(options: &str) -> Value {
    let answer = holdall(&format!("plan small {options} --json")).exits(DOES_NOT_FIT);
    let refusal = answer.json();
    assert_eq!(refusal["chosen"], Value::Null, "{options}");
    assert_eq!(refusal["alternatives"], Value::Array(Vec::new()));
    assert!(answer.stderr.contains("error: "), "{options}");
    refusal
}

#[test]
fn a_refusal_names_the_smallest_budget_and_changes() {
    for options in TOO_LARGE {
        let answer = holdall(&format!("plan small {options}")).exits(DOES_NOT_FIT);
        assert_eq!(answer.stdout, "", "{options}");
        let mut lines: Vec<&str> = answer.stderr.lines().collect();
        assert!(lines.remove(0).starts_with("Device: CPU"), "{options}");
        assert!(
            lines[0].starts_with("error: ") && lines[0].contains("smallest that would do is"),
            "{options}: {}",
            answer.stderr
        );
        let hints = &lines[1..];
        // Three that change no number of the run's, and two that do.
        assert!((1..=5).contains(&hints.len()), "{}", answer.stderr);
        assert!(hints.iter().all(|hint| hint.starts_with("hint: --")));

        // The same as JSON, from one process: from start to start it varies what just fits.
        let answer = holdall(&format!("plan small {options} --json")).exits(DOES_NOT_FIT);
        let refusal = answer.json();
        let smallest = bytes(&refusal, "smallest_budget_bytes");
        assert!(smallest > bytes(&refusal, "budget_bytes"), "{options}");
        let hints = answer
            .stderr
            .lines()
            .filter(|line| line.starts_with("hint: --"));
        assert_eq!(
            refusal["changes"].as_array().unwrap().len(),
            hints.count(),
            "{options}"
        );
    }
}

/// Forecasts start from what the process holds, which varies by a few pages from one process to the next; a whole MiB
/// leaves room for that.
#[test]
fn the_smallest_budget_is_enough_with_every_number_as_it_was() {
    for options in TOO_LARGE {
        let smallest = bytes(&refusal(options), "smallest_budget_bytes");
        let enough = format!("--memory {}MiB", smallest.div_ceil(MIB));
        let options_then = edited(options, &enough);
        let plan = holdall(&format!("plan small {options_then} --json")).exits(DONE);
        for (flag, key) in [
            ("--batch-size", "batch_size"),
            ("--gradient-accumulation", "gradient_accumulation"),
            ("--recompute", "recompute"),
        ] {
            let words: Vec<&str> = options.split(' ').collect();
            if let Some(pair) = words.windows(2).find(|pair| pair[0] == flag) {
                let chosen = plan.json()["chosen"][key].clone();
                let chosen = chosen
                    .as_str()
                    .map_or_else(|| chosen.to_string(), str::to_owned);
                assert_eq!(chosen, pair[1], "{options_then}: {key}");
            }
        }
    }
}

/// Not only planned: run, and measured.
#[test]
fn a_run_in_the_smallest_budget_stays_in_it() {
    for options in [
        "--effective-batch 24 --memory 20MiB",
        "--batch-size 8 --effective-batch 20 --recompute cheap --memory 20MiB",
    ] {
        let bench = |options: &str| holdall(&format!("bench clip --small --steps 1 {options}"));
        let refused = bench(options).exits(DOES_NOT_FIT);
        let more_memory = refused
            .stderr
            .lines()
            .find_map(|line| line.strip_prefix("hint: --memory ")?.split(':').next());
        let enough = format!("--memory {}", more_memory.unwrap());
        let measured = bench(&edited(options, &enough)).exits(DONE).json();
        let budget: u64 = enough["--memory ".len()..]
            .trim_end_matches("MiB")
            .parse()
            .unwrap();
        assert!(
            bytes(&measured, "process_bytes") <= budget * MIB,
            "{options}"
        );
    }
}

#[test]
fn every_change_offered_fits_when_it_is_typed() {
    let mut wrong = Vec::new();
    for options in TOO_LARGE {
        let refusal = refusal(options);
        for change in refusal["changes"].as_array().unwrap() {
            let change = change["change"].as_str().unwrap();
            let typed = edited(options, change);
            let answer = holdall(&format!("plan small {typed} --json"));
            if answer.code != DONE {
                wrong.push(format!("{options}\n  -> {typed}\n  {}", answer.stderr));
                continue;
            }
            // "The same gradient" is a promise about the effective batch.
            let effective = answer.json()["effective_batch"].as_u64();
            if change.contains("the same gradient") && effective != effective_batch(options) {
                wrong.push(format!(
                    "{options}\n  -> {typed}\n  effective batch {effective:?}, promised the same gradient"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What changes numbers is offered where the run does not use it, and said to.
#[test]
fn fewer_bits_and_adapters_are_offered_with_their_bytes() {
    // The weights alone need more than half of this; their moments are the rest.
    let offered = |options: &str| -> Vec<String> {
        let refusal = refusal(options);
        let changes = refusal["changes"].as_array().unwrap().iter();
        let set = changes.filter(|one| one["change"].as_str().unwrap().starts_with("--set"));
        let shown = set.map(|one| {
            assert!(bytes(one, "process_bytes") <= bytes(&refusal, "budget_bytes"));
            let change = one["change"].as_str().unwrap();
            assert!(change.contains("(other numbers: "), "{change}");
            change.split(" (").next().unwrap().to_owned()
        });
        shown.collect()
    };
    let eight_bit = "--set train.optimizer_state=8bit";
    let adapters = "--set train.lora.rank=16";
    let tight = "--effective-batch 8 --memory MEMORY";
    let smallest = {
        let options = tight.replace("MEMORY", "20MiB");
        bytes(&refusal(&options), "smallest_budget_bytes")
    };
    // A little less than what it needs: either would do.
    let options = tight.replace("MEMORY", &format!("{}MiB", (smallest - 4 * MIB) / MIB));
    assert_eq!(offered(&options), [eight_bit, adapters]);
    // What it uses already is not offered again.
    let less = |change: &str| {
        let refusal = refusal(&format!("--effective-batch 8 --memory 20MiB {change}"));
        let enough = bytes(&refusal, "smallest_budget_bytes") / MIB - 4;
        offered(&format!(
            "--effective-batch 8 --memory {enough}MiB {change}"
        ))
    };
    assert!(!less(eight_bit).contains(&eight_bit.to_owned()));
    assert!(!less(adapters).contains(&adapters.to_owned()));
}

/// The effective batch of options that do not fit: given, or what the others come to.
fn effective_batch(options: &str) -> Option<u64> {
    let words: Vec<&str> = options.split(' ').collect();
    let value = |flag: &str| {
        let pair = words.windows(2).find(|pair| pair[0] == flag)?;
        pair[1].parse::<u64>().ok()
    };
    let product = || Some(value("--batch-size")? * value("--gradient-accumulation")?);
    value("--effective-batch").or_else(product).or(Some(128))
}

#[test]
fn every_change_offered_is_another_one() {
    for options in TOO_LARGE {
        let refusal = refusal(options);
        let mut typed: Vec<String> = refusal["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|change| edited(options, change["change"].as_str().unwrap()))
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let mut pairs: Vec<String> = words.chunks(2).map(|pair| pair.join(" ")).collect();
                pairs.sort();
                pairs.join(" ")
            })
            .collect();
        typed.sort();
        let all = typed.len();
        typed.dedup();
        assert_eq!(typed.len(), all, "{options}: {}", refusal["changes"]);
    }
}

#[test]
fn a_batch_size_is_never_changed_and_a_better_one_is_suggested() {
    let typed = "plan small --batch-size 1 --effective-batch 64 --json";
    let plan = holdall(typed).exits(DONE).json();
    assert_eq!(plan["chosen"]["batch_size"], 1);
    assert_eq!(plan["chosen"]["gradient_accumulation"], 64);
    let suggestion = &plan["suggestion"];
    assert!(
        suggestion["batch_size"].as_u64().unwrap() > 1,
        "{suggestion}"
    );
    let step_ms = |candidate: &Value| candidate["step_ms"].as_f64().unwrap();
    assert!(step_ms(suggestion) < step_ms(&plan["chosen"]));
    for alternative in plan["alternatives"].as_array().unwrap() {
        assert_eq!(alternative["batch_size"], 1);
    }
    let shown = holdall(typed.trim_end_matches(" --json"))
        .exits(DONE)
        .stdout;
    assert!(shown.contains("Batch size: 1 (as asked)"), "{shown}");
    assert!(shown.contains("\nhint: --batch-size "), "{shown}");
}

#[test]
fn a_batch_size_that_needs_no_better_one_has_no_suggestion() {
    let plan = holdall("plan small --batch-size 64 --effective-batch 64 --json").exits(DONE);
    assert_eq!(plan.json()["suggestion"], Value::Null);
}

#[test]
fn numbers_that_contradict_each_other_are_refused_with_a_hint() {
    for (options, parts) in [
        (
            "--effective-batch 100 --batch-size 8 --gradient-accumulation 16",
            ["100", "8", "16"].as_slice(),
        ),
        (
            "--effective-batch 100 --batch-size 8 --gradient-accumulation 12",
            &["100", "8", "12"],
        ),
        (
            "--effective-batch 100 --set train.batch_size=8 --set train.gradient_accumulation=12",
            &["100", "8", "12"],
        ),
        ("--batch-size 0", &["batch size", "0", "expected"]),
        ("--effective-batch 0", &["effective batch", "0", "expected"]),
        (
            "--gradient-accumulation 0",
            &["gradient accumulation", "0", "expected"],
        ),
        (
            "--batch-size 20 --effective-batch 10",
            &["batch size 20", "effective batch 10"],
        ),
        (
            "--gradient-accumulation 20 --effective-batch 10",
            &["gradient accumulation 20", "effective batch 10"],
        ),
    ] {
        for command in ["plan small", "verify small", "bench clip --small --steps 1"] {
            let answer = holdall(&format!("{command} {options}"));
            assert_eq!(answer.code, BAD_INPUT, "{command} {options}");
            answer.refused_with(parts);
        }
    }
}

/// Uneven tails are no contradiction.
#[test]
fn three_numbers_that_agree_are_taken() {
    for options in [
        "--effective-batch 100 --batch-size 8 --gradient-accumulation 13",
        "--effective-batch 128 --batch-size 8 --gradient-accumulation 16",
    ] {
        let plan = holdall(&format!("plan small {options} --json")).exits(DONE);
        assert_eq!(plan.json()["chosen"]["batch_size"], 8, "{options}");
    }
}
