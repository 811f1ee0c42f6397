"""Normalisation, squeeze-and-excitation and whole blocks, with and without padding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nemo_asr.models.jasper import (
    BatchNorm,
    Frames,
    GroupShuffle,
    JasperBlock,
    JasperBlockSpec,
    MaskedConv1d,
    MaskedGroupNorm,
    activated,
    is_time_major,
    make_normalization,
    set_batch_norm_momentum,
)
from nemo_lite.base.errors import UsageError

BLOCK = {"filters": 8, "repeat": 2, "kernel": [5], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": True}


def block(in_channels=6, *, conv_mask=True, channels=(), mode="add", normalization_mode="batch", **keys):
    return JasperBlock(
        in_channels,
        JasperBlockSpec(**{**BLOCK, **keys}),
        activation=nn.ReLU(),
        normalization_mode=normalization_mode,
        residual_mode=mode,
        residual_channels=channels,
        conv_mask=conv_mask,
    )


def time_major(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def frames_of(lengths):
    return Frames(torch.tensor(lengths))


def run(layer, x, lengths):
    """The output of a block for inputs that hold anything behind the utterances, and its lengths."""
    frames = frames_of(lengths)
    outputs, frames = layer([frames.masked(x)], frames)
    return outputs[-1], frames.lengths


def test_batch_norm_is_that_of_torch_in_either_order_of_memory():
    mine, theirs, x = BatchNorm(5), nn.BatchNorm1d(5), torch.randn(4, 5, 9)
    for given in (x, time_major(x)):
        torch.testing.assert_close(mine(given), theirs(x))
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
    torch.testing.assert_close(mine.eval()(time_major(x)), theirs.eval()(x))


def test_group_norm_over_full_utterances_is_that_of_torch():
    mine, x = MaskedGroupNorm(2, 6), torch.randn(3, 6, 10)
    nn.init.normal_(mine.weight)
    nn.init.normal_(mine.bias)
    for frames in (frames_of([10, 10, 10]), Frames(torch.tensor([4, 10, 7]), is_masking=False)):
        torch.testing.assert_close(mine(x, frames), F.group_norm(x, 2, mine.weight, mine.bias))


def test_group_norm_does_not_see_padding():
    norm, x = MaskedGroupNorm(1, 6), torch.randn(2, 6, 20)
    alone = norm(x[:1, :, :7], frames_of([7]))
    torch.testing.assert_close(norm(x, frames_of([7, 20]))[:1, :, :7], alone)
    assert not torch.allclose(norm(x, frames_of([20, 20]))[:1, :, :7], alone, atol=1e-3)


def test_group_shuffle_deals_the_channels_of_each_group_out():
    x = torch.arange(6.0).view(1, 6, 1)
    assert GroupShuffle(2)(x).flatten().tolist() == [0, 3, 1, 4, 2, 5]


VARIANTS = {
    "plain": {},
    "separable": {"separable": True, "kernel": [11]},
    "strided": {"residual_mode": "stride_add", "stride": [2]},
    "stride_last": {"residual_mode": "stride_last", "stride": [2], "repeat": 3},
    "dilated": {"dilation": [3]},
    "grouped": {"groups": 2},
    "heads": {"separable": True, "heads": 2},
    "squeeze-excite": {"se": True, "se_reduction_ratio": 2},
    "windowed squeeze-excite": {"se": True, "se_context_window": 5, "se_interpolation_mode": "linear"},
    "maximum": {"residual_mode": "max"},
    "no residual": {"residual": False, "stride": [2]},
}


@pytest.mark.parametrize("keys", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("normalization_mode", ["batch", "layer", "group", "instance"])
def test_a_block_gives_an_utterance_the_same_output_alone_and_padded_in_a_batch(keys, normalization_mode):
    layer = block(normalization_mode=normalization_mode, **keys).double().eval()
    x = torch.randn(3, 6, 41, dtype=torch.double)
    alone, alone_length = run(layer, x[1:2, :, :19], [19])
    among, lengths = run(layer, x, [41, 19, 30])
    assert alone.shape[2] == alone_length == lengths[1]
    assert among.shape[2] == lengths[0]
    torch.testing.assert_close(among[1:2, :, : lengths[1]], alone)


@pytest.mark.parametrize("keys", VARIANTS.values(), ids=VARIANTS.keys())
def test_what_stands_in_the_padding_changes_no_bit_of_a_block_s_output(keys):
    layer, lengths = block(**keys).eval(), [40, 23]
    x = torch.randn(2, 6, 40)
    other = x.clone()
    other[1, :, 23:] = torch.randn(6, 17) * 100
    first, out_lengths = run(layer, x, lengths)
    second, _ = run(layer, other, lengths)
    assert (first - second)[1, :, : out_lengths[1]].abs().max() == 0.0


def test_without_a_mask_padding_is_seen_but_lengths_are_right():
    layer, x = block(conv_mask=False, residual_mode="stride_add", stride=[2]).eval(), torch.randn(2, 6, 40)
    (out,), frames = layer([x], Frames(torch.tensor([40, 23]), is_masking=False))
    (alone,), _ = layer([x[1:, :, :23]], Frames(torch.tensor([23]), is_masking=False))
    assert frames.lengths.tolist() == [10, 6]
    assert not torch.allclose(out[1:, :, :6], alone)
    assert "mconv.0.weight" in layer.state_dict()


def test_a_separable_block_keeps_channels_innermost_in_memory():
    out, _ = run(block(separable=True), torch.randn(2, 6, 40), [40, 23])
    assert is_time_major(out)


def test_dense_blocks_add_the_inputs_of_all_dense_blocks_before():
    layer, lengths = block(8, channels=[6, 8], residual_dense=True).eval(), frames_of([20])
    first, second = torch.randn(1, 6, 20), torch.randn(1, 8, 20)
    (kept, own, out), _ = layer([first, second], lengths)
    assert kept is first
    assert own is second
    (changed, _, other), _ = layer([first + 1, second], lengths)
    assert changed is not first
    assert not torch.allclose(out, other)


def test_an_even_kernel_is_rounded_up_and_a_factor_scales_it_first():
    sizes = {(4, 1.0): 5, (5, 1.0): 5, (33, 0.5): 17, (11, 2.0): 23, (3, 0.2): 1}
    for (kernel, factor), wanted in sizes.items():
        assert JasperBlockSpec(**{**BLOCK, "kernel": [kernel], "kernel_size_factor": factor}).kernel_size == wanted
    layer = block(kernel=[4])
    assert layer.mconv[0].conv.weight.shape == (8, 6, 5)
    assert run(layer, torch.randn(1, 6, 30), [30])[0].shape == (1, 8, 30)


@pytest.mark.parametrize(
    ("keys", "strides"),
    [
        ({"residual_mode": "stride_add"}, [2, 2, 2]),
        ({"residual_mode": "stride_add", "stride_last": True}, [1, 1, 2]),
        ({"residual_mode": "stride_last"}, [1, 1, 2]),
    ],
)
def test_sub_blocks_and_the_residual_stride_alike(keys, strides):
    layer = block(repeat=3, stride=[2], **keys)
    assert [conv.conv.stride[0] for conv in layer.mconv if isinstance(conv, MaskedConv1d)] == strides
    assert layer.res[0][0].conv.stride[0] == layer.stride == strides[0] * strides[1] * strides[2]


@pytest.mark.parametrize(
    ("keys", "channels", "message"),
    [
        ({"stride": [2]}, (), 'residual_mode "add" needs as many frames out as in: got stride 4; use .*stride_add'),
        ({"stride": [2], "residual_mode": "max"}, (), 'residual_mode "max" needs as many frames'),
        (
            {"stride": [2], "residual_mode": "stride_add", "residual_dense": True},
            (6,),
            "a residual_dense block cannot stride",
        ),
    ],
)
def test_residuals_that_cannot_have_the_frames_of_the_output_are_refused(keys, channels, message):
    with pytest.raises(UsageError, match=message):
        block(channels=channels, **keys)


def test_norm_groups_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(UsageError, match="norm_groups must divide the channels: got 3 for 8"):
        make_normalization("group", 8, 3, "JasperEncoder")


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU()], ids=["relu", "swish"])
@pytest.mark.parametrize("order", [time_major, torch.clone])
@pytest.mark.parametrize("num_summands", [1, 2, 3])
def test_activated_is_the_masked_activation_of_the_sum_forward_and_backward(activation, order, num_summands):
    summands = [order(torch.randn(2, 5, 9, dtype=torch.double)).requires_grad_() for _ in range(num_summands)]
    frames = frames_of([9, 4])
    mine, theirs = activated(activation, summands, frames), frames.masked(activation(sum(summands)))
    torch.testing.assert_close(mine, theirs)
    direction = torch.randn_like(mine)
    gradients = torch.autograd.grad(mine, summands, direction)
    torch.testing.assert_close(gradients, torch.autograd.grad(theirs, summands, direction))


def test_the_momentum_weighs_a_new_batch_in_all_running_statistics():
    inner, alone = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    set_batch_norm_momentum([nn.Sequential(nn.Conv1d(2, 2, 1), inner), alone, "no module"], 0.5)
    alone(torch.full((2, 2, 3), 4.0))
    assert alone.state_dict()["running_mean"].tolist() == [2.0, 2.0]
    assert inner.momentum == 0.5


def test_none_changes_nothing_also_without_batch_normalisation():
    set_batch_norm_momentum([nn.Linear(1, 1)], None)


def test_a_momentum_without_effect_or_out_of_range_is_told():
    with pytest.raises(UsageError, match="the model has no batch normalisation, so bn_momentum has no effect; leave"):
        set_batch_norm_momentum([nn.Linear(1, 1)], 0.1)
    with pytest.raises(UsageError, match=r"out of range: got 0, wanted above 0, to 1"):
        set_batch_norm_momentum([nn.BatchNorm1d(2)], 0)
