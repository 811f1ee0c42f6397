"""Comm: what the engine asks of the group of ranks, as a protocol, and SingleProcess. No network calls; see group.py.

Any: modules take and give values of any type; optimizer states hold tensors, numbers and lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed.batchnorm import single_values_named
from nemo_lite.backends.pytorch.distributed.data_workers import dead_workers_named
from nemo_lite.core import backend
from nemo_lite.core.run_options import GradientCompression

T = TypeVar("T")


class ReplicaOptions(NamedTuple):
    """How the gradients of a replica are exchanged; see ``NeuralModuleFactory.train``."""

    static_graph: bool = False
    gradient_compression: GradientCompression | None = None


PLAIN_REPLICA = ReplicaOptions()


class Replica(Protocol):
    """A module whose gradients are averaged over the ranks. Keep it for as long as the module trains.

    Attributes:
        needs_reach_check: DDP waits for the gradient of every trained weight; if the loss does not depend on one, it
            waits for ever. True until this is checked.
    """

    needs_reach_check: bool

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """The module's outputs."""

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch: gradients are averaged on the last one only."""


class Comm(backend.Comm, Protocol):
    """What the engine asks of the group of ranks. All ranks call each method, in the same order.

    ``gather``, ``rounds`` and ``share`` take tensors, numbers, texts, ``None``, and lists, tuples and dictionaries of
    them.

    Attributes:
        run_id: of the run, the same on all ranks; "" for a single process.
        attempt_id: of this start of the run, likewise.
        label: what messages call this rank: ``rank 1 (node2)``; "" for a single process.
    """

    run_id: str
    attempt_id: str
    label: str

    def replicate(self, module: nn.Module, options: ReplicaOptions = PLAIN_REPLICA) -> Replica:
        """The module with rank 0's weights on all ranks, ready to train."""

    def make_equal(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give all ranks the values of rank 0, in place."""

    def shard(
        self,
        modules: Iterable[nn.Module],
        device: torch.device,
        half: torch.dtype | None = None,
        float32_parts: Iterable[nn.Module] = (),
    ) -> None:
        """Shard the weights of modules among the ranks, in place; make optimizers afterwards.

        Args:
            modules: they become whole one block at a time.
            device: where they run.
            half: the type of autocast, in which whole weights are; ``None``: in their own.
            float32_parts: the parts whose whole weights are float32 all the same.
        """

    def whole(self, state: T) -> T:
        """A state with its sharded tensors made whole on rank 0."""

    def pieces(self, state: T) -> T:
        """A state with this rank's :class:`Piece` in the place of each sharded tensor."""

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """``optimizer.load_state_dict`` of a whole state, whether the parameters are sharded or not."""

    def synced_batchnorm(self, modules: Iterable[nn.Module], group_size: int) -> AbstractContextManager[None]:
        """Inside, batch normalisation takes its statistics over ``group_size`` ranks (0: all)."""

    def random_seed(self) -> int | None:
        """A random number, the same on all ranks; ``None`` for a single process."""

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in one collective."""

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """:meth:`sum`, begun now; what is given back waits for it. Other collectives may run in between."""

    def all_same(self, digest: bytes | None, label: str) -> bool:
        """Whether all ranks give the same digest, of eight bytes or more.

        Args:
            digest: this rank's; None: it has none, and the others are compared.
            label: what is compared, for reports about ranks that hang.
        """

    def any_on_device(self, flag: torch.Tensor) -> None:
        """Make a flag, 0 or 1, that of any rank, in place. It stays on its device: on a GPU the host does not wait."""

    def sum_on_device(self, number: torch.Tensor) -> None:
        """Make a number its sum over the ranks, in place, likewise."""

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make each floating-point tensor its mean over the ranks, in place."""

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value in order of the ranks, on rank 0; ``None`` on the others."""

    def rounds(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """The ranks' rows, on rank 0: in each round one row of every rank that still has one, in order of the ranks.

        On the others nothing comes out, and their rows are consumed. Memory holds one round.
        """

    def barrier(self) -> None:
        """Wait for all ranks."""

    def written_by_all(self, write: Callable[[], T]) -> T:
        """What ``write`` gives, when all ranks are done with theirs: later than the timeout, if one still writes."""

    def leave_note(self, key: str, text: str) -> None:
        """Leave a text for another rank, which takes it. At any time, also in another thread: nobody is waited for."""

    def take_note(self, key: str) -> str | None:
        """The text that some rank left under this key, once; ``None`` as long as there is none. As ``leave_note``."""

    def at_step(self, step: int | None) -> None:
        """Note the training step (or none) for reports about ranks that fail or hang."""


class Alone:
    """A replica in a single process. It calls ``forward`` directly, without torch's machinery for hooks."""

    needs_reach_check = False

    def __init__(self, module: nn.Module) -> None:
        self._forward, self._nothing = module.forward, nullcontext()
        # At every step each is found at once, where torch would search for it, and need not ask whether it connects.
        calls = {name: getattr(child, "on_values", child) for name, child in module.named_children()}
        vars(module).update(calls)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """The module's outputs."""
        outputs: tuple[Any, ...] = self._forward(*values)
        return outputs

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """No gradients to average."""
        return self._nothing


class SingleProcess:
    """The Comm of a single process: it is all ranks."""

    rank = 0
    world_size = 1
    local_rank: int | None = None
    run_id = attempt_id = label = ""

    def __init__(self) -> None:
        self._nothing = nullcontext()

    def replicate(self, module: nn.Module, options: ReplicaOptions = PLAIN_REPLICA) -> Replica:
        """The module itself."""
        return Alone(module)

    def make_equal(self, tensors: Iterable[torch.Tensor]) -> None:
        """Equal to itself."""

    def shard(
        self,
        modules: Iterable[nn.Module],
        device: torch.device,
        half: torch.dtype | None = None,
        float32_parts: Iterable[nn.Module] = (),
    ) -> None:
        """The only shard is the whole."""

    def whole(self, state: T) -> T:
        """The state."""
        return state

    def pieces(self, state: T) -> T:
        """The state: nothing is divided."""
        return state

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """``optimizer.load_state_dict``."""
        optimizer.load_state_dict(dict(state))

    def synced_batchnorm(self, modules: Iterable[nn.Module], group_size: int) -> AbstractContextManager[None]:
        """Nothing to synchronise."""
        return self._nothing

    def random_seed(self) -> int | None:
        """``None``."""
        return None

    def sum(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return list(values)

    def all_agree(self, ok: bool) -> bool:
        """``ok``."""
        return ok

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """The values."""
        return lambda: self.sum(values)

    def all_same(self, digest: bytes | None, label: str) -> bool:
        """``True``: there is one."""
        return True

    def any_on_device(self, flag: torch.Tensor) -> None:
        """There is no other rank."""

    def sum_on_device(self, number: torch.Tensor) -> None:
        """There is no other rank."""

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """They are their own mean."""

    def gather(self, value: T) -> list[T] | None:
        """The one value."""
        return [value]

    def rounds(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """Each row by itself."""
        return ([row] for row in rows)

    def share(self, value: T) -> T:
        """The value."""
        return value

    def barrier(self) -> None:
        """Nothing to wait for."""

    def written_by_all(self, write: Callable[[], T]) -> T:
        """What ``write`` gives."""
        return write()

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives."""
        return make()

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives."""
        return make()

    def leave_note(self, key: str, text: str) -> None:
        """Nobody takes it."""

    def take_note(self, key: str) -> str | None:
        """Nobody leaves one."""
        return None

    def at_step(self, step: int | None) -> None:
        """No reports."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """No other ranks to tell; a data worker that died is named, and a batch that cannot be normalised."""
        with dead_workers_named(), single_values_named():
            yield

    def close(self) -> None:
        """Nothing to leave."""
