//! Element-wise operations and row normalisation.

use holdall_graph::ops::activation::{Activation, LEAKY_SLOPE};
use holdall_graph::ops::scale_columns::ScaleColumnsGrad;
use holdall_graph::{DType, Write};
use rayon::prelude::*;

use super::linear::add_parts;
use super::operands::{Operands, Rows};
use super::real::{Element, Real, dot, vectorised};

/// Elements per thread at a time.
const TASK_ELEMENTS: usize = 1 << 14;
/// Rows per thread at a time.
const TASK_ROWS: usize = 16;
/// Partial sums of the gradient of column factors.
pub(super) const SCALE_PARTS: usize = 16;

/// Calls `work` with each row, on all threads, vectorised.
pub(super) fn for_rows(rows: usize, work: impl Fn(usize) + Send + Sync) {
    let tasks = rows.div_ceil(TASK_ROWS);
    (0..tasks).into_par_iter().for_each(|task| {
        let start = task * TASK_ROWS;
        vectorised(|| {
            for row in start..(start + TASK_ROWS).min(rows) {
                work(row);
            }
        });
    });
}

/// An activation function and its derivative, as a type so that loops over it vectorise.
pub(super) trait Curve: Sync {
    fn value<T: Real>(z: T) -> T;
    fn slope<T: Real>(z: T) -> T;
}

/// `z sigmoid(1.702 z)`.
pub(super) struct QuickCurve;

/// `z Phi(z)`.
pub(super) struct ErfCurve;

impl Curve for QuickCurve {
    #[inline(always)]
    fn value<T: Real>(z: T) -> T {
        z / (T::ONE + (z * T::of(-1.702)).exp())
    }

    #[inline(always)]
    fn slope<T: Real>(z: T) -> T {
        let s = T::ONE / (T::ONE + (z * T::of(-1.702)).exp());
        s + T::of(1.702) * z * s * (T::ONE - s)
    }
}

impl Curve for ErfCurve {
    #[inline(always)]
    fn value<T: Real>(z: T) -> T {
        z * T::of(0.5) * (T::ONE + (z * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf())
    }

    #[inline(always)]
    fn slope<T: Real>(z: T) -> T {
        const INVERSE_SQRT_TAU: f64 = 0.398_942_280_401_432_7;
        let phi = T::of(0.5) * (T::ONE + (z * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf());
        phi + z * T::of(INVERSE_SQRT_TAU) * (z * z * T::of(-0.5)).exp()
    }
}

/// `max(z, 0)`.
pub(super) struct ReluCurve;

/// `z` above zero, a hundredth of it elsewhere.
pub(super) struct LeakyCurve;

impl Curve for ReluCurve {
    #[inline(always)]
    fn value<T: Real>(z: T) -> T {
        if z > T::ZERO { z } else { z * T::ZERO }
    }

    #[inline(always)]
    fn slope<T: Real>(z: T) -> T {
        if z > T::ZERO { T::ONE } else { T::ZERO }
    }
}

impl Curve for LeakyCurve {
    #[inline(always)]
    fn value<T: Real>(z: T) -> T {
        if z > T::ZERO {
            z
        } else {
            z * T::of(LEAKY_SLOPE)
        }
    }

    #[inline(always)]
    fn slope<T: Real>(z: T) -> T {
        if z > T::ZERO {
            T::ONE
        } else {
            T::of(LEAKY_SLOPE)
        }
    }
}

/// Calls `work` with each row of two matrices of one shape.
fn zip_rows<T: Real, U: Element>(
    y: Rows<T>,
    x: Rows<U>,
    work: impl Fn(&mut [T], &[U]) + Sync + Send,
) {
    assert_eq!(
        (y.rows, y.width),
        (x.rows, x.width),
        "operands of one shape"
    );
    for_rows(y.rows, |row| work(y.row_mut(row), x.row(row)));
}

pub(super) fn activate<T: Real>(activation: Activation, o: &Operands<'_>) {
    fn run<T: Real, C: Curve>(y: Rows<T>, z: Rows<T>) {
        zip_rows(y, z, |y, z| {
            for (y, &z) in y.iter_mut().zip(z) {
                *y = C::value(z);
            }
        });
    }
    let (y, _) = o.result::<T>(0);
    match activation {
        Activation::QuickGelu => run::<T, QuickCurve>(y, o.input(0)),
        Activation::Gelu => run::<T, ErfCurve>(y, o.input(0)),
        Activation::Relu => run::<T, ReluCurve>(y, o.input(0)),
        Activation::LeakyRelu => run::<T, LeakyCurve>(y, o.input(0)),
    }
}

/// In place: the gradient of y becomes the gradient of z.
pub(super) fn activate_grad<T: Real>(activation: Activation, o: &Operands<'_>) {
    fn run<T: Real, C: Curve>(dz: Rows<T>, z: Rows<T>) {
        zip_rows(dz, z, |dz, z| {
            for (dz, &z) in dz.iter_mut().zip(z) {
                *dz *= C::slope(z);
            }
        });
    }
    let (dz, _) = o.result::<T>(0);
    match activation {
        Activation::QuickGelu => run::<T, QuickCurve>(dz, o.input(1)),
        Activation::Gelu => run::<T, ErfCurve>(dz, o.input(1)),
        Activation::Relu => run::<T, ReluCurve>(dz, o.input(1)),
        Activation::LeakyRelu => run::<T, LeakyCurve>(dz, o.input(1)),
    }
}

pub(super) fn fill<T: Real>(value: f64, o: &Operands<'_>) {
    if o.output_place(0)
        .is_some_and(|place| place.dtype == DType::Bf16)
    {
        assert_eq!(value, 0.0, "gradients in bf16 start at zero");
        let row = o.result::<u16>(0).0.flat();
        row.row_mut(0).fill(0);
        return;
    }
    let (y, _) = o.result::<T>(0);
    let row = y.flat();
    row.row_mut(0)
        .par_chunks_mut(TASK_ELEMENTS)
        .for_each(|chunk| chunk.fill(T::of(value)));
}

pub(super) fn add<T: Real>(o: &Operands<'_>) {
    let (y, _) = o.result::<T>(0);
    let (a, b) = (o.input::<T>(0), o.input::<T>(1));
    for_rows(y.rows, |row| {
        let sums = a.row(row).iter().zip(b.row(row));
        for (y, (&a, &b)) in y.row_mut(row).iter_mut().zip(sums) {
            *y = a + b;
        }
    });
}

pub(super) fn add_into<T: Real>(o: &Operands<'_>) {
    let (y, mode) = o.result::<T>(0);
    let x = o.input::<T>(0);
    match mode {
        Write::Overwrite => zip_rows(y, x, |y, x| y.copy_from_slice(x)),
        Write::Accumulate => zip_rows(y, x, |y, x| {
            for (y, &x) in y.iter_mut().zip(x) {
                *y += x;
            }
        }),
    }
}

/// The bits of the nearest 16-bit brain float; ties to even.
#[inline(always)]
fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    if number.is_nan() {
        0x7fc0
    } else {
        ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    }
}

/// `y = bf16(y + x)`.
pub(super) fn add_rounded(o: &Operands<'_>) {
    let (y, mode) = o.result::<u16>(0);
    let (y, x) = (y.flat(), o.input::<f32>(0).flat());
    let pairs = y.row_mut(0).par_chunks_mut(TASK_ELEMENTS);
    let pairs = pairs.zip(x.row(0).par_chunks(TASK_ELEMENTS));
    pairs.for_each(|(y, x)| {
        for (y, &x) in y.iter_mut().zip(x) {
            let sum = match mode {
                Write::Overwrite => x,
                Write::Accumulate => f32::from_bits(u32::from(*y) << 16) + x,
            };
            *y = to_bf16(sum);
        }
    });
}

pub(super) fn cast(o: &Operands<'_>) {
    fn run<T: Real, U: Real>(o: &Operands<'_>) {
        let (y, mode) = o.result::<T>(0);
        zip_rows(y, o.input::<U>(0), |y, x| {
            for (y, &x) in y.iter_mut().zip(x) {
                let x = T::of(x.f64());
                *y = match mode {
                    Write::Overwrite => x,
                    Write::Accumulate => *y + x,
                };
            }
        });
    }
    let to = o.output_place(0).expect("the result is read").dtype;
    match (to, o.input_place(0).dtype) {
        (DType::F32, DType::F32) => run::<f32, f32>(o),
        (DType::F32, DType::F64) => run::<f32, f64>(o),
        (DType::F64, DType::F32) => run::<f64, f32>(o),
        (DType::F64, DType::F64) => run::<f64, f64>(o),
        (to, from) => panic!("the CPU computes in f32 and f64, not {from:?} -> {to:?}"),
    }
}

pub(super) fn scale_columns<T: Real>(o: &Operands<'_>) {
    let gamma = o.input::<T>(1).flat();
    let (y, _) = o.result::<T>(0);
    zip_rows(y, o.input::<T>(0), |y, x| {
        for (y, (&x, &gamma)) in y.iter_mut().zip(x.iter().zip(gamma.row(0))) {
            *y = x * gamma;
        }
    });
}

pub(super) fn scale_columns_grad<T: Real>(op: &ScaleColumnsGrad, o: &Operands<'_>) {
    let (x, gamma) = (o.input::<T>(1), o.input::<T>(2).flat());
    // In place: the gradient of x overwrites dy.
    let dy = o.input::<T>(0);
    let parts = o.workspace::<T>(x.width);
    let per_part = x.rows.div_ceil(SCALE_PARTS);
    (0..SCALE_PARTS).into_par_iter().for_each(|part| {
        vectorised(|| {
            let mut dgamma = op.gamma.then(|| parts.row_mut(part));
            if let Some(dgamma) = &mut dgamma {
                dgamma.fill(T::ZERO);
            }
            for row in (part * per_part)..((part + 1) * per_part).min(x.rows) {
                if let Some(dgamma) = &mut dgamma {
                    let terms = dy.row(row).iter().zip(x.row(row));
                    for (dgamma, (&dy, &x)) in dgamma.iter_mut().zip(terms) {
                        *dgamma += dy * x;
                    }
                }
                if op.x {
                    for (dy, &gamma) in dy.row_mut(row).iter_mut().zip(gamma.row(0)) {
                        *dy *= gamma;
                    }
                }
            }
        });
    });
    if op.gamma {
        let (total, mode) = o.result::<T>(0);
        let total = total.flat();
        if mode == Write::Overwrite {
            total.row_mut(0).fill(T::ZERO);
        }
        add_parts(total.row_mut(0), parts, SCALE_PARTS);
    }
}

pub(super) fn normalize<T: Real>(o: &Operands<'_>) {
    let x = o.input::<T>(0);
    let (y, _) = o.result::<T>(0);
    let inverse = o.output::<T>(1).map(|(inverse, _)| inverse.reshape(1));
    for_rows(x.rows, |row| {
        let x = x.row(row);
        let scale = T::ONE / dot(x, x).sqrt();
        for (y, &x) in y.row_mut(row).iter_mut().zip(x) {
            *y = x * scale;
        }
        if let Some(inverse) = inverse {
            inverse.row_mut(row)[0] = scale;
        }
    });
}

pub(super) fn normalize_grad<T: Real>(o: &Operands<'_>) {
    let (dy, y) = (o.input::<T>(0), o.input::<T>(1));
    let inverse = o.input::<T>(2).reshape(1);
    let (dx, mode) = o.result::<T>(0);
    for_rows(y.rows, |row| {
        let (dy, y) = (dy.row(row), y.row(row));
        let along = dot(dy, y);
        let scale = inverse.row(row)[0];
        let terms = dy.iter().zip(y);
        for (dx, (&dy, &y)) in dx.row_mut(row).iter_mut().zip(terms) {
            let value = (dy - y * along) * scale;
            *dx = match mode {
                Write::Overwrite => value,
                Write::Accumulate => *dx + value,
            };
        }
    });
}
