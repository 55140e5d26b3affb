//! The run's section of the screen: curves, and numbers beside them.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::super::chart::{self, CurveChart};
use super::super::once::NO_RUN;
use super::super::run::{RunReading, RunState};
use super::super::words::{self, NAME_WIDTH, UNKNOWN, facts};
use super::{LOSS, View, WIDE, WORK, headed, indented, whole};

pub fn draw_run(frame: &mut Frame, area: Rect, view: &View) {
    let Some(run) = &view.run else {
        let inside = headed(frame, area, Line::from(" Run ").bold());
        frame.render_widget(Line::from(NO_RUN).dim(), indented(inside));
        return;
    };
    let reading = &run.reading;
    let state = match reading.state {
        RunState::Running | RunState::Finished => Style::new().fg(WORK),
        RunState::Failed => Style::new().fg(Color::Red),
        RunState::Stopped => Style::new().fg(Color::Yellow),
    };
    let heading = Line::from(vec![
        Span::from(format!(" Run {} ", short_folder(reading, area.width))).bold(),
        Span::styled(format!(" {} ", words::state(reading)), state),
        Span::from(format!(" {} ", words::progress(reading))),
    ]);
    let inside = headed(frame, area, heading);
    let facts = facts(reading);
    let written = facts.iter().map(|(_, value)| value.chars().count()).max();
    // Curves get at least half of the width.
    let room = u16::try_from(written.unwrap_or(0) + 14).unwrap_or(u16::MAX);
    let room = room.min(inside.width.div_ceil(2));
    let [curves, numbers] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(room)]).areas(inside);
    let three = |loss: f64| format!("{loss:.3}");
    // A loss axis spans the values only; a speed axis starts at 0.
    let mut all = vec![(
        "loss",
        &run.loss,
        reading.progress.loss,
        None,
        three as fn(f64) -> String,
        LOSS,
    )];
    if area.width >= WIDE {
        all.push((
            "samples/s",
            &run.samples_per_s,
            reading.progress.samples_per_s,
            Some(0.0),
            whole,
            WORK,
        ));
    }
    let columns = Layout::horizontal(all.iter().map(|_| Constraint::Fill(1))).split(curves);
    for ((name, curve, now, from, write, colour), area) in all.into_iter().zip(columns.iter()) {
        let (least, most) = curve.bounds().unwrap_or((0.0, 1.0));
        let least = from.unwrap_or(least);
        let first = curve.points().first().map_or(0.0, |point| point.0);
        let last = curve.points().last().map_or(1.0, |point| point.0);
        let drawn = CurveChart {
            name,
            now: now.map_or(UNKNOWN.to_owned(), write),
            before: String::new(),
            points: curve.points(),
            x: [first, last.max(first + 1.0)],
            y: [least, most],
            labels: [least, most].map(write),
            colour,
        };
        chart::draw(frame, *area, drawn);
    }
    let lines: Vec<Line> = facts
        .into_iter()
        .map(|(name, value)| {
            Line::from(vec![
                Span::from(format!(" {name:<NAME_WIDTH$}")).dim(),
                Span::from(value),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), numbers);
}

/// The end of a folder's path, which tells more than its start.
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
