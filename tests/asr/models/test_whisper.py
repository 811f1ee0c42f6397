"""WhisperEncoder: convolutions, sines for positions and torch's own Transformer layers; whole windows alone.

Its numbers are compared with those of transformers in `test_whisper_models.py`.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nemo_asr.models.whisper import WhisperEncoder
from nemo_lite.base.errors import UsageError

BANDS, SIZE, HEADS, FFN, FRAMES = 5, 8, 2, 12, 10


def encoder_of() -> WhisperEncoder:
    torch.manual_seed(0)
    encoder = WhisperEncoder(BANDS, SIZE, 2, HEADS, FFN, FRAMES)
    for weights in encoder.parameters():
        nn.init.normal_(weights, std=0.5)
    return encoder.eval()


def torchs_layer(layer) -> nn.TransformerEncoderLayer:
    """The same layer of torch, whose keys have biases, of 0."""
    attention = layer.self_attn
    names = {"feed_forward.w_1": "linear1", "feed_forward.w_2": "linear2", "norm1": "norm1", "norm2": "norm2"}
    state = {
        f"{theirs}.{kind}": getattr(layer.get_submodule(ours), kind)
        for ours, theirs in names.items()
        for kind in ("weight", "bias")
    }
    parts = attention.linear_q, attention.linear_k, attention.linear_v
    state["self_attn.in_proj_weight"] = torch.cat([part.weight for part in parts])
    state["self_attn.in_proj_bias"] = torch.cat(
        [torch.zeros(SIZE) if part.bias is None else part.bias for part in parts]
    )
    state |= {f"self_attn.out_proj.{kind}": getattr(attention.linear_out, kind) for kind in ("weight", "bias")}
    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    theirs = nn.TransformerEncoderLayer(SIZE, HEADS, FFN, **settings)
    theirs.load_state_dict(state)
    return theirs.eval()


def test_the_encoder_is_two_convolutions_positions_and_layers_that_normalise_first() -> None:
    encoder = encoder_of()
    features, lengths = torch.randn(3, BANDS, 2 * FRAMES), torch.full((3,), 2 * FRAMES)
    with torch.no_grad():
        encoded, frames = encoder(features, lengths)
        x = F.gelu(F.conv1d(features, encoder.conv1.weight, encoder.conv1.bias, padding=1))
        x = F.gelu(F.conv1d(x, encoder.conv2.weight, encoder.conv2.bias, stride=2, padding=1)).transpose(1, 2)
        x = x + encoder.embed_positions.weight
        for layer in encoder.layers:
            x = torchs_layer(layer)(x)
        wanted = encoder.layer_norm(x).transpose(1, 2)
    torch.testing.assert_close(encoded, wanted, rtol=1e-5, atol=1e-5)
    assert frames.tolist() == [FRAMES] * 3


def test_positions_are_sines_and_cosines_that_are_stored_and_not_trained() -> None:
    encoder = encoder_of()
    positions = encoder.state_dict()["embed_positions.weight"]
    for position in range(FRAMES):
        angles = [position / 10_000 ** (i / (SIZE // 2 - 1)) for i in range(SIZE // 2)]
        wanted = [*map(math.sin, angles), *map(math.cos, angles)]
        torch.testing.assert_close(positions[position], torch.tensor(wanted), rtol=0, atol=1e-6)
    encoder.unfreeze()
    assert "embed_positions.weight" not in dict(encoder.named_parameters())


def test_other_frames_than_a_window_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"hears whole windows: got 18 frames, wanted 20 frames; take AudioToWhisper"):
        encoder_of()(torch.zeros(1, BANDS, 18), torch.tensor([18]))


@pytest.mark.parametrize(("size", "heads"), [(8, 3), (7, 7), (2, 1)])
def test_sizes_that_do_not_fit_are_refused(size: int, heads: int) -> None:
    with pytest.raises(UsageError, match=rf"d_model {size}, encoder_attention_heads {heads}, wanted an even number"):
        WhisperEncoder(BANDS, size, 1, heads)
