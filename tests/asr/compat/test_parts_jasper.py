"""NeMo's layers of Jasper: their arguments, shapes and lengths."""

import pytest
import torch
from torch import nn

from nemo_asr import JasperEncoder
from nemo_asr.compat.parts import (
    GroupShuffle,
    JasperBlock,
    MaskedConv1d,
    SqueezeExcite,
    StatsPoolLayer,
    Swish,
    compute_new_kernel_size,
    get_same_padding,
    init_weights,
    jasper_activations,
)
from nemo_lite.base.errors import UsageError

X, LENS = torch.randn(2, 8, 20), torch.tensor([20, 12])


def test_a_block_gives_what_that_of_an_encoder_gives():
    keys = {"filters": 6, "repeat": 2, "kernel": [4.0], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": 1}
    encoder = JasperEncoder(jasper=[keys], activation="relu", feat_in=8).eval()
    activation = jasper_activations["relu"]()
    block = JasperBlock(
        8, 6, repeat=2, kernel_size=[4.0], dropout=0.0, activation=activation, conv_mask=True, residual=1
    ).eval()
    block.load_state_dict(encoder.encoder[0].state_dict())
    (out,), lens = block(([X], LENS))
    expected, expected_lens = encoder(X, LENS)
    torch.testing.assert_close(out, expected)
    assert torch.equal(lens, expected_lens)


def test_a_block_without_masks_needs_no_lengths():
    outputs, lens = JasperBlock(8, 6, repeat=1, stride=[2], residual=False).eval()(([X], None))
    assert (outputs[0].shape, lens.tolist()) == ((2, 6, 10), [10, 10])


@pytest.mark.parametrize(("use_mask", "reaches"), [(True, 0), (False, 1)])
def test_a_masked_convolution_does_not_see_the_padding(use_mask, reaches):
    conv = MaskedConv1d(8, 4, 3, stride=2, padding=1, use_mask=use_mask)
    changed = X.clone()
    changed[1, :, 12:] += 1
    (one, lens), (two, _) = conv(X, LENS), conv(changed, LENS)
    assert lens.tolist() == ([10, 6] if use_mask else [20, 12])
    assert int(not torch.equal(one, two)) == reaches


def test_channels_share_the_filters_of_heads():
    conv = MaskedConv1d(8, 8, 3, padding=1, groups=8, heads=2)
    assert conv.conv.weight.shape == (2, 1, 3)
    assert conv(X, LENS)[0].shape == (2, 8, 20)
    with pytest.raises(UsageError, match="heads need a depthwise convolution"):
        MaskedConv1d(8, 4, 3, heads=2)


def test_statistics_are_pooled_over_time():
    assert [StatsPoolLayer(*modes)(X).shape[1] for modes in ((), (True,), (False, True))] == [16, 64, 80]
    torch.testing.assert_close(StatsPoolLayer()(X), torch.cat([X.mean(2), X.std(2)], 1))


def test_small_layers_have_nemos_arguments():
    assert GroupShuffle(2, 8)(X).shape == X.shape
    assert SqueezeExcite(8, 4)(X).shape == X.shape
    torch.testing.assert_close(Swish()(X), X * X.sigmoid())
    assert set(jasper_activations) >= {"hardtanh", "relu", "selu", "swish"}


def test_sizes_of_kernels_and_paddings():
    assert [compute_new_kernel_size(*pair) for pair in ((11, 1.0), (11, 0.5), (3, 0.1), (33, 1.5))] == [11, 5, 1, 49]
    assert [get_same_padding(11, 1, 1), get_same_padding(11, 1, 2), get_same_padding(3, 2, 1)] == [5, 10, 1]
    with pytest.raises(ValueError, match="only one of stride and dilation may be above 1: got stride 2 and dilation 2"):
        get_same_padding(11, 2, 2)


def test_weights_are_drawn_by_name():
    layers = nn.Sequential(nn.Conv1d(2, 2, 3), nn.ReLU(), nn.Linear(2, 2))
    before = layers[2].weight.clone()
    layers.apply(lambda m: init_weights(m, mode="kaiming_normal"))
    assert not torch.equal(before, layers[2].weight)
    with pytest.raises(ValueError, match='init_mode "zero" is not known'):
        init_weights(layers[0], "zero")
