//! Content of the screen, by its size and the available data.

use std::path::Path;

use holdall_device::cuda::memory::{CardMemory, Holder};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::run::RunWatch;
use super::*;
use crate::host::HostReading;

const GIB: u64 = 1 << 30;

/// Readings of a machine with this many GPUs.
pub fn machine(num_gpus: u32) -> Readings {
    let holder = |pid, name: &str, bytes| Holder {
        pid,
        name: name.to_owned(),
        bytes,
    };
    let gpu = |index: u32| GpuReading {
        index,
        name: Some("NVIDIA GeForce RTX 4060 Ti".to_owned()),
        capability: Some((8, 9)),
        memory: Some(CardMemory {
            used_bytes: 3 * GIB,
            free_bytes: 5 * GIB,
            total_bytes: 8 * GIB,
        }),
        utilization_percent: Some(93),
        power_watts: Some(115.4),
        power_limit_watts: Some(160.0),
        temperature_celsius: Some(61),
        processes: Some(vec![
            holder(4242, "holdall", Some(3 * GIB)),
            holder(7, "", None),
        ]),
    };
    Readings {
        time: 1_000_000.0,
        host: HostReading {
            name: Some("workstation".to_owned()),
            cpu_percent: Some(37.0),
            load: Some([1.2, 0.9, 0.8]),
            num_threads: Some(8),
            memory_total_bytes: Some(32 * GIB),
            memory_available_bytes: Some(20 * GIB),
            memory_limit_bytes: None,
        },
        gpus: match num_gpus {
            0 => Err("NVIDIA's driver is not here (libnvidia-ml.so.1 cannot be opened)".to_owned()),
            _ => Ok((0..num_gpus).map(gpu).collect()),
        },
    }
}

/// A view after two minutes of samples.
pub fn view(readings: Readings) -> View {
    let mut view = View::new(readings.clone(), Duration::from_secs(1));
    for second in 1..=120 {
        let mut next = readings.clone();
        next.time += f64::from(second);
        next.host.cpu_percent = Some(f64::from(second % 50));
        for gpu in next.gpus.iter_mut().flatten() {
            gpu.utilization_percent = Some(60 + (second % 40) as u32);
        }
        view.record(next);
    }
    view
}

fn with_run(mut view: View, folder: &Path) -> View {
    let lines = (1..=60).map(|step| {
        format!(
            "{{\"kind\":\"step\",\"step\":{step},\"epoch\":{},\"loss\":{},\"contrastive\":2.5,\"contrastive_chance\":4.852,\
             \"samples\":128,\"seconds\":0.25,\"waited_for_data\":0.001}}\n",
            1 + (step - 1) / 40,
            1.0 + 4.0 / f64::from(step)
        )
    });
    std::fs::write(folder.join("metrics.jsonl"), lines.collect::<String>()).unwrap();
    std::fs::write(folder.join("config.yml"), "train: {epochs: 20}\n").unwrap();
    let plan = "{\"device\":\"cuda\",\"effective_batch\":128,\"chosen\":{\"batch_size\":8,\"gradient_accumulation\":16,\
                \"precision\":\"bf16\",\"recompute\":\"none\",\"process_bytes\":3328599654}}";
    std::fs::write(folder.join("plan.json"), plan).unwrap();
    let memory = "{\"time\":1.0,\"phase\":\"train\",\"process_bytes\":3221225472}\n";
    std::fs::write(folder.join("memory.jsonl"), memory).unwrap();
    let mut watch = RunWatch::new(folder);
    let mut reading = watch.read();
    reading.folder = Path::new("runs/cars").to_owned();
    reading.pid = Some(4242);
    view.run = Some(RunView {
        reading,
        loss: watch.loss.clone(),
        samples_per_s: watch.samples_per_s.clone(),
        is_named: false,
    });
    view
}

fn drawn(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(width.max(1)));
    let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    rows.map(|row| format!("{}\n", row.trim_end())).collect()
}

fn assert_has(screen: &str, words: &[&str]) {
    for word in words {
        assert!(screen.contains(word), "{word} is not on\n{screen}");
    }
}

#[test]
fn a_small_terminal_has_it_all() {
    let folder = tempfile::tempdir().unwrap();
    let screen = drawn(&with_run(view(machine(1)), folder.path()), 80, 24);
    assert_has(
        &screen,
        &[
            "holdall monitor  workstation",
            "every 1 s",
            "CPU ",
            "12.0/32.0 GiB",
            "> 0 GeForce RTX 4060 Ti",
            "3.0/8.0 GiB",
            "115/160 W",
            "61 °C",
            "Processes on GPU 0",
            "4242  holdall",
            "Run runs/cars",
            "running (train)",
            "epoch 2/20, step 60/800",
            "512 samples/s",
            "data wait   0.4%",
            "batch 8 x 16 = 128",
            "bf16, recompute none",
            "another run: holdall monitor RUN",
            "3.0/3.1 GiB planned",
            "loss",
            "q quit",
        ],
    );
}

#[test]
fn a_large_terminal_has_more_curves() {
    let folder = tempfile::tempdir().unwrap();
    let screen = drawn(&with_run(view(machine(8)), folder.path()), 200, 50);
    assert_has(
        &screen,
        &[
            "power",
            "temperature",
            "samples/s",
            "  7 GeForce",
            "this run",
            "batch 8 x 16 = 128",
        ],
    );
    assert_has(
        &drawn(&view(machine(8)), 200, 50),
        &["No run is training on this machine"],
    );
}

#[test]
fn without_a_gpu_the_host_is_shown_and_why() {
    for (width, height) in [(80, 24), (200, 50)] {
        let screen = drawn(&view(machine(0)), width, height);
        assert_has(
            &screen,
            &[
                "No GPU: NVIDIA's driver is not here",
                "holdall doctor",
                "CPU",
                "memory",
                "No run is training",
            ],
        );
    }
}

#[test]
fn what_is_not_known_is_a_dash() {
    let mut readings = machine(1);
    readings.host = HostReading::default();
    readings.gpus = Ok(vec![GpuReading::default()]);
    let screen = drawn(&View::new(readings, Duration::from_secs(1)), 80, 24);
    assert_has(
        &screen,
        &["does not answer", "not reported by the driver", " -"],
    );
    let mut hidden = machine(1);
    for gpu in hidden.gpus.iter_mut().flatten() {
        gpu.processes = Some(Vec::new());
    }
    assert_has(&drawn(&view(hidden), 80, 24), &["not visible from here"]);
}

/// The selected GPU is visible, however many there are.
#[test]
fn the_chosen_one_is_shown() {
    let mut view = view(machine(16));
    view.selected = 15;
    assert_has(
        &drawn(&view, 80, 24),
        &[">15 GeForce", "Processes on GPU 15"],
    );
}

#[test]
fn no_size_is_too_small_to_draw_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut views = [
        view(machine(0)),
        view(machine(16)),
        with_run(view(machine(2)), folder.path()),
    ];
    for view in &mut views {
        for is_helping in [false, true] {
            view.is_helping = is_helping;
            for width in (1..24).chain([40, 79, 119, 120, 300]) {
                for height in (1..28).chain([39, 40, 41, 100]) {
                    drawn(view, width, height);
                }
            }
        }
    }
    assert_has(&drawn(&views[1], 20, 5), &["holdall monitor", "q quit"]);
}
