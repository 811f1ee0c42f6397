"""Alignment of known labels, against a search over all paths."""

import tracemalloc
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from nemo_asr.decoding.greedy import ctc_collapse
from nemo_asr.run.search import ctc as viterbi
from nemo_asr.run.search.ctc import align
from nemo_lite.base.errors import UsageError


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


def spoken(num_labels, seed=0):
    """Labels, each some frames long with blanks between, and log-probabilities in which they are plain to see."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, num_labels)
    gaps = rng.integers(1, 6, num_labels) + 200 * (rng.random(num_labels) < 0.01)  # pauses
    path = np.full(int(gaps.sum()) + num_labels, 5)
    path[np.cumsum(gaps + 1) - 1] = labels
    scores = rng.normal(0, 1, (len(path), 6)).astype(np.float32)
    scores[np.arange(len(path)), path] += 5
    return labels.tolist(), torch.log_softmax(torch.from_numpy(scores), -1).numpy()


@pytest.mark.parametrize("share_lost", [0.0, 0.1])
def test_a_band_gives_the_path_of_the_whole_table(share_lost):
    """Also where words are missing in the text: there it is not what the frames say."""
    labels, frames = spoken(600)
    is_kept = np.random.default_rng(1).random(len(labels) // 6) >= share_lost
    kept = [label for label, keep in zip(labels, np.repeat(is_kept, 6), strict=True) if keep]
    assert len(kept) == 600 or len(kept) < 560
    whole = align(frames, kept, width=10**6)
    assert np.array_equal(align(frames, kept, width=128), whole)


def test_a_band_that_loses_the_path_is_widened():
    """A text whose first third is not in the recording at all."""
    labels, frames = spoken(300)
    text = [3, 4] * 75 + labels
    frames = np.concatenate([np.full((400, 6), np.log(1 / 6), np.float32), frames])
    assert np.array_equal(align(frames, text, width=8), align(frames, text, width=10**6))


@pytest.mark.parametrize("seed", range(20))
def test_every_band_leads_to_the_end_of_the_text(seed, monkeypatch):
    """Frames that say nothing, and hardly enough of them; no second try with a wider band."""
    monkeypatch.setattr(viterbi, "_MOST_CELLS", 0)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 40).tolist()
    needed = len(labels) + sum(a == b for a, b in pairwise(labels))
    for spare in (0, 1, 7, 300):
        path = align(log_probs(needed + spare, 3, seed).numpy(), labels, width=8)
        assert ctc_collapse(torch.from_numpy(path[None]), None, 2) == [labels]


@pytest.mark.long
@pytest.mark.slow
def test_memory_grows_with_the_frames_alone():
    """A table of all states would be four times as large here, and have 16 GB for an hour."""
    labels, frames = spoken(2000)
    tracemalloc.start()
    align(frames, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1100 * len(frames)


def test_no_frames_and_no_labels_are_a_path_too():
    assert align(np.zeros((0, 3)), []).tolist() == []


def test_labels_that_need_more_frames_are_refused():
    with pytest.raises(UsageError, match="more labels than frames: got 3 in 4 frames"):
        align(log_probs(4, 3).numpy(), [0, 0, 0])
