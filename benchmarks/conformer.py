"""A training step of Conformer encoders on CPU: what nemo_asr does, against plain torch and NeMo's class, in one run.

    python benchmarks/conformer.py [--rounds 5] [--layers 4] [--quick]
    NEMO_SOURCE=/tmp/nemo python benchmarks/conformer.py     # also NVIDIA's own class: see tests/toys/nemo_source.py

Prints seconds of CPU time for forward and backward (medians of interleaved rounds, one thread), the ratio to nemo_asr,
and how much memory a step adds to a fresh process. Plain: the same module with torch's operations for any device.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_asr.models.conformer import ConformerEncoder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from toys.nemo_source import HAS_NEMO, nemo_module
from toys.plain_operations import plainly

COMMON: Mapping[str, Any] = {"feat_in": 80, "dropout_att": 0.1, "dropout_emb": 0.0}
DW_STRIDING = {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 256}
ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "Conformer medium": {"d_model": 256},
    "FastConformer large": {"d_model": 512, "n_heads": 8, "conv_kernel_size": 9, **DW_STRIDING},
}
FORMS = ["nemo_asr", "plain", *["NeMo"] * HAS_NEMO]
NUM_UTTERANCES, NUM_FRAMES = 4, 1_000  # 10 s each; they are 7 to 10 s long


def step_of(form: str, arguments: Mapping[str, Any], num_utterances: int, num_frames: int) -> Callable[[], None]:
    torch.manual_seed(0)
    is_nemo = form == "NeMo"
    made = nemo_module("modules.conformer_encoder").ConformerEncoder if is_nemo else ConformerEncoder
    encoder: nn.Module = made(**COMMON, **arguments)
    features = torch.randn(num_utterances, COMMON["feat_in"], num_frames)
    lengths = torch.linspace(0.7 * num_frames, num_frames, num_utterances).long()

    def run() -> None:
        with plainly() if form == "plain" else nullcontext():
            encoded: Tensor = encoder(audio_signal=features, length=lengths)[0]
            encoded.square().mean().backward()
        for parameter in encoder.parameters():
            parameter.grad = None

    return run


def added_memory(form: str, arguments: Mapping[str, Any], num_utterances: int, num_frames: int) -> float:
    """MB that the first step of a process adds to its peak. To be called in a process of its own."""
    torch.set_num_threads(1)
    step = step_of(form, arguments, num_utterances, num_frames)
    before = peak_memory()
    step()
    return peak_memory() - before


def peak_memory() -> float:
    """MB of this process. Not ``ru_maxrss``, which begins with that of the process that started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="small encoders; the figures mean nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {options.layers} layers, {NUM_UTTERANCES} utterances of 7 to 10 s")
    for title, arguments in ENCODERS.items():
        arguments = {**arguments, "n_layers": options.layers}
        if options.quick:
            arguments |= {"d_model": 16, "n_layers": 1, "subsampling_conv_channels": 8}
        sizes = (2, 100) if options.quick else (NUM_UTTERANCES, NUM_FRAMES)
        steps = {form: step_of(form, arguments, *sizes) for form in FORMS}
        seconds: dict[str, list[float]] = {form: [] for form in FORMS}
        for _ in range(options.rounds + 1):
            for form, step in steps.items():
                start = time.process_time()
                step()
                seconds[form].append(time.process_time() - start)
        medians = {form: statistics.median(values[1:]) for form, values in seconds.items()}
        print(f"\n{title}{'':{24 - len(title)}} seconds  ratio  memory of a step")
        for form, median in medians.items():
            # A new process holds no memory that a step could use again. To start one takes seconds.
            method = "fork" if options.quick else "spawn"
            with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as process:
                memory = process.submit(added_memory, form, arguments, *sizes).result()
            print(f"  {form:20} {median:9.3f} {median / medians['nemo_asr']:7.2f} {memory:9.0f} MB")


if __name__ == "__main__":
    main()
