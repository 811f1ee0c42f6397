"""The work on recordings: turns of threads, bounds, deadlines, ends."""

import threading
import time

import pytest

from nemo_asr.run.serve.openai_api import ApiError
from nemo_asr.run.serve.watching import Turns, Watch
from nemo_lite.base.errors import DataError

TOO_LATE = ApiError(503, "it took too long")


def watch(turns, seconds=60.0, most_values=100):
    return Watch(turns, most_values, time.monotonic() + seconds, TOO_LATE)


def test_a_watch_ends_work_that_is_too_much_too_late_or_not_wanted():
    for watched, num_values, told in (
        (watch(Turns(1)), 101, "file: it has too many samples, wanted at most 100 of all channels; resample it"),
        (watch(Turns(1), seconds=-1.0), 1, "it took too long"),
    ):
        with pytest.raises(DataError, match=told):
            watched(num_values)
        assert watched.problem.message.startswith(told)
    left = watch(Turns(1))
    left(100)
    left.end(ApiError(499, "the client has left"))
    left.end(ApiError(500, "later"))
    with pytest.raises(DataError, match="the client has left"):
        left(1)


@pytest.mark.slow
def test_who_has_worked_least_is_next():
    turns, order, begun = Turns(1), [], threading.Event()

    def work(name, pieces):
        watched = watch(turns)
        with watched:
            begun.set()
            for _ in range(pieces):
                time.sleep(0.03)
                watched(1)
        order.append(name)

    threads = [threading.Thread(target=work, args=("long", 20))]
    threads[0].start()
    assert begun.wait(10)
    time.sleep(0.1)
    threads += [threading.Thread(target=work, args=(name, 1)) for name in ("short", "short")]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == ["short", "short", "long"]


@pytest.mark.slow
def test_no_more_threads_work_at_a_time_than_may():
    turns, lock, working, most = Turns(2), threading.Lock(), [], []

    def work():
        watched = watch(turns)
        with watched:
            for _ in range(3):
                with lock:
                    working.append(1)
                    most.append(len(working))
                time.sleep(0.06)
                with lock:
                    working.pop()
                watched(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert max(most) == 2
    assert len(most) == 18


@pytest.mark.parametrize("is_behind_its_deadline", [False, True])
def test_who_waits_for_its_turn_waits_no_longer_than_it_has_to(is_behind_its_deadline):
    turns = Turns(1)
    with watch(turns):
        waiting = watch(turns, seconds=0.1 if is_behind_its_deadline else 60.0)
        if not is_behind_its_deadline:
            threading.Timer(0.1, waiting.end, [ApiError(499, "the client has left")]).start()
        started = time.monotonic()
        with pytest.raises(DataError, match="it took too long" if is_behind_its_deadline else "the client has left"):
            waiting.__enter__()
        assert time.monotonic() - started < 1
    with watch(turns):
        pass  # the place is free again
