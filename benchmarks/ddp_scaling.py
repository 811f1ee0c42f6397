"""What several processes cost and gain: QuartzNet 5x5 on 1 and 2 processes, or on 1, 2, 4 and 8 GPUs.

    python benchmarks/ddp_scaling.py [--rounds 5] [--steps 4] [--batch_size 4] [--seconds 2] [--quick]

It starts its own ranks, with one thread each. In every rank all loops run in turn for several rounds, each over the
same batches with weights of its own. The first two steps of a loop are not timed. A time is the mean over the ranks;
the tables show medians of the rounds, also for ratios. The loops:

- ours: ``factory.train``. At each step it also agrees with the other ranks on whether the loss was finite.
- by hand: one DistributedDataParallel around everything, without any checks.
- by hand, agreeing: the same, but it updates only if the loss is finite on all ranks: one more all-reduce.
- one DDP per module: each module with weights has its own, with ``find_unused_parameters``, as in NeMo 0.11.
- ours, by hand, no exchange: the same loops, but ranks exchange nothing.

Communication is the time of a step minus the time of the same loop without exchange. So the part of an all-reduce that
overlaps with the backward pass does not count, and waiting for a slower rank does; timing the all-reduces themselves
would give the opposite of both. CPU time is that of all threads of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nemo_asr
import nemo_lite as nemo
from nemo_asr.tasks.recipe import Recipe
from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.data.loaders import Batch
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.core.callbacks.action_state import ActionState

CONFIGS = Path(__file__).resolve().parents[1] / "examples/asr/configs"
ACCUMULATED = (1, 4)
# DistributedDataParallel rebuilds its buckets after the first step.
WARM_UP = 2
NUM_FILES = 32

OURS, BY_HAND, AGREEING = "ours", "by hand", "by hand, agreeing"
PER_MODULE, OURS_APART, BY_HAND_APART = "one DDP per module", "ours, no exchange", "by hand, no exchange"


@dataclass(frozen=True)
class Job:
    """What the ranks measure; ``num_steps`` is the number of steps of a loop in one round."""

    folder: str
    config: str
    rounds: int
    num_steps: int
    batch_size: int
    num_workers: int

    @property
    def recipe(self) -> Recipe:
        """What makes the modules."""
        return nemo_asr.load_recipe(CONFIGS / self.config)


class Sample(NamedTuple):
    """One loop in one round.

    Attributes:
        seconds: of a step.
        cpu_seconds: of a step, all threads of the process together.
        data_share: share of the time spent waiting for batches, where the loop reports it.
    """

    seconds: float
    cpu_seconds: float
    data_share: float = 0.0


class Clock:
    """Measures a loop without its warm-up."""

    def __init__(self, device: torch.device, num_steps: int) -> None:
        self._device, self._num_steps = device, num_steps
        self._started, self._cpu_started, self.sample = 0.0, 0.0, Sample(0.0, 0.0)

    def step_done(self, step: int) -> None:
        """Call it after each step. It synchronises the device at the first and the last step that count only."""
        done = step + 1
        if done not in (WARM_UP, self._num_steps):
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now, cpu_now, count = time.perf_counter(), time.process_time(), max(done - WARM_UP, 1)
        self.sample = Sample((now - self._started) / count, (cpu_now - self._cpu_started) / count)
        self._started, self._cpu_started = now, cpu_now


class Network(nn.Module):
    """From audio to the loss, as one module."""

    def __init__(self, preprocessor: nn.Module, encoder: nn.Module, decoder: nn.Module, ctc: nn.Module) -> None:
        super().__init__()
        self.preprocessor, self.encoder, self.decoder, self.ctc = preprocessor, encoder, decoder, ctc

    def forward(
        self, audio: torch.Tensor, audio_len: torch.Tensor, text: torch.Tensor, text_len: torch.Tensor
    ) -> torch.Tensor:
        """The mean loss of a batch."""
        features, features_len = self.preprocessor(input_signal=audio, length=audio_len)
        encoded, encoded_len = self.encoder(audio_signal=features, length=features_len)
        log_probs = self.decoder(encoder_output=encoded)
        loss: torch.Tensor = self.ctc(
            log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len
        )
        return loss

    @classmethod
    def of(cls, recipe: Recipe) -> Network:
        """A new network; all have equal weights."""
        torch.manual_seed(0)
        return cls(recipe.preprocessor(), recipe.encoder(), recipe.decoder(), recipe.loss())

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of all loops."""
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Meter(nemo.NeMoCallback):
    """Times our loop with the clock of all loops; reads the time spent waiting from the loop itself."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.data_share = clock, 0.0

    def on_step_end(self, state: ActionState) -> None:
        """Tell the clock; reset the timing after the warm-up."""
        self.clock.step_done(state.step)
        if state.step + 1 == WARM_UP:
            state.timing(self)

    def on_action_end(self, state: ActionState) -> None:
        """Read the timing."""
        self.data_share = state.timing(self).data_wait_share


class Ours:
    """``train``: the factory's, or that of a single process."""

    def __init__(self, train: Callable[..., None], data: Any, network: Network, device: torch.device) -> None:
        self._train, self._network, self._device = train, network, device
        self._loss = network(*data())  # called with wires, modules make the DAG

    def run(self, num_steps: int, accumulated: int) -> Sample:
        """Train for so many steps."""
        meter = Meter(Clock(self._device, num_steps))
        self._train(
            [self._loss],
            optimizer=self._network.optimizer(),
            optimization_params={"max_steps": num_steps, "lr": 1e-4},
            callbacks=[meter],
            batches_per_step=accumulated,
        )
        return meter.clock.sample._replace(data_share=meter.data_share)


@dataclass
class ByHand:
    """The loop that one would write.

    Attributes:
        batches: gives the batches of an epoch.
        per_module: wrap each module with weights by itself; else all in one. A rank alone is not wrapped.
        agrees: make an update only where the loss is finite on all ranks.
        exchanges: synchronise the gradients.
    """

    batches: Callable[[], Iterator[Batch]]
    network: Network
    device: torch.device
    per_module: bool = False
    agrees: bool = False
    exchanges: bool = True

    def run(self, num_steps: int, accumulated: int) -> Sample:
        """Train for so many steps."""
        optimizer, batches, clock = self.network.optimizer(), self.batches(), Clock(self.device, num_steps)
        network, wrapped = self._wrapped()
        for step in range(num_steps):
            optimizer.zero_grad(set_to_none=True)
            losses = []
            for number in range(1, accumulated + 1):
                with ExitStack() as stack:
                    if number < accumulated or not self.exchanges:
                        for each in wrapped:
                            stack.enter_context(each.no_sync())
                    loss = network(*to_device(next(batches).values, self.device))
                    (loss / accumulated).backward()
                losses.append(loss.detach())
            if not self.agrees or all_finite(losses):
                optimizer.step()
            clock.step_done(step)
        return clock.sample

    def _wrapped(self) -> tuple[nn.Module, list[DistributedDataParallel]]:
        """The module that computes the loss, and its DDP wrappers; made again in each round, as in ours."""
        if not dist.is_initialized():
            return self.network, []
        settings: dict[str, Any] = {"broadcast_buffers": False}
        settings["device_ids"] = [self.device] if self.device.type == "cuda" else None
        parts = self.network
        if not self.per_module:
            whole = DistributedDataParallel(parts, gradient_as_bucket_view=True, **settings)
            return whole, [whole]
        encoder = DistributedDataParallel(parts.encoder, find_unused_parameters=True, **settings)
        decoder = DistributedDataParallel(parts.decoder, find_unused_parameters=True, **settings)
        return Network(parts.preprocessor, encoder, decoder, parts.ctc), [encoder, decoder]


def all_finite(losses: Sequence[torch.Tensor]) -> bool:
    """Whether the losses of all ranks are."""
    bad = (~torch.isfinite(torch.stack(list(losses)).sum())).float()
    dist.all_reduce(bad)
    return not bad.item()


def make_loops(factory: nemo.NeuralModuleFactory, job: Job) -> dict[str, Ours | ByHand]:
    """The loops by name; on one rank there are two."""
    rank, world_size, device = factory.global_rank or 0, factory.world_size, torch.device(str(factory.device))
    manifest = str(Path(job.folder, "noise.json"))
    settings = {"batch_size": job.batch_size, "num_workers": job.num_workers}
    data = job.recipe.data_layer(manifest, training=True, bucketing=False, augmentor=None, **settings)

    def ours(train: Callable[..., None]) -> Ours:
        return Ours(train, data, Network.of(job.recipe), device)

    def by_hand(**how: bool) -> ByHand:
        loader = data.loader(training=True, shard=Shard(rank, world_size))
        return ByHand(lambda: loader.epoch(0), Network.of(job.recipe).to(device), device, **how)

    loops: dict[str, Ours | ByHand] = {OURS: ours(factory.train), BY_HAND: by_hand()}
    if world_size > 1:
        loops[AGREEING] = by_hand(agrees=True)
        loops[PER_MODULE] = by_hand(per_module=True)
        loops[OURS_APART] = ours(PtActions(device=device, comm=SingleProcess()).train)
        loops[BY_HAND_APART] = by_hand(exchanges=False)
    return loops


def run_rank(rank: int, world_size: int, port: int, job: Job) -> None:
    """Measure as one rank and leave the samples in the folder."""
    if world_size > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        os.environ.update({name: str(number) for name, number in names.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    # The oldest supported torch does not have its successor.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    torch.set_num_threads(1)
    nemo.logging.set_verbosity(nemo.logging.WARNING)
    factory = nemo.NeuralModuleFactory()
    loops = make_loops(factory, job)
    samples = {accumulated: measure(loops, factory, job, accumulated) for accumulated in ACCUMULATED}
    Path(job.folder, f"{world_size}-{rank}.json").write_text(json.dumps(samples))


def measure(
    loops: Mapping[str, Ours | ByHand], factory: nemo.NeuralModuleFactory, job: Job, accumulated: int
) -> dict[str, list[Sample]]:
    """For each loop a sample from each round."""
    samples: dict[str, list[Sample]] = {name: [] for name in loops}
    for number in range(job.rounds):
        # The order changes, so that no loop always profits from warm caches.
        for name in list(loops)[:: -1 if number % 2 else 1]:
            factory.sync_all_processes()
            samples[name].append(loops[name].run(job.num_steps, accumulated))
    return samples


@dataclass
class Result:
    """The samples of each loop, one a round."""

    samples: Mapping[str, Sequence[Sample]]

    def median(self, loop: str, field: str = "seconds") -> float:
        """Of the rounds."""
        return statistics.median(float(getattr(sample, field)) for sample in self.samples[loop])

    def ratio(self, loop: str, reference: str, field: str = "seconds") -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self.samples[loop], self.samples[reference], strict=True)
        return statistics.median(float(getattr(one, field) / getattr(other, field)) for one, other in pairs)

    def communication(self, loop: str, apart: str) -> float:
        """Share of a step."""
        return 1 - self.ratio(apart, loop) if apart in self.samples else 0.0


def on_ranks(world_size: int, job: Job, start_method: str = "spawn") -> dict[int, Result]:
    """What this many ranks measured, by the number of accumulated batches."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mp.start_processes(  # type: ignore[no-untyped-call, attr-defined]
        run_rank, (world_size, port, job), nprocs=world_size, start_method=start_method
    )
    ranks = [json.loads(Path(job.folder, f"{world_size}-{rank}.json").read_text()) for rank in range(world_size)]
    return {accumulated: mean_over([rank[str(accumulated)] for rank in ranks]) for accumulated in ACCUMULATED}


def mean_over(ranks: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> Result:
    """The mean of the ranks' samples, round by round."""
    rounds = {loop: zip(*(rank[loop] for rank in ranks), strict=True) for loop in ranks[0]}
    return Result({loop: [Sample(*np.mean(samples, axis=0)) for samples in each] for loop, each in rounds.items()})


def write_noise(job: Job, seconds: float, count: int) -> None:
    """A manifest of ``count`` utterances of noise: few files, each used many times."""
    rng = np.random.default_rng(0)
    for number in range(NUM_FILES):
        soundfile.write(Path(job.folder, f"{number}.wav"), rng.normal(0, 0.1, int(seconds * 16000)), 16000)
    lines = (
        {"audio_filepath": f"{number % NUM_FILES}.wav", "duration": seconds, "text": "a fox jumps"}
        for number in range(count)
    )
    Path(job.folder, "noise.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def print_times(results: Mapping[int, Mapping[int, Result]]) -> None:
    """A row for each loop."""
    heads = ("ms/step", "/ by hand", "CPU ms", "/ by hand")
    print(f"{'processes':>9} {'accumulated':>11}  {'':<21}" + "".join(f"{head:>10}" for head in heads))
    for world_size, by_accumulated in results.items():
        for accumulated, result in by_accumulated.items():
            for name in result.samples:
                columns = "".join(
                    f"{result.median(name, field) * 1000:>10.1f}{result.ratio(name, BY_HAND, field):>10.3f}"
                    for field in ("seconds", "cpu_seconds")
                )
                print(f"{world_size:>9} {accumulated:>11}  {name:<21}{columns}")


def print_shares(results: Mapping[int, Mapping[int, Result]], batch_seconds: float) -> None:
    """For each number of processes and accumulated batches: where the time of our step goes, and the throughput."""
    heads = ("data", "compute", "communication", "(by hand)", "audio-s/s a process", "of the first row's")
    print(f"\n{'processes':>9} {'accumulated':>11} " + " ".join(f"{head:>{max(len(head), 7)}}" for head in heads))
    first: dict[int, float] = {}
    for world_size, by_accumulated in results.items():
        for accumulated, result in by_accumulated.items():
            communication = result.communication(OURS, OURS_APART)
            data = result.median(OURS, "data_share")
            rate = accumulated * batch_seconds / result.median(OURS)
            gain = rate / first.setdefault(accumulated, rate)
            shares = f"{data:>7.1%} {1 - data - communication:>7.1%} {communication:>13.1%}"
            by_hand = result.communication(BY_HAND, BY_HAND_APART)
            print(f"{world_size:>9} {accumulated:>11} {shares} {by_hand:>9.1%} {rate:>19.1f} {gain:>18.2f}")


def main() -> None:
    """Print both tables."""
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which all loops run in turn")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a loop in a round")
    parser.add_argument("--batch_size", type=int, default=4, help="utterances in a batch of one process")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of an utterance")
    parser.add_argument("--num_workers", type=int, default=0, help="processes that load the batches of each rank")
    parser.add_argument("--processes", type=int, nargs="+", help="default: 1 2, or 1 2 4 8 as far as there are GPUs")
    parser.add_argument("--quick", action="store_true", help="one step of a small model, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.steps, args.batch_size, args.seconds = 1, 1, 1, 0.5
    worlds = args.processes or [size for size in (1, 2, 4, 8) if size <= max(gpus, 2 * (not gpus))]
    # With find_unused_parameters, each run would log that no parameter is unused.
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with tempfile.TemporaryDirectory() as folder:
        config = "digits.yaml" if args.quick else "quartznet5x5.yaml"
        job = Job(folder, config, args.rounds, WARM_UP + args.steps, args.batch_size, args.num_workers)
        # Our loop fetches the batches of the next step before the current one ends.
        write_noise(job, args.seconds, (job.num_steps + 1) * args.batch_size * max(ACCUMULATED) * max(worlds))
        method = "fork" if args.quick else "spawn"  # forked ranks need not import torch again
        results = {world_size: on_ranks(world_size, job, method) for world_size in worlds}
    where = torch.cuda.get_device_name() if gpus else "CPU, 1 thread a process"
    print(f"{where}; batches of {args.batch_size} x {args.seconds:g} s\n")
    print_times(results)
    print_shares(results, args.batch_size * args.seconds)


if __name__ == "__main__":
    main()
