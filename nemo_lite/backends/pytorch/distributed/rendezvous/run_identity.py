"""RunIdentity: what tells one run from another before their ranks have met. Pure functions of texts; no store here.

A launcher's id decides where there is one: torchrun's ``--rdzv-id``, the numbers of a Slurm job and step, the namespace
of mpirun. The address is no sign: whoever meets has the same. Processes that were started by hand, or by
``torch.distributed.launch``, which calls every run "none", have only their command lines: the script, and the options
that name a run or its folders. Other options are not judged here: the run contract compares what they lead to when the
ranks have met, and one run may well differ in them (``--num_workers``, ``--gpu``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_lite.utils.digests import digest_of
from nemo_lite.utils.launch import ProcessInfo

# Options that name a run or where its results go, here and in the scripts of other toolkits.
_NAMES = {
    *("exp_name", "experiment_name", "run_name", "run_id", "job_id", "name"),
    *("work_dir", "log_dir", "output_dir", "out", "checkpoint_dir", "model_dir", "save_dir"),
}
_SHOWN_DIGITS = 8


class RunIdentity(NamedTuple):
    """The run that a process belongs to.

    Attributes:
        run_id: of the launcher, with its name; or else made of the command line.
        is_launchers: a launcher gave the id: all processes of the run have the same.
        names: without an id, what names the run: the script and its options.
    """

    run_id: str
    is_launchers: bool
    names: Mapping[str, str]


def identity_of(info: ProcessInfo, argv: Sequence[str] | None = None) -> RunIdentity:
    """The run of a process with that command line, by default this one's."""
    if info.run_id:
        return RunIdentity(f"{info.launcher} {info.run_id}", True, {})
    path, *words = sys.argv if argv is None else argv
    script = Path(path).name
    options = {name: " ".join(map(_without_folder, values)) for name, values in options_in(words).items()}
    named = {f"--{name}": value for name, value in options.items() if name in _NAMES}
    return RunIdentity(f"{script} {digest_of(options)[:_SHOWN_DIGITS]}", False, {"script": script, **named})


def options_in(words: Sequence[str]) -> dict[str, list[str]]:
    """The options of a command line with their values, names with ``_`` inside; under "" what is before the first."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            option, has_value, value = word.partition("=")
            name = option.lstrip("-").replace("-", "_")
            found.setdefault(name, []).extend([value] if has_value else [])
        else:
            found.setdefault(name, []).append(word)
    return found


def differences(runs: Sequence[RunIdentity]) -> str:
    """The names by which the ranks' runs differ, each with two ranks and what they have; "" if they do not.

    Args:
        runs: each rank's, in order of the ranks.
    """
    lines = []
    for name in dict.fromkeys(name for run in runs for name in run.names):
        values = [run.names.get(name, "none") for run in runs]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), 0)
        if other:
            lines.append(f"{name}: rank 0 has {values[0]}, rank {other} has {values[other]}")
    return "; ".join(lines)


def _without_folder(word: str) -> str:
    """Machines may keep the same files and folders in other places."""
    return Path(word).name
