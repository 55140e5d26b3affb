//! `holdall data sample clips`, and `check` and `clean` of clips.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::data_check::data;
use crate::typed::{Answer, BAD_INPUT, DONE, FOUND, holdall, holdall_words};

struct Clips(TempDir);

impl Clips {
    fn new(count: usize, options: &str) -> Clips {
        let clips = Clips(tempfile::tempdir().unwrap());
        let options = format!("--count {count} --size 32 --frames 5 {options}");
        data_sample(&clips, &options).exits(DONE);
        clips
    }

    fn csv(&self) -> PathBuf {
        self.path("set/clips.csv")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn data_sample(clips: &Clips, options: &str) -> Answer {
    let path = clips.path("set").display().to_string();
    holdall(&format!("data sample clips {path} {options}"))
}

#[test]
fn clips_are_drawn_and_found_good() {
    for format in ["frames", "avi"] {
        let clips = Clips::new(10, &format!("--format {format}"));
        let answer = data("check", &clips.path("set"), "--set data.frames=5").exits(DONE);
        let expected = "Nothing wrong in 10 rows";
        assert!(answer.stdout.contains(expected), "{}", answer.stdout);
    }
    let clips = Clips(tempfile::tempdir().unwrap());
    let answer = data_sample(&clips, "--frames 1").exits(BAD_INPUT);
    assert!(
        answer
            .stderr
            .contains("--frames 1: a clip is drawn with 2 to")
    );
    let answer = holdall("data sample cars /nowhere --format gif").exits(BAD_INPUT);
    assert!(
        answer.stderr.contains("these are for clips"),
        "{}",
        answer.stderr
    );
}

#[test]
fn a_clip_of_each_defect() {
    let clips = Clips::new(20, "");
    let clip = |number: usize| clips.path(&format!("set/clips/{number:06}"));
    fs::remove_dir_all(clip(1)).unwrap();
    fs::write(clip(2).join("02.jpg"), "no picture").unwrap();
    fs::remove_file(clip(3).join("04.jpg")).unwrap();
    for frame in 0..5 {
        let name = format!("{frame:02}.jpg");
        fs::copy(clip(0).join(&name), clip(4).join(&name)).unwrap();
        // The last four are for validation.
        fs::copy(clip(5).join(&name), clip(19).join(&name)).unwrap();
    }
    let csv = fs::read_to_string(clips.csv()).unwrap();
    let mut lines: Vec<String> = csv.lines().map(str::to_owned).collect();
    lines[7] = "clips/000006,,train,left,slow,ring,red,nothing".to_owned();
    fs::write(clips.csv(), lines.join("\n")).unwrap();
    let by_column = |command: &str| -> Answer {
        let csv = clips.csv().display().to_string();
        let split = "data.validation={column: split}";
        holdall_words([
            "data",
            command,
            &csv,
            "--set",
            "data.frames=5",
            "--set",
            split,
        ])
    };
    let answer = by_column("check").exits(FOUND);
    for line in [
        "missing                         1    5.0%  removes  row 3 clips/000001",
        "not an image                    1    5.0%  removes  row 4 clips/000002",
        "empty caption                   1    5.0%  removes  row 8 clips/000006",
        "in two splits                   1    5.0%  filters  row 21 as row 7",
        "duplicate                       1    5.0%  filters  row 6 as row 2",
        "too few frames                  1    5.0%  filters  row 5 4 frames",
        "17 of 20 rows can be used",
    ] {
        assert!(answer.stdout.contains(line), "{line}\n{}", answer.stdout);
    }
    by_column("clean").exits(DONE);
    let rows = |name: &str| {
        let text = fs::read_to_string(clips.path(name)).unwrap();
        text.lines().count() - 1
    };
    assert_eq!(rows("set/clips_cleaned.csv"), 17);
    assert_eq!(rows("set/clips_filtered.csv"), 14);
}

/// Columns and separators of a hospital's export.
#[test]
fn alphas_between_columns_are_told_from_the_header() {
    let clips = Clips::new(4, "--format avi");
    let rows: String = (0..4)
        .map(|number| format!("clips/{number:06}.avi\u{3b1}A report, with {number} commas; and more.\u{3b1}train\n"))
        .collect();
    fs::write(
        clips.csv(),
        format!("FileName\u{3b1}Report\u{3b1}Split\n{rows}"),
    )
    .unwrap();
    let answer = data("check", &clips.csv(), "--set data.frames=5 --json").exits(DONE);
    assert_eq!(answer.json()["usable_rows"], 4);
    let said = "are separated by `\u{3b1}` (told from its header line";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    let answer = data("check", &clips.csv(), "--set data.separator=;").exits(BAD_INPUT);
    assert!(answer.stderr.contains("hint: "), "{}", answer.stderr);
}
