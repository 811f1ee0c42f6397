"""AudioToMelDeltasPreprocessor: by its definition in float64, each utterance for itself, and exported.

Its numbers are compared with those of transformers in `test_frame_models.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from nemo_asr.features.mel_deltas import AudioToMelDeltasPreprocessor
from nemo_lite.core.shapes import Expr, symbol

LENGTHS = [8000, 8159, 8160, 8161, 8319, 8320, 4799]


def speech(length: int) -> torch.Tensor:
    """Noise of changing loudness: (T,)."""
    noise = torch.randn(length, generator=torch.Generator().manual_seed(length))
    return 0.1 * noise * (torch.arange(length) / 900).sin()


def defined(samples: npt.NDArray[np.float64], floor: float = 8.0) -> npt.NDArray[np.float64]:
    """Features (T, 4 * 80)."""
    hops = len(samples) // 160
    number = hops + hops % 2
    samples = np.pad(samples, (0, max((number - 1) * 160 + 1 - len(samples), 0)))
    mirrored = np.pad(samples, 256, mode="reflect")
    window = np.pad(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400), 56)
    power = np.array([np.abs(np.fft.rfft(mirrored[160 * t : 160 * t + 512] * window)) ** 2 for t in range(number)])
    mels = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 82)
    hz, bins = 700 * (10 ** (mels / 2595) - 1), np.arange(257)[:, None] * 31.25
    rising, falling = (bins - hz[:80]) / np.diff(hz)[:80], (hz[2:] - bins) / np.diff(hz)[1:]
    logarithms = np.log10(np.maximum(power @ np.maximum(0, np.minimum(rising, falling)), 1e-10))
    values = np.maximum(logarithms, logarithms.max() - floor) / 4 + 1
    around = np.pad(values, ((1, 1), (0, 0)), mode="edge")
    return np.concatenate([values, (around[2:] - around[:-2]) / 2], axis=1).reshape(number // 2, -1)


@pytest.mark.parametrize("floor", [8.0, 2.0])
def test_features_follow_from_the_definition_in_float64_in_any_batch(floor: float) -> None:
    rows = [speech(length) for length in LENGTHS]
    signal = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=7.0)
    module = AudioToMelDeltasPreprocessor(floor=floor)
    features, frames = module(signal, torch.tensor(LENGTHS))
    assert features.shape[1:] == (320, 26)
    for row, samples in enumerate(rows):
        wanted = defined(samples.double().numpy(), floor)
        assert int(frames[row]) == len(wanted)
        np.testing.assert_allclose(features[row, :, : len(wanted)].T, wanted, rtol=0, atol=1e-5)
        assert not features[row, :, len(wanted) :].any()


def test_less_than_a_hop_makes_no_frames_and_silence_is_finite() -> None:
    features, frames = AudioToMelDeltasPreprocessor()(torch.zeros(2, 900), torch.tensor([159, 900]))
    assert frames.tolist() == [0, 3]
    assert features.isfinite().all()
    assert AudioToMelDeltasPreprocessor()(torch.zeros(1, 100), torch.tensor([100]))[0].shape == (1, 320, 0)


@pytest.mark.parametrize("length", [159, 160, 319, 320, 480, 16000])
def test_the_symbolic_shape_is_that_of_the_frames(length: int) -> None:
    module = AudioToMelDeltasPreprocessor()
    size = module.output_shapes({"input_signal": (1, symbol("T"))})["processed_signal"][2]
    assert isinstance(size, Expr)
    assert size.value(T=length) == module(torch.zeros(1, length), torch.tensor([length]))[0].shape[2]


def test_it_says_what_it_is_and_why_it_does_not_stream() -> None:
    module = AudioToMelDeltasPreprocessor(features=40)
    assert module.summary == "40 a frame and their deltas, two frames in one; Granite Speech's"
    assert "the whole utterance" in module.stream_problem()


@pytest.mark.slow
def test_an_exported_preprocessor_gives_the_same_numbers() -> None:
    module, free = AudioToMelDeltasPreprocessor().eval(), torch.export.Dim.DYNAMIC
    example = torch.stack([speech(8000), speech(8000)]), torch.tensor([8000, 6000])
    program = torch.export.export(module, example, dynamic_shapes=({0: free, 1: free}, {0: free})).module()
    signal, length = torch.stack([speech(12345)] * 3), torch.tensor([12345, 7040, 400])
    for exported, computed in zip(program(signal, length), module(signal, length), strict=True):
        torch.testing.assert_close(exported, computed, atol=1e-4, rtol=0)
