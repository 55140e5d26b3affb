//! The samples of one effective batch on the host: one column per input endpoint of the step.

use std::ops::Range;

use holdall_device::HostRow;

/// Values of a column, sample by sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Decoded images, channels last; normalised on the device.
    Bytes(Vec<u8>),
    /// Decoded images in the loader's own buffers, without a copy.
    Rows(Vec<HostRow>),
    Floats(Vec<f32>),
    /// Token ids, labels, lengths.
    Indices(Vec<i64>),
}

/// The samples that one program run reads from a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A micro-batch. Padding repeats the first sample, so that it is finite; its weight is zero.
    MicroBatch,
    /// All micro-batches of this process. Padding is [`IGNORED`] or zero.
    OwnBatch,
    /// The whole step: each process holds the values of all processes. Padding is [`IGNORED`] or zero.
    EffectiveBatch,
    /// The whole step; the values do not belong to samples.
    Step,
}

/// Label of a sample that losses leave out.
pub const IGNORED: i64 = -1;

/// One input of the samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Name of the input endpoint.
    pub endpoint: String,
    pub scope: Scope,
    pub values: Values,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub num_samples: usize,
    pub columns: Vec<Column>,
}

impl Batch {
    /// Returns the values of an endpoint; a missing column is added with the values of `empty`.
    pub fn column(&mut self, endpoint: &str, scope: Scope, empty: fn() -> Values) -> &mut Values {
        let known = self.columns.iter().position(|one| one.endpoint == endpoint);
        let index = known.unwrap_or_else(|| {
            self.columns.push(Column {
                endpoint: endpoint.to_owned(),
                scope,
                values: empty(),
            });
            self.columns.len() - 1
        });
        &mut self.columns[index].values
    }

    /// Indices of an endpoint, to be overwritten.
    ///
    /// # Panics
    /// If the endpoint takes another type.
    pub fn indices(&mut self, endpoint: &str, scope: Scope) -> &mut Vec<i64> {
        match self.column(endpoint, scope, || Values::Indices(Vec::new())) {
            Values::Indices(values) => values,
            other => panic!("{endpoint}: expected indices, found {other:?}"),
        }
    }

    /// Floats of an endpoint, to be overwritten.
    ///
    /// # Panics
    /// If the endpoint takes another type.
    pub fn floats(&mut self, endpoint: &str, scope: Scope) -> &mut Vec<f32> {
        match self.column(endpoint, scope, || Values::Floats(Vec::new())) {
            Values::Floats(values) => values,
            other => panic!("{endpoint}: expected numbers, found {other:?}"),
        }
    }

    /// Sets the images of an endpoint, which stay in the loader's buffers.
    pub fn set_rows<'a>(&mut self, endpoint: &str, rows: impl Iterator<Item = &'a HostRow>) {
        match self.column(endpoint, Scope::MicroBatch, || Values::Rows(Vec::new())) {
            Values::Rows(values) => {
                values.clear();
                values.extend(rows.cloned());
            }
            other => *other = Values::Rows(rows.cloned().collect()),
        }
    }

    /// Reads the indices of an existing column.
    ///
    /// # Panics
    /// If there is no column of indices with this name.
    pub fn read_indices(&self, endpoint: &str) -> &[i64] {
        let found = self.columns.iter().find(|one| one.endpoint == endpoint);
        match found.map(|one| &one.values) {
            Some(Values::Indices(values)) => values,
            other => panic!("{endpoint}: expected indices, found {other:?}"),
        }
    }

    /// Reads the floats of an existing column.
    ///
    /// # Panics
    /// If there is no column of floats with this name.
    pub fn read_floats(&self, endpoint: &str) -> &[f32] {
        let found = self.columns.iter().find(|one| one.endpoint == endpoint);
        match found.map(|one| &one.values) {
            Some(Values::Floats(values)) => values,
            other => panic!("{endpoint}: expected numbers, found {other:?}"),
        }
    }

    /// A batch of these samples alone.
    pub fn part(&self, samples: Range<usize>) -> Batch {
        fn part<T: Clone>(values: &[T], all: usize, samples: &Range<usize>) -> Vec<T> {
            let each = values.len() / all;
            values[samples.start * each..samples.end * each].to_vec()
        }
        let all = self.num_samples;
        let columns = self.columns.iter().map(|column| Column {
            values: match &column.values {
                values if column.scope == Scope::Step => values.clone(),
                Values::Bytes(values) => Values::Bytes(part(values, all, &samples)),
                Values::Rows(values) => Values::Rows(part(values, all, &samples)),
                Values::Floats(values) => Values::Floats(part(values, all, &samples)),
                Values::Indices(values) => Values::Indices(part(values, all, &samples)),
            },
            ..column.clone()
        });
        Batch {
            num_samples: samples.len(),
            columns: columns.collect(),
        }
    }

    /// The same samples in another order.
    pub fn reordered(&self, order: &[usize]) -> Batch {
        fn reordered<T: Clone>(values: &[T], order: &[usize]) -> Vec<T> {
            let each = values.len() / order.len();
            let rows = order.iter().map(|&sample| &values[sample * each..][..each]);
            rows.flatten().cloned().collect()
        }
        let columns = self.columns.iter().map(|column| Column {
            values: match &column.values {
                values if column.scope == Scope::Step => values.clone(),
                Values::Bytes(values) => Values::Bytes(reordered(values, order)),
                Values::Rows(values) => Values::Rows(reordered(values, order)),
                Values::Floats(values) => Values::Floats(reordered(values, order)),
                Values::Indices(values) => Values::Indices(reordered(values, order)),
            },
            ..column.clone()
        });
        Batch {
            num_samples: order.len(),
            columns: columns.collect(),
        }
    }

    /// Releases the loader's rows, so that they can be written again.
    pub(crate) fn release_rows(&mut self) {
        for column in &mut self.columns {
            if let Values::Rows(rows) = &mut column.values {
                rows.clear();
            }
        }
    }
}

/// Random bytes in place of decoded images.
pub fn random_bytes(draw: &mut holdall_models::init::Draw, count: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; count];
    for eight in bytes.chunks_mut(8) {
        let bits = draw.bits().to_le_bytes();
        eight.copy_from_slice(&bits[..eight.len()]);
    }
    bytes
}

/// A range of a batch's samples.
#[derive(Clone, Copy, Debug)]
pub struct MicroBatch<'a> {
    pub batch: &'a Batch,
    /// Index of the first sample.
    pub start: usize,
    /// Samples in it, padding included.
    pub size: usize,
}

impl MicroBatch<'_> {
    /// Index in the batch of the sample in a row; padding repeats the first sample.
    pub fn sample(&self, row: usize) -> usize {
        match self.start + row {
            sample if sample < self.batch.num_samples => sample,
            _ => 0,
        }
    }

    /// The rows of this micro-batch out of one row per sample; padding repeats the first.
    pub(crate) fn rows<'a, T>(&self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        let there = &all[self.start.min(all.len())..];
        let padding = std::iter::repeat(&all[0]);
        there.iter().chain(padding).take(self.size)
    }

    /// Copies the values of this micro-batch's samples. If `to` has less room per sample, only the beginning of each is
    /// copied.
    pub(crate) fn copy<T: Copy>(&self, from: &[T], to: &mut [T]) {
        let each = from.len() / self.batch.num_samples;
        let width = to.len() / self.size;
        if width < each {
            for (row, to) in to.chunks_mut(width).enumerate() {
                to.copy_from_slice(&from[self.sample(row) * each..][..width]);
            }
            return;
        }
        let start = (self.start * each).min(from.len());
        let there = to.len().min(from.len() - start);
        to[..there].copy_from_slice(&from[start..start + there]);
        for padding in to[there..].chunks_mut(each) {
            padding.copy_from_slice(&from[..each]);
        }
    }
}
