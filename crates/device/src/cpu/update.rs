//! Gradient norm, AdamW, and running averages of weights.

use holdall_graph::DType;
use holdall_graph::ops::update::{
    AdamW, AverageAction, MOMENT_BLOCK, MomentFormat, rounding_bits, rounding_key,
};
use rayon::prelude::*;

use super::operands::{Operands, Rows};
use super::real::{Element, LANES, Pieces, Real, run_pieces, vectorised};
use crate::dynamic_map::{SIGNED, UNSIGNED};

/// Elements per thread at a time.
pub(super) const TASK_ELEMENTS: usize = 1 << 14;

/// Sum of squares in f64: the norm of hundreds of millions of elements stays precise.
#[inline(always)]
fn sum_of_squares<T: Real>(x: &[T]) -> f64 {
    let mut lanes = [0.0; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += value.f64() * value.f64();
        }
    }
    super::real::fold(lanes)
}

/// A gradient in its storage format.
#[derive(Clone, Copy)]
enum Gradient<T> {
    Full(Rows<T>),
    Bf16(Rows<u16>),
}

impl<T: Real> Gradient<T> {
    fn new(o: &Operands<'_>, input: usize) -> Gradient<T> {
        match o.input_place(input).dtype {
            DType::Bf16 => Gradient::Bf16(o.input(input).flat()),
            _ => Gradient::Full(o.input(input).flat()),
        }
    }

    fn width(&self) -> usize {
        match self {
            Gradient::Full(rows) => rows.width,
            Gradient::Bf16(rows) => rows.width,
        }
    }

    /// Calls `each` with the index of the first number, and numbers: all of `start..end` at once, or block by block.
    #[inline(always)]
    fn for_numbers(&self, start: usize, end: usize, mut each: impl FnMut(usize, &[T])) {
        match self {
            Gradient::Full(rows) => each(start, &rows.row(0)[start..end]),
            Gradient::Bf16(rows) => {
                let mut numbers = [T::ZERO; MOMENT_BLOCK];
                for (block, bits) in rows.row(0)[start..end].chunks(MOMENT_BLOCK).enumerate() {
                    for (number, &bits) in numbers.iter_mut().zip(bits) {
                        *number = T::of(f64::from(f32::from_bits(u32::from(bits) << 16)));
                    }
                    each(start + block * MOMENT_BLOCK, &numbers[..bits.len()]);
                }
            }
        }
    }
}

pub(super) fn gradient_norm<T: Real>(o: &Operands<'_>) {
    let (out, _) = o.result::<T>(0);
    let parts = o.workspace::<f64>(1);
    let mut total = 0.0;
    for input in 0..o.num_inputs() {
        let gradient = Gradient::<T>::new(o, input);
        let chunks = gradient.width().div_ceil(TASK_ELEMENTS);
        (0..chunks).into_par_iter().for_each(|chunk| {
            let start = chunk * TASK_ELEMENTS;
            let end = (start + TASK_ELEMENTS).min(gradient.width());
            let mut sum = 0.0;
            gradient.for_numbers(start, end, |_, numbers| {
                sum += vectorised(|| sum_of_squares(numbers));
            });
            parts.row_mut(chunk)[0] = sum;
        });
        total += (0..chunks).map(|chunk| parts.row(chunk)[0]).sum::<f64>();
    }
    let norm = T::of(total.sqrt());
    let out = out.flat();
    out.row_mut(0)[0] = norm;
    out.row_mut(0)[1] = if norm.is_finite() { T::ONE } else { T::ZERO };
}

/// Coefficients of one update, in the arithmetic of the weights.
#[derive(Clone, Copy)]
struct Numbers<T> {
    beta1: T,
    beta2: T,
    eps: T,
    gradient_scale: T,
    correction1: T,
    root_correction2: T,
    rate: T,
    keep: T,
    maximum: Option<T>,
}

/// Iterator over a parameter's tensors, in the order of the outputs.
struct Tensors<'a> {
    o: &'a Operands<'a>,
    next: usize,
}

impl Tensors<'_> {
    fn next<E: Element>(&mut self) -> Rows<E> {
        self.next += 1;
        self.o.result::<E>(self.next - 1).0.flat()
    }
}

/// Moments in their storage format.
#[derive(Clone, Copy)]
enum Moments<T> {
    Full([Rows<T>; 2]),
    /// With the seed of their random bits.
    Bf16([Rows<u16>; 2], u64),
    /// Codes, and a scale per block.
    EightBit([Rows<u8>; 2], [Rows<f32>; 2]),
}

pub(super) fn adamw<T: Real>(op: &AdamW, o: &Operands<'_>) {
    let schedule = o.input::<T>(0).flat();
    let schedule = schedule.row(0);
    let norm = o.input::<T>(1).flat();
    if norm.row(0)[1] == T::ZERO {
        return;
    }
    let inverse_scale = schedule[0].f64();
    let unscaled = norm.row(0)[0].f64() * inverse_scale;
    let clip = op
        .clip_norm
        .map_or(1.0, |clip| (clip / (unscaled + 1e-6)).min(1.0));
    let step_bits = (schedule[schedule.len() - 1].f64() as f32).to_bits();
    (0..op.parameters.len()).into_par_iter().for_each(|index| {
        let parameter = &op.parameters[index];
        let rate = schedule[3 + parameter.rate].f64();
        let numbers = Numbers {
            beta1: T::of(op.beta1),
            beta2: T::of(op.beta2),
            eps: T::of(op.eps),
            gradient_scale: T::of(clip * inverse_scale),
            correction1: schedule[1],
            root_correction2: schedule[2].sqrt(),
            rate: T::of(rate),
            keep: T::of(1.0 - rate * parameter.weight_decay),
            maximum: parameter.maximum.map(T::of),
        };
        let gradient = Gradient::<T>::new(o, 2 + index);
        let mut tensors = Tensors {
            o,
            next: op.first_output(index),
        };
        let weight = tensors.next::<T>();
        let moments = match parameter.moments {
            MomentFormat::F32 => Moments::Full([tensors.next(), tensors.next()]),
            MomentFormat::Bf16 => Moments::Bf16(
                [tensors.next(), tensors.next()],
                rounding_key(step_bits, index),
            ),
            MomentFormat::EightBit => Moments::EightBit(
                [tensors.next(), tensors.next()],
                [tensors.next(), tensors.next()],
            ),
        };
        assert!(
            !parameter.copy,
            "the CPU computes in the format of the weights"
        );
        let average = op
            .average_decay
            .map(|decay| (tensors.next::<T>(), T::of(1.0 - decay)));
        let update = Update {
            weight,
            gradient,
            moments,
            average,
            numbers,
        };
        run_pieces(gradient.width().div_ceil(TASK_ELEMENTS), &update);
    });
}

/// Operands of the update of one parameter.
struct Update<T> {
    weight: Rows<T>,
    gradient: Gradient<T>,
    moments: Moments<T>,
    /// The average, and the share of the weight that enters it in a step.
    average: Option<(Rows<T>, T)>,
    numbers: Numbers<T>,
}

impl<T: Real> Pieces for Update<T> {
    #[inline(always)]
    fn piece(&self, number: usize) {
        let start = number * TASK_ELEMENTS;
        let end = (start + TASK_ELEMENTS).min(self.gradient.width());
        self.gradient.for_numbers(start, end, |start, gradient| {
            let weight = self.weight.columns(start, gradient.len());
            let weight = weight.row_mut(0);
            update_part(weight, gradient, self.moments, start, self.numbers);
            if let Some((average, share)) = self.average {
                let average = average.columns(start, gradient.len());
                follow(average.row_mut(0), weight, share);
            }
        });
    }
}

/// Updates the elements from `start` on.
#[inline(always)]
fn update_part<T: Real>(
    weight: &mut [T],
    gradient: &[T],
    moments: Moments<T>,
    start: usize,
    numbers: Numbers<T>,
) {
    let width = weight.len();
    match moments {
        Moments::Full(moments) => {
            let [m, v] = moments.map(|moment| moment.columns(start, width));
            step(weight, m.row_mut(0), v.row_mut(0), gradient, numbers);
        }
        Moments::Bf16(moments, key) => {
            let [m, v] = moments.map(|moment| moment.columns(start, width));
            let blocks = weight
                .chunks_mut(MOMENT_BLOCK)
                .zip(gradient.chunks(MOMENT_BLOCK));
            let stored = m.row_mut(0).chunks_mut(MOMENT_BLOCK);
            let stored = stored.zip(v.row_mut(0).chunks_mut(MOMENT_BLOCK));
            for (block, ((weight, gradient), (m, v))) in blocks.zip(stored).enumerate() {
                let first = (start + block * MOMENT_BLOCK) as u64;
                step_bf16(weight, [m, v], gradient, (key, first), numbers);
            }
        }
        Moments::EightBit(codes, scales) => {
            let [m, v] = codes.map(|codes| codes.columns(start, width));
            let blocks = weight
                .chunks_mut(MOMENT_BLOCK)
                .zip(gradient.chunks(MOMENT_BLOCK));
            let stored = m.row_mut(0).chunks_mut(MOMENT_BLOCK);
            let stored = stored.zip(v.row_mut(0).chunks_mut(MOMENT_BLOCK));
            for (block, ((weight, gradient), (m, v))) in blocks.zip(stored).enumerate() {
                let block = start / MOMENT_BLOCK + block;
                let scale = scales.map(|scales| scales.columns(block, 1));
                let [m_scale, v_scale] = scale;
                let scale = [&mut m_scale.row_mut(0)[0], &mut v_scale.row_mut(0)[0]];
                step_8bit(weight, [m, v], scale, gradient, numbers);
            }
        }
    }
}

#[inline(always)]
fn step<T: Real>(weight: &mut [T], m: &mut [T], v: &mut [T], gradient: &[T], n: Numbers<T>) {
    let state = m.iter_mut().zip(v.iter_mut());
    for ((weight, &gradient), (m, v)) in weight.iter_mut().zip(gradient).zip(state) {
        let g = gradient * n.gradient_scale;
        *m = n.beta1 * *m + (T::ONE - n.beta1) * g;
        *v = n.beta2 * *v + (T::ONE - n.beta2) * g * g;
        let root = (*v).sqrt() * n.root_correction2;
        *weight = *weight * n.keep - n.rate * n.correction1 * *m / (root + n.eps);
    }
    if let Some(maximum) = n.maximum {
        for weight in weight {
            if *weight > maximum {
                *weight = maximum;
            }
        }
    }
}

/// Updates block by block; the moments of a block are expanded to full precision.
#[inline(always)]
fn step_bf16<T: Real>(
    weight: &mut [T],
    [m, v]: [&mut [u16]; 2],
    gradient: &[T],
    (key, first): (u64, u64),
    numbers: Numbers<T>,
) {
    let mut full = [[T::ZERO; MOMENT_BLOCK]; 2];
    let [m_full, v_full] = full.each_mut().map(|full| &mut full[..weight.len()]);
    let number = |bits: u16| T::of(f64::from(f32::from_bits(u32::from(bits) << 16)));
    for ((full, &bits), (v_full, &v_bits)) in
        m_full.iter_mut().zip(&*m).zip(v_full.iter_mut().zip(&*v))
    {
        *full = number(bits);
        *v_full = number(v_bits);
    }
    step(weight, m_full, v_full, gradient, numbers);
    // Rounds up with a probability equal to the truncated fraction: unbiased on average.
    let rounded = |number: T, random: u16| {
        ((number.f64() as f32)
            .to_bits()
            .wrapping_add(u32::from(random))
            >> 16) as u16
    };
    let stored = m.iter_mut().zip(v.iter_mut());
    let full = m_full.iter().zip(v_full.iter());
    for (element, ((m, v), (&m_full, &v_full))) in (first..).zip(stored.zip(full)) {
        let [m_bits, v_bits] = rounding_bits(key, element);
        *m = rounded(m_full, m_bits);
        *v = rounded(v_full, v_bits);
    }
}

/// Updates one block.
#[inline(always)]
fn step_8bit<T: Real>(
    weight: &mut [T],
    [m, v]: [&mut [u8]; 2],
    [m_scale, v_scale]: [&mut f32; 2],
    gradient: &[T],
    numbers: Numbers<T>,
) {
    let (signed, unsigned) = (&*SIGNED, &*UNSIGNED);
    let mut full = [[T::ZERO; MOMENT_BLOCK]; 2];
    let [m_full, v_full] = full.each_mut().map(|full| &mut full[..weight.len()]);
    for (full, &code) in m_full.iter_mut().zip(&*m) {
        *full = T::of(f64::from(signed.numbers[usize::from(code)] * *m_scale));
    }
    for (full, &code) in v_full.iter_mut().zip(&*v) {
        *full = T::of(f64::from(unsigned.numbers[usize::from(code)] * *v_scale));
    }
    step(weight, m_full, v_full, gradient, numbers);
    *m_scale = relative(m_full);
    *v_scale = relative(v_full);
    for (code, full) in m.iter_mut().zip(&*m_full) {
        let full = full.f64() as f32;
        *code = signed.signed_code(full < 0.0, full.abs());
    }
    for (code, full) in v.iter_mut().zip(&*v_full) {
        *code = unsigned.level(full.f64() as f32);
    }
}

/// Divides values by their largest magnitude and returns it; zeros stay zeros.
#[inline(always)]
fn relative<T: Real>(values: &mut [T]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for chunk in values.chunks(LANES) {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            let magnitude = (value.f64() as f32).abs();
            *lane = if magnitude > *lane { magnitude } else { *lane };
        }
    }
    let largest = lanes.into_iter().fold(0.0, f32::max);
    let divisor = if largest > 0.0 { largest } else { 1.0 };
    for value in values {
        *value = *value / T::of(f64::from(divisor));
    }
    largest
}

/// Moves an average towards its weight.
#[inline(always)]
fn follow<T: Real>(average: &mut [T], weight: &[T], share: T) {
    for (average, &weight) in average.iter_mut().zip(weight) {
        *average += share * (weight - *average);
    }
}

pub(super) fn weight_averages<T: Real>(action: AverageAction, o: &Operands<'_>) {
    let mut tensors = Tensors { o, next: 0 };
    for _ in 0..o.num_outputs() / 2 {
        let [weight, average] = [tensors.next::<T>(), tensors.next::<T>()];
        (0..weight.width.div_ceil(TASK_ELEMENTS))
            .into_par_iter()
            .for_each(|chunk| {
                let start = chunk * TASK_ELEMENTS;
                let width = TASK_ELEMENTS.min(weight.width - start);
                let [weight, average] = [weight, average].map(|all| all.columns(start, width));
                let (weight, average) = (weight.row_mut(0), average.row_mut(0));
                match action {
                    AverageAction::Exchange => weight.swap_with_slice(average),
                    AverageAction::Restart => average.copy_from_slice(weight),
                    AverageAction::Interpolate { share } => {
                        vectorised(|| follow(average, weight, T::of(share)));
                    }
                }
            });
    }
}
