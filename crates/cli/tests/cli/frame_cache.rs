//! Frame tokens that are computed once: the same losses and the same model, bit for bit, and a cache that is never trusted further
//! than its checksums go.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, on};
use crate::typed::{Answer, DONE, holdall_words, test_device};
use crate::video_text::with_clips;

const STILL: &str = "--model video-text-demo --set data.frames=2 --set data.validation.column=split --effective-batch 8 \
    --batch-size 3 --num-threads 2 --lr 1e-3 --set evaluation.captions=2 --set generation.max_tokens=6 \
    --set data.augment.crop=1 --set train.freeze=vision_model";
const WITH_DECODER: &str = "--set video_text.temporal_layers=1 --set video_text.decoder.layers=1";
const RETRIEVAL: &str = "--set video_text.decoder=none --set video_text.pooling=mean";

fn train(csv: &Path, out: &Path, options: &str) -> Answer {
    let mut words: Vec<OsString> = vec!["train".into(), csv.into()];
    words.extend(["--out".into(), out.into()]);
    words.extend(["--device".into(), test_device().into()]);
    let options = STILL.split_whitespace().chain(options.split_whitespace());
    words.extend(options.map(OsString::from));
    holdall_words(words)
}

fn trained(home: &Home, csv: &Path, name: &str, options: &str) -> (RunFiles, String) {
    let run = home.run_named(name);
    let told = train(csv, &run.path, options).exits(DONE).stderr;
    (run, told)
}

/// The same clips, two a sample, as a CSV of its own.
fn in_pairs(csv: &Path) -> PathBuf {
    let text = fs::read_to_string(csv).unwrap();
    let (header, rows) = text.split_once('\n').unwrap();
    let split = header.split(',').position(|name| name == "split").unwrap();
    let mut rows: Vec<&str> = rows.lines().collect();
    let split_of = |row: &str| {
        row.rsplit(',')
            .nth(header.split(',').count() - 1 - split)
            .unwrap()
            .to_owned()
    };
    rows.sort_by_key(|row| split_of(row));
    let mut text = format!("{header},study\n");
    let mut seen = Vec::new();
    for row in rows {
        let split = split_of(row);
        let number = seen.iter().filter(|one| **one == split).count();
        text += &format!("{row},{split}{}\n", number / 2);
        seen.push(split);
    }
    let path = csv.with_file_name("pairs.csv");
    fs::write(&path, text).unwrap();
    path
}

/// On the CPU to the last bit. On a GPU the tower's products are over other batches than in a step, and may round otherwise.
#[track_caller]
fn assert_same_losses(found: &RunFiles, expected: &RunFiles) {
    if test_device() == "cpu" {
        return assert_same_lines(found, expected);
    }
    let [found, expected] = [found, expected].map(|run| run.of_steps("loss"));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 2e-2, "{found} {expected}");
    }
}

fn cached(csv: &Path, name: &str) -> PathBuf {
    csv.with_file_name("frame-tokens").join(name)
}

#[test]
fn losses_and_weights_have_the_same_bits_with_and_without_the_cache() {
    let (home, csv) = with_clips(26);
    let pairs = in_pairs(&csv);
    let group = "--set data.group=study --set data.num_videos=2 --set data.short_clips=mask --set train.eval_on=[validation,train]";
    for (number, (csv, cache, options)) in [
        (&csv, "features", format!("{WITH_DECODER} --epochs 2")),
        (&csv, "class_tokens", format!("{RETRIEVAL} --epochs 2")),
        (
            &pairs,
            "features",
            format!("{WITH_DECODER} {group} --epochs 2"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let (plain, _) = trained(&home, csv, &format!("plain{number}"), &options);
        let options = format!("{options} --set video_text.cache={cache}");
        let (first, told) = trained(&home, csv, &format!("first{number}"), &options);
        assert!(
            told.contains("Frame tokens: ") && told.contains("Frame tokens of train: "),
            "{told}"
        );
        assert!(told.contains(" clips computed in "), "{told}");
        assert_same_losses(&first, &plain);
        if test_device() == "cpu" {
            assert_same_model(&first, &plain);
        }
        // The second run computes nothing.
        let (second, told) = trained(&home, csv, &format!("second{number}"), &options);
        assert!(
            told.contains("read from ") && !told.contains(" clips computed in "),
            "{told}"
        );
        assert_same_lines(&second, &first);
    }
    // What was trained from tokens is used from pixels.
    on(
        "eval",
        &home.run_named("first0").path,
        &csv.display().to_string(),
    )
    .exits(DONE);
}

#[test]
fn stale_and_damaged_files_are_said_and_made_again() {
    let (home, csv) = with_clips(16);
    let options = format!("{RETRIEVAL} --epochs 1 --set video_text.cache=class_tokens");
    let (plain, _) = trained(&home, &csv, "plain", &format!("{RETRIEVAL} --epochs 1"));
    trained(&home, &csv, "first", &options);
    let file = cached(&csv, "train.rows");
    let whole = fs::read(&file).unwrap();
    let again = |name: &str, options: &str, part: &str| {
        let (run, told) = trained(&home, &csv, name, options);
        assert!(
            told.contains("made again") && told.contains(part),
            "{part}: {told}"
        );
        run
    };
    let mut damaged = whole.clone();
    damaged[5000] ^= 4;
    fs::write(&file, &damaged).unwrap();
    assert_same_losses(&again("damaged", &options, "damaged: row "), &plain);
    fs::write(&file, &whole[..whole.len() - 30]).unwrap();
    again("cut", &options, "damaged: row ");
    assert_eq!(fs::read(&file).unwrap(), whole);
    again(
        "weights",
        &format!("{options} --seed 4"),
        "other weights of the vision tower",
    );
    again(
        "frames",
        &format!("{options} --set data.frames=3"),
        "other frames",
    );

    // What a process left that was ended is gone on with.
    fs::remove_file(&file).unwrap();
    fs::write(
        file.with_added_extension("partial"),
        &whole[..whole.len() * 2 / 3],
    )
    .unwrap();
    let (_, told) = trained(&home, &csv, "ended", &options);
    assert!(
        told.contains("Frame tokens of train: going on after "),
        "{told}"
    );
    assert_eq!(fs::read(&file).unwrap(), whole);
}

#[test]
fn what_cannot_be_cached_is_refused_with_the_key_to_change() {
    let (home, csv) = with_clips(16);
    let run = home.run_named("run");
    for (options, parts) in [
        (
            "--set video_text.cache=class_tokens",
            ["its decoder reads all tokens", "cache: features"],
        ),
        (
            "--set video_text.cache=features --freeze none",
            ["all of the vision tower frozen", "freeze: [vision_model]"],
        ),
        (
            "--set video_text.cache=features --freeze vision_model.embeddings",
            ["is trained", "a part of the tower"],
        ),
        (
            "--set video_text.cache=features --set data.augment.crop=0.9",
            ["data.augment", "crop: 1"],
        ),
        (
            "--set video_text.cache=features --set data.stride=1",
            ["data.start: random", "start: centred"],
        ),
        (
            "--set video_text.cache=featuers",
            ["video_text.cache", "did you mean `features`"],
        ),
    ] {
        train(&csv, &run.path, options).refused_with(&parts);
    }
    assert!(!cached(&csv, "").exists());
    // A plan computes and writes nothing, and says what it would take.
    let data = csv.display();
    let words = format!(
        "plan video-text-demo {} --set data.train={data}",
        &STILL[24..]
    );
    let words: Vec<&str> = words
        .split_whitespace()
        .filter(|word| !["--lr", "1e-3"].contains(word))
        .chain(["--set", "video_text.cache=features"])
        .collect();
    let told = holdall_words(words).exits(DONE).stderr;
    assert!(
        told.contains("Frame tokens: ") && told.contains("KiB in "),
        "{told}"
    );
    assert!(!cached(&csv, "").exists());
}
