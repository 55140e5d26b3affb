use std::collections::HashSet;
use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};

use super::*;
use crate::config::PairAugment;
use crate::decode::Framing;
use crate::samples::{Companions, SamplesBuilder, Sampling};
use crate::segmentation::{Fit, MaskCoding, PixelDepth, RowShape};

const SIZE: u32 = 8;
const BYTES: usize = (SIZE * SIZE) as usize * 3;

/// Pictures, each in a colour of its own; those that `is_bad` selects are truncated.
fn pictures(folder: &Path, count: usize, is_bad: impl Fn(usize) -> bool) -> Arc<Samples> {
    let mut builder = SamplesBuilder::new(folder.to_owned());
    for index in 0..count {
        let name = format!("{index}.png");
        let colour = Rgb([index as u8, 2 * index as u8, 200]);
        let picture = RgbImage::from_fn(
            12,
            10,
            |x, y| if x == y { Rgb([255, 0, 0]) } else { colour },
        );
        let path = folder.join(&name);
        picture.save(&path).unwrap();
        if is_bad(index) {
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        }
        builder.push(&name, Some("a picture"), index as u32 + 2);
    }
    Arc::new(builder.finish(Vec::new()))
}

fn rows(count: usize) -> Vec<Vec<u8>> {
    vec![vec![0; BYTES]; count]
}

fn training(batch: usize, from: Cursor, until: u64) -> (Course, View) {
    let course = Course::Epochs(Epochs {
        seed: 5,
        sampling: Sampling::Shuffle,
        batch,
        share: Share::default(),
        from,
        until,
    });
    (course, View::Training { seed: 5 })
}

fn format() -> PictureFormat {
    PictureFormat {
        framing: Framing::clip(SIZE),
        augment: Augment {
            crop: 0.5,
            flip: true,
            ..Augment::default()
        },
        decode: Decode::Full,
    }
}

/// Samples, pixels and skipped samples of a batch.
type Batch = (Vec<u32>, Vec<Vec<u8>>, Vec<u32>);

fn seen(
    samples: &Arc<Samples>,
    (course, view): (Course, View),
    num_rows: usize,
    workers: Workers,
    count: usize,
) -> Vec<Batch> {
    let mut loader =
        Loader::new(rows(num_rows), format(), workers, Allowance::unlimited()).unwrap();
    loader.begin(Arc::clone(samples), course, view);
    let mut batch = Loaded::default();
    let mut seen = Vec::new();
    loop {
        loader.next(count, &mut batch);
        if batch.rows.is_empty() {
            return seen;
        }
        let skipped = batch.skipped.iter().map(|one| one.sample).collect();
        seen.push((batch.samples.clone(), batch.rows.clone(), skipped));
    }
}

#[test]
fn neither_workers_nor_room_change_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 23, |index| index % 7 == 3);
    let course = training(4, Cursor::default(), 3);
    let expected = seen(&samples, course, 4, Workers::exactly(1, 0), 4);
    assert_eq!(expected.len(), 3 * 6);
    for (num_rows, workers) in [
        (4, Workers::exactly(3, 0)),
        (5, Workers::exactly(2, 5)),
        (40, Workers::exactly(4, 40)),
        (
            9,
            Workers {
                least: 1,
                most: 4,
                ahead: 3,
            },
        ),
    ] {
        let other = seen(&samples, course, num_rows, workers, 4);
        assert_eq!(expected, other, "{num_rows} rows, {workers:?}");
    }
    let batches: Vec<usize> = expected.iter().map(|(samples, ..)| samples.len()).collect();
    assert_eq!(batches[..6], [4, 4, 4, 4, 4, 3]);
    let skipped: Vec<u32> = expected
        .iter()
        .flat_map(|(_, _, skipped)| skipped.clone())
        .collect();
    let distinct: HashSet<u32> = skipped.iter().copied().collect();
    assert_eq!((skipped.len(), distinct), (3, HashSet::from([3, 10, 17])));
}

/// With an allowance for exactly one picture: the same pixels, and never more bytes than allowed. With less: every picture is refused by
/// name.
#[test]
fn an_allowance_changes_no_pixel_and_is_never_exceeded() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 9, |_| false);
    let one = crate::decode::cost(&samples.image_path(0), Framing::clip(SIZE)).unwrap();
    let read = |allowed: u64| {
        let allowance = Allowance::new(allowed);
        let workers = Workers::exactly(3, 4);
        let mut loader =
            Loader::new(rows(9), Framing::clip(SIZE), workers, allowance.clone()).unwrap();
        loader.begin(
            Arc::clone(&samples),
            Course::Once(Share::default()),
            View::Evaluation,
        );
        let mut batch = Loaded::default();
        loader.next(9, &mut batch);
        assert!(allowance.most_claimed_bytes() <= allowed);
        (
            std::mem::take(&mut batch.rows),
            std::mem::take(&mut batch.skipped),
        )
    };
    let (expected, none) = read(u64::MAX);
    assert_eq!((expected.len(), none.len()), (9, 0));
    assert_eq!(read(one.bytes + 1024).0, expected);
    assert_eq!(read(3 * one.bytes).0, expected);
    let (rows, skipped) = read(one.bytes / 2);
    assert_eq!((rows.len(), skipped.len()), (0, 9));
    let error = skipped[0].error.to_string();
    assert!(
        error.contains("0.png: 12 x 10 pixels take ") && error.contains("hint: "),
        "{error}"
    );
}

/// The FIFO has no writer, and the pictures after it are still read.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_left_out_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 6, |_| false);
    for name in ["1.png", "3.png", "4.png"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let made = std::process::Command::new("mkfifo")
        .arg(folder.path().join("1.png"))
        .status();
    assert!(made.unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("3.png")).unwrap();
    fs::create_dir(folder.path().join("4.png")).unwrap();
    let workers = Workers::exactly(1, 0);
    let mut loader = Loader::new(
        rows(6),
        Framing::clip(SIZE),
        workers,
        Allowance::unlimited(),
    )
    .unwrap();
    loader.begin(samples, Course::Once(Share::default()), View::Evaluation);
    let mut batch = Loaded::default();
    loader.next(6, &mut batch);
    assert_eq!(batch.samples, [0, 2, 5]);
    let found: Vec<(u32, String)> = batch
        .skipped
        .iter()
        .map(|one| (one.sample, one.error.to_string()))
        .collect();
    for ((sample, text), (expected, found)) in
        found
            .iter()
            .zip([(1, "a FIFO"), (3, "a device"), (4, "a folder")])
    {
        assert!(*sample == expected && text.contains(found), "{text}");
    }
}

/// A wait for pictures that never arrive can be stopped.
#[test]
fn a_wait_ends_with_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 4, |_| false);
    let allowance = Allowance::new(1 << 30);
    let mut all = allowance.claim();
    assert!(all.try_grow(1 << 30));
    let mut loader = Loader::new(
        rows(4),
        Framing::clip(SIZE),
        Workers::exactly(2, 0),
        allowance,
    )
    .unwrap();
    loader.begin(samples, Course::Once(Share::default()), View::Evaluation);
    let stop = AtomicBool::new(false);
    let mut batch = Loaded::default();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(80));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        loader.next_interruptible(&stop, 4, &mut batch);
    });
    assert!(batch.rows.is_empty() && batch.skipped.is_empty());
    all.give_back();
}

#[test]
fn a_cursor_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 17, |index| index % 5 == 0);
    let workers = Workers::exactly(2, 6);
    let whole = seen(&samples, training(3, Cursor::default(), 2), 9, workers, 3);
    assert_eq!(whole.len(), 12);
    for done in 1..whole.len() {
        let from = Cursor::after(done as u64, 6);
        let rest = seen(&samples, training(3, from, 2), 9, workers, 3);
        let pixels = |seen: &[Batch]| -> Vec<_> {
            seen.iter()
                .map(|(samples, rows, _)| (samples.clone(), rows.clone()))
                .collect()
        };
        assert_eq!(
            pixels(&whole[done..]),
            pixels(&rest),
            "after {done} batches"
        );
    }
}

/// Three processes, each with its own loader, read the batches of one; each broken picture is reported by the process that read it.
#[test]
fn loaders_of_several_processes_read_the_batches_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 17, |index| index % 5 == 0);
    let (course, view) = training(5, Cursor::default(), 2);
    let workers = Workers::exactly(2, 6);
    let whole = seen(&samples, (course, view), 9, workers, 5);
    let Course::Epochs(epochs) = course else {
        unreachable!("made above");
    };
    let shares: Vec<Vec<Batch>> = (0..3)
        .map(|rank| {
            let share = Share { rank, count: 3 };
            let course = Course::Epochs(Epochs { share, ..epochs });
            let room = Allowance::unlimited();
            let mut loader = Loader::new(rows(3), format(), workers, room).unwrap();
            loader.begin(Arc::clone(&samples), course, view);
            let mut batch = Loaded::default();
            let mut next = || {
                loader.next(2, &mut batch);
                let skipped = batch.skipped.iter().map(|one| one.sample).collect();
                (batch.samples.clone(), batch.rows.clone(), skipped)
            };
            whole.iter().map(|_| next()).collect()
        })
        .collect();
    assert!(shares[0][3].0.is_empty(), "the tail has two places");
    let mut skipped = HashSet::new();
    for (at, (samples, rows, _)) in whole.iter().enumerate() {
        let all = || shares.iter().map(|share| &share[at]);
        let joined: Vec<u32> = all().flat_map(|(samples, ..)| samples.clone()).collect();
        assert_eq!(&joined, samples, "batch {at}");
        let joined: Vec<Vec<u8>> = all().flat_map(|(_, rows, _)| rows.clone()).collect();
        assert_eq!(&joined, rows, "batch {at}");
        skipped.extend(all().flat_map(|(_, _, skipped)| skipped.clone()));
    }
    assert_eq!(skipped, HashSet::from([0, 5, 10, 15]));
}

#[test]
fn evaluation_leaves_out_what_cannot_be_read_and_training_goes_on_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 11, |index| [0, 4, 10].contains(&index));
    let others = pictures(tempfile::tempdir().unwrap().path(), 2, |_| false);
    let mut loader = Loader::new(
        rows(6),
        Framing::clip(SIZE),
        Workers::exactly(2, 3),
        Allowance::unlimited(),
    )
    .unwrap();
    let mut batch = Loaded::default();
    for round in 0..2 {
        let (course, view) = training(3, Cursor::default(), 9);
        loader.begin(Arc::clone(&samples), course, view);
        loader.next(3, &mut batch);
        let trained = batch.samples.clone();
        loader.begin(
            Arc::clone(&samples),
            Course::Once(Share::default()),
            View::Evaluation,
        );
        let mut read = Vec::new();
        loop {
            loader.next(3, &mut batch);
            if batch.rows.is_empty() {
                break;
            }
            read.extend(batch.samples.iter().copied());
        }
        assert_eq!(read, [1, 2, 3, 5, 6, 7, 8, 9], "round {round}");
        let (course, view) = training(3, Cursor::default(), 9);
        loader.begin(Arc::clone(&samples), course, view);
        loader.next(3, &mut batch);
        assert_eq!(batch.samples, trained);
    }
    // The folder of these pictures is gone: every picture is missing, and the course ends.
    loader.begin(others, Course::Once(Share::default()), View::Evaluation);
    loader.next(3, &mut batch);
    assert!(batch.rows.is_empty());
    assert_eq!(batch.skipped.len(), 2);
    assert!(matches!(
        batch.skipped[0].error,
        DataError::PictureMissing { .. }
    ));
}

#[test]
fn what_is_known_to_be_broken_is_neither_read_nor_told_again() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 6, |index| index == 2);
    let mut loader = Loader::new(
        rows(6),
        Framing::clip(SIZE),
        Workers::exactly(1, 0),
        Allowance::unlimited(),
    )
    .unwrap();
    loader.leave_out(&samples, [2, 5]);
    loader.begin(
        Arc::clone(&samples),
        Course::Once(Share::default()),
        View::Evaluation,
    );
    let mut batch = Loaded::default();
    loader.next(6, &mut batch);
    assert_eq!(batch.samples, [0, 1, 3, 4]);
    assert!(batch.skipped.is_empty());
}

#[test]
fn an_epoch_that_is_one_step_ends_although_something_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 5, |index| index == 1);
    let (course, _) = training(8, Cursor::default(), 3);
    for ahead in [0, 5] {
        let workers = Workers::exactly(2, ahead);
        let seen = seen(&samples, (course, View::Evaluation), 8, workers, 8);
        let sizes: Vec<usize> = seen.iter().map(|(samples, ..)| samples.len()).collect();
        assert_eq!(sizes, [4, 4, 4]);
    }
}

#[test]
fn time_is_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let samples = pictures(folder.path(), 30, |_| false);
    let mut loader = Loader::new(
        rows(4),
        Framing::clip(SIZE),
        Workers::exactly(2, 2),
        Allowance::unlimited(),
    )
    .unwrap();
    loader.begin(samples, Course::Once(Share::default()), View::Evaluation);
    let mut batch = Loaded::default();
    while {
        loader.next(2, &mut batch);
        !batch.rows.is_empty()
    } {}
    let waits = loader.waits();
    assert_eq!((waits.pictures, waits.workers), (30, 2));
    assert!(waits.reading > 0.0 && waits.for_data <= waits.seconds);
    loader.begin_waits();
    assert_eq!(loader.waits().pictures, 0);
}

/// Pairs of pictures of different sizes, for a loader that pads them.
fn pairs(folder: &Path, count: usize) -> (Arc<Samples>, PairFraming) {
    let mut builder = SamplesBuilder::new(folder.to_owned());
    for index in 0..count {
        let (image, mask) = (format!("{index}.png"), format!("{index}_mask.png"));
        let side = 8 + index as u32 % 5;
        let picture = RgbImage::from_fn(side, 10, |x, y| Rgb([index as u8, x as u8, y as u8]));
        picture.save(folder.join(&image)).unwrap();
        let classes = image::GrayImage::from_fn(side, 10, |x, y| {
            image::Luma([255 * u8::from((x + y) % 3 == 0)])
        });
        classes.save(folder.join(&mask)).unwrap();
        let companions = Companions {
            mask: Some(&mask),
            ..Companions::default()
        };
        builder.push_with(&image, &companions, index as u32 + 1);
    }
    let framing = PairFraming {
        shape: RowShape {
            height: 16,
            width: 16,
            channels: 3,
            depth: PixelDepth::Eight,
        },
        fit: Fit::Pad,
        coding: Arc::new(MaskCoding::pair(255)),
        augment: PairAugment::default(),
    };
    (Arc::new(builder.finish(Vec::new())), framing)
}

/// With none, some or all of the pairs cached: the same rows, and never more bytes than allowed.
#[test]
fn pairs_that_stay_in_memory_change_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let (samples, framing) = pairs(folder.path(), 12);
    let (course, view) = training(4, Cursor::default(), 3);
    let read = |most_bytes: u64| {
        let rows = vec![vec![0; framing.shape.row_bytes()]; 8];
        let workers = Workers::exactly(2, 4);
        let mut loader =
            Loader::new(rows, framing.clone(), workers, Allowance::unlimited()).unwrap();
        loader.keep_decoded(most_bytes);
        loader.begin(Arc::clone(&samples), course, view);
        let mut batch = Loaded::default();
        let mut seen = Vec::new();
        loop {
            loader.next(4, &mut batch);
            if batch.rows.is_empty() {
                return (seen, loader.kept_bytes());
            }
            assert!(batch.skipped.is_empty(), "{:?}", batch.skipped);
            seen.push((batch.samples.clone(), batch.rows.clone()));
        }
    };
    let all: u64 = (0..samples.len())
        .map(|sample| framing.kept_bytes(&framing.cost(&samples, sample).unwrap()))
        .sum();
    let (expected, kept) = read(0);
    assert_eq!((expected.len(), kept), (9, 0));
    for most_bytes in [all / 3, all] {
        let (seen, kept) = read(most_bytes);
        assert_eq!(seen, expected, "{most_bytes}");
        assert!(kept <= most_bytes && kept > 0, "{kept} of {most_bytes}");
        assert!(most_bytes < all || kept == all, "{kept} of {all}");
    }
}
