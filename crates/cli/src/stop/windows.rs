//! Events of the console on Windows.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use windows_sys::Win32::Foundation::{FALSE, TRUE};
use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT,
    SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, TerminateProcess};
use windows_sys::core::BOOL;

use super::{Signal, asked_to_end};

pub fn listen() -> io::Result<()> {
    // SAFETY: the handler is a function of this program and may be called at any time, by any thread.
    match unsafe { SetConsoleCtrlHandler(Some(handle), TRUE) } {
        FALSE => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Called by the system, in a thread of its own.
unsafe extern "system" fn handle(event: u32) -> BOOL {
    match event {
        CTRL_C_EVENT | CTRL_BREAK_EVENT => asked_to_end(Signal::Interrupt),
        CTRL_CLOSE_EVENT => end_or_be_ended(Signal::HangUp),
        CTRL_LOGOFF_EVENT | CTRL_SHUTDOWN_EVENT => end_or_be_ended(Signal::Terminate),
        _ => return FALSE,
    }
    TRUE
}

/// The system ends the process when the handler returns, or after about five seconds: meanwhile the run saves, if it can.
fn end_or_be_ended(signal: Signal) {
    asked_to_end(signal);
    sleep(Duration::from_secs(60));
}

/// Exits without the handlers of libraries: other threads are running, and those would free what they use.
pub fn exit(code: u8) -> ! {
    // SAFETY: this process, which ends here.
    unsafe { TerminateProcess(GetCurrentProcess(), u32::from(code)) };
    std::process::abort()
}
