//! Draws the screen from plain data. Sections that do not fit are left out, the least important first; spare room goes to
//! the curves.

mod machine;
mod run;
#[cfg(test)]
pub mod tests;

use std::time::Duration;

use holdall_device::cuda::gpus::GpuReading;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::history::{Curve, History};
use super::readings::Readings;
use super::run::RunReading;
use super::words;

/// Colour of completed work.
const WORK: Color = Color::Green;
const LOSS: Color = Color::Magenta;

/// Below this width, the screen shows only the essentials.
const NARROW: u16 = 78;
/// Below this height, the list of all keys would hide the content.
const LEAST_FOR_HELP: u16 = 10;
/// From this width on, more curves fit side by side.
const WIDE: u16 = 120;
/// From this height on, the host's curves are shown beside a GPU's.
const HIGH: u16 = 40;

/// All data on the screen.
pub struct View {
    pub readings: Readings,
    pub history: History,
    pub run: Option<RunView>,
    /// Index of the GPU whose curves and processes are shown.
    pub selected: usize,
    pub interval: Duration,
    pub is_helping: bool,
    started: f64,
}

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

    /// Adds a sample.
    pub fn record(&mut self, readings: Readings) {
        self.history.record(&readings);
        self.readings = readings;
        self.selected = self.selected.min(self.gpus().len().saturating_sub(1));
    }

    fn gpus(&self) -> &[GpuReading] {
        self.readings.gpus.as_deref().unwrap_or_default()
    }

    /// The selected GPU.
    fn chosen(&self) -> Option<&GpuReading> {
        self.gpus().get(self.selected)
    }
}

/// A section of the screen, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScreenPart {
    Host,
    HostCurves,
    Gpus,
    GpuCurves,
    Holders,
    Run,
}

/// Height bounds and rank of a section.
struct PartSize {
    part: ScreenPart,
    least: u16,
    most: u16,
    /// Without room, the section with the largest rank is left out first.
    rank: u8,
}

fn part_sizes(view: &View, height: u16) -> Vec<PartSize> {
    let num_gpus = u16::try_from(view.gpus().len()).unwrap_or(u16::MAX - 1);
    let has_gpu = num_gpus > 0;
    let want = |part, least, most, rank| PartSize {
        part,
        least,
        most,
        rank,
    };
    let mut all = vec![want(ScreenPart::Host, 3, 3, 1)];
    if !has_gpu || height >= HIGH {
        all.push(want(
            ScreenPart::HostCurves,
            4,
            14,
            if has_gpu { 6 } else { 3 },
        ));
    }
    if has_gpu {
        let num_holders = view
            .chosen()
            .and_then(|gpu| Some(gpu.processes.as_ref()?.len()));
        let num_holders = u16::try_from(num_holders.unwrap_or(0)).unwrap_or(u16::MAX - 1);
        all.push(want(ScreenPart::Gpus, 1 + num_gpus.min(4), 1 + num_gpus, 0));
        all.push(want(ScreenPart::GpuCurves, 5, 18, 3));
        all.push(want(ScreenPart::Holders, 2, 1 + num_holders.max(1), 4));
    } else {
        all.push(want(ScreenPart::Gpus, 3, 3, 0))
    }
    all.push(match view.run {
        Some(_) => want(ScreenPart::Run, 9, 40, 2),
        None => want(ScreenPart::Run, 2, 2, 5),
    });
    all
}

/// The visible sections with their heights.
fn laid_out(view: &View, height: u16) -> Vec<(ScreenPart, u16)> {
    let mut all = part_sizes(view, height);
    let sum = |all: &[PartSize]| all.iter().map(|want| u32::from(want.least)).sum::<u32>();
    while sum(&all) > u32::from(height) && all.len() > 1 {
        let least = all.iter().map(|want| want.rank).max();
        all.retain(|want| Some(want.rank) != least);
    }
    let mut left = u32::from(height).saturating_sub(sum(&all));
    let mut heights: Vec<u16> = all.iter().map(|want| want.least).collect();
    // Spare rows go one by one to the section with the fewest rows above its minimum.
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

pub fn draw(frame: &mut Frame, view: &View) {
    let has_room = frame.area().height >= LEAST_FOR_HELP;
    let keys_height = if view.is_helping && has_room { 3 } else { 1 };
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
            ScreenPart::Host => machine::draw_host(frame, *area, view),
            ScreenPart::HostCurves => machine::draw_host_curves(frame, *area, view),
            ScreenPart::Gpus => machine::draw_gpus(frame, *area, view),
            ScreenPart::GpuCurves => machine::draw_gpu_curves(frame, *area, view),
            ScreenPart::Holders => machine::draw_holders(frame, *area, view),
            ScreenPart::Run => run::draw_run(frame, *area, view),
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
    if area.width < NARROW / 2 {
        return;
    }
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
    if area.height > 1 {
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

/// Draws a thin line with a title; returns the area below it.
fn headed(frame: &mut Frame, area: Rect, name: Line<'_>) -> Rect {
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().dim())
        .title(name);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    inside
}

fn indented(area: Rect) -> Rect {
    Rect {
        x: area.x + 1.min(area.width),
        width: area.width.saturating_sub(2),
        ..area
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}
