"""SpecAugment and SpecCutout as torch modules."""

import random

import torch

from nemo_asr.parts.spectr_augment import SpecAugment, SpecCutout


def test_masks_act_whenever_the_module_is_called_and_follow_the_generator():
    x = torch.rand(4, 20, 50) + 1
    for make in (
        lambda seed: SpecAugment(freq_masks=2, time_masks=2, rng=random.Random(seed)),
        lambda seed: SpecCutout(rect_masks=5, rng=random.Random(seed)),
    ):
        one, two, other = (make(seed).eval()(x) for seed in (3, 3, 4))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)
        assert (one == 0).any()
        assert torch.equal(one[one != 0], x[one != 0])
