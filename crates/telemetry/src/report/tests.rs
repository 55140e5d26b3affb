use std::fs;

use super::*;

/// A run folder with these files.
fn run(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn report(folder: &Path) -> (ReportFile, String) {
    let out = folder.join("report.html");
    let written = write(&[folder.to_owned()], &out).unwrap();
    let html = fs::read_to_string(&out).unwrap();
    assert_eq!(written.bytes, html.len() as u64);
    (written, html)
}

/// The data in the page.
fn data(html: &str) -> serde_json::Value {
    let (_, after) = html
        .split_once("<script type=\"application/json\" id=\"data\">")
        .unwrap();
    let (json, _) = after.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}

const STEP: &str = "{\"kind\":\"step\",\"step\":1,\"epoch\":1,\"loss\":2.5,\"samples\":8,\"seconds\":2.0,\"waited_for_data\":0.5}\n";

#[test]
fn what_is_no_run_is_said() {
    let empty = tempfile::tempdir().unwrap();
    let file = empty.path().join("file");
    let out = empty.path().join("report.html");
    for (path, found) in [
        (empty.path().join("missing"), "found nothing there"),
        (empty.path().to_owned(), "found none of config.yml"),
    ] {
        let error = write(&[path], &out).unwrap_err().to_string();
        assert!(
            error.contains(found) && error.contains("\nhint: "),
            "{error}"
        );
    }
    fs::write(&file, "").unwrap();
    let error = write(&[file], &out).unwrap_err().to_string();
    assert!(error.contains("found a file"), "{error}");
    assert!(!out.exists());
}

#[test]
fn a_run_that_was_cut_short_is_shown_as_far_as_it_goes() {
    let text = format!(
        "{STEP}{{\"kind\":\"evaluation\",\"step\":1,\"label_top1\":0.5}}\n\n{{\"kind\":\"st"
    );
    let folder = run(&[("metrics.jsonl", &text), ("plan.json", "{\"device\":")]);
    let (written, html) = report(folder.path());
    assert_eq!(written.notes.len(), 2, "{:?}", written.notes);
    let run = &data(&html)["runs"][0];
    assert_eq!(run["num_steps"], 1);
    assert_eq!(run["steps"]["loss"]["y"][0], 2.5);
    assert_eq!(run["steps"]["samples_per_s"]["y"][0], 4.0);
    assert_eq!(run["steps"]["waited"]["y"][0], 0.25);
    assert_eq!(run["metrics"][0]["name"], "label top-1");
    assert_eq!(run["metrics"][0]["y"][0], 0.5);
    assert!(run["plan"].is_null() && run["summary"].is_null());
}

/// A run with a config only: planned, and stopped before the first step.
#[test]
fn a_run_without_steps_has_a_report() {
    let folder = run(&[("config.yml", "model: small\n")]);
    let (written, html) = report(folder.path());
    assert!(written.notes.is_empty());
    assert_eq!(data(&html)["runs"][0]["num_steps"], 0);
}

#[test]
fn what_others_wrote_cannot_become_markup() {
    let evil = "</script><script>alert(1)</script><!-- {{script}}";
    let samples = serde_json::json!({"step": 1, "samples": [{"caption": evil, "image": evil, "jpeg": "AA=="}]});
    let folder = run(&[
        ("config.yml", &format!("model: {evil}\n")),
        ("metrics.jsonl", STEP),
        ("samples.json", &samples.to_string()),
    ]);
    let (_, html) = report(folder.path());
    assert_eq!(
        html.matches("<script").count(),
        2,
        "the data's and the page's own"
    );
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(!html.contains("<!--"));
    let run = &data(&html)["runs"][0];
    assert_eq!(run["samples"]["samples"][0]["caption"], evil);
    assert!(run["config"].as_str().unwrap().contains(evil));
}

#[test]
fn nothing_is_fetched() {
    let folder = run(&[("metrics.jsonl", STEP)]);
    let (_, html) = report(folder.path());
    assert!(html.contains("default-src 'none'; img-src data:;"));
    // The only address is the name of SVG's namespace.
    let addresses: Vec<&str> = html.split("http").skip(1).map(|rest| &rest[..20]).collect();
    let others: Vec<_> = addresses
        .iter()
        .filter(|rest| !rest.starts_with("://www.w3.org/2000") && !rest.starts_with("-equiv"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    for forbidden in ["innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
}

/// 20,000 steps: the file stays small and contains the peak.
#[test]
fn a_long_run_has_a_small_report() {
    let mut text = String::new();
    for step in 1..=20_000 {
        let loss = if step == 12_345 {
            77.0
        } else {
            1.0 + f64::from(step % 13) / 100.0
        };
        text.push_str(
            &STEP
                .replace("\"step\":1,", &format!("\"step\":{step},"))
                .replace("2.5", &loss.to_string()),
        );
    }
    let folder = run(&[("metrics.jsonl", &text)]);
    let (written, html) = report(folder.path());
    assert!(written.bytes < 3 << 20, "{}", written.bytes);
    let run = &data(&html)["runs"][0];
    assert_eq!(run["num_steps"], 20_000);
    let loss = run["steps"]["loss"]["y"].as_array().unwrap();
    assert!(loss.len() <= thin::MAX_POINTS && loss.contains(&77.0.into()));
}

#[test]
fn memory_is_drawn_without_the_time_between_two_processes() {
    let line = |time: f64| format!("{{\"time\":{time},\"phase\":\"train\",\"process_bytes\":5}}\n");
    let text = [100.0, 101.0, 90_000.0, 90_002.0].map(line).concat();
    let folder = run(&[("metrics.jsonl", STEP), ("memory.jsonl", &text)]);
    let (_, html) = report(folder.path());
    let run = &data(&html)["runs"][0];
    assert_eq!(
        run["memory"]["process_bytes"]["x"],
        serde_json::json!([0.0, 1.0, 1.0, 3.0])
    );
    assert_eq!(run["num_memory_samples"], 4);
}

#[test]
fn several_runs_share_a_page_and_nothing_partial_is_left() {
    let folders = [
        run(&[("metrics.jsonl", STEP)]),
        run(&[("metrics.jsonl", STEP)]),
    ];
    let out = folders[0].path().join("both.html");
    let runs = [folders[0].path().to_owned(), folders[1].path().to_owned()];
    assert_eq!(write(&runs, &out).unwrap().runs, 2);
    let html = fs::read_to_string(&out).unwrap();
    assert_eq!(data(&html)["runs"].as_array().unwrap().len(), 2);
    assert!(!out.with_added_extension("partial").exists());
    let nowhere = folders[0].path().join("no/folder/report.html");
    let error = write(&runs, &nowhere).unwrap_err().to_string();
    assert!(
        error.contains("cannot be written") && error.contains("\nhint: "),
        "{error}"
    );
}
