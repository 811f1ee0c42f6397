"""Saving: the checkpoints that a run saves while it goes on. Contents and formats are elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_lite.backends.pytorch.checkpoint.background import BackgroundWriter, copied_to_host, num_bytes_of
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.storage import TrainingState, Weights
from nemo_lite.backends.pytorch.distributed import WRITING_CHECKPOINT, Comm
from nemo_lite.core.action_state import Best
from nemo_lite.utils import logging

# Any: results of evaluations, and the arguments of `CheckpointFolder.prepare`.


SMALL_BYTES = 8 * 2**20
"""A checkpoint of fewer bytes is soon on the disk: it is waited for, so that a kill costs no step more than needed."""


class Saving:
    """Writes on rank 0, one checkpoint at a time, in a thread. All ranks call each method, except where it says.

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

    def open(self, folder: str | Path) -> None:
        """Create a folder; no other process may save there until :meth:`close`.

        Raises:
            UsageError: it cannot be written to, or another process saves there.
        """
        self._comm.on_first(self._folder(folder).open)

    def start(
        self, folder: str | Path, weights: Mapping[str, Weights], state: TrainingState, how: Mapping[str, Any]
    ) -> None:
        """Copy weights and state to host memory, and begin to write the copy. One under way is waited for.

        Args:
            how: the arguments of :meth:`CheckpointFolder.prepare`.

        Raises:
            NemoLiteError: the one before could not be written, or this one cannot be stored.
        """

        def begin() -> None:
            self._writer.finish()
            copies = copied_to_host((weights, state))
            write = self._folder(folder).prepare(*copies, **how)
            if num_bytes_of(copies) < SMALL_BYTES:
                write()
            else:
                self._writer.start(write)

        self._comm.on_first(begin)
        self._under_way[str(folder)] = str(Path(folder) / f"checkpoint-{how['kind']}-{how['number']}")

    def done(self, folder: str | Path, wait: bool) -> str:
        """The checkpoint in a folder that has become complete since this was last asked, or "".

        Args:
            wait: until it is. Otherwise ranks may call it alone, and only rank 0 gets an answer.

        Raises:
            NemoLiteError: it could not be written.
        """
        if wait:
            with WRITING_CHECKPOINT:
                self._comm.on_first(self._writer.finish)
            self._comm.barrier()
        elif not self._comm.on_first(self._writer.is_idle):
            return ""
        return self._under_way.pop(str(folder), "")

    def note_evaluation(self, folder: str | Path, evaluation: Mapping[str, Any]) -> None:
        """Write a result into the checkpoint of its step, after what is under way."""
        checkpoints = self._folder(folder)

        def note() -> None:
            if self._writer.is_idle():
                checkpoints.note_evaluation(evaluation)
            else:
                self._writer.start(lambda: checkpoints.note_evaluation(evaluation))

        self._comm.on_first(note)

    def is_among_best(self, folder: str | Path, evaluation: Mapping[str, Any], best: Best) -> bool:
        """Whether a checkpoint with this result would be one of the best of a folder."""

        def look() -> bool:
            self._writer.finish()
            return self._folder(folder).is_among_best(evaluation, best)

        return self._comm.from_first(look)

    def close(self) -> None:
        """Wait for what is under way, and let others save in the folders. Ranks may call it alone.

        An error is only logged: where nobody asked for it before, another one has ended the run.
        """
        try:
            self._writer.finish()
        except Exception as error:
            logging.error("%s", error)
        for checkpoints in self._folders.values():
            checkpoints.close()
        self._folders.clear()

    def _folder(self, folder: str | Path) -> CheckpointFolder:
        return self._folders.setdefault(Path(folder).expanduser(), CheckpointFolder(folder))
