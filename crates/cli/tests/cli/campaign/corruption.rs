//! Files of a run that were damaged behind its back: named, or of no consequence. Never used in silence.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Dice, all_go_well};
use crate::training::{Home, RunFiles, at_full_size, copy_folder, on, same_results};
use crate::typed::{Answer, DONE};

/// At a constant rate: where a damaged checkpoint is passed over, steps are done again, and a schedule that has become longer meanwhile would
/// give them other rates.
const BEGIN: &str = "--batch-size 4 --gradient-accumulation 2 --epochs 1 --lr 1e-3 --set train.save_every=2 \
                     --set train.schedule=constant --set train.warmup=0 --device cpu";
const EXTEND: &str = "--epochs 2 --device cpu";

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    FlippedBit,
    Zeros,
    ChangedDigit,
    CutShort,
    Longer,
    Gone,
}

const DAMAGES: [Damage; 6] = [
    Damage::FlippedBit,
    Damage::Zeros,
    Damage::ChangedDigit,
    Damage::CutShort,
    Damage::Longer,
    Damage::Gone,
];

/// Damages a file; says where, or `None` where it stayed what it was.
fn damage(path: &Path, how: Damage, dice: &mut Dice) -> Option<String> {
    let whole = fs::read(path).unwrap();
    let length = whole.len() as u64;
    let mut bytes = whole.clone();
    if whole.is_empty() {
        return None;
    }
    let at = dice.below(length) as usize;
    match how {
        Damage::FlippedBit => bytes[at] ^= 1 << dice.below(8),
        Damage::Zeros => {
            let size = *dice.one_of(&[1usize, 512, 4096, 256 << 10]);
            let end = (at + size).min(bytes.len());
            bytes[at..end].fill(0);
        }
        Damage::ChangedDigit => {
            // In text, or in the header of weights; numbers of moments are flipped elsewhere.
            let until = bytes.len().min(64 << 10);
            let digits: Vec<usize> = (0..until)
                .filter(|&at| bytes[at].is_ascii_digit())
                .collect();
            if digits.is_empty() {
                return None;
            }
            let at = *dice.one_of(&digits);
            bytes[at] = b'0' + (bytes[at] - b'0' + 1 + dice.below(8) as u8) % 10;
        }
        Damage::CutShort => bytes.truncate(at),
        Damage::Longer => bytes.extend_from_slice(b"garbage"),
        Damage::Gone => {
            fs::remove_file(path).unwrap();
            return Some("gone".to_owned());
        }
    }
    if bytes == whole {
        return None;
    }
    // A file of its own: others may share its bytes by a hard link.
    fs::remove_file(path).unwrap();
    fs::write(path, &bytes).unwrap();
    Some(format!("at {at} of {length}"))
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files_below(&entry.path(), found)
        } else {
            found.push(entry.path())
        }
    }
    found.sort();
}

/// An answer that names the file, or the folder that it lies in.
fn names(stderr: &str, file: &Path) -> bool {
    let name = file.file_name().unwrap().to_str().unwrap();
    let error = stderr.find("error: ").map(|start| &stderr[start..]);
    error.is_some_and(|error| error.contains(name) && error.contains("\nhint: "))
}

/// What a model says of the pictures.
fn predictions(answer: &Answer) -> Value {
    answer.json()["predictions"].take()
}

struct Case {
    file: PathBuf,
    how: Damage,
    seed: u64,
}

struct Campaign {
    home: Home,
    base: RunFiles,
    expected: RunFiles,
}

impl Campaign {
    fn survives(&self, case: &Case, index: usize) -> Result<(), String> {
        let run = self.home.run_named(&format!("damaged-{index}"));
        copy_folder(&self.base.path, &run.path);
        let file = run.path.join(&case.file);
        let Some(place) = damage(&file, case.how, &mut Dice::new(case.seed)) else {
            let _ = fs::remove_dir_all(&run.path);
            return Ok(());
        };
        let answer = run.resume(EXTEND);
        let told = format!("{} {:?} {place}", case.file.display(), case.how);
        let checked = match answer.code {
            DONE => same_results(&run, &self.expected),
            _ if names(&answer.stderr, &file) => Ok(()),
            code => Err(format!(
                "ended with {code} and did not name it\n{}",
                answer.stderr
            )),
        };
        let _ = fs::remove_dir_all(&run.path);
        checked.map_err(|error| format!("{told}: {error}"))
    }

    /// What is made with a damaged model is what is made with the whole one, or is refused.
    fn is_not_used(&self, case: &Case, index: usize, whole: &Value) -> Result<(), String> {
        let folder = self.home.path(&format!("model-{index}"));
        copy_folder(&self.base.file("model"), &folder);
        let file = folder.join(&case.file);
        let Some(place) = damage(&file, case.how, &mut Dice::new(case.seed)) else {
            return Ok(());
        };
        let answer = self.predict(&folder);
        let told = format!("model/{} {:?} {place}", case.file.display(), case.how);
        let _ = fs::remove_dir_all(&folder);
        match answer.code {
            DONE if predictions(&answer) == *whole => Ok(()),
            DONE => Err(format!("{told}: used in silence\n{}", answer.stderr)),
            _ if names(&answer.stderr, &file) => Ok(()),
            code => Err(format!(
                "{told}: ended with {code} and did not name it\n{}",
                answer.stderr
            )),
        }
    }

    fn predict(&self, model: &Path) -> Answer {
        let pictures = self.home.path("cars/images");
        on(
            "predict",
            model,
            &format!("{} --json --device cpu", pictures.display()),
        )
    }
}

#[test]
fn campaign_of_damaged_files() {
    let home = Home::with_cars(24);
    let base = home.trained("base", BEGIN);
    let expected = home.run_named("expected");
    copy_folder(&base.path, &expected.path);
    expected.resume(EXTEND).exits(DONE);
    let campaign = Campaign {
        home,
        base,
        expected,
    };
    let mut files = Vec::new();
    files_below(&campaign.base.path, &mut files);
    let files: Vec<PathBuf> = files
        .iter()
        .map(|file| file.strip_prefix(&campaign.base.path).unwrap().to_owned())
        .collect();
    // What goes on from is looked at more closely than what is only shown.
    let weight = |file: &Path| {
        if file.starts_with("checkpoints") || file.ends_with("metrics.jsonl") {
            at_full_size(4, 1)
        } else {
            1
        }
    };
    let mut cases = Vec::new();
    for (number, file) in files.iter().enumerate() {
        for (kind, how) in DAMAGES.into_iter().enumerate() {
            for again in 0..weight(file) {
                let seed = (number * 100 + kind * 10 + again) as u64;
                cases.push(Case {
                    file: file.clone(),
                    how,
                    seed,
                });
            }
        }
    }
    println!("damages that are possible: {}", cases.len());
    let step = at_full_size(1, cases.len().div_ceil(24));
    let chosen: Vec<Case> = cases.into_iter().step_by(step).collect();
    all_go_well("damaged runs", &chosen, |case, index| {
        campaign.survives(case, index)
    });

    let whole = campaign.predict(&campaign.base.file("model")).exits(DONE);
    let whole = predictions(&whole);
    let mut files = Vec::new();
    files_below(&campaign.base.file("model"), &mut files);
    let mut cases = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let file = file
            .strip_prefix(campaign.base.file("model"))
            .unwrap()
            .to_owned();
        for (kind, how) in DAMAGES.into_iter().enumerate() {
            let seed = (10_000 + number * 10 + kind) as u64;
            cases.push(Case {
                file: file.clone(),
                how,
                seed,
            });
        }
    }
    let step = at_full_size(1, cases.len().div_ceil(12));
    let chosen: Vec<Case> = cases.into_iter().step_by(step).collect();
    all_go_well("damaged models", &chosen, |case, index| {
        campaign.is_not_used(case, index, &whole)
    });
}
