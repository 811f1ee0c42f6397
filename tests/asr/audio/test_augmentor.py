"""AudioAugmentor: probabilities, configurations and their mistakes, the registry."""

import numpy as np
import pytest

from nemo_asr.audio.augmentation import (
    AudioAugmentor,
    GainPerturbation,
    Perturbation,
    augmentor_of,
    perturbation_types,
    register_perturbation,
)
from nemo_lite.errors import UnknownNameError, UsageError

RATE = 8000


def generator(seed=0):
    return np.random.default_rng(seed)


def tone(seconds=1.0, hz=440.0, level=0.5):
    return (level * np.sin(2 * np.pi * hz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


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
    class Silence(Perturbation):
        def perturbed(self, samples, sample_rate, rng):
            return np.zeros_like(samples)

    monkeypatch.setattr("nemo_asr.audio.augmentation.perturbation_types", dict(perturbation_types))
    register_perturbation("silence", Silence)
    assert not AudioAugmentor.from_config({"silence": {"prob": 1}}).perturbed(tone(), RATE, generator()).any()
    with pytest.raises(UsageError, match=r'perturbation "silence" exists'):
        register_perturbation("silence", Silence)


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
