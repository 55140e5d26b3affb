//! `--processes N` on one machine: starts N copies of a command, with variables in the environment by which they find each other.
//!
//! Rank 0 owns the terminal like a command that runs alone. Output of the other ranks gets their number as a prefix.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::address::{hex, random_token};
use crate::error::GroupError;

/// Polling interval for processes and requests.
const LOOK: Duration = Duration::from_millis(20);
/// How long the other processes may take after one has died: first to report what they saw, then to end once they are asked to.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer lines are split in two.
const MOST_LINE: u64 = 1 << 16;

/// A request that the launcher passes on to all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Save and end.
    Stop,
    /// Save and continue.
    Save,
}

/// Runs `size` copies of a command and waits for them; `requests` is polled for requests to pass on. Returns the exit code:
/// the first non-zero one in rank order among processes that ended by themselves, or 1 if signals killed all that failed.
///
/// # Errors
/// [`GroupError::Start`] where the processes cannot be started.
pub fn run(
    size: usize,
    program: &Path,
    arguments: &[OsString],
    requests: &mut dyn FnMut() -> Option<Request>,
) -> Result<u8, GroupError> {
    let failed = |error: std::io::Error| {
        GroupError::Start(format!(
            "{}: {size} processes cannot be started: {error}\n\
             hint: fewer --processes, or raise the limits on processes and memory (ulimit -u, ulimit -v)",
            program.display()
        ))
    };
    let port = free_port().map_err(failed)?;
    let token = hex(&random_token()?);
    let mut processes = Vec::new();
    for rank in 0..size {
        let mut command = Command::new(program);
        command.args(arguments);
        for (name, value) in [
            ("HOLDALL_RANK", rank),
            ("HOLDALL_SIZE", size),
            ("HOLDALL_LOCAL_RANK", rank),
            ("HOLDALL_LOCAL_SIZE", size),
            ("HOLDALL_PORT", usize::from(port)),
        ] {
            command.env(name, value.to_string());
        }
        command.env("HOLDALL_ADDRESS", "127.0.0.1");
        command.env("HOLDALL_TOKEN", &token);
        command.env(LAUNCHER_VARIABLE, std::process::id().to_string());
        match Process::start(rank, command) {
            Ok(process) => processes.push(process),
            Err(error) => {
                processes.iter_mut().for_each(Process::kill);
                return Err(failed(error));
            }
        }
    }
    Ok(wait(&mut processes, requests))
}

/// Process id of the launcher, set for the processes that `--processes` starts.
const LAUNCHER_VARIABLE: &str = "HOLDALL_LAUNCHER";

/// Called by a process that [`run`] started: it gets SIGTERM, and so saves and ends, when its launcher dies.
pub fn follow() {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::signal::{Signal, raise};
        let launcher = crate::launch::variable(LAUNCHER_VARIABLE);
        let launcher: Option<u32> = launcher.and_then(|id| id.parse().ok());
        let is_child = || Some(std::os::unix::process::parent_id()) == launcher;
        if is_child() {
            let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGTERM);
            if !is_child() {
                // The launcher died before the call took effect.
                let _ = raise(Signal::SIGTERM);
            }
        }
    }
}

/// A port that was free a moment ago. If another process takes it before rank 0 does, the start fails with a message.
fn free_port() -> std::io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

struct Process {
    child: Child,
    talk: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
    /// The process outlived the others for too long, and was ended.
    is_pressed: bool,
}

impl Process {
    fn start(rank: usize, mut command: Command) -> std::io::Result<Process> {
        let mut talk = Vec::new();
        if rank > 0 {
            command.stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn()?;
        if let Some(stdout) = child.stdout.take() {
            talk.push(prefix(rank, stdout, std::io::stdout()));
        }
        if let Some(stderr) = child.stderr.take() {
            talk.push(prefix(rank, stderr, std::io::stderr()));
        }
        Ok(Process {
            child,
            talk,
            status: None,
            is_pressed: false,
        })
    }

    fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            // A process that cannot be waited for is gone.
            self.status = self.child.try_wait().unwrap_or(Some(ExitStatus::default()));
        }
        self.status.is_some()
    }

    #[cfg(unix)]
    fn ask(&mut self, request: Request) {
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;
        if self.status.is_none() {
            let signal = match request {
                Request::Stop => Signal::SIGTERM,
                Request::Save => Signal::SIGUSR1,
            };
            // The process id is not reused before the process has been waited for.
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
        }
    }

    #[cfg(not(unix))]
    fn ask(&mut self, request: Request) {
        if request == Request::Stop {
            self.kill();
        }
    }

    fn kill(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
        }
    }
}

/// Copies lines from one stream to another with the rank as a prefix, one line at a time.
fn prefix(
    rank: usize,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            line.extend(format!("[{rank}] ").bytes());
            match from.by_ref().take(MOST_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // A closed output stream must not end a run.
            let _ = to.write_all(&line);
            let _ = to.flush();
        }
    })
}

fn wait(processes: &mut [Process], requests: &mut dyn FnMut() -> Option<Request>) -> u8 {
    // When the first process died, and how often the remaining ones were pressed to end since.
    let mut died: Option<Instant> = None;
    let mut pressed = 0;
    loop {
        let mut num_left = 0;
        for process in processes.iter_mut() {
            if !process.has_ended() {
                num_left += 1;
            } else if process.status.is_some_and(|status| !status.success()) {
                died.get_or_insert_with(Instant::now);
            }
        }
        if num_left == 0 {
            break;
        }
        if let Some(request) = requests() {
            for process in processes.iter_mut() {
                process.ask(request);
            }
        }
        let patience = PATIENCE * (pressed + 1);
        if died.is_some_and(|died| died.elapsed() > patience) {
            for process in processes.iter_mut() {
                process.is_pressed |= process.status.is_none();
                match pressed {
                    0 => process.ask(Request::Stop),
                    _ => process.kill(),
                }
            }
            pressed += 1;
        }
        thread::sleep(LOOK);
    }
    for process in processes.iter_mut() {
        for talk in process.talk.drain(..) {
            let _ = talk.join();
        }
    }
    let by_themselves = processes.iter().filter(|process| !process.is_pressed);
    exit_code(by_themselves.filter_map(|process| process.status))
}

fn exit_code(statuses: impl Iterator<Item = ExitStatus>) -> u8 {
    let mut failed = statuses.filter(|status| !status.success()).peekable();
    if failed.peek().is_none() {
        return 0;
    }
    let code = failed.find_map(|status| status.code());
    code.map_or(1, |code| u8::try_from(code).unwrap_or(1))
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // a test that cannot set itself up should stop
mod tests {
    use super::*;

    fn shell(size: usize, script: &str, requests: &mut dyn FnMut() -> Option<Request>) -> u8 {
        let arguments = ["-c".into(), script.into()];
        run(size, Path::new("/bin/sh"), &arguments, requests).unwrap()
    }

    #[test]
    fn the_first_code_that_is_not_zero_counts() {
        assert_eq!(shell(3, "exit 0", &mut || None), 0);
        assert_eq!(shell(3, "exit $((HOLDALL_RANK * 2))", &mut || None), 2);
        // A killed process's code does not count; the code of one that noticed the death does.
        let killed = "if [ $HOLDALL_RANK = 1 ]; then kill -9 $$; fi; exit $((HOLDALL_RANK / 2))";
        assert_eq!(shell(3, killed, &mut || None), 1);
        assert_eq!(shell(2, "kill -9 $$", &mut || None), 1);
    }

    #[test]
    fn every_process_knows_its_place_and_the_token() {
        let checks = "test $HOLDALL_SIZE = 2 && test $HOLDALL_LOCAL_RANK = $HOLDALL_RANK && test ${#HOLDALL_TOKEN} = 64 \
                      && test $HOLDALL_ADDRESS = 127.0.0.1 && test $HOLDALL_PORT -gt 0";
        assert_eq!(shell(2, checks, &mut || None), 0);
    }

    #[test]
    fn requests_are_passed_on() {
        let mut num_asked = 0;
        let folder = tempfile::tempdir().unwrap();
        // The processes are ready when both files exist.
        let script = format!(
            "trap 'exit 7' TERM; : > {}/$HOLDALL_RANK; while true; do sleep 0.02; done",
            folder.path().display()
        );
        let mut stop = || {
            let is_ready = (0..2).all(|rank| folder.path().join(rank.to_string()).exists());
            num_asked += usize::from(is_ready);
            (is_ready && num_asked == 1).then_some(Request::Stop)
        };
        assert_eq!(shell(2, &script, &mut stop), 7);
    }
}
