"""Which batch fits: the memory of a training step by the size of its batch, for each bucket of durations."""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from nemo_asr.data.dataset import BatchShape
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.options import memory
from nemo_asr.scoring.report.records import METRICS_FILE
from nemo_lite import DataLayerNM, NeuralModuleFactory, NmTensor
from nemo_lite.backends.pytorch.engine.step_memory import StepMemory
from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.launch import who_am_i
from nemo_lite.core.trackers import duration_text, number, read_metrics

# Shares of a device's memory that tensors get. Those of a CPU were measured (docs/en/performance.md); nobody has
# measured that of a GPU.
SHARE_OF_GPU = 0.88
SHARE_OF_TRIAL = 0.95  # of a GPU on which batches are tried
SHARE_OF_CPU, SHARE_OF_CPU_TRIMMED = 0.55, 0.88
# What kernels keep once they ran, whatever the batch. Of a CPU measured, in address space: oneDNN keeps 64 kernels,
# in bfloat16 of 56 to 89 MiB, beside 25 of workspaces; so `StepMemory.kernels` are in it.
_WORKSPACES, _WORKSPACES_OF_CPU = 32 << 20, 128 << 20
TRIMMED, _TRIMMED_FROM = "MALLOC_MMAP_THRESHOLD_", 65536
"""With at most so many bytes in this variable of the C library, memory of freed tensors goes back to the system."""
NUM_BUCKETS = 4
_LARGEST = 4096
_GIB = 1 << 30


class Bucket(NamedTuple):
    """Utterances of similar duration.

    Attributes:
        longest: a batch of them.
        utterances: how many they are.
    """

    longest: BatchShape
    utterances: int


class Fit(NamedTuple):
    """The largest batch of a bucket.

    Attributes:
        bucket: of what.
        items: utterances in it.
        bytes: that tensors take at the peak.
    """

    bucket: Bucket
    items: int
    bytes: int


def share_of(name: str) -> float:
    """The share of a memory of this name that tensors get."""
    if name != "cpu":
        return SHARE_OF_GPU
    return SHARE_OF_CPU if _keeps_freed(name) else SHARE_OF_CPU_TRIMMED


def _keeps_freed(name: str) -> bool:
    """Whether the memory of freed tensors stays in gaps of the C library's heap, where large tensors do not fit."""
    threshold = os.environ.get(TRIMMED, "")
    return name == "cpu" and not (threshold.isdecimal() and int(threshold) <= _TRIMMED_FROM)


class BatchFinding:
    """The memory of a training's steps: of its largest batch, and which batch fits.

    Args:
        args: the training's options.
        layer: its data.
        factory: its own.
        loss: what is minimised; modules may be on the meta device.
        evaluated: the losses of the evaluation sets and their data, by name.
        loss_with_weights: makes that wire with modules that have weights, for trials on a GPU.
    """

    def __init__(
        self,
        args: Namespace,
        layer: DataLayerNM,
        factory: NeuralModuleFactory,
        loss: NmTensor,
        evaluated: Mapping[str, tuple[NmTensor, DataLayerNM]],
        loss_with_weights: Callable[[], NmTensor],
    ) -> None:
        self._args, self._factory, self._loss, self._loss_with_weights = args, factory, loss, loss_with_weights
        self._layer = layer if isinstance(layer, SpeechDataLayer) else None
        self._evaluated = {
            tag: (wire, layer) for tag, (wire, layer) in evaluated.items() if isinstance(layer, SpeechDataLayer)
        }
        options = {"lr": args.lr, "weight_decay": args.weight_decay, "betas": args.betas, "ema_decay": args.ema_decay}
        self._optimizer = args.optimizer, options

    def counted(self, shape: BatchShape | None = None) -> StepMemory:
        """The bytes of a step on a batch of this shape; None: on the largest batch that training may read.

        Raises:
            UsageError: they cannot be counted for this model or these data.
        """
        layer = self._speech_layer()
        batch = _shapes_of_batch(layer, shape or layer.largest_shape())
        with _uncountable_refused("a step"):
            return self._factory.step_memory([self._loss], batch, *self._optimizer, self._args.iter_per_step)

    def evaluation_counted(self, tag: str, shape: BatchShape) -> int:
        """The bytes beside weights that the loss of a batch of an evaluation set takes, without the search for texts.

        Raises:
            UsageError: they cannot be counted for this model or these data.
        """
        loss, layer = self._evaluated[tag]
        batch = _shapes_of_batch(layer, shape)
        with _uncountable_refused("an evaluation"):
            return self._factory.evaluation_memory([loss], batch)

    def memory_told(self) -> str:
        """Lines about the memory of the largest batch, in training and of the evaluation set that takes most."""
        if self._layer is None:
            return "memory: not known before the batches are read"
        shape, lines = self._layer.largest_shape(), []
        try:
            step = self.counted(shape)
            lines.append(_step_told(shape, step))
            if self._factory.device.type == "cpu":
                lines.append(f"while a checkpoint is written, {_size(step.kept)} more")
                if step.kernels:
                    lines.append(f"kernels of bfloat16 products keep {_size(step.kernels)} more")
            evaluations = []
            for tag, (_, layer) in self._evaluated.items():
                evaluated = _largest_evaluated(layer)
                taken = step.kept + step.gradients + self.evaluation_counted(tag, evaluated)
                evaluations.append((taken, f"memory of an evaluation of {tag} ({_shape_told(evaluated)})"))
            lines += [f"{told}: {_size(taken)} of tensors" for taken, told in sorted(evaluations)[-1:]]
        except UsageError as error:
            lines.append(f"memory: not known: {error}")
        return "\n".join(lines)

    def batch_told(self, total_steps: int) -> list[str]:
        """Lines: which batch fits, and how long the training takes, of so many steps.

        Raises:
            UsageError: not even one utterance fits, or it is not known.
        """
        args, device, layer = self._args, self._factory.device, self._speech_layer()
        if args.device is None and device.type == "cuda":
            name, size = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
            limit, how = int(size * SHARE_OF_TRIAL), "tried"
            bytes_of = self._trials(layer, limit)
        else:
            name, size = args.device or memory("cpu")
            size //= _processes_here(args) if name == "cpu" else 1
            kept = _WORKSPACES_OF_CPU if name == "cpu" else _WORKSPACES
            limit, how = max(0, int((size - kept) * share_of(name))), "counted by shapes"

            def bytes_of(shape: BatchShape) -> int:
                step = self.counted(shape)
                return step.peak + _copied(name, step)

        buckets, reserved = buckets_of(layer), self._reserved_for_evaluations() if _keeps_freed(name) else 0
        try:
            fits = find(buckets, bytes_of, limit - reserved)
        except UsageError:
            fits = find(buckets, bytes_of, limit)  # then the evaluation is refused below
        lines = [*_told(name, size, limit, fits, how), *self._evaluations_told(name, limit, fits)]
        if args.num_epochs:
            audio = args.num_epochs * float(layer.durations.sum())
        else:
            of_batch = min(args.batch_size * float(layer.durations.mean()), layer.max_batch_seconds or math.inf)
            audio = total_steps * args.iter_per_step * args.num_processes * of_batch
        rate, source = args.rate, "as given"
        records = args.run_dir and args.run_dir / METRICS_FILE
        if rate is None and records and records.is_file():
            rate, source = rate_of(read_metrics(records)), f"measured in {args.run_dir}"
        return [*lines, time_told(audio, rate, source)]

    def _reserved_for_evaluations(self) -> int:
        """Bytes of the evaluation set that takes most, at --eval_batch_size or one item: the steps leave them free."""
        items, most = self._args.eval_batch_size or 1, 0
        for tag, (_, layer) in self._evaluated.items():
            shape = layer.largest_shape()._replace(items=min(items, len(layer)))
            with suppress(UsageError):  # which is told with the evaluations
                most = max(most, self.evaluation_counted(tag, shape))
        return most

    def _evaluations_told(self, name: str, limit: int, fits: Sequence[Fit]) -> list[str]:
        """Lines where the batches that fit in training would not fit in an evaluation."""
        if not self._evaluated:
            return []
        lines: list[str] = []
        most = self._args.eval_batch_size or max(fit.items for fit in fits)
        try:
            if _keeps_freed(name):
                beside = max(fit.bytes for fit in fits)
            else:
                step = self.counted(fits[0].bucket.longest._replace(items=1))
                beside = step.kept + step.gradients + _copied(name, step)
            for tag, (_, layer) in self._evaluated.items():
                longest = _largest_evaluated(layer)

                def of_items(items: int, tag: str = tag, longest: BatchShape = longest) -> int:
                    return beside + self.evaluation_counted(tag, longest._replace(items=items))

                of_set = min(most, len(layer))
                items, taken = largest_batch(of_items, limit, of_set)
                told = f"{longest.seconds:.1f} s of the longest utterance of {tag}"
                if not items:
                    lines.append(f"{told} take {_size(taken)} in an evaluation: shorten it, or leave {tag} out")
                elif items < of_set:
                    most = items
                    lines.append(f"give --eval_batch_size {items}; the {told} decide")
        except UsageError as error:
            lines.append(f"evaluations: {error}")
        return lines

    def _speech_layer(self) -> SpeechDataLayer:
        if self._layer is None:
            remedy = "give manifests"
            raise UsageError("its batches are not known before they are read", place="--find_batch", remedy=remedy)
        return self._layer

    def _trials(self, layer: SpeechDataLayer, limit: int) -> Callable[[BatchShape], int]:
        """What batches take on the GPU, by trying; twice the limit where memory lacks."""
        loss = self._loss_with_weights()

        def tried(shape: BatchShape) -> int:
            batch = _made_up_batch(layer, shape)
            taken = self._factory.tried_bytes([loss], batch, *self._optimizer, self._args.iter_per_step)
            return 2 * limit if taken is None else taken

        return tried


def _processes_here(args: Namespace) -> int:
    """How many processes of the training share this machine's memory; all of them, where the launcher does not say."""
    launch = {name: getattr(args, name) for name in ("local_rank", "launcher", "init_method", "rank", "world_size")}
    process = who_am_i(**launch)
    return 1 if process is None else process.local_world_size or process.world_size


def _largest_evaluated(layer: SpeechDataLayer) -> BatchShape:
    """The largest batch of an evaluation: its items come in order, whatever their seconds."""
    items = layer.batch_size if layer.batch_size > 0 else len(layer)
    return layer.largest_shape()._replace(items=min(items, len(layer)))


def _copied(name: str, step: StepMemory) -> int:
    """The bytes of the copy that a checkpoint is written from, beside the steps: in host memory."""
    return step.kept if name == "cpu" else 0


@contextmanager
def _uncountable_refused(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's, also NotImplementedError: an operator has no form without values
        problem, got = f"the memory of {what} cannot be counted", str(error).splitlines()[0]
        raise UsageError(problem, got=got, remedy="try it on the device") from None


def _made_up_batch(layer: SpeechDataLayer, shape: BatchShape) -> Sequence[Any]:
    batch = layer.made_up_batch(shape)
    if batch is None:
        raise UsageError("its batches are not known before they are read", place=layer.label)
    return batch


def _shapes_of_batch(layer: SpeechDataLayer, shape: BatchShape) -> list[torch.Tensor]:
    """A batch that is one item many times, in the memory of one: a GPU's batch may be larger than this memory."""
    one = _made_up_batch(layer, shape._replace(items=1))
    return [value.expand(shape.items, *value.shape[1:]) for value in one]


def buckets_of(layer: SpeechDataLayer) -> list[Bucket]:
    """Four buckets of as many utterances each, the one with the longest first; fewer where durations are alike."""
    durations = np.asarray(layer.durations, np.float64)
    edges = np.unique(np.quantile(durations, np.linspace(0, 1, NUM_BUCKETS + 1)[1:], method="higher"))
    numbers = np.searchsorted(edges, durations)
    rows = [np.flatnonzero(numbers == bucket) for bucket in range(len(edges))]
    return [Bucket(layer.largest_shape(each), len(each)) for each in reversed(rows) if len(each)]


def largest_batch(bytes_of: Callable[[int], int], limit: int, most: int) -> tuple[int, int]:
    """The most items whose step takes at most ``limit`` bytes, and what it takes; 0 and what one takes: none fits.

    Bytes grow nearly in proportion, so two batches say where to look, and a third whether it is so.

    Args:
        bytes_of: from a number of items to bytes, growing.
        limit: in bytes.
        most: items.
    """
    known = {items: bytes_of(items) for items in dict.fromkeys((1, min(2, most), min(4, most)))}
    if known[1] > limit:
        return 0, known[1]
    while True:
        fitting = max(items for items, taken in known.items() if taken <= limit)
        too_many = min((items for items, taken in known.items() if taken > limit), default=most + 1)
        if fitting >= most or too_many - fitting <= max(1, fitting // 50):
            return fitting, known[fitting]
        (first, of_first), (second, of_second) = sorted(known.items())[-2:]
        if too_many <= most:
            (first, of_first), (second, of_second) = (fitting, known[fitting]), (too_many, known[too_many])
        slope = max((of_second - of_first) / (second - first), 1e-9)
        guess = first + (limit - of_first) / slope
        # Steps, or no growth at the very limit, where a straight line leads nowhere.
        if len(known) % 2 and (too_many <= most or len(known) > 6):
            guess = (fitting + too_many) / 2
        items = int(min(max(guess, fitting + 1), too_many - 1))
        known[items] = bytes_of(items)


def find(buckets: Sequence[Bucket], bytes_of: Callable[[BatchShape], int], limit: int) -> list[Fit]:
    """The largest batch of each bucket; on a terminal a bar tells how far it is.

    Args:
        buckets: the one with the longest utterances first.
        bytes_of: what a step on a batch of a shape takes at its peak.
        limit: bytes that tensors may take.

    Raises:
        UsageError: not even one utterance of the first fits.
    """
    fits, most = [], sum(bucket.utterances for bucket in buckets)
    # A count of a large model takes seconds, and a bucket needs up to ten.
    with tqdm(desc="finding batches", total=len(buckets), unit="bucket", disable=None, leave=False) as bar:
        for bucket in buckets:
            longest = bucket.longest

            def of_items(items: int, longest: BatchShape = longest) -> int:
                bar.set_postfix_str(f"batch of {items}")
                return bytes_of(longest._replace(items=items))

            items, taken = largest_batch(of_items, limit, min(_LARGEST, most))
            if not items:
                got = f"{_size(taken)} for one of {longest.seconds:.1f} s and {counted(longest.labels, 'label')}"
                wanted = f"at most {_size(limit)} of tensors"
                remedy = "a smaller model, --optimizer sgd, shorter utterances (max_duration), or a larger device"
                raise UsageError("not even one utterance fits", got=got, wanted=wanted, remedy=remedy)
            fits.append(Fit(bucket, items, taken))
            bar.update()
    return fits


def _told(name: str, size: int, limit: int, fits: Sequence[Fit], how: str) -> list[str]:
    """The lines of the answer: a table of the buckets, and what to give."""
    lines = [f"largest batch on {name} ({_size(size)}, {_size(limit)} of them for tensors), {how}:"]
    lines.append(f"  {'seconds':>8} {'labels':>7} {'utterances':>10} {'batch':>6} {'memory':>9}")
    for (longest, utterances), items, taken in fits:
        row = f"  {longest.seconds:8.1f} {longest.labels:7} {utterances:10} {items:6} {_size(taken):>9}"
        lines.append(row)
    smallest = min(fits, key=lambda fit: fit.items)
    lines.append(f"give --batch_size {smallest.items}; the longest utterances decide")
    seconds = min(fit.items * fit.bucket.longest.seconds for fit in fits)
    most = max(fit.items for fit in fits)
    if most > smallest.items:
        lines.append(
            f"or, with bucketing: true in the configuration's data layer, max_batch_seconds: {int(seconds)} and "
            f"--batch_size {most}"
        )
    return lines


def _step_told(shape: BatchShape, step: StepMemory) -> str:
    """A line about the memory of a step."""
    rest = step.peak - step.kept
    parts = f"weights {_size(step.weights)}, optimizer {_size(step.optimizer)}, the step {_size(rest)}"
    return f"memory of the largest batch ({_shape_told(shape)}): {_size(step.peak)} of tensors: {parts}"


def _shape_told(shape: BatchShape) -> str:
    return f"{counted(shape.items, 'item')} of {shape.seconds:.1f} s with {counted(shape.labels, 'label')}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / (1 << 20):.0f} MiB"


def time_told(audio_seconds: float, rate: float | None, source: str) -> str:
    """How long the training takes, in a line."""
    if rate is None:
        return "time to the end: not known; give --rate, the seconds of audio that a second trains"
    return (
        f"{duration_text(audio_seconds / rate)} to the end, at {number(rate, 3)} seconds of audio a second ({source})"
    )


def rate_of(records: Iterable[Mapping[str, Any]]) -> float | None:
    """The seconds of audio that a second of a run trained, at its last records; None before them."""
    rates = [float(record["amount_per_second"]) for record in records if record.get("kind") == "train"]
    last = [rate for rate in rates[-10:] if rate > 0]
    return sum(last) / len(last) if last else None
