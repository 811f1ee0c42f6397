"""Callbacks: the moments of an action, both generations of NeMo, the list that is notified."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from nemo_lite.base.errors import UsageError
from nemo_lite.base.nemo_logging import Logger
from nemo_lite.core.callbacks.action_state import ActionState
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.utils import logging

# Any: what a callback saves is a tree of numbers, texts and tensors; a wire has any value.

F = TypeVar("F", bound=Callable[..., Any])

Hook = Callable[[ActionState], None]

Moment = Literal[
    "on_action_start",
    "on_epoch_start",
    "on_step_start",
    "on_batch_start",
    "on_batch_end",
    "on_step_end",
    "on_evaluation_end",
    "on_epoch_end",
    "on_action_end",
]
MOMENTS: tuple[Moment, ...] = get_args(Moment)


class TagOwners:
    """Which callback of a run writes which tag of its evaluation results, and which checkpoint.

    Attributes:
        higher_is_better: by the name of an evaluation, for the tags that say so: whether a high value is good.
        are_recorded: another callback of the run records the results.
        of_checkpoints: by the path of a checkpoint that is being saved: tells that it is complete. Two callbacks may
            save in one folder.
    """

    def __init__(self) -> None:
        self.higher_is_better: dict[str, Mapping[str, bool]] = {}
        self.are_recorded = False
        self.of_checkpoints: dict[str, Callable[[], object]] = {}
        self._owners: dict[str, str] = {}
        self._warned: set[tuple[str, str]] = set()

    def claim(self, tags: Iterable[str], owner: str) -> None:
        """Note who writes these tags; warn, once for each pair of callbacks, of tags that another one writes too."""
        owners = {tag: self._owners.setdefault(tag, owner) for tag in tags}
        for other in sorted({*owners.values()} - {owner}):
            if (other, owner) not in self._warned:
                self._warned.add((other, owner))
                shared = ", ".join(f'"{tag}"' for tag in owners if owners[tag] == other)
                problem = "%s and %s both return %s: one curve mixes two results; give each its own tag"
                logging.warning(problem, other, owner, shared)


class Callback:
    """An item of a :class:`CallbackList`: a :class:`NeMoCallback`, or an ``ActionCallback`` of older scripts."""

    def hooks(self) -> Mapping[Moment, Hook]:
        """The functions to call, by moment; moments that it does not need are left out."""
        return {}

    def wanted_wires(self) -> Sequence[NmTensor]:
        """Wires of the training DAG, or continuing from it, whose values it reads."""
        return ()

    def wanted_names(self) -> Sequence[str]:
        """Renamed wires whose values it reads."""
        return ()

    def evaluated_wires(self) -> Sequence[NmTensor]:
        """Wires that it evaluates over their own data layer."""
        return ()

    def take_tensors_to_evaluate(self, tensors: Sequence[NmTensor]) -> None:
        """Take the wires of ``train(tensors_to_evaluate=...)``, as callbacks of the first NeMo print them."""

    def compare_with_training(self, dag: Dag) -> None:
        """Log how the DAGs that it evaluates differ from the training DAG. Called once, before the first step."""

    def fingerprint(self) -> Mapping[str, object]:
        """Which of its arguments have to be the same on all ranks, by name. Its class, and what it reads, always do."""
        return {}

    def state_dict(self) -> Mapping[str, object]:
        """Its state for a checkpoint: a tree of numbers, texts and tensors. By default nothing.

        Rank 0's is saved.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave. Called on all ranks after ``on_action_start`` of all callbacks.

        It is not called where there is no such state: a new run, or a checkpoint saved without this callback.
        """

    def join(self, label: str, tags: TagOwners) -> None:
        """Take its name in the list of callbacks, and the record of which callback writes which tag."""

    def close(self) -> None:
        """Release the terminal; also called when a run ends with an error."""


class NeMoCallback(Callback):
    """Override the moments of interest; ``state`` is an :class:`~nemo_lite.core.callbacks.base.ActionState`.

    A step is one update of the weights; it takes one or several batches.
    """

    def on_action_start(self, state: ActionState) -> None:
        """Before the first epoch."""

    def on_epoch_start(self, state: ActionState) -> None:
        """Before the first batch of an epoch."""

    def on_step_start(self, state: ActionState) -> None:
        """Before the gradients of a step are cleared."""

    def on_batch_start(self, state: ActionState) -> None:
        """Before a batch is computed."""

    def on_batch_end(self, state: ActionState) -> None:
        """After the backward pass of a batch; ``state["tensors"]`` holds its values."""

    def on_step_end(self, state: ActionState) -> None:
        """After the weights were updated; ``state["tensors"]`` holds the values of the last batch."""

    def on_evaluation_end(self, state: ActionState) -> None:
        """After an evaluation; ``state["evaluation"]`` holds its result."""

    def on_epoch_end(self, state: ActionState) -> None:
        """After the last step of an epoch."""

    def on_action_end(self, state: ActionState) -> None:
        """After everything."""

    def hooks(self) -> Mapping[Moment, Hook]:
        """The methods that a subclass overrides."""
        return {moment: getattr(self, moment) for moment in MOMENTS if is_overridden(self, moment, NeMoCallback)}


class FunctionCallback(NeMoCallback):
    """A callback made of a function by one or several of the decorators below; calling it calls the function."""

    def __init__(self, function: Hook, moments: Sequence[Moment]) -> None:
        self.function, self.moments = function, tuple(moments)
        self.__doc__ = function.__doc__

    def __call__(self, state: ActionState) -> None:
        self.function(state)

    def fingerprint(self) -> Mapping[str, object]:
        """The function, and when it is called."""
        return {"function": self.function, "moments": self.moments}

    def hooks(self) -> Mapping[Moment, Hook]:
        """The function, at the moments it was decorated with."""
        return dict.fromkeys(self.moments, self.function)


def _decorator(moment: Moment, when: str) -> Callable[[Hook], FunctionCallback]:
    def decorate(function: Hook) -> FunctionCallback:
        if isinstance(function, FunctionCallback):
            return FunctionCallback(function.function, [*function.moments, moment])
        return FunctionCallback(function, [moment])

    decorate.__name__ = moment
    decorate.__doc__ = f"Decorator: a callback that calls the function {when}."
    return decorate


on_action_start = _decorator("on_action_start", "before the first epoch")
on_epoch_start = _decorator("on_epoch_start", "before each epoch")
on_step_start = _decorator("on_step_start", "before each step")
on_batch_start = _decorator("on_batch_start", "before each micro-batch")
on_batch_end = _decorator("on_batch_end", "after each micro-batch")
on_step_end = _decorator("on_step_end", "after each step")
on_evaluation_end = _decorator("on_evaluation_end", "after each evaluation")
on_epoch_end = _decorator("on_epoch_end", "after each epoch")
on_action_end = _decorator("on_action_end", "after everything")


class CallbackList:
    """All callbacks of a run. It finds out once which of them have something to do at which moment.

    Args:
        callbacks: NeMoCallbacks and ActionCallbacks in any mix; they are called in this order.

    Attributes:
        wires: what the callbacks read of each training step.
        names: the same, by the names given to ``NmTensor.rename``.
        eval_wires: for each evaluating callback the wires that it evaluates.

    Raises:
        UsageError: something that is not a callback.
    """

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = [_checked(callback, f"callbacks[{index}]") for index, callback in enumerate(callbacks)]
        self.wires = list(dict.fromkeys(wire for callback in self._callbacks for wire in callback.wanted_wires()))
        self.names = list(dict.fromkeys(name for callback in self._callbacks for name in callback.wanted_names()))
        self.eval_wires = [list(wires) for callback in self._callbacks if (wires := callback.evaluated_wires())]
        tags = TagOwners()
        for index, callback in enumerate(self._callbacks):
            callback.join(f"callbacks[{index}] ({type(callback).__name__})", tags)
        all_hooks = [callback.hooks() for callback in self._callbacks]
        # Tuples made once: a moment that no callback overrides costs one empty loop.
        self._hooks = {moment: tuple(hooks[moment] for hooks in all_hooks if moment in hooks) for moment in MOMENTS}

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks)

    def notify(self, moment: Moment, state: ActionState) -> None:
        """Call what the callbacks have for this moment, in their order."""
        for hook in self._hooks[moment]:
            hook(state)

    def state_dict(self) -> list[list[object]]:
        """Of each callback that has a state: its class and its state, in order."""
        states = ((type(callback).__name__, dict(callback.state_dict())) for callback in self._callbacks)
        return [[name, state] for name, state in states if state]

    def load_state_dict(self, saved: Iterable[Sequence[Any]]) -> None:
        """Give the callbacks their states: the first of a class gets the first state of that class, and so on."""
        of_class: dict[str, list[Any]] = {}
        for name, state in saved:
            of_class.setdefault(name, []).append(state)
        for callback in self._callbacks:
            if states := of_class.get(type(callback).__name__):
                callback.load_state_dict(states.pop(0))

    def close(self) -> None:
        """Let every callback release the terminal; called when a run ends, also with an error."""
        for callback in self._callbacks:
            callback.close()


def is_overridden(callback: object, name: str, base: type) -> bool:
    """Whether a method differs from that of ``base``, by a subclass or on the object itself."""
    return getattr(getattr(callback, name), "__func__", None) is not getattr(base, name)


def _checked(callback: object, place: str) -> Callback:
    if isinstance(callback, Callback):
        return callback
    name = getattr(callback, "__name__", type(callback).__name__)
    remedy = ""
    if isinstance(callback, type):
        remedy = f"make an object of the class: {name}(...)"
    elif callable(callback):
        remedy = f"decorate {name} with the moment at which it is to be called, such as @on_step_end"
    raise UsageError("this is not a callback", place=place, got=name, wanted="a NeMoCallback", remedy=remedy)


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
            moment: functools.partial(self._call, getattr(self, method))
            for moment, method in _METHODS.items()
            if is_overridden(self, method, ActionCallback)
        }

    def _call(self, method: Callable[[], object], state: ActionState) -> None:
        self.action = state
        method()


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
