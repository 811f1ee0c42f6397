"""Recordings: which ones are computed together, and how faults name them. Reading is tested in ``test_recordings``."""

import pytest

from nemo_asr.run.transcribe.inputs import Recording, batches_by_length, named


def test_batches_hold_recordings_of_similar_length_the_longest_first():
    assert batches_by_length({0: 1.0, 3: 9.0, 5: 2.0, 7: 8.0}, batch_size=2, batch_seconds=100.0) == [[3, 7], [5, 0]]


def test_no_batch_of_several_is_longer_than_allowed():
    seconds = {0: 50.0, 1: 6.0, 2: 5.0, 3: 5.0}
    assert batches_by_length(seconds, batch_size=9, batch_seconds=12.0) == [[0], [1, 2], [3]]


@pytest.mark.parametrize("reason", ["a.wav: it is empty", "it is empty", "head of a.wav: it is empty"])
def test_a_fault_names_its_recording_once(reason):
    assert named(Recording("a.wav", "a.wav"), reason).count("a.wav") == 1
