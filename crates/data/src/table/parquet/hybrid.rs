//! Decoder of Parquet's RLE / bit-packing hybrid, which levels and dictionary indices use: `(length << 1, value)` for a run of one value,
//! `(groups << 1 | 1, bits ...)` for groups of eight packed numbers.

use super::ParquetFault;

/// Iterator over the numbers of a hybrid-encoded range of a page.
#[derive(Clone, Debug, Default)]
pub(super) struct Hybrid {
    /// Bits of each number.
    width: u32,
    /// Positions in the page of the next run and of the end of the runs.
    at: usize,
    end: usize,
    run: HybridRun,
}

#[derive(Clone, Copy, Debug)]
enum HybridRun {
    Same { value: u32, left: u64 },
    Packed { first_bit: u64, left: u64 },
}

impl Default for HybridRun {
    fn default() -> HybridRun {
        HybridRun::Same { value: 0, left: 0 }
    }
}

impl Hybrid {
    /// Decoder of the bytes `at..end` of a page.
    pub(super) fn new(width: u32, at: usize, end: usize) -> Result<Hybrid, ParquetFault> {
        if width > 32 || at > end {
            return Err(ParquetFault::damaged("numbers of more than 32 bits"));
        }
        Ok(Hybrid {
            width,
            at,
            end,
            run: HybridRun::default(),
        })
    }

    /// The next number. `page` is the page that the decoder was made for.
    pub(super) fn next(&mut self, page: &[u8]) -> Result<u32, ParquetFault> {
        if self.width == 0 {
            return Ok(0);
        }
        loop {
            match &mut self.run {
                HybridRun::Same { value, left } if *left > 0 => {
                    *left -= 1;
                    return Ok(*value);
                }
                HybridRun::Packed { first_bit, left } if *left > 0 => {
                    let value = bits(page, *first_bit, self.width);
                    *left -= 1;
                    *first_bit += u64::from(self.width);
                    return Ok(value);
                }
                _ => self.run = self.next_run(page)?,
            }
        }
    }

    fn next_run(&mut self, page: &[u8]) -> Result<HybridRun, ParquetFault> {
        let cut_short = || ParquetFault::damaged("a page that is cut short");
        let mut head: u64 = 0;
        for shift in (0..36).step_by(7) {
            let byte = if self.at < self.end {
                *page.get(self.at).ok_or_else(cut_short)?
            } else {
                return Err(cut_short());
            };
            self.at += 1;
            head |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let length = head >> 1;
        if head & 1 == 0 {
            let num_bytes = self.width.div_ceil(8) as usize;
            let bytes = page.get(self.at..self.at + num_bytes);
            let bytes = bytes.ok_or_else(cut_short)?;
            let value = bytes
                .iter()
                .rev()
                .fold(0, |all, byte| all << 8 | u32::from(*byte));
            self.at += num_bytes;
            return match length {
                0 => Err(ParquetFault::damaged("a run of no length")),
                left => Ok(HybridRun::Same { value, left }),
            };
        }
        let first_bit = self.at as u64 * 8;
        let num_bytes = length * u64::from(self.width);
        let left = (self.end - self.at) as u64;
        // Some writers cut the last group short where only padding follows.
        let num_there = num_bytes.min(left);
        self.at += num_there as usize;
        match num_there * 8 / u64::from(self.width) {
            0 => Err(cut_short()),
            whole => Ok(HybridRun::Packed {
                first_bit,
                left: whole.min(length * 8),
            }),
        }
    }
}

/// An unsigned number of up to 32 bits, lowest bit first; bits beyond the page are 0.
pub(super) fn bits(page: &[u8], first_bit: u64, width: u32) -> u32 {
    wide_bits(page, first_bit, width) as u32
}

/// Like [`bits`], for up to 64 bits.
pub(super) fn wide_bits(page: &[u8], first_bit: u64, width: u32) -> u64 {
    let start = (first_bit / 8) as usize;
    let shift = (first_bit % 8) as u32;
    let mut value: u128 = 0;
    for at in 0..9 {
        let byte = page.get(start + at).copied().unwrap_or(0);
        value |= u128::from(byte) << (8 * at);
    }
    let mask = (1u128 << width) - 1;
    (value >> shift & mask) as u64
}
