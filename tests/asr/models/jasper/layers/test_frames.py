"""Frames: lengths and masks of a batch, made once for each frame rate."""

import pytest
import torch

from nemo_asr.models.jasper import Frames, TimeConv1d, clear


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(11, 1, 1), (11, 2, 1), (5, 3, 2), (1, 2, 1)])
def test_lengths_stay_whole_numbers_and_count_the_frames_that_come_out(kernel, stride, dilation, dtype):
    conv = TimeConv1d(1, 1, kernel, stride=stride, dilation=dilation)
    lengths = torch.arange(1, 40, dtype=dtype)
    out = Frames(lengths).strided(stride).lengths
    assert out.dtype == dtype
    assert out.tolist() == [conv(torch.randn(1, 1, length)).shape[2] for length in lengths.tolist()]


def test_masking_removes_whatever_stands_behind_the_end():
    x = torch.full((2, 3, 4), torch.nan)
    x[0, :, :2] = 1.0
    x[1] = 2.0
    frames = Frames(torch.tensor([2, 4]))
    cleared = clear(x.transpose(1, 2).contiguous(), frames.padding(4)).transpose(1, 2)
    for out in (frames.masked(x), cleared):
        assert out[0].tolist() == [[1, 1, 0, 0]] * 3
        assert out[1].eq(2).all()


def test_without_masking_nothing_is_written():
    frames, x = Frames(torch.tensor([2, 4]), is_masking=False), torch.randn(2, 3, 4)
    assert frames.masked(x) is x
    assert frames.padding(4) is None
    assert clear(x.clone(), None).equal(x)
    assert not frames.strided(2).is_masking


def test_layers_of_one_frame_rate_share_a_mask():
    frames = Frames(torch.tensor([2, 4]))
    assert frames.strided(1) is frames
    assert frames.strided(2) is frames.strided(2)
    assert frames.valid(4) is frames.valid(4)
    assert frames.padding(4) is frames.padding(4)
