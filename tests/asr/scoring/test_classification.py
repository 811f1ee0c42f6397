"""Accuracy and confusion of class predictions."""

import pytest
import torch

from nemo_asr.scoring.rates import classification_accuracy, classification_confusion_matrix
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
