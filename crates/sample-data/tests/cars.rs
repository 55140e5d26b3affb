//! Drawn cars repeat, are balanced, carry true labels, and cannot be told apart by adding up pixels.

#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::path::Path;

use holdall_sample_data::cars::{CarsConfig, CarsError, Colour, Make, describe, draw, write};

fn set_of(count: usize) -> CarsConfig {
    CarsConfig {
        count,
        ..CarsConfig::default()
    }
}

fn files_of(folder: &Path) -> HashMap<String, Vec<u8>> {
    let images = std::fs::read_dir(folder.join("images")).unwrap();
    images
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(&path).unwrap())
        })
        .collect()
}

#[test]
fn a_seed_names_one_set() {
    let config = set_of(8);
    let other = CarsConfig {
        seed: 2,
        ..config.clone()
    };
    for index in 0..8 {
        assert_eq!(draw(index, &config), draw(index, &config));
        assert_ne!(draw(index, &config).pixels, draw(index, &other).pixels);
    }
}

#[test]
fn facts_are_those_of_the_picture() {
    let config = set_of(8);
    for index in 0..8 {
        assert_eq!(draw(index, &config).facts, describe(index, &config));
    }
}

#[test]
fn pictures_have_the_size_asked_for_within_bounds() {
    for (asked, got) in [(0, 32), (50, 50), (96, 96), (5000, 1024)] {
        let car = draw(
            3,
            &CarsConfig {
                size: asked,
                ..set_of(8)
            },
        );
        assert_eq!(
            (car.size, car.pixels.len()),
            (got, (got * got * 3) as usize)
        );
    }
}

#[test]
fn a_small_set_is_the_beginning_of_a_large_one() {
    let (small, large) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let short = write(small.path(), &set_of(16), |_| true).unwrap().unwrap();
    let long = write(large.path(), &set_of(32), |_| true).unwrap().unwrap();
    let (few, many) = (files_of(small.path()), files_of(large.path()));
    assert_eq!((few.len(), many.len()), (16, 32));
    assert!(few.iter().all(|(name, bytes)| many[name] == *bytes));
    let (start, whole) = (
        std::fs::read_to_string(short.labels),
        std::fs::read_to_string(long.labels),
    );
    assert!(whole.unwrap().starts_with(&start.unwrap()));
}

#[test]
fn labels_are_rows_and_their_pictures_decode() {
    let folder = tempfile::tempdir().unwrap();
    let config = set_of(24);
    let written = write(folder.path(), &config, |_| true).unwrap().unwrap();
    assert_eq!(written.count, 24);
    let mut reader = csv::Reader::from_path(written.labels).unwrap();
    let columns = "image,caption,make,model,body,color,year,background,viewpoint";
    assert_eq!(
        reader
            .headers()
            .unwrap()
            .iter()
            .collect::<Vec<_>>()
            .join(","),
        columns
    );
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 24);
    for (index, row) in rows.iter().enumerate() {
        let facts = describe(index, &config);
        let expected = [
            facts.caption.as_str(),
            facts.make.name(),
            facts.body.model(),
            facts.body.name(),
        ];
        assert_eq!(row.iter().skip(1).take(4).collect::<Vec<_>>(), expected);
        assert_eq!(row[6].parse::<u16>().unwrap(), facts.year);
        let bytes = std::fs::read(folder.path().join(&row[0])).unwrap();
        let picture = image::load_from_memory(&bytes).unwrap();
        assert_eq!((picture.width(), picture.height()), (96, 96));
    }
}

#[test]
fn the_same_set_is_written_again_and_another_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &set_of(8), |_| true).unwrap().unwrap();
    let before = files_of(folder.path());
    write(folder.path(), &set_of(8), |_| true).unwrap().unwrap();
    assert!(matches!(
        write(folder.path(), &set_of(16), |_| true),
        Err(CarsError::OtherSet(_))
    ));
    assert_eq!(before, files_of(folder.path()));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "images and labels, nothing half-written");
}

#[test]
fn somebody_elses_pictures_are_not_drawn_over() {
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("images/000003.jpg");
    std::fs::create_dir(folder.path().join("images")).unwrap();
    std::fs::write(&mine, "mine").unwrap();
    let refused = write(folder.path(), &set_of(8), |_| true);
    assert!(matches!(refused, Err(CarsError::OtherSet(path)) if path == mine));
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
    // What a power loss left of a drawing that was not done is drawn.
    std::fs::write(&mine, "").unwrap();
    write(folder.path(), &set_of(8), |_| true).unwrap().unwrap();
}

#[test]
fn progress_counts_every_picture_once() {
    let folder = tempfile::tempdir().unwrap();
    let heard = std::sync::Mutex::new(Vec::new());
    write(folder.path(), &set_of(20), |done| {
        heard.lock().unwrap().push(done);
        true
    })
    .unwrap();
    let mut heard = heard.into_inner().unwrap();
    heard.sort_unstable();
    assert_eq!(heard, (1..=20).collect::<Vec<_>>());
}

#[test]
fn every_run_of_eight_has_each_make_once_in_changing_order() {
    let config = set_of(80);
    let makes: Vec<Make> = (0..80).map(|index| describe(index, &config).make).collect();
    let runs: Vec<&[Make]> = makes.chunks(Make::ALL.len()).collect();
    for run in &runs {
        assert_eq!(run.iter().collect::<HashSet<_>>().len(), Make::ALL.len());
    }
    assert!(runs.iter().any(|run| *run != runs[0]));
}

#[test]
fn captions_name_make_and_colour_in_few_words() {
    let config = set_of(3000);
    let mut words = HashSet::new();
    for index in 0..config.count {
        let facts = describe(index, &config);
        let caption = &facts.caption;
        assert!(
            caption.contains(facts.make.name()) && caption.contains(facts.colour.name()),
            "{caption}"
        );
        assert!(!caption.contains(['{', '}']), "{caption}");
        assert!(!caption.contains(" a orange"), "{caption}");
        let spoken: Vec<&str> = caption
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .collect();
        assert!((6..=18).contains(&spoken.len()), "{caption}");
        words.extend(spoken.into_iter().map(str::to_owned));
    }
    assert!(words.len() < 300, "{}", words.len());
}

#[test]
fn colours_are_spread_over_makes() {
    let config = set_of(4000);
    let mut counts: HashMap<(Make, Colour), usize> = HashMap::new();
    for index in 0..config.count {
        let facts = describe(index, &config);
        *counts.entry((facts.make, facts.colour)).or_default() += 1;
    }
    assert_eq!(counts.len(), Make::ALL.len() * Colour::ALL.len());
    assert!(
        counts.values().all(|&count| (25..=80).contains(&count)),
        "{counts:?}"
    );
}

/// Half of the makes is what adding up weighted pixels may tell; a guess tells an eighth.
#[test]
fn a_linear_model_on_pixels_stays_under_half() {
    let config = set_of(2500);
    let mut pictures = standardised(&config, 2000);
    let held_out = pictures.split_off(2000);
    let mut model = SoftmaxRegression::new(pictures[0].0.len());
    let mut best: f32 = 0.0;
    for epoch in 0..24 {
        model.pass_over(&pictures, 0.001 / (1.0 + 0.2 * epoch as f32));
        best = best.max(model.accuracy(&held_out));
    }
    let (seen, unseen) = (model.accuracy(&pictures), model.accuracy(&held_out));
    println!(
        "linear model: {seen:.3} of seen pictures, {unseen:.3} of unseen ones, {best:.3} at its best"
    );
    assert!(seen > 0.6, "the linear model was not trained: {seen}");
    assert!(unseen > 0.0625, "worse than half a guess: {unseen}");
    assert!(best < 0.5, "pixels alone give the make away: {best}");
}

/// Pictures of 32 x 32 pixels; each value less its mean, over its spread, both of the first `seen`.
fn standardised(config: &CarsConfig, seen: usize) -> Vec<(Vec<f32>, usize)> {
    let mut pictures: Vec<(Vec<f32>, usize)> = (0..config.count)
        .map(|index| {
            let car = draw(index, config);
            let make = Make::ALL
                .iter()
                .position(|&make| make == car.facts.make)
                .unwrap();
            (shrunk_by_three(&car.pixels, car.size as usize), make)
        })
        .collect();
    for value in 0..pictures[0].0.len() {
        let column = || pictures[..seen].iter().map(|picture| picture.0[value]);
        let mean = column().sum::<f32>() / seen as f32;
        let spread =
            (column().map(|x| (x - mean).powi(2)).sum::<f32>() / seen as f32).sqrt() + 1e-3;
        for picture in &mut pictures {
            picture.0[value] = (picture.0[value] - mean) / spread;
        }
    }
    pictures
}

fn shrunk_by_three(pixels: &[u8], size: usize) -> Vec<f32> {
    let side = size / 3;
    let mut small = vec![0.0; side * side * 3];
    for (at, &value) in pixels.iter().enumerate() {
        let (row, column, channel) = (at / (3 * size) / 3, at / 3 % size / 3, at % 3);
        small[(row * side + column) * 3 + channel] += f32::from(value) / 9.0;
    }
    small
}

struct SoftmaxRegression {
    weights: Vec<Vec<f32>>,
    biases: Vec<f32>,
}

impl SoftmaxRegression {
    fn new(inputs: usize) -> SoftmaxRegression {
        SoftmaxRegression {
            weights: vec![vec![0.0; inputs]; Make::ALL.len()],
            biases: vec![0.0; Make::ALL.len()],
        }
    }

    fn logits(&self, input: &[f32]) -> Vec<f32> {
        let dot = |row: &Vec<f32>| row.iter().zip(input).map(|(w, x)| w * x).sum::<f32>();
        self.weights
            .iter()
            .zip(&self.biases)
            .map(|(row, bias)| dot(row) + bias)
            .collect()
    }

    /// One step of gradient descent for each picture, in the order given.
    fn pass_over(&mut self, pictures: &[(Vec<f32>, usize)], rate: f32) {
        for (input, make) in pictures {
            let logits = self.logits(input);
            let top = logits.iter().copied().fold(f32::MIN, f32::max);
            let odds: Vec<f32> = logits.iter().map(|logit| (logit - top).exp()).collect();
            let total: f32 = odds.iter().sum();
            for (class, odd) in odds.iter().enumerate() {
                let pull = rate * (f32::from(u8::from(class == *make)) - odd / total);
                self.biases[class] += pull;
                for (weight, x) in self.weights[class].iter_mut().zip(input) {
                    *weight += pull * x;
                }
            }
        }
    }

    fn accuracy(&self, pictures: &[(Vec<f32>, usize)]) -> f32 {
        let right = pictures.iter().filter(|(input, make)| {
            let logits = self.logits(input);
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            best == Some(*make)
        });
        right.count() as f32 / pictures.len() as f32
    }
}
