//! `holdall doctor`, `holdall completions` and `holdall man`: what a new machine is asked first.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::typed::{BAD_INPUT, DONE, FOUND, holdall};

#[test]
fn every_line_has_a_status_and_what_to_do_where_there_is_something() {
    let answer = holdall("doctor --json");
    assert_eq!(answer.stderr, "");
    let json = answer.json();
    let checks = json["checks"].as_array().unwrap();
    let names: Vec<&str> = checks
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    for name in [
        "system",
        "processor",
        "threads",
        "memory",
        "disk",
        "cache",
        "driver",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for check in checks {
        let is_ok = check["status"] == "ok";
        assert_eq!(check["advice"].is_null(), is_ok, "{check}");
        assert!(
            check["found"]
                .as_str()
                .is_some_and(|found| !found.is_empty()),
            "{check}"
        );
    }
    let any = |status: &str| checks.iter().any(|check| check["status"] == status);
    let worst = match (any("missing"), any("warning")) {
        (true, _) => "missing",
        (false, true) => "warning",
        (false, false) => "ok",
    };
    assert_eq!(json["status"], worst);
    let code = if worst == "missing" { FOUND } else { DONE };
    assert_eq!(answer.code, code);
    // These tests hide every GPU, where there is one.
    assert_eq!(json["device"], "cpu");
    let text = holdall("doctor").exits(code).stdout;
    assert!(text.contains("CPU only") && text.contains("eady"), "{text}");
    for name in names {
        assert!(text.contains(name), "{name}: {text}");
    }
}

#[test]
fn completions_of_every_shell_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = holdall(&format!("completions {shell}")).exits(DONE).stdout;
        for command in [
            "train",
            "monitor",
            "doctor",
            "completions",
            "effective-batch",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    holdall("completions tcsh").exits(BAD_INPUT);
}

/// What a shell that is here says of its script, read from stdin without running it.
#[test]
fn shells_that_are_here_take_their_scripts() {
    for (shell, name) in [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")] {
        let script = holdall(&format!("completions {name}")).exits(DONE).stdout;
        let read = Command::new(shell)
            .arg("-n")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut read) = read else {
            eprintln!("SKIPPED: {shell} is not here, so its completions are not parsed");
            continue;
        };
        read.stdin
            .take()
            .unwrap()
            .write_all(script.as_bytes())
            .unwrap();
        let said = read.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&said.stderr);
        assert!(
            said.status.success() && stderr.is_empty(),
            "{shell}: {stderr}"
        );
    }
}

#[test]
fn the_manual_page_has_every_command_and_is_rendered_where_man_is_here() {
    let page = holdall("man").exits(DONE).stdout;
    let help = holdall("--help").exits(DONE).stdout;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands.iter().filter(|command| **command != "help") {
        let heading = format!(".SH \"HOLDALL {}\"\n", command.to_uppercase());
        assert!(page.contains(&heading), "{heading}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), page).unwrap();
    let rendered = Command::new("man")
        .args(["--warnings", "-P", "cat", "-l"])
        .arg(file.path())
        .env("MANWIDTH", "100")
        .output();
    // Some images have a `man` that only says that there are no pages.
    let rendered = rendered
        .ok()
        .filter(|output| output.status.success() && output.stdout.len() > 10_000);
    let Some(rendered) = rendered else {
        eprintln!("SKIPPED: man is not here, so its page is not rendered");
        return;
    };
    let stderr = String::from_utf8_lossy(&rendered.stderr);
    assert_eq!(stderr, "", "man complains");
    let text = String::from_utf8_lossy(&rendered.stdout);
    assert!(
        text.contains("holdall train photos.csv --memory 8GiB"),
        "{text}"
    );
}
