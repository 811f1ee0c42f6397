"""Alignment of known labels, against a search over all paths."""

from itertools import product

import pytest
import torch

from nemo_asr.decoding.texts import ctc_collapse
from nemo_asr.transcription.viterbi import align
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


def test_texts_of_hundreds_of_labels_are_aligned():
    labels = [0, 1] * 150
    path = align(log_probs(700, 3).numpy(), labels)
    assert ctc_collapse(torch.from_numpy(path[None]), None, 2) == [labels]


def test_labels_that_need_more_frames_are_refused():
    with pytest.raises(UsageError, match="more labels than frames: got 3 in 4 frames"):
        align(log_probs(4, 3).numpy(), [0, 0, 0])
