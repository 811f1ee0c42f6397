"""Jasper's blocks where the weights themselves are half (O2, O3): every kind of block, with every normalisation."""

from __future__ import annotations

import pytest
import torch

from nemo_asr.models.jasper import JasperDecoderForCTC, JasperEncoder
from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.core.run_options import Optimization

BLOCK = {
    **{"filters": 8, "repeat": 2, "kernel": [11], "stride": [1], "dilation": [1]},
    **{"dropout": 0.1, "residual": True},
}
BLOCKS = {
    "plain": [BLOCK],
    "separable": [{**BLOCK, "separable": True}],
    "squeeze-and-excitation": [{**BLOCK, "se": True}],
    "in windows": [{**BLOCK, "se": True, "se_context_window": 4}],
    "dense": [BLOCK, {**BLOCK, "residual_dense": True}, {**BLOCK, "residual_dense": True}],
    "heads": [{**BLOCK, "residual": False}, {**BLOCK, "separable": True, "heads": 2}],
    "groups": [{**BLOCK, "residual": False}, {**BLOCK, "groups": 2, "separable": True}],
}


@pytest.mark.parametrize("level", [Optimization.mxprO2, Optimization.mxprO3])
@pytest.mark.parametrize("normalisation", ["batch", "layer", "group", "instance"])
def test_activations_are_half_and_log_probabilities_float32(level, normalisation):
    torch.manual_seed(0)
    features, lengths = torch.randn(2, 16, 40), torch.tensor([40, 30])
    for kind, blocks in BLOCKS.items():
        encoder = JasperEncoder(jasper=blocks, activation="relu", feat_in=16, normalization_mode=normalisation)
        decoder = JasperDecoderForCTC(feat_in=8, num_classes=4)
        with choose_precision(level, torch.device("cpu")).prepared([encoder, decoder], trained=True):
            encoded, encoded_lengths = encoder(audio_signal=features, length=lengths)
            log_probs = decoder(encoder_output=encoded)
            log_probs.sum().backward()
            assert (encoded.dtype, log_probs.dtype, encoded_lengths.tolist()) == (
                *(torch.bfloat16, torch.float32),
                [40, 30],
            ), kind
            norms = {p.grad.dtype for name, p in encoder.named_parameters() if p.dim() == 1 and p.grad is not None}
            assert (torch.float32 in norms) == (level is Optimization.mxprO2), kind
