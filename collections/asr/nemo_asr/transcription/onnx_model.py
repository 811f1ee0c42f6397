"""OnnxModel: an exported model in ONNX Runtime, from recordings to transcripts. No torch in this file.

What the file's metadata must say is written by `trained.onnx_export`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from nemo_asr.audio.reading import Samples
from nemo_asr.scoring.calibration import Calibration
from nemo_asr.transcription.recording import BATCH_SECONDS, BATCH_SIZE, Recording, batches_by_length, named
from nemo_asr.transcription.transcript import Transcribed, Transcript, transcript_of
from nemo_lite.errors import CheckpointError, DataError, UsageError
from nemo_lite.utils import logging

# Any: onnxruntime has no types.
LogProbs: TypeAlias = "npt.NDArray[np.float32]"

FORMAT = "nemo_lite waveform model 1"
SUFFIX = ".onnx"
INPUTS = ("audio_signal", "length")
OUTPUTS = ("log_probs", "log_probs_length")
_INSTALL = 'pip install "nemo-lite[onnx]"'


class OnnxModel:
    """A model that ``nemo-lite export`` wrote, on the CPU.

    Args:
        path: the file.

    Attributes:
        path: the file.
        metadata: what it says about itself, as texts by name.
        labels: the vocabulary, without the blank, which is the class behind them.
        sample_rate: samples a second that it takes.
        frame_seconds: how much audio a frame of log-probabilities stands for; 0 where it is not known.
        calibration: of the confidences of words; None: they are as the model gives them.

    Raises:
        CheckpointError: there is no such file, or it is not one that ``nemo-lite export`` wrote.
        UsageError: onnxruntime is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._session = _session(self.path)
        self.metadata: Mapping[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        try:
            if self.metadata["format"] != FORMAT:
                raise ValueError(f'format "{self.metadata["format"]}"')
            self.labels: list[str] = json.loads(self.metadata["labels"])
            self.sample_rate = int(self.metadata["sample_rate"])
            self.frame_seconds = float(self.metadata.get("frame_seconds", 0.0))
            found = self.metadata.get("calibration")
            self.calibration = msgspec.json.decode(found, type=Calibration) if found else None
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            problem, remedy = "this ONNX file does not say how to use it", "write it with nemo-lite export"
            got = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(problem, place=str(path), got=got, remedy=remedy) from None

    def log_probs(self, signals: Sequence[Samples]) -> list[LogProbs]:
        """Log-probabilities (U, classes) of each of some signals (T,), which are computed as one batch."""
        length = np.array([len(signal) for signal in signals], np.int64)
        batch = np.zeros((len(signals), int(length.max())), np.float32)
        for row, signal in zip(batch, signals, strict=True):
            row[: len(signal)] = signal
        values, numbers = self._session.run(list(OUTPUTS), dict(zip(INPUTS, (batch, length), strict=True)))
        return [row[:number] for row, number in zip(values, numbers, strict=True)]

    def transcribe(
        self, recordings: Sequence[Recording], batch_size: int = BATCH_SIZE, batch_seconds: float = BATCH_SECONDS
    ) -> Transcribed:
        """Transcribe recordings, in batches of similar length; the result is in the order given.

        A recording is never cut, so memory grows with the longest one.

        Args:
            recordings: what to read.
            batch_size: most recordings in a batch.
            batch_seconds: no batch of several recordings is longer, padding included.
        """
        measured, faults = _measured(recordings)
        found: dict[int, Transcript] = {}
        for batch in batches_by_length(
            {place: each.seconds for place, each in measured.items()}, batch_size, batch_seconds
        ):
            read: dict[int, Samples] = {}
            for position in batch:
                try:
                    read[position] = measured[position].samples(self.sample_rate)
                except DataError as error:
                    faults[position] = named(measured[position], error)
            if read:
                outputs = self.log_probs(list(read.values()))
                found |= {at: self._transcript(row, measured[at]) for at, row in zip(read, outputs, strict=True)}
        transcripts = [found[position] for position in sorted(found)]
        return Transcribed(transcripts, faults, sum(each.duration for each in transcripts))

    def _transcript(self, log_probs: LogProbs, recording: Recording) -> Transcript:
        path = log_probs.argmax(axis=1)
        scores = np.take_along_axis(log_probs, path[:, None], axis=1)[:, 0]
        seconds = self.frame_seconds or recording.seconds / max(len(path), 1)
        about = recording.source, recording.offset, self.calibration
        return transcript_of(path, scores, self.labels, seconds, recording.seconds, *about)

    def __str__(self) -> str:
        return f"{self.path}: {self.metadata.get('name', '')}, step {self.metadata.get('step', 'not said')}"


def load_onnx_model(path: str | Path) -> OnnxModel:
    """An exported model; the log says which. Raises as :class:`OnnxModel` does."""
    model = OnnxModel(path)
    logging.info("Loaded %s", model)
    return model


def _measured(recordings: Sequence[Recording]) -> tuple[dict[int, Recording], dict[int, str]]:
    """The recordings by position with their length, and why the others cannot be read."""
    good, faults = {}, {}
    for position, recording in enumerate(recordings):
        try:
            good[position] = recording.measured()
        except DataError as error:
            faults[position] = named(recording, error)
    return good, faults


def _session(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError("there is no such file", place=str(path), wanted="a file of nemo-lite export")
    try:
        import onnxruntime
    except ImportError:
        raise UsageError("the package onnxruntime is not installed", place=str(path), remedy=_INSTALL) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its errors are raised as well
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each of its error codes, below RuntimeError or not
        got = str(error).strip().partition("\n")[0]
        raise CheckpointError("this is no ONNX file that can be run", place=str(path), got=got) from None
