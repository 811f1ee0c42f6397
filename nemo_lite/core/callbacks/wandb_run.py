"""A Weights & Biases run for callbacks that log there; with several ranks they use it on the first only.

The package is optional: a run imports it when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_lite.errors import UsageError
from nemo_lite.utils import logging


class WandbRun:
    """A run that begins with its first values; where another callback or the script has begun one, that is used.

    Args:
        user: the callback's name, for messages.
        name: the run's name.
        project: the project's name.
        args: hyperparameters to keep with the run: a mapping, or what an argument parser gives.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(self, user: str, name: str | None, project: str | None, args: Any = None) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("Weights & Biases is not installed", place=user, remedy="pip install wandb") from None
        self._wandb: Any = wandb
        self._name, self._project, self._args = name, project, args
        self._has_begun = False

    def begin(self) -> None:
        """Begin the run, or join the one that is there. The second time nothing happens."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._wandb.run is None:
            self._wandb.init(name=self._name, project=self._project)
        else:
            logging.info("Logging to the Weights & Biases run that is open already")
        if self._args is not None:
            self._wandb.config.update(self._args)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Record values of a step."""
        self.begin()
        self._wandb.log(dict(values), step=step)
