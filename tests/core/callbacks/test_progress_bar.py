"""ProgressBar: on a terminal and off it, against a fake action."""

from __future__ import annotations

import io
import math
import sys

import pytest
from toys.fake_action_state import FakeState, Scalar, train

from nemo_lite.core.callbacks import (
    CallbackList,
    on_step_end,
)
from nemo_lite.core.callbacks.tracking import ProgressBar
from nemo_lite.utils import logging


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Makes stderr a terminal; called in a test's body, for between set-up and body pytest puts its own stderr back."""

    def make():
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return make


def test_without_a_terminal_it_reads_and_writes_nothing(capsys):
    state = FakeState(total_steps=5)
    train(state, [ProgressBar(0.0)])
    assert state.reads == []
    assert capsys.readouterr().err == ""


def test_without_a_stderr_at_all_it_reads_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert train(FakeState(), [ProgressBar(0.0)]).reads == []


def test_it_shows_steps_loss_time_throughput_and_the_wait_for_data(on_terminal):
    terminal = on_terminal()
    train(FakeState(total_steps=5), [ProgressBar(0.0)])
    last = terminal.getvalue().split("\r")[-1]
    assert "5/5" in last
    # The moving loss of 0.5, 1.5, ... 4.5: each reading weighs 0.3.
    loss = 0.5
    for step in range(1, 5):
        loss = 0.7 * loss + 0.3 * (step + 0.5)
    assert f"loss {loss:.4g}, 100 audio-s/s, data 20%]" in last


def test_it_has_one_speed_and_a_bar_within_80_columns(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr(ProgressBar, "_text", lambda self, timing: "loss 12.34, 1234 audio-s/s, data 100%")
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda stream: (80, 24))
    state = FakeState(step=123455, total_steps=654321)
    train(state, [ProgressBar(0.0)], steps_per_epoch=2)
    last = terminal.getvalue().rstrip("\n").split("\r")[-1]
    assert len(last) <= 80
    assert "|" in last.replace("||", ""), "there is a bar"
    assert last.count("/s") == 1
    assert last.endswith("left, loss 12.34, 1234 audio-s/s, data 100%]")


def test_a_resumed_run_begins_where_it_stood(on_terminal):
    terminal = on_terminal()
    train(FakeState(step=7, total_steps=10), [ProgressBar()], steps_per_epoch=3)
    assert "7/10" in terminal.getvalue().split("\r")[1]
    assert "10/10" in terminal.getvalue()


def test_a_run_of_unknown_length_counts_its_steps(on_terminal):
    terminal = on_terminal()
    train(FakeState(), [ProgressBar()], steps_per_epoch=3)
    assert "3 steps [" in terminal.getvalue()


def test_the_loss_is_read_rarely(on_terminal):
    on_terminal()
    state = FakeState(total_steps=200)
    train(state, [ProgressBar(seconds_between_readings=3600)], steps_per_epoch=200)
    assert state.reads == [0.5]


def test_a_loss_that_is_not_finite_is_shown_and_then_forgotten(on_terminal):
    on_terminal()
    bar, state = ProgressBar(0.0), FakeState()
    shown = []
    state.get_tensor = lambda name: Scalar(math.nan if state.step == 1 else 2.0, [])
    train(state, [bar, on_step_end(lambda state: shown.append(bar._loss))], steps_per_epoch=4)
    assert math.isnan(shown[1])
    assert [shown[0], *shown[2:]] == pytest.approx([2.0, 2.0, 2.0])


def test_log_lines_appear_whole_above_the_bar(on_terminal, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = on_terminal()

    def log(state):
        logging.info("line %d", state.step)
        logging.warning("warning %d", state.step)

    train(FakeState(total_steps=2), [ProgressBar(), on_step_end(log)], steps_per_epoch=2)
    out = capsys.readouterr().out.splitlines()
    assert [line.rpartition("] ")[2] for line in out] == ["line 0", "line 1"]
    above = terminal.getvalue().split("warning: ")
    assert len(above) == 3
    assert all(part.endswith("\r") for part in above[:-1]), "the bar is wiped before a line is written"
    assert [part.split("\n")[0] for part in above[1:]] == ["warning 0", "warning 1"]


def test_after_the_run_log_lines_go_their_usual_way(on_terminal, monkeypatch):
    terminal = on_terminal()
    patched = []
    train(FakeState(), [ProgressBar()])
    monkeypatch.setattr("nemo_lite.core.callbacks.tracking.tqdm.write", lambda *args, **kwargs: patched.append(args))
    logging.warning("after")
    assert patched == []
    assert "after" in terminal.getvalue()


def test_close_ends_the_line_after_an_error(on_terminal):
    terminal = on_terminal()

    @on_step_end
    def fail(state):
        raise RuntimeError("in a step")

    bar = ProgressBar()
    with pytest.raises(RuntimeError):
        train(FakeState(total_steps=5), [bar, fail])
    assert not terminal.getvalue().endswith("\n")
    bar.close()
    assert terminal.getvalue().endswith("\n")
    bar.close()


def test_other_ranks_show_and_read_nothing(on_terminal):
    terminal = on_terminal()
    state = train(FakeState(global_rank=1, world_size=2), [ProgressBar(0.0)])
    assert (terminal.getvalue(), state.reads) == ("", [])


def test_ranks_call_the_same_with_and_without_a_terminal(on_terminal):
    without = train(FakeState(global_rank=1, world_size=2), [ProgressBar()])
    on_terminal()
    assert train(FakeState(global_rank=0, world_size=2), [ProgressBar()]).collective == without.collective != []


def test_evaluation_alone_shows_no_bar(on_terminal):
    terminal = on_terminal()
    CallbackList([ProgressBar()]).notify("on_action_end", FakeState())
    assert terminal.getvalue() == ""


def test_a_bar_over_items_gives_them_all(on_terminal):
    terminal = on_terminal()
    with ProgressBar.over(range(3), True, "infer") as items:
        assert list(items) == [0, 1, 2]
    assert "infer: 100%" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_a_bar_over_items_is_only_for_terminals_and_the_verbose(on_terminal, monkeypatch, capsys):
    terminal = on_terminal()
    items = range(3)
    with ProgressBar.over(items, False, "infer") as shown:
        assert shown is items
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressBar.over(items, True, "infer") as shown:
        assert shown is items
    assert terminal.getvalue() == sys.stderr.getvalue() == ""
