//! A terminal of its own for a command, by tmux: what people see who are not a pipe.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::typed::program;

/// What takes longer has hung.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Gone with the test.
pub struct Terminal {
    server: String,
    pub folder: tempfile::TempDir,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

impl Terminal {
    /// A shell that runs this, where `$HOLDALL` is the program and `$FOLDER` the folder, and then waits; `None` where there is no tmux.
    pub fn running(
        name: &str,
        [columns, rows]: [u16; 2],
        folder: tempfile::TempDir,
        script: &str,
    ) -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("SKIPPED: tmux is not here, so {name} is not tried on a terminal");
            return None;
        }
        let terminal = Terminal {
            server: format!("holdall-{name}-{}", std::process::id()),
            folder,
        };
        // tmux takes a command as one text; what is in it comes by the environment.
        let started = Command::new("tmux")
            .args(["-L", &terminal.server, "-f", "/dev/null", "new-session"])
            .args(["-d", "-x", &columns.to_string(), "-y", &rows.to_string()])
            .arg(format!("{script}; sleep 600"))
            .env("HOLDALL", program())
            .env("FOLDER", terminal.folder.path())
            .env("TERM", "screen-256color")
            .env("SHELL", OsStr::new("/bin/sh"))
            .status()
            .unwrap();
        assert!(started.success());
        Some(terminal)
    }

    pub fn tmux(&self, words: &[&str]) -> String {
        let mut command = Command::new("tmux");
        let output = command
            .args(["-L", &self.server])
            .args(words)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The screen, once it is as expected.
    pub fn shows(&self, expected: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if expected(&screen) {
                return screen;
            }
            assert!(started.elapsed() < LIMIT, "hangs at\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
