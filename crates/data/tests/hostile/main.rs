//! Mutated files: no panic, no hang, no more memory than [`Limits::peak_bytes`] says.
//!
//! A case is a function of (seed, case), so a failure is repeated with what its message says:
//!
//! ```text
//! HOLDALL_FUZZ_SECONDS=600 cargo test --release -p holdall-data --test hostile -- --nocapture
//! HOLDALL_FUZZ_SEED=7 HOLDALL_FUZZ_CASES=100000 cargo test ...
//! ```
//!
//! Its bytes are saved beside the build; once fixed, they belong in `fixtures/hostile`. A binary of its own: the allocator
//! counts.

#![expect(clippy::unwrap_used, reason = "a test")]

mod costs;
mod counting;
mod mutator;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdall_data::{DataError, hostile};
use mutator::Dice;

/// A case of these sizes takes microseconds; a noisy machine may hold it up, but not for so long.
const LONGEST: Duration = Duration::from_secs(10);

/// One bad case is reported and the rest go on, up to here.
const MOST_FAILURES: usize = 20;

type Reader = fn(&[u8]) -> Result<(), DataError>;

struct Target {
    name: &'static str,
    read: Reader,
    /// Groups of which each is taken equally often: one a format.
    seeds: Vec<Vec<Vec<u8>>>,
    num_cases: u64,
    most_bytes: usize,
    peak_bytes: u64,
    /// What the header says that it takes.
    cost: Option<fn(&[u8]) -> u64>,
}

/// What came of all cases.
#[derive(Debug, Default)]
struct Tally {
    num_cases: u64,
    num_read: u64,
    num_contained: u64,
    slowest: Duration,
    largest_peak: u64,
    failures: Vec<String>,
}

#[test]
fn pictures() {
    let limits = hostile::LIMITS;
    Target {
        name: "picture",
        read: hostile::picture,
        seeds: pictures_by_format(),
        num_cases: 30_000,
        most_bytes: limits.most_file_bytes as usize,
        peak_bytes: limits.peak_bytes(),
        cost: Some(hostile::picture_cost),
    }
    .run();
}

#[test]
fn masks() {
    let limits = hostile::LIMITS;
    Target {
        name: "mask",
        read: hostile::mask,
        seeds: masks_by_format(),
        num_cases: 10_000,
        most_bytes: limits.most_file_bytes as usize,
        peak_bytes: limits.peak_bytes(),
        cost: None,
    }
    .run();
}

#[test]
fn clips() {
    let limits = hostile::LIMITS;
    Target {
        name: "clip",
        read: hostile::clip,
        seeds: clips_by_format(),
        num_cases: 12_000,
        most_bytes: limits.most_file_bytes as usize,
        peak_bytes: limits.peak_bytes(),
        cost: None,
    }
    .run();
}

#[test]
fn tables() {
    let texts = [
        "image,caption\n1.jpg,a red car\n2.jpg,\"a blue, fast car\"\n",
        "\u{feff}image , caption,make\r\n\r\n\"a\"\"b.jpg\",\"two\r\nlines\",Ford\r\n",
        "image;caption\n1.jpg;x\n",
        "video\tcaption\n1.avi\tx\n",
        "FileNameαReportαSplit\n1.avi\u{3b1}\"x\u{3b1}\"\u{3b1}train\n",
        "image\n\"open\n",
        "a,b,c\n1,2\n",
        "image,caption\n\u{e4}.jpg,\u{1f697}\n",
    ];
    let seeds = texts.map(|text| text.as_bytes().to_vec()).to_vec();
    let most_bytes = 1 << 16;
    Target {
        name: "csv",
        read: hostile::csv,
        seeds: vec![seeds],
        num_cases: 50_000,
        most_bytes,
        // Each byte may begin a field, whose end takes 8 bytes, and vectors double as they grow.
        peak_bytes: 64 * most_bytes as u64 + (1 << 20),
        cost: None,
    }
    .run();
}

#[test]
fn json_lines() {
    let texts = [
        "{\"file_name\": \"1.jpg\", \"text\": \"a red car\"}\n{\"file_name\": \"2.jpg\"}\n",
        "\u{feff}{\"image\": {\"path\": \"1.jpg\", \"size\": [1, 2.5e3, null]}, \"ok\": true}\r\n\r\n{}\n",
        "{\"a\": \"\\u00e4\\n\", \"b\": [[], {\"c\": 1}]}",
    ];
    let seeds = texts.map(|text| text.as_bytes().to_vec()).to_vec();
    let most_bytes = 1 << 14;
    Target {
        name: "json_lines",
        read: hostile::json_lines,
        seeds: vec![seeds],
        num_cases: 4_000,
        most_bytes,
        // A digit of a list is a value of 72 bytes, in vectors that double as they grow; keys name columns.
        peak_bytes: 512 * most_bytes as u64 + (1 << 20),
        cost: None,
    }
    .run();
}

#[test]
fn tars() {
    let most_bytes = 1 << 16;
    Target {
        name: "tar",
        read: hostile::tar,
        seeds: vec![vec![small_tar()]],
        num_cases: 4_000,
        most_bytes,
        peak_bytes: 512 * most_bytes as u64 + (1 << 20),
        cost: None,
    }
    .run();
}

#[test]
fn parquet_files() {
    let folder = fixtures().join("parquet");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "parquet"))
        .collect();
    files.sort();
    let seeds = files.iter().map(|path| vec![fs::read(path).unwrap()]);
    Target {
        name: "parquet",
        read: hostile::parquet,
        seeds: seeds.collect(),
        num_cases: 4_000,
        most_bytes: 1 << 16,
        // Of each of 13 columns a page of 1 MiB as stored, as unpacked, and a dictionary with its places; the window of a codec of one.
        peak_bytes: 13 * (6 << 20) + (32 << 20),
        cost: None,
    }
    .run();
}

/// A shard of two samples.
fn small_tar() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, contents) in [
        ("a/000.jpg", &b"not a picture, but who looks"[..]),
        ("a/000.txt", b"a red car"),
        ("a/000.json", br#"{"make": "Ford", "size": {"w": 7}}"#),
        ("a/001.mask.png", b"no mask"),
        ("a/001.cls", b"3"),
    ] {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..136].copy_from_slice(format!("{:011o}\0", contents.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(header);
        bytes.extend(contents);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Pictures of a megapixel each, whole and mutated: what the small ones leave of the stated peak.
#[test]
fn large_pictures() {
    let limits = hostile::LIMITS;
    let seeds = pictures_in(&["pictures/large"]);
    for bytes in seeds.iter().flatten() {
        let (outcome, peak) = counting::peak_of(|| hostile::picture(bytes));
        outcome.unwrap();
        println!("{} bytes for {} of file", peak, bytes.len());
        assert!(peak <= limits.peak_bytes(), "{peak} bytes");
    }
    Target {
        name: "large",
        read: hostile::picture,
        seeds,
        num_cases: 400,
        most_bytes: limits.most_file_bytes as usize,
        peak_bytes: limits.peak_bytes(),
        cost: Some(hostile::picture_cost),
    }
    .run();
}

/// Inputs that once broke a reader.
#[test]
fn what_once_broke_a_reader_does_so_no_more() {
    panic_briefly();
    let folder = fixtures().join("hostile");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let by_header = hostile::picture_cost(&bytes) + claimed_bytes(&bytes);
        let most_of_picture = hostile::LIMITS.peak_bytes().min(by_header);
        for (name, read, peak_bytes) in [
            ("csv", hostile::csv as Reader, u64::MAX),
            ("picture", hostile::picture, most_of_picture),
            ("mask", hostile::mask, hostile::LIMITS.peak_bytes()),
            ("clip", hostile::clip, hostile::LIMITS.peak_bytes()),
            ("json_lines", hostile::json_lines, u64::MAX),
            ("tar", hostile::tar, u64::MAX),
            ("parquet", hostile::parquet, u64::MAX),
        ] {
            let began = Instant::now();
            let (_, peak) = counting::peak_of(|| read(&bytes));
            assert!(peak <= peak_bytes, "{name} of {path:?}: {peak} bytes");
            assert!(began.elapsed() < LONGEST, "{name} of {path:?}");
        }
    }
}

impl Target {
    fn run(&self) {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seed: u64 = number("HOLDALL_FUZZ_SEED").unwrap_or(0);
        let num_cases = number("HOLDALL_FUZZ_CASES").unwrap_or(self.num_cases);
        let least = Duration::from_secs(number("HOLDALL_FUZZ_SECONDS").unwrap_or(0));
        panic_briefly();
        let current = watched(self.name, seed);
        let began = Instant::now();
        let mut tally = Tally::default();
        let mut reasons = BTreeMap::new();
        let is_enough = |tally: &Tally| tally.failures.len() >= MOST_FAILURES;
        while !is_enough(&tally) && (tally.num_cases < num_cases || began.elapsed() < least) {
            let case = tally.num_cases;
            let mut dice = Dice::new(seed, case);
            let group = &self.seeds[dice.below(self.seeds.len())];
            let bytes: Arc<[u8]> = mutator::mutated(group, &mut dice, self.most_bytes).into();
            *current.lock().unwrap() = Some((Instant::now(), case, bytes.clone()));
            self.run_case(seed, case, &bytes, &mut tally, &mut reasons);
        }
        *current.lock().unwrap() = None;
        println!(
            "{}: seed {seed}, {tally:?}, contained: {reasons:#?}",
            self.name
        );
        let failures = tally.failures.join("\n");
        assert!(failures.is_empty(), "{failures}");
    }

    fn run_case(
        &self,
        seed: u64,
        case: u64,
        bytes: &[u8],
        tally: &mut Tally,
        reasons: &mut BTreeMap<String, u64>,
    ) {
        let began = Instant::now();
        let (outcome, peak) = counting::peak_of(|| {
            let read = AssertUnwindSafe(|| (self.read)(bytes));
            catch_unwind(read).map(|result| result.map_err(|error| error.to_string()))
        });
        tally.slowest = tally.slowest.max(began.elapsed());
        tally.largest_peak = tally.largest_peak.max(peak);
        tally.num_cases += 1;
        let mut failed = |reason: String| {
            let path = save(self.name, seed, case, bytes);
            let name = self.name;
            tally.failures.push(format!(
                "{name}, seed {seed}, case {case}: {reason}; its bytes are in {}",
                path.display()
            ));
        };
        match outcome {
            Err(_) => failed("it panicked".to_owned()),
            Ok(Ok(())) => tally.num_read += 1,
            Ok(Err(text)) if text.contains("its decoder fails on") => {
                tally.num_contained += 1;
                *reasons.entry(text).or_default() += 1;
                if std::env::var_os("HOLDALL_FUZZ_SAVE").is_some() {
                    save(self.name, seed, case, bytes);
                }
            }
            Ok(Err(_)) => {}
        }
        // The case holds the file itself.
        let cost = self.cost.map_or(u64::MAX, |cost| {
            let file_bytes = bytes.len().min(1 << 20) as u64;
            cost(bytes) - file_bytes + claimed_bytes(bytes)
        });
        if peak > self.peak_bytes.min(cost) {
            let most = self.peak_bytes.min(cost);
            failed(format!("it took {peak} bytes, expected at most {most}"));
        }
    }
}

/// A lossy WebP may say that a part of it has up to 16 MiB: they are set aside as zeros, which takes no memory, and never filled.
fn claimed_bytes(bytes: &[u8]) -> u64 {
    if bytes.starts_with(b"RIFF") {
        17 << 20
    } else {
        0
    }
}

fn save(name: &str, seed: u64, case: u64, bytes: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("hostile-{name}-{seed}-{case}"));
    fs::write(&path, bytes).unwrap();
    path
}

/// Panics of decoders are expected here, and the trace of one takes 70 MB: a line each instead.
fn panic_briefly() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
}

type Current = Arc<Mutex<Option<(Instant, u64, Arc<[u8]>)>>>;

/// Ends the process if a case does not end: nothing else can.
fn watched(name: &'static str, seed: u64) -> Current {
    let current = Current::default();
    let watch = Arc::downgrade(&current);
    std::thread::spawn(move || {
        while let Some(current) = watch.upgrade() {
            if let Some((began, case, bytes)) = &*current.lock().unwrap()
                && began.elapsed() > LONGEST
            {
                let path = save(name, seed, *case, bytes);
                let path = path.display();
                eprintln!(
                    "{name}, seed {seed}, case {case}: over {LONGEST:?}; its bytes are in {path}"
                );
                std::process::abort();
            }
            drop(current);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    current
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The fixture pictures of each format, those that are refused among them.
fn pictures_by_format() -> Vec<Vec<Vec<u8>>> {
    let by_format = pictures_in(&["pictures", "pictures/refused"]);
    assert_eq!(by_format.len(), 9);
    by_format
}

/// The same, and what is read as a mask alone: PNM in all its kinds, PNM packed by gzip, GIF and PNG with palettes.
fn masks_by_format() -> Vec<Vec<Vec<u8>>> {
    use std::io::Write;
    let mut pnm: Vec<Vec<u8>> = Vec::new();
    for text in [
        "P1\n# a comment\n3 2\n0 1 0\n1 0 1\n",
        "P2 3 2 255\n0 255 0 255 0 255\n",
        "P3 1 2 255 0 0 0 255 255 255\n",
    ] {
        pnm.push(text.as_bytes().to_vec());
    }
    for (header, num_bytes) in [
        ("P4 9 4\n", 8),
        ("P5 8 8 255\n", 64),
        ("P5 8 8 65535\n", 128),
        ("P6 8 8 255\n", 192),
    ] {
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend((0..num_bytes).map(|at| if at % 5 < 2 { 255 } else { 0 }));
        pnm.push(bytes);
    }
    let packed = pnm.iter().map(|bytes| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    });
    let packed: Vec<Vec<u8>> = packed.collect();
    let mut palette = Vec::new();
    for (bits, data) in [
        (png::BitDepth::Two, vec![0b01_00_01_00; 8]),
        (png::BitDepth::Eight, vec![1; 32]),
    ] {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 4, 8);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(bits);
        encoder.set_palette(vec![0, 0, 0, 255, 255, 255, 200, 0, 0]);
        encoder
            .write_header()
            .unwrap()
            .write_image_data(&data)
            .unwrap();
        palette.push(bytes);
    }
    let mut all = pictures_by_format();
    all.extend([pnm, packed, palette]);
    all
}

/// The fixture clips of each format.
fn clips_by_format() -> Vec<Vec<Vec<u8>>> {
    let folder = fixtures().join("clips");
    let names: [&[&str]; 4] = [
        &["whole.gif", "parts.gif"],
        &["lossless.webp", "lossy.webp"],
        &["colours.npy", "greys.npy"],
        &["mjpeg.avi", "sound.avi"],
    ];
    let read = |name: &&str| fs::read(folder.join(name)).unwrap();
    names.map(|names| names.iter().map(read).collect()).to_vec()
}

fn pictures_in(folders: &[&str]) -> Vec<Vec<Vec<u8>>> {
    let mut by_format: BTreeMap<String, Vec<(PathBuf, Vec<u8>)>> = BTreeMap::new();
    for folder in folders {
        for file in fs::read_dir(fixtures().join(folder)).unwrap() {
            let path = file.unwrap().path();
            let extension = path
                .extension()
                .and_then(|e| e.to_str())
                .unwrap_or_default();
            if matches!(
                extension,
                "jpg" | "png" | "webp" | "bmp" | "tif" | "gif" | "ppm" | "pgm" | "pbm"
            ) {
                let group = by_format.entry(extension.to_owned()).or_default();
                group.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    let groups = by_format.into_values().map(|mut group| {
        // Folders are listed in any order, and a case must be the same everywhere.
        group.sort();
        group.into_iter().map(|(_, bytes)| bytes).collect()
    });
    groups.collect()
}
