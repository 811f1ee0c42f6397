"""The Conformer encoder against NVIDIA's class (its stored outputs, and the class where it is) and WeNet's rules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from toys.conformer_cases import CASES, SMALL, features_of, fill, outputs_of_nemo, valid_part
from toys.nemo_source import needs_nemo

from nemo_asr.models.conformer import ConformerEncoder

STORED = load_file(Path(__file__).with_name("nemo_conformer.safetensors"))


def relative_difference(got, wanted):
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("name", CASES)
def test_the_encoder_gives_what_nvidia_s_class_gave(name):
    encoder = ConformerEncoder(**SMALL, **CASES[name]).eval()
    fill(encoder)
    features, lengths = features_of(name)
    with torch.no_grad():
        encoded, encoded_lengths = encoder(audio_signal=features, length=lengths)
    assert encoded.shape == STORED[name].shape
    frames = encoded_lengths.tolist()
    assert relative_difference(valid_part(encoded, frames), valid_part(STORED[name], frames)) < 1e-5


def test_every_stored_case_is_compared():
    assert STORED.keys() == CASES.keys()


@needs_nemo
@pytest.mark.parametrize("name", CASES)
def test_stored_outputs_are_those_of_nemo_source(name):
    assert relative_difference(STORED[name], outputs_of_nemo(name)[0]) < 1e-6


@needs_nemo
@pytest.mark.parametrize("name", CASES)
def test_larger_encoders_of_nemo_source_have_the_same_names_and_outputs(name):
    sizes = {"feat_in": 80, "n_layers": 3, "d_model": 48, "n_heads": 4, "conv_kernel_size": 5}
    wanted, theirs = outputs_of_nemo(name, sizes)
    encoder = ConformerEncoder(**sizes, **CASES[name]).eval()
    assert encoder.state_dict().keys() == theirs.state_dict().keys()
    encoder.load_state_dict(theirs.state_dict())
    features, lengths = features_of(name, 80)
    with torch.no_grad():
        encoded, frames = encoder(audio_signal=features, length=lengths)
    assert relative_difference(valid_part(encoded, frames.tolist()), valid_part(wanted, frames.tolist())) < 1e-5


# WeNet's encoder has no package. These are its rules for one utterance, written down once more, frame by frame.

WENET = {
    **{"feat_in": 20, "n_layers": 2, "d_model": 8, "n_heads": 2, "conv_kernel_size": 5},
    **{"subsampling": "conv2d", "self_attention_model": "rel_pos_no_shift", "after_norm": True},
}
WENET_FORMS: dict[str, dict[str, Any]] = {
    "Conformer": {},
    "U2++": {"conv_context_size": "causal", "conv_pads_input": True, "conv_norm_type": "layer_norm"},
    "U2++ in chunks": {
        **{"conv_context_size": "causal", "conv_pads_input": True, "conv_norm_type": "layer_norm"},
        **{"att_context_style": "chunked_limited", "att_context_size": [4, 3]},
    },
    "conv2d6": {"subsampling_factor": 6},
    "conv2d8": {"subsampling_factor": 8},
    "no positions": {"self_attention_model": "no_pos", "xscaling": False},
    "Conformer in chunks, all before": {"att_context_style": "chunked_limited", "att_context_size": [-1, 1]},
}


NUM_FRAMES: dict[int, Callable[[int], int]] = {
    4: lambda length: ((length - 1) // 2 - 1) // 2,
    6: lambda length: ((length - 1) // 2 - 2) // 3,
    8: lambda length: (((length - 1) // 2 - 1) // 2 - 1) // 2,
}


def of_wenet(weights, x, sees, causal, has_positions, num_heads=2):
    """(T, F) -> (U, D) by the rules of WeNet, from the weights by name; ``sees(q, k)`` says what attention sees."""
    w = lambda name: weights[name]  # noqa: E731
    layer_norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w(f"{name}.weight"), w(f"{name}.bias"))  # noqa: E731
    linear = lambda x, name: x @ w(f"{name}.weight").flatten(1).t() + w(f"{name}.bias")  # noqa: E731
    size = w("pre_encode.out.bias").shape[0]
    image = x[None]
    for name in [name.removesuffix(".weight") for name in weights if re.match(r"pre_encode\.conv\.\d+\.weight", name)]:
        stride = {3: 2, 5: 3}[w(f"{name}.weight").shape[2]]
        image = F.relu(F.conv2d(image, w(f"{name}.weight"), w(f"{name}.bias"), stride))
    x = linear(torch.stack([image[:, t].flatten() for t in range(image.shape[1])]), "pre_encode.out")
    x = x * math.sqrt(size) if has_positions else x
    frames = range(len(x))
    position = torch.zeros(len(x), size)
    for t in frames if has_positions else ():
        for i in range(0, size, 2):
            angle = t * math.exp(-i * math.log(10000) / size)
            position[t, i], position[t, i + 1] = math.sin(angle), math.cos(angle)
    for layer in sorted({name.split(".")[1] for name in weights if name.startswith("layers.")}):
        at = f"layers.{layer}"
        feed_forward = lambda x, name, at=at: linear(  # noqa: E731
            F.silu(linear(x, f"{at}.{name}.linear1")), f"{at}.{name}.linear2"
        )
        x = x + 0.5 * feed_forward(layer_norm(x, f"{at}.norm_feed_forward1"), "feed_forward1")
        normed = layer_norm(x, f"{at}.norm_self_att")
        query, key, value = (linear(normed, f"{at}.self_attn.linear_{part}") for part in "qkv")
        place = position @ w(f"{at}.self_attn.linear_pos.weight").t()
        heads, width = [], size // num_heads
        for head in range(num_heads):
            part = slice(head * width, (head + 1) * width)
            u, v = w(f"{at}.self_attn.pos_bias_u")[head], w(f"{at}.self_attn.pos_bias_v")[head]
            rows = []
            for q in frames:
                keys = [k for k in frames if sees(q, k)]
                scores = [(query[q, part] + u) @ key[k, part] + (query[q, part] + v) @ place[k, part] for k in keys]
                shares = (torch.stack(scores) / math.sqrt(width)).softmax(0)
                rows.append(shares @ value[keys][:, part])
            heads.append(torch.stack(rows))
        x = x + linear(torch.cat(heads, 1), f"{at}.self_attn.linear_out")
        y = layer_norm(x, f"{at}.norm_conv")
        taps = w(f"{at}.conv.depthwise_conv.weight")[:, 0]
        if causal:  # zeros before the first pointwise convolution
            y = torch.cat([torch.zeros(taps.shape[1] - 1, size), y])
        y = F.glu(linear(y, f"{at}.conv.pointwise_conv1"), dim=1)
        if not causal:
            y = F.pad(y, (0, 0, taps.shape[1] // 2, taps.shape[1] // 2))
        y = torch.stack([(y[t : t + taps.shape[1]] * taps.t()).sum(0) for t in frames])
        y = y + w(f"{at}.conv.depthwise_conv.bias")
        norm = f"{at}.conv.batch_norm"
        if f"{norm}.running_mean" in weights:
            y = (y - w(f"{norm}.running_mean")) / torch.sqrt(w(f"{norm}.running_var") + 1e-5)
            y = y * w(f"{norm}.weight") + w(f"{norm}.bias")
        else:
            y = layer_norm(y, norm)
        x = x + linear(F.silu(y), f"{at}.conv.pointwise_conv2")
        x = x + 0.5 * feed_forward(layer_norm(x, f"{at}.norm_feed_forward2"), "feed_forward2")
        x = layer_norm(x, f"{at}.norm_out")
    return layer_norm(x, "after_norm")


@pytest.mark.parametrize("form", WENET_FORMS)
def test_the_encoder_follows_wenet_s_rules_for_each_utterance_of_a_batch(form):
    arguments: dict[str, Any] = {**WENET, **WENET_FORMS[form]}
    encoder = ConformerEncoder(**arguments).eval()
    fill(encoder)
    features, lengths = features_of(form)
    with torch.no_grad():
        encoded, encoded_lengths = encoder(audio_signal=features, length=lengths)
    left, right = list(arguments.get("att_context_size", (-1, -1)))

    def sees(query, key):
        if right == -1:
            return True
        chunk, start = right + 1, 0 if left == -1 else query // (right + 1) * (right + 1) - left
        return start <= key < (query // chunk + 1) * chunk

    causal, has_positions = arguments.get("conv_context_size") == "causal", "no_pos" not in arguments.values()
    for row, length in enumerate(lengths.tolist()):
        wanted = of_wenet(encoder.state_dict(), features[row, :, :length].t(), sees, causal, has_positions)
        assert encoded_lengths[row] == len(wanted) == NUM_FRAMES[arguments.get("subsampling_factor", 4)](length)
        assert relative_difference(encoded[row, :, : len(wanted)].t(), wanted) < 1e-5
