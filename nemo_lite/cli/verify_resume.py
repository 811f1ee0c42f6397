"""Kill a run again and again, and compare it with the same run without kills."""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import UsageError
from nemo_lite.base.interruption import name_of
from nemo_lite.base.options import not_negative_int, positive_int
from nemo_lite.core.trackers import read_metrics

# Any: a record of a run is JSON.

_POLL_SECONDS = 0.02
_END_SECONDS = 90.0  # torchrun gives its processes 30 seconds after a signal
_MAX_TOLD_LINES = 15


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

    def finish(self) -> float:
        """Start it, and wait for its end; how many seconds that took.

        Raises:
            UsageError: it did not end with exit code 0; with the last lines that it printed.
        """
        with self._started() as process:
            started = time.monotonic()
            code = process.wait()
        if code:
            lines = (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            last_lines = "\n".join(lines[-_MAX_TOLD_LINES:])
            raise UsageError(f"the command ended with exit code {code}; its last lines are\n{last_lines}")
        return time.monotonic() - started

    def kill_at(self, step: int, number: int, delay: float) -> str:
        """Start it, and send a signal so many seconds after it has done this many steps, at least one of them now.

        Returns how it ended, in words.

        SIGKILL goes to all of its processes; other signals to the process of the command alone, as a scheduler does it.
        """
        before = len(self.steps())
        with self._started() as process:
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
        return f"{name_of(number)}, exit code {code}" if is_running else "it ended before it was killed"

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
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    descending, generation = [], {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        descending += sorted(generation)
    return descending


PROGRAM = "nemo-lite verify-resume"
_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
# Both runs get a folder of their own, and a fresh start.
_CONTRADICTING = ("--work_dir", "--checkpoint_dir", "--load_dir")
_SEED_OPTIONS = {"__random_seed", "__seed"}  # dashes as underscores
# Of an evaluation: what differs between two runs that are equal.
_TIMES = ("time", "seconds", "kind")


def main(arguments: Sequence[str]) -> int:
    """Run the command once without and once with interruptions, and tell what is equal.

    Returns:
        0 where losses, evaluations and all files of the last checkpoint are equal; 1 where something differs.

    Raises:
        UsageError: no command, one that cannot be compared, or that does not end well by itself.
    """
    options, command = _divided(arguments)
    args = _parser().parse_args(options)
    words = _words(command)
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    folder = Path(args.folder or tempfile.mkdtemp(prefix="verify-resume-"))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("the folder is not empty", place=str(folder), remedy="give a new one")
    print(f"{PROGRAM}: {shlex.join(words)}\n{PROGRAM}: --seed {seed}, in {folder}", flush=True)
    whole = Run(words, folder / "uninterrupted")
    took = whole.finish()
    steps = max(whole.steps(), default=0)
    print(f"without interruption: {steps} steps in {took:.1f} s", flush=True)
    if steps < 2:
        raise UsageError("the run cannot be interrupted", got=f"{steps} steps in metrics.jsonl", wanted="2 or more")
    interrupted = Run(words, folder / "interrupted")
    _interrupt(interrupted, steps, args.kills, random.Random(seed))
    differences = _compared(whole, interrupted)
    if differences:
        print("\n".join(["the interrupted run differs:", *differences, f"both runs are kept in {folder}"]))
        return 1
    print("equal: the interrupted run gave the same losses, evaluations, weights and training state, to the bit")
    if args.folder is None:
        shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    usage = f"{PROGRAM} [--kills N] [--seed N] [--folder DIR] -- SCRIPT [ARGUMENT ...]"
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        allow_abbrev=False,
        usage=usage,
        description="Run a short training of yours twice: once to its end, and once killed at random steps, by SIGTERM "
        "(which saves) and SIGKILL (which does not) in turn, and started again each time. Then compare the losses of "
        "all steps, the evaluations, and the files of the last checkpoint.",
        epilog="SCRIPT is a Python file, or a command such as torchrun with its options; it must know --work_dir. "
        "--log_freq 1 is added, and --random_seed 0 where no seed is given.",
    )
    parser.add_argument("--kills", type=positive_int, metavar="N", default=3, help="default: 3")
    parser.add_argument(
        "--seed", type=not_negative_int, help="of the steps at which the run is killed (default: a new one)"
    )
    parser.add_argument("--folder", metavar="DIR", help="where both runs go and stay (default: a temporary one)")
    return parser


def _divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before and after ``--``."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _words(command: Sequence[str]) -> list[str]:
    if not command:
        problem, example = "there is no command to run", f"{PROGRAM} -- nemo-lite train --model_config ..."
        raise UsageError(problem, remedy=f"give it after --, such as {example}")
    options = {word.partition("=")[0].replace("-", "_") for word in command}
    contradicting = [option for option in _CONTRADICTING if option.replace("-", "_") in options]
    if contradicting:
        raise UsageError(f"leave {', '.join(contradicting)} out", remedy="each run gets a folder of its own")
    # Both run in this environment, also where its folder is not on the path.
    python = {"nemo-lite": [sys.executable, "-m", "nemo_lite"], "python": [sys.executable]}
    words = [sys.executable, *command] if command[0].endswith(".py") else [*command]
    words = [*python.get(words[0], words[:1]), *words[1:]]
    return [*words, "--log_freq", "1", *(() if _SEED_OPTIONS & options else ("--random_seed", "0"))]


def _interrupt(run: Run, steps: int, kills: int, draw: random.Random) -> None:
    """Kill the run at ascending random steps, then let it end; tell each time where it went on."""
    places = sorted(draw.sample(range(1, steps), min(kills, steps - 1)))
    first = draw.randrange(len(_SIGNALS))
    for number, step in enumerate(places):
        killed_by = _SIGNALS[(first + number) % len(_SIGNALS)]
        before = len(run.steps())
        end = run.kill_at(step, killed_by, delay=draw.uniform(0.0, 0.2))
        print(f"start {number + 1}: {_stretch(run.steps()[before:])}, then {end}", flush=True)
    before = len(run.steps())
    run.finish()
    print(f"start {len(places) + 1}: {_stretch(run.steps()[before:])}", flush=True)


def _stretch(steps: Sequence[int]) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if steps else "no step"


def _compared(whole: Run, interrupted: Run) -> list[str]:
    """A line for each kind of difference: its first place."""
    losses = {record["step"]: record["loss"] for record in whole.records("train")}
    interrupted_losses = [(record["step"], record["loss"]) for record in interrupted.records("train")]
    lines = [
        f"loss of step {step}: {losses.get(step)!r} without, {loss!r} with interruption"
        for step, loss in interrupted_losses
        if repr(losses.get(step)) != repr(loss)
    ][:1]
    missing = sorted(losses.keys() - {step for step, _ in interrupted_losses})
    lines += [f"the interrupted run has no step {missing[0]}"] if missing else []
    lines += _different("evaluation of", _evaluations(whole), _evaluations(interrupted))
    return lines + _different("", _digests(whole), _digests(interrupted))


def _different(kind: str, left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    names = [*left, *(name for name in right if name not in left)]
    return [
        f"{kind} {name}: {left.get(name, 'missing')} without, {right.get(name, 'missing')} with interruption".strip()
        for name in names
        if left.get(name) != right.get(name)
    ]


def _evaluations(run: Run) -> dict[str, str]:
    """The values of each evaluation; of one that came twice, the last."""
    evaluations = {}
    for record in run.records("evaluation"):
        values: dict[str, Any] = {name: value for name, value in record.items() if name not in _TIMES}
        evaluations[f"{values.pop('set')} at step {values.pop('step')}"] = repr(values)
    return evaluations


def _digests(run: Run) -> dict[str, str]:
    """The SHA-256 of each file of the newest checkpoint, which is checked."""
    folders = sorted({path.parent for path in run.folder.glob("runs/**/checkpoint-*") if path.is_dir()})
    if not folders:
        raise UsageError("the run saved no checkpoint", place=str(run.folder / "runs"))
    files = CheckpointFolder(folders[0]).newest().files
    return {name: file.sha256 for name, file in files.items()}
