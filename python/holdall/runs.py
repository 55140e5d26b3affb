"""The folder of a run as pandas frames."""

import json
from pathlib import Path


def load_run(path):
    """Opens the folder of a run, one that still trains too."""
    path = Path(path)
    if not (path / "config.yml").is_file():
        raise FileNotFoundError(f"{path}: expected the folder of a run, with config.yml")
    return Run(path)


class Run:
    """A run: `steps`, `evaluations` and `memory` are pandas frames, `summary` and `plan` dicts, read when they are asked for."""

    def __init__(self, path):
        self.path = Path(path)
        #: What the program said, where `train` started it.
        self.log = None

    def __repr__(self):
        return f"Run({str(self.path)!r})"

    @property
    def model(self):
        """The model folder, which transformers loads; `None` before there is one."""
        folder = self.path / "model"
        return folder if folder.is_dir() else None

    @property
    def steps(self):
        """A row for each optimizer step: loss, learning rate, seconds and whatever losses the task has."""
        return self._metrics("step")

    @property
    def evaluations(self):
        """A row for each evaluation; nested scores have names such as `image_to_text.r1`."""
        return self._metrics("evaluation")

    @property
    def memory(self):
        """A row for each reading of memory, with `time` as a timestamp."""
        import pandas

        frame = pandas.DataFrame(self._lines("memory.jsonl"))
        if "time" in frame:
            frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame

    @property
    def summary(self):
        """Measured beside planned; `None` before the run has ended."""
        return self._json("summary.json")

    @property
    def plan(self):
        """What was chosen, and what else there was."""
        return self._json("plan.json")

    @property
    def failure(self):
        """How it failed; `None` where it did not."""
        return self._json("failure.json")

    def _metrics(self, kind):
        import pandas

        lines = [line for line in self._lines("metrics.jsonl") if line.get("kind") == kind]
        frame = pandas.json_normalize(lines)
        return frame.drop(columns="kind", errors="ignore")

    def _json(self, name):
        path = self.path / name
        return json.loads(path.read_text()) if path.is_file() else None

    def _lines(self, name):
        path = self.path / name
        if not path.is_file():
            return []
        lines = path.read_text().splitlines(keepends=True)
        # The last line of a run that still trains may be half a line.
        return [json.loads(line) for line in lines if line.endswith("\n") and line.strip()]
