"""Callbacks in a fake world of two: the first rank prints, writes and records; all make the same collective calls."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from toys.fake_action_state import FakeState, Scalar, Source, Vector, Writer, train

from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.core.callbacks import (
    ActionCallback,
    CheckpointCallback,
    EvaluatorCallback,
    ModuleSaverCallback,
    SimpleLogger,
    SimpleLossLoggerCallback,
    TensorboardLogger,
    UnfreezeCallback,
    ValueSetterCallback,
    WandbCallback,
    WandBLogger,
)
from nemo_lite.core.callbacks.tracking import ProgressBar

WORLD_SIZE = 2
WIRES = Source().connect()


class Encoder:
    """A module that saves itself as a text."""

    name, label, has_own_name = "encoder", "encoder", False

    def __init__(self) -> None:
        self.dropout, self.is_frozen = 0.25, True

    def __str__(self) -> str:
        return "Encoder"

    def save_to(self, path: Path) -> None:
        Path(path).write_text("weights", encoding="utf-8")

    def unfreeze(self) -> None:
        self.is_frozen = False


@dataclass
class Traces:
    """All that one rank leaves behind, but what it prints."""

    folder: Path
    factory_writer: Writer = field(default_factory=Writer)
    own_writer: Writer = field(default_factory=Writer)
    given: list[Any] = field(default_factory=list)
    wandb: list[Any] = field(default_factory=list)

    def left(self) -> list[str]:
        """What there is of it."""
        written = {
            "files": [path for path in self.folder.rglob("*") if path.is_file()],
            "the factory's writer": [*self.factory_writer.scalars, *self.factory_writer.texts],
            "its own writer": [*self.own_writer.scalars, *self.own_writer.texts],
            "flushes": [None] * (self.factory_writer.num_flushes + self.own_writer.num_flushes),
            "the user's functions": self.given,
            "wandb": self.wandb,
        }
        return [name for name, items in written.items() if items]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass
class Run:
    """What a rank did: its state with its collective calls, what it left, what it printed, the error that ended it."""

    state: FakeState
    traces: Traces
    said: str
    error: BaseException | None = None


Make = Callable[[Traces], list[Any]]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Trains one rank of the world with its own callbacks."""

    def on(rank: int, make: Make, **options: Any) -> Run:
        traces = Traces(tmp_path / f"rank{rank}")
        fake: Any = types.ModuleType("wandb")
        fake.run = None
        fake.init = lambda **options: traces.wandb.append(options)
        fake.log = lambda values, step: traces.wandb.append((step, values))
        fake.config = types.SimpleNamespace(update=traces.wandb.append)
        monkeypatch.setitem(sys.modules, "wandb", fake)
        state = FakeState(local_rank=rank, global_rank=rank, world_size=WORLD_SIZE, total_steps=8)
        state.tb_writer = traces.factory_writer
        state.batches, state.num_items, state.digest = [[1, 2], [3, 4], [5, 6]], 3, "3f9a2c41d07be55a"
        state.values = {wire: Scalar(2.0, state.reads) for wire in WIRES}
        for name, value in options.items():
            setattr(state, name, value)
        terminal = Terminal()
        error = None
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            try:
                train(state, make(traces), num_epochs=2, steps_per_epoch=4)
            except Exception as raised:
                error = raised
        return Run(state, traces, capsys.readouterr().out + terminal.getvalue(), error)

    return on


def evaluator(traces: Traces, **options: Any) -> EvaluatorCallback:
    def done(collected: dict[str, Any]) -> dict[str, Any]:
        traces.given.append("done")
        return {"WER": 0.5, "note": "text"}

    return EvaluatorCallback(list(WIRES), lambda values, collected: traces.given.append(values), done, **options)


MAKERS: dict[str, Make] = {
    "SimpleLogger": lambda traces: [SimpleLogger(3, ["loss", WIRES[0]])],
    "TensorboardLogger": lambda traces: [TensorboardLogger(step_freq=3)],
    "TensorboardLogger with its own writer": lambda traces: [TensorboardLogger(traces.own_writer)],
    "TensorboardLogger with a function": lambda traces: [
        TensorboardLogger(custom_tb_log_func=lambda *them: traces.given.append(them))
    ],
    "WandBLogger": lambda traces: [WandBLogger(3, args={"lr": 0.1})],
    "WandbCallback": lambda traces: [WandbCallback(WIRES, update_freq=3)],
    "SimpleLossLoggerCallback": lambda traces: [SimpleLossLoggerCallback(WIRES, step_freq=3)],
    "SimpleLossLoggerCallback with functions": lambda traces: [
        SimpleLossLoggerCallback(
            WIRES,
            print_func=traces.given.append,
            get_tb_values=lambda values: [("loss", values[0])],
            log_to_tb_func=lambda *them: traces.given.append(them),
            tb_writer=traces.own_writer,
        )
    ],
    "EvaluatorCallback": lambda traces: [evaluator(traces, eval_step=3)],
    "two EvaluatorCallbacks of one tag": lambda traces: [
        evaluator(traces, eval_epoch=1, eval_at_start=False, tb_writer=traces.own_writer),
        evaluator(traces, eval_step=5, tb_writer_func=lambda *them: traces.given.append(them), wandb_name="run"),
    ],
    "ModuleSaverCallback": lambda traces: [ModuleSaverCallback([Encoder()], 3, traces.folder, 1)],
    "CheckpointCallback": lambda traces: [CheckpointCallback(traces.folder, step_freq=3, epoch_freq=1)],
    "CheckpointCallback that saves nothing": lambda traces: [CheckpointCallback(traces.folder)],
    "ValueSetterCallback": lambda traces: [
        ValueSetterCallback(Encoder(), "dropout", [ValueSetterCallback.Policy(lambda step, number: step, 0, 8)])
    ],
    "UnfreezeCallback": lambda traces: [UnfreezeCallback([Encoder()], start_epoch=1)],
    "ProgressBar": lambda traces: [ProgressBar(0.0)],
}
every_callback = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_callback
def test_another_rank_prints_writes_and_records_nothing(run, make):
    first, other = (run(rank, make) for rank in range(WORLD_SIZE))
    assert (other.said, other.traces.left(), other.error) == ("", [], None)
    assert other.state.reads == [], "reading a tensor is a host sync"
    assert not other.traces.folder.exists()
    assert first.said or first.traces.left()


@every_callback
def test_all_ranks_make_the_same_collective_calls_in_the_same_order(run, make):
    first, other = (run(rank, make) for rank in range(WORLD_SIZE))
    assert first.state.collective == other.state.collective
    assert first.state.collective


def test_only_the_first_rank_warns_that_there_is_no_writer(run):
    first, other = (run(rank, MAKERS["TensorboardLogger"], tb_writer=None) for rank in range(WORLD_SIZE))
    assert "TensorboardLogger writes nothing" in first.said
    assert other.said == ""


def test_an_evaluation_of_nothing_is_one_on_all_ranks(run):
    first, other = (run(rank, MAKERS["EvaluatorCallback"], batches=[], num_items=0) for rank in range(WORLD_SIZE))
    assert first.state.collective == other.state.collective
    assert "evaluated nothing" in first.said
    assert other.said == ""


def test_results_that_only_the_first_rank_has_change_no_call(run):
    def no_results(traces: Traces) -> list[Any]:
        return [EvaluatorCallback(list(WIRES), lambda values, collected: None, lambda collected: None)]

    def results(traces: Traces) -> list[Any]:
        return [evaluator(traces)]

    assert run(0, no_results).state.collective == run(0, results).state.collective == run(1, results).state.collective


def test_the_users_function_gets_one_value_for_each_process_that_had_a_batch(run):
    x, y = WIRES
    given = run(0, MAKERS["EvaluatorCallback"]).traces.given
    assert given[:3] == [
        {x.unique_name: [1, 3], y.unique_name: [2, 4], "IS_FROM_DIST_EVAL": True},
        {x.unique_name: [5], y.unique_name: [6], "IS_FROM_DIST_EVAL": True},
        "done",
    ]


def test_what_changes_the_model_happens_on_every_rank(run):
    modules = [Encoder() for _ in range(WORLD_SIZE)]
    for rank, module in enumerate(modules):
        policies = [ValueSetterCallback.Policy(lambda step, number: step, 0, 8)]
        callbacks = [ValueSetterCallback(module, "dropout", policies), UnfreezeCallback([module])]
        run(rank, lambda traces, callbacks=callbacks: callbacks)
    assert [(module.dropout, module.is_frozen) for module in modules] == [(7, False)] * WORLD_SIZE


def test_all_ranks_take_part_in_saving_and_the_newest_files_stay(run):
    first, other = (run(rank, MAKERS["ModuleSaverCallback"]) for rank in range(WORLD_SIZE))
    assert [path.name for path in first.traces.folder.iterdir()] == ["Encoder-STEP-8.safetensors"]
    saves = [step for what, step in other.state.collective if what == "save_module"]
    assert saves == [2, 5, 7]


def test_all_ranks_take_part_in_checkpoints(run):
    runs = [run(rank, MAKERS["CheckpointCallback"]) for rank in range(WORLD_SIZE)]
    saved = [[(kind, number) for _, kind, number, _ in each.state.saved] for each in runs]
    assert saved == [[("STEP", 3), ("EPOCH", 4), ("STEP", 6), ("EPOCH", 8)]] * WORLD_SIZE
    assert [len(each.state.loaded) for each in runs] == [1, 1]


def test_a_missing_checkpoint_with_force_load_ends_every_rank(run):
    def forced(traces: Traces) -> list[Any]:
        return [CheckpointCallback(traces.folder, step_freq=1, force_load=True)]

    errors = [run(rank, forced).error for rank in range(WORLD_SIZE)]
    assert all(isinstance(error, CheckpointError) for error in errors)


@pytest.mark.parametrize(
    "make",
    [
        lambda traces: [CheckpointCallback(traces.folder / "file", step_freq=1)],
        lambda traces: [ModuleSaverCallback([Encoder()], folder=traces.folder / "file")],
    ],
    ids=["CheckpointCallback", "ModuleSaverCallback"],
)
def test_only_the_first_rank_needs_a_folder_that_can_be_written(run, make, tmp_path):
    for rank in range(WORLD_SIZE):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "file").touch()
    first, other = (run(rank, make) for rank in range(WORLD_SIZE))
    assert isinstance(first.error, UsageError)
    assert other.error is None


def test_a_tensor_that_cannot_be_logged_is_an_error_of_the_first_rank(run):
    def logger(traces: Traces) -> list[Any]:
        return [TensorboardLogger(tensors_to_log=[WIRES[0]])]

    first, other = (run(rank, logger, values={WIRES[0]: Vector()}) for rank in range(WORLD_SIZE))
    assert "is not a single number" in str(first.error)
    assert other.error is None


def test_a_callback_of_the_user_runs_on_every_rank(run):
    seen = []

    class Own(ActionCallback):
        def on_action_end(self) -> None:
            seen.append((self.global_rank, self.action.world_size, self.action["world_size"]))

    for rank in range(WORLD_SIZE):
        run(rank, lambda traces: [Own()])
    assert seen == [(0, 2, 2), (1, 2, 2)]


def test_the_fake_refuses_a_collective_call_that_one_rank_makes_alone():
    state = FakeState(global_rank=0, world_size=2)
    with pytest.raises(AssertionError, match="save_module inside on_first"):
        state.on_first(lambda: state.save_module(Encoder(), "path"))
    with pytest.raises(AssertionError, match="evaluate inside on_first"):
        state.on_first(lambda: state.evaluate(WIRES))
