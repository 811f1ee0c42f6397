"""LearningRates: the rate of each step, by a policy or as the optimizer has it, also after a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_lite.backends.pytorch.engine.objectives import Objective
from nemo_lite.core.run_options import LrPolicy

# Any: a training state is a tree of tensors, numbers and texts.


class LearningRates:
    """Sets the learning rate before each step.

    Args:
        objectives: of the run.
        policy: learning rate from (initial rate, step, epoch); ``None``: the optimizer's own, which callbacks may set.
    """

    def __init__(self, objectives: Sequence[Objective], policy: LrPolicy | None) -> None:
        self._objectives, self._policy = objectives, policy

    def set(self, objective: Objective, step: int, epoch: int) -> float:
        """Set the rates of a step; that of the first group of parameters."""
        groups = objective.optimizer.param_groups
        if self._policy is not None:
            for group, initial in zip(groups, objective.initial_lrs, strict=True):
                group["lr"] = self._policy(initial, step, epoch)
        rate: float = groups[0]["lr"]
        return rate

    def state_dict(self) -> dict[str, Any]:
        """Where the optimizers' rates come from, for a training state."""
        return {"rates": {"initial": self._initial(), "have_policy": self._policy is not None}}

    def load_state_dict(self, state: Mapping[str, Any], place: str = "") -> None:
        """Begin with the rates of this run, if those that the optimizers got from a checkpoint are not meant for it.

        They are not where a policy had set them and there is none now, or where the user gave others.
        """
        saved = state.get("rates")
        if saved is None or self._policy is not None:
            return
        if saved["have_policy"] or saved["initial"] != self._initial():
            self._put_back()

    def end(self) -> None:
        """The run is over: the rates are what they were before the policy, for another run of the same optimizers."""
        if self._policy is not None:
            self._put_back()

    def _put_back(self) -> None:
        for objective in self._objectives:
            for group, initial in zip(objective.optimizer.param_groups, objective.initial_lrs, strict=True):
                group["lr"] = initial

    def _initial(self) -> list[list[float]]:
        return [list(map(float, objective.initial_lrs)) for objective in self._objectives]
