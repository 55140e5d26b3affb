//! Collectives over loopback, against serial arithmetic.

use std::time::Duration;

use proptest::prelude::*;

use crate::testing::{loopback, loopback_with};
use crate::{Deadlines, Group, GroupError};

/// Runs `work` as every rank of a group, each in its thread.
fn as_ranks<T: Send>(size: usize, work: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let groups = loopback(size);
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| {
                scope.spawn(|| {
                    let group = group;
                    work(&group)
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

/// Numbers whose sums depend on the order of addition.
fn numbers(rank: usize, len: usize) -> Vec<f32> {
    let mut random = holdall_files::SplitMix64(rank as u64 + 1);
    let one = |_| (random.unit() as f32 - 0.5) * 10f32.powi((random.bits() % 9) as i32 - 4);
    (0..len).map(one).collect()
}

fn serial_sum(size: usize, len: usize) -> Vec<f32> {
    let mut sum = numbers(0, len);
    for rank in 1..size {
        for (sum, more) in sum.iter_mut().zip(numbers(rank, len)) {
            *sum += more;
        }
    }
    sum
}

#[test]
fn small_messages_come_in_rank_order() {
    for size in 1..=4 {
        let all = as_ranks(size, |group| {
            let own = vec![group.rank() as u8; group.rank() * 3];
            let shared = group.share(&own).unwrap();
            let mut said = format!("of {}", group.rank()).into_bytes();
            group.broadcast(&mut said).unwrap();
            let mut sums = [1.0, group.rank() as f64];
            group.sum(&mut sums).unwrap();
            (shared, said, sums)
        });
        let expected: Vec<Vec<u8>> = (0..size).map(|rank| vec![rank as u8; rank * 3]).collect();
        for (shared, said, sums) in all {
            assert_eq!(shared, expected);
            assert_eq!(said, b"of 0");
            assert_eq!(sums, [size as f64, (size * (size - 1) / 2) as f64]);
        }
    }
}

#[test]
fn a_failure_is_told_to_all() {
    let errors = as_ranks(3, |group| {
        if group.rank() == 1 {
            group.fail("the disk is full");
        }
        let error = group.share(&[]).unwrap_err();
        assert_eq!(group.all_gather(&mut [0; 3]).unwrap_err(), error);
        assert_eq!(group.error(), Some(error.clone()));
        error
    });
    for error in errors {
        let message = "the disk is full".to_owned();
        let host = "loopback".to_owned();
        assert_eq!(
            error,
            GroupError::Failed {
                rank: 1,
                host,
                message
            }
        );
    }
}

#[test]
fn who_leaves_early_is_named() {
    let errors = as_ranks(3, |group| match group.rank() {
        2 => None,
        _ => Some(group.share(&[]).unwrap_err().to_string()),
    });
    for error in errors.into_iter().flatten() {
        assert!(error.starts_with("lost rank 2 on loopback"), "{error}");
    }
}

/// Rank 2 is alive and does not call: rank 0 reports it to all.
#[test]
fn who_is_alive_and_does_not_come_is_named() {
    let deadlines = Deadlines {
        // Heartbeats, which carry each process's call count, come every half second.
        silence: Duration::from_secs(3),
        stall: Duration::from_millis(1500),
        ..Deadlines::default()
    };
    type Call = fn(&Group) -> Result<(), GroupError>;
    let calls: [Call; 2] = [
        |group| group.share(&[]).map(|_| ()),
        |group| group.all_gather(&mut [0; 3]),
    ];
    for call in calls {
        let mut groups = loopback_with(3, deadlines);
        let third = groups.pop().unwrap();
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| std::thread::spawn(move || call(&group).unwrap_err().to_string()))
            .collect();
        for thread in threads {
            let error = thread.join().unwrap();
            let expected =
                "lost rank 2 on loopback: it is alive, but the others have waited 1.5 s for it";
            assert!(error.starts_with(expected), "{error}");
        }
        drop(third);
    }
}

/// Rank 1 reads from a disk that hangs: it reports itself, long before the others give it up.
#[test]
fn who_hangs_within_small_parts_of_work_is_named_soon() {
    let deadlines = Deadlines {
        silence: Duration::from_secs(3),
        ..Deadlines::default()
    };
    let mut groups = loopback_with(3, deadlines);
    let third = groups.pop().unwrap();
    let hanging = groups.pop().unwrap();
    let _progressing = hanging.expect_progress();
    let waiting: Vec<_> = [groups.pop().unwrap(), third]
        .into_iter()
        .map(|group| std::thread::spawn(move || group.share(&[]).unwrap_err().to_string()))
        .collect();
    for thread in waiting {
        let error = thread.join().unwrap();
        let expected =
            "lost rank 1 on loopback: it is alive, but nothing in it has gone on for 3 s";
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(hanging.hangs());
}

/// None of these hangs: work in small parts, waiting for other processes, work without parts.
#[test]
fn who_is_slow_does_not_hang() {
    // Longer than a busy machine keeps a thread from running.
    let silence = Duration::from_secs(3);
    let deadlines = Deadlines {
        silence,
        ..Deadlines::default()
    };
    let slow: [fn(&Group, Duration); 3] = [
        |group, silence| {
            let _progressing = group.expect_progress();
            for _ in 0..40 {
                std::thread::sleep(silence / 20);
                group.goes_on();
            }
        },
        |group, silence| {
            let _progressing = group.expect_progress();
            let _saving = group.expect_no_progress();
            std::thread::sleep(2 * silence);
        },
        |_, silence| std::thread::sleep(2 * silence),
    ];
    let groups = slow.map(|slow| {
        loopback_with(2, deadlines)
            .into_iter()
            .map(move |group| (slow, group))
    });
    let threads: Vec<_> = groups
        .into_iter()
        .flatten()
        .map(|(slow, group)| {
            std::thread::spawn(move || {
                let _progressing = (group.rank() == 0).then(|| group.expect_progress());
                if group.rank() == 1 {
                    slow(&group, silence);
                }
                group.share(&[]).map(|_| ())
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn sums_are_those_of_rank_order(
        size in 1usize..=4,
        lengths in proptest::collection::vec(prop_oneof![0usize..9, 0usize..700_000], 0..5),
    ) {
        let len = lengths.iter().sum();
        let expected: Vec<u32> = serial_sum(size, len).iter().map(|sum| sum.to_bits()).collect();
        for sums in as_ranks(size, |group| {
            let mut own = numbers(group.rank(), len);
            let mut rest = own.as_mut_slice();
            let mut slices = Vec::new();
            for &length in &lengths {
                let (slice, behind) = rest.split_at_mut(length);
                slices.push(slice);
                rest = behind;
            }
            group.all_reduce_f32(&mut slices).unwrap();
            own.iter().map(|sum| sum.to_bits()).collect::<Vec<u32>>()
        }) {
            prop_assert_eq!(&sums, &expected);
        }
    }

    #[test]
    fn slices_become_those_of_their_owners(
        size in 1usize..=4,
        slices in proptest::collection::vec((0usize..4, prop_oneof![0usize..9, 0usize..700_000]), 0..5),
    ) {
        let owners: Vec<usize> = slices.iter().map(|(owner, _)| owner % size).collect();
        let number = |owner: usize, slice: usize, at: usize| (owner * 31 + slice * 7 + at) as f32;
        for found in as_ranks(size, |group| {
            let mut own: Vec<Vec<f32>> = slices.iter().enumerate().map(|(slice, &(_, len))| {
                (0..len).map(|at| number(group.rank(), slice, at)).collect()
            }).collect();
            let mut all: Vec<&mut [f32]> = own.iter_mut().map(Vec::as_mut_slice).collect();
            group.take_from_owners(&mut all, &owners).unwrap();
            own
        }) {
            for (slice, values) in found.iter().enumerate() {
                let is_owners = |(at, value): (usize, &f32)| *value == number(owners[slice], slice, at);
                prop_assert!(values.iter().enumerate().all(is_owners));
            }
        }
    }

    #[test]
    fn parts_come_in_rank_order(
        size in 1usize..=4,
        part in prop_oneof![0usize..9, 0usize..3_000_000],
        lengths in proptest::collection::vec(prop_oneof![0usize..9, 0usize..3_000_000], 4),
    ) {
        let byte = |rank: usize, at: usize| (rank * 101 + at * 7 + at / 256) as u8;
        let bytes = |rank: usize, len: usize| (0..len).map(move |at| byte(rank, at));
        let expected: Vec<u8> = (0..size).flat_map(|rank| bytes(rank, part)).collect();
        let rows: Vec<Vec<u8>> = (0..size).map(|rank| bytes(rank, lengths[rank]).collect()).collect();
        for (gathered, theirs) in as_ranks(size, |group| {
            let mut parts = vec![0; size * part];
            let own = group.rank() * part;
            parts[own..own + part].copy_from_slice(&expected[own..own + part]);
            group.all_gather(&mut parts).unwrap();
            (parts, group.gather_bytes(&rows[group.rank()]).unwrap())
        }) {
            prop_assert!(gathered == expected);
            prop_assert!(theirs == rows);
        }
    }
}
