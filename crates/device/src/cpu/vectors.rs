//! Vectors of the machine's native width, for loops that the compiler would not keep in registers.

use std::marker::PhantomData;

use pulp::Simd;

/// A number format and its vector type.
pub(super) trait Vectors: Copy {
    type Vector<S: Simd>: Copy;

    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;

    fn plus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    /// `a * b + c`, fused if the machine has the instruction.
    fn multiply_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    /// Transposes a square of [`TRANSPOSED`] rows.
    ///
    /// # Safety
    /// The square can be read and written with rows that are so many elements apart; the two do not overlap.
    #[inline(always)]
    unsafe fn transpose<S: Simd>(
        _: S,
        from: *const Self,
        from_stride: usize,
        to: *mut Self,
        to_stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { transpose_one_by_one(from, from_stride, to, to_stride) };
    }
}

/// # Safety
/// As of [`Vectors::transpose`].
#[inline(always)]
unsafe fn transpose_one_by_one<T: Copy>(
    from: *const T,
    from_stride: usize,
    to: *mut T,
    to_stride: usize,
) {
    for row in 0..TRANSPOSED {
        for column in 0..TRANSPOSED {
            // SAFETY: the caller's promise.
            unsafe { *to.add(column * to_stride + row) = *from.add(row * from_stride + column) };
        }
    }
}

/// Rows and columns of a square that [`Vectors::transpose`] takes.
pub(super) const TRANSPOSED: usize = 8;

impl Vectors for f32 {
    type Vector<S: Simd> = S::f32s;

    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: f32) -> S::f32s {
        simd.splat_f32s(value)
    }

    #[inline(always)]
    fn plus<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(a, b)
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(a, b, c)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn transpose<S: Simd>(
        _: S,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        use std::arch::x86_64::*;
        let square = |row: usize, column: usize| from.wrapping_add(row * from_stride + column);
        if size_of::<S::f32s>() < size_of::<__m256>() {
            // SAFETY: the caller's promise.
            return unsafe { transpose_one_by_one(from, from_stride, to, to_stride) };
        }
        // SAFETY: vectors of this size have AVX; the rest is the caller's promise.
        unsafe {
            // Rows r and r + 4 side by side, four columns at a time: then each 4 x 4 block is transposed within its half.
            for column in [0, 4] {
                let pair = |row: usize| {
                    let low = _mm256_castps128_ps256(_mm_loadu_ps(square(row, column)));
                    _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(square(row + 4, column)))
                };
                let [a, b, c, d] = [pair(0), pair(1), pair(2), pair(3)];
                let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                let rows = [
                    _mm256_shuffle_ps::<0x44>(ab_low, cd_low),
                    _mm256_shuffle_ps::<0xee>(ab_low, cd_low),
                    _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
                    _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
                ];
                for (index, row) in rows.into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((column + index) * to_stride), row);
                }
            }
        }
    }
}

impl Vectors for f64 {
    type Vector<S: Simd> = S::f64s;

    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: f64) -> S::f64s {
        simd.splat_f64s(value)
    }

    #[inline(always)]
    fn plus<S: Simd>(simd: S, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.add_f64s(a, b)
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f64s, b: S::f64s, c: S::f64s) -> S::f64s {
        simd.mul_add_e_f64s(a, b, c)
    }
}

/// Number of vectors and lanes that hold sixteen numbers. Constants, so that a `match` on them compiles only this machine's case.
pub(super) struct Unit<T, S>(PhantomData<(T, S)>);

/// Numbers per unit.
pub(super) const UNIT: usize = 16;

impl<T: Vectors, S: Simd> Unit<T, S> {
    /// Numbers per vector.
    pub const LANES: usize = size_of::<T::Vector<S>>() / size_of::<T>();
    /// Vectors per unit.
    pub const VECTORS: usize = UNIT / Self::LANES;
}

/// # Safety
/// All numbers of a vector can be read at `from`.
#[inline(always)]
pub(super) unsafe fn load<T: Vectors, S: Simd>(from: *const T) -> T::Vector<S> {
    // SAFETY: the caller's promise; vectors are plain numbers.
    unsafe { from.cast::<T::Vector<S>>().read_unaligned() }
}

/// # Safety
/// All numbers of a vector can be written at `to`.
#[inline(always)]
pub(super) unsafe fn store<T: Vectors, S: Simd>(to: *mut T, vector: T::Vector<S>) {
    // SAFETY: the caller's promise; vectors are plain numbers.
    unsafe { to.cast::<T::Vector<S>>().write_unaligned(vector) }
}
