//! Drawn vessels repeat, show the same eye at every size, and cannot be told from the rest by one threshold.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use holdall_sample_data::vessels::{
    Condition, ThresholdSearch, VesselsConfig, VesselsError, condition, draw, write,
};

fn set_of(count: usize, size: u32) -> VesselsConfig {
    VesselsConfig {
        count,
        size,
        seed: 7,
    }
}

fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for part in ["train", "test"] {
        for kind in ["Original", "Ground truth"] {
            for entry in std::fs::read_dir(folder.join(part).join(kind)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn a_seed_names_one_set() {
    let config = set_of(4, 96);
    let other = VesselsConfig {
        seed: 8,
        ..config.clone()
    };
    for index in 0..4 {
        assert_eq!(draw(index, &config), draw(index, &config));
        assert_ne!(draw(index, &config).mask, draw(index, &other).mask);
    }
}

#[test]
fn a_mask_is_of_two_values_and_has_vessels_inside_the_field_of_view_alone() {
    for index in 0..8 {
        let fundus = draw(index, &set_of(8, 256));
        assert!(fundus.mask.iter().all(|&value| value == 0 || value == 255));
        let share = fundus.mask.iter().filter(|&&value| value != 0).count() as f64 / 65_536.0;
        assert!((0.03..0.25).contains(&share), "{share} of picture {index}");
        // Corners are black, the middle is not, and no vessel lies on black.
        let is_black = |at: usize| fundus.pixels[3 * at..][..3].iter().all(|&value| value < 12);
        assert!(is_black(0) && !is_black(128 * 256 + 128));
        let lost = (0..65_536).filter(|&at| fundus.mask[at] != 0 && is_black(at));
        assert!(lost.count() < 40, "picture {index}");
    }
}

#[test]
fn another_size_shows_the_same_eye() {
    let (small, large) = (draw(2, &set_of(4, 256)), draw(2, &set_of(4, 512)));
    let mut both = 0;
    let mut either = 0;
    for row in 0..256 {
        for column in 0..256 {
            let is_small = small.mask[row * 256 + column] != 0;
            let corner = 2 * row * 512 + 2 * column;
            let pixels = [corner, corner + 1, corner + 512, corner + 513];
            let num_large = pixels.iter().filter(|&&at| large.mask[at] != 0).count();
            both += usize::from(is_small && num_large >= 2);
            either += usize::from(is_small || num_large >= 2);
        }
    }
    assert!(both as f64 > 0.6 * either as f64, "{both} of {either}");
}

#[test]
fn conditions_are_balanced_and_sizes_bounded() {
    let config = set_of(40, 64);
    for start in (0..40).step_by(4) {
        let letters = |index: usize| condition(index, &config).letter();
        let mut run: Vec<char> = (start..start + 4).map(letters).collect();
        run.sort_unstable();
        assert_eq!(run, ['A', 'D', 'G', 'N']);
    }
    assert_eq!(Condition::Normal.letter(), 'N');
    for (asked, size) in [(0, 64), (70, 70)] {
        let fundus = draw(1, &set_of(4, asked));
        assert_eq!(
            (fundus.size, fundus.mask.len()),
            (size, (size * size) as usize)
        );
        assert_eq!(fundus.pixels.len(), 3 * fundus.mask.len());
    }
}

/// What `docs/segmentation.md` and the demo say: vessels are not simply what is dark.
#[test]
fn no_single_threshold_finds_the_vessels() {
    let config = set_of(8, 256);
    let mut search = ThresholdSearch::default();
    for index in 0..8 {
        let fundus = draw(index, &config);
        search.add(&fundus.pixels, &fundus.mask);
    }
    let best = search.best().unwrap();
    assert!(
        (0.15..0.6).contains(&best.dice),
        "{} with {best}",
        best.dice
    );
}

#[test]
fn a_folder_has_the_layout_of_fives_and_is_drawn_again_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let config = set_of(8, 64);
    let first = write(folder.path(), &config, |_| true).unwrap().unwrap();
    assert_eq!((first.num_train, first.num_test), (6, 2));
    let files = files_of(folder.path());
    assert_eq!(files.len(), 16);
    let name = format!("train/Original/1_{}.png", condition(0, &config).letter());
    let picture = image::load_from_memory(&files[&name]).unwrap().into_rgb8();
    assert_eq!(*picture.as_raw(), draw(0, &config).pixels);
    let masks = files.keys().filter(|name| name.contains("Ground truth"));
    assert_eq!(masks.count(), 8);
    assert_eq!(
        write(folder.path(), &config, |_| true).unwrap().unwrap(),
        first
    );
    assert_eq!(files_of(folder.path()), files);
    let mut search = ThresholdSearch::default();
    search.add_folder(&folder.path().join("test")).unwrap();
    assert!(search.best().unwrap().dice > 0.1);
}

#[test]
fn other_pictures_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("train/Original")).unwrap();
    let error = write(folder.path(), &set_of(4, 64), |_| true).unwrap_err();
    assert!(matches!(&error, VesselsError::OtherSet { .. }), "{error}");
    assert!(!folder.path().join("vessels.json").exists());

    let folder = tempfile::tempdir().unwrap();
    assert!(
        write(folder.path(), &set_of(4, 64), |_| false)
            .unwrap()
            .is_none()
    );
    let error = write(folder.path(), &set_of(5, 64), |_| true)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("another set") && error.contains("hint:"),
        "{error}"
    );
    assert!(
        write(folder.path(), &set_of(4, 64), |_| true)
            .unwrap()
            .is_some()
    );
}
