"""Callbacks: the state that they see, the moments of an action, NeMo's two generations, the list that is notified."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

from nemo_lite.base.errors import UsageError
from nemo_lite.base.nemo_logging import Logger
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.utils import logging

# The state of an action as callbacks see it, as protocols that the engine fulfils. No torch, no loop here.


# Any: values of wires and optimizers are the backend's own.

T = TypeVar("T")


@dataclass
class StepTiming:
    """How long the steps since the last reading took, and for what.

    Attributes:
        num_steps: optimizer steps made.
        seconds: time they took, evaluation and saving between them not counted.
        data_wait_seconds: part of it in which the loop waited for data.
        amount: data that they used, in ``amount_unit`` (items, seconds of audio).
    """

    num_steps: int = 0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    amount: float = 0.0
    amount_unit: str = "items"

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return self.seconds / max(self.num_steps, 1)

    @property
    def amount_per_second(self) -> float:
        """Throughput in ``amount_unit`` per second."""
        return self.amount / self.seconds if self.seconds else 0.0

    @property
    def data_wait_share(self) -> float:
        """Share of the time spent waiting for data, 0 to 1."""
        return self.data_wait_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation.

    Attributes:
        name: of what was evaluated: ``EvaluatorCallback(name=...)``.
        step: optimizer steps done before it.
        values: numbers and texts by tag, as the evaluator's function returned them: ``{"wer": 0.12}``.
        num_items: how many items; ``None`` where the data layer does not number them.
        digest: a hash of the items' ids; "" where there are none.
        seconds: how long it took.
        higher_is_better: of the values that say so, by tag: whether a high value is good.
    """

    name: str
    step: int
    values: Mapping[str, float | str]
    num_items: int | None = None
    digest: str = ""
    seconds: float = 0.0
    higher_is_better: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Best:
    """Which checkpoints are the best, and how many of them are kept.

    Attributes:
        evaluation: the name of the evaluation that decides.
        metric: the tag of the value that decides.
        keep: how many.
        highest: a high value is good; otherwise a low one, as of an error rate.
    """

    evaluation: str
    metric: str
    keep: int
    highest: bool = False


class StepTensors(Protocol):
    """The tensors of the step that just ran (NeMo 0.11's ``state["tensors"]``)."""

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """The value of a wire: by its new name (``NmTensor.rename``), by itself, or ``"loss"``: the sum of the losses.

        Wires that continue beyond the training DAG are computed at the first request, without gradients, from what the
        step has; ``compute=False`` gives None for those that are not computed yet.

        Raises:
            DagError: no such wire, or one that this step does not lead to.
        """


class TbWriter(Protocol):
    """The part of a TensorBoard ``SummaryWriter`` that callbacks use. One without ``flush`` is accepted too."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> object:
        """Write a number."""

    def add_text(self, tag: str, text: str, step: int, /) -> object:
        """Write a text."""


class Evaluated(Protocol):
    """An evaluation. Iterate it once, on every rank and to its end; what it computed is known then, on rank 0."""

    @property
    def items(self) -> list[int] | None:
        """Their positions in data order; ``None`` where the data layer does not number them."""

    @property
    def num_items(self) -> int | None:
        """How many items; ``None`` where the data layer does not number them.

        Each item of the data layer counts once, whatever the number of ranks.
        """

    @property
    def digest(self) -> str:
        """A hash of the items' ids in data order; "" where there are none.

        Equal sets have equal hashes, whatever the number of ranks or the batch size.
        """

    def __iter__(self) -> Iterator[list[list[Any]]]:
        """For each round of the ranks: for each wire a list with one value for each rank that had a batch.

        Lists and rounds are in data order. Only rank 0 gets them: on the others nothing comes out, but their batches
        are computed as well.
        """


class Averages(Protocol):
    """Averaged weights of a training."""

    def applied(self, last: int = 0, folder: str | Path = "") -> AbstractContextManager[str]:
        """Inside, modules have averaged weights, and statistics of batch norm estimated again on the training data.

        What is evaluated and saved inside is the averaged model; afterwards all is as before. All ranks call it, at the
        end of the training. The value of the context says what was averaged.

        Args:
            last: average so many of the newest checkpoints in ``folder``; 0: take the moving average of
                ``optimization_params={"ema_decay": ...}``.
            folder: read on rank 0.

        Raises:
            UsageError: there is no moving average, or weights are divided among the ranks.
            CheckpointError: no checkpoint, or one that does not fit.
        """


class ActionState(Protocol):
    """The state of an action. The attributes can also be read as items: ``state["step"]``.

    With several ranks every rank runs every callback. Methods that say "all ranks call it" wait for the others there:
    callbacks call them at the same moments and in the same order on all ranks, never inside :meth:`on_first`.

    Attributes:
        step: index of the optimizer step that is being made, or was made last; the first is 0.
        epoch: index of the epoch; the first is 0.
        total_steps: steps that the whole run makes, where that is known.
        local_rank: ``None`` in a single process.
        global_rank: ``None`` in a single process.
        world_size: number of ranks; 1 in a single process.
        optimizers: the optimizers.
        tensors: values of the step.
        learning_rate: the rate the last step used.
        modules: trainable modules of the DAG by name.
        tb_writer: the factory's TensorBoard writer, ``None`` where there is none, and on ranks above 0.
        evaluation: the result of the last evaluation, the same on all ranks; ``None`` before the first.
        is_epoch_over: the step that was made last is the last of its epoch; known in ``on_step_end``.
        is_save_requested: some rank asked for a checkpoint with :meth:`request_save`; known in ``on_step_end``.
        interrupted_by: the signal that ends the run on all ranks (``signal.SIGTERM``); 0 while there is none.
        stop_reason: what was given to :meth:`request_stop`; "" unless the run was asked to stop.
    """

    step: int
    epoch: int
    total_steps: int | None
    local_rank: int | None
    global_rank: int | None
    world_size: int
    optimizers: list[Any]
    tensors: StepTensors
    learning_rate: float
    modules: Mapping[str, NeuralModule]
    tb_writer: TbWriter | None
    evaluation: EvaluationResult | None
    is_epoch_over: bool
    is_save_requested: bool
    interrupted_by: int
    stop_reason: str

    @property
    def averaging(self) -> Averages | None:
        """Averaged weights; ``None`` where nothing is trained."""

    def __getitem__(self, key: str) -> Any:
        """An attribute by name."""

    def timing(self, reader: object) -> StepTiming:
        """The times of the steps since this reader last asked."""

    def on_first(self, make: Callable[[], T]) -> T | None:
        """The value that ``make`` gives; it runs on rank 0 only, the others get ``None``. All ranks call it.

        For what is printed, written to files or recorded once. An error in it ends the run on all ranks.
        """

    def from_first(self, make: Callable[[], T]) -> T:
        """Rank 0's result of ``make``, on all ranks: a tree of numbers, texts and tensors. All ranks call it."""

    def evaluate(self, wires: Sequence[NmTensor]) -> Evaluated:
        """The values of ``wires`` over their own data layer, every item once. All ranks call it, and iterate.

        Without gradients; modules are in evaluation mode, and put back afterwards.
        """

    def publish(self, make: Callable[[], EvaluationResult]) -> None:
        """Make rank 0's result of an evaluation known: callbacks get ``on_evaluation_end``. All ranks call it.

        Nothing happens in a run that a signal interrupted: then the evaluation may be incomplete.

        Args:
            make: gives the result; called on rank 0 only.
        """

    def save_module(self, module: Any, path: str | Path) -> None:
        """Write one module's weights to ``path``. All ranks call it, rank 0 writes.

        Statistics of batch norm are written as their mean over the ranks.
        """

    def save_state_to(self, path: str | Path) -> None:
        """Write step, epoch and optimizers to one file. All ranks call it, rank 0 writes."""

    def restore_state_from(self, path: str | Path) -> None:
        """Read what :meth:`save_state_to` wrote. All ranks call it."""

    def save_checkpoint(
        self,
        folder: str | Path,
        kind: Literal["STEP", "EPOCH"],
        keep: int,
        about: Mapping[str, Any] | None = None,
        best: Best | None = None,
        suffix: str = ".safetensors",
    ) -> None:
        """Write modules and training state as a set; keep the newest and the best. All ranks call it, rank 0 writes.

        It returns when their copy is in host memory, and the copy is written while training goes on; one that is still
        being written is waited for. :meth:`saved_checkpoint` tells when it is complete. The results of evaluations are
        written into the set's record, each with its step.

        Args:
            folder: where the sets are.
            kind: ``STEP`` or ``EPOCH``; the set is named by it and by how many of them are done.
            keep: how many of the newest sets to keep.
            about: stored in the set's record: configuration, labels; JSON.
            best: which others to keep.
            suffix: of the files: ``.safetensors``, or ``.pt`` for files as NeMo 0.x writes them.
        """

    def open_checkpoints(self, folder: str | Path) -> None:
        """Create a folder of checkpoints; until the run ends, no other may save there. All ranks call it.

        Raises:
            UsageError: it cannot be written to, or another process saves there.
        """

    def saved_checkpoint(self, folder: str | Path, *, wait: bool = False) -> str:
        """The checkpoint in a folder that has become complete since this was last asked; "" where there is none.

        Args:
            folder: where it was to be saved.
            wait: until it is. All ranks call it then; else only rank 0 gets an answer, at once.

        Raises:
            NemoLiteError: it could not be written.
        """

    def is_among_best(self, folder: str | Path, best: Best) -> bool:
        """Whether the last evaluation is one of the best that the sets of a folder have. All ranks call it."""

    def note_evaluation(self, folder: str | Path) -> None:
        """Write the last evaluation into the record of the set of its step, where there is one. All ranks call it."""

    def load_checkpoint(
        self, folder: str | Path, must_go_on: bool = False, allow_world_size_change: bool = False
    ) -> str | None:
        """Restore the newest complete set; its name, or ``None`` when the folder holds none. All ranks call it.

        The answer is the same on all ranks.

        Args:
            folder: where the sets are.
            must_go_on: it is an error when nothing is left to train after it, or its learning rate would be 0.
            allow_world_size_change: another number of ranks may have saved it.

        Raises:
            CheckpointError: a set that does not fit the modules, or that another number of ranks saved; or another
                rank has a newer one in its folder than rank 0.
        """

    def request_save(self) -> None:
        """Ask for a checkpoint after this step, in ``on_step_start``; see ``is_save_requested``. Any rank may ask."""

    def request_stop(self, reason: str) -> None:
        """End the run after the current step, in order.

        Any rank may ask. With several ranks all of them stop after the same step.
        """


# Any: what a callback saves is a tree of numbers, texts and tensors.

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

    def compare_with_training(self, dag: Dag) -> None:
        """Log how the DAGs that it evaluates differ from the training DAG. Called once, before the first step."""

    def fingerprint(self) -> Mapping[str, object]:
        """Which of its arguments have to be the same on all ranks, by name. Its class, and what it reads, always do."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Its state for a checkpoint: a tree of numbers, texts and tensors. By default nothing.

        Rank 0's is saved.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave. Called on all ranks after ``on_action_start`` of all callbacks.

        It is not called where there is no such state: a new run, or a checkpoint of older versions.
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

    def state_dict(self) -> list[list[Any]]:
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


def refuse_below_one(place: str, **numbers: int | None) -> None:
    """Raise UsageError for a number below 1; ``None`` is passed over."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UsageError(f"{name} must be at least 1", place=place, got=str(number))


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


# NeMo's older callbacks.


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
    """Accept keywords under the names they had in older versions: ``older_names(step_frequency="step_freq")``.

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
    wires = _as_sequence(value)
    if not all(isinstance(wire, NmTensor) for wire in wires):
        got = ", ".join(type(one).__name__ for one in wires)
        raise UsageError(f"{argument} must be wires", place=place, got=got, wanted="NmTensors", remedy=remedy)
    return list(wires)


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]
