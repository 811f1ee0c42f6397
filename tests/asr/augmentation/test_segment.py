"""AudioSegment: where samples come from, what changes in place, and what is refused."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemo_asr.augmentation import AudioSegment
from nemo_lite.base.errors import DataError, UsageError

RATE = 8000
TONE = (0.5 * np.sin(np.arange(RATE) / 5)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    soundfile.write(tmp_path / "a.wav", TONE, RATE, subtype="FLOAT")
    return tmp_path / "a.wav"


@pytest.mark.parametrize("kind", [str, Path, lambda path: io.BytesIO(path.read_bytes())])
def test_a_file_is_read_by_path_or_open_and_a_part_ends_with_it(kind, path):
    assert np.array_equal(AudioSegment.from_file(kind(path)).samples, TONE)
    assert np.array_equal(AudioSegment.from_file(kind(path), offset=0.5, duration=0.25).samples, TONE[4000:6000])
    assert np.array_equal(AudioSegment.from_file(kind(path), offset=0.75, duration=60).samples, TONE[6000:])


def test_a_file_is_resampled_and_trimmed(path):
    assert AudioSegment.from_file(path, target_sr=16000).num_samples == 16000
    quiet = np.concatenate([np.zeros(RATE), TONE, np.zeros(RATE)])
    assert AudioSegment(quiet, RATE, trim=True).num_samples < 1.3 * RATE


def test_a_random_stretch_of_a_file_is_as_long_as_asked_for(path):
    found = AudioSegment.segment_from_file(path, n_segments=100).samples
    assert any(np.array_equal(found, TONE[first : first + 100]) for first in range(RATE - 99))
    assert AudioSegment.segment_from_file(path, n_segments=2 * RATE).num_samples == RATE


def test_whole_numbers_are_scaled_and_channels_averaged():
    assert AudioSegment(np.array([16384, -32768], np.int16), RATE).samples.tolist() == [0.5, -1.0]
    assert AudioSegment(np.array([[1.0, 0.0], [0.5, 0.5]]), RATE).samples.tolist() == [0.5, 0.5]
    with pytest.raises(TypeError, match="samples are bool, wanted floats or whole numbers"):
        AudioSegment(np.zeros(3, bool), RATE)


def test_samples_are_a_copy_and_changes_act_in_place():
    segment = AudioSegment(np.ones(RATE), RATE)
    segment.samples[:] = 7
    assert segment.rms_db == pytest.approx(0)
    segment.gain_db(-20)
    assert segment.samples[0] == pytest.approx(0.1)
    segment.pad(10)
    assert (segment.num_samples, segment.samples[-1]) == (RATE + 10, 0)
    segment.pad(5, symmetric=True)
    assert (segment.num_samples, segment.samples[0]) == (RATE + 20, 0)
    assert AudioSegment(np.zeros(4), RATE).rms_db == -math.inf


@pytest.mark.parametrize(
    ("times", "part"),
    [((0.25, 0.5), slice(2000, 4000)), ((-0.5, None), slice(4000, None)), ((None, -0.75), slice(2000))],
)
def test_a_part_is_kept_by_its_times(times, part):
    segment = AudioSegment(TONE, RATE)
    segment.subsegment(*times)
    assert np.array_equal(segment.samples, TONE[part])


@pytest.mark.parametrize("times", [(0.5, 0.5), (0.6, 0.5), (0, 1.5), (-2, None)])
def test_a_part_that_is_empty_or_outside_is_refused(times):
    with pytest.raises(UsageError, match=r"the subsegment is not usable: got .* wanted a part of 0 to 1 s"):
        AudioSegment(TONE, RATE).subsegment(*times)


def test_segments_are_equal_by_content_and_say_what_they_are():
    assert AudioSegment(TONE, RATE) == AudioSegment(TONE, RATE)
    assert AudioSegment(TONE, RATE) != AudioSegment(TONE, 2 * RATE)
    assert str(AudioSegment(TONE, RATE)).startswith(
        "AudioSegment: num_samples=8000, sample_rate=8000, duration=1.00sec"
    )


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.wav cannot be opened"):
        AudioSegment.from_file(tmp_path / "none.wav")
