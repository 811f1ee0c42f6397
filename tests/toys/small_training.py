"""A small training run for tests that start it as users start theirs: with launchers, on several machines.

    python small_training.py OUT [--steps N] [--hidden N] [--dist_timeout S] [--pause S] [--checkpoints] [--die_at STEP]

Every rank leaves the times of its steps as they go (``OUT/steps0``) and its weights at the end (``OUT/weights0``).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import nemo_lite as nemo
from nemo_lite.base.errors import reported_to_user
from nemo_lite.core.neural_types import ChannelType, LossType, NeuralType

BD = NeuralType("B D", ChannelType())
NUM_ITEMS, BATCH = 26, 4  # an epoch ends with a step of 2 items


class Points(nemo.DataLayerNM):
    output_ports = {"x": BD, "y": BD}

    def __init__(self, num_items: int, shuffle: bool) -> None:
        super().__init__()
        self.batch_size, self.shuffle, self.num_items = BATCH, shuffle, num_items
        generator = torch.Generator().manual_seed(3)
        self.x = torch.rand(num_items, 6, generator=generator)

    def __len__(self) -> int:
        return self.num_items

    @property
    def dataset(self) -> TensorDataset:
        return TensorDataset(self.x, self.x.sum(1, keepdim=True))


class Net(nemo.TrainableNM):
    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class Mse(nemo.LossNM):
    input_ports = {"out": BD, "target": BD}
    output_ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(out, target)


class Steps(nemo.NeMoCallback):
    """Leaves each step with its time in a file, waits a little; rank 1 may be killed after a step, once."""

    def __init__(self, out: Path, rank: int, pause: float, die_at: int | None) -> None:
        super().__init__()
        self.file, self.died = out / f"steps{rank}", out / "died"
        self.pause, self.die_at = pause, die_at if rank == 1 else None

    def on_step_end(self, state: Any) -> None:
        with self.file.open("a") as file:
            file.write(f"{state['step']} {time.monotonic()}\n")
        if state["step"] == self.die_at and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)


def train(
    out: Path,
    local_rank: int | None = None,
    steps: int = 12,
    hidden: int = 8,
    dist_timeout: float = 60.0,
    pause: float = 0.0,
    checkpoints: bool = False,
    die_at: int | None = None,
) -> None:
    """What one rank does."""
    factory = nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, random_seed=5, local_rank=local_rank, dist_timeout=dist_timeout
    )
    rank = factory.global_rank or 0
    net, loss = Net(hidden), Mse()
    x, y = Points(NUM_ITEMS, shuffle=True)()
    wire = loss(out=net(x=x), target=y)
    dev_x, dev_y = Points(11, shuffle=False)()
    dev_out = net(x=dev_x)

    def collect(values: dict[str, Any], so_far: dict[str, Any]) -> None:
        so_far.setdefault("outputs", []).extend(float(one) for batch in values[dev_out.unique_name] for one in batch)

    def finish(so_far: dict[str, Any]) -> None:
        print("outputs", json.dumps(so_far["outputs"]), flush=True)

    callbacks: list[Any] = [
        Steps(out, rank, pause, die_at),
        nemo.EvaluatorCallback([dev_out, dev_y], collect, finish, eval_step=10**9, eval_at_start=False),
    ]
    if checkpoints:
        callbacks.append(nemo.CheckpointCallback(out / "checkpoints", epoch_freq=1))
    params = {"lr": 0.1, "momentum": 0.9, "max_steps": steps}
    factory.train([wire], optimizer="sgd", optimization_params=params, callbacks=callbacks)
    weights = {name: value.tolist() for name, value in net.state_dict().items()}
    (out / f"weights{rank}").write_text(json.dumps(weights))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--local_rank", "--local-rank", type=int)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--dist_timeout", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--die_at", type=int)
    with reported_to_user():
        train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
