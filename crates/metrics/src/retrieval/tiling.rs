//! Memory of a ranking.

use super::best_positives;
use super::count::{self, Count};
use super::rank_statistics::Entry;
use super::tiles::{COLUMNS, ROWS, Tiles, row_bytes};
use super::{Job, Options, RetrievalError};
use crate::retrieval::pairs::Pairs;

/// Tile sizes that fit a ranking into memory: scores are counted tile by tile and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Peak memory: thresholds, counts, scaled features and the threads' buffers.
    pub held_bytes: u64,
    pub(super) tiles: Tiles,
}

/// Queries per block: they stay in a core's cache at common dimensions.
const QUERIES: usize = 20 * ROWS;
/// Size of the part of the gallery without a limit. More saves nothing, because each part meets all queries.
const PACKED_BYTES: usize = 256 << 20;

impl Tiling {
    /// The largest tiles that fit, for the threads of rayon's current pool.
    ///
    /// # Errors
    /// [`RetrievalError::DoesNotFit`].
    pub fn new(job: &Job<'_>, options: &Options) -> Result<Tiling, RetrievalError> {
        let sizes = Sizes {
            queries: job.queries.num_rows(),
            gallery: job.gallery.num_rows(),
            dimension: job.queries.dimension(),
            pairs: job.pairs.len(),
            threads: rayon::current_num_threads(),
        };
        sizes.tiling(options)
    }
}

/// Sizes that determine the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub queries: usize,
    pub gallery: usize,
    /// Values per row.
    pub dimension: usize,
    pub pairs: usize,
    /// Threads that count.
    pub threads: usize,
}

impl Sizes {
    /// Memory with the smallest tiles.
    pub fn least_bytes(&self, options: &Options) -> u64 {
        self.bytes(
            options,
            Tiles {
                queries: ROWS,
                gallery: COLUMNS,
            },
        )
    }

    fn bytes(&self, options: &Options, tiles: Tiles) -> u64 {
        // The f64 is for ranks, which are sorted for the median.
        let per_item = best_positives::BYTES_PER_ITEM
            + size_of::<Count>()
            + size_of::<Entry>()
            + size_of::<f64>();
        let neighbours = options.neighbours.min(self.gallery) * self.queries;
        let per_neighbour = super::neighbours::BYTES + size_of::<u32>() + size_of::<f32>();
        let fixed = (self.queries + self.gallery) * per_item
            + Pairs::bytes_for(self.queries, self.gallery, self.pairs)
            + neighbours * per_neighbour;
        let threads = self.threads * count::thread_bytes(self.dimension, tiles.queries);
        (fixed + threads + tiles.gallery * row_bytes(self.dimension)) as u64
    }

    /// The largest tiles that fit.
    ///
    /// # Errors
    /// [`RetrievalError::DoesNotFit`].
    pub fn tiling(&self, options: &Options) -> Result<Tiling, RetrievalError> {
        let line = row_bytes(self.dimension);
        let gallery = self.gallery.next_multiple_of(COLUMNS);
        let packed = (PACKED_BYTES / line).next_multiple_of(COLUMNS).min(gallery);
        let mut tiles = Tiles {
            queries: self.queries.next_multiple_of(ROWS).min(QUERIES),
            gallery: packed,
        };
        if let Some(limit_bytes) = options.memory_bytes {
            // Blocks of queries shrink only if they leave no room for a few gallery panels.
            tiles.gallery = packed.min(8 * COLUMNS);
            while self.bytes(options, tiles) > limit_bytes && tiles.queries > ROWS {
                tiles.queries = (tiles.queries / 2).next_multiple_of(ROWS);
            }
            tiles.gallery = COLUMNS;
            let needed_bytes = self.bytes(options, tiles);
            if needed_bytes > limit_bytes {
                return Err(RetrievalError::DoesNotFit {
                    needed_bytes,
                    limit_bytes,
                });
            }
            let more = (limit_bytes - needed_bytes) as usize / (line * COLUMNS) * COLUMNS;
            tiles.gallery = packed.min(COLUMNS + more);
        }
        Ok(Tiling {
            held_bytes: self.bytes(options, tiles),
            tiles,
        })
    }
}
