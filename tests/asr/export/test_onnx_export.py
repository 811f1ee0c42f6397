"""Whole models as ONNX: the comparison with torch, and what the file says. The command: cli/test_export_command."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from nemo_asr.export.onnx_export import TOLERANCE, compare, compared_batches, export_onnx, weights_digest
from nemo_asr.run.search.search import Hypotheses, TimedLabels
from nemo_asr.trained.folder import ModelCard
from nemo_asr.trained.model import TrainedModel
from nemo_lite.base.errors import CheckpointError, UsageError

CARD = ModelCard(labels=["a", "b"], sample_rate=10)
BATCH = (torch.zeros(2, 8), torch.tensor([8, 4]))


def outputs(change=0.0, lengths=(4, 2), swapped=False):
    """A run that gives fixed log-probabilities, changed at the first row's second frame, or with two labels swapped."""

    def run(signal, length):
        values = torch.log_softmax(torch.arange(24.0).reshape(2, 4, 3).sin() * 4, -1)
        values[0, 1, 0] += change
        values[1, 3] = torch.nan if lengths == (4, 2) else 0.0  # behind the end of the second row
        return values[..., [1, 0, 2]] if swapped else values, torch.tensor(lengths)

    return run


def test_equal_outputs_pass_and_padding_does_not_count():
    found = compare(outputs(), outputs(1e-5), [BATCH, BATCH], CARD, "m.onnx")
    assert found.difference == pytest.approx(1e-5, rel=0.1)
    assert (found.texts, found.ties, found.batches) == (4, 0, ((2, 0.8), (2, 0.8)))
    assert "2 batches of 2 to 2 signals, 0.80 to 0.80 s: largest difference of log-probabilities" in str(found)
    assert str(found).endswith("4 of 4 texts equal")


def test_signals_too_short_for_a_frame_have_nothing_to_compare():
    found = compare(outputs(lengths=(0, 0)), outputs(lengths=(0, 0)), [BATCH], CARD, "m.onnx")
    assert (found.difference, found.texts) == (0.0, 2)


@pytest.mark.parametrize(
    ("exported", "message"),
    [
        (outputs(0.5), r"m\.onnx: the exported log-probabilities are not torch's, so no file is written \(batch of 2"),
        (outputs(float("nan")), "exported log-probabilities are not torch's.*got nan apart"),
        (outputs(lengths=(4, 3)), r"exported lengths are not torch's.*got \[4, 3\], wanted \[4, 2\]"),
        (outputs(swapped=True), "exported log-probabilities are not torch's"),
    ],
)
def test_an_export_that_differs_is_refused(exported, message):
    with pytest.raises(UsageError, match=message):
        compare(outputs(), exported, [BATCH], CARD, "m.onnx")


def test_two_labels_within_the_tolerance_are_a_tie_and_further_apart_a_wrong_text(monkeypatch):
    def flat(first):
        return lambda *_: (torch.tensor([[[first, 0.0, -9.0]]]), torch.tensor([1]))

    near = TOLERANCE / 4
    found = compare(flat(near), flat(-near), [(torch.zeros(1, 1), torch.tensor([1]))], CARD, "m.onnx")
    assert (found.texts, found.ties) == (1, 1)
    assert "1 frames with two equally probable labels" in str(found)
    monkeypatch.setattr("nemo_asr.export.onnx_export._settled", lambda wanted, got: (got.argmax(-1), got < -10))
    with pytest.raises(UsageError, match=r"exported texts are not torch's.*got \['b'\], wanted \['a'\]"):
        compare(flat(near), flat(-near), [(torch.zeros(1, 1), torch.tensor([1]))], CARD, "m.onnx")


def test_signals_have_several_lengths_in_batches_of_several_sizes():
    batches = compared_batches(16000, [])
    assert {len(signal) for signal, _ in batches} == {1, 2, 3, 4}
    assert len({int(each) for _, length in batches for each in length}) == 11
    assert all(signal.abs().max() < 1.0 for signal, _ in batches)
    again = compared_batches(16000, [])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, again, strict=True))


def test_recordings_are_compared_alone_and_together():
    one, two = (torch.ones(n).numpy() for n in (5, 3))
    own = len(compared_batches(16000, []))
    assert [signal.shape for signal, _ in compared_batches(16000, [one, two])[own:]] == [(1, 5), (1, 3), (2, 5)]
    assert len(compared_batches(16000, [one])) == own + 1


def test_the_digest_of_weights_changes_with_a_value_a_name_or_a_type():
    module = nn.Linear(2, 2)
    before = weights_digest({"a": module})
    assert before == weights_digest({"a": module})
    assert before != weights_digest({"b": module})
    assert before != weights_digest({"a": nn.Linear(2, 2)})
    assert before != weights_digest({"a": module.half()})


def test_nothing_is_exported_over_a_file_or_without_labels(tmp_path):
    model = TrainedModel("here", None, None, ModelCard())
    with pytest.raises(CheckpointError, match="here: the model does not say its labels"):
        export_onnx(model, tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_text(json.dumps({}))
    with pytest.raises(UsageError, match=r"m\.onnx: the file exists already; give another name"):
        export_onnx(model, tmp_path / "m.onnx")


class _Sign:
    """A search that reads whether the first frame is above 0."""

    def __init__(self, labels=(1, 2)):
        self._labels = labels

    def recognise(self, states, nbest=1):
        return Hypotheses(TimedLabels([self._labels[int(states["frames"][0, 0] > 0)]], [0], [1], [0.0]))


def test_a_text_that_rounding_of_frames_changes_counts_as_equal_and_one_of_other_networks_does_not():
    frames, lengths = torch.zeros(1, 3, 2), torch.tensor([3])
    axes = {"frames": 1, "num_frames": None}
    batches = [(torch.zeros(1, 16_000), torch.tensor([16_000]))]
    card = ModelCard(labels=["a", "b", "c"], sample_rate=16_000)

    def compared(searches: Any):
        runs = (lambda *_: (frames, lengths)), (lambda *_: (frames + 1e-5, lengths))
        return compare(*runs, batches, card, "m.onnx", axes, searches)

    found = compared((_Sign(), _Sign()))
    assert (found.texts, found.ties) == (1, 1)
    assert str(found).endswith("largest difference of values 1.0e-05, 1 of 1 texts equal (1 changed by rounding)")
    with pytest.raises(UsageError, match="the exported texts or times are not torch's, so no file is written"):
        compared((_Sign(), _Sign((1, 0))))
