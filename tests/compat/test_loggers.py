"""NeMo's loggers: what they read, log, write and record with Weights & Biases."""

from __future__ import annotations

import re
import sys

import pytest
from toys.fake_action_state import FakeState, Scalar, Source, Vector, Writer, messages, train

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks import (
    CallbackList,
    SimpleLogger,
    SimpleLossLoggerCallback,
    TensorboardLogger,
    WandbCallback,
    WandBLogger,
)


def test_simple_logger_logs_one_line_a_tensor_and_nothing_else(capsys):
    state = FakeState()
    state.values = {"wer": Scalar(0.25, state.reads), "lengths": Vector()}
    train(state, [SimpleLogger(step_freq=4, tensors_to_log=("loss", "wer", "lengths"))], steps_per_epoch=6)
    lines = messages(capsys.readouterr().out)
    others = ["wer: 0.25", "lengths: [1, 2, 3]"]
    assert lines == ["loss: 0.5", *others, "loss: 4.5", *others]


@pytest.mark.parametrize("make", [SimpleLogger, TensorboardLogger])
def test_loggers_read_the_loss_at_logging_steps_only(make):
    state = FakeState(tb_writer=Writer())
    train(state, [make(step_freq=3)], steps_per_epoch=8)
    assert state.reads == [0.5, 3.5, 6.5]


def test_one_name_may_stand_for_a_list():
    assert CallbackList([SimpleLogger(tensors_to_log="wer")]).names == ["wer"]


@pytest.mark.parametrize("make", [SimpleLogger, TensorboardLogger])
def test_a_frequency_of_zero_is_refused(make):
    with pytest.raises(UsageError, match=rf"{make.__name__}\.step_freq is 0, wanted int from 1 on"):
        make(step_freq=0)


def test_tensorboard_gets_values_times_epochs_and_rates():
    writer, (x, _) = Writer(), Source().connect()
    state = FakeState()
    state.values = {x: 7.0}
    train(state, [TensorboardLogger(writer, step_freq=2, tensors_to_log=["loss", x])], num_epochs=2, steps_per_epoch=3)
    assert writer.of("loss") == [(0.5, 0), (2.5, 2), (4.5, 4)]
    assert writer.of("x") == [(7.0, 0), (7.0, 2), (7.0, 4)]
    assert writer.of("misc/step_time") == [(0.25, 0), (0.25, 2), (0.25, 4)]
    assert writer.of("param/lr") == [(0.01, 0), (0.01, 2), (0.01, 4)]
    assert writer.of("misc/epoch") == [(0, 2), (1, 5)]
    assert [step for seconds, step in writer.of("misc/epoch_time") if 0 <= seconds < 1] == [2, 5]
    assert writer.num_flushes == 1


def test_tensorboard_leaves_out_what_was_not_asked_for():
    state = FakeState(tb_writer=Writer())
    train(state, [TensorboardLogger(log_epoch=False, log_lr=False)])
    assert {tag for tag, _, _ in state.tb_writer.scalars} == {"loss", "misc/step_time"}


def test_a_custom_tensorboard_function_gets_values_writer_and_step():
    given = []
    writer = Writer()
    logger = TensorboardLogger(writer, 3, custom_tb_log_func=lambda *arguments: given.append(arguments))
    train(FakeState(), [logger], steps_per_epoch=4)
    assert [([value.item() for value in values], to, step) for values, to, step in given] == [
        ([0.5], writer, 0),
        ([3.5], writer, 3),
    ]
    assert writer.of("loss") == []


def test_a_vector_as_a_scalar_is_refused_with_the_remedy():
    state = FakeState(tb_writer=Writer(), values={"v": Vector()})
    message = r'TensorboardLogger: "v" is not a single number: got shape \(3,\); log it with custom_tb_log_func'
    with pytest.raises(UsageError, match=message):
        train(state, [TensorboardLogger(tensors_to_log=["v"])])


def test_a_logger_without_a_writer_says_so_and_reads_nothing(capsys):
    state = train(FakeState(), [TensorboardLogger()])
    assert state.reads == []
    assert re.search(r"TensorboardLogger writes nothing: .*create_tb_writer=True", capsys.readouterr().err)


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
    callback = SimpleLossLoggerCallback(  # type: ignore[call-arg]  # older names
        tensor_list2string=lambda values: str(values[0].item()),
        tensor_list2string_evl=lambda values: f"decoded {values}",
        tensors=[x, y],
        step_frequency=2,
    )
    train(state, [callback], steps_per_epoch=4)
    lines = [line for line in messages(capsys.readouterr().out) if line[0].islower() or line[0].isdigit()]
    assert lines == ["0.5", "decoded [1.0, 2.0]", "2.5", "decoded [1.0, 2.0]"]


def test_the_first_generation_prints_the_tensors_that_train_evaluates(wires):
    printed: list[object] = []
    callback = SimpleLossLoggerCallback(tensor_list2string_evl=printed.append)
    with pytest.raises(
        UsageError, match=r"needs to know the wires to print; give train\(tensors_to_evaluate=\[...\]\)"
    ):
        callback.take_tensors_to_evaluate([])
    callback.take_tensors_to_evaluate(wires)
    assert callback.wanted_wires() == list(wires)
    train(FakeState(values=dict(zip(wires, (1.0, 2.0), strict=True))), [callback])
    assert printed[0] == [1.0, 2.0]
    own = SimpleLossLoggerCallback(tensors=[wires[0]], tensor_list2string_evl=printed.append)
    own.take_tensors_to_evaluate(wires)
    assert own.wanted_wires() == [wires[0]]


def test_the_first_generation_needs_no_tensors(capsys):
    callback = SimpleLossLoggerCallback(tensor_list2string=lambda values: f"{values[0].item()}!")  # type: ignore[call-arg]
    train(FakeState(), [callback])
    assert "0.5!" in messages(capsys.readouterr().out)


def test_values_for_tensorboard_times_and_rates_are_written(wires):
    x, _ = wires
    own, given = Writer(), []
    state = FakeState(values={x: 3.0}, tb_writer=Writer())
    callback = SimpleLossLoggerCallback(  # type: ignore[call-arg]  # older names
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
        ({"step_freq": 0}, "step_freq is 0, wanted int from 1 on"),
        ({"step_freq": 5, "step_frequency": 5}, "step_frequency and step_freq are one argument"),
    ],
)
def test_wrong_arguments_of_the_loss_logger_are_refused(arguments, message):
    with pytest.raises(UsageError, match=rf"SimpleLossLoggerCallback[.:] ?.*{message}"):
        SimpleLossLoggerCallback(**arguments)


def test_wandb_gets_values_rates_epochs_and_hyperparameters(wandb):
    logger = WandBLogger(2, wandb_name="run", wandb_project="speech", args={"lr": 0.1})
    train(FakeState(), [logger], steps_per_epoch=3)
    assert wandb.inits == [{"name": "run", "project": "speech"}]
    assert wandb.hyperparameters == [{"lr": 0.1}]
    assert wandb.logged[:2] == [(0, {"loss": 0.5, "LR": 0.01}), (2, {"loss": 2.5, "LR": 0.01})]
    step, values = wandb.logged[2]
    assert (step, values["epoch"], sorted(values)) == (2, 0, ["epoch", "epoch_time"])


def test_two_wandb_callbacks_share_one_run(wandb):
    train(FakeState(), [WandBLogger(), WandBLogger()])
    assert len(wandb.inits) == 1


def test_wandb_gets_train_tensors_rate_and_epochs(wires, wandb):
    x, y = wires
    state = FakeState(values={x: Scalar(1.0, []), y: Scalar(2.0, [])})
    callback = WandbCallback(train_tensors=[x, y], wandb_name="run", args={}, update_freq=2)
    assert CallbackList([callback]).wires == [x, y]
    train(state, [callback], steps_per_epoch=3)
    assert [step for step, _ in wandb.logged] == [0, 2, 2]
    assert wandb.logged[0][1] == {"x": 1.0, "y": 2.0, "LR": 0.01}
    assert sorted(wandb.logged[2][1]) == ["epoch", "epoch_time"]


@pytest.mark.parametrize("make", [WandBLogger, WandbCallback])
def test_missing_wandb_is_an_error_with_the_install_line(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=f"{make.__name__}: Weights & Biases is not installed; pip install wandb"):
        make()
