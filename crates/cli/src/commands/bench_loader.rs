//! `holdall bench loader`: times loading the pictures of a folder into batches, compared with decoding alone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_buffers::Keeping;
use holdall_data::DataConfig;
use holdall_data::config::{Augment, Decode, PairAugment, Validation};
use holdall_data::decode::{self, Allowance, Framing, Scratch};
use holdall_data::loader::{
    ClipFraming, Course, Cursor, Epochs, Loaded, Loader, PictureFormat, RowFormat, Share, Skipped,
    View, Workers,
};
use holdall_data::samples::{Captions, EvidenceKind, Samples, Sampling, evidence, read_clips};
use holdall_data::segmentation::{Fit, PairFraming, RowShape, SegmentationSet, read_whole};
use holdall_device::cpu::{peak_resident_bytes, resident_bytes};
use holdall_train::TrainError;
use holdall_train::engine::task::nothing_readable;
use serde::Serialize;

use crate::commands::predict::pictures;
use crate::options::at_least_one;
use crate::screen::{print_json, progress, tell};

#[derive(Args)]
#[command(
    after_help = "Every picture is read once to warm up, then timed: decoded, a random part of it resized (with --eval its \
                  middle), flipped, written into the batch as bytes; a device normalises them. A folder of images and masks is \
                  read in pairs: both decoded, resized whole, mirrored, turned and recoloured together. One JSON line on stdout.\n\n\
                  Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench loader photos/ --workers 2 --batch 64\n  \
                  holdall bench loader FIVES --size 1024 --batch 4\n  \
                  holdall bench loader clips.csv --frames 16 --batch 8"
)]
pub struct BenchLoaderArguments {
    /// A folder of pictures, searched with its subfolders; shards or a CSV of pictures; a folder of images and masks; a CSV of clips
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Threads that read pictures
    #[arg(long, alias = "num-workers", alias = "num_workers", default_value_t = 2, value_name = "N", value_parser = at_least_one)]
    pub workers: usize,
    /// Pictures in a batch
    #[arg(long, alias = "batch-size", alias = "batch_size", default_value_t = 64, value_name = "N", value_parser = at_least_one)]
    pub batch: usize,
    /// Width and height in a batch
    #[arg(long, default_value_t = 224, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub size: u32,
    /// Evaluation's resize and centre crop, instead of the random part
    #[arg(long)]
    pub eval: bool,
    /// The size at which a JPEG is decoded; evaluation always decodes at full size
    #[arg(long, value_enum, default_value_t = DecodeArgument::Full, conflicts_with = "eval")]
    pub decode: DecodeArgument,
    /// Frames that are seen of each clip
    #[arg(long, default_value_t = ClipFraming::DEFAULT_FRAMES, value_name = "N", value_parser = at_least_one)]
    pub frames: usize,
    /// Keep decoded pairs in memory: what is timed is what an epoch after the first takes
    #[arg(long)]
    pub keep_decoded: bool,
    /// Pictures to time, going round where the folder has fewer [default: each once]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub images: Option<usize>,
    /// One JSON object on stdout, nothing else there: so it is with or without this
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecodeArgument {
    /// At full size
    Full,
    /// At a half, a quarter or an eighth of the size, where enough pixels are left
    Fast,
}

/// JSON output; its keys are a public interface.
#[derive(Serialize)]
struct LoaderBenchJson<'a> {
    job: &'a str,
    images: usize,
    workers: usize,
    images_per_s: f64,
    decode: &'a str,
    batch: usize,
    size: u32,
    skipped: usize,
    /// Decoding alone with the same number of threads: an upper bound for any loader.
    decode_only_images_per_s: f64,
    of_decode_only: f64,
    ring_bytes: u64,
    rss_start_bytes: Option<u64>,
    rss_end_bytes: Option<u64>,
    rss_peak_bytes: Option<u64>,
}

impl BenchLoaderArguments {
    fn decode(&self) -> Decode {
        match self.decode {
            DecodeArgument::Full => Decode::Full,
            DecodeArgument::Fast => Decode::Fast,
        }
    }
}

/// The samples to load, and the format of their rows.
struct Input {
    samples: Arc<Samples>,
    format: RowFormat,
    row_bytes: usize,
}

impl Input {
    fn new(arguments: &BenchLoaderArguments) -> Result<Input> {
        let size = arguments.size;
        let data = DataConfig {
            train: Some(arguments.folder.clone()),
            validation: Validation::UNSPLIT,
            ..DataConfig::default()
        };
        let kind = evidence(&data).ok().map(|found| found.kind);
        if kind == Some(EvidenceKind::Clips) {
            let set = read_clips(&data, Captions::None, 0).map_err(TrainError::from)?;
            let framing = ClipFraming {
                decode: arguments.decode(),
                ..ClipFraming::new(&data, Framing::clip(size), arguments.frames)
            };
            return Ok(Input {
                samples: Arc::new(set.train),
                row_bytes: framing.row_bytes(),
                format: RowFormat::from(framing),
            });
        }
        if kind == Some(EvidenceKind::Masks) {
            let set = SegmentationSet::open(&data, 0).map_err(TrainError::from)?;
            let shape = RowShape {
                height: size as usize,
                width: size as usize,
                channels: set.survey.channels,
                depth: set.survey.depth,
            };
            return Ok(Input {
                samples: Arc::new(set.train),
                format: RowFormat::from(PairFraming {
                    shape,
                    fit: Fit::Resize,
                    coding: Arc::new(set.coding),
                    augment: PairAugment::default(),
                }),
                row_bytes: shape.row_bytes(),
            });
        }
        Ok(Input {
            samples: pictures(
                std::slice::from_ref(&arguments.folder),
                &DataConfig::default(),
            )?
            .samples,
            format: RowFormat::from(PictureFormat {
                framing: Framing::clip(size),
                augment: Augment {
                    flip: true,
                    ..Augment::default()
                },
                decode: arguments.decode(),
            }),
            row_bytes: (size * size) as usize * decode::CHANNELS,
        })
    }
}

pub fn run(arguments: BenchLoaderArguments) -> Result<ExitCode> {
    let Input {
        samples,
        format,
        row_bytes,
    } = Input::new(&arguments)?;
    let (size, batch) = (arguments.size, arguments.batch);
    // Four batches per worker may wait, as in the PyTorch script for comparison.
    let num_rows = batch * (1 + 4 * arguments.workers);
    let rows = vec![vec![0x7f_u8; row_bytes]; num_rows];
    let ahead = num_rows - batch;
    let mut loader = Loader::new(
        rows,
        format.clone(),
        Workers::exactly(arguments.workers, ahead),
        Allowance::unlimited(),
    )?;
    if arguments.keep_decoded {
        loader.keep_decoded(u64::MAX);
    }
    let images = arguments.images.unwrap_or(samples.len()).max(1);
    tell(&format!("{} pictures, read once to warm up", samples.len()));
    let (_, skipped) = pass(&mut loader, &arguments, &samples, 0, samples.len());
    if skipped.len() == samples.len() {
        return Err(nothing_readable(&samples, &skipped).into());
    }
    let rss_start_bytes = resident_bytes();
    let began = Instant::now();
    let (read, _) = pass(&mut loader, &arguments, &samples, 1, images);
    let images_per_s = read as f64 / began.elapsed().as_secs_f64();
    let rss_end_bytes = resident_bytes();
    drop(loader);
    let decode_only_images_per_s = decode_only(&samples, &format, arguments.workers);
    print_json(&LoaderBenchJson {
        job: match (&format, arguments.eval) {
            (RowFormat::Clip(_), true) => "loader, evaluation, clips",
            (RowFormat::Clip(_), false) => "loader, training, clips",
            (RowFormat::Stored(_), _) => "loader, stored rows",
            (RowFormat::Pair(_), true) => "loader, evaluation, pairs",
            (RowFormat::Pair(_), false) => "loader, training, pairs",
            (RowFormat::Picture(_), true) => "loader, evaluation",
            (RowFormat::Picture(_), false) => "loader, training",
        },
        images,
        workers: arguments.workers,
        images_per_s,
        decode: match arguments.decode {
            DecodeArgument::Full => "full",
            DecodeArgument::Fast => "fast",
        },
        batch,
        size,
        skipped: skipped.len(),
        decode_only_images_per_s,
        of_decode_only: images_per_s / decode_only_images_per_s,
        ring_bytes: (num_rows * row_bytes) as u64,
        rss_start_bytes,
        rss_end_bytes,
        rss_peak_bytes: peak_resident_bytes(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads `images` pictures from the start of an epoch, plus the rest of the last batch. Returns the numbers of read and unreadable
/// pictures.
fn pass(
    loader: &mut Loader<Vec<u8>>,
    arguments: &BenchLoaderArguments,
    samples: &Arc<Samples>,
    epoch: u64,
    images: usize,
) -> (usize, Vec<Skipped>) {
    let bar = progress(images as u64, "Reading");
    let (mut read, mut skipped) = (0, Vec::new());
    let batch = arguments.batch.min(images);
    let mut loaded = Loaded::default();
    let begin = |loader: &mut Loader<Vec<u8>>, epoch: u64| {
        if arguments.eval {
            loader.begin(
                Arc::clone(samples),
                Course::Once(Share::default()),
                View::Evaluation,
            )
        } else {
            let course = Course::Epochs(Epochs {
                seed: 0,
                sampling: Sampling::Shuffle,
                batch,
                share: Share::default(),
                from: Cursor { epoch, batch: 0 },
                until: u64::MAX,
            });
            let view = View::Training { seed: 0 };
            loader.begin(Arc::clone(samples), course, view);
        }
    };
    begin(loader, epoch);
    while read < images {
        loader.next(batch, &mut loaded);
        skipped.append(&mut loaded.skipped);
        let given = loaded.rows.len();
        if given == 0 {
            if read == 0 {
                break;
            }
            // The list is exhausted: start it again.
            begin(loader, epoch);
        }
        read += given;
        bar.inc(given as u64);
    }
    loader.release(&mut loaded);
    bar.finish_and_clear();
    (read, skipped)
}

/// Pictures, or pairs, per second that this many threads decode, without further processing.
fn decode_only(samples: &Samples, format: &RowFormat, threads: usize) -> f64 {
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let _keeping = Keeping::on_this_thread();
                let mut scratch = Scratch::default();
                let mut row = match format {
                    RowFormat::Clip(framing) => vec![0; framing.row_bytes()],
                    _ => Vec::new(),
                };
                loop {
                    let sample = next.fetch_add(1, Ordering::Relaxed);
                    if sample >= samples.len() {
                        break;
                    }
                    // Broken pictures take time as well, and were counted before.
                    match format {
                        RowFormat::Picture(_) => {
                            let _ = decode::probe(&samples.image_path(sample), &mut scratch);
                        }
                        RowFormat::Clip(framing) => {
                            let row = row.as_mut_slice();
                            let _ = framing.write_row(samples, sample, None, &mut scratch, row);
                        }
                        // Stored rows need no decoding.
                        RowFormat::Stored(_) => {}
                        RowFormat::Pair(framing) => {
                            let RowShape {
                                channels, depth, ..
                            } = framing.shape;
                            let coding = Some(&*framing.coding);
                            let _ =
                                read_whole(samples, sample, channels, depth, coding, &mut scratch);
                        }
                    }
                }
            });
        }
    });
    samples.len() as f64 / began.elapsed().as_secs_f64()
}
