"""Paths and their scores as modules: greedy paths, padding."""

import numpy as np
import pytest
import torch

from nemo_asr.decoding.times import LabelAlignment, PathScores
from nemo_lite.base.errors import UsageError


def log_probs(num_frames, num_classes, seed=0):
    return torch.log_softmax(torch.randn(num_frames, num_classes, generator=torch.Generator().manual_seed(seed)), -1)


def test_a_greedy_path_is_its_own_alignment_and_padding_is_blank():
    frames = torch.stack([log_probs(30, 5), log_probs(30, 5, seed=1)])
    greedy = frames.argmax(2)
    greedy[1, 20:] = 4
    path = LabelAlignment()(log_probs=frames, length=torch.tensor([30, 20]), predictions=greedy)
    assert torch.equal(path, greedy)


@pytest.mark.parametrize("change", [0.2, -0.2, float("nan"), float("inf")])
def test_rows_that_are_no_probabilities_are_refused_unless_they_are_padding(change):
    frames, path = torch.stack([log_probs(4, 3), log_probs(4, 3)]), torch.zeros(2, 4, dtype=torch.int64)
    PathScores()(log_probs=frames + 0.05, path=path)
    PathScores()(log_probs=frames.bfloat16(), path=path)
    frames[1, 2] += change
    PathScores()(log_probs=frames, path=path, length=torch.tensor([4, 2]))
    for length in (None, torch.tensor([4, 3])):
        with pytest.raises(UsageError, match=r"no logarithms of probabilities.*; end its decoder with log_softmax"):
            PathScores()(log_probs=frames, path=path, length=length)


def test_scores_are_those_of_the_path():
    frames, path = log_probs(4, 3).unsqueeze(0), torch.tensor([[2, 0, 1, 1]])
    scores = PathScores()(log_probs=frames, path=path)
    assert scores[0].tolist() == [float(frames[0, t, label]) for t, label in enumerate(path[0])]
    assert np.allclose(scores.shape, (1, 4))
