"""The searches of CTC, in numpy: greedy decoding here, the search with a beam in `text_search`. Paths and labels.

The states of a search are ``log_probs`` (T, classes): natural logarithms, of which the last class is the blank. No
torch in here: exported models are searched without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.search.search import (
    FILLER_COST,
    AlignedLabels,
    Hypotheses,
    States,
    TimedLabels,
    refuse_no_probabilities,
)
from nemo_lite.base.errors import UsageError

LabelPath: TypeAlias = "npt.NDArray[np.integer[Any]]"
Scores: TypeAlias = "npt.NDArray[np.floating[Any]]"

LOG_PROBS = "log_probs"
"""The state that is read."""


class PathSearch:
    """Greedy decoding: the most probable class of each frame, repeats merged and blanks left out."""

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `Search`."""
        if nbest > 1:
            problem, remedy = "greedy decoding gives one text", "search with a beam"
            raise UsageError(problem, got=f"nbest {nbest}", remedy=remedy)
        log_probs = states[LOG_PROBS]
        path = log_probs.argmax(axis=1)
        return Hypotheses(labels_of_path(path, path_scores(log_probs, path), log_probs.shape[1] - 1))

    def stream(self, most_frames: int) -> StreamedPath:
        """See `Search`."""
        return StreamedPath()


class StreamedPath:
    """Greedy decoding of one stream: a `SearchStream`."""

    def __init__(self) -> None:
        self._blank: int | None = None  # not known before the first frames
        self._before: int | None = None  # the class of the frame before the part
        self._path: list[int] = []
        self._scores: list[float] = []
        self._ids: list[int] = []  # of the parts before

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        """See `SearchStream`."""
        log_probs = states[LOG_PROBS]
        self._blank = log_probs.shape[1] - 1
        path = log_probs.argmax(axis=1)
        scores, labels = path_scores(log_probs, path).tolist(), path.tolist()
        number = number_taken(labels, self._blank, ends)
        self._path += labels[:number]
        self._scores += scores[:number]
        return number

    def best(self) -> TimedLabels:
        """See `SearchStream`."""
        if self._blank is None:
            return TimedLabels([], [], [], [])
        labels = labels_of_path(np.array(self._path, np.int64), np.array(self._scores), self._blank)
        goes_on = self._path[:1] == [self._before] != [self._blank]  # a label of the part before
        return labels.part(1, len(labels.ids)) if goes_on else labels

    def end(self, num_frames: int) -> TimedLabels:
        """See `SearchStream`."""
        labels = self.best()
        labels = labels.part(0, sum(start < num_frames for start in labels.starts))
        self._ids += labels.ids
        self._before = self._path[num_frames - 1] if num_frames else self._before
        del self._path[:num_frames], self._scores[:num_frames]
        return labels

    def ids(self) -> list[int]:
        """See `SearchStream`."""
        return [*self._ids, *self.best().ids]


def number_taken(path: Sequence[int], blank: int, ends: Callable[[bool], bool]) -> int:
    """How many frames come up to the one behind which the part may end."""
    return next((number for number, label in enumerate(path, 1) if ends(label != blank)), len(path))


# From a path to labels with their frames.


def check_probabilities(log_probs: npt.NDArray[np.floating[Any]]) -> None:
    """`refuse_no_probabilities` of frames (T, classes)."""
    if log_probs.size:
        highest = log_probs.max(axis=1)
        with np.errstate(invalid="ignore"):  # of frames without any probability, which are refused
            shares = log_probs - highest[:, None]
            log_sums = highest + np.log(np.exp(shares, out=shares).sum(axis=1))
        refuse_no_probabilities(float(log_sums[np.abs(log_sums).argmax()]))  # argmax takes NaN for the highest


def path_scores(log_probs: npt.NDArray[np.floating[Any]], path: LabelPath) -> Scores:
    """The log-probability of each frame's label: frames (T, classes) and ids (T,) to (T,).

    Raises:
        UsageError: a frame's probabilities do not add up to 1.
    """
    check_probabilities(log_probs)
    return log_probs[np.arange(len(path)), path]


def labels_of_path(path: LabelPath, scores: Scores, blank: int) -> TimedLabels:
    """The labels of a CTC path, repeats merged and blanks left out.

    Args:
        path: (T,) the label of each frame.
        scores: (T,) natural logarithm of that label's probability.
        blank: the id of the blank.
    """
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    edges = [0, *(np.flatnonzero(path[1:] != path[:-1]) + 1).tolist(), len(path)]
    runs = [(first, end) for first, end in itertools.pairwise(edges) if first < end and path[first] != blank]
    starts, ends = [first for first, _ in runs], [end for _, end in runs]
    return TimedLabels(
        [int(path[first]) for first in starts], starts, ends, [float(sums[end] - sums[first]) for first, end in runs]
    )


# align: the most probable CTC path of known labels, in numpy. The module around it is ``LabelAlignment``.


_WIDTH = 1024  # states of the band: 512 labels, about 40 s of speech
_MOST_CELLS = 1 << 30  # bytes of the table of steps, beyond which the band is not widened


def align(
    log_probs: npt.NDArray[np.floating[Any]],
    labels: Sequence[int],
    width: int = _WIDTH,
    fillers: Sequence[int] = (),
) -> npt.NDArray[np.int64]:
    """The most probable path of some labels: Viterbi's algorithm over labels with a blank around each.

    Of long texts only a band of states is looked at, around the best state of the frame before. Where the path comes
    near an edge of the band, a band four times as wide is tried, up to 1 GiB of memory. So memory grows with the frames
    alone, and the path is the most probable one unless labels are hundreds of labels away from their sounds.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section 4.1; a maximum takes the place of
    each sum.

    Args:
        log_probs: (T, classes), of which the last is the blank.
        labels: ids.
        width: states of the first band, at least 4; texts of half as many labels are aligned without one.
        fillers: positions from 0 to the number of labels: in front of these labels anything may be said, at a cost of
            2 a frame. Frames of it are blank in the path.

    Returns:
        (T,) the label of each frame, or the blank.

    Raises:
        UsageError: the labels need more frames.
    """
    num_frames, num_classes = log_probs.shape
    repeats = np.array([a == b for a, b in itertools.pairwise(labels)], bool)
    if num_frames < len(labels) + repeats.sum():
        raise UsageError("the decoder found more labels than frames", got=f"{len(labels)} in {num_frames} frames")
    states = np.full(2 * len(labels) + 1, num_classes - 1)
    states[1::2] = labels
    states[2 * np.array(fillers, np.int64)] = num_classes
    while True:
        width = min(width, len(states))
        trellis = _Trellis(states, repeats, num_frames, width)
        path, is_near_edge = trellis.path(log_probs)
        if not is_near_edge or 4 * width * num_frames > _MOST_CELLS:
            path[path == num_classes] = num_classes - 1
            return path
        width *= 4


class _Trellis:
    """Viterbi's algorithm within a band::

    state  4 .  .  .  .  #  #       # is in the band of its frame, which is 3 states wide;
           3 .  .  #  #  #  #       it moves up with the best state, and so that from one of its states
           2 #  #  #  #  #  #       the last one can still be reached.
           1 #  #  #  #  .  .
           0 #  #  .  .  .  .
             frames ->

    Args:
        states: (S,) labels with a blank around each.
        repeats: whether each label is followed by itself: then a blank must stand between.
        num_frames: of the utterance.
        width: states of the band.
    """

    def __init__(
        self, states: npt.NDArray[np.int64], repeats: npt.NDArray[np.bool_], num_frames: int, width: int
    ) -> None:
        self._states, self._width = states, width
        self._skips = np.zeros(len(states), bool)  # a label may follow another one without a blank between
        self._skips[3::2] = ~repeats
        self._steps = np.zeros((num_frames, width), np.int8)
        self._firsts = np.zeros(num_frames, np.int64)  # of the band, by frame
        # Frames that are needed behind a state: one for each label, and one for the blank between equal ones.
        num_labels = len(states) // 2
        behind = np.zeros(num_labels + 1, np.int64)
        behind[: len(repeats)] = repeats[::-1].cumsum()[::-1]
        needed = np.empty(len(states), np.int64)
        needed[0::2] = num_labels - np.arange(num_labels + 1) + behind
        needed[1::2] = needed[0:-1:2] - 1
        # The first state of each frame from which the last one can be reached.
        self._lowest = np.searchsorted(-needed, -np.arange(num_frames)[::-1])

    def path(self, log_probs: npt.NDArray[np.floating[Any]]) -> tuple[npt.NDArray[np.int64], bool]:
        """(T,) the most probable labels, and whether a wider band might give others."""
        size, width, first = len(self._states), self._width, 0
        nothing = np.full(2, -np.inf)
        best = np.full(width, -np.inf)
        best[:2] = 0.0  # in front of the first frame
        for frame, scores in enumerate(log_probs):
            if frame:
                centre = max(first + int(best.argmax()), int(self._lowest[frame]))
                moved = max(0, min(centre - width // 2, size - width) - first)
                first += moved
                before = np.concatenate([nothing, best, np.full(moved, -np.inf)])[moved:]
                skipping = np.where(self._skips[first : first + width], before[:-2], -np.inf)
                ways = np.stack([before[2:], before[1:-1], skipping])
                self._steps[frame], best = ways.argmax(0), ways.max(0)
                self._firsts[frame] = first
            with_filler = np.append(scores, max(scores[-1], scores.max() - FILLER_COST))
            best = best + with_filler[self._states[first : first + width]]
        return self._back(first + width - 1 if size == 1 or best[-1] >= best[-2] else first + width - 2)

    def _back(self, state: int) -> tuple[npt.NDArray[np.int64], bool]:
        path = np.empty(len(self._steps), np.int64)
        margin, is_near_edge = self._width // 8, False
        last_first = len(self._states) - self._width
        for frame in range(len(path) - 1, -1, -1):
            first = int(self._firsts[frame])
            place = state - first
            is_near_edge |= (place < margin and first > 0) or (place >= self._width - margin and first < last_first)
            path[frame] = self._states[state]
            state -= int(self._steps[frame, place])
        return path, is_near_edge


# PathAligner: known texts over frames, of which what the text needs is kept.


_IMPOSSIBLE = -1e4  # log-probability of a label between two parts


class PathAligner:
    """When the labels of known texts are said, by the most probable path of CTC: an `Aligner`.

    Args:
        blank: the blank's number.
    """

    def __init__(self, blank: int) -> None:
        self._blank = blank

    def kept(self, states: States, ids: Sequence[int]) -> Scores:
        """See `Aligner`: of each frame (labels of the text + 2,), the highest of all others and the blank's behind.

        Raises:
            UsageError: these are no logarithms of probabilities.
        """
        log_probs, classes = states[LOG_PROBS], sorted(set(ids))
        check_probabilities(log_probs)
        others = np.ones(log_probs.shape[1], bool)
        others[[*classes, -1]] = False
        highest = log_probs.max(axis=1, where=others, initial=-np.inf)
        return np.column_stack([log_probs[:, classes], highest, log_probs[:, -1]])

    def frames_needed(self, ids: Sequence[int]) -> int:
        """See `Aligner`: one for each label, and one for the blank between equal ones."""
        return len(ids) + sum(a == b for a, b in itertools.pairwise(ids))

    def align(
        self, rows: Scores, ids: Sequence[int], edges: Sequence[int] = (), borders: Sequence[int] = ()
    ) -> AlignedLabels:
        """See `Aligner`."""
        rows[list(borders)] = _IMPOSSIBLE  # no label lasts from one part into the next
        rows[list(borders), -1] = 0.0
        classes = sorted(set(ids))
        labels = np.array([*classes, self._blank, self._blank])
        column_of = {label: column for column, label in enumerate(classes)}
        path = align(rows, [column_of[label] for label in ids], fillers=edges)
        scores = np.take_along_axis(rows, path[:, None], axis=1)[:, 0]
        return AlignedLabels(labels_of_path(labels[path], scores, self._blank), scores)
