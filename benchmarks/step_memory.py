"""Memory of a training step: counted by shapes, and measured as the address space that a training takes.

    python benchmarks/step_memory.py [--models digits quartznet conformer tdt hybrid contextnet] [--quick]
    python benchmarks/step_memory.py --models FOLDER [--overrides WhisperDecoder.prompt_language=en]
    python benchmarks/step_memory.py --models digits --options="--ema_decay 0.99 --iter_per_step 2"
    python benchmarks/step_memory.py --models digits tdt --device 160MiB [--steps 200] [--longest_evaluated 10]

Each model trains for two steps on made-up recordings of one length by the engine, in a process of its own; a published
one, in a folder, is fine-tuned. Measured: the most address space (VmPeak, which is the least ``ulimit -v`` under which
it runs) beyond what the process had after the training of a tiny model on a second. The training is then tried under
``ulimit -v`` at 1.10 times and at 0.90 times the counted bytes.

Freed memory is given back to the system at once (MALLOC_MMAP_THRESHOLD_), as the allocators of GPUs know it again;
the last column is the resident memory without that, by the C library's defaults.

With --device a model trains for 200 steps at the batch that ``nemo-lite plan --find_batch --device cpu`` proposes where
the machine has so much memory, under ``ulimit -v`` of that size beyond what the process had after the tiny training.
Utterances are of all lengths from a quarter of the case's seconds. Each 50 steps the run saves a checkpoint, and with
--longest_evaluated it evaluates utterances of up to so many seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

TRIMMED = {"MALLOC_MMAP_THRESHOLD_": "65536"}
# One thread: others would reserve address space.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
UNIT = 1 << 20
UTTERANCES = 400  # of a set for which a batch is proposed
SHORTEST = 0.25  # of the longest
EVALUATED = 24  # utterances of an evaluation set
EVERY = 50  # steps


class Case(NamedTuple):
    """A model and a batch.

    Attributes:
        config: of the model, or the folder of a published one.
        items, seconds, letters: of the batch.
        overrides: settings of the configuration.
        optimizer: its name.
        options: further ones of the training.
    """

    config: str
    items: int
    seconds: float
    letters: int
    overrides: tuple[str, ...] = ()
    optimizer: str = "adam_w"
    options: tuple[str, ...] = ()


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
    overrides, options = (*case.overrides, *args.overrides), shlex.split(args.options)
    return case._replace(items=args.items or case.items, overrides=overrides, options=tuple(options))


def write_set(folder: Path, case: Case, num: int, shortest: float = 1.0, name: str = "train") -> Path:
    """A manifest of noise: so many utterances, as long as the case's or down to a share of that."""
    import numpy as np
    import soundfile

    noise = 0.1 * np.random.default_rng(0).standard_normal(int(case.seconds * 16000))
    soundfile.write(folder / f"{name}.wav", noise, 16000)
    manifest = folder / f"{name}.json"
    with manifest.open("w", encoding="utf-8") as lines:
        for share in np.linspace(1.0, shortest, num):
            seconds, letters = share * case.seconds, int(share * case.letters)
            line = {"audio_filepath": f"{name}.wav", "offset": case.seconds - seconds, "duration": seconds}
            print(json.dumps({**line, "text": ("one two " * letters)[:letters].strip()}), file=lines)
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
    arguments += case.options
    return TrainingRun(AsrArgParser(prog="step_memory").parse_args(arguments))


def counted(case: Case, folder: Path) -> dict[str, int]:
    """The counted bytes."""
    import nemo_asr

    run = run_of(case, write_set(folder, case, case.items), "--plan")
    loss = nemo_asr.connect(run.model, run.training_data, training=True).scored[0]
    step = run.batch_finding(loss, {}).counted()
    return {**step._asdict(), "peak": step.peak + step.kernels}


def status(name: str) -> int:
    """A line of this process' status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def evaluation_of(case: Case, folder: Path, seconds: float | None) -> list[str]:
    """The options of an evaluation of utterances of up to so many seconds; None: there is none."""
    if not seconds:
        return []
    dev = case._replace(seconds=seconds, letters=int(case.letters * seconds / case.seconds))
    return ["--eval_datasets", str(write_set(folder, dev, EVALUATED, SHORTEST, "dev")), "--eval_freq", str(EVERY)]


def proposed(case: Case, folder: Path, args: argparse.Namespace) -> dict[str, int]:
    """The batches that a plan proposes for a CPU's memory; 0 for an evaluation's that may be as large."""
    import nemo_asr

    options = ["--plan", "--find_batch", "--device", args.device, *evaluation_of(case, folder, args.longest_evaluated)]
    run = run_of(case, write_set(folder, case, UTTERANCES, SHORTEST), *options)
    limit = run.args.device[1]
    run.args.device = "cpu", limit
    evaluations = {tag: nemo_asr.connect(run.model, layer) for tag, layer in run.evaluation_data.items()}
    loss = nemo_asr.connect(run.model, run.training_data, training=True).scored[0]
    told = "\n".join(run.batch_finding(loss, evaluations).batch_told(200))
    sizes = {name: int(size) for name, size in re.findall(r"give --(batch_size|eval_batch_size) (\d+)", told)}
    return {"items": sizes["batch_size"], "evaluated": sizes.get("eval_batch_size", 0), "limit": limit}


def train(case: Case, manifest: Path, *more: str) -> None:
    """Some steps."""
    import nemo_asr

    saving = "--work_dir", str(manifest.parent), "--exp_name", "run", "--checkpoint_epoch_freq", "0"
    run = run_of(case, manifest, *saving, *more)
    evaluations = {tag: nemo_asr.connect(run.model, layer) for tag, layer in run.evaluation_data.items()}
    run.train(nemo_asr.connect(run.model, run.training_data, training=True), evaluations)


def measured(case: Case, folder: Path, args: argparse.Namespace) -> dict[str, int]:
    """Train; the most address space and resident memory beyond those before there were weights."""
    small = folder / "small"
    small.mkdir()
    tiny = Case("digits", 1, 1.0, 4)
    train(tiny, write_set(small, tiny, 1), "--max_steps", "2")  # what it imports, and libraries set up
    more = ["--max_steps", str(args.steps)]
    if args.device:  # as users train
        manifest = write_set(folder, case, UTTERANCES, SHORTEST)
        more += ["--checkpoint_save_freq", str(EVERY)]
    else:
        manifest = write_set(folder, case, 2 * case.items)
    more += evaluation_of(case, folder, args.longest_evaluated)
    gc.collect()
    space, resident = status("VmSize"), status("VmRSS")
    if args.limit:
        resource.setrlimit(resource.RLIMIT_AS, (space + args.limit, space + args.limit))
    train(case, manifest, *more)
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
        print(*ended.stderr.splitlines()[-1:], file=sys.stderr)
        return None
    told: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    return told


def try_proposals(args: argparse.Namespace) -> None:
    """Print how far trainings at the proposed batches come."""
    environment = {} if args.default_allocator else TRIMMED
    evaluated = ["--longest_evaluated", str(args.longest_evaluated)] if args.longest_evaluated else []
    for name in args.models:
        common = ["--device", args.device, *evaluated, "--overrides", *args.overrides]
        plan = child(name, "propose", *common, f"--options={args.options}", environment=environment) or {}
        items, limit = plan["items"], plan["limit"]
        options = f"{args.options} --eval_batch_size {plan['evaluated']}" if plan["evaluated"] else args.options
        more = [f"--options={options}", "--limit", str(limit), "--items", str(items), "--steps", str(args.steps)]
        ended = child(name, "measure", *common, *more, environment=environment)
        told = f"ran, took {ended['space'] / UNIT:.0f} MiB" if ended else "no memory"
        batch = f"{items} x {case_of(name, args).seconds:g} s"
        batch += f", {plan['evaluated'] or items} x {args.longest_evaluated:g} s" if evaluated else ""
        print(f"{Path(name).name:<14}{batch:>14}  {args.steps} steps under {limit / UNIT:.0f} MiB: {told}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Memory of a training step, counted and measured")
    parser.add_argument("--models", nargs="+", default=[*CASES], help=f"{', '.join(CASES)}, or folders")
    parser.add_argument("--overrides", nargs="*", default=[], help="settings of the configuration")
    parser.add_argument("--options", default="", help="further ones of the training, in one argument")
    parser.add_argument("--items", type=int, help="of the batch")
    parser.add_argument("--quick", action="store_true", help="one small model, nothing under ulimit")
    parser.add_argument("--device", help="a memory, for whose proposed batch to train")
    parser.add_argument("--steps", type=int, default=200, help="of that training")
    parser.add_argument("--longest_evaluated", type=float, help="seconds; with --device, evaluate in that training")
    parser.add_argument("--default_allocator", action="store_true", help="with --device, by the C library's defaults")
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
        return proposed(case, folder, args)
    return measured(case, folder, args)


def compare(models: Sequence[str], args: argparse.Namespace) -> None:
    """Print what was counted and measured."""
    numbers = f"{'counted':>9}{'measured':>9}{'error':>8}"
    print(f"{'model':<14}{'batch':>14}{numbers}  {'x 1.10':<10}{'x 0.90':<9}{'default':>9}")
    for name in models:
        case = case_of(name, args)
        options = ["--items", str(case.items), f"--options={args.options}", "--overrides", *args.overrides]
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
