"""Files in the place of bare samples: by their first bytes, and never samples that only look so."""

import io

import numpy as np
import pytest
import soundfile

from nemo_asr.run.audio.heads import kind_of_start

NOISE = np.random.default_rng(0).normal(0.0, 0.1, 8000)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "W64"])
def test_files_are_told_by_their_first_bytes(kind):
    content = io.BytesIO()
    soundfile.write(content, NOISE, 16000, format=kind)
    assert kind_of_start(content.getvalue()[:4096]) == kind


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100, 48000])
def test_mp3_without_a_tag_is_told_by_its_second_frame(rate):
    content = io.BytesIO()
    soundfile.write(content, np.tile(NOISE, 3), rate, format="MP3")
    start = content.getvalue()[:4096]
    assert start[0] == 0xFF
    assert kind_of_start(start) == "MP3"
    assert kind_of_start(start[:50]) is None  # not yet


def test_samples_that_begin_like_a_frame_are_samples():
    samples = (32768 * NOISE[:2048]).astype("<i2")
    for second in range(0xE0, 0x100):
        start = bytes([0xFF, second]) + samples.tobytes()[2:]
        assert kind_of_start(start) is None
