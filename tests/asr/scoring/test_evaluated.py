"""Evaluated values are found by the names of their ports."""

import pytest
import torch
from toys.evaluated_texts import LABELS, batch, wires

from nemo_asr.scoring.callbacks import process_evaluation_batch
from nemo_lite.base.errors import UsageError


def test_ports_are_found_by_their_whole_name_not_by_prefix():
    collected = {}
    more = {"loss_scale~~~Other~~~8": [torch.tensor(9.0)], "output~~~JasperDecoderForCTC~~~7": [torch.zeros(1, 2, 5)]}
    process_evaluation_batch(wires(["a"], ["a"], loss=1.0, **more), collected, LABELS)
    assert [float(loss) for loss in collected["EvalLoss"]] == [1.0]
    assert [logits.shape for logits in collected["logits"]] == [(1, 2, 5)]


def test_two_tensors_of_one_port_name_are_an_error_not_merged():
    twice = wires(["a"], ["a"], **{"predictions~~~Other~~~5": [batch(["b"])[0]]})
    with pytest.raises(UsageError, match=r"called predictions: got predictions~~~G.* and predictions~~~Other"):
        process_evaluation_batch(twice, {}, LABELS)


def test_a_missing_tensor_is_named_with_what_is_there():
    tensors = wires(["a"], ["a"])
    del tensors["transcript_length~~~AudioToTextDataLayer~~~4"]
    with pytest.raises(UsageError, match=r"called transcript_length or .*: got .*transcripts; add it to eval_tensors"):
        process_evaluation_batch(tensors, {}, LABELS)
