//! Drawn clips repeat, are balanced, say what happens in them, and cannot be told by their middle frame.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};

use holdall_sample_data::moving_shapes::{
    Change, ClipFormat, Direction, MovingShapesConfig, MovingShapesError, Story, describe, draw,
    write,
};

fn set_of(count: usize) -> MovingShapesConfig {
    MovingShapesConfig {
        count,
        size: 48,
        frames: 9,
        ..MovingShapesConfig::default()
    }
}

#[test]
fn a_seed_names_one_set() {
    let config = set_of(4);
    let other = MovingShapesConfig {
        seed: 2,
        ..config.clone()
    };
    for index in 0..4 {
        assert_eq!(draw(index, &config), draw(index, &config));
        assert_ne!(draw(index, &config), draw(index, &other));
    }
}

#[test]
fn directions_speeds_and_changes_are_balanced() {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for index in 0..320 {
        let story = describe(index, 0);
        let key = (story.direction, story.speed, story.change.name());
        *counts.entry(key).or_default() += 1;
    }
    assert_eq!(counts.len(), 32);
    assert!(counts.values().all(|count| *count == 10), "{counts:?}");
}

#[test]
fn captions_say_what_happens_and_vary_in_length() {
    let stories: Vec<Story> = (0..200).map(|index| describe(index, 0)).collect();
    let mut lengths = HashSet::new();
    for story in &stories {
        let caption = &story.caption;
        for name in [
            story.shape.name(),
            story.paint.name(),
            story.direction.name(),
        ] {
            assert!(caption.contains(name), "{caption}: {name}");
        }
        if let Change::Colour(then) = story.change {
            assert!(
                caption.contains(then.name()) && then != story.paint,
                "{caption}"
            );
        }
        lengths.insert(caption.split_whitespace().count());
    }
    assert!(lengths.len() > 5, "{lengths:?}");
    let two = stories
        .iter()
        .filter(|story| story.caption.matches('.').count() == 2);
    assert!((30..80).contains(&two.count()));
    let different: HashSet<&str> = stories.iter().map(|story| story.caption.as_str()).collect();
    assert!(different.len() > 150, "{}", different.len());
}

/// Mean place of what differs from the corner's colour, in pixels: where the shape is.
fn place(frame: &[u8], size: usize) -> [f64; 2] {
    let (mut sum, mut weight) = ([0.0, 0.0], 0.0);
    for (at, pixel) in frame.chunks(3).enumerate() {
        let apart: u32 = pixel
            .iter()
            .zip(&frame[..3])
            .map(|(a, b)| u32::from(a.abs_diff(*b)))
            .sum();
        if apart > 120 {
            sum[0] += (at % size) as f64;
            sum[1] += (at / size) as f64;
            weight += 1.0;
        }
    }
    sum.map(|sum| sum / weight)
}

#[test]
fn shapes_go_where_their_caption_says() {
    let config = set_of(40);
    for index in 0..40 {
        let frames = draw(index, &config);
        let [first, last] = [&frames[0], &frames[8]].map(|frame| place(frame, 48));
        let [across, down] = [last[0] - first[0], last[1] - first[1]];
        let (along, aside) = match describe(index, 0).direction {
            Direction::Left => (-across, down),
            Direction::Right => (across, down),
            Direction::Up => (-down, across),
            Direction::Down => (down, across),
        };
        assert!(along > 4.0 && aside.abs() < 4.0, "{index}: {along} {aside}");
    }
}

/// The direction whose clips have a middle frame with the nearest place is no better than chance; the place of the first frame tells more.
#[test]
fn the_middle_frame_does_not_tell_the_direction() {
    let config = set_of(256);
    let count_right = |at: usize| {
        let known: Vec<([f64; 2], Direction)> = (0..256)
            .map(|index| {
                (
                    place(&draw(index, &config)[at], 48),
                    describe(index, 0).direction,
                )
            })
            .collect();
        let right = known
            .iter()
            .enumerate()
            .filter(|(index, (place, direction))| {
                let others = known.iter().enumerate().filter(|(other, _)| other != index);
                let near = others.min_by(|(_, (a, _)), (_, (b, _))| {
                    let apart =
                        |p: &[f64; 2]| (p[0] - place[0]).powi(2) + (p[1] - place[1]).powi(2);
                    apart(a).total_cmp(&apart(b))
                });
                near.is_some_and(|(_, (_, found))| found == direction)
            });
        right.count()
    };
    // Chance is 64 of 256, with a deviation of 7.
    let (middle, first) = (count_right(4), count_right(0));
    assert!(middle < 64 + 21, "{middle}");
    assert!(first > 64 + 28, "{first}");
}

#[test]
fn a_folder_holds_one_set_in_any_format() {
    for (format, name) in [
        (ClipFormat::Frames, "clips/000004/08.jpg"),
        (ClipFormat::Gif, "clips/000004.gif"),
        (ClipFormat::Avi, "clips/000004.avi"),
        (ClipFormat::Npy, "clips/000004.npy"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = MovingShapesConfig {
            format,
            ..set_of(5)
        };
        let written = write(folder.path(), &config, |_| true).unwrap().unwrap();
        assert_eq!((written.num_train, written.num_validation), (4, 1));
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        write(folder.path(), &config, |_| true).unwrap().unwrap();
        assert_eq!(std::fs::read(folder.path().join(name)).unwrap(), bytes);
        let csv = std::fs::read_to_string(&written.labels).unwrap();
        assert!(csv.starts_with("video,caption,split,direction,"), "{csv}");
        assert_eq!(
            csv.lines()
                .filter(|line| line.contains(",validation,"))
                .count(),
            1
        );
        let other = MovingShapesConfig { seed: 9, ..config };
        let refused = write(folder.path(), &other, |_| true).unwrap_err();
        assert!(matches!(refused, MovingShapesError::OtherSet(_)));
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(write(folder.path(), &set_of(5), |_| false).unwrap(), None);
}
