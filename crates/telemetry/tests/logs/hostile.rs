//! Broken logs: an answer or an error with a hint, never a panic.
//!
//! A case is a function of (seed, case): `HOLDALL_FUZZ_SEED=7 HOLDALL_FUZZ_CASES=1000000 cargo test ... hostile` draws others.

use holdall_telemetry::TelemetryError;
use holdall_telemetry::analyze::{Analysis, AnalyzeOptions, Verdict, analyze};
use holdall_telemetry::hostile;

use crate::counting;
use crate::draw::{Dice, Drawn, Writer};
use crate::real;

fn read(text: &str) -> Result<Analysis, TelemetryError> {
    let options = AnalyzeOptions {
        log: "log".to_owned(),
        ..AnalyzeOptions::default()
    };
    analyze(text.as_bytes(), &options)
}

#[track_caller]
fn assert_refused(text: &str, parts: &[&str]) {
    let error = read(text).unwrap_err().to_string();
    for part in parts.iter().chain(&["\nhint: "]) {
        assert!(error.contains(part), "no `{part}` in {error}");
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| text.parse().unwrap())
}

/// Pieces that logs are made of, and some that they should not be.
const PIECES: [&str; 29] = [
    "\n",
    "\r\n",
    ",",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    "NaN",
    "-Infinity",
    "null",
    "1e308",
    "-1",
    "18446744073709551616",
    "MiB",
    "2026/02/30 23:59:60.999",
    "timestamp, memory.used [MiB]\n",
    "\"used_bytes\":",
    "\\u0000",
    "\u{feff}",
    "\u{0}",
    "[N/A]",
    "%",
    "# gpu sm fb\n",
    "#Idx % MB\n",
    " - ",
    "GPU is lost",
    "\"loss\": NaN, ",
];

fn mutated(seed: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + dice.below(8) {
        let length = bytes.len();
        let (at, other) = (dice.below(length + 1), dice.below(length + 1));
        let (from, to) = (at.min(other), at.max(other).min(at.min(other) + 400));
        match dice.below(8) {
            0 => bytes.truncate(at),
            1 if at < length => bytes[at] = dice.bits() as u8,
            2 if at < length => bytes[at] ^= 1 << dice.below(8),
            3 => drop(bytes.drain(from..to)),
            4 => {
                let part = bytes[from..to].to_vec();
                let part = part.repeat(1 + dice.below(4));
                bytes.splice(other..other, part);
            }
            5 => {
                let digit = bytes[at..].iter().position(u8::is_ascii_digit);
                if let Some(digit) = digit {
                    bytes[at + digit] = b'0' + dice.below(10) as u8;
                }
            }
            _ => {
                let piece = dice.pick(&PIECES);
                bytes.splice(at..at, piece.bytes());
            }
        }
    }
    bytes
}

#[test]
fn mutated_logs() {
    let (seed, num_cases) = (
        number("HOLDALL_FUZZ_SEED", 0),
        number("HOLDALL_FUZZ_CASES", 4_000),
    );
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for writer in [Writer::Holdall, Writer::Smi, Writer::Torch, Writer::Dmon] {
        let mut drawn = Drawn::healthy_of(writer, &mut Dice::new(seed));
        drawn.looks.truncate(40);
        seeds.push(drawn.text().into_bytes());
    }
    for name in real::NAMES {
        let text = std::fs::read(real::path(name)).unwrap();
        let end = text
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(30);
        seeds.push(text[..end.map_or(text.len(), |(at, _)| at)].to_vec());
    }
    let table = "Mon Nov 16 02:57:09 2026\n| NVIDIA-SMI 550.54 |\n|   0  NVIDIA H200  On  |  00000000:1B:00.0 Off |  0 |\n\
                 | N/A   34C    P0   77W /  700W |   61284MiB / 143771MiB |     98%      Default |\n";
    seeds.push(table.repeat(20).into_bytes());
    let mut num_answered = 0;
    let mut most_held = 0;
    for case in 0..num_cases {
        let mut dice = Dice::new(seed.wrapping_mul(1 << 32).wrapping_add(case));
        let at = dice.below(seeds.len());
        let bytes = mutated(&seeds[at], &mut dice);
        let (result, held) = counting::peak_of(|| hostile::log(&bytes));
        num_answered += u64::from(result.is_ok());
        most_held = held.max(most_held);
    }
    println!(
        "{num_cases} mutated logs: {num_answered} answered, {} KiB at most",
        most_held >> 10
    );
    assert!(num_answered > num_cases / 4, "{num_answered}");
    // Each device may have its own buckets, and a small log cannot name many.
    assert!(most_held < 64 << 20, "{most_held}");
}

#[test]
fn nothing_in_it() {
    for empty in ["", "\n\n", " \r\n", "\u{feff}"] {
        assert_refused(
            empty,
            &["log: expected lines of memory, found an empty file"],
        );
    }
    let header = "timestamp, memory.used [MiB], memory.total [MiB]\n";
    assert_refused(header, &["a header and no lines after it"]);
    assert_refused(
        "{\"loss\": 1}\n{\"loss\": 2}\n",
        &["found none in 2 lines; line 1: no memory"],
    );
    assert_refused("hello\nworld\n", &["found `hello`", "--columns"]);
    assert_refused("1, 2, 3\n", &["found `1, 2, 3`", "--columns"]);
    assert_refused("\u{0}\u{0}\u{0}", &["log: expected"]);
    let head = "+---+\n| NVIDIA-SMI 580 |\n";
    assert_refused(head, &["a header and no lines after it", "--query-gpu"]);
    let error = analyze(&b"\xff\xfet\0i\0"[..], &AnalyzeOptions::default()).unwrap_err();
    assert!(error.to_string().contains("UTF-16"));
}

#[test]
fn a_last_line_that_was_cut_off_is_left_out() {
    for writer in [Writer::Holdall, Writer::Smi, Writer::Torch, Writer::Dmon] {
        let drawn = Drawn::healthy_of(writer, &mut Dice::new(1));
        let text = drawn.text();
        let whole = read(&text).unwrap();
        for cut in [1, 2, 9, 30] {
            let part = read(&text[..text.len() - cut]).unwrap();
            assert_eq!(part.verdict, Verdict::Healthy, "{:?}", part.findings);
            let is_of_cells = matches!(writer, Writer::Smi | Writer::Dmon);
            let is_whole = !is_of_cells && cut == 1;
            assert_eq!(
                part.log.samples,
                whole.log.samples - u64::from(!is_whole),
                "{writer:?} {cut}"
            );
            assert_eq!(part.log.skipped.lines, u64::from(!is_whole));
        }
    }
}

#[test]
fn what_cannot_be_read_is_counted_with_its_first_reason() {
    let text = "timestamp, memory.used [MiB], memory.total [MiB]\n\
                2026/01/02 03:04:05.678, 100 MiB, 8000 MiB\n\
                2026/01/02 03:04:06.678, 100 MiB\n\
                2026/01/02 03:04:07.678, lots, 8000 MiB\n\
                2026/01/02 03:04:08.678, [N/A], 8000 MiB\n\
                2026/01/02 03:04:01.678, 100 MiB, 8000 MiB\n";
    let log = read(text).unwrap().log;
    assert_eq!((log.lines, log.samples, log.skipped.lines), (6, 2, 3));
    assert_eq!(log.skipped.first_line, Some(3));
    assert_eq!(
        log.skipped.first_reason.as_deref(),
        Some("3 cells expected, 2 found")
    );
    assert!(
        log.notes
            .iter()
            .any(|note| note.contains("clock went back 1 times")),
        "{:?}",
        log.notes
    );
}

#[test]
fn nan_and_clocks_that_go_back_change_no_verdict() {
    for (seed, writer) in [Writer::Holdall, Writer::Torch].into_iter().enumerate() {
        let drawn = Drawn::healthy_of(writer, &mut Dice::new(seed as u64));
        let mut lines: Vec<String> = drawn.text().lines().map(str::to_owned).collect();
        for (at, line) in lines.iter_mut().enumerate() {
            match at % 7 {
                0 => *line = line.replace("\"epoch\"", "\"val_loss\": NaN, \"epoch\""),
                1 => *line = line.replace("\"time\":1", "\"time\":-1"),
                2 => *line = line.replace("\"step\"", "\"lr\": -Infinity, \"step\""),
                3 => *line = format!("  {line}\r"),
                _ => {}
            }
        }
        let analysis = read(&lines.join("\n")).unwrap();
        assert_eq!(
            analysis.verdict,
            Verdict::Healthy,
            "{:?}",
            analysis.findings
        );
        assert_eq!(analysis.log.samples as usize, drawn.looks.len());
    }
}

#[test]
fn several_gpus_are_told_apart() {
    let mut text = "index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n".to_owned();
    for step in 0..200 {
        text += &format!(
            "0, 6000 MiB, 8000 MiB, 97 %\n1, {} MiB, 8000 MiB, 98 %\n",
            5000 + 10 * step
        );
    }
    let analysis = read(&text).unwrap();
    assert_eq!(analysis.log.devices, ["0", "1"]);
    let devices: Vec<_> = analysis
        .findings
        .iter()
        .map(|finding| finding.device.as_deref())
        .collect();
    assert_eq!(devices, [Some("1")], "{:?}", analysis.findings);
    let many: String = (0..50)
        .map(|gpu| format!("{{\"gpu\": {gpu}, \"used_mb\": 5.5}}\n"))
        .collect();
    let analysis = read(&many).unwrap();
    assert_eq!(analysis.log.devices.len(), 32);
    assert!(
        analysis
            .log
            .notes
            .iter()
            .any(|note| note.contains("18 samples")),
        "{:?}",
        analysis.log.notes
    );
}
