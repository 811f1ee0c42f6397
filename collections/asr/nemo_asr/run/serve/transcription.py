"""The recording of a request: it is read and cut, its segments are queued, their texts joined. No HTTP, no events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nemo_asr.run.audio.decoded import DISK_PROBLEM
from nemo_asr.run.audio.segments import Detector
from nemo_asr.run.engines import NO_PROMPT
from nemo_asr.run.serve.batching import Job
from nemo_asr.run.serve.models import ServedModel
from nemo_asr.run.serve.openai_api import ApiError, Asked, prompt_of
from nemo_asr.run.serve.uploads import IN_MEMORY_BYTES, Upload, disk_is_full
from nemo_asr.run.serve.watching import Watch
from nemo_asr.run.transcribe.driver import Segmented
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcript
from nemo_lite.base.errors import DataError, UsageError

_IN_MEMORY_VALUES = IN_MEMORY_BYTES // 2  # samples of 16 bits of a file that is in memory, too
CLIENT_LEFT = 499
"""The status of requests whose client has left, as nginx has it; nobody reads the answer."""
_WITH_A_HEAD = (b"RIFF", b"fLaC")  # opened by their head; other files are searched or decoded for their length


class Transcription:
    """A recording on its way to a transcript.

    Args:
        model: computes it.
        asked: how it is cut, and hot words.
        upload: the file.
        most_seconds: of the recording.
        detector: says where somebody speaks; None: levels.
        watch: ends the work.

    Attributes:
        job: its segments in the queue of the model, once it has begun; None before.
        separator: what stands between the texts of two segments.

    Raises:
        ApiError: the model does not know the language, or does not translate.
    """

    def __init__(
        self,
        model: ServedModel,
        asked: Asked,
        upload: Upload,
        most_seconds: float,
        detector: Detector | None,
        watch: Watch,
    ) -> None:
        self._model, self._asked, self._upload = model, asked, upload
        self._most_seconds, self._detector, self._watch = most_seconds, detector, watch
        self._recording = Recording(upload.name, upload.audio, watch=watch)
        self._prompt = prompt_of(asked.language, asked.translate, model.languages, model.translates)
        self.job: Job | None = None

    def read_if_quick(self) -> bool:
        """Read the recording if that is quick: whether `begin` takes a few milliseconds and needs no other thread.

        Raises:
            ApiError: as of `begin`.
        """
        audio = self._recording.audio
        is_slow = self._asked.keywords or self._prompt != NO_PROMPT or self._detector  # a search may have to be made
        if is_slow or not isinstance(audio, bytes) or audio[:4] not in _WITH_A_HEAD:
            return False
        self._read()
        return isinstance(self._recording.audio, np.ndarray)

    def begin(self, on_row: Callable[[int, Transcript], object] | None, has_come: Callable[[], None]) -> None:
        """Cut the recording, make the search, and queue the segments.

        Args:
            on_row: see `Job`.
            has_come: see `Batcher.expected`.

        Raises:
            ApiError: the recording cannot be read or is too long, the labels cannot spell a keyword, or the watch has
                ended the work.
        """
        try:
            search = self._model.search_for(self._asked.keywords, self._prompt)
        except (UsageError, DataError) as error:
            raise ApiError(400, f"keywords: {error}", param="keywords") from None
        self._read()
        of_rows = self._asked.cutting, self._model.labels, self._detector
        self._segmented = Segmented(
            [self._recording], *of_rows, longest=self._model.longest_seconds, domain=self._model.domain
        )
        self._refuse(self._segmented.faults)
        self._decode_whole()
        self.separator = self._segmented.separator
        self.job = self._model.batcher.submit(self._segmented.rows, search, on_row)
        has_come()  # here: the model need not wait until the loop is told

    def begin_in_turn(self, on_row: Callable[[int, Transcript], object] | None, has_come: Callable[[], None]) -> None:
        """As `begin`, when it is this recording's turn among all that are read."""
        try:
            with self._watch:
                self.begin(on_row, has_come)
        except DataError as error:  # of the watch
            self._refuse({0: str(error)})
        if self._watch.problem is not None:
            self.cancel()

    def cancel(self) -> None:
        """Nobody waits for it any more: what is read and queued of it is dropped."""
        self._watch.end(ApiError(CLIENT_LEFT, "nobody waits for the answer any more"))
        if self.job is not None:
            self.job.result.cancel()

    def transcript(self) -> Transcript:
        """Of the whole recording, when the job is done.

        Raises:
            ApiError: the model has failed, or segments cannot be read.
        """
        assert self.job is not None, "it has begun"
        try:
            whole = self._segmented.transcribed(*self.job.result.result())
        except Exception:  # of the model: the log has its text
            raise ApiError(500, "the model has failed; the server's log says why", code="model_failed") from None
        self._refuse(whole.faults)
        return whole.transcripts[0]

    def _decode_whole(self) -> None:
        """Decode MP3, Vorbis and Opus of which there are parts: here, not in the model's thread."""
        later = next((row for row in self._segmented.rows if row.decoded_bytes and row.offset), None)
        if later is not None:
            try:
                with later.opened() as part:
                    next(iter(part.pieces()))
            except DataError as error:
                self._refuse({0: str(error)})

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
        if faults and self._watch.problem is not None:
            raise self._watch.problem
        for reason in faults.values():
            if DISK_PROBLEM in reason:
                raise disk_is_full()
            name = self._upload.name
            if isinstance(self._upload.audio, str):
                reason = reason.replace(self._upload.audio, name)
            reason = reason.removeprefix("the audio ")
            text = reason if reason.startswith(name) else f"{name}: {reason}"
            raise ApiError(400, f"file: {text}", param="file", code="invalid_audio")
