//! `holdall monitor`: live view of the machine and of the run that trains on it.
//!
//! ```text
//! readings, run   samples of machine and run    history   past samples, in bounded memory
//! find, tail      find the run, read new lines  screen    draws plain data; once: prints the same as text
//! ```

mod chart;
mod find;
mod history;
mod once;
mod readings;
mod run;
mod screen;
mod tail;
mod words;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::backend::{Backend, ClearType};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::readings::Readings;
use self::run::RunWatch;
use self::screen::{RunView, View};
use crate::host::HostWatch;
use crate::screen::{print, print_json, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                  holdall monitor\n  \
                  holdall monitor runs/cars --interval 500ms\n  \
                  holdall monitor --once\n  \
                  holdall monitor --json\n\n\
                  Keys: q, Esc or Ctrl-C ends it; arrows or Tab choose a GPU; + and - change the interval; h shows all keys.\n\
                  Without RUN, the run that trains on this machine is shown, if there is one. GPUs are counted as nvidia-smi counts\n\
                  them. Where stdout is not a terminal, it prints once. What is not known is null in JSON.\n\
                  Keys of the JSON: time host gpus no_gpu run.")]
pub struct MonitorArguments {
    /// The folder of a run to show beside the machine [default: the one that trains here now]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// Prints one table and ends
    #[arg(long)]
    pub once: bool,
    /// One JSON object on stdout, once
    #[arg(long)]
    pub json: bool,
    /// Time between two looks: 500ms, 2s, 2
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

/// Below the minimum, sampling would take longer than the interval; above the maximum, the view would be stale.
fn interval(text: &str) -> Result<Duration, String> {
    let lowered = text.trim().to_lowercase();
    let (number, seconds) = match (lowered.strip_suffix("ms"), lowered.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (lowered.as_str(), 1.0),
    };
    let parsed = number.trim().parse::<f64>().ok();
    let meant = parsed.map(|number| number * seconds);
    match meant.filter(|seconds| (0.1..=3600.0).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => {
            Err("expected a time from 100ms to 3600s\nhint: --interval 500ms, 2s or 2".to_owned())
        }
    }
}

/// Window for CPU utilization in one-shot mode.
const MOMENT: Duration = Duration::from_millis(200);
/// Interval of the search for a training run, if none was named.
const BETWEEN_SEARCHES: Duration = Duration::from_secs(2);
/// Longest delay before a stop request is noticed.
const ATTENTION: Duration = Duration::from_millis(200);
/// Choices of the + and - keys.
const INTERVALS_MS: [u64; 7] = [100, 250, 500, 1_000, 2_000, 5_000, 10_000];

pub fn run(arguments: MonitorArguments) -> Result<ExitCode> {
    let named = arguments.run.as_deref().map(find::named).transpose()?;
    let is_terminal = std::io::stdout().is_terminal();
    if arguments.once || arguments.json || !is_terminal {
        if !arguments.once && !arguments.json {
            tell("stdout is not a terminal: printing once, as with --once");
        }
        print_once(named.as_deref(), arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let monitor = Monitor::new(named.as_deref(), arguments.interval);
    // From here on the terminal has to be restored at exit.
    let _orderly = stop::orderly("");
    // ratatui restores the terminal after a panic, too.
    let mut terminal = ratatui::try_init().map_err(unusable)?;
    let ended = watch(&mut terminal, monitor, &read_events());
    if let Ok(Ending::TerminalGone) = ended {
        // The terminal is gone: nothing to restore, no reader.
        return Ok(stop::hung_up());
    }
    // When leaving the alternate screen, some terminals keep rows of a screen that grew: clear them first.
    // `Terminal::clear` is no option: it asks the terminal for its cursor position, and the answer would reach the thread that reads keys.
    let _ = terminal.backend_mut().clear_region(ClearType::All);
    let _ = terminal.set_cursor_position((0, 0));
    let restored = ratatui::try_restore();
    let ended = ended.map_err(unusable)?;
    restored.map_err(unusable)?;
    Ok(match ended {
        Ending::ByUser => ExitCode::SUCCESS,
        Ending::Asked | Ending::TerminalGone => stop::exit_code(),
    })
}

enum Ending {
    /// The user pressed a key.
    ByUser,
    /// A signal arrived.
    Asked,
    /// The terminal was closed.
    TerminalGone,
}

/// Reads keys and resizes in a thread: a read from a closed terminal never returns, and must not keep the monitor from noticing
/// that it is closed.
fn read_events() -> Receiver<std::io::Result<Event>> {
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if sender.send(event).is_err() || is_last {
                return;
            }
        }
    });
    events
}

/// Whether stdout's terminal was closed.
#[cfg(unix)]
fn terminal_is_gone() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdout = std::io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(gone)
}

#[cfg(not(unix))]
fn terminal_is_gone() -> bool {
    false
}

fn unusable(cause: std::io::Error) -> anyhow::Error {
    anyhow!("the terminal cannot be used: {cause}\nhint: `holdall monitor --once` needs none")
}

fn print_once(named: Option<&Path>, is_json: bool) -> Result<()> {
    let readings = Readings::take(&mut HostWatch::primed(MOMENT));
    let found = find::on_this_machine().map(|training| training.folder);
    let folder = named.map(Path::to_owned).or(found);
    let run = folder.map(|folder| RunWatch::new(&folder).read());
    if !is_json {
        return print(&once::show(&readings, run.as_ref()));
    }
    let mut json = readings.json();
    json["run"] = serde_json::to_value(&run)?;
    print_json(&json)
}

/// Sources of data, and their view.
struct Monitor {
    host: HostWatch,
    /// Whether the user named the run; a named run is never replaced by another.
    is_named: bool,
    run: Option<RunWatch>,
    searched: Option<Instant>,
    view: View,
}

impl Monitor {
    fn new(named: Option<&Path>, interval: Duration) -> Monitor {
        let mut host = HostWatch::primed(MOMENT);
        let readings = Readings::take(&mut host);
        let mut monitor = Monitor {
            host,
            is_named: named.is_some(),
            run: named.map(RunWatch::new),
            searched: None,
            view: View::new(readings, interval),
        };
        monitor.look_at_run();
        monitor
    }

    fn look(&mut self) {
        self.view.record(Readings::take(&mut self.host));
        self.look_at_run();
    }

    fn look_at_run(&mut self) {
        let is_due = self
            .searched
            .is_none_or(|last| last.elapsed() >= BETWEEN_SEARCHES);
        if !self.is_named && is_due {
            self.searched = Some(Instant::now());
            let shown = self.run.as_ref().map(RunWatch::folder);
            // A finished run stays on screen until another one starts.
            if let Some(training) =
                find::on_this_machine().filter(|training| Some(training.folder.as_path()) != shown)
            {
                self.run = Some(RunWatch::new(&training.folder));
            }
        }
        self.view.run = self.run.as_mut().map(|run| RunView {
            reading: run.read(),
            loss: run.loss.clone(),
            samples_per_s: run.samples_per_s.clone(),
            is_named: self.is_named,
        });
    }
}

/// Samples and draws until the user or a signal ends it.
fn watch(
    terminal: &mut DefaultTerminal,
    mut monitor: Monitor,
    events: &Receiver<std::io::Result<Event>>,
) -> std::io::Result<Ending> {
    let mut looked = Instant::now();
    loop {
        match terminal.draw(|frame| screen::draw(frame, &monitor.view)) {
            Err(_) if terminal_is_gone() => return Ok(Ending::TerminalGone),
            drawn => drawn?,
        };
        let due = looked + monitor.view.interval;
        loop {
            if terminal_is_gone() {
                return Ok(Ending::TerminalGone);
            }
            if stop::is_asked() {
                return Ok(Ending::Asked);
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                monitor.look();
                looked = Instant::now();
                break;
            }
            let event = match events.recv_timeout(left.min(ATTENTION)) {
                Ok(event) => event?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(Ending::TerminalGone),
            };
            match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    match pressed(key, &mut monitor.view) {
                        After::End => return Ok(Ending::ByUser),
                        After::Draw => break,
                        After::Nothing => {}
                    }
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
    }
}

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    End,
    Draw,
    Nothing,
}

fn pressed(key: KeyEvent, view: &mut View) -> After {
    let num_gpus = view.readings.gpus.as_ref().map_or(0, Vec::len);
    match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => After::End,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => After::End,
        KeyCode::Down | KeyCode::Right | KeyCode::Tab if num_gpus > 0 => {
            view.selected = (view.selected + 1) % num_gpus;
            After::Draw
        }
        KeyCode::Up | KeyCode::Left | KeyCode::BackTab if num_gpus > 0 => {
            view.selected = (view.selected + num_gpus - 1) % num_gpus;
            After::Draw
        }
        KeyCode::Char('+' | '=') => {
            view.interval =
                next_interval(view.interval, INTERVALS_MS.iter(), |next, now| next > now);
            After::Draw
        }
        KeyCode::Char('-') => {
            view.interval = next_interval(view.interval, INTERVALS_MS.iter().rev(), |next, now| {
                next < now
            });
            After::Draw
        }
        KeyCode::Char('h' | '?') => {
            view.is_helping = !view.is_helping;
            After::Draw
        }
        _ => After::Nothing,
    }
}

fn next_interval<'a>(
    now: Duration,
    mut choices: impl Iterator<Item = &'a u64>,
    is_next: impl Fn(Duration, Duration) -> bool,
) -> Duration {
    let next = choices.find(|choice| is_next(Duration::from_millis(**choice), now));
    next.map_or(now, |choice| Duration::from_millis(*choice))
}

#[cfg(test)]
mod tests {
    use super::screen::tests::{machine, view};
    use super::*;

    fn press(code: KeyCode, view: &mut View) -> After {
        pressed(KeyEvent::new(code, KeyModifiers::NONE), view)
    }

    #[test]
    fn keys_end_choose_and_change() {
        let mut view = view(machine(2));
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(code, &mut view), After::End);
        }
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(pressed(interrupt, &mut view), After::End);
        assert_eq!(press(KeyCode::Char('c'), &mut view), After::Nothing);
        assert_eq!(press(KeyCode::Down, &mut view), After::Draw);
        assert_eq!(view.selected, 1);
        press(KeyCode::Tab, &mut view);
        assert_eq!(view.selected, 0);
        press(KeyCode::Up, &mut view);
        assert_eq!(view.selected, 1);
        for _ in 0..20 {
            press(KeyCode::Char('+'), &mut view);
        }
        assert_eq!(view.interval, Duration::from_secs(10));
        for _ in 0..20 {
            press(KeyCode::Char('-'), &mut view);
        }
        assert_eq!(view.interval, Duration::from_millis(100));
        press(KeyCode::Char('?'), &mut view);
        assert!(view.is_helping);
    }

    #[test]
    fn without_a_gpu_there_is_none_to_choose() {
        let mut view = view(machine(0));
        assert_eq!(press(KeyCode::Down, &mut view), After::Nothing);
        assert_eq!(view.selected, 0);
    }

    #[test]
    fn intervals_are_taken_as_people_write_them() {
        for (written, milliseconds) in [
            ("500ms", 500),
            ("2s", 2000),
            ("2", 2000),
            ("0.5", 500),
            (" 1.5 S", 1500),
        ] {
            let meant = interval(written);
            assert_eq!(meant, Ok(Duration::from_millis(milliseconds)), "{written}");
        }
        for refused in ["", "0", "99ms", "-1", "nan", "inf", "2h", "s", "1e9"] {
            let error = interval(refused).unwrap_err();
            assert!(error.contains("hint: --interval"), "{refused}: {error}");
        }
    }
}
