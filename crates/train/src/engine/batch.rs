//! The samples of one effective batch, on the host: columns, each for an endpoint of the step.

use std::ops::Range;

use holdall_device::HostRow;

/// What a column holds, sample by sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Pictures as decoded, channels last; normalised on the device.
    Bytes(Vec<u8>),
    /// The same, each where it was decoded to.
    Rows(Vec<HostRow>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Token ids, labels, lengths.
    Indices(Vec<i64>),
}

/// Who reads a column at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A micro-batch. A tail is filled up with copies of the first sample: finite numbers, whose weight is zero.
    MicroBatch,
    /// All micro-batches of this process. Padding is [`IGNORED`], or zero.
    OwnBatch,
    /// The whole step: each process has the values of all. Padding as above.
    EffectiveBatch,
    /// The whole step; the values are no sample's.
    Step,
}

/// Label of a sample that losses leave out.
pub const IGNORED: i64 = -1;

/// One input of the samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The endpoint that takes it.
    pub endpoint: String,
    /// Who reads it at a time.
    pub scope: Scope,
    /// Its values.
    pub values: Values,
}

/// An effective batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// How many samples.
    pub num_samples: usize,
    /// What they consist of.
    pub columns: Vec<Column>,
}

impl Batch {
    /// The values of an endpoint, which is added where it is new: made by `empty`.
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

    /// Indices of an endpoint, to be written over.
    ///
    /// # Panics
    /// If the endpoint takes something else.
    pub fn indices(&mut self, endpoint: &str, scope: Scope) -> &mut Vec<i64> {
        match self.column(endpoint, scope, || Values::Indices(Vec::new())) {
            Values::Indices(values) => values,
            other => panic!("{endpoint}: expected indices, found {other:?}"),
        }
    }

    /// Numbers of an endpoint, to be written over.
    ///
    /// # Panics
    /// If the endpoint takes something else.
    pub fn floats(&mut self, endpoint: &str, scope: Scope) -> &mut Vec<f32> {
        match self.column(endpoint, scope, || Values::Floats(Vec::new())) {
            Values::Floats(values) => values,
            other => panic!("{endpoint}: expected numbers, found {other:?}"),
        }
    }

    /// Pictures of an endpoint, where they were decoded to.
    pub fn set_rows<'a>(&mut self, endpoint: &str, rows: impl Iterator<Item = &'a HostRow>) {
        match self.column(endpoint, Scope::MicroBatch, || Values::Rows(Vec::new())) {
            Values::Rows(values) => {
                values.clear();
                values.extend(rows.cloned());
            }
            other => *other = Values::Rows(rows.cloned().collect()),
        }
    }

    /// Indices that a batch has.
    ///
    /// # Panics
    /// If it has none under that name.
    pub fn read_indices(&self, endpoint: &str) -> &[i64] {
        let found = self.columns.iter().find(|one| one.endpoint == endpoint);
        match found.map(|one| &one.values) {
            Some(Values::Indices(values)) => values,
            other => panic!("{endpoint}: expected indices, found {other:?}"),
        }
    }

    /// Numbers that a batch has.
    ///
    /// # Panics
    /// If it has none under that name.
    pub fn read_floats(&self, endpoint: &str) -> &[f32] {
        let found = self.columns.iter().find(|one| one.endpoint == endpoint);
        match found.map(|one| &one.values) {
            Some(Values::Floats(values)) => values,
            other => panic!("{endpoint}: expected numbers, found {other:?}"),
        }
    }

    /// These samples alone.
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

    /// Lets go of the rows, so that they can be written again.
    pub(crate) fn release_rows(&mut self) {
        for column in &mut self.columns {
            if let Values::Rows(rows) = &mut column.values {
                rows.clear();
            }
        }
    }
}

/// Random bytes, such as pictures have.
pub fn random_bytes(draw: &mut holdall_models::init::Draw, count: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; count];
    for eight in bytes.chunks_mut(8) {
        let bits = draw.bits().to_le_bytes();
        eight.copy_from_slice(&bits[..eight.len()]);
    }
    bytes
}

/// Which samples of a batch a micro-batch has.
#[derive(Clone, Copy, Debug)]
pub struct MicroBatch<'a> {
    /// The effective batch.
    pub batch: &'a Batch,
    /// Its first sample.
    pub start: usize,
    /// Samples in it, padding included.
    pub size: usize,
}

impl MicroBatch<'_> {
    /// The sample of the batch that is in a row; padding repeats the first.
    pub fn sample(&self, row: usize) -> usize {
        match self.start + row {
            sample if sample < self.batch.num_samples => sample,
            _ => 0,
        }
    }

    /// The rows of this micro-batch among those of all samples.
    pub(crate) fn rows<'a, T>(&self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        let there = &all[self.start.min(all.len())..];
        let padding = std::iter::repeat(&all[0]);
        there.iter().chain(padding).take(self.size)
    }

    /// Copies the values of this micro-batch's samples from those of all; where `to` has room for shorter ones, their beginnings.
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
