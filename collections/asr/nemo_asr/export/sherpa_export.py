"""A trained model as files that sherpa-onnx reads, of whole recordings or of streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.export.runner_export import (
    MODEL,
    SEED,
    RunnerParts,
    Stretched,
    Written,
    described,
    difference_of,
    new_folder,
    symbols_of,
    write_checked,
    write_features,
)
from nemo_asr.export.stream_export import StreamedParts
from nemo_asr.features.audio_preprocessor import AudioPreprocessor
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.features.spectra import centred, mel_filterbank, window_function
from nemo_asr.trained.model import TrainedModel
from nemo_lite.backends.pytorch.export import Argument, OnnxRun, evaluated_part, write_onnx
from nemo_lite.backends.pytorch.streaming import State
from nemo_lite.base.errors import UsageError

# Any: arguments of a package that may be missing.

SHERPA, TOKENS = "sherpa-onnx", "tokens.txt"
SHERPA_WAVEFORM_FRAME = 0.02
"""Seconds of a frame in sherpa-onnx's times where a model takes the waveform, whatever the model's are."""
SHERPA_STREAM_FRAME = 0.04
"""The same of streams."""
SHERPA_STREAM_SILENCE = 0.5
"""Seconds of silence that a stream hears behind the last frame. At the end of a recording a model writes its last label
at once, but sherpa-onnx never says that there is one. In silence a Conformer of connected digits wrote it up to 0.16 s
later, a QuartzNet up to 0.3 s."""
_LEAST_VARIANCE = 1e-5  # what it adds to the variance of a waveform before it divides by its root
_SAMPLES = 23_456
_LEAST_LOGARITHM = math.log(torch.finfo(torch.float32).eps) + 1e-4
_CHUNKS = 12
_NO_END = 1 << 40  # frames to the end of a recording, of which nothing is known


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


def sherpa_powers(features: Tensor) -> Tensor:
    """The powers of which sherpa-onnx has taken logarithms.

    Where it has raised them to the least one, they were about 0: that is what the model heard in training, and a band
    without signal is divided by a very small deviation.
    """
    return torch.where(features > _LEAST_LOGARITHM, features.exp(), 0.0)


class _OfLogPowers(nn.Module):
    """The model behind its features, from the logarithms of mel powers (B, D, T) that sherpa-onnx gives.

    Args:
        rest: the model behind its features.
        preprocessor: finishes powers of mel bands.
    """

    def __init__(self, rest: nn.Module, preprocessor: AudioPreprocessor) -> None:
        super().__init__()
        self.rest, self.preprocessor = rest, preprocessor

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """As ``rest``."""
        outputs: tuple[Tensor, ...] = self.rest(self.preprocessor.of_bands(sherpa_powers(audio_signal), length), length)
        return outputs


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
        scale = (_LEAST_VARIANCE / (1.0 - variance).clamp(_LEAST_VARIANCE / 2, 1.0)).sqrt().float()
        length = torch.full((1,), x.shape[1], dtype=torch.int64, device=x.device)
        log_probs, frames = self.whole(x * scale, length)
        is_valid = torch.arange(log_probs.shape[1], device=x.device)[None, :, None] < frames[:, None, None]
        padded = torch.where(is_valid, log_probs, _blank(log_probs.shape[2]))
        return padded.unsqueeze(2).expand(-1, -1, self.repeats, -1).flatten(1, 2)


def _blank(num_classes: int) -> Tensor:
    """Log-probabilities (classes,) of a frame that is nothing but blank."""
    return F.one_hot(torch.tensor(num_classes - 1), num_classes).float().log().clamp(min=-1e4)


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
    parts, card = RunnerParts.of(model, SHERPA), model.card
    problem = sherpa_features_problem(model.modules.preprocessor)
    if waveform is False and problem:
        remedy = "leave out waveform=False: the file computes the features itself then"
        raise UsageError("sherpa-onnx computes other features", place=model.place, got=problem, remedy=remedy)
    tokens = symbols_of(card.labels, model.place)
    write = _write_sherpa_waveform if problem or waveform else _write_sherpa_features
    with new_folder(folder) as (new, place):
        (new / TOKENS).write_text(tokens, encoding="utf-8")
        written = write(parts, new / MODEL, place)
    return written


def _sherpa_files(place: Path) -> dict[str, Any]:
    return {"model": str(place / MODEL), "tokens": str(place / TOKENS)}


def _write_sherpa_waveform(parts: RunnerParts, path: Path, place: Path) -> Written:
    rate = parts.model.card.sample_rate
    if rate != 16_000:
        remedy = "train with sample_rate: 16000, or with the features of sherpa-onnx"
        raise UsageError("sherpa-onnx gives waveforms of 16000 Hz", got=f"{rate} Hz", remedy=remedy)
    times = parts.frame_seconds / SHERPA_WAVEFORM_FRAME
    repeats = max(round(times), 1)
    advice = []
    if abs(times - repeats) > 1e-6:
        advice.append(f"multiply its times by {times / repeats:g}: it takes a frame for {SHERPA_WAVEFORM_FRAME} s")
    generator = torch.Generator().manual_seed(SEED)
    example = F.normalize(torch.randn(1, _SAMPLES, generator=generator)) * (0.99 * _SAMPLES) ** 0.5
    with parts.whole() as whole:
        module = _OfNormalizedWaveform(whole, repeats).eval()
        metadata = described(parts.model, "waveform") | {"sample_rate": str(rate)}
        # The batch is always 1.
        argument = Argument("x", example, {1: "num_samples"})
        difference = write_checked(
            module, [argument], ["log_probs"], path, metadata, [(example,), (example[:, :9000],)]
        )
    loader = "OfflineRecognizer.from_omnilingual_asr_ctc"
    return Written(place, difference, SHERPA, loader, _sherpa_files(place), advice=advice)


def _write_sherpa_features(parts: RunnerParts, path: Path, place: Path) -> Written:
    model = parts.model
    preprocessor = model.modules.preprocessor
    assert isinstance(preprocessor, AudioPreprocessor)
    metadata = described(parts.model, "features") | {
        "model_type": "EncDecCTCModel",
        "vocab_size": str(len(model.card.labels)),
        "subsampling_factor": "1",  # see `Stretched`
        "normalize_type": "",  # in the file
    }
    with parts.rest() as rest:
        module = Stretched(_OfLogPowers(rest, preprocessor))
        difference = write_features(module, preprocessor.num_features, "log_probs", path, metadata)
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
        self.difference = difference_of(of_file, of_torch, MODEL)


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


def samples_behind(chunk: int, late: int, hop: int, window: int) -> int:
    """Zero samples behind a recording, without which sherpa-onnx may leave out its last frames.

    A frame of features is there when its window is, half of which lies behind its middle. A chunk is decoded when one
    frame more is there than it has. At worst the last frame that is needed is the first one of its chunk.

    Args:
        chunk: frames of features in a chunk.
        late: frames of features for which a frame waits.
        hop: samples from frame to frame.
        window: samples of a window.
    """
    return (chunk + late) * hop + window // 2


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
    generator = torch.Generator().manual_seed(SEED)
    caches = module.rows(parts.state(2))
    features = torch.randn(2, preprocessor.num_features, chunk, generator=generator) * 3 - 8
    inputs = {"audio_signal": features, "length": torch.tensor([chunk, chunk])}
    inputs |= {"cache_last_channel": caches[0], "cache_last_time": caches[1]}
    inputs |= {"cache_last_channel_len": parts.state(2)[parts.counter]}
    metadata = described(model, "features") | {
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
    with new_folder(folder) as (new, place), evaluated_part(list(parts.file.outputs.values())):
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
    late = parts.late * chunk // parts.frames
    behind = samples_behind(chunk, late, preprocessor.hop_length, preprocessor.win_length)
    behind += round(SHERPA_STREAM_SILENCE * preprocessor.sample_rate)
    loader = "OnlineRecognizer.from_nemo_ctc"
    return Written(place, difference, SHERPA, loader, arguments, preprocessor.hop_length // 2, behind, advice)
