//! Budgets that are tight, of runs that nobody has seen before: admitted means that it stays within them.

use std::ffi::OsString;
use std::path::PathBuf;

use image::{DynamicImage, ImageFormat, RgbImage};
use serde_json::Value;

use super::attempt::{Attempt, library};
use super::{Dice, all_go_well};
use crate::training::{Home, at_full_size};
use crate::typed::{DOES_NOT_FIT, DONE};

const MIB: u64 = 1 << 20;

/// Settings of the system's allocator that people have in their shells.
const ALLOCATOR: [&[(&str, &str)]; 6] = [
    &[],
    &[],
    &[("MALLOC_ARENA_MAX", "1")],
    &[("MALLOC_ARENA_MAX", "32")],
    &[("MALLOC_MMAP_THRESHOLD_", "33554432")],
    &[
        ("MALLOC_TRIM_THRESHOLD_", "268435456"),
        ("MALLOC_TOP_PAD_", "8388608"),
    ],
];

/// Draws small cars and, among them, a few pictures that are many times as large.
fn with_large_pictures() -> Home {
    let home = Home::with_cars(24);
    for (number, format, [width, height]) in [
        (3, ImageFormat::Jpeg, [4000, 3000]),
        (9, ImageFormat::Jpeg, [2400, 3200]),
        (15, ImageFormat::Png, [3000, 2000]),
        (20, ImageFormat::WebP, [1600, 1200]),
    ] {
        let picture = RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([(x / 16) as u8, (y / 16) as u8, ((x + y) / 64) as u8])
        });
        let path = home.path(&format!("cars/images/{number:06}.jpg"));
        // What a file is called and what it is are two things; it is read by what it is.
        DynamicImage::ImageRgb8(picture)
            .save_with_format(path, format)
            .unwrap();
    }
    home
}

/// A configuration that nobody has chosen by hand.
struct Case {
    words: Vec<OsString>,
    budget_bytes: u64,
    variables: Vec<(&'static str, String)>,
    /// Whether it trains on pictures, and where; else `bench`.
    run: Option<PathBuf>,
}

fn random(home: &Home, index: usize) -> Case {
    let mut dice = Dice::new(500_000 + index as u64);
    let mut options = vec![format!("--num-threads {}", 1 + dice.below(16))];
    match dice.below(3) {
        0 => options.push(format!("--effective-batch {}", 1 + dice.below(64))),
        1 => options.push(format!(
            "--batch-size {} --effective-batch {}",
            1 + dice.below(12),
            12 + dice.below(40)
        )),
        _ => options.push(format!(
            "--batch-size {} --gradient-accumulation {}",
            1 + dice.below(16),
            1 + dice.below(4)
        )),
    }
    options.push(format!(
        "--recompute {}",
        dice.one_of(&["auto", "auto", "none", "cheap", "blocks"])
    ));
    let budget_bytes = (52 + dice.below(160)) * MIB + dice.below(MIB);
    options.push(format!("--memory {budget_bytes}B --device cpu"));
    let variables = dice
        .one_of(&ALLOCATOR)
        .iter()
        .map(|&(name, value)| (name, value.to_owned()));
    let variables = variables.collect();
    let words = |text: String| {
        text.split_whitespace()
            .map(OsString::from)
            .collect::<Vec<_>>()
    };
    if dice.below(2) == 0 {
        options.push(format!(
            "--tokens {} --labels {}",
            4 + dice.below(12),
            2 + dice.below(500)
        ));
        let words = words(format!(
            "bench clip --small --steps 1 --json {}",
            options.join(" ")
        ));
        return Case {
            words,
            budget_bytes,
            variables,
            run: None,
        };
    }
    if dice.below(3) == 0 {
        options.push(format!("--num-workers {}", dice.below(4)));
    }
    options.push("--epochs 1 --json --set train.eval_batch_size=8".to_owned());
    // What does not fit is left out, and a sixth of these pictures is large.
    options.push("--set data.max_skipped=50%".to_owned());
    let name = format!("budget-{index}");
    let words = home.words(&name, &options.join(" "));
    Case {
        words,
        budget_bytes,
        variables,
        run: Some(home.path(&name)),
    }
}

/// What came of a configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Admitted,
    Refused,
}

fn stays_within(case: Case, library: &std::path::Path) -> Result<Outcome, String> {
    let typed = format!("{:?} {:?}", case.words, case.variables);
    let attempt = Attempt {
        words: case.words,
        variables: case.variables,
        ..Attempt::default()
    };
    let ending = attempt.run(library)?;
    if let Some(run) = &case.run {
        let _ = std::fs::remove_dir_all(run);
    }
    match ending.code {
        Some(DOES_NOT_FIT) => return Ok(Outcome::Refused),
        Some(DONE) => {}
        code => return Err(format!("{typed}: ended with {code:?}\n{}", ending.stderr)),
    }
    let answer: Value =
        serde_json::from_str(&ending.stdout).map_err(|error| format!("{typed}: {error}"))?;
    let planned = answer["planned_bytes"].as_u64().unwrap_or(u64::MAX);
    let peak = ending.peak_bytes.ok_or("no peak was told")?;
    let over = |name: &str, limit: u64| {
        let (peak, limit) = (peak as f64 / MIB as f64, limit as f64 / MIB as f64);
        Err(format!(
            "{typed}: held {peak:.2} MiB, {name} {limit:.2} MiB\n{}",
            ending.stderr
        ))
    };
    match () {
        () if peak > case.budget_bytes => over("budget", case.budget_bytes),
        () if peak > planned => over("forecast", planned),
        () => Ok(Outcome::Admitted),
    }
}

#[test]
fn campaign_of_budgets() {
    let Some(library) = library() else {
        return;
    };
    let home = with_large_pictures();
    let cases: Vec<usize> = (0..at_full_size(1_200, 24)).collect();
    let admitted = std::sync::atomic::AtomicUsize::new(0);
    all_go_well("budgets", &cases, |_, index| {
        if stays_within(random(&home, index), &library)? == Outcome::Admitted {
            admitted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    });
    let admitted = admitted.into_inner();
    println!("configurations that were admitted: {admitted}");
    assert!(
        admitted * 3 > cases.len(),
        "too few were admitted to tell: {admitted}"
    );
}
