"""Streams: audio as it arrives to partial and final texts. No model in here, and no network.

A model without caches streams by segments: levels say where somebody pauses, the segment in front of a pause is
transcribed once for good, and the one that is still open again and again meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from nemo_asr.run.audio.segments import (
    SILENT,
    Cutting,
    Samples,
    frame_levels,
    frame_samples,
    smoothed,
    spans_of,
    speech_threshold,
)
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcript, Word
from nemo_lite.base.errors import UsageError

# Any: values of JSON.

STREAM_CUTTING = Cutting(max_segment=20.0)
"""As of recordings, but with shorter segments: the open one is transcribed again and again."""
PARTIAL_SECONDS = 0.5
_LOWEST_RATE, _HIGHEST_RATE = 1000, 768_000
_PARTIAL_SHARE = 0.1  # of the open segment: so that long ones are not transcribed more often than they can be
_HISTORY_SECONDS = 300.0  # of levels by which speech and pauses are told apart
_KEPT_SECONDS = 0.5  # of a pause that lasts: its end may be the beginning of a word


@dataclass(frozen=True)
class Partial:
    """What was said in a part of a stream, as far as it is known.

    Attributes:
        text: the words.
        words: each with its times, in seconds from the beginning of the stream.
        is_final: it stays as it is; otherwise the next one takes its place.
        start, end: the part, in seconds from the beginning of the stream.
    """

    text: str
    words: tuple[Word, ...]
    is_final: bool
    start: float
    end: float


def message_of(part: Partial) -> dict[str, Any]:
    """What a client is told of a part: a message of the websocket, or a line of ``transcribe --stream``."""
    return {
        "type": "final" if part.is_final else "partial",
        "text": part.text,
        "start": part.start,
        "end": part.end,
        "words": [asdict(word) for word in part.words],
    }


class Stream(Protocol):
    """Takes the samples of one speaker's microphone, of a call, ..., a piece at a time."""

    @property
    def text(self) -> str:
        """All that has been said so far; after :meth:`finish`, the whole text."""

    def accept(self, samples: Samples) -> list[Partial]:
        """What is new with these samples (T,), of full scale 1: final texts in their order, then perhaps a partial."""

    def finish(self) -> list[Partial]:
        """The final texts of what is left; the stream has ended."""


def check_rate(sample_rate: int) -> None:
    """Raise UsageError for samples a second that no stream has."""
    if not _LOWEST_RATE <= sample_rate <= _HIGHEST_RATE:
        wanted = f"{_LOWEST_RATE} to {_HIGHEST_RATE} Hz"
        raise UsageError("the sample rate is out of range", got=f"{sample_rate} Hz", wanted=wanted)


class SegmentStream:
    """A `Stream` by segments, with any model.

    Where the cuts are those of `transcribe`, which knows the whole recording, final texts are those of `transcribe`.

    Args:
        transcribe: gives the transcript of a recording that is not cut.
        sample_rate: samples a second of the stream.
        cutting: its pauses and lengths; of padding at most half of ``min_pause`` is kept.
        partial_seconds: seconds of new audio between two partial texts, a tenth of the open segment where that is more;
            None: final texts only.
        name: what messages call the stream.
        separator: what stands between the texts of two segments.

    Raises:
        UsageError: the rate is out of range.
    """

    def __init__(
        self,
        transcribe: Callable[[Recording], Transcript],
        sample_rate: int,
        cutting: Cutting = STREAM_CUTTING,
        partial_seconds: float | None = PARTIAL_SECONDS,
        name: str = "the stream",
        separator: str = " ",
    ) -> None:
        check_rate(sample_rate)
        self._transcribe, self._rate, self._name, self._separator = transcribe, sample_rate, name, separator
        self._texts: list[str] = []
        self._cutting = replace(cutting, padding=min(cutting.padding, cutting.min_pause / 2))
        self._frame = frame_samples(sample_rate)
        self._partial_samples = None if partial_seconds is None else round(partial_seconds * sample_rate)
        self._samples = np.zeros(0, np.float32)  # from the first frame on that is not done
        self._levels = np.zeros(0, np.float32)  # of frames that are done, then of those in _samples
        self._num_done = 0  # frames, from the beginning of the stream
        self._num_kept = 0  # of them in _levels
        self._unheard = 0  # samples since the last partial text
        self._shown = ""  # that text
        self._may_be_noise = True  # what sounds: nothing was much louder or softer so far

    def accept(self, samples: Samples) -> list[Partial]:
        """See `Stream`."""
        if not self._append(samples):
            return []
        events = self._finals(is_end=False)
        partial = self._partial()
        return events if partial is None else [*events, partial]

    def finish(self) -> list[Partial]:
        """See `Stream`."""
        return self._finals(is_end=True)

    @property
    def text(self) -> str:
        """See `Stream`; of segments that are over."""
        return self._separator.join(self._texts)

    @property
    def seconds(self) -> float:
        """Of audio that came."""
        return (self._num_done * self._frame + len(self._samples)) / self._rate

    def _append(self, samples: Samples) -> bool:
        """Whether there is a new frame."""
        self._samples = np.concatenate([self._samples, np.asarray(samples, np.float32)])
        self._unheard += len(samples)
        first = (len(self._levels) - self._num_kept) * self._frame
        whole = self._samples[first : len(self._samples) // self._frame * self._frame]
        self._levels = np.concatenate([self._levels, frame_levels([whole], self._rate)])
        return len(whole) > 0

    def _spans(self, is_end: bool) -> tuple[list[tuple[int, int]], bool]:
        """The segments in what is not done, in frames, and whether the last one is over."""
        levels = self._levels
        if is_end:  # with the last frame, which may be shorter
            rest = self._samples[(len(levels) - self._num_kept) * self._frame :]
            levels = np.concatenate([levels, frame_levels([rest], self._rate)])
        if len(levels) == self._num_kept:
            return [], is_end
        smooth = smoothed(levels)
        threshold = speech_threshold(smooth)
        self._may_be_noise = bool(threshold <= SILENT < smooth.min())
        is_speech = (smooth > threshold)[self._num_kept :]
        seconds = self._frame / self._rate
        spans = spans_of(is_speech, smooth[self._num_kept :], seconds, self._cutting)
        (speech,) = np.nonzero(is_speech)
        pause = len(is_speech) - 1 - speech[-1] if len(speech) else len(is_speech)
        return spans, is_end or bool(pause >= round(self._cutting.min_pause / seconds))

    def _finals(self, is_end: bool) -> list[Partial]:
        """The texts of segments that are over; their samples are forgotten."""
        spans, is_over = self._spans(is_end)
        events = []
        for first, end in spans if is_over else spans[:-1]:
            event = self._event(first, end, is_final=True)
            self._texts += [event.text] if event.text else []
            if event.text or self._shown:
                events.append(event)
            self._shown, self._unheard = "", 0
        done = [end for _, end in (spans if is_over else spans[:-1])]
        if is_over:
            num_frames = len(self._levels) - self._num_kept
            done.append(num_frames if is_end else num_frames - round(_KEPT_SECONDS * self._rate / self._frame))
        self._forget(max(done, default=0))
        return events

    def _partial(self) -> Partial | None:
        """The text of the segment that is open, where it is time for one and it has changed."""
        if self._partial_samples is None or self._unheard < max(
            self._partial_samples, _PARTIAL_SHARE * len(self._samples)
        ):
            return None
        spans, _ = self._spans(is_end=False)
        if not spans or self._may_be_noise:
            return None
        self._unheard = 0
        event = self._event(*spans[-1], is_final=False)
        if event.text == self._shown:
            return None
        self._shown = event.text
        return event

    def _event(self, first: int, end: int, is_final: bool) -> Partial:
        samples = self._samples[first * self._frame : end * self._frame]
        start = (self._num_done + first) * self._frame / self._rate
        seconds = len(samples) / self._rate
        transcript = self._transcribe(Recording(self._name, samples, self._rate, offset=start, seconds=seconds))
        words = tuple(word.later(start) for word in transcript.words)
        return Partial(transcript.text, words, is_final, round(start, 3), round(start + seconds, 3))

    def _forget(self, num_frames: int) -> None:
        """Samples of the first frames that are not done; their levels are kept for some minutes."""
        num_frames = max(0, num_frames)
        self._samples = self._samples[num_frames * self._frame :]
        self._num_done += num_frames
        self._num_kept += num_frames
        too_many = max(0, self._num_kept - round(_HISTORY_SECONDS * self._rate / self._frame))
        self._levels, self._num_kept = self._levels[too_many:], self._num_kept - too_many
