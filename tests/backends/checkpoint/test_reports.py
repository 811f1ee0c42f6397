"""What ranks tell rank 0 about their parts: files, errors, nothing in time; and errors that all ranks share."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from toys.fake_comm import FakeComm

from nemo_lite.backends.pytorch.checkpoint.saving import files_of_others, on_every_rank, report_of
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import refusing_unwritable
from nemo_lite.base.verified import VerifiedFile

FINAL = Path("/runs/checkpoint-STEP-5")


class Notes(FakeComm):
    """Rank 0 of three, whose notes come at the second time that it looks."""

    def __init__(self, **notes: str) -> None:
        super().__init__(0, 3)
        self.notes, self.looked = notes, list[str]()

    def take_note(self, key: str) -> str | None:
        self.looked.append(key)
        return self.notes.pop(key.rpartition("/")[2], None) if self.looked.count(key) > 1 else None

    def gather(self, value: Any) -> Any:
        return [value, *self.answers]

    answers: list[Any] = []


def written(name: str) -> str:
    return report_of(lambda: {name: VerifiedFile(name, "0" * 64, 3)})


def full_disk() -> Any:
    with refusing_unwritable(FINAL):
        raise OSError(errno.ENOSPC, "No space left on device")


def broken() -> Any:
    raise RuntimeError("out of luck")


def test_the_files_of_all_other_ranks_are_waited_for() -> None:
    comm = Notes(**{"1": written("a"), "2": written("b")})
    assert files_of_others(comm, "key", FINAL) == {name: VerifiedFile(name, "0" * 64, 3) for name in "ab"}
    assert comm.looked == ["key/1", "key/2"] * 2


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (full_disk, r"rank 2: /runs/checkpoint-STEP-5: the disk is full; free some space"),
        (broken, r"rank 2: its part was not written: got RuntimeError: out of luck"),
    ],
)
def test_an_error_of_another_rank_names_it_once_all_have_told(work: Any, problem: str) -> None:
    comm = Notes(**{"1": written("a"), "2": report_of(work)})
    with pytest.raises(UsageError, match=problem):
        files_of_others(comm, "key", FINAL)


def test_a_rank_that_does_not_come_in_time_is_named() -> None:
    comm = Notes(**{"1": written("a")})
    with pytest.raises(CheckpointError, match="STEP-5: rank 2 did not write its part"):
        files_of_others(comm, "key", FINAL, lambda: len(comm.looked) > 4)


def test_an_error_of_one_rank_is_the_same_on_all_and_nobody_has_to_tell_it() -> None:
    def refuse() -> int:
        raise CheckpointError("bad", place="a.b", got="1")

    assert on_every_rank(FakeComm(), lambda: 3) == 3
    with pytest.raises(CheckpointError, match=r"rank 0: a\.b: bad: got 1") as found:
        on_every_rank(FakeComm(), refuse)
    assert found.value.is_common
    comm = Notes()
    comm.answers = [{}, {"kind": "", "problem": "the disk is full", "place": "/x"}]
    with pytest.raises(UsageError, match="rank 2: /x: the disk is full"):
        on_every_rank(comm, lambda: 3)
