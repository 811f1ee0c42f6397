"""Data workers forked by a server, against workers forked by this process: time to the first batch, and memory.

    python benchmarks/data_workers.py [--workers 8] [--rounds 3] [--quick]

Each round is a process of its own that has imported nemo_asr. It prints, for each start method, the seconds from the
data set to its first batch, those of a second loader, and the memory (proportional set size) of everything that was
started: pages that several processes share count in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RATE = 16000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round with two workers")
    parser.add_argument("--one", help="internal: the start method of this process")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.one, args.workers)))
        return
    rounds, workers = (1, 2) if args.quick else (args.rounds, args.workers)
    print(f"{workers} workers         first batch  of a second loader  memory of all that was started")
    for method in ("fork", "server"):
        command = [sys.executable, __file__, "--one", method, "--workers", str(workers)]
        results = [json.loads(subprocess.check_output(command, text=True)) for _ in range(rounds)]
        first, second, memory = map(statistics.median, zip(*results, strict=True))
        print(f"{method:16s} {first:10.2f} s {second:17.2f} s {memory / 2**20:16.0f} MiB")


def measured(method: str, workers: int) -> tuple[float, float, int]:
    """Seconds to the first batch of a loader and of a second one; bytes of the processes that they started."""
    import numpy as np
    import soundfile

    from nemo_asr.data.speech_data_layer import AudioToTextDataLayer
    from nemo_lite.backends.pytorch.data.order import Shard
    from nemo_lite.utils import logging

    logging.setLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        soundfile.write(Path(folder, "noise.wav"), np.zeros(RATE), RATE)
        line = {"audio_filepath": "noise.wav", "duration": 1.0, "text": "a"}
        manifest = Path(folder, "train.json")
        manifest.write_text((json.dumps(line) + "\n") * 4 * workers)
        layer = AudioToTextDataLayer(str(manifest), labels=["a"], batch_size=1, num_workers=workers)
        if method == "fork":
            vars(layer)["multiprocessing_context"] = method
        seconds, loaders = [], []
        for _ in range(2):
            start = time.perf_counter()
            loaders.append(layer.loader(training=True, shard=Shard()))
            batches = loaders[-1].epoch(0)
            next(batches)
            seconds.append(time.perf_counter() - start)
            assert len(list(batches)) == 4 * workers - 1
            if len(loaders) == 1:
                memory = sum(map(proportional_bytes, descendants(os.getpid())))
        return seconds[0], seconds[1], memory


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            yield child
            yield from descendants(child)


def proportional_bytes(pid: int) -> int:
    """The memory of a process; of a page that n processes share, an n-th."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
