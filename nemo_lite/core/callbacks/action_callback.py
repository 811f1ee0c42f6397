"""ActionCallback: NeMo's older generation of callbacks, with the state in properties and keywords of older versions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from nemo_lite.base.errors import UsageError
from nemo_lite.base.nemo_logging import Logger
from nemo_lite.core.callbacks.action_state import ActionState
from nemo_lite.core.callbacks.base import Callback, Hook, Moment, is_overridden
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.utils import logging

F = TypeVar("F", bound=Callable[..., Any])

# The methods that older callbacks have for the moments: their "iteration" is a step.
_METHODS: dict[Moment, str] = {
    "on_action_start": "on_action_start",
    "on_epoch_start": "on_epoch_start",
    "on_step_start": "on_iteration_start",
    "on_step_end": "on_iteration_end",
    "on_epoch_end": "on_epoch_end",
    "on_action_end": "on_action_end",
}


class RegisteredTensors(Mapping[str, Any]):
    """Values of the step by the ``unique_name`` of their wire; each is fetched when it is read."""

    def __init__(self, state: ActionState, wires: Sequence[NmTensor]) -> None:
        self._tensors = state.tensors
        self._wires = {wire.unique_name: wire for wire in wires}

    def __getitem__(self, unique_name: str) -> Any:
        return self._tensors.get_tensor(self._wires[unique_name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._wires)

    def __len__(self) -> int:
        return len(self._wires)


class ActionCallback(Callback):
    """Base of callbacks in the style of NeMo 0.9 and 0.10: methods without arguments, the state in properties.

    The wires found in a subclass' attributes (also in lists and tuples there) are kept at each step, so that
    ``self.registered_tensors[wire.unique_name]`` gives their values. New callbacks derive from ``NeMoCallback``.

    Attributes:
        logger: the project's logging object.
        action: the running action: an :class:`~nemo_lite.core.callbacks.base.ActionState`.
    """

    logger: Logger = logging
    action: ActionState = None  # type: ignore[assignment]  # set before each call

    @property
    def step(self) -> int:
        """Index of the step that is being made, or was made last."""
        return self.action.step

    @property
    def epoch_num(self) -> int:
        """Index of the epoch."""
        return self.action.epoch

    @property
    def local_rank(self) -> int | None:
        """``None`` in a single process."""
        return self.action.local_rank

    @property
    def global_rank(self) -> int | None:
        """``None`` in a single process."""
        return self.action.global_rank

    @property
    def learning_rate(self) -> float:
        """The rate that the last step used."""
        return self.action.learning_rate

    @property
    def registered_tensors(self) -> RegisteredTensors:
        """Values of the step by ``NmTensor.unique_name``, for the wires of :meth:`wanted_wires`."""
        return RegisteredTensors(self.action, self.wanted_wires())

    def wanted_wires(self) -> Sequence[NmTensor]:
        """The wires among the attributes."""
        return [one for value in vars(self).values() for one in _as_sequence(value) if isinstance(one, NmTensor)]

    def on_action_start(self) -> None:
        """Before the first epoch."""

    def on_action_end(self) -> None:
        """After everything."""

    def on_epoch_start(self) -> None:
        """Before the first batch of an epoch."""

    def on_epoch_end(self) -> None:
        """After the last step of an epoch."""

    def on_iteration_start(self) -> None:
        """Before a step."""

    def on_iteration_end(self) -> None:
        """After a step."""

    def hooks(self) -> Mapping[Moment, Hook]:
        """The methods that a subclass overrides, each behind one that takes the state."""
        return {
            moment: self._with_state(getattr(self, method))
            for moment, method in _METHODS.items()
            if is_overridden(self, method, ActionCallback)
        }

    def _with_state(self, method: Callable[[], object]) -> Hook:
        def hook(state: ActionState) -> None:
            self.action = state
            method()

        return hook


def older_names(**names: str) -> Callable[[F], F]:
    """Accept keywords under the names they had in older versions of NeMo: ``older_names(step_frequency="step_freq")``.

    The decorated function raises UsageError for a keyword that is given under both names.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def translated(*args: Any, **kwargs: Any) -> Any:
            for older, newer in names.items():
                if older in kwargs:
                    if newer in kwargs:
                        raise UsageError(f"{older} and {newer} are one argument", place=type(args[0]).__name__)
                    kwargs[newer] = kwargs.pop(older)
            return function(*args, **kwargs)

        return translated  # type: ignore[return-value]  # functools.wraps keeps the signature, not the type variable

    return decorate


def as_wires(value: object, place: str, argument: str, remedy: str = "") -> list[NmTensor]:
    """One wire or several as a list.

    Raises:
        UsageError: anything else.
    """
    values = _as_sequence(value)
    wires = [wire for wire in values if isinstance(wire, NmTensor)]
    if len(wires) < len(values):
        got = ", ".join(type(one).__name__ for one in values)
        raise UsageError(f"{argument} must be wires", place=place, got=got, wanted="NmTensors", remedy=remedy)
    return wires


def _as_sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]
