"""Accuracy and confusion of class predictions; equal error rates of known pairs of speakers."""

import pytest
import torch

from nemo_asr.scoring.classification import (
    all_pairs,
    classification_accuracy,
    classification_confusion_matrix,
    equal_error_rate,
)
from nemo_lite.base.errors import UsageError


def test_top_k_accuracy_counts_a_target_once_among_the_k_best():
    logits = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [3.0, 2.0, 1.0]])
    targets = torch.tensor([0, 1, 0, 0])
    assert classification_accuracy(logits, targets) == [0.5]
    assert classification_accuracy(logits, targets, [1, 2, 3]) == [0.5, 0.75, 1.0]


def test_a_k_beyond_the_classes_is_refused():
    with pytest.raises(UsageError, match=r"top_k is out of range: got \[1, 4\], wanted numbers from 1 to 3"):
        classification_accuracy(torch.zeros(2, 3), torch.tensor([0, 1]), [1, 4])


def test_the_confusion_matrix_has_a_row_for_each_true_class():
    logits = torch.eye(3)[[0, 2, 2, 1]]
    matrix = classification_confusion_matrix(logits, torch.tensor([0, 2, 1, 1]))
    assert matrix.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("same", "other", "rate"),
    [
        ([0.9, 0.8, 0.7], [0.1, 0.2], 0.0),
        ([0.1, 0.2], [0.9, 0.8, 0.7], 1.0),
        ([0.9, 0.8, 0.7, 0.3], [0.1, 0.2, 0.25, 0.75], 0.25),
        ([0.5] * 3, [0.5] * 5, 0.5),
    ],
)
def test_the_rate_is_that_at_which_both_errors_are_equal(same, other, rate):
    truth = torch.tensor([True] * len(same) + [False] * len(other))
    assert equal_error_rate(torch.tensor(same + other), truth).rate == pytest.approx(rate)


def test_the_threshold_separates_pairs_that_can_be_separated():
    found = equal_error_rate(torch.tensor([0.9, 0.7, 0.2, 0.1]), torch.tensor([True, True, False, False]))
    assert 0.2 < found.threshold <= 0.7


def test_two_normal_distributions_have_the_rate_of_their_distance():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(40000, generator=generator)
    scores[:20000] += 2.0
    truth = torch.arange(40000) < 20000
    assert equal_error_rate(scores, truth).rate == pytest.approx(0.1587, abs=0.005)  # the normal distribution at -1
    assert equal_error_rate(3 * scores + 1, truth).rate == equal_error_rate(scores, truth).rate


@pytest.mark.parametrize("truth", [[True, True], [False, False]])
def test_pairs_of_one_kind_are_refused(truth):
    with pytest.raises(UsageError, match="needs pairs of both kinds: got"):
        equal_error_rate(torch.tensor([0.1, 0.2]), torch.tensor(truth))


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(UsageError, match="scores must be finite: got 1 that are not"):
        equal_error_rate(torch.tensor([0.1, float("nan")]), torch.tensor([True, False]))


def test_pairs_are_compared_by_direction_and_each_once():
    embeddings, speakers = torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    scores, same = all_pairs(embeddings, speakers)
    assert scores.tolist() == [1.0, 0.0, 0.0]
    assert same.tolist() == [True, False, False]
