"""A trained model as files that onnx-asr reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nemo_asr.export.attention_networks import Listener, Speaker, other_symbols, prompted_decoder
from nemo_asr.export.nemo_networks import (
    DecoderJoiner,
    has_durations,
    settings_of,
    steps_of,
    write_encoder,
    write_step,
)
from nemo_asr.export.runner_export import (
    MODEL,
    RunnerParts,
    Stretched,
    Written,
    attention_decoder,
    described,
    example_features,
    new_folder,
    refuse_other_texts,
    symbols_of,
    write_compared,
    write_features,
)
from nemo_asr.export.sherpa_export import sherpa_features_problem
from nemo_asr.export.whisper_export import export_onnx_asr_whisper
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.models.attention.prompt import PROMPTS
from nemo_asr.models.attention.prompted import PromptedDecoder
from nemo_asr.models.attention.whisper_decoder import WhisperDecoder
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.text.labels import WORD_MARK
from nemo_asr.trained.model import TrainedModel
from nemo_lite.backends.pytorch.engine.module_state import evaluating
from nemo_lite.backends.pytorch.export import Argument
from nemo_lite.base.errors import UsageError

VOCABULARY, CONFIG = "vocab.txt", "config.json"
ENCODER, DECODER_JOINT, DECODER = "encoder-model.onnx", "decoder_joint-model.onnx", "decoder-model.onnx"
ONNX_ASR = "onnx-asr"
_SAID = {"language": "en", "target_language": "en", "punctuation": "pnc", "timestamps": "notimestamp"}
PROMPT = (" ", *(each.format(**_SAID) for each in PROMPTS["canary2"]))
"""With which onnx-asr begins texts of attention decoders, unless it is told of other languages."""
# Any: values of JSON.


def onnx_asr_features_problem(preprocessor: object) -> str:
    """Why a model cannot take the features that onnx-asr computes for NeMo's models; empty if it can."""
    if problem := sherpa_features_problem(preprocessor):
        return problem
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    if preprocessor.sample_rate != 16_000 or preprocessor.num_features not in (80, 128):
        return f"{preprocessor.num_features} bands at {preprocessor.sample_rate} Hz, not 80 or 128 at 16000 Hz"
    return "" if preprocessor.normalization == "per_feature" else "they are not normalised per_feature"


def export_onnx_asr(model: TrainedModel, folder: str | Path, recordings: Sequence[Samples] = ()) -> Written:
    """Write ``model.onnx``, ``vocab.txt`` and ``config.json`` as onnx-asr reads them.

    Of a transducer ``encoder-model.onnx`` and ``decoder_joint-model.onnx`` take the place of ``model.onnx``, of Canary
    and Cohere Transcribe ``encoder-model.onnx`` and ``decoder-model.onnx``; of Whisper see `whisper_export`.

    Args:
        model: of CTC, a transducer, or one of these; it is left as it was.
        folder: there must be none yet.
        recordings: not of CTC; samples on which onnx-asr, if it is installed, has to give the model's texts.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or a file gives other values than torch.
    """
    attention = attention_decoder(model)
    if isinstance(attention, WhisperDecoder):
        return export_onnx_asr_whisper(model, attention, folder, recordings)
    decoder = prompted_decoder(model, ONNX_ASR) if attention else None
    parts = RunnerParts.attended(model) if decoder else RunnerParts.of(model, ONNX_ASR, "transducer")
    preprocessor = model.modules.preprocessor
    if problem := onnx_asr_features_problem(preprocessor):
        wanted = "train with window_size: 0.025, features: 80 and normalize: per_feature"
        remedy = f"{wanted}, or export for sherpa-onnx or to onnx"
        raise UsageError("onnx-asr computes other features", place=model.place, got=problem, remedy=remedy)
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    symbols = _symbols(model, decoder) if decoder else symbols_of(model.card.labels, model.place)
    options, advice = _options(decoder) if decoder else {}, []
    if preprocessor.std_floor > 1e-5:
        least = f"std_floor: {preprocessor.std_floor:g}"
        advice.append(f"bands without signal sound otherwise than in training, where {least} held them down")
    if options:
        said = ", ".join(f"{name}={value!r}" for name, value in options.items())
        advice.append(f"call recognize(..., {said}): it asks for another prompt by itself")
    write = _write_attention if decoder else _write_networks if parts.others else _write_log_probs
    with new_folder(folder) as (new, place):
        (new / VOCABULARY).write_text(symbols, encoding="utf-8")
        metadata = described(parts.model, "normalised features")
        config, difference = write(parts, preprocessor.num_features, new, metadata)
        config["features_size"] = preprocessor.num_features
        (new / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        arguments = {"model": config["model_type"]}
        written = Written(new, difference, ONNX_ASR, "load_model", {**arguments, "path": str(new)}, advice=advice)
        if decoder or parts.others:
            written = replace(written, values="values", options=options)
            refuse_other_texts(written, model, recordings)
    return replace(written, folder=place, arguments={**arguments, "path": str(place)})


def _write_log_probs(
    parts: RunnerParts, num_features: int, folder: Path, metadata: Mapping[str, str]
) -> tuple[dict[str, Any], float]:
    with parts.rest() as rest:
        difference = write_features(Stretched(rest), num_features, "logprobs", folder / MODEL, metadata)
    return {"model_type": "nemo-conformer-ctc", "subsampling_factor": 1}, difference


def _write_networks(
    parts: RunnerParts, num_features: int, folder: Path, metadata: Mapping[str, str]
) -> tuple[dict[str, Any], float]:
    with parts.rest() as rest:
        difference = write_encoder(rest, num_features, folder / ENCODER, metadata)
    with steps_of(parts) as (decoder, joiner):
        examples = [(1 - decoder(*inputs)[0], *inputs) for inputs in decoder.examples()]
        difference = max(difference, write_step(DecoderJoiner(decoder, joiner), examples, folder / DECODER_JOINT))
    settings = settings_of(parts)
    config = {
        "model_type": f"nemo-conformer-{'tdt' if has_durations(settings) else 'rnnt'}",
        "subsampling_factor": parts.subsampling,
        "max_tokens_per_step": settings.max_symbols,
    }
    return config, difference


# Attention decoders.


class _Decoder(nn.Module):
    """A `Speaker` with the inputs of onnx-asr, whose memory (layers, B, T, size) is of one layer here."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self.speaker = speaker

    def forward(
        self, input_ids: Tensor, encoder_embeddings: Tensor, encoder_mask: Tensor, decoder_mems: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores (B, 1, outputs) of the next label, and the memory."""
        scores, memory = self.speaker(input_ids, encoder_embeddings, encoder_mask, decoder_mems[0])
        return scores, memory[None]


def _symbols(model: TrainedModel, decoder: PromptedDecoder) -> str:
    """``vocab.txt``. UsageError where a label of onnx-asr's prompt is missing."""
    others = other_symbols(decoder)
    known = {*(label.replace(WORD_MARK, " ") for label in model.card.labels), *others}
    if missing := [label for label in PROMPT if label not in known]:
        problem = "the model has not all labels of onnx-asr's prompt"
        raise UsageError(problem, place=model.place, got=f"no {missing[0]!r}", remedy="use the model folder")
    return symbols_of(model.card.labels, model.place, others, several=True)


def _options(decoder: PromptedDecoder) -> dict[str, Any]:
    """What a call has to say, so that the prompt is the model's."""
    prompt = decoder.prompt
    languages = {"language": prompt.language, "target_language": prompt.target_language}
    return {
        **(languages if {*languages.values()} != {"en"} else {}),
        **({} if prompt.punctuation else {"pnc": False}),
    }


def _write_attention(
    parts: RunnerParts, num_features: int, folder: Path, metadata: Mapping[str, str]
) -> tuple[dict[str, Any], float]:
    decoder = prompted_decoder(parts.model, ONNX_ASR)
    arguments, compared = example_features(num_features)
    outputs = ["encoder_embeddings", "encoder_mask"]
    with parts.rest() as rest, evaluating([decoder]):
        listener = Listener(rest, decoder)
        difference = write_compared(listener, arguments, outputs, folder / ENCODER, compared, metadata)
        speaker = Speaker(decoder, len(PROMPT))
        outputs = ["logits", "decoder_hidden_states"]
        examples = [(*others, memory[None]) for *others, memory in speaker.examples()]
        axes = {
            "input_ids": {0: "batch", 1: "labels"},
            "encoder_embeddings": {0: "batch", 3: "frames"},
            "encoder_mask": {0: "batch", 1: "frames"},
            "decoder_mems": {1: "batch", 2: "before"},
        }
        arguments = [Argument(name, example, axes[name]) for name, example in zip(axes, examples[0], strict=True)]
        written = write_compared(_Decoder(speaker), arguments, outputs, folder / DECODER, examples, {})
    config = {
        "model_type": "nemo-conformer-aed",
        "subsampling_factor": parts.subsampling,
        "max_sequence_length": len(PROMPT) + speaker.most_labels + 2,  # the file ends texts sooner
    }
    return config, max(difference, written)
