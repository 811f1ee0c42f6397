"""Depthwise convolutions on CPU, forward and backward: what nemo_asr does, against other ways in the same run.

    python benchmarks/depthwise.py [--rounds 7] [--bf16] [--quick]

Prints milliseconds of CPU time (medians of interleaved rounds, one thread) and the ratio to conv1d, for single
convolutions and for a QuartzNet block of five separable ones with its residual. ``--bf16``: under bfloat16 autocast.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.jasper import Frames, JasperBlock, JasperBlockSpec, TimeConv1d

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from toys.plain_operations import plainly

SHAPES = [(16, 256, 33, 400), (16, 96, 11, 400), (4, 512, 75, 400)]  # utterances, channels, taps, frames
QUICK_SHAPES = [(2, 16, 11, 40)]
Run = Callable[[], object]


def padding_of(conv: TimeConv1d) -> int:
    """Of the frames, on each side; Conv1d also takes names such as "same", which Jasper does not use."""
    assert not isinstance(conv.padding, str)
    return conv.padding[0]


def conv1d(x: Tensor, conv: TimeConv1d) -> Tensor:
    return F.conv1d(x, conv.weight, None, 1, conv.padding, 1, conv.groups)


def conv2d_channels_last(x: Tensor, conv: TimeConv1d) -> Tensor:
    image = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
    return F.conv2d(image, conv.weight.unsqueeze(2), None, 1, (0, padding_of(conv)), 1, conv.groups).squeeze(2)


def fft(x: Tensor, conv: TimeConv1d) -> Tensor:
    num_frames, num_taps = x.shape[2], conv.weight.shape[2]
    size = -(-(num_frames + num_taps - 1) // 60) * 60  # a product of small primes, where FFTs are fast
    product = torch.fft.rfft(x.float(), size) * torch.fft.rfft(conv.weight[:, 0].float().flip(1), size)
    signal: Tensor = torch.fft.irfft(product, size)
    return signal[..., padding_of(conv) : padding_of(conv) + num_frames]


def nemo_asr(x: Tensor, conv: TimeConv1d) -> Tensor:
    out: Tensor = conv(x)
    return out


def step(function: Callable[[Tensor], Tensor], x: Tensor, autocast: bool) -> Run:
    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            out = function(x)
        out.backward(torch.ones_like(out))

    return run


def report(title: str, runs: dict[str, Run], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    medians = {name: 1e3 * statistics.median(values[1:]) for name, values in seconds.items()}
    print(f"\n{title}")
    for name, median in medians.items():
        print(f"  {name:22} {median:9.1f} ms {median / next(iter(medians.values())):7.2f}")


def plain(block: JasperBlock) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        with plainly():
            return ours(block)(x)

    return forward


def ours(block: JasperBlock) -> Callable[[Tensor], Tensor]:
    return lambda x: block([x], Frames(torch.linspace(x.shape[2] // 2, x.shape[2], len(x)).long()))[0][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a small shape; the figures mean nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {'bfloat16 autocast' if options.bf16 else 'float32'}")
    for num_utterances, channels, taps, num_frames in QUICK_SHAPES if options.quick else SHAPES:
        x = torch.randn(num_utterances, channels, num_frames, requires_grad=True)
        conv = TimeConv1d(channels, channels, taps, groups=channels)
        ways = (conv1d, conv2d_channels_last, fft, nemo_asr)
        title = f"{num_utterances} utterances x {channels} channels x {num_frames} frames, {taps} taps"
        single = {way.__name__: step(lambda x, way=way, conv=conv: way(x, conv), x, options.bf16) for way in ways}
        report(title, single, options.rounds)
        spec = JasperBlockSpec(channels, 5, taps, 1, 1, dropout=0.0, residual=True, separable=True)
        block = JasperBlock(channels, spec, activation=nn.ReLU())
        # Inside a network, a block of either kind is given what the block before it made.
        time_major = x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
        blocks = {
            "conv1d": step(plain(block), x, options.bf16),
            "nemo_asr": step(ours(block), time_major, options.bf16),
        }
        report(f"block of 5: {title}", blocks, options.rounds)


if __name__ == "__main__":
    main()
