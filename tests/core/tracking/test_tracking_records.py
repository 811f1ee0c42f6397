"""Trackers: each gets every record, one that fails is left out; the numbers of a record by tag."""

from __future__ import annotations

import re

import pytest

from nemo_lite.core.trackers import Tracker, Trackers, numbers_of


class Kept(Tracker):
    """Keeps what it gets."""

    def __init__(self, problem=None):
        self.records, self.num_closed, self.problem = [], 0, problem

    def write(self, record):
        if self.problem is not None:
            raise self.problem
        self.records.append(record)

    def close(self):
        self.num_closed += 1
        if self.records[-1:] and self.records[-1]["kind"] == "poison":
            raise ConnectionError("gone")


def test_every_tracker_gets_kind_time_and_fields():
    first, second = Kept(), Kept()
    trackers = Trackers([first, second])
    trackers.record("checkpoint", step=7, epoch=1, path="x")
    trackers.close()
    trackers.close()
    (record,) = first.records
    assert second.records == [record]
    assert [*record] == ["kind", "time", "step", "epoch", "path"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
    assert first.num_closed == 1


@pytest.mark.parametrize(
    ("problem", "told"), [(OSError(28, "No space left"), "No space left"), (ValueError(), "ValueError")]
)
def test_a_tracker_that_fails_is_warned_of_once_and_left_out(problem, told, capsys):
    broken, kept = Kept(problem), Kept()
    trackers = Trackers([broken, kept])
    for step in range(3):
        trackers.record("train", step=step)
    trackers.close()
    assert [record["step"] for record in kept.records] == [0, 1, 2]
    (warning,) = capsys.readouterr().err.splitlines()
    assert re.search(f"Kept takes no more records of this run: .*{told}", warning)
    assert broken.num_closed == 0


def test_a_tracker_that_cannot_be_closed_does_not_keep_others_open(capsys):
    broken, kept = Kept(), Kept()
    trackers = Trackers([broken, kept])
    trackers.record("poison")
    trackers.close()
    assert capsys.readouterr().err.count("Kept could not be closed: gone") == 2
    assert kept.num_closed == 1


def test_numbers_have_one_tag_wherever_they_go():
    train = {"kind": "train", "time": "t", "step": 3, "epoch": 1, "loss": 0.5, "lr": 0.1, "amount_per_second": 5.0}
    train |= {"amount_unit": "items", "data_wait_share": 0.25, "step_seconds": 2.0}
    assert numbers_of(train) == {
        "loss": 0.5,
        "param/lr": 0.1,
        "misc/epoch": 1.0,
        "misc/step_time": 2.0,
        "misc/amount_per_second": 5.0,
        "misc/data_wait_share": 0.25,
    }
    evaluation = {"kind": "evaluation", "time": "t", "step": 3, "set": "dev", "wer": 0.5, "note": "x", "num_items": 4}
    assert numbers_of({**evaluation, "digest": "d", "seconds": 1.5}) == {"dev/wer": 0.5, "dev/seconds": 1.5}
    assert numbers_of({"kind": "checkpoint", "step": 3}) == {}
