"""Counters: step, epoch and optimizers of the actions, which scripts of NeMo read and set. Nothing is counted here."""

from __future__ import annotations

from torch.optim import Optimizer

from nemo_lite.backends.pytorch.engine.run_state import RunState


class Counters:
    """Base of the actions: what it shows is in their state."""

    _state: RunState

    @property
    def step(self) -> int:
        """Index of the step made last."""
        return self._state.step

    @step.setter
    def step(self, step: int) -> None:
        self._state.step = step

    @property
    def epoch(self) -> int:
        """Index of the epoch."""
        return self._state.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._state.epoch = epoch

    epoch_num = epoch

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the run, and those that were created."""
        return self._state.optimizers
