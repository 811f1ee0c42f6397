"""The callbacks of NeMo 0.9 and 0.10, under one name. Three of them live beside this file.

They are kept for scripts that exist; a new script takes those of :mod:`nemo_lite.core.callbacks` (there is no newer
EvaluatorCallback, so that one is for new scripts too).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from nemo_lite.core.callbacks.action_callback import ActionCallback, as_wires, older_names
from nemo_lite.core.callbacks.base import refuse_below_one
from nemo_lite.core.callbacks.loggers import fetch_number, flush, is_number
from nemo_lite.core.callbacks.wandb_run import WandbRun
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging
from nemo_lite.utils.files import make_writable_folder

Printer = Callable[[list[Any]], object]


class SimpleLossLoggerCallback(ActionCallback):
    """Logs training tensors, the mean time of a step since it last did so, and the time of each epoch.

    To TensorBoard go ``misc/step_time``, ``param/lr``, ``misc/epoch``, ``misc/epoch_time`` and what the functions
    for it say. With several ranks all of this, and the user's functions, run on the first with its own values.

    Args:
        tensors: the wires to log; without them, the sum of the losses.
        print_func: called with the list of their values; a text that it returns is logged. Without it, each value is
            logged with its name. ``tensor_list2string`` is its older name.
        get_tb_values: called with the values; returns (tag, number) pairs for TensorBoard.
        log_to_tb_func: called with (writer, values, step).
        step_freq: act at every step whose index this divides (``step_frequency``).
        tb_writer: where to write; by default the factory's writer (``tensorboard_writer``).
        tensor_list2string_evl: a second ``print_func``, of the first NeMo. It gets the values of ``tensors``, and
            ``print_func`` the sum of the losses.

    Raises:
        UsageError: ``step_freq`` below 1, something that is not a wire, ``tensor_list2string_evl`` without ``tensors``.
    """

    @older_names(tensor_list2string="print_func", step_frequency="step_freq", tensorboard_writer="tb_writer")
    def __init__(
        self,
        tensors: NmTensor | Sequence[NmTensor] | None = None,
        print_func: Printer | None = None,
        get_tb_values: Callable[[list[Any]], Iterable[tuple[str, Any]]] | None = None,
        log_to_tb_func: Callable[[Any, list[Any], int], object] | None = None,
        step_freq: int = 25,
        tb_writer: Any = None,
        tensor_list2string_evl: Printer | None = None,
    ) -> None:
        place = type(self).__name__
        refuse_below_one(place, step_freq=step_freq)
        remedy = "a function that makes a text of them is print_func=" if callable(tensors) else ""
        self.tensors = as_wires(tensors if tensors is not None else [], place, "tensors", remedy)
        if tensor_list2string_evl is not None and not self.tensors:
            raise UsageError(
                "tensor_list2string_evl needs to know the wires to print",
                place=place,
                remedy="give those that were tensors_to_evaluate as tensors=[...]",
            )
        self._print_func, self._print_func_evl = print_func, tensor_list2string_evl
        self._get_tb_values, self._log_to_tb_func = get_tb_values, log_to_tb_func
        self._step_freq, self.tb_writer = step_freq, tb_writer
        self._run_started = self._epoch_started = time.perf_counter()

    def wanted_wires(self) -> Sequence[NmTensor]:
        """The wires to log."""
        return self.tensors

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

    @property
    def _writer(self) -> Any:
        return self.action.tb_writer if self.tb_writer is None else self.tb_writer

    def _log_step(self) -> None:
        loss = [self.action.tensors.get_tensor("loss")]
        values = [self.action.tensors.get_tensor(wire) for wire in self.tensors] or loss
        step_seconds = self.action.timing(self).step_seconds
        logging.info("Step: %d", self.step)
        self._print(loss if self._print_func_evl else values, values)
        logging.info("Step time: %s seconds", step_seconds)
        if self._writer is not None:
            self._write(self._writer, values, step_seconds)

    def _log_epoch(self) -> None:
        seconds = time.perf_counter() - self._epoch_started
        logging.info("Finished epoch %d in %.1f seconds", self.epoch_num, seconds)
        if self._writer is not None:
            self._writer.add_scalar("misc/epoch", self.epoch_num, self.step)
            self._writer.add_scalar("misc/epoch_time", seconds, self.step)

    def _log_run(self) -> None:
        flush(self._writer)
        logging.info("Done in %.1f seconds", time.perf_counter() - self._run_started)

    def _print(self, first: list[Any], values: list[Any]) -> None:
        if self._print_func is None and self._print_func_evl is None:
            for name, value in zip([wire.name for wire in self.tensors] or ["loss"], values, strict=True):
                logging.info("%s: %s", name, fetch_number(value, name, "print") if is_number(value) else value)
        for printer, given in ((self._print_func, first), (self._print_func_evl, values)):
            text = printer(given) if printer is not None else None
            if isinstance(text, str):
                logging.info("%s", text)

    def _write(self, writer: Any, values: list[Any], step_seconds: float) -> None:
        if self._get_tb_values is not None:
            for tag, value in self._get_tb_values(values):
                writer.add_scalar(tag, fetch_number(value, tag, "get_tb_values"), self.step)
        if self._log_to_tb_func is not None:
            self._log_to_tb_func(writer, values, self.step)
        writer.add_scalar("misc/step_time", step_seconds, self.step)
        writer.add_scalar("param/lr", self.learning_rate, self.step)


class ModuleSaverCallback(ActionCallback):
    """Saves modules as ``<name or class>-STEP-<steps done>.safetensors``, while training and at the end.

    With several ranks the first writes and deletes, so only its machine needs a ``folder`` that can be written.

    Args:
        save_modules_list: the modules.
        step_freq: save after every so many steps; -1: only at the end (``step_frequency``).
        folder: where; by default the current directory.
        checkpoints_to_keep: how many of those that this run saved stay.

    Raises:
        UsageError: two modules of one name, a frequency of 0, fewer than one to keep; when training starts: a folder
            that cannot be written.
    """

    @older_names(step_frequency="step_freq")
    def __init__(
        self,
        save_modules_list: Sequence[Any],
        step_freq: int = 1000,
        folder: str | Path | None = None,
        checkpoints_to_keep: int = 4,
    ) -> None:
        self._step_freq = None if step_freq == -1 else step_freq
        refuse_below_one("ModuleSaverCallback", step_freq=self._step_freq, checkpoints_to_keep=checkpoints_to_keep)
        self._modules: dict[str, Any] = {}
        for module in save_modules_list:
            name = str(module.name) if module.has_own_name else type(module).__name__
            if self._modules.setdefault(name, module) is not module:
                raise UsageError(
                    f'two modules would be saved as "{name}"',
                    place="ModuleSaverCallback",
                    remedy="give each its own name=",
                )
        self._folder, self._keep = Path(folder or ".").expanduser(), checkpoints_to_keep
        self._saved: list[list[Path]] = []
        self._is_unsaved = False

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
        for older in self._saved[: -self._keep]:
            for path in older:
                path.unlink(missing_ok=True)
        self._saved = self._saved[-self._keep :]


class UnfreezeCallback(ActionCallback):
    """Unfreezes modules at the start of an epoch, or of a later one when training is resumed there. It does so once.

    Args:
        modules: the modules.
        start_epoch: index of the epoch.

    Raises:
        UsageError: ``modules`` is not a list.
    """

    def __init__(self, modules: Sequence[Any], start_epoch: int = 0) -> None:
        if not isinstance(modules, (list, tuple)):
            raise UsageError("modules must be a list", place="UnfreezeCallback", got=type(modules).__name__)
        self.modules, self.start_epoch = list(modules), start_epoch
        self._is_done = False

    def on_action_start(self) -> None:
        """Forget an earlier run."""
        self._is_done = False

    def on_epoch_start(self) -> None:
        """Unfreeze when the epoch has come."""
        if self._is_done or self.epoch_num < self.start_epoch:
            return
        self._is_done = True
        for module in self.modules:
            module.unfreeze()
        names = ", ".join(str(module.name) for module in self.modules)
        self.action.on_first(lambda: logging.info("Epoch %d: unfroze %s", self.epoch_num, names))


class WandbCallback(ActionCallback):
    """Records training tensors with Weights & Biases, and ``LR``, ``epoch``, ``epoch_time``; on the first rank only.

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
        self._update_freq = update_freq
        self._run = WandbRun("WandbCallback", wandb_name, wandb_project, args)
        self._epoch_started = time.perf_counter()

    def on_action_start(self) -> None:
        """Begin the run."""
        self.action.on_first(self._run.begin)

    def on_epoch_start(self) -> None:
        """Take the time."""
        self._epoch_started = time.perf_counter()

    def on_iteration_end(self) -> None:
        """Record at every ``update_freq``-th step."""
        if self.step % self._update_freq == 0:
            self.action.on_first(self._record)

    def on_epoch_end(self) -> None:
        """Record number and seconds of the epoch."""
        values = {"epoch": self.epoch_num, "epoch_time": time.perf_counter() - self._epoch_started}
        self.action.on_first(lambda: self._run.log(values, self.step))

    def _record(self) -> None:
        values = {
            wire.name: fetch_number(self.action.tensors.get_tensor(wire), wire.name, "WandbCallback")
            for wire in self.train_tensors
        }
        self._run.log({**values, "LR": self.learning_rate}, self.step)
