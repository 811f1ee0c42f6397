"""What a model knows, by ranges: what lies outside is marked with the reason."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import soxr

from nemo_asr.run.audio.segments import Span, frame_levels
from nemo_asr.run.transcribe.domain import Domain, SoundMeter, fit_domain, marked, moments_of
from nemo_asr.run.transcribe.transcript import Sound, Transcript, Word, as_json

RATE = 16000
WORDS = ("one", "two", "three", "four")


def sound_of(samples, rate=RATE, piece=RATE):
    meter = SoundMeter(rate)
    pieces = [samples[first : first + piece].astype(np.float32) for first in range(0, len(samples), piece)]
    return meter.sound(frame_levels(meter.through(pieces), rate))


def syllables(seed=0, seconds=4, rate=RATE, level=0.1):
    """Noise with all frequencies that comes and goes four times a second."""
    times = np.arange(seconds * rate) / rate
    noise = np.random.default_rng(seed).normal(size=len(times))
    return level * noise * (0.02 + np.sin(2 * np.pi * 2 * times) ** 2)


def frames_of(number, size=20, dims=6, shift=0.0):
    """What a search may read; each direction varies by another size."""
    return np.random.default_rng(number).normal(size=(size, dims)) * np.logspace(-1, 0, dims) + 1.0 + shift


def said(number, confidence=0.95, text="", sound=None, frames=None):
    """A transcript of 2 s of speech; each number has other words, of another confidence."""
    words = text.split() or [WORDS[(number + place) % 4] for place in range(3 + number % 2)]
    timed = tuple(Word(word, 0.1, 0.2, confidence - 0.01 * (number % 5)) for word in words)
    sound = sound or Sound(8000 - 250 * (number % 2), -20.0 - number % 7, 9.0 + number % 3)
    transcript = Transcript(" ".join(words), timed, 2.0, f"{number}.wav", segments=(Span(0.0, 2.0),), sound=sound)
    return replace(transcript, moments=None if frames is None else moments_of(frames))


KNOWN = [said(number, frames=frames_of(number)) for number in range(100)]
DOMAIN = fit_domain("dev", KNOWN, RATE)


def reasons(**changes):
    transcript = replace(KNOWN[0], **changes)
    assert marked(transcript, DOMAIN).unfamiliar == DOMAIN.unfamiliar(transcript)
    return DOMAIN.unfamiliar(transcript)


def test_none_of_the_set_itself_is_marked():
    assert [marked(each, DOMAIN) for each in KNOWN] == KNOWN
    assert (DOMAIN.set, DOMAIN.utterances) == ("dev", 100)
    assert sum(DOMAIN.words.values()) == 350


def test_a_rate_of_speech_is_never_below_zero():
    slow = [replace(each, segments=(Span(0.0, 2.0 + 20.0 * (number % 2)),)) for number, each in enumerate(KNOWN)]
    low, high = fit_domain("dev", slow, RATE).ranges["rate"]
    assert (low, high > 5) == (0.0, True)


def test_a_line_says_what_is_known():
    ranges = {"bandwidth": (7725.0, 8025.0), "confidence": (0.92, 0.96)}
    known = Domain(set="dev", utterances=100, ranges=ranges)
    assert known.described() == "100 utterances of dev: bandwidth 7725 to 8025 Hz, confidence 0.92 to 0.96"


def test_each_measure_is_told_with_what_is_known():
    assert reasons(sound=Sound(4000, -22, 10)) == ("bandwidth 4000 Hz, on dev 7700 to 8050",)
    assert reasons(sound=Sound(8000, -60, 10)) == ("level -60 dB, on dev -27 to -19",)
    assert reasons(sound=Sound(8000, -22, 3)) == ("levels that change by 3.0 dB, on dev 8.6 to 11.4",)
    (rate,) = reasons(segments=(Span(0.0, 20.0),))
    assert rate.startswith("0.6 letters a second, on dev ")
    (confidence,) = reasons(words=said(0, 0.5).words)
    assert confidence.startswith("confidence 0.50, on dev 0.")
    (words,) = reasons(words=said(0, text="five six four").words)
    assert words.startswith("words of 7.0 bits, on dev 0.0 to 2.")
    (distance,) = reasons(distance=3.4)
    assert distance.startswith("distance 3.40, on dev 0.00 to 1.")


def distance(domain, frames):
    return domain.measured(moments_of(frames))["distance"]


def test_the_distance_of_frames_is_that_of_mahalanobis():
    every = np.concatenate([frames_of(number) for number in range(100)])
    deviations = every[:7] - every.mean(axis=0)
    inverse = np.linalg.inv(np.cov(every.T, bias=True))
    square = np.einsum("td,de,te->t", deviations, inverse, deviations).mean()
    assert distance(DOMAIN, every[:7]) == pytest.approx((1 + square) / 7, rel=0.02)  # six dimensions and the one
    assert distance(DOMAIN, every) == pytest.approx(1.0, abs=0.01)
    # Half a deviation away in the direction that varies least.
    assert distance(DOMAIN, every + np.eye(6)[0] / 20) > 1.03 > distance(DOMAIN, every + np.eye(6)[5] / 20)


def test_the_farthest_of_200_utterances_is_left_out_where_the_model_is_wrong():
    near = [said(number, frames=frames_of(number)) for number in range(199)]
    far = said(0, frames=frames_of(999, shift=0.5))
    domain = fit_domain("dev", [*near, far], RATE)

    def marks(domain, transcript):
        return marked(replace(transcript, **domain.measured(transcript.moments)), domain).unfamiliar

    assert [reason.split()[0] for reason in marks(domain, far)] == ["distance"]
    assert not any(marks(domain, each) for each in near)
    assert marks(fit_domain("dev", [*near[:99], far], RATE), far) == ()


def test_frames_of_many_dimensions_are_folded_and_those_of_another_head_not_compared():
    assert moments_of(frames_of(0, dims=300)).shape == (129, 129)
    wide = np.zeros((2, 300))
    wide[:, [5, 133, 261]] = 1.0
    assert moments_of(wide)[0, 6] == 2 * 3
    assert DOMAIN.measured(moments_of(frames_of(0, dims=7))) == {}
    assert DOMAIN.measured(moments_of(np.zeros((0, 6)))) == {}
    silent = [replace(each, moments=moments_of(np.zeros((5, 6)))) for each in KNOWN]
    assert np.isfinite(distance(fit_domain("dev", silent, RATE), frames_of(0)))
    assert not fit_domain("dev", [replace(KNOWN[0], moments=None), *KNOWN], RATE).frames
    huge = fit_domain("dev", [replace(each, moments=each.moments * np.diag([1] + 6 * [1e60])) for each in KNOWN], RATE)
    assert not huge.frames
    assert "distance" not in huge.ranges


@pytest.mark.parametrize("frames", [b"1", b"1" * 8, np.full(6, np.nan, "<f4").tobytes(), bytes(2 * 130 * 131)])
def test_a_card_whose_frames_are_none_is_refused(frames):
    text = msgspec.json.encode({"frames": frames})
    with pytest.raises(msgspec.ValidationError, match=f"{len(frames)} bytes that are no moments of frames"):
        msgspec.json.decode(text, type=Domain)
    assert msgspec.json.decode(msgspec.json.encode(DOMAIN), type=Domain) == DOMAIN
    assert np.isfinite(distance(Domain(utterances=20, frames=bytes(2 * 7 * 8)), frames_of(0)))


def test_a_word_of_one_utterance_alone_is_as_unheard_as_one_of_another_set():
    alone = [said(number, text=f"name{number} one two" + " three" * (number % 2)) for number in range(40)]
    domain = fit_domain("dev", alone, RATE)
    assert domain.unfamiliar(said(0, text="name99 one two")) == ()
    assert domain.unfamiliar(said(0, text="name98 name99 one")) != ()


def test_what_is_not_measured_is_not_marked():
    assert reasons(sound=None) == ()
    assert reasons(text="", words=(), segments=(), sound=None) == ()
    assert Domain().unfamiliar(KNOWN[0]) == ()
    assert marked(KNOWN[0], None) is KNOWN[0]
    assert fit_domain("dev", KNOWN[:19], RATE) is None


def test_a_recording_of_8_khz_has_half_the_bandwidth_whatever_its_file_says():
    wide = syllables()
    assert sound_of(wide).bandwidth == 8000
    narrow = soxr.resample(wide, RATE, 8000)
    assert sound_of(narrow, 8000).bandwidth == 4000
    assert sound_of(soxr.resample(narrow, 8000, RATE)).bandwidth <= 4250
    # Beyond what the model hears nothing counts.
    heard = DOMAIN.measures(replace(KNOWN[0], sound=sound_of(syllables(rate=44100), 44100)))
    assert heard["bandwidth"] == 8000


def test_sound_is_measured_alike_in_any_pieces_and_music_changes_less():
    wide = syllables()
    assert sound_of(wide, piece=2 * 256 * 7).bandwidth == sound_of(wide, piece=len(wide)).bandwidth
    assert sound_of(wide).level == pytest.approx(sound_of(2 * wide).level - 6.02, abs=0.1)
    tones = sum(np.sin(2 * np.pi * 220 * k * np.arange(4 * RATE) / RATE) / k for k in range(1, 9))
    assert sound_of(tones).change < 1 < 5 < sound_of(wide).change
    assert sound_of(np.zeros(RATE)) is None
    assert sound_of(np.zeros(0)) is None


def test_a_calibration_changes_the_range_of_confidences_alone():
    changed = DOMAIN.calibrated(lambda confidence: confidence / 2)
    assert changed.ranges["confidence"] == (DOMAIN.ranges["confidence"][0] / 2 - 0.0005, 1.0)
    assert {**changed.ranges, "confidence": 0} == {**DOMAIN.ranges, "confidence": 0}
    assert DOMAIN.calibrated(None) is DOMAIN


@pytest.mark.parametrize("value", [0.98664, 0.98666])
def test_words_that_are_as_sure_as_a_calibration_lets_them_be_are_not_marked(value):
    sure = replace(KNOWN[0], words=tuple(replace(word, confidence=round(value, 3)) for word in KNOWN[0].words))
    assert DOMAIN.calibrated(lambda _: value).unfamiliar(sure) == ()


def test_a_line_of_json_has_the_reasons():
    assert "unfamiliar" not in json.loads(as_json(KNOWN[0]))
    quiet = marked(replace(KNOWN[0], sound=Sound(8000, -60, 10)), DOMAIN)
    assert json.loads(as_json(quiet))["unfamiliar"] == ["level -60 dB, on dev -27 to -19"]
