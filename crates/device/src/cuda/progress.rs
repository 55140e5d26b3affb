//! Messages about slow preparations of a GPU. This module prints nothing: messages go to a listener.

use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Work that takes less time gets no message.
const PATIENCE: Duration = Duration::from_millis(500);

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Sets the listener for the life of the process; later calls have no effect. The listener may be called from any thread.
pub fn on_progress(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

/// Passes `text` to the listener, if there is one.
pub(crate) fn told(text: &str) {
    if let Some(listener) = LISTENER.get() {
        listener(text);
    }
}

/// Runs `work`; passes `text` to the listener if that takes longer than half a second.
pub(crate) fn told_if_slow<T>(text: &str, work: impl FnOnce() -> T) -> T {
    let (working, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                told(text);
            }
        });
        let done = work();
        // Dropping the sender wakes the waiting thread; a panic does the same.
        drop(working);
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// A single test, because a process has one listener.
    #[test]
    fn only_what_is_slow_is_told() {
        told("before anyone listens");
        on_progress(|text| HEARD.lock().unwrap().push(text.to_owned()));
        on_progress(|_| panic!("the first one stays"));
        assert_eq!(told_if_slow("quick", || 3), 3);
        told_if_slow("slow", || std::thread::sleep(2 * PATIENCE));
        told("the end");
        assert_eq!(*HEARD.lock().unwrap(), ["slow", "the end"]);
    }
}
