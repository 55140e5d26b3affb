//! Exact retrieval ranks of image or clip features against the distinct texts, within a planned amount of host memory.
//!
//! The similarity matrix is never stored.

use holdall_metrics::features::Features;
use holdall_metrics::retrieval::{
    self, Engine, Found, Go, Job, Options, Pairs, RetrievalError, Side, Sizes,
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

/// Ranks in both directions. A query's positive is its text; a text's positives are all queries that have it, and the best ranked
/// one counts. Texts whose queries could not be read remain as distractors, and get no rank.
pub(super) fn rank(
    queries: &[f32],
    texts: &Features<'_>,
    text_of: &[u32],
    go_on: &mut Go<'_>,
) -> Result<Found, RetrievalError> {
    let (num_texts, projection) = (texts.num_rows(), texts.dimension());
    let job = Job {
        queries: &Features::of(queries, projection),
        gallery: texts,
        pairs: &Pairs::one_each(text_of, num_texts)?,
    };
    let threads = rayon::current_num_threads();
    let options = options(&sizes(text_of.len(), num_texts, projection, threads));
    // On the CPU even with a GPU: the plan leaves no GPU memory for ranking.
    retrieval::rank(Engine::Cpu, &job, &options, go_on)
}

/// Turns a ranking error into [`Unfinished`]; `names` are the words for queries and texts.
pub(super) fn failed(error: RetrievalError, names: [&str; 2]) -> Unfinished {
    match error {
        RetrievalError::Stopped => Unfinished::Stopped,
        RetrievalError::NotFinite {
            side, row, value, ..
        } => {
            let what = match side {
                Side::Query => names[0],
                Side::Gallery => names[1],
            };
            Unfinished::NotFinite(format!(
                "the features of {what} {} are not finite: found {value}",
                row + 1
            ))
        }
        error => TrainError::Run(format!("evaluation: {error}")).into(),
    }
}
