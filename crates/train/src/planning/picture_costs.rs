//! Memory for decoding the pictures of a run, estimated from their headers before any is decoded, and its share of the budget.
//!
//! ```text
//! minimum   the cost of the largest picture, so that one at a time fits
//! maximum   the cost of the largest pictures that all workers may decode at once
//! between   the memory that the plan leaves of the budget
//! ```
//!
//! A picture that costs more than the smallest plan leaves is skipped, by name, before the first step. If the config does not allow skipped
//! pictures, the run is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdall_data::DataError;
use holdall_data::config::{BadPictures, DataConfig};
use holdall_data::loader::{RowFormat, Share, Skipped};
use holdall_data::samples::Samples;
use holdall_device::Device;
use holdall_plan::PlanError;
use rayon::prelude::*;

use crate::config::budget::show_bytes;
use crate::error::{TrainError, without_hint};
use crate::planning::processes::{self, share_of};

/// Maximum number of headers read per list, evenly spaced in longer lists. A picture that is larger than all of these is
/// found when it is read; it then waits, or is skipped.
const MOST_HEADERS: usize = 100_000;

/// Maximum number of skipped pictures that a message names.
const MOST_NAMED: usize = 5;

/// Variation of the process memory between two starts: a picture that is admitted now must still be admitted when the run is
/// resumed.
const START_TO_START_BYTES: u64 = 2 << 20;

/// Memory that becomes resident with the first picture, beside the costs of the pictures: the reading code, and its threads'
/// memory. Measured as 0.2 to 0.3 MiB more than other code leaves of its reserve.
pub(crate) const READING_BYTES: u64 = 1 << 20;

/// Pictures of a list with their costs.
struct List {
    samples: Arc<Samples>,
    /// Cost per sample in KiB, rounded up; 0 if unknown or if the picture is skipped.
    kib: Vec<u32>,
    /// Bytes of all decoded samples, if the loader can keep them.
    kept_bytes: u64,
    /// Largest buffer that a worker keeps between two pictures, in bytes.
    between_bytes: u64,
}

/// Decoding costs of a run's pictures.
pub struct PictureCosts {
    lists: Vec<List>,
    format: RowFormat,
}

/// A picture that does not fit.
pub struct TooCostly {
    /// Index of its list.
    pub list: usize,
    /// The sample, and the reason.
    pub skipped: Skipped,
}

impl PictureCosts {
    /// Reads the headers of all pictures, which become rows of this format; `None` if stopped.
    pub fn read(
        device: &Device,
        lists: &[&Arc<Samples>],
        format: impl Into<RowFormat>,
        stop: &AtomicBool,
    ) -> Option<PictureCosts> {
        PictureCosts::read_share(device, lists, format.into(), Share::default(), stop)
    }

    /// Like [`PictureCosts::read`], but each process of the run reads its share, so that a shared file system serves each
    /// header once.
    pub(crate) fn read_together(
        device: &Device,
        lists: &[&Arc<Samples>],
        format: RowFormat,
        stop: &AtomicBool,
    ) -> Result<Option<PictureCosts>, TrainError> {
        let group = device.group();
        let share = share_of(group);
        let Some(mut costs) = PictureCosts::read_share(device, lists, format, share, stop) else {
            return Ok(None);
        };
        if group.size() == 1 {
            return Ok(Some(costs));
        }
        for list in &mut costs.lists {
            let own = &list.kib[share.of(list.kib.len())];
            let parts = group.gather_bytes(bytemuck::cast_slice(own))?;
            list.kib = bytemuck::pod_collect_to_vec(&parts.concat());
            list.kept_bytes = processes::share(group, &list.kept_bytes)?.iter().sum();
            let between = processes::share(group, &list.between_bytes)?;
            list.between_bytes = between.into_iter().max().unwrap_or(0);
        }
        Ok(Some(costs))
    }

    fn read_share(
        device: &Device,
        lists: &[&Arc<Samples>],
        format: RowFormat,
        share: Share,
        stop: &AtomicBool,
    ) -> Option<PictureCosts> {
        let group = device.group();
        let _progressing = group.expect_progress();
        let lists = lists.iter().map(|samples| {
            let own = share.of(samples.len());
            let stride = samples.len().div_ceil(MOST_HEADERS).max(1);
            let (kept_bytes, between_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
            let kib_of = |sample: usize| {
                let is_own = own.contains(&sample) && sample.is_multiple_of(stride);
                let is_wanted = is_own && !stop.load(Ordering::Relaxed);
                // Unreadable pictures are reported when they are loaded.
                let cost = is_wanted.then(|| format.cost(samples, sample));
                let cost = cost.and_then(Result::ok);
                if let Some(cost) = &cost {
                    let kept = format.kept_bytes(cost) * stride as u64;
                    kept_bytes.fetch_add(kept, Ordering::Relaxed);
                    between_bytes.fetch_max(format.between_bytes(cost), Ordering::Relaxed);
                }
                group.goes_on();
                let bytes = cost.map_or(0, |cost| cost.bytes);
                u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
            };
            let kib = device
                .cpu()
                .scope(|| (0..samples.len()).into_par_iter().map(kib_of).collect());
            List {
                samples: Arc::clone(samples),
                kib,
                kept_bytes: kept_bytes.into_inner(),
                between_bytes: between_bytes.into_inner(),
            }
        });
        let lists = lists.collect();
        (!stop.load(Ordering::Relaxed)).then_some(PictureCosts { lists, format })
    }

    /// Sets the cost of samples to zero that are skipped already.
    pub(crate) fn leave_out(&mut self, list: usize, samples: &[u32]) {
        for &sample in samples {
            self.lists[list].kib[sample as usize] = 0;
        }
    }

    /// The `count` largest costs, in descending order.
    fn top(&self, count: usize) -> Vec<u64> {
        let mut top: Vec<u32> = Vec::with_capacity(2 * count);
        for &kib in self.lists.iter().flat_map(|list| &list.kib) {
            top.push(kib);
            if top.len() == 2 * count {
                top.select_nth_unstable_by(count, |a, b| b.cmp(a));
                top.truncate(count);
            }
        }
        top.sort_unstable_by(|a, b| b.cmp(a));
        top.into_iter()
            .take(count)
            .map(|kib| u64::from(kib) << 10)
            .collect()
    }

    /// Cost of the largest picture.
    pub fn largest_bytes(&self) -> u64 {
        self.top(1).first().copied().unwrap_or(0)
    }

    /// Memory that this many workers can use: the largest pictures at once, and the buffers that each worker keeps between
    /// pictures. Without those buffers, workers would free and fault in megabytes with every picture.
    pub fn together_bytes(&self, workers: usize) -> u64 {
        let workers = workers.max(1);
        let top: u64 = self.top(workers).iter().sum();
        let between = self.lists.iter().map(|list| list.between_bytes).max();
        // Files of pictures with equal sizes differ in length, and a buffer stays as long as the longest file.
        top + top / 16 + workers as u64 * between.unwrap_or(0)
    }

    /// Bytes of the decoded samples of the first list, the training samples, if the loader can keep them.
    pub fn kept_bytes(&self) -> u64 {
        self.lists.first().map_or(0, |list| list.kept_bytes)
    }

    /// Takes out every picture that costs more than this, and returns those pictures.
    fn refuse_over(&mut self, most_bytes: u64) -> Vec<TooCostly> {
        let mut refused = Vec::new();
        for (number, list) in self.lists.iter_mut().enumerate() {
            for (sample, kib) in list.kib.iter_mut().enumerate() {
                if u64::from(*kib) << 10 <= most_bytes {
                    continue;
                }
                let path = list.samples.image_path(sample);
                let cost = self.format.cost(&list.samples, sample).ok();
                let error = DataError::PictureOverBudget {
                    path,
                    width: cost.map_or(0, |cost| cost.width),
                    height: cost.map_or(0, |cost| cost.height),
                    needed_bytes: u64::from(*kib) << 10,
                    allowed_bytes: most_bytes,
                };
                let sample = sample as u32;
                *kib = 0;
                refused.push(TooCostly {
                    list: number,
                    skipped: Skipped { sample, error },
                });
            }
        }
        refused
    }

    fn is_empty(&self) -> bool {
        self.top(1).iter().all(|&bytes| bytes == 0)
    }

    /// Plans with room for the largest picture; if that does not fit, for the largest one that does. `plan` gets the bytes
    /// for decoding. Returns the plan, those bytes, and the skipped pictures.
    pub fn plan<T>(
        &mut self,
        policy: &DataConfig,
        mut plan: impl FnMut(u64) -> Result<T, TrainError>,
    ) -> Result<(T, u64, Vec<TooCostly>), TrainError> {
        let least = self.largest_bytes();
        let (budget, smallest, error) = match plan(least) {
            Err(TrainError::Plan(error)) => match error {
                PlanError::DoesNotFit {
                    budget_bytes,
                    smallest_bytes,
                    ..
                } => (budget_bytes, smallest_bytes, TrainError::Plan(error)),
                error => return Err(error.into()),
            },
            planned => return planned.map(|planned| (planned, least, Vec::new())),
        };
        let missing = smallest.saturating_sub(budget) + START_TO_START_BYTES;
        let refused = self.refuse_over(least.saturating_sub(missing));
        if self.is_empty() {
            return Err(error);
        }
        if policy.bad_pictures == BadPictures::Fail {
            let first = refused
                .first()
                .map_or(String::new(), |first| without_hint(&first.skipped.error));
            return Err(TrainError::DoesNotFit(format!(
                "{first}; {} in all do not fit, and `bad_pictures: fail` leaves none out\n\
                 hint: --memory {}MiB has room for the largest; `data: {{bad_pictures: skip}}` leaves them out",
                refused.len(),
                smallest.div_ceil(1 << 20)
            )));
        }
        let least = self.largest_bytes();
        Ok((plan(least)?, least, refused))
    }
}

/// Bytes for decoding: the minimum, and as much of the remaining budget as workers can use.
pub fn share(
    costs: &PictureCosts,
    workers: usize,
    least: u64,
    process_bytes: u64,
    budget: Option<u64>,
) -> u64 {
    let useful = costs.together_bytes(workers).max(least);
    match budget {
        None => useful,
        Some(budget) => useful.min(least + budget.saturating_sub(process_bytes)),
    }
}

/// Description of the skipped pictures, for the log.
pub fn describe(refused: &[TooCostly]) -> Option<String> {
    let first = refused.first()?;
    let named: Vec<String> = refused
        .iter()
        .take(MOST_NAMED)
        .map(|one| match &one.skipped.error {
            DataError::PictureOverBudget {
                path,
                width,
                height,
                needed_bytes,
                ..
            } => format!(
                "  {}: {width} x {height} takes {}",
                path.display(),
                show_bytes(*needed_bytes)
            ),
            error => format!("  {error}"),
        })
        .collect();
    let allowed = match first.skipped.error {
        DataError::PictureOverBudget { allowed_bytes, .. } => allowed_bytes,
        _ => 0,
    };
    let more = match refused.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    Some(format!(
        "WARNING: {} left out: decoding takes more than the {} that the budget leaves for it\n{}{more}\n\
         hint: a larger --memory, or smaller pictures on disk",
        holdall_files::counted(refused.len(), "picture"),
        show_bytes(allowed),
        named.join("\n")
    ))
}
