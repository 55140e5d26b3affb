//! State of a run, read from the growing files in its folder.
//!
//! Files may be missing, end within a line, or come from another version: everything readable is shown.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use holdall_files::resident_bytes_of;
use holdall_telemetry::memory_log::{FILE_NAME, MemorySample, Phase};
use holdall_telemetry::run_files::{
    self, CONFIG_FILE, EvaluationLine, FAILURE_FILE, LOG_TAIL_BYTES, Loss, METRICS_FILE,
    MetricsLine, PLAN_FILE, Plan, ProcessesOfStep, SUMMARY_FILE, StepLine, Summary,
};
use holdall_train::config::{RunConfig, TrainSection};
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

use super::find::{self, Training};
use super::history::Curve;
use super::tail::{News, Tail};

/// Window for the means of speed and waiting time.
const RECENT_STEPS: usize = 20;

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// A process trains in the folder.
    Running,
    /// The run has a summary.
    Finished,
    /// The run has a failure file.
    Failed,
    /// None of these: the run was stopped or killed.
    Stopped,
}

/// A run's readings; `None` means unknown.
#[derive(Clone, Debug, Serialize)]
pub struct RunReading {
    pub folder: PathBuf,
    pub state: RunState,
    pub pid: Option<u32>,
    /// Seconds since the last write to the run's files.
    pub quiet_s: Option<f64>,
    pub phase: Option<Phase>,
    #[serde(flatten)]
    pub progress: ProgressReading,
    #[serde(flatten)]
    pub plan: PlanReading,
    /// Memory of the process: current, or the peak of a finished run.
    pub used_bytes: Option<u64>,
    /// Per-process figures of the last step, if several processes train.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<ProcessesOfStep>,
    /// The newest evaluation, with all fields of its line.
    #[serde(serialize_with = "line_as_it_is")]
    pub evaluation: Option<EvaluationLine>,
}

/// How far the run is, and how fast.
#[derive(Clone, Debug, Serialize)]
pub struct ProgressReading {
    pub step: Option<u64>,
    /// Steps of the whole run, extrapolated from the first epoch once it is over.
    pub steps: Option<u64>,
    pub epoch: Option<u64>,
    pub epochs: Option<u64>,
    pub loss: Option<f64>,
    /// Individual losses by name; empty if the total is the only loss.
    pub losses: Vec<Loss>,
    /// Loss of guessing, if there is only one loss.
    pub chance: Option<f64>,
    pub lr: Option<f64>,
    pub samples_per_s: Option<f64>,
    /// Share of the training time, 0 to 1.
    pub waited_for_data: Option<f64>,
    pub left_s: Option<f64>,
}

/// Figures of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReading {
    pub device: Option<String>,
    pub effective_batch: Option<u64>,
    pub batch_size: Option<u64>,
    pub gradient_accumulation: Option<u64>,
    pub precision: Option<String>,
    pub recompute: Option<String>,
    pub budget_bytes: Option<u64>,
    /// Planned memory of the process.
    pub planned_bytes: Option<u64>,
}

fn line_as_it_is<S: Serializer>(
    evaluation: &Option<EvaluationLine>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let fields = evaluation.as_ref().map(|line| &line.fields);
    fields.serialize(serializer)
}

/// Watches the files of a run.
#[derive(Debug)]
pub struct RunWatch {
    folder: PathBuf,
    metrics: Tail,
    memory: Tail,
    seen: NewestFigures,
    pub loss: Curve,
    pub samples_per_s: Curve,
    plan: File<Plan>,
    summary: File<Summary>,
    /// Modification time of `config.yml`, and its train section.
    length: (Option<SystemTime>, Option<TrainSection>),
}

/// Figures from the newest metrics lines.
#[derive(Debug, Default)]
struct NewestFigures {
    last: Option<StepLine>,
    recent: VecDeque<StepLine>,
    steps_per_epoch: Option<u64>,
    evaluation: Option<EvaluationLine>,
    sample: Option<MemorySample>,
}

/// A JSON file that is read again whenever it changes.
#[derive(Debug)]
struct File<T> {
    name: &'static str,
    written: Option<SystemTime>,
    contents: Option<T>,
}

impl<T: DeserializeOwned> File<T> {
    fn new(name: &'static str) -> File<T> {
        File {
            name,
            written: None,
            contents: None,
        }
    }

    fn read(&mut self, folder: &Path) -> Option<&T> {
        let written = written(folder, self.name);
        if written != self.written || self.contents.is_none() {
            self.written = written;
            // An incomplete file may be complete at the next read.
            self.contents = run_files::read_json(folder, self.name).ok().flatten();
        }
        self.contents.as_ref()
    }
}

fn written(folder: &Path, name: &str) -> Option<SystemTime> {
    fs::metadata(folder.join(name)).ok()?.modified().ok()
}

impl RunWatch {
    pub fn new(folder: &Path) -> RunWatch {
        RunWatch {
            folder: folder.to_owned(),
            metrics: Tail::whole(folder.join(METRICS_FILE)),
            memory: Tail::last(folder.join(FILE_NAME), LOG_TAIL_BYTES),
            seen: NewestFigures::default(),
            loss: Curve::default(),
            samples_per_s: Curve::default(),
            plan: File::new(PLAN_FILE),
            summary: File::new(SUMMARY_FILE),
            length: (None, None),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads new lines and returns the state.
    pub fn read(&mut self) -> RunReading {
        self.read_metrics();
        let sample = &mut self.seen.sample;
        self.memory.read(|news| match news {
            News::Restart => *sample = None,
            News::Line(line) => *sample = serde_json::from_slice(line).ok().or(sample.take()),
        });
        self.read_length();
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
                *seen = NewestFigures {
                    sample,
                    ..NewestFigures::default()
                };
                (*loss, *samples_per_s) = (Curve::default(), Curve::default());
            }
            News::Line(line) => match MetricsLine::parse(line) {
                Ok(MetricsLine::Step(step)) => {
                    let at = step.step.unwrap_or_default() as f64;
                    loss.push(at, step.loss);
                    samples_per_s.push(at, step.samples_per_s());
                    seen.take(step);
                }
                Ok(MetricsLine::Evaluation(line)) => seen.evaluation = Some(line),
                Ok(MetricsLine::Other) | Err(_) => {}
            },
        });
    }

    fn read_length(&mut self) {
        let written = written(&self.folder, CONFIG_FILE);
        if written != self.length.0 {
            let path = self.folder.join(CONFIG_FILE);
            let config = RunConfig::load(Some(&path), &[]).ok();
            self.length = (written, config.map(|config| config.train));
        }
    }

    fn reading(&mut self, training: Option<Training>, quiet: Option<Duration>) -> RunReading {
        let written = |name| written(&self.folder, name);
        // The newer of the two files tells how the run ended.
        let has_failed = written(FAILURE_FILE)
            .is_some_and(|failed| written(SUMMARY_FILE).is_none_or(|done| failed >= done));
        let plan = self.plan.read(&self.folder).cloned().unwrap_or_default();
        let summary = self.summary.read(&self.folder).cloned();
        let state = match (&training, &summary) {
            (Some(_), _) => RunState::Running,
            (None, _) if has_failed => RunState::Failed,
            (None, Some(_)) => RunState::Finished,
            (None, None) => RunState::Stopped,
        };
        // A summary from an earlier process does not describe the current one.
        let summary = summary
            .filter(|_| state == RunState::Finished)
            .unwrap_or_default();
        let is_running = state == RunState::Running;
        let pid = training.and_then(|training| training.pid);
        let sample = self.seen.sample.clone().unwrap_or_default();
        let on_cpu = || pid.and_then(resident_bytes_of).or(sample.host_rss_bytes);
        let used_bytes = match plan.device.as_deref() {
            _ if !is_running => summary.process_bytes,
            Some("cpu") | None => on_cpu(),
            Some(_) => sample.process_bytes,
        };
        let last = self.seen.last.clone().unwrap_or_default();
        RunReading {
            folder: self.folder.clone(),
            state,
            pid,
            quiet_s: quiet.map(|quiet| quiet.as_secs_f64()),
            phase: sample.phase.filter(|_| is_running),
            processes: last.processes.clone(),
            progress: self.progress(last, &summary, is_running),
            plan: PlanReading {
                device: plan.device,
                effective_batch: plan.effective_batch,
                batch_size: plan.chosen.batch_size,
                gradient_accumulation: plan.chosen.gradient_accumulation,
                precision: plan.chosen.precision,
                recompute: plan.chosen.recompute,
                budget_bytes: plan.budget_bytes,
                planned_bytes: plan.chosen.process_bytes,
            },
            used_bytes,
            evaluation: self.seen.evaluation.clone(),
        }
    }

    fn progress(&self, last: StepLine, summary: &Summary, is_running: bool) -> ProgressReading {
        let seen = &self.seen;
        let sum = |of: fn(&StepLine) -> Option<f64>| seen.recent.iter().filter_map(of).sum::<f64>();
        let (samples, seconds) = (sum(|step| step.samples), sum(|step| step.seconds));
        let recent = |value: f64| (seconds > 0.0).then(|| value / seconds);
        let train = self.length.1.as_ref();
        let steps = summary
            .steps
            .or_else(|| Some(train?.total_steps(seen.steps_per_epoch?)));
        let epochs = train.and_then(|train| match (train.max_steps, seen.steps_per_epoch) {
            (None, _) => Some(train.num_epochs() as u64),
            (Some(_), per_epoch) => Some(train.epochs_begun(per_epoch?)),
        });
        let seconds_per_step = recent(seconds).map(|_| seconds / seen.recent.len() as f64);
        let left = steps.zip(last.step).zip(seconds_per_step);
        let left = left.map(|((steps, step), each)| steps.saturating_sub(step) as f64 * each);
        let is_one_loss = last.is_one_loss();
        let chance = last.losses.first().and_then(|one| one.chance);
        ProgressReading {
            step: last.step,
            steps,
            epoch: last.epoch,
            epochs,
            loss: last.loss,
            chance: chance.filter(|_| is_one_loss),
            losses: if is_one_loss { Vec::new() } else { last.losses },
            lr: last.rates.first().map(|(_, rate)| *rate),
            samples_per_s: summary.samples_per_s.or(recent(samples)),
            waited_for_data: summary
                .waited_for_data
                .or(recent(sum(|step| step.waited_for_data))),
            left_s: left.filter(|_| is_running),
        }
    }
}

impl NewestFigures {
    fn take(&mut self, step: StepLine) {
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
        assert_eq!((reading.progress.step, reading.progress.loss), (None, None));
        let metrics = run.path().join("metrics.jsonl");
        for step in 1..=4 {
            append(&metrics, &line(step, 1));
        }
        append(&metrics, "not json\n{\"kind\":\"unheard of\"}\n");
        let fifth = line(5, 2);
        append(&metrics, &fifth[..20]);
        let reading = watch.read();
        assert_eq!(
            (reading.progress.step, reading.progress.epoch),
            (Some(4), Some(1))
        );
        assert_eq!(reading.progress.samples_per_s, Some(256.0));
        assert_eq!(reading.progress.waited_for_data, Some(0.1));
        append(&metrics, &fifth[20..]);
        append(
            &metrics,
            "{\"kind\":\"evaluation\",\"step\":5,\"on\":\"validation\",\"label_top1\":0.5,\"image_to_text\":{\"r1\":0.25}}\n",
        );
        fs::write(run.path().join("config.yml"), "train: {epochs: 3}\n").unwrap();
        let reading = watch.read();
        assert_eq!(
            (reading.progress.step, reading.progress.epoch),
            (Some(5), Some(2))
        );
        assert_eq!(
            (reading.progress.steps, reading.progress.epochs),
            (Some(12), Some(3))
        );
        let json = serde_json::to_value(&reading).unwrap();
        assert_eq!(json["evaluation"]["image_to_text"]["r1"], 0.25);
        assert_eq!(
            json["losses"],
            serde_json::json!([{"name": "contrastive", "value": 1.5, "chance": 4.1}])
        );
        assert_eq!(watch.loss.points().len(), 5);
        // Fresh files count as a run in training, without a known process.
        assert_eq!(reading.state, RunState::Running);
        assert_eq!(reading.progress.left_s, Some(3.5));
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
        assert_eq!(watch.read().progress.step, Some(2));
        assert_eq!(watch.loss.points().len(), 2);
    }

    #[test]
    fn a_run_that_is_over_has_its_summary() {
        let run = tempfile::tempdir().unwrap();
        append(&run.path().join("metrics.jsonl"), &line(9, 1));
        let mut watch = RunWatch::new(run.path());
        watch.read();
        assert_eq!(watch.reading(None, OVER).state, RunState::Stopped);
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
        assert_eq!(reading.state, RunState::Finished);
        assert_eq!(
            (reading.progress.steps, reading.progress.samples_per_s),
            (Some(9), Some(77.5))
        );
        assert_eq!(
            (reading.plan.planned_bytes, reading.used_bytes),
            (Some(1100), Some(1000))
        );
        assert_eq!(
            (reading.plan.batch_size, reading.progress.left_s),
            (Some(8), None)
        );
        // A process that resumes the run makes it running again.
        let training = Training {
            folder: run.path().to_owned(),
            pid: None,
        };
        let reading = watch.reading(Some(training), OVER);
        assert_eq!(
            (reading.state, reading.progress.steps),
            (RunState::Running, None)
        );
        fs::write(run.path().join("failure.json"), "{}").unwrap();
        assert_eq!(watch.reading(None, OVER).state, RunState::Failed);
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
        // An incomplete plan file is ignored.
        assert_eq!(watch.read().plan.device, None);
        let plan = "{\"device\":\"cuda\",\"chosen\":{\"process_bytes\":200}}";
        fs::write(run.path().join("plan.json"), plan).unwrap();
        let reading = watch.read();
        assert_eq!(reading.used_bytes, Some(123));
        assert_eq!(reading.plan.planned_bytes, Some(200));
        assert_eq!(reading.phase, Some(Phase::Evaluate));
    }
}
