"""Which labels of which frames a search looks at."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_asr.run.search.prefix_beam_search import FrameLabels, SearchLimits

BLANK = 3


def frames_of(*utterances):
    """(B, T, 4) log-probabilities and lengths, from lists of frames."""
    log_probs = np.full((len(utterances), max(map(len, utterances)), 4), -1.0)
    for row, frames in zip(log_probs, utterances, strict=True):
        row[: len(frames)] = np.log(frames)
    return log_probs, np.array([len(frames) for frames in utterances])


SILENT, LOUD = [0.0001, 0.0001, 0.0001, 0.9997], [0.2, 0.5, 0.001, 0.299]


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_frames_without_labels_are_one_number_before_the_next_and_at_the_end():
    log_probs, lengths = frames_of([SILENT, LOUD], [LOUD, SILENT, SILENT, LOUD, SILENT], [SILENT])
    frames = FrameLabels(log_probs, lengths, SearchLimits())
    assert frames.order.tolist() == [1, 0, 2]
    assert frames.num_active.tolist() == [2, 1]
    blank = np.log(0.9997)
    np.testing.assert_allclose(frames.skipped, [[np.nan, blank, np.nan], [2 * blank, np.nan, np.nan]], atol=1e-12)
    np.testing.assert_allclose(frames.skipped_at_end, [blank, np.nan, blank], atol=1e-12)


def test_labels_are_limited_by_probability_by_number_and_by_what_they_have_together():
    log_probs, lengths = frames_of([LOUD])

    def seen(**limits):
        labels, scores = FrameLabels(log_probs, lengths, SearchLimits(**limits)).labels(0)
        return labels[scores > -np.inf].tolist()

    assert seen(min_log_prob=-100.0) == [1, 0, 2]
    assert seen(min_log_prob=-6.0) == [1, 0]
    assert seen(min_log_prob=-100.0, max_labels=1) == [1]
    assert seen(min_log_prob=-100.0, cutoff_prob=0.6) == [1]  # 0.5, and 0.8 with the blank
    assert seen(min_log_prob=-100.0, cutoff_prob=0.9) == [1, 0]


@pytest.mark.parametrize("min_log_prob", [-100.0, -4.0, -2.5])  # all labels count; up to 20 do; at most 3
def test_of_a_large_vocabulary_the_most_probable_labels_are_the_same_as_by_sorting_all(min_log_prob):
    log_probs = np.log(np.random.default_rng(0).dirichlet(np.full(101, 0.3), (2, 7)))
    log_probs[1, 4:] = 0.0  # behind the end of the shorter one
    frames = FrameLabels(log_probs, np.array([7, 4]), SearchLimits(min_log_prob=min_log_prob, max_labels=5))
    for step in range(frames.num_steps):
        labels, scores = frames.labels(step)
        places = frames.places(step)
        for row, own in enumerate(log_probs[frames.order[: len(labels)], frames.frame_of[step, : len(labels)]]):
            best = [label for label in np.argsort(-own[:100], kind="stable")[:5] if own[label] >= min_log_prob]
            assert labels[row, : len(best)].tolist() == best
            assert scores[row].tolist() == own[best].tolist() + [-np.inf] * (labels.shape[1] - len(best))
            assert places[row, best].tolist() == [*range(len(best))]
    assert frames.num_active[0] == 2
