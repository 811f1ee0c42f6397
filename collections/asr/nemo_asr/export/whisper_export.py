"""A Whisper as files that onnx-asr reads: networks as those of `attention_networks`, with Whisper's rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_asr.export.attention_networks import NEVER, Memory, in_layers, of_frames
from nemo_asr.export.runner_export import (
    SEED,
    RunnerParts,
    Written,
    described,
    new_folder,
    refuse_other_texts,
    write_compared,
)
from nemo_asr.features.whisper_mel import AudioToWhisperMelPreprocessor
from nemo_asr.models.attention.decoder import DecoderState
from nemo_asr.models.attention.whisper_decoder import AUTO, WhisperDecoder
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.text.subwords import BytePairs
from nemo_asr.trained.model import TrainedModel
from nemo_lite.backends.pytorch.engine.module_state import evaluating
from nemo_lite.backends.pytorch.export import Argument
from nemo_lite.base.errors import UsageError

# Any: values of JSON, arguments of a package that may be missing.

_NUM_PROMPT = 4  # the start, a language, a task, no times
_TASKS = ("<|transcribe|>", "<|translate|>")


class WhisperListener(nn.Module):
    """From features (B, D, T) of windows to keys and values of frames (B, 2 * layers, heads, U, channels / heads).

    Args:
        rest: from features and their lengths to encoded frames and theirs.
        decoder: of the model.
    """

    def __init__(self, rest: nn.Module, decoder: WhisperDecoder) -> None:
        super().__init__()
        self.rest, self.layers = rest, decoder.layers

    def forward(self, input_features: Tensor) -> Tensor:
        """All frames of a window are heard."""
        batch, _, num_frames = input_features.shape
        lengths = torch.full((batch,), num_frames, dtype=torch.int64, device=input_features.device)
        encoded, num_encoded = self.rest(input_features, lengths)
        return of_frames(self.layers.begin(encoded, num_encoded, 1).frames)


class WhisperSpeaker(nn.Module):
    """Tokens (B, N) behind a memory (B, 1, T, size) to scores (B, 1, outputs) of the next one, and the longer memory.

    Behind the start alone only languages have scores, and behind the prompt what the model may say there.

    Args:
        decoder: of the model.
    """

    def __init__(self, decoder: WhisperDecoder) -> None:
        super().__init__()
        self.layers, self.memory, self.end = decoder.layers, Memory(decoder.layers), decoder.end
        self.num_outputs = decoder.num_outputs
        assert decoder.most_labels is not None
        self._most_labels = decoder.most_labels
        outputs = torch.arange(decoder.num_outputs)
        never, never_first = decoder.hidden
        self.register_buffer("_no_language", ~torch.isin(outputs, torch.tensor(decoder.language_tokens)))
        self.register_buffer("_never", never | (outputs > self.end))
        self.register_buffer("_never_first", never_first.clone())
        self.register_buffer("_goes_on", outputs != self.end)

    _no_language: Tensor
    _never: Tensor
    _never_first: Tensor
    _goes_on: Tensor

    def examples(self, num_frames: int) -> list[tuple[Tensor, ...]]:
        """Inputs: of two texts with several tokens, of starts, of prompts, and of a token behind others."""
        random, (layers, heads, channels) = torch.Generator().manual_seed(SEED), self.memory.shape
        sizes = ((2, 3, 2), (2, 1, 0), (2, _NUM_PROMPT, 0), (1, _NUM_PROMPT, 0), (1, 1, _NUM_PROMPT + 1))
        return [
            (
                torch.randint(self.num_outputs, (batch, num_labels), generator=random),
                torch.randn(batch, layers, heads, num_frames, channels, generator=random),
                torch.tensor([before > 0]),
                torch.randn(batch, 1, before, self.memory.size, generator=random),
            )
            for batch, num_labels, before in sizes
        ]

    def forward(
        self, input_ids: Tensor, encoder_hidden_states: Tensor, use_cache_branch: Tensor, past: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Frames as a `WhisperListener` gives them; the third input, whether there is a memory, is not needed."""
        state = DecoderState(in_layers(encoder_hidden_states), self.memory.unpacked(_rows_of(past, input_ids.shape[0])))
        log_probs, after = self.layers.continued(input_ids, state)
        memory = self.memory.packed(after.labels)
        number = input_ids.new_full((1, 1), memory.shape[1]) - _NUM_PROMPT
        is_hidden = (number == 1 - _NUM_PROMPT) & self._no_language
        is_hidden = is_hidden | ((number >= 0) & self._never) | ((number == 0) & self._never_first)
        is_full = number >= self._most_labels
        is_hidden = (is_full & self._goes_on) | (~is_full & is_hidden)
        return log_probs[:, -1:].masked_fill(is_hidden.unsqueeze(1), NEVER), memory.unsqueeze(1)


def _rows_of(past: Tensor, batch: int) -> Tensor:
    """(B, T, size) of a memory (B, 1, T, size): at the beginning onnx-asr gives one for no texts, (0, 1, 0, size)."""
    rows = past.flatten(0, 2)
    number = rows.shape[0] // batch
    texts, places = (torch.arange(size, device=past.device) for size in (batch, number))
    return rows[texts.unsqueeze(1) * number + places]


def whisper_problem(model: TrainedModel, decoder: WhisperDecoder) -> str:
    """Why onnx-asr does not run such a model; empty if it does."""
    features = model.modules.preprocessor
    assert isinstance(features, AudioToWhisperMelPreprocessor)
    numbers = features.sample_rate, features.n_fft, features.hop_length, features.longest_seconds
    if numbers != (16_000, 400, 160, 30.0) or features.num_features not in (80, 128):
        return "its features are not 80 or 128 bands at 16000 Hz every 160 samples, of windows of 30 s"
    if not isinstance(model.recipe.tokenizer, BytePairs):
        return "its labels are no byte pairs"
    if decoder.times:
        return "it is asked for times, which onnx-asr does not take"
    if decoder.language is None or decoder.task is None or len(decoder.start) != _NUM_PROMPT:
        return "its prompt has no language and task, as onnx-asr's has"
    return ""


def export_onnx_asr_whisper(
    model: TrainedModel, decoder: WhisperDecoder, folder: str | Path, recordings: Sequence[Samples] = ()
) -> Written:
    """Write ``encoder_model.onnx`` and ``decoder_model_merged.onnx`` with vocabulary and ``config.json``.

    Args:
        model: it is left as it was.
        decoder: of the model.
        folder: there must be none yet.
        recordings: samples on which onnx-asr, if it is installed, has to give the model's texts.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or a file gives other values than torch.
    """
    if problem := whisper_problem(model, decoder):
        remedy = "use the model folder"
        raise UsageError("onnx-asr does not run this Whisper", place=model.place, got=problem, remedy=remedy)
    options = {} if decoder.language == AUTO else {"language": decoder.language}
    advice = [f"call recognize(..., language={decoder.language!r}): it finds the language by itself"] * bool(options)
    advice.append("give it one recording at a time: its features of a batch depend on the loudest one")
    preprocessor, parts = model.modules.preprocessor, RunnerParts.attended(model)
    assert isinstance(preprocessor, AudioToWhisperMelPreprocessor)
    frames = round(preprocessor.longest_seconds * preprocessor.sample_rate) // preprocessor.hop_length
    with new_folder(folder) as (new, place), evaluating([decoder]):
        config = {"model_type": "whisper", "num_mel_bins": preprocessor.num_features}
        for name, content in {**_vocabulary(model, decoder), "config.json": config}.items():
            (new / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        with parts.rest() as rest:
            random = torch.Generator().manual_seed(SEED)
            example = torch.randn(2, preprocessor.num_features, frames, generator=random)
            arguments, path = [Argument("input_features", example, {0: "batch"})], new / "encoder_model.onnx"
            examples, metadata = [(example,), (example[:1],)], described(model, "Whisper's features")
            listener, outputs = WhisperListener(rest, decoder), ["last_hidden_state"]
            of_encoder = write_compared(listener, arguments, outputs, path, examples, metadata)
            num_encoded = listener(example[:1]).shape[3]
        speaker, outputs = WhisperSpeaker(decoder), ["logits", "present.0"]
        inputs = speaker.examples(num_encoded)
        axes: dict[str, dict[int, str]] = {
            "input_ids": {0: "batch", 1: "labels"},
            "encoder_hidden_states": {0: "batch"},
            "use_cache_branch": {},
            "past_key_values.0": {0: "texts_before", 2: "before"},
        }
        arguments = [Argument(name, value, axes[name]) for name, value in zip(axes, inputs[0], strict=True)]
        of_decoder = write_compared(speaker, arguments, outputs, new / "decoder_model_merged.onnx", inputs, {})
        named: dict[str, Any] = {"model": "whisper", "path": str(new)}
        difference = max(of_encoder, of_decoder)
        written = Written(
            new, difference, "onnx-asr", "load_model", named, advice=advice, values="values", options=options
        )
        refuse_other_texts(written, model, recordings)
    return replace(written, folder=place, arguments={**named, "path": str(place)})


def _vocabulary(model: TrainedModel, decoder: WhisperDecoder) -> dict[str, dict[str, int]]:
    """``vocab.json`` and ``added_tokens.json``: each output has a name.

    onnx-asr always asks for the task transcribe: where the model is told to translate, that is the name of translate.
    """
    assert isinstance(model.recipe.tokenizer, BytePairs)
    special = decoder.prompt_tokens
    if decoder.task == "translate":
        special |= {name: special[other] for name, other in zip(_TASKS, reversed(_TASKS), strict=True)}
    named = {*special.values()}
    others = {f"<|{token}|>": token for token in range(decoder.end, decoder.num_outputs) if token not in named}
    return {"vocab.json": dict(model.recipe.tokenizer.pieces), "added_tokens.json": special | others}
