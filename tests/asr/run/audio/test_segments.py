"""Where a recording is cut: pauses, clicks, padding, levels, long speech without a pause."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from nemo_asr.run.audio.segments import Cutting, Span, frame_levels, frame_samples, speech_spans
from nemo_lite.base.errors import UsageError

RATE = 16000
Samples = npt.NDArray[np.float32]


def silence(seconds: float, dbfs: float | None = None) -> Samples:
    """Digital silence, or white noise of this level."""
    amplitude = 0.0 if dbfs is None else 10.0 ** (dbfs / 20.0)
    return np.random.default_rng(0).normal(0.0, 1.0, round(seconds * RATE)).astype(np.float32) * np.float32(amplitude)


def voice(seconds: float, dbfs: float = -20.0) -> Samples:
    """Syllables: noise whose power rises and falls four times a second, and is never away for 0.1 s."""
    samples = silence(seconds, dbfs)
    return samples * np.abs(np.sin(np.pi * 4.0 * np.arange(len(samples)) / RATE)).astype(np.float32)


def spans(*pieces: Samples, rate: int = RATE, cutting: Cutting | None = None) -> list[Span]:
    levels = frame_levels(pieces, rate)
    return speech_spans(levels, frame_samples(rate) / rate, cutting or Cutting())


def assert_close(found: list[Span], expected: list[tuple[float, float]], tolerance: float = 0.1) -> None:
    assert len(found) == len(expected), found
    assert np.abs(np.array(found) - np.array(expected)).max() < tolerance, found


@pytest.mark.parametrize("dbfs", [None, -70.0, -50.0])
def test_a_recording_is_cut_at_pauses_and_keeps_some_of_them(dbfs):
    found = spans(silence(1.0, dbfs), voice(2.0), silence(0.8, dbfs), voice(1.0), silence(3.0, dbfs))
    assert_close(found, [(0.85, 3.15), (3.65, 4.95)])


def test_a_shorter_pause_than_the_least_does_not_cut():
    assert_close(spans(voice(1.0), silence(0.25), voice(1.0)), [(0.0, 2.25)])
    assert len(spans(voice(1.0), silence(0.25), voice(1.0), cutting=Cutting(min_pause=0.1))) == 2


def test_the_same_samples_in_other_pieces_have_the_same_levels():
    signal = np.concatenate([silence(0.3), voice(1.0), silence(0.5, -60.0)])
    whole = frame_levels([signal], RATE)
    assert np.array_equal(whole, frame_levels(np.array_split(signal, 17), RATE))
    assert np.array_equal(whole, frame_levels([signal[:1], signal[1:5], signal[5:]], RATE))


def test_digital_silence_alone_has_no_segments():
    assert spans(silence(5.0)) == []
    assert spans(silence(0.0)) == []


def test_a_recording_without_pauses_is_one_segment_from_end_to_end():
    assert_close(spans(voice(7.0)), [(0.0, 7.0)], 0.011)
    assert_close(spans(silence(7.0, -60.0)), [(0.0, 7.0)], 0.011)  # nothing but steady noise: no pauses are known


def test_clicks_are_left_out_and_do_not_hide_soft_speech():
    click = np.array([1.0, -1.0] * 40, np.float32)
    found = spans(silence(1.0, -70.0), click, silence(1.0, -70.0), voice(1.0, -45.0), silence(1.0, -70.0))
    assert_close(found, [(1.86, 3.16)])


def test_a_soft_speaker_beside_a_loud_one_is_kept():
    found = spans(voice(2.0), silence(1.0, -70.0), voice(2.0, -40.0), silence(1.0, -70.0))
    assert_close(found, [(0.0, 2.15), (2.85, 5.15)])


def test_a_pause_with_more_noise_than_the_speech_has_is_a_pause():
    gap, noise = silence(0.35, -80.0), silence(3.0, -60.0)
    sentence = np.concatenate([voice(0.6), gap, voice(0.6), gap, voice(0.6)])
    found = spans(sentence, noise, sentence, noise, sentence)
    assert_close(found, [(0.0, 2.65), (5.35, 8.15), (10.85, 13.5)])


def test_a_held_note_is_no_noise():
    note = (0.05 * np.sin(2 * np.pi * 440.0 * np.arange(2 * RATE) / RATE)).astype(np.float32)  # -29 dB
    found = spans(voice(2.0), silence(1.0, -80.0), note, silence(1.0, -80.0), voice(2.0))
    assert_close(found, [(0.0, 2.15), (2.85, 5.15), (5.85, 8.0)])


def test_soft_speech_with_soft_ends_is_not_cut_into_words():
    sentence = np.concatenate([voice(0.5, -50.0), silence(0.3, -75.0), voice(0.2, -67.0), silence(0.3, -75.0)] * 3)
    found = spans(voice(2.0), silence(1.0, -75.0), sentence, silence(1.0, -75.0))
    assert len(found) == 2, found


def test_a_constant_offset_is_no_sound():
    signal = np.concatenate([silence(1.0, -70.0), voice(1.0), silence(1.0, -70.0), voice(1.0)]) + np.float32(0.2)
    assert_close(spans(signal), [(0.85, 2.15), (2.85, 4.0)])


def test_long_speech_is_cut_where_it_is_quietest():
    quieter = voice(12.0)
    quieter[9 * RATE : 9 * RATE + RATE // 5] *= 0.01
    found = spans(quieter, cutting=Cutting(max_segment=10.0))
    assert len(found) == 2
    assert 9.0 < found[0].end < 9.2
    assert found[1].start == found[0].end


@pytest.mark.long
def test_times_do_not_drift_at_rates_whose_frames_are_no_whole_samples():
    rate = 22050
    signal = np.concatenate([np.zeros(600 * rate, np.float32), 0.1 * np.ones(rate, np.float32)])
    signal[600 * rate :: 2] *= -1
    assert_close(spans(signal, np.zeros(rate, np.float32), rate=rate), [(599.85, 601.15)])


def test_padding_never_reaches_into_the_next_segment():
    found = spans(voice(1.0), silence(0.5), voice(1.0), cutting=Cutting(padding=2.0))
    assert_close(found, [(0.0, 1.25), (1.25, 2.5)])


def test_a_cutting_out_of_range_is_refused():
    with pytest.raises(UsageError, match=r"min_pause is 0.01, wanted float from 0.05 to 3600 s"):
        Cutting(min_pause=0.01)
