//! A log of any length in the same memory: lines are made as they are read, and an allocator counts.

use std::io::Read;

use holdall_telemetry::analyze::{AnalyzeOptions, Symptom, Verdict, analyze};

use crate::counting;

/// Repeats a line with a step that goes on, until there were so many bytes.
struct Endless {
    line: Vec<u8>,
    at: usize,
    step: u64,
    left: u64,
    leak_per_step: u64,
}

impl Endless {
    fn new(left: u64, leak_per_step: u64) -> Endless {
        Endless {
            line: Vec::new(),
            at: 0,
            step: 0,
            left,
            leak_per_step,
        }
    }

    fn next_line(&mut self) {
        use std::io::Write;
        self.line.clear();
        self.at = 0;
        let (step, epoch) = (self.step, self.step / 10_000);
        let process = 60_000_000_000 + step * self.leak_per_step + step * 7919 % 1_000_000;
        writeln!(
            self.line,
            "{{\"time\":{step}.5,\"step\":{step},\"epoch\":{epoch},\"phase\":\"train\",\"device\":\"cuda:0\",\
             \"used_bytes\":{},\"total_bytes\":85899345920,\"process_bytes\":{process},\"arena_bytes\":null,\
             \"host_rss_bytes\":null,\"gpu_utilization\":97,\"samples_per_s\":1200.5}}",
            process + 500_000_000
        )
        .unwrap();
        self.step += 1;
    }
}

impl Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.line.len() {
            if self.left == 0 {
                return Ok(0);
            }
            self.next_line();
            self.left = self.left.saturating_sub(self.line.len() as u64);
        }
        let length = out.len().min(self.line.len() - self.at);
        out[..length].copy_from_slice(&self.line[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

fn bytes() -> u64 {
    let mebibytes = std::env::var("HOLDALL_LOG_MEBIBYTES")
        .ok()
        .and_then(|text| text.parse().ok());
    mebibytes.unwrap_or(64) << 20
}

#[test]
fn a_long_log_takes_no_more_memory_than_a_short_one() {
    let options = AnalyzeOptions {
        log: "endless".to_owned(),
        ..AnalyzeOptions::default()
    };
    let mut peaks = Vec::new();
    for length in [1 << 20, bytes()] {
        let (analysis, peak) =
            counting::peak_of(|| analyze(Endless::new(length, 0), &options).unwrap());
        assert_eq!(
            analysis.verdict,
            Verdict::Healthy,
            "{:?}",
            analysis.findings
        );
        assert!(analysis.log.samples > length / 300);
        println!(
            "{} samples in {} MiB: {} KiB at most",
            analysis.log.samples,
            length >> 20,
            peak >> 10
        );
        peaks.push(peak);
    }
    assert!(peaks[1] < peaks[0] + (1 << 20), "{peaks:?}");
    assert!(peaks[1] < 8 << 20, "{peaks:?}");
    // 15 GB in all, whatever the length.
    let leak_per_step = 15_000_000_000 * 240 / bytes();
    let analysis = analyze(Endless::new(bytes(), leak_per_step), &options).unwrap();
    assert_eq!(analysis.findings.len(), 1, "{:?}", analysis.findings);
    assert_eq!(analysis.findings[0].kind, Symptom::Growth);
}

/// A gigabyte without a line end would be held by a reader that looks for one.
#[test]
fn a_line_without_an_end_is_not_held() {
    let options = AnalyzeOptions {
        log: "endless".to_owned(),
        ..AnalyzeOptions::default()
    };
    for byte in [b'x', b'{', b' ', b'"', b',', 0] {
        let reader = std::io::repeat(byte).take(bytes());
        let (result, peak) = counting::peak_of(|| analyze(reader, &options));
        assert!(result.is_err());
        assert!(peak < 8 << 20, "{byte}: {peak}");
    }
}
