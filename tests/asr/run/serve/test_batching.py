"""Batches over requests: turns, like lengths, cancelled requests, failures, the wait for requests that come."""

import threading
import time

import numpy as np
import pytest

from nemo_asr.run.serve.batching import Batcher
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcribed, Transcript

RATE = 1000


def row(name, seconds=1.0):
    return Recording(name, np.zeros(round(seconds * RATE), np.float32), RATE, seconds=seconds)


class Model:
    """Notes its batches; waits in front of each while it is held."""

    def __init__(self):
        self.batches = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, rows, search):
        self.free.wait(10)
        self.batches.append([item.source for item in rows])
        if any(item.source == "broken" for item in rows):
            raise RuntimeError("out of memory")
        faults = {position: "it is damaged" for position, item in enumerate(rows) if item.source == "damaged"}
        good = [item for position, item in enumerate(rows) if position not in faults]
        return Transcribed([Transcript(item.source, (), item.seconds, item.source) for item in good], faults, 0.0)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def batcher(model):
    batcher = Batcher(model, batch_size=4, batch_seconds=100.0)
    yield batcher
    model.free.set()
    batcher.close()


@pytest.fixture
def busy(model, batcher):
    """The model computes something, until ``model.free`` is set."""
    model.free.clear()
    batcher.submit([row("first")])
    deadline = time.monotonic() + 10
    while batcher.waiting_seconds:
        assert time.monotonic() < deadline


def texts(job):
    transcripts, faults = job.result.result(10)
    return {number: transcript.text for number, transcript in transcripts.items()}, faults


def test_rows_of_a_request_come_back_under_their_numbers(batcher):
    assert texts(batcher.submit([row("a"), row("damaged"), row("c")])) == ({0: "a", 2: "c"}, {1: "it is damaged"})


def test_a_request_without_speech_is_done_at_once(batcher):
    assert texts(batcher.submit([])) == ({}, {})


def test_requests_that_wait_share_a_batch(model, batcher, busy):
    jobs = [batcher.submit([row(name)]) for name in "abc"]
    model.free.set()
    assert [texts(job)[0] for job in jobs] == [{0: "a"}, {0: "b"}, {0: "c"}]
    assert model.batches == [["first"], ["a", "b", "c"]]


def test_a_long_request_does_not_keep_a_short_one_waiting(model, batcher, busy):
    hour = batcher.submit([row(f"hour {number}") for number in range(20)])
    short = batcher.submit([row("short")])
    model.free.set()
    texts(hour)
    assert texts(short)[0] == {0: "short"}
    assert "short" in model.batches[1]


def test_a_request_of_another_length_has_the_next_turn(model, batcher, busy):
    hour = batcher.submit([row(f"hour {number}", 10.0) for number in range(20)])
    short = batcher.submit([row("short", 0.5)])
    model.free.set()
    texts(hour)
    texts(short)
    assert model.batches[2] == ["short"]


def test_a_batch_holds_no_more_seconds_than_it_may_with_its_padding(model, busy, batcher):
    job = batcher.submit([row(name, 30.0) for name in "abcd"] + [row("alone", 500.0)])
    model.free.set()
    texts(job)
    assert model.batches[1:] == [["a", "b", "c"], ["d"], ["alone"]]


def test_rows_with_another_search_are_in_another_batch(model, batcher, busy):
    plain, hot = batcher.submit([row("a")]), batcher.submit([row("b")], search="hot words")
    model.free.set()
    texts(plain), texts(hot)
    assert model.batches[1:] == [["a"], ["b"]]


def test_what_is_queued_of_a_cancelled_request_is_never_computed(model, batcher, busy):
    gone, other = batcher.submit([row(f"gone {number}") for number in range(9)]), batcher.submit([row("other")])
    assert gone.result.cancel()
    model.free.set()
    texts(other)
    assert model.batches == [["first"], ["other"]]
    assert batcher.waiting_seconds == 0


def test_a_row_that_makes_the_model_fail_ends_its_own_request_and_no_others(model, batcher, busy, caplog):
    jobs = {name: batcher.submit([row(name)]) for name in ("a", "broken", "b", "c")}
    model.free.set()
    with pytest.raises(RuntimeError, match="out of memory"):
        jobs["broken"].result.result(10)
    assert [texts(jobs[name])[0] for name in "abc"] == [{0: "a"}, {0: "b"}, {0: "c"}]
    assert model.batches[1:] == [["a", "broken", "b", "c"], ["a"], ["broken"], ["b"], ["c"]]
    assert "A batch of 4 rows failed: RuntimeError: out of memory" in caplog.text


def test_of_a_request_that_has_failed_nothing_more_is_computed(model, batcher):
    job = batcher.submit([row("broken"), *(row(f"rest {number}") for number in range(9))])
    with pytest.raises(RuntimeError, match="out of memory"):
        job.result.result(10)
    assert texts(batcher.submit([row("a")]))[0] == {0: "a"}
    assert len(model.batches) == 3


def test_a_batch_that_is_too_large_for_the_memory_is_computed_row_by_row():
    def compute(rows, search):
        if len(rows) > 1:
            raise MemoryError("a batch")
        return Transcribed([Transcript(rows[0].source, (), 1.0, rows[0].source)], {}, 0.0)

    batcher, told = Batcher(compute, batch_size=4), []
    job = batcher.submit([row(name) for name in "abcdefg"], on_row=lambda number, _: told.append(number))
    assert texts(job)[0] == dict(enumerate("abcdefg"))
    assert told == list(range(7))
    batcher.close()


def test_a_batch_waits_for_a_request_that_is_about_to_come(model):
    batcher = Batcher(model, batch_size=4, wait=5.0)
    with batcher.expected():
        first = batcher.submit([row("a")])
        time.sleep(0.05)
        assert not first.result.done()
        second = batcher.submit([row("b")])
    texts(first), texts(second)
    assert model.batches == [["a", "b"]]
    batcher.close()


def test_a_request_that_has_come_is_not_waited_for_while_its_thread_goes_on(model):
    batcher = Batcher(model, wait=60.0)
    with batcher.expected() as has_come:
        job = batcher.submit([row("a")])
        has_come()
        assert texts(job)[0] == {0: "a"}
    with batcher.expected():  # counted once
        other = batcher.submit([row("b")])
        time.sleep(0.05)
        assert not other.result.done()
    assert texts(other)[0] == {0: "b"}
    batcher.close()


def test_a_request_that_does_not_come_is_waited_for_no_longer_than_it_may(model):
    batcher = Batcher(model, wait=0.05)
    with batcher.expected():
        assert texts(batcher.submit([row("a")]))[0] == {0: "a"}
    batcher.close()


def test_a_closed_batcher_computes_what_is_queued_and_refuses_more(model, batcher, busy):
    jobs = [batcher.submit([row(name, 1.0)]) for name in "abcdefg"]
    threading.Timer(0.05, model.free.set).start()
    batcher.close()
    assert [texts(job)[0] for job in jobs] == [{0: name} for name in "abcdefg"]
    assert batcher.submit([row("late")]).result.cancelled()


def test_transcripts_are_told_in_the_order_of_the_rows(batcher):
    told = []
    texts(batcher.submit([row(str(number)) for number in range(9)], on_row=lambda number, _: told.append(number)))
    assert told == list(range(9))
