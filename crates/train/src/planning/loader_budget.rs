//! Threads, buffers and memory of the loader; and after the run, a report on whether they were enough.
//!
//! On the CPU the computing threads also read, between the steps, because extra workers would take computing time. With a
//! GPU, workers read while it computes. Settings of the user take precedence.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdall_data::decode::Allowance;
use holdall_data::loader::{
    Bottleneck, Course, Loaded, Loader, RowFormat, Share, Skipped, View, Waits, Workers,
};
use holdall_data::samples::Samples;
use holdall_device::{Device, HostRow};
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::config::budget::{Memory, show_bytes};
use crate::error::TrainError;
use crate::planning::picture_costs::PictureCosts;

/// Row buffers for pictures, and the threads that fill them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Number of row buffers, one per picture.
    pub num_rows: usize,
    pub row_bytes: usize,
    /// Number of workers, and how far they read ahead.
    pub workers: Workers,
    /// Whether reading and computing take turns on the same threads.
    pub takes_turns: bool,
    /// Pictures of a step.
    pub batch: usize,
    /// Pictures in one unit of `prefetch`.
    pub unit: usize,
    /// Memory for decoding beside the rows, of all workers together.
    pub decode_bytes: u64,
    /// Memory for decoded samples that are kept for the next epoch.
    pub cache_bytes: u64,
}

/// On `auto`, waiting pictures take at most one part in this many of the free memory.
const AUTO_SHARE: u64 = 4;

/// On `auto`, two batches are read ahead, or one if two take more than this: every byte is allocated before the first step.
const AHEAD_BYTES: u64 = 4 << 30;

/// On `auto`, each worker has at least this many rows: with small batches it would stop and start all the time.
const ROWS_PER_WORKER: usize = 32;

/// Memory of decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeBytes {
    /// The largest picture.
    pub largest: u64,
    /// The largest pictures that all workers may decode at once.
    pub together: u64,
    /// All decoded training samples, if the loader can keep them.
    pub kept: u64,
}

/// The machine's resources for reading.
#[derive(Clone, Copy, Debug)]
struct Host {
    num_threads: usize,
    is_gpu: bool,
    total_bytes: u64,
    free_bytes: u64,
}

impl Reading {
    /// Plans the reading for steps of `effective_batch` pictures of `row_bytes` each.
    pub fn new(
        config: &RunConfig,
        device: &Device,
        effective_batch: usize,
        row_bytes: usize,
        costs: &PictureCosts,
    ) -> Result<Reading, TrainError> {
        // All processes on this machine share the free memory.
        let local = device.group().local_size() as u64;
        let host = Host {
            num_threads: device.cpu().num_threads(),
            is_gpu: device.is_gpu(),
            total_bytes: holdall_device::cpu::total_bytes().unwrap_or(u64::MAX),
            free_bytes: holdall_device::cpu::available_bytes().unwrap_or(u64::MAX) / local,
        };
        let decode = |workers: usize| DecodeBytes {
            largest: costs.largest_bytes(),
            together: costs.together_bytes(workers),
            kept: costs.kept_bytes(),
        };
        Reading::on(host, config, effective_batch, row_bytes, decode)
    }

    fn on(
        host: Host,
        config: &RunConfig,
        effective_batch: usize,
        row_bytes: usize,
        decode: impl Fn(usize) -> DecodeBytes,
    ) -> Result<Reading, TrainError> {
        let asked = config.num_workers.exactly();
        let takes_turns = asked == Some(0) || (asked.is_none() && !host.is_gpu);
        let (least, most) = match asked {
            Some(workers) if workers > 0 => (workers, workers),
            // Idle workers end themselves later.
            None if host.is_gpu => (1, host.num_threads),
            _ => (host.num_threads, host.num_threads),
        };
        let unit = config
            .train
            .batch_size
            .unwrap_or(effective_batch)
            .min(effective_batch);
        // One batch to hand over while the next is read.
        let ahead = match (takes_turns, config.prefetch.exactly()) {
            (true, _) => 0,
            (false, Some(batches)) => batches * unit,
            (false, None) => {
                let fitting = (AHEAD_BYTES / row_bytes.max(1) as u64) as usize;
                let two = (2 * effective_batch).min(effective_batch.max(fitting));
                two.max(most * ROWS_PER_WORKER)
            }
        };
        let bytes = |rows: usize| rows as u64 * row_bytes as u64;
        let DecodeBytes {
            largest,
            together,
            kept,
        } = decode(most);
        let is_auto = config.host_memory == Memory::Auto;
        let limit = if is_auto {
            host.free_bytes / AUTO_SHARE
        } else {
            config
                .host_memory
                .resolve(host.total_bytes, host.free_bytes)
        };
        let wanted = effective_batch + ahead;
        let is_fixed = takes_turns || config.prefetch.exactly().is_some();
        let least_rows = if is_fixed { wanted } else { effective_batch };
        // The required rows come first, then as much parallel decoding as fits, then rows for reading ahead.
        let decode_bytes = together.min(limit.saturating_sub(bytes(least_rows)).max(largest));
        let room = limit.saturating_sub(decode_bytes);
        let fitting = (room / row_bytes as u64).min(wanted as u64) as usize;
        if !is_auto && fitting < least_rows {
            let needed = bytes(least_rows) + decode_bytes;
            return Err(TrainError::Config(format!(
                "host_memory: {}, expected at least {}: {least_rows} pictures of {} and {} to decode the largest\n\
                 hint: a smaller --effective-batch, less --prefetch, smaller pictures on disk, or more host_memory",
                show_bytes(limit),
                show_bytes(needed),
                show_bytes(row_bytes as u64),
                show_bytes(decode_bytes)
            )));
        }
        // A batch must fit; a number that the user set is kept.
        let num_rows = if !is_auto {
            fitting
        } else if is_fixed {
            wanted
        } else {
            fitting.max(effective_batch)
        };
        // The cache gets the rest: rows for reading ahead help in the first epoch too.
        let cache_bytes = kept.min(room.saturating_sub(bytes(num_rows)));
        Ok(Reading {
            num_rows,
            row_bytes,
            workers: Workers {
                least,
                most,
                ahead: num_rows - effective_batch,
            },
            takes_turns,
            batch: effective_batch,
            unit,
            decode_bytes,
            cache_bytes,
        })
    }

    /// Reading for an evaluation of `batch` pictures at a time, with a number of workers for this machine.
    pub fn evaluation(
        device: &Device,
        batch: usize,
        row_bytes: usize,
        decode_bytes: u64,
    ) -> Reading {
        let num_threads = device.cpu().num_threads();
        let takes_turns = !device.is_gpu();
        let ahead = if takes_turns { 0 } else { 2 * batch };
        Reading {
            num_rows: batch + ahead,
            row_bytes,
            workers: Workers::exactly(num_threads, ahead),
            takes_turns,
            batch,
            unit: batch,
            decode_bytes,
            cache_bytes: 0,
        }
    }

    /// Allocates the rows and starts the workers.
    pub fn open(
        &self,
        device: &Device,
        format: impl Into<RowFormat>,
    ) -> Result<Loader<HostRow>, TrainError> {
        let mut rows = device.host_rows(self.num_rows, self.row_bytes)?;
        // Written now, so that all pages are resident when a plan measures the process; pinned rows are resident anyway.
        if !device.is_gpu() {
            for row in &mut rows {
                row.as_mut().fill(0);
            }
        }
        let allowance = Allowance::new(self.decode_bytes);
        let loader = Loader::new(rows, format, self.workers, allowance).map_err(|cause| {
            TrainError::Run(format!(
                "no thread to read pictures with: {cause}\nhint: raise the limit on threads (ulimit -u), or end other processes"
            ))
        })?;
        let group = device.group();
        if group.size() > 1 {
            let group = group.clone();
            loader.on_read(move || group.goes_on());
        }
        Ok(loader)
    }

    /// Two batches, in units of `prefetch`.
    fn two_batches(&self) -> usize {
        (2 * self.batch).div_ceil(self.unit)
    }

    pub fn bytes(&self) -> u64 {
        self.num_rows as u64 * self.row_bytes as u64
    }

    pub fn describe(&self) -> String {
        let Workers { least, most, .. } = self.workers;
        let fewer = if least < most { " or fewer" } else { "" };
        let cache = if self.cache_bytes > 0 {
            ", decoded ones stay in memory"
        } else {
            ""
        };
        let rows = self.num_rows;
        format!("Loader: {most}{fewer} workers, {rows} pictures buffered{cache}")
    }
}

/// Reads every picture of a share of a list once, in order, `batch` at a time. `each` gets samples and rows, and returns
/// whether to continue. Returns the unreadable samples; `None` if stopped.
pub fn read_once<E>(
    loader: &mut Loader<HostRow>,
    (samples, share): (&Arc<Samples>, Share),
    batch: usize,
    stop: &AtomicBool,
    mut each: impl FnMut(&[u32], &[HostRow]) -> Result<bool, E>,
) -> Result<Option<Vec<Skipped>>, E> {
    read_course(
        loader,
        (samples, Course::Once(share)),
        batch,
        stop,
        |loaded| each(&loaded.samples, &loaded.rows),
    )
}

/// Like [`read_once`] for any finite course, with everything that was loaded.
pub fn read_course<E>(
    loader: &mut Loader<HostRow>,
    (samples, course): (&Arc<Samples>, Course),
    batch: usize,
    stop: &AtomicBool,
    mut each: impl FnMut(&Loaded<HostRow>) -> Result<bool, E>,
) -> Result<Option<Vec<Skipped>>, E> {
    loader.begin(Arc::clone(samples), course, View::Evaluation);
    let mut loaded = Loaded::default();
    let mut skipped = Vec::new();
    loop {
        loader.next_interruptible(stop, batch, &mut loaded);
        skipped.append(&mut loaded.skipped);
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if loaded.rows.is_empty() {
            return Ok(Some(skipped));
        }
        if !each(&loaded)? {
            return Ok(None);
        }
    }
}

/// Statistics of reading, for `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadingReport {
    /// Threads at the end of the run.
    pub workers: usize,
    /// Number of row buffers.
    pub rows: usize,
    /// Bytes of all row buffers.
    pub bytes: u64,
    /// Share of the training time in which the trainer waited for pictures.
    pub waited_for_data: f64,
    /// Share of the workers' time in which they waited for free rows.
    pub waited_for_room: f64,
    /// Milliseconds per picture and worker.
    pub ms_per_picture: Option<f64>,
    /// The part of the pipeline that limited the speed.
    pub bottleneck: Bottleneck,
    /// The bottleneck in words, and what to change.
    pub advice: String,
}

impl ReadingReport {
    pub fn new(reading: &Reading, waits: &Waits, num_threads: usize) -> ReadingReport {
        ReadingReport {
            workers: waits.workers,
            rows: reading.num_rows,
            bytes: reading.bytes(),
            waited_for_data: waits.waiting(),
            waited_for_room: 1.0 - waits.busy(),
            ms_per_picture: waits.seconds_per_picture().map(|seconds| 1e3 * seconds),
            bottleneck: bottleneck(reading, waits),
            advice: advice(reading, waits, num_threads),
        }
    }
}

/// The bottleneck of a run. If reading and computing take turns, waiting is normal: up to a tenth of the time, the bottleneck
/// is computing.
fn bottleneck(reading: &Reading, waits: &Waits) -> Bottleneck {
    const LITTLE: f64 = 0.1;
    if reading.takes_turns && waits.waiting() <= LITTLE {
        Bottleneck::Compute
    } else {
        waits.bottleneck()
    }
}

fn advice(reading: &Reading, waits: &Waits, num_threads: usize) -> String {
    let waited = format!(
        "waited for pictures {:.1}% of the time",
        100.0 * waits.waiting()
    );
    let idle = format!(
        "workers were idle {:.0}% of the time",
        100.0 * (1.0 - waits.busy())
    );
    match bottleneck(reading, waits) {
        Bottleneck::Compute if reading.takes_turns => format!("Bottleneck: computing ({waited})"),
        Bottleneck::Compute => format!("Bottleneck: computing ({waited}; {idle})"),
        _ if reading.takes_turns => {
            let smaller = smaller_pictures(reading, waits);
            let smaller = smaller.map_or(String::new(), |advice| format!(": {advice}"));
            format!("Bottleneck: the same threads read and compute ({waited}){smaller}")
        }
        Bottleneck::Room => {
            let why = if reading.workers.ahead < 2 * reading.batch {
                format!("--prefetch {} would even it out", reading.two_batches())
            } else {
                "reading stalls now and then, or begins anew after many evaluations".to_owned()
            };
            format!("Bottleneck: loader and trainer alternate ({waited}; {idle}): {why}")
        }
        Bottleneck::Reading => {
            let needed = waits.needed_workers().ceil() as usize;
            let more = if needed <= num_threads {
                format!("--num-workers {needed} would keep up")
            } else {
                let smaller = smaller_pictures(reading, waits);
                let smaller = smaller.map_or(String::new(), |advice| format!("; {advice}"));
                format!("it takes {needed} cores to keep up and there are {num_threads}{smaller}")
            };
            format!(
                "Bottleneck: reading pictures ({waited}; {} workers): {more}",
                waits.workers
            )
        }
    }
}

/// Advice on faster reading, if pictures have more pixels than the model sees.
fn smaller_pictures(reading: &Reading, waits: &Waits) -> Option<String> {
    /// Below this ratio of pixels, smaller pictures on disk gain little.
    const LARGER: f64 = 2.0;
    /// From this ratio on, a JPEG can be decoded at a quarter of its size. Decoding at half the size takes as long as at full
    /// size.
    const MUCH_LARGER: f64 = 20.0;
    let seen = waits.pictures as f64 * reading.row_bytes as f64 / 3.0;
    let times = waits.pixels as f64 / seen.max(f64::MIN_POSITIVE);
    if times < LARGER {
        return None;
    }
    let fast = if times < MUCH_LARGER {
        ""
    } else {
        " or decoded by `data: {decode: fast}`,"
    };
    Some(format!(
        "pictures have {times:.0} times the pixels that are seen: resized once by `holdall data pack`{fast} they are read faster"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Count;

    const PICTURE: usize = 224 * 224 * 3;
    const LARGEST: u64 = 50 << 20;

    fn host(is_gpu: bool) -> Host {
        Host {
            num_threads: 16,
            is_gpu,
            total_bytes: 64 << 30,
            free_bytes: 32 << 30,
        }
    }

    fn reading(is_gpu: bool, change: impl Fn(&mut RunConfig)) -> Result<Reading, TrainError> {
        let mut config = RunConfig::default();
        config.train.batch_size = Some(8);
        change(&mut config);
        let decode = |workers: usize| DecodeBytes {
            largest: LARGEST,
            together: workers as u64 * LARGEST,
            kept: 0,
        };
        Reading::on(host(is_gpu), &config, 128, PICTURE, decode)
    }

    #[test]
    fn on_the_cpu_reading_and_computing_take_turns_unless_asked_otherwise() {
        let auto = reading(false, |_| ()).unwrap();
        assert!(auto.takes_turns);
        assert_eq!(
            (auto.num_rows, auto.workers),
            (128, Workers::exactly(16, 0))
        );
        let asked = reading(false, |config| config.num_workers = Count::Exactly(3)).unwrap();
        assert_eq!(asked.workers, Workers::exactly(3, 256));
        let many = reading(false, |config| config.num_workers = Count::Exactly(12)).unwrap();
        assert_eq!(many.workers.ahead, 12 * ROWS_PER_WORKER);
        let none = reading(true, |config| config.num_workers = Count::Exactly(0)).unwrap();
        assert_eq!((none.takes_turns, none.num_rows), (true, 128));
    }

    #[test]
    fn behind_a_gpu_every_thread_may_read() {
        let auto = reading(true, |_| ()).unwrap();
        let workers = Workers {
            least: 1,
            most: 16,
            ahead: 512,
        };
        assert_eq!((auto.num_rows, auto.workers), (640, workers));
    }

    #[test]
    fn prefetch_counts_micro_batches() {
        let asked = reading(true, |config| config.prefetch = Count::Exactly(5)).unwrap();
        assert_eq!((asked.num_rows, asked.workers.ahead), (168, 40));
    }

    #[test]
    fn host_memory_bounds_rows_and_workers() {
        let within = |bytes: u64| {
            reading(true, |config| {
                config.num_workers = Count::Exactly(2);
                config.host_memory = Memory::Bytes(bytes);
            })
        };
        let least = LARGEST + (128 * PICTURE) as u64;
        let one = within(least).unwrap();
        assert_eq!((one.num_rows, one.decode_bytes), (128, LARGEST));
        // The second worker's picture comes first, then rows for reading ahead.
        let more = within(least + LARGEST + 10 * PICTURE as u64).unwrap();
        let found = (more.num_rows, more.workers.ahead, more.decode_bytes);
        assert_eq!(found, (138, 10, 2 * LARGEST));
        let error = within(least - 1).unwrap_err().to_string();
        assert!(
            error.contains("host_memory: ") && error.contains("hint: "),
            "{error}"
        );
    }

    /// Decoded samples get the memory that rows and decoding leave, and no more than all samples take.
    #[test]
    fn decoded_samples_get_what_is_left() {
        let within = |bytes: u64, kept: u64| {
            let mut config = RunConfig::default();
            config.train.batch_size = Some(8);
            config.num_workers = Count::Exactly(1);
            config.prefetch = Count::Exactly(0);
            config.host_memory = Memory::Bytes(bytes);
            let decode = |_| DecodeBytes {
                largest: LARGEST,
                together: LARGEST,
                kept,
            };
            let reading = Reading::on(host(true), &config, 128, PICTURE, decode).unwrap();
            assert!(reading.bytes() + reading.decode_bytes + reading.cache_bytes <= bytes);
            reading.cache_bytes
        };
        let least = LARGEST + (128 * PICTURE) as u64;
        assert_eq!(within(least, 1 << 30), 0);
        assert_eq!(within(least + 1000, 1 << 30), 1000);
        assert_eq!(within(least + (2 << 30), 1 << 30), 1 << 30);
        assert_eq!(within(least + 1000, 0), 0);
    }

    #[test]
    fn advice_names_what_to_change() {
        let waits = |for_data: f64, busy: f64, for_room: f64| Waits {
            seconds: 100.0,
            for_data,
            reading: busy,
            for_room,
            pictures: 1000,
            pixels: 1000 * 1024 * 768,
            workers: 4,
        };
        let auto = reading(true, |_| ()).unwrap();
        let said = |waits: Waits| advice(&auto, &waits, 16);
        assert!(said(waits(0.5, 100.0, 300.0)).contains("Bottleneck: computing"));
        assert!(said(waits(50.0, 390.0, 5.0)).contains("--num-workers 8 would keep up"));
        let beyond = said(waits(90.0, 390.0, 5.0));
        assert!(
            beyond.contains("39 cores") && beyond.contains("16 times the pixels"),
            "{beyond}"
        );
        assert!(!beyond.contains("decode: fast"), "{beyond}");
        // More than two batches are read ahead: prefetching more would not help.
        assert!(said(waits(20.0, 200.0, 190.0)).contains("stalls"));
        let little = reading(true, |config| config.prefetch = Count::Exactly(1)).unwrap();
        let alternating = advice(&little, &waits(20.0, 200.0, 190.0), 16);
        assert!(alternating.contains("--prefetch 32 "), "{alternating}");
        // Small pictures do not get the advice to shrink them.
        let turns = reading(false, |_| ()).unwrap();
        let small = Waits {
            pixels: 1000 * 96 * 72,
            ..waits(20.0, 200.0, 0.0)
        };
        assert!(advice(&turns, &small, 2).ends_with("(waited for pictures 20.0% of the time)"));
        assert!(advice(&turns, &waits(20.0, 200.0, 0.0), 2).contains("holdall data pack"));
        let mostly = advice(&turns, &waits(3.0, 6.0, 0.0), 2);
        assert!(mostly.starts_with("Bottleneck: computing"), "{mostly}");
    }
}
