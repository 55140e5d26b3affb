//! Splits a row of f32 into digits and measures the residual.

/// Maximum norm of a row of digits, so that no dot product exceeds 32 bits: 46340^2 < 2^31.
const LONGEST: f64 = 46340.0;
/// Maximum magnitude of a digit.
const LARGEST: f64 = 32767.0;

/// Norm and unit of a row, needed to split it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Survey {
    /// 2-norm, rounded up a little; not finite if a value is not finite.
    pub norm: f64,
    /// Exponent of the finest unit that keeps the digits within bounds. `i32::MIN` for a row of zeros.
    pub exponent: i32,
}

/// Unit and norms of a row that was split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Exponent of the digits' unit.
    pub exponent: i32,
    /// 2-norm of the row in units, rounded up.
    pub norm: f64,
    /// 2-norm of the residual in units, rounded up; zero only if the digits are exact.
    pub residual: f64,
}

/// More than the relative rounding error of a sum of squares in f64.
const UP: f64 = 1.0 + 1e-6;

const LANES: usize = 16;

/// Computes norm and unit of a row.
pub fn survey(row: &[f32]) -> Survey {
    let (squares, largest) = pulp::Arch::new().dispatch(Sizes { row });
    let norm = squares.sqrt() * UP;
    if !norm.is_finite() || norm == 0.0 {
        return Survey {
            norm,
            exponent: i32::MIN,
        };
    }
    // Rounding to digits adds at most half a unit per value to the row.
    let room = LONGEST - 0.5 * (row.len() as f64).sqrt();
    let needed = (norm / room).max(f64::from(largest) / (LARGEST - 0.5));
    let mut exponent = needed.log2().ceil() as i32;
    // The logarithm may be wrong in its last bit.
    if needed > 2f64.powi(exponent) {
        exponent += 1;
    }
    Survey { norm, exponent }
}

/// Sum of squares and largest magnitude. (A closure would be compiled without the vector instructions of its caller.)
struct Sizes<'a> {
    row: &'a [f32],
}

impl pulp::WithSimd for Sizes<'_> {
    type Output = (f64, f32);

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> (f64, f32) {
        let (mut squares, mut largest) = ([0.0; LANES], [0.0f32; LANES]);
        let (whole, rest) = self.row.as_chunks::<LANES>();
        for values in whole {
            for lane in 0..LANES {
                let value = f64::from(values[lane]);
                squares[lane] += value * value;
                let size = values[lane].abs();
                largest[lane] = if size > largest[lane] {
                    size
                } else {
                    largest[lane]
                };
            }
        }
        for (lane, &value) in rest.iter().enumerate() {
            squares[lane] += f64::from(value) * f64::from(value);
            largest[lane] = largest[lane].max(value.abs());
        }
        (
            squares.iter().sum::<f64>(),
            largest.iter().fold(0.0f32, |a, &b| a.max(b)),
        )
    }
}

/// Writes the digits of a row in units of 2^`exponent`, which is at least the survey's exponent. If the digits are exact, the unit
/// becomes as coarse as possible.
pub fn split(row: &[f32], norm: f64, exponent: i32, digits: &mut [i16]) -> Split {
    let scale = 2f64.powi(-exponent);
    let rounding = Rounding {
        row,
        scale,
        digits: &mut *digits,
    };
    let (squares, bits) = pulp::Arch::new().dispatch(rounding);
    let split = Split {
        exponent,
        norm: norm * scale,
        residual: squares.sqrt() * UP,
    };
    if squares > 0.0 || bits == 0 {
        return split;
    }
    let coarser = bits.trailing_zeros();
    for digit in digits {
        *digit >>= coarser;
    }
    Split {
        exponent: exponent + coarser as i32,
        norm: split.norm / 2f64.powi(coarser as i32),
        residual: 0.0,
    }
}

/// Rounds a row to digits; returns the sum of squares of the residual, and all bits that the digits use.
struct Rounding<'a> {
    row: &'a [f32],
    scale: f64,
    digits: &'a mut [i16],
}

/// Adding this number rounds to an integer, which is then in the lowest bits.
const WHOLE: f64 = 1.5 * (1u64 << 52) as f64;

impl pulp::WithSimd for Rounding<'_> {
    type Output = (f64, i32);

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> (f64, i32) {
        let (mut squares, mut bits) = ([0.0; LANES], [0i32; LANES]);
        let (whole, rest) = self.row.as_chunks::<LANES>();
        let (whole_digits, rest_digits) = self.digits.as_chunks_mut::<LANES>();
        for (values, digits) in whole.iter().zip(whole_digits) {
            for lane in 0..LANES {
                // The scale is a power of two: only the next line rounds.
                let scaled = f64::from(values[lane]) * self.scale;
                let shifted = scaled + WHOLE;
                let left = scaled - (shifted - WHOLE);
                let digit = shifted.to_bits() as i32;
                digits[lane] = digit as i16;
                bits[lane] |= digit;
                squares[lane] += left * left;
            }
        }
        for (lane, (&value, to)) in rest.iter().zip(rest_digits).enumerate() {
            let scaled = f64::from(value) * self.scale;
            let shifted = scaled + WHOLE;
            let left = scaled - (shifted - WHOLE);
            *to = shifted.to_bits() as i16;
            bits[lane] |= i32::from(*to);
            squares[lane] += left * left;
        }
        (
            squares.iter().sum::<f64>(),
            bits.iter().fold(0, |a, &b| a | b),
        )
    }
}
