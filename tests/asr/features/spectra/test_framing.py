"""Features of each generation of NeMo: by their definitions, by NVIDIA's own class where it is there, and exported."""

from __future__ import annotations

import math

import librosa
import pytest
import torch
from toys.nemo_source import needs_nemo, nemo_module

from nemo_asr import AudioToMelSpectrogramPreprocessor
from nemo_asr.features.spectra import FRAMINGS, Generation, generation_of
from nemo_lite.base.errors import UnknownNameError

RATE, HOP, WINDOW, N_FFT = 16000, 160, 400, 512
LENGTHS = (16000, 16001, 11111, 8159)
GENERATIONS: list[Generation] = ["nemo_0.11", "nemo_1.0", "nemo_2.5"]
VALID = {
    "nemo_0.11": lambda samples: math.ceil(samples / HOP),
    "nemo_1.0": lambda samples: samples // HOP + 1,
    "nemo_2.5": lambda samples: samples // HOP,
}


def signals(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise of changing loudness, padded with zeros: (B, T) and lengths (B,)."""
    draw = torch.Generator().manual_seed(0)
    signal = torch.zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        loudness = 0.05 + (torch.arange(length) / 3000 + row).sin().abs()
        signal[row, :length] = 0.1 * torch.randn(length, generator=draw) * loudness
    return signal, torch.tensor(lengths)


def assert_same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal within 2e-5, but for what float32 rounds in bands almost without signal: NeMo itself is as far off."""
    difference = (got - wanted).abs().flatten()
    assert difference.quantile(0.99) <= 2e-5
    assert difference.max() <= 3e-4


def made(generation: Generation, features: int = 80, **arguments: object) -> AudioToMelSpectrogramPreprocessor:
    settings = {"window_size": 0.025, "features": features, "pad_to": 0, "std_floor": 0.0, "n_fft": N_FFT, **arguments}
    return AudioToMelSpectrogramPreprocessor(generation=generation, **settings).eval()  # type: ignore[arg-type]


def by_definition(signal: torch.Tensor, generation: str, features: int) -> torch.Tensor:
    """NeMo's steps for one utterance on its own: (D, 1 + T // hop), without the rest of torch's frames in 0.11."""
    emphasised = torch.cat([signal[:1], signal[1:] - 0.97 * signal[:-1]])
    window = torch.hann_window(WINDOW, periodic=False)
    pad_mode = "constant" if generation == "nemo_2.5" else "reflect"
    spectrum = torch.stft(emphasised, N_FFT, HOP, WINDOW, window, True, pad_mode, return_complex=True)
    filters = torch.from_numpy(librosa.filters.mel(sr=RATE, n_fft=N_FFT, n_mels=features))
    mel = torch.log(filters @ spectrum.abs().square() + 2**-24)
    own = mel[:, : VALID[generation](len(signal))]
    return (own - own.mean(1, keepdim=True)) / (own.std(1, keepdim=True) + 1e-5)


@pytest.mark.parametrize("features", [80, 128])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_utterance_has_the_numbers_of_its_generation_whatever_stands_beside_it(
    generation: Generation, features: int
) -> None:
    signal, length = signals(*LENGTHS)
    processed, processed_length = made(generation, features)(input_signal=signal, length=length)
    assert processed_length.tolist() == [VALID[generation](each) for each in LENGTHS]
    for row, each in enumerate(LENGTHS):
        wanted = by_definition(signal[row, :each], generation, features)
        assert_same(processed[row, :, : wanted.shape[1]], wanted)
        assert not processed[row, :, wanted.shape[1] :].any()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_generations_differ(generation: Generation) -> None:
    signal, length = signals(16000)
    others = [made(other)(input_signal=signal, length=length) for other in FRAMINGS if other != generation]
    mine = made(generation)(input_signal=signal, length=length)
    for other in others:
        frames = min(mine[0].shape[2], other[0].shape[2])
        assert (mine[0][..., :frames] - other[0][..., :frames]).abs().max() > 1e-3 or mine[1] != other[1]


@needs_nemo
@pytest.mark.parametrize("normalize", ["per_feature", "all_features", "NA"])
@pytest.mark.parametrize("features", [80, 128])
def test_features_since_2_5_are_those_of_nemos_own_class(features: int, normalize: str) -> None:
    theirs = nemo_module("parts.preprocessing.features").FilterbankFeatures(
        sample_rate=RATE, n_window_size=WINDOW, n_window_stride=HOP, normalize=normalize, n_fft=N_FFT,
        nfilt=features, dither=0.0, pad_to=0,
    )  # fmt: skip
    signal, length = signals(*LENGTHS)
    wanted, wanted_length = theirs.eval()(signal, length)
    processed, processed_length = made("nemo_2.5", features, normalize=normalize)(input_signal=signal, length=length)
    assert processed_length.tolist() == wanted_length.tolist()
    assert processed.shape == wanted.shape
    assert_same(processed, wanted)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_exported_preprocessor_keeps_its_generation(generation: Generation) -> None:
    module, free = made(generation), torch.export.Dim.DYNAMIC
    program = torch.export.export(module, signals(8000, 6000), dynamic_shapes=({0: free, 1: free}, {0: free})).module()
    signal, length = signals(*LENGTHS)
    exported, exported_length = program(signal, length)
    processed, processed_length = module(input_signal=signal, length=length)
    assert exported_length.tolist() == processed_length.tolist()
    torch.testing.assert_close(exported, processed, atol=2e-4, rtol=1e-4)


def test_a_version_of_nemo_gives_its_generation() -> None:
    versions = ["", "0.11.0", "0.10", "1.0.0rc1", "1.23.0", "2.4.1", "2.5.0rc0", "2.10.0", "3.0.0"]
    assert [generation_of(each) for each in versions] == [*["nemo_0.11"] * 3, *["nemo_1.0"] * 3, *["nemo_2.5"] * 3]


def test_another_generation_is_named_with_those_that_are_known() -> None:
    with pytest.raises(
        UnknownNameError, match=r'generation "nemo_9".*known: nemo_0\.11, nemo_1\.0, nemo_2\.5, nemo_lite'
    ):
        made("nemo_9")  # type: ignore[arg-type]
