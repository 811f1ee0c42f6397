"""Perturbations of waveforms: what each does to samples, that nothing is modified or remembered, and its messages."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemo_asr.audio.augmentation import (
    AudioAugmentor,
    GainPerturbation,
    ImpulsePerturbation,
    NoisePerturbation,
    Perturbation,
    ShiftPerturbation,
    SpeedPerturbation,
    TimeStretchPerturbation,
    WhiteNoisePerturbation,
    perturbation_types,
)
from nemo_asr.audio.segment import AudioSegment
from nemo_lite.errors import DataError, UsageError

RATE = 8000


def generator(seed=0):
    return np.random.default_rng(seed)


def tone(seconds=1.0, hz=440.0, level=0.5):
    return (level * np.sin(2 * np.pi * hz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def rms(samples):
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def pitch(samples):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * RATE / len(samples))


@pytest.fixture
def recordings(tmp_path):
    """Writes recordings and their manifest; gives the manifest's path."""

    def write(*samples, **fields):
        lines = []
        for number, one in enumerate(samples):
            soundfile.write(tmp_path / f"{number}.wav", one, RATE, subtype="FLOAT")
            lines.append({"audio_filepath": f"{number}.wav", "duration": len(one) / RATE, **fields})
        path = tmp_path / "noises.json"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    return write


def test_speed_divides_the_length_and_multiplies_the_pitch():
    faster = SpeedPerturbation(RATE, "kaiser_best", 1.25, 1.25).perturbed(tone(), RATE, generator())
    assert len(faster) == pytest.approx(RATE / 1.25, abs=1)
    assert pitch(faster) == pytest.approx(550, abs=2)
    assert faster.dtype == np.float32


def test_speed_with_rate_one_changes_nothing():
    samples = tone()
    assert (
        SpeedPerturbation(RATE, min_speed_rate=1.0, max_speed_rate=1.0).perturbed(samples, RATE, generator()) is samples
    )


@pytest.mark.parametrize("cls", [lambda **k: SpeedPerturbation(RATE, **k), TimeStretchPerturbation])
@pytest.mark.parametrize("num_rates", [0, -1])
def test_no_number_of_rates_means_any_rate(cls, num_rates):
    perturbation = cls(min_speed_rate=0.9, max_speed_rate=1.1, num_rates=num_rates)
    lengths = {len(perturbation.perturbed(tone(), RATE, generator(seed))) for seed in range(20)}
    assert len(lengths) > 10
    assert max(lengths) <= perturbation.max_augmentation_length(RATE) + 1
    assert min(lengths) >= perturbation.min_augmentation_length(RATE) - 1


def test_a_number_of_rates_means_that_many():
    perturbation = SpeedPerturbation(RATE, min_speed_rate=0.8, max_speed_rate=1.25, num_rates=3)
    assert len({len(perturbation.perturbed(tone(), RATE, generator(seed))) for seed in range(30)}) == 3


def test_speed_refuses_audio_of_another_rate():
    with pytest.raises(UsageError, match=r"speed\.sr: the audio has another sample rate: got 8000, wanted 16000"):
        SpeedPerturbation(16000).perturbed(tone(), RATE, generator())


def test_gain_scales_by_decibels():
    louder = GainPerturbation(6.0, 6.0).perturbed(tone(), RATE, generator())
    np.testing.assert_allclose(louder, tone() * 10 ** (6 / 20), rtol=1e-5)


@pytest.mark.parametrize(
    ("milliseconds", "expected"), [(0.25, [3, 4, 5, 0, 0]), (-0.25, [0, 0, 1, 2, 3]), (0, [1, 2, 3, 4, 5])]
)
def test_shift_moves_samples_and_leaves_silence(milliseconds, expected):
    samples = np.arange(1, 6, dtype=np.float32)
    shifted = ShiftPerturbation(milliseconds, milliseconds).perturbed(samples, RATE, generator())
    assert shifted.tolist() == expected


def test_a_shift_that_would_leave_nothing_is_none():
    assert ShiftPerturbation(1000, 1000).perturbed(tone(0.01), RATE, generator()).tolist() == tone(0.01).tolist()


def test_white_noise_has_the_level_asked_for():
    noise = WhiteNoisePerturbation(-40, -40).perturbed(np.zeros(RATE, np.float32), RATE, generator())
    assert rms(noise) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("seconds", [0.25, 1.0, 3.0])
def test_noise_has_the_ratio_asked_for_whether_shorter_or_longer_than_the_audio(recordings, seconds):
    noise = generator().normal(0, 0.2, int(seconds * RATE)).astype(np.float32)
    noisy = NoisePerturbation(recordings(noise), 10, 10).perturbed(tone(), RATE, generator(1))
    added = (noisy - tone())[np.abs(noisy - tone()) > 0]
    assert len(noisy) == RATE
    assert len(added) == pytest.approx(min(seconds, 1.0) * RATE, abs=5)
    assert 20 * np.log10(rms(tone()) / rms(added)) == pytest.approx(10, abs=0.1)


def test_a_long_noise_is_cut_at_places_drawn_from_the_generator(recordings):
    perturbation = NoisePerturbation(recordings(generator().normal(0, 0.2, 3 * RATE)), 10, 10)
    first, same, other = (perturbation.perturbed(tone(), RATE, generator(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_a_short_noise_is_laid_at_places_drawn_from_the_generator(recordings):
    perturbation = NoisePerturbation(recordings(np.ones(100)), 10, 10)
    noisy = [perturbation.perturbed(tone(), RATE, generator(seed)) for seed in range(10)]
    assert len({int(np.flatnonzero(samples != tone())[0]) for samples in noisy}) > 5


def test_noise_is_raised_by_at_most_the_maximum(recordings):
    noise = generator().normal(0, 1e-3, RATE).astype(np.float32)
    noisy = NoisePerturbation(recordings(noise), 0, 0, max_gain_db=0).perturbed(tone(), RATE, generator())
    assert rms(noisy - tone()) == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize(("level", "noise_level"), [(0.0, 0.1), (0.5, 0.0)])
def test_noise_leaves_silence_and_ignores_a_silent_recording(recordings, level, noise_level):
    perturbation = NoisePerturbation(recordings(np.full(RATE, noise_level)))
    assert np.array_equal(perturbation.perturbed(tone(level=level), RATE, generator()), tone(level=level))


def test_a_manifest_of_noises_honours_offsets(recordings):
    both = np.concatenate([np.full(RATE, 0.5), np.full(RATE, -0.25)])
    manifest = recordings(both, offset=1.0, duration=1.0)
    noisy = NoisePerturbation(manifest, 20, 20).perturbed(tone(), RATE, generator())
    assert np.all(noisy - tone() < 0)


def test_an_impulse_response_of_one_peak_neither_delays_nor_scales(recordings):
    response = np.zeros(400)
    response[37] = -0.3
    heard = ImpulsePerturbation(recordings(response)).perturbed(tone(), RATE, generator())
    np.testing.assert_allclose(heard, -tone(), atol=1e-5)


def test_an_impulse_response_equals_convolution_from_its_peak(recordings):
    response = np.array([0.1, 1.0, -0.5, 0.25])
    samples = generator().normal(0, 0.1, 1000).astype(np.float32)
    heard = ImpulsePerturbation(recordings(response)).perturbed(samples, RATE, generator())
    expected = np.convolve(samples, response)[1:1001]
    np.testing.assert_allclose(heard, expected * rms(samples) / rms(expected), atol=1e-5)


def test_no_perturbation_modifies_its_input_or_depends_on_more_than_the_generator(recordings):
    manifest = recordings(generator().normal(0, 0.1, RATE))
    arguments = {"speed": {"sr": RATE}, "noise": {"manifest_path": manifest}, "impulse": {"manifest_path": manifest}}
    for name, cls in perturbation_types.items():
        perturbation, samples = cls(**arguments.get(name, {})), tone()
        first = perturbation.perturbed(samples, RATE, generator(3))
        assert np.array_equal(samples, tone()), name
        assert np.array_equal(first, perturbation.perturbed(samples, RATE, generator(3))), name
        assert first.dtype == np.float32, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"noises\.json: the manifest is empty"),
        ("{}\n", r"noises\.json:1: the line does not name a recording"),
        ('\n["a.wav"]\n', r"noises\.json:2: the line does not name a recording"),
        ('{"audio_filepath": "a.wav", "duration": -1}\n', r"noises\.json:1: duration or offset is not usable"),
        (None, r"noises\.json: the manifest cannot be opened"),
    ],
)
def test_a_manifest_of_noises_that_cannot_be_used_names_the_line(tmp_path, text, message):
    path = tmp_path / "noises.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=message):
        NoisePerturbation(str(path))


def test_a_missing_recording_names_the_manifest_line(recordings):
    perturbation = NoisePerturbation(path := recordings(tone()))
    (Path(path).parent / "0.wav").unlink()
    with pytest.raises(DataError, match=r"noises\.json:1: .*0\.wav"):
        perturbation.perturbed(tone(), RATE, generator())


def test_a_manifest_of_recordings_may_lie_in_the_home_folder(recordings, tmp_path, monkeypatch):
    recordings(tone())
    monkeypatch.setenv("HOME", str(tmp_path))
    noisy = NoisePerturbation("~/noises.json", 0, 0).perturbed(tone(), RATE, generator())
    assert not np.array_equal(noisy, tone())


# NeMo's way: segments that are changed in place


@pytest.mark.parametrize("make", [random.Random, np.random.RandomState, np.random.default_rng])
def test_a_segment_is_changed_in_place_with_a_generator_of_any_kind(make):
    levels = []
    for seed in (1, 1, 2):
        segment = AudioSegment(tone(), RATE)
        GainPerturbation(-10, 10, rng=make(seed)).perturb(segment)
        levels.append(segment.rms_db)
    assert levels[0] == levels[1] != levels[2]


def test_a_perturbation_of_nemos_form_acts_wherever_ours_do():
    class Half(Perturbation):
        def perturb(self, data):
            data._samples = data._samples * 0.5

    before = tone()
    np.testing.assert_allclose(Half().perturbed(before, RATE, generator()), before / 2)
    assert np.array_equal(before, tone())
    segment = AudioSegment(tone(), RATE)
    AudioAugmentor([(1.0, Half())], rng=random.Random(1)).perturb(segment)
    np.testing.assert_allclose(segment.samples, before / 2)


def test_a_perturbation_without_either_form_says_so():
    with pytest.raises(NotImplementedError, match="Perturbation has neither perturbed nor perturb"):
        Perturbation().perturbed(tone(), RATE, generator())


def test_an_impulse_response_of_more_than_a_minute_is_refused_with_its_line(tmp_path):
    (tmp_path / "rooms.json").write_text(
        '{"audio_filepath": "a.wav", "duration": 60}\n{"audio_filepath": "a.wav", "duration": 3600}'
    )
    with pytest.raises(
        DataError, match=r"rooms\.json:2: the impulse response is too long: got 3600 s, wanted at most 60 s"
    ):
        ImpulsePerturbation(str(tmp_path / "rooms.json"))
