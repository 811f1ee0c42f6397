"""Metrics: values over an evaluation on 1 and 2 ranks, directions, and what asks for them."""

from __future__ import annotations

import math

import pytest
import torch
from toys.fake_action_state import FakeState, Writer, train

from nemo_lite.base.errors import UsageError
from nemo_lite.core import Accuracy, CheckpointCallback, EvaluatorCallback, Mean, Metric
from nemo_lite.core.callbacks import TrackingCallback
from nemo_lite.core.callbacks.metrics import higher_is_better
from nemo_lite.core.trackers import TerminalLines, Tracker, Trackers

SCORES = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.9, 0.1]])
LABELS = torch.tensor([1, 0, 0, 0, 1])


class Records(Tracker):
    """Keeps the records."""

    def __init__(self):
        self.kept = []

    def write(self, record):
        self.kept.append(record)

    def close(self):
        pass


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_metric_is_the_same_on_one_rank_and_on_two(wires, world_size):
    rows = [[SCORES[start : start + 2], LABELS[start : start + 2]] for start in (0, 2, 4)]
    state = FakeState(world_size=world_size, tb_writer=Writer(), batches=rows)
    evaluator = EvaluatorCallback(metrics={"accuracy": Accuracy(*wires)}, eval_step=2, name="dev")
    train(state, [evaluator], steps_per_epoch=2)
    assert state.tb_writer.of("dev/accuracy") == [(0.6, 0), (0.6, 2)]
    assert state.evaluation.higher_is_better == {"accuracy": True}


class MaxError(Metric):
    """The largest difference."""

    higher_is_better = False

    def reset(self):
        self._largest = 0.0

    def update(self, predictions, targets):  # type: ignore[override]  # the names of the wires
        self._largest = max(self._largest, float((predictions - targets).abs().max()))

    def value(self):
        return self._largest


@pytest.mark.parametrize("name", ["dev", None])
def test_a_script_without_a_recorder_sees_the_values_of_metrics(wires, name, capsys):
    metrics = {"error": MaxError(predictions=wires[0], targets=wires[1])}
    state = FakeState(batches=[[torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.5])]])
    train(state, [EvaluatorCallback(metrics=metrics, eval_step=2, name=name)], steps_per_epoch=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if "at step" in line]
    assert lines == [f"{name or 'Evaluation'} at step {step}: error 2.5" for step in (0, 2)]
    records = Records()
    train(state, [TrackingCallback(Trackers([records])), EvaluatorCallback(metrics=metrics, name=name)])
    assert "at step" not in capsys.readouterr().out
    assert [record["error"] for record in records.kept if record["kind"] == "evaluation"][:1] == [2.5]


def test_wires_without_names_are_refused_with_the_call_that_is_right(wires):
    told = (
        r"^MaxError: a metric gets its wires by name: got 2 .*, wanted MaxError\(predictions=\.\.\., targets=\.\.\.\)$"
    )
    with pytest.raises(UsageError, match=told):
        MaxError(*wires)


def test_other_ranks_than_the_first_make_the_same_calls(wires):
    calls = []
    for rank in (0, 1):
        state = FakeState(world_size=2, global_rank=rank, batches=[[SCORES, LABELS]] * 2)
        train(state, [EvaluatorCallback(metrics={"accuracy": Accuracy(*wires)})], steps_per_epoch=1)
        calls.append(state.collective)
    assert calls[0] == calls[1]


def test_metrics_and_functions_go_together_and_a_mean_counts_items(wires):
    state = FakeState(tb_writer=Writer(), batches=[[2.0, [0, 0, 0]], [4.0, [0]]])
    functions = (lambda values, collected: None, lambda collected: {"mos": 3.5})
    metrics = {"loss": Mean(*wires)}
    train(state, [EvaluatorCallback([], *functions, metrics=metrics, eval_step=9)], num_epochs=0)
    assert (state.tb_writer.of("mos"), state.tb_writer.of("loss")) == ([(3.5, 0)], [(2.5, 0)])


def test_top_k_and_nothing_evaluated(wires):
    metric = Accuracy(*wires, top_k=5)
    assert math.isnan(metric.value())
    metric.update(logits=SCORES, labels=LABELS)
    assert metric.value() == 1.0


def test_a_metric_with_an_interval_writes_its_ends(wires):
    class Sure(Mean):
        def interval(self):
            return 0.0, 5.0

    state = FakeState(tb_writer=Writer(), batches=[[2.0, [0]]])
    train(state, [EvaluatorCallback(metrics={"mse": Sure(*wires)})], num_epochs=0)
    assert [tag for tag, _, _ in state.tb_writer.scalars] == ["mse", "mse_low", "mse_high"]


def test_a_metric_of_several_numbers_knows_which_items_were_evaluated(wires):
    class Both(Mean):
        def tagged_values(self, tag):
            return {tag: self.value(), "last": self.positions[-1]}

    state = FakeState(tb_writer=Writer(), batches=[[2.0, [0, 0, 0]]], num_items=3)
    train(state, [EvaluatorCallback(metrics={"mse": Both(*wires)})], num_epochs=0)
    assert [(tag, value) for tag, value, _ in state.tb_writer.scalars] == [("mse", 2.0), ("last", 2)]


def test_a_metric_may_keep_its_values_under_this_name(wires):
    class Median(Mean):
        def reset(self):
            self.values = []

        def update(self, *, batch_mean, items):  # type: ignore[override]  # the names of the wires
            self.values += [float(batch_mean)] * len(items)

        def value(self):
            return sorted(self.values)[len(self.values) // 2]

    state = FakeState(tb_writer=Writer(), batches=[[2.0, [0]], [3.0, [0, 0]]])
    train(state, [EvaluatorCallback(metrics={"median": Median(*wires)})], num_epochs=0)
    assert [(tag, value) for tag, value, _ in state.tb_writer.scalars] == [("median", 3.0)]


def test_a_metric_without_a_direction_and_an_evaluator_without_a_metric_are_refused(wires):
    class Undirected(Mean):
        def __init__(self):
            Metric.__init__(self, batch_mean=wires[0], items=wires[1])

    with pytest.raises(UsageError, match=r"metric mos: Undirected does not say .*set higher_is_better"):
        EvaluatorCallback(metrics={"mos": Undirected()})
    with pytest.raises(UsageError, match=r"wanted metrics, or user_iter_callback and user_epochs_done"):
        EvaluatorCallback(list(wires))


@pytest.mark.parametrize("best_is", [None, "lowest"])
def test_the_best_checkpoint_asks_the_metric_unless_it_is_told(wires, best_is):
    metrics = {"mos": Mean(*wires, higher_is_better=True)}
    checkpoints = CheckpointCallback("ck", step_freq=1, best_of="dev", best_metric="mos", best_is=best_is)
    train(FakeState(), [checkpoints, EvaluatorCallback(metrics=metrics, name="dev")])
    assert checkpoints._best.highest is (best_is is None)


def test_a_metric_says_more_than_words_and_an_unknown_direction_is_refused():
    assert higher_is_better("log_loss_ratio", {"log_loss_ratio": True})
    with pytest.raises(UsageError, match=r"it is not known whether a good mos is low or high; give best_is="):
        higher_is_better("mos")


def test_the_log_names_the_highest_accuracy_as_the_best(wires, capsys):
    state = FakeState(batches=[[SCORES, LABELS]])
    accuracy = Accuracy(*wires)
    records = Records()
    tracking = TrackingCallback(Trackers([TerminalLines(), records]))
    evaluator = EvaluatorCallback(metrics={"accuracy": accuracy}, eval_step=1, eval_at_start=False, name="dev")
    values = iter([0.5, 0.75, 0.25])
    accuracy.value = lambda: next(values)
    train(state, [tracking, evaluator], steps_per_epoch=3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("dev")]
    assert lines == ["dev  accuracy 0.5", "dev  accuracy 0.75 (best)", "dev  accuracy 0.25 (best 0.75 at 2)"]
    assert [r["higher_is_better"] for r in records.kept if r["kind"] == "evaluation"] == [{"accuracy": True}] * 3
