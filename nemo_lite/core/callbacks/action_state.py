"""The state of an action as callbacks see it, as protocols that the engine fulfils. No torch, no loop here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor

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


class LossGradients(NamedTuple):
    """The gradients of several losses on the wires where the ways to them part.

    Attributes:
        place: of these wires.
        norms: of each loss, over all these wires together; without its weight.
    """

    place: str
    norms: Sequence[float]


class StepTensors(Protocol):
    """The tensors of the step that just ran (NeMo 0.11's ``state["tensors"]``)."""

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """The value of a wire: by its new name (``NmTensor.rename``), by itself, or ``"loss"``: the sum of the losses.

        Wires that continue beyond the training DAG are computed at the first request, without gradients, from what the
        step has; ``compute=False`` gives None for those that are not computed yet.

        Raises:
            DagError: no such wire, or one that this step does not lead to.
        """

    def loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        """The norms of the gradients of several losses where the ways to them part, on the batch of this step.

        They are computed anew, and change nothing of the training. None where the losses share nothing with weights, or
        where modules exchange statistics or weights with other processes.
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

    def applied(self, checkpoints: int | Best = 0, folder: str | Path = "") -> AbstractContextManager[str]:
        """Inside, modules have averaged weights, and statistics of batch norm estimated again on the training data.

        What is evaluated and saved inside is the averaged model; afterwards all is as before. All ranks call it, at the
        end of the training. The value of the context says what was averaged.

        Args:
            checkpoints: average so many of the newest ones in ``folder``, or the best ones; 0: take the moving average
                of ``optimization_params={"ema_decay": ...}``.
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
        about: Mapping[str, object] | None = None,
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

    def request_stop(self, reason: str, *, is_of_all_ranks: bool = False) -> None:
        """End the run after the current step, in order.

        Any rank may ask. With several ranks all of them stop after the same step: one more may be made until they know.

        Args:
            reason: for the log and the record of the run.
            is_of_all_ranks: all ranks ask for it at this moment, from what all of them know: none is made any more.
        """
