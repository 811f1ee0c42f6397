"""EarlyStoppingCallback: which evaluations it counts, where it stops, and that a run that goes on counts on."""

import math

import pytest
from toys.fake_action_state import FakeState
from toys.nets import Mse, Net, Points
from toys.rank_training import rank_factory, train_net
from toys.ranks import on_ranks

import nemo_lite as nemo
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core import EarlyStoppingCallback
from nemo_lite.core.callbacks import CallbackList
from nemo_lite.core.callbacks.action_state import EvaluationResult
from nemo_lite.core.callbacks.tracking import TrackingCallback
from nemo_lite.core.trackers import MetricsFile, Trackers, read_metrics


def stopped_at(values, patience=2, name="dev", metric="wer", **options):
    """The step whose evaluation ended a run with these results, each a rate or (rate, loss); None: none did."""
    callback, state = EarlyStoppingCallback("dev", metric, patience, **options), FakeState()
    callbacks = CallbackList([callback])
    callbacks.notify("on_action_start", state)
    for step, value in enumerate(values):
        rate, loss = value if isinstance(value, tuple) else (value, 1.0)
        state.evaluation = EvaluationResult(name, step, {metric: rate, "loss": loss})
        callbacks.notify("on_evaluation_end", state)
        if state.stop_reason:
            return step
    return None


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.9, 0.5, 0.4, 0.4, 0.4], 4),
        ([0.9, 0.5, 0.6, 0.4, 0.5, 0.3, 0.5, 0.5], 7),
        ([0.9, 0.5, 0.4, 0.3], None),
        ([0.1, 0.5, 0.4, 0.3, 0.2], None),
        ([0.9, 0.5, math.nan, math.inf], 3),
        ([0.9, math.nan, math.nan], 2),
    ],
)
def test_a_run_stops_after_so_many_evaluations_in_a_row_that_are_no_better_than_the_best(values, step):
    assert stopped_at(values) == step


def test_the_model_that_training_starts_from_is_one_to_beat():
    assert stopped_at([0.1, 0.5, 0.4, 0.3]) is None
    assert stopped_at([0.1, 0.5, 0.4, 0.3], starts_trained=True) == 2


def test_among_equal_rates_the_loss_decides():
    falling = [(1.0, 9.0), (1.0, 8.0), (1.0, 7.0), (1.0, 6.0)]
    assert stopped_at(falling) == 3
    assert stopped_at(falling, ties=["cer", "loss"]) is None


def test_a_high_accuracy_is_good_and_what_is_good_can_be_said():
    rising = [0.1, 0.2, 0.3, 0.4]
    assert stopped_at(rising, metric="accuracy") is None
    assert stopped_at(rising, metric="share", best_is="highest") is None
    with pytest.raises(UsageError, match="EarlyStoppingCallback: it is not known whether a good share is low or high"):
        stopped_at(rising, metric="share")


def test_another_set_does_not_decide():
    assert stopped_at([0.5] * 9, name="test") is None


def test_a_patience_of_nothing_is_refused():
    with pytest.raises(UsageError, match="patience"):
        EarlyStoppingCallback("dev", "wer", 0)
    with pytest.raises(UnknownNameError, match="best_is"):
        EarlyStoppingCallback("dev", "wer", 1, best_is="lower")


RATES = [0.9, 0.5, 0.6, 0.6, 0.4, 0.4, 0.5, 0.7, *[0.8] * 9]  # by steps done: the fifth is the best
STOPS_AFTER = 7  # with a patience of three
METRICS = "metrics.jsonl"


def trained(folder=None, max_steps=12, patience=3, made=None, metric="wer"):
    """Steps of this run, its weights and the reason of its end, evaluated with RATES after every step."""
    net, steps = Net(), []

    class Note(nemo.NeMoCallback):
        def on_step_end(self, state):
            steps.append(state.step)

    wires = Points(n=4)()
    loss = Mse()(out=net(x=wires.x), target=wires.y)
    evaluator = nemo.EvaluatorCallback(
        [loss],
        lambda values, collected: None,
        lambda collected: {metric: RATES[evaluator.action["steps_done"]]},
        eval_step=1,
        name="dev",
    )
    callbacks = [Note()]
    if folder is not None:
        folder.mkdir(exist_ok=True)
        callbacks.append(TrackingCallback(Trackers([MetricsFile(folder / METRICS)])))
        callbacks.append(nemo.CheckpointCallback(folder, step_freq=1))
    callbacks += [evaluator, EarlyStoppingCallback("dev", metric, patience)]
    weights = train_net(made or rank_factory(), net, Points(n=16, batch_size=2), callbacks, max_steps=max_steps)
    ends = [] if folder is None else [each for each in read_metrics(folder / METRICS) if each["kind"] == "end"]
    return steps, weights, ends[-1]["reason"] if ends else ""


def on_a_rank():
    return trained()


def test_all_ranks_stop_after_the_same_step_as_a_process_alone():
    alone = trained()[0]
    assert alone == [*range(STOPS_AFTER)]
    finished = on_ranks(2, on_a_rank)
    assert [end.code for end in finished] == [0, 0], finished[0].err + finished[1].err
    assert [end.result[0] for end in finished] == [alone, alone]
    assert f"Stopped after {STOPS_AFTER} steps: wer of dev no better than at step 4 in 3" in finished[0].out


@pytest.mark.parametrize("interrupted_after", [2, 4, 6])
def test_a_run_that_goes_on_stops_where_the_uninterrupted_one_does(tmp_path, interrupted_after):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    steps, weights, reason = trained(whole)
    assert (steps, reason) == (
        [*range(STOPS_AFTER)],
        "wer of dev no better than at step 4 in 3 evaluations (patience 3)",
    )
    trained(parts, max_steps=interrupted_after)
    assert trained(parts) == (steps[interrupted_after:], weights, reason)


def test_a_run_that_had_stopped_stops_again_unless_its_patience_has_grown(tmp_path):
    _, weights, reason = trained(tmp_path)
    assert trained(tmp_path) == ([], weights, reason)
    assert trained(tmp_path, patience=5)[0] == [7, 8]


def test_a_run_that_goes_on_by_another_metric_counts_anew(tmp_path):
    trained(tmp_path)
    steps, _, reason = trained(tmp_path, metric="cer")
    assert (steps, reason) == ([7, 8, 9], "cer of dev no better than at step 7 in 3 evaluations (patience 3)")
