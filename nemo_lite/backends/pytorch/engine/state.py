"""The state of an action: counters, times and tensors of steps, and what callbacks see and ask for.

What evaluates and saves is made of this state, and is in `evaluation` and `checkpoints`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.distributed.batchnorm import needs_all_ranks
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.engine.loss_gradients import loss_gradients
from nemo_lite.backends.pytorch.generators import generators_set_aside
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.placement import Snapshot
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import DagError, did_you_mean
from nemo_lite.base.interruption import StopSignals, name_of
from nemo_lite.core.callbacks.action_state import (
    Averages,
    Best,
    Evaluated,
    EvaluationResult,
    LossGradients,
    StepTensors,
    StepTiming,
    TbWriter,
)
from nemo_lite.core.dag import Dag, slice_between
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import ModuleCall, NmTensor, Value


class StepValues:
    """The tensors of the step that just ran; wires outside the training DAG are computed from them when asked for."""

    def __init__(self, dag: Dag, precision: Precision) -> None:
        self.dag, self._precision = dag, precision
        self.names = dag.wires_by_name()
        self._values: dict[NmTensor, Value] = {}  # Any: values of wires are tensors, lists of texts or numbers
        self._fresh: tuple[Sequence[NmTensor], Sequence[object]] = ((), ())
        self._loss: torch.Tensor | None = None
        self._calls: Set[ModuleCall] = frozenset()
        self._continuations: dict[tuple[NmTensor, int], tuple[tuple[NmTensor, ...], nn.Module]] = {}

    def lane_of(self, wire: NmTensor) -> StepValues:
        """These: there is one training DAG."""
        return self

    def wire(self, name: str) -> NmTensor:
        """The wire of that name.

        Raises:
            DagError: no wire was renamed so.
        """
        if name not in self.names:
            names = ["loss", *self.names]
            known = f"known: {', '.join(names)}{did_you_mean(name, names)}"
            remedy = f'{known}; name one with wire.rename("{name}"), and keep it or its module in a variable'
            raise DagError(f'no wire of this DAG is named "{name}"', remedy=remedy)
        return self.names[name]

    def extra_wires(self, wires: Sequence[NmTensor]) -> list[NmTensor]:
        """The wires of the training DAG that must be kept to give ``wires`` and all renamed ones."""
        kept = list(dict.fromkeys([*wires, *self.names.values()]))
        return list(dict.fromkeys(wire for one in kept for wire in self.dag.continuation([one]).inputs))

    def set(
        self, loss: torch.Tensor, calls: Set[ModuleCall], wires: Sequence[NmTensor], values: Sequence[object]
    ) -> None:
        """Take the values of a step that made ``calls``. Runs at every step: nothing is looked at before that."""
        self._loss, self._calls, self._fresh = loss, calls, (wires, values)

    def clear(self) -> None:
        """Let the step's tensors go."""
        self._loss = None
        self._fresh = ((), ())
        if self._values:
            self._values = {}

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """See :class:`nemo_lite.core.callbacks.action_state.StepTensors`."""
        if isinstance(wire, str):
            if wire == "loss" and wire not in self.names:
                return None if self._loss is None else self._loss.detach()
            wire = self.wire(wire)
        if not self._values:
            wires, values = self._fresh
            self._values = {
                w: v.detach() if isinstance(v, torch.Tensor) else v for w, v in zip(wires, values, strict=True)
            }
        if wire not in self._values and compute:
            self._values[wire] = self._continue_to(wire)
        return self._values.get(wire)

    def loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        """See :class:`nemo_lite.core.callbacks.action_state.StepTensors`."""
        values = dict(zip(*self._fresh, strict=True))
        return loss_gradients(losses, [values[wire] for wire in self.dag.inputs], self._precision)

    def _continue_to(self, wire: NmTensor) -> object:
        """Compute a wire from what the step has. What the step computed is not repeated: dropout would differ.

        The modules are in the modes that they have; what they draw, and the buffers that they move, are put back: how
        often somebody looks must not change the training.
        """
        key = (wire, id(self._calls))
        if key not in self._continuations:
            part = slice_between(self._fresh[0], [wire])
            if needs_all_ranks(m for m in (node.module for node in part.nodes) if isinstance(m, nn.Module)):
                raise DagError(
                    f"{wire.place} cannot be computed by one process alone",
                    got="a module on the way to it that exchanges statistics or weights with other processes",
                    remedy="make it part of what is trained, or evaluate it",
                )
            again = [node.name for node in part.nodes if node.call in self._calls]
            if again:
                raise DagError(
                    f"{wire.place} was not kept in this step",
                    got=f"it needs what {again[-1]} gave",
                    remedy='name the wire before training starts: wire.rename("...") keeps it',
                )
            self._continuations[key] = (part.inputs, lower(part, "Continuation").to(self._precision.device))
        inputs, module = self._continuations[key]
        buffers = Snapshot(dict.fromkeys(module.buffers()))
        buffers.keep()
        try:
            with (
                generators_set_aside(self._precision.device, dict(module.named_children())),
                self._precision.prepared(module.children()),
                torch.no_grad(),
                self._precision.forward(),
            ):
                return module(*(self._values[taken] for taken in inputs))[0]
        finally:
            buffers.put_back()


class ValuesOfLanes:
    """The tensors of several training DAGs; "loss" is that of the objective that was updated last.

    Attributes:
        latest: the values of that objective.
    """

    def __init__(self, lanes: Sequence[StepValues]) -> None:
        self._lanes, self.latest = lanes, lanes[0]

    def lane_of(self, wire: NmTensor) -> StepValues:
        """The values from which a wire is known, or computed."""
        inside = [values for values in self._lanes if wire in values.dag]
        data_layer = Dag([wire]).data_layer
        return next(iter([*inside, *(values for values in self._lanes if values.dag.data_layer is data_layer)]))

    def wire(self, name: str) -> NmTensor:
        """The wire of that name."""
        return next((lane for lane in self._lanes if name in lane.names), self.latest).wire(name)

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """See :class:`nemo_lite.core.callbacks.action_state.StepTensors`."""
        if isinstance(wire, str) and wire == "loss" and not any("loss" in lane.names for lane in self._lanes):
            return self.latest.get_tensor("loss")
        wire = self.wire(wire) if isinstance(wire, str) else wire
        return self.lane_of(wire).get_tensor(wire, compute)

    def loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        """See :class:`nemo_lite.core.callbacks.action_state.StepTensors`."""
        return self.lane_of(losses[0]).loss_gradients(losses)


class NoValues:
    """In place of :class:`StepValues` where nothing is trained."""

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """Raises DagError: there was no step."""
        raise DagError("there is no training step to read tensors of", got=str(wire))

    def loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        """Raises DagError: there was no step."""
        raise DagError("there is no training step to read tensors of", got=", ".join(map(str, losses)))


class Wishes(NamedTuple):
    """Requests of a rank, or of any of them, for the end of the present step.

    Attributes:
        stop: end the run.
        save: make a checkpoint.
        signal: the stop signal that came, 0 for none: end the run, and say so.
    """

    stop: bool = False
    save: bool = False
    signal: int = 0

    def joined(self, wishes: Wishes) -> Wishes:
        """These, and those of another exchange at the same step."""
        return Wishes(self.stop or wishes.stop, self.save or wishes.save, self.signal or wishes.signal)


NO_WISHES = Wishes()


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


class RunState:
    """State of an action; :class:`nemo_lite.core.callbacks.base.ActionState` says what callbacks may use of it.

    Args:
        comm: the ranks.
        optimizers: of the run.
        modules: of the run, by name.
        tb_writer: for callbacks without one of their own.
        tensors: those of the last step.

    Attributes:
        steps_done, epochs_done: what a checkpoint is named after; ``step`` and ``epoch`` are those being made.
        clock: times of the steps.
        stop_signals: those that this process got.
    """

    # Set by `Evaluations` and `Checkpoints`, which are made of this state.
    evaluate: Callable[[Sequence[NmTensor]], Evaluated]
    publish: Callable[[Callable[[], EvaluationResult]], None]
    save_module: Callable[..., None]
    save_state_to: Callable[[str | Path], None]
    restore_state_from: Callable[[str | Path], None]
    save_checkpoint: Callable[..., None]
    load_checkpoint: Callable[..., str | None]
    open_checkpoints: Callable[[str | Path], None]
    saved_checkpoint: Callable[..., str]
    is_among_best: Callable[[str | Path, Best], bool]
    note_evaluation: Callable[[str | Path], None]

    def __init__(
        self,
        comm: Comm,
        optimizers: Sequence[Optimizer] = (),
        modules: Mapping[str, NeuralModule] | None = None,
        tb_writer: TbWriter | None = None,
        tensors: StepTensors | None = None,
    ) -> None:
        self.local_rank, self.world_size = comm.local_rank, comm.world_size
        self.global_rank = None if comm.local_rank is None else comm.rank
        self.optimizers = list(optimizers)
        self.modules: Mapping[str, NeuralModule] = dict(modules or {})
        self.tb_writer = tb_writer
        self.tensors: StepTensors = tensors or NoValues()
        self.averaging: Averages | None = None
        self.evaluation: EvaluationResult | None = None
        self.clock = StepClock()
        # Counters
        self.step = self.steps_done = 0
        self.epoch = self.epochs_done = 0
        self.total_steps: int | None = None
        self.learning_rate = 0.0
        self.is_epoch_over = False
        # Requests of this rank, and what all ranks agreed on
        self.stop_signals = StopSignals()
        self.stop_reason = ""
        self.is_save_requested = self._wants_save = self._all_stop = False
        self.interrupted_by = 0
        self.on_first, self.from_first, self.timing = comm.on_first, comm.from_first, self.clock.read

    def __getitem__(self, key: str) -> Any:  # an attribute of any type
        return getattr(self, key)

    def request_stop(self, reason: str, *, is_of_all_ranks: bool = False) -> None:
        """End the run. See ``ActionState``."""
        self.stop_reason = reason
        self._all_stop = self._all_stop or is_of_all_ranks

    def request_save(self) -> None:
        """Ask for a checkpoint after this step. See ``ActionState``."""
        self._wants_save = True

    @property
    def wishes(self) -> Wishes:
        """Requests of this rank for the end of the step."""
        signal = self.stop_signals.received
        if not (self.stop_reason or self._wants_save or signal):
            return NO_WISHES
        return Wishes(bool(self.stop_reason), self._wants_save, signal)

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
        return self._all_stop or bool(self.interrupted_by) or (self.world_size == 1 and bool(self.stop_reason))
