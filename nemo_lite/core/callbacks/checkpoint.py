"""Callbacks that save: modules with the state of training (and restore both when it starts), or modules alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from nemo_lite.base.errors import CheckpointError, UnknownNameError, UsageError
from nemo_lite.base.files import json_text, make_writable_folder
from nemo_lite.base.ranges import PositiveInt, StepsBetween, numbers_checked
from nemo_lite.core.callbacks.action_state import ActionState, Best
from nemo_lite.core.callbacks.base import ActionCallback, NeMoCallback, TagOwners, older_names
from nemo_lite.core.callbacks.metrics import higher_is_better
from nemo_lite.core.neural_module import NeuralModule, unique_names
from nemo_lite.utils import logging


class CheckpointCallback(NeMoCallback):
    """Restores the newest checkpoint when training starts, and saves while it runs.

    A checkpoint is named after the steps (``STEP-1000``) or epochs (``EPOCH-3``) done; where both fall together it is
    saved once, as an ``EPOCH``. What the last of them does not hold is saved at the end, as a ``STEP``, provided that
    saving is on; so is what a stop signal interrupts. With several ranks all take part and rank 0 writes, so only its
    machine needs a ``folder`` that can be written. With ``shard_weights`` each rank writes its own part of each file:
    all need the ``folder``, on a file system that they share.

    The record of a checkpoint (``checkpoint-STEP-1000/record.json``) has the results of evaluations, each with its
    step. With ``best_of``, an evaluation that is among the best saves its weights if they are not saved yet.

    Args:
        folder: where checkpoints are saved, and looked for if there is no ``load_from_folder``.
        load_from_folder: where to restore from instead. Then it is an error when nothing is left to train, or the
            learning rate would be 0 for the rest; a run that goes on in its own ``folder`` ends with a warning, so
            that a job may be started again until it is done.
        step_freq: save after every so many steps; ``None`` or -1: not by steps.
        epoch_freq: save after every so many epochs; ``None`` or -1: not by epochs.
        checkpoints_to_keep: how many of the newest stay; older ones are deleted unless they are among the best.
        force_load: it is an error when there is nothing to restore.
        about: stored in the record of each checkpoint, for those that read it without the modules: configuration,
            labels. Texts, numbers, lists and mappings of them.
        minutes: save when so many minutes have passed since the last checkpoint; ``None``: not by time.
        best_of: the evaluation (``EvaluatorCallback(name=...)``) by which checkpoints are judged; "": by none.
        best_metric: the tag of the value that decides.
        best_to_keep: how many of the best stay, beside the newest.
        best_is: whether a good value is the ``lowest`` or the ``highest``; by default as the evaluation's metric says
            (``Metric.higher_is_better``), or the value's name (``wer`` and ``loss``, ``accuracy`` and ``f1``).
        epoch_names: name those saved by epochs after their epoch; otherwise all are named after their step.
        format: of the files; with ``pt``, ``torch.load`` and NeMo 0.x read them.
        allow_world_size_change: go on, too, from a checkpoint that another number of processes saved. What is left of
            its epoch is then divided among those that there are now, each utterance once; what changes is logged.
        record: called with "checkpoint" and step, epoch and path of each that is saved, instead of a line in the log:
            ``Trackers.record``.

    Raises:
        UsageError: a frequency of 0, fewer than one checkpoint to keep, or an ``about`` that JSON cannot hold; when
            training starts: a folder that cannot be written, or ``best_of`` without ``best_is`` for a value of which
            neither a metric nor its name says it.
        CheckpointError: when training starts: a checkpoint that does not fit, none with ``force_load``, or one that
            another number of processes saved.
    """

    @numbers_checked
    def __init__(
        self,
        folder: str | Path,
        load_from_folder: str | Path | None = None,
        step_freq: StepsBetween | None = -1,
        epoch_freq: StepsBetween | None = -1,
        checkpoints_to_keep: PositiveInt = 4,
        force_load: bool = False,
        about: Mapping[str, object] | None = None,
        *,
        minutes: float | None = None,
        best_of: str = "",
        best_metric: str = "wer",
        best_to_keep: PositiveInt = 2,
        best_is: Literal["lowest", "highest"] | None = None,
        epoch_names: bool = True,
        format: Literal["safetensors", "pt"] = "safetensors",  # noqa: A002  # the field's word
        allow_world_size_change: bool = False,
        record: Callable[..., object] | None = None,
    ) -> None:
        self._step_freq = None if step_freq == -1 else step_freq
        self._epoch_freq = None if epoch_freq == -1 else epoch_freq
        if best_is not in (None, "lowest", "highest"):
            raise UnknownNameError("best_is", best_is, ("lowest", "highest"), place="CheckpointCallback")
        self._folder, self._load_from_folder = folder, load_from_folder
        self._keep, self._minutes = checkpoints_to_keep, minutes
        if format not in ("safetensors", "pt"):
            raise UnknownNameError("format", format, ("safetensors", "pt"), place="CheckpointCallback")
        self._suffix = f".{format}"
        self._best = Best(best_of, best_metric, best_to_keep, best_is == "highest") if best_of else None
        self._best_is, self._tags = best_is, TagOwners()
        try:
            json_text(dict(about or {}))
        except (TypeError, ValueError, RecursionError) as error:
            problem, wanted = "about cannot be stored as JSON", "texts, finite numbers, and lists and mappings of them"
            raise UsageError(problem, place="CheckpointCallback", got=str(error), wanted=wanted) from None
        self._force_load, self._about, self._epoch_names = force_load, about, epoch_names
        self._allow_world_size_change, self._record = allow_world_size_change, record
        self._saves = bool(self._step_freq or self._epoch_freq or minutes)
        self._is_unsaved = False
        self._saved_at = 0.0

    def fingerprint(self) -> Mapping[str, object]:
        """When it saves and whether it restores: all ranks take part. Folders are of rank 0's machine."""
        return {
            "step_freq": self._step_freq,
            "epoch_freq": self._epoch_freq,
            "minutes": self._minutes,
            "best_of": self._best.evaluation if self._best else None,
            "epoch_names": self._epoch_names,
            "restores another run": self._load_from_folder is not None,
            "force_load": self._force_load,
        }

    def join(self, label: str, tags: TagOwners) -> None:
        """Learn what the metrics of the list's evaluators say."""
        self._tags = tags

    def on_action_start(self, state: ActionState) -> None:
        """Restore the newest checkpoint, if there is one."""
        if self._best and self._best_is is None:
            directions = self._tags.higher_is_better.get(self._best.evaluation)
            highest = higher_is_better(self._best.metric, directions, "CheckpointCallback")
            self._best = replace(self._best, highest=highest)
        self._is_unsaved = False
        if self._saves:  # before it is read: no other run may change it in between
            state.open_checkpoints(self._folder)
        self._restore(state)
        self._saved_at = time.monotonic()
        if not self._saves and self._load_from_folder is None:
            problem = "CheckpointCallback saves nothing: neither step_freq, epoch_freq nor minutes is given"
            state.on_first(lambda: logging.warning(problem))

    def on_step_start(self, state: ActionState) -> None:
        """Ask for a checkpoint when it is time. The ranks' clocks differ: the first that asks decides for all.

        What became of the last one is told here: it was written while the step before was made.
        """
        self._report_saved(state)
        # Here and not at the step's end, where an evaluation may come before this callback.
        self._is_unsaved = True
        if self._minutes and time.monotonic() - self._saved_at >= 60.0 * self._minutes:
            state.request_save()

    def on_step_end(self, state: ActionState) -> None:
        """Save after every ``step_freq``-th step, every ``epoch_freq``-th epoch, and when a callback asked for it."""
        by_step = self._step_freq and (state.step + 1) % self._step_freq == 0
        is_asked_for = self._saves and state.is_save_requested
        if self._is_unsaved and (by_step or is_asked_for or self._is_epoch_due(state)):
            self._save(state)

    def on_evaluation_end(self, state: ActionState) -> None:
        """Save weights that are among the best; write the result to the checkpoint that has its weights."""
        if not self._saves or state.evaluation is None:
            return
        best = self._best if self._best and state.evaluation.name == self._best.evaluation else None
        if not self._is_unsaved:
            state.note_evaluation(self._folder)
        elif best and state.is_among_best(self._folder, best):
            self._save(state)

    def on_action_end(self, state: ActionState) -> None:
        """Save what is not saved yet, and wait until it is complete."""
        if self._saves and self._is_unsaved:
            self._save(state)
        if self._saves:
            self._report_saved(state, wait=True)

    def _is_epoch_due(self, state: ActionState) -> bool:
        return bool(self._epoch_freq and state.is_epoch_over and (state.epoch + 1) % self._epoch_freq == 0)

    def _restore(self, state: ActionState) -> None:
        folder = self._load_from_folder or self._folder
        must_go_on = self._load_from_folder is not None
        if state.load_checkpoint(folder, must_go_on, self._allow_world_size_change) is not None:
            return
        if self._force_load:
            raise CheckpointError(
                "there is no checkpoint to restore",
                place=str(folder),
                remedy="check load_from_folder, or leave out force_load",
            )
        # Warn if the user asked for weights and there are none.
        say = logging.info if self._load_from_folder is None else logging.warning
        state.on_first(lambda: say("No checkpoint in %s: training starts at step 0", folder))

    def _save(self, state: ActionState) -> None:
        kind: Literal["STEP", "EPOCH"] = "EPOCH" if self._epoch_names and self._is_epoch_due(state) else "STEP"
        number = 1 + (state.epoch if kind == "EPOCH" else state.step)
        self._report_saved(state, wait=True)
        state.save_checkpoint(self._folder, kind, self._keep, self._about, self._best, self._suffix)
        self._is_unsaved, self._saved_at = False, time.monotonic()
        name, facts = f"{kind}-{number}", {"step": state.step + 1, "epoch": state.epoch + 1}
        path = str(Path(self._folder) / f"checkpoint-{name}")
        tell = partial(self._record_saved, name, path=path, **facts)
        state.on_first(lambda: self._tags.of_checkpoints.update({path: tell}))

    def _report_saved(self, state: ActionState, *, wait: bool = False) -> None:
        """Log and record the last checkpoint, once it is complete."""
        path = state.saved_checkpoint(self._folder, wait=wait)
        state.on_first(lambda: self._tags.of_checkpoints.pop(path)() if path else None)

    def _record_saved(self, name: str, step: int, epoch: int, path: str) -> None:
        say = logging.info if self._record is None or logging.style == "nemo" else logging.debug
        say("Saved checkpoint %s in %s", name, self._folder)
        if self._record is not None:
            self._record("checkpoint", step=step, epoch=epoch, path=path)


class ModuleSaverCallback(ActionCallback):
    """Saves modules as ``<name or class>-STEP-<steps done>.safetensors``, while training and at the end.

    With several ranks rank 0 writes and deletes, so only its machine needs a ``folder`` that can be written.

    Args:
        save_modules_list: the modules.
        step_freq: save after every so many steps; -1: only at the end (``step_frequency``).
        folder: where; by default the current directory.
        checkpoints_to_keep: how many of those that this run saved stay.

    Raises:
        CheckpointError: two modules of one name.
        UsageError: a frequency of 0, fewer than one to keep; when training starts: a folder that cannot be written.
    """

    @older_names(step_frequency="step_freq")
    @numbers_checked
    def __init__(
        self,
        save_modules_list: Sequence[NeuralModule],
        step_freq: StepsBetween = 1000,
        folder: str | Path | None = None,
        checkpoints_to_keep: PositiveInt = 4,
    ) -> None:
        self._step_freq = None if step_freq == -1 else step_freq
        self._modules = unique_names(save_modules_list, "ModuleSaverCallback")
        self._folder, self._keep = Path(folder or ".").expanduser(), checkpoints_to_keep
        self._saved: list[list[Path]] = []
        self._is_unsaved = False

    def fingerprint(self) -> Mapping[str, object]:
        """The modules it saves, and when: all ranks take part."""
        return {"modules": [*self._modules], "step_freq": self._step_freq}

    def on_action_start(self) -> None:
        """See that the folder can be written to."""
        self.action.on_first(lambda: make_writable_folder(self._folder))
        self._is_unsaved = False

    def on_iteration_end(self) -> None:
        """Save after every ``step_freq``-th step."""
        self._is_unsaved = True
        if self._step_freq and (self.step + 1) % self._step_freq == 0:
            self._save()

    def on_action_end(self) -> None:
        """Save what is not saved yet."""
        if self._is_unsaved:
            self._save()

    def _save(self) -> None:
        paths = {name: self._folder / f"{name}-STEP-{self.step + 1}.safetensors" for name in self._modules}
        for name, module in self._modules.items():
            self.action.save_module(module, paths[name])
        self._is_unsaved = False
        self.action.on_first(lambda: self._keep_newest([*paths.values()]))

    def _keep_newest(self, paths: list[Path]) -> None:
        for path in paths:
            logging.info("Saved %s", path)
        # Written again under the same names (a second run with this callback), they are new, not two sets.
        self._saved = [*(older for older in self._saved if older != paths), paths]
        while len(self._saved) > self._keep:
            for path in self._saved.pop(0):
                path.unlink(missing_ok=True)
