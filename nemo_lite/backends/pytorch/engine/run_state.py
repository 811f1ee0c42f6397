"""The state of a running action, as callbacks see it, with its checkpoints and evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, Chosen, Contents
from nemo_lite.backends.pytorch.checkpoint.saving import Saving
from nemo_lite.backends.pytorch.checkpoint.state import can_go_on, check_state, misfits_told
from nemo_lite.backends.pytorch.checkpoint.storage import (
    TrainingState,
    Weights,
    load_training_state,
    save_module,
    save_training_state,
)
from nemo_lite.backends.pytorch.checkpoint.store import on_every_rank
from nemo_lite.backends.pytorch.checkpoint.tensors import refuse_not_finite
from nemo_lite.backends.pytorch.distributed.activity import WRITING_CHECKPOINT
from nemo_lite.backends.pytorch.distributed.batchnorm import is_sharded
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.contract import RunContract, changes
from nemo_lite.backends.pytorch.distributed.copies import CopyComparison
from nemo_lite.backends.pytorch.engine.averages import Averaging
from nemo_lite.backends.pytorch.engine.batches import NO_WISHES, NoValues, StepValues, Wishes
from nemo_lite.backends.pytorch.engine.evaluation import Evaluation, EvaluationRun
from nemo_lite.backends.pytorch.engine.module_state import mean_statistics, named_weighted_modules
from nemo_lite.backends.pytorch.engine.resuming import (
    Position,
    SavedPart,
    check_world_size,
    read_chosen,
    refuse_newer_elsewhere,
)
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.optim.create import lay_out_like_parameters, with_own_flags
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.action_state import Best, EvaluationResult, StepTensors, StepTiming, TbWriter
from nemo_lite.core.callbacks.base import CallbackList
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.errors import CheckpointError
from nemo_lite.interruption import StopSignals, name_of
from nemo_lite.utils import logging

# StepClock: sums of what the steps of a run took. Nothing is measured here.


class StepClock:
    """Sums of what the steps took, and what each reader had seen of them."""

    def __init__(self) -> None:
        self.total = StepTiming()
        # Readers need not be hashable. Each is kept with its id, which no other object can get while it lives.
        self._seen: dict[int, tuple[object, StepTiming]] = {}

    def add(self, seconds: float, data_wait_seconds: float, amount: float) -> None:
        """Add a step."""
        self.total.num_steps += 1
        self.total.seconds += seconds
        self.total.data_wait_seconds += data_wait_seconds
        self.total.amount += amount

    def read(self, reader: object) -> StepTiming:
        """The sums of the steps since this reader last asked."""
        now, (_, before) = replace(self.total), self._seen.get(id(reader), (reader, StepTiming()))
        self._seen[id(reader)] = (reader, now)
        sums = ("num_steps", "seconds", "data_wait_seconds", "amount")
        return replace(now, **{name: getattr(now, name) - getattr(before, name) for name in sums})


# What callbacks see while an action runs: counters, times, the step's tensors; verbs to evaluate, save and stop.


T = TypeVar("T")


class RunState:
    """State of a running action; see :class:`nemo_lite.core.action_state.ActionState` for what callbacks may use."""

    def __init__(
        self,
        comm: Comm,
        device: torch.device,
        precision: Precision,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        modules: Mapping[str, NeuralModule] | None = None,
        tb_writer: TbWriter | None = None,
        tensors: StepValues | None = None,
        callbacks: CallbackList | None = None,
        lowering: Lowering = lower,
        contract: Callable[[], RunContract] = RunContract,
    ) -> None:
        self.comm, self.device, self.precision = comm, device, precision
        self.local_rank, self.world_size = comm.local_rank, comm.world_size
        self.global_rank = None if comm.local_rank is None else comm.rank
        self.optimizers = list(optimizers)
        self.modules: Mapping[str, NeuralModule] = dict(modules or {})
        self.tb_writer = tb_writer
        self.tensors: StepTensors = tensors or NoValues()
        self.step = 0
        self.epoch = 0
        self.steps_done = 0
        self.epochs_done = 0
        self.total_steps: int | None = None
        self.learning_rate = 0.0
        self.stop_reason = ""
        self.stop_signals = StopSignals()
        self.interrupted_by = 0
        self.is_epoch_over = self.is_save_requested = self._wants_save = self._all_stop = False
        self.must_go_on = False
        self.saved = self.loaded_from = self.restored = ""
        self.changes: Sequence[str] = ()
        self._saving = Saving(comm)
        self.steps_before = 0
        self.clock = StepClock()
        # Waits for what is not known yet of the last step: before anything that reads weights or says how it went.
        self.settle: Callable[[], None] = _nothing_open
        self.averaging: Averaging | None = None
        self.copies: CopyComparison | None = None  # of the training data
        self.position = Position(comm, device, self.modules)
        self.parts: Sequence[SavedPart] = [self.position]
        # Of the callbacks, from a checkpoint: for those that are still to hear of the start.
        self.saved_callbacks: Sequence[Any] = ()
        self.evaluation: EvaluationResult | None = None
        self._evaluated: dict[str, EvaluationResult] = {}
        self._callbacks, self._lowering, self._contract = callbacks or CallbackList([]), lowering, contract
        self._evaluations: dict[tuple[NmTensor, ...], Evaluation] = {}

    def __getitem__(self, key: str) -> Any:  # an attribute of any type
        return getattr(self, key)

    def timing(self, reader: object) -> StepTiming:
        """The times of the steps since this reader last asked."""
        return self.clock.read(reader)

    def request_stop(self, reason: str) -> None:
        """End the run. See ``ActionState``."""
        self.stop_reason = reason

    def request_save(self) -> None:
        """Ask for a checkpoint after this step. See ``ActionState``."""
        self._wants_save = True

    @property
    def wishes(self) -> Wishes:
        """What this rank wants to happen after the step."""
        if not (self.stop_reason or self._wants_save or self.stop_signals.received):
            return NO_WISHES  # as at nearly every step
        return Wishes(bool(self.stop_reason), self._wants_save, self.stop_signals.received)

    def agree(self, wishes: Wishes) -> None:
        """Note what some rank wanted: all ranks do it at this step."""
        self.is_save_requested, self._wants_save = wishes.save, False
        if wishes.stop:
            self._all_stop = True
            self.stop_reason = self.stop_reason or "another rank asked for it"
        if wishes.signal:
            self.agree_on_signal(wishes.signal)

    def agree_on_signal(self, number: int) -> None:
        """Note the stop signal that some rank got, or 0: all ranks end the run at this step."""
        self.interrupted_by = self.interrupted_by or number
        if self.interrupted_by:
            self.stop_reason = self.stop_reason or name_of(self.interrupted_by)

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends here. With several ranks: whether all of them know that one asked to stop."""
        return self._all_stop or bool(self.interrupted_by) or (self.comm.world_size == 1 and bool(self.stop_reason))

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives on rank 0. See ``ActionState``."""
        return self.comm.on_first(make)

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives on rank 0, on all ranks. See ``ActionState``."""
        return self.comm.from_first(make)

    def prepare_evaluation(self, wires: Sequence[NmTensor]) -> Evaluation:
        """The evaluation of these wires, checked and lowered once."""
        key = tuple(wires)
        if key not in self._evaluations:
            self._evaluations[key] = Evaluation(key, self.device, self.precision, self._lowering, keeps_workers=True)
        return self._evaluations[key]

    def close_evaluations(self) -> None:
        """End the data workers that wait for the next evaluation."""
        for evaluation in self._evaluations.values():
            evaluation.close()

    def evaluate(self, wires: Sequence[NmTensor]) -> EvaluationRun:
        """The values of ``wires`` for each batch of their data layer. See ``ActionState``."""
        self.settle()
        if self.copies is not None:
            self.copies.compare()
        evaluation, signals = self.prepare_evaluation(wires), self.stop_signals
        return EvaluationRun(evaluation, self.comm, lambda: signals.received, self.agree_on_signal)

    def publish(self, make: Callable[[], EvaluationResult]) -> None:
        """Make the result of an evaluation known. See ``ActionState``."""
        if self.interrupted_by:  # perhaps in the middle of it
            return
        self.evaluation = EvaluationResult(**self.from_first(lambda: vars(make())))
        self._evaluated[self.evaluation.name] = self.evaluation
        self._callbacks.notify("on_evaluation_end", self)

    def state_dict(self) -> TrainingState:
        """Everything but the modules' weights."""
        return self._state_dict(self.comm.whole)

    def _state_dict(self, take: Callable[[Any], Any]) -> TrainingState:
        self.settle()
        return {
            "step": self.steps_done,
            "epoch": self.epochs_done,
            "optimizers": [take(optimizer.state_dict()) for optimizer in self.optimizers],
            "optimizer_names": self._optimizer_names(),
            "precision": self.precision.state_dict(),
            "callbacks": self._callbacks.state_dict(),
            "evaluations": [{**vars(each), "seconds": 0.0} for each in self._evaluated.values()],  # equal in equal runs
            **{key: value for part in self.parts for key, value in part.state_dict().items()},
        }

    def load_state_dict(self, state: TrainingState, place: str = "") -> None:
        """Restore counters, optimizers and the loss scale.

        Args:
            state: what :meth:`state_dict` gave.
            place: where it was read from, for messages.

        Raises:
            CheckpointError: the state is of another set of optimizers or parameters, or of wrong types or shapes.
        """
        check_state(state, self.optimizers, place)
        with misfits_told(place):
            self._take(state, place)

    def _take(self, state: TrainingState, place: str) -> None:
        saved = state.get("optimizers", [])
        names = state.get("optimizer_names", self._optimizer_names())
        if len(saved) != len(self.optimizers) or names != self._optimizer_names():
            raise CheckpointError(
                "the optimizers differ",
                place=place,
                got=f"{', '.join(names)} saved",
                wanted=f"{', '.join(self._optimizer_names())} of this run",
                remedy="train on with the same",
            )
        try:
            for optimizer, optimizer_state in zip(self.optimizers, saved, strict=True):
                self.comm.load_optimizer_state(optimizer, with_own_flags(optimizer, optimizer_state))
                lay_out_like_parameters(optimizer)
        except (ValueError, KeyError) as error:
            problem = "the optimizer's state does not fit the parameters"
            raise CheckpointError(problem, place=place, got=str(error)) from error
        self.precision.load_state_dict(state.get("precision", {}))
        self.step = self.steps_done = self.steps_before = int(state["step"])
        self.epoch = self.epochs_done = int(state["epoch"])
        for part in self.parts:
            part.load_state_dict(state, place)
        self.learning_rate = self.optimizers[0].param_groups[0]["lr"] if self.optimizers else 0.0
        self.is_epoch_over = not self.position.done
        self.saved_callbacks = state.get("callbacks", ())
        self._evaluated = {each["name"]: EvaluationResult(**each) for each in state.get("evaluations", ())}

    def _optimizer_names(self) -> list[str]:
        return [type(optimizer).__name__ for optimizer in self.optimizers]

    def save_state_to(self, path: str | Path) -> None:
        """Write step, epoch, optimizers and the loss scale to one file."""
        state = self.state_dict()
        self._write(lambda: save_training_state(path, state))

    def save_module(self, module: nn.Module, path: str | Path) -> None:
        """Write a module's weights. See ``ActionState``."""
        self.settle()
        with mean_statistics([module], self.comm):
            weights = self._weights(module)
            self._write(lambda: save_module(weights, path))

    def _weights(self, module: nn.Module) -> Weights:
        tensors = self.comm.whole(module.state_dict())
        self.comm.on_first(lambda: refuse_not_finite(module, tensors))
        return Weights(type(module).__name__, tensors)

    def _pieces(self, module: nn.Module) -> Weights:
        tensors = self.comm.pieces(module.state_dict())
        refuse_not_finite(module, tensors)
        return Weights(type(module).__name__, tensors)

    def _write(self, write: Callable[[], object]) -> None:
        """Write on rank 0; the others wait until it is done."""
        with WRITING_CHECKPOINT:
            self.comm.written_by_all(lambda: self.comm.on_first(write))

    def restore_state_from(self, path: str | Path) -> None:
        """Read what :meth:`save_state_to` wrote."""
        self.load_state_dict(self.comm.from_first(lambda: load_training_state(path)))

    def save_checkpoint(
        self,
        folder: str | Path,
        kind: Literal["STEP", "EPOCH"],
        keep: int,
        about: Mapping[str, Any] | None = None,
        best: Best | None = None,
        suffix: str = ".safetensors",
    ) -> None:
        """Write a set named after the steps or epochs done. See ``ActionState``."""
        if self.copies is not None:
            self.copies.compare()
        number = self.steps_done if kind == "STEP" else self.epochs_done
        modules = named_weighted_modules(self.modules.values())
        in_parts = suffix == ".safetensors" and is_sharded(modules.values())  # NeMo's files are whole
        state = self._state_dict(self.comm.pieces if in_parts else self.comm.whole)
        rates = [vars(each) for each in self._evaluated.values()]
        contract = self._contract().saved()
        how: Any = {"kind": kind, "number": number, "keep": keep, "best": best, "about": about, "suffix": suffix}
        how |= {"evaluations": rates, "contract": contract}
        with WRITING_CHECKPOINT, mean_statistics(modules.values(), self.comm):
            if in_parts:
                pieces = on_every_rank(self.comm, lambda: {name: self._pieces(each) for name, each in modules.items()})
                self._saving.start_part(folder, pieces, state, how)
            else:
                weights = {name: self._weights(module) for name, module in modules.items()}
                self._saving.start(folder, weights, state, how)

    def open_checkpoints(self, folder: str | Path) -> None:
        """Let this run alone save in a folder. See ``ActionState``."""
        self._saving.open(folder, is_sharded(each for each in self.modules.values() if isinstance(each, nn.Module)))

    def saved_checkpoint(self, folder: str | Path, *, wait: bool = False) -> str:
        """The checkpoint that has become complete. See ``ActionState``."""
        path = self._saving.done(folder, wait)
        self.saved = path or self.saved
        return path

    def close_checkpoints(self) -> None:
        """End what is being written, and let others save in the folders."""
        self._saving.close()

    def is_among_best(self, folder: str | Path, best: Best) -> bool:
        """Whether the last evaluation is among the best. See ``ActionState``."""
        return self._saving.is_among_best(folder, vars(self.evaluation), best)

    def note_evaluation(self, folder: str | Path) -> None:
        """Write the last evaluation into the checkpoint of its step. See ``ActionState``."""
        self._saving.note_evaluation(folder, vars(self.evaluation))

    def load_checkpoint(
        self, folder: str | Path, must_go_on: bool = False, allow_world_size_change: bool = False
    ) -> str | None:
        """Restore the newest complete set. See ``ActionState``."""
        self.must_go_on, self.loaded_from = must_go_on, str(folder)
        self._contract()  # now, because files of code may change before the first checkpoint is saved
        checkpoints = CheckpointFolder(folder)
        # Named first, so that two modules of one name are an error before any step.
        modules = named_weighted_modules(self.modules.values())
        refuse_newer_elsewhere(self.comm, checkpoints)

        def choose() -> Chosen | None:
            return None if checkpoints.is_empty() else checkpoints.choose(modules)

        def check(found: Contents) -> None:
            with misfits_told(found.name):
                check_world_size(found.state or {}, self.comm.world_size, allow_world_size_change, found.name)

        contents = read_chosen(self.comm, modules, choose, self.optimizers, check)
        if contents is None:
            return None
        contents.fill(modules)
        restored, state = contents.name, contents.state or {}
        if can_go_on(state, self.optimizers):
            self.load_state_dict(state, restored)
            self.restored = restored
            self.changes = [*changes(RunContract.of_json(contents.contract), self._contract())]
        else:
            logging.warning(
                "Restored the weights of %s; it has no state of these optimizers: starting at step 0", restored
            )
        return restored


def _nothing_open() -> None:
    """Where nothing is trained, all is known."""
