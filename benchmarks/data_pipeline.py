"""From a manifest to log-mel batches, and what opening large manifests costs.

    python benchmarks/data_pipeline.py [--rounds 5] [--quick]

Table 1: audio-seconds per second on 12 s utterances (16 kHz, 16 bits, WAV and FLAC, written on the spot), one torch
thread in each process: the data layer and the preprocessor, against soundfile and torch.stft over the whole batch,
which gives the same numbers (checked). Two rows show what bounds it: decoding alone, and features of samples that are
in memory. All ways take turns in each round; the table shows medians: of processor time without workers, on the clock
with them.

Table 2 (Linux): seconds until a data layer over so many lines is ready (on the clock, of the processor), memory that it
keeps, and how much more memory a worker has of its own than one of a layer over 160 lines. Each in a fresh process;
medians over the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch.utils.data import DataLoader

from nemo_asr.data.speech_data_layer import AudioToTextDataLayer
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.utils import logging

RATE, SECONDS, BATCH_SIZE, NUM_BATCHES = 16000, 12, 32, 5
FEW_LINES = BATCH_SIZE * NUM_BATCHES  # what the workers of the other sizes are compared with
LABELS = [" ", *"abcdefghijklmnopqrstuvwxyz'"]
WORDS = ["the", "of", "and", "to", "in", "that", "it", "was", "had", "you", "from", "this", "which", "have"]


# ------------------------------------------------------------------------------- audio-seconds per second


def write_utterances(folder: Path, count: int, kind: str) -> Path:
    """Noise under a slow envelope as wav or flac, and a manifest that names it."""
    rng = np.random.default_rng(0)
    envelope = 0.3 * np.abs(np.sin(np.arange(SECONDS * RATE) * 2 * np.pi * 1.5 / RATE))
    lines = []
    for number in range(count):
        path = folder / f"{number}.{kind}"
        soundfile.write(path, envelope * rng.standard_normal(SECONDS * RATE).clip(-3, 3), RATE, subtype="PCM_16")
        lines.append(json.dumps({"audio_filepath": path.name, "duration": SECONDS, "text": " ".join(WORDS)}))
    manifest = folder / "train.json"
    manifest.write_text("\n".join(lines))
    return manifest


class Ours:
    """The data layer and the preprocessor, as a DAG uses them."""

    name = "nemo_lite"

    def __init__(self, manifest: Path, num_workers: int) -> None:
        layer = AudioToTextDataLayer(
            str(manifest), labels=LABELS, batch_size=BATCH_SIZE, shuffle=False, num_workers=num_workers
        )
        self.loader = layer.loader(training=False, shard=Shard())
        self.preprocessor = AudioToMelSpectrogramPreprocessor(sample_rate=RATE, dither=0.0)
        self.preprocessor.eval()

    def batches(self) -> Iterator[torch.Tensor]:
        """Log-mel (B, 64, T) of each batch."""
        for batch in self.loader.epoch(0):
            yield self.preprocessor(input_signal=batch.values[0], length=batch.values[1])[0]


class Decoding:
    """libsndfile alone: no way from files to features is faster."""

    name = "  decoding alone (libsndfile)"

    def __init__(self, manifest: Path) -> None:
        self.paths = sorted(manifest.parent.glob("[0-9]*"))

    def batches(self) -> Iterator[torch.Tensor]:
        """Nothing: the samples are dropped."""
        for path in self.paths:
            soundfile.read(path, dtype="int16")
        yield from ()


class Features:
    """Our preprocessor alone, over batches in memory."""

    name = "  features alone (nemo_lite)"

    def __init__(self, ours: Ours) -> None:
        self.preprocessor = ours.preprocessor
        self.audio = [batch.values[:2] for batch in ours.loader.epoch(0)]

    def batches(self) -> Iterator[torch.Tensor]:
        """Log-mel (B, 64, T) of each batch."""
        for audio, lens in self.audio:
            yield self.preprocessor(input_signal=audio, length=lens)[0]


class Plain:
    """What one writes first: soundfile for each line, then torch.stft over the padded batch."""

    name = "soundfile + torch.stft"

    def __init__(self, manifest: Path, num_workers: int) -> None:
        entries = [json.loads(line) for line in manifest.read_text().splitlines()]
        paths = [str(manifest.parent / entry["audio_filepath"]) for entry in entries]
        self.loader: DataLoader[Any] = DataLoader(
            paths,  # type: ignore[arg-type]  # a list is a map-style data set
            batch_size=BATCH_SIZE,
            collate_fn=read_padded,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )
        self.filters = AudioToMelSpectrogramPreprocessor(sample_rate=RATE).filter_banks.reshape(64, -1)
        self.window = torch.hann_window(320, periodic=False)

    def batches(self) -> Iterator[torch.Tensor]:
        """Log-mel (B, 64, T) of each batch."""
        for audio, lens in self.loader:
            yield self.log_mel(audio, lens)

    def log_mel(self, audio: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        """Preemphasis, power spectrum, mel, logarithm, and per-feature normalisation over the valid frames."""
        audio = torch.cat([audio[:, :1], audio[:, 1:] - 0.97 * audio[:, :-1]], dim=1)
        spectrum = torch.stft(audio, 512, 160, 320, self.window, center=True, return_complex=True)
        features = torch.log(self.filters @ spectrum.abs().square() + 2**-24)
        frames = torch.ceil(lens / 160)
        valid = (torch.arange(features.shape[2]) < frames[:, None])[:, None]
        mean = (features * valid).sum(2, keepdim=True) / frames[:, None, None]
        deviation = ((features - mean).square() * valid).sum(2, keepdim=True) / (frames[:, None, None] - 1)
        return ((features - mean) / (deviation.sqrt() + 1e-5)) * valid


def read_padded(paths: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Audio (B, T) and its lengths (B,)."""
    audio = [torch.from_numpy(soundfile.read(path, dtype="float32")[0]) for path in paths]
    return torch.nn.utils.rnn.pad_sequence(audio, batch_first=True), torch.tensor([len(samples) for samples in audio])


def refuse_unequal(ours: Ours, plain: Plain) -> None:
    """The comparison is fair only between equal numbers."""
    mine, theirs = next(ours.batches()), next(plain.batches())
    frames = min(mine.shape[2], theirs.shape[2])
    difference = float((mine[:, :, :frames] - theirs[:, :, :frames]).abs().max())
    if difference > 1e-2:
        sys.exit(f"the features differ by {difference:.3g}: the speeds cannot be compared")


def seconds_of(batches: Callable[[], Iterator[torch.Tensor]], num_workers: int) -> float:
    """Seconds of one epoch: of this process, or on the clock where others work for it."""
    clock = time.perf_counter if num_workers else time.process_time
    start = clock()
    for _ in batches():
        pass
    return clock() - start


def compare_pipelines(count: int, rounds: int, kind: str) -> None:
    """Table 1, for files of one kind."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_utterances(Path(folder), count, kind)
        plain, ours = Plain(manifest, 0), Ours(manifest, 0)
        refuse_unequal(ours, plain)
        here = (plain, ours, Decoding(manifest), Features(ours))
        ways = {(way.name, 0): way.batches for way in here}
        ways |= {(way.name, 2): way(manifest, 2).batches for way in (Plain, Ours)}
        for (_, workers), batches in ways.items():
            seconds_of(batches, workers)  # start the workers, fill the file cache
        seconds = {key: [0.0] * rounds for key in ways}
        for number in range(rounds):
            for (name, workers), batches in ways.items():
                seconds[name, workers][number] = seconds_of(batches, workers)
    print(f"{f'12 s {kind} to log-mel, batch {BATCH_SIZE}':40} workers   audio-s/s   ratio")
    for (name, workers), mine in seconds.items():
        ratios = [plain / own for plain, own in zip(seconds[Plain.name, workers], mine, strict=True)]
        rate = count * SECONDS / statistics.median(mine)
        print(f"{name:40} {workers:7} {rate:11.0f} {statistics.median(ratios):7.2f}")


# ---------------------------------------------------------------------------------- opening manifests


def write_lines(path: Path, count: int) -> None:
    """A manifest of LibriSpeech's shape whose audio is not there."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size)) for size in rng.integers(5, 45, 1000)]
    with path.open("w") as file:
        for number, duration in enumerate(rng.uniform(1.0, 16.7, count).round(3).tolist()):
            entry = {"audio_filepath": f"train-clean-360/{number % 900}/{number}.flac", "duration": duration}
            file.write(json.dumps({**entry, "text": texts[number % 1000]}) + "\n")


def memory(process: str = "self", field: str = "Rss") -> float:
    """MiB of a process: all that is resident, or (Private_Dirty) what it shares with no other."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"{field} is not among the kernel's figures")


def measure_opening(path: str) -> dict[str, float]:
    """In a process of its own: seconds, MiB kept, MiB of a worker's own."""
    gc.collect()
    before, start, cpu_start = memory(), time.perf_counter(), time.process_time()
    layer = AudioToTextDataLayer(path, labels=LABELS, batch_size=BATCH_SIZE, load_audio=False, num_workers=2)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    gc.collect()
    kept = memory() - before
    loader = layer.loader(training=True, shard=Shard())  # holds on to its workers
    for _ in islice(loader.epoch(0), NUM_BATCHES):
        pass
    own = [memory(str(worker.pid), "Private_Dirty") for worker in multiprocessing.active_children()]
    return {"seconds": seconds, "cpu": cpu, "kept": kept, "own": statistics.mean(own)}


def opened_in_a_fresh_process(path: Path) -> dict[str, float]:
    """What `measure_opening` finds."""
    command = [sys.executable, __file__, "--measure-opening", str(path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(answer.splitlines()[-1])
    return found


def compare_openings(sizes: Sequence[int], rounds: int) -> None:
    """Table 2."""
    found: dict[int, list[dict[str, float]]] = {size: [] for size in (FEW_LINES, *sizes)}
    with tempfile.TemporaryDirectory() as folder:
        paths = {size: Path(folder) / f"{size}.json" for size in found}
        for size, path in paths.items():
            write_lines(path, size)
        for _ in range(rounds):
            for size, path in paths.items():
                found[size].append(opened_in_a_fresh_process(path))
    medians = {
        size: {key: statistics.median(each[key] for each in measured) for key in measured[0]}
        for size, measured in found.items()
    }
    print(f"\n{'opening a manifest of':>22} lines    seconds    of CPU   MiB kept   more MiB in a worker")
    for size in sizes:
        here = medians[size]
        extra = here["own"] - medians[FEW_LINES]["own"]
        kept = here["kept"] - medians[FEW_LINES]["kept"]
        print(f"{size:>28} {here['seconds']:10.2f} {here['cpu']:9.2f} {kept:10.1f} {extra:22.1f}")


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: only to see that it runs")
    parser.add_argument("--measure-opening", metavar="MANIFEST", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.measure_opening:
        print(json.dumps(measure_opening(arguments.measure_opening)))
        return
    rounds = 1 if arguments.quick else arguments.rounds
    for kind in ("flac",) if arguments.quick else ("wav", "flac"):
        compare_pipelines(8 if arguments.quick else 128, rounds, kind)
    if sys.platform == "linux":
        compare_openings([FEW_LINES] if arguments.quick else [10**4, 10**5, 10**6], rounds)


if __name__ == "__main__":
    main()
