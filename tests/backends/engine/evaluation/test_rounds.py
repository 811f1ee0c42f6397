"""Rounds: how many rounds of batches ranks compute before they exchange results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest
import torch
from toys.fake_comm import FakeComm

from nemo_lite.backends.pytorch.data.loaders import Batch
from nemo_lite.backends.pytorch.engine.evaluation import BatchResult, EvaluationRounds, StopsEarly


class TwoAlike(FakeComm):
    """Two ranks that do and take the same: what one sums counts twice, but each has first rounds of its own."""

    def sum(self, values: Sequence[float]) -> list[float]:
        own, (seconds, num_bytes, *flags) = values[:2], values[2:]
        return [max(own)] * 2 + [2 * seconds, 2 * num_bytes, *flags]


def lengths(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    num_bytes: int = 4,
    world_size: int = 2,
    one_at_a_time: bool = False,
) -> list[int]:
    """How many of 40 batches, of so many seconds and bytes, each block has."""
    now = 0.0

    def compute(number: int, batch: Batch) -> BatchResult:
        nonlocal now
        now += seconds
        return BatchResult(number, None, [torch.empty(num_bytes, dtype=torch.uint8, device="meta")])

    def batches() -> Iterator[Batch]:
        for _ in range(40):
            yield Batch((), None, 1.0, None)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    comm = TwoAlike(0, 2) if world_size == 2 else FakeComm(0, 1)
    return [len(block) for block in EvaluationRounds(batches(), comm, StopsEarly(), one_at_a_time).blocks(compute)]


def test_a_block_takes_about_a_second_and_the_first_which_is_slow_is_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lengths(monkeypatch, seconds=0.125) == [1, 8, 8, 8, 8, 7]
    assert lengths(monkeypatch, seconds=3.0) == [1] * 40
    assert lengths(monkeypatch, seconds=0.001) == [1, 16, 16, 7]


def test_a_block_holds_a_bounded_amount_of_memory_or_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lengths(monkeypatch, 0.001, num_bytes=8 * 2**20) == [1, *[4] * 9, 3]  # 64 MiB on two ranks
    assert lengths(monkeypatch, 0.001, num_bytes=2**30) == [1] * 40


def test_a_process_alone_and_modules_that_run_on_all_ranks_together_go_round_by_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lengths(monkeypatch, 0.001, world_size=1) == [1] * 40
    assert lengths(monkeypatch, 0.001, one_at_a_time=True) == [1] * 40
