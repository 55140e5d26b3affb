use std::cmp::Ordering;

use holdall_device::cuda::Cuda;
use holdall_device::cuda::ranks::Ranks;
use holdall_files::SplitMix64;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::retrieval::exact_dot;

/// Reference: compares every score with every other score, without rounding.
fn oracle(job: &Job<'_>) -> [Vec<Entry>; 2] {
    let rows = |features: &Features<'_>| -> Vec<Vec<f32>> {
        let row = |row| features.row(row, &mut vec![]).to_vec();
        (0..features.num_rows()).map(row).collect()
    };
    let sides = [rows(job.queries), rows(job.gallery)];
    let entries = |side: Side, [own, others]: [&Vec<Vec<f32>>; 2]| {
        let mut entries = vec![];
        for (item, row) in own.iter().enumerate() {
            let positives = job.pairs.positives(side, item);
            let than = |a: u32, b: u32| {
                exact_dot::compare([row, &others[a as usize]], [row, &others[b as usize]])
            };
            // The first of several equal scores.
            let best = positives.iter().copied();
            let best = best.reduce(|best, other| match than(other, best) {
                Ordering::Greater => other,
                _ => best,
            });
            let Some(positive) = best else { continue };
            let count = |order: Ordering| {
                let others = (0..others.len() as u32).filter(|other| !positives.contains(other));
                others
                    .filter(|&other| than(other, positive) == order)
                    .count() as u32
            };
            entries.push(Entry {
                item: item as u32,
                positive,
                above: count(Ordering::Greater),
                level: count(Ordering::Equal),
            });
        }
        entries
    };
    [
        entries(Side::Query, [&sides[0], &sides[1]]),
        entries(Side::Gallery, [&sides[1], &sides[0]]),
    ]
}

/// Reference for [`Rule::Recall`].
fn oracle_of_recall(job: &Job<'_>) -> [Vec<Entry>; 2] {
    [Side::Query, Side::Gallery].map(|side| {
        let mut entries = vec![];
        for [query, item] in job.pairs.in_order(side) {
            let pairs = Pairs::new(
                job.queries.num_rows(),
                job.gallery.num_rows(),
                vec![(query, item)],
            );
            let alone = Job {
                pairs: &pairs.unwrap(),
                ..*job
            };
            entries.extend(oracle(&alone)[usize::from(side == Side::Gallery)].iter());
        }
        entries
    })
}

/// Reference for neighbours: sorts whole rows.
fn oracle_of_neighbours(job: &Job<'_>, count: usize) -> Vec<u32> {
    let mut scratch = [vec![], vec![], vec![]];
    let mut all = vec![];
    for query in 0..job.queries.num_rows() {
        let [a, b, c] = &mut scratch;
        let row = job.queries.row(query, a);
        let mut items: Vec<u32> = (0..job.gallery.num_rows() as u32).collect();
        items.sort_by(|&one, &other| {
            let [one, other] = [
                job.gallery.row(one as usize, b).to_vec(),
                job.gallery.row(other as usize, c).to_vec(),
            ];
            exact_dot::compare([row, &other], [row, &one])
        });
        all.extend_from_slice(&items[..count]);
    }
    all
}

/// Kinds of features whose scores are hard to compare: nearly equal, or far apart.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Small integers: most scores are ties.
    Whole,
    /// Like a model's features.
    Features,
    /// Copies of two rows, each with one value at most an ulp away.
    Ulps,
    /// Subnormal numbers.
    Denormal,
    /// Rows scaled by powers of two, up to the ends of the range.
    Scales,
    /// f16 values.
    Halves,
    /// Rows that differ in the last bits only.
    Collapsed,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Whole,
        Kind::Features,
        Kind::Ulps,
        Kind::Denormal,
        Kind::Scales,
        Kind::Halves,
        Kind::Collapsed,
    ])
}

/// Rows of `kind`; a fraction of them copies of other rows, or zeros.
fn rows(kind: Kind, num_rows: usize, dimension: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix64(seed);
    let mut next = move || random.bits();
    let mut values: Vec<f32> = vec![];
    for row in 0..num_rows {
        let copied = (next() % row.max(1) as u64) as usize;
        match next() % 8 {
            0 if row > 0 => values.extend_from_within(copied * dimension..(copied + 1) * dimension),
            1 => values.resize(values.len() + dimension, 0.0),
            _ => {
                let scale = 2f32.powi((next() % 240) as i32 - 120);
                let odd_one = (next() % dimension as u64) as usize;
                let origin = (next() % 2) as usize;
                for column in 0..dimension {
                    let even = (next() % 2001) as f32 / 1000.0 - 1.0;
                    values.push(match kind {
                        Kind::Whole => (next() % 5) as f32 - 2.0,
                        Kind::Features => even / (dimension as f32).sqrt(),
                        Kind::Ulps => {
                            let value = [0.3f32, 0.7][origin] + column as f32 / 7.0;
                            if column == odd_one {
                                [value.next_up(), value, value.next_down()][next() as usize % 3]
                            } else {
                                value
                            }
                        }
                        Kind::Denormal => f32::from_bits(next() as u32 & 0x8000_03ff),
                        Kind::Scales => even * scale,
                        Kind::Halves => half::f16::from_f32(even).to_f32(),
                        Kind::Collapsed => 1.0 + even * 1e-6,
                    });
                }
            }
        }
    }
    values
}

fn tiles() -> impl Strategy<Value = Tiles> {
    (1usize..4, 1usize..4).prop_map(|(queries, gallery)| Tiles {
        queries: queries * 12,
        gallery: gallery * 32,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn equals_a_dense_oracle_for_every_tile(
        (kinds, seed, tiles) in ((kind(), kind()), any::<u64>(), tiles()),
        (num_queries, num_gallery, dimension) in (1usize..40, 1usize..70, 1usize..40),
        pairs in prop::collection::vec((any::<u32>(), any::<u32>()), 1..60),
        threads in 1usize..3,
    ) {
        let queries = rows(kinds.0, num_queries, dimension, seed);
        let gallery = rows(kinds.1, num_gallery, dimension, seed ^ (seed % 2));
        let pairs = pairs.iter().map(|&(query, item)| (query % num_queries as u32, item % num_gallery as u32));
        let job = Job {
            queries: &Features::of(&queries, dimension),
            gallery: &Features::of(&gallery, dimension),
            pairs: &Pairs::new(num_queries, num_gallery, pairs.collect()).unwrap(),
        };
        let expected = oracle(&job);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let found = pool.install(|| count_with(&job, tiles, &mut |_| true)).unwrap();
        prop_assert_eq!(&found.to_gallery.entries, &expected[0]);
        prop_assert_eq!(&found.to_query.entries, &expected[1]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn recall_and_neighbours_equal_a_dense_oracle(
        (kinds, seed) in ((kind(), kind()), any::<u64>()),
        (num_queries, num_gallery, dimension, count) in (1usize..20, 1usize..50, 1usize..20, 1usize..6),
        pairs in prop::collection::vec((any::<u32>(), any::<u32>()), 1..30),
    ) {
        let queries = rows(kinds.0, num_queries, dimension, seed);
        let gallery = rows(kinds.1, num_gallery, dimension, seed ^ (seed % 2));
        let pairs = pairs.iter().map(|&(query, item)| (query % num_queries as u32, item % num_gallery as u32));
        let job = Job {
            queries: &Features::of(&queries, dimension),
            gallery: &Features::of(&gallery, dimension),
            pairs: &Pairs::new(num_queries, num_gallery, pairs.collect()).unwrap(),
        };
        let options = Options { rule: Rule::Recall, memory_bytes: None, neighbours: count };
        let (mut told, count) = (vec![], count.min(num_gallery));
        let found = rank(Engine::Cpu, &job, &options, &mut |progress| {
            told.push(progress);
            true
        }).unwrap();
        let expected = oracle_of_recall(&job);
        prop_assert_eq!(&found.to_gallery.entries, &expected[0]);
        prop_assert_eq!(&found.to_query.entries, &expected[1]);
        let neighbours = found.neighbours.unwrap();
        prop_assert_eq!(neighbours.items, oracle_of_neighbours(&job, count));
        let tiles = Tiles { queries: 12, gallery: 32 };
        let in_parts = neighbours::neighbours(&job, tiles, count, &mut |_| true).unwrap();
        prop_assert_eq!(in_parts.items, oracle_of_neighbours(&job, count));
        let last = told.last().unwrap();
        prop_assert_eq!(last.done, last.total);
    }

    #[test]
    fn a_limit_is_kept_or_refused_with_what_would_do(
        (num_queries, num_gallery, dimension) in (1usize..5000, 1usize..5000, 1usize..100),
        limit in 0u64..4_000_000,
    ) {
        let queries = vec![0.0; num_queries * dimension];
        let gallery = vec![0.0; num_gallery * dimension];
        let job = Job {
            queries: &Features::of(&queries, dimension),
            gallery: &Features::of(&gallery, dimension),
            pairs: &Pairs::new(num_queries, num_gallery, vec![]).unwrap(),
        };
        let within = |limit: u64| {
            let options = Options { memory_bytes: Some(limit), ..Options::default() };
            Tiling::new(&job, &options)
        };
        match within(limit) {
            Ok(tiling) => prop_assert!(tiling.held_bytes <= limit),
            Err(RetrievalError::DoesNotFit { needed_bytes, limit_bytes }) => {
                prop_assert_eq!(limit_bytes, limit);
                prop_assert!(needed_bytes > limit);
                prop_assert_eq!(within(needed_bytes).unwrap().held_bytes, needed_bytes);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_value_that_is_not_finite_is_named() {
    for (bad, name) in [
        (f32::NAN, "NaN"),
        (f32::INFINITY, "inf"),
        (f32::NEG_INFINITY, "-inf"),
    ] {
        let mut gallery = vec![1.0; 3 * 20];
        gallery[2 * 20 + 17] = bad;
        let job = Job {
            queries: &Features::of(&[1.0; 40], 20),
            gallery: &Features::of(&gallery, 20),
            pairs: &Pairs::new(2, 3, vec![(0, 0), (1, 1)]).unwrap(),
        };
        for rule in [Rule::Best, Rule::Recall] {
            let options = Options {
                rule,
                ..Options::default()
            };
            let error = rank(Engine::Cpu, &job, &options, &mut |_| true).unwrap_err();
            let text = format!("gallery item 2, value 17: expected a finite number, found {name}");
            assert_eq!(error.to_string(), text);
        }
    }
}

/// The first GPU. Without a GPU nothing is tested, and the message says so.
fn card() -> Option<Cuda> {
    use std::io::Write;
    if !matches!(holdall_device::cuda::count(), Ok(1..)) {
        assert!(
            std::env::var_os("HOLDALL_REQUIRE_GPU").is_none(),
            "HOLDALL_REQUIRE_GPU is set, and there is no GPU"
        );
        let line = "SKIPPED: ranks were not counted on a GPU: there is none";
        writeln!(std::io::stderr(), "{line}").expect("stderr can be written");
        return None;
    }
    Some(Cuda::open(0).expect("the first GPU opens"))
}

#[test]
fn a_card_finds_what_the_oracle_finds() {
    let Some(card) = card() else { return };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for case in 0..400 {
        let strategy = (
            kind(),
            kind(),
            any::<u64>(),
            1usize..200,
            1usize..300,
            1usize..70,
        );
        let (of_queries, of_gallery, seed, num_queries, num_gallery, dimension) =
            strategy.new_tree(&mut runner).unwrap().current();
        let queries = rows(of_queries, num_queries, dimension, seed);
        let gallery = rows(of_gallery, num_gallery, dimension, seed ^ (seed % 2));
        let pairs = (0..num_queries as u64 + 20).map(|pair| {
            let mixed = (pair ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (
                (mixed >> 40) as u32 % num_queries as u32,
                (mixed >> 16) as u32 % num_gallery as u32,
            )
        });
        let job = Job {
            queries: &Features::of(&queries, dimension),
            gallery: &Features::of(&gallery, dimension),
            pairs: &Pairs::new(num_queries, num_gallery, pairs.collect()).unwrap(),
        };
        let expected = oracle(&job);
        // Both kinds of products, if the card has both.
        let ranks = match case % 2 {
            0 => Ranks::new(&card).unwrap(),
            _ => Ranks::narrow(&card).unwrap(),
        };
        let mut on_gpu = OnGpu::with(ranks, &card, &job, &Options::default()).unwrap();
        let found = on_gpu.rank(&mut |_| true).unwrap();
        assert!(on_gpu.is_resident());
        assert_eq!(
            found.to_gallery.entries, expected[0],
            "case {case}: {of_queries:?} {of_gallery:?}"
        );
        assert_eq!(
            found.to_query.entries, expected[1],
            "case {case}: {of_queries:?} {of_gallery:?}"
        );
    }
}

// Several tiles, lists that overflow, blocks that do not fit at once.
#[test]
fn a_card_finds_what_the_cpu_finds() {
    let Some(card) = card() else { return };
    let kinds = [
        Kind::Features,
        Kind::Collapsed,
        Kind::Ulps,
        Kind::Whole,
        Kind::Halves,
        Kind::Scales,
        Kind::Denormal,
    ];
    for kind in kinds {
        let (num_queries, num_gallery, dimension) = (20_000, 700, 40);
        let queries = rows(kind, num_queries, dimension, 3);
        let gallery = rows(kind, num_gallery, dimension, 4);
        let gallery_of: Vec<u32> = (0..num_queries as u32)
            .map(|query| query.wrapping_mul(2_654_435_761) % num_gallery as u32)
            .collect();
        let job = Job {
            queries: &Features::of(&queries, dimension),
            gallery: &Features::of(&gallery, dimension),
            pairs: &Pairs::one_each(&gallery_of, num_gallery).unwrap(),
        };
        let expected = rank(Engine::Cpu, &job, &Options::default(), &mut |_| true).unwrap();
        let limits = [
            None,
            Some(Ranks::work_bytes(4096, 400, dimension) + (1 << 20)),
        ];
        for (memory_bytes, narrow) in [(limits[0], false), (limits[0], true), (limits[1], false)] {
            let options = Options {
                memory_bytes,
                ..Options::default()
            };
            let ranks = if narrow {
                Ranks::narrow(&card).unwrap()
            } else {
                Ranks::new(&card).unwrap()
            };
            let mut on_gpu = OnGpu::with(ranks, &card, &job, &options).unwrap();
            assert_eq!(on_gpu.is_resident(), memory_bytes.is_none());
            let found = on_gpu.rank(&mut |_| true).unwrap();
            println!("{kind:?}, limit {memory_bytes:?}: {:?}", found.decided);
            assert_eq!(
                found.to_gallery, expected.to_gallery,
                "{kind:?} {memory_bytes:?}"
            );
            assert_eq!(
                found.to_query, expected.to_query,
                "{kind:?} {memory_bytes:?}"
            );
        }
    }
}

fn found(queries: &[f32], gallery: &[f32], dimension: usize, gallery_of: &[u32]) -> Found {
    let pairs = Pairs::one_each(gallery_of, gallery.len() / dimension).unwrap();
    let job = Job {
        queries: &Features::of(queries, dimension),
        gallery: &Features::of(gallery, dimension),
        pairs: &pairs,
    };
    rank(Engine::Cpu, &job, &Options::default(), &mut |_| true).unwrap()
}

#[test]
fn features_that_are_all_alike_rank_by_the_policy() {
    let alike = found(&[1.0; 4], &[1.0; 4], 1, &[0, 1, 2, 3]);
    for (ties, mean) in [
        (Ties::Optimistic, 1.0),
        (Ties::Mean, 2.5),
        (Ties::Pessimistic, 4.0),
    ] {
        assert_eq!(alike.to_gallery.ranks(ties).mean_rank, mean);
        assert_eq!(alike.to_query.ranks(ties).mean_rank, mean);
    }
    assert_eq!(alike.to_gallery.num_tied(), 4);
}
