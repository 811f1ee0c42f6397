"""Memory of a training step: counted by shapes, and measured as the address space that a training takes.

    python benchmarks/step_memory.py [--models digits quartznet conformer tdt hybrid contextnet] [--quick]
    python benchmarks/step_memory.py --models FOLDER [--overrides WhisperDecoder.prompt_language=en]
    python benchmarks/step_memory.py --models digits quartznet tdt --device 160MiB [--steps 200]

Each model trains for two steps on made-up recordings of one length by the engine, in a process of its own; a published
one, in a folder, is fine-tuned. Measured: the most address space (VmPeak, which is the least ``ulimit -v`` under which
it runs) beyond what the process had after the training of a tiny model on a second. The training is then tried under
``ulimit -v`` at 1.10 times and at 0.90 times the counted bytes.

Freed memory is given back to the system at once (MALLOC_MMAP_THRESHOLD_), as the allocators of GPUs know it again;
the last column is the resident memory without that, by the C library's defaults.

With --device a model trains for 200 steps at the batch that ``nemo-lite plan --find_batch --device`` proposes, under
``ulimit -v`` of that size beyond what the process had after the tiny training.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

TRIMMED = {"MALLOC_MMAP_THRESHOLD_": "262144"}
# One thread: others would reserve address space.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
UNIT = 1 << 20
UTTERANCES = 400  # of a set for which a batch is proposed


class Case(NamedTuple):
    """A model and a batch.

    Attributes:
        config: of the model, or the folder of a published one.
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


def case_of(name: str, args: argparse.Namespace) -> Case:
    """The one of this name or in this folder, as the options change it."""
    case = CASES.get(name) or Case(name, 4, 6.0, 30)
    return case._replace(items=args.items or case.items, overrides=(*case.overrides, *args.overrides))


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

    model = "--init_from" if Path(case.config).is_dir() else "--model_config"
    arguments = [model, case.config, "--train_dataset", str(manifest), "--batch_size", str(case.items)]
    arguments += ["--max_steps", "200", "--optimizer", case.optimizer, "--lr", "1e-4", "--num_workers", "0", *more]
    arguments += ["--set", "AudioToTextDataLayer.train.augmentor=null"]  # so that all batches are of one size
    for setting in case.overrides:
        arguments += ["--set", setting]
    return TrainingRun(AsrArgParser(prog="step_memory").parse_args(arguments))


def counted(case: Case, folder: Path) -> dict[str, int]:
    """The counted bytes."""
    import nemo_asr

    run = run_of(case, write_set(folder, case), "--plan")
    loss = nemo_asr.connect(run.model, run.training_data, training=True).scored[0]
    step = run.batch_finding(loss).counted()
    return {**step._asdict(), "peak": step.peak}


def status(name: str) -> int:
    """A line of this process' status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def proposed(case: Case, folder: Path, device: str) -> dict[str, int]:
    """The batch that a plan proposes for a memory."""
    import nemo_asr

    run = run_of(case, write_set(folder, case._replace(items=UTTERANCES)), "--plan", "--find_batch", "--device", device)
    loss = nemo_asr.connect(run.model, run.training_data, training=True).scored[0]
    (items,) = re.findall(r"give --batch_size (\d+)", "\n".join(run.batch_finding(loss).batch_told(200)))
    return {"items": int(items), "limit": run.args.device[1]}


def train(case: Case, folder: Path, steps: int = 2) -> None:
    """Some steps."""
    import nemo_asr

    saving = "--checkpoint_dir", str(folder / "checkpoints"), "--checkpoint_epoch_freq", "0"
    run = run_of(case, write_set(folder, case), *saving, "--max_steps", str(steps))
    run.train(nemo_asr.connect(run.model, run.training_data, training=True), {})


def measured(case: Case, folder: Path, limit: int, steps: int) -> dict[str, int]:
    """Train; the most address space and resident memory beyond those before there were weights.

    Args:
        limit: bytes beyond them that the process may take; 0: all.
        steps: of the training.
    """
    small = folder / "small"
    small.mkdir()
    train(Case("digits", 1, 1.0, 4), small)  # what it imports, and libraries set up
    gc.collect()
    space, resident = status("VmSize"), status("VmRSS")
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (space + limit, space + limit))
    train(case, folder, steps)
    return {"space": status("VmPeak") - space, "resident": status("VmHWM") - resident}


def child(name: str, what: str, *options: str, environment: dict[str, str] = TRIMMED) -> dict[str, int] | None:
    """The answer of a process of its own; None: it failed under a limit."""
    command = [sys.executable, __file__, "--child", what, "--models", name, *options]
    environ = {**os.environ, **ENVIRONMENT, **environment}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if ended.returncode:
        is_lack = any(sign in ended.stderr for sign in ("memory", "Memory", "alloc"))
        if not ("--limit" in options and is_lack):
            sys.exit(f"{name}: {what} failed:\n{ended.stderr[-2000:]}")
        return None
    told: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    return told


def try_proposals(args: argparse.Namespace) -> None:
    """Print how far trainings at the proposed batches come."""
    steps = args.steps
    for name in args.models:
        settings = ["--overrides", *args.overrides]
        plan = child(name, "propose", "--device", args.device, *settings) or {}
        items, limit = plan["items"], plan["limit"]
        ended = child(name, "measure", *settings, "--limit", str(limit), "--items", str(items), "--steps", str(steps))
        told = f"ran, took {ended['space'] / UNIT:.0f} MiB" if ended else "no memory"
        batch = f"{items} x {case_of(name, args).seconds:g} s"
        print(f"{Path(name).name:<14}{batch:>14}  {steps} steps under {limit / UNIT:.0f} MiB: {told}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Memory of a training step, counted and measured")
    parser.add_argument("--models", nargs="+", default=[*CASES], help=f"{', '.join(CASES)}, or folders")
    parser.add_argument("--overrides", nargs="*", default=[], help="settings of the configuration")
    parser.add_argument("--items", type=int, help="of the batch")
    parser.add_argument("--quick", action="store_true", help="one small model, nothing under ulimit")
    parser.add_argument("--device", help="a memory, for whose proposed batch to train")
    parser.add_argument("--steps", type=int, default=200, help="of that training")
    parser.add_argument("--child", choices=("count", "measure", "propose"), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(answer(args, Path(folder))))
    elif args.device:
        try_proposals(args)
    else:
        compare(["digits"] if args.quick else args.models, args)


def answer(args: argparse.Namespace, folder: Path) -> dict[str, int]:
    """What a process of its own is to say."""
    case = case_of(args.models[0], args)
    if args.child == "count":
        return counted(case, folder)
    if args.child == "propose":
        return proposed(case, folder, args.device)
    return measured(case, folder, args.limit, args.steps)


def compare(models: Sequence[str], args: argparse.Namespace) -> None:
    """Print what was counted and measured."""
    numbers = f"{'counted':>9}{'measured':>9}{'error':>8}"
    print(f"{'model':<14}{'batch':>14}{numbers}  {'x 1.10':<10}{'x 0.90':<9}{'default':>9}")
    for name in models:
        case = case_of(name, args)
        options = ["--items", str(case.items), "--overrides", *args.overrides]
        two = [*options, "--steps", "2"]
        peak = (child(name, "count", *options) or {})["peak"]
        space = (child(name, "measure", *two) or {})["space"]
        tried = ["-", "-"]
        if not args.quick:
            limits = [str(int(share * peak)) for share in (1.10, 0.90)]
            ended = [child(name, "measure", *two, "--limit", limit) for limit in limits]
            tried = ["runs" if each else "no memory" for each in ended]
        plain = (child(name, "measure", *two, environment={}) or {})["resident"]
        batch = f"{case.items} x {case.seconds:g} s"
        row = f"{Path(name).name:<14}{batch:>14}{peak / UNIT:9.0f}{space / UNIT:9.0f}{peak / space - 1:8.1%}  "
        print(f"{row}{tried[0]:<9} {tried[1]:<9}{plain / UNIT:9.0f}", flush=True)


if __name__ == "__main__":
    main()
