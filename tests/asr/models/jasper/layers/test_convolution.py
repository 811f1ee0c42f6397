"""Convolutions over time: the fast CPU form against the plain one, masks, padding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nemo_asr.models.jasper import Frames, MaskedConv1d, TimeConv1d, is_time_major, same_padding
from nemo_lite.base.errors import UsageError

SHAPES = [  # channels, kernel, stride, dilation, frames
    (8, 11, 1, 1, 50),
    (8, 33, 2, 1, 97),
    (6, 5, 1, 4, 40),
    (6, 7, 2, 3, 41),
    (4, 3, 3, 1, 33),
    (4, 9, 1, 1, 3),
    (4, 1, 2, 1, 8),
]


def plain(conv, x):
    return F.conv1d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)


@pytest.mark.parametrize(("channels", "kernel", "stride", "dilation", "frames"), SHAPES)
@pytest.mark.parametrize("time_major", [False, True])
def test_depthwise_outputs_and_gradients_equal_those_of_conv1d(channels, kernel, stride, dilation, frames, time_major):
    conv = TimeConv1d(channels, channels, kernel, stride=stride, dilation=dilation, groups=channels).double()
    x = torch.randn(3, channels, frames, dtype=torch.double)
    x = (x.transpose(1, 2).contiguous().transpose(1, 2) if time_major else x).requires_grad_()
    mine, theirs = conv(x), plain(conv, x)
    direction = torch.randn_like(theirs)
    torch.testing.assert_close(mine, theirs)
    gradients = torch.autograd.grad(mine, (x, conv.weight), direction)
    torch.testing.assert_close(gradients, torch.autograd.grad(theirs, (x, conv.weight), direction))


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "later"), [(5, 1, 1, 0), (5, 2, 1, 1), (7, 1, 3, 1), (9, 1, 1, 4)]
)
def test_fewer_taps_behind_a_frame_are_more_padding_before_the_first(kernel, stride, dilation, later, depthwise):
    conv = TimeConv1d(
        4, 4, kernel, stride=stride, dilation=dilation, groups=4 if depthwise else 1, later_taps=later
    ).double()
    x = torch.randn(3, 4, 21, dtype=torch.double, requires_grad=True)
    padded = F.pad(x, (dilation * (kernel - 1 - later), dilation * later))
    theirs = F.conv1d(padded, conv.weight, None, conv.stride, 0, conv.dilation, conv.groups)
    mine, direction = conv(x), torch.randn_like(theirs)
    torch.testing.assert_close(mine, theirs)
    gradients = torch.autograd.grad(mine, (x, conv.weight), direction)
    torch.testing.assert_close(gradients, torch.autograd.grad(theirs, (x, conv.weight), direction))
    masked = MaskedConv1d(4, 4, kernel, stride=stride, dilation=dilation, groups=4, later_taps=later).double()
    lengths = torch.tensor([21, 13, 1])
    frames = Frames(lengths)
    together = masked(frames.masked(x), frames.strided(stride))
    assert is_time_major(together)
    for row, length in enumerate(lengths.tolist()):
        alone = masked(x[row : row + 1, :, :length], Frames(lengths[row : row + 1]).strided(stride))
        torch.testing.assert_close(together[row, :, : alone.shape[2]], alone[0])
        assert not together[row, :, alone.shape[2] :].any()


def test_depthwise_weights_have_a_gradient_where_the_input_needs_none_and_the_other_way_round():
    conv, x = TimeConv1d(4, 4, 5, groups=4), torch.randn(2, 4, 20)
    conv(x).sum().backward()
    assert conv.weight.grad.shape == (4, 1, 5)
    conv.weight.requires_grad_(False)
    x.requires_grad_()
    conv(x).sum().backward()
    assert x.grad.shape == x.shape


def test_depthwise_under_autocast_is_computed_in_float32():
    conv, x = TimeConv1d(8, 8, 11, groups=8), torch.randn(2, 8, 40, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        mine = conv(x)
        (mine**2).sum().backward()
    assert mine.dtype == torch.float32
    gradient = conv.weight.grad.clone()
    conv.zero_grad()
    (plain(conv, x.float()) ** 2).sum().backward()
    torch.testing.assert_close(gradient, conv.weight.grad, rtol=1e-5, atol=1e-4)


def test_pointwise_over_time_major_memory_equals_conv1d_and_stays_time_major():
    conv = TimeConv1d(12, 7, 1, bias=True).double()
    x = torch.randn(3, 20, 12, dtype=torch.double).transpose(1, 2)
    out = conv(x)
    assert is_time_major(out)
    torch.testing.assert_close(out, F.conv1d(x, conv.weight, conv.bias))


@pytest.mark.slow
def test_compilers_see_the_plain_convolution():
    program = torch.export.export(TimeConv1d(4, 4, 5, groups=4).eval(), (torch.randn(2, 4, 30),))
    assert "conv1d" in str(program.graph)
    assert "conv2d" not in str(program.graph)


def test_heads_share_one_filter_among_channels():
    conv = TimeConv1d(6, 6, 3, groups=6, heads=2).double()
    assert conv.weight.shape == (2, 1, 3)
    x = torch.randn(2, 6, 10, dtype=torch.double)
    expected = F.conv1d(x, conv.weight.repeat(3, 1, 1), padding=1, groups=6)
    torch.testing.assert_close(conv(x), expected)


def test_heads_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(UsageError, match=r"heads must divide the channels .* got 4 heads, 6 -> 6 channels"):
        TimeConv1d(6, 6, 3, groups=6, heads=4)


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 2), (5, 4), (7, 5), (29, 2), (11, 7)])
def test_same_padding_keeps_the_frames_for_every_dilation(kernel, dilation):
    conv = TimeConv1d(2, 3, kernel, dilation=dilation)
    assert conv(torch.randn(1, 2, 100)).shape == (1, 3, 100)
    assert conv.padding[0] == same_padding(kernel, dilation)


def test_an_even_kernel_is_refused():
    with pytest.raises(UsageError, match="an even kernel has no same padding: got 4"):
        TimeConv1d(2, 2, 4)


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(7, 1, 1), (7, 2, 1), (5, 1, 3), (3, 2, 2)])
def test_a_masked_depthwise_convolution_is_conv1d_between_two_masks_forward_and_backward(kernel, stride, dilation):
    layer = MaskedConv1d(6, 6, kernel, stride=stride, dilation=dilation, groups=6).double()
    frames = Frames(torch.tensor([13, 30, 1]))
    x = frames.masked(torch.randn(3, 6, 30, dtype=torch.double)).requires_grad_()
    after = frames.strided(stride)
    mine, theirs = layer(x, after), after.masked(plain(layer.conv, x))
    torch.testing.assert_close(mine, theirs)
    direction = torch.randn_like(theirs)
    given = direction.clone()
    gradients = torch.autograd.grad(mine, (x, layer.conv.weight), given)
    torch.testing.assert_close(gradients, torch.autograd.grad(theirs, (x, layer.conv.weight), direction))
    assert given.equal(direction)


def test_a_depthwise_convolution_of_an_utterance_is_the_same_bits_alone_and_padded_in_a_batch():
    conv, x = MaskedConv1d(32, 32, 11, groups=32), torch.randn(1, 32, 37)
    batch, frames = torch.randn(4, 32, 90), Frames(torch.tensor([90, 80, 37, 50]))
    batch[2, :, :37] = x
    alone, among = conv(x, Frames(torch.tensor([37]))), conv(frames.masked(batch), frames)
    assert (alone - among[2:3, :, :37]).abs().max() == 0.0


def test_weights_have_the_names_and_shapes_of_plain_convolutions():
    assert {name: tuple(p.shape) for name, p in MaskedConv1d(6, 6, 5, groups=6).named_parameters()} == {
        "conv.weight": (6, 1, 5)
    }
    TimeConv1d(4, 8, 3, bias=True).load_state_dict(nn.Conv1d(4, 8, 3).state_dict())
