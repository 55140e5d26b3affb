//! What is held at a time.

use super::count::{self, Count, Tiles};
use super::standing::Entry;
use super::thresholds;
use super::{Job, Options, RetrievalError, Side};
use holdall_device::cpu::digits::{COLUMNS, ROWS};

/// How a job fits into memory: whatever the scores would take, they are counted tile by tile and never held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What all scores at once would take, as f32.
    pub matrix_bytes: u64,
    /// What is held instead: thresholds, counts, packed features and the threads' own, at most.
    pub held_bytes: u64,
    pub(super) tiles: Tiles,
}

/// Queries of a block: the digits of so many stay in a core's cache at common dimensions.
const QUERIES: usize = 20 * ROWS;
/// What is packed of the gallery where the user names no limit. More saves nothing: each part meets all queries.
const PACKED_BYTES: usize = 256 << 20;

impl Layout {
    /// The largest tiles that fit.
    ///
    /// # Errors
    /// [`RetrievalError::DoesNotFit`].
    pub fn new(job: &Job<'_>, options: &Options) -> Result<Layout, RetrievalError> {
        let dimension = job.queries.dimension();
        let threads = rayon::current_num_threads();
        let items: usize = [Side::Query, Side::Gallery]
            .map(|side| job.pairs.num_items(side))
            .iter()
            .sum();
        // A rank is sorted for the median.
        let per_item =
            thresholds::BYTES_PER_ITEM + size_of::<Count>() + size_of::<Entry>() + size_of::<f64>();
        let neighbours = options.neighbours.min(job.gallery.num_rows());
        let per_neighbour = super::neighbours::BYTES + size_of::<u32>() + size_of::<f32>();
        let fixed = items * per_item
            + job.pairs.num_bytes() as usize
            + neighbours * per_neighbour * job.queries.num_rows();
        let line = count::line_bytes(dimension);
        let gallery = job.gallery.num_rows().next_multiple_of(COLUMNS);
        let packed = (PACKED_BYTES / line).next_multiple_of(COLUMNS).min(gallery);
        let queries = job.queries.num_rows().next_multiple_of(ROWS).min(QUERIES);
        let bytes = |tiles: Tiles| {
            (fixed + threads * count::thread_bytes(dimension, tiles.queries) + tiles.gallery * line)
                as u64
        };
        let mut tiles = Tiles {
            queries,
            gallery: packed,
        };
        if let Some(limit_bytes) = options.memory_bytes {
            // Fewer queries only where not even a few items would fit beside them.
            tiles.gallery = packed.min(8 * COLUMNS);
            while bytes(tiles) > limit_bytes && tiles.queries > ROWS {
                tiles.queries = (tiles.queries / 2).next_multiple_of(ROWS);
            }
            tiles.gallery = COLUMNS;
            let needed_bytes = bytes(tiles);
            if needed_bytes > limit_bytes {
                return Err(RetrievalError::DoesNotFit {
                    needed_bytes,
                    limit_bytes,
                });
            }
            let more = (limit_bytes - needed_bytes) as usize / (line * COLUMNS) * COLUMNS;
            tiles.gallery = packed.min(COLUMNS + more);
        }
        Ok(Layout {
            matrix_bytes: job.num_scores() * size_of::<f32>() as u64,
            held_bytes: bytes(tiles),
            tiles,
        })
    }
}
