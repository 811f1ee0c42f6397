"""The account of unusable items: its budget, its reports, and one account for all ranks."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from toys.ranks import on_ranks

from nemo_lite import DeviceType, NeuralModuleFactory
from nemo_lite.backends.pytorch.data.loaders import Counts, Loaded, UnusableItems, budget_of
from nemo_lite.backends.pytorch.distributed.comm import Comm, SingleProcess
from nemo_lite.base.errors import DataError, listed


def account_of(budget: int, **options: object) -> UnusableItems:
    return UnusableItems("set", budget, lambda item: f"set:{item}", **options)  # type: ignore[arg-type]


def faulty(*items: int, **counts: dict[str, int]) -> Loaded:
    return Loaded(faults=[(item, f"set:{item}: it is bad") for item in items], counts=counts)


@pytest.mark.parametrize(
    ("max_corrupt", "num_items", "training", "budget"),
    [
        *[(3, 100, training, 3) for training in (True, False)],
        (0.25, 40, False, 10),
        (0, 40, True, 0),
        (None, 40, True, 4),
        (None, 1000, True, 10),
        (None, 30_000, True, 30),
        (None, 30_000, False, 0),
    ],
)
def test_the_budget_is_a_number_or_a_share(
    max_corrupt: float | None, num_items: int, training: bool, budget: int
) -> None:
    assert budget_of(max_corrupt, num_items, training) == budget


def test_more_faults_than_the_budget_end_the_run_and_are_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    account = account_of(1, noun="word", remedy="mend them")
    account.note(faulty(4))
    account.note(faulty(4))  # the same one in another epoch
    with pytest.raises(DataError) as error:
        account.note(faulty(2))
    assert str(error.value) == (
        "set: 2 words cannot be used and max_corrupt allows 1; mend them\nset:4: it is bad\nset:2: it is bad"
    )
    account.report()
    assert capsys.readouterr().err == ""
    with pytest.raises(DataError, match=r"^set:7: it is bad; 1 item cannot be used and max_corrupt allows 0: mend or"):
        account_of(0).note(faulty(7))


def test_a_reason_that_does_not_start_with_its_place_gets_it() -> None:
    account = account_of(2)
    account.note(Loaded(faults=[(1, "it is bad"), (2, "set:2: it is bad")]))
    assert account.faults == {1: "set:1: it is bad", 2: "set:2: it is bad"}


def test_a_reason_to_end_the_run_does_so_whatever_the_budget() -> None:
    with pytest.raises(DataError, match=r"^the set changed$"):
        account_of(9).note(Loaded(fatal="the set changed"))


def test_reports_tell_new_faults_and_tell_the_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Counts] = []
    account = account_of(9, tell_counts=told.append)
    account.note(faulty(3, read={"a": 1, "b": 2}))
    account.note(faulty(read={"b": 1}))
    account.settle(SingleProcess())
    account.note(faulty(read={"b": 1}))
    account.report()
    assert "set: 1 item skipped so far (max_corrupt 9):\n  set:3: it is bad" in capsys.readouterr().err
    assert told == [{"read": {"a": 1, "b": 4}}]
    account.report()
    assert capsys.readouterr().err == ""
    account.note(faulty(5))
    account.report()
    assert "set: 2 items skipped so far (max_corrupt 9), 1 of them new:\n  set:5: it is bad" in capsys.readouterr().err
    assert len(told) == 1


class CountingReads(dict[int, str]):
    """Faults that count how often all of them are read."""

    num_reads = 0

    def values(self) -> Any:
        self.num_reads += 1
        return super().values()


def test_a_batch_without_faults_costs_the_same_however_many_there_were_before() -> None:
    account = account_of(1000)
    account.faults = faults = CountingReads()
    account.note(faulty(*range(1000)))
    account.note(faulty())
    assert faults.num_reads == 0


def test_a_long_list_is_cut_and_says_how_many_more_there_are() -> None:
    assert listed(list("abc"), 3) == "a\nb\nc"
    assert listed(list("abcdefg"), 9).splitlines() == [*"abcde", "... and 4 more"]


def noted_by_ranks(budget: int) -> dict[int, str]:
    """Each rank notes items of its own and one of all; twice, so that settled ones are not settled again."""
    comm: Comm = NeuralModuleFactory(placement=DeviceType.CPU)._comm
    with comm.guarded():
        account = account_of(budget, tell_counts=lambda counts: print("counted", dict(counts["read"])))
        for _ in range(2):
            account.note(faulty(9, 4 - comm.rank, read={"x": 1 + comm.rank}))
            account.settle(comm)
            account.report()
    comm.close()
    return account.faults


def test_ranks_settle_to_one_account_and_rank_0_tells_it_once() -> None:
    first, second = on_ranks(2, noted_by_ranks, 3)
    assert first.code == second.code == 0, first.err + second.err
    assert list(first.result) == [3, 4, 9]
    assert first.result == second.result
    assert first.out.count("counted {'x': 3}") == first.out.count("counted") == 1
    host = socket.gethostname()
    assert f"\n  rank 1 ({host}): set:3: it is bad\n  rank 0 ({host}): set:4: it is bad\n" in first.err
    assert first.err.count("3 items skipped so far (max_corrupt 3):") == first.err.count("skipped so far") == 1


def test_ranks_together_exceed_a_budget_that_each_alone_keeps_and_fail_alike() -> None:
    ends = on_ranks(2, noted_by_ranks, 2)
    assert [end.code for end in ends] == [2, 2]
    told = [end.err.partition("DataError: ")[2] for end in ends if "DataError: " in end.err]
    assert told[0].startswith("set: 3 items cannot be used and max_corrupt allows 2; mend or leave out")
    assert set(told) == {told[0]}


def test_a_resumed_run_counts_on_from_the_faults_of_before() -> None:
    before = account_of(2)
    before.note(faulty(5, 3))
    resumed = account_of(2)
    resumed.load_state_dict([before.state_dict()])
    resumed.note(faulty(3))
    assert list(resumed.faults) == [5, 3]
    with pytest.raises(DataError, match="max_corrupt allows 2"):
        resumed.note(faulty(7))


def test_a_run_of_other_ranks_counts_on_from_the_faults_of_all() -> None:
    accounts = [account_of(9), account_of(9)]
    for account, item in zip(accounts, (5, 3), strict=True):
        account.note(faulty(item))
    resumed = account_of(9)
    resumed.load_state_dict([account.state_dict() for account in accounts])
    assert (list(resumed.faults), len(resumed.state_dict()["settled"])) == ([3, 5], 2)
