//! A run beside the machine: what its folder says, read again as it grows.
//!
//! Files may be missing, end within a line, or be of another version: what can be read is shown.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use holdall_telemetry::memory_log::{FILE_NAME, MemorySample, Phase};
use holdall_train::config::RunConfig;
use serde::{Deserialize, Serialize};

use super::find::{self, Training};
use super::history::Curve;
use super::tail::{News, Tail};

/// Speed and waiting are those of so many steps.
const RECENT_STEPS: usize = 20;
/// Of the memory log the last line matters; a line is a few hundred bytes.
const END_OF_LOG_BYTES: u64 = 64 << 10;
/// A JSON file that is longer than this is none of ours.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// How a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A process trains in its folder.
    Running,
    /// It has a summary.
    Finished,
    /// It says why it failed.
    Failed,
    /// None of these: stopped, or killed.
    Stopped,
}

/// What is known of a run; what is not known is `None`.
#[derive(Clone, Debug, Serialize)]
pub struct RunReading {
    pub folder: PathBuf,
    pub state: State,
    /// Who trains.
    pub pid: Option<u32>,
    /// Seconds since one of its files was written.
    pub quiet_s: Option<f64>,
    pub phase: Option<Phase>,
    pub step: Option<u64>,
    /// Forecast from the first epoch's, once that is over.
    pub steps: Option<u64>,
    pub epoch: Option<u64>,
    pub epochs: Option<u64>,
    pub loss: Option<f64>,
    /// What guessing gives for the contrastive part.
    pub contrastive: Option<f64>,
    pub contrastive_chance: Option<f64>,
    pub lr: Option<f64>,
    pub samples_per_s: Option<f64>,
    /// Share of the training time, 0 to 1.
    pub waited_for_data: Option<f64>,
    pub left_s: Option<f64>,
    pub device: Option<String>,
    pub effective_batch: Option<u64>,
    pub batch_size: Option<u64>,
    pub gradient_accumulation: Option<u64>,
    pub precision: Option<String>,
    pub recompute: Option<String>,
    pub budget_bytes: Option<u64>,
    /// The plan's promise for the process.
    pub planned_bytes: Option<u64>,
    /// What the process holds: now, or at most where it is over.
    pub used_bytes: Option<u64>,
    pub evaluation: Option<Evaluation>,
}

/// The last scores.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Evaluation {
    pub step: Option<u64>,
    pub on: Option<String>,
    pub label_top1: Option<f64>,
    pub image_to_text: Ranks,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ranks {
    pub r1: Option<f64>,
}

/// A line of `metrics.jsonl` as far as it is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Step {
    kind: String,
    step: Option<u64>,
    epoch: Option<u64>,
    loss: Option<f64>,
    contrastive: Option<f64>,
    contrastive_chance: Option<f64>,
    lr: Option<f64>,
    samples: Option<f64>,
    seconds: Option<f64>,
    waited_for_data: Option<f64>,
}

/// `plan.json` as far as it is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Plan {
    device: Option<String>,
    budget_bytes: Option<u64>,
    effective_batch: Option<u64>,
    chosen: Chosen,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Chosen {
    batch_size: Option<u64>,
    gradient_accumulation: Option<u64>,
    precision: Option<String>,
    recompute: Option<String>,
    process_bytes: Option<u64>,
}

/// `summary.json` as far as it is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Summary {
    steps: Option<u64>,
    samples_per_s: Option<f64>,
    waited_for_data: Option<f64>,
    process_bytes: Option<u64>,
}

/// A run that is watched.
#[derive(Debug)]
pub struct RunWatch {
    folder: PathBuf,
    metrics: Tail,
    memory: Tail,
    seen: Seen,
    pub loss: Curve,
    pub samples_per_s: Curve,
    plan: File<Plan>,
    summary: File<Summary>,
    /// Of `config.yml`, when it was written so.
    epochs: (Option<SystemTime>, Option<u64>),
}

/// What the lines said.
#[derive(Debug, Default)]
struct Seen {
    last: Option<Step>,
    recent: VecDeque<Step>,
    steps_per_epoch: Option<u64>,
    evaluation: Option<Evaluation>,
    sample: Option<MemorySample>,
}

/// A JSON file that is read again when it was written again.
#[derive(Debug)]
struct File<T> {
    path: PathBuf,
    written: Option<SystemTime>,
    contents: Option<T>,
}

impl<T: for<'a> Deserialize<'a>> File<T> {
    fn new(path: PathBuf) -> File<T> {
        File {
            path,
            written: None,
            contents: None,
        }
    }

    fn read(&mut self) -> Option<&T> {
        let file = fs::metadata(&self.path).ok();
        let is_sane = file
            .as_ref()
            .is_some_and(|file| file.len() <= MAX_JSON_BYTES);
        let written = file.and_then(|file| file.modified().ok());
        if written != self.written || (is_sane && self.contents.is_none()) {
            self.written = written;
            let bytes = fs::read(&self.path).ok().filter(|_| is_sane);
            self.contents = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        }
        self.contents.as_ref()
    }
}

impl RunWatch {
    pub fn new(folder: &Path) -> RunWatch {
        RunWatch {
            folder: folder.to_owned(),
            metrics: Tail::whole(folder.join("metrics.jsonl")),
            memory: Tail::last(folder.join(FILE_NAME), END_OF_LOG_BYTES),
            seen: Seen::default(),
            loss: Curve::default(),
            samples_per_s: Curve::default(),
            plan: File::new(folder.join("plan.json")),
            summary: File::new(folder.join("summary.json")),
            epochs: (None, None),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads what is new.
    pub fn read(&mut self) -> RunReading {
        self.read_metrics();
        let sample = &mut self.seen.sample;
        self.memory.read(|news| match news {
            News::Restart => *sample = None,
            News::Line(line) => *sample = serde_json::from_slice(line).ok().or(sample.take()),
        });
        self.read_epochs();
        let quiet = find::last_written(&self.folder)
            .map(|last| SystemTime::now().duration_since(last).unwrap_or_default());
        self.reading(find::trainer_of(&self.folder), quiet)
    }

    fn read_metrics(&mut self) {
        let RunWatch {
            metrics,
            seen,
            loss,
            samples_per_s,
            ..
        } = self;
        metrics.read(|news| match news {
            News::Restart => {
                let sample = seen.sample.take();
                *seen = Seen {
                    sample,
                    ..Seen::default()
                };
                (*loss, *samples_per_s) = (Curve::default(), Curve::default());
            }
            News::Line(line) => {
                let Ok(step) = serde_json::from_slice::<Step>(line) else {
                    return;
                };
                match step.kind.as_str() {
                    "step" => {
                        let at = step.step.unwrap_or_default() as f64;
                        loss.push(at, step.loss);
                        let speed = step.samples.zip(step.seconds);
                        let speed = speed.map(|(samples, seconds)| samples / seconds);
                        samples_per_s.push(at, speed);
                        seen.take(step);
                    }
                    "evaluation" => seen.evaluation = serde_json::from_slice(line).ok(),
                    _ => {}
                }
            }
        });
    }

    fn read_epochs(&mut self) {
        let path = self.folder.join("config.yml");
        let written = fs::metadata(&path).and_then(|file| file.modified()).ok();
        if written != self.epochs.0 {
            let config = RunConfig::load(Some(&path), &[]).ok();
            self.epochs = (written, config.map(|config| config.train.epochs as u64));
        }
    }

    fn reading(&mut self, training: Option<Training>, quiet: Option<Duration>) -> RunReading {
        let written = |name: &str| {
            fs::metadata(self.folder.join(name))
                .and_then(|file| file.modified())
                .ok()
        };
        // Whichever is newer is how it ended.
        let has_failed = written("failure.json")
            .is_some_and(|failed| written("summary.json").is_none_or(|done| failed >= done));
        let plan = self.plan.read().cloned().unwrap_or_default();
        let summary = self.summary.read().cloned();
        let state = match (&training, &summary) {
            (Some(_), _) => State::Running,
            (None, _) if has_failed => State::Failed,
            (None, Some(_)) => State::Finished,
            (None, None) => State::Stopped,
        };
        // A summary of an earlier process says nothing of one that trains.
        let summary = summary
            .filter(|_| state == State::Finished)
            .unwrap_or_default();
        let seen = &self.seen;
        let last = seen.last.clone().unwrap_or_default();
        let sample = seen.sample.clone().unwrap_or_default();
        let sum = |of: fn(&Step) -> Option<f64>| seen.recent.iter().filter_map(of).sum::<f64>();
        let (samples, seconds) = (sum(|step| step.samples), sum(|step| step.seconds));
        let recent = |value: f64| (seconds > 0.0).then(|| value / seconds);
        let steps = summary.steps.or_else(|| {
            let per_epoch = seen.steps_per_epoch?;
            per_epoch.checked_mul(self.epochs.1?)
        });
        let pid = training.and_then(|training| training.pid);
        let is_running = state == State::Running;
        let seconds_per_step = recent(seconds).map(|_| seconds / seen.recent.len() as f64);
        let left = steps.zip(last.step).zip(seconds_per_step);
        let left = left.map(|((steps, step), each)| steps.saturating_sub(step) as f64 * each);
        let on_cpu = || pid.and_then(resident_bytes).or(sample.host_rss_bytes);
        let used_bytes = match plan.device.as_deref() {
            _ if !is_running => summary.process_bytes,
            Some("cpu") | None => on_cpu(),
            Some(_) => sample.process_bytes,
        };
        RunReading {
            folder: self.folder.clone(),
            state,
            pid,
            quiet_s: quiet.map(|quiet| quiet.as_secs_f64()),
            phase: sample.phase.filter(|_| is_running),
            step: last.step,
            steps,
            epoch: last.epoch,
            epochs: self.epochs.1,
            loss: last.loss,
            contrastive: last.contrastive,
            contrastive_chance: last.contrastive_chance,
            lr: last.lr,
            samples_per_s: summary.samples_per_s.or(recent(samples)),
            waited_for_data: summary
                .waited_for_data
                .or(recent(sum(|step| step.waited_for_data))),
            left_s: left.filter(|_| is_running),
            device: plan.device,
            effective_batch: plan.effective_batch,
            batch_size: plan.chosen.batch_size,
            gradient_accumulation: plan.chosen.gradient_accumulation,
            precision: plan.chosen.precision,
            recompute: plan.chosen.recompute,
            budget_bytes: plan.budget_bytes,
            planned_bytes: plan.chosen.process_bytes,
            used_bytes,
            evaluation: seen.evaluation.clone(),
        }
    }
}

impl Seen {
    fn take(&mut self, step: Step) {
        let before = self
            .last
            .as_ref()
            .and_then(|last| Some((last.epoch?, last.step?)));
        if let (Some((1, last)), Some(2)) = (before, step.epoch) {
            self.steps_per_epoch = Some(last);
        }
        if self.recent.len() == RECENT_STEPS {
            self.recent.pop_front();
        }
        self.recent.push_back(step.clone());
        self.last = Some(step);
    }
}

/// What a process holds of the host's memory; Linux tells.
fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(step: u64, epoch: u64) -> String {
        format!(
            "{{\"kind\":\"step\",\"step\":{step},\"epoch\":{epoch},\"loss\":{},\"contrastive\":1.5,\
             \"contrastive_chance\":4.1,\"samples\":128,\"seconds\":0.5,\"waited_for_data\":0.05,\"new\":[]}}\n",
            5.0 - step as f64 / 10.0
        )
    }

    fn append(path: &Path, text: &str) {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    const OVER: Option<Duration> = Some(Duration::from_secs(99));

    #[test]
    fn a_run_is_read_as_it_grows_torn_lines_and_all() {
        let run = tempfile::tempdir().unwrap();
        let mut watch = RunWatch::new(run.path());
        let reading = watch.read();
        assert_eq!((reading.step, reading.loss), (None, None));
        let metrics = run.path().join("metrics.jsonl");
        for step in 1..=4 {
            append(&metrics, &line(step, 1));
        }
        append(&metrics, "not json\n{\"kind\":\"unheard of\"}\n");
        let fifth = line(5, 2);
        append(&metrics, &fifth[..20]);
        let reading = watch.read();
        assert_eq!((reading.step, reading.epoch), (Some(4), Some(1)));
        assert_eq!(reading.samples_per_s, Some(256.0));
        assert_eq!(reading.waited_for_data, Some(0.1));
        append(&metrics, &fifth[20..]);
        append(
            &metrics,
            "{\"kind\":\"evaluation\",\"step\":5,\"on\":\"validation\",\"label_top1\":0.5,\"image_to_text\":{\"r1\":0.25}}\n",
        );
        fs::write(run.path().join("config.yml"), "train: {epochs: 3}\n").unwrap();
        let reading = watch.read();
        assert_eq!((reading.step, reading.epoch), (Some(5), Some(2)));
        assert_eq!((reading.steps, reading.epochs), (Some(12), Some(3)));
        assert_eq!(reading.evaluation.unwrap().image_to_text.r1, Some(0.25));
        assert_eq!(watch.loss.points().len(), 5);
        // Fresh files are those of a run that trains, whoever that is.
        assert_eq!(reading.state, State::Running);
        assert_eq!(reading.left_s, Some(3.5));
    }

    #[test]
    fn a_resume_cuts_back_and_goes_on() {
        let run = tempfile::tempdir().unwrap();
        let metrics = run.path().join("metrics.jsonl");
        for step in 1..=8 {
            append(&metrics, &line(step, 1));
        }
        let mut watch = RunWatch::new(run.path());
        watch.read();
        assert_eq!(watch.loss.points().len(), 8);
        fs::write(&metrics, [line(1, 1), line(2, 1)].concat()).unwrap();
        assert_eq!(watch.read().step, Some(2));
        assert_eq!(watch.loss.points().len(), 2);
    }

    #[test]
    fn a_run_that_is_over_has_its_summary() {
        let run = tempfile::tempdir().unwrap();
        append(&run.path().join("metrics.jsonl"), &line(9, 1));
        let mut watch = RunWatch::new(run.path());
        watch.read();
        assert_eq!(watch.reading(None, OVER).state, State::Stopped);
        fs::write(
            run.path().join("summary.json"),
            "{\"steps\":9,\"samples_per_s\":77.5,\"waited_for_data\":0.25,\"process_bytes\":1000}",
        )
        .unwrap();
        fs::write(
            run.path().join("plan.json"),
            "{\"device\":\"cpu\",\"budget_bytes\":2000,\"effective_batch\":128,\"chosen\":{\"batch_size\":8,\
             \"gradient_accumulation\":16,\"precision\":\"f32\",\"recompute\":\"none\",\"process_bytes\":1100}}",
        )
        .unwrap();
        let reading = watch.reading(None, OVER);
        assert_eq!(reading.state, State::Finished);
        assert_eq!(
            (reading.steps, reading.samples_per_s),
            (Some(9), Some(77.5))
        );
        assert_eq!(
            (reading.planned_bytes, reading.used_bytes),
            (Some(1100), Some(1000))
        );
        assert_eq!((reading.batch_size, reading.left_s), (Some(8), None));
        // A process that goes on with it has not ended.
        let training = Training {
            folder: run.path().to_owned(),
            pid: None,
        };
        let reading = watch.reading(Some(training), OVER);
        assert_eq!((reading.state, reading.steps), (State::Running, None));
        fs::write(run.path().join("failure.json"), "{}").unwrap();
        assert_eq!(watch.reading(None, OVER).state, State::Failed);
    }

    #[test]
    fn on_a_gpu_the_memory_log_says_what_is_held() {
        let run = tempfile::tempdir().unwrap();
        fs::write(
            run.path().join("plan.json"),
            "{\"device\":\"cuda\",\"chosen\":null",
        )
        .unwrap();
        append(
            &run.path().join(FILE_NAME),
            "{\"time\":1.0,\"step\":1,\"phase\":\"evaluate\",\"process_bytes\":123,\"host_rss_bytes\":456}\n{\"time\":2.",
        );
        let mut watch = RunWatch::new(run.path());
        // Half a plan is none.
        assert_eq!(watch.read().device, None);
        let plan = "{\"device\":\"cuda\",\"chosen\":{\"process_bytes\":200}}";
        fs::write(run.path().join("plan.json"), plan).unwrap();
        let reading = watch.read();
        assert_eq!(reading.used_bytes, Some(123));
        assert_eq!(reading.planned_bytes, Some(200));
        assert_eq!(reading.phase, Some(Phase::Evaluate));
    }
}
