"""NeMo's loggers of losses and tensors, of both generations. Numbers go through trackers (`core/trackers.py`).

With several ranks they read and write on rank 0 only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import PositiveInt, numbers_checked
from nemo_lite.core.callbacks.action_state import ActionState, TbWriter
from nemo_lite.core.callbacks.base import ActionCallback, NeMoCallback, as_wires, older_names
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.trackers import TensorboardTracker, Tracker, WandbTracker, curves_of, fetch_number, is_number
from nemo_lite.utils import logging

# Any: values of tensors are handed to functions of the script.
Named = Sequence[tuple[str, object]]
"""Names and values of tensors."""
Printer = Callable[[list[Any]], object]


class StepLogger(NeMoCallback):
    """Base of the newer loggers: tensors of some steps, learning rate and epochs go to a tracker.

    Subclasses give :meth:`tracker`, or :meth:`log`.
    """

    lr_tag, epoch_tag, seconds_tag = "param/lr", "misc/epoch", "misc/epoch_time"
    remedy = ""  # for a tensor that is not one number

    @numbers_checked
    def __init__(
        self,
        step_freq: PositiveInt = 100,
        tensors_to_log: Sequence[str | NmTensor] = ("loss",),
        log_epoch: bool = False,
        log_lr: bool = False,
    ) -> None:
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
            state.on_first(lambda: self.log(state, _read_tensors(self.tensors_to_log, state)))

    def on_epoch_end(self, state: ActionState) -> None:
        """Log number and seconds of the epoch, if that was asked for."""
        if self._logs_epochs:
            state.on_first(lambda: self.log_epoch(state, time.perf_counter() - self._epoch_started))

    def tracker(self, state: ActionState) -> Tracker:
        """Where numbers go."""
        raise NotImplementedError

    def log(self, state: ActionState, named: Named) -> None:
        """Log these tensors of a step."""
        numbers = {name: fetch_number(value, name, type(self).__name__, self.remedy) for name, value in named}
        if self._logs_lr:
            numbers[self.lr_tag] = state.learning_rate
        self.tracker(state).write_numbers(numbers, state.step)

    def log_epoch(self, state: ActionState, seconds: float) -> None:
        """Log number and seconds of the epoch that ends."""
        self.tracker(state).write_numbers({self.epoch_tag: state.epoch, self.seconds_tag: seconds}, state.step)


class SimpleLogger(StepLogger):
    """Logs tensors: one line ``name: value`` for each, and nothing else.

    Args:
        step_freq: act at every step whose index this divides.
        tensors_to_log: names given to ``NmTensor.rename``, wires, or "loss", the sum of the losses.

    Raises:
        UsageError: ``step_freq`` below 1.
    """

    @numbers_checked
    def __init__(self, step_freq: PositiveInt = 100, tensors_to_log: Sequence[str | NmTensor] = ("loss",)) -> None:
        super().__init__(step_freq, tensors_to_log)

    def log(self, state: ActionState, named: Named) -> None:
        """Log the values."""
        _log_values(named)


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

    remedy = "log it with custom_tb_log_func"

    @numbers_checked
    def __init__(
        self,
        tb_writer: TbWriter | None = None,
        step_freq: PositiveInt = 100,
        tensors_to_log: Sequence[str | NmTensor] = ("loss",),
        custom_tb_log_func: Callable[[list[Any], Any, int], object] | None = None,
        log_epoch: bool = True,
        log_lr: bool = True,
    ) -> None:
        super().__init__(step_freq, tensors_to_log, log_epoch, log_lr)
        self.tb_writer, self.custom_tb_log_func = tb_writer, custom_tb_log_func

    def tracker(self, state: ActionState) -> TensorboardTracker:
        """Its own writer, or the factory's."""
        return curves_of(self.tb_writer, state)

    def on_action_start(self, state: ActionState) -> None:
        """Say so when there is nowhere to write."""
        problem = (
            "TensorboardLogger writes nothing: give it a tb_writer, or make the factory with create_tb_writer=True"
        )
        state.on_first(lambda: logging.warning(problem) if self.tracker(state).writer is None else None)

    def on_action_end(self, state: ActionState) -> None:
        """Put everything on disk."""
        state.on_first(lambda: self.tracker(state).close())

    def log(self, state: ActionState, named: Named) -> None:
        """Write values, step time and rate."""
        writer = self.tracker(state).writer
        if writer is None:
            return
        if self.custom_tb_log_func is not None:
            self.custom_tb_log_func([value for _, value in named], writer, state.step)
            named = []
        super().log(state, [*named, ("misc/step_time", state.timing(self).step_seconds)])


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

    lr_tag, epoch_tag, seconds_tag = "LR", "epoch", "epoch_time"

    @numbers_checked
    def __init__(
        self,
        step_freq: PositiveInt = 100,
        tensors_to_log: Sequence[str | NmTensor] = ("loss",),
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        args: object = None,
        log_epoch: bool = True,
        log_lr: bool = True,
    ) -> None:
        super().__init__(step_freq, tensors_to_log, log_epoch, log_lr)
        self._tracker = WandbTracker(wandb_project, wandb_name, args=args, place=type(self).__name__)

    def on_action_start(self, state: ActionState) -> None:
        """Begin the run."""
        state.on_first(self._tracker.begin)

    def tracker(self, state: ActionState) -> WandbTracker:
        """The run."""
        return self._tracker


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

    @numbers_checked
    def __init__(
        self,
        train_tensors: NmTensor | Sequence[NmTensor] = (),
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        args: object = None,
        update_freq: PositiveInt = 25,
    ) -> None:
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
    @numbers_checked
    def __init__(
        self,
        tensors: NmTensor | Sequence[NmTensor] | None = None,
        print_func: Printer | None = None,
        get_tb_values: Callable[[list[Any]], Iterable[tuple[str, Any]]] | None = None,
        log_to_tb_func: Callable[[Any, list[Any], int], object] | None = None,
        step_freq: PositiveInt = 25,
        tb_writer: TbWriter | None = None,
        tensor_list2string_evl: Printer | None = None,
    ) -> None:
        place = type(self).__name__
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
        named = _read_tensors(self.tensors or ["loss"], state)
        values = [value for _, value in named]
        step_seconds = state.timing(self).step_seconds
        logging.info("Step: %d", state.step)
        if self._print_func is None and self._print_func_evl is None:
            _log_values(named)
        self._print(self._print_func, [state.tensors.get_tensor("loss")] if self._print_func_evl else values)
        self._print(self._print_func_evl, values)
        logging.info("Step time: %s seconds", step_seconds)
        curves = curves_of(self.tb_writer, state)
        if curves.writer is None:
            return
        if self._get_tb_values is not None:
            pairs = self._get_tb_values(values)
            curves.write_numbers({tag: fetch_number(value, tag, "get_tb_values") for tag, value in pairs}, state.step)
        if self._log_to_tb_func is not None:
            self._log_to_tb_func(curves.writer, values, state.step)
        curves.write_numbers({"misc/step_time": step_seconds, "param/lr": state.learning_rate}, state.step)

    def _print(self, printer: Printer | None, values: list[Any]) -> None:
        text = printer(values) if printer is not None else None
        if isinstance(text, str):
            logging.info("%s", text)

    def _log_epoch(self) -> None:
        seconds = time.perf_counter() - self._epoch_started
        logging.info("Finished epoch %d in %.1f seconds", self.epoch_num, seconds)
        numbers = {"misc/epoch": self.epoch_num, "misc/epoch_time": seconds}
        curves_of(self.tb_writer, self.action).write_numbers(numbers, self.step)

    def _log_run(self) -> None:
        curves_of(self.tb_writer, self.action).close()
        logging.info("Done in %.1f seconds", time.perf_counter() - self._run_started)


def _read_tensors(tensors: Iterable[str | NmTensor], state: ActionState) -> Named:
    """Name and value of each wire, given by itself or by its name. No number is fetched yet."""
    return [(wire.name if isinstance(wire, NmTensor) else wire, state.tensors.get_tensor(wire)) for wire in tensors]


def _log_values(named: Named) -> None:
    """Log each value with its name, tensors of one element as numbers."""
    for name, value in named:
        logging.info("%s: %s", name, fetch_number(value, name, "log") if is_number(value) else value)
