"""Weights & Biases: its run, and the callbacks that record training there; with several ranks on rank 0 only.

The package is optional: it is imported when a run is made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_lite.core.action_state import ActionState
from nemo_lite.core.callbacks.action_callback import ActionCallback, as_wires
from nemo_lite.core.callbacks.base import refuse_below_one
from nemo_lite.core.callbacks.loggers import EpochLogger, Named, fetch_number, read_tensors
from nemo_lite.core.neural_types.nm_tensor import NmTensor
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging


class WandbRun:
    """A run that begins with its first values; where another callback or the script has begun one, that is used.

    Args:
        user: the callback's name, for messages.
        name: the run's name.
        project: the project's name.
        args: hyperparameters to keep with the run: a mapping, or what an argument parser gives.
        folder: where the package keeps its files; by default it decides.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(
        self, user: str, name: str | None, project: str | None, args: Any = None, folder: str | Path | None = None
    ) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("Weights & Biases is not installed", place=user, remedy="pip install wandb") from None
        self._wandb: Any = wandb
        self._user = user
        self._name, self._project, self._args = name, project, args
        self._folder = {} if folder is None else {"dir": str(folder)}
        self._has_begun = self._is_own = False

    def begin(self, args: Any = None) -> None:
        """Begin the run, or join the one that is there. The second time nothing happens.

        Args:
            args: hyperparameters that were not known when this object was made.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if self._wandb.run is None:
            self._wandb.init(name=self._name, project=self._project, **self._folder)
            self._is_own = True
        else:
            logging.info("Logging to the Weights & Biases run that is open already")
        for known in (self._args, args):
            if known is not None:
                self._wandb.config.update(known)

    def finish(self, exit_code: int = 0) -> None:
        """End the run, if it was begun here."""
        if self._is_own:
            self._is_own = False
            self._wandb.finish(exit_code=exit_code)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Record values of a step."""
        self.begin()
        self._wandb.log(dict(values), step=step)

    def log_step(self, state: ActionState, named: Named, with_rate: bool = True) -> None:
        """Record tensors of a step, each a single number, and the learning rate."""
        values = {name: fetch_number(value, name, self._user) for name, value in named}
        self.log({**values, "LR": state.learning_rate} if with_rate else values, state.step)

    def log_epoch(self, state: ActionState, seconds: float) -> None:
        """Record number and seconds of the epoch that ends."""
        self.log({"epoch": state.epoch, "epoch_time": seconds}, state.step)


class WandBLogger(EpochLogger):
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
        super().__init__(step_freq, tensors_to_log, log_epoch)
        self._log_lr = log_lr
        self._run = WandbRun("WandBLogger", wandb_name, wandb_project, args)

    def on_action_start(self, state: ActionState) -> None:
        """Begin the run."""
        state.on_first(self._run.begin)

    def log(self, state: ActionState, named: Named) -> None:
        """Record values and rate."""
        self._run.log_step(state, named, self._log_lr)

    def log_epoch(self, state: ActionState, seconds: float) -> None:
        """Record number and seconds of the epoch."""
        self._run.log_epoch(state, seconds)


class WandbCallback(ActionCallback):
    """Records training tensors with Weights & Biases, and ``LR``, ``epoch``, ``epoch_time``.

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

    def fingerprint(self) -> Mapping[str, object]:
        """When it records."""
        return {"update_freq": self._update_freq}

    def on_action_start(self) -> None:
        """Begin the run."""
        self.action.on_first(self._run.begin)

    def on_epoch_start(self) -> None:
        """Take the time."""
        self._epoch_started = time.perf_counter()

    def on_iteration_end(self) -> None:
        """Record at every ``update_freq``-th step."""
        if self.step % self._update_freq == 0:
            self.action.on_first(lambda: self._run.log_step(self.action, read_tensors(self.train_tensors, self.action)))

    def on_epoch_end(self) -> None:
        """Record number and seconds of the epoch."""
        seconds = time.perf_counter() - self._epoch_started
        self.action.on_first(lambda: self._run.log_epoch(self.action, seconds))
