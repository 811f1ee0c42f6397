"""Another number of ranks: refused by name, or told with what it changes; the items of the epoch come once each."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys.ranks import results_of
from toys.resumable import DrawingPoints, Trained, factory, train

from nemo_lite.backends.pytorch.engine.checkpoints import check_world_size
from nemo_lite.backends.pytorch.engine.resuming import Pace, told
from nemo_lite.base.errors import CheckpointError

ALLOWED = {"step_freq": 10**6, "allow_world_size_change": True}


def test_another_number_is_refused_with_both_numbers_and_the_option() -> None:
    with pytest.raises(CheckpointError) as caught:
        check_world_size({"pace": [4, 1, 9]}, 3, False, "run/checkpoint-STEP-5")
    assert str(caught.value) == (
        "run/checkpoint-STEP-5: the checkpoint was saved by another number of processes: got 4 saved it, 3 would go "
        "on, wanted as many; start 4; or give --allow_world_size_change "
        "(CheckpointCallback(allow_world_size_change=True)): what is left of the epoch is divided anew, and what that "
        "changes is told"
    )


def test_the_same_number_an_allowed_one_and_checkpoints_of_nemo_pass() -> None:
    check_world_size({"pace": [4, 1, 9]}, 4, False, "")
    check_world_size({"pace": [4, 1, 9]}, 3, True, "")
    check_world_size({"step": 3}, 3, False, "")


def test_what_changes_is_told_with_what_keeps_it() -> None:
    assert [*told(Pace(2, 3, 90), Pace(3, 3, 60))] == [
        "2 processes saved the checkpoint, 3 will go on with it",
        "effective batch: 3 x 3 batches a step instead of 2 x 3, 1.5 times as many items; batches_per_step=2 "
        "(--iter_per_step) keeps it",
        "learning rate: it stays as it is given; for such a batch usual are 1.5 times of it, or 1.22 times with Adam "
        "and its like",
        "warm-up and schedule: they count steps: an epoch has 20 steps instead of 30; to keep their lengths in epochs, "
        "give 0.667 times the steps of each (--warmup_steps, --hold_steps, --max_steps)",
    ]
    assert "0.75 times the batch_size keeps it" in [*told(Pace(3, 1), Pace(4, 1))][1]


def test_where_a_step_has_as_many_batches_nothing_needs_a_change() -> None:
    assert [*told(Pace(4, 1, 10), Pace(2, 2, 20))][1:] == [
        "the effective batch, the learning rate and the steps of an epoch stay what they were"
    ]
    assert not [*told(Pace(2, 1), Pace(2, 3))]


def first_steps(folder: Path) -> list[int]:
    data = DrawingPoints(n=24)
    train(folder, 3, made=factory(), data=data)
    return data.reads[: 3 * 2]


def test_each_item_of_the_epoch_comes_once_over_both_numbers_of_ranks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    by_rank = results_of(2, first_steps, tmp_path)
    with pytest.raises(CheckpointError, match="got 2 saved it, 1 would go on"):
        train(tmp_path, 99, data=DrawingPoints(n=24))
    data = DrawingPoints(n=24)

    def go_on(max_steps: int) -> Trained:
        return train(tmp_path, max_steps, data=data, saving=ALLOWED)

    # Stopped once more on the way, then to the epoch's end: 12 items are left, two a step.
    assert [index for index, _, _ in go_on(5).steps] == [3, 4]
    read = data.reads[:4]
    data.reads.clear()
    train(tmp_path, 99, data=data, saving=ALLOWED, params={"num_epochs": 1})
    assert sorted([*by_rank[0], *by_rank[1], *read, *data.reads]) == [*range(24)]
    assert "2 processes saved the checkpoint, 1 will go on with it" in caplog.messages
    places = [line.rpartition("going on at ")[2] for line in caplog.messages if "going on at step" in line]
    assert places == [
        "step 3, in epoch 1 after 3 batches with 2 processes",
        "step 5, in epoch 1 after 3 batches with 2 processes and 2 batches with 1 process",
    ]
