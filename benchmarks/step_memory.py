"""Memory of a training step: counted by shapes, and measured as the address space that a training takes.

    python benchmarks/step_memory.py [--models digits quartznet conformer tdt hybrid contextnet] [--quick]

Each model trains for two steps on made-up recordings of one length by the engine, in a process of its own. Measured:
the most address space (VmPeak, which is the least ``ulimit -v`` under which it runs) beyond what the process had after
the training of a tiny model on a second. The training is then tried under ``ulimit -v`` at 1.10 times and at 0.90
times the counted bytes.

Freed memory is given back to the system at once (MALLOC_MMAP_THRESHOLD_), as the allocators of GPUs know it again;
the last column is the resident memory without that, by the C library's defaults.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

TRIMMED = {"MALLOC_MMAP_THRESHOLD_": "262144"}
# One thread: others would reserve address space.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
UNIT = 1 << 20


class Case(NamedTuple):
    """A model and a batch.

    Attributes:
        config: of the model.
        items, seconds, letters: of the batch.
        overrides: settings of the configuration.
        optimizer: its name.
    """

    config: str
    items: int
    seconds: float
    letters: int
    overrides: tuple[str, ...] = ()
    optimizer: str = "adam_w"


CASES = {
    "digits": Case("digits", 16, 6.0, 30, optimizer="novograd"),
    "quartznet": Case("quartznet5x5", 6, 8.0, 60, optimizer="novograd"),
    "conformer": Case("conformer_ctc_small", 4, 8.0, 40),
    "tdt": Case("tdt_digits", 48, 4.0, 16),
    "hybrid": Case("hybrid_att_digits", 48, 6.0, 30),
    "contextnet": Case("contextnet", 4, 6.0, 40),
}


def write_set(folder: Path, case: Case) -> Path:
    """A manifest of noise."""
    import numpy as np
    import soundfile

    noise = 0.1 * np.random.default_rng(0).standard_normal(int(case.seconds * 16000))
    soundfile.write(folder / "noise.wav", noise, 16000)
    text = ("one two " * case.letters)[: case.letters].strip()
    line = json.dumps({"audio_filepath": "noise.wav", "duration": case.seconds, "text": text})
    manifest = folder / "noise.json"
    manifest.write_text(f"{line}\n" * case.items)
    return manifest


def run_of(case: Case, manifest: Path, *more: str) -> Any:
    """The training of the command line."""
    from nemo_asr.argparse import AsrArgParser
    from nemo_asr.commands.training import TrainingRun

    arguments = ["--model_config", case.config, "--train_dataset", str(manifest), "--batch_size", str(case.items)]
    arguments += ["--max_steps", "2", "--optimizer", case.optimizer, "--lr", "1e-4", "--num_workers", "0", *more]
    arguments += ["--set", "AudioToTextDataLayer.train.augmentor=null"]  # so that all batches are of one size
    for setting in case.overrides:
        arguments += ["--set", setting]
    return TrainingRun(AsrArgParser(prog="step_memory").parse_args(arguments))


def counted(case: Case, folder: Path) -> dict[str, int]:
    """The counted bytes."""
    import nemo_asr

    run = run_of(case, write_set(folder, case), "--plan")
    loss = nemo_asr.connect(run.model, run.training_data, training=True).scored[0]
    step = run.bytes_of(loss, run.training_data.largest_shape())
    return {**step._asdict(), "peak": step.peak}


def status(name: str) -> int:
    """A line of this process' status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def train(case: Case, folder: Path) -> None:
    """Two steps."""
    import nemo_asr

    saving = "--checkpoint_dir", str(folder / "checkpoints"), "--checkpoint_epoch_freq", "0"
    run = run_of(case, write_set(folder, case), *saving)
    run.train(nemo_asr.connect(run.model, run.training_data, training=True), {})


def measured(case: Case, folder: Path, limit: int) -> dict[str, int]:
    """Train two steps; the most address space and resident memory beyond those before there were weights.

    Args:
        limit: bytes beyond them that the process may take; 0: all.
    """
    small = folder / "small"
    small.mkdir()
    train(Case("digits", 1, 1.0, 4), small)  # what it imports, and libraries set up
    gc.collect()
    space, resident = status("VmSize"), status("VmRSS")
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (space + limit, space + limit))
    train(case, folder)
    return {"space": status("VmPeak") - space, "resident": status("VmHWM") - resident}


def child(name: str, what: str, limit: int = 0, environment: dict[str, str] = TRIMMED) -> dict[str, int] | None:
    """The answer of a process of its own; None: it failed."""
    command = [sys.executable, __file__, "--child", what, "--models", name, "--limit", str(limit)]
    environ = {**os.environ, **ENVIRONMENT, **environment}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if ended.returncode:
        is_lack = any(sign in ended.stderr for sign in ("memory", "Memory", "alloc"))
        if not (limit and is_lack):
            sys.exit(f"{name}: {what} failed:\n{ended.stderr[-2000:]}")
        return None
    answer: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Memory of a training step, counted and measured")
    parser.add_argument("--models", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--quick", action="store_true", help="one small model, nothing under ulimit")
    parser.add_argument("--child", choices=("count", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        with tempfile.TemporaryDirectory() as folder:
            case = CASES[args.models[0]]
            answer = counted(case, Path(folder)) if args.child == "count" else measured(case, Path(folder), args.limit)
            print(json.dumps(answer))
        return
    numbers = f"{'counted':>9}{'measured':>9}{'error':>8}"
    print(f"{'model':<12}{'batch':>14}{numbers}  {'x 1.10':<10}{'x 0.90':<9}{'default':>9}")
    for name in ["digits"] if args.quick else args.models:
        case = CASES[name]
        peak = (child(name, "count") or {})["peak"]
        space = (child(name, "measure") or {})["space"]
        tried = ["-", "-"]
        if not args.quick:
            limits = [int(share * peak) for share in (1.10, 0.90)]
            tried = ["runs" if child(name, "measure", limit) else "no memory" for limit in limits]
        plain = (child(name, "measure", environment={}) or {})["resident"]
        batch = f"{case.items} x {case.seconds:g} s"
        row = f"{name:<12}{batch:>14}{peak / UNIT:9.0f}{space / UNIT:9.0f}{peak / space - 1:8.1%}  "
        print(f"{row}{tried[0]:<9} {tried[1]:<9}{plain / UNIT:9.0f}", flush=True)


if __name__ == "__main__":
    main()
