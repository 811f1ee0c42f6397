"""Memory and time of transducers' losses on a CPU: the joint in slices, beside the whole joint, in the same run.

    python benchmarks/transducer_memory.py [--rounds 3] [--vocabularies 1025 8193] [--batches 2 8] [--slices 10 100]
                                           [--flat] [--quick]

A case is forward and backward of TDT's loss with five durations, 188 frames, 60 labels and 640 hidden units, in a
process of its own: the most memory beyond inputs and weights, and CPU time, the least of the rounds. The ways:

    whole         joint and softmax of all nodes at once, by torch's gradients; nemo_asr's lattice
    by utterance  the same for one utterance after the other, all graphs kept: NeMo's fused_batch_size 1
    sliced        what nemo_asr does; with --slices also with slices of so many MB
    transformers  the whole joint and TDT's loss of Hugging Face's transformers, where that is installed

With --flat the loss is RNNT's and all outputs are equally probable: the case in which the fewest nodes are negligible,
which the backward pass leaves out.

Freed memory is given back to the system at once (MALLOC_MMAP_THRESHOLD_), else its fragments would be measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_asr.models.transducer.lattice import Durations, lattice_losses
from nemo_asr.models.transducer.sliced_joint import Kept, sliced_losses

NUM_FRAMES, NUM_LABELS, HIDDEN, NUM_DURATIONS = 188, 60, 640, 5
TDT, RNNT = Durations(range(NUM_DURATIONS), range(NUM_DURATIONS)), Durations((1,), (0,))
WAYS = ("whole", "by utterance", "sliced", "transformers")
SLICES_OF = "slices of "  # MB


class Case:
    """The inputs of one batch. ``vocabulary``: the labels and the blank, which is the last one."""

    def __init__(self, vocabulary: int, batch: int, num_frames: int = NUM_FRAMES, is_flat: bool = False) -> None:
        torch.manual_seed(0)
        self.vocabulary, self.is_flat = vocabulary, is_flat
        self.joint_net = nn.Sequential(nn.ReLU(), nn.Linear(HIDDEN, vocabulary + (0 if is_flat else NUM_DURATIONS)))
        if is_flat:
            for parameter in self.joint_net.parameters():
                nn.init.normal_(parameter, std=1e-3)
        self.frames = torch.randn(batch, num_frames, HIDDEN, requires_grad=True)
        self.states = torch.randn(batch, NUM_LABELS + 1, HIDDEN, requires_grad=True)
        self.labels = torch.randint(0, vocabulary - 1, (batch, NUM_LABELS))
        self.num_frames, self.num_labels = torch.full((batch,), num_frames), torch.full((batch,), NUM_LABELS)
        label = F.pad(self.labels, (0, 1))
        self.columns = torch.stack([torch.full_like(label, vocabulary - 1), label], 2)

    def lattice(self, kept: Tensor, items: slice = slice(None)) -> Tensor:
        """Log-probabilities of blank, label and durations -> losses."""
        blank, label, duration = kept[..., :1], kept[..., 1:2], kept[..., 2:]
        ends = self.num_frames[items], self.num_labels[items]
        if self.is_flat:
            return lattice_losses(blank, label, *ends, RNNT)
        return lattice_losses(blank + duration, label + duration, *ends, TDT)

    def whole(self, items: slice = slice(None)) -> Tensor:
        """The losses of some items, over all logits of theirs."""
        logits = self.joint_net(self.frames[items].unsqueeze(2) + self.states[items].unsqueeze(1))
        columns = self.columns[items].unsqueeze(1).expand(-1, logits.shape[1], -1, -1)
        tokens = logits[..., : self.vocabulary].log_softmax(-1).gather(-1, columns)
        if not self.is_flat:
            tokens = torch.cat([tokens, logits[..., self.vocabulary :].log_softmax(-1)], -1)
        return self.lattice(tokens, items)

    def by_utterance(self) -> Tensor:
        """The losses of all items, one after the other."""
        return torch.cat([self.whole(slice(item, item + 1)) for item in range(len(self.frames))])

    def sliced(self, slice_bytes: int | None = None) -> Tensor:
        """The losses over slices of the joint."""
        kept = Kept(self.columns, self.vocabulary)
        return sliced_losses(self.frames, self.states, self.joint_net, kept, self.lattice, slice_bytes=slice_bytes)

    def transformers(self) -> Tensor:
        """The losses of Hugging Face's package."""
        loss_tdt: Any = importlib.import_module("transformers.loss.loss_tdt")
        if self.is_flat:
            raise NotImplementedError("there is no such loss without further packages")
        logits = self.joint_net(self.frames.unsqueeze(2) + self.states.unsqueeze(1))
        both = logits[..., : self.vocabulary], logits[..., self.vocabulary :]
        ends = self.num_frames, self.num_labels
        losses: Tensor = loss_tdt.tdt_loss(*both, self.labels, *ends, self.vocabulary - 1, [*TDT.labels], 0.0, "none")
        return losses

    def way(self, name: str) -> Callable[[], Tensor]:
        """What computes the losses."""
        if name.startswith(SLICES_OF):
            return partial(self.sliced, int(float(name.removeprefix(SLICES_OF)) * 1e6))
        ways: dict[str, Callable[[], Tensor]] = {
            "whole": self.whole,
            "by utterance": self.by_utterance,
            "sliced": self.sliced,
            "transformers": self.transformers,
        }
        return ways[name]


def peak_bytes() -> int:
    """The most that was asked for: what is resident is less where the kernel takes idle pages back."""
    (line,) = (line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if "VmPeak" in line)
    return int(line.split()[1]) * 1024


def measured(
    name: str, vocabulary: int, batch: int, num_frames: int, rounds: int, is_flat: bool = False
) -> dict[str, float]:
    """In this process: bytes beyond what was there, seconds of CPU, and the sum of the losses."""
    torch.set_num_threads(1)
    small = Case(17, 1, 4, is_flat)  # what torch loads at a first use counts not
    torch.autograd.backward(small.way(name)().sum())
    case = Case(vocabulary, batch, num_frames, is_flat)
    before, seconds = peak_bytes(), []
    for _ in range(rounds):
        for tensor in (case.frames, case.states, *case.joint_net.parameters()):
            tensor.grad = None
        start = time.process_time()
        losses = case.way(name)()
        torch.autograd.backward(losses.sum())
        seconds.append(time.process_time() - start)
    return {"bytes": peak_bytes() - before, "seconds": min(seconds), "loss": float(losses.detach().sum())}


def in_own_process(
    name: str, vocabulary: int, batch: int, num_frames: int, rounds: int, is_flat: bool = False
) -> dict[str, float] | None:
    """The same in a new process; None where the way is not installed or ran out of memory."""
    case = json.dumps([name, vocabulary, batch, num_frames, rounds, is_flat])
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--case", case], env=environment, capture_output=True, text=True, check=False
    )
    found: dict[str, float] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[1025, 8193], help="labels and the blank")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--slices", type=float, nargs="+", default=[], metavar="MB", help="further sizes of slices")
    parser.add_argument("--flat", action="store_true", help="RNNT, all outputs equally probable")
    parser.add_argument("--quick", action="store_true", help="four frames; the figures mean nothing")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measured(*json.loads(options.case))))
        return
    num_frames = 4 if options.quick else NUM_FRAMES
    print(f"torch {torch.__version__}, {num_frames} frames x {NUM_LABELS} labels, {HIDDEN} hidden units, one thread")
    for vocabulary in options.vocabularies:
        for batch in options.batches:
            outputs = f"{vocabulary} outputs, flat" if options.flat else f"{vocabulary} + {NUM_DURATIONS} outputs"
            print(f"\n{outputs}, batch {batch}")
            first = None
            for way in [*options.ways, *(f"{SLICES_OF}{size:g}" for size in options.slices)]:
                found = in_own_process(way, vocabulary, batch, num_frames, options.rounds, options.flat)
                if found is None:
                    print(f"  {way:13} not measured")
                    continue
                first = first or found
                ratio = found["seconds"] / first["seconds"]
                figures = f"{found['bytes'] / 1e6:8.0f} MB {found['seconds']:7.2f} s {ratio:6.2f}"
                print(f"  {way:13} {figures}   losses {found['loss']:.3f}")


if __name__ == "__main__":
    main()
