"""Sets of utterances: limits of duration, and what was left out."""

import pytest
from toys.manifests import entry, write

from nemo_asr.data.manifest import Manifest
from nemo_lite.errors import DataError, UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_summary_tells_what_was_dropped_why_and_where(folder):
    write(folder / "train.json", entry(duration=3600), entry(duration=0.05), entry(duration=20), entry(duration=40))
    with pytest.raises(DataError, match=r"no utterance is left: 4 longer than max_duration 0\.01 s"):
        Manifest.open("train.json", max_duration=0.01)
    summary = Manifest.open("train.json", min_duration=0.1, max_duration=30).summary().splitlines()
    assert summary[0] == "train.json: 1 utterance kept (0.01 h)"
    assert summary[1] == "  dropped 1 shorter than min_duration 0.1 s (0.00 h: train.json:2)"
    assert summary[2] == "  dropped 2 longer than max_duration 30 s (1.01 h: train.json:1, train.json:4)"


def test_limits_are_inclusive(folder):
    write(folder / "train.json", entry(duration=0.1), entry(duration=16.7))
    assert len(Manifest.open("train.json", min_duration=0.1, max_duration=16.7)) == 2


def test_contradictory_limits_are_refused(folder):
    with pytest.raises(UsageError, match=r"min_duration 2 s is above max_duration 1 s"):
        Manifest.open("train.json", min_duration=2, max_duration=1)
