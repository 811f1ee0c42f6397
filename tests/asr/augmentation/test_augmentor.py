"""Perturbations, the augmentor that draws them, and what reads and applies them."""

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from toys.manifests import layer_of, make_set

from nemo_asr import TimeStretchAugmentation
from nemo_asr.augmentation import (
    AudioAugmentor,
    AudioSegment,
    BabblePerturbation,
    ClipPerturbation,
    CodecPerturbation,
    ColouredNoisePerturbation,
    GainPerturbation,
    ImpulsePerturbation,
    JoinPerturbation,
    LowPassPerturbation,
    NoisePerturbation,
    Perturbation,
    RirNoisePerturbation,
    ShiftPerturbation,
    SilencePerturbation,
    SpeedPerturbation,
    TimeStretchPerturbation,
    TrimTailPerturbation,
    WaveformFeaturizer,
    WhiteNoisePerturbation,
    augmentor_of,
    perturbation_types,
    read_recordings,
    register_perturbation,
    time_stretched,
)
from nemo_asr.run.audio.kinds import has_av
from nemo_lite.base.errors import DataError, UnknownNameError, UsageError

# Perturbations of waveforms: what each does to samples, that nothing is modified or remembered, and its messages.


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


def test_shifts_are_of_any_number_of_samples_within_a_hop():
    samples, rng = np.arange(1, 501, dtype=np.float32), generator()
    firsts = [int(ShiftPerturbation().perturbed(samples, 16000, rng)[250]) - 251 for _ in range(3000)]
    assert set(firsts) == set(range(-80, 81))


def test_the_tail_is_trimmed_by_a_drawn_number_of_frames_up_to_half_of_the_audio():
    samples, rng = np.arange(16000, dtype=np.float32), generator()
    lengths = [len(TrimTailPerturbation(30).perturbed(samples, 16000, rng)) for _ in range(2000)]
    assert {16000 - length for length in lengths} == {160 * frames for frames in range(1, 31)}
    short = samples[:1600]
    lengths = [len(TrimTailPerturbation(30).perturbed(short, 16000, rng)) for _ in range(2000)]
    assert {1600 - length for length in lengths} == {160 * frames for frames in range(5)}
    assert min(lengths) >= TrimTailPerturbation(30).min_augmentation_length(1600)


def test_a_shift_that_would_leave_nothing_is_none():
    assert ShiftPerturbation(1000, 1000).perturbed(tone(0.01), RATE, generator()).tolist() == tone(0.01).tolist()


@pytest.mark.parametrize("ratio", [-5.0, 20.0])
def test_coloured_noise_lies_under_all_at_the_ratio_asked_for(ratio):
    noisy = ColouredNoisePerturbation(ratio, ratio).perturbed(tone(), RATE, generator())
    noise = noisy - tone()
    assert rms(tone()) / rms(noise) == pytest.approx(10 ** (ratio / 20), rel=1e-3)
    quarters = [rms(part) for part in np.split(noise, 4)]
    assert max(quarters) < 2 * min(quarters)
    silent = np.zeros(RATE, np.float32)
    assert not ColouredNoisePerturbation().perturbed(silent, RATE, generator()).any()


def test_colours_of_noise_go_from_white_to_falling_with_frequency():
    below, above = [], []
    for seed in range(30):
        noise = ColouredNoisePerturbation(0, 0).perturbed(tone(), RATE, generator(seed)) - tone()
        power = np.abs(np.fft.rfft(noise)) ** 2
        below.append(power[: len(power) // 2].sum())
        above.append(power[len(power) // 2 :].sum())
    shares = np.array(above) / (np.array(above) + np.array(below))
    assert shares.max() < 0.55
    assert shares.max() > 0.4
    assert shares.min() < 0.1


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
    arguments["rir_noise"] = {"rir_manifest_path": manifest, "noise_manifest_path": manifest}
    arguments["babble"] = {"manifest_path": manifest}
    for name, cls in perturbation_types.items():
        if cls is JoinPerturbation:
            continue  # it takes several
        perturbation, samples = cls(**arguments.get(name, {})), tone()
        first = perturbation.perturbed(samples, RATE, generator(3))
        assert np.array_equal(samples, tone()), name
        assert np.array_equal(first, perturbation.perturbed(samples, RATE, generator(3))), name
        assert first.dtype == np.float32, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"noises\.json: the manifest is empty"),
        ("{}\n", r"noises\.json:1: no audio_filepath"),
        ('\n["a.wav"]\n', r"noises\.json:2: expected object, got array"),
        ('{"audio_filepath": "a.wav", "duration": -1}\n', r"noises\.json:1: duration -1 s; write the seconds"),
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


# AudioAugmentor: probabilities, configurations and their mistakes, the registry.


def test_the_augmentor_applies_each_perturbation_with_its_probability():
    augmentor = AudioAugmentor([(0.25, GainPerturbation(6, 6))])
    rng = generator()
    changed = sum(not np.array_equal(augmentor.perturbed(tone(0.01), RATE, rng), tone(0.01)) for _ in range(1000))
    assert 200 < changed < 300


def test_the_augmentor_reads_a_mapping_and_the_list_of_nemo():
    mapping = {"shift": {"prob": 1.0, "min_shift_ms": 1.0, "max_shift_ms": 1.0}, "gain": {"prob": 0.5}}
    listed = [
        {"aug_type": name, "prob": section["prob"], "cfg": {k: v for k, v in section.items() if k != "prob"}}
        for name, section in mapping.items()
    ]
    one, two = (AudioAugmentor.from_config(c).perturbed(tone(), RATE, generator()) for c in (mapping, listed))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, tone())
    assert mapping["shift"]["prob"] == 1.0


def test_the_augmentor_knows_the_longest_result():
    augmentor = AudioAugmentor.from_config({"speed": {"prob": 1, "sr": RATE}, "time_stretch": {"prob": 1}})
    assert augmentor.max_augmentation_length(10.0) == pytest.approx(10 / 0.81)
    assert augmentor.min_augmentation_length(10.0) == pytest.approx(10 / 1.21)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"sped": {"prob": 1}}, UnknownNameError, r'augmentor: perturbation "sped" is not known.*did you mean speed\?'),
        ({"gain": {}}, UsageError, r"augmentor\.gain: prob is missing"),
        ({"gain": {"prob": 1.5}}, UsageError, r"GainPerturbation: prob is no probability: got 1\.5, wanted 0 to 1"),
        (
            {"gain": {"prob": 1, "min_gain": 1}},
            UsageError,
            r"augmentor\.gain: min_gain is not an argument \(did you mean min_gain_dbfs\?\)",
        ),
        ({"speed": {"prob": 1}}, UsageError, r"augmentor\.speed: sr is missing"),
        ({"gain": {"prob": 1, "min_gain_dbfs": 20}}, UsageError, r"gain: min_gain_dbfs is above max_gain_dbfs"),
        (
            {"speed": {"prob": 1, "sr": 8, "min_speed_rate": 0}},
            UsageError,
            r"min_speed_rate is 0, wanted float from 0.1 to 10",
        ),
        (
            {"speed": {"prob": 1, "sr": 8, "resample_type": "best"}},
            UnknownNameError,
            r'resample_type "best" is not known',
        ),
        ({"time_stretch": {"prob": 1, "n_fft": 510}}, UsageError, r"n_fft must be a multiple of 4"),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(config, error, message):
    with pytest.raises(error, match=message):
        AudioAugmentor.from_config(config)


def test_registered_perturbations_can_be_named_once(monkeypatch):
    class Mute(Perturbation):
        def perturbed(self, samples, sample_rate, rng):
            return np.zeros_like(samples)

    monkeypatch.setattr("nemo_asr.augmentation.augmentor.perturbation_types", dict(perturbation_types))
    register_perturbation("mute", Mute)
    assert not AudioAugmentor.from_config({"mute": {"prob": 1}}).perturbed(tone(), RATE, generator()).any()
    with pytest.raises(UsageError, match=r'perturbation "mute" exists: got Mute, wanted'):
        register_perturbation("mute", Mute)


@pytest.mark.parametrize("config", [{"sped": {"prob": 1}}, {"gain": {}}])
def test_unknown_names_and_missing_probabilities_are_key_errors_too(config):
    with pytest.raises(KeyError) as error:
        AudioAugmentor.from_config(config)
    assert str(error.value).startswith("augmentor")


def test_a_data_layer_takes_a_configuration_or_an_augmentor():
    augmentor = AudioAugmentor()
    assert augmentor_of(augmentor) is augmentor
    assert augmentor_of(None) is None
    assert isinstance(augmentor_of({"gain": {"prob": 1}}), AudioAugmentor)
    with pytest.raises(ValueError, match="augmentor is not usable: got list, wanted a dictionary or an AudioAugmentor"):
        augmentor_of([1])


# Recordings of noises and rooms are looked at before training: what cannot be used is named with its line.


@pytest.fixture
def noises(tmp_path, monkeypatch):
    """A manifest of three recordings of a second each; the number of one changes its line."""
    monkeypatch.chdir(tmp_path)

    def write(**changes):
        lines = []
        for number in range(3):
            soundfile.write(f"noise{number}.wav", np.full(16000, 0.1), 16000)
            lines.append({"audio_filepath": f"noise{number}.wav", "duration": 1.0})
        lines[1] |= changes
        (tmp_path / "noises.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return "noises.json"

    return write


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio_filepath": "gone.wav"}, r"noises\.json:2: the audio file gone\.wav cannot be opened"),
        ({"audio_filepath": "noises.json"}, r"noises\.json:2: noises\.json"),
        ({"audio_filepath": 7}, r"noises\.json:2: audio_filepath: expected str"),
        (
            {"duration": 2.0, "offset": 0.5},
            r"noises\.json:2: noise1\.wav is shorter than its line says: got 1\.000 s, wanted 2\.500 s \(offset \+ dur",
        ),
        ({"offset": 1.5}, r"noises\.json:2: noise1\.wav is shorter than its line says"),
    ],
)
@pytest.mark.parametrize("kind", ["noise", "impulse"])
def test_a_recording_that_cannot_be_used_is_refused_before_training(noises, tmp_path, changes, message, kind):
    make_set(tmp_path, 2)
    augmentor = {kind: {"prob": 0.1, "manifest_path": noises(**changes)}}
    with pytest.raises(DataError, match=message):
        layer_of(augmentor=augmentor)


def test_recordings_that_can_be_used_pass_and_those_that_never_act_are_not_looked_at(noises, tmp_path):
    make_set(tmp_path, 2)
    layer_of(augmentor={"noise": {"prob": 0.5, "manifest_path": noises(offset=0.02)}})
    never = {"noise": {"prob": 0.0, "manifest_path": noises(audio_filepath="gone.wav")}}
    AudioAugmentor.from_config(never).check_files()
    layer_of(augmentor={"noise": {**never["noise"], "prob": 1.0}}, load_audio=False)


def test_of_many_that_cannot_be_used_the_first_five_are_named(tmp_path):
    path = tmp_path / "noises.json"
    path.write_text("".join(f'{{"audio_filepath": "{number}.wav", "duration": 1}}\n' for number in range(8)))
    with pytest.raises(DataError) as error:
        NoisePerturbation(str(path)).check_files()
    lines = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in lines[:5]] == [f"{path}:{number}" for number in range(1, 6)]
    assert lines[5:] == ["... and 3 more"]


def test_a_part_of_a_recording_is_read_at_the_rate_asked_for(noises):
    (recording, *_) = read_recordings(noises())
    assert len(recording.read(8000, 0.25, 0.5)) == 4000


# Time stretching: length, pitch, and short audio.


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


# TimeStretchAugmentation: a batch stretched by one rate, in training only.


SIGNAL = torch.sin(torch.arange(8000) / 5).repeat(2, 1)
LENGTHS = torch.tensor([8000, 4000])


def test_all_utterances_are_stretched_by_one_rate_and_padded_with_zeros():
    module = TimeStretchAugmentation(16000, 1.0, min_speed_rate=1.25, max_speed_rate=1.25).train()
    processed, lengths = module(SIGNAL, LENGTHS)
    assert (processed.shape, lengths.tolist()) == ((2, 6400), [6400, 3200])
    assert processed[1, 3200:].abs().max() == 0
    assert processed[1, :3200].abs().max() > 0.5
    torch.manual_seed(1)
    several = TimeStretchAugmentation(16000, 1.0, num_rates=3).train()
    assert {several(SIGNAL, LENGTHS)[1][0].item() for _ in range(12)} == {8889, 8000, 7273}


def test_evaluation_and_an_improbable_batch_stay_as_they_are():
    assert TimeStretchAugmentation.training_only
    for module in (TimeStretchAugmentation(16000, 1.0).eval(), TimeStretchAugmentation(16000, 0.0).train()):
        processed, lengths = module(SIGNAL, LENGTHS)
        assert processed is SIGNAL
        assert lengths is LENGTHS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probability": 1.5}, "probability is 1.5, wanted float from 0 to 1"),
        ({"probability": 1, "min_speed_rate": 2}, "rates or n_fft are not usable: got 2, 1.1 and n_fft 512"),
        ({"probability": 1, "n_fft": 510}, "and n_fft 510, wanted min_speed_rate <="),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        TimeStretchAugmentation(16000, **arguments)


# WaveformFeaturizer: from files to tensors, perturbed on the way.


def test_a_file_or_its_content_becomes_a_tensor_at_the_rate(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(8000, 0.25), 8000)
    featurizer = WaveformFeaturizer.from_config({"sample_rate": 16000, "int_values": False})
    from_path = featurizer.process(str(tmp_path / "a.wav"))
    from_content = featurizer.process(io.BytesIO((tmp_path / "a.wav").read_bytes()))
    assert (from_path.dtype, from_path.shape) == (torch.float32, (16000,))
    assert torch.equal(from_path, from_content)
    assert featurizer.process(str(tmp_path / "a.wav"), offset=0.5, duration=0.25).shape == (4000,)


def test_perturbations_act_and_are_foreseen():
    gain = {"gain": {"prob": 1.0, "min_gain_dbfs": -6.0206, "max_gain_dbfs": -6.0206}}
    featurizer = WaveformFeaturizer.from_config({}, gain)
    samples = featurizer.process_segment(AudioSegment(np.full(100, 0.5), 16000))
    torch.testing.assert_close(samples, torch.full((100,), 0.25), rtol=1e-4, atol=0)
    slower = WaveformFeaturizer.from_config({}, [{"aug_type": "speed", "prob": 1.0, "cfg": {"sr": 16000}}])
    assert slower.max_augmentation_length(9.0) == 10.0


# Pauses.


def spoken(*parts):
    """Tones with silence between them; a number is seconds of silence, "a" a tone of 0.3 s."""
    return np.concatenate([tone(0.3) if part == "a" else np.zeros(int(part * RATE), np.float32) for part in parts])


def test_silence_puts_pauses_at_both_ends_and_leaves_the_speech_as_it_is():
    perturbation = SilencePerturbation(max_seconds=0.5, max_inside=0, digital=1.0)
    for seed in range(10):
        samples = perturbation.perturbed(tone(), RATE, generator(seed))
        sounding = np.flatnonzero(samples)
        first, last = sounding[0] - 1, sounding[-1] + 1  # a tone begins with a zero
        np.testing.assert_array_equal(samples[first : first + RATE], tone())
        assert 0 <= first <= 0.5 * RATE
        assert 0 <= len(samples) - last <= 0.5 * RATE + 1
        assert samples.dtype == np.float32


def test_silence_inside_goes_where_it_is_quiet():
    words = spoken("a", 0.2, "a")
    inside = SilencePerturbation(max_seconds=0.0, max_inside_seconds=0.5, max_inside=1, digital=1.0)
    lengths = set()
    for seed in range(20):
        samples = inside.perturbed(words, RATE, generator(seed))
        np.testing.assert_array_equal(samples[: int(0.3 * RATE)], tone(0.3))
        np.testing.assert_array_equal(samples[-int(0.3 * RATE) :], tone(0.3))
        lengths.add(len(samples))
    assert len(lengths) > 5
    assert len(inside.perturbed(tone(), RATE, generator(1))) == RATE, "there is no quiet place"


def test_the_noise_of_silence_has_a_level_between_the_limits_and_half_the_time_lies_below_the_speech():
    perturbation = SilencePerturbation(1.0, max_inside=0, min_level=-60, max_level=-40, digital=0.0)
    levels, below_speech = [], 0
    for seed in range(40):
        samples = perturbation.perturbed(np.full(RATE, 0.5, np.float32), RATE, generator(seed))
        levels.append(20 * np.log10(rms(samples[np.abs(samples) < 0.25])))
        below_speech += np.count_nonzero(samples == 0.5) < RATE
    assert -63 < min(levels) < -55
    assert -45 < max(levels) < -37
    assert 10 < below_speech < 30


@pytest.mark.parametrize("samples", [np.zeros(0, np.float32), np.zeros(1, np.float32), np.zeros(RATE, np.float32)])
def test_silence_takes_audio_that_is_empty_or_silent(samples):
    for seed in range(5):
        padded = SilencePerturbation().perturbed(samples, RATE, generator(seed))
        assert len(padded) >= len(samples)
        assert np.isfinite(padded).all()


def test_join_lays_utterances_in_a_row_with_pauses_between_them():
    join = JoinPerturbation(min_gap=0.2, max_gap=0.2, digital=1.0)
    joined = join.joined([tone(0.3), tone(0.1), tone(0.2)], RATE, generator())
    np.testing.assert_array_equal(joined, np.concatenate([tone(0.3), spoken(0.2), tone(0.1), spoken(0.2), tone(0.2)]))


def test_join_needs_a_data_layer():
    featurizer = WaveformFeaturizer(RATE, augmentor=AudioAugmentor.from_config({"join": {"prob": 1.0}}))
    message = r"augmentor\.join: join needs other utterances and texts: got one waveform, wanted a data layer"
    with pytest.raises(UsageError, match=message):
        featurizer.process_segment(AudioSegment(tone(), RATE))


def test_join_is_given_once():
    twice = [{"aug_type": "join", "prob": 0.5}, {"aug_type": "join", "prob": 0.5}]
    with pytest.raises(UsageError, match=r"augmentor\.join: join is given twice"):
        AudioAugmentor.from_config(twice)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"silence": {"prob": 1, "min_level": -40, "max_level": -80}}, "silence: min_level is above max_level"),
        ({"join": {"prob": 1, "min_gap": 2, "max_gap": 1}}, "join: min_gap is above max_gap"),
        (
            {"join": {"prob": 1, "max_utterances": 1}},
            r"JoinPerturbation\.max_utterances is 1, wanted int from 2 to 100",
        ),
        (
            {"silence": {"prob": 1, "max_seconds": -1}},
            r"SilencePerturbation\.max_seconds is -1, wanted float from 0 to 60",
        ),
    ],
)
def test_impossible_pauses_are_refused_by_name(config, message):
    with pytest.raises(UsageError, match=message):
        AudioAugmentor.from_config(config)


# Rooms, other voices, codecs, filters, overload.


def snr_db(samples, noisy):
    return 20 * np.log10(rms(samples) / rms(noisy - samples))


@pytest.fixture
def responses(tmp_path):
    """The manifest of one impulse response: a direct sound after 10 ms, and one echo."""
    samples = np.zeros(800)
    samples[80], samples[400] = 0.9, 0.3
    soundfile.write(tmp_path / "room.wav", samples, RATE, subtype="FLOAT")
    path = tmp_path / "rooms.json"
    path.write_text(json.dumps({"audio_filepath": "room.wav", "duration": 0.1}))
    return str(path)


def test_speech_and_noise_in_one_room_keep_length_level_and_ratio(recordings, responses):
    noises = recordings(generator().normal(0, 0.2, 3 * RATE))
    noisy = RirNoisePerturbation(responses, noises, 10, 10).perturbed(tone(), RATE, generator(1))
    room = ImpulsePerturbation(responses).perturbed(tone(), RATE, generator())
    assert len(noisy) == RATE
    assert snr_db(room, noisy) == pytest.approx(10, abs=0.1)


def test_rooms_and_noises_are_checked_before_training(recordings, responses):
    noises = recordings(np.ones(RATE))
    augmentor = {"rir_noise": {"prob": 0.5, "rir_manifest_path": responses, "noise_manifest_path": noises}}
    AudioAugmentor.from_config(augmentor).check_files()
    (Path(noises).parent / "0.wav").unlink()
    with pytest.raises(DataError, match=r"noises\.json:1: .*0\.wav"):
        AudioAugmentor.from_config(augmentor).check_files()


def test_babble_is_of_several_voices_at_the_ratio_asked_for(recordings):
    voices = [tone(3.0, hz) for hz in (500, 1000, 2000)]
    perturbation = BabblePerturbation(recordings(*voices), 8, 8, 10, 10)
    noisy = perturbation.perturbed(tone(hz=3000), RATE, generator(2))
    assert snr_db(tone(hz=3000), noisy) == pytest.approx(10, abs=0.1)
    spectrum = np.abs(np.fft.rfft(noisy))
    assert (spectrum[[500, 1000, 2000]] > 20 * np.median(spectrum)).all()


def test_babble_of_short_recordings_fills_a_part_and_silence_adds_nothing(recordings):
    noisy = BabblePerturbation(recordings(tone(0.2)), 1, 1, 10, 10).perturbed(tone(), RATE, generator(1))
    assert np.count_nonzero(noisy != tone()) <= 0.2 * RATE
    silent = np.zeros(RATE, np.float32)
    assert not BabblePerturbation(recordings(tone(0.2))).perturbed(silent, RATE, generator(1)).any()


needs_av = pytest.mark.skipif(not has_av(), reason="PyAV is not installed")


@pytest.mark.parametrize(
    ("codec", "least_db"),
    [
        *[("alaw", 30), ("mulaw", 30), ("gsm", 3), ("g721", 15), ("mp3", 10), ("vorbis", 10), ("opus", 10)],
        pytest.param("g722", 25, marks=needs_av),
    ],
)
def test_a_codec_keeps_length_and_place_and_changes_samples(codec, least_db):
    samples = tone(0.5, 440) * np.linspace(0.1, 1, RATE // 2, dtype=np.float32)
    coded = CodecPerturbation([codec]).perturbed(samples, RATE, generator(1))
    assert len(coded) == len(samples)
    assert least_db < snr_db(samples[400:-400], coded[400:-400]) < 100


def test_a_telephone_codec_loses_what_is_above_four_kilohertz():
    rate, codec = 16000, CodecPerturbation(["mulaw"])
    low, high = ((0.5 * np.sin(2 * np.pi * hz * np.arange(rate) / rate)).astype(np.float32) for hz in (1000.0, 6000.0))
    assert rms(codec.perturbed(low, rate, generator())) == pytest.approx(rms(low), rel=0.02)
    assert rms(codec.perturbed(high, rate, generator())) < 0.01


@pytest.mark.parametrize("codec", ["alaw", "mp3", "opus", pytest.param("g722", marks=needs_av)])
def test_a_codec_takes_audio_beyond_full_scale_silence_and_nothing(codec):
    loud = 4.0 * tone(0.5)
    coded = CodecPerturbation([codec]).perturbed(loud, RATE, generator())
    assert rms(coded) == pytest.approx(rms(loud), rel=0.1)
    assert len(CodecPerturbation([codec]).perturbed(loud[:0], RATE, generator())) == 0
    assert rms(CodecPerturbation([codec]).perturbed(np.zeros(100, np.float32), RATE, generator())) < 1e-3


def test_a_codec_that_is_not_installed_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("soundfile.check_format", lambda *names: names[0] != "MP3")
    with pytest.raises(UsageError, match=r"augmentor\.codec: the installed libsndfile .* has no mp3; leave it out"):
        AudioAugmentor.from_config({"codec": {"prob": 0.5}})
    monkeypatch.setattr("nemo_asr.run.audio.kinds.has_av", lambda: False)
    told = r"augmentor\.codec: g722 needs PyAV; pip install av \(the extra formats of nemo-lite\), or leave it out"
    with pytest.raises(UsageError, match=told):
        CodecPerturbation(["alaw", "g722"])
    with pytest.raises(UnknownNameError, match=r'codec "opsu" is not known.*did you mean opus'):
        CodecPerturbation(["opsu"])
    with pytest.raises(UsageError, match=r"augmentor\.codec: codecs is empty: wanted some of alaw, mulaw"):
        CodecPerturbation([])


def test_low_pass_keeps_what_is_below_the_cutoff_and_removes_what_is_above():
    low_pass = LowPassPerturbation(1000, 1000)
    assert rms(low_pass.perturbed(tone(hz=500), RATE, generator())) == pytest.approx(rms(tone(hz=500)), rel=0.01)
    at_cutoff = rms(low_pass.perturbed(tone(hz=1000), RATE, generator())) / rms(tone(hz=1000))
    assert 20 * np.log10(at_cutoff) == pytest.approx(-3, abs=0.1)
    assert rms(low_pass.perturbed(tone(hz=2000), RATE, generator())) < 0.01 * rms(tone(hz=2000))


def test_clip_cuts_the_loudest_samples_off_and_leaves_the_others():
    samples = generator().normal(0, 0.1, 10_000).astype(np.float32)
    clipped = ClipPerturbation(0.1, 0.1).perturbed(samples, RATE, generator())
    assert np.count_nonzero(clipped != samples) == pytest.approx(1000, abs=5)
    assert np.abs(clipped).max() == pytest.approx(np.sort(np.abs(samples))[9000], rel=1e-3)
    assert len(ClipPerturbation().perturbed(samples[:0], RATE, generator())) == 0
