"""What every search is, whatever it reads of a model: label ids with times, of recordings and of streams. No torch.

A family of models has a search over its own wires (``Family.search``). What these wires hold of one utterance is its
`States`: that of CTC is ``log_probs`` alone, another one reads encoded frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.text.labels import has_words

States: TypeAlias = "Mapping[str, npt.NDArray[np.float32]]"
"""What a search reads of one utterance, (T, ...) each, by the names of its inputs: frames come first."""


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
    """From the states of an utterance to its labels. One search may be used by several threads."""

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


class FrameByFrame:
    """A `SearchStream` of a search that decides frame by frame: what it has said stays.

    Args:
        spoken: called for each frame in its order, with its states (...) by name, without the time: the labels that are
            said in it, and the natural logarithm of the probability of each. It keeps what the search remembers.
    """

    def __init__(self, spoken: Callable[[States], Sequence[tuple[int, float]]]) -> None:
        self._spoken = spoken
        self._done = list[int]()  # labels of the parts before
        self._open = TimedLabels([], [], [], [])
        self._num_frames = 0  # of the open part

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        """See `SearchStream`."""
        num_frames = num_frames_of(states)
        for frame in range(num_frames):
            labels = self._spoken({name: values[frame] for name, values in states.items()})
            now = self._num_frames
            for label, log_prob in labels:
                new = TimedLabels([label], [now], [now + 1], [log_prob])
                self._open = TimedLabels(*([*kept, *more] for kept, more in zip(self._open, new, strict=True)))
            self._num_frames += 1
            if ends(bool(labels)):
                return frame + 1
        return num_frames

    def best(self) -> TimedLabels:
        """See `SearchStream`."""
        return self._open

    def end(self, num_frames: int) -> TimedLabels:
        """See `SearchStream`."""
        number = sum(start < num_frames for start in self._open.starts)
        ended, (ids, starts, ends, log_probs) = self._open.part(0, number), self._open.part(number, len(self._open.ids))
        behind = ([frame - num_frames for frame in frames] for frames in (starts, ends))
        self._open = TimedLabels(ids, *behind, log_probs)
        self._done += ended.ids
        self._num_frames -= num_frames
        return ended

    def ids(self) -> list[int]:
        """See `SearchStream`."""
        return [*self._done, *self._open.ids]


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
