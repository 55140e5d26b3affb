//! Ctrl-C on systems without signals: Windows. Untested there.

use super::{Signal, asked_to_end};

pub fn listen() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| asked_to_end(Signal::Interrupt))
}

pub fn exit(code: u8) -> ! {
    std::process::exit(i32::from(code))
}
