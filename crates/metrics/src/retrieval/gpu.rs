//! Counting on a GPU.
//!
//! Rows are copied to the card unchanged, all of them if they fit; then the card also checks for non-finite values and
//! computes the positives' scores. Otherwise blocks of queries meet blocks of the gallery, and the host does both.
//! Comparisons that f64 leaves open are decided on the host, without rounding.

use std::ops::Range;

use holdall_device::DeviceError;
use holdall_device::cuda::Cuda;
use holdall_device::cuda::ranks::{DeviceRows, RankSeconds, RankSide, Ranks, Scan, Threshold};
use rayon::prelude::*;

use super::best_positives::BestPositives;
use super::count::Count;
use super::exact_comparison::{ExactComparison, RowScratch, Score, Sums};
use super::feature_scan::{self, FeatureScan};
use super::{Clock, Decided, Found, Go, Job, Options, Progress, RetrievalError, Side, check};

/// Most gallery items on the card: more would overflow 32-bit counts.
const MOST_ITEMS: usize = 1 << 21;

/// A job prepared for the card; it can be ranked several times.
pub struct OnGpu<'a> {
    job: Job<'a>,
    ranks: Ranks<'a>,
    resident: Option<[DeviceRows; 2]>,
    limit_bytes: u64,
}

impl<'a> OnGpu<'a> {
    /// Copies the features to the card if they fit into its free memory and the limit.
    ///
    /// # Errors
    /// See [`RetrievalError`].
    pub fn new(cuda: &'a Cuda, job: &Job<'a>, options: &Options) -> Result<Self, RetrievalError> {
        OnGpu::with(Ranks::new(cuda)?, cuda, job, options)
    }

    /// Like [`OnGpu::new`], with given kernels.
    pub(super) fn with(
        ranks: Ranks<'a>,
        cuda: &'a Cuda,
        job: &Job<'a>,
        options: &Options,
    ) -> Result<Self, RetrievalError> {
        check(job)?;
        let free = cuda.available_bytes().unwrap_or(0) / 10 * 9;
        let limit_bytes = options.memory_bytes.map_or(free, |limit| limit.min(free));
        let mut on_gpu = OnGpu {
            job: *job,
            ranks,
            resident: None,
            limit_bytes,
        };
        let [queries, gallery] = [job.queries.num_rows(), job.gallery.num_rows()];
        if on_gpu.bytes(queries, gallery) <= limit_bytes && gallery <= MOST_ITEMS {
            let rows = [
                on_gpu.upload(Side::Query, 0..queries)?,
                on_gpu.upload(Side::Gallery, 0..gallery)?,
            ];
            on_gpu.resident = Some(rows);
            let dimension = job.queries.dimension();
            on_gpu.ranks.hold(queries, gallery, dimension)?;
        }
        Ok(on_gpu)
    }

    /// Whether all features are on the card.
    pub fn is_resident(&self) -> bool {
        self.resident.is_some()
    }

    /// Memory allocated on the card beside the features.
    pub fn extra_bytes(&self) -> u64 {
        self.ranks.held_bytes()
    }

    /// Memory on the card for this many rows, counting included.
    fn bytes(&self, queries: usize, gallery: usize) -> u64 {
        let dimension = self.job.queries.dimension();
        let rows = (queries + gallery) * dimension * size_of::<f32>();
        rows as u64 + Ranks::work_bytes(queries, gallery, dimension)
    }

    fn upload(&self, side: Side, rows: Range<usize>) -> Result<DeviceRows, RetrievalError> {
        let features = self.job.features(side);
        let read = |first: usize, into: &mut [f32]| features.read(rows.start + first, into);
        let dimension = features.dimension();
        Ok(self.ranks.upload(rows.len(), dimension, read)?)
    }

    /// Ranks both directions, like [`super::rank`].
    ///
    /// # Errors
    /// See [`RetrievalError`].
    pub fn rank(&mut self, go_on: &mut Go<'_>) -> Result<Found, RetrievalError> {
        let job = &self.job;
        let mut clock = Clock::start();
        let looked = self.look()?;
        clock.lap("look");
        let comparison = ExactComparison::new(job, looked.sums);
        let thresholds = match &self.resident {
            Some(rows) => self.thresholds_on_card(rows, &comparison, looked.sums)?,
            None => SIDES.map(|side| BestPositives::new(job, &comparison, side)),
        };
        clock.lap("positives");
        let counting = Counting {
            on_gpu: self,
            comparison,
            thresholds,
            counts: SIDES.map(|side| Count::zeros(job.pairs.num_items(side))),
            looked,
        };
        let total = job.num_scores();
        let (mut done, mut in_f64, mut exactly) = (0, 0, 0);
        let mut on_gpu = RankSeconds::default();
        let [queries, gallery] = SIDES.map(|side| job.features(side).num_rows());
        let [queries_at_once, items_at_once] = self.blocks()?;
        for first_item in (0..gallery).step_by(items_at_once) {
            let items = first_item..(first_item + items_at_once).min(gallery);
            let sent = self.send(Side::Gallery, &items)?;
            let gallery_rows = sent
                .as_ref()
                .or(self.resident.as_ref().map(|[_, rows]| rows));
            for first_query in (0..queries).step_by(queries_at_once) {
                let block = first_query..(first_query + queries_at_once).min(queries);
                let sent = self.send(Side::Query, &block)?;
                let query_rows = sent
                    .as_ref()
                    .or(self.resident.as_ref().map(|[rows, _]| rows));
                let rows = query_rows.zip(gallery_rows);
                let rows = rows.expect("what is not resident was sent");
                let before = done;
                let decided = counting.block(rows, [block.clone(), items.clone()], |queries| {
                    done = before + (queries * items.len()) as u64;
                    go_on(Progress { done, total })
                })?;
                in_f64 += decided.in_f64;
                exactly += decided.exactly;
                on_gpu.split += decided.seconds.split;
                on_gpu.first += decided.seconds.first;
                on_gpu.again += decided.seconds.again;
            }
        }
        clock.lap("count");
        clock.laps.extend([
            ("count: split", on_gpu.split),
            ("count: first products", on_gpu.first),
            ("count: again in f64", on_gpu.again),
        ]);
        let Counting {
            thresholds, counts, ..
        } = counting;
        let [to_gallery, to_query] = [0, 1].map(|side| thresholds[side].ranked(&counts[side]));
        Ok(Found {
            to_gallery,
            to_query,
            neighbours: None,
            decided: Decided {
                at_once: (2 * total).saturating_sub(in_f64),
                in_f64: in_f64 - exactly,
                exactly,
            },
            seconds: clock.laps,
        })
    }

    /// Copies the rows of one pass, unless the card has them all.
    fn send(&self, side: Side, rows: &Range<usize>) -> Result<Option<DeviceRows>, RetrievalError> {
        match self.resident {
            Some(_) => Ok(None),
            None => self.upload(side, rows.clone()).map(Some),
        }
    }

    /// Numbers of queries and gallery items on the card at a time: as many items as fit beside a block of queries.
    fn blocks(&self) -> Result<[usize; 2], RetrievalError> {
        let [queries, gallery] = SIDES.map(|side| self.job.features(side).num_rows());
        if self.resident.is_some() {
            return Ok([queries, gallery]);
        }
        let mut at_once = [queries.min(1 << 16), gallery.min(MOST_ITEMS)];
        while self.bytes(at_once[0], at_once[1]) > self.limit_bytes {
            let larger = usize::from(at_once[1] >= at_once[0]);
            if at_once[larger] <= LEAST {
                return Err(RetrievalError::DoesNotFit {
                    needed_bytes: self.bytes(at_once[0], at_once[1]),
                    limit_bytes: self.limit_bytes,
                });
            }
            at_once[larger] = at_once[larger].div_ceil(2);
        }
        Ok(at_once)
    }

    /// Exponents and bits of the values; an error if a value is not finite.
    fn look(&self) -> Result<Looked, RetrievalError> {
        let job = &self.job;
        if let Some([queries, gallery]) = &self.resident {
            let scans = [self.ranks.scan(queries)?, self.ranks.scan(gallery)?];
            if let [
                Scan {
                    exponent: Some(queries),
                    lowest_bit: lowest_query,
                },
                Scan {
                    exponent: Some(gallery),
                    lowest_bit: lowest_item,
                },
            ] = scans
            {
                // A value is below 2^(exponent + 1), a row's norm below that times the root of the dimension.
                let bits = (queries + 1 - lowest_query) + (gallery + 1 - lowest_item);
                let bits = f64::from(bits) + (job.queries.dimension() as f64).log2();
                return Ok(Looked {
                    exponents: [queries, gallery],
                    sums: if bits < 52.0 {
                        Sums::Exact
                    } else {
                        Sums::Rounded
                    },
                });
            }
            // The host's scan names the non-finite value.
        }
        let scans = [
            feature_scan::scan(job.queries, Side::Query)?,
            feature_scan::scan(job.gallery, Side::Gallery)?,
        ];
        Ok(Looked {
            exponents: scans.each_ref().map(FeatureScan::largest_exponent),
            sums: feature_scan::sums(&scans[0], &scans[1]),
        })
    }

    fn thresholds_on_card(
        &self,
        [queries, gallery]: &[DeviceRows; 2],
        comparison: &ExactComparison<'_>,
        sums: Sums,
    ) -> Result<[BestPositives; 2], RetrievalError> {
        let pairs = SIDES.map(|side| self.job.pairs.in_order(side));
        let exact = sums == Sums::Exact;
        let both = pairs.concat();
        let scores = self.ranks.pair_scores(queries, gallery, &both, exact)?;
        let [to_gallery, to_query] = [&scores[..pairs[0].len()], &scores[pairs[0].len()..]];
        let thresholds = |side, scores: &[Threshold]| {
            BestPositives::from_scores(&self.job, comparison, side, |index, _, _| Score {
                value: scores[index].value,
                error: scores[index].error,
            })
        };
        Ok([
            thresholds(Side::Query, to_gallery),
            thresholds(Side::Gallery, to_query),
        ])
    }
}

const SIDES: [Side; 2] = [Side::Query, Side::Gallery];

/// Fewest rows of a block: smaller ones would only wait for transfers.
const LEAST: usize = 256;

/// Properties of all values.
struct Looked {
    /// Exponent of the largest value of each side.
    exponents: [i32; 2],
    sums: Sums,
}

/// State shared by the blocks.
struct Counting<'a, 'b> {
    on_gpu: &'b OnGpu<'a>,
    comparison: ExactComparison<'b>,
    thresholds: [BestPositives; 2],
    counts: [Vec<Count>; 2],
    looked: Looked,
}

/// Statistics of a block.
struct Block {
    /// Comparisons repeated in f64.
    in_f64: u64,
    /// Comparisons repeated without rounding, a part of those.
    exactly: u64,
    seconds: RankSeconds,
}

impl Counting<'_, '_> {
    /// Ranks a block of queries against a block of gallery items.
    fn block(
        &self,
        rows: (&DeviceRows, &DeviceRows),
        ranges: [Range<usize>; 2],
        go_on: impl FnMut(usize) -> bool,
    ) -> Result<Block, RetrievalError> {
        let [queries, items] = &ranges;
        let scores = [0, 1].map(|side| -> Vec<Threshold> {
            let threshold = |row| {
                let Score { value, error } = self.thresholds[side].score(row);
                Threshold { value, error }
            };
            ranges[side].clone().map(threshold).collect()
        });
        let side = |side: usize, rows| RankSide {
            rows,
            first: ranges[side].start,
            thresholds: &scores[side],
            positives: &self.thresholds[side].positives()[ranges[side].clone()],
            exponent: self.looked.exponents[side],
        };
        let exact = self.looked.sums == Sums::Exact;
        let ranks = &self.on_gpu.ranks;
        let counted = ranks.count(side(0, rows.0), side(1, rows.1), exact, go_on)?;
        let counted = counted.ok_or(RetrievalError::Stopped)?;
        for (side, range) in ranges.iter().enumerate() {
            let counts = self.counts[side][range.clone()].iter();
            for ((count, &above), &level) in
                counts.zip(&counted.above[side]).zip(&counted.level[side])
            {
                count.add_many(above, level);
            }
        }
        let (comparison, thresholds, counts) = (&self.comparison, &self.thresholds, &self.counts);
        let open = counted.open.par_iter();
        open.for_each_init(RowScratch::default, |scratch, open| {
            let pair = [queries.start + open.query, items.start + open.item];
            let side = usize::from(!open.of_query);
            let other = thresholds[side].pair(pair[side]);
            counts[side][pair[side]].add(comparison.exactly(pair, other, scratch));
        });
        Ok(Block {
            in_f64: counted.in_f64,
            exactly: counted.open.len() as u64,
            seconds: counted.seconds,
        })
    }
}

impl From<DeviceError> for RetrievalError {
    fn from(error: DeviceError) -> Self {
        RetrievalError::Device(error.to_string())
    }
}
