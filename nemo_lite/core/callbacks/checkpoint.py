"""CheckpointCallback: saves modules and training state while training, restores them when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from nemo_lite.core.action_state import ActionState
from nemo_lite.core.callbacks.base import NeMoCallback, refuse_below_one
from nemo_lite.errors import CheckpointError
from nemo_lite.utils import logging
from nemo_lite.utils.files import make_writable_folder


class CheckpointCallback(NeMoCallback):
    """Restores the newest checkpoint when training starts, and saves while it runs.

    A checkpoint is named after the steps (``STEP-1000``) or epochs (``EPOCH-3``) done. What the last of them does not
    hold is saved at the end, as a ``STEP``, provided that saving is on. With several ranks all take part and the first
    writes, so only its machine needs a ``folder`` that can be written.

    Args:
        folder: where checkpoints are saved, and looked for if there is no ``load_from_folder``.
        load_from_folder: where to restore from instead.
        step_freq: save after every so many steps; ``None`` or -1: not by steps.
        epoch_freq: save after every so many epochs; ``None`` or -1: not by epochs.
        checkpoints_to_keep: how many stay; older ones are deleted.
        force_load: it is an error when there is nothing to restore.

    Raises:
        UsageError: a frequency of 0, or fewer than one checkpoint to keep; when training starts: a folder that cannot
            be written.
        CheckpointError: when training starts: a checkpoint that does not fit, or none with ``force_load``.
    """

    def __init__(
        self,
        folder: str | Path,
        load_from_folder: str | Path | None = None,
        step_freq: int | None = -1,
        epoch_freq: int | None = -1,
        checkpoints_to_keep: int = 4,
        force_load: bool = False,
    ) -> None:
        self._step_freq = None if step_freq == -1 else step_freq
        self._epoch_freq = None if epoch_freq == -1 else epoch_freq
        refuse_below_one(
            "CheckpointCallback",
            step_freq=self._step_freq,
            epoch_freq=self._epoch_freq,
            checkpoints_to_keep=checkpoints_to_keep,
        )
        self._folder, self._load_from_folder = folder, load_from_folder
        self._keep = checkpoints_to_keep
        self._force_load = force_load
        self._is_unsaved = False

    def on_action_start(self, state: ActionState) -> None:
        """Restore the newest checkpoint, if there is one."""
        self._is_unsaved = False
        self._restore(state)
        if self._saves:
            state.on_first(lambda: make_writable_folder(self._folder))
        elif self._load_from_folder is None:
            problem = "CheckpointCallback saves nothing: neither step_freq nor epoch_freq is given"
            state.on_first(lambda: logging.warning(problem))

    def on_step_end(self, state: ActionState) -> None:
        """Save after every ``step_freq``-th step."""
        self._is_unsaved = True
        if self._step_freq and (state.step + 1) % self._step_freq == 0:
            self._save(state, "STEP", state.step + 1)

    def on_epoch_end(self, state: ActionState) -> None:
        """Save after every ``epoch_freq``-th epoch."""
        if self._epoch_freq and (state.epoch + 1) % self._epoch_freq == 0:
            self._save(state, "EPOCH", state.epoch + 1)

    def on_action_end(self, state: ActionState) -> None:
        """Save what is not saved yet."""
        if self._saves and self._is_unsaved:
            self._save(state, "STEP", state.step + 1)

    @property
    def _saves(self) -> bool:
        return bool(self._step_freq or self._epoch_freq)

    def _restore(self, state: ActionState) -> None:
        folder = self._load_from_folder or self._folder
        if state.load_checkpoint(folder) is not None:
            return
        if self._force_load:
            raise CheckpointError(
                "there is no checkpoint to restore",
                place=str(folder),
                remedy="check load_from_folder, or leave out force_load",
            )
        # Weights that someone asked for and did not get are worth more than a line among many.
        say = logging.info if self._load_from_folder is None else logging.warning
        state.on_first(lambda: say("No checkpoint in %s: training starts from the weights as they are", folder))

    def _save(self, state: ActionState, kind: Literal["STEP", "EPOCH"], number: int) -> None:
        state.save_checkpoint(self._folder, kind, self._keep)
        self._is_unsaved = False
        state.on_first(lambda: logging.info("Saved checkpoint %s-%d in %s", kind, number, self._folder))
