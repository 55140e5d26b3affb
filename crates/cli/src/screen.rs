//! Output for people: messages and tables, and progress on terminals only.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};

use crate::run_log;

/// Set on all ranks but the first.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Silences messages and progress.
pub fn only_errors() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Ends the silence, because an error follows.
pub fn everything() {
    IS_QUIET.store(false, Ordering::Relaxed);
}

fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Line width of packed notes without a terminal, and longest note that is packed.
const PACKED_WIDTH: usize = 110;
const SHORT_NOTE: usize = 72;

/// Columns of stderr's terminal, if it is one.
fn width() -> Option<usize> {
    let size = if std::io::stderr().is_terminal() {
        ratatui::crossterm::terminal::size().ok()
    } else {
        None
    };
    size.map(|(columns, _)| usize::from(columns))
        .filter(|&columns| columns >= MIN_WIDTH)
}

/// Narrower terminals wrap lines themselves.
const MIN_WIDTH: usize = 40;

/// Packs notes into few lines: consecutive short ones share a line; warnings and notes with a hint stand alone.
pub fn packed<'a>(notes: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    packed_to(width().unwrap_or(PACKED_WIDTH), notes)
}

fn packed_to<'a>(width: usize, notes: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut has_room = false;
    for note in notes {
        let is_warning = note.starts_with("Warning") || note.starts_with("warning");
        let is_remark = note.contains('\n') || is_warning || note.contains("hint:");
        let length = note.chars().count();
        let is_short = !is_remark && length <= SHORT_NOTE;
        match lines.last_mut() {
            Some(line) if is_short && has_room && line.chars().count() + 2 + length <= width => {
                line.push_str("; ");
                line.push_str(note);
            }
            _ => {
                lines.push(note.to_owned());
                has_room = is_short;
            }
        }
    }
    lines
}

/// Wraps lines between words at this width. Hints are not wrapped, because people copy them.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let mut rest = line.to_owned();
        while rest.chars().count() > width && !line.starts_with("hint:") {
            // A blank right after the last column ends the line too.
            let end = rest
                .char_indices()
                .nth(width + 1)
                .map_or(rest.len(), |(at, _)| at);
            let blank = rest[..end].rfind(' ').filter(|&at| at > indent + 2);
            let Some(blank) = blank else { break };
            let below = rest.split_off(blank);
            lines.push(rest);
            rest = format!("{}{}", " ".repeat(indent + 2), below.trim_start());
        }
        lines.push(rest);
    }
    lines.join("\n")
}

/// A table with columns padded to their widest cell; the first row is the heading.
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
            // The first column holds names, the others numbers.
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

/// Columns of stdout's terminal; 80 without one.
pub fn columns() -> usize {
    let size = if std::io::stdout().is_terminal() {
        ratatui::crossterm::terminal::size().ok()
    } else {
        None
    };
    size.map_or(80, |(columns, _)| usize::from(columns))
}

/// A progress bar on stderr; hidden without a terminal.
pub fn progress(length: u64, what: &'static str) -> ProgressBar {
    bar(length, what, "{pos}/{len}")
}

/// Like [`progress`], in percent, for counts of no interest.
pub fn progress_share(length: u64, what: &'static str) -> ProgressBar {
    bar(length, what, "{percent}%")
}

/// Like [`progress`], for a download.
pub fn progress_bytes(length: u64, what: String) -> ProgressBar {
    bar(length, what, "{bytes}/{total_bytes} {bytes_per_sec}")
}

fn bar(length: u64, what: impl Into<Cow<'static, str>>, count: &str) -> ProgressBar {
    if is_quiet() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = format!("{{msg}} [{{bar:30}}] {count} {{elapsed}} left {{eta}}");
    let style = ProgressStyle::with_template(&template).expect("made of constants");
    let bar = ProgressBar::new(length)
        .with_style(style.progress_chars("=> "))
        .with_message(what);
    watch_for(&bar);
    bar
}

/// The visible progress bar: it is hidden while any thread prints a message.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Registers the visible bar.
pub fn watch_for(bar: &ProgressBar) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
}

/// Prints a JSON object to stdout.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string(value)?))
}

/// Escapes control characters: a caption or a file name must not steer the terminal.
fn printable(text: &str) -> Cow<'_, str> {
    let is_steering = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    if !text.contains(is_steering) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_steering(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

/// Prints data to stdout. A reader that closes the pipe is no error; a full disk is.
pub fn print(text: &str) -> anyhow::Result<()> {
    if is_quiet() {
        return Ok(());
    }
    let text = printable(text);
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(cause) if cause.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(cause) => Err(anyhow::anyhow!(
            "stdout cannot be written: {cause}\nhint: check where it goes"
        )),
        Ok(()) => Ok(()),
    }
}

/// Prints results in sentences and short rows to stdout; a terminal shows them wrapped between words.
pub fn print_wrapped(text: &str) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        return print(text);
    }
    print(&(wrapped(text.trim_end(), columns()) + "\n"))
}

/// Prints a message to stderr and to the run's log. A closed stderr must not end a run. The visible bar is suspended here: within
/// `bar.suspend` this waits for itself, forever.
pub fn tell(text: &str) {
    if is_quiet() {
        return;
    }
    let text = &*printable(text);
    run_log::add(text);
    let line = match width() {
        Some(width) => wrapped(text, width) + "\n",
        None => format!("{text}\n"),
    };
    let write = || {
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    };
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar.filter(|bar| !bar.is_finished() && !bar.is_hidden()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelt_out() {
        assert_eq!(
            printable("a red car\n\tof 1.5 m \u{e9}"),
            "a red car\n\tof 1.5 m \u{e9}"
        );
        assert_eq!(
            printable("\u{1b}[2Jred\r\u{9b}x\n"),
            "\\u{1b}[2Jred\\r\\u{9b}x\n"
        );
    }

    #[test]
    fn short_notes_share_lines_and_warnings_do_not() {
        let long = "x".repeat(SHORT_NOTE + 1);
        let notes = [
            "Image column: `image`",
            "Caption column: `caption`",
            "Warning: 3 rows",
            "warning: tokens: no effect",
            "Task: clip",
            &long,
            "Loader: 2 workers",
            "one\nhint: two",
        ];
        assert_eq!(
            packed_to(PACKED_WIDTH, notes),
            [
                "Image column: `image`; Caption column: `caption`",
                "Warning: 3 rows",
                "warning: tokens: no effect",
                "Task: clip",
                &long,
                "Loader: 2 workers",
                "one\nhint: two",
            ]
        );
        for (width, num_lines) in [(PACKED_WIDTH, 3), (80, 3), (60, 5)] {
            let many = packed_to(width, std::iter::repeat_n("a note of twenty-four ch", 9));
            assert!(many.iter().all(|line| line.len() <= width), "{many:?}");
            assert_eq!(many.len(), num_lines, "{many:?}");
        }
    }

    #[test]
    fn lines_break_between_words() {
        let text = "one two three four\nhint: five six seven eight\n  a bb ccc dddd eeeee\nunbreakable-word-here";
        assert_eq!(
            wrapped(text, 13),
            "one two three\n  four\nhint: five six seven eight\n  a bb ccc\n    dddd\n    eeeee\nunbreakable-word-here"
        );
        assert_eq!(wrapped("kept  as it  is", 20), "kept  as it  is");
        assert_eq!(wrapped("größer ää éé", 9), "größer ää\n  éé");
        assert_eq!(wrapped("aaaa bbbbéé", 9), "aaaa\n  bbbbéé");
    }
}
