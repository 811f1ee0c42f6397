"""FakeComm: one rank of a world whose other ranks answer as a test tells them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed.comm import PLAIN_REPLICA, Alone, Replica, ReplicaOptions, SingleProcess


class FakeComm(SingleProcess):
    """One rank of a world whose other ranks answer as a test tells them to; what it is asked is noted in ``calls``.

    Args:
        rank: which rank this is.
        world_size: how many there are.
        answers: by method (``sum``, ``all_agree``): the results it gives, one a call; once they run out, what the
            method would give if all ranks did the same.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, answers: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__()
        self.rank, self.world_size, self.local_rank = rank, world_size, rank
        self._answers = {name: list(values) for name, values in (answers or {}).items()}
        self.calls: list[tuple[str, Any]] = []

    def replicate(self, module: nn.Module, options: ReplicaOptions = PLAIN_REPLICA) -> Replica:
        """The module; its synchronisations are noted."""
        return _FakeReplica(module, self.calls)

    def sum(self, values: Sequence[float]) -> list[float]:
        """The next answer, or the values times the number of ranks."""
        self.calls.append(("sum", list(values)))
        answers = self._answers.get("sum")
        return answers.pop(0) if answers else [value * self.world_size for value in values]

    def sum_on_device(self, number: torch.Tensor) -> None:
        """The number times the number of ranks."""
        number *= self.world_size

    def all_agree(self, ok: bool) -> bool:
        """Whether this rank and the scripted others agree."""
        self.calls.append(("all_agree", ok))
        answers = self._answers.get("all_agree")
        return ok and (answers.pop(0) if answers else True)


class _FakeReplica(Alone):
    def __init__(self, module: nn.Module, calls: list[tuple[str, Any]]) -> None:
        super().__init__(module)
        self._calls = calls

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        self._calls.append(("sync_only_if", is_last))
        return super().sync_only_if(is_last)
