"""Small Conformer encoders by their arguments, with weights and features that are the same everywhere.

``nemo_conformer.safetensors`` beside the tests of the encoder holds what NVIDIA's own class gives for them:

    NEMO_SOURCE=/tmp/nemo PYTHONPATH=tests python -m toys.conformer_cases tests/asr/models/nemo_conformer.safetensors
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from toys.nemo_source import nemo_module

SMALL: Mapping[str, Any] = {"feat_in": 20, "n_layers": 2, "d_model": 8, "n_heads": 2, "conv_kernel_size": 5}
DW_STRIDING = {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 4}
CHUNKED = {"att_context_style": "chunked_limited"}
BEFORE_2_5 = {"subsampling_mask": False}  # an argument of ours; NeMo's class has the version for it
CASES: Mapping[str, Mapping[str, Any]] = {
    "striding": {},
    "striding x2": {"subsampling_factor": 2},
    "striding, causal": {"causal_downsampling": True},
    "striding before 2.5": BEFORE_2_5,
    "striding, causal, before 2.5": {"causal_downsampling": True, **BEFORE_2_5},
    "dw_striding": DW_STRIDING,
    "dw_striding x2": {**DW_STRIDING, "subsampling_factor": 2},
    "dw_striding x16": {**DW_STRIDING, "subsampling_factor": 16},
    "dw_striding, causal": {**DW_STRIDING, "causal_downsampling": True},
    "dw_striding before 2.5": {**DW_STRIDING, **BEFORE_2_5},
    "dw_striding, causal, before 2.5": {**DW_STRIDING, "causal_downsampling": True, **BEFORE_2_5},
    "vggnet before 2.5": {"subsampling": "vggnet", "subsampling_conv_channels": 4, **BEFORE_2_5},  # 2.5 breaks it
    "stacking": {"subsampling": "stacking"},
    "stacking_norm": {"subsampling": "stacking_norm"},
    "no subsampling": {"subsampling_factor": 1},
    "context on both sides": {"att_context_size": [4, 3]},
    "context before": {"att_context_size": [4, -1]},
    "context behind": {"att_context_size": [-1, 2]},
    "chunks": {"att_context_size": [4, 1], **CHUNKED},
    "chunks, all before": {"att_context_size": [-1, 3], **CHUNKED},
    "chunks, none before": {"att_context_size": [0, 3], **CHUNKED},
    "the first of several contexts": {"att_context_size": [[4, 1], [4, 0]], **CHUNKED},
    "layer_norm": {"conv_norm_type": "layer_norm"},
    "group_norm": {"conv_norm_type": "group_norm4"},
    "causal convolution": {"conv_context_size": "causal"},
    "convolution that sees little before": {"conv_context_size": [1, 3]},
    "convolution that sees little behind": {"conv_context_size": [3, 1]},
    "no biases": {"use_bias": False},
    "no scaling": {"xscaling": False},
    "tied position biases": {"untie_biases": False},
    "projected output": {"feat_out": 6},
    "streaming": {
        **DW_STRIDING,
        **CHUNKED,
        "causal_downsampling": True,
        "conv_context_size": "causal",
        "conv_norm_type": "layer_norm",
        "att_context_size": [4, 1],
        "use_bias": False,
    },
}


def features_of(name: str, num_features: int = 20) -> tuple[Tensor, Tensor]:
    """Features (3, D, 61) with zeros behind each utterance, and their lengths."""
    # NeMo's group normalisation averages over padding.
    lengths = [61, 61, 61] if name == "group_norm" else [61, 40, 23]
    features = np.random.RandomState(len(name)).standard_normal((3, num_features, 61)).astype(np.float32)
    for row, length in zip(features, lengths, strict=True):
        row[:, length:] = 0
    return torch.from_numpy(features), torch.tensor(lengths)


def fill(encoder: nn.Module, seed: int = 0) -> None:
    """Set weights and statistics to numbers that depend on their names' order alone."""
    numbers = np.random.RandomState(seed)  # whose numbers never change
    for name, tensor in sorted(encoder.state_dict().items()):
        if not tensor.is_floating_point():
            continue
        drawn = torch.from_numpy(np.asarray(numbers.standard_normal(tuple(tensor.shape)) * 0.3)).float()
        if name.endswith("running_var"):
            drawn = drawn.abs() + 0.5
        elif "norm" in name and name.endswith("weight"):
            drawn = drawn + 1
        tensor.copy_(drawn)


def outputs_of_nemo(name: str, sizes: Mapping[str, Any] = SMALL) -> tuple[Tensor, nn.Module]:
    """What NVIDIA's class gives, and the encoder."""
    arguments = {**sizes, **CASES[name]}
    before_2_5 = not arguments.pop("subsampling_mask", True)
    encoder = nemo_module("modules.conformer_encoder").ConformerEncoder(**arguments).eval()
    fill(encoder)
    features, lengths = features_of(name, sizes["feat_in"])
    subsampling = nemo_module("parts.submodules.subsampling")

    def unmasked(layers: nn.Sequential, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        halved = lengths
        for layer in layers:
            pads = getattr(layer, "_left_padding", 1) + getattr(layer, "_right_padding", 1)
            if getattr(layer, "stride", 1) in (2, (2, 2)):
                halved = (halved + pads - 3) // 2 + 1
        return nn.Sequential.forward(layers, x.unsqueeze(1)), halved

    patched = unmasked if before_2_5 else subsampling.MaskedConvSequential.forward
    with torch.no_grad(), patch.object(subsampling.MaskedConvSequential, "forward", patched):
        encoded, _ = encoder(audio_signal=features, length=lengths)
    return encoded, encoder


def valid_part(encoded: Tensor, lengths: Sequence[int]) -> Tensor:
    """(frames, C): the valid frames of all utterances."""
    return torch.cat([row[:, :length].t() for row, length in zip(encoded, lengths, strict=True)])


def main(path: str) -> None:
    """Write what NVIDIA's class gives for all cases."""
    save_file({name: outputs_of_nemo(name)[0].contiguous() for name in CASES}, path)


if __name__ == "__main__":
    main(sys.argv[1])
