//! Exact retrieval ranks of image or clip features against the distinct texts, within a planned amount of host memory.
//!
//! The similarity matrix is never stored.

use holdall_data::samples::Samples;
use holdall_device::cpu::Cpu;
use holdall_metrics::contrastive::PairedFeatures;
use holdall_metrics::features::{FeatureGather, Features, OrderedFeatures};
use holdall_metrics::retrieval::{
    self, Engine, Found, Job, Options, Pairs, RetrievalError, Side, Sizes,
};

use crate::engine::task::Unfinished;
use crate::error::TrainError;

/// Host memory of ranking, in bytes: features of both sides and the buffers of the rank counts.
pub(super) fn host_bytes(queries: usize, texts: usize, projection: usize, threads: usize) -> u64 {
    // Three row numbers: by arrival, in order, and of the row's text.
    let per_row = projection * size_of::<f32>() + 3 * size_of::<u32>();
    let sizes = sizes(queries, texts, projection, threads);
    let ranking = sizes.tiling(&options(&sizes));
    let ranking = ranking.expect("never less than the least");
    ((queries + texts) * per_row) as u64 + ranking.held_bytes + CODE_BYTES
}

/// The ranking code becomes resident on first use, with a few small allocations: 80 KB measured.
const CODE_BYTES: u64 = 256 << 10;

fn sizes(queries: usize, texts: usize, projection: usize, threads: usize) -> Sizes {
    Sizes {
        queries,
        gallery: texts,
        dimension: projection,
        pairs: queries,
        threads,
    }
}

/// Memory for packed texts; larger blocks are hardly faster.
const PACKED_BYTES: u64 = 16 << 20;

fn options(sizes: &Sizes) -> Options {
    let least = sizes.least_bytes(&Options::default());
    Options {
        memory_bytes: Some(least + PACKED_BYTES),
        ..Options::default()
    }
}

/// Features of all readable samples, in their order, each with its text.
pub(super) struct QueryFeatures {
    /// Sample numbers, ascending.
    pub samples: Vec<u32>,
    /// Rows of unit length, one after another.
    pub rows: Vec<f32>,
    /// Text id of each sample.
    pub text_of: Vec<u32>,
}

impl QueryFeatures {
    /// Sorts the features by sample; those of unreadable samples are missing.
    pub fn new(gathered: FeatureGather, samples: &Samples) -> QueryFeatures {
        let left_out: Vec<u32> = gathered.missing().collect();
        let ordered = gathered.in_order(&left_out);
        let OrderedFeatures {
            samples: found,
            rows,
        } = ordered.expect("all others are there");
        let text_of = found
            .iter()
            .map(|&sample| samples.caption_id(sample as usize));
        QueryFeatures {
            text_of: text_of.collect(),
            samples: found,
            rows,
        }
    }

    pub fn paired_with<'a>(&'a self, texts: &'a [f32], dimension: usize) -> PairedFeatures<'a> {
        PairedFeatures {
            queries: &self.rows,
            texts,
            text_of: &self.text_of,
            dimension,
        }
    }
}

/// Ranks in both directions. A query's positive is its text; a text's positives are all queries that have it, and the best ranked
/// one counts. Texts whose queries could not be read remain as distractors, and get no rank. `nouns` are the words for queries and
/// texts.
pub(super) fn rank(
    cpu: &Cpu,
    features: PairedFeatures<'_>,
    nouns: [&str; 2],
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<Found, Unfinished> {
    let PairedFeatures {
        queries,
        texts,
        text_of,
        dimension,
    } = features;
    let texts = Features::of(texts, dimension);
    let ranked = cpu.scope(|| {
        let job = Job {
            queries: &Features::of(queries, dimension),
            gallery: &texts,
            pairs: &Pairs::one_each(text_of, texts.num_rows())?,
        };
        let threads = rayon::current_num_threads();
        let options = options(&sizes(text_of.len(), texts.num_rows(), dimension, threads));
        // On the CPU even with a GPU: the plan leaves no GPU memory for ranking.
        retrieval::rank(Engine::Cpu, &job, &options, &mut |_| is_wanted())
    });
    ranked.map_err(|error| unfinished(error, nouns))
}

fn unfinished(error: RetrievalError, nouns: [&str; 2]) -> Unfinished {
    match error {
        RetrievalError::Stopped => Unfinished::Stopped,
        RetrievalError::NotFinite {
            side, row, value, ..
        } => {
            let noun = match side {
                Side::Query => nouns[0],
                Side::Gallery => nouns[1],
            };
            Unfinished::NotFinite(format!(
                "the features of {noun} {} are not finite: found {value}",
                row + 1
            ))
        }
        error => TrainError::Run(format!("evaluation: {error}")).into(),
    }
}
