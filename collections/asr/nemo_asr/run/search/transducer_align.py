"""TransducerAligner: the most probable path of a known text through the lattice of a transducer, in numpy. No torch.

Source: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, section 2.4; a maximum takes the place of
each sum. Durations: Xu et al., "Efficient Sequence Transduction by Jointly Predicting Tokens and Durations", ICML 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.search.search import FILLER_COST, AlignedLabels, States, TimedLabels, refuse_no_numbers
from nemo_lite.base.errors import UsageError

if TYPE_CHECKING:
    from nemo_asr.run.search.transducer import TransducerNetworks

Array: TypeAlias = "npt.NDArray[Any]"
Floats: TypeAlias = "npt.NDArray[np.float64]"

_MOST_OUTPUTS = 1 << 17  # scores of one frame, from which the width of the first band follows
_LEAST_WIDTH, _MOST_WIDTH = 128, 1024  # labels of that band
_MOST_SCORES = 1 << 22  # scores that are computed at once
_MOST_BYTES = 1 << 30  # of the tables of a band, beyond which it is not widened
_CELL_BYTES = 6
_SAID_HERE = 1  # of a cell: it is reached by a label of no duration


class TransducerAligner:
    """When the labels of known texts are said: an `Aligner`.

    A path goes from frame to frame and from label to label, as in the search. No path leads across a border between
    two parts: what is longer ends there. At the edges of sentences frames may hold what the text has not, at a cost.

    The joint network is computed for some frames at a time. Of long texts only a band of labels is looked at, around
    the best one so far; where the path comes near an edge of the band, a band four times as wide is tried, up to 1 GiB
    of memory.

    Args:
        networks: what computes.
        max_symbols: most labels at a frame, on average.
    """

    def __init__(self, networks: TransducerNetworks, max_symbols: int) -> None:
        self._networks, self._max_symbols = networks, max_symbols

    def kept(self, states: States, ids: Sequence[int]) -> Array:
        """See `Aligner`: all frames, for any text."""
        (frames,) = states.values()
        return frames

    def frames_needed(self, ids: Sequence[int]) -> int:
        """See `Aligner`."""
        least_step = min(self._networks.durations, default=0)
        return (len(ids) - 1) * least_step + 1 if ids and least_step else math.ceil(len(ids) / self._max_symbols)

    def align(
        self, rows: Array, ids: Sequence[int], edges: Sequence[int] = (), borders: Sequence[int] = ()
    ) -> AlignedLabels:
        """See `Aligner`."""
        if not len(rows) or len(rows) < self.frames_needed(ids):
            problem, got = "the text is longer than its lattice", f"{len(ids)} labels in {len(rows)} frames"
            raise UsageError(problem, got=got, wanted=f"{max(self.frames_needed(ids), 1)} frames or more")
        memories = self._memories(ids)
        width = min(max(_MOST_OUTPUTS // self._networks.blank, _LEAST_WIDTH), _MOST_WIDTH)
        while True:
            width = min(width, len(ids) + 1)
            lattice = _Lattice(self._networks, rows, ids, memories, edges, borders, width, self._max_symbols)
            arcs, is_near_edge = lattice.path()
            if not is_near_edge or width == len(ids) + 1 or 4 * width * len(rows) * _CELL_BYTES > _MOST_BYTES:
                break
            width *= 4
        if arcs is None:
            got = f"{len(ids)} labels in {len(rows)} frames"
            raise UsageError("no path of the text leads through its lattice", got=got, remedy="see whether it is said")
        said = [arc for arc in arcs if arc.is_label]
        starts = [arc.frame for arc in said]
        ends = [arc.frame + max(arc.step, 1) for arc in said]
        scores = np.zeros(len(rows))
        for arc in arcs:  # what an arc costs holds for each of its frames
            scores[arc.frame : arc.frame + max(arc.step, 1)] += arc.score
        log_probs = self._log_probs(rows[starts], memories[: len(ids)], ids)
        of_frames = [(end - start) * score for start, end, score in zip(starts, ends, log_probs, strict=True)]
        return AlignedLabels(TimedLabels(list(ids), starts, ends, of_frames), scores)

    def _memories(self, ids: Sequence[int]) -> Array:
        """(U + 1, joint_hidden) what the joint network reads in front of each label, and behind the last one."""
        memory = self._networks.beginning(1)
        read = [memory[0]]
        for label in ids:
            memory = self._networks.after(np.array([label]), memory)
            read.append(memory[0])
        return np.concatenate(read)

    def _log_probs(self, frames: Array, memories: Array, ids: Sequence[int]) -> list[float]:
        """Natural logarithms of the probabilities of labels, each at its frame."""
        log_probs = list[float]()
        number = 1024
        for first in range(0, len(ids), number):
            part = slice(first, first + number)
            scores = self._networks.scores(frames[part], (memories[part],))[:, : self._networks.blank + 1]
            log_sums = _log_sum(scores)
            own = scores[np.arange(len(scores)), ids[part]]
            log_probs += (own.astype(np.float64) - log_sums).tolist()
        return log_probs


class _Arc(NamedTuple):
    """A part of a path: a label or a blank at a frame, the frames by which it goes on, and its log-probability."""

    frame: int
    step: int
    is_label: bool
    score: float


class _Scores(NamedTuple):
    """Log-probabilities of S frames and W labels: blanks (S, W, blanks), labels (S, W, durations), others (S, W).

    ``others`` is what it costs that a frame holds something else.
    """

    blanks: Array
    labels: Array
    others: Array


class _Lattice:
    """Viterbi's algorithm over frames and labels, within a band of labels that moves up with the best one.

    Args:
        networks: what computes.
        rows: (T, joint_hidden).
        ids: U labels.
        memories: (U + 1, joint_hidden) in front of each label and behind the last.
        edges, borders: see `Aligner`.
        width: labels of the band.
        max_symbols: see `TransducerAligner`.
    """

    def __init__(
        self,
        networks: TransducerNetworks,
        rows: Array,
        ids: Sequence[int],
        memories: Array,
        edges: Sequence[int],
        borders: Sequence[int],
        width: int,
        max_symbols: int,
    ) -> None:
        self._networks, self._rows, self._memories, self._width = networks, rows, memories, width
        self._ids = np.array([*ids, 0], np.int64)  # nothing follows the last one
        self._is_edge = np.zeros(len(memories), bool)
        self._is_edge[list(edges)] = True
        self._is_border = np.zeros(len(rows), bool)
        self._is_border[list(borders)] = True
        # Where arcs of each frame end at the latest: at the next border, or at the end.
        stops = np.append(np.flatnonzero(self._is_border), len(rows))
        self._stops = stops[np.searchsorted(stops, np.arange(len(rows)), side="right")]
        blanks = [*networks.big_blank_durations[::-1], 1]
        self._blank_steps = [step for step in networks.durations if step] or blanks
        self._label_steps = list(networks.durations) or [0]
        least_step = min(self._label_steps)
        self._labels_a_frame = 1 / least_step if least_step else max_symbols
        num_outputs = networks.blank + 1 + len(networks.durations)
        self._at_once = max(1, min(_MOST_SCORES // (width * num_outputs), 16))  # frames
        num_waiting = max([*self._blank_steps, *self._label_steps, 1]) + 1
        # Of the next frames: the best score at each label, and how it was reached: twice the step, and 1 by a label.
        self._reached = np.full((num_waiting, len(memories)), -np.inf)
        self._ways = np.zeros((num_waiting, len(memories)), np.int16)
        self._best = np.full((len(rows), width), -np.inf, np.float32)
        self._cells = np.zeros((len(rows), width), np.int16)
        self._firsts = np.zeros(len(rows), np.int64)

    def path(self) -> tuple[list[_Arc] | None, bool]:
        """The arcs of the most probable path, if there is one, and whether a wider band might give others."""
        num_frames, num_waiting = len(self._rows), len(self._reached)
        self._reached[0, 0] = 0.0
        first = 0
        for start in range(0, num_frames, self._at_once):
            first = self._moved(first, start)
            of_frames = zip(*self._scores(start, first), strict=True)
            for frame, scored in enumerate(of_frames, start):
                self._step(frame, first, _Scores(*scored))
        last = len(self._memories) - 1
        total = float(self._reached[num_frames % num_waiting, last])
        if total == -np.inf:
            return None, True
        return self._back(total, int(self._ways[num_frames % num_waiting, last]))

    def _moved(self, first: int, frame: int) -> int:
        """Where the band begins: around the best label, and so that the end can still be reached."""
        size, width = len(self._memories), self._width
        if size == width:
            return 0
        centre = int(self._reached.max(axis=0).argmax())
        left = max(0, len(self._rows) - frame - self._at_once)
        lowest = size - width - math.floor(self._labels_a_frame * left)
        return max(first, min(max(centre - width // 2, lowest), size - width))

    def _scores(self, frame: int, first: int) -> _Scores:
        rows, memories = self._rows[frame : frame + self._at_once], self._memories[first : first + self._width]
        shape = len(rows), len(memories)
        networks, blank = self._networks, self._networks.blank
        scores = networks.scores(np.repeat(rows, shape[1], axis=0), (np.tile(memories, (shape[0], 1)),))
        refuse_no_numbers(scores)
        of_outputs, of_durations = scores[:, : blank + 1], scores[:, blank + 1 :]
        log_sums = _log_sum(of_outputs)
        ids = np.tile(self._ids[first : first + self._width], shape[0])
        labels = (of_outputs[np.arange(len(ids)), ids] - log_sums)[:, None]
        blanks = of_outputs[:, blank - len(networks.big_blank_durations) :] - log_sums[:, None]
        others = of_outputs.max(axis=1) - log_sums - FILLER_COST
        if networks.durations:
            steps = of_durations - _log_sum(of_durations)[:, None]
            labels, blanks = labels + steps, blanks + steps[:, np.array(networks.durations) > 0]
        return _Scores(blanks.reshape(*shape, -1), labels.reshape(*shape, -1), others.reshape(shape))

    def _step(self, frame: int, first: int, scored: _Scores) -> None:
        """Go on from all labels at a frame."""
        row, band = frame % len(self._reached), slice(first, first + self._width)
        best, cells = self._reached[row, band].copy(), self._ways[row, band].copy()
        self._reached[row] = -np.inf
        last = first + self._width == len(self._memories)
        if self._is_border[frame]:
            self._keep(frame, first, best, cells)
            self._reach(frame, 1, band, best, is_label=False)
            return
        if 0 in self._label_steps:  # labels one behind the other at this frame
            here = scored.labels[:-1, self._label_steps.index(0)].astype(np.float64)
            before = np.append(0.0, np.cumsum(here))
            reached = before + np.maximum.accumulate(best - before)
            cells[reached > best] = _SAID_HERE
            best = np.maximum(reached, best)
        self._keep(frame, first, best, cells)
        is_edge = self._is_edge[band]
        for step, score in zip(self._blank_steps, scored.blanks.T, strict=True):
            self._reach(frame, step, band, best + score, is_label=False)
        if is_edge.any():
            self._reach(frame, 1, band, np.where(is_edge, best + scored.others, -np.inf), is_label=False)
        grown = slice(first + 1, band.stop + 1 - last)
        for step, score in zip(self._label_steps, scored.labels.T, strict=True):
            if step:
                self._reach(frame, step, grown, (best + score)[: grown.stop - grown.start], is_label=True)

    def _keep(self, frame: int, first: int, best: Floats, cells: Array) -> None:
        self._best[frame], self._cells[frame], self._firsts[frame] = best, cells, first

    def _reach(self, frame: int, step: int, band: slice, scores: Floats, is_label: bool) -> None:
        end = min(frame + step, int(self._stops[frame]))
        row = end % len(self._reached)
        is_better = scores > self._reached[row, band]
        self._reached[row, band][is_better] = scores[is_better]
        self._ways[row, band][is_better] = 2 * (end - frame) + is_label

    def _back(self, total: float, way: int) -> tuple[list[_Arc], bool]:
        arcs, frame, label = list[_Arc](), len(self._rows), len(self._memories) - 1
        margin, last_first, is_near_edge = self._width // 8, len(self._memories) - self._width, False
        while frame or label:
            step, is_label = divmod(way, 2)
            frame, label = frame - step, label - is_label
            first = int(self._firsts[frame])
            place = label - first
            is_near_edge |= (place < margin and first > 0) or (place >= self._width - margin and first < last_first)
            before = float(self._best[frame, place])
            arcs.append(_Arc(frame, step, bool(is_label), total - before))
            total, way = before, int(self._cells[frame, place])
        return arcs[::-1], is_near_edge


def _log_sum(scores: Array) -> Floats:
    """(N, outputs) to (N,) the natural logarithm of the sum of their exponentials."""
    highest = scores.max(axis=1)
    log_sums: Floats = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    return log_sums
