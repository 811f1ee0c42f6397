"""A training run in which everything draws: data from three generators, the net and its own; for tests that resume it.

whole = train(folder / "whole", 9)
parts = [train(folder / "parts", 4), train(folder / "parts", 9)]
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset

import nemo_lite as nemo
from nemo_lite.base.interruption import StopSignals
from nemo_lite.core.callbacks.action_state import EvaluationResult
from toys.nets import BD, Mse, Points

NUM_ITEMS, BATCH = 22, 2  # eleven batches: with two a step, an epoch of six steps ends with a smaller one


class Drawing(Dataset[Any]):
    """Items with noise of Python, NumPy and torch; those read are noted in ``reads``."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, reads: list[int]) -> None:
        self.x, self.y, self.reads = x, y, reads

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.reads.append(index)
        noise = random.random() + float(np.random.randn())
        return self.x[index] + 0.1 * noise, self.y[index] + 0.1 * torch.rand(1)


class DrawingPoints(Points):
    def __init__(self, workers: int = 0, n: int = NUM_ITEMS, shuffle: bool = True, batch_size: int = BATCH) -> None:
        super().__init__(n=n, batch_size=batch_size, shuffle=shuffle)
        self.num_workers = workers
        self.reads: list[int] = []

    @property
    def dataset(self) -> Drawing:
        return Drawing(self.x, self.y, self.reads)


class DrawingNet(nemo.TrainableNM):
    """Batch norm, dropout, and noise of Python's, NumPy's and a torch generator of its own."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm: nn.Module = nn.BatchNorm1d(3) if norm else nn.Identity()
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(3, 1)
        self.own = torch.Generator().manual_seed(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = random.random() + float(np.random.randn()) + torch.rand(1, generator=self.own)
        out: torch.Tensor = self.fc(self.drop(self.norm(x)))
        return out + 0.1 * noise if self.training else out


class Steps(nemo.NeMoCallback):
    """Each step with its loss and learning rate, each evaluation with its step and result."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, float]] = []
        self.evaluations: list[tuple[int, float]] = []

    def on_step_end(self, state: Any) -> None:
        self.steps.append((state.step, state["tensors"].get_tensor("loss").item(), state.learning_rate))

    def on_evaluation_end(self, state: Any) -> None:
        result: EvaluationResult = state["evaluation"]
        self.evaluations.append((result.step, float(result.values["loss"])))


class Trained(NamedTuple):
    """What a run did, on one rank.

    Attributes:
        steps: index, loss and learning rate of each step.
        evaluations: steps done before each evaluation, with its result.
        weights: weights and statistics at the end.
        reads: items read in this process, in order.
    """

    steps: list[tuple[int, float, float]]
    evaluations: list[tuple[int, float]]
    weights: list[Any]
    reads: list[int]


def joined(parts: list[Trained]) -> Trained:
    """Runs that go on one from the other, as one."""
    steps = [step for part in parts for step in part.steps]
    return Trained(steps, [each for part in parts for each in part.evaluations], parts[-1].weights, [])


def factory(seed: int | None = 1, **settings: Any) -> nemo.NeuralModuleFactory:
    """On a CPU."""
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=seed, dist_timeout=30.0, **settings)


def train(
    folder: Any,
    max_steps: int,
    *,
    made: nemo.NeuralModuleFactory | None = None,
    seed: int | None = 1,
    data: Points | None = None,
    net: Any = None,
    callbacks: Any = (),
    evaluate: int | None = None,
    stop_in_evaluation: bool = False,
    factory_settings: Any = None,
    params: Any = None,
    optimizer: str = "adam",
    saving: Any = None,
    **options: Any,
) -> Trained:
    """Train to a number of steps, from the checkpoint in the folder if there is one, and save at the end."""
    made = made or factory(seed, **(factory_settings or {}))
    data, net = data or DrawingPoints(), net or DrawingNet()
    x, y = data()
    record, listed = Steps(), list(callbacks)
    saves = nemo.CheckpointCallback(folder, **(saving or {"step_freq": 10**6}))
    if evaluate:
        dev_x, dev_y = Points(n=6, batch_size=2)()
        loss = Mse()(out=net(x=dev_x), target=dev_y)
        listed.append(evaluator(loss, evaluate, stop_in_evaluation))
    made.train(
        [Mse()(out=net(x=x), target=y)],
        optimizer=optimizer,
        optimization_params={"lr": 0.05, "max_steps": max_steps, **(params or {})},
        callbacks=[*listed, record, saves],
        **options,
    )
    # Of sharded weights this rank's part.
    own = [value.to_local() if isinstance(value, DTensor) else value for value in net.state_dict().values()]
    weights = [value.tolist() for value in own]
    return Trained(record.steps, record.evaluations, weights, getattr(data, "reads", []))


def evaluator(loss: Any, eval_step: int, stops: bool = False) -> nemo.EvaluatorCallback:
    """One that gives the mean of the losses; it may send this process a signal in its second evaluation."""
    firsts: list[bool] = []

    def collect(values: dict[str, Any], so_far: dict[str, Any]) -> None:
        firsts.append(not so_far)
        so_far.setdefault("losses", []).extend(float(each) for each in values[loss.unique_name])
        if stops and sum(firsts) == 2 and firsts[-1]:
            os.kill(os.getpid(), signal.SIGUSR1)
            while not (StopSignals.current and StopSignals.current.received):
                time.sleep(0.001)

    def finish(so_far: Any) -> dict[str, float]:
        return {"loss": sum(so_far["losses"]) / len(so_far["losses"])}

    return nemo.EvaluatorCallback([loss], collect, finish, eval_step=eval_step, name="dev")
