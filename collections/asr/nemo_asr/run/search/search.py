"""What every search is, whatever it reads of a model: label ids with times, of recordings and of streams. No torch.

A family of models has a search over its own wires (``Family.search``). What these wires hold of one utterance is its
`States`: that of CTC is ``log_probs`` alone, another one reads encoded frames.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nemo_asr.run.text.labels import has_words
from nemo_lite.base.errors import UsageError

States: TypeAlias = "Mapping[str, npt.NDArray[np.float32]]"
"""What a search reads of one utterance, (T, ...) each, by the names of its inputs: frames come first."""


_MOST_LOG_SUM = 0.1  # far more than rounding in half precision gives


def num_frames_of(states: States) -> int:
    """T of them."""
    return len(next(iter(states.values())))


class Hypotheses(NamedTuple):
    """What a search has found in one utterance.

    Attributes:
        best: the labels of its text, with their frames.
        scored: of several hypotheses, the best first: label ids and the natural logarithm of their weight.
    """

    best: TimedLabels
    scored: Sequence[tuple[Sequence[int], float]] = ()


class Search(Protocol):
    """From the states of an utterance to its labels. One search may be used by several threads.

    One over other states than log-probabilities of frames may have a method ``aligner``, which gives the `Aligner` of
    known texts over these states.
    """

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """The labels of a whole utterance.

        Args:
            states: of all its frames.
            nbest: most hypotheses.

        Raises:
            UsageError: the states are none of the model that the search is for; or it cannot give so many hypotheses.
        """

    def stream(self, most_frames: int) -> SearchStream:
        """The search of a new stream. A search that needs the whole utterance has no such method.

        Args:
            most_frames: in which hypotheses may differ; of what was said before about twice as many, the best stays.
        """


class SearchStream(Protocol):
    """The search of one stream, in parts that end one after the other. Frames count from where the open part begins."""

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        """Go on over frames, up to the one behind which the part may end.

        Args:
            states: of the next frames, one at least.
            ends: called for each frame in its order with whether something is said in it; says whether to stop there.

        Returns:
            How many frames were taken; the others have to come again.
        """

    def best(self) -> TimedLabels:
        """The labels of the open part, as far as they are known."""

    def end(self, num_frames: int) -> TimedLabels:
        """The labels of the first frames of the part, for good. Behind these the next part begins."""

    def ids(self) -> list[int]:
        """The labels of the whole stream."""


class Spoken(Protocol):
    """A hypothesis that a search carries from frame to frame, with what the search remembers of it."""

    @property
    def labels(self) -> TimedLabels:
        """Of the whole utterance."""

    @property
    def score(self) -> float:
        """A natural logarithm."""


H = TypeVar("H", bound=Spoken)


class FrameByFrame(Generic[H]):
    """A `SearchStream` of a search that goes on from frame to frame: greedy, or with a beam of hypotheses.

    Args:
        start: in front of the first frame.
        step: from the states of the next frame, without the axis of time, its number and the hypotheses to the next
            hypotheses, the best first.

    Attributes:
        hypotheses: now.
    """

    def __init__(self, start: H, step: Callable[[States, int, Sequence[H]], Sequence[H]]) -> None:
        self.hypotheses: Sequence[H] = [start]
        self._step = step
        self._start, self._num_frames = 0, 0  # of the open part in the stream, and of all frames

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        """See `SearchStream`."""
        num_frames = num_frames_of(states)
        for frame in range(num_frames):
            of_frame = {name: values[frame] for name, values in states.items()}
            self.hypotheses = self._step(of_frame, self._num_frames, self.hypotheses)
            self._num_frames += 1
            last_end = max(self.hypotheses[0].labels.ends[-1:], default=0)
            if ends(last_end >= self._num_frames):
                return frame + 1
        return num_frames

    def best(self) -> TimedLabels:
        """See `SearchStream`."""
        labels = self.hypotheses[0].labels
        own = labels.part(bisect_left(labels.starts, self._start), len(labels.ids))
        starts, ends = ([frame - self._start for frame in frames] for frames in (own.starts, own.ends))
        return TimedLabels(own.ids, starts, ends, own.log_probs)

    def end(self, num_frames: int) -> TimedLabels:
        """See `SearchStream`."""
        labels = self.best()
        self._start += num_frames
        return labels.part(0, bisect_left(labels.starts, num_frames))

    def ids(self) -> list[int]:
        """See `SearchStream`."""
        return list(self.hypotheses[0].labels.ids)

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """Of all frames of an utterance; see `Search`."""
        self.accept(states, lambda _: False)
        scored = [(each.labels.ids, each.score) for each in self.hypotheses[:nbest]] if nbest > 1 else []
        return Hypotheses(self.best(), scored)


class TimedLabels(NamedTuple):
    """Labels of one recording, when they are said, and how probable they are. U labels.

    Attributes:
        ids: (U,).
        starts, ends: (U,) frames: a label lasts from its start to before its end, at least one frame.
        log_probs: (U,) natural logarithms: that of a label's probability, summed over its frames.
    """

    ids: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    log_probs: Sequence[float]

    def part(self, first: int, end: int) -> TimedLabels:
        """The labels from a position to before another."""
        own = slice(first, end)
        return TimedLabels(self.ids[own], self.starts[own], self.ends[own], self.log_probs[own])

    def words(self, labels: Sequence[str]) -> Iterator[range]:
        """The positions of the labels of each word; of each label, where no label begins with a space."""
        has_spaces = has_words(labels)
        first = 0
        for position in range(1, len(self.ids) + 1):
            if position == len(self.ids) or not has_spaces or labels[self.ids[position]].startswith(" "):
                # A space alone is no part of a word.
                word = range(first + (labels[self.ids[first]] == " "), position)
                if word:
                    yield word
                first = position

    def timed_words(self, labels: Sequence[str], num_frames: int, first_frame: int = 0) -> list[WordFrames]:
        """The words with their frames, of which no two overlap.

        A label without a duration lasts a frame, in which a transducer may say the next word too. So a word ends where
        the next one begins at the latest; of several that begin in one frame each has a frame, one behind the other.
        Words that share the last frame have no room behind it: they, and what is in their way, begin earlier.

        Args:
            labels: the vocabulary.
            num_frames: of the recording: behind them no word ends.
            first_frame: before it no word begins: of a part of a stream, where the last word of the part before ends.
                Only where there are fewer frames than words, words have none.
        """
        words = list(self.words(labels))
        next_starts = [*(self.starts[word[0]] for word in words), self.ends[-1] if words else 0][1:]
        timed, end = list[WordFrames](), first_frame
        for word, next_start in zip(words, next_starts, strict=True):
            start = max(self.starts[word[0]], end)
            end = max(min(self.ends[word[-1]], next_start), start + 1)
            timed.append(WordFrames(word, start, end))
        limit = max(num_frames, first_frame)
        for place, (word, start, end) in reversed(list(enumerate(timed))):
            if end <= limit:
                break
            timed[place] = WordFrames(word, max(first_frame, min(start, limit - 1)), limit)
            limit = timed[place].start
        return timed


class WordFrames(NamedTuple):
    """A word: the positions of its labels, and from which frame to before which one it lasts."""

    labels: range
    start: int
    end: int


FILLER_COST = 2.0
"""Natural logarithm: what a frame costs that holds what a known text has not. A label that the text lacks costs 5 to
10, as a model is sure of it."""


class AlignedLabels(NamedTuple):
    """When the labels of a known text are said in T frames.

    Attributes:
        timed: the labels.
        scores: (T,) natural logarithm of the probability of what the frame has on the path.
    """

    timed: TimedLabels
    scores: npt.NDArray[np.floating[Any]]


class Aligner(Protocol):
    """Finds the most probable path of known labels through what a model computes of a recording."""

    def kept(self, states: States, ids: Sequence[int]) -> npt.NDArray[np.floating[Any]]:
        """Of the states of a part of a recording what the alignment of a text needs: rows (T, ...).

        Args:
            states: of the part.
            ids: of all labels of the text.

        Raises:
            UsageError: the states are none of the model.
        """

    def frames_needed(self, ids: Sequence[int]) -> int:
        """The least number of frames in which the labels can be said."""

    def align(
        self, rows: npt.NDArray[np.floating[Any]], ids: Sequence[int], edges: Sequence[int], borders: Sequence[int]
    ) -> AlignedLabels:
        """The path of a text through a recording.

        Args:
            rows: of the recording's parts, one behind the other. They may be changed.
            ids: of the text's labels.
            edges: positions from 0 to the number of labels: in front of these labels anything may be said, at
                `FILLER_COST` a frame.
            borders: rows between two parts, which have no frame: nothing is said there, or across them.

        Raises:
            UsageError: the labels need more frames.
        """


def refuse_no_probabilities(log_sum: float) -> None:
    """Raise UsageError where the probabilities of a frame do not add up to 1: then words have no confidences.

    Args:
        log_sum: natural logarithm of the sum: of all frames the one that is farthest from 0, which may be NaN.
    """
    if not abs(log_sum) <= _MOST_LOG_SUM:
        problem = "the model's log_probs are no logarithms of probabilities, so words have no confidences"
        got, remedy = f"frames whose logarithm of the sum is {log_sum:.3g}", "end its decoder with log_softmax"
        raise UsageError(problem, got=got, wanted="0, as of a CTC head", remedy=remedy)


def refuse_no_numbers(scores: npt.NDArray[np.floating[Any]]) -> None:
    """Raise UsageError where a network gives NaN: no path through a recording is better than another one then."""
    count = np.count_nonzero(np.isnan(scores))
    if count:
        problem, remedy = (
            "the model gives scores that are no numbers (NaN)",
            "take a checkpoint from before its loss was NaN",
        )
        raise UsageError(problem, got=f"{count} of {scores.size}", remedy=remedy)
