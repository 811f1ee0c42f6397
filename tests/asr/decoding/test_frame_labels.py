"""Which labels of which frames a search looks at."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_asr.decoding.prefix_beam_search import FrameLabels, Limits

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
    frames = FrameLabels(log_probs, lengths, Limits())
    assert frames.order.tolist() == [1, 0, 2]
    assert frames.num_active.tolist() == [2, 1]
    blank = np.log(0.9997)
    np.testing.assert_allclose(frames.skipped, [[np.nan, blank, np.nan], [2 * blank, np.nan, np.nan]], atol=1e-12)
    np.testing.assert_allclose(frames.skipped_at_end, [blank, np.nan, blank], atol=1e-12)


def test_labels_are_limited_by_probability_by_number_and_by_what_they_have_together():
    log_probs, lengths = frames_of([LOUD])

    def seen(**limits):
        labels, scores = FrameLabels(log_probs, lengths, Limits(**limits)).labels(0)
        return labels[scores > -np.inf].tolist()

    assert seen(min_log_prob=-100.0) == [1, 0, 2]
    assert seen(min_log_prob=-6.0) == [1, 0]
    assert seen(min_log_prob=-100.0, max_labels=1) == [1]
    assert seen(min_log_prob=-100.0, cutoff_prob=0.6) == [1]  # 0.5, and 0.8 with the blank
    assert seen(min_log_prob=-100.0, cutoff_prob=0.9) == [1, 0]


def test_of_a_large_vocabulary_the_most_probable_labels_are_the_same_as_by_sorting_all():
    log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(101), (1, 7)))
    frames = FrameLabels(log_probs, np.array([7]), Limits(min_log_prob=-100.0, max_labels=5))
    for step in range(7):
        labels, scores = frames.labels(step)
        assert labels[0].tolist() == np.argsort(-log_probs[0, step, :100])[:5].tolist()
        assert scores[0].tolist() == log_probs[0, step, labels[0]].tolist()
        assert frames.places(step)[0, labels[0]].tolist() == [0, 1, 2, 3, 4]
