"""Real-time factor of transcription, and its memory for an hour: QuartzNet 5x5 with random weights.

    python benchmarks/transcription.py [--rounds 3] [--threads 1] [--hour] [--quick]

Table 1: 32 recordings of 12 s of noise (arrays of 16 kHz, nothing is read), batches of 1 and 16. Seconds on the clock
and of the processor for a second of audio; batch sizes take turns in each round, the table shows medians.

Table 2, with --hour: one recording of an hour (FLAC, in windows), and the most memory that the process ever held.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

import nemo_asr
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite import DeviceType, NeuralModuleFactory

RATE, SECONDS, BATCH_SIZES = 16000, 12, (1, 16)


def noise(seconds: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0, 0.1, RATE * seconds).astype(np.float32)


def factors(
    audio: list[Any], batch_size: int, model: TrainedModel, factory: NeuralModuleFactory
) -> tuple[float, float]:
    """Seconds on the clock and of the processor for a second of audio."""
    clock, processor = time.perf_counter(), time.process_time()
    result = model.transcribed(audio, audio_rate=RATE, batch_size=batch_size, factory=factory)
    return (time.perf_counter() - clock) / result.seconds, (time.process_time() - processor) / result.seconds


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Real-time factor of transcription")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--hour", action="store_true", help="transcribe an hour in one piece as well")
    parser.add_argument("--quick", action="store_true", help="few recordings; the figures mean nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    recipe = nemo_asr.load_recipe("quartznet5x5")
    model = TrainedModel("random", recipe, recipe.model(), describe(recipe))
    factory = NeuralModuleFactory(placement=DeviceType.CPU)
    audio: list[Any] = [noise(SECONDS, seed) for seed in range(2 if args.quick else 32)]
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in BATCH_SIZES}
    factors(audio[:1], 1, model, factory)
    for _ in range(args.rounds):
        for size, figures in found.items():
            figures.append(factors(audio, size, model, factory))
    print(f"{'batch size':>10}  {'real-time factor':>16}  {'processor':>9}   ({args.threads} thread)")
    for size, figures in found.items():
        clock, processor = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{size:>10}  {clock:>16.4f}  {processor:>9.4f}")
    if args.hour:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "hour.flac"
            soundfile.write(path, noise(3600), RATE)
            clock, processor = factors([path], 1, model, factory)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"an hour in one recording: {clock:.4f}, processor {processor:.4f}, at most {peak:.0f} MiB of memory")


if __name__ == "__main__":
    main()
