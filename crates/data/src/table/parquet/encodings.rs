//! Decoders of page values: plain, dictionary indices, or differences.

use std::ops::Range;

use super::ParquetFault;
use super::footer::Physical;
use super::hybrid::{Hybrid, wide_bits};

/// A value that is not null.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Bool(bool),
    Int(i64),
    Float(f32),
    Double(f64),
    Bytes(&'a [u8]),
}

/// Decoder of the values of a page.
#[derive(Debug)]
pub(super) enum Values {
    Plain {
        at: usize,
    },
    /// Booleans, one bit each.
    Bits {
        at: u64,
    },
    /// Booleans as runs.
    Runs(Hybrid),
    Dictionary(Hybrid),
    Deltas(Deltas),
    /// All lengths, then all bytes.
    Lengths {
        lengths: Deltas,
        at: usize,
    },
    /// Strings by the length of the prefix shared with the previous string, and the rest.
    Prefixes {
        prefixes: Deltas,
        suffixes: Deltas,
        at: usize,
        last: Vec<u8>,
    },
    /// Byte stream split: all first bytes, then all second bytes, and so on.
    Streams {
        at: usize,
        start: usize,
        num_values: usize,
    },
}

/// A dictionary page and the position of each of its values.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    pub(super) page: Vec<u8>,
    values: Vec<Range<usize>>,
}

impl Dictionary {
    pub(super) fn new(
        page: Vec<u8>,
        num_values: usize,
        physical: Physical,
    ) -> Result<Dictionary, ParquetFault> {
        if num_values > page.len() {
            return Err(ParquetFault::damaged(
                "a dictionary of more values than bytes",
            ));
        }
        let mut values = Vec::with_capacity(num_values);
        let mut at = 0;
        for _ in 0..num_values {
            let range = plain_range(&page, &mut at, physical)?;
            values.push(range);
        }
        Ok(Dictionary { page, values })
    }

    fn value(&self, index: u32, physical: Physical) -> Result<Value<'_>, ParquetFault> {
        let range = self.values.get(index as usize);
        let range = range.ok_or_else(|| ParquetFault::damaged("an index beyond its dictionary"))?;
        Ok(plain_value(&self.page[range.clone()], physical))
    }
}

fn cut_short() -> ParquetFault {
    ParquetFault::damaged("a page that is cut short")
}

fn width_of(physical: Physical) -> Option<usize> {
    match physical {
        Physical::Int32 | Physical::Float => Some(4),
        Physical::Int64 | Physical::Double => Some(8),
        Physical::Int96 => Some(12),
        Physical::Fixed(length) => Some(length),
        Physical::Boolean | Physical::Bytes => None,
    }
}

/// Position of the next plain value.
fn plain_range(
    page: &[u8],
    at: &mut usize,
    physical: Physical,
) -> Result<Range<usize>, ParquetFault> {
    let length = match width_of(physical) {
        Some(width) => width,
        None => {
            let bytes = page.get(*at..).and_then(|rest| rest.first_chunk());
            let length = u32::from_le_bytes(*bytes.ok_or_else(cut_short)?);
            *at += 4;
            length as usize
        }
    };
    let end = at.checked_add(length).filter(|end| *end <= page.len());
    let range = *at..end.ok_or_else(cut_short)?;
    *at = range.end;
    Ok(range)
}

fn plain_value(bytes: &[u8], physical: Physical) -> Value<'_> {
    let four = || bytes.first_chunk().copied().unwrap_or_default();
    let eight = || bytes.first_chunk().copied().unwrap_or_default();
    match physical {
        Physical::Int32 => Value::Int(i64::from(i32::from_le_bytes(four()))),
        Physical::Float => Value::Float(f32::from_le_bytes(four())),
        Physical::Int64 => Value::Int(i64::from_le_bytes(eight())),
        Physical::Double => Value::Double(f64::from_le_bytes(eight())),
        Physical::Boolean => Value::Bool(bytes.first() == Some(&1)),
        Physical::Int96 | Physical::Bytes | Physical::Fixed(_) => Value::Bytes(bytes),
    }
}

impl Values {
    /// Decoder of a page whose values begin at `at`; `num_values` counts those that are not null.
    pub(super) fn new(
        encoding: i64,
        page: &[u8],
        at: usize,
        num_values: usize,
        physical: Physical,
    ) -> Result<Values, ParquetFault> {
        Ok(match (encoding, physical) {
            (0, Physical::Boolean) => Values::Bits { at: at as u64 * 8 },
            (0, _) => Values::Plain { at },
            (2 | 8, _) => match page.get(at) {
                Some(width) => {
                    Values::Dictionary(Hybrid::new(u32::from(*width), at + 1, page.len())?)
                }
                None if num_values == 0 => Values::Plain { at },
                None => return Err(cut_short()),
            },
            // The four bytes before the runs are their length.
            (3, Physical::Boolean) => {
                Values::Runs(Hybrid::new(1, (at + 4).min(page.len()), page.len())?)
            }
            (5, Physical::Int32 | Physical::Int64) => Values::Deltas(Deltas::new(page, at)?),
            (6, Physical::Bytes) => {
                let lengths = Deltas::new(page, at)?;
                let at = lengths.end(page)?;
                Values::Lengths { lengths, at }
            }
            (7, Physical::Bytes | Physical::Fixed(_)) => {
                let prefixes = Deltas::new(page, at)?;
                let suffixes = Deltas::new(page, prefixes.end(page)?)?;
                let at = suffixes.end(page)?;
                Values::Prefixes {
                    prefixes,
                    suffixes,
                    at,
                    last: Vec::new(),
                }
            }
            (9, physical) if width_of(physical).is_some_and(|width| width <= 8) => {
                Values::Streams {
                    at: 0,
                    start: at,
                    num_values: (page.len() - at) / width_of(physical).unwrap_or(1),
                }
            }
            (4, _) => {
                return Err(ParquetFault::Unsupported(
                    "values in an encoding that nobody writes any more (BIT_PACKED)",
                ));
            }
            _ => {
                return Err(ParquetFault::damaged(
                    "values in an encoding that does not fit them",
                ));
            }
        })
    }

    pub(super) fn next<'a>(
        &'a mut self,
        page: &'a [u8],
        dictionary: &'a Dictionary,
        physical: Physical,
        scratch: &'a mut [u8; 8],
    ) -> Result<Value<'a>, ParquetFault> {
        match self {
            Values::Plain { at } => {
                let range = plain_range(page, at, physical)?;
                Ok(plain_value(&page[range], physical))
            }
            Values::Bits { at } => {
                let byte = page.get((*at / 8) as usize).ok_or_else(cut_short)?;
                let is_true = byte >> (*at % 8) & 1 == 1;
                *at += 1;
                Ok(Value::Bool(is_true))
            }
            Values::Runs(runs) => Ok(Value::Bool(runs.next(page)? == 1)),
            Values::Dictionary(indices) => dictionary.value(indices.next(page)?, physical),
            Values::Deltas(deltas) => match physical {
                Physical::Int32 => Ok(Value::Int(i64::from(deltas.next(page)? as i32))),
                _ => Ok(Value::Int(deltas.next(page)?)),
            },
            Values::Lengths { lengths, at } => {
                let length = usize::try_from(lengths.next(page)?).map_err(|_| cut_short())?;
                let end = at.checked_add(length).ok_or_else(cut_short)?;
                let bytes = page.get(*at..end).ok_or_else(cut_short)?;
                *at = end;
                Ok(Value::Bytes(bytes))
            }
            Values::Prefixes {
                prefixes,
                suffixes,
                at,
                last,
            } => {
                let prefix = usize::try_from(prefixes.next(page)?).map_err(|_| cut_short())?;
                let suffix = usize::try_from(suffixes.next(page)?).map_err(|_| cut_short())?;
                let end = at.checked_add(suffix).ok_or_else(cut_short)?;
                let bytes = page.get(*at..end).ok_or_else(cut_short)?;
                if prefix > last.len() {
                    return Err(ParquetFault::damaged("a value that goes on where none was"));
                }
                last.truncate(prefix);
                last.extend_from_slice(bytes);
                *at = end;
                Ok(Value::Bytes(last))
            }
            Values::Streams {
                at,
                start,
                num_values,
            } => {
                let width = width_of(physical).unwrap_or(0);
                if *at >= *num_values {
                    return Err(cut_short());
                }
                for (byte, out) in scratch.iter_mut().take(width).enumerate() {
                    *out = page[*start + byte * *num_values + *at];
                }
                *at += 1;
                Ok(plain_value(&scratch[..width], physical))
            }
        }
    }
}

/// Delta-encoded numbers: blocks of miniblocks, each miniblock with a bit width of its own.
#[derive(Clone, Debug)]
pub(super) struct Deltas {
    at: usize,
    block_values: usize,
    num_miniblocks: usize,
    num_left: u64,
    last: i64,
    is_first: bool,
    /// Current block: its smallest difference, the position of its bit widths, and the next miniblock.
    least: i64,
    widths_at: usize,
    miniblock: usize,
    /// Current miniblock.
    first_bit: u64,
    width: u32,
    left_in_miniblock: usize,
}

impl Deltas {
    fn new(page: &[u8], at: usize) -> Result<Deltas, ParquetFault> {
        let mut at = at;
        let block_values = varint(page, &mut at)?;
        let num_miniblocks = varint(page, &mut at)?;
        let num_left = varint(page, &mut at)?;
        let last = zigzag(varint(page, &mut at)?);
        let is_sound = (1..=1 << 20).contains(&block_values)
            && (1..=block_values).contains(&num_miniblocks)
            && block_values % num_miniblocks == 0;
        if !is_sound {
            return Err(ParquetFault::damaged("differences in blocks of no size"));
        }
        Ok(Deltas {
            at,
            block_values: block_values as usize,
            num_miniblocks: num_miniblocks as usize,
            num_left,
            last,
            is_first: true,
            least: 0,
            widths_at: 0,
            miniblock: num_miniblocks as usize,
            first_bit: 0,
            width: 0,
            left_in_miniblock: 0,
        })
    }

    /// Position of the first byte behind the numbers.
    fn end(&self, page: &[u8]) -> Result<usize, ParquetFault> {
        let mut all = self.clone();
        // Equal differences take no bits, so the page's length alone does not bound the count: at most 1,024 values per byte are believed.
        if all.num_left > page.len() as u64 * 1024 {
            return Err(ParquetFault::damaged("more lengths than there are values"));
        }
        while all.num_left > 0 {
            all.next(page)?;
        }
        Ok(all.at)
    }

    fn next(&mut self, page: &[u8]) -> Result<i64, ParquetFault> {
        self.num_left = self.num_left.checked_sub(1).ok_or_else(cut_short)?;
        if std::mem::take(&mut self.is_first) {
            return Ok(self.last);
        }
        if self.left_in_miniblock == 0 {
            self.next_miniblock(page)?;
        }
        let delta = wide_bits(page, self.first_bit, self.width) as i64;
        self.first_bit += u64::from(self.width);
        self.left_in_miniblock -= 1;
        self.last = self.last.wrapping_add(self.least).wrapping_add(delta);
        Ok(self.last)
    }

    fn next_miniblock(&mut self, page: &[u8]) -> Result<(), ParquetFault> {
        if self.miniblock == self.num_miniblocks {
            self.least = zigzag(varint(page, &mut self.at)?);
            self.widths_at = self.at;
            self.at += self.num_miniblocks;
            self.miniblock = 0;
        }
        let width = page.get(self.widths_at + self.miniblock);
        self.width = u32::from(*width.ok_or_else(cut_short)?);
        if self.width > 64 {
            return Err(ParquetFault::damaged("numbers of more than 64 bits"));
        }
        self.miniblock += 1;
        self.left_in_miniblock = self.block_values / self.num_miniblocks;
        self.first_bit = self.at as u64 * 8;
        let num_bits = self.left_in_miniblock * self.width as usize;
        self.at += num_bits.div_ceil(8);
        if self.at <= page.len() {
            Ok(())
        } else {
            Err(cut_short())
        }
    }
}

fn varint(page: &[u8], at: &mut usize) -> Result<u64, ParquetFault> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *page.get(*at).ok_or_else(cut_short)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ParquetFault::damaged("a number of more than 64 bits"))
}

fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
