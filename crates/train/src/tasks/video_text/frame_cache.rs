//! Frame cache: with a frozen vision tower and no augmentation, frame tokens are the same in every epoch and computed once.
//!
//! ```text
//! before the first step   frames -> vision tower -> tokens on disk, clip by clip; a file that matches is reused
//! every step              tokens from disk -> the rest of the model
//! ```
//!
//! Tokens are stored in the number format that the step computes in, so that losses have the same bits as without the cache.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use holdall_data::decode::{Scratch, size_and_time};
use holdall_data::loader::{
    ClipFraming, Course, FoundRows, Loaded, RowFormat, RowsFile, RowsHeader, RowsWriter,
    StoredList, StoredRows, View,
};
use holdall_data::samples::Samples;
use holdall_device::{Arithmetic, Device};
use holdall_files::{RunningChecksum, counted, create_folders, free_bytes, thousands};

use super::VideoTextTask;
use super::cacheable::{WHOLE_FRAMES, check};
use super::frame_encoder::{FrameEncoder, write_encoder};
use crate::config::budget::{show_bytes, show_time};
use crate::config::{EvalEvery, FrameCacheChoice, RunConfig, Subset};
use crate::engine::task::{Storing, Task};
use crate::error::TrainError;
use crate::planning::loader_budget::Reading;
use crate::planning::picture_costs::PictureCosts;
use crate::planning::setup::Setup;
use crate::run_folder::folder::failed;

/// Time between two progress lines.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Folder and contents of the cached frame tokens.
pub(super) struct FrameCache {
    folder: PathBuf,
    framing: ClipFraming,
    processor: String,
    arithmetic: Arithmetic,
    seed: u64,
    lists: Vec<CachedList>,
}

/// Samples as training or as evaluation reads them.
struct CachedList {
    name: &'static str,
    samples: Arc<Samples>,
    is_training: bool,
}

/// The file of a list, if it is complete.
struct FoundList<'a> {
    list: &'a CachedList,
    header: RowsHeader,
    file: Option<RowsFile>,
    /// Bytes that are still to be written.
    missing_bytes: u64,
}

impl FrameCache {
    /// Creates the cache if the config asks for it; an error unless frames are the same in every epoch and the tower is frozen.
    pub(super) fn new(
        config: &RunConfig,
        setup: &Setup,
        task: &VideoTextTask,
        framing: &ClipFraming,
        (train, validation): (&Arc<Samples>, Option<&Arc<Samples>>),
        csv: &Path,
    ) -> Result<Option<FrameCache>, TrainError> {
        let choice = config.video_text.cache;
        if choice == FrameCacheChoice::None {
            return Ok(None);
        }
        check(choice, &config.data, &task.model, &setup.step, train)?;
        let mut lists = vec![CachedList {
            name: "train",
            samples: Arc::clone(train),
            is_training: true,
        }];
        let evaluated = config.train.eval_on.iter();
        for subset in evaluated.filter(|_| config.train.eval_every != EvalEvery::Never) {
            let (name, samples) = match subset {
                Subset::Train => ("train as evaluated", Some(train)),
                Subset::Validation => ("validation", validation),
            };
            lists.extend(samples.map(|samples| CachedList {
                name,
                samples: Arc::clone(samples),
                is_training: false,
            }));
        }
        let beside = csv.parent().unwrap_or(Path::new("."));
        let folder = config.video_text.cache_folder.clone();
        Ok(Some(FrameCache {
            folder: folder.unwrap_or_else(|| beside.join("frame-tokens")),
            framing: ClipFraming {
                augment: WHOLE_FRAMES,
                ..framing.clone()
            },
            processor: setup.processor.text().to_string(),
            arithmetic: setup.step.arithmetic,
            seed: config.seed,
            lists,
        }))
    }

    /// Reads the frames of a clip, for thumbnails.
    pub(super) fn frames(&self, samples: &Samples, sample: usize) -> Vec<u8> {
        let mut row = vec![0; self.framing.row_bytes()];
        let mut scratch = Scratch::default();
        let read = self
            .framing
            .write_row(samples, sample, None, &mut scratch, &mut row);
        // A file that was deleted since its tokens were computed has no thumbnails.
        read.map_or(Vec::new(), |_| row)
    }

    /// The row format for planning, before the files are open.
    pub(super) fn not_opened(&self) -> RowFormat {
        RowFormat::Stored(Arc::new(StoredRows::new(self.framing.clone(), Vec::new())))
    }

    /// Log line about the shape and size of all files.
    pub(super) fn forecast(&self, task: &VideoTextTask) -> String {
        let model = &task.model;
        let clips: usize = self.lists.iter().map(|list| list.samples.len()).sum();
        let bytes: u64 = self
            .lists
            .iter()
            .map(|list| self.file_bytes(task, list))
            .sum();
        format!(
            "Frame tokens: {} x {} x {} x {} numbers in {}: {} in {}",
            counted(thousands(clips), "clip"),
            counted(model.frames(), "frame"),
            counted(model.encoded_tokens_per_frame(), "token"),
            model.vision.hidden_size,
            self.arithmetic.name(),
            show_bytes(bytes),
            self.folder.display()
        )
    }

    fn file_bytes(&self, task: &VideoTextTask, list: &CachedList) -> u64 {
        self.header(task, list, Vec::new()).file_bytes()
    }

    fn header(
        &self,
        task: &VideoTextTask,
        list: &CachedList,
        made_of: Vec<(String, String)>,
    ) -> RowsHeader {
        RowsHeader {
            rows: format!("frame tokens, {}", list.name),
            row_bytes: task.picture_bytes() as u64,
            num_rows: list.samples.len() as u64,
            made_of,
        }
    }

    fn path(&self, list: &CachedList) -> PathBuf {
        self.folder
            .join(format!("{}.rows", list.name.replace(' ', "-")))
    }

    /// Opens the files of all lists, and computes what is missing; `None` if interrupted.
    pub(super) fn open(
        &self,
        task: &VideoTextTask,
        mut storing: Storing<'_>,
    ) -> Result<Option<RowFormat>, TrainError> {
        let found = self.find(task, &mut storing)?;
        let missing_bytes: u64 = found.iter().map(|one| one.missing_bytes).sum();
        if missing_bytes > 0 {
            create_folders(&self.folder).map_err(failed(&self.folder, "created"))?;
            self.check_disk(missing_bytes)?;
            let free =
                free_bytes(&self.folder).map(|free| format!(", {} are free", show_bytes(free)));
            (storing.tell)(&format!(
                "{}; {} are to be written{}",
                self.forecast(task),
                show_bytes(missing_bytes),
                free.unwrap_or_default()
            ));
        }
        let mut encoder = None;
        let mut lists = Vec::new();
        for FoundList {
            list, header, file, ..
        } in found
        {
            let file = match file {
                Some(file) => {
                    let clips = counted(thousands(file.num_rows()), "clip");
                    let path = self.path(list);
                    (storing.tell)(&format!(
                        "Frame tokens of {}: {clips}, read from {}",
                        list.name,
                        path.display()
                    ));
                    file
                }
                None => {
                    let encoder = match &mut encoder {
                        Some(encoder) => encoder,
                        none => none.insert(FrameEncoder::new(
                            task,
                            (&self.framing, self.arithmetic, self.seed),
                            &storing,
                        )?),
                    };
                    match self.fill(list, &header, encoder, &mut storing)? {
                        Some(file) => file,
                        None => return Ok(None),
                    }
                }
            };
            lists.push(StoredList {
                samples: Arc::clone(&list.samples),
                is_training: list.is_training,
                file,
            });
        }
        let rows = StoredRows::new(self.framing.clone(), lists);
        Ok(Some(RowFormat::Stored(Arc::new(rows))))
    }

    /// Looks for the file of every list; says why one that is there is not used.
    fn find(
        &self,
        task: &VideoTextTask,
        storing: &mut Storing<'_>,
    ) -> Result<Vec<FoundList<'_>>, TrainError> {
        let shared = self.shared_parts(task, storing.device)?;
        let mut found = Vec::new();
        for list in &self.lists {
            let mut made_of = shared.clone();
            made_of.push(("clips".to_owned(), digest_of_clips(&list.samples)));
            let header = self.header(task, list, made_of);
            let path = self.path(list);
            let file = match RowsFile::find(&path, &header)? {
                FoundRows::Whole(file) => Some(file),
                FoundRows::Nothing => None,
                FoundRows::Unusable(why) => {
                    (storing.tell)(&format!(
                        "Frame tokens of {}: {} is not used and made again: {why}",
                        list.name,
                        path.display()
                    ));
                    None
                }
            };
            let missing_bytes = if file.is_none() {
                let beside = std::fs::metadata(holdall_files::partial(&path));
                let there = beside.map_or(0, |file| file.len());
                header.file_bytes().saturating_sub(there)
            } else {
                0
            };
            found.push(FoundList {
                list,
                header,
                file,
                missing_bytes,
            });
        }
        Ok(found)
    }

    fn check_disk(&self, missing_bytes: u64) -> Result<(), TrainError> {
        match free_bytes(&self.folder) {
            Some(free) if free < missing_bytes => Err(TrainError::Config(format!(
                "video_text.cache: the disk of {} has {} free, expected at least {} for frame tokens\n\
                 hint: free some space, or name a folder on another disk: `video_text: {{cache_folder: FOLDER}}`; fewer `data.frames` \
                 take less, and `cache: none` takes nothing",
                self.folder.display(),
                show_bytes(free),
                show_bytes(missing_bytes)
            ))),
            _ => Ok(()),
        }
    }

    /// Checksums that all files depend on: weights, framing, arithmetic.
    fn shared_parts(
        &self,
        task: &VideoTextTask,
        device: &Device,
    ) -> Result<Vec<(String, String)>, TrainError> {
        let mut weights = RunningChecksum::default();
        let mut fill = task.weights(self.seed)?;
        let graph = write_encoder(&task.model, task.pixels, self.arithmetic, 1);
        for parameter in graph.parameters() {
            let mut values = vec![0.0; graph.shape(parameter.value).num_elements()];
            fill(&parameter.name, &mut values)?;
            weights.add(parameter.name.as_bytes());
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            weights.add(&bytes);
        }
        let model = format!(
            "{:?} {}",
            task.model.vision,
            task.model.encoded_tokens_per_frame()
        );
        let frames = format!("{:?} {}", self.framing, self.processor);
        let arithmetic = format!(
            "{} {} {}",
            env!("CARGO_PKG_VERSION"),
            device.kind(),
            self.arithmetic.name()
        );
        let text = |name: &str, text: &str| {
            let sum = holdall_files::Checksum::of(text.as_bytes());
            (name.to_owned(), sum.to_string())
        };
        Ok(vec![
            (
                "weights of the vision tower".to_owned(),
                weights.value().to_string(),
            ),
            text("sizes of the model", &model),
            text("frames or image processor", &frames),
            text("arithmetic or version", &arithmetic),
        ])
    }

    /// Computes the missing rows of a list, in order; `None` if interrupted.
    fn fill(
        &self,
        list: &CachedList,
        header: &RowsHeader,
        encoder: &mut FrameEncoder,
        storing: &mut Storing<'_>,
    ) -> Result<Option<RowsFile>, TrainError> {
        let (device, total) = (storing.device, list.samples.len());
        let mut writer = RowsWriter::open(&self.path(list), header)?;
        let first = writer.done();
        if first > 0 {
            (storing.tell)(&format!(
                "Frame tokens of {}: going on after {} of {}",
                list.name,
                thousands(first),
                counted(thousands(total), "clip")
            ));
        }
        let rows = RowFormat::from(self.framing.clone());
        let costs = PictureCosts::read(device, &[&list.samples], rows.clone(), storing.stop);
        let Some(costs) = costs else { return Ok(None) };
        let workers = device.cpu().num_threads();
        let batch = encoder.batch();
        let decode_bytes = encoder.decode_bytes(device, storing.budget_bytes, &costs, workers);
        let reading = Reading::evaluation(device, batch, self.framing.row_bytes(), decode_bytes);
        let mut loader = reading.open(device, rows)?;
        let course = Course::From {
            first: first as u32,
        };
        let view = if list.is_training {
            View::Training { seed: self.seed }
        } else {
            View::Evaluation
        };
        loader.begin(Arc::clone(&list.samples), course, view);
        let (began, mut told) = (Instant::now(), Instant::now());
        let mut loaded = Loaded::default();
        loop {
            loader.next_interruptible(storing.stop, batch, &mut loaded);
            if storing.stop.load(std::sync::atomic::Ordering::Relaxed) {
                return Ok(None);
            }
            if loaded.rows.is_empty() {
                break;
            }
            let tokens = encoder.encode(device, &loaded.rows)?;
            let each = header.row_bytes as usize;
            for (at, row) in tokens.chunks(each).enumerate() {
                let sample = loaded.samples[at] as usize;
                while writer.done() < sample {
                    writer.add_unreadable()?;
                }
                writer.add(row, loaded.frame_counts[at])?;
            }
            if told.elapsed() >= BETWEEN_LINES {
                told = Instant::now();
                let done = writer.done();
                let each = began.elapsed().as_secs_f64() / (done - first) as f64;
                (storing.tell)(&format!(
                    "Frame tokens of {}: {} of {}, {} left",
                    list.name,
                    thousands(done),
                    counted(thousands(total), "clip"),
                    show_time(1e3 * each * (total - done) as f64)
                ));
            }
        }
        while writer.done() < total {
            writer.add_unreadable()?;
        }
        let file = writer.finish()?;
        (storing.tell)(&format!(
            "Frame tokens of {}: {} computed in {}",
            list.name,
            counted(thousands(total - first), "clip"),
            show_time(1e3 * began.elapsed().as_secs_f64())
        ));
        Ok(Some(file))
    }
}

/// Checksum over names, sizes and times of all files of clips, so that a replaced file changes it.
fn digest_of_clips(samples: &Samples) -> String {
    let mut sum = RunningChecksum::default();
    let mut add_file = |path: &Path| {
        let is_folder = path.is_dir();
        match size_and_time(path) {
            Some((num_bytes, modified)) => {
                let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                sum.add(&num_bytes.to_le_bytes());
                sum.add(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
            }
            None if is_folder => {}
            None => sum.add(b"none"),
        }
        sum.add(path.file_name().unwrap_or_default().as_encoded_bytes());
        is_folder
    };
    for sample in 0..samples.len() {
        for path in samples.clip_paths(sample) {
            if add_file(&path) {
                let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
                let mut frames: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
                frames.sort();
                for frame in frames {
                    add_file(&frame);
                }
            }
        }
    }
    sum.value().to_string()
}
