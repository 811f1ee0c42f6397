"""Audio-seconds per second of training, and the share of padding: plain shuffling against bucketing.

    python benchmarks/training.py [--digits DIGITS/train.json] [--rounds 3] [--quick]

Padding is counted over whole epochs, on simulated LibriSpeech-like durations and, with --digits, on a manifest.
Throughput is that of factory.train with the small digits model on the manifest's audio, both ways in turn.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
import numpy.typing as npt

import nemo_asr
import nemo_lite as nemo
from nemo_lite.backends.pytorch.data import Batching, Shard, padding_share, training_plan
from nemo_lite.core.action_state import ActionState

CONFIG = Path(__file__).resolve().parents[1] / "examples/asr/configs/digits.yaml"
WAYS = {"plain shuffling": False, "bucketing": True}


def librispeech_like(count: int) -> npt.NDArray[np.float32]:
    """Durations in seconds, as in the 960 h of LibriSpeech: most between 11 and 17 s, a tail of short ones."""
    rng = np.random.default_rng(0)
    long = rng.normal(14.2, 1.6, count)
    short = rng.uniform(1.5, 13.0, count)
    durations = np.where(rng.random(count) < 0.6, long, short)
    return np.clip(durations, 1.4, 17.0).astype(np.float32)


def padding(durations: npt.NDArray[np.float32], batch_size: int, bucketing: bool, world_size: int = 1) -> float:
    """Share of the computed seconds that is padding, mean of three epochs and all ranks."""
    batching = Batching(batch_size, shuffle=True, bucketing=bucketing)
    plans = [
        training_plan(len(durations), batching, Shard(rank, world_size), epoch, durations)
        for epoch in range(3)
        for rank in range(world_size)
    ]
    return statistics.mean(padding_share(durations, plan.batches) for plan in plans)


def throughput(manifest: str, bucketing: bool, num_steps: int) -> float:
    """Audio-seconds per second of training."""
    recipe = nemo_asr.load_recipe(CONFIG)
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
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", help="manifest of connected digits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    args = parser.parse_args()
    nemo.logging.set_verbosity(nemo.logging.WARNING)
    sets = {"simulated LibriSpeech, batch 64": (librispeech_like(5_000 if args.quick else 100_000), 64)}
    if args.digits:
        data = nemo_asr.load_recipe(CONFIG).data_layer(args.digits, training=True, batch_size=32)
        sets["digit strings, batch 32"] = (data.durations, 32)
    print(
        f"{'share of padding':<34}"
        + "".join(f"{way + ranks:>28}" for ranks in (", 1 rank", ", 8 ranks") for way in WAYS)
    )
    for name, (durations, batch_size) in sets.items():
        shares = [padding(durations, batch_size, way, ranks) for ranks in (1, 8) for way in WAYS.values()]
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
