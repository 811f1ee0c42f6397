"""EvaluatorCallback: when it evaluates, what it hands on, where results go."""

from __future__ import annotations

import math
import re
import sys

import pytest
from toys.fake_action_state import FakeState, Scalar, Vector, Writer, messages, train

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks import ActionCallback, CallbackList, EvaluatorCallback, on_evaluation_end


class Evaluated:
    """An evaluator's two functions: keeps what they got; its results are the number of batches, by ``tag``."""

    def __init__(self, tag="batches"):
        self.tag, self.batches, self.collected = tag, [], []

    def each(self, values, collected):
        self.batches.append(values)
        collected.setdefault("seen", []).append(len(values))

    def done(self, collected):
        self.collected.append(collected)
        return {self.tag: len(collected.get("seen", []))}


def evaluating(wires, tag="batches", **options):
    functions = Evaluated(tag)
    return EvaluatorCallback(list(wires), functions.each, functions.done, **options), functions


def steps_evaluated(state):
    return [step for step, _ in state.evaluated]


def test_an_evaluator_hands_on_values_by_unique_name_and_starts_anew_each_time(wires):
    x, y = wires
    state = FakeState(batches=[[1, 2], [3, 4]])
    callback, functions = evaluating(wires, eval_step=100)
    train(state, [callback], steps_per_epoch=3)
    assert functions.batches[:2] == [
        {x.unique_name: [1], y.unique_name: [2], "IS_FROM_DIST_EVAL": False},
        {x.unique_name: [3], y.unique_name: [4], "IS_FROM_DIST_EVAL": False},
    ]
    assert functions.collected == [{"seen": [3, 3]}, {"seen": [3, 3]}]
    assert state.evaluated[0][1] == [x, y]


def test_evaluation_happens_before_the_first_step_by_frequency_and_at_the_end(wires):
    state = FakeState(tb_writer=Writer(), batches=[[1, 2]])
    callback, _ = evaluating(wires, eval_step=4)
    train(state, [callback], steps_per_epoch=11)
    assert state.tb_writer.of("batches") == [(1, 0), (1, 4), (1, 8), (1, 11)]


def test_without_a_start_there_is_no_evaluation_at_step_0(wires):
    callback, _ = evaluating(wires, eval_step=4, eval_at_start=False)
    state = train(FakeState(), [callback], steps_per_epoch=9)
    assert steps_evaluated(state) == [3, 7, 8], "indices of steps: after 4, after 8, at the end"


def test_without_a_start_a_resumed_run_evaluates_when_it_is_due(wires):
    callback, _ = evaluating(wires, eval_step=4, eval_at_start=False)
    state = train(FakeState(step=8), [callback], steps_per_epoch=6)
    assert steps_evaluated(state) == [11, 13]


def test_the_end_is_not_evaluated_twice(wires):
    callback, _ = evaluating(wires, eval_step=1)
    state = train(FakeState(), [callback], steps_per_epoch=3)
    assert steps_evaluated(state) == [0, 0, 1, 2], "before the first step, and after each"


def test_one_step_is_evaluated_before_and_after(wires):
    state = FakeState(tb_writer=Writer(), batches=[[1, 2]])
    train(state, [evaluating(wires, eval_step=1)[0]], steps_per_epoch=1)
    assert state.tb_writer.of("batches") == [(1, 0), (1, 1)]


def test_a_resumed_run_is_evaluated_at_its_start_once(wires):
    state = FakeState(step=20, tb_writer=Writer(), batches=[[1, 2]])
    train(state, [evaluating(wires, eval_step=10)[0]], steps_per_epoch=12)
    assert [step for _, step in state.tb_writer.of("batches")] == [20, 30, 32]


def test_eval_epoch_acts_and_then_steps_do_not(wires):
    callback, _ = evaluating(wires, eval_epoch=2, eval_at_start=False)
    state = train(FakeState(tb_writer=Writer(), batches=[[1, 2]]), [callback], num_epochs=5, steps_per_epoch=3)
    assert [step for _, step in state.tb_writer.of("batches")] == [6, 12, 15]


def test_steps_and_epochs_together_evaluate_one_state_once(wires):
    callback, _ = evaluating(wires, eval_step=2, eval_epoch=1, eval_at_start=False)
    state = train(FakeState(), [callback], num_epochs=1, steps_per_epoch=3)
    assert steps_evaluated(state) == [1, 2]


def test_the_default_is_every_step(wires):
    assert len(train(FakeState(), [evaluating(wires)[0]], steps_per_epoch=4).evaluated) == 5


def test_evaluation_alone_runs_once_each_time_it_is_asked_for(wires):
    callback, functions = evaluating(wires)
    state = FakeState(batches=[[1, 2]])
    for _ in range(2):
        CallbackList([callback]).notify("on_action_end", state)
    train(state, [callback], num_epochs=0)
    CallbackList([callback]).notify("on_action_end", state)
    assert len(functions.collected) == 4


def test_results_go_to_the_users_function_or_as_scalars_and_texts(wires):
    writer, given = Writer(), []
    results = {"wer": Scalar(0.5, []), "note": "fine"}
    arguments = (list(wires), lambda values, collected: None, lambda collected: results)
    older = EvaluatorCallback(*arguments, tensorboard_writer=writer)  # type: ignore[call-arg]  # an older name
    train(FakeState(), [older], num_epochs=0)
    own = EvaluatorCallback(*arguments, tb_writer=writer, tb_writer_func=lambda *them: given.append(them))
    train(FakeState(), [own], num_epochs=0)
    assert (writer.scalars, writer.texts) == ([("wer", 0.5, 0)], [("note", "fine", 0)])
    assert given == [(writer, results, 0)]


def test_a_result_that_is_no_number_names_its_tag(wires):
    callback = EvaluatorCallback(list(wires), lambda values, collected: None, lambda collected: {"wer": Vector()})
    with pytest.raises(UsageError, match=r'callbacks\[0\] \(EvaluatorCallback\): "wer" is not .*tb_writer_func'):
        train(FakeState(tb_writer=Writer()), [callback], num_epochs=0)


def test_a_result_that_is_infinite_or_nan_is_told_once_with_its_step_and_the_run_goes_on(wires, caplog):
    given = iter([{"wer": 1.0, "loss": math.inf}, {"wer": math.nan, "loss": math.inf}, {"wer": 0.5, "loss": 2.0}])
    callback = EvaluatorCallback(
        list(wires), lambda values, collected: None, lambda collected: next(given), eval_step=2, name="dev"
    )
    state = FakeState(batches=[[1, 2]])
    train(state, [callback], steps_per_epoch=4)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "Evaluation dev at step 0: loss is inf; the run goes on, files get null for it, and it is never the best",
        "Evaluation dev at step 2: wer is nan; the run goes on, files get null for it, and it is never the best",
    ]
    assert state.evaluation.values == {"wer": 0.5, "loss": 2.0}


def test_results_go_to_wandb_when_it_is_named(wires, wandb):
    callback, _ = evaluating(wires, eval_step=2, wandb_project="speech")
    train(FakeState(), [callback], steps_per_epoch=3)
    assert wandb.logged == [(0, {"batches": 0}), (2, {"batches": 0}), (3, {"batches": 0})]


def test_an_evaluation_says_when_it_begins_and_how_long_it_took(wires, capsys):
    train(FakeState(), [evaluating(wires, eval_step=2)[0]], steps_per_epoch=3)
    lines = [line.rstrip(". ") for line in messages(capsys.readouterr().out)]
    assert lines[::2] == ["Evaluation before the first step", "Evaluation", "Final evaluation"]
    assert all(re.fullmatch(r"Evaluation time: [\d.e-]+ seconds", line) for line in lines[1::2])


@pytest.mark.parametrize(
    ("num_items", "digest", "line"),
    [
        (130, "3f9a2c41d07be55a", "Evaluated 130 items, ids 3f9a2c41d07be55a"),
        (130, "", "Evaluated 130 items"),
        (None, "", "Evaluated 3 batches"),
    ],
)
def test_an_evaluation_certifies_what_it_scored_in_the_log_and_nowhere_else(wires, capsys, num_items, digest, line):
    batches = [[1, 2], [3, 4], [5, 6]]
    state = FakeState(world_size=2, batches=batches, num_items=num_items, digest=digest, tb_writer=Writer())
    results = {"WER": 0.5}
    callback = EvaluatorCallback(list(wires), lambda values, collected: None, lambda collected: results)
    train(state, [callback], num_epochs=0)
    assert messages(capsys.readouterr().out).count(line) == 1
    assert (results, state.tb_writer.scalars) == ({"WER": 0.5}, [("WER", 0.5, 0)])


def test_an_evaluation_of_nothing_says_so_before_the_users_function_fails(wires, capsys):
    def mean(collected):
        return {"WER": collected["errors"] / collected["words"]}

    callback = EvaluatorCallback(list(wires), lambda values, collected: None, mean)
    with pytest.raises(KeyError, match="errors"):
        train(FakeState(num_items=0), [callback], num_epochs=0)
    text = "callbacks[0] (EvaluatorCallback) evaluated nothing: its data layer gave no batch"
    said = capsys.readouterr()
    assert messages(said.err) == [text]
    assert "Evaluated" not in said.out


def test_two_evaluators_with_one_tag_are_warned_of_once_naming_both(wires, capsys):
    first, second = (evaluating(wires, "WER", eval_step=1)[0] for _ in range(2))
    train(FakeState(batches=[[1, 2]]), [ActionCallback(), first, second], steps_per_epoch=3)
    warnings = messages(capsys.readouterr().err)
    text = 'callbacks[1] (EvaluatorCallback) and callbacks[2] (EvaluatorCallback) both return "WER"'
    assert [warning.split(":")[0] for warning in warnings] == [text]


def test_two_evaluators_with_two_tags_are_not_warned_of(wires, capsys):
    callbacks = [evaluating(wires, tag, eval_step=1)[0] for tag in ("WER_dev", "WER_test")]
    train(FakeState(batches=[[1, 2]]), callbacks, steps_per_epoch=3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_step": 0}, "eval_step is 0, wanted int from 1 on or null"),
        ({"eval_epoch": -1}, "eval_epoch is -1, wanted int from 1 on or null"),
    ],
)
def test_wrong_frequencies_of_an_evaluator_are_refused(wires, options, message):
    with pytest.raises(UsageError, match=rf"EvaluatorCallback\.{message}"):
        evaluating(wires, **options)


@pytest.mark.parametrize(("tensors", "message"), [([], "eval_tensors is empty"), (["x"], "must be wires: got str")])
def test_an_evaluator_needs_wires(tensors, message):
    with pytest.raises(UsageError, match=message):
        evaluating(tensors)


def test_wandb_that_is_not_installed_is_an_error(wires, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="EvaluatorCallback: Weights & Biases is not installed; pip install wandb"):
        evaluating(wires, wandb_name="run")


def test_other_callbacks_get_the_result_of_an_evaluation(wires):
    """Named results have their name in TensorBoard; texts and numbers travel, other objects do not."""
    seen = []
    writer = Writer()

    @on_evaluation_end
    def note(state):
        seen.append(state["evaluation"])

    evaluator = EvaluatorCallback(
        eval_tensors=list(wires),
        user_iter_callback=lambda values, collected: None,
        user_epochs_done_callback=lambda collected: {"wer": Scalar(0.25, []), "worst": "a b"},
        tb_writer=writer,
        eval_step=3,
        eval_at_start=False,
        name="dev",
    )
    train(FakeState(batches=[[[1], [2]]], num_items=7, digest="abc"), [evaluator, note], steps_per_epoch=5)
    assert [(each.name, each.step, each.values) for each in seen] == [
        ("dev", 3, {"wer": 0.25, "worst": "a b"}),
        ("dev", 5, {"wer": 0.25, "worst": "a b"}),
    ]
    assert (seen[0].num_items, seen[0].digest) == (7, "abc")
    assert writer.of("dev/wer")[0][1] == 3
    assert [text[0] for text in writer.texts] == ["dev/worst", "dev/worst"]


def test_a_resumed_run_that_is_over_is_evaluated_at_its_step(wires):
    state = FakeState()
    called = state.callbacks = CallbackList([evaluating(wires)[0]])
    called.notify("on_action_start", state)
    state.step = 12
    called.notify("on_action_end", state)
    assert state.evaluation.step == 12


def test_a_run_that_a_signal_ends_is_evaluated_no_more(wires):
    state = FakeState(interrupted_by=15)
    train(state, [evaluating(wires)[0]])
    assert state.evaluated == []
