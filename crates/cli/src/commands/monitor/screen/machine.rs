//! The machine's sections of the screen: host, GPUs, their curves, the processes on them.

use holdall_device::cuda::gpus::GpuReading;
use holdall_device::cuda::memory::Holder;
use holdall_files::{counted, show_bytes};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::super::chart::{self, CurveChart, bar};
use super::super::history::Ring;
use super::super::once::no_gpu;
use super::super::words::{self, UNKNOWN, gib, gpu_name, of_bytes, percent};
use super::{LOSS, View, WIDE, WORK, headed, indented, whole};

/// Colour of memory.
const MEMORY: Color = Color::Cyan;
const POWER: Color = Color::Yellow;
const HEAT: Color = Color::Red;

/// Maximum widths of a GPU's name and of its bar, in characters.
const LONGEST_NAME: usize = 32;
const LONGEST_BAR: usize = 60;

/// Shortest time span of a curve.
const LEAST_SPAN_S: f64 = 60.0;
/// More used memory than this belongs to some process, visible or not.
const SOMEBODYS_BYTES: u64 = 1 << 30;

fn share(part: Option<u64>, whole: Option<u64>) -> Option<f64> {
    let whole = whole.filter(|whole| *whole > 0)?;
    Some(part? as f64 / whole as f64)
}

pub fn draw_host(frame: &mut Frame, area: Rect, view: &View) {
    let inside = headed(frame, area, Line::from(" Host ").bold());
    let (readings, host) = (&view.readings, &view.readings.host);
    let width = usize::from(area.width / 4).clamp(6, 40);
    let row = |name: &'static str, share, colour, now: String, more: String| {
        let mut spans = vec![Span::from(format!(" {name:<8}"))];
        spans.extend(bar(share, width, colour));
        spans.push(Span::from(format!("  {now:<14}")));
        spans.push(Span::from(more).dim());
        Line::from(spans)
    };
    let threads = host.num_threads.map(|threads| counted(threads, "thread"));
    let load = host
        .load
        .map(|[one, five, fifteen]| format!("load {one:.2} {five:.2} {fifteen:.2}"));
    let more: Vec<String> = threads.into_iter().chain(load).collect();
    let limit = host.memory_limit_bytes;
    let limit = limit.map_or(String::new(), |limit| {
        format!("a limit of {}", show_bytes(limit))
    });
    let used = readings.host_used_bytes();
    let lines = vec![
        row(
            "CPU",
            host.cpu_percent.map(|percent| percent / 100.0),
            WORK,
            percent(host.cpu_percent),
            more.join(", "),
        ),
        row(
            "Memory",
            share(used, host.memory_total_bytes),
            MEMORY,
            of_bytes(used, host.memory_total_bytes),
            limit,
        ),
    ];
    frame.render_widget(Paragraph::new(lines), inside);
}

struct TimeCurve<'a> {
    name: &'a str,
    ring: &'a Ring,
    most: Option<f64>,
    /// Formats a value without its unit.
    number: fn(f64) -> String,
    unit: &'static str,
    colour: Color,
}

/// Draws curves side by side, each from 0 to its maximum.
fn draw_time_curves(frame: &mut Frame, area: Rect, view: &View, all: &[TimeCurve]) {
    let columns = Layout::horizontal(all.iter().map(|_| Constraint::Fill(1))).split(area);
    let now = view.readings.time;
    for (timed, area) in all.iter().zip(columns.iter()) {
        let points = timed.ring.points(now);
        let bounds = timed.ring.bounds();
        let span = (now - view.started).max(LEAST_SPAN_S);
        let oldest = points.first().map_or(span, |(age, _)| -age);
        let most = timed.most.or(bounds.map(|(_, most)| most)).unwrap_or(1.0);
        let written = |value: f64| format!("{}{}", (timed.number)(value), timed.unit);
        let before = bounds.map(|(least, most)| {
            let [least, most] = [least, most].map(timed.number);
            format!("{least} to {most} in {}", words::span(oldest))
        });
        let last = points.last().map(|(_, now)| written(*now));
        let drawn = CurveChart {
            name: timed.name,
            now: last.unwrap_or_else(|| UNKNOWN.to_owned()),
            before: before.unwrap_or_default(),
            points: &points,
            x: [-span.min(oldest.max(LEAST_SPAN_S)), 0.0],
            y: [0.0, most],
            labels: ["0".to_owned(), written(most)],
            colour: timed.colour,
        };
        chart::draw(frame, *area, drawn);
    }
}

pub fn draw_host_curves(frame: &mut Frame, area: Rect, view: &View) {
    let total = view.readings.host.memory_total_bytes;
    let all = [
        TimeCurve {
            name: "CPU",
            ring: &view.history.cpu_percent,
            most: Some(100.0),
            number: whole,
            unit: "%",
            colour: WORK,
        },
        TimeCurve {
            name: "memory",
            ring: &view.history.memory_bytes,
            most: total.map(|bytes| bytes as f64),
            number: gib,
            unit: " GiB",
            colour: MEMORY,
        },
    ];
    draw_time_curves(frame, area, view, &all);
}

pub fn draw_gpus(frame: &mut Frame, area: Rect, view: &View) {
    let reason = match &view.readings.gpus {
        Err(reason) => reason,
        Ok(gpus) => {
            let inside = headed(frame, area, Line::from(" GPUs ").bold());
            let rows = usize::from(inside.height);
            // Scroll so that the selected GPU stays visible.
            let first = (view.selected + 1).saturating_sub(rows);
            let shown = gpus.iter().enumerate().skip(first).take(rows);
            let lines: Vec<Line> = shown
                .map(|(at, gpu)| gpu_line(gpu, at == view.selected, inside.width))
                .collect();
            frame.render_widget(Paragraph::new(lines), inside);
            return;
        }
    };
    let inside = headed(frame, area, Line::from(" GPUs ").bold());
    let text = Paragraph::new(no_gpu(reason)).wrap(Wrap { trim: true });
    frame.render_widget(text, indented(inside));
}

fn gpu_line(gpu: &GpuReading, is_selected: bool, width: u16) -> Line<'static> {
    let used = gpu.memory.map(|memory| memory.used_bytes);
    let total = gpu.memory.map(|memory| memory.total_bytes);
    let busy = percent(gpu.utilization_percent.map(f64::from));
    let numbers = [
        format!("  {:>15}", of_bytes(used, total)),
        format!("  {busy:>4}"),
        format!("  {:>9}", words::power(gpu)),
        format!("  {:>5} ", words::temperature(gpu)),
    ];
    let bar_width = usize::from(width / 7).clamp(4, 12);
    let fixed: usize = numbers.iter().map(|text| text.chars().count()).sum();
    let room = usize::from(width).saturating_sub(fixed + bar_width + 6);
    // The name takes the room it needs; the bar gets the rest.
    let name_room = room.min(LONGEST_NAME);
    let bar_width = (bar_width + room - name_room).min(LONGEST_BAR);
    let name: String = gpu_name(gpu).chars().take(name_room.max(4)).collect();
    let marker = if is_selected { ">" } else { " " };
    let head = format!("{marker}{:>2} {name:<name_room$}  ", gpu.index);
    let mut spans = vec![if is_selected {
        Span::from(head).bold()
    } else {
        Span::from(head)
    }];
    spans.extend(bar(share(used, total), bar_width, MEMORY));
    let [memory, busy, power, temperature] = numbers;
    let heat = match gpu.temperature_celsius {
        Some(90..) => Style::new().fg(Color::Red),
        Some(80..) => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    };
    spans.push(Span::from(memory));
    spans.push(Span::from(busy).fg(WORK));
    spans.push(Span::from(power));
    spans.push(Span::styled(temperature, heat));
    Line::from(spans)
}

pub fn draw_gpu_curves(frame: &mut Frame, area: Rect, view: &View) {
    let (Some(gpu), Some(history)) = (view.chosen(), view.history.gpus.get(view.selected)) else {
        return;
    };
    let inside = headed(
        frame,
        area,
        Line::from(format!(" GPU {} ", gpu.index)).bold(),
    );
    let mut all = vec![
        TimeCurve {
            name: "memory",
            ring: &history.memory_bytes,
            most: gpu.memory.map(|memory| memory.total_bytes as f64),
            number: gib,
            unit: " GiB",
            colour: MEMORY,
        },
        TimeCurve {
            name: "busy",
            ring: &history.utilization_percent,
            most: Some(100.0),
            number: whole,
            unit: "%",
            colour: WORK,
        },
    ];
    if area.width >= WIDE {
        all.push(TimeCurve {
            name: "power",
            ring: &history.power_watts,
            most: gpu.power_limit_watts,
            number: whole,
            unit: " W",
            colour: POWER,
        });
        all.push(TimeCurve {
            name: "temperature",
            ring: &history.temperature_celsius,
            most: Some(100.0),
            number: whole,
            unit: " °C",
            colour: HEAT,
        });
    }
    draw_time_curves(frame, inside, view, &all);
}

pub fn draw_holders(frame: &mut Frame, area: Rect, view: &View) {
    let Some(gpu) = view.chosen() else {
        return;
    };
    let name = Line::from(format!(" Processes on GPU {} ", gpu.index)).bold();
    let inside = headed(frame, area, name);
    let trainer = view.run.as_ref().and_then(|run| run.reading.pid);
    let lines: Vec<Line> = match gpu.processes.as_deref() {
        None => vec![Line::from(" not reported by the driver").dim()],
        Some([])
            if gpu
                .memory
                .is_some_and(|memory| memory.used_bytes > SOMEBODYS_BYTES) =>
        {
            vec![Line::from(" processes that are not visible from here: of a container's host, or of another container").dim()]
        }
        Some([]) => vec![Line::from(" none").dim()],
        Some(holders) => {
            let holder = |holder: &Holder| {
                let name = match holder.name.as_str() {
                    "" => "name not visible",
                    name => name,
                };
                let held = holder.bytes.map_or("not reported".to_owned(), show_bytes);
                let mark = if trainer == Some(holder.pid) {
                    "  this run"
                } else {
                    ""
                };
                Line::from(vec![
                    Span::from(format!(" {:>8}  {name:<24}  {held:>15}", holder.pid)),
                    Span::from(mark).fg(LOSS),
                ])
            };
            holders.iter().map(holder).collect()
        }
    };
    frame.render_widget(Paragraph::new(lines), inside);
}
