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

from nemo_asr.export.attention_networks import Listener, Speaker, other_symbols, prompted_decoder
from nemo_asr.export.nemo_networks import has_durations, settings_of, steps_of, write_encoder, write_step
from nemo_asr.export.runner_export import (
    MODEL,
    SEED,
    RunnerParts,
    Stretched,
    Written,
    attention_decoder,
    described,
    difference_of,
    example_features,
    new_folder,
    refuse_other_texts,
    symbols_of,
    write_compared,
    write_features,
)
from nemo_asr.export.stream_export import StreamedParts
from nemo_asr.features.audio_preprocessor import AudioPreprocessor
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.features.spectra import centred, mel_filterbank, window_function
from nemo_asr.models.attention.whisper_decoder import WhisperDecoder
from nemo_asr.run.audio.files import Samples
from nemo_asr.trained.model import TrainedModel
from nemo_lite.backends.pytorch.engine.module_state import evaluating
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
_CANARY_PROMPT = 9  # labels with which it begins texts
_PUNCTUATION = ("<|pnc|>", "<|nopnc|>")
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
    """Write ``model.onnx`` and ``tokens.txt`` as sherpa-onnx reads them; of other models their networks.

    Args:
        model: of CTC, a transducer, or Canary's kind; it is left as it was.
        folder: there must be none yet.
        waveform: the file takes the waveform, and computes the features itself; None: only where sherpa-onnx computes
            other features than the model's. Files of other models than CTC's cannot.
        recordings: not of CTC; samples on which sherpa-onnx, if it is installed, has to give the model's texts.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or the file gives other log-probabilities than torch.
    """
    if attention_decoder(model):
        return _export_sherpa_attention(model, folder, waveform, recordings)
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
    refuse_other_features(model, recordings, waveform, "transducers")
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


# Of features that sherpa-onnx computes for models of a kind: the window, Hz by which bands end below half the rate, and
# how a model has them.
_OTHER_FEATURES = {
    "transducers": ("povey", 400.0, "window: povey and highfreq: 7600"),
    "Canary": ("hann", 400.0, "highfreq: 7600"),
}


def refuse_other_features(
    model: TrainedModel, recordings: Sequence[Samples], waveform: bool | None = None, kind: str = "transducers"
) -> None:
    """See that a model's features are those of sherpa-onnx, or NeMo's, which are near, and recordings compared.

    sherpa-onnx computes other features for some kinds of models than for CTC.

    Args:
        model: of that kind.
        recordings: that are compared.
        waveform: the file is to take it, which it cannot.
        kind: of models.

    Raises:
        UsageError: they are others.
    """
    if waveform:
        remedy = "leave out the waveform"
        raise UsageError(f"sherpa-onnx gives features to {kind}", place=model.place, got="waveform", remedy=remedy)
    preprocessor = model.modules.preprocessor
    window, below, fitting = _OTHER_FEATURES[kind]
    problem = sherpa_features_problem(preprocessor, window, below)
    if problem and sherpa_features_problem(preprocessor):
        remedy = f"train with window_size: 0.025, {fitting}, or export to onnx"
        raise UsageError("sherpa-onnx computes other features", place=model.place, got=problem, remedy=remedy)
    if problem and not (recordings and find_spec("sherpa_onnx")):
        wanted = "recordings on which its texts are the model's, and sherpa-onnx installed"
        problem = f"sherpa-onnx computes other features for {kind}, whose texts may differ"
        got = "a Hann window and bands to half the sample rate"
        assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
        others = "for onnx-asr or to onnx" if preprocessor.normalization == "per_feature" else "to onnx"
        remedy = f"give --audio, train with {fitting}, or export {others}"
        raise UsageError(problem, place=model.place, got=got, wanted=wanted, remedy=remedy)


class _CanaryEncoder(nn.Module):
    """A `Listener` with sherpa-onnx's inputs, features (B, T, D) and lengths, and frames on the second axis.

    The second output is not read there.
    """

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def forward(self, x: Tensor, x_len: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of frames, their number, and their mask."""
        frames, mask = self.listener(x.transpose(1, 2), x_len)
        return frames.movedim(3, 1), mask.sum(1), mask


class _CanaryDecoder(nn.Module):
    """A `Speaker` with sherpa-onnx's inputs, whose memory is that of one layer here.

    A label comes with a position, which begins anew behind the prompt there: the memory tells it. sherpa-onnx writes
    each label that has a symbol. So special labels have none where they are said, and other ids in prompts.
    """

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self.speaker = speaker

    def forward(
        self, decoder_input_ids: Tensor, decoder_mems_list_0: Tensor, enc_states: Tensor, enc_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A label and its position (1, 2), a memory, frames and their mask to scores and the memory."""
        labels = decoder_input_ids[:, :1].long()
        labels = torch.where(labels < self.speaker.num_outputs, labels, labels - self.speaker.num_special)
        scores, memory = self.speaker(labels, enc_states.movedim(1, 3), enc_mask, decoder_mems_list_0)
        return scores, memory


def _export_sherpa_attention(
    model: TrainedModel, folder: str | Path, waveform: bool | None, recordings: Sequence[Samples]
) -> Written:
    if isinstance(attention_decoder(model), WhisperDecoder):
        problem = "sherpa-onnx gives other texts than this Whisper"
        got = "another silence behind the speech, and at most 6 tokens a second"
        remedy = "export for onnx-asr, or use the model folder"
        raise UsageError(problem, place=model.place, got=got, remedy=remedy)
    decoder, preprocessor = prompted_decoder(model, SHERPA), model.modules.preprocessor
    refuse_other_features(model, recordings, waveform, "Canary")
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    prompt, parts = decoder.prompt, RunnerParts.attended(model)
    end, *others = other_symbols(decoder)
    if not prompt.punctuation:  # its Python has no option for it
        names = dict(zip(_PUNCTUATION, reversed(_PUNCTUATION), strict=True))
        others = [names.get(each, each) for each in others]
    tokens, first = symbols_of(model.card.labels, model.place, [end], several=True), decoder.end + 1 + len(others)
    tokens += "".join(f"{symbol} {number}\n" for number, symbol in enumerate(others, start=first))
    metadata = described(model, "features") | {
        "model_type": "EncDecMultiTaskModel",
        "vocab_size": str(first),  # symbols, and outputs
        "normalize_type": "",  # in the file
        "subsampling_factor": str(parts.subsampling),
        "feat_dim": str(preprocessor.num_features),
    }

    def written(place: Path) -> Written:
        files = {name: str(place / f"{name}.onnx") for name in ("encoder", "decoder")}
        languages = {"src_lang": prompt.language, "tgt_lang": prompt.target_language}
        arguments = {**files, "tokens": str(place / TOKENS), **languages}
        loader, half = "OfflineRecognizer.from_nemo_canary", preprocessor.hop_length // 2
        return Written(place, difference, SHERPA, loader, arguments, half, values="values")

    features, compared = example_features(preprocessor.num_features)
    with new_folder(folder) as (new, place), evaluating([decoder]):
        (new / TOKENS).write_text(tokens, encoding="utf-8")
        speaker = Speaker(decoder, _CANARY_PROMPT)
        examples = [
            (torch.stack([labels[:1, 0], labels[:1, 0]], 1).int(), memory[:1], frames[:1].movedim(3, 1), mask[:1])
            for labels, frames, mask, memory in speaker.examples()
        ]
        axes: dict[str, dict[int, str]] = {"decoder_input_ids": {}, "decoder_mems_list_0": {1: "before"}}
        axes |= {"enc_states": {1: "frames"}, "enc_mask": {1: "frames"}}
        arguments = [Argument(name, example, axes[name]) for name, example in zip(axes, examples[0], strict=True)]
        outputs = ["logits", "next_decoder_mem_list_0"]
        of_decoder = write_compared(_CanaryDecoder(speaker), arguments, outputs, new / "decoder.onnx", examples, {})
        metadata |= {"num_decoder_layers": "1", "decoder_hidden_size": str(speaker.memory.size)}
        with parts.rest() as rest:
            encoder = _CanaryEncoder(Listener(_Centred(_OfLogPowers(rest, preprocessor), preprocessor), decoder))
            inputs = [
                Argument("x", features[0].example.transpose(1, 2), {0: "batch", 1: "time"}),
                Argument("x_len", features[1].example, {0: "batch"}),
            ]
            outputs = ["enc_states", "enc_len", "enc_mask"]
            turned = [(values.transpose(1, 2), length) for values, length in compared]
            of_encoder = write_compared(encoder, inputs, outputs, new / "encoder.onnx", turned, metadata)
        difference = max(of_encoder, of_decoder)
        refuse_other_texts(written(new), model, recordings)
    return written(place)


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
        module = _OfNormalizedWaveform(whole, repeats)
        metadata = described(parts.model, "waveform") | {"sample_rate": str(rate)}
        # The batch is always 1.
        argument = Argument("x", example, {1: "num_samples"})
        compared = [(example,), (example[:, :9000],)]
        difference = write_compared(module, [argument], ["log_probs"], path, compared, metadata, are_log_probs=True)
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
