//! Requests to stop or save: Ctrl-C, a batch system's SIGTERM, a closed terminal, Slurm's warning.
//!
//! ```text
//! no work that could be lost:   the process ends at once, whatever it computes
//! inside `orderly`:             a flag is set; the work saves and ends by itself
//! inside `whole`:               the files are written completely, then the process ends
//! ```
//!
//! Exit codes are 128 + signal number, as in shells. SIGTERM and SIGHUP may arrive any number of times and never interrupt a save;
//! SIGKILL does. A second Ctrl-C does, too, if it comes late enough to be deliberate. SIGUSR1 asks a run to save and continue;
//! other commands ignore it. On Windows, Ctrl-Break is Ctrl-C, closing the window is SIGHUP, and logging off and shutting down are SIGTERM;
//! the system then leaves about five seconds. A signal that was ignored when the process started, as by `nohup`, stays ignored.

#[cfg_attr(unix, path = "stop/unix.rs")]
#[cfg_attr(windows, path = "stop/windows.rs")]
mod system;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use holdall_train::run::requests::Requests;

use crate::screen::tell;

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// SIGINT, from Ctrl-C.
    Interrupt,
    Terminate,
    /// SIGHUP: the terminal was closed.
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

/// Exit code of a signal, as in shells.
fn exit_code_of(signal: u8) -> u8 {
    128 + signal
}

/// Batch systems send a signal several times, and `timeout` sends it to a process and its group: signals within this time are one request.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// Time limit for a last message: a process whose stderr is stuck still ends.
const LAST_WORDS: Duration = Duration::from_millis(300);

static REQUESTS: Requests = Requests::new();
static STATE: Mutex<StopState> = Mutex::new(StopState {
    holds: 0,
    words: "",
    asked_by: None,
    interrupted_at: None,
});

struct StopState {
    /// Number of active guards on work that must not be interrupted.
    holds: usize,
    /// Message of the innermost guard on a stop request.
    words: &'static str,
    asked_by: Option<Signal>,
    /// Time of the first Ctrl-C.
    interrupted_at: Option<Instant>,
}

/// Reaction to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// End the process now, with this signal's exit code.
    End(Signal),
    /// Ask the work to end, and print that.
    Ask,
    /// None: a request is pending already.
    Nothing,
}

impl StopState {
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

fn state() -> MutexGuard<'static, StopState> {
    // No code panics while it holds this lock.
    STATE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Installs the signal handling: the first call in `main`.
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
            // With the lock held, so that no new work can start and be interrupted.
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

/// Windows has no signal for this.
#[cfg(unix)]
fn asked_to_save() {
    REQUESTS.save.store(true, Ordering::Relaxed);
}

/// Prints a message, with a time limit in case stderr is stuck.
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

/// Guard of interruptible work: while it lives, a signal only sets [`Requests::stop`].
pub struct Orderly {
    words_before: &'static str,
}

/// The pending requests.
pub fn requests() -> &'static Requests {
    &REQUESTS
}

/// Whether a stop was requested.
pub fn is_asked() -> bool {
    REQUESTS.stop.load(Ordering::Relaxed)
}

/// Starts work that checks [`Requests::stop`] often; `words` is printed on a stop request.
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

/// Runs a file write to its end. A stop requested meanwhile takes effect afterwards.
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

/// Exit code after the terminal was closed, with or without a signal.
pub fn hung_up() -> ExitCode {
    ExitCode::from(Signal::HangUp.exit_code())
}

/// Exit code after a stop request to this process or its group: 128 + number of the first signal.
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

    fn state(holds: usize) -> StopState {
        StopState {
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
        // The first Ctrl-C is not a repeated one.
        assert_eq!(state.take(Signal::Interrupt, at(62_000)), After::Nothing);
        assert_eq!(state.take(Signal::Interrupt, at(62_020)), After::Nothing);
        let meant = state.take(Signal::Interrupt, at(63_500));
        assert_eq!(meant, After::End(Signal::Terminate));
    }
}
