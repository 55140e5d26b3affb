//! Small charts: a bar, and a curve with fixed axis bounds.
//!
//! Colours are the terminal's own sixteen, without backgrounds: readable on light and dark terminals.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType};

/// A smaller curve shows nothing useful.
const LEAST_WIDTH: u16 = 16;
const LEAST_HEIGHT: u16 = 2;

/// A share of a whole as a bar of `width` characters.
pub fn bar(share: Option<f64>, width: usize, colour: Color) -> [Span<'static>; 2] {
    let share = share.filter(|share| share.is_finite()).unwrap_or(0.0);
    let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    [
        Span::styled("━".repeat(filled), Style::new().fg(colour)),
        Span::from("─".repeat(width - filled)).dim(),
    ]
}

pub struct CurveChart<'a> {
    pub name: &'a str,
    /// Current value.
    pub now: String,
    /// Text about past values, beside the current one.
    pub before: String,
    pub points: &'a [(f64, f64)],
    pub x: [f64; 2],
    /// Axis bounds and their labels.
    pub y: [f64; 2],
    pub labels: [String; 2],
    pub colour: Color,
}

/// Draws the chart below its name.
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
    // A constant curve at 0 still needs a non-empty axis.
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
