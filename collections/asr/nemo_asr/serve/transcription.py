"""The recording of a request: it is read and cut, its segments are queued, their texts joined. No HTTP, no events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nemo_asr.audio.segments import Detector
from nemo_asr.serve.batching import Job
from nemo_asr.serve.models import ServedModel
from nemo_asr.serve.openai_api import ApiError, Asked
from nemo_asr.serve.uploads import IN_MEMORY_BYTES, Upload
from nemo_asr.transcribe.inputs import Recording
from nemo_asr.transcribe.segments import Segmented
from nemo_asr.transcribe.transcript import Transcript
from nemo_lite.errors import DataError, UsageError

_IN_MEMORY_VALUES = IN_MEMORY_BYTES // 2  # samples of 16 bits of a file that is in memory, too
_WITH_A_HEAD = (b"RIFF", b"fLaC")  # opened by their head; other files are searched or decoded for their length


class Transcription:
    """A recording on its way to a transcript.

    Args:
        model: computes it.
        asked: how it is cut, and hot words.
        upload: the file.
        most_seconds: of the recording.
        detector: says where somebody speaks; None: levels.

    Attributes:
        job: its segments in the queue of the model, once it has begun.
        separator: what stands between the texts of two segments.
    """

    job: Job

    def __init__(
        self, model: ServedModel, asked: Asked, upload: Upload, most_seconds: float, detector: Detector | None
    ) -> None:
        self._model, self._asked, self._upload = model, asked, upload
        self._most_seconds, self._detector = most_seconds, detector
        self._recording = Recording(upload.name, upload.audio)

    def read_if_quick(self) -> bool:
        """Read the recording if that is quick: whether `begin` takes a few milliseconds and needs no other thread.

        Raises:
            ApiError: as of `begin`.
        """
        audio = self._recording.audio
        if self._asked.keywords or self._detector or not isinstance(audio, bytes) or audio[:4] not in _WITH_A_HEAD:
            return False
        self._read()
        return isinstance(self._recording.audio, np.ndarray)

    def begin(self, on_row: Callable[[int, Transcript], object] | None, has_come: Callable[[], None]) -> None:
        """Cut the recording, make the search, and queue the segments.

        Args:
            on_row: see `Job`.
            has_come: see `Batcher.expected`.

        Raises:
            ApiError: the recording cannot be read or is too long, or the labels cannot spell a keyword.
        """
        try:
            search = self._model.search_for(self._asked.keywords)
        except (UsageError, DataError) as error:
            raise ApiError(400, f"keywords: {error}", param="keywords") from None
        self._read()
        self._segmented = Segmented([self._recording], self._asked.cutting, self._model.labels, self._detector)
        self._refuse(self._segmented.faults)
        self.separator = self._segmented.separator
        self.job = self._model.batcher.submit(self._segmented.rows, search, on_row)
        has_come()  # here: the model need not wait until the loop is told

    def transcript(self) -> Transcript:
        """Of the whole recording, when the job is done.

        Raises:
            ApiError: the model has failed, or segments cannot be read.
        """
        try:
            whole = self._segmented.transcribed(*self.job.result.result())
        except Exception:  # of the model: the log has its text
            raise ApiError(500, "the model has failed; the server's log says why", code="model_failed") from None
        self._refuse(whole.faults)
        return whole.transcripts[0]

    def _read(self) -> None:
        """The length, and of a short recording the samples."""
        try:
            self._recording = self._recording.in_memory(_IN_MEMORY_VALUES)
        except DataError as error:
            self._refuse({0: str(error)})
        if self._recording.seconds > self._most_seconds:
            text = f"file: it lasts {self._recording.seconds:.0f} s, wanted at most {self._most_seconds:.0f} s"
            raise ApiError(413, text, param="file", code="file_too_large")

    def _refuse(self, faults: dict[int, str]) -> None:
        """ApiError for the first fault, without paths of the server."""
        for reason in faults.values():
            name = self._upload.name
            if isinstance(self._upload.audio, str):
                reason = reason.replace(self._upload.audio, name)
            reason = reason.removeprefix("the audio ")
            text = reason if reason.startswith(name) else f"{name}: {reason}"
            raise ApiError(400, f"file: {text}", param="file", code="invalid_audio")
