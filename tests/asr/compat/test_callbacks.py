"""NeMo's functions for an evaluation of texts and of classes."""

import pytest
import torch
from toys.evaluated_texts import LABELS, batch, transcripts, wires

from nemo_asr import helpers
from nemo_lite import logging
from nemo_lite.base.errors import UsageError


@pytest.fixture
def lines(monkeypatch):
    """What the functions log."""
    said = []
    monkeypatch.setattr(logging, "info", said.append)
    return said


def in_rounds(batches, world_size):
    """What the user's function gets from so many workers: the last round may be shorter."""
    rounds = [batches[start : start + world_size] for start in range(0, len(batches), world_size)]
    return [{name: [value for batch in each for value in batch[name]] for name in each[0]} for each in rounds]


class OwnLogger:
    def __init__(self):
        self.lines = []

    def info(self, line):
        self.lines.append(line)


def test_a_logger_that_a_script_hands_over_gets_the_lines(lines):
    logger, collected = OwnLogger(), {}
    tensors = [torch.tensor(1.5), batch(["ab"])[0], *transcripts(["ab"])]
    helpers.monitor_asr_train_progress(tensors, LABELS, logger=logger)
    helpers.process_evaluation_batch(wires(["ab"], ["ab"], loss=1.0), collected, LABELS)
    helpers.process_evaluation_epoch(collected, tag="dev", logger=logger)
    assert logger.lines[0] == "Loss: 1.5"
    assert logger.lines[5] == "==========>>>>>>Evaluation WER dev:  0.00%"
    assert len(logger.lines) == 7
    assert lines == []


def test_an_unknown_metric_is_refused():
    with pytest.raises(UsageError, match="eval_metric is not known: got BLEU, wanted WER or CER"):
        helpers.process_evaluation_epoch({}, eval_metric="BLEU")


def test_an_evaluation_is_scored_over_the_corpus_and_its_loss_over_utterances(lines):
    collected = {}
    helpers.process_evaluation_batch(wires(["a b c", "a b"], ["a b c", "a c b"], loss=1.0), collected, LABELS)
    helpers.process_evaluation_batch(wires(["c"], ["b"], loss=4.0), collected, LABELS)
    assert collected["predictions"] == ["a b c", "a b", "c"]
    assert collected["transcripts"] == ["a b c", "a c b", "b"]
    result = helpers.process_evaluation_epoch(collected, tag="dev")
    assert result == {"Evaluation_Loss_dev": 2.0, "Evaluation_WER_dev": pytest.approx(2 / 7)}
    assert lines == [
        "==========>>>>>>Evaluation Loss dev: 2.0",
        "==========>>>>>>Evaluation WER dev:  28.57%",
        "==========>>>>>>Evaluation errors dev: 0 insertions, 1 deletions, 1 substitutions in 7 words of 3 utterances",
    ]


def test_an_evaluation_without_tag_or_loss_has_no_suffix_and_no_loss(lines):
    collected = {}
    given_wires = wires(["ab"], ["ab"])
    del given_wires["loss~~~CTCLossNM~~~1"]
    helpers.process_evaluation_batch(given_wires, collected, LABELS)
    assert helpers.process_evaluation_epoch(collected, "CER") == {"Evaluation_CER": 0.0}
    assert lines[0] == "==========>>>>>>Evaluation CER:  0.00%"
    assert lines[1].endswith("in 2 characters of 1 utterances")


def test_an_evaluation_honours_the_lengths_of_the_encoder():
    collected = {}
    ends = {"encoded_lengths~~~JasperEncoder~~~9": [torch.tensor([1, 12])]}
    helpers.process_evaluation_batch(wires(["ab", "ab"], ["a", "ab"], **ends), collected, LABELS)
    assert collected["predictions"] == ["a", "ab"]


def test_values_of_several_workers_stay_in_order_and_weigh_by_their_utterances():
    first, second = wires(["a", "b"], ["a", "b"], loss=1.0), wires(["c"], ["c"], loss=4.0)
    both = {name: [*first[name], *second[name]] if "~~~" in name else True for name in first}
    collected = {}
    helpers.process_evaluation_batch(both, collected, LABELS)
    assert collected["predictions"] == collected["transcripts"] == ["a", "b", "c"]
    assert helpers.process_evaluation_epoch(collected)["Evaluation_Loss"] == 2.0


def without_flag(tensors):
    return {name: values for name, values in tensors.items() if "~~~" in name}


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_any_number_of_workers_gives_the_same_scores_to_the_last_bit(world_size, lines):
    sizes = [3, 3, 3, 3, 1]
    batches = [
        without_flag(wires(["a b", "c", "ab"][:size], ["a c", "c", "ab c"][:size], loss=8.0 ** (10 * number) / 3))
        for number, size in enumerate(sizes)
    ]

    def score(rounds):
        collected = {}
        for each in rounds:
            helpers.process_evaluation_batch({**each, "IS_FROM_DIST_EVAL": True}, collected, LABELS)
        return helpers.process_evaluation_epoch(collected), collected["predictions"], collected["transcripts"]

    alone, together = score(batches), score(in_rounds(batches, world_size))
    assert together == alone
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    losses = [8.0 ** (10 * number) / 3 for number in range(len(sizes))]
    mean = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)
    assert together[0]["Evaluation_Loss"] == pytest.approx(mean)
    assert mean != pytest.approx(sum(losses) / len(losses))
    assert score(batches[::-1])[0] == alone[0]


def test_an_evaluated_set_gives_its_loss_and_both_rates_and_logs_nothing(lines):
    collected = {}
    helpers.process_evaluation_batch(wires(["ab", "c"], ["ab", "ca"], loss=2.0), collected, LABELS)
    helpers.process_evaluation_batch(wires(["b"], ["b"], loss=5.0), collected, LABELS)
    result = helpers.score_evaluation(collected)
    assert result == {"loss": pytest.approx(3.0), "wer": pytest.approx(1 / 3), "cer": pytest.approx(1 / 5)}
    assert helpers.score_evaluation({"predictions": ["a"], "transcripts": ["b"]}) == {"wer": 1.0, "cer": 1.0}
    assert lines == []


def test_ports_are_found_by_their_whole_name_not_by_prefix():
    collected = {}
    more = {"loss_scale~~~Other~~~8": [torch.tensor(9.0)], "output~~~JasperDecoderForCTC~~~7": [torch.zeros(1, 2, 5)]}
    helpers.process_evaluation_batch(wires(["a"], ["a"], loss=1.0, **more), collected, LABELS)
    assert [float(loss) for loss in collected["EvalLoss"]] == [1.0]
    assert [logits.shape for logits in collected["logits"]] == [(1, 2, 5)]


def test_ports_of_scripts_for_nemo_may_be_called_as_its_data_layers_call_them():
    collected, of_nemo = {}, {}
    for name, values in wires(["ab"], ["a"]).items():
        name = name.replace("transcripts~~~", "transcript~~~").replace("transcript_length~~~", "transcript_len~~~")
        of_nemo[name] = values
    of_nemo["encoded_len~~~Encoder~~~9"] = [torch.tensor([1])]
    helpers.process_evaluation_batch(of_nemo, collected, LABELS)
    assert (collected["predictions"], collected["transcripts"]) == (["a"], ["a"])


def test_two_tensors_of_one_port_name_are_an_error_not_merged():
    twice = wires(["a"], ["a"], **{"predictions~~~Other~~~5": [batch(["b"])[0]]})
    with pytest.raises(UsageError, match=r"called predictions: got predictions~~~G.* and predictions~~~Other"):
        helpers.process_evaluation_batch(twice, {}, LABELS)


def test_a_missing_tensor_is_named_with_what_is_there():
    tensors = wires(["a"], ["a"])
    del tensors["transcript_length~~~AudioToTextDataLayer~~~4"]
    with pytest.raises(UsageError, match=r"called transcript_length: got .*transcripts; add it to eval_tensors"):
        helpers.process_evaluation_batch(tensors, {}, LABELS)


def class_wires(logits, targets, loss):
    return {
        "loss~~~CrossEntropyLossNM~~~1": [torch.tensor(loss)],
        "logits~~~JasperDecoderForClassification~~~2": [logits],
        "label~~~AudioToSpeechLabelDataLayer~~~3": [targets],
        "label_length~~~AudioToSpeechLabelDataLayer~~~4": [torch.ones_like(targets)],
    }


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


def test_no_item_has_no_accuracy(lines):
    assert (helpers.process_classification_evaluation_epoch({}, [1, 3], tag="v2"), lines) == ({}, [])
