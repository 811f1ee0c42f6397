"""A trained model as files that sherpa-onnx reads, of whole recordings or of streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.export.nemo_networks import has_durations, settings_of, steps_of, write_encoder, write_step
from nemo_asr.export.runner_export import (
    MODEL,
    SEED,
    RunnerParts,
    Stretched,
    Written,
    described,
    difference_of,
    new_folder,
    refuse_other_texts,
    symbols_of,
    write_checked,
    write_features,
)
from nemo_asr.export.stream_export import StreamedParts
from nemo_asr.features.audio_preprocessor import AudioPreprocessor
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.features.spectra import centred, mel_filterbank, window_function
from nemo_asr.run.audio.files import Samples
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
SHERPA_MOST_LABELS = {"rnnt": 10, "tdt": 5}
"""Most labels that it says at one frame."""
SHERPA_STREAM_SILENCE = 0.5
"""Seconds of silence that a stream hears behind the last frame. At the end of a recording a model writes its last label
at once, but sherpa-onnx never says that there is one. In silence a Conformer of connected digits wrote it up to 0.16 s
later, a QuartzNet up to 0.3 s."""
_LEAST_VARIANCE = 1e-5  # what it adds to the variance of a waveform before it divides by its root
_SAMPLES = 23_456
_LEAST_LOGARITHM = math.log(torch.finfo(torch.float32).eps) + 1e-4
_CHUNKS = 12
_NO_END = 1 << 40  # frames to the end of a recording, of which nothing is known


def sherpa_features_problem(preprocessor: object, window_name: str = "hann", below_nyquist: float = 0.0) -> str:
    """Why a model cannot take the features that sherpa-onnx computes for NeMo's models; empty if it can.

    Args:
        preprocessor: of the model.
        window_name: of the window that sherpa-onnx has.
        below_nyquist: Hz by which its bands end below half the sample rate.
    """
    if not isinstance(preprocessor, AudioToMelSpectrogramPreprocessor):
        return f"they are those of {type(preprocessor).__name__}"
    rate = preprocessor.sample_rate
    window, hop = rate * 25 // 1000, rate // 100
    if (preprocessor.win_length, preprocessor.hop_length) != (window, hop):
        seconds = preprocessor.win_length / rate, preprocessor.hop_length / rate
        return "windows have {:g} s every {:g} s, not 0.025 s every 0.01 s".format(*seconds)
    size = 1 << (window - 1).bit_length()
    values = centred(window_function(window_name, window, periodic=False), size)
    if preprocessor.n_fft != size or not torch.equal(preprocessor.window.cpu(), values):
        return f"the window is no symmetric {window_name.capitalize()} window in n_fft {size}"
    bands = mel_filterbank(rate, size, preprocessor.num_features, 0.0, rate / 2 - below_nyquist).t()
    if not torch.equal(preprocessor.filters.cpu(), bands):
        end = f"{rate / 2 - below_nyquist:g} Hz" if below_nyquist else "half the sample rate"
        return f"mel bands do not go from 0 Hz to {end}"
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


class _Centred(nn.Module):
    """The model behind sherpa-onnx's features of a recording with half a hop of zeros before it.

    There is a frame at each multiple of the hop up to the recording's end: one more than some models count.

    Args:
        rest: the model behind its features.
        preprocessor: counts frames of samples.
    """

    def __init__(self, rest: nn.Module, preprocessor: AudioToMelSpectrogramPreprocessor) -> None:
        super().__init__()
        self.rest, self.hop, self.framing = rest, preprocessor.hop_length, preprocessor.framing

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """As ``rest``."""
        frames = self.framing.valid_frames((length - 1) * self.hop + 1, self.hop)
        outputs: tuple[Tensor, ...] = self.rest(audio_signal, frames)
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


def export_sherpa(
    model: TrainedModel, folder: str | Path, waveform: bool | None = None, recordings: Sequence[Samples] = ()
) -> Written:
    """Write ``model.onnx`` and ``tokens.txt`` as sherpa-onnx reads them; of a transducer its three networks.

    Args:
        model: of CTC, or a transducer; it is left as it was.
        folder: there must be none yet.
        waveform: the file takes the waveform, and computes the features itself; None: only where sherpa-onnx computes
            other features than the model's. Files of transducers cannot.
        recordings: of a transducer; samples on which sherpa-onnx, if it is installed, has to give the model's texts.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or the file gives other log-probabilities than torch.
    """
    parts, card = RunnerParts.of(model, SHERPA, "transducer"), model.card
    if parts.others:
        return _export_sherpa_networks(parts, folder, waveform, recordings)
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


def _export_sherpa_networks(
    parts: RunnerParts, folder: str | Path, waveform: bool | None, recordings: Sequence[Samples]
) -> Written:
    model, preprocessor, settings = parts.model, parts.model.modules.preprocessor, settings_of(parts)
    if waveform:
        problem, remedy = "sherpa-onnx gives features to transducers", "leave out the waveform"
        raise UsageError(problem, place=model.place, got="waveform", remedy=remedy)
    refuse_other_features(model, recordings)
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    kind = "tdt" if has_durations(settings) else "rnnt"
    metadata = described(model, "features") | {
        "model_type": "EncDecRNNTBPEModel",
        "url": f"nemo_lite {kind}",  # by these three letters it knows a TDT
        "vocab_size": str(len(model.card.labels)),
        "subsampling_factor": str(parts.subsampling),
        "normalize_type": "",  # in the file
        "feat_dim": str(preprocessor.num_features),
    }
    tokens, most, half = (
        symbols_of(model.card.labels, model.place),
        SHERPA_MOST_LABELS[kind],
        preprocessor.hop_length // 2,
    )
    advice = []
    if settings.max_symbols != most and 0 in (settings.durations or [0]):
        advice.append(f"sherpa-onnx gives at most {most} labels at one frame, the model {settings.max_symbols}")

    def written(place: Path) -> Written:
        arguments = _network_files(place) | {"model_type": "nemo_transducer"} | _sherpa_features(preprocessor)
        loader = "OfflineRecognizer.from_transducer"
        return Written(place, difference, SHERPA, loader, arguments, half, 0, advice, "values")

    with new_folder(folder) as (new, place):
        (new / TOKENS).write_text(tokens, encoding="utf-8")
        difference, said = _write_steps(parts, new)
        with parts.rest() as rest:
            encoder = _Centred(_OfLogPowers(rest, preprocessor), preprocessor)
            path = new / "encoder.onnx"
            difference = max(difference, write_encoder(encoder, preprocessor.num_features, path, metadata | said))
        refuse_other_texts(written(new), model, recordings)
    return written(place)


def _network_files(place: Path) -> dict[str, Any]:
    files = {name: str(place / f"{name}.onnx") for name in ("encoder", "decoder", "joiner")}
    return {**files, "tokens": str(place / TOKENS)}


def _write_steps(parts: RunnerParts, folder: Path) -> tuple[float, dict[str, str]]:
    """Write decoder and joiner; the largest difference to torch, and what the encoder says of the decoder."""
    with steps_of(parts) as (decoder, joiner):
        examples = decoder.examples()
        states = [decoder(*inputs)[0] for inputs in examples]
        difference = write_step(decoder, examples, folder / "decoder.onnx")
        pairs = [(1 - state, state) for state in states]
        difference = max(difference, write_step(joiner, pairs, folder / "joiner.onnx"))
    return difference, {"pred_rnn_layers": "1", "pred_hidden": str(decoder.size)}


def refuse_other_features(model: TrainedModel, recordings: Sequence[Samples]) -> None:
    """See that a transducer's features are those of sherpa-onnx, or NeMo's, which are near, and recordings compared.

    sherpa-onnx computes other features for transducers than for CTC: a Povey window, and bands to 400 Hz below half the
    sample rate.

    Raises:
        UsageError: they are others.
    """
    preprocessor = model.modules.preprocessor
    problem = sherpa_features_problem(preprocessor, "povey", 400.0)
    if problem and sherpa_features_problem(preprocessor):
        remedy = "train with window_size: 0.025, window: povey and highfreq: 7600, or export to onnx"
        raise UsageError("sherpa-onnx computes other features", place=model.place, got=problem, remedy=remedy)
    if problem and not (recordings and find_spec("sherpa_onnx")):
        wanted = "recordings on which its texts are the model's, and sherpa-onnx installed"
        problem = "sherpa-onnx computes other features for transducers, whose texts may differ"
        got = "a Hann window and bands to half the sample rate"
        assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
        others = "for onnx-asr or to onnx" if preprocessor.normalization == "per_feature" else "to onnx"
        remedy = f"give --audio, train with window: povey and highfreq: 7600, or export {others}"
        raise UsageError(problem, place=model.place, got=got, wanted=wanted, remedy=remedy)


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
            outputs, _, *caches = run(chunk, self._length, *caches)
            got.append(self._module.frames_of(outputs))
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
        lengths = torch.full_like(length, log_probs.shape[1])
        return self.written(log_probs), lengths, *self.rows(new_state), new_state[self.counter]

    def written(self, frames: Tensor) -> Tensor:
        """(B, U, ...) as the file gives them."""
        return frames

    def frames_of(self, written: Tensor) -> Tensor:
        """(B, U, ...) of what the file gives."""
        return written


class _SherpaFrames(_SherpaChunk):
    """The same of a transducer, whose frames are (B, joint_hidden, U) there."""

    def written(self, frames: Tensor) -> Tensor:
        """See `_SherpaChunk`."""
        return frames.transpose(1, 2)

    def frames_of(self, written: Tensor) -> Tensor:
        """See `_SherpaChunk`."""
        return written.transpose(1, 2)


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
    """Write ``model.onnx`` and ``tokens.txt`` as sherpa-onnx reads them of NeMo's cache-aware models.

    Of a transducer its three networks take the place of ``model.onnx``.

    Args:
        model: of CTC, or a transducer without durations, that runs in chunks; it is left as it was.
        folder: there must be none yet.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or a file gives other values than torch.
    """
    if problem := sherpa_features_problem(model.modules.preprocessor):
        remedy = "train with window_size: 0.025, or stream the file of --format onnx"
        raise UsageError("sherpa-onnx computes other features", place=model.place, got=problem, remedy=remedy)
    runner = RunnerParts.of(model, SHERPA, "transducer")
    parts, tokens = StreamedParts.of(model), symbols_of(model.card.labels, model.place)
    preprocessor, chunk = parts.preprocessor, parts.chunk
    if preprocessor.graph_state(1):
        remedy = "stream the file of --format onnx"
        raise UsageError("features have a state, moving_seconds", place=model.place, got=SHERPA, remedy=remedy)
    seconds = chunk / parts.frames * preprocessor.hop_length / preprocessor.sample_rate
    times = 1.0 if runner.others else seconds / SHERPA_STREAM_FRAME
    repeats = max(round(times), 1)
    module = _SherpaChunk(parts, repeats)
    model_type, first, factor = "EncDecCTCModel", MODEL, round(SHERPA_STREAM_FRAME * 100)
    if runner.others:
        _refuse_stream_networks(runner, parts)
        module = _SherpaFrames(parts, repeats)
        model_type, first, factor = "EncDecRNNTBPEModel", "encoder.onnx", chunk // parts.frames
    generator = torch.Generator().manual_seed(SEED)
    caches = module.rows(parts.state(2))
    features = torch.randn(2, preprocessor.num_features, chunk, generator=generator) * 3 - 8
    inputs = {"audio_signal": features, "length": torch.tensor([chunk, chunk])}
    inputs |= {"cache_last_channel": caches[0], "cache_last_time": caches[1]}
    inputs |= {"cache_last_channel_len": parts.state(2)[parts.counter]}
    metadata = described(model, "features") | {
        "model_type": model_type,
        "vocab_size": str(len(model.card.labels)),
        "window_size": str(chunk),  # nothing is encoded twice: the states hold what convolutions see
        "chunk_shift": str(chunk),
        "subsampling_factor": str(factor),
        "normalize_type": "",  # in the file
    }
    for name, row in zip(("cache_last_channel", "cache_last_time"), caches, strict=True):
        metadata |= {f"{name}_dim{axis}": str(row.shape[axis]) for axis in (1, 2, 3)}
    ports = [Argument(name, value, {0: "batch"}) for name, value in inputs.items()]
    outputs = ["logprobs", "encoded_lengths", *(f"{name}_next" for name in list(inputs)[2:])]
    with new_folder(folder) as (new, place), evaluated_part(list(parts.file.outputs.values())):
        module.eval()
        (new / TOKENS).write_text(tokens, encoding="utf-8")
        of_steps, said = _write_steps(runner, new) if runner.others else (0.0, {})
        check = _StreamCheck(module, features, inputs["length"], caches)
        write_onnx(module, ports, outputs, new / first, check, metadata | said)
    difference = max(check.difference, of_steps)
    advice = []
    if abs(times - repeats) > 1e-6:
        advice.append(f"multiply its times by {times / repeats:g}: it takes a frame for {SHERPA_STREAM_FRAME} s")
    files = _network_files(place) if runner.others else _sherpa_files(place)
    arguments = files | _sherpa_features(preprocessor)
    if parts.late:
        advice.append(f"subtract {parts.late * seconds:g} s from its times: a frame waits for those behind it")
    late = parts.late * chunk // parts.frames
    behind = samples_behind(chunk, late, preprocessor.hop_length, preprocessor.win_length)
    behind += round(SHERPA_STREAM_SILENCE * preprocessor.sample_rate)
    loader = f"OnlineRecognizer.{'from_transducer' if runner.others else 'from_nemo_ctc'}"
    written = Written(place, difference, SHERPA, loader, arguments, preprocessor.hop_length // 2, behind, advice)
    return replace(written, values="values") if runner.others else written


def _refuse_stream_networks(runner: RunnerParts, parts: StreamedParts) -> None:
    """UsageError for a transducer of which sherpa-onnx has no streams."""
    problem = ""
    if has_durations(settings_of(runner)):
        problem = "durations, with which sherpa-onnx has no streams"
    elif parts.late:
        problem = "frames that wait for those behind them, of which sherpa-onnx would hear the first ones"
    if problem:
        remedy = "stream the file of --format onnx, or leave out --stream"
        raise UsageError("no stream for sherpa-onnx", place=runner.model.place, got=problem, remedy=remedy)
