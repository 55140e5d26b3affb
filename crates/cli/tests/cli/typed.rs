//! Typing a command and looking at what comes back.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Exit codes, as `design.md` has them.
pub const DONE: i32 = 0;
pub const FOUND: i32 = 1;
pub const BAD_INPUT: i32 = 2;
pub const DOES_NOT_FIT: i32 = 3;
/// By Ctrl-C, by SIGTERM, by a terminal that went away.
pub const INTERRUPTED: i32 = 130;
pub const TERMINATED: i32 = 143;
pub const HUNG_UP: i32 = 129;

/// A command that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(120);

/// The program: the one built with these tests or, where they have been taken elsewhere, what `HOLDALL_BINARY` says.
pub fn program() -> OsString {
    let elsewhere = std::env::var_os("HOLDALL_BINARY");
    elsewhere.unwrap_or_else(|| env!("CARGO_BIN_EXE_holdall").into())
}

/// The device that `HOLDALL_TEST_DEVICE` says, for tests that are of any device; the CPU where it says nothing.
pub fn test_device() -> String {
    std::env::var("HOLDALL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())
}

/// Hides GPUs from a command that does not ask for the one that is tested: what these tests expect is the CPU's, on machines
/// with a GPU too.
pub fn hide_cards(command: &mut Command) {
    let device = test_device();
    let is_for_a_card = device != "cpu" && command.get_args().any(|word| *word == *device);
    if !is_for_a_card {
        command.env("CUDA_VISIBLE_DEVICES", "");
    }
}

/// What a command answered.
pub struct Answer {
    pub typed: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Types a command whose words are parted by single spaces.
pub fn holdall(line: &str) -> Answer {
    holdall_words(line.split_whitespace())
}

/// Types a command word by word. Whatever was typed, the tool neither hangs nor panics.
pub fn holdall_words<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Answer {
    start(words).answer()
}

/// Types a command in an environment with these variables.
pub fn holdall_with(variables: &[(&str, &str)], line: &str) -> Answer {
    start_with(variables, line.split_whitespace()).answer()
}

/// The same in this folder.
pub fn holdall_in(folder: &Path, variables: &[(&str, &str)], line: &str) -> Answer {
    let mut command = Command::new(program());
    command.current_dir(folder);
    spawn(command, variables, line.split_whitespace()).answer()
}

/// A command that has been typed and has not answered yet.
pub struct Running {
    typed: String,
    process: Process,
    stdout: File,
    stderr: File,
    /// Temporary files of a launcher; removed when the command has ended.
    _temporary: Option<tempfile::TempDir>,
}

/// Does not outlive the test that started it, whatever becomes of that.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Types a command word by word, and does not wait for it.
pub fn start<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Running {
    spawn(Command::new(program()), &[], words)
}

fn start_with<W: AsRef<OsStr>>(
    variables: &[(&str, &str)],
    words: impl IntoIterator<Item = W>,
) -> Running {
    spawn(Command::new(program()), variables, words)
}

/// The same by a launcher, such as `mpirun -n 2`.
#[cfg(unix)]
pub fn start_under<W: AsRef<OsStr>>(
    launcher: &[OsString],
    words: impl IntoIterator<Item = W>,
) -> Running {
    let mut command = Command::new(&launcher[0]);
    command.args(&launcher[1..]).arg(program());
    // Two runs of Open MPI that begin at the same time both make the folder of their sessions, and one of them fails.
    let temporary = tempfile::tempdir().unwrap();
    command.env("TMPDIR", temporary.path());
    Running {
        _temporary: Some(temporary),
        ..spawn(command, &[], words)
    }
}

/// The same from a shell that does something first, such as `trap '' HUP`, and then becomes the command.
pub fn start_after<W: AsRef<OsStr>>(shell: &str, words: impl IntoIterator<Item = W>) -> Running {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{shell}; exec \"$@\""));
    command.arg("sh").arg(program());
    spawn(command, &[], words)
}

/// Has commands start with signals as a terminal's do: a shell in the background ignores Ctrl-C, nohup ignores hang-ups, and children of
/// this process would inherit that. A signal that is handled here is back at its default in them.
#[cfg(unix)]
fn reset_signals_of_children() {
    use signal_hook::consts::{SIGHUP, SIGINT};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let always = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(SIGINT, 130, always).unwrap();
        signal_hook::flag::register(SIGHUP, Arc::default()).unwrap();
    });
}

#[cfg(not(unix))]
fn reset_signals_of_children() {}

fn spawn<W: AsRef<OsStr>>(
    mut command: Command,
    variables: &[(&str, &str)],
    words: impl IntoIterator<Item = W>,
) -> Running {
    reset_signals_of_children();
    let program = program();
    command.args(words).envs(variables.iter().copied());
    let typed = format!("{command:?}").replace(&*program.to_string_lossy(), "holdall");
    hide_cards(&mut command);
    // Files, not pipes: nobody has to read along while the time is watched.
    let [stdout, stderr] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    let process = command
        .env_remove("CLICOLOR_FORCE")
        .env("COLUMNS", "100")
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().unwrap())
        .stderr(stderr.try_clone().unwrap())
        .spawn()
        .unwrap();
    Running {
        typed,
        process: Process(process),
        stdout,
        stderr,
        _temporary: None,
    }
}

impl Running {
    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Whether it has not ended yet.
    pub fn goes_on(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_none()
    }

    /// Ends it without warning; says whether it was still running. What had ended by then had ended well.
    pub fn kill(mut self) -> bool {
        if self.goes_on() {
            self.process.0.kill().unwrap();
        }
        let status = self.process.0.wait().unwrap();
        let was_running = status.code().is_none() || cfg!(windows) && !status.success();
        let stderr = whole_text(&mut self.stderr);
        assert!(
            was_running || status.success(),
            "{}: {status}\n{stderr}",
            self.typed
        );
        was_running
    }

    /// Sends a signal by its name, such as INT, which is Ctrl-C.
    #[cfg(unix)]
    pub fn signal(&self, name: &str) {
        assert!(self.try_signal(name), "kill -{name}");
    }

    /// Whether it was there to get it.
    #[cfg(unix)]
    pub fn try_signal(&self, name: &str) -> bool {
        let mut kill = Command::new("kill");
        kill.args([&format!("-{name}"), &self.id().to_string()]);
        kill.stderr(Stdio::null()).status().unwrap().success()
    }

    /// What it has said on stderr so far.
    #[cfg(unix)]
    pub fn said(&self) -> String {
        use std::os::unix::fs::FileExt;
        let length = self.stderr.metadata().unwrap().len();
        let mut text = vec![0; length as usize];
        // At an offset: the process writes where the file stands.
        self.stderr.read_exact_at(&mut text, 0).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits until it has said this.
    #[cfg(unix)]
    #[track_caller]
    pub fn until_said(&mut self, words: &str) {
        let started = Instant::now();
        while !self.said().contains(words) {
            assert!(self.goes_on(), "ended before `{words}`: {}", self.said());
            assert!(started.elapsed() < LIMIT, "`{words}` was not said");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How it ends.
    #[cfg(unix)]
    pub fn ends(mut self) -> ExitStatus {
        self.status()
    }

    /// What it answers in the end.
    pub fn answer(mut self) -> Answer {
        let status = self.status();
        let [stdout, stderr] = [&mut self.stdout, &mut self.stderr].map(whole_text);
        let typed = self.typed;
        assert!(
            !stderr.contains("panicked")
                && matches!(
                    status.code(),
                    Some(0..=3 | HUNG_UP | INTERRUPTED | TERMINATED)
                ),
            "{typed}: {status}\n{stdout}\n{stderr}"
        );
        Answer {
            typed,
            code: status.code().unwrap(),
            stdout,
            stderr,
        }
    }

    fn status(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.0.try_wait().unwrap() {
                return status;
            }
            let typed = &self.typed;
            assert!(
                started.elapsed() < LIMIT,
                "{typed}: still running after {LIMIT:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn whole_text(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

impl Answer {
    /// The answer, if it has this exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Answer {
        let Answer { typed, stderr, .. } = &self;
        assert_eq!(self.code, code, "{typed}\n{stderr}");
        self
    }

    /// One line on stdout, and it is a JSON object.
    #[track_caller]
    pub fn json(&self) -> Value {
        let Answer { typed, stdout, .. } = self;
        assert_eq!(stdout.lines().count(), 1, "{typed}\n{stdout}");
        assert!(stdout.ends_with("}\n"), "{typed}\n{stdout}");
        serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{typed}: {error}\n{stdout}"))
    }

    /// Exit code 2, nothing on stdout, an error that has all of these parts and comes to a hint.
    #[track_caller]
    pub fn refused_with<P: AsRef<str>>(self, parts: &[P]) {
        self.ends_with(BAD_INPUT, parts);
    }

    /// This exit code, nothing on stdout, an error that has all of these parts and comes to a hint.
    #[track_caller]
    pub fn ends_with<P: AsRef<str>>(self, code: i32, parts: &[P]) {
        let answer = self.exits(code);
        let Answer {
            typed,
            stdout,
            stderr,
            ..
        } = &answer;
        assert_eq!(stdout, "", "{typed}");
        let error = stderr.find("error: ").map(|start| &stderr[start..]);
        let error = error.unwrap_or_else(|| panic!("{typed}: no error line\n{stderr}"));
        for part in parts {
            let part = part.as_ref();
            assert!(error.contains(part), "{typed}: lacks `{part}`\n{stderr}");
        }
        let (_, hint) = error
            .rsplit_once("\nhint: ")
            .unwrap_or_else(|| panic!("{typed}: no line that starts with `hint: `\n{stderr}"));
        assert!(!hint.trim().is_empty(), "{typed}: an empty hint\n{stderr}");
    }
}

/// A number of a JSON object, which must be there.
#[track_caller]
pub fn bytes(object: &Value, key: &str) -> u64 {
    object[key]
        .as_u64()
        .unwrap_or_else(|| panic!("`{key}` is {}, expected bytes", object[key]))
}
