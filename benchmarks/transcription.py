"""Real-time factor of transcription, and its memory for an hour: QuartzNet 5x5 with random weights. Or transducers.

    python benchmarks/transcription.py [--rounds 3] [--threads 1] [--hour] [--transducer] [--quick]

Table 1: 32 recordings of 12 s of noise (arrays of 16 kHz, nothing is read), batches of 1 and 16. Seconds on the clock
and of the processor for a second of audio; batch sizes take turns in each round, the table shows medians.

Table 2, with --hour: one recording of an hour (FLAC, in windows), and the most memory that the process ever held.

Table 3, with --transducer: processor time of a transducer's searches for a second of speech, 12.5 frames.
Prediction and joint network have random weights and the size of published ones; the blank is as probable as it takes
for 0.3 labels a frame. 8 recordings of 10 s, one after the other; searches take turns, the table shows medians.
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
from nemo_asr.decoding.transducer import TorchNetworks
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import RNNTDecoder
from nemo_asr.run.search.transducer import FRAMES, GreedyTransducer
from nemo_asr.run.search.transducer_beam import TransducerBeam
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite import DeviceType, NeuralModuleFactory

RATE, SECONDS, BATCH_SIZES = 16000, 12, (1, 16)
HIDDEN, LABELS, DURATIONS = 640, 1024, (0, 1, 2, 3, 4)
FRAMES_A_SECOND, LABELS_A_FRAME, BEAMS = 12.5, 0.3, (4, 16)
_SCALE = 10.0  # of drawn frames: scores of one frame have a standard deviation of 4


def noise(seconds: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0, 0.1, RATE * seconds).astype(np.float32)


def factors(
    audio: list[Any], batch_size: int, model: TrainedModel, factory: NeuralModuleFactory
) -> tuple[float, float]:
    """Seconds on the clock and of the processor for a second of audio."""
    clock, processor = time.perf_counter(), time.process_time()
    result = model.transcribed(audio, audio_rate=RATE, batch_size=batch_size, factory=factory)
    return (time.perf_counter() - clock) / result.seconds, (time.process_time() - processor) / result.seconds


def compare_searches(recordings: int, rounds: int) -> None:
    """Print the table of a transducer's searches."""
    length = round(10 * FRAMES_A_SECOND)
    num_frames = recordings * length
    drawn = np.random.default_rng(0).standard_normal((recordings, length, HIDDEN)).astype(np.float32)
    frames = list(_SCALE * drawn)
    prediction = RNNTDecoder(prednet={"pred_hidden": HIDDEN}, vocab_size=LABELS).eval()
    jointnet = {"joint_hidden": HIDDEN, "pred_hidden": HIDDEN, "encoder_hidden": HIDDEN}
    joint = RNNTJoint(jointnet=jointnet, num_classes=LABELS, durations=DURATIONS).eval()
    networks = TorchNetworks(prediction, joint)
    greedy = GreedyTransducer(networks)
    bias: Any = joint.joint_net[-1].bias
    low, high = 0.0, 100.0
    while high - low > 0.01:  # the blank's, between too many labels and too few
        with torch.no_grad():
            bias[joint.blank] = (low + high) / 2
        said = sum(len(one.labels.ids) for one in greedy.decode(frames))
        if said > LABELS_A_FRAME * num_frames:
            low = (low + high) / 2
        else:
            high = (low + high) / 2
    labels = [chr(0x4E00 + number) for number in range(LABELS)]
    searches: dict[str, Any] = {"greedy": greedy}
    searches |= {f"beam of {size}": TransducerBeam(networks, labels, size) for size in BEAMS}
    found: dict[str, list[float]] = {name: [] for name in searches}
    for _ in range(rounds):
        for name, figures in found.items():
            start = time.process_time()
            for each in frames:
                searches[name].recognise({FRAMES: each})
            figures.append((time.process_time() - start) * FRAMES_A_SECOND / num_frames)
    print(f"{'search':<10}  {'ms for 1 s of speech':>20}   ({said / num_frames:.2f} labels a frame)")
    for name, figures in found.items():
        print(f"{name:<10}  {1000 * statistics.median(figures):>20.1f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Real-time factor of transcription")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--hour", action="store_true", help="transcribe an hour in one piece as well")
    parser.add_argument("--transducer", action="store_true", help="compare the searches of a transducer as well")
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
    if args.transducer:
        compare_searches(1 if args.quick else 8, args.rounds)


if __name__ == "__main__":
    main()
