//! Exact ranks of features that wait on the host, within memory that is planned.
//!
//! Of pictures or clips against the different texts that they have; similarities are never held.

use holdall_metrics::features::Features;
use holdall_metrics::pairs::Pairs;
use holdall_metrics::retrieval::{
    self, Engine, Found, Go, Job, Options, RetrievalError, Side, Sizes,
};

use crate::engine::task::Unfinished;
use crate::error::TrainError;

/// Bytes that ranking holds on the host: features of both sides, and what counting takes beside them.
pub(super) fn host_bytes(queries: usize, texts: usize, projection: usize, threads: usize) -> u64 {
    // A row's number, as it came and in order, and its text's.
    let per_row = projection * size_of::<f32>() + 3 * size_of::<u32>();
    let sizes = sizes(queries, texts, projection, threads);
    let ranking = sizes.tiling(&options(&sizes));
    let ranking = ranking.expect("never less than the least");
    ((queries + texts) * per_row) as u64 + ranking.held_bytes + CODE_BYTES
}

/// The code of ranking becomes resident when it first runs, and what little it allocates besides: 80 KB were seen.
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

/// Texts that are packed at a time take so much; more would hardly be faster.
const PACKED_BYTES: u64 = 16 << 20;

fn options(sizes: &Sizes) -> Options {
    let least = sizes.least_bytes(&Options::default());
    Options {
        memory_bytes: Some(least + PACKED_BYTES),
        ..Options::default()
    }
}

/// A query's positive is its text; a text's are all queries that have it, and the best of them counts. Texts of queries that
/// could not be read are still distractors, and have no rank themselves.
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
    // On the threads also where there is a GPU: its memory is all planned.
    retrieval::rank(Engine::Cpu, &job, &options, go_on)
}

/// Why there are no ranks; `names` are what queries and texts are called.
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
