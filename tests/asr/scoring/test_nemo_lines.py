"""What NeMo's scripts print while training."""

import pytest
import torch
from toys.evaluated_texts import LABELS, batch, transcripts

from nemo_asr import helpers
from nemo_lite import logging
from nemo_lite.base.errors import UsageError


@pytest.fixture
def lines(monkeypatch):
    """What the functions log."""
    said = []
    monkeypatch.setattr(logging, "info", said.append)
    return said


def test_training_progress_shows_loss_rate_and_the_first_pair(lines):
    class Writer:
        scalars = []

        def add_scalar(self, tag, value):
            self.scalars.append((tag, value))

    tensors = [torch.tensor(1.5), batch(["ab", "c"])[0], *transcripts(["ab", "b"])]
    helpers.monitor_asr_train_progress(tensors, LABELS, tb_logger=Writer())
    assert lines == ["Loss: 1.5", "training_batch_WER:  50.00%", "Prediction: ab", "Reference: ab"]
    assert Writer.scalars == [("training_batch_WER", 0.5)]


def test_training_progress_honours_lengths_given_as_a_fifth_tensor(lines):
    paths, _ = batch(["ab", "cc"])
    tensors = [torch.tensor(0.0), paths, *transcripts(["a", "cc"]), torch.tensor([1, 12])]
    helpers.monitor_asr_train_progress(tensors, LABELS, eval_metric="cer")
    assert lines[1:3] == ["training_batch_CER:  0.00%", "Prediction: a"]


def test_training_progress_of_the_first_nemo_has_no_loss(lines):
    tensors = [batch(["ab", "c"])[0], *transcripts(["ab", "b"])]
    helpers.monitor_asr_train_progress(tensors, LABELS)
    assert lines == ["training_batch_WER:  50.00%", "Prediction: ab", "Reference: ab"]


def test_too_few_tensors_of_training_are_refused():
    told = r"monitor_asr_train_progress: tensors are missing: got 3, wanted loss, predictions, transcripts and tr"
    with pytest.raises(UsageError, match=told):
        helpers.monitor_asr_train_progress([torch.tensor(1.5), batch(["a"])[0], transcripts(["a"])[0]], LABELS)
    with pytest.raises(UsageError, match="tensors are missing: got 0"):
        helpers.monitor_asr_train_progress([], LABELS)


def test_classification_progress_shows_loss_and_accuracy(lines):
    helpers.monitor_classification_training_progress([torch.tensor(0.5), torch.eye(2), torch.tensor([0, 0])])
    assert lines == ["Loss: 0.5", "training_batch_top@1: 50.0000"]
