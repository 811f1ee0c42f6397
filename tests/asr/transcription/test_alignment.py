"""Paths and their scores: alignment of found labels against a search over all paths."""

from itertools import product

import numpy as np
import pytest
import torch

from nemo_asr.decoding.texts import ctc_collapse
from nemo_asr.transcription.alignment import LabelAlignment, PathScores, align
from nemo_lite.errors import UsageError


def log_probs(num_frames, num_classes, seed=0):
    return torch.log_softmax(torch.randn(num_frames, num_classes, generator=torch.Generator().manual_seed(seed)), -1)


def best_of_all(frames, labels):
    """The most probable path that collapses to the labels, by trying all."""
    num_frames, num_classes = frames.shape
    paths = [
        path
        for path in product(range(num_classes), repeat=num_frames)
        if ctc_collapse(torch.tensor([path]), None, num_classes - 1) == [list(labels)]
    ]
    return max(paths, key=lambda path: sum(float(frames[t, label]) for t, label in enumerate(path)))


@pytest.mark.parametrize("labels", [[], [0], [1, 0], [0, 0], [1, 1, 0], [0, 1, 0, 1, 0, 1], [0, 0, 0]])
@pytest.mark.parametrize("seed", range(3))
def test_the_alignment_is_the_best_of_all_paths(labels, seed):
    frames = log_probs(6, 3, seed).numpy()
    assert align(frames, labels).tolist() == list(best_of_all(frames, labels))


def test_labels_that_need_more_frames_are_refused():
    with pytest.raises(UsageError, match="more labels than frames: got 3 in 4 frames"):
        align(log_probs(4, 3).numpy(), [0, 0, 0])


def test_a_greedy_path_is_its_own_alignment_and_padding_is_blank():
    frames = torch.stack([log_probs(30, 5), log_probs(30, 5, seed=1)])
    greedy = frames.argmax(2)
    greedy[1, 20:] = 4
    path = LabelAlignment()(log_probs=frames, length=torch.tensor([30, 20]), predictions=greedy)
    assert torch.equal(path, greedy)


def test_scores_are_those_of_the_path():
    frames, path = log_probs(4, 3).unsqueeze(0), torch.tensor([[2, 0, 1, 1]])
    scores = PathScores()(log_probs=frames, path=path)
    assert scores[0].tolist() == [float(frames[0, t, label]) for t, label in enumerate(path[0])]
    assert np.allclose(scores.shape, (1, 4))
