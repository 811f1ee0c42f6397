"""Utterances from tar shards against the same ones from loose files.

    python benchmarks/tarred_data.py [--rounds 5] [--count 2000] [--seconds 2] [--quick]

Table 1: utterances and opened files a second, in one process, in the order of a training epoch. ``loose`` is
`AudioToTextDataLayer`, ``tarred`` is `TarredAudioToTextDataLayer`; both give equal audio (checked). ``tarfile`` is what
one writes first: Python's tarfile reads each shard from front to back, soundfile decodes. *Cached*: the files are in
the system's cache. *Cold*: they were dropped from it before each epoch, where the system can do that. All ways take
turns in each round; the table shows medians. A local disk hides most of what an open costs on a network file system.

Table 2: seconds until a data layer over so many tiny recordings is ready, from both kinds of files.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile

from nemo_asr.data.made_shards import make_shards
from nemo_asr.data.speech_data_layer import AudioToTextDataLayer
from nemo_asr.data.tarred import TarredAudioToTextDataLayer
from nemo_lite import DataLayerNM, logging
from nemo_lite.backends.pytorch.data.order import Shard

RATE, BATCH_SIZE, NUM_SHARDS, WINDOW = 16000, 32, 16, 500
LABELS = [" ", *"abcdefghijklmnopqrstuvwxyz'"]
# Each opening of a file by Python code is an audit event; hooks cannot be taken off again.
OPENED: list[str] = []


def write_utterances(folder: Path, count: int, seconds: float) -> Path:
    """Noise as 16-bit WAV in folders of 100 files, and a manifest that names it."""
    rng, lines = np.random.default_rng(0), []
    for number in range(count):
        path = folder / f"{number // 100}/{number}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, 0.3 * rng.standard_normal(int(seconds * RATE)).clip(-3, 3), RATE, subtype="PCM_16")
        line = {"audio_filepath": str(path.relative_to(folder)), "duration": seconds, "text": "some words"}
        lines.append(json.dumps(line))
    manifest = folder / "train.json"
    manifest.write_text("\n".join(lines))
    return manifest


Samples: TypeAlias = "npt.NDArray[np.float32]"
Epoch: TypeAlias = Callable[[], Iterator[int]]


class FromLayer:
    """An epoch of a data layer; each time the next one."""

    def __init__(self, layer: DataLayerNM) -> None:
        self.loader, self.epoch = layer.loader(training=True, shard=Shard()), 0

    def __call__(self) -> Iterator[int]:
        """How many utterances each batch has."""
        self.epoch += 1
        for batch in self.loader.epoch(self.epoch):
            yield len(batch.ids or ())


class FromTarfile:
    """Python's tarfile and soundfile, padded batches."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self.shards = shards

    def __call__(self) -> Iterator[int]:
        """How many utterances each batch has."""
        batch: list[Samples] = []
        for shard in self.shards:
            with tarfile.open(shard, "r|") as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    assert content is not None
                    batch.append(soundfile.read(io.BytesIO(content.read()), dtype="float32")[0])
                    if len(batch) == BATCH_SIZE:
                        yield len(padded(batch))
                        batch = []
        if batch:
            yield len(padded(batch))


def padded(batch: Sequence[Samples]) -> Samples:
    """(B, T)."""
    whole = np.zeros((len(batch), max(map(len, batch))), np.float32)
    for row, samples in zip(whole, batch, strict=True):
        row[: len(samples)] = samples
    return whole


def refuse_unequal(loose: DataLayerNM, tarred: DataLayerNM) -> None:
    """The comparison is fair only between equal audio."""
    sums = []
    for layer in (loose, tarred):
        batches = layer.loader(training=False, shard=Shard()).epoch(0)
        sums.append(sorted(float(row.double().sum()) for batch in batches for row in batch.values[0]))
    if sums[0] != sums[1]:
        sys.exit("the audio differs: the speeds cannot be compared")


def drop_from_cache(paths: Sequence[Path]) -> bool:
    """Let the system forget the content of files; False where it cannot be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return True


def measure(epoch: Epoch) -> tuple[float, int, int]:
    """Seconds, utterances and opened files of an epoch."""
    OPENED.clear()
    start = time.perf_counter()
    num_items = sum(epoch())
    seconds = time.perf_counter() - start
    return seconds, num_items, sum(path.endswith((".wav", ".tar")) for path in OPENED)


def compare_epochs(count: int, seconds: float, rounds: int) -> None:
    """Table 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = write_utterances(folder, count, seconds)
        made = make_shards(str(manifest), folder / "tarred", num_shards=NUM_SHARDS, shuffle=True)
        shards = [str(path) for path in made.shards]
        common: dict[str, Any] = {"labels": LABELS, "batch_size": BATCH_SIZE, "num_workers": 0}
        loose = AudioToTextDataLayer(str(manifest), **common)
        tarred = TarredAudioToTextDataLayer(shards, str(made.manifest), shuffle_n=WINDOW, **common)
        refuse_unequal(loose, TarredAudioToTextDataLayer(shards, str(made.manifest), **common))
        files = {"loose": sorted(folder.glob("*/*.wav")), "tarred": list(made.shards), "tarfile": list(made.shards)}
        ways: dict[str, Epoch] = {"loose": FromLayer(loose), "tarred": FromLayer(tarred)}
        ways["tarfile"] = FromTarfile(made.shards)
        found: dict[tuple[str, str], list[tuple[float, int, int]]] = {}
        for _ in range(rounds):
            for state in ("cold", "cached"):
                for way, epoch in ways.items():
                    if state == "cold" and not drop_from_cache(files[way]):
                        continue
                    found.setdefault((way, state), []).append(measure(epoch))
    print(f"{count} utterances of {seconds:g} s, WAV, {NUM_SHARDS} shards, batch {BATCH_SIZE}")
    print(f"{'':10} {'cache':8} utterances/s   times loose   opens   opens/s")
    for (way, state), runs in found.items():
        rates = [num_items / took for took, num_items, _ in runs]
        ratios = [base[0] / run[0] for base, run in zip(found["loose", state], runs, strict=True)]
        opens, opens_a_second = runs[0][2], statistics.median(run[2] / run[0] for run in runs)
        rate, ratio = statistics.median(rates), statistics.median(ratios)
        print(f"{way:10} {state:8} {rate:12.0f} {ratio:13.2f} {opens:7} {opens_a_second:9.1f}")


def compare_openings(sizes: Sequence[int], rounds: int) -> None:
    """Table 2."""
    print(f"\n{'opening':>10} recordings     loose    tarred   (seconds)")
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            manifest = write_utterances(folder, size, 0.11)
            made = make_shards(str(manifest), folder / "tarred", num_shards=NUM_SHARDS)
            shards = [str(path) for path in made.shards]
            seconds: dict[str, list[float]] = {"loose": [], "tarred": []}
            for _ in range(rounds):
                start = time.perf_counter()
                AudioToTextDataLayer(str(manifest), labels=LABELS, batch_size=BATCH_SIZE)
                between = time.perf_counter()
                TarredAudioToTextDataLayer(shards, str(made.manifest), labels=LABELS, batch_size=BATCH_SIZE)
                seconds["loose"].append(between - start)
                seconds["tarred"].append(time.perf_counter() - between)
        medians = {way: statistics.median(each) for way, each in seconds.items()}
        print(f"{size:>21} {medians['loose']:9.2f} {medians['tarred']:9.2f}")


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=2000, help="utterances (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each utterance (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: only to see that it runs")
    arguments = parser.parse_args()
    logging.setLevel(logging.ERROR)
    sys.addaudithook(lambda event, values: OPENED.append(str(values[0])) if event == "open" else None)
    rounds = 1 if arguments.quick else arguments.rounds
    compare_epochs(40 if arguments.quick else arguments.count, arguments.seconds, rounds)
    compare_openings([50] if arguments.quick else [1000, 20_000], rounds)


if __name__ == "__main__":
    main()
