use proptest::prelude::*;
use rayon::ThreadPool;

use super::*;

/// A product `m x k` by `k x n` with random factors; rows of every matrix are `gap` elements apart.
struct Case {
    sizes: [usize; 3],
    transposed: [bool; 2],
    gap: usize,
    left: Vec<f32>,
    right: Vec<f32>,
    before: Vec<f32>,
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

/// A factor.
fn matrix<T: Real>(values: &[T], rows: usize, width: usize, gap: usize) -> Rows<T> {
    assert!(rows * (width + gap) <= values.len() + gap);
    // SAFETY: factors are only read.
    unsafe { Rows::at(values.as_ptr().cast_mut(), rows, width, width + gap) }
}

/// A result.
fn result<T: Real>(values: &mut [T], rows: usize, width: usize, gap: usize) -> Rows<T> {
    assert!(rows * (width + gap) <= values.len() + gap);
    // SAFETY: the caller reads the values once the product is done.
    unsafe { Rows::at(values.as_mut_ptr(), rows, width, width + gap) }
}

impl Case {
    fn new(sizes: [usize; 3], transposed: [bool; 2], gap: usize) -> Case {
        let [m, k, n] = sizes;
        let most = (m.max(k).max(n) + gap).pow(2);
        Case {
            sizes,
            transposed,
            gap,
            left: numbers(most, 1),
            right: numbers(most, 2),
            before: numbers(m * (n + gap), 3),
        }
    }

    fn factors(&self, first_row: usize, rows: usize) -> [Factor<f32>; 2] {
        let [m, k, n] = self.sizes;
        let left = if self.transposed[0] {
            Factor::Transposed(matrix(&self.left, k, m, self.gap).columns(first_row, rows))
        } else {
            Factor::Plain(matrix(&self.left, m, k, self.gap).slice(first_row, rows))
        };
        let right = if self.transposed[1] {
            Factor::Transposed(matrix(&self.right, n, k, self.gap))
        } else {
            Factor::Plain(matrix(&self.right, k, n, self.gap))
        };
        [left, right]
    }

    /// Some rows of `before + alpha * left right`, computed with exactly the scratch that is planned.
    fn run(&self, pool: &ThreadPool, first_row: usize, rows: usize, mode: Write) -> Vec<f32> {
        let [_, k, n] = self.sizes;
        let stride = n + self.gap;
        let mut y = self.before[first_row * stride..(first_row + rows) * stride].to_vec();
        let bytes = scratch_bytes([rows, k, n], size_of::<f32>(), pool.current_num_threads());
        const GUARD: u8 = 0xa5;
        let mut scratch = vec![GUARD; bytes + 64];
        // SAFETY: the scratch belongs to this product alone.
        let panels = unsafe { Panels::new(scratch.as_mut_ptr(), bytes) };
        let [left, right] = self.factors(first_row, rows);
        let y_rows = result(&mut y, rows, n, self.gap);
        pool.install(|| product(y_rows, mode, 0.75, left, right, panels));
        assert!(
            scratch[bytes..].iter().all(|&byte| byte == GUARD),
            "no byte beyond the scratch is written"
        );
        y
    }

    /// The same in f64, term by term.
    fn expected(&self, mode: Write) -> Vec<f64> {
        let [m, k, n] = self.sizes;
        let [left, right] = self.factors(0, m).map(|factor| factor.strided());
        let mut y: Vec<f64> = self.before.iter().map(|&value| f64::from(value)).collect();
        for row in 0..m {
            for column in 0..n {
                // SAFETY: within the factors.
                let term = |term| unsafe {
                    f64::from(*left.at(row, term)) * f64::from(*right.at(term, column))
                };
                let sum = 0.75 * (0..k).map(term).sum::<f64>();
                let number = &mut y[row * (n + self.gap) + column];
                *number = match mode {
                    Write::Overwrite => sum,
                    Write::Accumulate => *number + sum,
                };
            }
        }
        y
    }
}

fn pool(num_threads: usize) -> ThreadPool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads);
    pool.build().unwrap()
}

thread_local! {
    static POOLS: [ThreadPool; 2] = [pool(1), pool(3)];
}

fn check(sizes: [usize; 3], transposed: [bool; 2], gap: usize) -> Result<(), TestCaseError> {
    let case = Case::new(sizes, transposed, gap);
    let rows = sizes[0];
    POOLS.with(|[one, three]| {
        for mode in [Write::Overwrite, Write::Accumulate] {
            let y = case.run(one, 0, rows, mode);
            for (&y, expected) in y.iter().zip(case.expected(mode)) {
                let error = (f64::from(y) - expected).abs();
                prop_assert!(error < 1e-5, "{y} and {expected}");
            }
            // The same bits on three threads, and for a part of the rows.
            prop_assert!(case.run(three, 0, rows, mode) == y);
            let (first, some) = (rows / 3, rows.div_ceil(5));
            let stride = sizes[2] + gap;
            let part = case.run(three, first, some, mode);
            prop_assert!(part == y[first * stride..(first + some) * stride]);
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn products_of_any_shape(
        sizes in [1..150usize, 1..300usize, 1..150usize],
        transposed in any::<[bool; 2]>(),
        gap in prop::sample::select(&[0usize, 1, 16]),
    ) {
        check(sizes, transposed, gap)?;
    }

    #[test]
    fn small_products_of_any_shape(
        sizes in [1..20usize, 1..20usize, 1..70usize],
        transposed in any::<[bool; 2]>(),
        gap in prop::sample::select(&[0usize, 1, 16]),
    ) {
        check(sizes, transposed, gap)?;
    }
}

#[test]
fn products_of_several_blocks_strips_and_runs() {
    for transposed in [[false, true], [false, false], [true, false], [true, true]] {
        check([500, 600, 310], transposed, 0).unwrap();
        check([16, 20, 1200], transposed, 3).unwrap();
    }
}

#[test]
fn no_terms_add_nothing() {
    let before = vec![1.0f32; 6];
    let nothing = matrix(&[], 0, 3, 0);
    let mut y = before.clone();
    let [left, right] = [matrix(&[0.0; 2], 2, 0, 0), nothing].map(Factor::Plain);
    small_product(
        result(&mut y, 2, 3, 0),
        Write::Accumulate,
        1.0,
        left,
        right,
        Panels::NONE,
    );
    assert_eq!(y, before);
    small_product(
        result(&mut y, 2, 3, 0),
        Write::Overwrite,
        1.0,
        left,
        right,
        Panels::NONE,
    );
    assert_eq!(y, [0.0; 6]);
}

#[test]
fn doubles_are_summed_as_doubles() {
    let left: Vec<f64> = numbers(70 * 300, 4).into_iter().map(f64::from).collect();
    let right: Vec<f64> = numbers(300 * 50, 5).into_iter().map(f64::from).collect();
    let mut y = vec![0.0f64; 70 * 50];
    let mut scratch = vec![0u8; scratch_bytes([70, 300, 50], size_of::<f64>(), 1)];
    // SAFETY: the scratch belongs to this product alone.
    let panels = unsafe { Panels::new(scratch.as_mut_ptr(), scratch.len()) };
    let factors = [matrix(&left, 70, 300, 0), matrix(&right, 300, 50, 0)].map(Factor::Plain);
    let y_rows = result(&mut y, 70, 50, 0);
    pool(1).install(|| {
        small_product(
            y_rows,
            Write::Overwrite,
            1.0,
            factors[0],
            factors[1],
            panels,
        );
    });
    for row in 0..70 {
        for column in 0..50 {
            let term = |term: usize| left[row * 300 + term] * right[term * 50 + column];
            let expected: f64 = (0..300).map(term).sum();
            assert!((y[row * 50 + column] - expected).abs() < 1e-13);
        }
    }
}

/// The result of a block on a given instruction set.
fn on<S: Simd>(simd: S, case: &Case) -> Vec<f32> {
    let [m, k, n] = case.sizes;
    let mut y = case.before.clone();
    // Room for the widest vectors, whatever this machine has.
    let mut scratch = vec![0u8; RUN.min(k) * n.next_multiple_of(UNIT) * size_of::<f32>() + 64];
    // SAFETY: the scratch belongs to this product alone.
    let panels = unsafe { Panels::new(scratch.as_mut_ptr(), scratch.len()) };
    let [left, right] = case.factors(0, m);
    let y_rows = result(&mut y, m, n, case.gap);
    let product = Product::new(y_rows, Write::Accumulate, 0.75, left, right);
    simd.vectorize(Block {
        product: &product,
        rows: 0..m,
        columns: 0..n,
        panels,
        finish: &|_| (),
    });
    y
}

/// A machine dispatches to its own instruction set; these are the others. All that fuse multiply and add give the same bits.
#[test]
fn instruction_sets_agree() {
    let pool = pool(1);
    for transposed in [[false, true], [false, false], [true, false], [true, true]] {
        for sizes in [[65, 300, 70], [7, 33, 150], [130, 40, 48], [1, 20, 17]] {
            let case = Case::new(sizes, transposed, 1);
            let plain = on(pulp::Scalar, &case);
            for (&plain, expected) in plain.iter().zip(case.expected(Write::Accumulate)) {
                let error = (f64::from(plain) - expected).abs();
                assert!(error < 1e-5, "{plain} and {expected}");
            }
            let own = case.run(&pool, 0, sizes[0], Write::Accumulate);
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = pulp::x86::V3::try_new() {
                assert!(on(avx2, &case) == own, "{sizes:?} {transposed:?}");
            }
            #[cfg(target_arch = "aarch64")]
            if let Some(neon) = pulp::aarch64::Neon::try_new() {
                assert!(on(neon, &case) == own, "{sizes:?} {transposed:?}");
            }
        }
    }
}
