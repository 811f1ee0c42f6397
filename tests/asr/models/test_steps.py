"""Modules of speech in chunks: what ``step`` gives for all chunks is what ``forward`` gives for the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from toys.conformer_cases import SMALL, fill

from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.features.fbank import AudioToKaldiFbankPreprocessor
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor, AudioToMFCCPreprocessor
from nemo_asr.features.preprocessors import AudioToSpectrogramPreprocessor as Spectrogram
from nemo_asr.features.spectra import FRAMINGS
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.models.contextnet import ContextNetDecoderForCTC
from nemo_asr.models.jasper import JasperDecoderForCTC, JasperEncoder
from nemo_lite.backends.pytorch.streaming import Streams, stream_problem

NO_NORM = {"normalize": None, "pad_to": 0, "dither": 0.0}


def cuts(num_frames, seed):
    """Lengths of chunks: random ones, single frames and empty ones; for seed 0 the whole."""
    rng = np.random.RandomState(seed)
    largest = [num_frames, 1, 3, 17, 40][seed % 5]
    sizes, left = [], num_frames
    while left:
        sizes.append(min(int(rng.randint(seed > 1, largest + 1)) if seed else largest, left) if seed != 1 else 1)
        left -= sizes[-1]
        assert len(sizes) < 10_000
    return sizes


@torch.no_grad()
def streamed(module, signal, sizes, ends_alone=False):
    """The outputs of all steps along time, the axis of which is that of the first output's chunks."""
    state, outputs = module.initial_state(signal.shape[0]), []
    axis = 1 if isinstance(module, ContextNetDecoderForCTC) else 2
    chunks = list(signal.split(sizes, dim=-1))
    if ends_alone:
        chunks.append(signal[..., :0])
    for index, chunk in enumerate(chunks):
        lengths = torch.full((signal.shape[0],), chunk.shape[-1])
        inputs = (chunk,) if axis == 1 else (chunk, lengths)
        before = {key: value.clone() for key, value in state.items()}
        out, new_state = module.step(*inputs, state=state, last=index == len(chunks) - 1)
        assert all(torch.equal(before[key], value) for key, value in state.items()), "a state is a value"
        assert new_state.keys() == state.keys()
        state = new_state
        outputs.append(out)
        if len(out) > 1:
            assert out[1].tolist() == [out[0].shape[2]] * signal.shape[0]
    return [torch.cat(parts, dim=axis) for parts in list(zip(*outputs, strict=True))[:: 2 if axis == 2 else 1]]


@torch.no_grad()
def check(module, signal, seeds=range(6)):
    module.eval()
    assert isinstance(module, Streams)
    assert stream_problem(module) == ""
    lengths = torch.full((signal.shape[0],), signal.shape[-1])
    whole = module(signal) if isinstance(module, ContextNetDecoderForCTC) else module(signal, lengths)
    whole = list(whole[::2]) if isinstance(whole, tuple) else [whole]
    for seed in seeds:
        parts = streamed(module, signal, cuts(signal.shape[-1], seed), ends_alone=seed % 2 == 1)
        for part, of_whole in zip(parts, whole, strict=True):
            num_frames = part.shape[2] if part.dim() == 3 else 0
            assert part.shape[:2] == of_whole.shape[:2]
            assert num_frames == of_whole.shape[2], seed
            torch.testing.assert_close(part, of_whole, rtol=1e-5, atol=1e-5)


STREAMING = {
    "causal_downsampling": True,
    "conv_context_size": "causal",
    "conv_norm_type": "layer_norm",
    "att_context_style": "chunked_limited",
}
DW = {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 4}
CONFORMERS: dict[str, dict[str, Any]] = {
    **{f"[{left}, {right}]": {**DW, "att_context_size": [left, right]} for left, right in [(70, 0), (70, 1), (70, 13)]},
    "[6, 6]": {**DW, "att_context_size": [0, 6]},
    "all before": {**DW, "att_context_size": [-1, 2]},
    "short": {**DW, "att_context_size": [4, 1], "feat_out": 6, "intermediate_block": 0, "conv_kernel_size": 1},
    "striding": {"att_context_size": [4, 1], "causal_downsampling": False, "conv_norm_type": "batch_norm"},
    "stacking": {"att_context_size": [4, 1], "subsampling": "stacking_norm", "causal_downsampling": False},
    "vggnet": {"att_context_size": [4, 1], "subsampling": "vggnet", "causal_downsampling": False},
    "no subsampling": {"att_context_size": [4, 1], "subsampling_factor": 1, "causal_downsampling": False},
    "regular without frames behind": {"att_context_size": [3, 0], "att_context_style": "regular"},
    "WeNet": {
        "subsampling": "conv2d",
        "causal_downsampling": False,
        "self_attention_model": "rel_pos_no_shift",
        "after_norm": True,
        "conv_pads_input": True,
        "att_context_size": [8, 3],
    },
    "no positions": {**DW, "att_context_size": [4, 1], "self_attention_model": "no_pos"},
    **{
        f"conv2d of a {factor}th": {
            **{"att_context_size": [4, 1], "subsampling": "conv2d", "subsampling_factor": factor},
            "causal_downsampling": False,
        }
        for factor in (6, 8)
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFORMERS)
def test_a_conformer_in_chunks_encodes_as_of_the_whole(name):
    encoder = ConformerEncoder(**{**SMALL, **STREAMING, **CONFORMERS[name]})
    fill(encoder)
    num_frames = 700 if "70" in name else 131
    features = torch.from_numpy(np.random.RandomState(1).standard_normal((2, 20, num_frames)).astype(np.float32))
    check(encoder, features, seeds=(0, 3, 4) if "70" in name else (0, 1, 3))


def blocks(*kernels, **keys):
    block = {"repeat": 2, "dropout": 0.1, "residual": True, "separable": True, "stride": 1, "dilation": 1, **keys}
    return [{**block, "filters": 6, "kernel": kernel} for kernel in kernels]


ENCODERS = {
    "QuartzNet": [*blocks(11, residual=False, stride=2, repeat=1), *blocks(5, 7), *blocks(9, dilation=2, repeat=1)],
    "strided residuals": blocks(5, 3, stride=2, stride_last=True, residual_mode="stride_add"),
    "a residual of frames that no kernel reaches": blocks(
        1, 3, stride=3, stride_last=True, repeat=1, residual_mode="stride_add"
    ),
    "dense": blocks(3, 5, 7, residual_dense=True, separable=False),
    "few frames behind": [
        *blocks(11, residual=False, stride=2, repeat=1, future_context=1),
        *blocks(5, 7, future_context=0),
        *blocks(9, dilation=2, repeat=1, separable=False, future_context=2),
        *blocks(3, future_context=7),
    ],
    "causal squeeze-and-excitation": [
        *blocks(5, se=True, se_reduction_ratio=2, se_interpolation_mode="causal", se_context_window=9),
        *blocks(
            3,
            stride=2,
            residual=False,
            se=True,
            se_reduction_ratio=2,
            se_context_size=4,
            se_interpolation_mode="causal",
        ),
    ],
    "groups, heads": [*blocks(3, groups=2), *blocks(5, heads=3)],
    "maximum": blocks(3, 5, residual_mode="max"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_jasper_in_chunks_encodes_as_of_the_whole(name):
    encoder = JasperEncoder(ENCODERS[name], "relu", feat_in=6, intermediate_block=0)
    for norm in (m for m in encoder.modules() if isinstance(m, torch.nn.BatchNorm1d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.bias.data.normal_()
    check(encoder, torch.randn(2, 6, 67))


def test_a_future_context_is_what_outputs_wait_for():
    # Swish, as units of ReLU that are off hide what reaches them.
    bounded, usual = (JasperEncoder(ENCODERS[name], "swish", feat_in=6) for name in ("few frames behind", "QuartzNet"))
    assert bounded.stream_delay() == (2, 1 + 0 + 0 + 2 * 4 + 2 * 2 * 1)
    assert usual.stream_delay() == (2, 5 + 2 * (2 * 2 + 2 * 3 + 8))
    encoder, features = bounded.eval(), torch.randn(1, 6, 101, requires_grad=True)
    encoder(features, torch.tensor([101]))[0][0, :, 25].sum().backward()
    (reached,) = features.grad.abs().sum((0, 1)).nonzero(as_tuple=True)
    assert int(reached[-1]) == 25 * 2 + bounded.stream_delay().look_ahead
    assert 25 * 2 - int(reached[0]) <= encoder.context_frames


@pytest.mark.parametrize("generation", FRAMINGS)
@pytest.mark.parametrize("num_samples", [1, 120, 159, 160, 250, 257, 258, 1000, 3333])
def test_features_in_chunks_are_those_of_the_whole(generation, num_samples):
    preprocessor = AudioToMelSpectrogramPreprocessor(**NO_NORM, features=20, window_size=0.025, generation=generation)
    signal = torch.from_numpy(np.random.RandomState(0).standard_normal((2, num_samples)).astype(np.float32))
    whole, num_valid = preprocessor.eval()(signal, torch.tensor([num_samples] * 2))
    for seed in (0, 1, 3) if num_samples < 300 else (0, 3):
        (parts,) = streamed(preprocessor, signal, cuts(num_samples, seed), ends_alone=seed % 2 == 1)
        assert parts.shape[2] == num_valid[0], (generation, num_samples, seed)
        torch.testing.assert_close(parts, whole[:, :, : parts.shape[2]], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"n_window_stride": 500, "window_stride": None, "preemph": None}])
@pytest.mark.parametrize("num_samples", [1, 399, 400, 559, 560, 3333])
def test_fbank_in_chunks_is_that_of_the_whole(num_samples, settings):
    preprocessor = AudioToKaldiFbankPreprocessor(**settings, features=20)
    signal = torch.from_numpy(np.random.RandomState(0).standard_normal((2, num_samples)).astype(np.float32))
    whole, num_valid = preprocessor.eval()(signal, torch.tensor([num_samples] * 2))
    for seed in (0, 3, 4):
        (parts,) = streamed(preprocessor, signal, cuts(num_samples, seed), ends_alone=seed == 3)
        assert parts.shape[2] == num_valid[0]
        torch.testing.assert_close(parts, whole[:, :, : parts.shape[2]], rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_other_spectrograms_and_fixed_statistics_stream_too():
    signal = torch.randn(1, 1234)
    check(Spectrogram(), signal, seeds=(0, 1, 3))
    check(AudioToMFCCPreprocessor(n_mels=20, n_mfcc=8, log=True), signal, seeds=(0, 3))
    fixed = {"fixed_mean": [1.0] * 20, "fixed_std": [2.0] * 20}
    check(AudioToMelSpectrogramPreprocessor(**{**NO_NORM, "normalize": fixed}, features=20), signal, seeds=(0, 3))


@pytest.mark.parametrize("seconds", [0.01, 0.05, 3.0])
def test_moving_statistics_in_chunks_are_those_of_the_whole(seconds):
    fixed = {"fixed_mean": [-3.0] * 20, "fixed_std": [2.0] * 20}
    settings = {**NO_NORM, "normalize": fixed, "features": 20}
    preprocessor = AudioToMelSpectrogramPreprocessor(**settings, moving_seconds=seconds)
    signal = torch.randn(2, 3333) * torch.linspace(0, 1, 3333)
    check(preprocessor, signal, seeds=(0, 1, 3))
    lengths = torch.tensor([3333, 1500])
    (moving, num_valid), (plain, _) = (
        each(signal, lengths) for each in (preprocessor, AudioToMelSpectrogramPreprocessor(**settings).eval())
    )
    window = round(100 * seconds)
    for row in range(2):
        for frame in range(int(num_valid[row])):
            seen = plain[row, :, max(frame - window + 1, 0) : frame + 1].double()
            missing = window - seen.shape[1]
            mean, square = seen.sum(1) / window, (seen.square().sum(1) + missing) / window
            deviation = (square - mean**2).clamp(min=0.01).sqrt()
            expected = ((plain[row, :, frame] - mean) / deviation).float()
            torch.testing.assert_close(moving[row, :, frame], expected, rtol=1e-5, atol=1e-5)
        assert not moving[row, :, int(num_valid[row]) :].any()


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("num_samples", [1, 160, 320, 321, 3333])
def test_spliced_frames_in_chunks_are_those_of_the_whole(factor, num_samples):
    fixed = {"fixed_mean": [-3.0] * 20, "fixed_std": [2.0] * 20}
    settings = {**NO_NORM, "features": 20, "frame_splicing": factor, "pad_value": 0.5}
    signal = torch.from_numpy(np.random.RandomState(0).standard_normal((2, num_samples)).astype(np.float32))
    for more in ({}, {"normalize": fixed, "moving_seconds": 0.05}):
        preprocessor = AudioToMelSpectrogramPreprocessor(**{**settings, **more})
        check(preprocessor, signal, seeds=(0, 3))
        assert preprocessor.stream_delay() == (160 * factor, 255 + 160 * (factor - 1))


def test_a_recurrent_decoder_streams_with_its_state():
    check(ContextNetDecoderForCTC(feat_in=6, num_classes=4, hidden_size=5), torch.randn(2, 6, 31))


def test_what_is_for_each_frame_needs_no_step():
    assert stream_problem(JasperDecoderForCTC(feat_in=4, num_classes=3)) == ""
    assert stream_problem(GreedyCTCDecoder()) == ""


class OwnFrames(AudioToMelSpectrogramPreprocessor):
    """Has frames of its own, and no step for them."""

    def _power(self, samples, length, num_frames):
        yield from ()


REFUSED = {
    "normalize takes mean and deviation": AudioToMelSpectrogramPreprocessor(),
    "normalize takes": AudioToMelSpectrogramPreprocessor(normalize="per_feature_speech"),
    "the first frame mirrors what follows": AudioToKaldiFbankPreprocessor(snip_edges=False),
    "frames of OwnFrames": OwnFrames(**NO_NORM),
    "decibels are counted": AudioToMFCCPreprocessor(log=False),
    "se_interpolation_mode: causal": JasperEncoder(blocks(3, se=True, se_reduction_ratio=2), "relu", feat_in=6),
    "squeeze-and-excitation averages": JasperEncoder(
        blocks(3, se=True, se_reduction_ratio=2, se_context_window=4), "relu", feat_in=6
    ),
    "normalization_mode: batch": JasperEncoder(blocks(3), "relu", feat_in=6, normalization_mode="layer"),
    "conv_mask: true": JasperEncoder(blocks(3), "relu", feat_in=6, conv_mask=False),
    "attention sees the whole": ConformerEncoder(**SMALL),
    "regular attention looks ahead": ConformerEncoder(**SMALL, att_context_size=[4, 1]),
    "convolutions see frames behind": ConformerEncoder(**SMALL, att_context_size=[4, 0]),
    "group normalisation": ConformerEncoder(
        **{**SMALL, **STREAMING, "conv_norm_type": "group_norm2"}, att_context_size=[4, 1]
    ),
    "needs the whole input": torch.nn.LSTM(1, 1),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_sees_the_whole_utterance_says_why_it_cannot_stream(reason):
    assert reason in stream_problem(REFUSED[reason])


def test_the_context_of_evaluation_can_be_set():
    encoder = ConformerEncoder(**{**SMALL, **STREAMING, **DW}, att_context_size=[[4, 1], [4, 3]])
    assert encoder.stream_delay() == (8, 8)
    encoder.set_default_att_context_size([70, 13])
    assert encoder.stream_delay() == (8, 13 * 8)
    with pytest.raises(Exception, match="whole chunks"):
        encoder.set_default_att_context_size([3, 1])


@pytest.mark.parametrize("context", [[4, 0], [4, 1]])
def test_outputs_are_there_when_the_delay_says(context):
    encoder = ConformerEncoder(**{**SMALL, **STREAMING, **DW}, att_context_size=context).eval()
    stride, look_ahead = encoder.stream_delay()
    state, there = encoder.initial_state(1), []
    with torch.no_grad():
        for _ in range(100):
            (out, *_), state = encoder.step(torch.randn(1, 20, 1), torch.tensor([1]), state=state, last=False)
            there.append(out.shape[2])
    chunk = context[1] + 1
    needed = [(number // chunk * chunk) * stride + look_ahead for number in range(12)]
    assert [int(np.searchsorted(np.cumsum(there), number + 1)) for number in range(12)] == needed
