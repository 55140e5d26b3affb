//! The report as a browser opens it: it draws itself, says nothing on the console, and asks nothing of the network.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::training::{Home, RunFiles, on};
use crate::typed::{BAD_INPUT, DONE, holdall, holdall_words};

/// Twenty steps, so that operations are timed, in two evaluations.
const TWENTY_STEPS: &str = "--batch-size 2 --gradient-accumulation 2 --epochs 2 --lr 1e-3 --set data.validation=25% \
                            --set train.eval_every=10";

/// Writes a line where it is seen: of a test that passes, what `eprintln` writes is swallowed.
pub fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr can be written");
}

/// A browser. Without one nothing is opened, which must not go unseen.
pub fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("HOLDALL_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let found = named.or_else(|| {
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let all = names
            .iter()
            .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        all.into_iter().find(|program| program.is_file())
    });
    if found.is_none() {
        assert!(
            std::env::var_os("HOLDALL_REQUIRE_CHROMIUM").is_none(),
            "HOLDALL_REQUIRE_CHROMIUM is set, and there is no {names:?} in PATH"
        );
        say("SKIPPED: the report was opened in no browser: Chromium is not here");
    }
    found
}

/// A page as Chromium sees it.
pub struct Opened {
    pub dom: String,
    console: Vec<String>,
}

impl Opened {
    /// On a busy machine the browser may leave before the page's first frame: then it is asked again.
    pub fn open(chromium: &Path, page: &Path, size: &str) -> Opened {
        let mut opened = Opened::once(chromium, page, size);
        for _ in 0..2 {
            if opened.told("ready") != Some("false") {
                break;
            }
            opened = Opened::once(chromium, page, size);
        }
        opened
    }

    fn once(chromium: &Path, page: &Path, size: &str) -> Opened {
        let profile = tempfile::tempdir().unwrap();
        let output: Output = Command::new(chromium)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args([
                "--disable-sync",
                "--disable-extensions",
                "--hide-scrollbars",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args([
                "--enable-logging=stderr",
                "--v=0",
                "--virtual-time-budget=20000",
            ])
            .args([format!("--window-size={size}"), "--dump-dom".to_owned()])
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let dom = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(dom.contains("<html"), "{log}");
        let console = log.lines().filter(|line| line.contains("CONSOLE"));
        Opened {
            console: console.map(str::to_owned).collect(),
            dom,
        }
    }

    /// What the page says of itself: `data-NAME` of its first element.
    pub fn told(&self, name: &str) -> Option<&str> {
        let (_, after) = self.dom.split_once("<html")?;
        let (attributes, _) = after.split_once('>')?;
        let (_, after) = attributes.split_once(&format!("data-{name}=\""))?;
        after.split_once('"').map(|(value, _)| value)
    }

    pub fn count(&self, name: &str) -> usize {
        let told = self.told(name).unwrap_or_else(|| panic!("no data-{name}"));
        told.parse().unwrap()
    }

    #[track_caller]
    pub fn is_clean(&self) {
        assert_eq!(self.told("ready"), Some("true"));
        assert_eq!(self.told("errors"), None);
        assert_eq!(self.console, [""; 0]);
        assert_eq!(self.told("requests"), Some(""));
        assert_eq!(self.told("wide"), Some("fits"), "no sideways scrolling");
    }
}

fn report(run: &RunFiles) -> PathBuf {
    run.file("report.html")
}

#[test]
fn a_run_leaves_a_report_that_draws_itself() {
    let home = Home::with_cars(64);
    let run = home.trained("run", TWENTY_STEPS);
    for file in ["plan-tensors.json", "operations.json", "samples.json"] {
        run.json(file);
    }
    assert_eq!(run.json("operations.json")["step"], 3);
    let samples = run.json("samples.json");
    assert_eq!(samples["samples"].as_array().unwrap().len(), 12);
    let bytes = fs::metadata(report(&run)).unwrap().len();
    assert!((50_000..3 << 20).contains(&bytes), "{bytes} bytes");
    let Some(chromium) = chromium() else {
        return;
    };
    for size in ["1600,1200", "400,900"] {
        let opened = Opened::open(&chromium, &report(&run), size);
        opened.is_clean();
        // Loss, contrastive, label, metrics, rates, norm, throughput, waiting.
        assert!(opened.count("curves") >= 12, "{:?}", opened.told("curves"));
        assert!(
            opened.count("points") >= 8 * 20,
            "{:?}",
            opened.told("points")
        );
        // Bytes alive in a step, by category.
        assert!(opened.count("areas") >= 5, "{:?}", opened.told("areas"));
        let tensors = run.json("plan-tensors.json")["tensors"]
            .as_array()
            .unwrap()
            .len();
        assert_eq!(opened.count("boxes"), tensors);
        assert_eq!(opened.count("painted"), 1, "the arena has colours");
        assert_eq!(opened.count("pictures"), 12);
        for words in [
            "Bytes alive in one step",
            "The arena, tensor by tensor",
            "Slowest operations",
            "config.yml",
        ] {
            assert!(opened.dom.contains(words), "{words}");
        }
    }
    walked_by_keyboard(&chromium, &run);
}

/// Opens a copy of the page that runs a script once it is drawn: `walk` presses keys and gives what the page says after each.
pub fn opened_with_script(chromium: &Path, report: &Path, script: &str, size: &str) -> Opened {
    let html = fs::read_to_string(report).unwrap();
    let (_, after) = html.split_once("script-src 'nonce-").unwrap();
    let (nonce, _) = after.split_once('\'').unwrap();
    let script = format!(
        "<script nonce=\"{nonce}\">setTimeout(() => {{ \
         const walk = (plot, keys) => {{ \
             plot.focus(); \
             return keys.map((key) => {{ \
                 plot.dispatchEvent(new KeyboardEvent('keydown', {{ key }})); \
                 return plot.parentElement.querySelector('output').textContent; \
             }}).join(' | '); \
         }}; {script} }}, 1000);</script></body>"
    );
    let page = report.with_file_name("walked.html");
    fs::write(&page, html.replace("</body>", &script)).unwrap();
    let opened = Opened::open(chromium, &page, size);
    opened.is_clean();
    opened
}

/// Focus, then arrow keys: what they come to is said in words, in the arena and on a curve.
fn walked_by_keyboard(chromium: &Path, run: &RunFiles) {
    let keys = "root.dataset.curve = walk(document.querySelector('.plot'), ['Home', 'ArrowRight']); \
        root.dataset.arena = walk(document.querySelector('.plot[role=application]'), ['Home', 'ArrowRight', 'ArrowUp', '+']);";
    let opened = opened_with_script(chromium, &report(run), keys, "1200,900");
    let curve: Vec<&str> = opened.told("curve").unwrap().split(" | ").collect();
    assert!(
        curve[0].starts_with("step 1 ") && curve[1].starts_with("step 2 "),
        "{curve:?}"
    );
    let arena: Vec<&str> = opened.told("arena").unwrap().split(" | ").collect();
    assert!(
        arena.iter().all(|words| words.contains("alive")),
        "{arena:?}"
    );
    assert!(arena[0] != arena[1] && arena[1] != arena[2], "{arena:?}");
}

/// A grey square.
const JPEG: &str = "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AP//Z";

/// A run as classification writes it, drawn here: two targets, one of classes and one of numbers. Class `c` is right 30 times, and is
/// taken `c % 7` times for the next one.
pub fn draw_classification(run: &Path, num_classes: usize) {
    let name = |class: usize| format!("class {class:03}");
    let mut metrics = String::new();
    for step in 1..=40_u32 {
        let share = f64::from(step) / 40.0;
        let line = json!({
            "kind": "step", "step": step, "epoch": 1, "loss": 4.0 - share, "breed": 2.0 - share, "breed_chance": 1.5,
            "age": 2.0, "age_chance": null, "gradient_norm": 1.5, "lr": 1e-3, "lr_head": 1e-2, "loss_scale": 1.0,
            "samples": 64, "samples_digest": "0", "seconds": 0.5, "waited_for_data": 0.0,
        });
        metrics += &format!("{line}\n");
        if step % 10 == 0 {
            let line = json!({
                "kind": "evaluation", "step": step, "epoch": 1, "on": "validation", "accuracy": share, "macro_f1": share / 2.0,
                "breed": {"accuracy": share, "macro_f1": share / 2.0, "chance": 0.25},
                "age": {"mean_absolute_error": 9.5 - share, "root_mean_squared_error": 12.5, "chance": 20.5},
                "pictures": 500, "skipped": 0, "seconds": 1.5,
            });
            metrics += &format!("{line}\n");
        }
    }
    let mut counts = Vec::new();
    let mut per_class = Vec::new();
    for class in 0..num_classes {
        let wrong = class % 7;
        counts.push(json!([class, class, 30]));
        counts.push(json!([class, (class + 1) % num_classes, wrong]));
        let recall = 30.0 / (30 + wrong) as f64;
        per_class.push(json!({
            "label": name(class), "support": 30 + wrong, "precision": 0.5, "recall": recall, "f1": 0.75,
        }));
    }
    let mistakes: Vec<Value> = (0..3)
        .map(|at| {
            json!({"image": format!("wrong/{at}.jpg"), "jpeg": JPEG, "expected": name(at), "found": name(at + 1), "share": 0.875})
        })
        .collect();
    let samples: Vec<Value> = (0..4)
        .map(|at| {
            json!({
                "image": format!("seen/{at}.jpg"), "jpeg": JPEG, "label": name(at),
                "labels": [{"label": name(1), "share": 0.75}, {"label": name(at), "share": 0.125}],
                "numbers": [{"name": "age", "found": 31.5, "expected": 30.0}],
            })
        })
        .collect();
    let labels: Vec<String> = (0..num_classes).map(name).collect();
    let target = json!({"name": "breed", "labels": labels, "counts": counts, "per_class": per_class, "mistakes": mistakes});
    for (file, contents) in [
        (
            "confusion.json",
            json!({"step": 30, "on": "validation", "targets": [target]}),
        ),
        (
            "samples.json",
            json!({"step": 30, "on": "validation", "samples": samples}),
        ),
    ] {
        fs::write(run.join(file), contents.to_string()).unwrap();
    }
    fs::write(run.join("metrics.jsonl"), metrics).unwrap();
}

/// Nothing of the page knows what a run learns: the curves, the matrix, the table and the pictures come from its files.
#[test]
fn a_classification_is_drawn_with_its_classes() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    draw_classification(folder.path(), 5);
    on("report", folder.path(), "").exits(DONE);
    let Some(chromium) = chromium() else {
        return;
    };
    let matrix =
        "const matrix = document.querySelector('[aria-roledescription=\"confusion matrix\"]');";
    let keys = format!(
        "{matrix} root.dataset.cells = walk(matrix, ['Home', 'ArrowRight', 'PageDown', 'PageDown', 'Escape']); \
         const [, , , recall] = document.querySelectorAll('th button'); recall.click(); \
         const first = () => document.querySelector('table.classes tbody tr').textContent; \
         root.dataset.least = first(); recall.click(); root.dataset.most = first();"
    );
    let opened = opened_with_script(&chromium, &page, &keys, "1600,1200");
    assert_eq!(opened.count("matrices"), 1, "the matrix has colours");
    assert_eq!(opened.count("pictures"), 3 + 4);
    for words in [
        "Breed loss",
        "Age loss",
        "Age: mean absolute error, root mean squared error",
        "lr head",
        "Best accuracy",
        "after step 30, by chance 25.0%",
        "150 of 160 right",
        "✕ class 002 87.5%",
        "31.5, is 30",
    ] {
        assert!(opened.dom.contains(words), "{words}");
    }
    let cells: Vec<&str> = opened.told("cells").unwrap().split(" | ").collect();
    assert_eq!(
        cells[..4],
        [
            "class 000: 30 of 30 right (100.0%)",
            "class 000, taken for class 001: 0 of 30 (0.0%)",
            "class 004, taken for class 000: 4 of 34 (11.8%)",
            "class 003, taken for class 004: 3 of 33 (9.1%)",
        ]
    );
    assert!(cells[4].starts_with("Hover over a cell"), "{}", cells[4]);
    let [least, most] = ["least", "most"].map(|name| opened.told(name).unwrap());
    assert!(least.starts_with("class 004") && most.starts_with("class 000"));
}

/// Three processes, resumed from two: who was slow, and what each of the three held.
#[test]
fn several_processes_are_shown_with_their_memory_and_the_slowest() {
    let folder = tempfile::tempdir().unwrap();
    let line = |step: u64, count: usize, slowest: u64| {
        let bytes: Vec<u64> = (0..count as u64).map(|rank| (rank + 1) << 28).collect();
        json!({"kind": "step", "step": step, "epoch": 1, "loss": 2.5, "samples": 8, "seconds": 0.5, "waited_for_data": 0.1,
               "processes": count, "slowest_rank": slowest, "slowest_host": "node-b", "slowest_ratio": 1.5, "process_bytes": bytes})
    };
    let lines = (1..=30).map(|step| match step {
        ..=10 => line(step, 2, 0),
        _ => line(step, 3, if step % 4 == 0 { 1 } else { 2 }),
    });
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("metrics.jsonl"), text).unwrap();
    let summary = json!({"steps": 30, "processes": {"hosts": ["node-a", "node-a", "node-b"], "seconds": [4.0, 4.0, 6.0]}});
    fs::write(folder.path().join("summary.json"), summary.to_string()).unwrap();
    on("report", folder.path(), "").exits(DONE);
    let Some(chromium) = chromium() else {
        return;
    };
    for size in ["1600,1200", "400,900"] {
        let opened = Opened::open(&chromium, &folder.path().join("report.html"), size);
        opened.is_clean();
        for words in [
            "3 processes share every step",
            "Rank 2 on node-b was the slowest in 75.0% of 20 steps",
            "the most memory held 768.0 MiB",
            "<td>2</td><td>node-b</td><td>768.0 MiB</td><td>75.0%</td><td>6",
            "How much longer the slowest took than the others",
        ] {
            assert!(opened.dom.contains(words), "{words}");
        }
    }
}

/// 230 classes on a telephone: the most confused ones first, all that fit on request, and how many do not.
#[test]
fn many_classes_are_readable_on_a_narrow_screen() {
    let folder = tempfile::tempdir().unwrap();
    draw_classification(folder.path(), 230);
    let failure = json!({"kind": "diverged", "step": 41, "error": "step 41: training diverged: the loss is NaN\nhint: a lower --lr"});
    fs::write(folder.path().join("failure.json"), failure.to_string()).unwrap();
    let sample = "{\"time\":1.0,\"step\":1,\"phase\":\"train\",\"device\":\"cpu\",\"process_bytes\":130000000}\n";
    fs::write(folder.path().join("memory.jsonl"), sample.repeat(4)).unwrap();
    on("report", folder.path(), "").exits(DONE);
    let Some(chromium) = chromium() else {
        return;
    };
    let keys = "const matrix = document.querySelector('[aria-roledescription=\"confusion matrix\"]'); \
         const pick = matrix.parentElement.querySelector('select'); \
         root.dataset.pick = pick.value; \
         root.dataset.excerpt = walk(matrix, ['End']); \
         pick.value = 'all'; pick.dispatchEvent(new Event('change')); \
         root.dataset.all = walk(matrix, ['End']); \
         root.dataset.diverged = document.getElementById('main').innerText.match(/diverged/g).length;";
    let page = folder.path().join("report.html");
    let opened = opened_with_script(&chromium, &page, keys, "400,900");
    assert_eq!(opened.count("matrices"), 1, "the matrix has colours");
    assert_eq!(opened.told("pick"), Some("excerpt"));
    let [excerpt, all] = ["excerpt", "all"].map(|name| opened.told(name).unwrap());
    assert!(
        excerpt.contains(", taken for class ") && excerpt != all,
        "{excerpt}"
    );
    assert!(all.contains("taken for class 229"), "{all}");
    assert!(
        opened
            .dom
            .contains("30 classes with fewer samples are not shown")
    );
    assert_eq!(opened.count("diverged"), 1, "said once");
}

/// One epoch is too short to be timed, two are long enough: their first steps have the same losses.
#[test]
fn timing_operations_changes_no_loss() {
    let home = Home::with_cars(64);
    let options = "--batch-size 2 --gradient-accumulation 2 --lr 1e-3 --set data.validation=25% \
                   --set train.schedule=constant --set train.warmup=0";
    let [untimed, timed] = [1, 2].map(|epochs| {
        home.trained(
            &format!("{epochs}"),
            &format!("{options} --epochs {epochs}"),
        )
    });
    assert!(untimed.json("operations.json")["step"].is_null());
    assert_eq!(timed.json("operations.json")["step"], 3);
    let [short, long] = [untimed, timed].map(|run| run.of_steps("loss"));
    assert!(short.len() >= 10 && long.len() == 2 * short.len());
    assert_eq!(short, long[..short.len()]);
}

/// The checks above see what they look for: a picture from elsewhere is blocked, is not asked for, and is told.
#[test]
fn a_page_that_reaches_out_is_stopped_and_seen() {
    let Some(chromium) = chromium() else {
        return;
    };
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let html = fs::read_to_string(report(&run)).unwrap();
    let reaching = format!(
        "<img src=\"http://127.0.0.1:{port}/a.png\"><script>document.title = 'taken'</script></body>"
    );
    fs::write(report(&run), html.replace("</body>", &reaching)).unwrap();
    let opened = Opened::open(&chromium, &report(&run), "1200,900");
    assert!(!opened.console.is_empty(), "the console is read");
    assert!(!opened.dom.contains("<title>taken"), "no other script runs");
    assert!(listener.accept().is_err(), "nothing was asked for");
}

#[test]
fn several_runs_are_drawn_over_each_other() {
    let home = Home::with_cars(24);
    let [first, second] = ["1e-3", "1e-4"].map(|lr| {
        home.trained(
            &format!("lr-{lr}"),
            &format!("--effective-batch 8 --epochs 2 --lr {lr}"),
        )
    });
    let out = home.path("both.html");
    let words = [
        "report".into(),
        first.path.clone(),
        second.path.clone(),
        "--out".into(),
        out.clone(),
    ];
    let answer = holdall_words(words).exits(DONE);
    assert_eq!(answer.stdout, "");
    assert!(
        answer
            .stderr
            .contains(&format!("Report: {}", out.display())),
        "{}",
        answer.stderr
    );
    let Some(chromium) = chromium() else {
        return;
    };
    let opened = Opened::open(&chromium, &out, "1200,900");
    opened.is_clean();
    for words in ["lr-1e-3", "lr-1e-4", "Where the configs differ", "train.lr"] {
        assert!(opened.dom.contains(words), "{words}");
    }
}

/// The log of memory is drawn over time, the plan's categories under it and the plan's line on it, with a verdict on top.
#[test]
fn memory_over_the_run_is_drawn() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    let chosen = &run.json("plan.json")["chosen"];
    let sample = |second: u32| {
        let line = serde_json::json!({
            "time": 1.7e9 + f64::from(second), "step": second / 10, "phase": "train", "device": "cpu",
            "process_bytes": chosen["process_bytes"], "arena_bytes": chosen["arena_bytes"],
        });
        format!("{line}\n")
    };
    let log: String = (0..60).map(sample).collect();
    fs::write(run.file("memory.jsonl"), log).unwrap();
    on("report", &run.path, "").exits(DONE);
    let Some(chromium) = chromium() else {
        return;
    };
    let opened = Opened::open(&chromium, &report(&run), "1200,900");
    opened.is_clean();
    for words in [
        "Memory over the run",
        "60 samples",
        "beside the arena",
        "Healthy",
    ] {
        assert!(opened.dom.contains(words), "{words}");
    }
    // Of the run, and of a step.
    assert!(opened.count("areas") >= 9, "{:?}", opened.told("areas"));
}

#[test]
fn the_report_as_json_is_one_object() {
    let home = Home::with_cars(16);
    let run = home.trained("run", "--effective-batch 8 --epochs 1");
    fs::remove_file(report(&run)).unwrap();
    let json = on("report", &run.path, "--json").exits(DONE).json();
    assert_eq!(json["path"], report(&run).display().to_string());
    assert_eq!(json["bytes"], fs::metadata(report(&run)).unwrap().len());
    assert_eq!(json["runs"], 1);
}

#[test]
fn what_is_no_run_is_refused_by_name() {
    let home = Home::with_cars(16);
    for (path, found) in [
        (home.path("missing"), "found nothing there"),
        (home.csv(), "found a file"),
        (home.path("cars"), "found none of config.yml"),
    ] {
        let answer = on("report", &path, "").exits(BAD_INPUT);
        let expected = format!(
            "error: {}: expected the folder of a run, {found}",
            path.display()
        );
        assert!(answer.stderr.contains(&expected), "{}", answer.stderr);
        assert!(answer.stderr.contains("\nhint: "), "{}", answer.stderr);
    }
    holdall("report").exits(BAD_INPUT);
}

/// A disk that takes no report has taken the model: the run is done.
#[cfg(unix)]
#[test]
fn a_report_that_cannot_be_written_fails_no_run() {
    let home = Home::with_cars(16);
    // A folder that is not empty cannot be replaced by a file.
    let run = home.run();
    let mut running = home.start("run", "--effective-batch 2 --epochs 2");
    run.wait_until(&mut running, |run| run.num_lines() >= 1);
    fs::create_dir_all(report(&run).join("in-the-way")).unwrap();
    let answer = running.answer().exits(DONE);
    assert!(
        answer.stderr.contains("warning: there is no report: "),
        "{}",
        answer.stderr
    );
    assert!(run.file("summary.json").exists());
    assert!(!run.file("report.html.partial").exists());
}
