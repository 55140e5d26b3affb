//! Signal handling on Unix.

use std::fs;
use std::io;

use nix::sys::signal::{SigSet, Signal as Number};

use super::{Signal, asked_to_end, asked_to_save};

/// Blocks signals in this thread, and so in all threads that it starts, and waits for them in a thread of its own: signals that arrive
/// before that thread runs stay pending and are not lost.
pub fn listen() -> io::Result<()> {
    let ignored = ignored_mask();
    let wanted = [
        Number::SIGINT,
        Number::SIGTERM,
        Number::SIGHUP,
        Number::SIGUSR1,
        // SIGXFSZ, for a file at its size limit: while it is blocked, the write fails like any other, and the error names the file.
        Number::SIGXFSZ,
    ];
    let heeded = wanted.into_iter().filter(|&signal| {
        let bit = signal as i32 - 1;
        ignored & (1 << bit) == 0
    });
    let signals: SigSet = heeded.collect();
    signals.thread_block()?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        loop {
            match signals.wait() {
                Ok(Number::SIGINT) => asked_to_end(Signal::Interrupt),
                Ok(Number::SIGTERM) => asked_to_end(Signal::Terminate),
                Ok(Number::SIGHUP) => asked_to_end(Signal::HangUp),
                Ok(Number::SIGUSR1) => asked_to_save(),
                _ => {}
            }
        }
    })?;
    Ok(())
}

/// Bit mask of signals that were ignored when the process started: `nohup` ignores SIGHUP, and a shell without job control ignores SIGINT
/// in background commands. Empty where the system does not report it.
fn ignored_mask() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Exits without `atexit` handlers: other threads are running, and libraries would free what they use.
pub fn exit(code: u8) -> ! {
    signal_hook::low_level::exit(i32::from(code))
}
