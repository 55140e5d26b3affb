//! `holdall monitor`: once for pipes, and on a terminal that it leaves as it was.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::report::draw_classification;
use crate::typed::{BAD_INPUT, DONE, holdall, holdall_words};

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

/// A run of the past: two whole lines, and one that a kill has cut.
fn run_in(folder: &Path) -> String {
    let line = |step: u32, loss: f64| {
        format!(
            "{{\"kind\":\"step\",\"step\":{step},\"epoch\":1,\"loss\":{loss},\"samples\":64,\"seconds\":0.5,\"waited_for_data\":0.1}}\n"
        )
    };
    let metrics = format!("{}{}{{\"kind\":\"st", line(1, 4.0), line(2, 3.25));
    fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    fs::write(folder.join("summary.json"), "{\"steps\":2}").unwrap();
    let plan = "{\"device\":\"cpu\",\"effective_batch\":64,\"chosen\":{\"batch_size\":16,\"gradient_accumulation\":4,\
                \"precision\":\"f32\",\"recompute\":\"none\",\"process_bytes\":104857600}}";
    fs::write(folder.join("plan.json"), plan).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn once_is_a_table_on_stdout() {
    let answer = holdall("monitor --once").exits(DONE);
    assert_eq!(answer.stderr, "");
    assert!(answer.stdout.starts_with("Host: CPU "), "{}", answer.stdout);
    let has_gpu = answer.stdout.contains("temperature");
    assert!(
        has_gpu || answer.stdout.contains("`holdall doctor`"),
        "{}",
        answer.stdout
    );
}

#[test]
fn without_a_terminal_it_prints_once_and_says_so() {
    let answer = holdall("monitor").exits(DONE);
    assert!(answer.stdout.starts_with("Host: "), "{}", answer.stdout);
    assert!(
        answer.stderr.contains("not a terminal"),
        "{}",
        answer.stderr
    );
}

#[test]
fn json_is_one_object_with_the_keys_that_help_names() {
    let answer = holdall("monitor --json").exits(DONE);
    assert_eq!(answer.stderr, "");
    let json = answer.json();
    assert_eq!(keys(&json), ["time", "host", "gpus", "no_gpu", "run"]);
    assert_eq!(
        keys(&json["host"]),
        [
            "name",
            "cpu_percent",
            "load",
            "num_threads",
            "memory_total_bytes",
            "memory_available_bytes",
            "memory_limit_bytes"
        ]
    );
    let gpus = json["gpus"].as_array().unwrap();
    assert_eq!(gpus.is_empty(), json["no_gpu"].is_string());
}

#[test]
fn a_run_that_is_named_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_in(folder.path());
    let json = holdall_words(["monitor", &run, "--json"])
        .exits(DONE)
        .json();
    let shown = &json["run"];
    assert_eq!(shown["step"], 2);
    assert_eq!(shown["loss"], 3.25);
    assert_eq!(shown["samples_per_s"], 128.0);
    assert_eq!(shown["waited_for_data"], 0.2);
    assert_eq!(shown["planned_bytes"], 104_857_600);
    let text = holdall_words(["monitor", &run, "--once"])
        .exits(DONE)
        .stdout;
    for words in [
        "step 2",
        "3.250",
        "128 samples/s",
        "batch 16 x 4 = 64",
        "planned",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Whatever a run learns: its losses by name, with what guessing would give, and what leads its newest evaluation.
#[test]
fn losses_and_metrics_are_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    draw_classification(folder.path(), 5);
    let run = folder.path().to_str().unwrap();
    let json = holdall_words(["monitor", run, "--json"]).exits(DONE).json();
    let shown = &json["run"];
    assert_eq!(
        shown["losses"],
        json!([
            {"name": "breed", "value": 1.0, "chance": 1.5},
            {"name": "age", "value": 2.0, "chance": null},
        ])
    );
    assert_eq!(shown["lr"], 1e-3);
    assert_eq!(shown["evaluation"]["age"]["mean_absolute_error"], 8.5);
    let text = holdall_words(["monitor", run, "--once"]).exits(DONE).stdout;
    for words in [
        "  loss         3.000\n",
        "  breed        1.000 (chance 1.500)\n",
        "  age          2.000\n",
        "  evaluation   accuracy 100.0%\n",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_is_no_run_and_no_time_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    let answer = holdall_words(["monitor", empty]).exits(BAD_INPUT);
    assert!(
        answer.stderr.contains("expected the folder of a run"),
        "{}",
        answer.stderr
    );
    assert!(answer.stderr.contains("hint: "), "{}", answer.stderr);
    for interval in ["0", "-1", "soon", "2h"] {
        let answer = holdall_words(["monitor", "--once", &format!("--interval={interval}")])
            .exits(BAD_INPUT);
        assert!(
            answer.stderr.contains("hint: --interval"),
            "{}",
            answer.stderr
        );
    }
    holdall("monitor --once --interval 500ms").exits(DONE);
}

#[cfg(unix)]
mod on_a_terminal {
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::terminal::{LIMIT, Terminal};
    use crate::typed::TERMINATED;

    impl Terminal {
        /// 80 x 24, with `holdall monitor RUN` running; `None` where there is no tmux.
        fn watching(name: &str) -> Option<Terminal> {
            Terminal::watching_after(name, ":")
        }

        /// The same, from a shell that does something first.
        fn watching_after(name: &str, shell: &str) -> Option<Terminal> {
            let folder = tempfile::tempdir().unwrap();
            run_in(folder.path());
            let script = format!(
                "stty -a > \"$FOLDER/before\"; \
                 sh -c '{shell}; echo $$ > \"$FOLDER/pid\"; exec \"$HOLDALL\" monitor \"$FOLDER\"'; \
                 echo \"ended with $?\"; stty -a > \"$FOLDER/after\""
            );
            Terminal::running(name, [80, 24], folder, &script)
        }

        /// The monitor's process.
        fn pid(&self) -> String {
            self.shows(|screen| screen.contains("q quit"));
            let pid = fs::read_to_string(self.file("pid")).unwrap();
            pid.trim().to_owned()
        }

        /// Takes the terminal away; the monitor must end.
        fn goes_away(&self) {
            let pid = self.pid();
            self.tmux(&["kill-server"]);
            let started = Instant::now();
            while is_running(&pid) {
                assert!(started.elapsed() < LIMIT, "outlives its terminal");
                std::thread::sleep(Duration::from_millis(20));
            }
        }

        fn file(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Nothing of the monitor is left: neither its screen, nor its settings, nor a hidden cursor.
        fn is_clean(&self, code: i32) {
            let ended = format!("ended with {code}");
            self.shows(|screen| screen.contains(&ended) && !screen.contains("Host"));
            let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
            assert_eq!(flags.trim(), "0 1");
            self.shows(|_| fs::metadata(self.file("after")).is_ok_and(|file| file.len() > 0));
            let settings = |name| fs::read_to_string(self.file(name)).unwrap();
            // What stty says of rows and columns is of the window, which was resized.
            let without_size =
                |text: String| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(
                without_size(settings("before")),
                without_size(settings("after"))
            );
        }
    }

    #[test]
    fn it_is_drawn_resized_and_ended_by_q() {
        let Some(terminal) = Terminal::watching("q") else {
            return;
        };
        let screen =
            terminal.shows(|screen| screen.contains("q quit") && screen.contains("128 samples/s"));
        assert!(screen.starts_with(" holdall monitor"), "{screen}");
        for words in [
            "Host",
            "GPUs",
            "3.250",
            "data wait",
            "batch 16 x 4 = 64",
            "every 1 s",
        ] {
            assert!(screen.contains(words), "{words}\n{screen}");
        }
        terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]);
        terminal.shows(|screen| {
            screen
                .lines()
                .nth(49)
                .is_some_and(|last| last.contains("q quit"))
        });
        terminal.tmux(&["resize-window", "-x", "20", "-y", "5"]);
        terminal.shows(|screen| {
            screen
                .lines()
                .nth(4)
                .is_some_and(|last| last.contains("q quit"))
        });
        terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
        terminal.shows(|screen| {
            screen
                .lines()
                .nth(23)
                .is_some_and(|last| last.contains("q quit"))
        });
        terminal.tmux(&["send-keys", "+"]);
        terminal.shows(|screen| screen.contains("every 2 s"));
        terminal.tmux(&["send-keys", "h"]);
        terminal.shows(|screen| screen.contains("Tab choose a GPU"));
        terminal.tmux(&["send-keys", "q"]);
        terminal.is_clean(DONE);
    }

    #[test]
    fn ctrl_c_leaves_the_terminal_as_it_was() {
        let Some(terminal) = Terminal::watching("interrupt") else {
            return;
        };
        terminal.shows(|screen| screen.contains("q quit"));
        // A screen that grew meanwhile leaves no rows behind either.
        terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]);
        terminal.shows(|screen| {
            screen
                .lines()
                .nth(49)
                .is_some_and(|last| last.contains("q quit"))
        });
        terminal.tmux(&["send-keys", "C-c"]);
        terminal.is_clean(DONE);
    }

    /// Whether a process is there and has not ended, waited for or not.
    fn is_running(pid: &str) -> bool {
        let mut ps = Command::new("ps");
        let output = ps.args(["-o", "stat=", "-p", pid]).output().unwrap();
        let state = String::from_utf8(output.stdout).unwrap();
        !state.trim().is_empty() && !state.trim().starts_with('Z')
    }

    #[test]
    fn sigterm_leaves_the_terminal_as_it_was() {
        let Some(terminal) = Terminal::watching("terminate") else {
            return;
        };
        let mut kill = Command::new("kill");
        kill.args(["-TERM", &terminal.pid()]);
        assert!(kill.status().unwrap().success());
        terminal.is_clean(TERMINATED);
    }

    /// With the signal that says so, and, as under `nohup`, without.
    #[test]
    fn it_ends_with_its_terminal() {
        for (name, shell) in [("gone", ":"), ("nohup", "trap \"\" HUP")] {
            let Some(terminal) = Terminal::watching_after(name, shell) else {
                return;
            };
            terminal.goes_away();
        }
    }
}
