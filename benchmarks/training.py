"""Training on one CPU thread against a hand-written loop, and what bucketing gives.

    python benchmarks/training.py [--digits DIGITS/train.json] [--rounds 3] [--quick]

Table 1: CPU time of a training step of separable models on noise: factory.train, and a loop over the same loader and
features with a network of torch's own layers and a mask before each convolution, from the same weights. Both run in
turn; the table has the median of the rounds' ratios, and the largest relative difference of a loss.

Table 2: padding over whole epochs, on simulated LibriSpeech-like durations and, with --digits, on a manifest, and how
long ranks that step together wait for the one with the longest batch.

Table 3, with --digits: throughput of factory.train with the small digits model on the manifest's audio, shuffled and
with bucketing in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import torch
import torch.nn.functional as F
from ruamel.yaml import YAML
from torch import nn

import nemo_asr
import nemo_lite as nemo
from nemo_lite.backends.pytorch.data.order import Batching, Shard, training_rounds
from nemo_lite.core.callbacks.action_state import ActionState

CONFIGS = Path(__file__).resolve().parents[1] / "examples/asr/configs"
CONFIG = CONFIGS / "digits.yaml"
UNPERTURBED = "AudioToTextDataLayer.train.augmentor=null"
LEARNING_RATE = 1e-6
WAYS = {"plain shuffling": False, "bucketing": True}


class PlainBlock(nn.Module):
    """A block of QuartzNet as one writes it: a mask, ``nn.Conv1d``, ``nn.BatchNorm1d`` and ReLU; a residual."""

    def __init__(self, channels: int, keys: Mapping[str, Any]) -> None:
        super().__init__()
        filters, stride = keys["filters"], keys["stride"][0]
        sizes = [channels] + [filters] * (keys["repeat"] - 1)
        self.layers = nn.ModuleList(layer for size in sizes for layer in self._layers(size, keys))
        residual = [nn.Conv1d(channels, filters, 1, stride, bias=False), nn.BatchNorm1d(filters, eps=1e-3)]
        self.residual = nn.ModuleList(residual if keys["residual"] else [])

    def _layers(self, channels: int, keys: Mapping[str, Any]) -> list[nn.Module]:
        (kernel,), (stride,), (dilation,), filters = (keys[key] for key in ("kernel", "stride", "dilation", "filters"))
        window = {"stride": stride, "padding": dilation * (kernel // 2), "dilation": dilation, "bias": False}
        norm = nn.BatchNorm1d(filters, eps=1e-3)
        if not keys.get("separable"):
            return [nn.Conv1d(channels, filters, kernel, **window), norm]
        depthwise = nn.Conv1d(channels, channels, kernel, groups=channels, **window)
        return [depthwise, nn.Conv1d(channels, filters, 1, bias=False), norm]

    def forward(self, x: torch.Tensor, lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, C, T), (B,) -> (B, C, U), (B,)."""
        out, after = x, lens
        for number, layer in enumerate(self.layers):
            if isinstance(layer, nn.BatchNorm1d):
                out = layer(out)
                out = out if number == len(self.layers) - 1 else F.relu(out)
            else:
                out, after = convolved(layer, out, after)
        if self.residual:
            out = out + self.residual[1](convolved(self.residual[0], x, lens)[0])
        return F.relu(out), after


def convolved(layer: nn.Module, x: torch.Tensor, lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A convolution that does not see padding."""
    assert isinstance(layer, nn.Conv1d)
    behind = torch.arange(x.shape[2]) >= lens[:, None]
    return layer(x.masked_fill(behind[:, None], 0)), (lens - 1) // layer.stride[0] + 1


class Plain(nn.Module):
    """The network of a configuration in torch's own layers."""

    def __init__(self, blocks: Sequence[Mapping[str, Any]], features: int, classes: int) -> None:
        super().__init__()
        sizes = [features, *(keys["filters"] for keys in blocks)]
        self.blocks = nn.ModuleList(PlainBlock(size, keys) for size, keys in zip(sizes, blocks, strict=False))
        self.decoder = nn.Conv1d(sizes[-1], classes, 1)

    def forward(self, x: torch.Tensor, lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, D, T), (B,) -> log-probabilities (U, B, classes), (B,)."""
        for block in self.blocks:
            x, lens = block(x, lens)
        return self.decoder(x).permute(2, 0, 1).log_softmax(2), lens


class Comparison:
    """A configuration trained by factory.train and by a hand-written loop."""

    def __init__(self, config: Path, batch_size: int, seconds: float, num_steps: int, folder: Path) -> None:
        self.name = f"{config.stem}, batch {batch_size} x {seconds / 2:g} to {seconds:g} s"
        self.num_steps = num_steps
        section = YAML(typ="safe").load(config)
        recipe = nemo_asr.load_recipe(config, ["AudioToMelSpectrogramPreprocessor.dither=0", UNPERTURBED])
        manifest = write_noise(folder, batch_size * num_steps, seconds)
        self.data = recipe.data_layer(manifest, training=True, batch_size=batch_size, shuffle=False, bucketing=False)
        self.preprocessor, self.ctc = recipe.preprocessor(), recipe.loss()
        self.encoder, self.decoder = recipe.encoder(), recipe.decoder()
        self.plain = Plain(section["JasperEncoder"]["jasper"], 64, len(recipe.labels) + 1)
        state = [*self.encoder.state_dict().values(), *self.decoder.state_dict().values()]
        self.start = [value.clone() for value in state]
        self.states = (state, [*self.plain.state_dict().values()])

    def restart(self) -> None:
        """The same weights in both networks."""
        for state in self.states:
            for value, first in zip(state, self.start, strict=True):
                value.copy_(first)

    def ours(self) -> list[float]:
        """The losses of factory.train."""
        audio, audio_len, text, text_len = self.data()
        features, features_len = self.preprocessor(input_signal=audio, length=audio_len)
        encoded, encoded_len = self.encoder(audio_signal=features, length=features_len)
        log_probs = self.decoder(encoder_output=encoded)
        loss = self.ctc(log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len)
        losses: list[float] = []
        seen = nemo.SimpleLossLoggerCallback([loss], print_func=lambda t: losses.append(t[0].item()), step_freq=1)
        modules = (self.encoder, self.decoder)
        optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=LEARNING_RATE)
        factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
        params = {"max_steps": self.num_steps, "lr": LEARNING_RATE}
        factory.train([loss], optimizer=optimizer, optimization_params=params, callbacks=[seen])
        return losses

    def by_hand(self) -> list[float]:
        """The losses of the loop that one would write."""
        optimizer, losses = torch.optim.SGD(self.plain.parameters(), lr=LEARNING_RATE), []
        for batch in self.data.loader(training=True, shard=Shard()).epoch(0):
            audio, audio_len, text, text_len = batch.values
            optimizer.zero_grad()
            features, features_len = self.preprocessor(input_signal=audio, length=audio_len)
            log_probs, lens = self.plain(features, features_len)
            loss = F.ctc_loss(log_probs, text.long(), lens, text_len, log_probs.shape[2] - 1, reduction="none").mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def row(self, rounds: int) -> str:
        """Of table 1."""
        seconds: dict[str, list[float]] = {"ours": [], "by_hand": []}
        difference = 0.0
        for number in range(rounds + 1):  # the first is not counted
            found = {}
            for way in list(seconds)[:: -1 if number % 2 else 1]:
                self.restart()
                started = time.process_time()
                found[way] = getattr(self, way)()
                seconds[way].append(time.process_time() - started)
            pairs = zip(found["ours"], found["by_hand"], strict=True)
            difference = max(difference, *(abs(mine - plain) / plain for mine, plain in pairs))
        ours, by_hand = (times[1:] for times in seconds.values())
        ratio = statistics.median(mine / plain for mine, plain in zip(ours, by_hand, strict=True))
        steps = [1000 * statistics.median(times) / self.num_steps for times in (ours, by_hand)]
        return f"{self.name:<48} {steps[0]:>12.0f} {steps[1]:>12.0f} {ratio:>8.3f} {difference:>12.1e}"


def write_noise(folder: Path, count: int, seconds: float) -> str:
    """A manifest of utterances of noise, the shortest half as long as the longest."""
    rng, lines = np.random.default_rng(0), []
    for number, duration in enumerate(rng.uniform(seconds / 2, seconds, count)):
        soundfile.write(folder / f"{number}.wav", rng.normal(0, 0.1, int(duration * 16000)), 16000)
        text = "the quick brown fox jumps"[: int(duration * 6)]
        lines.append(json.dumps({"audio_filepath": f"{number}.wav", "duration": duration, "text": text}))
    manifest = folder / f"noise{count}.json"
    manifest.write_text("\n".join(lines))
    return str(manifest)


def compare_loops(rounds: int, quick: bool) -> None:
    """Table 1."""
    cases = [("quartznet5x5", 8, 6.0), ("demo", 32, 4.0)]
    print(f"{'training on one CPU thread':<48} {'ours ms/step':>12} {'by hand':>12} {'ratio':>8} {'loss differs':>12}")
    for config, batch_size, seconds in [("demo", 4, 1.0)] if quick else cases:
        with tempfile.TemporaryDirectory() as folder:
            case = Comparison(CONFIGS / f"{config}.yaml", batch_size, seconds, 2 if quick else 4, Path(folder))
            print(case.row(rounds), flush=True)


def librispeech_like(count: int) -> npt.NDArray[np.float32]:
    """Durations in seconds, as in the 960 h of LibriSpeech: most between 11 and 17 s, a tail of short ones."""
    rng = np.random.default_rng(0)
    long = rng.normal(14.2, 1.6, count)
    short = rng.uniform(1.5, 13.0, count)
    durations = np.where(rng.random(count) < 0.6, long, short)
    return np.clip(durations, 1.4, 17.0).astype(np.float32)


def lost(durations: npt.NDArray[np.float32], batch_size: int, bucketing: bool, world_size: int = 1) -> float:
    """Share of the computed seconds that is padding or waiting for the rank with most to compute; of three epochs."""
    batching, seconds = Batching(batch_size, shuffle=True, bucketing=bucketing), 0.0
    for epoch in range(3):
        shards = [Shard(rank, world_size) for rank in range(world_size)]
        plans = [
            training_rounds(len(durations), batching, shard, epoch, durations).of_rank(shard.rank).batches
            for shard in shards
        ]
        for batches in zip(*plans, strict=True):
            seconds += world_size * max(float(durations[rows].max()) * len(rows) for rows in batches)
    return 1 - 3 * float(durations.sum(dtype=np.float64)) / seconds


def throughput(manifest: str, bucketing: bool, num_steps: int) -> float:
    """Audio-seconds per second of training."""
    recipe = nemo_asr.load_recipe(CONFIG, [UNPERTURBED])
    data = recipe.data_layer(manifest, training=True, batch_size=32, bucketing=bucketing)
    audio, audio_len, text, text_len = data()
    features, features_len = recipe.preprocessor()(input_signal=audio, length=audio_len)
    encoded, encoded_len = recipe.encoder()(audio_signal=features, length=features_len)
    log_probs = recipe.decoder()(encoder_output=encoded)
    loss = recipe.loss()(log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len)
    meter = Meter()
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=0).train(
        [loss], optimizer="novograd", callbacks=[meter], optimization_params={"max_steps": num_steps, "lr": 0.01}
    )
    return meter.rate


class Meter(nemo.NeMoCallback):
    """Audio-seconds per second, the first step left out."""

    rate = 0.0

    def on_step_end(self, state: ActionState) -> None:
        """Start the clock behind the first step."""
        if state.step == 0:
            state.timing(self)

    def on_action_end(self, state: ActionState) -> None:
        """Read the clock."""
        self.rate = state.timing(self).amount_per_second


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", help="manifest of connected digits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    args = parser.parse_args()
    nemo.logging.set_verbosity(nemo.logging.WARNING)
    torch.set_num_threads(1)
    compare_loops(args.rounds, args.quick)
    print()
    sets = {"simulated LibriSpeech, batch 64": (librispeech_like(5_000 if args.quick else 100_000), 64)}
    if args.digits:
        data = nemo_asr.load_recipe(CONFIG).data_layer(args.digits, training=True, batch_size=32)
        sets["digit strings, batch 32"] = (data.durations, 32)
    print(
        f"{'padding and idle':<34}"
        + "".join(f"{way + ranks:>28}" for ranks in (", 1 rank", ", 8 ranks") for way in WAYS)
    )
    for name, (durations, batch_size) in sets.items():
        shares = [lost(durations, batch_size, way, ranks) for ranks in (1, 8) for way in WAYS.values()]
        print(f"{name:<34}" + "".join(f"{share:>28.2%}" for share in shares))
    if not args.digits:
        return
    print(f"\n{'training on ' + args.digits:<60} {'audio-s/s':>10} {'ratio':>6}")
    rounds = [
        [throughput(args.digits, way, 3 if args.quick else 30) for way in WAYS.values()] for _ in range(args.rounds)
    ]
    for number, way in enumerate(WAYS):
        rate = statistics.median(rates[number] for rates in rounds)
        ratio = statistics.median(rates[number] / rates[0] for rates in rounds)
        print(f"{way:<60} {rate:>10.0f} {ratio:>6.2f}")


if __name__ == "__main__":
    main()
