"""Streams: audio as it arrives to partial and final texts. No model in here, and no network.

Any model streams by segments (`SegmentStream`): levels say where somebody pauses, the segment in front of a pause is
transcribed once for good, and the one that is still open again and again meanwhile. A model whose modules run in chunks
streams by frames (`FrameStream`): however audio arrives, its text is that of the whole recording. Where a part ends
(`EndpointRules`) decides there when words are final, not how the search goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import soxr

from nemo_asr.run.audio.segments import (
    SILENT,
    Cutting,
    Samples,
    Span,
    frame_levels,
    frame_samples,
    smoothed,
    spans_of,
    speech_threshold,
)
from nemo_asr.run.engines import FrameModel
from nemo_asr.run.search.search import Search, States, TimedLabels, num_frames_of
from nemo_asr.run.text.labels import in_letters, separator_of, spelled
from nemo_asr.run.transcribe.domain import LEAST_SPOKEN, Domain, marked, moments_of, sound_of
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcript, Word, frames_in, transcript_of
from nemo_lite.base.errors import UsageError

# Any: values of JSON.

STREAM_CUTTING = Cutting(max_segment=20.0)
"""As of recordings, but with shorter segments: the open one is transcribed again and again."""
PARTIAL_SECONDS = 0.5
_LOWEST_RATE, _HIGHEST_RATE = 1000, 768_000
_PARTIAL_SHARE = 0.1  # of the open segment: so that long ones are not transcribed more often than they can be
_AROUND = 0.2  # seconds around words in which frames are theirs
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
        unfamiliar: of a final text, why the model may not know what it hears; see `nemo_asr.run.transcribe.domain`.
    """

    text: str
    words: tuple[Word, ...]
    is_final: bool
    start: float
    end: float
    unfamiliar: tuple[str, ...] = ()


def message_of(part: Partial) -> dict[str, Any]:
    """What a client is told of a part: a message of the websocket, or a line of ``transcribe --stream``."""
    message: dict[str, Any] = {
        "type": "final" if part.is_final else "partial",
        "text": part.text,
        "start": part.start,
        "end": part.end,
        "words": [asdict(word) for word in part.words],
    }
    return message | ({"unfamiliar": list(part.unfamiliar)} if part.unfamiliar else {})


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
        domain: marks final texts of what the model may not know, each by its segment alone; None: none.

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
        domain: Domain | None = None,
    ) -> None:
        check_rate(sample_rate)
        self._domain = domain
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
        if is_final and self._domain is not None:
            heard = replace(transcript, segments=(Span(0.0, seconds),), sound=sound_of(samples, self._rate))
            transcript = marked(heard, self._domain)
        words = tuple(word.later(start) for word in transcript.words)
        times = round(start, 3), round(start + seconds, 3)
        return Partial(transcript.text, words, is_final, *times, transcript.unfamiliar)

    def _forget(self, num_frames: int) -> None:
        """Samples of the first frames that are not done; their levels are kept for some minutes."""
        num_frames = max(0, num_frames)
        self._samples = self._samples[num_frames * self._frame :]
        self._num_done += num_frames
        self._num_kept += num_frames
        too_many = max(0, self._num_kept - round(_HISTORY_SECONDS * self._rate / self._frame))
        self._levels, self._num_kept = self._levels[too_many:], self._num_kept - too_many


_PARTS_OPEN = 3  # of the longest kind, in which hypotheses may differ
_MOST_SECONDS = 8.0  # that are computed at once


@dataclass(frozen=True)
class EndpointRules:
    """When a part of a stream ends; its text is final then. All in seconds, counted in frames of the model.

    Attributes:
        silence: in which nothing is said, where nothing was said before.
        pause: the same, after something was said.
        longest: of a part; it ends before its last word then, and after twice as long within it. What was said three
            times as long ago stays as the best hypothesis has it.
    """

    silence: float = 2.4
    pause: float = 1.2
    longest: float = 20.0

    def __post_init__(self) -> None:
        if not all(seconds > 0 for seconds in (self.silence, self.pause, self.longest)):
            raise UsageError("rules of endpoints are seconds above 0", got=str(self))


class FrameStream:
    """A `Stream` of a model that runs in chunks.

    The text is that of the whole recording, for any pieces in which it comes. By greedy decoding it is also that of
    all final texts, one behind the other.

    Args:
        model: what computes.
        sample_rate: samples a second of the stream.
        rules: when parts end.
        calibration: turns a confidence into a calibrated one.
        name: what messages call the stream.
        decoder: a search in the place of the model's own.
        domain: marks final texts of what the model may not know, by their words and what the search reads of them:
            samples are not kept; None: none.

    Raises:
        UsageError: the rate is out of range.
    """

    def __init__(
        self,
        model: FrameModel,
        sample_rate: int,
        rules: EndpointRules | None = None,
        calibration: Callable[[float], float] | None = None,
        name: str = "the stream",
        decoder: Search | None = None,
        domain: Domain | None = None,
    ) -> None:
        check_rate(sample_rate)
        self._domain = domain and domain.calibrated(calibration)
        self._model, self._rules, self._calibration, self._name = model, rules or EndpointRules(), calibration, name
        rates = sample_rate, model.sample_rate
        self._resampler = None if rates[0] == rates[1] else soxr.ResampleStream(*rates, 1, dtype="float32")
        self._frames, self._frame_seconds = model.frames(), model.frame_samples / model.sample_rate
        self._num_samples = 0
        self._num_done = 0  # frames before the open part
        self._num_open = 0  # frames of it
        self._num_silent = 0  # frames at the end of it without a label
        self._first_free = 0  # frame of it, behind the last word of the part before
        most_frames = math.ceil(_PARTS_OPEN * self._rules.longest * model.sample_rate / model.frame_samples)
        self._open = (decoder or model.search).stream(most_frames)
        self._read = list[npt.NDArray[np.float32]]()  # by the search, of the open part, where that is measured
        self._shown = ""

    @property
    def seconds(self) -> float:
        """Of audio that came."""
        return self._num_samples / self._model.sample_rate

    @property
    def num_frames(self) -> int:
        """Frames whose labels are known."""
        return self._num_done + self._num_open

    @property
    def text(self) -> str:
        """See `Stream`: the text that `transcribe` gives of the whole recording, where it is not cut."""
        ids = self._open.ids()
        labels = [spelled(label) for label in self._model.labels]
        found = TimedLabels(ids, range(len(ids)), range(1, len(ids) + 1), [0.0] * len(ids))
        words = (
            in_letters("".join(labels[ids[position]] for position in word).strip()) for word in found.words(labels)
        )
        return separator_of(labels).join(words)

    def accept(self, samples: Samples) -> list[Partial]:
        """See `Stream`."""
        samples = np.asarray(samples, np.float32)
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples)
        return self._with_partial(self._finals(samples, last=False)) if len(samples) else []

    def finish(self) -> list[Partial]:
        """See `Stream`."""
        rest = np.zeros(0, np.float32)
        if self._resampler is not None:
            rest = self._resampler.resample_chunk(rest, last=True)
        if not self._num_samples and not len(rest):
            return []
        events = self._finals(rest, last=True)
        return [*events, *self._final(self._num_open)]

    def _finals(self, samples: Samples, last: bool) -> list[Partial]:
        """The parts that end with these samples."""
        self._num_samples += len(samples)
        most = int(_MOST_SECONDS * self._model.sample_rate)
        pieces = [samples[first : first + most] for first in range(0, len(samples), most)] or [samples]
        events: list[Partial] = []
        for index, piece in enumerate(pieces):
            events += self._append(self._frames(piece, last and index == len(pieces) - 1))
        return events

    def _append(self, states: States) -> list[Partial]:
        """More frames; the parts that end within them."""
        events: list[Partial] = []
        first, num_frames = 0, num_frames_of(states)
        while first < num_frames:
            rest = {name: values[first:] for name, values in states.items()}
            number = self._open.accept(rest, self._may_end)
            if self._domain is not None and self._domain.frames:
                self._read.append(next(iter(rest.values()))[:number])
            first += number
            if self._is_over():
                events += self._final(self._num_open)
            elif self._is_too_long():
                events += self._final_words()
        return events

    def _may_end(self, is_spoken: bool) -> bool:
        """Whether the open part may end behind one more frame."""
        self._num_open += 1
        self._num_silent = 0 if is_spoken else self._num_silent + 1
        return self._is_over() or self._is_too_long()

    def _is_over(self) -> bool:
        silence = self._rules.silence if self._num_silent == self._num_open else self._rules.pause
        return self._num_silent * self._frame_seconds >= silence

    def _is_too_long(self) -> bool:
        return self._num_silent < self._num_open and self._num_open * self._frame_seconds >= self._rules.longest

    def _final_words(self) -> list[Partial]:
        """End the open part before its last word: that may go on."""
        labels = self._open.best()
        words = list(labels.words([spelled(label) for label in self._model.labels]))
        # So may what is before it: a space alone begins it.
        first = words[-1][0] if len(words) > 1 else 0
        if not first and self._num_open * self._frame_seconds >= 2 * self._rules.longest:
            return self._final(self._num_open)
        if first and spelled(self._model.labels[labels.ids[first - 1]]) == " ":
            first -= 1
        return self._final(labels.starts[first]) if first else []

    def _final(self, num_frames: int) -> list[Partial]:
        """End the open part after some of its frames."""
        labels = self._open.end(num_frames)
        events = [self._event(labels, num_frames, is_final=True)] if labels.ids or self._shown else []
        written = [spelled(label) for label in self._model.labels]
        left = frames_in(self.seconds - self._num_done * self._frame_seconds, self._frame_seconds)
        timed = labels.timed_words(written, left, self._first_free)
        self._first_free = max(0, (timed[-1].end if timed else self._first_free) - num_frames)
        self._num_done += num_frames
        self._num_open -= num_frames
        self._read = [np.concatenate(self._read)[num_frames:]] if self._read else []
        self._num_silent = min(self._num_silent, self._num_open)
        self._shown = ""
        return events

    def _with_partial(self, events: list[Partial]) -> list[Partial]:
        """With the open part, where its text has changed."""
        event = self._event(self._open.best(), self._num_open, is_final=False)
        if event.text == self._shown:
            return events
        self._shown = event.text
        return [*events, event]

    def _event(self, found: TimedLabels, num_frames: int, is_final: bool) -> Partial:
        start, seconds = self._num_done * self._frame_seconds, self._frame_seconds
        whole = Recording(self._name, np.zeros(0, np.float32), self._model.sample_rate, seconds=self.seconds)
        transcript = transcript_of(
            found, self._model.labels, whole, seconds, start, self._calibration, (), self._first_free
        )
        if is_final and self._domain is not None:
            transcript = marked(replace(transcript, **self._measured(found)), self._domain)
        times = round(start, 3), round(min(start + num_frames * seconds, self.seconds), 3)
        return Partial(transcript.text, transcript.words, is_final, *times, transcript.unfamiliar)

    def _measured(self, found: TimedLabels) -> dict[str, Any]:
        """Of what the search has read from the first label to the last one, and a little around, as in segments."""
        if self._domain is None or not self._read or not found.ids:
            return {}
        around = round(_AROUND / self._frame_seconds)
        spoken = np.concatenate(self._read)[max(0, found.starts[0] - around) : found.ends[-1] + around]
        return self._domain.measured(moments_of(spoken)) if len(spoken) * self._frame_seconds >= LEAST_SPOKEN else {}
