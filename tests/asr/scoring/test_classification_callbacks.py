"""What classification hands to callbacks."""

import pytest
import torch

from nemo_asr import helpers
from nemo_asr.scoring.callbacks import score_classes
from nemo_lite import logging


@pytest.fixture
def lines(monkeypatch):
    """What the helpers log."""
    said = []
    monkeypatch.setattr(logging, "info", said.append)
    return said


def class_wires(logits, targets, loss):
    return {
        "loss~~~CrossEntropyLossNM~~~1": [torch.tensor(loss)],
        "logits~~~JasperDecoderForClassification~~~2": [logits],
        "label~~~AudioToSpeechLabelDataLayer~~~3": [targets],
        "label_length~~~AudioToSpeechLabelDataLayer~~~4": [torch.ones_like(targets)],
    }


def in_rounds(batches, world_size):
    """What the user's function gets from so many workers: the last round may be shorter."""
    rounds = [batches[start : start + world_size] for start in range(0, len(batches), world_size)]
    return [{name: [value for batch in each for value in batch[name]] for name in each[0]} for each in rounds]


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_any_number_of_workers_gives_the_same_accuracies(world_size):
    sizes = [4, 4, 4, 1]
    rng = torch.Generator().manual_seed(1)
    batches = [
        class_wires(torch.randn(size, 5, generator=rng), torch.randint(5, (size,), generator=rng), 0.1 + size / 3)
        for size in sizes
    ]

    def score(rounds):
        collected = {}
        for each in rounds:
            helpers.process_classification_evaluation_batch(each, collected, top_k=[1, 3])
        return helpers.process_classification_evaluation_epoch(collected, [1, 3])

    assert score(in_rounds(batches, world_size)) == score(batches)


def test_classes_are_scored_over_all_items(lines):
    collected = {}
    step = helpers.process_classification_evaluation_batch
    step(class_wires(torch.eye(3), torch.tensor([0, 1, 0]), 1.0), collected, top_k=[1, 3])
    step(class_wires(torch.eye(3)[:1], torch.tensor([1]), 5.0), collected, top_k=[1, 3])
    result = helpers.process_classification_evaluation_epoch(collected, [1, 3], tag="v2")
    assert result == {
        "Evaluation_Loss v2": 2.0,
        "Evaluation_Accuracy_Top@1 v2": 0.5,
        "Evaluation_Accuracy_Top@3 v2": 1.0,
    }
    assert lines[0] == "==========>>>>>>Evaluation Loss v2: 2.000"
    assert lines[1] == "==========>>>>>>Evaluation Accuracy Top@1 v2: 50.0000"


def test_the_error_rate_is_the_share_of_other_classes_and_is_not_logged(lines):
    collected = {"batchsize": [3, 1], "CorrectCount@1": [2, 1], "EvalLoss": [1.0, 2.0], "EvalSize": [3, 1]}
    assert score_classes(collected) == {"loss": 1.25, "error": 0.25, "error_low": 0.0, "error_high": 1.0}
    perfect = score_classes({"batchsize": [200], "CorrectCount@1": [200]})
    assert perfect == {"error": 0.0, "error_low": 0.0, "error_high": pytest.approx(0.0183, abs=1e-4)}
    assert score_classes({}) == {}
    assert lines == []


def test_no_item_has_no_accuracy(lines):
    assert (helpers.process_classification_evaluation_epoch({}, [1, 3], tag="v2"), lines) == ({}, [])


def test_classification_progress_shows_loss_and_accuracy(lines):
    helpers.monitor_classification_training_progress([torch.tensor(0.5), torch.eye(2), torch.tensor([0, 0])])
    assert lines == ["Loss: 0.5", "training_batch_top@1: 50.0000"]
