"""Streams by segments: the same cuts as of the whole recording, partial texts, little memory."""

import numpy as np
import pytest

from nemo_asr.run.audio.segments import Cutting
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.run.transcribe.driver import SpeechActivity
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.stream import STREAM_CUTTING, SegmentStream, message_of
from nemo_asr.run.transcribe.transcript import Transcript, Word

RATE = 16000


def tone(seconds, level=0.3):
    return (level * np.sin(2 * np.pi * 500 * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def talk(*parts, rate=RATE, noise=1e-4):
    """Tones of some seconds, with pauses of the next ones between them."""
    sounds = [tone(part, 0.3 if number % 2 else 0.0) for number, part in enumerate(parts)]
    whole = np.concatenate(sounds)
    return whole + np.random.default_rng(0).normal(0, noise, len(whole)).astype(np.float32)


class Model:
    """Notes what it was given; its text is how many tenths of a second that is."""

    def __init__(self):
        self.given = []

    def __call__(self, recording):
        self.given.append(recording)
        text = str(round(10 * recording.seconds))
        return Transcript(text, (Word(text, 0.1, 0.2, 1.0),), recording.seconds, recording.source)


@pytest.fixture
def model():
    return Model()


def streamed(stream, samples, size):
    events = []
    for first in range(0, len(samples), size):
        events += stream.accept(samples[first : first + size])
    return [*events, *stream.finish()]


@pytest.mark.parametrize("size", [333, 1600, 16001, 10**7])
@pytest.mark.parametrize("parts", [(1.0, 0.8, 0.7, 1.3, 2.0, 0.5, 0.5), (0.0, 0.5, 0.45, 0.4, 3.0, 2.0), (0.3, 1.0)])
def test_segments_are_those_of_the_whole_recording(model, parts, size):
    samples = talk(*parts, noise=0.0)
    stream = SegmentStream(model, RATE, partial_seconds=None)
    events = streamed(stream, samples, size)
    cut = SpeechActivity(Recording("a", samples, RATE)).segments(STREAM_CUTTING)
    assert len(cut) == len(parts) // 2
    assert [given.offset for given in model.given] == pytest.approx([segment.offset for segment in cut])
    for given, segment in zip(model.given, cut, strict=True):
        np.testing.assert_array_equal(given.audio, segment.audio)
    assert [event.is_final for event in events] == [True] * len(cut)
    assert stream.seconds == pytest.approx(len(samples) / RATE)


def test_long_speech_is_cut_where_a_recording_would_be(model):
    cutting = Cutting(max_segment=2.0)
    samples = np.concatenate([talk(0.5, 1.5), 0.1 * talk(0.0, 0.05), talk(0.0, 2.6), np.zeros(RATE, np.float32)])
    streamed(SegmentStream(model, RATE, cutting, partial_seconds=None), samples, 1600)
    cut = SpeechActivity(Recording("a", samples, RATE)).segments(cutting)
    assert len(cut) > 2
    assert [len(given.audio) for given in model.given] == [len(segment.audio) for segment in cut]


def test_a_final_text_comes_when_the_pause_is_long_enough(model):
    stream, times = SegmentStream(model, RATE, partial_seconds=None), []
    samples = talk(1.0, 1.0, 2.0)
    for first in range(0, len(samples), 800):
        times += [(first + 800) / RATE for _ in stream.accept(samples[first : first + 800])]
    assert times == pytest.approx([2.0 + STREAM_CUTTING.min_pause + 0.05], abs=0.06)


def test_partial_texts_grow_and_a_final_one_takes_their_place(model):
    events = streamed(SegmentStream(model, RATE), talk(1.0, 2.2, 1.0, noise=1e-3), 1600)
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]
    tenths = [int(event.text) for event in events]
    assert len(events) >= 4
    assert tenths == sorted(tenths)
    assert events[-1].start == pytest.approx(0.85, abs=0.05)
    assert events[-1].words[0].start == pytest.approx(events[-1].start + 0.1)


def test_partial_texts_of_long_segments_are_fewer_than_of_short_ones(model):
    streamed(SegmentStream(model, RATE), talk(0.5, 15.0, 0.5, noise=1e-3), 1600)
    assert sum(given.seconds for given in model.given) < 11 * 15.0


def test_noise_alone_has_no_partial_texts(model):
    noise = np.random.default_rng(0).normal(0, 1e-3, 5 * RATE).astype(np.float32)
    assert not SegmentStream(model, RATE).accept(noise)


def test_a_silent_stream_has_no_texts_and_is_forgotten(model):
    stream = SegmentStream(model, RATE)
    for _ in range(120):
        assert not stream.accept(np.zeros(RATE, np.float32))
    assert stream.seconds == 120
    assert len(stream._samples) < 2 * RATE
    assert not stream.finish()
    assert not model.given


def test_memory_is_that_of_the_open_segment_and_some_minutes_of_levels(model):
    stream = SegmentStream(model, RATE, partial_seconds=None)
    minute = talk(*[0.8, 2.0] * 21)
    for _ in range(8):
        stream.accept(minute)
    assert len(stream._samples) < 3 * RATE
    assert len(stream._levels) <= 30_000 + 300


def test_another_rate_is_that_of_the_recordings_that_the_model_gets(model):
    samples = talk(0.5, 1.0, 0.5)[::2]
    (event,) = streamed(SegmentStream(model, RATE // 2, partial_seconds=None), samples, 400)
    assert model.given[0].sample_rate == RATE // 2
    assert (event.start, event.end) == pytest.approx((0.35, 1.65), abs=0.03)


def test_a_rate_out_of_range_is_refused(model):
    with pytest.raises(ValueError, match="sample rate is out of range: got 10 Hz, wanted 1000 to 768000 Hz"):
        SegmentStream(model, 10)


def test_final_texts_of_what_the_model_does_not_know_have_the_reasons_of_their_segment(model):
    ranges = {"level": (-30.0, 0.0), "rate": (0.0, 3.0), "confidence": (0.5, 1.0)}
    stream = SegmentStream(model, RATE, domain=Domain(set="dev", ranges=ranges))
    loud, quiet = talk(0.5, 2.0, 1.0), 0.1 * talk(0.0, 2.0, 1.0)
    events = streamed(stream, np.concatenate([loud, quiet]), 1600)
    first, second = (event for event in events if event.is_final)
    assert "unfamiliar" not in message_of(first)
    (reason,) = message_of(second)["unfamiliar"]
    assert reason.startswith("level -3")
    assert reason.endswith("dB, on dev -30 to 0")
    partials = [event for event in events if not event.is_final]
    assert partials
    assert not any(event.unfamiliar for event in partials)
