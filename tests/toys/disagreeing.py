"""Ranks that are about to run different things, one after the other in one process: what they are told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from unittest import mock

import torch

from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.base.errors import UsageError
from toys.fake_comm import FakeComm

T = TypeVar("T")
Run = Callable[["TalkingComm"], object]


class _Sent(Exception):  # noqa: N818  # it is no error
    """A rank has sent what it is about to run, and waits for the others."""


class _Agreed(Exception):  # noqa: N818
    """The ranks agree: now weights would travel, or be read."""


class TalkingComm(FakeComm):
    """A rank whose first gathering is answered with what the others sent, or never."""

    def __init__(self, rank: int, world_size: int, arrived: Sequence[Any] | None = None) -> None:
        super().__init__(rank, world_size)
        self.arrived, self.sent = arrived, None

    def gather(self, value: T) -> list[T] | None:
        self.sent = value
        if self.arrived is None:
            raise _Sent
        return [*self.arrived]

    def replicate(self, module: torch.nn.Module, options: Any = None) -> Any:
        raise _Agreed

    def on_first(self, make: Callable[[], T]) -> T | None:
        if self.sent is not None:
            raise _Agreed
        return super().on_first(make)

    def from_first(self, make: Callable[[], T]) -> T:
        if self.sent is not None:
            raise _Agreed
        return super().from_first(make)


def told(*runs: Run, commands: Sequence[str] = ()) -> str | None:
    """The error that rank 0 gets where rank i does ``runs[i]``, before any weight travels; None without one.

    Args:
        runs: what each rank does with its group.
        commands: the command line of each rank; by default they have none.
    """
    sent = []
    for rank, run in enumerate(runs):
        comm = TalkingComm(rank, len(runs))
        words = commands[rank].split() if commands else ["train.py"]
        with suppress(_Sent), mock.patch.object(sys, "argv", words):
            run(comm)
        sent.append(comm.sent)
    try:
        with suppress(_Agreed):
            runs[0](TalkingComm(0, len(runs), sent))
    except UsageError as error:
        return str(error)
    return None


def actions(comm: Any, **settings: Any) -> PtActions:
    """The actions of one rank, on the CPU."""
    return PtActions(comm=comm, device=torch.device("cpu"), **settings)
