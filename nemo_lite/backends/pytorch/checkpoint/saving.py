"""Saving: the checkpoints that a run saves while it goes on, alone or with a part from each rank.

Ranks tell rank 0 the files that they wrote, or the error that they met. They write into one folder, so over several
machines it is on a file system that they share. Contents and formats are elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from nemo_lite.backends.pytorch.checkpoint.fitting import TrainingState, identity
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, SavePlan
from nemo_lite.backends.pytorch.checkpoint.record import Json
from nemo_lite.backends.pytorch.checkpoint.storage import ModuleWeights, Writer
from nemo_lite.backends.pytorch.checkpoint.store import stage, write_part
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.process import WRITING_CHECKPOINT
from nemo_lite.base.errors import CheckpointError, NemoLiteError, UsageError
from nemo_lite.base.files import refusing_unwritable, remove_probe, temporary_name
from nemo_lite.base.helpers import CheckpointPart
from nemo_lite.base.verified import VerifiedFile
from nemo_lite.core.callbacks.action_state import Best
from nemo_lite.utils import logging

SMALL_BYTES = 8 * 2**20
"""A checkpoint of fewer bytes is soon on the disk: it is waited for, so that a kill costs no step more than needed."""
# How long rank 0 waits for the others' parts of the last checkpoint when a run ends with an error.
_PATIENCE_AT_END_SECONDS = 10.0
_FIELDS = ("problem", "place", "got", "wanted", "remedy")
_LONGEST_PAUSE_SECONDS = 0.05
T = TypeVar("T")


class BackgroundWriter:
    """One thread at a time. An error in it is raised by the next :meth:`is_idle` or :meth:`finish`.

    The interpreter waits for the thread before it ends. Forked processes do not have it: it holds no lock that they
    could wait for, only files.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Run a job in the thread, after what was given before. An error drops what comes after it."""
        before = self._thread

        def run() -> None:
            if before is not None:
                before.join()
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error

        self._thread = Thread(target=run, name="checkpoint writer", daemon=False)
        self._thread.start()

    def is_idle(self) -> bool:
        """Whether all jobs are done.

        Raises:
            Exception: that of a job; once.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def finish(self) -> None:
        """Wait for all jobs.

        Raises:
            Exception: that of a job; once.
        """
        if self._thread is not None:
            self._thread.join()
        self.is_idle()


def copied_to_host(tree: T) -> T:
    """The same tree with copies of its tensors in host memory. Tensors that are one stay one."""
    result: T = _copied(tree, {})
    return result


def _copied(value: Any, copies: dict[tuple[object, ...], Tensor]) -> Any:  # a part of the tree
    # Not a function in the other: one that names itself keeps its copies until Python looks for garbage.
    if isinstance(value, Tensor):
        key = identity(value)
        if key not in copies:
            with torch.no_grad():
                copies[key] = value.detach().clone() if value.device.type == "cpu" else value.detach().cpu()
        return copies[key]
    if isinstance(value, Mapping):
        return {key: _copied(item, copies) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copied(item, copies) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, copies) for item in value)
    return value


def num_bytes_of(tree: object) -> int:
    """The bytes of the tensors of a tree."""
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, Mapping):
        return sum(map(num_bytes_of, tree.values()))
    return sum(map(num_bytes_of, tree)) if isinstance(tree, (list, tuple)) else 0


class Saving:
    """Writes one checkpoint at a time, in a thread. All ranks call each method, except where it says.

    Rank 0 writes. Where weights are divided among the ranks, each writes its own part and leaves rank 0 a note with the
    digests; rank 0's thread waits for the notes, not for a collective, and writes the record. An error of any rank is
    raised by rank 0, which ends the run for all.

    Training goes on while a large checkpoint is written; the steps made meanwhile are lost too if the process is killed
    before it is complete.

    Args:
        comm: the ranks.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._writer = BackgroundWriter()
        self._folders: dict[Path, CheckpointFolder] = {}
        self._under_way: dict[str, str] = {}  # by the folder, as it was named
        self._waits_until: float | None = None

    def open(self, folder: str | Path, in_parts: bool = False) -> None:
        """Create a folder; no other process may save there until :meth:`close`.

        Args:
            in_parts: each rank will write there.

        Raises:
            UsageError: it cannot be written to, also by any rank ``in_parts``, or another process saves there.
        """
        self._waits_until = None
        self._comm.on_first(self._folder(folder).open)
        if in_parts:
            self._see_the_same_folder(self._folder(folder).folder.absolute())

    def _see_the_same_folder(self, folder: Path) -> None:
        """See that each rank finds a folder that rank 0 makes in this one, and can write beside it.

        Raises:
            UsageError: one does not, or cannot.
        """

        def make_probe() -> str:
            probe = folder / temporary_name("probe")
            probe.mkdir()
            return str(probe)

        def see_probe() -> None:
            if not probe.is_dir() or not os.access(probe.parent, os.W_OK):
                raise UsageError(
                    "the folder of the checkpoints is not there, or cannot be written to",
                    place=str(probe.parent),
                    remedy="with shard_weights each rank writes its own part: choose a folder on a file system that "
                    "all ranks share",
                )

        def remove() -> None:
            with refusing_unwritable(folder):
                remove_probe(probe)

        probe = Path(self._comm.from_first(make_probe))
        try:
            on_every_rank(self._comm, see_probe)
        finally:
            self._comm.on_first(remove)

    def start(
        self, folder: str | Path, weights: Mapping[str, ModuleWeights], state: TrainingState, plan: SavePlan
    ) -> None:
        """Copy weights and state to host memory, and begin to write the copy. One under way is waited for.

        Raises:
            NemoLiteError: the one before could not be written, or this one cannot be stored.
        """

        def begin() -> None:
            self._writer.finish()
            copies = copied_to_host((weights, state))
            write = self._folder(folder).prepare(*copies, plan)
            if num_bytes_of(copies) < SMALL_BYTES:
                write()
            else:
                self._writer.start(write)

        self._comm.written_by_all(lambda: self._comm.on_first(begin))
        self._under_way[str(folder)] = str(Path(folder) / plan.folder_name)

    def start_part(
        self, folder: str | Path, weights: Mapping[str, ModuleWeights], state: TrainingState, plan: SavePlan
    ) -> None:
        """The same where weights are divided: each rank copies and writes its own part of each file.

        Raises:
            NemoLiteError: as :meth:`start`; or another rank cannot store its part.
        """
        comm, checkpoints = self._comm, self._folder(folder)
        part = CheckpointPart(1 + comm.rank, comm.world_size)
        comm.written_by_all(self._writer.finish)

        def prepare() -> tuple[Callable[..., object] | None, Mapping[str, Writer], int]:
            copies = copied_to_host((weights, state))
            commit = comm.on_first(lambda: checkpoints.prepare(*copies, plan, part))
            return commit, {} if commit else plan.writers(*copies, part), num_bytes_of(copies)

        commit, writers, num_bytes = on_every_rank(comm, prepare)
        staged = Path(comm.from_first(lambda: str(stage(checkpoints.folder.absolute() / plan.folder_name))))
        key, final = staged.name, staged.with_name(plan.folder_name)

        def is_too_late() -> bool:
            return self._waits_until is not None and time.monotonic() > self._waits_until

        def write() -> None:
            if commit is None:
                comm.leave_note(f"{key}/{comm.rank}", report_of(lambda: write_part(staged, final, writers)))
            else:
                commit(staged, lambda: files_of_others(comm, key, final, is_too_late))

        comm.written_by_all(write if num_bytes < SMALL_BYTES else lambda: self._writer.start(write))
        self._under_way[str(folder)] = str(Path(folder) / plan.folder_name)

    def done(self, folder: str | Path, wait: bool) -> str:
        """The checkpoint in a folder that has become complete since this was last asked, or "".

        Args:
            wait: until it is. Otherwise ranks may call it alone, and only rank 0 gets an answer.

        Raises:
            NemoLiteError: it could not be written.
        """
        if wait:
            with WRITING_CHECKPOINT:
                self._comm.written_by_all(lambda: self._comm.on_first(self._writer.finish))
        elif not self._comm.on_first(self._writer.is_idle):
            return ""
        return self._under_way.pop(str(folder), "")

    def note_evaluation(self, folder: str | Path, evaluation: Json) -> None:
        """Write a result into the checkpoint of its step, after what is under way."""
        checkpoints = self._folder(folder)

        def note() -> None:
            if self._writer.is_idle():
                checkpoints.note_evaluation(evaluation)
            else:
                self._writer.start(lambda: checkpoints.note_evaluation(evaluation))

        with WRITING_CHECKPOINT:
            self._comm.written_by_all(lambda: self._comm.on_first(note))

    def is_among_best(self, folder: str | Path, evaluation: Json, best: Best) -> bool:
        """Whether a checkpoint with this result would be one of the best of a folder."""

        with WRITING_CHECKPOINT:
            self._comm.written_by_all(lambda: self._comm.on_first(self._writer.finish))
        return self._comm.from_first(lambda: self._folder(folder).is_among_best(evaluation, best))

    def close(self) -> None:
        """Wait for what is under way, and let others save in the folders. Ranks may call it alone.

        An error is only logged: where nobody asked for it before, another one has ended the run.
        """
        self._waits_until = time.monotonic() + _PATIENCE_AT_END_SECONDS
        try:
            self._writer.finish()
        except Exception as error:
            logging.error("%s", error)
        for checkpoints in self._folders.values():
            checkpoints.close()
        self._folders.clear()

    def _folder(self, folder: str | Path) -> CheckpointFolder:
        # One of each: a lock does not keep out its own process, and to open a folder sweeps it.
        return self._folders.setdefault(Path(os.path.realpath(Path(folder).expanduser())), CheckpointFolder(folder))


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
