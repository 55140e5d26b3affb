//! Chart of memory against speed for terminals: plain ASCII, so that it reads the same in a log, without colours and in any encoding.

use holdall_files::show_bytes;
use holdall_train::config::budget::show_time;

/// The plan for one budget.
pub struct Point {
    pub bytes: u64,
    pub step_ms: f64,
    pub is_measured: bool,
}

/// Points ascending in bytes and descending in time.
pub struct Chart<'a> {
    pub points: &'a [Point],
    /// Index of the chosen plan.
    pub chosen: Option<usize>,
    /// Index of the knee of the curve.
    pub knee: Option<usize>,
    pub budget_bytes: Option<u64>,
}

const ROWS: usize = 10;
const MOST_COLUMNS: usize = 72;
/// Narrower charts are unreadable.
const LEAST_COLUMNS: usize = 16;

impl Chart<'_> {
    /// The chart in at most `columns` columns; `None` if there is nothing to compare, or no room.
    pub fn draw(&self, columns: usize) -> Option<String> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let labels = self
            .points
            .iter()
            .map(|point| show_time(point.step_ms).len());
        let margin = labels.max()? + 3;
        let width = columns.saturating_sub(margin + 1).min(MOST_COLUMNS);
        if self.points.len() < 2 || width < LEAST_COLUMNS {
            return None;
        }
        let scale = Scale {
            low: (first.bytes as f64).ln(),
            high: (last.bytes as f64).ln(),
            fastest: last.step_ms,
            slowest: first.step_ms,
            width,
        };
        let mut cells = vec![vec![' '; width]; ROWS];
        let budget = self.budget_bytes.and_then(|bytes| scale.column(bytes));
        if let Some(column) = budget {
            cells.iter_mut().for_each(|row| row[column] = '|');
        }
        self.draw_stairs(&scale, &mut cells);
        let mut text = "\nMemory against speed\n".to_owned();
        for (index, row) in cells.iter().enumerate() {
            let label = match index {
                0 => show_time(first.step_ms),
                _ if index == ROWS - 1 => show_time(last.step_ms),
                _ => String::new(),
            };
            let row: String = row.iter().collect();
            text.push_str(&format!("  {label:>0$} |{1}\n", margin - 3, row.trim_end()));
        }
        text.push_str(&format!(
            "  {:1$} +{2}\n",
            "",
            margin - 3,
            "-".repeat(width)
        ));
        let (left, right) = (show_bytes(first.bytes), show_bytes(last.bytes));
        let gap = width.saturating_sub(left.len() + right.len()).max(1);
        text.push_str(&format!(
            "  {:1$}  {left}{2}{right}\n",
            "",
            margin - 3,
            " ".repeat(gap)
        ));
        text.push_str(&self.legend(budget.is_some()));
        Some(text)
    }

    /// Draws steps: between two points, the plan of the smaller budget is the one that fits.
    fn draw_stairs(&self, scale: &Scale, cells: &mut [Vec<char>]) {
        let place = |point: &Point| (scale.column(point.bytes), scale.row(point.step_ms));
        for (index, point) in self.points.iter().enumerate() {
            let (Some(from), row) = place(point) else {
                continue;
            };
            let next = self.points.get(index + 1);
            let to = next.and_then(|next| scale.column(next.bytes));
            for cell in &mut cells[row][from..to.unwrap_or(scale.width)] {
                if *cell == ' ' {
                    *cell = '.';
                }
            }
        }
        for (index, point) in self.points.iter().enumerate() {
            let (Some(column), row) = place(point) else {
                continue;
            };
            let mark = match index {
                index if self.chosen == Some(index) => '@',
                index if self.knee == Some(index) => 'K',
                _ if point.is_measured => 'o',
                _ => '*',
            };
            let is_free = matches!(cells[row][column], ' ' | '.' | '*' | 'o' | '|');
            if is_free {
                cells[row][column] = mark;
            }
        }
    }

    fn legend(&self, has_budget: bool) -> String {
        let words = |index: usize| {
            let point = &self.points[index];
            format!(
                "{} a step in {}",
                show_time(point.step_ms),
                show_bytes(point.bytes)
            )
        };
        let mut text = String::new();
        let chosen = self
            .chosen
            .map(|index| format!("  @ chosen: {}\n", words(index)));
        text.push_str(&chosen.unwrap_or_default());
        match self.knee {
            Some(index) if self.chosen == Some(index) => {
                text.push_str("    at the knee: from here on memory buys less and less\n");
            }
            Some(index) => text.push_str(&format!(
                "  K knee: {}; from there on memory buys less and less\n",
                words(index)
            )),
            None => {}
        }
        if let (true, Some(budget)) = (has_budget, self.budget_bytes) {
            text.push_str(&format!("  | budget: {}\n", show_bytes(budget)));
        }
        let is_measured = |wanted: bool| {
            let mut others = self.points.iter().enumerate();
            others.any(|(index, point)| {
                point.is_measured == wanted
                    && self.chosen != Some(index)
                    && self.knee != Some(index)
            })
        };
        match (is_measured(true), is_measured(false)) {
            (true, _) => text.push_str("  o measured  * predicted\n"),
            (false, true) => text.push_str("  * predicted\n"),
            (false, false) => {}
        }
        text
    }
}

/// Logarithmic memory axis from left to right; time from the slowest at the top to the fastest.
struct Scale {
    low: f64,
    high: f64,
    fastest: f64,
    slowest: f64,
    width: usize,
}

impl Scale {
    /// Column of a memory size; `None` outside the chart.
    fn column(&self, bytes: u64) -> Option<usize> {
        let share = ((bytes as f64).ln() - self.low) / (self.high - self.low);
        (0.0..=1.0)
            .contains(&share)
            .then(|| (share * (self.width - 1) as f64).round() as usize)
    }

    fn row(&self, step_ms: f64) -> usize {
        let share = (self.slowest - step_ms) / (self.slowest - self.fastest);
        (share.clamp(0.0, 1.0) * (ROWS - 1) as f64).round() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn points() -> Vec<Point> {
        let of = [(4, 900.0), (5, 500.0), (8, 400.0), (16, 350.0), (32, 340.0)];
        of.map(|(gib, step_ms)| Point {
            bytes: gib * GIB,
            step_ms,
            is_measured: gib == 8,
        })
        .into()
    }

    fn chart(points: &[Point]) -> Chart<'_> {
        Chart {
            points,
            chosen: Some(2),
            knee: Some(1),
            budget_bytes: Some(10 * GIB),
        }
    }

    #[test]
    fn every_line_fits_and_every_mark_is_there() {
        let points = points();
        for columns in [40, 80, 200] {
            let text = chart(&points).draw(columns).unwrap();
            let drawing = text.lines().take(ROWS + 4);
            assert!(drawing.clone().all(|line| line.len() <= columns), "{text}");
            assert!(text.is_ascii());
            let cells: String = drawing.skip(2).collect();
            for (mark, times) in [('@', 1), ('K', 1), ('*', 3)] {
                assert_eq!(cells.matches(mark).count(), times, "{mark} in\n{text}");
            }
            assert!(
                text.contains("@ chosen: 400 ms a step in 8.00 GiB"),
                "{text}"
            );
            assert!(text.contains("K knee: 500 ms a step in 5.00 GiB"), "{text}");
            assert!(text.contains("| budget: 10.00 GiB"), "{text}");
        }
        assert_eq!(chart(&points).draw(24), None, "too narrow");
        assert_eq!(chart(&points[..1]).draw(80), None, "nothing to compare");
    }

    #[test]
    fn a_point_that_was_measured_is_told_from_predictions() {
        let points = points();
        let unchosen = Chart {
            chosen: Some(3),
            ..chart(&points)
        };
        let text = unchosen.draw(80).unwrap();
        assert!(text.contains("o measured  * predicted"), "{text}");
    }
}
