"""Signals that end a program: which are taken over, and what becomes of the user's handlers. Runs: test_stopping.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from nemo_lite.base.errors import reported_to_user
from nemo_lite.base.interruption import STOP_SIGNALS, Interrupted, flags_of, signal_in, stop_signals


@pytest.fixture(autouse=True)
def _as_in_a_program() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def hit_by(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


def test_a_signal_outside_of_training_raises_at_once() -> None:
    with pytest.raises(Interrupted, match="stopped by SIGTERM") as caught, stop_signals():
        hit_by(signal.SIGTERM)
    assert caught.value.exit_code == 75
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == [signal.SIG_DFL] * 4


def test_a_deferred_signal_is_noted_and_told() -> None:
    told: list[str] = []
    with stop_signals() as signals, signals.deferred(told.append):
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
    assert signals.received == signal.SIGUSR1
    assert told == ["SIGUSR1: stopping after this step; a second signal leaves at once"]


def test_a_handler_of_the_users_stays() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    with stop_signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    assert (calls, signals.received) == ([signal.SIGTERM], 0)


def test_inner_and_outer_are_one() -> None:
    with stop_signals() as outer:
        with stop_signals() as inner:
            assert inner is outer
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_another_thread_takes_nothing_over() -> None:
    seen: list[object] = []

    def work() -> None:
        with stop_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_forked_process_has_the_handlers_of_before() -> None:
    with stop_signals():
        child = os.fork()
        if not child:
            is_as_before = all(signal.getsignal(number) == signal.SIG_DFL for number in STOP_SIGNALS)
            os._exit(0 if is_as_before else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signals.received == 0


CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGHUP, 75)]


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_script_ends_with_one_line_and_the_code_of_its_signal(
    number: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, reported_to_user():
        hit_by(number)
    assert ended.value.code == code
    name = signal.Signals(number).name
    assert capsys.readouterr().err == f"{name}: stopped; nothing had to be saved\n"


def test_ranks_can_add_their_signals_up() -> None:
    sums = [a + b for a, b in zip(flags_of(0), flags_of(signal.SIGTERM), strict=True)]
    assert (signal_in(sums), signal_in(flags_of(0))) == (signal.SIGTERM, 0)
