"""A trained model as files that onnx-asr reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    described,
    new_folder,
    refuse_other_texts,
    symbols_of,
    write_features,
)
from nemo_asr.export.sherpa_export import sherpa_features_problem
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.run.audio.files import Samples
from nemo_asr.trained.model import TrainedModel
from nemo_lite.base.errors import UsageError

VOCABULARY, CONFIG = "vocab.txt", "config.json"
ENCODER, DECODER_JOINT = "encoder-model.onnx", "decoder_joint-model.onnx"
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

    Of a transducer ``encoder-model.onnx`` and ``decoder_joint-model.onnx`` take the place of ``model.onnx``.

    Args:
        model: of CTC, or a transducer; it is left as it was.
        folder: there must be none yet.
        recordings: of a transducer; samples on which onnx-asr, if it is installed, has to give the model's texts.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or a file gives other values than torch.
    """
    parts, preprocessor = RunnerParts.of(model, "onnx-asr", "transducer"), model.modules.preprocessor
    if problem := onnx_asr_features_problem(preprocessor):
        wanted = "train with window_size: 0.025, features: 80 and normalize: per_feature"
        remedy = f"{wanted}, or export for sherpa-onnx or to onnx"
        raise UsageError("onnx-asr computes other features", place=model.place, got=problem, remedy=remedy)
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    vocabulary = symbols_of(model.card.labels, model.place)
    advice = []
    if preprocessor.std_floor > 1e-5:
        least = f"std_floor: {preprocessor.std_floor:g}"
        advice.append(f"bands without signal sound otherwise than in training, where {least} held them down")
    write = _write_networks if parts.others else _write_log_probs
    with new_folder(folder) as (new, place):
        (new / VOCABULARY).write_text(vocabulary, encoding="utf-8")
        metadata = described(parts.model, "normalised features")
        config, difference = write(parts, preprocessor.num_features, new, metadata)
        config["features_size"] = preprocessor.num_features
        (new / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        arguments = {"model": config["model_type"]}
        written = Written(new, difference, "onnx-asr", "load_model", {**arguments, "path": str(new)}, advice=advice)
        if parts.others:
            written = replace(written, values="values")
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
