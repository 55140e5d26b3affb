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
}

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
