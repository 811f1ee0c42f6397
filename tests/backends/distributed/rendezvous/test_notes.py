"""Notes between ranks: taken once, by their key, on one connection that is made late; lost with the store."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch.distributed as dist
from torch.distributed import HashStore

from nemo_lite.backends.pytorch.distributed.rendezvous import Notes


def test_a_note_is_taken_once_by_its_key_and_the_connection_is_made_when_it_is_used() -> None:
    made: list[HashStore] = []

    def connect() -> HashStore:
        made.append(HashStore())
        return made[-1]

    notes = Notes(connect)
    assert made == []
    assert notes.take("a") is None
    notes.leave("a", "told")
    assert [notes.take("b"), notes.take("a"), notes.take("a")] == [None, "told", None]
    assert len(made) == 1


class Closed:
    def set(self, *_: Any) -> None:
        raise dist.DistNetworkError("Broken pipe")

    def check(self, *_: Any) -> bool:
        raise dist.DistNetworkError("Broken pipe")


def test_a_note_for_a_rank_that_is_gone_is_lost_and_nobody_waits_for_one_of_it() -> None:
    notes = Notes(cast("Any", Closed))
    notes.leave("a", "told")
    with pytest.raises(dist.DistNetworkError):
        notes.take("a")
