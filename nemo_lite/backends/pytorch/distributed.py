"""Comm: what processes say to each other, as one object. The only place that knows which process is the first.

This file holds the single process, complete, and a fake for tests of what ranks decide together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from torch import nn

T = TypeVar("T")


class Comm(Protocol):
    """What the engine asks of the group of processes."""

    rank: int
    world_size: int
    local_rank: int | None

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over the ranks. Hold on to the result for as long as it trains."""

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch: gradients are exchanged on the last one only."""

    def all_agree(self, ok: bool) -> bool:
        """Whether ``ok`` holds on every rank; the same answer everywhere."""

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks."""

    def gather(self, items: Sequence[tuple[int, T]]) -> list[tuple[int, T]]:
        """Every rank's numbered items, each number once, in order of the numbers."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives, called on the first rank only; ``None`` on the others."""

    def close(self) -> None:
        """Leave the group."""


class SingleProcess:
    """One process, alone: every exchange is with itself."""

    rank = 0
    world_size = 1
    local_rank: int | None = None

    def __init__(self) -> None:
        self._nothing = nullcontext()

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module itself."""
        return module

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Nothing to exchange."""
        return self._nothing

    def all_agree(self, ok: bool) -> bool:
        """``ok``."""
        return ok

    def sum(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return list(values)

    def gather(self, items: Sequence[tuple[int, T]]) -> list[tuple[int, T]]:
        """The items by number, each number once."""
        return sorted(dict(items).items(), key=lambda item: item[0])

    def barrier(self) -> None:
        """Nobody to wait for."""

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives."""
        return make()

    def close(self) -> None:
        """Nothing to leave."""


class FakeComm(SingleProcess):
    """One rank of a world whose other ranks answer as a test tells them to.

    Args:
        rank: which rank this is.
        world_size: how many there are.
        others_agree: the other ranks' answers to :meth:`all_agree`, one a call; True once they run out.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, others_agree: Sequence[bool] = ()) -> None:
        super().__init__()
        self.rank, self.world_size, self.local_rank = rank, world_size, rank
        self._others_agree = list(others_agree)
        self.calls: list[tuple[str, Any]] = []

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Noted in ``calls``."""
        self.calls.append(("sync_only_if", is_last))
        return super().sync_only_if(is_last)

    def all_agree(self, ok: bool) -> bool:
        """Whether this rank and the scripted others agree; noted in ``calls``."""
        self.calls.append(("all_agree", ok))
        return ok and (self._others_agree.pop(0) if self._others_agree else True)

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives on rank 0, ``None`` on others."""
        return make() if self.rank == 0 else None
