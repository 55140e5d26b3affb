//! Ctrl-C: the first one asks the run to save and stop, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure;
use crate::screen::tell;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Turns interrupts (and, on Unix, a request to terminate) into a flag that runs look at.
pub fn on_interrupt() -> &'static AtomicBool {
    on_interrupt_saying("Stopping after this step; once more to stop at once, without saving")
}

/// The same for work that is not done in steps.
pub fn on_interrupt_saying(words: &'static str) -> &'static AtomicBool {
    let handler = ctrlc::set_handler(move || {
        if ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(failure::INTERRUPTED));
        }
        tell(&format!("\n{words}"));
    });
    // Without a handler an interrupt ends the process, as it does elsewhere; the last checkpoint is there.
    if let Err(cause) = handler {
        tell(&format!("Ctrl-C will not save: {cause}"));
    }
    &ASKED
}

/// The same without a word, for who draws on the screen; whoever asks looks at the flag often.
pub fn on_interrupt_quietly() -> &'static AtomicBool {
    // Without a handler a request to terminate leaves the terminal as it is: `reset` helps, and nothing is lost.
    let _ = ctrlc::set_handler(|| ASKED.store(true, Ordering::Relaxed));
    &ASKED
}
