"""Attempt: one outcome for all, and nothing is taken that dead processes left in a launcher's store."""

from __future__ import annotations

import time

import pytest
from torch.distributed import HashStore

from nemo_lite.backends.pytorch.distributed.rendezvous import Attempt, AttemptWatch, Member, Refusal, RunIdentity

RUN = RunIdentity("a.py 1", False, {"script": "a.py"})
NO = Refusal("no", "try again", 2)


def member(rank, pid=1):
    return Member(rank, "node1", pid, "lo", "127.0.0.1", "", [])


@pytest.fixture
def store():
    return HashStore()


@pytest.fixture
def attempt(store):
    return Attempt.open(store, member(0), RUN, 2)


def test_an_attempt_is_found_as_it_was_begun(store, attempt):
    found = Attempt.newest(store)
    assert (found.number, found.prefix, found.run, found.world_size) == (attempt.number, attempt.prefix, RUN, 2)
    assert found.first == "rank 0 (node1, pid 1)"
    assert Attempt.newest(HashStore()) is None


def test_only_an_attempt_whose_rank_0_goes_on_is_living(store, attempt):
    watch = AttemptWatch(store)
    assert [watch.living() for _ in range(3)] == [None] * 3
    attempt.beat()
    assert watch.living().number == attempt.number
    assert watch.living() is None
    newer = Attempt.open(store, member(0, 2), RUN, 2)
    newer.beat()
    assert watch.living() is None  # seen once: it may be as dead as the other one
    newer.beat()
    assert watch.living().number == newer.number != attempt.number
    attempt.beat()
    assert watch.living() is None


def test_an_attempt_is_for_the_processes_of_its_run(attempt):
    assert attempt.is_for(RUN._replace(run_id="b.py 2"), 2)
    assert not attempt.is_for(RUN, 3)
    assert not attempt.is_for(RunIdentity("slurm 1.0", True, {}), 2)


def test_a_rank_is_taken_once(attempt):
    assert attempt.enter(member(0), RUN) is None
    assert not attempt.has_all()
    assert attempt.enter(member(1, 5), RUN) is None
    assert attempt.enter(member(1, 6), RUN) == member(1, 5)
    assert attempt.has_all()
    assert attempt.members() == (member(0), member(1, 5))
    assert attempt.runs() == [RUN, RUN]


def test_the_first_outcome_counts(attempt):
    assert attempt.outcome() is None
    attempt.enter(member(0), RUN)
    attempt.enter(member(1), RUN)
    attempt.seal()
    attempt.refuse(NO)
    assert attempt.outcome() == (member(0), member(1))


def test_what_was_refused_stays_refused(attempt):
    attempt.refuse(NO)
    attempt.refuse(Refusal("too late", ""))
    attempt.seal()
    assert attempt.outcome() == NO
    assert str(NO.error()) == "no; try again"
    assert NO.error().exit_code == 2


def test_rank_0_stays_until_all_know_and_no_longer(attempt):
    attempt.hear(0)
    started, before = time.perf_counter(), attempt.beats()
    attempt.stay(2, 0.2)
    assert time.perf_counter() - started >= 0.2
    assert attempt.beats() > before
    assert not attempt.was_heard(1)
    attempt.hear(1)
    assert attempt.was_heard(1)
    started = time.perf_counter()
    attempt.stay(2, 10.0)
    assert time.perf_counter() - started < 5
