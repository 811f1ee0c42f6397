"""align: the most probable CTC path of known labels, in numpy. Modules that use it are in ``alignment``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nemo_lite.errors import UsageError

_WIDTH = 1024  # states of the band: 512 labels, about 40 s of speech
_MOST_CELLS = 1 << 30  # bytes of the table of steps, beyond which the band is not widened


def align(
    log_probs: npt.NDArray[np.floating[Any]], labels: Sequence[int], width: int = _WIDTH
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
    while True:
        width = min(width, len(states))
        trellis = _Trellis(states, repeats, num_frames, width)
        path, is_near_edge = trellis.path(log_probs)
        if not is_near_edge or 4 * width * num_frames > _MOST_CELLS:
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
            best = best + scores[self._states[first : first + width]]
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
