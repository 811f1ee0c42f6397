"""Augmentation of spectrograms: where masks fall, that evaluation is left alone, and fixed lengths."""

import random

import numpy as np
import pytest
import torch

from nemo_asr.features.augmentation import CropOrPadSpectrogramAugmentation, MultiplyBatch, SpectrogramAugmentation
from nemo_lite.base.errors import UsageError
from nemo_lite.core.shapes import symbol, written


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def masked(module, shape, length=None, times=1):
    """Where ones became zeros: (times * B, D, T) booleans."""
    ones = torch.ones(shape)
    return (
        torch.cat(
            [module(input_spec=ones, length=length) if length is not None else module(ones) for _ in range(times)]
        )
        == 0
    )


def widths(mask):
    """How many are masked in each row, and whether they are one interval."""
    changes = torch.diff(torch.nn.functional.pad(mask.int(), (1, 1)), dim=-1).abs().sum(-1)
    return mask.sum(-1), bool((changes <= 2).all())


def test_a_band_of_features_covers_all_frames_and_takes_every_width_up_to_the_largest():
    mask = masked(SpectrogramAugmentation(freq_masks=1, freq_width=5, rng=generator()), (500, 16, 7))
    assert torch.equal(mask, mask[:, :, :1].expand_as(mask))
    sizes, connected = widths(mask[:, :, 0])
    assert connected
    assert sizes.unique().tolist() == [0, 1, 2, 3, 4, 5]
    assert mask.any(0).all()


def test_a_stretch_of_frames_covers_all_features_and_takes_every_width_up_to_the_largest():
    mask = masked(SpectrogramAugmentation(time_masks=1, time_width=5, rng=generator()), (500, 7, 16))
    assert torch.equal(mask, mask[:, :1, :].expand_as(mask))
    sizes, connected = widths(mask[:, 0])
    assert connected
    assert sizes.unique().tolist() == [0, 1, 2, 3, 4, 5]
    assert mask.any(0).all()


def test_a_rectangle_has_its_time_on_the_time_axis():
    mask = masked(SpectrogramAugmentation(rect_masks=1, rect_time=2, rect_freq=6, rng=generator()), (500, 16, 16))
    heights, widths_ = mask.any(2).sum(1), mask.any(1).sum(1)
    assert (heights.max().item(), widths_.max().item()) == (6, 2)
    assert torch.equal(mask.sum((1, 2)), heights * widths_)


def copied(module, lengths, num_frames):
    """The frame that each frame of the output is: (B, num_frames)."""
    numbers = torch.arange(num_frames).float().expand(len(lengths), 3, -1)
    return module(input_spec=numbers, length=torch.tensor(lengths))[:, 0].long()


def test_copies_put_earlier_frames_in_the_place_of_a_stretch_with_every_width_and_shift():
    sources = copied(SpectrogramAugmentation(time_copies=1, copy_width=5, rng=generator()), [16] * 2000, 16)
    shifts = torch.arange(16) - sources
    sizes, connected = widths(shifts > 0)
    assert connected
    assert all(len(set(row[row > 0].tolist())) < 2 for row in shifts)  # one shift for a stretch
    assert sizes.unique().tolist() == [0, 1, 2, 3, 4, 5]
    assert sources.min() == 0
    assert shifts.unique().tolist()[:13] == [*range(13)]


def test_copies_fall_on_valid_frames_come_behind_masks_and_keep_evaluation_as_it_is():
    module = SpectrogramAugmentation(time_copies=3, copy_width=8, rng=generator())
    sources = copied(module, [20, 1, 0] * 50, 20)
    assert (sources[0::3] != torch.arange(20)).any(1).float().mean() > 0.9
    assert torch.equal(sources[1::3], torch.arange(20).expand(50, -1))
    assert torch.equal(sources[2::3], torch.arange(20).expand(50, -1))
    assert torch.equal(copied(module.eval(), [20], 20)[0], torch.arange(20))
    both = SpectrogramAugmentation(time_masks=1, time_width=8, time_copies=3, copy_width=8, rng=generator())
    masked_twice = widths(masked(both, (500, 3, 40))[:, 0])
    assert not masked_twice[1]  # a masked stretch is copied too, so there are several


def test_a_share_of_masks_gives_longer_utterances_more_of_them():
    module = SpectrogramAugmentation(time_masks=0.02, time_width=1, max_time_masks=5, rng=generator())
    mask = masked(module, (3, 2, 1000), torch.tensor([40, 200, 1000]), times=100)[:, 0].sum(1).view(100, 3)
    # A width is 0 or 1, so half of the masks are seen; of 5 in 1000 frames few fall on one another.
    assert mask[:, 0].max() == 0
    assert mask[:, 1].max() == 4
    assert mask[:, 2].max() == 5
    assert mask[:, 2].float().mean() == pytest.approx(2.5, abs=0.3)


def test_several_masks_add_up():
    module = SpectrogramAugmentation(
        freq_masks=3, freq_width=1, rect_masks=2, rect_time=1, rect_freq=1, rng=generator()
    )
    mask = masked(module, (200, 64, 64))
    bands = mask.all(2)
    assert bands.sum(1).max() == 3
    assert (mask & ~bands[:, :, None]).sum((1, 2)).max() == 2


def test_utterances_are_masked_independently():
    mask = masked(SpectrogramAugmentation(time_masks=2, rng=generator()), (8, 4, 200))
    assert len({tuple(row.flatten().tolist()) for row in mask}) == 8


@pytest.mark.parametrize("shape", [(50, 1, 1), (2, 4, 0), (0, 4, 4)])
def test_input_smaller_than_the_masks_is_no_special_case(shape):
    module = SpectrogramAugmentation(2, 2, 10, 10, 2, 5, 20, rng=generator())
    assert masked(module, shape).shape == shape


def test_in_input_smaller_than_the_masks_every_width_that_fits_is_equally_likely():
    mask = masked(SpectrogramAugmentation(freq_masks=1, freq_width=10, rng=generator()), (800, 3, 2))
    counts = torch.bincount(mask[:, :, 0].sum(1), minlength=4)
    assert counts.min() > 150


def test_a_share_is_taken_of_each_utterances_own_frames():
    length = torch.tensor([100, 40, 3, 0])
    module = SpectrogramAugmentation(time_masks=1, time_width=0.1, rng=generator())
    sizes = masked(module, (4, 2, 100), length, times=200)[:, 0].sum(-1).view(200, 4)
    assert sizes.max(0).values.tolist() == [10, 4, 1, 0]


def test_masks_in_time_fall_on_valid_frames():
    length = torch.tensor([100, 40, 3])
    module = SpectrogramAugmentation(time_masks=2, time_width=20, rect_masks=3, rect_time=30, rng=generator())
    mask = masked(module, (3, 20, 100), length, times=50).view(50, 3, 20, 100)
    for row, frames in enumerate(length.tolist()):
        assert mask[:, row, :, :frames].any()
        assert not mask[:, row, :, frames:].any()


def test_evaluation_leaves_spectrograms_alone_and_training_leaves_the_input_alone():
    module = SpectrogramAugmentation(2, 2, rect_masks=2)
    spectrogram = torch.rand(4, 64, 50) + 1
    before = spectrogram.clone()
    assert module.training_only
    assert not torch.equal(module.train()(spectrogram), before)
    assert torch.equal(spectrogram, before)
    assert module.eval()(spectrogram) is spectrogram


def test_the_draws_follow_the_generator_or_else_torchs_own():
    spectrogram = torch.rand(4, 64, 50) + 1
    one, two = (SpectrogramAugmentation(2, 2, rng=generator(5))(spectrogram) for _ in range(2))
    assert torch.equal(one, two)
    for make in (random.Random, np.random.RandomState, np.random.default_rng):
        one, two, other = (SpectrogramAugmentation(2, 2, rng=make(seed))(spectrogram) for seed in (5, 5, 6))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)
    state = torch.get_rng_state()
    one = SpectrogramAugmentation(2, 2)(spectrogram)
    torch.set_rng_state(state)
    assert torch.equal(SpectrogramAugmentation(2, 2)(spectrogram), one)


def test_off_the_cpu_no_value_is_read_by_the_host():
    spectrogram, length = torch.ones(3, 8, 20, device="meta"), torch.ones(3, dtype=torch.int64, device="meta")
    assert SpectrogramAugmentation(1, 1, 2, 0.5, 1)(spectrogram, length).shape == (3, 8, 20)
    assert CropOrPadSpectrogramAugmentation(5)(spectrogram, length)[0].shape == (3, 8, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"freq_masks": -1}, r"^SpectrogramAugmentation\.freq_masks is -1, wanted int from 0 to 1000$"),
        ({"time_width": -0.1}, r"time_width is -0.1, wanted int from 0 to 65536 or float from 0 to 1"),
        ({"time_masks": 1.5}, r"time_masks is no share: got 1\.5, wanted a float from 0 to 1"),
        ({"time_width": 1.5}, r"time_width is no share: got 1\.5, wanted a float from 0 to 1"),
        ({"rng": 7}, r"rng is no generator: got int; pass torch\.Generator\(\)\.manual_seed\(seed\), or random"),
    ],
)
def test_impossible_masks_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        SpectrogramAugmentation(**arguments)


def test_a_batch_is_multiplied_in_training_only():
    values = (torch.rand(2, 3, 4), torch.tensor([4, 2]), torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
    module = MultiplyBatch(3)
    for given, copies in zip(values, module.train()(*values), strict=True):
        assert torch.equal(copies, torch.cat([given] * 3))
    for given, same in zip(values, module.eval()(*values), strict=True):
        assert torch.equal(given, same)
    assert module.input_ports["in_y"].brief == "B T Labels"


def test_less_than_one_copy_is_refused():
    with pytest.raises(UsageError, match=r"MultiplyBatch.mult_batch is 0, wanted int from 1 to 100"):
        MultiplyBatch(0)


def frames(*lengths):
    """Spectrograms whose frame t holds t + 1, padded with 99."""
    length = torch.tensor(lengths)
    numbers = torch.arange(1.0, max(lengths) + 1).expand(len(lengths), 1, -1)
    return numbers.masked_fill(numbers > length[:, None, None], 99.0), length


def test_evaluation_takes_the_middle_and_pads_both_sides():
    cropped, length = CropOrPadSpectrogramAugmentation(4).eval()(*frames(7, 4, 1, 2))
    assert cropped[:, 0].tolist() == [[2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 0, 0], [0, 1, 2, 0]]
    assert length.tolist() == [4, 4, 4, 4]


def test_training_takes_every_part_of_a_longer_utterance_and_none_of_its_padding():
    module = CropOrPadSpectrogramAugmentation(4)
    parts = torch.cat([module(*frames(6, 5, 2))[0] for _ in range(100)]).view(100, 3, 4)
    assert parts[:, 0].unique(dim=0).tolist() == [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]
    assert parts[:, 1].unique(dim=0).tolist() == [[1, 2, 3, 4], [2, 3, 4, 5]]
    assert parts[:, 2].unique(dim=0).tolist() == [[0, 1, 2, 0]]


def test_output_shapes_are_known():
    shapes = {"input_signal": (symbol("B"), 64, symbol("T")), "length": (symbol("B"),)}
    module = CropOrPadSpectrogramAugmentation(128)
    assert written(module.output_shapes(shapes)["processed_signal"]) == "B 64 128"
    assert module.output_ports["processed_signal"].brief == "B D T=128 Spectrogram"
    masked_shapes = SpectrogramAugmentation().output_shapes({"input_spec": shapes["input_signal"]})
    assert written(masked_shapes["augmented_spec"]) == "B 64 T"


def test_no_frames_at_all_are_refused():
    with pytest.raises(UsageError, match=r"audio_length is 0, wanted int from 1"):
        CropOrPadSpectrogramAugmentation(0)
