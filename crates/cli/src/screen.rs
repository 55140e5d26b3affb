//! What people read: tables on stderr or stdout, progress only on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Columns padded to their widest cell; the first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column] - cell.chars().count());
            // The first column is a name, the others are numbers.
            if column == 0 {
                line.push_str(&format!(" {cell}{padding}"));
            } else {
                line.push_str(&format!("  {padding}{cell}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A bar on stderr; silent where stderr is not a terminal.
pub fn progress(length: u64, what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed} left {eta}")
        .expect("the template is a constant");
    ProgressBar::new(length)
        .with_style(style.progress_chars("=> "))
        .with_message(what)
}

/// One JSON object on stdout.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}
