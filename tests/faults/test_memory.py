"""Memory, descriptors and processes stay flat over many steps, epochs and saves."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.faulty_run import Mse, Net, Points
from toys.ranks import Rank

import nemo_lite as nemo
from nemo_lite.core.callbacks.metrics import Mean

MEGABYTE = 2**20
UNITS = 200_000
COPY = 3 * 4 * (3 + 2) * UNITS  # bytes of the weights of so many units, and of what AdamW keeps for them


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used() -> dict[str, int]:
    """What this process holds: bytes of memory, open descriptors, threads and child processes."""
    gc.collect()
    return {
        "bytes": resident(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": len(multiprocessing.active_children()),
        "objects": len(gc.get_objects()),
    }


class Meter(nemo.NeMoCallback):
    """Notes what the process holds, some steps after the start and at the last step."""

    def __init__(self, steps: tuple[int, int]) -> None:
        super().__init__()
        self.steps, self.found = steps, list[dict[str, int]]()

    def on_step_end(self, state: Any) -> None:
        if state.step in self.steps:
            self.found.append(used())


class Leak(nemo.NeMoCallback):
    """The broken twin: keeps a little of each step."""

    kept: list[Any]

    def on_action_start(self, state: Any) -> None:
        self.kept = []

    def on_step_end(self, state: Any) -> None:
        self.kept.append([bytearray(2000), os.dup(2) if state.step % 100 == 0 else None])


class Resident(nemo.NeMoCallback):
    """Notes the resident memory after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[int]()

    def on_step_end(self, state: Any) -> None:
        self.found.append(resident())


def train_wide(folder: Path, steps: int) -> list[int]:
    """The resident memory after each step; each ends with an evaluation and a checkpoint that takes a while."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5)
    gc.disable()  # a program of many objects looks for garbage so rarely that a copy for each checkpoint stays
    net, meter = Net(), Resident()
    net.layers = torch.nn.Sequential(torch.nn.Linear(3, UNITS), torch.nn.Linear(UNITS, 1))
    (x, y), (dev_x, dev_y) = Points(2 * steps)(), Points()()
    evaluated = Mse()(out=net(x=dev_x), target=dev_y)
    callbacks = [
        nemo.EvaluatorCallback(metrics={"loss": Mean(evaluated, dev_x)}, name="dev", eval_step=1),
        nemo.CheckpointCallback(folder, step_freq=1, checkpoints_to_keep=1),
        meter,
    ]
    params = {"lr": 0.01, "max_steps": steps}
    factory.train([Mse()(out=net(x=x), target=y)], optimizer="adam_w", optimization_params=params, callbacks=callbacks)
    return meter.found


def train(folder: Path, steps: int, workers: int, save_every: int, leaks: bool) -> list[dict[str, int]]:
    """What the process held at a fifth of the run, and at its end."""
    multiprocessing.set_start_method("fork", force=True)
    factory = nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, random_seed=5, log_dir=folder, create_tb_writer=True
    )
    layer = Points()
    layer.num_workers = workers
    net, (x, y) = Net(), layer()
    meter = Meter((steps // 5, steps - 2))
    callbacks = [
        nemo.CheckpointCallback(folder / "checkpoints", step_freq=save_every, checkpoints_to_keep=2),
        nemo.SimpleLossLoggerCallback(tensors=[], step_freq=100),
        *([Leak()] if leaks else []),
        meter,
    ]
    params = {"lr": 0.01, "max_steps": steps}
    loss = Mse()(out=net(x=x), target=y)
    factory.train([loss], optimizer="adam_w", optimization_params=params, callbacks=callbacks)
    return meter.found


def growth(folder: Path, steps: int, workers: int, save_every: int, leaks: bool = False) -> dict[str, int]:
    end = Rank({}, train, (folder, steps, workers, save_every, leaks)).wait(time.perf_counter() + 3000)
    assert end.code == 0, end.err
    early, late = end.result
    return {name: late[name] - early[name] for name in early}


def check_flat(grown: dict[str, int]) -> None:
    assert grown["bytes"] < 3 * MEGABYTE, grown
    assert grown["objects"] < 500, grown
    # A checkpoint that is being written has a few of its own.
    assert all(grown[name] <= 3 for name in ("descriptors", "threads", "children")), grown


@pytest.mark.slow
def test_checkpoints_with_evaluations_leave_no_copies_of_weights(tmp_path):
    end = Rank({}, train_wide, (tmp_path, 14)).wait(time.perf_counter() + 60)
    assert end.code == 0, end.err
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == ["checkpoint-STEP-14"]
    # The first three steps set things up. The copy that is being written is there or not.
    growth_in_copies = (max(end.result[3:]) - max(end.result[:3])) / COPY
    assert growth_in_copies < 3, [f"{found / COPY:.1f}" for found in end.result]


@pytest.mark.parametrize(
    ("steps", "workers", "save_every"),
    [
        pytest.param(2_000, 0, 200, id="2,000 steps", marks=pytest.mark.long),
        pytest.param(140, 2, 7, id="20 epochs with workers", marks=pytest.mark.long),
        pytest.param(20_000, 0, 1_000, id="20,000 steps", marks=pytest.mark.soak),
        pytest.param(7_000, 2, 350, id="1,000 epochs with workers", marks=pytest.mark.soak),
    ],
)
def test_a_run_holds_at_its_end_what_it_held_at_a_fifth(tmp_path, steps, workers, save_every):
    check_flat(growth(tmp_path, steps, workers, save_every))


@pytest.mark.long
def test_a_run_that_keeps_a_little_of_each_step_is_seen(tmp_path):
    with pytest.raises(AssertionError):
        check_flat(growth(tmp_path, 1_000, 0, 200, leaks=True))
