"""Callbacks that log: NeMo's loggers, records of a run, the progress bar."""

from __future__ import annotations

import io
import math
import re
import sys

import pytest
from toys.fake_action_state import FakeState, Scalar, Source, Vector, Writer, messages, train

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks import (
    CallbackList,
    NeMoCallback,
    SimpleLogger,
    SimpleLossLoggerCallback,
    TensorboardLogger,
    TrackingCallback,
    WandbCallback,
    WandBLogger,
    on_step_end,
)
from nemo_lite.core.callbacks.base import EvaluationResult
from nemo_lite.core.callbacks.loggers import ProgressBar
from nemo_lite.core.trackers import Tracker, Trackers
from nemo_lite.utils import logging

# SimpleLogger, TensorboardLogger, SimpleLossLoggerCallback: what they read, log and write.


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
        ({"step_freq": 0}, "step_freq must be at least 1: got 0"),
        ({"step_freq": 5, "step_frequency": 5}, "step_frequency and step_freq are one argument"),
    ],
)
def test_wrong_arguments_of_the_loss_logger_are_refused(arguments, message):
    with pytest.raises(UsageError, match=f"SimpleLossLoggerCallback: .*{message}"):
        SimpleLossLoggerCallback(**arguments)


# Weights & Biases: what is recorded there, and one run for all.


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


# TrackingCallback: which records a run gives, when, and on which rank.


class Kept(Tracker):
    """Keeps what it gets."""

    def __init__(self):
        self.records, self.is_closed = [], False

    def write(self, record):
        self.records.append({key: value for key, value in record.items() if key != "time"})

    def close(self):
        self.is_closed = True


class Evaluates(NeMoCallback):
    """Publishes a result after step 2, and at the end."""

    def on_step_end(self, state):
        if state.step == 1:
            self._publish(state)

    def on_action_end(self, state):
        self._publish(state)

    def _publish(self, state):
        state.publish(lambda: EvaluationResult("dev", state.step + 1, {"wer": 0.5, "note": "x"}, 4, "ab", 1.23456))


def test_a_run_gives_its_start_its_steps_its_evaluations_and_its_end():
    kept, state = Kept(), FakeState(total_steps=5)
    callback = TrackingCallback(Trackers([kept]), step_freq=2, start={"arguments": {"lr": 1}, "precision": "O0"})
    train(state, [callback, Evaluates()])
    assert kept.records[0] == {
        **{"kind": "start", "arguments": {"lr": 1}, "precision": "O0", "world_size": 1, "total_steps": 5}
    }
    about = [(record["kind"], record.get("step")) for record in kept.records[1:]]
    assert about == [("train", 1), ("train", 2), ("evaluation", 2), ("train", 4), ("evaluation", 5), ("end", 5)]
    assert kept.records[2] == {
        **{"kind": "train", "step": 2, "epoch": 1, "loss": 1.5, "lr": 0.01, "amount_per_second": 100.0},
        **{"amount_unit": "audio-s", "data_wait_share": 0.2, "step_seconds": 0.25},
    }
    evaluation = {"kind": "evaluation", "step": 2, "set": "dev", "wer": 0.5, "note": "x", "num_items": 4}
    assert kept.records[3] == {**evaluation, "digest": "ab", "seconds": 1.235}
    end = kept.records[-1]
    assert (end["epoch"], end["reason"], kept.is_closed) == (1, "finished", True)
    assert 0 <= end["seconds"] < 10


def test_the_loss_is_read_at_recorded_steps_only():
    state = FakeState()
    train(state, [TrackingCallback(Trackers([Kept()]), step_freq=4)], steps_per_epoch=9)
    assert state.reads == [0.5, 3.5, 7.5]


def test_a_run_that_goes_on_records_its_own_first_step():
    kept = Kept()
    train(FakeState(step=7, epoch=2), [TrackingCallback(Trackers([kept]), step_freq=100)], steps_per_epoch=2)
    assert [(record["kind"], record.get("step")) for record in kept.records] == [
        ("start", None),
        ("train", 8),
        ("end", 9),
    ]


def test_a_run_that_was_asked_to_stop_says_why():
    class Stops(NeMoCallback):
        def on_step_end(self, state):
            state.request_stop("no progress")

    kept = Kept()
    train(FakeState(), [TrackingCallback(Trackers([kept])), Stops()])
    assert kept.records[-1]["reason"] == "no progress"


def test_a_run_that_fails_is_recorded_as_failed():
    class Fails(NeMoCallback):
        def on_step_end(self, state):
            raise RuntimeError

    kept = Kept()
    callback = TrackingCallback(Trackers([kept]))
    with pytest.raises(RuntimeError):
        train(FakeState(), [callback, Fails()])
    callback.close()  # as the engine does
    assert [record["kind"] for record in kept.records] == ["start", "train", "end"]
    assert (kept.records[-1]["step"], kept.records[-1]["reason"], kept.is_closed) == (1, "failed", True)


def test_other_ranks_record_nothing_but_make_the_same_calls():
    first, other = (FakeState(local_rank=rank, global_rank=rank, world_size=2) for rank in (0, 1))
    kept = Kept()
    train(first, [TrackingCallback(Trackers([Kept()]), 2), Evaluates()])
    train(other, [TrackingCallback(Trackers([kept]), 2), Evaluates()])
    assert kept.records == []
    assert first.collective == other.collective


def test_a_frequency_below_one_is_an_error():
    with pytest.raises(UsageError, match="TrackingCallback: step_freq must be at least 1: got 0"):
        TrackingCallback(Trackers(), step_freq=0)


def test_a_run_with_nothing_left_to_train_ends_where_its_checkpoint_brought_it():
    kept, state = Kept(), FakeState()
    called = CallbackList([TrackingCallback(Trackers([kept]))])
    called.notify("on_action_start", state)
    state.step, state.epoch = 12, 4
    called.notify("on_action_end", state)
    called.close()
    end = kept.records[-1]
    assert (end["kind"], end["step"], end["epoch"], end["reason"]) == ("end", 12, 4, "finished")


# ProgressBar: on a terminal and off it, against a fake action.


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Makes stderr a terminal; called in a test's body, for between set-up and body pytest puts its own stderr back."""

    def make():
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return make


def test_without_a_terminal_it_reads_and_writes_nothing(capsys):
    state = FakeState(total_steps=5)
    train(state, [ProgressBar(0.0)])
    assert state.reads == []
    assert capsys.readouterr().err == ""


def test_without_a_stderr_at_all_it_reads_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert train(FakeState(), [ProgressBar(0.0)]).reads == []


def test_it_shows_steps_loss_time_throughput_and_the_wait_for_data(on_terminal):
    terminal = on_terminal()
    train(FakeState(total_steps=5), [ProgressBar(0.0)])
    last = terminal.getvalue().split("\r")[-1]
    assert "5/5" in last
    # The moving loss of 0.5, 1.5, ... 4.5: each reading weighs 0.3.
    loss = 0.5
    for step in range(1, 5):
        loss = 0.7 * loss + 0.3 * (step + 0.5)
    assert f"loss {loss:.4g}, 100 audio-s/s, data 20%]" in last


def test_it_has_one_speed_and_a_bar_within_80_columns(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr(ProgressBar, "_text", lambda self, timing: "loss 12.34, 1234 audio-s/s, data 100%")
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda stream: (80, 24))
    state = FakeState(step=123455, total_steps=654321)
    train(state, [ProgressBar(0.0)], steps_per_epoch=2)
    last = terminal.getvalue().rstrip("\n").split("\r")[-1]
    assert len(last) <= 80
    assert "|" in last.replace("||", ""), "there is a bar"
    assert last.count("/s") == 1
    assert last.endswith("left, loss 12.34, 1234 audio-s/s, data 100%]")


def test_a_resumed_run_begins_where_it_stood(on_terminal):
    terminal = on_terminal()
    train(FakeState(step=7, total_steps=10), [ProgressBar()], steps_per_epoch=3)
    assert "7/10" in terminal.getvalue().split("\r")[1]
    assert "10/10" in terminal.getvalue()


def test_a_run_of_unknown_length_counts_its_steps(on_terminal):
    terminal = on_terminal()
    train(FakeState(), [ProgressBar()], steps_per_epoch=3)
    assert "3 steps [" in terminal.getvalue()


def test_the_loss_is_read_rarely(on_terminal):
    on_terminal()
    state = FakeState(total_steps=200)
    train(state, [ProgressBar(seconds_between_readings=3600)], steps_per_epoch=200)
    assert state.reads == [0.5]


def test_a_loss_that_is_not_finite_is_shown_and_then_forgotten(on_terminal):
    on_terminal()
    bar, state = ProgressBar(0.0), FakeState()
    shown = []
    state.get_tensor = lambda name: Scalar(math.nan if state.step == 1 else 2.0, [])
    train(state, [bar, on_step_end(lambda state: shown.append(bar._loss))], steps_per_epoch=4)
    assert math.isnan(shown[1])
    assert [shown[0], *shown[2:]] == pytest.approx([2.0, 2.0, 2.0])


def test_log_lines_appear_whole_above_the_bar(on_terminal, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = on_terminal()

    def log(state):
        logging.info("line %d", state.step)
        logging.warning("warning %d", state.step)

    train(FakeState(total_steps=2), [ProgressBar(), on_step_end(log)], steps_per_epoch=2)
    out = capsys.readouterr().out.splitlines()
    assert [line.rpartition("] ")[2] for line in out] == ["line 0", "line 1"]
    above = terminal.getvalue().split("warning: ")
    assert len(above) == 3
    assert all(part.endswith("\r") for part in above[:-1]), "the bar is wiped before a line is written"
    assert [part.split("\n")[0] for part in above[1:]] == ["warning 0", "warning 1"]


def test_after_the_run_log_lines_go_their_usual_way(on_terminal, monkeypatch):
    terminal = on_terminal()
    patched = []
    train(FakeState(), [ProgressBar()])
    monkeypatch.setattr("nemo_lite.core.callbacks.loggers.tqdm.write", lambda *args, **kwargs: patched.append(args))
    logging.warning("after")
    assert patched == []
    assert "after" in terminal.getvalue()


def test_close_ends_the_line_after_an_error(on_terminal):
    terminal = on_terminal()

    @on_step_end
    def fail(state):
        raise RuntimeError("in a step")

    bar = ProgressBar()
    with pytest.raises(RuntimeError):
        train(FakeState(total_steps=5), [bar, fail])
    assert not terminal.getvalue().endswith("\n")
    bar.close()
    assert terminal.getvalue().endswith("\n")
    bar.close()


def test_other_ranks_show_and_read_nothing(on_terminal):
    terminal = on_terminal()
    state = train(FakeState(global_rank=1, world_size=2), [ProgressBar(0.0)])
    assert (terminal.getvalue(), state.reads) == ("", [])


def test_ranks_call_the_same_with_and_without_a_terminal(on_terminal):
    without = train(FakeState(global_rank=1, world_size=2), [ProgressBar()])
    on_terminal()
    assert train(FakeState(global_rank=0, world_size=2), [ProgressBar()]).collective == without.collective != []


def test_evaluation_alone_shows_no_bar(on_terminal):
    terminal = on_terminal()
    CallbackList([ProgressBar()]).notify("on_action_end", FakeState())
    assert terminal.getvalue() == ""


def test_a_bar_over_items_gives_them_all(on_terminal):
    terminal = on_terminal()
    with ProgressBar.over(range(3), True, "infer") as items:
        assert list(items) == [0, 1, 2]
    assert "infer: 100%" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_a_bar_over_items_is_only_for_terminals_and_the_verbose(on_terminal, monkeypatch, capsys):
    terminal = on_terminal()
    items = range(3)
    with ProgressBar.over(items, False, "infer") as shown:
        assert shown is items
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressBar.over(items, True, "infer") as shown:
        assert shown is items
    assert terminal.getvalue() == sys.stderr.getvalue() == ""
