"""A trained model as files that onnx-asr reads."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_asr.export.runner_export import (
    MODEL,
    RunnerParts,
    Stretched,
    Written,
    described,
    new_folder,
    symbols_of,
    write_features,
)
from nemo_asr.export.sherpa_export import sherpa_features_problem
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.trained.model import TrainedModel
from nemo_lite.base.errors import UsageError

VOCABULARY, CONFIG = "vocab.txt", "config.json"


def onnx_asr_features_problem(preprocessor: object) -> str:
    """Why a model cannot take the features that onnx-asr computes for NeMo's models; empty if it can."""
    if problem := sherpa_features_problem(preprocessor):
        return problem
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    if preprocessor.sample_rate != 16_000 or preprocessor.num_features not in (80, 128):
        return f"{preprocessor.num_features} bands at {preprocessor.sample_rate} Hz, not 80 or 128 at 16000 Hz"
    return "" if preprocessor.normalization == "per_feature" else "they are not normalised per_feature"


def export_onnx_asr(model: TrainedModel, folder: str | Path) -> Written:
    """Write ``model.onnx``, ``vocab.txt`` and ``config.json`` as onnx-asr reads them.

    Args:
        model: a CTC model; it is left as it was.
        folder: there must be none yet.

    Raises:
        FileInTheWayError: there is such a folder.
        UsageError: the model cannot be written so, or the file gives other log-probabilities than torch.
    """
    parts, preprocessor = RunnerParts.of(model, "onnx-asr"), model.modules.preprocessor
    if problem := onnx_asr_features_problem(preprocessor):
        remedy = "train with window_size: 0.025 and features: 80, or export for sherpa-onnx or to onnx"
        raise UsageError("onnx-asr computes other features", place=model.place, got=problem, remedy=remedy)
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    vocabulary = symbols_of(model.card.labels, model.place)
    size = preprocessor.num_features
    config = {"model_type": "nemo-conformer-ctc", "features_size": size, "subsampling_factor": 1}
    with new_folder(folder) as (new, place):
        (new / VOCABULARY).write_text(vocabulary, encoding="utf-8")
        (new / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        with parts.rest() as rest:
            metadata = described(parts.model, "normalised features")
            difference = write_features(Stretched(rest), size, "logprobs", new / MODEL, metadata)
    advice = []
    if preprocessor.std_floor > 1e-5:
        least = f"std_floor: {preprocessor.std_floor:g}"
        advice.append(f"bands without signal sound otherwise than in training, where {least} held them down")
    arguments = {"model": config["model_type"], "path": str(place)}
    return Written(place, difference, "onnx-asr", "load_model", arguments, advice=advice)
