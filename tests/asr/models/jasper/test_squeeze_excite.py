"""Squeeze-and-excitation, with and without padding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nemo_asr.models.jasper import Frames, SqueezeExcite
from nemo_lite.base.errors import UnknownNameError


@pytest.mark.parametrize("window", [-1, 1, 4, 16])
@pytest.mark.parametrize("mode", ["nearest", "linear", "area"])
def test_squeeze_excite_over_full_utterances_is_pooling_and_interpolation(window, mode):
    layer, x = SqueezeExcite(8, 4, window, mode, nn.SiLU()).double(), torch.randn(2, 8, 16, dtype=torch.double)
    pooled = x.mean(2, keepdim=True) if window < 1 else F.avg_pool1d(x, window, stride=1)
    scores = layer.fc(pooled.transpose(1, 2)).transpose(1, 2)
    if window > 0:
        scores = F.interpolate(scores, size=16, mode=mode)
    torch.testing.assert_close(layer(x, Frames(torch.tensor([3, 3]), is_masking=False)), x * torch.sigmoid(scores))
    torch.testing.assert_close(layer(x, Frames(torch.tensor([16, 16]))), x * torch.sigmoid(scores))


@pytest.mark.parametrize("window", [-1, 3, 40])
@pytest.mark.parametrize("mode", ["nearest", "linear", "area"])
@pytest.mark.parametrize("length", [1, 2, 17])
def test_squeeze_excite_does_not_see_padding(window, mode, length):
    layer, x = SqueezeExcite(4, 2, window, mode).double(), torch.randn(3, 4, 60, dtype=torch.double)
    lengths = torch.tensor([60, length, 31])
    alone = layer(x[1:2, :, :length], Frames(torch.tensor([length])))
    torch.testing.assert_close(layer(x, Frames(lengths))[1:2, :, :length], alone)


def test_squeeze_excite_averages_an_utterance_shorter_than_its_window_over_its_own_frames():
    windowed, whole = SqueezeExcite(4, 2, context_window=8), SqueezeExcite(4, 2)
    windowed.load_state_dict(whole.state_dict())
    x = torch.randn(2, 4, 20)
    for given in (x, x[:, :, :3]):
        among, expected = (layer(given, Frames(torch.tensor([3, 1]))) for layer in (windowed, whole))
        torch.testing.assert_close(among, expected)


@pytest.mark.parametrize("window", [1, 4, 40])
def test_a_causal_window_ends_with_its_frame_whatever_follows(window):
    layer, x = SqueezeExcite(4, 2, window, "causal").double(), torch.randn(2, 4, 20, dtype=torch.double)
    out = layer(x, Frames(torch.tensor([20, 13])))
    for frame in range(13):
        mean = x[:, :, max(frame - window + 1, 0) : frame + 1].sum(2) / window
        torch.testing.assert_close(out[:, :, frame], x[:, :, frame] * torch.sigmoid(layer.fc(mean)))
        alone = layer(x[:, :, : frame + 1], Frames(torch.tensor([frame + 1] * 2)))
        torch.testing.assert_close(alone[:, :, frame], out[:, :, frame])


def test_an_unknown_interpolation_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r'se_interpolation_mode "linea" is not known.*did you mean linear'):
        SqueezeExcite(4, 2, 3, "linea")
