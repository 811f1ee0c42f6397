"""Bands without signal: what dither, the floor of the deviation and the number of bands do to speech from 8 kHz.

    python benchmarks/upsampled_speech.py FSDD [--epochs 24] [--seeds 3] [--ways 5] [--as_16_bit]

FSDD is a folder of the Free Spoken Digit Dataset with ``recordings/{digit}_{speaker}_{take}.wav`` at 8 kHz. They are
resampled to 16 kHz, with ``--as_16_bit`` rounded to 16 bits after it, as in a file. A small Jasper with a label for
each word trains on 10 takes of each digit and speaker (600), and is tested on 10 others: takes 0 to 9. Each row is a
way to train, each column a way to evaluate the same model; word error rates in percent, one for each seed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import soundfile
import soxr
import torch
from torch import Tensor

import nemo_asr
from nemo_lite.backends.pytorch.optimizers import create_optimizer

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
RATE, BATCH_SIZE, DITHER = 16000, 32, 1e-5
BLANK = 10
Noise = Literal["none", "random", "fixed"]
Word = tuple[Tensor, int]


class Way(NamedTuple):
    """How features are made: the noise that is added, the floor of the deviation, where the bands end."""

    noise: Noise
    std_floor: float = 0.0
    highfreq: float | None = None


TRAINED: dict[str, tuple[Way, dict[str, Way]]] = {
    "NeMo's features": (
        Way("random"),
        {"none": Way("none"), "fixed noise": Way("fixed"), "random noise": Way("random"), "floor": Way("none", 0.1)},
    ),
    "floor of 0.1": (Way("random", 0.1), {"none": Way("none", 0.1)}),
    "the same noise always": (Way("fixed"), {"fixed noise": Way("fixed")}),
    "bands up to 4 kHz": (Way("random", 0.0, 4000.0), {"none": Way("none", 0.0, 4000.0)}),
    "no noise": (Way("none"), {"none": Way("none")}),
}


def words(folder: Path, takes: range, as_16_bit: bool) -> list[Word]:
    """Samples (T,) at 16 kHz and the digit of each recording, the shortest first."""
    found = []
    for name in (f"{digit}_{speaker}_{take}" for speaker in SPEAKERS for digit in range(10) for take in takes):
        samples = soxr.resample(soundfile.read(folder / f"{name}.wav", dtype="float32")[0], RATE // 2, RATE)
        rounded = np.round(samples * 32768) / 32768 if as_16_bit else samples
        found.append((torch.from_numpy(rounded.astype(np.float32)), int(name[0])))
    return sorted(found, key=lambda word: len(word[0]))


class Features:
    """Makes the features of batches in one way."""

    _always = DITHER * torch.randn(RATE * 10, generator=torch.Generator().manual_seed(1))

    def __init__(self, way: Way) -> None:
        self._way = way
        settings: dict[str, Any] = {"std_floor": way.std_floor, "highfreq": way.highfreq}
        self._preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor(n_fft=512, dither=0.0, **settings).eval()

    def __call__(self, batch: Sequence[Word]) -> tuple[Tensor, Tensor]:
        signal = torch.nn.utils.rnn.pad_sequence([samples for samples, _ in batch], batch_first=True)
        if self._way.noise == "random":
            signal = signal + DITHER * torch.randn_like(signal)
        elif self._way.noise == "fixed":
            signal = signal + self._always[: signal.shape[1]]
        features, lengths = self._preprocessor(signal, torch.tensor([len(samples) for samples, _ in batch]))
        return features, lengths


class Model:
    """A Jasper of 0.05 M parameters with one label for each word."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        blocks = [
            block(64, 11, stride=2),
            block(64, 13, repeat=2, residual=True),
            block(64, 15, repeat=2, residual=True),
            block(128, 1, separable=False),
        ]
        self.encoder = nemo_asr.JasperEncoder(jasper=blocks, activation="relu", feat_in=64, conv_mask=True)
        self.decoder = nemo_asr.JasperDecoderForCTC(feat_in=128, num_classes=BLANK)
        self.loss = nemo_asr.CTCLossNM(num_classes=BLANK)

    def __call__(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        encoded, encoded_lengths = self.encoder(features, lengths)
        return self.decoder(encoded), encoded_lengths

    def train(self, data: Sequence[Word], features: Features, epochs: int, seed: int) -> None:
        """Novograd with a cosine of the learning rate, the batches of each epoch in another order."""
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        options = {"lr": 0.02, "betas": (0.95, 0.5), "weight_decay": 0.001}
        optimizer, order = create_optimizer("novograd", parameters, options), np.random.default_rng(seed)
        groups = list(batches(data, BATCH_SIZE))
        total = epochs * len(groups)
        for step in range(total):
            if step % len(groups) == 0:
                order.shuffle(groups)
            rate = 0.02 * min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / total))
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = groups[step % len(groups)]
            log_probs, lengths = self(*features(batch))
            targets = torch.tensor([[word] for _, word in batch])
            loss = self.loss(
                log_probs=log_probs, targets=targets, input_length=lengths, target_length=torch.ones(len(batch))
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def error_rate(self, data: Sequence[Word], features: Features) -> float:
        """Word errors in percent: insertions, deletions and substitutions."""
        errors = 0
        for module in (self.encoder, self.decoder):
            module.eval()
        for batch in batches(data, 100):
            log_probs, lengths = self(*features(batch))
            for row, length, (_, word) in zip(log_probs.argmax(-1), lengths.tolist(), batch, strict=True):
                heard = [label for label in torch.unique_consecutive(row[:length]).tolist() if label != BLANK]
                errors += max(1, len(heard)) - (word in heard)
        return 100 * errors / len(data)


def block(filters: int, kernel: int, *, repeat: int = 1, stride: int = 1, **more: bool) -> dict[str, Any]:
    """A block of Jasper; separable and without residual unless ``more`` says otherwise."""
    settings = {"residual": False, "separable": True, **more}
    return {
        **{"filters": filters, "repeat": repeat, "kernel": [kernel], "stride": [stride]},
        **{"dilation": [1], "dropout": 0.0},
        **settings,
    }


def batches(data: Sequence[Word], size: int) -> Iterator[Sequence[Word]]:
    """Neighbours, ``size`` at a time."""
    return (data[first : first + size] for first in range(0, len(data), size))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all models, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdd", type=Path)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--as_16_bit", action="store_true")
    parser.add_argument("--ways", type=int, default=len(TRAINED), help="train only in the first so many ways")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recordings, started = options.fsdd / "recordings", time.process_time()
    data, test = (words(recordings, takes, options.as_16_bit) for takes in (range(10, 20), range(10)))
    rates: dict[tuple[str, str], list[float]] = {}
    for seed in range(options.seeds):
        for trained, (way, evaluated) in list(TRAINED.items())[: options.ways]:
            model = Model(seed)
            model.train(data, Features(way), options.epochs, seed)
            for name, other in evaluated.items():
                rates.setdefault((trained, name), []).append(model.error_rate(test, Features(other)))
                print(f"seed {seed}: {trained}, {name}: {rates[trained, name][-1]:.1f}", file=sys.stderr, flush=True)
    print(f"{'trained with':24}{'evaluated with':18}{'mean':>7}   of each seed")
    for (trained, name), values in rates.items():
        each = ", ".join(f"{value:.1f}" for value in values)
        print(f"{trained:24}{name:18}{sum(values) / len(values):7.1f}   {each}")
    print(f"{time.process_time() - started:.0f} s of processor time")


if __name__ == "__main__":
    main()
