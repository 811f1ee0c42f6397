"""Checkpoints of a run: its training state as a whole, saved and loaded on all ranks; weights for inference."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.fitting import (
    TrainingState,
    can_go_on,
    check_state,
    misfits_told,
    refuse_not_finite,
)
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, Chosen, Contents, SavePlan
from nemo_lite.backends.pytorch.checkpoint.saving import Saving, on_every_rank
from nemo_lite.backends.pytorch.checkpoint.storage import (
    ModuleWeights,
    load_training_state,
    save_module,
    save_training_state,
)
from nemo_lite.backends.pytorch.distributed.batchnorm import is_sharded
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.contract import RunContract, changes, saved
from nemo_lite.backends.pytorch.distributed.process import READING_CHECKPOINT, WRITING_CHECKPOINT
from nemo_lite.backends.pytorch.engine.evaluation import Evaluations
from nemo_lite.backends.pytorch.engine.module_state import mean_statistics, named_weighted_modules
from nemo_lite.backends.pytorch.engine.state import RunState
from nemo_lite.backends.pytorch.optimizers import lay_out_like_parameters, take_saved_types, with_own_flags
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import CheckpointError
from nemo_lite.core.callbacks.action_state import Best, EvaluationResult
from nemo_lite.core.callbacks.base import CallbackList
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.utils import logging

# Any: what a file or another rank gives; training states are trees of tensors, numbers and texts.


class SavedPart(Protocol):
    """Something whose state is part of the training state, under keys of its own."""

    def state_dict(self) -> dict[str, object]:
        """Its keys. All ranks call it; rank 0's is saved."""

    def load_state_dict(self, state: Mapping[str, object], place: str = "") -> None:
        """Go on from a training state, which lacks the keys if NeMo made it.

        Raises:
            CheckpointError: the state does not fit.
        """


class Checkpoints:
    """Saves and loads a run. All ranks call each method, and rank 0 writes. ``ActionState`` says what callbacks use.

    Args:
        comm: the ranks.
        state: counters, optimizers and modules; its callbacks can save from now on.
        evaluations: their results are saved, and what they wait for is waited for here too.
        precision: its loss scale is saved.
        callbacks: their states are saved.
        parts: what else is part of the training state.
        contract: of the run, stored in records.

    Attributes:
        saved: path of the checkpoint saved last; "" before.
        loaded_from: the folder that was looked in; "" without.
        restored: name of the checkpoint from which training goes on; "" where it begins.
        must_go_on: it is an error if nothing is left to train.
        changes: what is other than in the restored checkpoint, a line each.
        steps_before: steps done before this run.
        of_callbacks: states of the callbacks, until they have heard of the start.
    """

    def __init__(
        self,
        comm: Comm,
        state: RunState,
        evaluations: Evaluations,
        precision: Precision,
        callbacks: CallbackList,
        parts: Sequence[SavedPart] = (),
        contract: Callable[[], RunContract] = dict,
    ) -> None:
        self._comm, self._state, self._evaluations, self._precision = comm, state, evaluations, precision
        self._callbacks, self._parts, self._contract = callbacks, parts, contract
        self._saving = Saving(comm)
        self.saved = self.loaded_from = self.restored = ""
        self.must_go_on = False
        self.changes: Sequence[str] = ()
        self.steps_before = 0
        self.of_callbacks: Sequence[Tree] = ()
        state.save_module = self.save_module
        state.save_state_to, state.restore_state_from = self.save_state_to, self.restore_state_from
        state.save_checkpoint, state.load_checkpoint = self.save, self.load
        state.open_checkpoints, state.saved_checkpoint = self.open, self.complete
        state.is_among_best, state.note_evaluation = self.is_among_best, self.note_evaluation

    def state_dict(self) -> TrainingState:
        """Everything but the modules' weights."""
        return self._state_dict(self._comm.whole)

    def _state_dict(self, take: Callable[[Tree], Tree]) -> TrainingState:
        self._evaluations.settle()
        state = self._state
        results = self._evaluations.results.values()
        return {
            "step": state.steps_done,
            "epoch": state.epochs_done,
            "optimizers": [take(_in_order(optimizer.state_dict())) for optimizer in state.optimizers],
            "optimizer_names": self._optimizer_names(),
            "precision": self._precision.state_dict(),
            "callbacks": self._callbacks.state_dict(),
            "evaluations": [{**vars(result), "seconds": 0.0} for result in results],  # equal in equal runs
            **{key: value for part in self._parts for key, value in part.state_dict().items()},
        }

    def load_state_dict(self, saved: TrainingState, place: str = "") -> None:
        """Restore counters, optimizers and the loss scale.

        Args:
            saved: what :meth:`state_dict` gave.
            place: where it was read from, for messages.

        Raises:
            CheckpointError: the state is of another set of optimizers or parameters, or of wrong types or shapes.
        """
        state = self._state
        check_state(saved, state.optimizers, place)
        with misfits_told(place):
            self._load_optimizers(saved, place)
            self._precision.load_state_dict(saved.get("precision", {}))
            state.step = state.steps_done = self.steps_before = int(saved["step"])
            state.epoch = state.epochs_done = int(saved["epoch"])
            state.is_epoch_over = not saved.get("done")
            for part in self._parts:
                part.load_state_dict(saved, place)
            state.learning_rate = state.optimizers[0].param_groups[0]["lr"] if state.optimizers else 0.0
            self.of_callbacks = saved.get("callbacks", ())
            results = [EvaluationResult(**result) for result in saved.get("evaluations", ())]
            self._evaluations.results = {result.name: result for result in results}

    def _load_optimizers(self, state: TrainingState, place: str) -> None:
        optimizers, own_names = self._state.optimizers, self._optimizer_names()
        saved, names = state.get("optimizers", []), state.get("optimizer_names", own_names)
        if len(saved) != len(optimizers) or names != own_names:
            raise CheckpointError(
                "the optimizers differ",
                place=place,
                got=f"{', '.join(names)} saved",
                wanted=f"{', '.join(own_names)} of this run",
                remedy="train on with the same",
            )
        try:
            for optimizer, optimizer_state in zip(optimizers, saved, strict=True):
                self._comm.load_optimizer_state(optimizer, with_own_flags(optimizer, optimizer_state))
                take_saved_types(optimizer, optimizer_state)
                lay_out_like_parameters(optimizer)
        except (ValueError, KeyError) as error:
            problem = "the optimizer's state does not fit the parameters"
            raise CheckpointError(problem, place=place, got=str(error)) from error

    def _optimizer_names(self) -> list[str]:
        return [type(optimizer).__name__ for optimizer in self._state.optimizers]

    def save_state_to(self, path: str | Path) -> None:
        """Write step, epoch, optimizers and the loss scale to one file."""
        state = self.state_dict()
        self._write(lambda: save_training_state(path, state))

    def restore_state_from(self, path: str | Path) -> None:
        """Read what :meth:`save_state_to` wrote."""
        self.load_state_dict(self._comm.from_first(lambda: load_training_state(path)))

    def save_module(self, module: nn.Module, path: str | Path) -> None:
        """Write a module's weights. See ``ActionState``."""
        self._evaluations.settle()
        with mean_statistics([module], self._comm):
            weights = self._weights(module)
            self._write(lambda: save_module(weights, path))

    def _weights(self, module: nn.Module) -> ModuleWeights:
        tensors = self._comm.whole(module.state_dict())
        self._comm.on_first(lambda: refuse_not_finite(module, tensors))
        return ModuleWeights(type(module).__name__, tensors)

    def _pieces(self, module: nn.Module) -> ModuleWeights:
        tensors = self._comm.pieces(module.state_dict())
        refuse_not_finite(module, tensors)
        return ModuleWeights(type(module).__name__, tensors)

    def _write(self, write: Callable[[], object]) -> None:
        """Write on rank 0; the others wait until it is done."""
        with WRITING_CHECKPOINT:
            self._comm.written_by_all(lambda: self._comm.on_first(write))

    def save(
        self,
        folder: str | Path,
        kind: Literal["STEP", "EPOCH"],
        keep: int,
        about: Mapping[str, object] | None = None,
        best: Best | None = None,
        suffix: str = ".safetensors",
    ) -> None:
        """Write a set named after the steps or epochs done: ``ActionState.save_checkpoint``."""
        self._evaluations.compare_copies()
        modules = named_weighted_modules(self._state.modules.values())
        in_parts = suffix == ".safetensors" and is_sharded(modules.values())  # NeMo's files are whole
        state = self._state_dict(self._comm.pieces if in_parts else self._comm.whole)
        number = self._state.steps_done if kind == "STEP" else self._state.epochs_done
        results = [vars(result) for result in self._evaluations.results.values()]
        plan = SavePlan(kind, number, keep, best, about, results, saved(self._contract()), suffix)
        with WRITING_CHECKPOINT, mean_statistics(modules.values(), self._comm):
            if in_parts:
                pieces = on_every_rank(
                    self._comm, lambda: {name: self._pieces(module) for name, module in modules.items()}
                )
                self._saving.start_part(folder, pieces, state, plan)
            else:
                weights = {name: self._weights(module) for name, module in modules.items()}
                self._saving.start(folder, weights, state, plan)

    def open(self, folder: str | Path) -> None:
        """Let this run alone save in a folder: ``ActionState.open_checkpoints``."""
        modules = [module for module in self._state.modules.values() if isinstance(module, nn.Module)]
        self._saving.open(folder, is_sharded(modules))

    def complete(self, folder: str | Path, *, wait: bool = False) -> str:
        """The checkpoint that has become complete: ``ActionState.saved_checkpoint``."""
        path = self._saving.done(folder, wait)
        self.saved = path or self.saved
        return path

    def close(self) -> None:
        """End what is being written, and let others save in the folders."""
        self._saving.close()

    def is_among_best(self, folder: str | Path, best: Best) -> bool:
        """Whether the last evaluation is among the best. See ``ActionState``."""
        return self._saving.is_among_best(folder, vars(self._state.evaluation), best)

    def note_evaluation(self, folder: str | Path) -> None:
        """Write the last evaluation into the checkpoint of its step. See ``ActionState``."""
        self._saving.note_evaluation(folder, vars(self._state.evaluation))

    def load(self, folder: str | Path, must_go_on: bool = False, allow_world_size_change: bool = False) -> str | None:
        """Restore the newest complete set: ``ActionState.load_checkpoint``."""
        self.must_go_on, self.loaded_from = must_go_on, str(folder)
        self._contract()  # now, because files of code may change before the first checkpoint is saved
        checkpoints = CheckpointFolder(folder)
        # Named first, so that two modules of one name are an error before any step.
        modules = named_weighted_modules(self._state.modules.values())
        refuse_newer_elsewhere(self._comm, checkpoints)

        def choose() -> Chosen | None:
            return None if checkpoints.is_empty() else checkpoints.choose(modules)

        def check(contents: Contents) -> None:
            with misfits_told(contents.name):
                check_world_size(contents.state or {}, self._comm.world_size, allow_world_size_change, contents.name)

        optimizers = self._state.optimizers
        contents = read_chosen(self._comm, modules, choose, optimizers, check)
        if contents is None:
            return None
        contents.fill(modules)
        state = contents.state or {}
        if can_go_on(state, optimizers):
            self.load_state_dict(state, contents.name)
            self.restored = contents.name
            self.changes = [*changes(contents.contract, self._contract())]
        else:
            logging.warning(
                "Restored the weights of %s; it has no state of these optimizers: starting at step 0", contents.name
            )
        return contents.name


def _in_order(state: TrainingState) -> TrainingState:
    """An optimizer's state with the options of its groups by name: those of a loaded one are in another order."""
    groups = [{key: group[key] for key in sorted(group, key=str)} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def read_chosen(
    comm: Comm,
    modules: Mapping[str, nn.Module],
    choose: Callable[[], Chosen | None],
    optimizers: Sequence[torch.optim.Optimizer] = (),
    check: Callable[[Contents], object] = lambda contents: None,
) -> Contents | None:
    """The checkpoint that rank 0 chooses, on all ranks. It reads it too, and the others need not have its files.

    Where weights are divided among the ranks, each reads its own pieces: all ranks need the files.
    """

    def read(chosen: Chosen) -> Contents:
        contents = chosen.read(modules, optimizers)
        check(contents)
        return contents

    def read_on_first() -> tuple[object, ...] | None:
        return None if (chosen := choose()) is None else tuple(read(chosen))

    with READING_CHECKPOINT:
        if is_sharded(modules.values()):
            shared: Tree = comm.from_first(lambda: None if (chosen := choose()) is None else tuple(chosen))
            return None if shared is None else on_every_rank(comm, lambda: read(Chosen(*shared)))
        travels: Tree = comm.from_first(read_on_first)
    return None if travels is None else Contents(*travels)


def refuse_newer_elsewhere(comm: Comm, checkpoints: CheckpointFolder) -> None:
    """See that no rank has a newer checkpoint in its folder than rank 0, from whose folder a run goes on.

    Rank 0 may be on another machine than before. All ranks call it.

    Raises:
        CheckpointError: one has; the same error on every rank.
    """
    here = (platform.node(), str(checkpoints.folder.absolute()), checkpoints.newest_step())
    ranks = comm.share(comm.gather(here)) or [here]
    (first_host, first_folder, first), *other_ranks = ranks
    newer = [(step, host, folder) for host, folder, step in other_ranks if step is not None and step > (first or 0)]
    if not newer:
        return
    step, host, folder = max(newer)
    error = CheckpointError(
        "another machine has a newer checkpoint than that of rank 0, from which the run would go on",
        place=f"{host}:{folder}",
        got=f"step {step} there, {'none' if first is None else f'step {first}'} in {first_host}:{first_folder}",
        remedy="start rank 0 on that machine, or use a folder on a file system that all machines share; if it is of "
        "another run, move it away",
    )
    error.is_common = True
    raise error


def restore_weights(comm: Comm, modules: Iterable[NeuralModule], folder: str | Path, pattern: str) -> None:
    """Fill the modules with the weights of the newest checkpoint whose name contains ``pattern``.

    Raises:
        CheckpointError: nothing to restore, no such checkpoint, or one that does not fit.
    """
    named = named_weighted_modules(modules)
    if not named:
        raise CheckpointError("no module of the DAG has weights to restore", place=str(folder))
    contents = read_chosen(comm, named, lambda: CheckpointFolder(folder).choose(named, pattern))
    assert contents is not None
    contents.fill(named)


def check_world_size(state: TrainingState, world_size: int, is_allowed: bool, place: str) -> None:
    """Refuse a training state that another number of ranks saved. Those of NeMo do not say how many.

    Raises:
        CheckpointError: it is another number, and not allowed.
    """
    saved = state.get("pace", [world_size])[0]
    if saved != world_size and not is_allowed:
        raise CheckpointError(
            "the checkpoint was saved by another number of processes",
            place=place,
            got=f"{saved} saved it, {world_size} would go on",
            wanted="as many",
            remedy=f"start {saved}; or give --allow_world_size_change "
            "(CheckpointCallback(allow_world_size_change=True)): what is left of the epoch is divided anew, and what "
            "that changes is told",
        )
