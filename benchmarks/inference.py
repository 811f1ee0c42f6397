"""Real-time factors of one model in all that runs it: torch, ONNX files of ours, sherpa-onnx, onnx-asr, in one run.

    python benchmarks/inference.py [--config quartznet5x5] [--rounds 5] [--folder files] [--quick]
    python benchmarks/inference.py --model runs/Digits --audio test.json

By default the model has random weights and features that all of them compute, and the recordings are noise of 2 to 8 s.
Each engine gets samples and gives texts. They take turns in each round; the table has medians of seconds on the clock
and of the processor for a second of audio, and the median of the ratios to torch in the same round. What is not
installed, or cannot run the model, is left out with the reason. Exported files stay in --folder for the next run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import nemo_asr
from nemo_asr.export.int8 import quantize
from nemo_asr.export.onnx_asr_export import CONFIG, export_onnx_asr
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.export.runner_export import MODEL
from nemo_asr.export.sherpa_export import TOKENS, export_sherpa, sherpa_features_problem
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.transcribe.inputs import Recording, recordings_of
from nemo_lite import DeviceType, NeuralModuleFactory
from nemo_lite.base.errors import UsageError

# Any: the packages have no types.
Run = Callable[[Sequence[Any], int], object]

BASE, BATCH_SIZES, THREADS = "torch", (1, 16), (1, 2)
_SMALL = "repeat: 4, kernel: [11], stride: [1], dilation: [1], dropout: 0.0, residual: false, separable: true"
QUICKLY = (f"JasperEncoder.jasper=[{{filters: 48, {_SMALL}}}]",)
RUNNERS_FEATURES = ("features=80", "window_size=0.025", "window=hann", "normalize=per_feature", "n_fft=512", "pad_to=0")


class Seconds(NamedTuple):
    """For a second of audio."""

    clock: float
    processor: float


def random_model(config: str, *settings: str) -> Any:
    """A model with random weights, and features that sherpa-onnx and onnx-asr compute."""
    torch.manual_seed(0)
    section = "AudioToMelSpectrogramPreprocessor"
    recipe = nemo_asr.load_recipe(config, [*settings, *(f"{section}.{setting}" for setting in RUNNERS_FEATURES)])
    return nemo_asr.TrainedModel("random", recipe, recipe.model(), nemo_asr.describe(recipe))


def noise(number: int, rate: int) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.normal(0, 0.1, int(rate * seconds)).astype(np.float32) for seconds in np.linspace(2, 8, number)]


def engines(model: Any, folder: Path, threads: int, compiled: bool) -> Iterator[tuple[str, Run | str]]:
    """Each engine by name, or the reason why it is left out."""
    rate = model.card.sample_rate

    def in_torch() -> Run:
        factory = NeuralModuleFactory(placement=DeviceType.CPU)
        return lambda audio, size: model.transcribed(
            audio, audio_rate=rate, batch_size=size, factory=factory, cutting=None
        )

    def in_compiled_torch() -> Run:
        # One for all runs: `transcribed` lowers the DAG in each call, and so would compile in each.
        transcriber = model.batch_transcriber(NeuralModuleFactory(placement=DeviceType.CPU, compile=True))

        def recording(samples: Any) -> Recording:
            return Recording("", samples, rate, seconds=len(samples) / rate)

        return lambda audio, size: [transcriber(list(map(recording, batch))) for batch in batches(audio, size)]

    def in_onnx(path: Path) -> Run:
        loaded = OnnxModel(path, threads=threads)
        return lambda audio, size: loaded.transcribe(audio, size, audio_rate=rate, cutting=None)

    yield BASE, in_torch()
    yield "torch compiled", in_compiled_torch() if compiled else "give --compiled"
    float_file, int8_file = folder / "model.onnx", folder / "model.int8.onnx"
    if not float_file.exists():
        export_onnx(model, float_file)
    if not int8_file.exists():
        quantize(float_file, int8_file)
    yield "nemo_lite ONNX", in_onnx(float_file)
    yield "nemo_lite int8", in_onnx(int8_file)
    yield "sherpa-onnx", _sherpa(model, folder / "sherpa-onnx", threads)
    yield "onnx-asr", _onnx_asr(model, folder / "onnx-asr", threads)


def _sherpa(model: Any, folder: Path, threads: int) -> Run | str:
    try:
        import sherpa_onnx
    except ImportError as error:
        return f"{error.name} is not installed"
    rate = model.card.sample_rate
    try:
        if not folder.exists():
            export_sherpa(model, folder)
    except UsageError as error:
        return str(error)
    files = {"model": str(folder / MODEL), "tokens": str(folder / TOKENS), "num_threads": threads}
    if sherpa_features_problem(model.modules.preprocessor):
        recognizer = sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(**files)
    else:
        dim = model.modules.preprocessor.num_features
        recognizer = sherpa_onnx.OfflineRecognizer.from_nemo_ctc(**files, feature_dim=dim, sample_rate=rate)

    def run(audio: Sequence[Any], size: int) -> object:
        texts = []
        for batch in batches(audio, size):
            streams = [recognizer.create_stream() for _ in batch]
            for stream, samples in zip(streams, batch, strict=True):
                stream.accept_waveform(rate, samples)
            recognizer.decode_streams(streams)
            texts += [stream.result.text for stream in streams]
        return texts

    return run


def _onnx_asr(model: Any, folder: Path, threads: int) -> Run | str:
    try:
        import onnx_asr
        import onnxruntime
    except ImportError as error:
        return f"{error.name} is not installed"
    try:
        if not (folder / CONFIG).exists():
            export_onnx_asr(model, folder)
    except UsageError as error:
        return str(error)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    loaded = onnx_asr.load_model("nemo-conformer-ctc", folder, sess_options=options, providers=["CPUExecutionProvider"])
    return lambda audio, size: [loaded.recognize(batch) for batch in batches(audio, size)]


def batches(audio: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Recordings of similar length together."""
    ordered = sorted(audio, key=len)
    for first in range(0, len(ordered), size):
        yield ordered[first : first + size]


def measured(run: Run, audio: Sequence[Any], size: int, seconds: float) -> Seconds:
    clock, processor = time.perf_counter(), time.process_time()
    run(audio, size)
    return Seconds((time.perf_counter() - clock) / seconds, (time.process_time() - processor) / seconds)


def compare(chosen: dict[str, Run], audio: Sequence[Any], seconds: float, rounds: int, threads: int) -> None:
    """Print a row for each engine and batch size."""
    found: dict[tuple[int, str], list[Seconds]] = {(size, name): [] for size in BATCH_SIZES for name in chosen}
    for size, name in found:
        chosen[name](audio, size)
    for _ in range(rounds):
        for (size, name), figures in found.items():
            figures.append(measured(chosen[name], audio, size, seconds))
    for (size, name), figures in found.items():
        base = found[size, BASE]
        medians = [statistics.median(column) for column in zip(*figures, strict=True)]
        ratios = [
            statistics.median(ours / theirs for ours, theirs in zip(column, other, strict=True))
            for column, other in zip(zip(*figures, strict=True), zip(*base, strict=True), strict=True)
        ]
        row = "  ".join(f"{median:>9.5f}  {ratio:>5.2f}" for median, ratio in zip(medians, ratios, strict=True))
        print(f"{threads:>7}  {size:>5}  {name:<14}  {row}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Real-time factors of one model in all that runs it")
    parser.add_argument("--config", default="quartznet5x5", help="of the model with random weights")
    parser.add_argument("--model", help="a trained one in its place")
    parser.add_argument("--audio", nargs="+", help="recordings in the place of noise")
    parser.add_argument("--most", type=int, default=32, help="recordings at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=list(THREADS))
    parser.add_argument("--folder", type=Path, help="where exported files are kept")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, which takes minutes")
    parser.add_argument("--quick", action="store_true", help="a small model, few recordings; the figures mean nothing")
    args = parser.parse_args()
    if args.model:
        model = nemo_asr.load_model(args.model)
    else:
        model = random_model("demo", *QUICKLY) if args.quick else random_model(args.config)
    rate = model.card.sample_rate
    if args.audio:
        audio = [recording.read(rate).samples for recording in recordings_of(args.audio)[: args.most]]
    else:
        audio = noise(2 if args.quick else args.most, rate)
    seconds = sum(map(len, audio)) / rate
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for number, threads in enumerate(args.threads[: 1 if args.quick else None]):
            torch.set_num_threads(threads)
            each = dict(engines(model, folder, threads, args.compiled))
            if not number:
                for name, reason in each.items():
                    if isinstance(reason, str):
                        print(f"without {name}: {reason}")
                print(f"{'threads':>7}  {'batch':>5}  {'':<14}  {'clock':>9}  ratio  {'processor':>9}  ratio")
            compare({name: run for name, run in each.items() if callable(run)}, audio, seconds, args.rounds, threads)


if __name__ == "__main__":
    main()
