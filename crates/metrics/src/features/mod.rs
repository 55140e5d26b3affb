//! Feature rows in memory or in one or several mapped files.
//!
//! f32, f16 and bf16 are converted to f32 without loss; all other modules see f32 only.

mod feature_file;
mod feature_gather;
#[allow(unsafe_code, reason = "memory maps")]
mod mapped_file;
pub(crate) mod npy_header;
mod safetensors_header;
mod unique_captions;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

pub use feature_file::{FeatureFiles, parted};
pub(crate) use feature_file::{FeatureLayout, Suffix};
pub use feature_gather::{FeatureGather, OrderedFeatures};
pub(crate) use mapped_file::MappedFile;
pub use unique_captions::{GalleryRows, gallery_rows, num_different};

/// Storage format of a value, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16, the upper half of an f32.
    Bf16,
}

impl Element {
    /// Size of one value.
    pub fn num_bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }
}

/// Consecutive rows of one format.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Whole rows.
    pub bytes: &'a [u8],
    pub element: Element,
}

/// Counts bytes read from mapped files, and has their pages dropped before too many are resident.
pub struct Meter<'a> {
    read_bytes: AtomicU64,
    most_bytes: u64,
    give_back: Box<dyn Fn() + Sync + 'a>,
}

impl<'a> Meter<'a> {
    /// A meter that calls `give_back` whenever up to `most_bytes` may have become resident since the last call.
    pub fn new(most_bytes: u64, give_back: impl Fn() + Sync + 'a) -> Meter<'a> {
        Meter {
            read_bytes: AtomicU64::new(0),
            most_bytes,
            give_back: Box::new(give_back),
        }
    }

    /// Counts the read of a row. Systems load the surroundings of a page too, up to a huge page; a row in the same huge page as the
    /// thread's last row is resident already.
    fn count(&self, row: &[u8]) {
        thread_local! {
            static LAST: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        let around = row.as_ptr().addr() / AROUND;
        if LAST.replace(around) == around {
            return;
        }
        let bytes = (row.len() + AROUND) as u64;
        let before = self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.most_bytes {
            self.read_bytes.store(0, Ordering::Relaxed);
            (self.give_back)();
        }
    }
}

/// Bytes that become resident together: a huge page.
const AROUND: usize = 2 << 20;

impl std::fmt::Debug for Meter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter")
            .field("most_bytes", &self.most_bytes)
            .finish_non_exhaustive()
    }
}

/// Rows of equal dimension, numbered across all segments.
#[derive(Clone, Debug)]
pub struct Features<'a> {
    dimension: usize,
    num_rows: usize,
    /// Segments with the number of their first row.
    segments: Vec<(usize, Segment<'a>)>,
    /// Stored row numbers of a selection; `None` for all rows in order.
    selected: Option<Vec<u32>>,
    meter: Option<&'a Meter<'a>>,
}

impl<'a> Features<'a> {
    /// Rows of `dimension` values in one slice.
    ///
    /// # Panics
    /// If the length is not a multiple of `dimension`.
    pub fn of(values: &'a [f32], dimension: usize) -> Self {
        let bytes = bytemuck::cast_slice(values);
        let element = Element::F32;
        Features::new(dimension, [Segment { bytes, element }])
    }

    /// The rows of all segments, in their order.
    ///
    /// # Panics
    /// If a segment does not hold whole rows, or `dimension` is 0.
    pub fn new(dimension: usize, segments: impl IntoIterator<Item = Segment<'a>>) -> Self {
        assert!(dimension > 0, "a row has at least one value");
        let mut num_rows = 0;
        let segments = segments.into_iter().map(|segment| {
            let row_bytes = dimension * segment.element.num_bytes();
            assert_eq!(segment.bytes.len() % row_bytes, 0, "whole rows");
            let first = num_rows;
            num_rows += segment.bytes.len() / row_bytes;
            (first, segment)
        });
        let segments = segments.collect();
        Features {
            dimension,
            num_rows,
            segments,
            selected: None,
            meter: None,
        }
    }

    /// The same rows, with reads counted by `meter`.
    pub fn metered(self, meter: &'a Meter<'a>) -> Features<'a> {
        Features {
            meter: Some(meter),
            ..self
        }
    }

    /// A selection of these rows, in any order, with repetitions allowed.
    pub fn select(&self, rows: Vec<u32>) -> Features<'a> {
        let stored = |row: u32| {
            self.selected
                .as_ref()
                .map_or(row, |rows| rows[row as usize])
        };
        Features {
            num_rows: rows.len(),
            selected: Some(rows.into_iter().map(stored).collect()),
            ..self.clone()
        }
    }

    /// Values per row.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Stored bytes of all segments.
    pub fn num_bytes(&self) -> u64 {
        let segments = self.segments.iter();
        segments
            .map(|(_, segment)| segment.bytes.len() as u64)
            .sum()
    }

    fn stored(&self, row: usize) -> Segment<'a> {
        let row = match &self.selected {
            Some(rows) => rows[row] as usize,
            None => row,
        };
        let after = self.segments.partition_point(|(first, _)| *first <= row);
        let (first, segment) = self.segments[after - 1];
        let row_bytes = self.dimension * segment.element.num_bytes();
        let bytes = &segment.bytes[(row - first) * row_bytes..][..row_bytes];
        if let Some(meter) = self.meter {
            meter.count(bytes);
        }
        Segment { bytes, ..segment }
    }

    /// A row as f32: borrowed if it is stored as aligned f32, else converted into `room`.
    pub fn row<'b>(&'b self, row: usize, room: &'b mut Vec<f32>) -> &'b [f32] {
        let stored = self.stored(row);
        match bytemuck::try_cast_slice(stored.bytes) {
            Ok(values) if stored.element == Element::F32 && LITTLE => values,
            _ => {
                room.resize(self.dimension, 0.0);
                read(stored, room);
                room
            }
        }
    }

    /// Copies rows from `first` on, as many as fit `into`.
    pub fn read(&self, first: usize, into: &mut [f32]) {
        for (row, into) in into.chunks_exact_mut(self.dimension).enumerate() {
            read(self.stored(first + row), into);
        }
    }
}

/// Whether memory has the byte order of the files.
const LITTLE: bool = cfg!(target_endian = "little");

fn read(stored: Segment<'_>, into: &mut [f32]) {
    match stored.element {
        Element::F32 => match bytemuck::try_cast_slice(stored.bytes) {
            Ok(values) if LITTLE => into.copy_from_slice(values),
            _ => one_by_one(stored.bytes, into, f32::from_le_bytes),
        },
        Element::F16 => match bytemuck::try_cast_slice::<u8, f16>(stored.bytes) {
            Ok(values) if LITTLE => values.convert_to_f32_slice(into),
            _ => one_by_one(stored.bytes, into, |bytes| {
                f16::from_le_bytes(bytes).to_f32()
            }),
        },
        Element::Bf16 => match bytemuck::try_cast_slice::<u8, bf16>(stored.bytes) {
            Ok(values) if LITTLE => values.convert_to_f32_slice(into),
            _ => one_by_one(stored.bytes, into, |bytes| {
                bf16::from_le_bytes(bytes).to_f32()
            }),
        },
    }
}

/// Converts values one by one, for unaligned files and big-endian machines.
fn one_by_one<const N: usize>(bytes: &[u8], into: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (into, bytes) in into.iter_mut().zip(bytes.chunks_exact(N)) {
        *into = value(bytes.try_into().expect("chunks of N"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_back_in_time() {
        let calls = AtomicU64::new(0);
        let meter = Meter::new(3 * (AROUND + 8) as u64, || {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        // Rows in distinct huge pages, every second one.
        let values = vec![0.0; 8 * AROUND];
        let features = Features::of(&values, 2).metered(&meter);
        let rows = (0..8).map(|row| row * 2 * AROUND / 8 + 1);
        for (read, row) in rows.enumerate() {
            let mut room = vec![];
            assert_eq!(features.row(row, &mut room), [0.0; 2]);
            assert_eq!(features.row(row + 1, &mut room), [0.0; 2]);
            // Three fit; the fourth exceeds the limit, and so does every fourth one after it.
            assert_eq!(calls.load(Ordering::Relaxed), (read as u64 + 1) / 4);
        }
    }

    #[test]
    fn rows_are_numbered_through_all_segments_at_any_address() {
        let halves = [1.5f32, -2.0, 0.25, 6e-8].map(f16::from_f32);
        let wide = [3.0f32, 4.0, f32::MIN_POSITIVE / 8.0, -1.0];
        let short = [5.0f32, 0.5].map(bf16::from_f32);
        let mut expected: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
        expected.extend(wide);
        expected.extend(short.iter().map(|half| half.to_f32()));
        for shift in 0..4 {
            let at = |bytes: &[u8]| [&vec![0; shift], bytes].concat();
            let [a, b, c] = [
                at(bytemuck::cast_slice(&halves)),
                at(bytemuck::cast_slice(&wide)),
                at(bytemuck::cast_slice(&short)),
            ];
            let segment = |bytes, element| Segment { bytes, element };
            let features = Features::new(
                2,
                [
                    segment(&a[shift..], Element::F16),
                    segment(&[], Element::F32),
                    segment(&b[shift..], Element::F32),
                    segment(&c[shift..], Element::Bf16),
                ],
            );
            assert_eq!((features.num_rows(), features.num_bytes()), (5, 8 + 16 + 4));
            let mut all = vec![0.0; 10];
            features.read(0, &mut all);
            assert_eq!(all, expected);
            let turned = features.select(vec![4, 0, 4]).select(vec![1, 2]);
            turned.read(0, &mut all[..4]);
            assert_eq!(all[..4], [&expected[..2], &expected[8..]].concat());
            for row in 0..5 {
                let mut room = vec![];
                assert_eq!(features.row(row, &mut room), &expected[row * 2..][..2]);
            }
        }
    }
}
