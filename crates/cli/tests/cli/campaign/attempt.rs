//! A command under the library of faults.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::typed::{hide_cards, program};

/// A command that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(120);

/// The library of faults: the one built with these tests or, where they have been taken elsewhere, what `HOLDALL_FAULTS` says.
/// `None` where there is none, which is said.
pub fn library() -> Option<PathBuf> {
    let beside = || {
        let tests = std::env::current_exe().unwrap();
        tests.parent().unwrap().join("libholdall_faults.so")
    };
    let library = std::env::var_os("HOLDALL_FAULTS").map_or_else(beside, PathBuf::from);
    if cfg!(all(
        target_os = "linux",
        target_arch = "x86_64",
        target_env = "gnu"
    )) {
        assert!(library.is_file(), "{} was not built", library.display());
        return Some(library);
    }
    println!("SKIPPED: faults can be injected on Linux on x86-64 alone");
    None
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub operation: String,
    pub file: String,
    pub occurrence: u64,
    pub action: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault {
            operation,
            file,
            occurrence,
            action,
        } = self;
        write!(out, "{operation}\t{file}\t{occurrence}\t{action}")
    }
}

/// How a command is run.
#[derive(Default)]
pub struct Attempt<'a> {
    pub words: Vec<OsString>,
    /// The folder whose files are watched.
    pub under: Option<&'a Path>,
    pub fault: Option<&'a Fault>,
    pub variables: Vec<(&'a str, String)>,
}

/// How it ended.
pub struct Ending {
    /// `None` where it was killed.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Operations and files, with the number of calls.
    pub calls: Vec<(String, String, u64)>,
    /// The most that it held, by its own account at its end.
    pub peak_bytes: Option<u64>,
}

impl Attempt<'_> {
    pub fn run(self, library: &Path) -> Result<Ending, String> {
        let notes = tempfile::tempdir().unwrap();
        let [calls, peak, stdout, stderr] =
            ["calls", "peak", "stdout", "stderr"].map(|name| notes.path().join(name));
        let mut command = Command::new(program());
        command
            .args(&self.words)
            .env("COLUMNS", "100")
            .env("LD_PRELOAD", library)
            .env("HOLDALL_FAULT_CALLS", &calls)
            .env("HOLDALL_FAULT_PEAK", &peak)
            .envs(self.variables)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&stdout).unwrap())
            .stderr(fs::File::create(&stderr).unwrap());
        hide_cards(&mut command);
        if let Some(under) = self.under {
            command.env("HOLDALL_FAULT_UNDER", under);
        }
        if let Some(fault) = self.fault {
            command.env("HOLDALL_FAULT", fault.to_string());
        }
        let mut process = command.spawn().unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > LIMIT {
                process.kill().unwrap();
                process.wait().unwrap();
                return Err(format!("still running after {LIMIT:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let stderr = text(&stderr);
        if stderr.contains("panicked")
            || matches!(status.code(), Some(code) if !(0..=3).contains(&code))
        {
            return Err(format!("{status}\n{stderr}"));
        }
        let calls = text(&calls);
        let calls = calls.lines().map(|line| {
            let mut parts = line.split('\t');
            let mut part = || parts.next().unwrap().to_owned();
            (part(), part(), part().parse().unwrap())
        });
        Ok(Ending {
            code: status.code(),
            stdout: text(&stdout),
            stderr,
            calls: calls.collect(),
            peak_bytes: text(&peak).trim().parse().ok(),
        })
    }
}

impl Ending {
    /// An end with an error that says what it is and what to do, or a good end, or none at all.
    pub fn is_in_order(&self) -> Result<(), String> {
        let Ending { code, stderr, .. } = self;
        let error = stderr.find("error: ").map(|start| &stderr[start..]);
        match (code, error) {
            (None | Some(0), _) => Ok(()),
            (_, Some(error)) if error.contains("\nhint: ") => Ok(()),
            _ => Err(format!("ended with {code:?} and no hint\n{stderr}")),
        }
    }
}
