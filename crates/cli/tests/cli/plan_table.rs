//! The table that teaches. Bytes vary a little with what the process holds, so structure is checked.

use crate::typed::{DONE, holdall};

const PLAN: &str = "plan small --effective-batch 128 --memory 200MiB --num-threads 2";

fn shown(options: &str) -> String {
    let answer = holdall(&format!("{PLAN} {options}")).exits(DONE);
    assert_eq!(
        answer.stderr, "Device: CPU, 2 threads\n",
        "nothing to remark on"
    );
    answer.stdout
}

/// Lines after the one that starts so, up to an empty one.
fn below<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    text.lines()
        .skip_while(|line| !line.trim_start().starts_with(heading))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect()
}

#[test]
fn what_was_asked_and_what_was_chosen_come_first() {
    let text = shown("");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "small on the CPU (2 threads), budget 200.0 MiB");
    assert_eq!(lines[1], "Weights: RANDOM (preset small)");
    assert!(lines[2].starts_with("Effective batch size: 128 ("));
    assert!(lines[3].starts_with("Batch size: ") && lines[3].ends_with(" (chosen)"));
    assert_eq!(lines[4], "");
    assert!(lines[5].starts_with("Chosen: "), "{text}");
    assert!(lines[6].starts_with("Memory: ") && lines[6].contains("of 200.0 MiB"));
}

#[test]
fn what_state_and_gradients_in_fewer_bits_would_save_is_told_and_not_taken() {
    let heading = "What changes numbers, and is taken only if you name it:";
    let text = shown("");
    let lines = below(&text, heading);
    assert_eq!(lines.len(), 3, "{text}");
    for (line, [what, setting]) in lines.iter().zip([
        ["8-bit optimizer state", "(train.optimizer_state: 8bit)"],
        ["bf16 optimizer state", "(train.optimizer_state: bf16)"],
        ["bf16 gradients", "(train.gradients: bf16)"],
    ]) {
        let start = format!("{what} would save ");
        assert!(
            line.trim_start().starts_with(&start) && line.ends_with(setting),
            "{line}"
        );
    }
    let taken = shown("--set train.optimizer_state=8bit --set train.gradients=bf16");
    assert!(!taken.contains(heading), "{taken}");
    let json = |options: &str| {
        let answer = holdall(&format!("{PLAN} --batch-size 8 --json {options}")).exits(DONE);
        serde_json::from_str::<serde_json::Value>(&answer.stdout).unwrap()
    };
    let [full, coded] = ["", "--set train.optimizer_state=8bit"].map(json);
    assert_eq!(full["chosen"]["optimizer_state"], "f32");
    assert_eq!(coded["chosen"]["optimizer_state"], "8bit");
    let optimizer =
        |plan: &serde_json::Value| plan["chosen"]["breakdown"]["optimizer"].as_u64().unwrap();
    assert_eq!(full["savings"][0]["value"], "8bit");
    let saved = full["savings"][0]["saved_bytes"].as_u64().unwrap();
    // Tensors begin at whole lines.
    let difference = optimizer(&full) - optimizer(&coded);
    assert!(
        difference.abs_diff(saved) < 64 << 10,
        "{difference} {saved}"
    );
}

#[test]
fn a_batch_size_is_shown_as_asked() {
    let text = shown("--batch-size 8");
    assert!(text.contains("\nEffective batch size: 128 (8 x 16)\n"));
    assert!(text.contains("\nBatch size: 8 (as asked)\n"), "{text}");
    let text = shown("--gradient-accumulation 4");
    assert!(text.contains("\nEffective batch size: 128 (32 x 4)\n"));
    assert!(text.contains("\nBatch size: 32 (from the accumulation asked for)\n"));
}

#[test]
fn the_breakdown_has_every_category_and_its_sum() {
    let text = shown("");
    let rows = below(&text, "where ");
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "weights",
            "gradients",
            "optimizer",
            "activations",
            "inputs",
            "features",
            "workspace",
            "beside",
            "process"
        ]
    );
    let share = |row: &&str| {
        let share = row.split_whitespace().last().unwrap();
        share.strip_suffix('%').unwrap().parse::<f64>().unwrap()
    };
    let (process, parts) = rows.split_last().unwrap();
    assert_eq!(share(process), 100.0);
    let sum: f64 = parts.iter().map(share).sum();
    assert!((sum - 100.0).abs() < 0.5, "{sum}%");
}

#[test]
fn columns_are_aligned() {
    let text = shown("--batch-size 8");
    for heading in ["where ", "batch "] {
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.trim_start().starts_with(heading))
            .chain(below(&text, heading))
            .collect();
        assert!(lines.len() > 2, "{text}");
        let widths: Vec<usize> = lines.iter().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }
}

#[test]
fn alternatives_say_what_each_knob_buys() {
    let text = shown("");
    assert!(text.contains("\nWhat else there is, and what each knob buys:\n"));
    let rows = below(&text, "batch ");
    assert!(rows.len() >= 3, "{text}");
    for row in &rows {
        assert!(row.contains(" x ") && row.contains(" ms "), "{row}");
        assert!(row.contains("% time, "), "{row}");
    }
    // The last one shows what more memory would buy, and is marked.
    let (last, fit) = rows.split_last().unwrap();
    assert!(last.contains("(over the budget: --memory "), "{text}");
    assert!(
        fit.iter().all(|row| !row.contains("over the budget")),
        "{text}"
    );
}

#[test]
fn a_slow_batch_size_has_a_hint() {
    let text = shown("--batch-size 1");
    let hint = text.lines().last().unwrap();
    assert!(hint.starts_with("hint: --batch-size "), "{text}");
    assert!(hint.contains("% faster") && hint.contains("the same gradient"));
    assert!(!shown("--batch-size 128").contains("hint: "));
}

/// One is one, in words too.
#[test]
fn counts_agree_with_their_nouns() {
    for options in [
        "--num-threads 1 --effective-batch 4",
        "--batch-size 64 --effective-batch 128 --recompute none --memory 250MiB",
    ] {
        let text = holdall(&format!("plan small {options}")).exits(DONE).stdout;
        for wrong in ["(1 threads)", " 1 micro-batches", ", 1 run "] {
            assert!(!text.contains(wrong), "{text}");
        }
    }
}

#[test]
fn memory_against_speed_is_drawn_with_the_choice_and_the_budget() {
    let text = shown("");
    let drawing = below(&text, "Memory against speed");
    assert!(drawing.len() > 12, "{text}");
    assert!(
        drawing
            .iter()
            .all(|line| line.len() <= 80 && line.is_ascii())
    );
    let chosen = text.lines().find(|line| line.contains("@ chosen: "));
    let chosen = chosen.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(drawing.iter().filter(|line| line.contains('@')).count(), 2);
    let (_, memory) = chosen.split_once(" in ").unwrap();
    assert!(
        text.contains(&format!("Memory: {memory} of 200.0 MiB")),
        "{text}"
    );
}

#[test]
fn each_of_several_processes_has_its_part_of_the_memory() {
    let budget = |options: &str| {
        let answer = holdall(&format!(
            "plan small --effective-batch 8 --device cpu --json {options}"
        ));
        let plan: serde_json::Value = serde_json::from_str(&answer.exits(DONE).stdout).unwrap();
        plan["budget_bytes"].as_u64().unwrap()
    };
    let tenth = budget("--memory 10%");
    let each = budget("--memory 90% --processes 2");
    assert!(
        each <= 5 * tenth + 10,
        "{each} for each, a tenth is {tenth}"
    );
}
