"""Run a training command to its end, or kill it at some step; what it has recorded. Nothing is compared here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from nemo_lite.core.tracking import read_metrics
from nemo_lite.errors import UsageError
from nemo_lite.interruption import name_of

# Any: a record of a run is JSON.

_POLL_SECONDS = 0.02
_END_SECONDS = 90.0  # torchrun gives its processes 30 seconds after a signal
_MAX_TOLD_LINES = 15


class Attempt(NamedTuple):
    """How one start of the command ended.

    Attributes:
        code: exit code; negative for a signal.
        seconds: from its start to its end.
        signal: that it was sent; 0 for none.
    """

    code: int
    seconds: float
    signal: int = 0


class Run:
    """One run, in a folder of its own, that may be started several times.

    Args:
        command: the words that start it; ``--work_dir FOLDER/runs`` is added to them.
        folder: of this run. What the command prints goes to ``output.txt`` in it.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder = folder
        self._command = [*command, "--work_dir", str(folder / "runs")]
        folder.mkdir(parents=True)

    def finish(self) -> Attempt:
        """Start it, and wait for its end.

        Raises:
            UsageError: it did not end with exit code 0; with the last lines that it printed.
        """
        with self._started() as process:
            started = time.monotonic()
            code = process.wait()
        if code:
            lines = (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            told = "\n".join(lines[-_MAX_TOLD_LINES:])
            raise UsageError(f"the command ended with exit code {code}; its last lines are\n{told}")
        return Attempt(code, time.monotonic() - started)

    def kill_at(self, step: int, number: int, delay: float) -> Attempt:
        """Start it, and send a signal so many seconds after it has done this many steps, at least one of them now.

        SIGKILL goes to all of its processes; other signals to the process of the command alone, as a scheduler does it.
        """
        before = len(self.steps())
        with self._started() as process:
            started = time.monotonic()
            while process.poll() is None and max(self.steps()[before:], default=0) < step:
                time.sleep(_POLL_SECONDS)
            time.sleep(delay)
            is_running = process.poll() is None
            if is_running:
                for pid in [process.pid, *(descendants(process.pid) if number == signal.SIGKILL else ())]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            try:
                code = process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                problem = f"the command was still running {_END_SECONDS:.0f} s after {name_of(number)}"
                raise UsageError(problem, place=str(self.folder / "output.txt")) from None
        return Attempt(code, time.monotonic() - started, number if is_running else 0)

    def records(self, kind: str) -> list[Mapping[str, Any]]:
        """The records of one kind in its ``metrics.jsonl``, in order; a step that came twice has two."""
        files = self.folder.glob("runs/*/metrics.jsonl")
        return [record for file in files for record in read_metrics(file) if record["kind"] == kind]

    def steps(self) -> list[int]:
        """The steps done, counted from 1, in the order in which they were made; some came twice."""
        return [record["step"] for record in self.records("train")]

    @contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "output.txt").open("ab") as output:
            try:
                process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            except OSError as error:
                raise UsageError(
                    f"the command cannot be started: {error.strerror}",
                    got=self._command[0],
                    remedy="write its whole path, or activate the environment that has it",
                ) from error
        try:
            yield process
        finally:
            for pid in [*descendants(process.pid), process.pid] if process.poll() is None else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    command = ["ps", "-A", "-o", "pid=,ppid="]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, told.splitlines())}
    found, new = [], {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found += sorted(new)
    return found
