"""Time stretching: length, pitch, and short audio."""

import numpy as np
import pytest

from nemo_asr.audio.augmentation import time_stretched

RATE = 8000


def tone(seconds=1.0, hz=440.0, level=0.5):
    return (level * np.sin(2 * np.pi * hz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def pitch(samples):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * RATE / len(samples))


@pytest.mark.parametrize("rate", [0.8, 1.25])
def test_time_stretch_divides_the_length_and_keeps_the_pitch(rate):
    stretched = time_stretched(tone(), rate, 512)
    assert len(stretched) == round(RATE / rate)
    assert pitch(stretched) == pytest.approx(440, abs=2)
    assert stretched.dtype == np.float32


def test_time_stretch_at_a_rate_of_nearly_one_gives_nearly_the_same_samples():
    samples = np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    stretched = time_stretched(samples, 1.0 + 1e-9, 512)
    np.testing.assert_allclose(stretched, samples, atol=1e-4)


def test_time_stretch_takes_audio_shorter_than_a_frame():
    assert len(time_stretched(tone(0.01), 0.5, 512)) == 160
