//! Small drawings: a bar, and a curve with the least and the most that it can be.
//!
//! Colours are the terminal's own sixteen, and nothing has a background: both light and dark terminals stay readable.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType};

/// Below this a curve says nothing.
const LEAST_WIDTH: u16 = 16;
const LEAST_HEIGHT: u16 = 2;

/// A share of a whole, `width` characters long.
pub fn bar(share: Option<f64>, width: usize, colour: Color) -> [Span<'static>; 2] {
    let share = share.filter(|share| share.is_finite()).unwrap_or(0.0);
    let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    [
        Span::styled("━".repeat(filled), Style::new().fg(colour)),
        Span::from("─".repeat(width - filled)).dim(),
    ]
}

/// A quantity over time or steps.
pub struct CurveChart<'a> {
    pub name: &'a str,
    /// What it is now.
    pub now: String,
    /// What it was.
    pub before: String,
    pub points: &'a [(f64, f64)],
    pub x: [f64; 2],
    /// Least and most of what is drawn, and how they are written.
    pub y: [f64; 2],
    pub labels: [String; 2],
    pub colour: Color,
}

/// Draws it with its name above.
pub fn draw(frame: &mut Frame, area: Rect, drawn: CurveChart) {
    let [name, curve] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let title = Line::from(vec![
        Span::from(format!(" {} ", drawn.name)).dim(),
        Span::from(drawn.now).bold(),
        Span::from(format!("  {}", drawn.before)).dim(),
    ]);
    frame.render_widget(title, name);
    if curve.width < LEAST_WIDTH || curve.height < LEAST_HEIGHT {
        return;
    }
    let line = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(drawn.colour))
        .data(drawn.points);
    let [least, most] = drawn.y;
    // A flat line at 0 of 0 still needs a height.
    let most = if most > least { most } else { least + 1.0 };
    let width = drawn.labels.iter().map(|label| label.chars().count()).max();
    let width = width.unwrap_or(0);
    let labels = drawn.labels.map(|label| format!("{label:>width$}"));
    let quiet = Style::new().dim();
    let chart = Chart::new(vec![line])
        .x_axis(Axis::default().bounds(drawn.x))
        .y_axis(
            Axis::default()
                .bounds([least, most])
                .labels(labels)
                .style(quiet),
        );
    let inside = Rect {
        x: curve.x + 1,
        width: curve.width.saturating_sub(2),
        ..curve
    };
    frame.render_widget(chart, inside);
}
