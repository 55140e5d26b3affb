//! Bytes made worse: each case is a function of (seed, case).

use holdall_files::{GOLDEN, SplitMix64};

/// Draws what becomes of them.
pub struct Dice(SplitMix64);

impl Dice {
    pub fn new(seed: u64, case: u64) -> Dice {
        let bits = SplitMix64(seed).bits();
        Dice(SplitMix64(bits ^ case.wrapping_mul(GOLDEN)))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// In `0..bound`; 0 where the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// In `0..bound`, more often near the beginning, where headers are.
    fn place(&mut self, bound: usize) -> usize {
        let near = [16, 64, 256, usize::MAX, usize::MAX][self.below(5)];
        self.below(bound.min(near))
    }
}

/// Numbers that sizes, counts and offsets trip over.
const NUMBERS: [u32; 20] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x3ff,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
];

/// One of `seeds`, changed in a few places; the parts of another may be among it.
pub fn mutated(seeds: &[Vec<u8>], dice: &mut Dice, most_bytes: usize) -> Vec<u8> {
    let mut bytes = seeds[dice.below(seeds.len())].clone();
    let num_changes = 1 + [0, 0, 0, 1, 2, 4, 8][dice.below(7)];
    for _ in 0..num_changes {
        change(&mut bytes, seeds, dice);
    }
    bytes.truncate(most_bytes);
    if bytes.starts_with(PNG) && dice.below(4) > 0 {
        repair_png(&mut bytes);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    let length = bytes.len();
    let at = dice.place(length);
    let num_bytes = [1, 2, 4, 8, 32, 512][dice.below(6)].min(length - at);
    match dice.below(12) {
        0 | 1 if length > 0 => bytes[at] ^= 1 << dice.below(8),
        2 if length > 0 => bytes[at] = dice.bits() as u8,
        3 => bytes.truncate(dice.below(length + 1)),
        4 => drop(bytes.drain(at..at + num_bytes)),
        5 => {
            let part = bytes[at..at + num_bytes].to_vec();
            let times = [1, 1, 2, 20][dice.below(4)];
            bytes.splice(at..at, part.repeat(times));
        }
        6 => {
            let noise: Vec<u8> = (0..num_bytes).map(|_| dice.bits() as u8).collect();
            bytes.splice(at..at, noise);
        }
        7 | 8 => number(bytes, at, dice),
        9 => {
            let other = &seeds[dice.below(seeds.len())];
            let from = dice.place(other.len());
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
        10 => {
            let to = dice.below(length);
            let num_bytes = num_bytes.min(length - to);
            bytes.copy_within(at..at + num_bytes, to);
        }
        _ => {
            let value = [0, 0xff][dice.below(2)];
            bytes[at..at + num_bytes].fill(value);
        }
    }
}

/// A number of one, two or four bytes, either end first.
fn number(bytes: &mut [u8], at: usize, dice: &mut Dice) {
    let number = NUMBERS[dice.below(NUMBERS.len())];
    let width = [1, 2, 4][dice.below(3)];
    let mut field = number.to_le_bytes()[..width].to_vec();
    if dice.below(2) == 0 {
        field.reverse();
    }
    for (byte, new) in bytes[at..].iter_mut().zip(field) {
        *byte = new;
    }
}

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Puts the right checksums at the ends of chunks, so that the decoder looks into them.
fn repair_png(bytes: &mut [u8]) {
    let mut at = PNG.len();
    while let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let end = (u32::from_be_bytes(*length) as usize).saturating_add(at + 8);
        let Some(sum) = bytes.get(at + 4..end).map(crc32) else {
            return;
        };
        match bytes.get_mut(end..end + 4) {
            Some(field) => field.copy_from_slice(&sum.to_be_bytes()),
            None => return,
        }
        at = end + 4;
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let sum = bytes.iter().fold(u32::MAX, |mut sum, byte| {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 * (sum & 1));
        }
        sum
    });
    !sum
}

#[test]
fn checksums_are_those_of_png() {
    assert_eq!(crc32(b"IEND"), 0xae42_6082);
}
