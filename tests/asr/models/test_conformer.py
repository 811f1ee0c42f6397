"""The Conformer encoder: what padding and neighbours change, contexts, random draws, arguments, the paths of CPUs."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from torch import nn
from toys.conformer_cases import CASES, SMALL, features_of, fill
from toys.plain_operations import plainly

from nemo_asr.models.conformer import (
    FULL_CONTEXT,
    AttentionContext,
    ConformerEncoder,
    FeedForward,
    add_dropped,
    attention,
    drawn_context,
    hidden_frames,
    kept_at_random,
    shifted,
)
from nemo_asr.models.jasper import JasperDecoderForCTC
from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.base.errors import UsageError
from nemo_lite.core.run_options import Optimization
from nemo_lite.core.shapes import symbol

UNDROPPED = {"dropout": 0.0, "dropout_pre_encoder": 0.0, "dropout_emb": 0.0}
WENET = {"subsampling": "conv2d", "self_attention_model": "rel_pos_no_shift", "after_norm": True}
CONFORMER = "nemo_asr.models.conformer"
EXACT = {**{name: case for name, case in CASES.items() if "before 2.5" not in name}, "WeNet": WENET}
EXACT["vggnet"] = {"subsampling": "vggnet", "subsampling_conv_channels": 4}


def made(**arguments):
    encoder = ConformerEncoder(**{**SMALL, **arguments}).eval()
    fill(encoder)
    return encoder


@torch.no_grad()
def encoded(encoder, features, lengths):
    return encoder(audio_signal=features, length=lengths)


@pytest.mark.parametrize("name", EXACT)
def test_an_utterance_is_encoded_as_if_it_were_alone(name):
    encoder = made(**EXACT[name])
    features, lengths = features_of(name)
    features[1, :, int(lengths[1]) :] = 7.0  # whatever lies behind an utterance
    together, num_frames = encoded(encoder, features, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, frames = encoded(encoder, features[row : row + 1, :, :length], lengths[row : row + 1])
        assert frames[0] == num_frames[row] == alone.shape[2]
        torch.testing.assert_close(together[row, :, : frames[0]], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["striding", "dw_striding", "chunks", "streaming", "WeNet"])
def test_neighbours_and_what_lies_behind_change_no_bit(name):
    encoder = made(**EXACT[name])
    features, lengths = features_of(name)
    before, frames = encoded(encoder, features, lengths)
    features[0], features[1, :, int(lengths[1]) :] = torch.randn(20, 61), torch.randn(20, 61 - int(lengths[1]))
    after, _ = encoded(encoder, features, lengths)
    assert torch.equal(before[1, :, : frames[1]], after[1, :, : frames[1]])
    assert not torch.allclose(before[0], after[0])


@pytest.mark.parametrize(("is_masked", "differs"), [(True, False), (False, True)])
def test_without_masks_of_subsampling_the_length_of_the_batch_decides(is_masked, differs):
    encoder = made(causal_downsampling=True, subsampling_mask=is_masked)
    features, lengths = features_of("")
    together, _ = encoded(encoder, features, lengths)
    alone, frames = encoded(encoder, features[2:, :, :23], lengths[2:])
    assert torch.allclose(together[2, :, : frames[0]], alone[0], atol=1e-4) != differs


@pytest.mark.parametrize("name", EXACT)
def test_sizes_are_known_before_any_frame_is_seen(name):
    encoder = made(**EXACT[name])
    rule = encoder.output_shapes({"audio_signal": (symbol("B"), 20, symbol("T")), "length": (symbol("B"),)})
    for num_frames in (17, 30, 61, 64):
        lengths = torch.tensor([num_frames, 9])
        out, frames = encoded(encoder, torch.randn(2, 20, num_frames), lengths)
        shape = encoder.output_shapes({"audio_signal": (2, 20, num_frames), "length": (2,)})["outputs"]
        assert out.shape == shape
        assert frames.tolist() == [rule["outputs"][2].value(T=length) for length in lengths.tolist()]
        assert frames.dtype == torch.int64


def test_the_frames_of_same_padding_are_written_as_a_quotient():
    shapes = made().output_shapes({"audio_signal": (symbol("B"), 20, symbol("T"))})
    assert str(shapes["outputs"][2]) == "T/4"


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_rows_that_see_nothing_get_exactly_nothing_from_attention(fraction):
    torch.manual_seed(0)
    query, key, value, bias = (torch.randn(2, 3, 6, size) for size in (4, 4, 4, 6))
    hidden = hidden_frames(torch.tensor([6, 0]), 6, AttentionContext(1, 0, 0))
    for needs_gradients in (False, True):
        out = attention(query, key, value, bias.requires_grad_(needs_gradients), hidden, fraction * needs_gradients)
        assert out[1].abs().max() == 0
        if not needs_gradients or not fraction:
            torch.testing.assert_close(out[0], value[0])  # each frame sees itself
    out.sum().backward()
    assert torch.isfinite(bias.grad).all()


def test_an_empty_utterance_is_no_number_less():
    encoder = made(att_context_size=[2, 1], att_context_style="chunked_limited")
    features, _ = features_of("")
    out, frames = encoded(encoder, features, torch.tensor([61, 0, 1]))
    assert frames.tolist() == [16, 0, 1]
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("context", "rows"),
    [
        (FULL_CONTEXT, ["11111", "11111", "11111", "11111", "11111"]),
        (AttentionContext(1, 1, 2), ["11100", "11110", "01111", "00111", "00011"]),
        (AttentionContext(2, 1, 0), ["11000", "11000", "11110", "11110", "00111"]),
        (AttentionContext(3, 1 << 30, 0), ["11100", "11100", "11100", "11111", "11111"]),
    ],
)
def test_contexts_are_bands_or_chunks(context, rows):
    hidden = hidden_frames(torch.tensor([5, 4]), 5, context)
    sees = [["1" if score == 0 else "0" for score in row] for row in hidden.keys.expand(-1, 1, 5, 5)[0, 0].tolist()]
    assert ["".join(row) for row in sees] == rows
    assert (hidden.keys.expand(-1, 1, 5, 5)[1, 0, :, 4] < -1e4).all()  # behind the second utterance


def test_a_copy_of_an_encoder_that_sees_all_makes_no_masks():
    for context in (FULL_CONTEXT, copy.deepcopy(FULL_CONTEXT), *copy.deepcopy(made())._contexts):
        assert hidden_frames(torch.tensor([5, 5]), 5, context) is None
    drawn = AttentionContext(*torch.tensor(FULL_CONTEXT))
    assert hidden_frames(torch.tensor([5, 5]), 5, drawn) is not None  # its numbers may be those of another device


def test_masks_are_made_once_a_batch():
    encoder = made(n_layers=3, att_context_size=[4, 1], att_context_style="chunked_limited")
    with patch(f"{CONFORMER}.encoder.hidden_frames", wraps=hidden_frames) as masks:
        encoded(encoder, *features_of(""))
    assert masks.call_count == 1


def test_the_look_ahead_of_chunks_does_not_grow_with_the_layers():
    encoder = made(
        n_layers=3,
        att_context_style="chunked_limited",
        att_context_size=[-1, 3],
        conv_context_size="causal",
        causal_downsampling=True,
    )
    features = torch.randn(1, 20, 64)
    before, _ = encoded(encoder, features, torch.tensor([64]))
    features[:, :, 33:] += 1.0  # encoded frame 8 is the last that ends at feature frame 32
    after, _ = encoded(encoder, features, torch.tensor([64]))
    torch.testing.assert_close(before[:, :, :8], after[:, :, :8])
    assert not torch.allclose(before[:, :, 8], after[:, :, 8], atol=1e-3)


def test_one_of_several_contexts_is_drawn_in_training_as_often_as_it_says():
    sizes = [[4, 0], [4, 1], [4, 3]]
    style = {"att_context_style": "chunked_limited", "att_context_size": sizes}
    encoder = made(**style, att_context_probs=[0.2, 0.5, 0.3])
    cpu = torch.device("cpu")
    assert encoder._context(9, cpu) == AttentionContext(1, 4, 0)  # the first is for evaluation
    encoder.train()
    torch.manual_seed(0)
    drawn = [int(encoder._context(9, cpu).chunk) for _ in range(500)]
    assert [drawn.count(chunk) / 500 for chunk in (1, 2, 4)] == pytest.approx([0.2, 0.5, 0.3], abs=0.06)
    torch.manual_seed(0)
    assert [int(encoder._context(9, cpu).chunk) for _ in range(500)] == drawn


def test_dynamic_chunks_are_drawn_as_wenet_does():
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    drawn = [drawn_context(101, True, cpu) for _ in range(600)]
    full = [context for context in drawn if context.chunk == 101]
    assert len(full) / 600 == pytest.approx(0.5, abs=0.06)
    chunks = [context for context in drawn if context.chunk != 101]
    assert {int(context.chunk) for context in chunks} == set(range(1, 26))
    assert all(0 <= context.left <= 100 // context.chunk for context in chunks)
    assert all(context.right == 0 for context in drawn)
    assert drawn_context(101, False, cpu).left > 101
    assert drawn_context(1, True, cpu).left == 0
    encoder = made(**WENET, use_dynamic_chunk=True, att_context_size=[-1, 3], att_context_style="chunked_limited")
    assert encoder._context(9, cpu).chunk == 4
    with patch(f"{CONFORMER}.encoder.drawn_context", wraps=drawn_context) as draw:
        encoder.train()(audio_signal=torch.randn(2, 20, 61), length=torch.tensor([61, 30]))
    draw.assert_called_once()


def test_left_out_layers_change_nothing_and_the_others_are_scaled():
    encoder = ConformerEncoder(**SMALL, **UNDROPPED, stochastic_depth_drop_prob=0.5, stochastic_depth_start_layer=1)
    assert encoder._drop_probs == [0.0, 0.5]
    features, lengths = features_of("")
    encoder.layers[1].register_forward_hook(lambda layer, inputs, out: inputs[0] + 1.0)
    inputs = []
    encoder.layers[1].register_forward_hook(lambda layer, given, out: inputs.append(given[0]))
    changes = set()
    torch.manual_seed(0)
    for _ in range(12):
        out, _ = encoder(audio_signal=features, length=lengths)
        changes.add(round((out.transpose(1, 2) - inputs[-1]).mean().item(), 4))
    assert changes == {0.0, 2.0}
    uniform = ConformerEncoder(**SMALL, stochastic_depth_drop_prob=0.2, stochastic_depth_mode="uniform")
    assert uniform._drop_probs == [0.0, 0.2]


def test_dropout_on_cpu_keeps_the_share_and_the_mean():
    torch.manual_seed(0)
    kept, scale = kept_at_random(torch.Size([1000, 333]), 0.1)
    assert (kept.dtype, kept.shape) == (torch.uint8, (1000, 333))
    assert scale == pytest.approx(1 / 0.9, rel=1e-4)
    assert kept.float().mean().item() == pytest.approx(0.9, abs=0.003)
    assert kept.float().mean(0).std().item() < 0.02
    x, y = torch.zeros(400, 500), torch.ones(400, 500, requires_grad=True)
    out = add_dropped(x, y, 0.2, 0.5)
    assert out.mean().item() == pytest.approx(0.5, abs=0.01)
    out.sum().backward()
    assert torch.equal(y.grad, out.detach())
    assert torch.equal(add_dropped(x, y, 0.0, 0.5), x + 0.5 * y)


FAST = ["striding", "dw_striding", "chunks", "no biases", "streaming", "convolution that sees little before", "WeNet"]


@pytest.mark.parametrize("name", FAST)
def test_the_gradients_of_the_fast_paths_are_those_of_plain_operations(name):
    torch.manual_seed(0)
    features, lengths = features_of(name)
    features = features.double().requires_grad_()
    gradients = {}
    for is_plain in (True, False):
        encoder = made(**UNDROPPED, **EXACT[name]).double().train()
        with plainly() if is_plain else nullcontext():
            out, frames = encoder(audio_signal=features, length=lengths)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.double).view_as(out)
        weights[1, :, frames[1] :], weights[2, :, frames[2] :] = 0, 0
        (out * weights).sum().backward()
        gradients[is_plain] = {key: parameter.grad for key, parameter in encoder.named_parameters()}
        gradients[is_plain]["features"], features.grad = features.grad, None
    for key, gradient in gradients[True].items():
        torch.testing.assert_close(gradients[False][key], gradient, rtol=1e-9, atol=1e-9, msg=key)


def test_the_fast_dropout_paths_have_the_gradients_of_what_they_kept():
    kept = torch.ones(2, 7, 32, dtype=torch.uint8)
    kept[..., ::3] = 0
    feed_forward = FeedForward(8, 32, 0.25).double()
    x = torch.randn(2, 7, 8, dtype=torch.double, requires_grad=True)
    with patch(f"{CONFORMER}.layer.kept_at_random", return_value=(kept, 1.5)):
        assert torch.autograd.gradcheck(feed_forward, x)
        fast = feed_forward(x)
    plain = feed_forward.linear2(torch.nn.functional.silu(feed_forward.linear1(x)) * kept * 1.5)
    torch.testing.assert_close(fast, plain)
    gradients = [torch.autograd.grad(out.square().sum(), list(feed_forward.parameters())) for out in (fast, plain)]
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted)
    query, key, value, bias = (torch.randn(1, 2, 4, size).double().requires_grad_() for size in (3, 3, 3, 4))
    kept = (torch.arange(32).view(2, 4, 4) % 5 > 0).view(torch.uint8)
    with patch(f"{CONFORMER}.self_attention.kept_at_random", return_value=(kept, 1.25)):
        assert torch.autograd.gradcheck(
            lambda query, key, value, bias: attention(query, key, value, bias, None, 0.2), (query, key, value, bias)
        )


def test_scores_of_distances_become_scores_of_keys():
    num_queries, num_keys = 3, 5  # two keys before the queries
    distances = torch.arange(num_keys, -num_queries, -1).float()
    got = shifted(distances.expand(2, num_queries, -1).contiguous())
    wanted = [[2.0 + query - key for key in range(num_keys)] for query in range(num_queries)]
    assert got.tolist() == [wanted, wanted]


@pytest.mark.parametrize("name", ["striding", "context before", "streaming", "WeNet"])
@pytest.mark.parametrize("most_scores", [1, 200])
def test_attention_in_blocks_of_queries_is_attention(name, most_scores):
    encoder = made(**EXACT[name])
    features, lengths = features_of(name)
    whole, frames = encoded(encoder, features, lengths)
    with (
        patch(f"{CONFORMER}.self_attention._MOST_SCORES", most_scores),
        patch(f"{CONFORMER}.self_attention.attention", wraps=attention) as calls,
    ):
        blocks, _ = encoded(encoder, features, lengths)
    assert calls.call_count > 2
    for row, length in enumerate(frames.tolist()):
        torch.testing.assert_close(blocks[row, :, :length], whole[row, :, :length], rtol=1e-5, atol=1e-5)


def test_an_intermediate_layer_is_given_as_well():
    features, lengths = features_of("")
    encoder = made(n_layers=4, intermediate_block=-1, feat_out=6)
    assert list(encoder.output_ports) == ["outputs", "encoded_lengths", "intermediate", "intermediate_lengths"]
    *_, tapped, tapped_lengths = encoded(encoder, features, lengths)
    seen = []
    encoder.layers[1].register_forward_hook(lambda layer, inputs, out: seen.append(out))
    encoded(encoder, features, lengths)
    assert torch.equal(tapped, seen[0].transpose(1, 2))
    assert (tapped.shape, tapped_lengths.tolist()) == ((3, 8, 16), [16, 10, 6])
    shapes = encoder.output_shapes({"audio_signal": (3, 20, 61)})
    assert (shapes["outputs"], shapes["intermediate"]) == ((3, 6, 16), (3, 8, 16))


@pytest.mark.parametrize("level", [Optimization.mxprO1, Optimization.mxprO2, Optimization.mxprO3])
@pytest.mark.parametrize("name", ["striding", "streaming", "group_norm", "WeNet"])
def test_half_types_give_float32_log_probabilities_near_those_of_float32(level, name):
    features, lengths = features_of(name)
    encoder, decoder = made(**UNDROPPED, **EXACT[name]).train(), JasperDecoderForCTC(feat_in=8, num_classes=4)
    exact = decoder(encoder_output=encoder(audio_signal=features, length=lengths)[0])
    precision = choose_precision(level, torch.device("cpu"))
    with precision.prepared([encoder, decoder], trained=True), precision.forward():
        out, frames = encoder(audio_signal=features, length=lengths)
        log_probs = decoder(encoder_output=out)
        log_probs.sum().backward()
    assert log_probs.dtype == torch.float32
    for row, length in enumerate(frames.tolist()):
        torch.testing.assert_close(log_probs[row, :length], exact[row, :length], rtol=0.1, atol=0.15)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"n_heads": 3}, "n_heads must divide d_model: got d_model 8, n_heads 3"),
        ({"d_model": 9, "n_heads": 3}, "n_heads must divide d_model: got d_model 9, n_heads 3"),
        ({"conv_kernel_size": 4}, "conv_kernel_size is even: got 4, wanted an odd number"),
        ({"subsampling": "conv2d6"}, "subsampling is not known: got conv2d6, wanted one of striding, dw_striding, "),
        (
            {"self_attention_model": "abs_pos"},
            "self_attention_model is not known: got abs_pos, wanted one of rel_pos",
        ),
        (
            {"att_context_style": "chunked_limited_with_rc"},
            "att_context_style is not known: got chunked_limited_with_rc, wanted one of regular, chunked_limited",
        ),
        ({"subsampling": "conv2d", "subsampling_factor": 8, "feat_in": 6}, "feat_in is too small: got 6"),
        ({"subsampling_factor": 3}, "subsampling_factor is no power of 2: got 3"),
        (
            {"subsampling": "stacking", "causal_downsampling": True},
            "causal_downsampling has no such subsampling: got ",
        ),
        ({"conv_norm_type": "batch"}, "conv_norm_type is not known: got batch, wanted batch_norm, layer_norm or "),
        ({"conv_norm_type": "group_norm3"}, "conv_norm_type is not known: got group_norm3"),
        (
            {"conv_context_size": [1, 1]},
            r"conv_context_size is wrong: got \[1, 1\], wanted causal, or two numbers",
        ),
        ({"conv_pads_input": True}, "conv_pads_input is for conv_context_size: causal: got None"),
        (
            {"att_context_style": "chunked_limited", "att_context_size": [3, 1]},
            r"the first number of att_context_size must be whole chunks: got \[3, 1\], wanted a multiple of 2",
        ),
        ({"att_context_probs": [0.5, 0.5]}, r"att_context_probs is wrong: got \[0.5, 0.5\], wanted 1 that sum to 1"),
        ({"stochastic_depth_start_layer": 3}, "stochastic_depth_start_layer is too large: got 3, wanted 1 to 2"),
        ({"intermediate_block": 1}, "no such intermediate block: got 1, wanted a block before the last one"),
        ({"d_model": 65_536, "n_layers": 200}, "the module is too large: got .* weights"),
        ({"subsampling": "vggnet", "subsampling_conv_channels": 65_536}, "the module is too large: got .* weights"),
        ({"subsampling": "stacking", "subsampling_factor": 64, "feat_in": 65_536, "d_model": 1_024}, "too large"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, problem):
    with torch.device("meta"), pytest.raises(UsageError, match=f"ConformerEncoder: .*{problem}"):
        ConformerEncoder(**{**SMALL, **arguments})


def test_tied_biases_are_one_parameter():
    encoder = made(untie_biases=False)
    assert encoder.layers[0].self_attn.pos_bias_u is encoder.layers[1].self_attn.pos_bias_u
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in encoder.modules()) == 2
