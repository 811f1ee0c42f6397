"""Comm: what processes say to each other, as one object: the protocol, a process alone, and a fake for tests.

Nothing here speaks to another process; ``group.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from nemo_lite.core.backend import Comm as CoreComm

T = TypeVar("T")


class Replica(Protocol):
    """A module as it trains: its gradients are averaged over the ranks. Hold on to it for as long as it trains.

    Attributes:
        is_unchecked: the exchange waits for the gradient of every weight that is trained, and nobody has seen yet that
            the loss depends on them all.
    """

    is_unchecked: bool

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """The module's outputs."""

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch: gradients are exchanged on the last one only."""


class Comm(CoreComm, Protocol):
    """What the engine asks of the group of ranks, beside what the core does. All ranks call each method, in order.

    Values that travel (``gather``, ``rounds``, ``share``) are tensors, numbers, texts, ``None``, and lists, tuples and
    dictionaries of them.
    """

    def replicate(self, module: nn.Module) -> Replica:
        """The module, with the first rank's weights on all, as it trains."""

    def shard(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        """Divide the weights of modules among the ranks, in place; optimizers are made afterwards."""

    def whole(self, state: T) -> T:
        """A state of which some tensors may be sharded, with these whole on the first rank."""

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """``optimizer.load_state_dict`` for a whole state, whether its parameters are sharded or not."""

    def synced_batchnorm(self, modules: Iterable[nn.Module], group_size: int) -> AbstractContextManager[None]:
        """Inside, batch normalisation takes its statistics over ``group_size`` ranks (0: all)."""

    def check_equal_start(self, digests: Callable[[], Mapping[str, str]]) -> None:
        """Raise UsageError on all ranks when what they are about to run differs.

        Args:
            digests: gives a digest for each thing that must be equal, by a name for people. Not called without need.
        """

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in one exchange."""

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make each floating-point tensor its mean over the ranks, in place."""

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value in order of the ranks, on the first; ``None`` on the others."""

    def rounds(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """The ranks' rows on the first: in each round one row of every rank that still has one, in order of the ranks.

        On the others nothing comes out, and their rows are consumed. Memory holds one round.
        """

    def barrier(self) -> None:
        """Wait for all ranks."""

    def at_step(self, step: int | None) -> None:
        """Note which step is being made, or none, for reports about a rank that fails or hangs."""


class Alone:
    """A module that trains in one process only.

    Nothing hooks into the module itself, so its forward is called without torch's machinery for hooks.
    """

    is_unchecked = False

    def __init__(self, module: nn.Module) -> None:
        self._forward, self._nothing = module.forward, nullcontext()

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """The module's outputs."""
        outputs: tuple[Any, ...] = self._forward(*values)
        return outputs

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Nothing to exchange."""
        return self._nothing


class SingleProcess:
    """One process, alone: every exchange is with itself."""

    rank = 0
    world_size = 1
    local_rank: int | None = None

    def __init__(self) -> None:
        self._nothing = nullcontext()

    def replicate(self, module: nn.Module) -> Replica:
        """The module itself."""
        return Alone(module)

    def shard(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        """Nobody to share them with."""

    def whole(self, state: T) -> T:
        """The state."""
        return state

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """``optimizer.load_state_dict``."""
        optimizer.load_state_dict(dict(state))

    def synced_batchnorm(self, modules: Iterable[nn.Module], group_size: int) -> AbstractContextManager[None]:
        """Nobody to share statistics with."""
        return self._nothing

    def check_equal_start(self, digests: Callable[[], Mapping[str, str]]) -> None:
        """Nobody to differ from."""

    def sum(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return list(values)

    def all_agree(self, ok: bool) -> bool:
        """``ok``."""
        return ok

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
        """Nobody to wait for."""

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives."""
        return make()

    def at_step(self, step: int | None) -> None:
        """Nobody to tell."""

    def guarded(self) -> AbstractContextManager[None]:
        """Nobody to tell."""
        return self._nothing

    def close(self) -> None:
        """Nothing to leave."""
