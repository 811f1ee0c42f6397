"""The callbacks of NeMo 0.9 and 0.10, against a fake action."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from toys.fake_action_state import FakeState, Scalar, Source, Vector, Writer, train

from nemo_lite.core.callbacks import CallbackList
from nemo_lite.core.deprecated_callbacks import (
    ActionCallback,
    EvaluatorCallback,
    ModuleSaverCallback,
    SimpleLossLoggerCallback,
    UnfreezeCallback,
    ValueSetterCallback,
    WandbCallback,
)
from nemo_lite.errors import UnknownNameError, UsageError
from nemo_lite.utils import logging

Policy, Method = ValueSetterCallback.Policy, ValueSetterCallback.Method


@pytest.fixture
def wires():
    return Source().connect()


def messages(text: str) -> list[str]:
    return re.findall(r"\] (.*)", text)


# ActionCallback


def test_an_action_callback_hears_of_epochs_and_iterations_without_arguments():
    seen = []

    class Old(ActionCallback):
        def __init__(self):
            self.names = "an attribute of the user's own"

        def on_action_start(self):
            seen.append("start")

        def on_epoch_start(self):
            seen.append(f"epoch {self.epoch_num}")

        def on_iteration_start(self):
            seen.append(f"step {self.step}")

        def on_iteration_end(self):
            seen.append(f"done {self.step}")

        def on_epoch_end(self):
            seen.append(f"end of epoch {self.epoch_num}")

        def on_action_end(self):
            seen.append("end")

    train(FakeState(), [Old()], steps_per_epoch=2)
    steps = ["step 0", "done 0", "step 1", "done 1"]
    assert seen == ["start", "epoch 0", *steps, "end of epoch 0", "end"]


def test_an_action_callback_sees_the_action_in_properties():
    callback, state = ActionCallback(), FakeState(step=3, epoch=2, local_rank=0, global_rank=4, learning_rate=0.5)
    callback.action = state
    assert (callback.step, callback.epoch_num, callback.learning_rate) == (3, 2, 0.5)
    assert (callback.local_rank, callback.global_rank, callback.logger) == (0, 4, logging)


def test_wires_in_the_attributes_are_registered_tensors(wires):
    x, y = wires

    class Old(ActionCallback):
        def __init__(self):
            super().__init__()
            self.loss, self.more = x, [y]
            self.seen = []

        def on_iteration_end(self):
            self.seen.append((self.registered_tensors[x.unique_name], self.registered_tensors[y.unique_name]))

    callback = Old()
    assert CallbackList([callback]).wires == [x, y]
    train(FakeState(values={x: 1.0, y: 2.0}), [callback], steps_per_epoch=1)
    assert callback.seen == [(1.0, 2.0)]
    assert list(callback.registered_tensors) == [x.unique_name, y.unique_name]
    assert "other" not in callback.registered_tensors


def test_moments_that_an_action_callback_leaves_alone_are_not_kept():
    assert not any(CallbackList([ActionCallback()])._hooks.values())


# SimpleLossLoggerCallback


def test_the_loss_logger_prints_steps_times_and_epochs(capsys, wires):
    x, y = wires
    y.rename("words")
    state = FakeState()
    state.values = {x: Scalar(1.5, []), y: Vector()}
    train(state, [SimpleLossLoggerCallback([x, y], step_freq=4)], steps_per_epoch=6)
    lines = messages(capsys.readouterr().out)
    step = ["x: 1.5", "words: [1, 2, 3]", "Step time: 0.25 seconds"]
    assert lines[:10] == ["Starting .....", "Starting epoch 0", "Step: 0", *step, "Step: 4", *step]
    assert re.fullmatch(r"Finished epoch 0 in \d+\.\d seconds", lines[10])
    assert re.fullmatch(r"Done in \d+\.\d seconds", lines[11])


def test_the_loss_logger_acts_at_its_steps_only_and_reads_nothing_else():
    state = FakeState()
    train(state, [SimpleLossLoggerCallback(step_freq=25)], steps_per_epoch=60)
    assert state.reads == [0.5, 25.5, 50.5]


def test_print_func_gets_values_and_may_return_a_text(capsys, wires):
    x, y = wires
    given = []
    state = FakeState(values={x: 1.0, y: 2.0})
    train(state, [SimpleLossLoggerCallback([x, y], print_func=given.append)], steps_per_epoch=1)
    train(state, [SimpleLossLoggerCallback(x, print_func=lambda values: f"x is {values[0]}")], steps_per_epoch=1)
    lines = messages(capsys.readouterr().out)
    assert given == [[1.0, 2.0]]
    assert lines.count("x is 1.0") == 1
    assert "None" not in lines


def test_the_first_generation_formats_the_loss_and_then_the_tensors(capsys, wires):
    x, y = wires
    state = FakeState(values={x: 1.0, y: 2.0})
    callback = SimpleLossLoggerCallback(
        tensor_list2string=lambda values: str(values[0].item()),
        tensor_list2string_evl=lambda values: f"decoded {values}",
        tensors=[x, y],
        step_frequency=2,
    )
    train(state, [callback], steps_per_epoch=4)
    lines = [line for line in messages(capsys.readouterr().out) if line[0].islower() or line[0].isdigit()]
    assert lines == ["0.5", "decoded [1.0, 2.0]", "2.5", "decoded [1.0, 2.0]"]


def test_the_first_generation_needs_no_tensors(capsys):
    train(FakeState(), [SimpleLossLoggerCallback(tensor_list2string=lambda values: f"{values[0].item()}!")])
    assert "0.5!" in messages(capsys.readouterr().out)


def test_values_for_tensorboard_times_and_rates_are_written(wires):
    x, _ = wires
    own, given = Writer(), []
    state = FakeState(values={x: 3.0}, tb_writer=Writer())
    callback = SimpleLossLoggerCallback(
        [x],
        get_tb_values=lambda values: [("loss", values[0]), ("half", values[0] / 2)],
        log_to_tb_func=lambda *arguments: given.append(arguments),
        step_freq=2,
        tensorboard_writer=own,
    )
    train(state, [callback], num_epochs=1, steps_per_epoch=3)
    assert (own.of("loss"), own.of("half")) == ([(3.0, 0), (3.0, 2)], [(1.5, 0), (1.5, 2)])
    assert own.of("misc/step_time") == [(0.25, 0), (0.25, 2)]
    assert own.of("param/lr") == [(0.01, 0), (0.01, 2)]
    assert own.of("misc/epoch") == [(0, 2)]
    assert [step for _, step in own.of("misc/epoch_time")] == [2]
    assert given == [(own, [3.0], 0), (own, [3.0], 2)]
    assert (own.num_flushes, state.tb_writer.scalars) == (1, [])


def test_without_its_own_writer_the_loss_logger_takes_the_factorys():
    state = train(FakeState(tb_writer=Writer()), [SimpleLossLoggerCallback()])
    assert state.tb_writer.of("param/lr") == [(0.01, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensors": [1]}, "tensors must be wires: got int, wanted NmTensors"),
        ({"tensors": str}, r"got type, .*a function that makes a text of them is print_func="),
        ({"step_freq": 0}, "step_freq must be at least 1: got 0"),
        ({"step_freq": 5, "step_frequency": 5}, "step_frequency and step_freq are one argument"),
        ({"tensor_list2string_evl": str}, r"needs to know the wires.*tensors_to_evaluate as tensors=\[...\]"),
    ],
)
def test_wrong_arguments_of_the_loss_logger_are_refused(arguments, message):
    with pytest.raises(UsageError, match=f"SimpleLossLoggerCallback: .*{message}"):
        SimpleLossLoggerCallback(**arguments)


# EvaluatorCallback


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
    assert steps_evaluated(state) == [4, 8]


def test_the_end_is_not_evaluated_twice(wires):
    callback, _ = evaluating(wires, eval_step=1)
    state = train(FakeState(), [callback], steps_per_epoch=3)
    assert steps_evaluated(state) == [0, 1, 2]


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
    assert steps_evaluated(state) == [2]


def test_the_default_is_every_step(wires):
    assert len(train(FakeState(), [evaluating(wires)[0]], steps_per_epoch=4).evaluated) == 4


def test_evaluation_alone_runs_once_each_time_it_is_asked_for(wires):
    callback, functions = evaluating(wires)
    state = FakeState(batches=[[1, 2]])
    for _ in range(2):
        CallbackList([callback]).on_action_end(state)
    train(state, [callback], num_epochs=0)
    CallbackList([callback]).on_action_end(state)
    assert len(functions.collected) == 4


def test_results_go_to_the_users_function_or_as_scalars_and_texts(wires):
    writer, given = Writer(), []
    results = {"wer": Scalar(0.5, []), "note": "fine"}
    arguments = (list(wires), lambda values, collected: None, lambda collected: results)
    train(FakeState(), [EvaluatorCallback(*arguments, tensorboard_writer=writer)], num_epochs=0)
    own = EvaluatorCallback(*arguments, tb_writer=writer, tb_writer_func=lambda *them: given.append(them))
    train(FakeState(), [own], num_epochs=0)
    assert (writer.scalars, writer.texts) == ([("wer", 0.5, 0)], [("note", "fine", 0)])
    assert given == [(writer, results, 0)]


def test_a_result_that_is_no_number_names_its_tag(wires):
    callback = EvaluatorCallback(list(wires), lambda values, collected: None, lambda collected: {"wer": Vector()})
    with pytest.raises(UsageError, match=r'callbacks\[0\] \(EvaluatorCallback\): "wer" is not .*tb_writer_func'):
        train(FakeState(tb_writer=Writer()), [callback], num_epochs=0)


def test_results_go_to_wandb_when_it_is_named(wires, wandb):
    callback, _ = evaluating(wires, eval_step=2, wandb_project="speech")
    train(FakeState(), [callback], steps_per_epoch=3)
    assert wandb.logged == [(0, {"batches": 0}), (2, {"batches": 0})]


def test_an_evaluation_says_when_it_begins_and_how_long_it_took(wires, capsys):
    train(FakeState(), [evaluating(wires, eval_step=2)[0]], steps_per_epoch=4)
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
        ({"eval_step": 0}, "eval_step must be at least 1"),
        ({"eval_epoch": -1}, "eval_epoch must be at least 1: got -1"),
    ],
)
def test_wrong_frequencies_of_an_evaluator_are_refused(wires, options, message):
    with pytest.raises(UsageError, match=f"EvaluatorCallback: {message}"):
        evaluating(wires, **options)


@pytest.mark.parametrize(("tensors", "message"), [([], "eval_tensors is empty"), (["x"], "must be wires: got str")])
def test_an_evaluator_needs_wires(tensors, message):
    with pytest.raises(UsageError, match=message):
        evaluating(tensors)


# ModuleSaverCallback


class Encoder:
    """A module that saves itself as a text."""

    def __init__(self, name=None):
        self.name, self.has_own_name = name or "encoder", name is not None
        self.num_unfreezes = 0
        self.dropout = 0.25

    def save_to(self, path):
        Path(path).write_text("weights", encoding="utf-8")

    def unfreeze(self):
        self.num_unfreezes += 1


def test_modules_are_saved_under_class_or_name_and_the_newest_stay(tmp_path):
    callback = ModuleSaverCallback([Encoder(), Encoder("second")], 2, tmp_path / "new", checkpoints_to_keep=2)
    train(FakeState(), [callback], steps_per_epoch=7)
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [f"{name}-STEP-{step}.safetensors" for name in ("Encoder", "second") for step in (6, 7)]


def test_files_that_the_run_did_not_save_are_left_alone(tmp_path):
    others = [tmp_path / "Encoder-STEP-1.safetensors", tmp_path / "Encoder2-STEP-2.safetensors"]
    for path in others:
        path.touch()
    train(FakeState(), [ModuleSaverCallback([Encoder()], 2, tmp_path, 1)], steps_per_epoch=4)
    assert all(path.exists() for path in others)
    assert sorted(path.name for path in tmp_path.iterdir() if path not in others) == ["Encoder-STEP-4.safetensors"]


def test_minus_one_saves_at_the_end_only(tmp_path):
    train(FakeState(), [ModuleSaverCallback([Encoder()], step_frequency=-1, folder=tmp_path)], steps_per_epoch=3)
    assert [path.name for path in tmp_path.iterdir()] == ["Encoder-STEP-3.safetensors"]


def test_a_second_run_into_the_same_files_keeps_them(tmp_path):
    callback = ModuleSaverCallback([Encoder()], -1, tmp_path, checkpoints_to_keep=1)
    for _ in range(3):
        train(FakeState(), [callback], steps_per_epoch=3)
    assert [path.name for path in tmp_path.iterdir()] == ["Encoder-STEP-3.safetensors"]


def test_two_modules_of_one_name_are_refused():
    with pytest.raises(UsageError, match='two modules would be saved as "Encoder"; give each its own name='):
        ModuleSaverCallback([Encoder(), Encoder()])


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="there is a file where a folder is wanted"):
        train(FakeState(), [ModuleSaverCallback([Encoder()], folder=tmp_path / "file")])


# ValueSetterCallback


def values_of(policies, total_steps=None, run_steps=10, **state):
    module, seen = Encoder(), []

    class Note(ActionCallback):
        def on_iteration_start(self):
            seen.append(round(module.dropout, 6))

    setter = ValueSetterCallback(module, "dropout", policies, total_steps)
    train(FakeState(total_steps=run_steps, **state), [setter, Note()], steps_per_epoch=run_steps)
    return seen


def test_a_value_follows_its_policies():
    policies = [Policy(Method.Linear(0.0, 0.3), start=0.0, end=0.4), Policy(Method.Const(0.5), start=4, end=1.0)]
    assert values_of(policies, total_steps=10) == [0.0, 0.1, 0.2, 0.3, *[0.5] * 6]


def test_the_length_of_the_run_is_the_default_length_of_a_schedule():
    assert values_of([Policy(Method.Linear(0, 9), 0, 1.0)]) == list(range(10))


def test_after_its_end_a_schedule_keeps_its_last_value():
    assert values_of([Policy(Method.Linear(1, 3), 0, 1.0)], total_steps=3, run_steps=5) == [1, 2, 3, 3, 3]


def test_without_policies_a_value_stays():
    assert values_of(None) == [0.25] * 10


def test_any_function_of_step_and_number_is_a_method():
    assert values_of([Policy(lambda step, number: step * number, 0, 1.0)], run_steps=3) == [0, 3, 6]


def test_a_linear_policy_of_one_step_has_its_first_value():
    assert values_of([Policy(Method.Linear(0.1, 0.9), 0, 1), Policy(Method.Const(2), 1, 2)], run_steps=2) == [0.1, 2]


def test_the_value_of_each_step_is_written():
    writer = Writer()
    setter = ValueSetterCallback(Encoder(), "dropout", [Policy(Method.Linear(0, 2), 0, 3)], 3, tb_writer=writer)
    train(FakeState(), [setter], steps_per_epoch=3)
    assert writer.scalars == [("param/Encoder.dropout", float(n), n) for n in range(3)]


def test_gaps_between_policies_are_refused():
    policies = [Policy(Method.Const(1), 0, 4), Policy(Method.Const(2), 5, 10)]
    with pytest.raises(
        UsageError, match=r"Encoder\.dropout: the policies leave gaps.*got 0 to 4, 5 to 10, wanted 0 to 10"
    ):
        values_of(policies)


def test_a_schedule_of_unknown_length_is_refused():
    setter = ValueSetterCallback(Encoder(), "dropout")
    with pytest.raises(UsageError, match=r"Encoder\.dropout: the length .* is not known; give total_steps"):
        train(FakeState(), [setter])


def test_an_attribute_that_is_not_there_is_refused():
    with pytest.raises(UnknownNameError, match=r'Encoder: attribute "droput".*did you mean dropout\?'):
        ValueSetterCallback(Encoder(), "droput")


# UnfreezeCallback


def test_one_module_to_unfreeze_without_a_list_is_refused():
    with pytest.raises(UsageError, match="UnfreezeCallback: modules must be a list: got object"):
        UnfreezeCallback(object())


def test_modules_are_unfrozen_once_when_their_epoch_comes():
    module, when = Encoder(), []

    class Note(ActionCallback):
        def on_iteration_end(self):
            when.append(module.num_unfreezes)

    train(FakeState(), [UnfreezeCallback([module], start_epoch=2), Note()], num_epochs=4, steps_per_epoch=1)
    assert when == [0, 0, 1, 1]


def test_a_run_resumed_later_unfreezes_at_its_start():
    module = Encoder()
    train(FakeState(epoch=5), [UnfreezeCallback([module], start_epoch=2)], num_epochs=2)
    assert module.num_unfreezes == 1


# WandbCallback


@pytest.fixture
def wandb(monkeypatch):
    """A fake wandb package that records what is logged."""
    fake = types.ModuleType("wandb")
    fake.run, fake.logged, fake.init = None, [], lambda **options: None
    fake.log = lambda values, step: fake.logged.append((step, values))
    fake.config = types.SimpleNamespace(update=lambda args: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_gets_train_tensors_rate_and_epochs(wires, wandb):
    x, y = wires
    state = FakeState(values={x: Scalar(1.0, []), y: Scalar(2.0, [])})
    callback = WandbCallback(train_tensors=[x, y], wandb_name="run", args={}, update_freq=2)
    assert CallbackList([callback]).wires == [x, y]
    train(state, [callback], steps_per_epoch=3)
    assert [step for step, _ in wandb.logged] == [0, 2, 2]
    assert wandb.logged[0][1] == {"x": 1.0, "y": 2.0, "LR": 0.01}
    assert sorted(wandb.logged[2][1]) == ["epoch", "epoch_time"]


@pytest.mark.parametrize("make", [WandbCallback, lambda: evaluating(Source().connect(), wandb_name="run")])
def test_wandb_that_is_not_installed_is_an_error(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="Callback: Weights & Biases is not installed; pip install wandb"):
        make()
