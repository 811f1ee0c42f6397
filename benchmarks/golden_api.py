"""What golden.py records of the Python interface: small models trained and shown, with public names only.

Runs alone or as a rank; writes ``api.json`` in the working folder: the sections ``losses`` and ``plan``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import nemo_lite as nemo
from nemo_lite.compat.tutorials import L1Loss, MSELoss, RealFunctionDataLayer, TaylorNet
from nemo_lite.core.show import as_mermaid, as_svg, as_text

OPTIMIZERS = ("sgd", "adam", "adam_w", "novograd", "fused_novograd")


class Events(nemo.NeMoCallback):
    """Notes each moment that it hears of, and the loss of each step to the last bit."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_action_start(self, state: Any) -> None:
        self.lines.append("start")

    def on_epoch_start(self, state: Any) -> None:
        self.lines.append(f"epoch {state.epoch} starts")

    def on_step_end(self, state: Any) -> None:
        self.lines.append(f"step {state.step}: {float(state.tensors.get_tensor('loss')).hex()}")

    def on_epoch_end(self, state: Any) -> None:
        self.lines.append(f"epoch {state.epoch} ends")

    def on_action_end(self, state: Any) -> None:
        self.lines.append("end")


def hex_numbers(values: Mapping[str, object]) -> list[str]:
    """The numbers in an evaluation's values, which are lists of tensors; what else is there is left out."""
    return [float(value).hex() for part in values.values() if isinstance(part, list) for value in part]


def trained(factory: nemo.NeuralModuleFactory, optimizer: str) -> tuple[list[str], dict[str, str]]:
    """Two losses on one net, by this optimizer: what happened, and pictures of the DAG."""
    points = RealFunctionDataLayer(n=48, batch_size=8)
    net = TaylorNet(dim=4)
    x, y = points()
    prediction = net(x=x)
    square = MSELoss()(predictions=prediction, target=y)
    absolute = L1Loss()(predictions=prediction, target=y)
    events, seen = Events(), []
    evaluator = nemo.EvaluatorCallback(
        eval_tensors=[square],
        user_iter_callback=lambda values, _: seen.extend(hex_numbers(values)),
        user_epochs_done_callback=lambda _: {},
        eval_step=4,
    )
    settings = {"num_epochs": 2, "lr": 0.01}
    factory.train([square, absolute], callbacks=[events, evaluator], optimizer=optimizer, optimization_params=settings)
    weights = [f"{name}: {[float(v).hex() for v in p.flatten()]}" for name, p in net.named_parameters()]
    inferred = factory.infer([prediction])
    values = [] if inferred is None else [f"inferred: {float(torch.cat(list(inferred[0])).sum()).hex()}"]
    dag = nemo.Dag([square, absolute])
    pictures = {"text": as_text(dag), "mermaid": as_mermaid(dag), "svg": as_svg(dag)}
    return [*events.lines, *(f"evaluated: {value}" for value in seen), *weights, *values], pictures


def main() -> None:
    """Train with each optimizer; the first rank writes."""
    factory = nemo.NeuralModuleFactory(random_seed=1, placement=nemo.DeviceType.CPU)
    losses, plan = {}, {}
    for optimizer in OPTIMIZERS:
        losses[optimizer], plan = trained(factory, optimizer)
        factory.reset_trainer()
    text = json.dumps({"losses": losses, "plan": {name: picture.splitlines() for name, picture in plan.items()}})
    factory.on_first(lambda: Path("api.json").write_text(text))


if __name__ == "__main__":
    main()
