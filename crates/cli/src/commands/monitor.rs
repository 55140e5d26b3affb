//! `holdall monitor`: the machine, and the run that trains on it, as they are now.
//!
//! ```text
//! readings, run   samples of both          history   past samples, in bounded memory
//! find, tail      which run, what is new   screen    all of it as a function of plain data; once: the same as text
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

/// Shorter than the shortest, a look would take longer than the wait; longer than the longest is no watching.
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

/// CPU utilization is measured over this, where the monitor prints once.
const MOMENT: Duration = Duration::from_millis(200);
/// How often the machine is searched for a run that trains, where none was named.
const BETWEEN_SEARCHES: Duration = Duration::from_secs(2);
/// How soon a request to end is seen.
const ATTENTION: Duration = Duration::from_millis(200);
/// What + and - choose from.
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
    // From here on the terminal has to be restored.
    let _orderly = stop::orderly("");
    // The terminal is restored on the way out, by a panic too.
    let mut terminal = ratatui::try_init().map_err(unusable)?;
    let ended = watch(&mut terminal, monitor, &read_events());
    if let Ok(Ending::TerminalGone) = ended {
        // There is nothing left to restore, and nobody to tell.
        return Ok(stop::hung_up());
    }
    // Some terminals keep rows of a screen that grew when they leave it: then they keep empty ones.
    // `Terminal::clear` asks the terminal where its cursor is, and the answer would go to the thread that reads keys.
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

/// Why the monitor ended.
enum Ending {
    /// By a key.
    ByUser,
    /// By a signal.
    Asked,
    /// Its terminal was closed.
    TerminalGone,
}

/// Keys and sizes, read by a thread of their own: reading from a terminal that was closed never returns, and must not keep the monitor
/// from seeing that.
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

/// Whether nobody can see or type anything any more.
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

/// What is watched, and what is shown of it.
struct Monitor {
    host: HostWatch,
    /// Whether the user named the run: then no other takes its place.
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
            // A run that ended stays until another begins.
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

/// Looks and draws until the user ends it.
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

/// What follows a key.
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
