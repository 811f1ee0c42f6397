"""What a backend's actions object offers, and what callbacks see of an action while it runs. No torch, no loop here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from nemo_lite.core.nm_tensor import NmTensor


@dataclass
class StepTiming:
    """Where the time of the steps since the last reading went.

    Attributes:
        num_steps: optimizer steps made.
        seconds: time they took, evaluation and saving between them not counted.
        data_wait_seconds: part of it in which the loop waited for data.
        amount: what they consumed, in ``amount_unit`` (items, seconds of audio).
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


class StepTensors(Protocol):
    """The tensors of the step that just ran (NeMo 0.11's ``state["tensors"]``)."""

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """The value of a wire: by its new name (``NmTensor.rename``), by itself, or ``"loss"``: the sum of the losses.

        Wires that continue beyond the training DAG are computed at the first request, without gradients, from what the
        step has; ``compute=False`` gives None for those that are not computed yet.

        Raises:
            DagError: no such wire, or one that this step does not lead to.
        """


class ActionState(Protocol):
    """What callbacks see. The attributes can also be read as items: ``state["step"]``.

    Attributes:
        step: index of the optimizer step that is being made, or was made last; the first is 0.
        epoch: index of the epoch; the first is 0.
        total_steps: steps that the whole run makes, where that is known.
        local_rank: ``None`` in a single process.
        global_rank: ``None`` in a single process.
        optimizers: the optimizers.
        tensors: values of the step.
        learning_rate: the rate the last step used.
        modules: trainable modules of the DAG by name.
        tb_writer: the factory's TensorBoard writer, ``None`` where there is none and on all ranks but the first.
    """

    @property
    def step(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def total_steps(self) -> int | None: ...
    @property
    def local_rank(self) -> int | None: ...
    @property
    def global_rank(self) -> int | None: ...
    @property
    def optimizers(self) -> list[Any]: ...
    @property
    def tensors(self) -> StepTensors: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def modules(self) -> Mapping[str, Any]: ...
    @property
    def tb_writer(self) -> Any: ...

    def __getitem__(self, key: str) -> Any:
        """An attribute by name."""

    def timing(self, reader: object) -> StepTiming:
        """The times of the steps since this reader last asked."""

    def evaluate(self, wires: Sequence[NmTensor]) -> Iterator[list[Any]]:
        """The values of ``wires`` for each batch of their own data layer, every item once.

        Without gradients; modules are in evaluation mode, and put back afterwards.
        """

    def save_state_to(self, path: str | Path) -> None:
        """Write step, epoch and optimizers to one file."""

    def restore_state_from(self, path: str | Path) -> None:
        """Read what :meth:`save_state_to` wrote."""

    def save_checkpoint(self, folder: str | Path, kind: Literal["STEP", "EPOCH"], keep: int) -> None:
        """Write modules and training state as a set; keep the newest ``keep`` of that kind.

        Args:
            folder: where the sets are.
            kind: ``STEP`` or ``EPOCH``; the set is named by it and by how many of them are done.
            keep: how many sets to keep.
        """

    def load_checkpoint(self, folder: str | Path) -> str | None:
        """Restore the newest complete set; its name, or ``None`` when the folder holds none.

        Raises:
            CheckpointError: a set that does not fit the modules.
        """

    def request_stop(self, reason: str) -> None:
        """End the run after the current step, in order."""
