"""NeMoCallback, decorators, CallbackList, the newer loggers and CheckpointCallback, against a fake action."""

from __future__ import annotations

import re
import sys
import types

import pytest
from toys.fake_action_state import FakeState, Scalar, Source, Vector, Writer, train

from nemo_lite.core.callbacks import (
    CallbackList,
    CheckpointCallback,
    NeMoCallback,
    SimpleLogger,
    TensorboardLogger,
    WandBLogger,
    on_action_end,
    on_action_start,
    on_batch_end,
    on_batch_start,
    on_epoch_end,
    on_epoch_start,
    on_step_end,
    on_step_start,
)
from nemo_lite.core.deprecated_callbacks import ActionCallback, EvaluatorCallback, SimpleLossLoggerCallback
from nemo_lite.errors import CheckpointError, UsageError


@pytest.fixture
def wandb(monkeypatch):
    """A fake wandb package that records its calls."""
    fake = types.ModuleType("wandb")
    fake.run, fake.inits, fake.logged, fake.hyperparameters = None, [], [], []

    def init(**options):
        fake.run = options
        fake.inits.append(options)

    fake.init = init
    fake.log = lambda values, step: fake.logged.append((step, values))
    fake.config = types.SimpleNamespace(update=fake.hyperparameters.append)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_every_moment_arrives_in_order():
    seen = []
    decorators = {d.__name__: d for d in (on_action_start, on_epoch_start, on_step_start, on_batch_start)}
    decorators |= {d.__name__: d for d in (on_batch_end, on_step_end, on_epoch_end, on_action_end)}
    callbacks = [d(lambda state, name=name: seen.append(name)) for name, d in decorators.items()]
    train(FakeState(), callbacks, num_epochs=1, steps_per_epoch=2)
    step = ["on_step_start", "on_batch_start", "on_batch_end", "on_step_end"]
    assert seen == ["on_action_start", "on_epoch_start", *step, *step, "on_epoch_end", "on_action_end"]


def test_a_decorated_function_keeps_its_docstring_and_can_be_called():
    @on_step_end
    def double(state):
        """Doubles."""
        state.values["twice"] = state.step * 2

    assert double.__doc__ == "Doubles."
    state = FakeState(step=4)
    double(state)
    assert state.values["twice"] == 8


def test_a_function_decorated_twice_is_called_at_both_moments():
    steps = []

    @on_epoch_end
    @on_step_end
    def note(state):
        steps.append(state["step"])

    train(FakeState(), [note], steps_per_epoch=2)
    assert steps == [0, 1, 1]


class Wants(NeMoCallback):
    """Wants the end of each step, and counts look-ups of its methods."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, state):
        self.steps.append(state.step)


def test_only_overridden_moments_are_kept():
    called = CallbackList([Wants(), NeMoCallback(), SimpleLogger()])
    kept = {name: len(hooks) for name, hooks in called._hooks.items() if hooks}
    assert kept == {"on_epoch_start": 1, "on_step_end": 2}


def test_a_method_set_on_the_object_counts_as_overridden():
    callback, seen = NeMoCallback(), []
    callback.on_epoch_end = lambda state: seen.append(state.epoch)
    train(FakeState(), [callback], num_epochs=2)
    assert seen == [0, 1]


def test_old_and_new_callbacks_mix_in_the_order_given():
    order = []

    class Old(ActionCallback):
        def on_iteration_end(self):
            order.append(f"old {self.step}")

    new = on_step_end(lambda state: order.append(f"new {state.step}"))
    train(FakeState(), [Old(), new, Old()], steps_per_epoch=2)
    assert order == ["old 0", "new 0", "old 0", "old 1", "new 1", "old 1"]


def my_function(state):
    """Not decorated."""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, r"callbacks\[1\]: this is not a callback: got int, wanted a NeMoCallback$"),
        (None, r"callbacks\[1\]: .*got NoneType"),
        (SimpleLogger, r"got SimpleLogger.*make an object of the class: SimpleLogger\(\.\.\.\)"),
        (my_function, r"got my_function.*decorate my_function with the moment .*such as @on_step_end"),
    ],
)
def test_what_is_not_a_callback_is_named(wrong, message):
    with pytest.raises(UsageError, match=message):
        CallbackList([NeMoCallback(), wrong])


def test_the_list_says_which_wires_and_names_are_wanted():
    x, y = Source().connect()
    evaluator = EvaluatorCallback([y], lambda values, collected: None, lambda collected: None)
    callbacks = [
        SimpleLogger(tensors_to_log=["loss", "a"]),
        TensorboardLogger(tensors_to_log=["a", "b", x]),
        SimpleLossLoggerCallback([x]),
        evaluator,
    ]
    called = CallbackList(callbacks)
    assert (called.wires, called.names, called.eval_wires) == ([x], ["a", "b"], [[y]])


def test_close_reaches_every_callback():
    closed = []

    class Holds(NeMoCallback):
        def close(self):
            closed.append(self)

    first, second = Holds(), Holds()
    CallbackList([first, second]).close()
    assert closed == [first, second]


def test_simple_logger_logs_step_values_and_time(capsys):
    state = FakeState()
    state.values = {"wer": Scalar(0.25, state.reads), "lengths": Vector()}
    train(state, [SimpleLogger(step_freq=4, tensors_to_log=("loss", "wer", "lengths"))], steps_per_epoch=6)
    lines = re.findall(r"\] (.*)", capsys.readouterr().out)
    first = ["Step: 0", "loss: 0.5", "wer: 0.25", "lengths: [1, 2, 3]", "Step time: 0.25 seconds"]
    assert lines == [*first, "Step: 4", "loss: 4.5", *first[2:]]


@pytest.mark.parametrize("make", [SimpleLogger, TensorboardLogger])
def test_loggers_read_the_loss_at_logging_steps_only(make):
    state = FakeState(tb_writer=Writer())
    train(state, [make(step_freq=3)], steps_per_epoch=8)
    assert state.reads == [0.5, 3.5, 6.5]


def test_one_name_may_stand_for_a_list():
    assert CallbackList([SimpleLogger(tensors_to_log="wer")]).names == ["wer"]


@pytest.mark.parametrize("make", [SimpleLogger, TensorboardLogger])
def test_a_frequency_of_zero_is_refused(make):
    with pytest.raises(UsageError, match=f"{make.__name__}: step_freq must be at least 1: got 0"):
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


def test_missing_wandb_is_an_error_with_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="WandBLogger: Weights & Biases is not installed; pip install wandb"):
        WandBLogger()


def test_checkpoints_are_saved_by_steps_done_and_what_is_left_at_the_end():
    state = train(FakeState(), [CheckpointCallback("ck", step_freq=4, checkpoints_to_keep=2)], steps_per_epoch=10)
    assert state.saved == [("ck", "STEP", 4, 2), ("ck", "STEP", 8, 2), ("ck", "STEP", 10, 2)]


def test_a_checkpoint_that_holds_the_newest_state_is_not_written_again():
    state = train(FakeState(), [CheckpointCallback("ck", step_freq=5)], steps_per_epoch=10)
    assert [number for _, _, number, _ in state.saved] == [5, 10]


def test_checkpoints_are_saved_by_epochs():
    state = train(FakeState(), [CheckpointCallback("ck", epoch_freq=2)], num_epochs=5, steps_per_epoch=3)
    assert [(kind, number) for _, kind, number, _ in state.saved] == [("EPOCH", 6), ("EPOCH", 12), ("STEP", 15)]


@pytest.mark.parametrize("off", [None, -1])
def test_checkpoints_without_frequency_only_restore_and_say_so(off, capsys):
    state = train(FakeState(checkpoint="STEP-3"), [CheckpointCallback("ck", step_freq=off, epoch_freq=off)])
    assert (state.loaded, state.saved) == (["ck"], [])
    assert "CheckpointCallback saves nothing: neither step_freq nor epoch_freq" in capsys.readouterr().err


def test_a_callback_that_only_restores_from_elsewhere_gives_no_warning(capsys):
    state = train(FakeState(checkpoint="STEP-3"), [CheckpointCallback("ck", load_from_folder="pretrained")])
    assert state.loaded == ["pretrained"]
    assert capsys.readouterr().err == ""


def test_nothing_is_saved_when_no_step_was_made():
    state = train(FakeState(), [CheckpointCallback("ck", step_freq=4)], num_epochs=0)
    assert state.saved == []


def test_an_empty_folder_is_told_in_one_line(capsys):
    train(FakeState(), [CheckpointCallback("ck", step_freq=100)], num_epochs=0)
    assert capsys.readouterr().out.count("No checkpoint in ck: training starts from the weights as they are\n") == 1


def test_weights_that_were_asked_for_and_not_found_are_a_warning(capsys):
    train(FakeState(), [CheckpointCallback("ck", load_from_folder="pretrained")])
    assert "No checkpoint in pretrained" in capsys.readouterr().err


def test_force_load_makes_a_missing_checkpoint_an_error():
    with pytest.raises(CheckpointError, match="ck: there is no checkpoint to restore; check load_from_folder"):
        train(FakeState(), [CheckpointCallback("ck", step_freq=1, force_load=True)])


@pytest.mark.parametrize("wrong", [{"step_freq": 0}, {"epoch_freq": 0}, {"checkpoints_to_keep": 0}])
def test_checkpoint_numbers_below_one_are_refused(wrong):
    with pytest.raises(UsageError, match=f"CheckpointCallback: {next(iter(wrong))} must be at least 1: got 0"):
        CheckpointCallback("ck", **wrong)
