"""Streams by frames: a model whose modules run in chunks gives, however audio arrives, the text of the whole recording.

Where a part ends (`EndpointRules`) decides when words are final, not how the search goes on. Streams of models that
cannot: `SegmentStream`. No torch in this file: ONNX files stream without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import soxr

from nemo_asr.run.audio.segments import Samples
from nemo_asr.run.engines import FrameModel
from nemo_asr.run.search.search import Search, States, TimedLabels, num_frames_of
from nemo_asr.run.text.labels import separator_of, spelled
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.stream import Partial, check_rate
from nemo_asr.run.transcribe.transcript import transcript_of
from nemo_lite.base.errors import UsageError

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
        most_frames = math.ceil(_PARTS_OPEN * self._rules.longest * model.sample_rate / model.frame_samples)
        self._open = (decoder or model.search).stream(most_frames)
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
            events += self._append(self._frames(piece, last and index == len(pieces) - 1))
        return events

    def _append(self, states: States) -> list[Partial]:
        """More frames; the parts that end within them."""
        events: list[Partial] = []
        first, num_frames = 0, num_frames_of(states)
        while first < num_frames:
            first += self._open.accept({name: values[first:] for name, values in states.items()}, self._may_end)
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
