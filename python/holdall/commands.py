"""Running the `holdall` program."""

import json
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from .runs import load_run

# How often new lines are looked for.
GLANCE_SECONDS = 0.1


class HoldallError(RuntimeError):
    """The program ended with an error; its message is what it said. `code` is 1: failed, 2: bad input, 3: does not fit the budget."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def program():
    """Path of the program: HOLDALL_BINARY, the one that came with this package, or the one on the path."""
    named = os.environ.get("HOLDALL_BINARY")
    if named:
        return named
    name = "holdall.exe" if os.name == "nt" else "holdall"
    # Where pip puts programs: those of this environment, and those of `pip install --user`.
    for scheme in ([], [f"{os.name}_user"]):
        path = Path(sysconfig.get_path("scripts", *scheme)) / name
        if path.is_file():
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError("the holdall program is not installed: pip install holdall")
    return found


def words_of(options):
    """Keywords as the program's options."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if name == "set":
            for key, each in value.items():
                text = each if isinstance(each, str) else json.dumps(each)
                words += [option, f"{key}={text}"]
        elif value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            for each in value:
                words += [option, os.fspath(each) if isinstance(each, os.PathLike) else str(each)]
        else:
            words += [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return words


def run_program(*words, check=True):
    """Runs a command and returns what it printed: a dict where that is JSON."""
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
    done = subprocess.run([program(), *words], capture_output=True, text=True)
    if check and done.returncode:
        raise HoldallError(done.returncode, message_of(done.stderr))
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout


def message_of(stderr):
    """From the error on; all of it where there is none."""
    start = stderr.rfind("error: ")
    return (stderr[start:] if start >= 0 else stderr).strip()


def plan(target, **options):
    """What fits, what it costs and what is chosen: `holdall plan --json` as a dict. `target` is a config, a model or data."""
    return run_program("plan", target, "--json", *words_of(options))


def train(target=None, out=None, on_progress=None, **options):
    """Trains and returns the `Run`. `target` is a config or data, as for `holdall train`.

    `on_progress` gets every line of metrics.jsonl as a dict, steps and evaluations, as it is written; where it returns `False`, training
    stops as by Ctrl-C: saved, to be gone on with by `resume=True`. Ctrl-C does the same.
    """
    resume = bool(options.get("resume"))
    if out is None:
        if resume:
            raise ValueError("resume: expected out, the folder of the run")
        out = tempfile.mkdtemp(prefix="holdall-")
        os.rmdir(out)
    out = Path(out)
    words = [program(), "train", *([os.fspath(target)] if target is not None else []), "--out", str(out), *words_of(options)]
    metrics = Tail(out / "metrics.jsonl", from_end=resume)
    with tempfile.TemporaryFile("w+") as talk:
        # A group of its own: Ctrl-C comes here first, and once.
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=talk, start_new_session=True)
        asked = False
        try:
            while True:
                ended = child.poll() is not None
                for line in metrics.lines():
                    if on_progress is not None and on_progress(line) is False and not asked:
                        asked = True
                        interrupt(child)
                if ended:
                    break
                time.sleep(GLANCE_SECONDS)
        except BaseException:
            interrupt(child)
            child.wait()
            raise
        talk.seek(0)
        said = talk.read()
    if child.returncode and not (asked and child.returncode in (130, -signal.SIGINT)):
        raise HoldallError(child.returncode, message_of(said))
    run = load_run(out)
    run.log = said
    return run


def interrupt(child):
    if child.poll() is None:
        child.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)


class Tail:
    """Whole lines of a file of JSON that another process appends to."""

    def __init__(self, path, from_end):
        self.path = path
        self.place = path.stat().st_size if from_end and path.is_file() else 0

    def lines(self):
        if not self.path.is_file():
            return
        if self.path.stat().st_size < self.place:
            # A resumed run cut its lines back to its checkpoint.
            self.place = 0
        with open(self.path, "rb") as file:
            file.seek(self.place)
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self.place += whole
        for line in new[:whole].splitlines():
            yield json.loads(line)
