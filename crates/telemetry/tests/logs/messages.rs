//! What is told of a log, word by word: what, where, how much, how sure, and what to do.

use std::fmt::Write;

use holdall_telemetry::analyze::{
    Analysis, AnalyzeOptions, Finding, Format, Severity, Symptom, Verdict, analyze,
};
use holdall_telemetry::memory_log::Phase;

fn read(text: &str, limit_gib: Option<u64>) -> Analysis {
    let options = AnalyzeOptions {
        log: "log".to_owned(),
        limit_bytes: limit_gib.map(|gib| gib << 30),
        ..AnalyzeOptions::default()
    };
    analyze(text.as_bytes(), &options).unwrap()
}

#[track_caller]
fn only(analysis: &Analysis) -> &Finding {
    let [finding] = &analysis.findings[..] else {
        panic!("{:#?} {:?}", analysis.findings, analysis.log);
    };
    finding
}

/// As PyTorch scripts write it: `memory_debug.jsonl`, ten lines per second, a leak of 400 MiB per epoch.
fn memory_debug(
    num_epochs: usize,
    batches_per_epoch: usize,
    more: impl Fn(usize) -> String,
) -> String {
    let mut text = String::new();
    let per_batch = 400.0 / batches_per_epoch as f64;
    for global_step in 0..num_epochs * batches_per_epoch {
        let (epoch, batch) = (
            global_step / batches_per_epoch,
            global_step % batches_per_epoch,
        );
        let phase = if batch * 10 >= batches_per_epoch * 9 {
            "val"
        } else {
            "after_backward"
        };
        // Noise of a few MiB.
        let allocated =
            9000.0 + per_batch * global_step as f64 + ((global_step * 7919) % 13) as f64;
        writeln!(
            text,
            "{{\"timestamp\": {}, \"phase\": \"{phase}\", \"epoch\": {epoch}, \"batch_idx\": {batch}, \"global_step\": {global_step}, \
             \"allocated_mb\": {allocated}, \"reserved_mb\": {}, \"max_allocated_mb\": {}, \"total_memory_mb\": 24000.0, \
             \"usage_percent\": 50.0, \"free_mb\": 9000.0{}}}",
            1.7e9 + 0.1 * global_step as f64,
            allocated + 2000.0,
            allocated + 1500.0,
            more(global_step)
        )
        .unwrap();
    }
    text
}

#[test]
fn a_leak_of_400_mib_per_epoch_is_400_however_few_epochs() {
    for (num_epochs, batches) in [(2, 300), (3, 50), (3, 300), (5, 60), (10, 60), (40, 60)] {
        let analysis = read(&memory_debug(num_epochs, batches, |_| String::new()), None);
        let growth = analysis
            .findings
            .iter()
            .find(|finding| finding.kind == Symptom::Growth);
        let growth =
            growth.unwrap_or_else(|| panic!("{num_epochs} epochs: {:?}", analysis.findings));
        let number = |key: &str| growth.evidence[key].as_f64().unwrap() / 1_048_576.0;
        let [low, middle, high] =
            ["_low", "", "_high"].map(|end| number(&format!("bytes_per_epoch{end}")));
        assert!(
            (middle - 400.0).abs() < 8.0,
            "{num_epochs} epochs: {}",
            growth.message
        );
        assert!(
            low <= 400.0 && 400.0 <= high,
            "{num_epochs} epochs: {}",
            growth.message
        );
        assert!(
            high - low < 100.0,
            "{num_epochs} epochs: {}",
            growth.message
        );
        // The same growth in every unit.
        let per_step = middle / batches as f64;
        assert!(
            (number("bytes_per_step") / per_step - 1.0).abs() < 0.01,
            "{}",
            growth.message
        );
        assert!(
            (number("bytes_per_minute") / (per_step * 600.0) - 1.0).abs() < 0.01,
            "{}",
            growth.message
        );
    }
}

#[test]
fn a_leak_in_words() {
    let analysis = read(&memory_debug(5, 60, |_| String::new()), None);
    let growth = only(&analysis);
    assert_eq!(
        growth.message,
        "allocated memory grows by 400.1 MiB per epoch (1.7% of the device, 3.91 GiB per minute, 6.7 MiB per step), \
         95% sure of 398.6 MiB to 401.5 MiB per epoch; full in about 33 epochs, 3 min"
    );
    assert!(growth.advice.starts_with("keep numbers, not tensors"));
    assert_eq!((growth.phase, growth.step), (Some(Phase::Train), Some(0)));
}

/// The step of the run, not of the epoch, and the phase that the script wrote.
#[test]
fn global_steps_and_phases_are_kept() {
    let text = memory_debug(3, 50, |step| match step {
        121 => ", \"memory_allocated_gb\": 0".to_owned(),
        _ => String::new(),
    });
    let spiked: String = text
        .lines()
        .map(|line| {
            if line.contains("\"global_step\": 121,") {
                format!(
                    "{}\n",
                    line.replace("\"allocated_mb\": ", "\"allocated_mb\": 1")
                )
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    let analysis = read(&spiked, None);
    let spike = analysis
        .findings
        .iter()
        .find(|finding| finding.kind == Symptom::Spike)
        .unwrap();
    assert_eq!(
        (spike.step, spike.phase),
        (Some(121), Some(Phase::Train)),
        "{}",
        spike.message
    );
    assert!(
        spike.message.contains("at step 121 during train"),
        "{}",
        spike.message
    );
}

/// A rise at the end of each of three epochs has no interval, and says what it takes to be sure.
#[test]
fn too_few_epochs_are_said() {
    let stairs = |num_epochs: usize| -> String {
        let line = |at: usize| {
            let allocated = 9000 + 400 * (at / 50) + at * 7919 % 13;
            format!(
                "{{\"epoch\": {}, \"step\": {at}, \"allocated_mb\": {allocated}, \"total_mb\": 24000}}\n",
                at / 50
            )
        };
        (0..50 * num_epochs).map(line).collect()
    };
    let two = read(&stairs(2), None);
    assert_eq!(two.verdict, Verdict::Healthy, "{:?}", two.findings);
    let is_said = |note: &String| {
        note.contains("rose by about 400.") && note.contains("at least two more epochs are needed")
    };
    assert!(two.log.notes.iter().any(is_said), "{:?}", two.log.notes);
    let three = read(&stairs(3), None);
    let growth = only(&three);
    assert_eq!(growth.severity, Severity::Warning);
    assert!(is_said(&growth.message), "{}", growth.message);
    let five = read(&stairs(5), None);
    let growth = only(&five);
    assert!(
        growth.message.starts_with("allocated memory grows by 400."),
        "{}",
        growth.message
    );
    assert!(growth.message.contains("95% sure"), "{}", growth.message);
}

fn smi(num_lines: usize, used: impl Fn(usize) -> String) -> String {
    let mut text =
        "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n".to_owned();
    for at in 0..num_lines {
        let (minute, second) = (at / 60, at % 60);
        writeln!(
            text,
            "2026/03/01 10:{minute:02}:{second:02}.000, 0, {}, 24000 MiB, 97 %",
            used(at)
        )
        .unwrap();
    }
    text
}

#[test]
fn a_gpu_that_is_lost_is_a_problem() {
    let healthy = smi(60, |_| "18000 MiB".to_owned());
    assert_eq!(read(&healthy, None).verdict, Verdict::Healthy);
    let lost = "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system to recover this GPU\n";
    let cells = "2026/03/01 10:01:00.000, 0, [GPU is lost], [GPU is lost], [GPU is lost]\n";
    for (more, kind) in [
        (lost, Symptom::GpuError),
        (cells, Symptom::GpuError),
        (
            "2026/03/01 10:01:00.000, 0, [Unknown Error], 24000 MiB, [Unknown Error]\n",
            Symptom::GpuError,
        ),
        (
            "[ 1234.5] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n",
            Symptom::GpuError,
        ),
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered\n",
            Symptom::CudaError,
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
            Symptom::OutOfMemory,
        ),
    ] {
        let analysis = read(&format!("{healthy}{more}"), None);
        assert_eq!(analysis.verdict, Verdict::Problem, "{more}");
        let finding = only(&analysis);
        assert_eq!((finding.kind, finding.severity), (kind, Severity::Problem));
        assert!(finding.message.contains("line 62"), "{}", finding.message);
        assert!(finding.message.contains(more.trim()), "{}", finding.message);
    }
    // A file with nothing else in it.
    let analysis = read(lost, None);
    assert_eq!(
        (only(&analysis).kind, analysis.log.format),
        (Symptom::GpuError, Format::Text)
    );
    assert_eq!(analysis.log.samples, 0);
}

#[test]
fn a_run_that_waits_is_never_healthy_and_gets_no_larger_batch() {
    // 30% of the memory used: a larger batch would fit.
    let line = |at: usize, more: &str| {
        format!(
            "{{\"step\": {at}, \"allocated_mb\": 7000, \"reserved_mb\": 7200, \"total_mb\": 24000, {more}}}\n"
        )
    };
    for more in [
        "\"data_time\": 0.63, \"step_time\": 1.0",
        "\"data_time\": 1.7, \"step_time\": 1.0",
        "\"data_ms\": 630, \"step_ms\": 1000",
        "\"waited_for_data\": 0.63",
        "\"data_wait_percent\": 63.0",
        "\"gpu_util\": 30.0",
    ] {
        // Few lines are enough where they say it outright.
        let num_lines = if more.contains("util") { 40 } else { 4 };
        let text: String = (0..num_lines).map(|at| line(at, more)).collect();
        let analysis = read(&text, None);
        assert_eq!(
            analysis.verdict,
            Verdict::Problem,
            "{more}: {:?}",
            analysis.findings
        );
        let finding = only(&analysis);
        assert_eq!(finding.kind, Symptom::WaitingForData);
        assert!(finding.advice.contains("workers"), "{}", finding.advice);
        assert!(!finding.advice.contains("batch size"), "{}", finding.advice);
    }
    // Only the wait is known, and the clock.
    let text: String = (0..20)
        .map(|at| {
            line(
                at,
                &format!("\"time\": {}, \"data_time\": 0.63", 1.7e9 + at as f64),
            )
        })
        .collect();
    let analysis = read(&text, None);
    assert!(
        only(&analysis).message.starts_with("63% of the time"),
        "{}",
        only(&analysis).message
    );
}

#[test]
fn a_limit_counts_over_the_total_of_the_log() {
    let text = smi(60, |_| "18000 MiB".to_owned());
    let analysis = read(&text, Some(8));
    let finding = only(&analysis);
    assert_eq!(
        (finding.kind, analysis.verdict),
        (Symptom::OverBudget, Verdict::Problem)
    );
    assert_eq!(
        finding.message,
        "held 17.58 GiB at the first sample: 9.58 GiB (120%) over the --limit of 8.00 GiB"
    );
    let note =
        "--limit: 8.00 GiB counts as full, not the 23.44 GiB that the log says the device has";
    assert!(
        analysis.log.notes.iter().any(|said| said == note),
        "{:?}",
        analysis.log.notes
    );
    let near = read(&text, Some(18));
    assert_eq!(only(&near).kind, Symptom::NearLimit);
    // A run of ours keeps to its plan, but not to this: what counts is what the process holds, not the host.
    let ours: String = (0..40)
        .map(|step| {
            format!(
                "{{\"time\":{step}.0,\"step\":{step},\"epoch\":0,\"phase\":\"train\",\"device\":\"cpu\",\"used_bytes\":9000000000,\
                 \"total_bytes\":25000000000,\"process_bytes\":3000000000,\"arena_bytes\":1,\"host_rss_bytes\":3000000000,\
                 \"planned_bytes\":3100000000}}\n"
            )
        })
        .collect();
    assert_eq!(read(&ours, None).verdict, Verdict::Healthy);
    assert_eq!(read(&ours, Some(4)).verdict, Verdict::Healthy);
    assert_eq!(only(&read(&ours, Some(2))).kind, Symptom::OverBudget);
}

/// One line of a hundred, by the high-water mark, while every sample is within.
#[test]
fn a_peak_over_the_budget_is_a_problem() {
    let line = |step: usize, peak: u64| {
        format!(
            "{{\"time\":{step}.0,\"step\":{step},\"epoch\":0,\"phase\":\"train\",\"device\":\"cpu\",\"used_bytes\":900000000,\
             \"total_bytes\":25000000000,\"process_bytes\":130000000,\"arena_bytes\":1,\"host_rss_bytes\":130000000,\
             \"planned_bytes\":140000000,\"process_peak_bytes\":{peak},\"budget_bytes\":146800640}}\n"
        )
    };
    let within: String = (0..100).map(|step| line(step, 146_800_640)).collect();
    assert_eq!(read(&within, None).verdict, Verdict::Healthy);
    let over: String = (0..100)
        .map(|step| line(step, if step == 41 { 236_978_176 } else { 140_000_000 }))
        .collect();
    let analysis = read(&over, None);
    let finding = only(&analysis);
    assert_eq!(
        (finding.kind, finding.step, analysis.verdict),
        (Symptom::OverBudget, Some(41), Verdict::Problem)
    );
    assert_eq!(
        finding.message,
        "held 226.0 MiB at step 41: 86.0 MiB (61%) over its budget of 140.0 MiB"
    );
}

#[test]
fn a_loss_that_is_no_number() {
    for (writes, last) in [
        ("NaN", true),
        ("Infinity", true),
        ("\"nan\"", true),
        ("1.5", false),
    ] {
        let text = memory_debug(1, 100, |step| match step {
            ..70 => format!(", \"loss\": 0.{step}"),
            _ => format!(", \"loss\": {writes}"),
        })
        .replace("\"allocated_mb\"", "\"unused_mb_count\"");
        let analysis = read(&text, None);
        let diverged = analysis
            .findings
            .iter()
            .find(|finding| finding.kind == Symptom::Diverged);
        assert_eq!(diverged.is_some(), last, "{writes}");
        if let Some(finding) = diverged {
            assert_eq!(
                (finding.step, finding.severity),
                (Some(70), Severity::Problem)
            );
            assert_eq!(
                finding.message,
                "training diverged: from step 70 to the end the loss is NaN or infinite, in 30 of 100 lines"
            );
        }
    }
    let csv: String = (0..40)
        .map(|step| {
            format!(
                "{step},18000,24000,{}\n",
                if step == 7 { "nan" } else { "1.5" }
            )
        })
        .collect();
    let analysis = read(&format!("step,used_mib,total_mib,loss\n{csv}"), None);
    let finding = only(&analysis);
    assert_eq!(
        (finding.kind, finding.severity),
        (Symptom::Diverged, Severity::Warning)
    );
    assert!(
        finding
            .message
            .ends_with("from step 7, and is finite again"),
        "{}",
        finding.message
    );
}

#[test]
fn dmon_is_read_in_each_of_its_forms() {
    let rows = |line: fn(usize) -> String| (0..120).map(line).collect::<String>();
    let plain = format!(
        "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk     fb   bar1\n\
         # Idx      W      C      C      %      %      %      %    MHz    MHz     MB     MB\n{}",
        rows(|at| format!(
            "    0    297     61      -     98     72      0      0   2619   1980 {:6}      5\n",
            9000 + 40 * at
        ))
    );
    let csv = format!(
        "#Time, gpu, pwr, sm, mem, fb\n#HH:MM:SS, Idx, W, %, %, MB\n{}",
        rows(|at| format!(
            "10:{:02}:{:02}, 0, 297, 98, 72, {}\n",
            at / 60,
            at % 60,
            9000 + 40 * at
        ))
    );
    for text in [&plain, &csv] {
        let analysis = read(text, Some(24));
        assert_eq!(analysis.log.format, Format::NvidiaSmiDmon);
        assert_eq!((analysis.log.samples, analysis.log.skipped.lines), (120, 0));
        let growth = only(&analysis);
        assert_eq!(growth.kind, Symptom::Growth);
        let grown = growth.evidence["growth_bytes"].as_f64().unwrap() / 1_048_576.0;
        assert!((grown / 4760.0 - 1.0).abs() < 0.03, "{grown}");
    }
    assert!(
        only(&read(&csv, None))
            .message
            .contains("2.34 GiB per minute"),
        "{}",
        only(&read(&csv, None)).message
    );
    // Without -s m there is no memory in it, and a GPU that waits is still seen.
    let busy_only = format!(
        "# gpu    pwr  gtemp     sm    mem\n# Idx      W      C      %      %\n{}",
        rows(|at| format!(
            "    0     97     41     {}     12\n",
            if at % 3 == 0 { 95 } else { 0 }
        ))
    );
    let analysis = read(&busy_only, None);
    assert_eq!(only(&analysis).kind, Symptom::WaitingForData);
    assert!(
        analysis.log.notes.iter().any(|note| note.contains("-s m")),
        "{:?}",
        analysis.log.notes
    );
}

/// The table that people leave running: `nvidia-smi -l 1 > gpu.txt`.
#[test]
fn tables_of_nvidia_smi_are_read() {
    let table = |at: usize, power: &str| {
        format!(
            "Sun Mar  1 10:{:02}:{:02} 2026\n+-----+\n| NVIDIA-SMI 550.54   Driver Version: 550.54 |\n\
             |   0  NVIDIA H200      On  |   00000000:1B:00.0 Off |                    0 |\n\
             | N/A   34C    P0  {power} /  700W |   {}MiB / 143771MiB |     98%      Default |\n\
             |    0   N/A  N/A      1234      C   python       61280MiB |\n",
            at / 60,
            at % 60,
            50_000 + 100 * at
        )
    };
    let text: String = (0..120).map(|at| table(at, "297W")).collect();
    let analysis = read(&text, None);
    assert_eq!(
        (analysis.log.format, analysis.log.samples),
        (Format::NvidiaSmiTable, 120)
    );
    let growth = only(&analysis);
    assert!(
        growth
            .message
            .starts_with("used memory grows by 5.86 GiB per minute"),
        "{}",
        growth.message
    );
    let failing = read(&(text + &table(120, "ERR!")), None);
    assert!(
        failing
            .findings
            .iter()
            .any(|finding| finding.kind == Symptom::GpuError),
        "{:?}",
        failing.findings
    );
}

/// A project's own log: what is free is the total less what is allocated at this moment, and evaluation takes most.
fn project_log(peak_mb: impl Fn(usize) -> usize, reserved_mb: impl Fn(usize) -> usize) -> String {
    let mut text = String::new();
    for line in 0..240 {
        let (epoch, batch) = (line / 60, line % 60);
        let phase = if batch < 54 { "train" } else { "val" };
        let allocated = 14_000 + line * 7919 % 13;
        writeln!(
            text,
            "{{\"timestamp\": {}, \"phase\": \"{phase}\", \"epoch\": {epoch}, \"batch_idx\": {batch}, \"global_step\": {line}, \
             \"allocated_mb\": {allocated}, \"reserved_mb\": {}, \"max_allocated_mb\": {}, \"total_memory_mb\": 81251, \"free_mb\": {}}}",
            1_700_000_000 + line,
            reserved_mb(line),
            peak_mb(line),
            81_251 - allocated
        )
        .unwrap();
    }
    text
}

#[test]
fn peaks_and_reserved_memory_count_before_a_larger_batch_is_advised() {
    let full = read(&project_log(|_| 58_212, |_| 61_000), None);
    assert_eq!(full.verdict, Verdict::Healthy, "{:#?}", full.findings);
    // Either of them alone is enough.
    for text in [
        project_log(|_| 58_212, |_| 60_000).replace("reserved_mb", "other"),
        project_log(|_| 58_212, |_| 61_000).replace("max_allocated_mb", "other"),
    ] {
        let kinds: Vec<Symptom> = read(&text, None)
            .findings
            .iter()
            .map(|one| one.kind)
            .collect();
        assert!(!kinds.contains(&Symptom::Underused), "{kinds:?}");
    }
    // Where nothing else is held, there is room.
    let small = read(&project_log(|_| 15_000, |_| 15_500), None);
    assert_eq!(only(&small).kind, Symptom::Underused);
}

#[test]
fn a_peak_at_the_end_of_an_epoch_is_a_spike() {
    // Four fifths of the first epoch are quiet; then its evaluation holds the similarities of everything.
    let peak = |line| if line < 55 { 16_500 } else { 58_212 };
    let text = project_log(peak, |line| peak(line) + 2_000);
    let analysis = read(&text, None);
    let finding = only(&analysis);
    assert_eq!((finding.kind, finding.step), (Symptom::Spike, Some(55)));
    for part in [
        "56.85 GiB (72% of the device)",
        "at step 55",
        "at the end of an epoch",
        "16.11 GiB",
    ] {
        assert!(finding.message.contains(part), "{}", finding.message);
    }
    assert!(
        finding.advice.contains("smaller batches"),
        "{}",
        finding.advice
    );

    // Once an epoch, and in the moments of the log.
    let mut text = String::new();
    for line in 0..200 {
        let allocated = if line % 20 == 19 {
            52_000
        } else {
            14_000 + line * 7919 % 13
        };
        writeln!(
            text,
            "{{\"epoch\": {}, \"step\": {line}, \"allocated_mb\": {allocated}, \"total_mb\": 81251}}",
            line / 20
        )
        .unwrap();
    }
    let analysis = read(&text, None);
    let spikes = analysis
        .findings
        .iter()
        .filter(|one| one.kind == Symptom::Spike);
    assert_eq!(spikes.count(), 1, "{:#?}", analysis.findings);
}

#[test]
fn lines_that_scripts_print_are_a_log() {
    for line in [
        "GPU Memory - Allocated: 2.15GB / Peak: 3.01GB",
        "GPU Memory - Allocated: 3.50 GB, Peak: 4.20 GB",
    ] {
        let mut text = String::from("Loading data\n");
        for step in 0..40 {
            writeln!(
                text,
                "Epoch [{}/4] Step [{step}/40] loss: 0.5\n{line}",
                step / 10
            )
            .unwrap();
        }
        let analysis = read(&text, Some(24));
        assert_eq!(analysis.log.format, Format::TrainingLog);
        assert_eq!((analysis.log.samples, analysis.log.skipped.lines), (40, 0));
        assert_eq!(only(&analysis).kind, Symptom::Underused);
    }
}
