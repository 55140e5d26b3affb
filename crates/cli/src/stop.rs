//! Requests from outside: Ctrl-C, a batch system's SIGTERM, a terminal that went away, Slurm's warning.
//!
//! ```text
//! nothing begun that could be lost:  the process ends at once, whatever it computes
//! inside `orderly`:                  a flag is set; the work saves and ends by itself
//! inside `whole`:                    the files are written to their end, then the process ends
//! ```
//!
//! Exit codes are 128 + the signal's number, as shells have it. SIGTERM and SIGHUP may come any number of times and never cut a save
//! short: who wants that sends SIGKILL. A second Ctrl-C does, if it comes late enough to be meant. SIGUSR1 asks a run to save and go on;
//! other commands take no notice. A signal that was ignored when the process began, as by `nohup`, stays ignored.

#[cfg_attr(unix, path = "stop/unix.rs")]
#[cfg_attr(not(unix), path = "stop/other.rs")]
mod system;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use holdall_train::run::requests::Requests;

use crate::screen::tell;

/// What asks a process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// Ctrl-C, SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The terminal has gone: SIGHUP.
    HangUp,
}

impl Signal {
    fn number(self) -> u8 {
        match self {
            Signal::HangUp => 1,
            Signal::Interrupt => 2,
            Signal::Terminate => 15,
        }
    }

    fn exit_code(self) -> u8 {
        exit_code_of(self.number())
    }

    fn name(self) -> &'static str {
        match self {
            Signal::HangUp => "SIGHUP",
            Signal::Interrupt => "Ctrl-C",
            Signal::Terminate => "SIGTERM",
        }
    }
}

/// As shells have it.
fn exit_code_of(signal: u8) -> u8 {
    128 + signal
}

/// Batch systems send a signal several times, `timeout` to a process and to its group: within this it is one request.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// How long a last line may take: a process whose stderr nobody reads still ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

static REQUESTS: Requests = Requests::new();
static STATE: Mutex<State> = Mutex::new(State {
    holds: 0,
    words: "",
    asked_by: None,
    interrupted_at: None,
});

struct State {
    /// How many parts of the work must not be cut short now.
    holds: usize,
    /// What the innermost of them says when it is asked to end.
    words: &'static str,
    asked_by: Option<Signal>,
    /// The first Ctrl-C.
    interrupted_at: Option<Instant>,
}

/// What follows a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The process ends now, with the code of this signal.
    End(Signal),
    /// The work is asked to end, and the user told so.
    Ask,
    /// It was asked before.
    Nothing,
}

impl State {
    fn take(&mut self, signal: Signal, now: Instant) -> After {
        let is_first = self.asked_by.is_none();
        let asked_by = *self.asked_by.get_or_insert(signal);
        if self.holds == 0 {
            return After::End(asked_by);
        }
        if signal == Signal::Interrupt {
            let first = *self.interrupted_at.get_or_insert(now);
            if now.duration_since(first) >= ONE_REQUEST {
                return After::End(asked_by);
            }
        }
        if is_first { After::Ask } else { After::Nothing }
    }
}

fn state() -> MutexGuard<'static, State> {
    // Nothing panics while it holds this.
    STATE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes signals from here on: the first thing that `main` does.
pub fn listen() {
    if let Err(cause) = system::listen() {
        tell(&format!(
            "Signals will end the process without saving: {cause}"
        ));
    }
}

fn asked_to_end(signal: Signal) {
    let mut state = state();
    let was_asked = state.asked_by.is_some();
    match state.take(signal, Instant::now()) {
        After::End(asked_by) => {
            // With the lock held: nothing is begun that would be cut short.
            if !was_asked {
                tell_briefly(format!("\nStopped by {}", asked_by.name()));
            }
            system::exit(asked_by.exit_code());
        }
        After::Ask => {
            REQUESTS
                .stopped_by
                .store(signal.number(), Ordering::Relaxed);
            REQUESTS.stop.store(true, Ordering::Relaxed);
            if !state.words.is_empty() {
                tell_briefly(format!("\n{}", state.words));
            }
        }
        After::Nothing => {}
    }
}

fn asked_to_save() {
    REQUESTS.save.store(true, Ordering::Relaxed);
}

/// Says it, unless stderr is stuck.
fn tell_briefly(text: String) {
    let (done, told) = mpsc::channel();
    let telling = std::thread::Builder::new().spawn(move || {
        tell(&text);
        let _ = done.send(());
    });
    if telling.is_ok() {
        let _ = told.recv_timeout(LAST_WORDS);
    }
}

/// Work that ends in order: as long as this is there, a signal sets [`Requests::stop`] and does no more.
pub struct Orderly {
    words_before: &'static str,
}

/// What is asked for.
pub fn requests() -> &'static Requests {
    &REQUESTS
}

/// Whether to end.
pub fn is_asked() -> bool {
    REQUESTS.stop.load(Ordering::Relaxed)
}

/// Begins work that looks at [`Requests::stop`] often; `words` say what it will do when it is asked to end.
pub fn orderly(words: &'static str) -> Orderly {
    let mut state = state();
    state.holds += 1;
    Orderly {
        words_before: std::mem::replace(&mut state.words, words),
    }
}

impl Drop for Orderly {
    fn drop(&mut self) {
        let mut state = state();
        state.holds -= 1;
        state.words = self.words_before;
    }
}

/// Writes files to their end. A process that was asked to end meanwhile does so then.
pub fn whole<T>(write: impl FnOnce() -> T) -> T {
    let held = orderly("Stopping when what is being written is whole");
    let written = write();
    let state = state();
    if let (1, Some(signal)) = (state.holds, state.asked_by) {
        system::exit(signal.exit_code());
    }
    drop(state);
    drop(held);
    written
}

/// How a process ends whose terminal has gone, whether or not a signal said so.
pub fn hung_up() -> ExitCode {
    ExitCode::from(Signal::HangUp.exit_code())
}

/// How a process ends that was asked to, or works with one that was: 128 + the number of the first signal.
pub fn exit_code() -> ExitCode {
    let signal = match REQUESTS.stopped_by.load(Ordering::Relaxed) {
        0 => Signal::Interrupt.number(),
        signal => signal,
    };
    ExitCode::from(exit_code_of(signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(holds: usize) -> State {
        State {
            holds,
            words: "",
            asked_by: None,
            interrupted_at: None,
        }
    }

    #[test]
    fn where_nothing_can_be_lost_the_first_signal_ends_the_process() {
        for signal in [Signal::Interrupt, Signal::Terminate, Signal::HangUp] {
            let after = state(0).take(signal, Instant::now());
            assert_eq!(after, After::End(signal));
        }
    }

    #[test]
    fn only_a_second_ctrl_c_that_is_meant_cuts_a_save_short() {
        let began = Instant::now();
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        let mut state = state(1);
        assert_eq!(state.take(Signal::Terminate, at(0)), After::Ask);
        for milliseconds in [20, 5_000, 60_000] {
            let after = state.take(Signal::Terminate, at(milliseconds));
            assert_eq!(after, After::Nothing);
        }
        assert_eq!(state.take(Signal::HangUp, at(61_000)), After::Nothing);
        // The first Ctrl-C: nobody asked twice yet.
        assert_eq!(state.take(Signal::Interrupt, at(62_000)), After::Nothing);
        assert_eq!(state.take(Signal::Interrupt, at(62_020)), After::Nothing);
        let meant = state.take(Signal::Interrupt, at(63_500));
        assert_eq!(meant, After::End(Signal::Terminate));
    }
}
