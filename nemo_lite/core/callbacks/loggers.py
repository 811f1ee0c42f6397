"""The newer loggers: to the log, to TensorBoard, to Weights & Biases. No checkpoints and no evaluation here.

With several ranks they read and write on the first only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from nemo_lite.core.action_state import ActionState
from nemo_lite.core.callbacks.base import NeMoCallback, refuse_below_one
from nemo_lite.core.callbacks.wandb_run import WandbRun
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging


def is_number(value: Any) -> bool:
    """Whether it is one number, plain or in a tensor; the tensor is not read."""
    if isinstance(value, (int, float)):
        return True
    return hasattr(value, "item") and (value.numel() if hasattr(value, "numel") else getattr(value, "size", 0)) == 1


def fetch_number(value: Any, name: str, place: str, remedy: str = "") -> float:
    """The number in a tensor of one element. A host sync: logging steps only.

    Raises:
        UsageError: it is not a single number.
    """
    if not is_number(value):
        got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        raise UsageError(f'"{name}" is not a single number', place=place, got=got, remedy=remedy)
    return float(value.item() if hasattr(value, "item") else value)


def flush(writer: Any) -> None:
    """Have a TensorBoard writer put on disk what it holds; it stays open for others who share it."""
    if writer is not None and hasattr(writer, "flush"):
        writer.flush()


class _StepLogger(NeMoCallback):
    """What the loggers share: at which steps they act, which tensors they read, how long an epoch took."""

    def __init__(self, step_freq: int, tensors_to_log: Sequence[str | NmTensor]) -> None:
        refuse_below_one(type(self).__name__, step_freq=step_freq)
        self.step_freq = step_freq
        self.tensors_to_log = [tensors_to_log] if isinstance(tensors_to_log, str) else list(tensors_to_log)
        self._epoch_started = time.perf_counter()

    def wanted_wires(self) -> Sequence[NmTensor]:
        """Those of ``tensors_to_log`` that are wires."""
        return [item for item in self.tensors_to_log if isinstance(item, NmTensor)]

    def wanted_names(self) -> Sequence[str]:
        """Those of ``tensors_to_log`` that are names, but "loss", which every step has."""
        return [item for item in self.tensors_to_log if isinstance(item, str) and item != "loss"]

    def on_epoch_start(self, state: ActionState) -> None:
        """Take the time."""
        self._epoch_started = time.perf_counter()

    def _epoch_seconds(self) -> float:
        return time.perf_counter() - self._epoch_started

    def _values(self, state: ActionState) -> list[tuple[str, Any]]:
        """Name and value of each tensor to log; no value is read yet."""
        return [
            (item.name if isinstance(item, NmTensor) else item, state.tensors.get_tensor(item))
            for item in self.tensors_to_log
        ]


class SimpleLogger(_StepLogger):
    """Logs tensors, and the mean time of a step since it last did so.

    Args:
        step_freq: act at every step whose index this divides.
        tensors_to_log: names given to ``NmTensor.rename``, wires, or "loss", the sum of the losses.

    Raises:
        UsageError: ``step_freq`` below 1.
    """

    def __init__(self, step_freq: int = 100, tensors_to_log: Sequence[str | NmTensor] = ("loss",)) -> None:
        super().__init__(step_freq, tensors_to_log)

    def on_step_end(self, state: ActionState) -> None:
        """Log at every ``step_freq``-th step."""
        if state.step % self.step_freq == 0:
            state.on_first(lambda: self._log(state))

    def _log(self, state: ActionState) -> None:
        logging.info("Step: %d", state.step)
        for name, value in self._values(state):
            logging.info("%s: %s", name, fetch_number(value, name, "SimpleLogger") if is_number(value) else value)
        logging.info("Step time: %s seconds", state.timing(self).step_seconds)


class TensorboardLogger(_StepLogger):
    """Writes tensors to TensorBoard as scalars.

    Beside them go ``misc/step_time``, ``misc/epoch``, ``misc/epoch_time`` and ``param/lr``.

    Args:
        tb_writer: where to; by default the factory's writer.
        step_freq: act at every step whose index this divides.
        tensors_to_log: names given to ``NmTensor.rename``, wires, or "loss", the sum of the losses.
        custom_tb_log_func: called with (values of ``tensors_to_log``, writer, step) instead of writing scalars.
        log_epoch: write number and seconds of each epoch.
        log_lr: write the learning rate.

    Raises:
        UsageError: ``step_freq`` below 1; while logging, a tensor that is not a single number.
    """

    def __init__(
        self,
        tb_writer: Any = None,
        step_freq: int = 100,
        tensors_to_log: Sequence[str | NmTensor] = ("loss",),
        custom_tb_log_func: Callable[[list[Any], Any, int], object] | None = None,
        log_epoch: bool = True,
        log_lr: bool = True,
    ) -> None:
        super().__init__(step_freq, tensors_to_log)
        self.tb_writer = tb_writer
        self.custom_tb_log_func = custom_tb_log_func
        self._log_epoch, self._log_lr = log_epoch, log_lr

    def on_action_start(self, state: ActionState) -> None:
        """Say so when there is nowhere to write."""
        state.on_first(lambda: self._warn_without_writer(state))

    def on_step_end(self, state: ActionState) -> None:
        """Write at every ``step_freq``-th step."""
        if state.step % self.step_freq == 0:
            state.on_first(lambda: self._write_step(state))

    def on_epoch_end(self, state: ActionState) -> None:
        """Write number and seconds of the epoch."""
        if self._log_epoch:
            state.on_first(lambda: self._write_epoch(state))

    def on_action_end(self, state: ActionState) -> None:
        """Put everything on disk."""
        state.on_first(lambda: flush(self._writer(state)))

    def _writer(self, state: ActionState) -> Any:
        return state.tb_writer if self.tb_writer is None else self.tb_writer

    def _warn_without_writer(self, state: ActionState) -> None:
        if self._writer(state) is None:
            logging.warning(
                "TensorboardLogger writes nothing: give it a tb_writer, or make the factory with create_tb_writer=True"
            )

    def _write_step(self, state: ActionState) -> None:
        writer = self._writer(state)
        if writer is None:
            return
        values = self._values(state)
        if self.custom_tb_log_func is not None:
            self.custom_tb_log_func([value for _, value in values], writer, state.step)
        else:
            for name, value in values:
                number = fetch_number(value, name, "TensorboardLogger", "log it with custom_tb_log_func")
                writer.add_scalar(name, number, state.step)
        writer.add_scalar("misc/step_time", state.timing(self).step_seconds, state.step)
        if self._log_lr:
            writer.add_scalar("param/lr", state.learning_rate, state.step)

    def _write_epoch(self, state: ActionState) -> None:
        writer = self._writer(state)
        if writer is not None:
            writer.add_scalar("misc/epoch", state.epoch, state.step)
            writer.add_scalar("misc/epoch_time", self._epoch_seconds(), state.step)


class WandBLogger(_StepLogger):
    """Records tensors with Weights & Biases, and ``LR``, ``epoch``, ``epoch_time``.

    Args:
        step_freq: act at every step whose index this divides.
        tensors_to_log: names given to ``NmTensor.rename``, wires, or "loss", the sum of the losses.
        wandb_name: the run's name.
        wandb_project: the project's name.
        args: hyperparameters to keep with the run.
        log_epoch: record number and seconds of each epoch.
        log_lr: record the learning rate.

    Raises:
        UsageError: wandb is not installed, or ``step_freq`` below 1; while logging, a tensor that is not one number.
    """

    def __init__(
        self,
        step_freq: int = 100,
        tensors_to_log: Sequence[str | NmTensor] = ("loss",),
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        args: Any = None,
        log_epoch: bool = True,
        log_lr: bool = True,
    ) -> None:
        super().__init__(step_freq, tensors_to_log)
        self._log_epoch, self._log_lr = log_epoch, log_lr
        self._run = WandbRun("WandBLogger", wandb_name, wandb_project, args)

    def on_action_start(self, state: ActionState) -> None:
        """Begin the run."""
        state.on_first(self._run.begin)

    def on_step_end(self, state: ActionState) -> None:
        """Record at every ``step_freq``-th step."""
        if state.step % self.step_freq == 0:
            state.on_first(lambda: self._record(state))

    def on_epoch_end(self, state: ActionState) -> None:
        """Record number and seconds of the epoch."""
        if self._log_epoch:
            values = {"epoch": state.epoch, "epoch_time": self._epoch_seconds()}
            state.on_first(lambda: self._run.log(values, state.step))

    def _record(self, state: ActionState) -> None:
        values = {name: fetch_number(value, name, "WandBLogger") for name, value in self._values(state)}
        if self._log_lr:
            values["LR"] = state.learning_rate
        self._run.log(values, state.step)
