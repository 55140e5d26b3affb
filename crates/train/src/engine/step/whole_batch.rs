//! Exchanges the facts about the whole effective batch before a step: the samples of each process, the divisors of the
//! losses, and the columns for losses over the whole batch. These are a few numbers, in one exchange.

use holdall_graph::ops::collective::Processes;
use holdall_processes::Group;

use crate::engine::batch::{Batch, IGNORED, Scope, Values};
use crate::engine::task::Task;

/// The effective batch of all processes.
pub(super) struct WholeBatch {
    /// Number of samples of each process.
    pub num_samples: Vec<usize>,
    /// Columns of scope [`Scope::EffectiveBatch`] over all processes, padded to the same number of rows per process.
    pub columns: Batch,
}

impl WholeBatch {
    /// Exchanges the numbers; `counts` become the totals. Every process has room for `own_rows`. If a process is lost, the
    /// numbers are those of this process alone, and waiting for the step returns the error.
    pub fn exchange(
        group: &Group,
        task: &dyn Task,
        batch: &Batch,
        own_rows: usize,
        counts: &mut [f64],
    ) -> WholeBatch {
        let columns = batch.columns.iter();
        let columns = columns.filter(|one| one.scope == Scope::EffectiveBatch);
        let indices = columns.filter_map(|column| match &column.values {
            Values::Indices(indices) => Some((column.endpoint.as_str(), indices.as_slice())),
            _ => None,
        });
        let indices: Vec<(&str, &[i64])> = indices.collect();
        let said = said(batch.num_samples, counts, &indices);
        let heard = group.share(&said).ok();
        let heard = heard.and_then(|all| {
            let all = all.iter().map(|one| understood(one, counts.len()));
            all.collect::<Option<Vec<Said>>>()
        });
        let heard = heard.unwrap_or_else(|| {
            let mut nobody = vec![Said::default(); group.size()];
            nobody[group.rank()] = understood(&said, counts.len()).unwrap_or_default();
            nobody
        });
        counts.fill(0.0);
        for one in &heard {
            let terms = counts.iter_mut().zip(&one.counts);
            terms.for_each(|(count, term)| *count += term);
        }
        let mut whole = Batch {
            num_samples: own_rows * group.size(),
            columns: Vec::new(),
        };
        for (place, (endpoint, _)) in indices.iter().enumerate() {
            let column = whole.indices(endpoint, Scope::EffectiveBatch);
            for one in &heard {
                let end = column.len() + own_rows;
                let (start, count) = (place * one.num_samples, one.num_samples);
                column.extend(one.indices.get(start..start + count).unwrap_or(&[]));
                column.resize(end, IGNORED);
            }
        }
        task.fill_whole_batch_columns(&mut whole);
        WholeBatch {
            num_samples: heard.iter().map(|one| one.num_samples).collect(),
            columns: whole,
        }
    }
}

/// Writes weights of rows, with the same number of rows per process: 1 for samples, 0 for padding.
pub(super) fn write_weights(num_samples: &[usize], weights: &mut [f32]) {
    let own_rows = weights.len() / num_samples.len();
    for (rows, &count) in weights.chunks_mut(own_rows).zip(num_samples) {
        rows[..count].fill(1.0);
        rows[count..].fill(0.0);
    }
}

/// A process's message before a step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    num_samples: usize,
    counts: Vec<f64>,
    /// One column after another.
    indices: Vec<i64>,
}

fn said(num_samples: usize, counts: &[f64], indices: &[(&str, &[i64])]) -> Vec<u8> {
    let mut bytes = (num_samples as u64).to_le_bytes().to_vec();
    bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
    let all = indices.iter().flat_map(|(_, column)| column.iter());
    bytes.extend(all.flat_map(|index| index.to_le_bytes()));
    bytes
}

fn understood(bytes: &[u8], num_counts: usize) -> Option<Said> {
    let mut words = bytes.as_chunks::<8>().0.iter();
    let num_samples = u64::from_le_bytes(*words.next()?) as usize;
    let counts: Vec<f64> = words
        .by_ref()
        .take(num_counts)
        .map(|word| f64::from_le_bytes(*word))
        .collect();
    let indices = words.map(|word| i64::from_le_bytes(*word)).collect();
    (counts.len() == num_counts).then_some(Said {
        num_samples,
        counts,
        indices,
    })
}

/// The processes of a group, as a graph takes them.
pub(crate) fn processes_of(group: &Group) -> Processes {
    Processes {
        rank: group.rank(),
        count: group.size(),
    }
}
