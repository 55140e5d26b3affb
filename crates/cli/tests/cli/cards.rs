//! Plans for cards that are not here.

use serde_json::Value;

use crate::typed::{BAD_INPUT, DOES_NOT_FIT, DONE, bytes, holdall};

const CLIP: &str = "plan openai/clip-vit-base-patch32 --effective-batch 128";

fn planned(options: &str) -> Value {
    let answer = holdall(&format!("{CLIP} {options} --json")).exits(DONE);
    assert!(
        answer.stderr.contains("Planned for "),
        "{}: {}",
        answer.typed,
        answer.stderr
    );
    answer.json()
}

#[test]
fn a_batch_of_128_fits_a_card_of_8_gib() {
    let answer = holdall(&format!("{CLIP} --gpu rtx-4060 --memory 7GiB")).exits(DONE);
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(
        lines[0],
        "Planned for rtx-4060 (8 GiB, sm_89): rates as published, memory of the context guessed; \
         the card itself is measured when it is there"
    );
    assert_eq!(
        lines[1],
        "openai/clip-vit-base-patch32 on rtx-4060 in bf16, budget 7.00 GiB"
    );
    assert!(lines[3].starts_with("Effective batch size: 128 ("));
    assert_eq!(answer.stderr, "Precision: bf16 (auto: rtx-4060 has it)\n");
    assert!(
        answer.stdout.contains(" per use ") && answer.stdout.contains("  copies: weights in bf16")
    );
    let full = holdall(&format!("{CLIP} --gpu rtx-4060 --precision f32")).exits(DONE);
    assert!(!full.stdout.contains("copies"), "{}", full.stdout);

    let plan = planned("--gpu rtx-4060");
    assert_eq!(plan["device"], "rtx-4060");
    assert_eq!(plan["effective_batch"], 128);
    assert_eq!(plan["chosen"]["precision"], "bf16");
    // 95% of what CUDA sees of 8 GiB.
    let budget = bytes(&plan, "budget_bytes");
    assert!((7 << 30..15 << 29).contains(&budget), "{budget}");
    assert!(bytes(&plan["chosen"], "process_bytes") <= budget);
    // A share is one of the same bytes.
    let half = bytes(&planned("--gpu rtx-4060 --memory 47.5%"), "budget_bytes");
    assert!(half.abs_diff(budget / 2) < 1 << 10, "{half} of {budget}");
}

#[test]
fn the_number_format_is_the_cards() {
    assert_eq!(planned("--gpu t4")["chosen"]["precision"], "fp16");
    assert_eq!(planned("--gpu h200")["chosen"]["precision"], "bf16");
    let asked = planned("--gpu h200 --precision tf32");
    assert_eq!(asked["chosen"]["precision"], "tf32");
    for format in ["bf16", "tf32"] {
        holdall(&format!("{CLIP} --gpu t4 --precision {format}")).refused_with(&[
            format!("precision: {format}").as_str(),
            "that t4 computes in",
            "hint: --precision fp16",
        ]);
    }
}

#[test]
fn a_faster_card_has_a_faster_plan_and_more_memory_never_a_slower_one() {
    let step = |options: &str| planned(options)["chosen"]["step_ms"].as_f64().unwrap();
    assert!(step("--gpu h200") < step("--gpu rtx-4090"));
    assert!(step("--gpu rtx-4090") < step("--gpu rtx-4060"));
    let mut before = f64::INFINITY;
    for memory in ["2600MiB", "3GiB", "4GiB", "6GiB", "8GiB", "24GiB"] {
        let now = step(&format!("--gpu rtx-4060 --memory {memory}"));
        assert!(now <= before, "{memory}: {now} ms after {before} ms");
        before = now;
    }
}

#[test]
fn more_than_the_card_has_is_planned_within_what_it_has() {
    for memory in ["8GiB", "12GiB"] {
        let answer = holdall(&format!(
            "plan openai/clip-vit-base-patch32 --gpu rtx-4060 --effective-batch 1024 --memory {memory} --json"
        ));
        let answer = answer.exits(DONE);
        let note = "Memory: planned within 7.72 GiB: ";
        assert!(answer.stderr.contains(note), "{}", answer.stderr);
        let (plan, usable) = (answer.json(), (7.72 * f64::from(1 << 30)) as u64);
        assert!(bytes(&plan, "budget_bytes") <= usable, "{plan}");
        assert!(bytes(&plan["chosen"], "process_bytes") <= usable, "{plan}");
    }
    // What cannot fit the card is refused, and more memory is not offered as if it could be typed.
    let refusal = holdall(
        "plan openai/clip-vit-base-patch32 --gpu rtx-4060 --batch-size 1024 --gradient-accumulation 1 \
         --recompute none --memory 64GiB",
    );
    let refusal = refusal.exits(DOES_NOT_FIT).stderr;
    let why = "\nMemory: planned within 7.72 GiB: 64.00 GiB was asked for, ";
    assert!(refusal.contains(why), "{refusal}");
    assert!(!refusal.contains("hint: --memory"), "{refusal}");
}

/// Of plans that take the same time, one with less memory and nothing on the host is chosen.
#[test]
fn no_memory_is_spent_on_nothing() {
    let plan = holdall("plan unet --gpu rtx-4060 --effective-batch 4 --json")
        .exits(DONE)
        .json();
    let of = |one: &serde_json::Value| {
        let [process, host] = ["process_bytes", "host_bytes"].map(|key| bytes(one, key));
        (one["step_ms"].as_f64().unwrap(), process, host)
    };
    let (chosen_ms, chosen_bytes, chosen_host) = of(&plan["chosen"]);
    assert_eq!(chosen_host, 0, "{}", plan["chosen"]);
    let others = plan["alternatives"].as_array().unwrap();
    assert!(others.len() > 3, "{plan}");
    for other in others {
        let (ms, bytes, host) = of(other);
        let is_better = ms <= 1.004 * chosen_ms && bytes < chosen_bytes * 97 / 100;
        assert!(!is_better || host > chosen_host, "{other}");
    }
}

#[test]
fn what_does_not_fit_is_refused_for_a_card_too() {
    let typed = format!("{CLIP} --gpu rtx-4060 --memory 1GiB --json");
    let refusal = holdall(&typed).exits(DOES_NOT_FIT).json();
    assert_eq!(refusal["device"], "rtx-4060");
    let smallest = bytes(&refusal, "smallest_budget_bytes").div_ceil(1 << 20);
    planned(&format!("--gpu rtx-4060 --memory {smallest}MiB"));
}

#[test]
fn unknown_cards_come_to_the_nearest() {
    holdall("plan small --gpu rtx-4061").refused_with(&[
        "rtx-4061",
        "nearest: rtx-4060",
        "--gpu list",
    ]);
    holdall("plan small --gpu h100").refused_with(&["h100-pcie or h100-sxm"]);
    let both = holdall("plan small --gpu h200 --device cpu").exits(BAD_INPUT);
    assert!(both.stderr.contains("--device"), "{}", both.stderr);
}

#[test]
fn the_list_has_every_card_and_each_has_a_plan() {
    let text = holdall("plan --gpu list").exits(DONE).stdout;
    let list = holdall("plan --gpu list --json").exits(DONE).json();
    let cards = list["cards"].as_array().unwrap();
    assert!(cards.len() > 40);
    for card in cards {
        let name = card["name"].as_str().unwrap();
        assert!(text.contains(&format!("\n  {name} ")), "{name}: {text}");
        let plan = holdall(&format!(
            "plan small --effective-batch 8 --gpu {name} --json"
        ));
        assert_eq!(plan.exits(DONE).json()["device"], name);
    }
}

/// A config with data is planned with its captions and labels.
#[test]
fn data_is_read_for_a_card_too() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("cars").display().to_string();
    holdall(&format!("data sample cars {data} --count 40")).exits(DONE);
    let config = folder.path().join("run.yml").display().to_string();
    std::fs::write(&config, "model: small\ndata: {train: cars, label: make}\n").unwrap();
    let answer = holdall(&format!("plan {config} --gpu rtx-3060 --json")).exits(DONE);
    assert_eq!(answer.json()["device"], "rtx-3060");
    for note in ["Tokens per caption: ", "Defaults: effective batch "] {
        assert!(answer.stderr.contains(note), "{}", answer.stderr);
    }
}

#[test]
fn a_budget_that_the_card_has_not_got_is_no_advice() {
    let answer = holdall("plan unet --effective-batch 16 --gpu rtx-4060").exits(DONE);
    assert!(
        answer.stdout.contains("(over what can be had)"),
        "{}",
        answer.stdout
    );
    for words in answer.stdout.split("--memory ").skip(1) {
        let mib: u64 = words.split("MiB").next().unwrap().parse().unwrap();
        assert!(mib < 8 << 10, "{}", answer.stdout);
    }
    // All that can be had, and no less for who asks for more.
    let budget = |memory: &str| {
        bytes(
            &planned(&format!("--gpu rtx-4060 --memory {memory}")),
            "budget_bytes",
        )
    };
    assert!(budget("8GiB") >= budget("7.7GiB"));
}
