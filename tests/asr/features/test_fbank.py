"""Kaldi's filter banks: by kaldi-native-fbank, by their definition in float64, and exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from nemo_asr.features.fbank import AudioToKaldiFbankPreprocessor, kaldi_filterbank, reflected
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.shapes import definitions, symbol

RATES = (8000, 16000, 22050, 44100)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"snip_edges": False},
    {"window": "hann", "preemph": None},
    {"window": "rectangular", "highfreq": -400.0},
    {"window": "hamming", "features": 40, "lowfreq": 60.0, "highfreq": 3500.0},
    {"n_window_size": 512, "window_size": None, "n_window_stride": 200, "window_stride": None, "features": 23},
    {"scale": 1.0},
    {"remove_dc_offset": False},
    {"remove_dc_offset": False, "preemph": None},
]


def speech(length: int, seed: int = 0) -> torch.Tensor:
    """Noise of changing loudness beside 0, as 16 bits hold it: (T,)."""
    noise = torch.randn(length, generator=torch.Generator().manual_seed(seed))
    samples = 0.1 * noise * (torch.arange(length) / 3000).sin().abs() + 0.05
    return torch.round(samples * 32768) / 32768


def run(module: AudioToKaldiFbankPreprocessor, *rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    signal = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=7.0)
    return module.eval().forward(signal, torch.tensor([len(row) for row in rows]))


def of_kaldi(samples: torch.Tensor, module: AudioToKaldiFbankPreprocessor, **options: Any) -> npt.NDArray[np.float32]:
    """Features (T, D) by kaldi-native-fbank."""
    kaldi = pytest.importorskip("kaldi_native_fbank")
    wanted = kaldi.FbankOptions()
    frames, mel = wanted.frame_opts, wanted.mel_opts
    frames.samp_freq, frames.dither = module.sample_rate, 0.0
    frames.frame_length_ms = 1000 * module.win_length / module.sample_rate
    frames.frame_shift_ms = 1000 * module.hop_length / module.sample_rate
    frames.remove_dc_offset = options.get("remove_dc_offset", True)
    frames.snip_edges = options.get("snip_edges", True)
    window = options.get("window", "povey")
    frames.window_type = "hanning" if window == "hann" else window  # "hann" is the periodic one there
    frames.preemph_coeff = options.get("preemph", 0.97) or 0.0
    mel.num_bins, mel.low_freq = module.num_features, options.get("lowfreq", 20.0)
    mel.high_freq = options.get("highfreq", 0.0)
    computer = kaldi.OnlineFbank(wanted)
    computer.accept_waveform(module.sample_rate, (samples * options.get("scale", 32768.0)).tolist())
    computer.input_finished()
    rows = [computer.get_frame(frame) for frame in range(computer.num_frames_ready)]
    return np.stack(rows) if rows else np.zeros((0, module.num_features), np.float32)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rate", RATES)
def test_features_are_those_of_kaldi(rate: int, options: dict[str, Any]) -> None:
    module = AudioToKaldiFbankPreprocessor(sample_rate=rate, **options)
    lengths = (16000, 1103, 1102, 560, 551, 401, 400, 399, 200, 1)
    rows = [speech(length, seed=length) for length in lengths]
    processed, frames = run(module, *rows)
    for row, samples in enumerate(rows):
        wanted = of_kaldi(samples, module, **options)
        count = int(frames[row])
        assert count == len(wanted)
        np.testing.assert_allclose(processed[row, :, :count].T, wanted, rtol=0, atol=1e-3)
        assert not processed[row, :, count:].any()


def test_features_follow_from_the_definition_in_float64() -> None:
    samples = speech(5000).double().numpy() * 32768
    mels = lambda hz: 1127 * np.log(1 + hz / 700)  # noqa: E731
    corners = np.linspace(mels(20.0), mels(8000.0), 82)
    wanted = []
    for begin in range(0, 5000 - 399, 160):
        frame = samples[begin : begin + 400] - samples[begin : begin + 400].mean()
        frame = frame - 0.97 * np.concatenate([frame[:1], frame[:-1]])
        window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
        power = np.abs(np.fft.rfft(frame * window, 512)) ** 2
        bins = mels(np.arange(257) * 31.25)
        bands = [
            sum(p * max(0.0, min((b - low) / (mid - low), (high - b) / (high - mid))) for p, b in zip(power, bins))  # noqa: B905
            for low, mid, high in zip(corners, corners[1:], corners[2:])  # noqa: B905
        ]
        wanted.append(np.log(bands))
    processed, _ = run(AudioToKaldiFbankPreprocessor(), speech(5000))
    np.testing.assert_allclose(processed[0].T, np.array(wanted), rtol=0, atol=1e-3)


def test_silence_has_the_logarithm_of_the_smallest_power() -> None:
    processed, _ = run(AudioToKaldiFbankPreprocessor(), torch.zeros(800))
    assert processed.unique().tolist() == [pytest.approx(np.log(np.finfo(np.float32).eps))]


def test_powers_below_the_guard_count_as_the_guard() -> None:
    processed, _ = run(AudioToKaldiFbankPreprocessor(log_zero_guard_value=1e-5), torch.zeros(800))
    assert processed.unique().tolist() == [pytest.approx(np.log(1e-5))]


def test_the_variance_of_each_band_may_have_a_floor_of_its_own() -> None:
    quiet = speech(5000)
    plain, _ = run(AudioToKaldiFbankPreprocessor(), quiet)
    own = plain[0].double()
    wanted = (own - own.mean(1, keepdim=True)) / (own.var(1, keepdim=True) + 0.5).sqrt()
    floored = AudioToKaldiFbankPreprocessor(normalize="per_feature", variance_floor=0.5)
    assert floored.summary == "80 a frame; Kaldi's fbank (WeNet's), mean and deviation of each recording"
    processed, frames = run(floored, quiet, speech(3000, 1))
    torch.testing.assert_close(processed[0].double(), wanted, rtol=0, atol=1e-5)
    assert not processed[1, :, int(frames[1]) :].any()


def test_fixed_means_and_deviations_are_those_of_global_cmvn() -> None:
    plain, _ = run(AudioToKaldiFbankPreprocessor(), speech(5000))
    mean, std = plain[0].mean(1), plain[0].std(1)
    fixed = AudioToKaldiFbankPreprocessor(normalize={"fixed_mean": mean.tolist(), "fixed_std": std.tolist()})
    torch.testing.assert_close(run(fixed, speech(5000))[0][0], (plain[0] - mean[:, None]) / std[:, None])
    assert fixed.summary == "80 a frame; Kaldi's fbank (WeNet's), with fixed mean and deviation"
    assert AudioToKaldiFbankPreprocessor(snip_edges=False).summary.endswith(
        "without fixed mean and deviation, edges mirrored"
    )


def test_dither_is_in_units_of_the_scaled_samples() -> None:
    module = AudioToKaldiFbankPreprocessor(dither=100.0, window="rectangular", preemph=None).train()
    torch.manual_seed(0)
    dithered = module.forward(torch.zeros(1, 16000), torch.tensor([16000]))[0]
    torch.manual_seed(0)
    noise = 100 * torch.randn(1, 16000) / 32768
    wanted, _ = run(AudioToKaldiFbankPreprocessor(window="rectangular", preemph=None), noise[0])
    torch.testing.assert_close(dithered, wanted, rtol=0, atol=1e-3)


def test_mirrors_repeat_the_end_and_are_mirrored_in_turn() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0, 9.0], [5.0, 9.0, 9.0, 9.0]])
    got = reflected(rows, torch.tensor([3, 1]), -4, 12)
    assert got[0].tolist() == [3, 3, 2, 1, 1, 2, 3, 3, 2, 1, 1, 2]
    assert set(got[1].tolist()) == {5.0}


def test_a_filter_is_a_triangle_over_mels() -> None:
    filters = kaldi_filterbank(16000, 512, 80, 20.0, 8000.0)
    assert filters.shape == (257, 80)
    assert not filters[0].any()
    assert not filters[256].any()
    assert 0.9 < float(filters.max()) <= 1.0


@pytest.mark.parametrize(
    ("snip_edges", "size", "frames"), [(True, "(samples-399)/160", 98), (False, "(samples-79)/160", 100)]
)
def test_shapes_follow_from_the_samples(snip_edges: bool, size: str, frames: int) -> None:
    module = AudioToKaldiFbankPreprocessor(snip_edges=snip_edges)
    shape = module.output_shapes({"input_signal": (symbol("B"), symbol("samples"))})["processed_signal"]
    assert definitions([shape]) == {"T": size}
    assert shape[2].value(samples=16000) == frames  # type: ignore[union-attr]
    assert module.get_seq_len(torch.tensor([16000])).tolist() == [frames]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"snip_edges": False, "preemph": None},
        {"remove_dc_offset": False, "preemph": None, "scale": 1.0, "log_zero_guard_value": 1e-5},
        {"normalize": "per_feature", "variance_floor": 1e-7},
    ],
    ids=str,
)
def test_an_exported_preprocessor_gives_the_same_numbers(options: dict[str, Any]) -> None:
    module, free = AudioToKaldiFbankPreprocessor(**options).eval(), torch.export.Dim.DYNAMIC
    example = torch.stack([speech(8000), speech(8000, 1)]), torch.tensor([8000, 6000])
    program = torch.export.export(module, example, dynamic_shapes=({0: free, 1: free}, {0: free})).module()
    signal, length = torch.stack([speech(12345, seed) for seed in range(3)]), torch.tensor([12345, 7000, 300])
    signal[:, 3000:6000] *= 1e-3
    for exported, computed in zip(program(signal, length), module.forward(signal, length), strict=True):
        torch.testing.assert_close(exported, computed, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lowfreq": 8000.0}, UsageError, r"lowfreq and highfreq do not fit the sample rate: got 8000 and 8000 Hz"),
        ({"highfreq": 9000.0}, UsageError, r"got 20 and 9000 Hz, wanted 0 <= lowfreq < highfreq <= 8000 Hz"),
        ({"highfreq": -8000.0}, UsageError, r"got 20 and 0 Hz"),
        ({"window": "povy"}, UnknownNameError, r'window "povy".*did you mean povey'),
        ({"normalize": {"fixed_mean": [0.0], "fixed_std": [1.0]}}, UsageError, r"fixed_mean and fixed_std with 80"),
        ({"n_window_size": 400}, UsageError, r"give one of window_size and n_window_size: got both"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AudioToKaldiFbankPreprocessor(**options)
