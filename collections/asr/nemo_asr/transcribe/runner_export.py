"""A trained model as files that other programs run: sherpa-onnx, onnx-asr, and torch without this package.

Each program has a layout: names of files, inputs and outputs, metadata, and features of its own. A model whose features
are others is refused, or takes the waveform where the program can give it. Our own ONNX file: `onnx_export`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.audio.reading import Samples
from nemo_asr.data.utterances import audio_ports
from nemo_asr.decoding.greedy import post_process_predictions
from nemo_asr.features import (
    AudioPreprocessor,
    AudioToMelSpectrogramPreprocessor,
    centred,
    mel_filterbank,
    window_function,
)
from nemo_asr.tasks.families import Wires, connect
from nemo_asr.text.labels import WORD_MARK
from nemo_asr.transcribe.engine import StandIn, stride_of
from nemo_asr.transcribe.model import TrainedModel
from nemo_asr.transcribe.onnx_export import TOLERANCE, Comparison, compare, compared_batches, metadata_of
from nemo_asr.transcribe.stream_export import StreamedParts
from nemo_lite.backends.pytorch.export import Argument, OnnxRun, evaluated_part, reason_of, write_onnx
from nemo_lite.backends.pytorch.streaming import State
from nemo_lite.errors import FileInTheWayError, UsageError
from nemo_lite.files import check_replaceable, make_writable_folder, refuse_existing, temporary_name, write_atomically

# Any: packages that may be missing have no types.

BLANK, SHERPA = "<blk>", "sherpa-onnx"
MODEL, TOKENS, VOCABULARY, CONFIG = "model.onnx", "tokens.txt", "vocab.txt", "config.json"
METADATA = "metadata.json"
SHERPA_WAVEFORM_FRAME = 0.02
"""Seconds of a frame in sherpa-onnx's times where a model takes the waveform, whatever the model's are."""
SHERPA_STREAM_FRAME = 0.04
"""The same of streams."""
_SHERPA_LEAST_VARIANCE = 1e-5  # what it adds to the variance of a waveform before it divides by its root
_FEATURE_FRAMES = (57, 131)  # of the two rows of an example
_SAMPLES = 23_456
_SHERPA_LEAST_LOGARITHM = math.log(torch.finfo(torch.float32).eps) + 1e-4
_CHUNKS = 12
_NO_END = 1 << 40  # frames to the end of a recording, of which nothing is known
_SEED = 11


@dataclass(frozen=True)
class Written:
    """A folder for another program.

    Attributes:
        folder: of the files.
        difference: the largest one between a log-probability of the file, in ONNX Runtime, and of torch.
        package: the program, as pip calls it.
        loader: what loads the model, in its Python package.
        arguments: of the loader.
        before, behind: zero samples that its user has to put before and behind the audio.
        advice: what its user has to know.
    """

    folder: Path
    difference: float
    package: str
    loader: str
    arguments: Mapping[str, Any]
    before: int = 0
    behind: int = 0
    advice: Sequence[str] = ()

    @property
    def module(self) -> str:
        """The program's Python package."""
        return self.package.replace("-", "_")

    def __str__(self) -> str:
        """How the program loads it."""
        return (
            f"{self.module}.{self.loader}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"
        )

    def hear(self, recordings: Sequence[Samples], sample_rate: int) -> list[str] | None:
        """The texts that the program itself gives; None: it is not installed.

        sherpa-onnx ends the process where it finds a mistake in a file.
        """
        if find_spec(self.module) is None:
            return None
        model = attrgetter(self.loader)(import_module(self.module))(**self.arguments)
        ends = np.zeros(self.before, np.float32), np.zeros(self.behind, np.float32)
        texts = [self._text(model, np.concatenate([ends[0], samples, ends[1]]), sample_rate) for samples in recordings]
        return [" ".join(text.split()) for text in texts]

    def _text(self, model: Any, samples: Samples, sample_rate: int) -> str:
        if self.module == "onnx_asr":
            return str(model.recognize(samples, sample_rate=sample_rate))
        stream = model.create_stream()
        stream.accept_waveform(sample_rate, samples)
        if "Online" not in self.loader:
            model.decode_stream(stream)
            return str(stream.result.text)
        while model.is_ready(stream):
            model.decode_stream(stream)
        return str(model.get_result(stream))


# What programs compute themselves: features, and how many frames of the output they read.


def sherpa_features_problem(preprocessor: object) -> str:
    """Why a model cannot take the features that sherpa-onnx computes for NeMo's models; empty if it can."""
    if not isinstance(preprocessor, AudioToMelSpectrogramPreprocessor):
        return f"they are those of {type(preprocessor).__name__}"
    rate = preprocessor.sample_rate
    window, hop = rate * 25 // 1000, rate // 100
    if (preprocessor.win_length, preprocessor.hop_length) != (window, hop):
        seconds = preprocessor.win_length / rate, preprocessor.hop_length / rate
        return "windows have {:g} s every {:g} s, not 0.025 s every 0.01 s".format(*seconds)
    size = 1 << (window - 1).bit_length()
    hann = centred(window_function("hann", window, periodic=False), size)
    if preprocessor.n_fft != size or not torch.equal(preprocessor.window.cpu(), hann):
        return f"the window is no symmetric Hann window in n_fft {size}"
    bands = mel_filterbank(rate, size, preprocessor.num_features, 0.0, rate / 2).t()
    if not torch.equal(preprocessor.filters.cpu(), bands):
        return "mel bands do not go from 0 Hz to half the sample rate"
    if preprocessor.preemph != 0.97 or preprocessor.mag_power != 2.0 or not preprocessor.log:
        return "they are no logarithms of powers behind a pre-emphasis of 0.97"
    return "" if preprocessor.frame_splicing == 1 else f"frame_splicing is {preprocessor.frame_splicing}"


def onnx_asr_features_problem(preprocessor: object) -> str:
    """Why a model cannot take the features that onnx-asr computes for NeMo's models; empty if it can."""
    if problem := sherpa_features_problem(preprocessor):
        return problem
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    if preprocessor.sample_rate != 16_000 or preprocessor.num_features not in (80, 128):
        return f"{preprocessor.num_features} bands at {preprocessor.sample_rate} Hz, not 80 or 128 at 16000 Hz"
    return "" if preprocessor.normalization == "per_feature" else "they are not normalised per_feature"


def sherpa_powers(features: Tensor) -> Tensor:
    """The powers of which sherpa-onnx has taken logarithms.

    Where it has raised them to the least one, they were about 0: that is what the model heard in training, and a band
    without signal is divided by a very small deviation.
    """
    return torch.where(features > _SHERPA_LEAST_LOGARITHM, features.exp(), 0.0)


class _Stretched(nn.Module):
    """From features (B, D, T) to log-probabilities (B, T, classes): as many frames out as in.

    Programs compute the number of frames from a factor, each rounding in its own way, and lose the last one. A frame
    that is repeated means the same to CTC, so none is lost and times are right with the factor 1.

    Args:
        rest: the model behind its features.
        preprocessor: finishes powers of mel bands of which logarithms come; None: what comes are the features.
    """

    def __init__(self, rest: nn.Module, preprocessor: AudioPreprocessor | None) -> None:
        super().__init__()
        self.rest, self.preprocessor = rest, preprocessor

    def forward(self, audio_signal: Tensor, length: Tensor) -> Tensor:
        """Log-probabilities of frames behind an utterance have no meaning."""
        features = audio_signal
        if self.preprocessor is not None:
            features = self.preprocessor.of_bands(sherpa_powers(audio_signal), length)
        log_probs, frames = self.rest(features, length)
        positions = torch.arange(audio_signal.shape[2], device=length.device)
        sources = positions * frames.unsqueeze(1) // length.clamp(min=1).unsqueeze(1)
        sources = torch.minimum(sources, (frames - 1).clamp(min=0).unsqueeze(1))
        stretched: Tensor = log_probs.gather(1, sources.unsqueeze(2).expand(-1, -1, log_probs.shape[2]))
        return stretched


class _OfNormalizedWaveform(nn.Module):
    """From a waveform (1, T) as sherpa-onnx scales it, to log-probabilities (1, U, classes) every 0.02 s.

    It subtracts the mean and divides by ``sqrt(variance + 1e-5)``. So the variance of what comes tells the scale: if it
    is v, the root was that of ``1e-5 / (1 - v)``.

    Args:
        whole: the model, from a waveform and its length.
        repeats: how many times 0.02 s a frame lasts.
    """

    def __init__(self, whole: nn.Module, repeats: int) -> None:
        super().__init__()
        self.whole, self.repeats = whole, repeats

    def forward(self, x: Tensor) -> Tensor:
        """Frames behind the recording are blanks."""
        values = x.double()
        variance = values.square().mean(1, keepdim=True) - values.mean(1, keepdim=True).square()
        # A full-scale square wave, the loudest that there is, has the variance 1.
        scale = (_SHERPA_LEAST_VARIANCE / (1.0 - variance).clamp(_SHERPA_LEAST_VARIANCE / 2, 1.0)).sqrt().float()
        length = torch.full((1,), x.shape[1], dtype=torch.int64, device=x.device)
        log_probs, frames = self.whole(x * scale, length)
        is_valid = torch.arange(log_probs.shape[1], device=x.device)[None, :, None] < frames[:, None, None]
        padded = torch.where(is_valid, log_probs, _blank(log_probs.shape[2]))
        return padded.unsqueeze(2).expand(-1, -1, self.repeats, -1).flatten(1, 2)


def _blank(num_classes: int) -> Tensor:
    """Log-probabilities (classes,) of a frame that is nothing but blank."""
    return F.one_hot(torch.tensor(num_classes - 1), num_classes).float().log().clamp(min=-1e4)


# The model and its parts.


@dataclass(frozen=True)
class _Parts:
    """The wires of a model, and what programs have to know of it."""

    model: TrainedModel
    wires: Wires

    @classmethod
    def of(cls, model: TrainedModel) -> _Parts:
        wires = connect(model.modules, StandIn(audio_ports(model.card.sample_rate)))
        if wires.log_probs is None or wires.features is None or wires.feature_lengths is None:
            # The place of transducers: their encoder, decoder and joiner are files of their own.
            problem, got = "only CTC models have a layout for other programs", model.modules.family
            raise UsageError(problem, place=model.place, got=got, remedy="transcribe with the model folder")
        return cls(model, wires)

    @property
    def outputs(self) -> list[Any]:
        return [self.wires.log_probs, self.wires.log_probs_lengths]

    def whole(self) -> AbstractContextManager[nn.Module]:
        """(B, samples) and (B,) to log-probabilities and their lengths, in evaluation mode."""
        return evaluated_part(self.outputs)

    def rest(self) -> AbstractContextManager[nn.Module]:
        """The same from features and their lengths."""
        wires = self.wires
        assert wires.features is not None
        assert wires.feature_lengths is not None
        return evaluated_part(self.outputs, [wires.features, wires.feature_lengths])

    @property
    def frame_seconds(self) -> float:
        """Of a frame of log-probabilities; 0 where it is not known."""
        assert self.wires.log_probs is not None
        return (stride_of(self.wires.log_probs) or 0) / self.model.card.sample_rate


def greedy_texts(model: TrainedModel, recordings: Sequence[Samples]) -> list[str]:
    """The text of each recording for itself, by greedy decoding, which is what other programs do too."""
    texts = []
    with _Parts.of(model).whole() as whole:
        for samples in recordings:
            log_probs, frames = whole(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
            (text,) = post_process_predictions([log_probs.argmax(2)], model.card.labels, [frames])
            texts.append(" ".join(text.split()))
    return texts


def symbols_of(labels: Sequence[str], place: str) -> str:
    """``tokens.txt`` and ``vocab.txt``: a symbol and its number a line, the blank last.

    Raises:
        UsageError: a label that such a line cannot hold.
    """
    symbols = [label.replace(" ", WORD_MARK) for label in labels]
    for label, symbol in zip(labels, symbols, strict=True):
        if symbol == BLANK or not symbol or symbol.split() != [symbol] or symbols.count(symbol) > 1:
            raise UsageError("a label cannot be a symbol of other programs", place=place, got=repr(label))
    return "".join(f"{symbol} {number}\n" for number, symbol in enumerate([*symbols, BLANK]))


# sherpa-onnx.


def export_sherpa(model: TrainedModel, folder: str | Path, waveform: bool | None = None) -> Written:
    """Write ``model.onnx`` and ``tokens.txt`` as sherpa-onnx reads them.

    Args:
        model: a CTC model; it is left as it was.
        folder: there must be none yet.
        waveform: the file takes the waveform, and computes the features itself; None: only where sherpa-onnx computes
            other features than the model's.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or the file gives other log-probabilities than torch.
    """
    parts, card = _Parts.of(model), model.card
    problem = sherpa_features_problem(model.modules.preprocessor)
    if waveform is False and problem:
        remedy = "leave out waveform=False: the file computes the features itself then"
        raise UsageError("sherpa-onnx computes other features", place=model.place, got=problem, remedy=remedy)
    tokens = symbols_of(card.labels, model.place)
    write = _write_sherpa_waveform if problem or waveform else _write_sherpa_features
    with _new_folder(folder) as (new, place):
        (new / TOKENS).write_text(tokens, encoding="utf-8")
        written = write(parts, new / MODEL, place)
    return written


def _sherpa_files(place: Path) -> dict[str, Any]:
    return {"model": str(place / MODEL), "tokens": str(place / TOKENS)}


def _write_sherpa_waveform(parts: _Parts, path: Path, place: Path) -> Written:
    rate = parts.model.card.sample_rate
    if rate != 16_000:
        remedy = "train with sample_rate: 16000, or with the features of sherpa-onnx"
        raise UsageError("sherpa-onnx gives waveforms of 16000 Hz", got=f"{rate} Hz", remedy=remedy)
    times = parts.frame_seconds / SHERPA_WAVEFORM_FRAME
    repeats = max(round(times), 1)
    advice = []
    if abs(times - repeats) > 1e-6:
        advice.append(f"multiply its times by {times / repeats:g}: it takes a frame for {SHERPA_WAVEFORM_FRAME} s")
    generator = torch.Generator().manual_seed(_SEED)
    example = F.normalize(torch.randn(1, _SAMPLES, generator=generator)) * (0.99 * _SAMPLES) ** 0.5
    with parts.whole() as whole:
        module = _OfNormalizedWaveform(whole, repeats).eval()
        metadata = _described(parts.model, "waveform") | {"sample_rate": str(rate)}
        # The batch is always 1.
        argument = Argument("x", example, {1: "num_samples"})
        difference = _write(module, [argument], ["log_probs"], path, metadata, [(example,), (example[:, :9000],)])
    loader = "OfflineRecognizer.from_omnilingual_asr_ctc"
    return Written(place, difference, SHERPA, loader, _sherpa_files(place), advice=advice)


def _write_sherpa_features(parts: _Parts, path: Path, place: Path) -> Written:
    model = parts.model
    preprocessor = model.modules.preprocessor
    assert isinstance(preprocessor, AudioPreprocessor)
    metadata = _described(parts.model, "features") | {
        "model_type": "EncDecCTCModel",
        "vocab_size": str(len(model.card.labels)),
        "subsampling_factor": "1",  # see _Stretched
        "normalize_type": "",  # in the file
    }
    with parts.rest() as rest:
        difference = _write_features(_Stretched(rest, preprocessor), preprocessor, "log_probs", path, metadata)
    arguments = _sherpa_files(place) | _sherpa_features(preprocessor)
    half = preprocessor.hop_length // 2
    return Written(place, difference, SHERPA, "OfflineRecognizer.from_nemo_ctc", arguments, before=half)


def _sherpa_features(preprocessor: AudioPreprocessor) -> dict[str, Any]:
    rate = preprocessor.sample_rate
    return {"feature_dim": preprocessor.num_features} | ({} if rate == 16_000 else {"sample_rate": rate})


class _StreamCheck:
    """Compares a file with the modules in torch, whose states grow, chunk after chunk."""

    def __init__(self, module: _SherpaChunk, features: Tensor, length: Tensor, caches: Sequence[Tensor]) -> None:
        self._module, self._features, self._length, self._caches = module, features, length, caches
        self.difference = 0.0

    def __call__(self, run: OnnxRun) -> None:
        parts, caches = self._module.parts, [*self._caches, torch.zeros_like(self._length)]
        state = parts.dag.initial_state(len(self._length))
        got, wanted = [], []
        for number in range(_CHUNKS + parts.late // parts.frames):
            chunk = self._features.roll(number, dims=2)
            log_probs, _, *caches = run(chunk, self._length, *caches)
            got.append(log_probs)
            features = parts.preprocessor.of_bands(sherpa_powers(chunk), self._length)
            (log_probs, _), state = parts.dag(features, self._length, state=state, last=False)
            wanted.append(log_probs.repeat_interleave(self._module.repeats, dim=1))
        of_file, of_torch = torch.cat(got, dim=1), torch.cat(wanted, dim=1)
        late = parts.late * self._module.repeats
        before = _blank(of_file.shape[2]).expand(len(of_file), late, -1)
        of_torch = torch.cat([before, of_torch], dim=1)[:, : of_file.shape[1]]
        self.difference = _difference(of_file, of_torch, MODEL)


def _difference(got: Tensor, wanted: Tensor, place: str) -> float:
    """The largest one. UsageError where it is too large."""
    apart = (got - wanted).abs() if got.shape == wanted.shape else torch.tensor(torch.inf)
    if not (apart <= TOLERANCE * (1 + wanted.abs())).all():
        problem = "the exported log-probabilities are not torch's, so nothing is written"
        raise UsageError(problem, place=place, got=f"{apart.max().item():.1e} apart")
    return apart.max().item()


class _SherpaChunk(nn.Module):
    """A chunk of features and the states, as sherpa-onnx names and starts them, to log-probabilities and new states.

    Its states begin as zeros and have four axes, whatever they hold: here each is one flat row of several of ours.

    Args:
        parts: what a chunk goes through.
        repeats: how many times 0.04 s a frame lasts: sherpa-onnx counts frames of 0.04 s.
    """

    def __init__(self, parts: StreamedParts, repeats: int) -> None:
        super().__init__()
        self.parts, self.repeats = parts, repeats
        self.preprocessor, self.dag = parts.preprocessor, parts.dag
        self.counter, self.initial = parts.counter, parts.state(1)
        is_attention = [name.endswith(".attention") for name in self.initial if name != self.counter]
        names = [name for name in self.initial if name != self.counter]
        self.groups = [
            [name for name, is_one in zip(names, is_attention, strict=True) if is_one is of] for of in (True, False)
        ]

    def rows(self, state: State) -> list[Tensor]:
        """The states as (B, 1, 1, N) each; one zero stands for none."""
        batch = state[self.counter].shape[0]
        flat = [[state[name].flatten(1) for name in group] for group in self.groups]
        return [torch.cat(rows or [torch.zeros(batch, 1)], dim=1)[:, None, None] for rows in flat]

    def forward(
        self,
        audio_signal: Tensor,
        length: Tensor,
        cache_last_channel: Tensor,
        cache_last_time: Tensor,
        cache_last_channel_len: Tensor,
    ) -> tuple[Tensor, ...]:
        """``length`` is that of the chunk: sherpa-onnx never says that a recording has ended.

        Late frames, before the first one of the recording, are blanks.
        """
        state = {self.counter: cache_last_channel_len}
        for row, group in zip((cache_last_channel, cache_last_time), self.groups, strict=True):
            sizes = [self.initial[name][0].numel() for name in group]
            for name, part in zip(group, row.flatten(1).split_with_sizes(sizes, dim=1) if sizes else (), strict=True):
                state[name] = part.reshape(-1, *self.initial[name].shape[1:])
        features = self.preprocessor.of_bands(sherpa_powers(audio_signal), length)
        state = {name: state[name] for name in self.initial}
        log_probs, _, new_state = self.parts.step(features, length + _NO_END, state)
        if self.parts.late:
            frames = torch.arange(log_probs.shape[1]) - self.parts.late + cache_last_channel_len.unsqueeze(1)
            log_probs = torch.where((frames < 0).unsqueeze(2), _blank(log_probs.shape[2]), log_probs)
        log_probs = log_probs.unsqueeze(2).expand(-1, -1, self.repeats, -1).flatten(1, 2)
        return log_probs, torch.full_like(length, log_probs.shape[1]), *self.rows(new_state), new_state[self.counter]


def export_sherpa_stream(model: TrainedModel, folder: str | Path) -> Written:
    """Write ``model.onnx`` and ``tokens.txt`` as sherpa-onnx reads them of NeMo's cache-aware CTC models.

    Args:
        model: a CTC model that runs in chunks; it is left as it was.
        folder: there must be none yet.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or the file gives other log-probabilities than torch.
    """
    if problem := sherpa_features_problem(model.modules.preprocessor):
        remedy = "train with window_size: 0.025, or stream the file of --format onnx"
        raise UsageError("sherpa-onnx computes other features", place=model.place, got=problem, remedy=remedy)
    parts, tokens = StreamedParts.of(model), symbols_of(model.card.labels, model.place)
    preprocessor, chunk = parts.preprocessor, parts.chunk
    if preprocessor.graph_state(1):
        remedy = "stream the file of --format onnx"
        raise UsageError("features have a state, moving_seconds", place=model.place, got=SHERPA, remedy=remedy)
    seconds = chunk / parts.frames * preprocessor.hop_length / preprocessor.sample_rate
    times = seconds / SHERPA_STREAM_FRAME
    repeats = max(round(times), 1)
    module = _SherpaChunk(parts, repeats)
    generator = torch.Generator().manual_seed(_SEED)
    caches = module.rows(parts.state(2))
    features = torch.randn(2, preprocessor.num_features, chunk, generator=generator) * 3 - 8
    inputs = {"audio_signal": features, "length": torch.tensor([chunk, chunk])}
    inputs |= {"cache_last_channel": caches[0], "cache_last_time": caches[1]}
    inputs |= {"cache_last_channel_len": parts.state(2)[parts.counter]}
    metadata = _described(model, "features") | {
        "model_type": "EncDecCTCModel",
        "vocab_size": str(len(model.card.labels)),
        "window_size": str(chunk),  # nothing is encoded twice: the states hold what convolutions see
        "chunk_shift": str(chunk),
        "subsampling_factor": str(round(SHERPA_STREAM_FRAME * 100)),
    }
    for name, row in zip(("cache_last_channel", "cache_last_time"), caches, strict=True):
        metadata |= {f"{name}_dim{axis}": str(row.shape[axis]) for axis in (1, 2, 3)}
    ports = [Argument(name, value, {0: "batch"}) for name, value in inputs.items()]
    outputs = ["logprobs", "encoded_lengths", *(f"{name}_next" for name in list(inputs)[2:])]
    with _new_folder(folder) as (new, place), evaluated_part(_Parts.of(model).outputs):
        module.eval()
        (new / TOKENS).write_text(tokens, encoding="utf-8")
        check = _StreamCheck(module, features, inputs["length"], caches)
        write_onnx(module, ports, outputs, new / MODEL, check, metadata)
    difference = check.difference
    advice = []
    if abs(times - repeats) > 1e-6:
        advice.append(f"multiply its times by {times / repeats:g}: it takes a frame for {SHERPA_STREAM_FRAME} s")
    arguments = _sherpa_files(place) | _sherpa_features(preprocessor)
    if parts.late:
        advice.append(f"subtract {parts.late * seconds:g} s from its times: a frame waits for those behind it")
    # A chunk is decoded when one frame more is there.
    behind = (chunk + 2 + parts.late * chunk // parts.frames) * preprocessor.hop_length
    loader = "OnlineRecognizer.from_nemo_ctc"
    return Written(place, difference, SHERPA, loader, arguments, preprocessor.hop_length // 2, behind, advice)


# onnx-asr.


def export_onnx_asr(model: TrainedModel, folder: str | Path) -> Written:
    """Write ``model.onnx``, ``vocab.txt`` and ``config.json`` as onnx-asr reads them.

    Args:
        model: a CTC model; it is left as it was.
        folder: there must be none yet.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or the file gives other log-probabilities than torch.
    """
    parts, preprocessor = _Parts.of(model), model.modules.preprocessor
    if problem := onnx_asr_features_problem(preprocessor):
        remedy = "train with window_size: 0.025 and features: 80, or export for sherpa-onnx or to onnx"
        raise UsageError("onnx-asr computes other features", place=model.place, got=problem, remedy=remedy)
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    vocabulary = symbols_of(model.card.labels, model.place)
    size = preprocessor.num_features
    config = {"model_type": "nemo-conformer-ctc", "features_size": size, "subsampling_factor": 1}
    with _new_folder(folder) as (new, place):
        (new / VOCABULARY).write_text(vocabulary, encoding="utf-8")
        (new / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        with parts.rest() as rest:
            stretched = _Stretched(rest, None)
            metadata = _described(parts.model, "normalised features")
            difference = _write_features(stretched, preprocessor, "logprobs", new / MODEL, metadata)
    advice = []
    if preprocessor.std_floor > 1e-5:
        least = f"std_floor: {preprocessor.std_floor:g}"
        advice.append(f"bands without signal sound otherwise than in training, where {least} held them down")
    arguments = {"model": config["model_type"], "path": str(place)}
    return Written(place, difference, "onnx-asr", "load_model", arguments, advice=advice)


# torch without this package.


class _Padded(nn.Module):
    """The whole model with zeros behind the samples: torch's programs refuse audio that is shorter than a window."""

    def __init__(self, whole: nn.Module, num_samples: int) -> None:
        super().__init__()
        self.whole, self.num_samples = whole, num_samples

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """Frames behind a recording have no meaning."""
        outputs: tuple[Tensor, ...] = self.whole(F.pad(audio_signal, (0, self.num_samples)), length)
        return outputs


def export_torch(model: TrainedModel, path: str | Path, recordings: Sequence[Samples] = ()) -> Comparison:
    """Write a program of ``torch.export`` (.pt2): from waveforms (B, T) and lengths to log-probabilities and lengths.

    ``torch.export.load(path).module()`` runs it on the CPU, with nothing of this package; the file ``metadata.json`` in
    it says what an ONNX file of ours says.

    Args:
        model: it is left as it was.
        path: the file; there must be none yet.
        recordings: samples at the model's rate, on which the program is compared as well.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: torch cannot export a module, or the program gives something else than the modules.
    """
    path = Path(path).expanduser()
    refuse_existing(path)
    check_replaceable(path)
    parts = _Parts.of(model)
    assert parts.wires.features is not None
    assert parts.wires.log_probs is not None
    metadata = json.dumps(metadata_of(model, parts.wires.features, parts.wires.log_probs), ensure_ascii=False)
    batches = compared_batches(model.card.sample_rate, recordings)
    compared: list[Comparison] = []
    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in ((0, 1), (0,)))

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            torch.export.save(program, file, extra_files={METADATA: metadata})
        with open(temporary, "rb") as file:
            loaded = torch.export.load(file).module()
        compared.append(compare(whole, loaded, batches, model.card, str(path)))

    with parts.whole() as whole:
        try:
            padded = _Padded(whole, model.card.sample_rate // 10).eval()
            program = torch.export.export(padded, batches[4], dynamic_shapes=shapes, strict=False)
        except Exception as error:  # many classes
            problem, remedy = "torch cannot export the model", "write forward without branches on values of tensors"
            raise UsageError(problem, place=str(path), got=reason_of(error), remedy=remedy) from error
        write_atomically(path, write)
    return compared[0]


# Writing, for all of them.


def _write_features(
    module: nn.Module, preprocessor: AudioPreprocessor, output: str, path: Path, metadata: Mapping[str, str]
) -> float:
    shortest, longest = _FEATURE_FRAMES
    generator = torch.Generator().manual_seed(_SEED)
    features = torch.randn(2, preprocessor.num_features, longest, generator=generator)
    length = torch.tensor([longest, shortest])
    arguments = [
        Argument("audio_signal", features, {0: "batch", 2: "time"}),
        Argument("length", length, {0: "batch"}),
    ]
    compared = [(features, length), (features[:1, :, :shortest], length[1:])]
    return _write(module.eval(), arguments, [output], path, metadata, compared)


def _write(
    module: nn.Module,
    arguments: Sequence[Argument],
    outputs: Sequence[str],
    path: Path,
    metadata: Mapping[str, str],
    compared: Sequence[tuple[Tensor, ...]],
) -> float:
    """Write an ONNX file; the largest difference to torch on some inputs, whose valid frames are those of length."""
    differences: list[float] = []

    def check(run: OnnxRun) -> None:
        for inputs in compared:
            (got,), wanted = run(*inputs), module(*inputs)
            if len(inputs) > 1:
                is_valid = torch.arange(wanted.shape[1]) < inputs[1].unsqueeze(1)
                got, wanted = got[is_valid], wanted[is_valid]
            differences.append(_difference(got, wanted, path.name))

    write_onnx(module, arguments, outputs, path, check, metadata)
    return max(differences)


def _described(model: TrainedModel, takes: str) -> dict[str, str]:
    card = model.card
    texts = {"model_author": "nemo_lite", "version": "1", "comment": f"{card.name}, step {card.step}; takes {takes}"}
    return texts | ({"licence": card.licence} if card.licence else {})


@contextmanager
def _new_folder(folder: str | Path) -> Iterator[tuple[Path, Path]]:
    """A folder to write into, and the name that it gets if nothing fails.

    Raises:
        FileInTheWayError: there is one of that name.
    """
    place = Path(folder).expanduser()
    if place.exists():
        raise FileInTheWayError("it exists already", place=str(place), remedy="give another name, or remove it")
    make_writable_folder(place.parent)
    new = place.with_name(temporary_name(place.name))
    new.mkdir()
    try:
        yield new, place
        os.rename(new, place)
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(new)
