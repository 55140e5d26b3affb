//! Signals as Unix has them.

use std::fs;
use std::io;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;

use super::{Signal, asked_to_end, asked_to_save};

/// Handlers first, then the thread that acts: what comes in between waits in a pipe.
pub fn listen() -> io::Result<()> {
    let ignored = ignored_mask();
    let is_heeded = |signal: &i32| ignored & (1 << (signal - 1)) == 0;
    // A file that has reached its limit: with a handler, writing fails like any other write, and the error names the file.
    let wanted = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXFSZ];
    let mut signals = Signals::new(wanted.iter().filter(|signal| is_heeded(signal)))?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        for signal in signals.forever() {
            match signal {
                SIGINT => asked_to_end(Signal::Interrupt),
                SIGTERM => asked_to_end(Signal::Terminate),
                SIGHUP => asked_to_end(Signal::HangUp),
                SIGUSR1 => asked_to_save(),
                _ => {}
            }
        }
    })?;
    Ok(())
}

/// Signals that were ignored when the process began, a bit each: `nohup` ignores SIGHUP, a shell without job control SIGINT in what it
/// runs in the background. Where the system does not tell, none.
fn ignored_mask() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Without what runs at exit: other threads are at work, and libraries would take down what they use.
pub fn exit(code: u8) -> ! {
    signal_hook::low_level::exit(i32::from(code))
}
