"""How much sooner two processes evaluate a set than one: 3,000 utterances, one thread each, starting up not counted.

    python benchmarks/evaluation.py [--rounds 3] [--config demo] [--batch_size 32] [--quick]

The utterances are WAV files of noise, 0.3 to 3 s long; they are read, transcribed and turned into texts as
``jasper_eval.py`` does it. Each run starts its processes, evaluates a part of the set to warm up, and then times the
whole set. Runs take turns; the table shows the median time of each, and what it gains over one process:

- one process
- two processes, which share the set
- twice one process, at the same time: each evaluates the whole set. What the machine's two cores give at most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
import torch

import nemo_asr
import nemo_lite as nemo
from nemo_asr.decoding.greedy import post_process_predictions, post_process_transcripts

RATE, SHORTEST, LONGEST = 16000, 0.3, 3.0
ALONE, SHARED, TWICE = "one process", "two processes", "twice one process"


def make_set(folder: Path, count: int) -> None:
    """A manifest of so many files, and one of a few of them."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(count):
        seconds = round(float(rng.uniform(SHORTEST, LONGEST)), 2)
        path = folder / f"{number:05}.wav"
        soundfile.write(path, rng.normal(0, 0.1, round(RATE * seconds)).astype(np.float32), RATE)
        lines.append(json.dumps({"audio_filepath": path.name, "duration": seconds, "text": "a"}))
    (folder / "all.json").write_text("\n".join(lines))
    (folder / "few.json").write_text("\n".join(lines[:64]))


def evaluate(folder: Path, config: str, batch_size: int) -> None:
    """Evaluate as one rank; rank 0 prints the seconds, and a hash of what was scored and of the texts."""
    torch.set_num_threads(1)
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1, log_dir=None)
    recipe = nemo_asr.load_recipe(config)
    model = recipe.model()
    for name in ("few", "all"):
        data_layer = recipe.data_layer(folder / f"{name}.json", training=False, batch_size=batch_size)
        _, *wires = nemo_asr.connect(model, data_layer).scored
        factory.sync_all_processes()
        started = time.perf_counter()
        texts = []
        batches = factory.infer_batches(wires, verbose=False)
        for predictions, *spoken in batches:
            texts += post_process_predictions([predictions], recipe.labels)
            post_process_transcripts([spoken[0]], [spoken[1]], recipe.labels)
        seconds = time.perf_counter() - started
    found = {"seconds": seconds, "ids": batches.digest, "texts": texts}
    factory.on_first(lambda: print(json.dumps(found)))
    factory.close()


def started(words: list[str], processes: int) -> subprocess.Popen[str]:
    """This script as so many ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, __file__, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> tuple[float, object]:
    """Seconds, and what must be equal for each run."""
    out, err = process.communicate()
    if process.returncode:
        sys.exit(err[-2000:])
    found = json.loads(out.splitlines()[-1])
    return found["seconds"], (found["ids"], found["texts"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Evaluation on one and on two processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--config", default="demo")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="few utterances; the figures mean nothing")
    parser.add_argument("--set", type=Path, help="used by the script itself: evaluate this set as one rank")
    args = parser.parse_args()
    if args.set:
        evaluate(args.set, args.config, args.batch_size)
        return
    runs = {ALONE: [1], SHARED: [2], TWICE: [1, 1]}
    if args.quick:
        del runs[TWICE]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    equal: list[object] = []
    with tempfile.TemporaryDirectory() as folder:
        make_set(Path(folder), 32 if args.quick else 3000)
        words = ["--set", folder, "--config", args.config, "--batch_size", str(args.batch_size)]
        for _ in range(args.rounds):
            for name, starts in runs.items():
                found = [result(process) for process in [started(words, count) for count in starts]]
                seconds[name].append(max(each for each, _ in found))
                equal += [what for _, what in found]
    if any(each != equal[0] for each in equal):
        sys.exit("the runs scored different sets or found different texts")
    one = statistics.median(seconds[ALONE])
    print(f"{'':20}{'seconds':>8}  {'gain':>5}")
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:20}{median:>8.2f}  {one / median * (2 if name == TWICE else 1):>5.2f}")


if __name__ == "__main__":
    main()
