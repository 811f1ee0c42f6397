"""What a step costs above a hand-written PyTorch loop over the same loader: a tiny MLP, and QuartzNet 5x5.

    python benchmarks/step_overhead.py [--rounds 7] [--quick]

Both loops run in turn, several rounds. The table shows medians over the rounds: of the step times, of what ours costs
above the other in microseconds, and of their ratio. A round of the MLP counts with the twentieth part of its steps that
was fastest, from one batch's first item to the next one's: other programs on the machine can only make steps slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import nn
from torch.utils.data import TensorDataset

import nemo_asr
import nemo_lite as nemo
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.core.neural_types import ChannelType, LossType, NeuralType

CONFIGS = Path(__file__).resolve().parents[1] / "examples/asr/configs"
VALUES = NeuralType("B D", ChannelType())


class StampedDataset(TensorDataset):
    """Notes when the first item of each batch is asked for."""

    def __init__(self, batch_size: int, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.batch_size = batch_size
        self.stamps: list[float] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if index % self.batch_size == 0:
            self.stamps.append(time.perf_counter())
        item: tuple[torch.Tensor, ...] = super().__getitem__(index)
        return item


class Points(nemo.DataLayerNM):
    """Random points in memory."""

    output_ports = {"x": VALUES, "y": VALUES}

    def __init__(self, num_items: int) -> None:
        super().__init__()
        self.batch_size = 8
        self.dataset_in_memory = StampedDataset(8, torch.randn(num_items, 32), torch.randn(num_items, 32))

    def __len__(self) -> int:
        return len(self.dataset_in_memory)

    @property
    def dataset(self) -> StampedDataset:
        return self.dataset_in_memory


class Mlp(nemo.TrainableNM):
    """Three layers, 32 wide."""

    input_ports = {"x": VALUES}
    output_ports = {"y": VALUES}

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


class Mse(nemo.LossNM):
    """Mean squared error."""

    input_ports = {"prediction": VALUES, "target": VALUES}
    output_ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(prediction, target)


class MlpCase:
    """A 3-layer, 32-wide MLP on batches of 8 in memory; the loss is logged every 50 steps by both loops."""

    name = "MLP 3 x 32, batch 8"

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.data, self.mlp, self.mse = Points(8 * num_steps), Mlp(), Mse()

    def microseconds(self, run: Callable[[], None]) -> float:
        """Of a step: as many are faster as one in twenty."""
        stamps = self.data.dataset_in_memory.stamps
        stamps.clear()
        run()
        return float(np.percentile(np.diff(stamps), 5)) * 1e6

    def ours(self) -> None:
        """factory.train."""
        x, y = self.data()
        loss = self.mse(prediction=self.mlp(x=x), target=y)
        logger = nemo.SimpleLossLoggerCallback(tensors=[loss], print_func=lambda t: t[0].item(), step_freq=50)
        train([loss], self.num_steps, callbacks=[logger])

    def by_hand(self) -> None:
        """The loop that one would write."""
        optimizer = make_optimizer(self.mlp)
        for step, batch in enumerate(self.data.loader(training=True, shard=Shard()).epoch(0)):
            x, y = batch.values
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(self.mlp.layers(x), y)
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                loss.item()


class QuartzNetCase:
    """QuartzNet 5x5 on batches of noise as long as speech, features and CTC loss included."""

    name = "QuartzNet 5x5, batch 4 x 4 s"

    def __init__(self, num_steps: int, folder: Path) -> None:
        self.num_steps = num_steps
        recipe = nemo_asr.load_recipe(CONFIGS / "quartznet5x5.yaml")
        self.data = recipe.data_layer(write_noise(folder, 4 * num_steps), training=True, batch_size=4, augmentor=None)
        self.preprocessor, self.encoder = recipe.preprocessor(), recipe.encoder()
        self.decoder, self.ctc = recipe.decoder(), recipe.loss()

    def microseconds(self, run: Callable[[], None]) -> float:
        """Of a step, on average: processor time, as other programs would take from so few steps."""
        started = time.process_time()
        run()
        return (time.process_time() - started) / self.num_steps * 1e6

    def ours(self) -> None:
        """factory.train."""
        audio, audio_len, text, text_len = self.data()
        features, features_len = self.preprocessor(input_signal=audio, length=audio_len)
        encoded, encoded_len = self.encoder(audio_signal=features, length=features_len)
        log_probs = self.decoder(encoder_output=encoded)
        loss = self.ctc(log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len)
        train([loss], self.num_steps)

    def by_hand(self) -> None:
        """The loop that one would write, over the same modules."""
        optimizer = make_optimizer(self.encoder, self.decoder)
        for batch in self.data.loader(training=True, shard=Shard()).epoch(0):
            audio, audio_len, text, text_len = batch.values
            optimizer.zero_grad(set_to_none=True)
            features, features_len = self.preprocessor(input_signal=audio, length=audio_len)
            encoded, encoded_len = self.encoder(audio_signal=features, length=features_len)
            log_probs = self.decoder(encoder_output=encoded)
            loss = self.ctc(log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len)
            loss.backward()
            optimizer.step()


def make_optimizer(*modules: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of both loops."""
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=1e-4)


def train(
    losses: list[nemo.NmTensor],
    num_steps: int,
    callbacks: Sequence[nemo.NeMoCallback | nemo.SimpleLossLoggerCallback] = (),
) -> None:
    """Our loop, with the optimizer of the other."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    modules = [module for module in nemo.Dag(losses).modules.values() if isinstance(module, nn.Module)]
    params = {"max_steps": num_steps, "lr": 1e-4}
    factory.train(losses, optimizer=make_optimizer(*modules), optimization_params=params, callbacks=callbacks)


def write_noise(folder: Path, count: int, seconds: float = 4.0) -> str:
    """A manifest of utterances of noise."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(count):
        soundfile.write(folder / f"{number}.wav", rng.normal(0, 0.1, int(seconds * 16000)), 16000)
        lines.append({"audio_filepath": f"{number}.wav", "duration": seconds, "text": "the quick brown fox jumps"})
    manifest = folder / "noise.json"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(manifest)


def compare(case: MlpCase | QuartzNetCase, rounds: int) -> str:
    """One row of the table."""
    times: dict[Callable[[], None], list[float]] = {case.ours: [], case.by_hand: []}
    for run in times:
        run()
    for number in range(rounds):
        # The order changes, so that neither loop always profits from warm caches.
        for run in list(times)[:: -1 if number % 2 else 1]:
            times[run].append(case.microseconds(run))
    ours, by_hand = times.values()
    ratio = statistics.median(a / b for a, b in zip(ours, by_hand, strict=True))
    above = statistics.median(a - b for a, b in zip(ours, by_hand, strict=True))
    medians = f"{statistics.median(ours):>12.0f} {statistics.median(by_hand):>12.0f}"
    return f"{case.name:<30} {medians} {above:>12.0f} {ratio:>8.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds in which both loops run in turn")
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    nemo.logging.set_verbosity(nemo.logging.WARNING)
    print(f"{'':<30} {'ours us/step':>12} {'hand us/step':>12} {'overhead us':>12} {'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        cases: list[MlpCase | QuartzNetCase] = [
            MlpCase(50 if args.quick else 2000),
            QuartzNetCase(2 if args.quick else 8, Path(folder)),
        ]
        for case in cases:
            print(compare(case, args.rounds), flush=True)


if __name__ == "__main__":
    main()
