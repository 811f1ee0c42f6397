"""Callbacks that log: records for trackers, NeMo's loggers of losses and tensors, the progress bar.

With several ranks they read and write on rank 0 only. What writes is a tracker (`core/trackers.py`).
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO, TypeVar, cast

from tqdm import tqdm

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks.base import (
    ActionCallback,
    ActionState,
    EvaluationResult,
    NeMoCallback,
    StepTiming,
    TagOwners,
    TbWriter,
    as_wires,
    older_names,
    refuse_below_one,
)
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.trackers import FAILED, FINISHED, PART_OF_LOSS, TensorboardTracker, Trackers, WandbTracker
from nemo_lite.utils import logging

Named = list[tuple[str, Any]]
"""Names and values of tensors. Any: a value is a tensor of the backend, or what a module returns."""
Printer = Callable[[list[Any]], object]


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


def read_tensors(tensors: Iterable[str | NmTensor], state: ActionState) -> Named:
    """Name and value of each wire, given by itself or by its name. No number is fetched yet."""
    return [(wire.name if isinstance(wire, NmTensor) else wire, state.tensors.get_tensor(wire)) for wire in tensors]


def log_values(named: Named) -> None:
    """Log each value with its name, tensors of one element as numbers."""
    for name, value in named:
        logging.info("%s: %s", name, fetch_number(value, name, "log") if is_number(value) else value)


def writer_of(tb_writer: TbWriter | None, state: ActionState) -> TbWriter | None:
    """The callback's own writer, or the factory's."""
    return state.tb_writer if tb_writer is None else tb_writer


def write_scalars(tb_writer: TbWriter | None, state: ActionState, numbers: Mapping[str, float]) -> None:
    """Write numbers of a step by tag, if there is a writer."""
    writer = writer_of(tb_writer, state)
    if writer is not None:
        TensorboardTracker(writer).write_numbers(numbers, state.step)


def flush(tb_writer: TbWriter | None, state: ActionState) -> None:
    """Have the writer put on disk what it holds."""
    writer = writer_of(tb_writer, state)
    if writer is not None:
        TensorboardTracker(writer).close()


# Records of a run of training; where they go is up to the trackers.


class TrackingCallback(NeMoCallback):
    """Records the start, training steps, evaluations and the end of a run. With several ranks rank 0 does.

    Put it before the other callbacks: then a step is recorded before its evaluation. The end is recorded after all of
    them, also when the run ends with an error.

    Args:
        trackers: what gets the records; closed when the run is over.
        step_freq: record the first step, and each whose number this divides. It costs a host sync.
        start: more of the ``start`` record: arguments, versions, precision.
        losses: parts of the loss by name, recorded as ``loss_NAME``.

    Raises:
        UsageError: ``step_freq`` below 1.
    """

    def __init__(
        self,
        trackers: Trackers,
        step_freq: int = 25,
        start: Mapping[str, Any] | None = None,
        losses: Mapping[str, NmTensor] | None = None,
    ) -> None:
        refuse_below_one("TrackingCallback", step_freq=step_freq)
        self._trackers, self._step_freq, self._start = trackers, step_freq, dict(start or {})
        self._losses = dict(losses or {})
        self._is_running = False
        self._num_steps = 0
        self._started = time.monotonic()
        self._end = {"step": 0, "epoch": 0, "reason": FAILED}

    def join(self, label: str, tags: TagOwners) -> None:
        """Say that evaluation results are recorded."""
        tags.are_recorded = True

    def wanted_wires(self) -> Sequence[NmTensor]:
        """The parts of the loss."""
        return list(self._losses.values())

    def fingerprint(self) -> Mapping[str, object]:
        """When it records a step."""
        return {"step_freq": self._step_freq}

    def on_action_start(self, state: ActionState) -> None:
        """Record the start."""
        self._num_steps = 0
        state.on_first(lambda: self._begin(state))

    def on_step_end(self, state: ActionState) -> None:
        """Record the step at the first and at every ``step_freq``-th."""
        self._num_steps += 1
        self._end.update(step=state.step + 1, epoch=state.epoch + 1)
        if self._num_steps == 1 or (state.step + 1) % self._step_freq == 0:
            state.on_first(lambda: self._record_step(state))

    def on_evaluation_end(self, state: ActionState) -> None:
        """Record what an evaluation gave."""
        result: EvaluationResult = state["evaluation"]
        state.on_first(lambda: self._record_evaluation(result))

    def on_action_end(self, state: ActionState) -> None:
        """Note that the run ends in order."""
        if not self._num_steps:  # where a checkpoint had brought it
            self._end.update(step=state.step, epoch=state.epoch)
        self._end["reason"] = state.stop_reason or FINISHED

    def close(self) -> None:
        """Record the end."""
        if self._is_running:
            self._is_running = False
            self._trackers.record("end", **self._end, seconds=round(time.monotonic() - self._started, 3))
            self._trackers.close()

    def _begin(self, state: ActionState) -> None:
        self._is_running, self._started = True, time.monotonic()
        self._end = {"step": 0, "epoch": 0, "reason": FAILED}
        self._trackers.record("start", **self._start, world_size=state.world_size, total_steps=state.total_steps)

    def _record_step(self, state: ActionState) -> None:
        timing = state.timing(self)
        self._trackers.record(
            "train",
            step=state.step + 1,
            epoch=state.epoch + 1,
            loss=fetch_number(state.tensors.get_tensor("loss"), "loss", "TrackingCallback"),  # host sync
            **{
                f"{PART_OF_LOSS}{name}": fetch_number(state.tensors.get_tensor(wire), name, "TrackingCallback")
                for name, wire in self._losses.items()
            },
            lr=state.learning_rate,
            amount_per_second=round(timing.amount_per_second, 3),
            amount_unit=timing.amount_unit,
            data_wait_share=round(timing.data_wait_share, 4),
            step_seconds=round(timing.step_seconds, 6),
        )

    def _record_evaluation(self, result: EvaluationResult) -> None:
        fields: dict[str, Any] = {
            "num_items": result.num_items,
            "digest": result.digest,
            "seconds": round(result.seconds, 3),
        }
        if result.higher_is_better:
            fields["higher_is_better"] = dict(result.higher_is_better)
        self._trackers.record("evaluation", step=result.step, set=result.name, **{**result.values, **fields})


# NeMo's loggers.


class StepLogger(NeMoCallback):
    """Base of the newer loggers: which tensors they read at which steps, and how long each epoch took.

    Subclasses implement :meth:`log`, and :meth:`log_epoch` if they log epochs.
    """

    def __init__(
        self,
        step_freq: int = 100,
        tensors_to_log: Sequence[str | NmTensor] = ("loss",),
        log_epoch: bool = False,
        log_lr: bool = True,
    ) -> None:
        refuse_below_one(type(self).__name__, step_freq=step_freq)
        self.step_freq = step_freq
        self.tensors_to_log = [tensors_to_log] if isinstance(tensors_to_log, str) else list(tensors_to_log)
        self._logs_epochs, self._logs_lr, self._epoch_started = log_epoch, log_lr, time.perf_counter()

    def wanted_wires(self) -> Sequence[NmTensor]:
        """Those of ``tensors_to_log`` that are wires."""
        return [item for item in self.tensors_to_log if isinstance(item, NmTensor)]

    def wanted_names(self) -> Sequence[str]:
        """Those of ``tensors_to_log`` that are names, but "loss", which every step has."""
        return [item for item in self.tensors_to_log if isinstance(item, str) and item != "loss"]

    def fingerprint(self) -> Mapping[str, object]:
        """When it logs."""
        return {"step_freq": self.step_freq}

    def on_epoch_start(self, state: ActionState) -> None:
        """Take the time."""
        self._epoch_started = time.perf_counter()

    def on_step_end(self, state: ActionState) -> None:
        """Log at every ``step_freq``-th step."""
        if state.step % self.step_freq == 0:
            state.on_first(lambda: self.log(state, read_tensors(self.tensors_to_log, state)))

    def on_epoch_end(self, state: ActionState) -> None:
        """Log number and seconds of the epoch, if that was asked for."""
        if self._logs_epochs:
            state.on_first(lambda: self.log_epoch(state, time.perf_counter() - self._epoch_started))

    def log(self, state: ActionState, named: Named) -> None:
        """Log these tensors of a step."""
        raise NotImplementedError

    def log_epoch(self, state: ActionState, seconds: float) -> None:
        """Log number and seconds of the epoch that ends."""


class SimpleLogger(StepLogger):
    """Logs tensors: one line ``name: value`` for each, and nothing else.

    Args:
        step_freq: act at every step whose index this divides.
        tensors_to_log: names given to ``NmTensor.rename``, wires, or "loss", the sum of the losses.

    Raises:
        UsageError: ``step_freq`` below 1.
    """

    def __init__(self, step_freq: int = 100, tensors_to_log: Sequence[str | NmTensor] = ("loss",)) -> None:
        super().__init__(step_freq, tensors_to_log)

    def log(self, state: ActionState, named: Named) -> None:
        """Log the values."""
        log_values(named)


class TensorboardLogger(StepLogger):
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
        tb_writer: TbWriter | None = None,
        step_freq: int = 100,
        tensors_to_log: Sequence[str | NmTensor] = ("loss",),
        custom_tb_log_func: Callable[[list[Any], Any, int], object] | None = None,
        log_epoch: bool = True,
        log_lr: bool = True,
    ) -> None:
        super().__init__(step_freq, tensors_to_log, log_epoch, log_lr)
        self.tb_writer, self.custom_tb_log_func = tb_writer, custom_tb_log_func

    def on_action_start(self, state: ActionState) -> None:
        """Say so when there is nowhere to write."""
        problem = (
            "TensorboardLogger writes nothing: give it a tb_writer, or make the factory with create_tb_writer=True"
        )
        state.on_first(lambda: logging.warning(problem) if writer_of(self.tb_writer, state) is None else None)

    def on_action_end(self, state: ActionState) -> None:
        """Put everything on disk."""
        state.on_first(lambda: flush(self.tb_writer, state))

    def log(self, state: ActionState, named: Named) -> None:
        """Write values, step time and rate."""
        writer = writer_of(self.tb_writer, state)
        if writer is None:
            return
        numbers: dict[str, float] = {}
        if self.custom_tb_log_func is not None:
            self.custom_tb_log_func([value for _, value in named], writer, state.step)
        else:
            remedy = "log it with custom_tb_log_func"
            numbers = {name: fetch_number(value, name, "TensorboardLogger", remedy) for name, value in named}
        numbers["misc/step_time"] = state.timing(self).step_seconds
        if self._logs_lr:
            numbers["param/lr"] = state.learning_rate
        write_scalars(self.tb_writer, state, numbers)

    def log_epoch(self, state: ActionState, seconds: float) -> None:
        """Write number and seconds of the epoch."""
        write_scalars(self.tb_writer, state, {"misc/epoch": state.epoch, "misc/epoch_time": seconds})


class WandBLogger(StepLogger):
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
        super().__init__(step_freq, tensors_to_log, log_epoch, log_lr)
        self._tracker = WandbTracker(wandb_project, wandb_name, args=args, place=type(self).__name__)

    def on_action_start(self, state: ActionState) -> None:
        """Begin the run."""
        state.on_first(self._tracker.begin)

    def log(self, state: ActionState, named: Named) -> None:
        """Record values and rate."""
        numbers = {name: fetch_number(value, name, type(self).__name__) for name, value in named}
        if self._logs_lr:
            numbers["LR"] = state.learning_rate
        self._tracker.write_numbers(numbers, state.step)

    def log_epoch(self, state: ActionState, seconds: float) -> None:
        """Record number and seconds of the epoch."""
        self._tracker.write_numbers({"epoch": state.epoch, "epoch_time": seconds}, state.step)


class WandbCallback(WandBLogger):
    """:class:`WandBLogger` with the arguments of NeMo's first generation.

    Args:
        train_tensors: the wires, each a single number.
        wandb_name: the run's name.
        wandb_project: the project's name.
        args: hyperparameters to keep with the run.
        update_freq: act at every step whose index this divides.

    Raises:
        UsageError: wandb is not installed, ``update_freq`` below 1, something that is not a wire; while recording, a
            tensor that is not a single number.
    """

    def __init__(
        self,
        train_tensors: NmTensor | Sequence[NmTensor] = (),
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        args: Any = None,
        update_freq: int = 25,
    ) -> None:
        refuse_below_one("WandbCallback", update_freq=update_freq)
        self.train_tensors = as_wires(train_tensors, "WandbCallback", "train_tensors")
        super().__init__(update_freq, self.train_tensors, wandb_name, wandb_project, args)

    def fingerprint(self) -> Mapping[str, object]:
        """When it records."""
        return {"update_freq": self.step_freq}


class SimpleLossLoggerCallback(ActionCallback):
    """Logs training tensors, the mean time of a step since it last did so, and the time of each epoch.

    To TensorBoard go ``misc/step_time``, ``param/lr``, ``misc/epoch``, ``misc/epoch_time`` and what the functions
    for it say. With several ranks all of this, and the user's functions, run on rank 0 with its own values.

    Args:
        tensors: the wires to log; without them, the sum of the losses.
        print_func: called with the list of their values; a text that it returns is logged. Without it, each value is
            logged with its name. ``tensor_list2string`` is its older name.
        get_tb_values: called with the values; returns (tag, number) pairs for TensorBoard.
        log_to_tb_func: called with (writer, values, step).
        step_freq: act at every step whose index this divides (``step_frequency``).
        tb_writer: where to write; by default the factory's writer (``tensorboard_writer``).
        tensor_list2string_evl: a second ``print_func``, of the first NeMo. It gets the values of ``tensors``, or of
            ``train(tensors_to_evaluate=...)``, and ``print_func`` the sum of the losses.

    Raises:
        UsageError: ``step_freq`` below 1, or something that is not a wire.
    """

    @older_names(tensor_list2string="print_func", step_frequency="step_freq", tensorboard_writer="tb_writer")
    def __init__(
        self,
        tensors: NmTensor | Sequence[NmTensor] | None = None,
        print_func: Printer | None = None,
        get_tb_values: Callable[[list[Any]], Iterable[tuple[str, Any]]] | None = None,
        log_to_tb_func: Callable[[Any, list[Any], int], object] | None = None,
        step_freq: int = 25,
        tb_writer: TbWriter | None = None,
        tensor_list2string_evl: Printer | None = None,
    ) -> None:
        place = type(self).__name__
        refuse_below_one(place, step_freq=step_freq)
        remedy = "a function that makes a text of them is print_func=" if callable(tensors) else ""
        self.tensors = as_wires(tensors if tensors is not None else [], place, "tensors", remedy)
        self._print_func, self._print_func_evl = print_func, tensor_list2string_evl
        self._get_tb_values, self._log_to_tb_func = get_tb_values, log_to_tb_func
        self._step_freq, self.tb_writer = step_freq, tb_writer
        self._run_started = self._epoch_started = time.perf_counter()

    def take_tensors_to_evaluate(self, tensors: Sequence[NmTensor]) -> None:
        """Log these wires, where the constructor was given none and ``tensor_list2string_evl`` prints some.

        Raises:
            UsageError: there are none, or something is not a wire.
        """
        if self._print_func_evl is None or self.tensors:
            return
        place = type(self).__name__
        self.tensors = as_wires(tensors, place, "tensors_to_evaluate", "")
        if not self.tensors:
            problem = "tensor_list2string_evl needs to know the wires to print"
            remedy = "give train(tensors_to_evaluate=[...]), or the callback tensors=[...]"
            raise UsageError(problem, place=place, remedy=remedy)

    def wanted_wires(self) -> Sequence[NmTensor]:
        """The wires to log."""
        return self.tensors

    def fingerprint(self) -> Mapping[str, object]:
        """When it logs."""
        return {"step_freq": self._step_freq}

    def on_action_start(self) -> None:
        """Take the time."""
        self.action.on_first(lambda: logging.info("Starting ....."))
        self._run_started = time.perf_counter()

    def on_epoch_start(self) -> None:
        """Log the epoch's number."""
        self.action.on_first(lambda: logging.info("Starting epoch %d", self.epoch_num))
        self._epoch_started = time.perf_counter()

    def on_iteration_end(self) -> None:
        """Log at every ``step_freq``-th step."""
        if self.step % self._step_freq == 0:
            self.action.on_first(self._log_step)

    def on_epoch_end(self) -> None:
        """Log the epoch's seconds."""
        self.action.on_first(self._log_epoch)

    def on_action_end(self) -> None:
        """Log the run's seconds."""
        self.action.on_first(self._log_run)

    def _log_step(self) -> None:
        state = self.action
        named = read_tensors(self.tensors or ["loss"], state)
        values = [value for _, value in named]
        step_seconds = state.timing(self).step_seconds
        logging.info("Step: %d", state.step)
        if self._print_func is None and self._print_func_evl is None:
            log_values(named)
        self._print(self._print_func, [state.tensors.get_tensor("loss")] if self._print_func_evl else values)
        self._print(self._print_func_evl, values)
        logging.info("Step time: %s seconds", step_seconds)
        writer = writer_of(self.tb_writer, state)
        if writer is None:
            return
        if self._get_tb_values is not None:
            pairs = self._get_tb_values(values)
            write_scalars(writer, state, {tag: fetch_number(value, tag, "get_tb_values") for tag, value in pairs})
        if self._log_to_tb_func is not None:
            self._log_to_tb_func(writer, values, state.step)
        write_scalars(writer, state, {"misc/step_time": step_seconds, "param/lr": state.learning_rate})

    def _print(self, printer: Printer | None, values: list[Any]) -> None:
        text = printer(values) if printer is not None else None
        if isinstance(text, str):
            logging.info("%s", text)

    def _log_epoch(self) -> None:
        seconds = time.perf_counter() - self._epoch_started
        logging.info("Finished epoch %d in %.1f seconds", self.epoch_num, seconds)
        write_scalars(self.tb_writer, self.action, {"misc/epoch": self.epoch_num, "misc/epoch_time": seconds})

    def _log_run(self) -> None:
        flush(self.tb_writer, self.action)
        logging.info("Done in %.1f seconds", time.perf_counter() - self._run_started)


# ProgressBar: how far, how fast and at what loss, on a terminal only. Nothing of this goes to logs or files.


T = TypeVar("T")

# For tqdm: short enough for 80 columns, with a bar, in runs of 100,000 steps and a day.
_SHAPE = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"
_SHAPE_WITHOUT_END = "{n_fmt} steps [{elapsed}{postfix}]"


class ProgressBar(NeMoCallback):
    """A bar with the time left, the moving loss, the speed as log lines have it, and the share of waiting for data.

    Without a terminal on stderr it shows and reads nothing. Log lines appear above it. With several ranks rank 0
    shows it.

    Args:
        seconds_between_readings: how often the loss is read, a host sync; the bar itself moves at every step.

    Attributes:
        smoothing: weight of what was before in the moving loss, at each reading.
    """

    smoothing = 0.7

    def __init__(self, seconds_between_readings: float = 0.5) -> None:
        self._interval = seconds_between_readings
        self._bar: tqdm[Any] | None = None
        self._held = ExitStack()
        self._loss: float | None = None
        self._next_reading = 0.0

    def on_action_start(self, state: ActionState) -> None:
        """Show the bar, where there is a terminal."""
        self.close()
        self._loss, self._next_reading = None, 0.0
        state.on_first(lambda: self._open(state))

    def on_step_end(self, state: ActionState) -> None:
        """Move on; every now and then read the loss and the times."""
        bar = self._bar
        if bar is None:
            return
        now = time.perf_counter()
        if now >= self._next_reading:
            self._next_reading = now + self._interval
            self._read_loss(state)
            bar.set_postfix_str(self._text(state.timing(self)), refresh=False)
        bar.update()

    def on_action_end(self, state: ActionState) -> None:
        """Leave the bar as it is."""
        self.close()

    def close(self) -> None:
        """End the bar's line, and let log lines go their usual way."""
        self._bar = None
        self._held.close()

    def _open(self, state: ActionState) -> None:
        if not _on_terminal():  # asked here: the ranks' terminals differ, what they call must not
            return
        state.timing(self)
        shape = _SHAPE if state.total_steps else _SHAPE_WITHOUT_END
        bar = tqdm(total=state.total_steps, initial=state.step, file=sys.stderr, dynamic_ncols=True, bar_format=shape)
        self._bar = self._held.enter_context(bar)
        self._held.enter_context(_log_lines_above())

    def _read_loss(self, state: ActionState) -> None:
        value = state.tensors.get_tensor("loss")
        if not is_number(value):
            return
        loss = fetch_number(value, "loss", "ProgressBar")  # host sync: not at every step
        # A loss that is not finite is shown, but does not stay in the mean.
        before = loss if self._loss is None or not math.isfinite(self._loss) else self._loss
        self._loss = self.smoothing * before + (1 - self.smoothing) * loss

    def _text(self, timing: StepTiming) -> str:
        loss = [] if self._loss is None else [f"loss {self._loss:.4g}"]
        speed = f"{timing.amount_per_second:.3g} {timing.amount_unit}/s"
        return ", ".join([*loss, speed, f"data {timing.data_wait_share:.0%}"])

    @staticmethod
    @contextmanager
    def over(items: Iterable[T], verbose: bool, title: str, unit: str = "batch") -> Iterator[Iterable[T]]:
        """``items``, with a bar while they are taken; without one where there is no terminal, or not ``verbose``.

        With several ranks, the caller is ``verbose`` on rank 0 only.
        """
        if not (verbose and _on_terminal()):
            yield items
            return
        with _log_lines_above(), tqdm(items, desc=title, unit=unit, file=sys.stderr, dynamic_ncols=True) as bar:
            yield bar


class _AboveBar(io.TextIOBase):
    """Replaces a standard stream of the log, so that lines are printed above the bar."""

    def __init__(self, name: str) -> None:
        self._name_in_sys = name

    def isatty(self) -> bool:
        return bool(getattr(sys, self._name_in_sys).isatty())

    def write(self, text: str) -> int:
        tqdm.write(text, file=getattr(sys, self._name_in_sys), end="")
        return len(text)


@contextmanager
def _log_lines_above() -> Iterator[None]:
    with (
        logging.patch_stdout_handler(cast("TextIO", _AboveBar("stdout"))),
        logging.patch_stderr_handler(cast("TextIO", _AboveBar("stderr"))),
    ):
        yield


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
