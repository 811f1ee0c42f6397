"""What ranks tell each other about their parts of a checkpoint: the files that each wrote, or the error that it met.

The ranks write into one folder, so over several machines it is on a file system that they share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.base.errors import CheckpointError, NemoLiteError, UsageError
from nemo_lite.base.verified import VerifiedFile

T = TypeVar("T")

_FIELDS = ("problem", "place", "got", "wanted", "remedy")
_LONGEST_PAUSE_SECONDS = 0.05


def on_every_rank(comm: Comm, make: Callable[[], T]) -> T:
    """The result of ``make`` on this rank. All ranks call it, and none goes on where another one failed.

    Raises:
        NemoLiteError: of the first rank that failed, with its number; the same on all ranks.
    """
    made: list[T] = []
    own_failure: dict[str, str] = {}
    try:
        made.append(make())
    except NemoLiteError as error:
        own_failure = _failure_of(error)
    for rank, failure in enumerate(comm.share(comm.gather(own_failure) or [])):
        if failure:
            common = _error_of(rank, failure)
            common.is_common = True
            raise common
    return made[0]


def report_of(write: Callable[[], Mapping[str, VerifiedFile]]) -> str:
    """Write files, and report them. Any error becomes a report too: somebody waits for it."""
    try:
        return json.dumps({"files": [[file.name, file.sha256, file.bytes] for file in write().values()]})
    except Exception as error:
        return json.dumps({"failure": _failure_of(error)})


def files_of_others(
    comm: Comm, key: str, final: Path, gives_up: Callable[[], bool] = lambda: False
) -> dict[str, VerifiedFile]:
    """Wait for the reports of all other ranks, in any thread; the files that they wrote.

    Args:
        key: before the rank's number in the keys of the notes.
        final: the folder of the checkpoint.
        gives_up: whether it is too late to wait on.

    Raises:
        NemoLiteError: a rank could not write its part, with its number; or its report did not come in time.
    """
    waiting = [*range(1, comm.world_size)]
    reports: dict[int, str] = {}
    pause = _LONGEST_PAUSE_SECONDS / 64
    while waiting:
        arrived = {rank: text for rank in waiting if (text := comm.take_note(f"{key}/{rank}")) is not None}
        reports |= arrived
        waiting = [rank for rank in waiting if rank not in arrived]
        if waiting and gives_up():
            problem = f"rank {waiting[0]} did not write its part: the checkpoint is not complete"
            raise CheckpointError(problem, place=str(final), remedy="the checkpoint before is the newest")
        if waiting:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    files: dict[str, VerifiedFile] = {}
    for rank, report in sorted(reports.items()):
        content = json.loads(report)
        if "failure" in content:
            raise _error_of(rank, content["failure"])
        files.update((name, VerifiedFile(name, *about)) for name, *about in content["files"])
    return files


def _failure_of(error: Exception) -> dict[str, str]:
    if not isinstance(error, NemoLiteError):
        return {"kind": "", "problem": "its part was not written", "got": f"{type(error).__name__}: {error}"}
    fields = {name: str(getattr(error, name, "")) for name in _FIELDS}
    fields["problem"] = fields["problem"] or str(error)
    return {"kind": "checkpoint" if isinstance(error, CheckpointError) else "", **fields}


def _error_of(rank: int, failure: Mapping[str, str]) -> NemoLiteError:
    fields = {name: failure.get(name, "") for name in _FIELDS[1:]}
    fields["place"] = f"rank {rank}: {fields['place']}".removesuffix(": ")
    kind = CheckpointError if failure["kind"] else UsageError
    return kind(failure["problem"], **fields)
