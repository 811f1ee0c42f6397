"""FrameLabels: which labels of which frames a search looks at. No hypotheses and no words in this file.

In most frames of a trained model only the blank is probable. Several such frames in a row are one number.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class LabelLimits(Protocol):
    """Which labels count, see ``Limits``."""

    @property
    def min_log_prob(self) -> float: ...
    @property
    def max_labels(self) -> int: ...
    @property
    def cutoff_prob(self) -> float: ...


class FrameLabels:
    """The frames with labels that count, of utterances sorted by how many they are: step by step, for all utterances.

    Args:
        log_probs: (B, T, classes), the last class is the blank.
        lengths: (B,) valid frames.
        limits: which labels count.

    Attributes:
        order: (B,) the utterance in each row; the one with the most steps comes first.
        num_steps: of the first row.
        num_active: (steps,) how many rows have this step.
        skipped: (steps, B) the log-probability of the blanks in front of this step; NaN where no frame was left out.
        skipped_at_end: (B,) the same, behind the last step.
    """

    def __init__(self, log_probs: npt.NDArray[np.floating], lengths: Ints, limits: LabelLimits) -> None:
        _, longest, num_classes = log_probs.shape
        self._blank = num_classes - 1
        is_frame = np.arange(longest) < lengths[:, None]
        counts = is_frame & (log_probs[:, :, : self._blank].max(axis=2, initial=-np.inf) >= limits.min_log_prob)
        num_kept = counts.sum(axis=1)
        self.order: Ints = np.argsort(-num_kept, kind="stable")
        counts, num_kept = counts[self.order], num_kept[self.order]
        self.num_steps = int(num_kept.max(initial=0))
        self.num_active: Ints = (num_kept[None, :] > np.arange(self.num_steps)[:, None]).sum(axis=1)
        utterances, frames = np.nonzero(counts)
        steps = np.arange(len(frames)) - np.repeat(np.cumsum(num_kept) - num_kept, num_kept)
        by_step = np.lexsort((utterances, steps))  # all rows of a step lie together
        utterances, frames, steps = utterances[by_step], frames[by_step], steps[by_step]
        self._firsts = np.concatenate([[0], np.cumsum(self.num_active)])
        self._rows: Floats = log_probs[self.order[utterances], frames].astype(np.float64)
        self._sort_labels(limits)
        self._measure_blanks(log_probs, lengths, utterances, frames, steps)

    def _sort_labels(self, limits: LabelLimits) -> None:
        labels, number = self._rows[:, : self._blank], min(limits.max_labels, self._blank)
        if self._blank > 4 * number:  # so that a large vocabulary is not sorted as a whole
            few = np.sort(np.argpartition(-labels, number - 1, axis=1)[:, :number], axis=1)
        else:
            few = np.broadcast_to(np.arange(self._blank), labels.shape)
        sorting = np.argsort(-np.take_along_axis(labels, few, axis=1), axis=1, kind="stable")[:, :number]
        self._labels: Ints = np.take_along_axis(few, sorting, axis=1)
        self._scores: Floats = np.take_along_axis(labels, self._labels, axis=1)
        counts = self._scores >= limits.min_log_prob
        if limits.cutoff_prob < 1:
            blank, shares = self._rows[:, self._blank, None], np.exp(self._scores)
            before = np.cumsum(shares, axis=1) - shares + np.where(blank > self._scores, np.exp(blank), 0.0)
            counts &= before < limits.cutoff_prob
        self._scores[~counts] = -np.inf
        self._most = np.maximum(counts.sum(axis=1), 1)

    def _measure_blanks(
        self, log_probs: npt.NDArray[np.floating], lengths: Ints, utterances: Ints, frames: Ints, steps: Ints
    ) -> None:
        blanks = np.zeros((len(log_probs), log_probs.shape[1] + 1))
        valid = np.arange(log_probs.shape[1]) < lengths[:, None]
        np.cumsum(
            np.where(valid, log_probs[:, :, self._blank].astype(np.float64), 0.0)[self.order], 1, out=blanks[:, 1:]
        )
        place = np.full((self.num_steps + 1, len(log_probs)), 0)  # the first frame behind each step
        place[steps + 1, utterances] = frames + 1
        self.skipped: Floats = np.full((self.num_steps, len(log_probs)), np.nan)
        before = place[steps, utterances]
        skipped = np.where(frames > before, blanks[utterances, frames] - blanks[utterances, before], np.nan)
        self.skipped[steps, utterances] = skipped
        last, rows, ends = place.max(axis=0), np.arange(len(log_probs)), lengths[self.order]
        self.skipped_at_end: Floats = np.where(ends > last, blanks[rows, ends] - blanks[rows, last], np.nan)

    def row(self, step: int) -> Floats:
        """(b, classes) the log-probabilities of a step."""
        return self._rows[self._firsts[step] : self._firsts[step + 1]]

    def labels(self, step: int) -> tuple[Ints, Floats]:
        """(b, C) labels, the most probable first, and their scores: minus infinity for one that does not count."""
        span = slice(self._firsts[step], self._firsts[step + 1])
        most = int(self._most[span].max())
        return self._labels[span, :most], self._scores[span, :most]

    def places(self, step: int) -> Ints:
        """(b, classes) where each label stands among the labels of a step; -1 where it does not count."""
        labels, _ = self.labels(step)
        places = np.full((len(labels), self._blank + 1), -1)
        np.put_along_axis(places, labels, np.broadcast_to(np.arange(labels.shape[1]), labels.shape), axis=1)
        return places
