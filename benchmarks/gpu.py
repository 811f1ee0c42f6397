"""Everything that only a GPU can tell, in one call: what is right first, then how fast it is.

    make gpu                       # all of it, to gpu.json; or a part, with PYTHONPATH=.:collections/asr:
    python benchmarks/gpu.py [--json gpu.json] [--parts tests steps scaling] [--models jasper10x5dr quartznet15x5]
                             [--levels O0 O1 O2 O3] [--quick]

1. Correctness: the tests in tests/gpu, one at a time (gpu_tests.py). If one fails or does not end, the rest is timed
   all the same, and the exit code is 1.
2. The rate of matrix products (N x N) in each level's dtype: what the card gives at most.
3. Training steps of each model at each level, compiled and not, over equal batches of noise: time, ratio to a loop by
   hand (torch.amp: autocast, a scaler for float16, not compiled), share of the matrix rate, host syncs a step. Floating
   point operations are those that torch counts in a step of the loop by hand.
4. One model on 1, 2, 4 and 8 GPUs: benchmarks/ddp_scaling.py with its shares of data, computing and communication.

Times are medians of rounds; a loop makes all its rounds before the next one begins, so that one model at a time is on
the card. The first steps of a round, in which code is compiled, do not count.
The file of figures is written anew behind each part and each loop: what was measured stays when time is up.
Without a GPU it runs on the CPU, to see that it runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from ddp_scaling import (
    CONFIGS,
    OURS,
    OURS_APART,
    WARM_UP,
    Clock,
    Job,
    Meter,
    Network,
    Result,
    on_ranks,
    print_shares,
    write_noise,
)
from gpu_tests import QUICK, STAGES, Outcome, all_passed, run_tests
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import nemo_asr
import nemo_lite as nemo
from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks.action_state import ActionState
from nemo_lite.core.run_options import Optimization

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tests", "steps", "scaling")
BY_HAND = "torch.amp by hand"
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


@dataclass
class Row:
    """One loop of one model.

    Attributes:
        seconds: of a step, one for each round.
        syncs: times a step in which the host waits for the device.
        unavailable: why it did not run.
    """

    model: str
    loop: str
    dtype: str = ""
    seconds: list[float] = field(default_factory=list)
    syncs: float = 0.0
    unavailable: str = ""

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)


def synchronize(device: torch.device) -> None:
    """Wait until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int, rounds: int) -> float:
    """The best rate of a product of two square matrices, in FLOP/s."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(rounds + 1):  # the first one warms up
        synchronize(device)
        started = time.perf_counter()
        torch.mm(a, b)
        synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


class _CountReads(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in READS
        return func(*args, **(kwargs or {}))


class Syncs(nemo.NeMoCallback):
    """Counts, from the end of one step to that of another, how often the host waits for the device."""

    def __init__(self, device: torch.device, num_steps: int) -> None:
        self._is_cuda, self._first, self._last = device.type == "cuda", WARM_UP - 1, num_steps - 1
        self._reads, self._caught = _CountReads(), warnings.catch_warnings(record=True)
        self._warned: list[warnings.WarningMessage] = []
        self.per_step = 0.0

    def on_step_end(self, state: ActionState) -> None:
        """Begin, and end."""
        if state.step == self._first:
            self._begin()
        if state.step == self._last:
            self.per_step = self._end() / (self._last - self._first)

    def _begin(self) -> None:
        if not self._is_cuda:
            self._reads.__enter__()
            return
        self._warned = self._caught.__enter__() or []
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

    def _end(self) -> int:
        if not self._is_cuda:
            self._reads.__exit__(None, None, None)
            return self._reads.count
        torch.cuda.set_sync_debug_mode("default")
        self._caught.__exit__(None, None, None)
        return sum("synchronizing CUDA operation" in str(each.message) for each in self._warned)


class Bench:
    """Loops of one model over the same batches of noise."""

    def __init__(self, job: Job, model: str, device: torch.device, backend: str) -> None:
        self.job, self.model, self.device, self.backend = job, model, device, backend
        self.recipe = nemo_asr.load_recipe(CONFIGS / f"{model}.yaml")
        manifest, settings = str(Path(job.folder, "noise.json")), {"bucketing": False, "augmentor": None}
        self._data = self.recipe.data_layer(
            manifest, training=True, batch_size=job.batch_size, num_workers=job.num_workers, **settings
        )

    def ours(self, level: str, compiled: bool) -> Row:
        """``train`` at a level, round by round; the last round counts host syncs and is not timed."""
        row = Row(self.model, f"{level}{', compiled' if compiled else ''}")
        how = {"backend": self.backend} if compiled else False
        try:
            actions = PtActions(device=self.device, optimization_level=level, compile=how)
        except UsageError as error:
            row.unavailable = str(error)
            return row
        row.dtype = dtype_name(level_dtype(level, self.device))
        network = Network.of(self.recipe)
        loss = network(*self._data())
        syncs = Syncs(self.device, self.job.num_steps)
        for number in range(self.job.rounds + 1):
            meter = Meter(Clock(self.device, self.job.num_steps))
            actions.train(
                [loss],
                network.optimizer(),
                {"max_steps": self.job.num_steps, "lr": 1e-4},
                [meter if number < self.job.rounds else syncs],
            )
            if number < self.job.rounds:
                row.seconds.append(meter.clock.sample.seconds)
        row.syncs = syncs.per_step
        return row

    def by_hand(self) -> tuple[Row, float]:
        """The loop with torch.amp that one would write; operations of a step."""
        dtype = level_dtype("O1", self.device)
        row, network = Row(self.model, BY_HAND, dtype_name(dtype)), Network.of(self.recipe).to(self.device)
        optimizer = network.optimizer()
        scaler = torch.amp.GradScaler(self.device.type, enabled=dtype is torch.float16)
        loader = self._data.loader(training=True, shard=Shard())

        def step(batch: Any) -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, dtype):
                loss = network(*to_device(batch.values, self.device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        for _ in range(self.job.rounds):
            clock, batches = Clock(self.device, self.job.num_steps), loader.epoch(0)
            for number in range(self.job.num_steps):
                step(next(batches))
                clock.step_done(number)
            row.seconds.append(clock.sample.seconds)
        with FlopCounterMode(display=False) as counter:
            step(next(loader.epoch(0)))
        return row, float(counter.get_total_flops())


def level_dtype(level: str, device: torch.device) -> torch.dtype:
    """What the matrix products of a level are computed in."""
    if level == "O0":
        return torch.float32
    if device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16


def dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def print_rates(rates: dict[str, float], size: int) -> None:
    """A line for each dtype."""
    print(f"\nmatrix products, {size} x {size}")
    for dtype, rate in rates.items():
        print(f"  {dtype:<10}{rate / 1e12:>9.2f} TFLOP/s")


def print_rows(rows: Sequence[Row], flops: dict[str, float], rates: dict[str, float]) -> None:
    """The table of training steps."""
    heads = ("ms/step", "/ by hand", "TFLOP/s", "of matrix rate", "syncs/step")
    print(f"\n{'model':<16}{'loop':<20}{'dtype':<10}" + "".join(f"{head:>15}" for head in heads))
    by_hand = {row.model: row.median for row in rows if row.loop == BY_HAND}
    for row in rows:
        start = f"{row.model:<16}{row.loop:<20}{row.dtype:<10}"
        if row.unavailable:
            print(f"{start} {row.unavailable}")
            continue
        rate = flops[row.model] / row.median
        syncs = f"{row.syncs:>15.2f}" if row.loop != BY_HAND else f"{'-':>15}"
        print(
            f"{start}{row.median * 1000:>15.2f}{row.median / by_hand[row.model]:>15.3f}{rate / 1e12:>15.3f}"
            f"{rate / rates[row.dtype]:>15.1%}{syncs}"
        )


@contextmanager
def noise(args: argparse.Namespace, num_steps: int, world_size: int) -> Iterator[Job]:
    """A job whose folder has batches for so many steps of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, f"{args.models[-1]}.yaml", args.rounds, num_steps, args.batch_size, args.num_workers)
        # Our loop fetches the batches of the next step before the current one ends; scaling accumulates up to four.
        write_noise(job, args.seconds, (num_steps + 2) * args.batch_size * 4 * world_size)
        yield job


def scaling(args: argparse.Namespace, worlds: Sequence[int]) -> dict[int, dict[int, Result]]:
    """The loops of ddp_scaling on each number of processes."""
    with noise(args, WARM_UP + args.steps, max(worlds, default=0)) as job:
        return {world_size: on_ranks(world_size, job) for world_size in worlds}


@dataclass
class Figures:
    """All figures of a run, in a file that grows with them."""

    path: Path | None
    machine: str
    tests: list[Outcome] = field(default_factory=list)
    matrix_flop_per_second: dict[str, float] = field(default_factory=dict)
    flop_per_step: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    scaling: dict[int, dict[int, Result]] = field(default_factory=dict)

    def write(self) -> None:
        """Put everything that is known by now into the file."""
        if self.path is None:
            return
        scaled = {
            world: {
                accumulated: {
                    "seconds": result.median(OURS),
                    "data": result.median(OURS, "data_share"),
                    "communication": result.communication(OURS, OURS_APART),
                }
                for accumulated, result in each.items()
            }
            for world, each in self.scaling.items()
        }
        figures = {
            "machine": self.machine,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "tests": [vars(outcome) for outcome in self.tests],
            "matrix_flop_per_second": self.matrix_flop_per_second,
            "flop_per_step": self.flop_per_step,
            "steps": [vars(row) for row in self.rows],
            "scaling": scaled,
        }
        self.path.write_text(json.dumps(figures, indent=1))


def parsed() -> argparse.Namespace:
    """The options; ``--quick`` overrides some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to run")
    parser.add_argument("--models", nargs="+", default=["jasper10x5dr", "quartznet15x5"], help="shipped configurations")
    levels = [level.short for level in Optimization]
    parser.add_argument("--levels", nargs="+", choices=levels, default=levels, help="levels of precision")
    parser.add_argument("--rounds", type=int, default=3, help="how often each loop is timed")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a loop in a round")
    parser.add_argument("--batch_size", type=int, default=32, help="utterances in a batch of one process")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of an utterance")
    parser.add_argument("--num_workers", type=int, default=4, help="processes that load the batches of each rank")
    parser.add_argument("--matrix", type=int, default=8192, help="size of the matrices")
    parser.add_argument("--processes", type=int, nargs="*", help="default: 1, 2, 4, 8 as far as there are GPUs")
    parser.add_argument("--quick", action="store_true", help="few steps of a small model, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.models, args.levels, args.matrix, args.rounds, args.steps = ["digits"], ["O1"], 128, 1, 1
        args.batch_size, args.seconds, args.num_workers, args.processes = 1, 0.5, 0, []
    return args


def main() -> None:
    """Print all tables."""
    args = parsed()
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", 0) if gpus else torch.device("cpu")
    where = f"{gpus} x {torch.cuda.get_device_name()}" if gpus else "CPU"
    print(f"{where}, torch {torch.__version__}, CUDA {torch.version.cuda or '-'}", flush=True)
    nemo.logging.set_verbosity(nemo.logging.WARNING)
    figures = Figures(args.json, where)
    if "tests" in args.parts:
        figures.tests = run_tests(QUICK if args.quick else [stage.name for stage in STAGES], bool(gpus))
        figures.write()
    if "steps" in args.parts:
        time_steps(args, device, figures)
    if "scaling" in args.parts:
        worlds = [size for size in (1, 2, 4, 8) if size <= max(gpus, 1)] if args.processes is None else args.processes
        figures.scaling = scaling(args, worlds)
        if figures.scaling:
            print(f"\nscaling of {args.models[-1]} in float32")
            print_shares(figures.scaling, args.batch_size * args.seconds)
        figures.write()
    sys.exit(not all_passed(figures.tests))


def time_steps(args: argparse.Namespace, device: torch.device, figures: Figures) -> None:
    """Time the matrix products, then the steps of each model in each loop."""
    dtypes = dict.fromkeys(level_dtype(level, device) for level in ("O1", *args.levels))
    rates = figures.matrix_flop_per_second = {
        dtype_name(dtype): matrix_rate(device, dtype, args.matrix, 10) for dtype in dtypes
    }
    print_rates(rates, args.matrix)
    for model in args.models:
        with noise(args, WARM_UP + args.steps, 1) as job:
            bench = Bench(job, model, device, "eager" if args.quick else "inductor")
            by_hand, figures.flop_per_step[model] = bench.by_hand()
            figures.rows.append(by_hand)
            for compiled, level in product((False, True), args.levels):  # what compiles comes last
                gc.collect()  # wires and modules refer to each other
                figures.rows.append(bench.ours(level, compiled))
                figures.write()
    print_rows(figures.rows, figures.flop_per_step, rates)


if __name__ == "__main__":
    main()
