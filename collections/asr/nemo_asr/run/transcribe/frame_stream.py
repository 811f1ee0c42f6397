"""Streams by frames: a model whose modules run in chunks gives, however audio arrives, the text of the whole recording.

Where a part ends (`EndpointRules`) decides when words are final, not how the search goes on. Streams of models that
cannot: `SegmentStream`. No torch in this file: ONNX files stream without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import soxr

from nemo_asr.run.audio.segments import Samples
from nemo_asr.run.search.prefix_beam_search import StreamedSearch
from nemo_asr.run.text.labels import separator_of, spelled
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.stream import Partial, check_rate
from nemo_asr.run.transcribe.transcript import (
    TimedLabels,
    align,
    labels_of_path,
    path_scores,
    transcript_of,
)
from nemo_lite.base.errors import UsageError

FloatArray: TypeAlias = "npt.NDArray[np.float32]"
_PARTS_OPEN = 3  # of the longest kind, in which hypotheses may differ
_MOST_SECONDS = 8.0  # that are computed at once


@dataclass(frozen=True)
class EndpointRules:
    """When a part of a stream ends; its text is final then. All in seconds, counted in frames of the model.

    Attributes:
        silence: in which the blank is most probable, where nothing was said.
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


class StreamSearch(Protocol):
    """A search that goes on from chunk to chunk, such as `BeamSearchCTCDecoder`."""

    def stream(self) -> StreamedSearch:
        """For a new stream."""


class FrameModel(Protocol):
    """A model that runs in chunks, of which many streams can be made: `StreamedModel`, or one in an ONNX file."""

    @property
    def labels(self) -> Sequence[str]:
        """The vocabulary."""

    @property
    def sample_rate(self) -> int:
        """Samples a second that it takes."""

    @property
    def frame_samples(self) -> int:
        """Samples of one frame of log-probabilities."""

    @property
    def hop_samples(self) -> int:
        """Samples of one frame of features."""

    @property
    def decoder(self) -> StreamSearch | None:
        """The model's own beam search; None: it decodes greedily."""

    def frames(self) -> Callable[[Samples, bool], FloatArray]:
        """A new stream: the next samples (T,), and whether they are the last, to log-probabilities (U, classes)."""


class _NewFrames(NamedTuple):
    """T new frames.

    Attributes:
        path: the most probable class of each.
        scores: its log-probability.
        log_probs: (T, classes).
    """

    path: list[int]
    scores: list[float]
    log_probs: FloatArray

    def part(self, first: int, end: int | None = None) -> _NewFrames:
        """Some of the frames."""
        own = slice(first, end)
        return _NewFrames(self.path[own], self.scores[own], self.log_probs[own])


class _OpenPart(Protocol):
    """The labels of the part that is not final yet, in frames from its beginning on."""

    def accept(self, frames: _NewFrames) -> None:
        """More frames."""

    def best(self) -> TimedLabels:
        """The labels as far as they are known."""

    def end(self, num_frames: int) -> TimedLabels:
        """The labels of the first frames, for good; behind these the next part begins."""

    def ids(self) -> list[int]:
        """Of the whole stream."""


class _OpenPath:
    """Greedy decoding."""

    def __init__(self, blank: int) -> None:
        self._blank = self._before = blank  # the class of the frame before the part
        self._path: list[int] = []
        self._scores: list[float] = []
        self._ids: list[int] = []  # of the parts before

    def accept(self, frames: _NewFrames) -> None:
        self._path += frames.path
        self._scores += frames.scores

    def best(self) -> TimedLabels:
        labels = labels_of_path(np.array(self._path, np.int64), np.array(self._scores), self._blank)
        is_known = self._path[:1] == [self._before] != [self._blank]  # a label that goes on from the part before
        return labels.part(1, len(labels.ids)) if is_known else labels

    def end(self, num_frames: int) -> TimedLabels:
        labels = self.best()
        labels = labels.part(0, sum(start < num_frames for start in labels.starts))
        self._ids += labels.ids
        self._before = self._path[num_frames - 1] if num_frames else self._before
        del self._path[:num_frames], self._scores[:num_frames]
        return labels

    def ids(self) -> list[int]:
        return [*self._ids, *self.best().ids]


class _OpenBeams:
    """A beam search. Where a part ends, the search goes on with all its hypotheses: the whole text is that of
    `transcribe`, also where words that come later change it.

    Args:
        search: of the stream.
        blank: the blank's number.
        most_frames: longer than two parts. After so many, at most twice as many, labels are settled as the best
            hypothesis has them.
    """

    def __init__(self, search: StreamedSearch, blank: int, most_frames: int) -> None:
        self._search, self._blank, self._most_frames = search, blank, most_frames
        self._rows: list[FloatArray] = []  # log-probabilities, by which labels get their times
        self._start = 0  # frames before the part

    def accept(self, frames: _NewFrames) -> None:
        self._search.accept(frames.log_probs)
        if self._search.num_frames - self._search.oldest > 2 * self._most_frames:
            self._search.commit(self._search.num_frames - self._most_frames)
        self._rows.extend(frames.log_probs)

    def best(self) -> TimedLabels:
        """Each label has the frame in which it was found first; the whole frames are known in the end."""
        ids, frames = self._own(*self._search.best())
        scores = [float(self._rows[frame][label]) for label, frame in zip(ids, frames, strict=True)]
        return TimedLabels(ids, frames, [frame + 1 for frame in frames], scores)

    def end(self, num_frames: int) -> TimedLabels:
        (best,) = self._search.finish()
        ids, frames = self._own(best.ids, best.frames)
        ids = [label for label, frame in zip(ids, frames, strict=True) if frame < num_frames]
        rows = np.stack(self._rows[:num_frames]) if num_frames else np.zeros((0, self._blank + 1), np.float32)
        del self._rows[:num_frames]
        self._start += num_frames
        self._search.settle(self._start)
        path = align(rows, ids)
        return labels_of_path(path, rows[np.arange(num_frames), path], self._blank)

    def ids(self) -> list[int]:
        ids = self._search.best()[0] if self._rows else self._search.finish()[0].ids
        return [*self._search.settled, *ids]

    def _own(self, ids: Sequence[int], frames: Sequence[int]) -> tuple[list[int], list[int]]:
        """Labels of the part, and their frames in it."""
        pairs = [(label, frame - self._start) for label, frame in zip(ids, frames, strict=True) if frame >= self._start]
        return [label for label, _ in pairs], [frame for _, frame in pairs]


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
        decoder: a beam search in the place of the model's own.

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
        decoder: StreamSearch | None = None,
    ) -> None:
        check_rate(sample_rate)
        self._model, self._rules, self._calibration, self._name = model, rules or EndpointRules(), calibration, name
        rates = sample_rate, model.sample_rate
        self._resampler = None if rates[0] == rates[1] else soxr.ResampleStream(*rates, 1, dtype="float32")
        self._frames, self._frame_seconds = model.frames(), model.frame_samples / model.sample_rate
        self._num_samples = 0
        self._num_done = 0  # frames before the open part
        self._num_open = 0  # frames of it
        self._num_silent = 0  # frames at the end of it without a label
        decoder, blank = decoder or model.decoder, len(model.labels)
        most_frames = math.ceil(_PARTS_OPEN * self._rules.longest * model.sample_rate / model.frame_samples)
        self._open: _OpenPart = (
            _OpenPath(blank) if decoder is None else _OpenBeams(decoder.stream(), blank, most_frames)
        )
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
        words = ("".join(labels[ids[position]] for position in word).strip() for word in found.words(labels))
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
            events += self._append(self._compute(piece, last and index == len(pieces) - 1))
        return events

    def _compute(self, samples: Samples, last: bool) -> _NewFrames:
        """The frames that these samples complete."""
        log_probs = self._frames(samples, last)
        path = log_probs.argmax(axis=1)
        return _NewFrames(path.tolist(), path_scores(log_probs, path).tolist(), log_probs)

    def _append(self, frames: _NewFrames) -> list[Partial]:
        """More frames; the parts that end within them."""
        events: list[Partial] = []
        seconds, rules = self._frame_seconds, self._rules
        first = 0
        for end, label in enumerate(frames.path, 1):
            self._num_open += 1
            self._num_silent = self._num_silent + 1 if label == len(self._model.labels) else 0
            is_silence = self._num_silent == self._num_open
            is_over = self._num_silent * seconds >= (rules.silence if is_silence else rules.pause)
            if is_over or (not is_silence and self._num_open * seconds >= rules.longest):
                self._open.accept(frames.part(first, end))
                first = end
                events += self._final(self._num_open) if is_over else self._final_words()
        self._open.accept(frames.part(first))
        return events

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
        self._num_done += num_frames
        self._num_open -= num_frames
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
        transcript = transcript_of(found, self._model.labels, whole, seconds, start, self._calibration)
        end = min(start + num_frames * seconds, self.seconds)
        return Partial(transcript.text, transcript.words, is_final, round(start, 3), round(end, 3))
