"""Reading metrics.jsonl."""

import json

import pytest
from toys.run_folder import records, write_lines

from nemo_asr.scoring.report.records import number_of, read_records
from nemo_lite.base.errors import UsageError


def read(folder, lines):
    return read_records(write_lines(folder / "metrics.jsonl", lines))


def train(step, **more):
    return {"kind": "train", "step": step, "loss": 100.0 / step, "lr": 0.1, **more}


def test_records_are_sorted_by_kind(tmp_path):
    found = read(tmp_path, records())
    assert list(found.train) == list(range(10, 101, 10))
    assert {name: list(items) for name, items in found.evaluations.items()} == {"dev": [50, 100], "other": [50, 100]}
    assert (found.start["precision"], found.model["path"], found.end["reason"]) == ("O0", "model", "finished")
    assert found.num_starts == 1


def test_a_run_that_goes_on_from_an_earlier_step_replaces_the_later_ones(tmp_path):
    before = [
        {"kind": "start"},
        *(train(step) for step in (10, 20, 30)),
        {"kind": "evaluation", "set": "a", "step": 30},
    ]
    after = [{"kind": "start"}, train(20, loss=7), {"kind": "end", "step": 20}]
    found = read(tmp_path, [*before, {"kind": "end"}, *after])
    assert list(found.train) == [10, 20]
    assert found.train[20]["loss"] == 7
    assert (found.evaluations, found.num_starts, found.end["step"]) == ({"a": {}}, 2, 20)


def test_a_run_that_was_started_again_and_killed_has_no_end(tmp_path):
    assert read(tmp_path, [{"kind": "start"}, {"kind": "end"}, {"kind": "start"}]).end is None


def test_the_duration_is_that_of_all_starts_and_of_one_that_was_killed_until_its_last_record(tmp_path):
    times = [{"time": f"2026-01-01T00:00:{second:02}.000Z"} for second in (0, 5, 10, 13)]
    killed = [{"kind": "start", **times[0]}, train(1, **times[1])]
    assert read(tmp_path, killed).seconds == 5.0
    again = [{"kind": "start", **times[2]}, train(2, **times[3]), {"kind": "end", "seconds": 4.5}]
    assert read(tmp_path, [*killed, *again]).seconds == 9.5
    assert read(tmp_path, [{"kind": "start", "time": "soon"}, train(1, time=3)]).seconds == 0.0


def test_lines_that_cannot_be_read_and_unknown_kinds_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [*map(json.dumps, (train(1), {"kind": "train"}, {"kind": "later"}, [1], train(2)))]
    path.write_text("\n".join([*lines, "", '{"kind": "tra']))
    assert list(read_records(path).train) == [1, 2]


def test_only_finite_numbers_are_numbers(tmp_path):
    found = read(tmp_path, [train(1, loss=float("nan"), a=True, b="1", c=None, d=float("inf"), e=2)])
    assert [number_of(found.train[1], key) for key in ("loss", "a", "b", "c", "d", "e", "f")] == [None] * 5 + [
        2.0,
        None,
    ]
    assert number_of(None, "loss") is None


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"metrics\.jsonl: the file of metrics cannot be opened \(No such file"):
        read_records(tmp_path / "metrics.jsonl")
