//! The screen as a function of what is known. Parts that do not fit are left out, the least important first; what room is left
//! goes to the curves.

use std::time::Duration;

use holdall_data::words::counted;
use holdall_device::cuda::gpus::GpuReading;
use holdall_train::budget::{show_bytes, show_time};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use super::chart::{self, Drawn, bar};
use super::history::{Curve, History, Ring};
use super::once::{NO_RUN, no_gpu};
use super::readings::Readings;
use super::run::{RunReading, State};
use super::words::{self, UNKNOWN, facts, gpu_name, of_bytes, percent};

/// Memory, and what it is full of.
const MEMORY: Color = Color::Cyan;
/// Work that is done.
const WORK: Color = Color::Green;
const POWER: Color = Color::Yellow;
const HEAT: Color = Color::Red;
const LOSS: Color = Color::Magenta;

/// Below this width only what is needed is said.
const NARROW: u16 = 78;
/// From this width on there is room for more curves side by side.
const WIDE: u16 = 120;
/// From this height on the host's curves stand beside a GPU's.
const HIGH: u16 = 40;
/// A curve over time shows at least so many seconds.
const LEAST_SPAN_S: f64 = 60.0;

/// All that is shown.
pub struct View {
    pub readings: Readings,
    pub history: History,
    pub run: Option<RunView>,
    /// Whose curves and processes are shown.
    pub selected: usize,
    pub interval: Duration,
    pub is_helping: bool,
    started: f64,
}

/// A run with its curves.
pub struct RunView {
    pub reading: RunReading,
    pub loss: Curve,
    pub samples_per_s: Curve,
    pub is_named: bool,
}

impl View {
    pub fn new(readings: Readings, interval: Duration) -> View {
        let mut view = View {
            started: readings.time,
            history: History::default(),
            readings,
            run: None,
            selected: 0,
            interval,
            is_helping: false,
        };
        view.history.record(&view.readings);
        view
    }

    /// Takes another look in.
    pub fn record(&mut self, readings: Readings) {
        self.history.record(&readings);
        self.readings = readings;
        self.selected = self.selected.min(self.gpus().len().saturating_sub(1));
    }

    fn gpus(&self) -> &[GpuReading] {
        self.readings.gpus.as_deref().unwrap_or_default()
    }
}

/// A stretch of the screen, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Host,
    HostCurves,
    Gpus,
    GpuCurves,
    Holders,
    Run,
}

/// How many rows a part takes, and how much it matters.
struct Wanted {
    part: Part,
    least: u16,
    most: u16,
    /// The largest goes first where there is no room.
    rank: u8,
}

fn wanted(view: &View, height: u16) -> Vec<Wanted> {
    let num_gpus = u16::try_from(view.gpus().len()).unwrap_or(u16::MAX - 1);
    let has_gpu = num_gpus > 0;
    let want = |part, least, most, rank| Wanted {
        part,
        least,
        most,
        rank,
    };
    let mut all = vec![want(Part::Host, 3, 3, 1)];
    if !has_gpu || height >= HIGH {
        all.push(want(Part::HostCurves, 4, 14, if has_gpu { 6 } else { 3 }));
    }
    match has_gpu {
        true => {
            let num_holders = selected(view).and_then(|gpu| Some(gpu.processes.as_ref()?.len()));
            let num_holders = u16::try_from(num_holders.unwrap_or(0)).unwrap_or(u16::MAX - 1);
            all.push(want(Part::Gpus, 1 + num_gpus.min(4), 1 + num_gpus, 0));
            all.push(want(Part::GpuCurves, 5, 18, 3));
            all.push(want(Part::Holders, 2, 1 + num_holders.max(1), 4));
        }
        false => all.push(want(Part::Gpus, 3, 3, 0)),
    }
    all.push(match view.run {
        Some(_) => want(Part::Run, 9, 24, 2),
        None => want(Part::Run, 2, 2, 5),
    });
    all
}

/// Which parts there are, and how high each is.
fn laid_out(view: &View, height: u16) -> Vec<(Part, u16)> {
    let mut all = wanted(view, height);
    let sum = |all: &[Wanted]| all.iter().map(|want| u32::from(want.least)).sum::<u32>();
    while sum(&all) > u32::from(height) && all.len() > 1 {
        let least = all.iter().map(|want| want.rank).max();
        all.retain(|want| Some(want.rank) != least);
    }
    let mut left = u32::from(height).saturating_sub(sum(&all));
    let mut heights: Vec<u16> = all.iter().map(|want| want.least).collect();
    // Row by row to whoever has fewest beyond the least.
    while left > 0 {
        let room = all
            .iter()
            .zip(&mut heights)
            .filter(|(want, height)| **height < want.most);
        let Some((_, height)) = room.min_by_key(|(want, height)| **height - want.least) else {
            break;
        };
        *height += 1;
        left -= 1;
    }
    all.iter().map(|want| want.part).zip(heights).collect()
}

/// Draws everything.
pub fn draw(frame: &mut Frame, view: &View) {
    let keys_height = if view.is_helping { 3 } else { 1 };
    let rows = [
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(keys_height),
    ];
    let [title, body, keys] = Layout::vertical(rows).areas(frame.area());
    draw_title(frame, title, view);
    let parts = laid_out(view, body.height);
    let heights = parts.iter().map(|(_, height)| Constraint::Length(*height));
    let areas = Layout::vertical(heights.chain([Constraint::Fill(1)])).split(body);
    for ((part, _), area) in parts.iter().zip(areas.iter()) {
        match part {
            Part::Host => draw_host(frame, *area, view),
            Part::HostCurves => draw_host_curves(frame, *area, view),
            Part::Gpus => draw_gpus(frame, *area, view),
            Part::GpuCurves => draw_gpu_curves(frame, *area, view),
            Part::Holders => draw_holders(frame, *area, view),
            Part::Run => draw_run(frame, *area, view),
        }
    }
    draw_keys(frame, keys, view);
}

fn draw_title(frame: &mut Frame, area: Rect, view: &View) {
    let mut left = vec![Span::from(" holdall monitor").bold()];
    if let Some(name) = &view.readings.host.name {
        left.push(Span::from(format!("  {name}")));
    }
    frame.render_widget(Line::from(left), area);
    let every = Span::from(format!("every {} ", words::interval(view.interval))).dim();
    frame.render_widget(Line::from(every).right_aligned(), area);
}

fn draw_keys(frame: &mut Frame, area: Rect, view: &View) {
    let key = |key: &'static str, does: &'static str| {
        [
            Span::from(format!(" {key} ")).bold(),
            Span::from(format!("{does}  ")).dim(),
        ]
    };
    let keys = [
        key("q", "quit"),
        key("↑↓", "GPU"),
        key("+ -", "interval"),
        key("h", "help"),
    ];
    let mut lines = Vec::new();
    if view.is_helping {
        lines.push(
            Line::from(
                " q, Esc, Ctrl-C quit; arrows, Tab choose a GPU; + longer, - shorter interval",
            )
            .dim(),
        );
        lines.push(
            Line::from(" `holdall monitor RUN` shows another run; --once and --json print and end")
                .dim(),
        );
    }
    lines.push(Line::from(keys.into_iter().flatten().collect::<Vec<_>>()));
    frame.render_widget(Paragraph::new(lines), area);
    if view.run.as_ref().is_some_and(|run| !run.is_named) && area.width >= NARROW {
        let other = Line::from("another run: holdall monitor RUN ").dim();
        let last = Rect {
            y: area.bottom().saturating_sub(1),
            height: area.height.min(1),
            ..area
        };
        frame.render_widget(other.right_aligned(), last);
    }
}

/// A thin line with a name; what is left below it.
fn headed(frame: &mut Frame, area: Rect, name: Line<'_>) -> Rect {
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().dim())
        .title(name);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    inside
}

fn share(part: Option<u64>, whole: Option<u64>) -> Option<f64> {
    let whole = whole.filter(|whole| *whole > 0)?;
    Some(part? as f64 / whole as f64)
}

fn draw_host(frame: &mut Frame, area: Rect, view: &View) {
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
        format!("a container allows {}", show_bytes(limit))
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

/// A quantity of the machine over time.
struct Timed<'a> {
    name: &'a str,
    ring: &'a Ring,
    most: Option<f64>,
    write: fn(f64) -> String,
    colour: Color,
}

/// Side by side, from 0 to what is the most.
fn draw_timed(frame: &mut Frame, area: Rect, view: &View, all: &[Timed]) {
    let columns = Layout::horizontal(all.iter().map(|_| Constraint::Fill(1))).split(area);
    let now = view.readings.time;
    for (timed, area) in all.iter().zip(columns.iter()) {
        let points = timed.ring.points(now);
        let bounds = timed.ring.bounds();
        let span = (now - view.started).max(LEAST_SPAN_S);
        let oldest = points.first().map_or(span, |(age, _)| -age);
        let most = timed.most.or(bounds.map(|(_, most)| most)).unwrap_or(1.0);
        let written = match (points.last(), bounds) {
            (Some((_, now)), Some((least, most))) => format!(
                "{}  {} to {} in {}",
                (timed.write)(*now),
                (timed.write)(least),
                (timed.write)(most),
                show_time(oldest.max(0.0).round() * 1e3)
            ),
            _ => UNKNOWN.to_owned(),
        };
        let drawn = Drawn {
            name: timed.name,
            now: written,
            points: &points,
            x: [-span.min(oldest.max(LEAST_SPAN_S)), 0.0],
            y: [0.0, most],
            labels: ["0".to_owned(), (timed.write)(most)],
            colour: timed.colour,
        };
        chart::draw(frame, *area, drawn);
    }
}

fn write_bytes(bytes: f64) -> String {
    show_bytes(bytes as u64)
}

fn write_percent(value: f64) -> String {
    format!("{value:.0}%")
}

fn draw_host_curves(frame: &mut Frame, area: Rect, view: &View) {
    let total = view.readings.host.memory_total_bytes;
    let all = [
        Timed {
            name: "CPU",
            ring: &view.history.cpu_percent,
            most: Some(100.0),
            write: write_percent,
            colour: WORK,
        },
        Timed {
            name: "memory",
            ring: &view.history.memory_bytes,
            most: total.map(|bytes| bytes as f64),
            write: write_bytes,
            colour: MEMORY,
        },
    ];
    draw_timed(frame, area, view, &all);
}

fn selected(view: &View) -> Option<&GpuReading> {
    view.gpus().get(view.selected)
}

fn draw_gpus(frame: &mut Frame, area: Rect, view: &View) {
    let reason = match &view.readings.gpus {
        Err(reason) => reason,
        Ok(gpus) => {
            let inside = headed(frame, area, Line::from(" GPUs ").bold());
            let rows = usize::from(inside.height);
            // The chosen one stays in sight.
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

fn indented(area: Rect) -> Rect {
    Rect {
        x: area.x + 1.min(area.width),
        width: area.width.saturating_sub(2),
        ..area
    }
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
    let bar_width = usize::from(width / 7).clamp(4, 40);
    let fixed: usize = numbers.iter().map(|text| text.chars().count()).sum();
    let room = usize::from(width).saturating_sub(fixed + bar_width + 6);
    let name: String = gpu_name(gpu).chars().take(room.max(4)).collect();
    let marker = if is_selected { ">" } else { " " };
    let head = format!("{marker}{:>2} {name:<room$}  ", gpu.index);
    let mut spans = vec![match is_selected {
        true => Span::from(head).bold(),
        false => Span::from(head),
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

fn draw_gpu_curves(frame: &mut Frame, area: Rect, view: &View) {
    let (Some(gpu), Some(history)) = (selected(view), view.history.gpus.get(view.selected)) else {
        return;
    };
    let inside = headed(
        frame,
        area,
        Line::from(format!(" GPU {} ", gpu.index)).bold(),
    );
    let mut all = vec![
        Timed {
            name: "memory",
            ring: &history.memory_bytes,
            most: gpu.memory.map(|memory| memory.total_bytes as f64),
            write: write_bytes,
            colour: MEMORY,
        },
        Timed {
            name: "busy",
            ring: &history.utilization_percent,
            most: Some(100.0),
            write: write_percent,
            colour: WORK,
        },
    ];
    if area.width >= WIDE {
        all.push(Timed {
            name: "power",
            ring: &history.power_watts,
            most: gpu.power_limit_watts,
            write: |watts| format!("{watts:.0} W"),
            colour: POWER,
        });
        all.push(Timed {
            name: "temperature",
            ring: &history.temperature_celsius,
            most: Some(100.0),
            write: |degrees| format!("{degrees:.0} °C"),
            colour: HEAT,
        });
    }
    draw_timed(frame, inside, view, &all);
}

fn draw_holders(frame: &mut Frame, area: Rect, view: &View) {
    let Some(gpu) = selected(view) else {
        return;
    };
    let name = Line::from(format!(" Who is on GPU {} ", gpu.index)).bold();
    let inside = headed(frame, area, name);
    let trainer = view.run.as_ref().and_then(|run| run.reading.pid);
    let lines: Vec<Line> = match gpu.processes.as_deref() {
        None => vec![Line::from(" the driver does not tell").dim()],
        Some([]) if gpu.memory.is_some_and(|memory| memory.used_bytes > 1 << 30) => {
            vec![Line::from(" processes that cannot be seen from here: of a container's host, or of another container").dim()]
        }
        Some([]) => vec![Line::from(" nobody").dim()],
        Some(holders) => {
            let holder = |holder: &holdall_device::cuda::memory::Holder| {
                let name = match holder.name.as_str() {
                    "" => "not seen from here",
                    name => name,
                };
                let held = holder
                    .bytes
                    .map_or("amount not told".to_owned(), show_bytes);
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

fn draw_run(frame: &mut Frame, area: Rect, view: &View) {
    let Some(run) = &view.run else {
        let inside = headed(frame, area, Line::from(" Run ").bold());
        frame.render_widget(Line::from(NO_RUN).dim(), indented(inside));
        return;
    };
    let reading = &run.reading;
    let state = match reading.state {
        State::Running | State::Finished => Style::new().fg(WORK),
        State::Failed => Style::new().fg(Color::Red),
        State::Stopped => Style::new().fg(Color::Yellow),
    };
    let heading = Line::from(vec![
        Span::from(format!(" Run {} ", short_folder(reading, area.width))).bold(),
        Span::styled(format!(" {} ", words::state(reading)), state),
        Span::from(format!(" {} ", words::progress(reading))),
    ]);
    let inside = headed(frame, area, heading);
    let facts = facts(reading);
    let written = facts.iter().map(|(_, value)| value.chars().count()).max();
    // Curves get at least half of it.
    let room = u16::try_from(written.unwrap_or(0) + 14).unwrap_or(u16::MAX);
    let room = room.min(inside.width.div_ceil(2));
    let [curves, numbers] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(room)]).areas(inside);
    let curve = |name, curve: &Curve, write: fn(f64) -> String, now: Option<f64>, colour| {
        let (least, most) = curve.bounds().unwrap_or((0.0, 1.0));
        let first = curve.points().first().map_or(0.0, |point| point.0);
        let last = curve.points().last().map_or(1.0, |point| point.0);
        (
            name,
            now.map_or(UNKNOWN.to_owned(), write),
            curve.points().to_vec(),
            [first, last.max(first + 1.0)],
            [least, most],
            write,
            colour,
        )
    };
    let three: fn(f64) -> String = |loss| format!("{loss:.3}");
    let whole: fn(f64) -> String = |speed| format!("{speed:.0}");
    let mut all = vec![curve("loss", &run.loss, three, reading.loss, LOSS)];
    if area.width >= WIDE {
        all.push(curve(
            "samples/s",
            &run.samples_per_s,
            whole,
            reading.samples_per_s,
            WORK,
        ));
    }
    let columns = Layout::horizontal(all.iter().map(|_| Constraint::Fill(1))).split(curves);
    for ((name, now, points, x, y, write, colour), area) in all.into_iter().zip(columns.iter()) {
        let labels = y.map(write);
        let drawn = Drawn {
            name,
            now,
            points: &points,
            x,
            y,
            labels,
            colour,
        };
        chart::draw(frame, *area, drawn);
    }
    let lines: Vec<Line> = facts
        .into_iter()
        .map(|(name, value)| {
            Line::from(vec![
                Span::from(format!(" {name:<12}")).dim(),
                Span::from(value),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), numbers);
}

/// Of a folder, the end tells more.
fn short_folder(run: &RunReading, width: u16) -> String {
    let text = run.folder.display().to_string();
    let room = usize::from(width / 3).max(8);
    let length = text.chars().count();
    if length <= room {
        return text;
    }
    let end: String = text.chars().skip(length + 3 - room).collect();
    format!("...{end}")
}

#[cfg(test)]
pub mod tests {
    use std::path::Path;

    use holdall_device::cuda::memory::{CardMemory, Holder};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::run::RunWatch;
    use super::*;
    use crate::host::HostReading;

    const GIB: u64 = 1 << 30;

    /// A machine that was looked at, with so many cards.
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
                0 => Err(
                    "NVIDIA's driver is not here (libnvidia-ml.so.1 cannot be opened)".to_owned(),
                ),
                _ => Ok((0..num_gpus).map(gpu).collect()),
            },
        }
    }

    /// It has been watched for two minutes.
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
                "Who is on GPU 0",
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
                "batch 8 x 16 = 128, bf16",
                "0.4% waiting for data",
            ],
        );
        assert_has(
            &drawn(&view(machine(8)), 200, 50),
            &["No run trains on this machine"],
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
                    "No run trains",
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
            &["does not answer", "the driver does not tell", " -"],
        );
        let mut hidden = machine(1);
        for gpu in hidden.gpus.iter_mut().flatten() {
            gpu.processes = Some(Vec::new());
        }
        assert_has(&drawn(&view(hidden), 80, 24), &["cannot be seen from here"]);
    }

    /// The chosen card is in sight, however many there are.
    #[test]
    fn the_chosen_one_is_shown() {
        let mut view = view(machine(16));
        view.selected = 15;
        assert_has(&drawn(&view, 80, 24), &[">15 GeForce", "Who is on GPU 15"]);
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
}
