"""TrackingCallback: which records a run gives, when, and on which rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys.fake_action_state import FakeState, train

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks import (
    CallbackList,
    NeMoCallback,
    TrackingCallback,
)
from nemo_lite.core.callbacks.action_state import EvaluationResult
from nemo_lite.core.trackers import Tracker, Trackers


class Kept(Tracker):
    """Keeps what it gets."""

    def __init__(self):
        self.records, self.is_closed = [], False

    def write(self, record):
        self.records.append({key: value for key, value in record.items() if key != "time"})

    def close(self):
        self.is_closed = True


class Evaluates(NeMoCallback):
    """Publishes a result after step 2, and at the end."""

    def on_step_end(self, state):
        if state.step == 1:
            self._publish(state)

    def on_action_end(self, state):
        self._publish(state)

    def _publish(self, state):
        state.publish(lambda: EvaluationResult("dev", state.step + 1, {"wer": 0.5, "note": "x"}, 4, "ab", 1.23456))


def test_a_run_gives_its_start_its_steps_its_evaluations_and_its_end():
    kept, state = Kept(), FakeState(total_steps=5)
    callback = TrackingCallback(Trackers([kept]), step_freq=2, start={"arguments": {"lr": 1}, "precision": "O0"})
    train(state, [callback, Evaluates()])
    assert kept.records[0] == {
        **{"kind": "start", "arguments": {"lr": 1}, "precision": "O0", "world_size": 1, "total_steps": 5}
    }
    about = [(record["kind"], record.get("step")) for record in kept.records[1:]]
    assert about == [("train", 1), ("train", 2), ("evaluation", 2), ("train", 4), ("evaluation", 5), ("end", 5)]
    assert kept.records[2] == {
        **{"kind": "train", "step": 2, "epoch": 1, "loss": 1.5, "lr": 0.01, "amount_per_second": 100.0},
        **{"amount_unit": "audio-s", "data_wait_share": 0.2, "step_seconds": 0.25},
    }
    evaluation = {"kind": "evaluation", "step": 2, "set": "dev", "wer": 0.5, "note": "x", "num_items": 4}
    assert kept.records[3] == {**evaluation, "digest": "ab", "seconds": 1.235}
    end = kept.records[-1]
    assert (end["epoch"], end["reason"], kept.is_closed) == (1, "finished", True)
    assert 0 <= end["seconds"] < 10


def test_the_loss_is_read_at_recorded_steps_only():
    state = FakeState()
    train(state, [TrackingCallback(Trackers([Kept()]), step_freq=4)], steps_per_epoch=9)
    assert state.reads == [0.5, 3.5, 7.5]


def test_a_run_that_goes_on_records_its_own_first_step():
    kept = Kept()
    train(FakeState(step=7, epoch=2), [TrackingCallback(Trackers([kept]), step_freq=100)], steps_per_epoch=2)
    assert [(record["kind"], record.get("step")) for record in kept.records] == [
        ("start", None),
        ("train", 8),
        ("end", 9),
    ]


def test_a_run_that_was_asked_to_stop_says_why():
    class Stops(NeMoCallback):
        def on_step_end(self, state):
            state.request_stop("no progress")

    kept = Kept()
    train(FakeState(), [TrackingCallback(Trackers([kept])), Stops()])
    assert kept.records[-1]["reason"] == "no progress"


def test_a_run_that_fails_is_recorded_as_failed():
    class Fails(NeMoCallback):
        def on_step_end(self, state):
            raise RuntimeError

    kept = Kept()
    callback = TrackingCallback(Trackers([kept]))
    with pytest.raises(RuntimeError):
        train(FakeState(), [callback, Fails()])
    callback.close()  # as the engine does
    assert [record["kind"] for record in kept.records] == ["start", "train", "end"]
    assert (kept.records[-1]["step"], kept.records[-1]["reason"], kept.is_closed) == (1, "failed", True)


def test_other_ranks_record_nothing_but_make_the_same_calls():
    first, other = (FakeState(local_rank=rank, global_rank=rank, world_size=2) for rank in (0, 1))
    kept = Kept()
    train(first, [TrackingCallback(Trackers([Kept()]), 2), Evaluates()])
    train(other, [TrackingCallback(Trackers([kept]), 2), Evaluates()])
    assert kept.records == []
    assert first.collective == other.collective


def test_a_frequency_below_one_is_an_error():
    with pytest.raises(UsageError, match=r"TrackingCallback\.step_freq is 0, wanted int from 1 on"):
        TrackingCallback(Trackers(), step_freq=0)


@pytest.mark.parametrize(("is_epoch_over", "epoch"), [(True, 4), (False, 5)])
def test_a_run_with_nothing_left_to_train_ends_where_its_checkpoint_brought_it(is_epoch_over, epoch):
    kept, state = Kept(), FakeState()
    called = CallbackList([TrackingCallback(Trackers([kept]))])
    called.notify("on_action_start", state)
    state.step, state.epoch, state.is_epoch_over = 12, 4, is_epoch_over  # four epochs are done
    called.notify("on_action_end", state)
    called.close()
    end = kept.records[-1]
    assert (end["kind"], end["step"], end["epoch"], end["reason"]) == ("end", 12, epoch, "finished")


def test_the_parts_of_a_loss_are_recorded_where_the_loss_is():
    ctc, attention = object(), object()
    kept, state = Kept(), FakeState(total_steps=3)
    state.values |= {ctc: torch.tensor(40.0), attention: torch.tensor(2.125)}
    losses: Any = {"ctc": ctc, "attention": attention}
    callback = TrackingCallback(Trackers([kept]), step_freq=2, losses=losses)
    assert callback.wanted_wires() == [ctc, attention]
    train(state, [callback])
    steps = [record for record in kept.records if record["kind"] == "train"]
    assert [(each["loss"], each["loss_ctc"], each["loss_attention"]) for each in steps] == [
        (0.5, 40.0, 2.125),
        (1.5, 40.0, 2.125),
        (3.5, 40.0, 2.125),
    ]
