//! Help is read by people who are new: it has an example, and the example runs.

use crate::typed::{DONE, holdall};

const COMMANDS: [&str; 30] = [
    "",
    "demo",
    "train",
    "plan",
    "verify",
    "eval",
    "predict",
    "export",
    "config",
    "config translate",
    "model",
    "model get",
    "retrieval",
    "caption-scores",
    "report",
    "data",
    "data check",
    "data clean",
    "data pack",
    "data sample",
    "analyze",
    "monitor",
    "doctor",
    "bench",
    "bench captions",
    "bench classify",
    "bench clip",
    "bench retrieval",
    "completions",
    "man",
];

/// Examples of these name the reader's own files, write to the shell's, or train for minutes; other tests run such lines.
const OWN_FILES: [&str; 15] = [
    "demo",
    "train",
    "eval",
    "predict",
    "export",
    "config",
    "model",
    "retrieval",
    "caption-scores",
    "report",
    "data",
    "analyze",
    "monitor",
    "completions",
    "man",
];

#[test]
fn help_of_every_command() {
    // Snapshots lie beside this file's directory; a review of them is a review of what new users read.
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for command in COMMANDS {
            let answer = holdall(&format!("{command} --help")).exits(DONE);
            assert_eq!(answer.stderr, "", "{command}");
            let name = format!("help {command}").trim_end().replace(' ', "_");
            insta::assert_snapshot!(name, answer.stdout);
        }
    });
}

#[test]
fn every_help_has_an_example() {
    for command in COMMANDS {
        let help = holdall(&format!("{command} --help")).exits(DONE).stdout;
        let examples = help.split_once("Example").map(|(_, examples)| examples);
        let examples = examples.unwrap_or_else(|| panic!("{command}: no example\n{help}"));
        assert!(
            examples.contains(&format!("\n  holdall {command}")),
            "{command}: {examples}"
        );
    }
}

/// Lines under "Example" that start with `holdall`, run with the fewest steps; configs and tables are someone's own.
#[test]
fn examples_run() {
    for command in COMMANDS {
        let help = holdall(&format!("{command} --help")).exits(DONE).stdout;
        let Some((_, examples)) = help.split_once("Example") else {
            continue;
        };
        for line in examples.lines() {
            let Some(typed) = line.trim_start().strip_prefix("holdall ") else {
                continue;
            };
            let command = typed.split(' ').next().unwrap();
            let is_own = typed.contains(".yml") || typed.contains(".csv");
            if is_own || OWN_FILES.contains(&command) {
                continue;
            }
            let few = match typed {
                _ if typed.contains("--steps") => "",
                _ if typed.starts_with("bench cl") => " --steps 1",
                _ if typed.starts_with("bench captions") => " --repeat 1",
                _ if typed.starts_with("bench retrieval") => " --repeat 1",
                _ => "",
            };
            holdall(&format!("{typed}{few}")).exits(DONE);
        }
    }
}

/// What help says of a default is what happens.
#[test]
fn the_default_effective_batch_is_what_help_says() {
    let default = |command: &str| {
        let help = holdall(&format!("{command} --help")).exits(DONE).stdout;
        let (_, after) = help.split_once("--effective-batch").unwrap();
        let (_, after) = after.split_once("[default: ").unwrap();
        after.split_once(']').unwrap().0.to_owned()
    };
    assert_eq!(default("plan"), "by task and data");
    let certificate = holdall("verify small --recompute blocks --json").exits(DONE);
    let certificate = certificate.json();
    let whole = certificate["splits"].as_array().unwrap().iter();
    let whole = whole.filter(|split| split["gradient_accumulation"] == 1);
    let whole = whole.map(|split| split["batch_size"].to_string()).next();
    assert_eq!(whole.unwrap(), default("verify"));
}

#[test]
fn the_version_is_the_crates() {
    let answer = holdall("--version").exits(DONE);
    assert_eq!(
        answer.stdout,
        format!("holdall {}\n", env!("CARGO_PKG_VERSION"))
    );
}
