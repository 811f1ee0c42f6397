"""Voice activity: models that say where somebody speaks, in the place of levels. Ours and silero-vad's.

A detector hears a recording a piece at a time and gives one decision for each of its frames.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nemo_asr.run.audio.segments import Decisions, Detector, Samples, in_chunks
from nemo_asr.run.engines import open_detector
from nemo_asr.run.onnx.onnx_session import open_session
from nemo_lite.base.errors import UsageError

SILERO = "silero"
_PROBABILITY = 0.5  # above is speech
_RATE, _CHUNK, _CONTEXT = 16000, 512, 64  # of silero-vad 5 and 6: samples a second, of a chunk, of the one before


def load_detector(model: str) -> Detector:
    """A detector.

    Args:
        model: ``silero``, for the installed package silero-vad; its ONNX file; or a classifier of ours, one of whose
            labels is ``speech``.

    Raises:
        UsageError: the package is not installed, the file is another model's, or no label is ``speech``.
        CheckpointError: there is no such model.
    """
    if model == SILERO:
        package = importlib.util.find_spec("silero_vad")
        if package is None or not package.submodule_search_locations:
            problem, remedy = "silero-vad is not installed", "pip install silero-vad, or name its file silero_vad.onnx"
            raise UsageError(problem, place="--vad silero", remedy=remedy)
        return _Silero(Path(package.submodule_search_locations[0]) / "data" / "silero_vad.onnx")
    if model.endswith(".onnx"):
        return _Silero(Path(model).expanduser())
    return open_detector(model)


class _Silero:
    """The recurrent model of silero-vad in ONNX Runtime: a probability for each 32 ms, with 4 ms of what was before."""

    def __init__(self, path: Path) -> None:
        self._session: Any = open_session(path)
        names = [item.name for item in self._session.get_inputs()]
        if names != ["input", "state", "sr"]:
            got, wanted = f"inputs {', '.join(names)}", "input, state, sr, as of silero-vad 5 and 6"
            raise UsageError("this is no model of silero-vad", place=str(path), got=got, wanted=wanted)

    def __call__(self, pieces: Iterable[Samples], sample_rate: int) -> tuple[Decisions, float]:
        """See `Detector`."""
        rate, state = np.array(_RATE, np.int64), np.zeros((2, 1, 128), np.float32)
        context = np.zeros(_CONTEXT, np.float32)
        speech: list[bool] = []
        for chunk in in_chunks(pieces, sample_rate, _RATE, _CHUNK):
            samples = np.concatenate([context, chunk])[None]
            probability, state = self._session.run(None, {"input": samples, "state": state, "sr": rate})
            speech.append(float(probability[0, 0]) > _PROBABILITY)
            context = chunk[-_CONTEXT:]
        return np.array(speech, bool), _CHUNK / _RATE
