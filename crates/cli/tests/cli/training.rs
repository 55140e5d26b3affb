//! Runs that are small enough to be looked at from every side: cars drawn on the spot, a preset, a tiny batch.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::typed::{Answer, DONE, Running, holdall_words, start};

/// A run that does not get anywhere in this time has hung.
const LIMIT: Duration = Duration::from_secs(60);

/// A folder with `cars` to train on, where runs go to `run`.
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// With so many cars of 32 x 32 pixels.
    pub fn with_cars(count: usize) -> Home {
        let home = Home::empty();
        draw(&home.path("cars"), count);
        home
    }

    /// Without cars.
    pub fn empty() -> Home {
        Home {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// The folder itself, without this home.
    #[cfg(unix)]
    pub fn folder(self) -> TempDir {
        self.folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn csv(&self) -> PathBuf {
        self.path("cars/image_labels.csv")
    }

    pub fn run(&self) -> RunFiles {
        self.run_named("run")
    }

    pub fn run_named(&self, name: &str) -> RunFiles {
        RunFiles {
            path: self.path(name),
        }
    }

    /// The words of `holdall train cars --model small --out NAME OPTIONS`.
    pub fn words(&self, name: &str, options: &str) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["train".into(), self.path("cars").into()];
        words.extend(["--model".into(), "small".into()]);
        words.extend(["--out".into(), self.path(name).into()]);
        words.extend(options.split_whitespace().map(OsString::from));
        words
    }

    /// `holdall train cars --model small --out run OPTIONS`.
    pub fn train(&self, options: &str) -> Answer {
        holdall_words(self.words("run", options))
    }

    /// A run in a folder of this name, which must come to its end.
    #[track_caller]
    pub fn trained(&self, name: &str, options: &str) -> RunFiles {
        holdall_words(self.words(name, options)).exits(DONE);
        self.run_named(name)
    }

    pub fn start(&self, name: &str, options: &str) -> Running {
        start(self.words(name, options))
    }
}

/// `holdall data sample cars FOLDER`.
pub fn draw(folder: &Path, count: usize) {
    let mut words: Vec<OsString> = ["data", "sample", "cars"].map(Into::into).into();
    words.push(folder.into());
    words.extend(
        format!("--size 32 --count {count}")
            .split(' ')
            .map(OsString::from),
    );
    holdall_words(words).exits(DONE);
}

/// `holdall COMMAND PATH OPTIONS`.
pub fn on(command: &str, path: &Path, options: &str) -> Answer {
    let words = [command.into(), path.as_os_str().to_owned()];
    let options = options.split_whitespace().map(OsString::from);
    holdall_words(words.into_iter().chain(options))
}

/// What a run leaves behind.
#[derive(Clone)]
pub struct RunFiles {
    pub path: PathBuf,
}

impl RunFiles {
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn last(&self) -> PathBuf {
        self.file("checkpoints/last.safetensors")
    }

    /// `holdall train --resume --out RUN OPTIONS`, as words.
    pub fn resume_words(&self, options: &str) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["train", "--resume", "--out"].map(Into::into).into();
        words.push(self.path.clone().into());
        words.extend(options.split_whitespace().map(OsString::from));
        words
    }

    pub fn resume(&self, options: &str) -> Answer {
        holdall_words(self.resume_words(options))
    }

    fn journal(&self) -> String {
        let path = self.file("metrics.jsonl");
        let text = fs::read_to_string(&path);
        text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Lines of `metrics.jsonl` without what a clock says, which comes last in each.
    pub fn untimed_lines(&self) -> Vec<String> {
        let journal = self.journal();
        let lines = journal.lines().map(|line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let (untimed, clock) = line.split_once(",\"seconds\":").unwrap();
            let others: Vec<&str> = clock.split('"').skip(1).step_by(2).collect();
            // Of several processes, who was slow comes last.
            let is_timed = matches!(
                others[..],
                [] | ["waited_for_data"] | ["waited_for_data", "processes", ..]
            );
            assert!(is_timed, "{line}");
            untimed.to_owned()
        });
        lines.collect()
    }

    /// Lines of this kind: `step` or `evaluation`.
    pub fn lines(&self, kind: &str) -> Vec<Value> {
        let journal = self.journal();
        let lines = journal
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.filter(|line: &Value| line["kind"] == kind).collect()
    }

    /// A number of every step.
    pub fn of_steps(&self, key: &str) -> Vec<f64> {
        let steps = self.lines("step");
        steps
            .iter()
            .map(|line| line[key].as_f64().unwrap())
            .collect()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.file(name)).unwrap()).unwrap()
    }

    /// Whole lines written so far; none where there is no file yet.
    pub fn num_lines(&self) -> usize {
        let text = fs::read(self.file("metrics.jsonl")).unwrap_or_default();
        text.iter().filter(|&&byte| byte == b'\n').count()
    }

    /// Waits until `is_there`, while `running` goes on.
    #[track_caller]
    pub fn wait_until(&self, running: &mut Running, is_there: impl Fn(&RunFiles) -> bool) {
        let started = Instant::now();
        while !is_there(self) {
            assert!(running.goes_on(), "ended before it was seen");
            assert!(started.elapsed() < LIMIT, "not seen in {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The same lines in the same order, none lost, none doubled.
pub fn same_lines(found: &RunFiles, expected: &RunFiles) -> Result<(), String> {
    let [found, expected] = [found, expected].map(RunFiles::untimed_lines);
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        if found != expected {
            return Err(format!(
                "line {}: expected {expected}, found {found}",
                index + 1
            ));
        }
    }
    if found.len() == expected.len() {
        Ok(())
    } else {
        Err(format!(
            "expected {} lines, found {}",
            expected.len(),
            found.len()
        ))
    }
}

/// The same weights, bit by bit, and the same last scores.
pub fn same_model(found: &RunFiles, expected: &RunFiles) -> Result<(), String> {
    if !expected.file("model/model.safetensors").exists() {
        return Err("no model".to_owned());
    }
    for file in ["model/model.safetensors", "model/head.safetensors"] {
        // A classifier's head is in its weights.
        let [found, expected] = [found, expected].map(|run| fs::read(run.file(file)).ok());
        if found != expected {
            return Err(format!("{file} differs"));
        }
    }
    let [found, expected] = [found, expected].map(|run| run.json("summary.json"));
    for key in ["metrics", "best", "steps", "epochs", "stopped_early"] {
        if found[key] != expected[key] {
            let [found, expected] = [&found[key], &expected[key]];
            return Err(format!("{key}: expected {expected}, found {found}"));
        }
    }
    Ok(())
}

/// All that two runs have in common if they are the same run.
pub fn same_results(found: &RunFiles, expected: &RunFiles) -> Result<(), String> {
    same_lines(found, expected).and_then(|()| same_model(found, expected))
}

#[track_caller]
pub fn assert_same_lines(found: &RunFiles, expected: &RunFiles) {
    same_lines(found, expected).unwrap();
}

#[track_caller]
pub fn assert_same_model(found: &RunFiles, expected: &RunFiles) {
    same_model(found, expected).unwrap();
}

/// Copies a folder with all that is in it.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Takes the checksums of a model folder away, as people do who edit its files.
pub fn unseal(model: &Path) {
    match fs::remove_file(model.join("holdall.json")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed.unwrap(),
    }
}

/// The whole size of what is otherwise sampled, where HOLDALL_FULL_SIZE is set.
pub fn at_full_size<T>(full: T, otherwise: T) -> T {
    match std::env::var_os("HOLDALL_FULL_SIZE") {
        Some(_) => full,
        None => otherwise,
    }
}
