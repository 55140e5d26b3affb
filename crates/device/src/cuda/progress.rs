//! A word to whoever waits while a GPU gets ready. Nothing here prints: who hears it decides.

use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// What takes less is not worth a line.
const PATIENCE: Duration = Duration::from_millis(500);

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Lets `listener` hear, for the life of the process, what takes its time; the first one stays. It may be called from
/// any thread.
pub fn on_progress(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

/// Tells the listener, if there is one.
pub(crate) fn told(text: &str) {
    if let Some(listener) = LISTENER.get() {
        listener(text);
    }
}

/// Does `work`, and tells `text` meanwhile if that takes longer than half a second.
pub(crate) fn told_if_slow<T>(text: &str, work: impl FnOnce() -> T) -> T {
    let (working, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                told(text);
            }
        });
        let done = work();
        // Wakes the thread that waits; so does a panic.
        drop(working);
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// One test, because there is one listener in a process.
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
