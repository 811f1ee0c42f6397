"""Paths and their scores as modules: greedy paths, padding."""

import numpy as np
import torch

from nemo_asr.transcription.alignment import LabelAlignment, PathScores


def log_probs(num_frames, num_classes, seed=0):
    return torch.log_softmax(torch.randn(num_frames, num_classes, generator=torch.Generator().manual_seed(seed)), -1)


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
