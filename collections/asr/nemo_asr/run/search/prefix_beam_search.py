"""Prefix beam search over labels of frames, with words and scores; numpy only, for exported models too."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.options import BEAM_SIZES, DEFAULT_BEAM_SIZE
from nemo_asr.run.search.word_beams import TABLES, Hypothesis, WordBeams, texts_of
from nemo_asr.run.search.words import Places, WordScores
from nemo_asr.run.text.labels import spelled, text_of
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between, refuse_out_of_range

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BeamSize: TypeAlias = Annotated[int, BEAM_SIZES]
LogProb: TypeAlias = Annotated[float, Between(-math.inf, 0, below=True)]
MaxLabels: TypeAlias = Annotated[int, Between(1, 100_000)]
CutoffProb: TypeAlias = Annotated[float, Between(0, 1, above=True)]


@dataclass(frozen=True)
class SearchLimits:
    """What a search looks at.

    Attributes:
        beam_size: hypotheses of an utterance that go on after each frame.
        min_log_prob: natural logarithm; a less probable label begins no new hypothesis in that frame.
        max_labels: most labels of a frame that begin new hypotheses.
        cutoff_prob: only the most probable labels of a frame that together, with the blank, have this probability.

    Raises:
        UsageError: a number is out of range.
    """

    beam_size: BeamSize = DEFAULT_BEAM_SIZE
    min_log_prob: LogProb = -6.0
    max_labels: MaxLabels = 40
    cutoff_prob: CutoffProb = 1.0

    def __post_init__(self) -> None:
        refuse_out_of_range(type(self).__init__, vars(self), type(self).__name__)

    def refuse_nbest(self, nbest: int) -> None:
        """UsageError for a number of hypotheses that the beam does not have."""
        if not 1 <= nbest <= self.beam_size:
            problem, remedy = "a search cannot give so many hypotheses", "raise beam_size"
            raise UsageError(problem, got=f"nbest {nbest}", wanted=f"1 to {self.beam_size}, the beam", remedy=remedy)


# FrameLabels: which labels of which frames a search looks at. No hypotheses and no words here.


class Blanks(NamedTuple):
    """The blanks of a stream so far, from which the sum in front of its next step follows, bit for bit.

    Attributes:
        at_step: the sum of the log-probabilities of all blanks up to the last step, which is included.
        total: of all frames.
        is_open: whether there were frames behind the last step.
    """

    at_step: float = 0.0
    total: float = 0.0
    is_open: bool = False


class FrameLabels:
    """The frames in which a label is probable: the steps of a search. In most frames only the blank is probable.

    Utterances are sorted by their number of steps, so that those that have step s are the first rows::

        frames of an utterance   _ _ a _ b b _ _        _: only the blank is probable
        its steps                    0   1 2            frame_of[0] = 2, frame_of[1] = 4, ...
        blanks in front              2   1 -            skipped[0] is the sum of their two log-probabilities
        blanks at the end                    2          skipped_at_end

                  row 0  row 1  row 2
        step 0      x      x      x                     num_active[0] = 3
        step 1      x      x                            num_active[1] = 2
        step 2      x                                   num_active[2] = 1

    Args:
        log_probs: (B, T, classes), the last class is the blank.
        lengths: (B,) valid frames.
        limits: which labels count.
        before: of one utterance, the blanks of its frames before these ones.

    Attributes:
        frame_of: (steps, B) the frame of each step.
        order: (B,) the utterance in each row; the one with the most steps comes first.
        num_steps: of the first row.
        num_active: (steps,) how many rows have this step.
        skipped: (steps, B) the log-probability of the blanks in front of this step; NaN where no frame was left out.
        skipped_at_end: (B,) the same, behind the last step.
        blanks: of the first row, for the frames that follow.
    """

    def __init__(
        self, log_probs: npt.NDArray[np.floating], lengths: Ints, limits: SearchLimits, before: Blanks | None = None
    ) -> None:
        num_utterances, longest, num_classes = log_probs.shape
        self._blank = num_classes - 1
        is_valid = np.arange(longest) < lengths[:, None]
        is_step = is_valid & (log_probs[:, :, : self._blank].max(axis=2, initial=-np.inf) >= limits.min_log_prob)
        num_steps = is_step.sum(axis=1)
        self.order: Ints = np.argsort(-num_steps, kind="stable")
        is_step, num_steps = is_step[self.order], num_steps[self.order]
        self.num_steps = int(num_steps.max(initial=0))
        is_active = num_steps > np.arange(self.num_steps)[:, None]
        self.num_active: Ints = is_active.sum(axis=1)
        # (steps, B): a stable sort puts the frames that are steps in front. Behind an utterance's last step stand other
        # frames, at which nobody looks.
        frame_of = np.argsort(~is_step, axis=1, kind="stable")[:, : self.num_steps].T
        self._rows: Floats = log_probs[self.order, frame_of].astype(np.float64, copy=False)
        self._sort_labels(limits, is_active)

        before = before or Blanks()
        blank_log_probs = np.where(is_valid, log_probs[:, :, self._blank], 0.0)[self.order]
        # (B, 2 + T) the sum of all blanks before the step before, before frame 0, and behind each frame.
        sums = np.full((num_utterances, longest + 2), before.at_step)
        total = np.full((num_utterances, 1), before.total)
        np.cumsum(np.concatenate([total, blank_log_probs], axis=1), axis=1, dtype=np.float64, out=sums[:, 1:])
        rows = np.arange(num_utterances)
        behind = np.concatenate([np.full((1, num_utterances), int(not before.is_open)), frame_of + 2])  # each step
        in_front, self.frame_of = frame_of + 1, frame_of
        skipped = sums[rows, in_front] - sums[rows, behind[:-1]]
        self.skipped: Floats = np.where(is_active & (in_front > behind[:-1]), skipped, np.nan)
        end, last = lengths[self.order] + 1, behind[num_steps, rows]
        self.skipped_at_end: Floats = np.where(end > last, sums[rows, end] - sums[rows, last], np.nan)
        if num_utterances:
            self.blanks = Blanks(float(sums[0, last[0]]), float(sums[0, end[0]]), bool(end[0] > last[0]))

    def _sort_labels(self, limits: SearchLimits, is_active: npt.NDArray[np.bool_]) -> None:
        """Of each step: the labels that count, the most probable first."""
        labels, number = self._rows[..., : self._blank], min(limits.max_labels, self._blank)
        candidates = _candidates(labels, is_active, limits.min_log_prob, number)
        sorting = np.argsort(-np.take_along_axis(labels, candidates, axis=-1), axis=-1, kind="stable")[..., :number]
        self._labels: Ints = np.take_along_axis(candidates, sorting, axis=-1)
        self._scores: Floats = np.take_along_axis(labels, self._labels, axis=-1)
        counts = self._scores >= limits.min_log_prob
        if limits.cutoff_prob < 1:
            blank, shares = self._rows[..., self._blank, None], np.exp(self._scores)
            before = np.cumsum(shares, axis=-1) - shares + np.where(blank > self._scores, np.exp(blank), 0.0)
            counts &= before < limits.cutoff_prob
        self._scores[~counts] = -np.inf
        self._num_labels = np.maximum(counts.sum(axis=-1), 1)

    def row(self, step: int) -> Floats:
        """(b, classes) the log-probabilities of a step."""
        return self._rows[step, : self.num_active[step]]

    def labels(self, step: int) -> tuple[Ints, Floats]:
        """(b, C) labels, the most probable first, and their scores: minus infinity for one that does not count."""
        num = self.num_active[step]
        most = int(self._num_labels[step, :num].max())
        return self._labels[step, :num, :most], self._scores[step, :num, :most]

    def places(self, step: int) -> Places:
        """(b, classes) where each label stands among the labels of a step; -1 where it does not count."""
        labels, _ = self.labels(step)
        places = np.full((len(labels), self._blank + 1), -1, np.int32)
        places[np.arange(len(labels))[:, None], labels] = np.arange(labels.shape[1])
        return places


def _candidates(labels: Floats, is_active: npt.NDArray[np.bool_], min_log_prob: float, number: int) -> Ints:
    """(steps, B, C) labels in their order: of each active step with the most probable ``number`` of those that count.

    A large vocabulary is not sorted as a whole. Mostly few of its labels count: to find them takes a twentieth of the
    time of a partition (of 6,400 rows of 4,000 labels). Behind them a label that does not count fills up.
    """
    num_labels = labels.shape[-1]
    if num_labels <= 4 * number:
        return np.broadcast_to(np.arange(num_labels), labels.shape)
    counts = (labels >= min_log_prob) & is_active[..., None]
    numbers = counts.sum(axis=-1)
    most = max(int(numbers.max(initial=0)), 1)
    if most > 4 * number:
        return np.sort(np.argpartition(-labels, number - 1, axis=-1)[..., :number], axis=-1)
    candidates = np.repeat(counts.argmin(axis=-1)[..., None], most, axis=-1)
    candidates[np.arange(most) < numbers[..., None]] = np.flatnonzero(counts) % num_labels
    return candidates


# search: prefix beam search for CTC over many utterances at once, in numpy. What words are worth: ``WordScores``.
# Sources: Graves and Jaitly, "Towards End-to-End Speech Recognition with Recurrent Neural Networks", ICML 2014;
# Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs",
# 2014, algorithm 1.


_LONGEST_WORD = 1000  # labels; a stream cuts what is longer
_BLOCK = 64  # utterances that are searched together, which bounds memory
_NEVER = -np.inf
_LOWEST = np.finfo(np.float64).min
# Odd numbers with well-mixed bits (Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_MIX_MORE = np.uint64(0x94D049BB133111EB)
_NO_PARENT = np.uint64(0xFFFFFFFFFFFFFFFF)


def search(
    log_probs: npt.NDArray[np.floating],
    lengths: Sequence[int] | Ints,
    limits: SearchLimits,
    words: WordScores | None = None,
    nbest: int = 1,
    labels: Sequence[str] | None = None,
) -> list[list[Hypothesis]]:
    """The most probable texts of each utterance, best first. No utterance depends on the others.

    Args:
        log_probs: (B, T, classes) natural logarithms; the last class is the blank.
        lengths: (B,) valid frames.
        limits: what it looks at.
        words: what words are worth; None: only sounds count.
        nbest: most hypotheses of an utterance.
        labels: the vocabulary. Subwords cut one text in several ways, whose probabilities in the beam are added up.
            None: each sequence of labels counts as a text of its own.

    Returns:
        For each utterance one hypothesis at least.

    Raises:
        UsageError: the classes are not the labels and the blank.
    """
    num, _, num_classes = log_probs.shape
    if labels is not None:
        _refuse_other_labels(num_classes, labels)
    log_probs, ends = np.asarray(log_probs), np.asarray(lengths, np.int64)
    results: list[list[Hypothesis]] = []
    for first in range(0, num, _BLOCK):
        block = slice(first, first + _BLOCK)
        frames = FrameLabels(log_probs[block], ends[block], limits)
        beams = _Beams(len(frames.order), limits.beam_size, num_classes - 1, words)
        for step in range(frames.num_steps):
            beams.advance(frames, step)
        hypotheses = beams.finish(frames.skipped_at_end, nbest, labels)
        results += [hypotheses[row] for row in np.argsort(frames.order)]
    return results


def _refuse_other_labels(num_classes: int, labels: Sequence[str]) -> None:
    if num_classes != len(labels) + 1:
        wanted = f"{len(labels) + 1}: the labels and the blank"
        raise UsageError("the search has other labels than the model", got=f"{num_classes} classes", wanted=wanted)


class _Kept(NamedTuple):
    """What a stream keeps of a hypothesis.

    Attributes:
        ids: its labels, behind those that were taken out.
        at: the frame in which each was found first.
        past: a number made of the texts that were taken out where hypotheses differ.
    """

    ids: list[int]
    at: list[int]
    past: int = 0

    def behind(self, number: int) -> _Kept:
        """Without the first labels."""
        return self._replace(ids=self.ids[number:], at=self.at[number:])


class _Beams:
    """The hypotheses of all utterances, (B, K): K for each, the best first; those that are none have minus infinity.

    Attributes:
        with_blank, with_label: (B, K) the log-probability of all paths that end with a blank, or with the last label.
        last: (B, K) the last label; the blank's number for the empty hypothesis.
        key: (B, K) a number made of all labels, by which a hypothesis is told from the others of its utterance.
        parent_key: (B, K) the key of the hypothesis without the last label.
        words: of the hypotheses.
    """

    def __init__(self, num: int, width: int, blank: int, words: WordScores | None) -> None:
        shape = (num, width)
        self._blank, self._width = blank, width
        self.with_blank, self.with_label = np.full(shape, _NEVER), np.full(shape, _NEVER)
        self.with_blank[:, 0] = 0.0
        self.last = np.full(shape, blank)
        self.key, self.parent_key = np.zeros(shape, np.uint64), np.full(shape, _NO_PARENT)
        self.key[:, 1:] = np.arange(1, width)
        self.words = WordBeams(shape, words)
        self._history: list[tuple[Ints, Ints]] = []  # of each step: the place of the source, the label or -1

    def advance(self, frames: FrameLabels, step: int) -> None:
        """Go over the next frame that has labels, of all utterances that have one."""
        num = int(frames.num_active[step])
        rows, row = np.arange(num)[:, None], frames.row(step)
        with_blank, with_label = self._behind_blanks(frames.skipped[step, :num])
        both = np.logaddexp(with_blank, with_label)
        last = self.last[:num]
        again = np.where(last == self._blank, _NEVER, row[rows, last])
        labels, scores = frames.labels(step)  # (b, C), the most probable first
        grown = both[:, :, None] + scores[:, None, :]
        places = frames.places(step)
        place = places[rows, last]  # among the frame's labels; -1 where it is not
        # The last label again is a new label only behind a blank.
        at, nth = np.nonzero(place >= 0)
        grown[at, nth, place[at, nth]] = with_blank[at, nth] + scores[at, place[at, nth]]
        # A hypothesis of the beam may be another one of the beam and a label: both are then the same, and add up.
        is_parent = self.parent_key[:num][:, None, :] == self.key[:num][:, :, None]
        has_parent, parent = is_parent.any(axis=1), is_parent.argmax(axis=1)
        from_parent = np.where(last[rows, parent] == last, with_blank[rows, parent], both[rows, parent]) + again
        is_grown_too = has_parent & (place >= 0)
        grown[np.nonzero(is_grown_too)[0], parent[is_grown_too], place[is_grown_too]] = _NEVER
        stay_label = np.logaddexp(with_label + again, np.where(has_parent, from_parent, _NEVER))
        with TABLES:
            self._choose(labels, places, grown, both + row[:, self._blank, None], stay_label)

    def _behind_blanks(self, skipped: Floats) -> tuple[Floats, Floats]:
        """The scores with a blank and with a label at the end, after the frames (b,) in which only blanks count."""
        with_blank, with_label = self.with_blank[: len(skipped)], self.with_label[: len(skipped)]
        is_none = np.isnan(skipped)[:, None]
        later = np.logaddexp(with_blank, with_label) + np.maximum(skipped, _LOWEST)[:, None]
        return np.where(is_none, with_blank, later), np.where(is_none, with_label, _NEVER)

    def _choose(self, labels: Ints, places: Places, grown: Floats, stay_blank: Floats, stay_label: Floats) -> None:
        """Keep the best K of the K hypotheses that stayed and the K x C that grew by a label.

        Args:
            labels: (b, C) the frame's labels.
            places: (b, classes) of each label among them; -1 where it is not.
            grown: (b, K, C) log-probabilities of the hypotheses that grew.
            stay_blank: (b, K) of those that stayed, with a blank at the end.
            stay_label: (b, K) of those that stayed, with the last label again.
        """
        num, num_labels = labels.shape
        rows = np.arange(num)[:, None]
        words_grown = self.words.grow(labels, places, grown > _NEVER)
        stayed_score = np.logaddexp(stay_blank, stay_label) + self.words.worth(num)
        scores = np.empty((num, self._width * (1 + num_labels)))
        scores[:, : self._width] = stayed_score
        grown_score = np.add(grown, words_grown, out=scores[:, self._width :].reshape(grown.shape))
        some = np.concatenate([stayed_score, grown_score[:, :, :4].reshape(num, -1)], axis=1)

        # Of each chosen one: did it stay or grow, from which place (b, K) of the beam, and by which label?
        chosen = _best(scores, self._width, some)
        is_alive = scores[rows, chosen] > _NEVER
        stayed = chosen < self._width
        pair = np.where(stayed, 0, chosen - self._width)  # place * C + label's place, as (K, C) lies in a row
        source, label_place = np.where(stayed, chosen, pair // num_labels), pair % num_labels
        grew, label = ~stayed & is_alive, labels[rows, label_place]
        at = rows * self._width + source  # in (b, K), as it lies in memory
        cell = at * num_labels + label_place  # of those that grew, in (b, K, C)

        key, parent_key = self.key.take(at), self.parent_key.take(at)
        self.parent_key[:num] = np.where(is_alive, np.where(grew, key, parent_key), _NO_PARENT)
        self.key[:num] = np.where(grew, extended(key, label), key)
        self.with_blank[:num] = np.where(stayed & is_alive, stay_blank.take(at), _NEVER)
        with_label = np.where(stayed, stay_label.take(at), grown.take(cell))
        self.with_label[:num] = np.where(is_alive, with_label, _NEVER)
        self.last[:num] = np.where(grew, label, self.last.take(at))
        self.words.keep(source, label_place, grew)
        self._history.append((source, np.where(grew, label, -1)))

    def finish(
        self,
        skipped_at_end: Floats,
        nbest: int,
        labels: Sequence[str] | None,
        found: Sequence[_Kept] | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each utterance, in the order of the rows. They may go on, as if nothing was asked.

        Args:
            skipped_at_end: see `FrameLabels`.
            nbest: most of them.
            labels: see `search`.
            found: of one utterance, (K,) what is kept of each hypothesis, where labels were taken out.
        """
        with_blank, with_label = self._behind_blanks(skipped_at_end)
        acoustic = np.logaddexp(with_blank, with_label)
        of_words, is_whole, unfinished = self.words.end(acoustic > _NEVER)
        total, complete = acoustic + of_words, is_whole & (acoustic > _NEVER)
        # Where the lexicon has no word as any of them ends, the words before that one are what was found.
        is_cut: npt.NDArray[np.bool_] = np.logical_not(complete.any(axis=1))
        total = np.where(complete | is_cut[:, None], total, _NEVER)
        chosen = np.argsort(-total, axis=1, kind="stable")[:, : self._width if labels else 2 * nbest]
        all_ids = [] if found else self._labels_of(chosen)
        results = []
        for row, places in enumerate(chosen.tolist()):
            sequences = [found[place] for place in places] if found else [_Kept(ids, []) for ids in all_ids[row]]
            scored = list[tuple[int, Hypothesis]]()
            for place, (ids, at, past) in zip(places, sequences, strict=True):
                if total[row, place] > _NEVER:
                    kept = self.words.in_words(ids, bool(is_cut[row]), int(unfinished[row, place]))
                    of_sounds = float(acoustic[row, place])
                    scored.append((past, Hypothesis(kept, float(total[row, place]), of_sounds, at[: len(kept)])))
            results.append(texts_of(scored, labels)[:nbest])
        return results

    def _labels_of(self, chosen: Ints) -> list[list[list[int]]]:
        """The labels of some hypotheses (B, N)."""
        labels, _ = self.back(chosen)
        return [[ids[ids >= 0].tolist() for ids in labels[:, row].T] for row in range(len(chosen))]

    def back(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Go back through all frames that are remembered, from some hypotheses (B, N).

        Returns:
            (steps, B, N) the label by which each grew, -1 where it did not; (B, N) the places where they come from.
        """
        places, labels = chosen.copy(), np.full((len(self._history), *chosen.shape), -1)
        for step in reversed(range(len(self._history))):
            source, label = self._history[step]
            rows, now = np.arange(len(source))[:, None], places[: len(source)]
            labels[step, : len(source)] = label[rows, now]
            places[: len(source)] = source[rows, now]
        return labels, places

    def forget(self) -> None:
        """Frames so far are not remembered; the hypotheses stay."""
        self._history.clear()

    def alive(self) -> npt.NDArray[np.bool_]:
        """(B, K) which places have a hypothesis."""
        alive: npt.NDArray[np.bool_] = np.logaddexp(self.with_blank, self.with_label) > _NEVER
        return alive


def _best(values: Floats, number: int, some: Floats) -> Ints:
    """The places of the highest values of each row, the highest first; of equal ones the first.

    ``some`` of the values of each row, at least ``number``, tell how high the others have to be. Values of minus
    infinity fill up a row.
    """
    if values.shape[1] <= 2 * number:
        return np.argsort(-values, axis=1, kind="stable")[:, :number]
    least = np.partition(some, -number, axis=1)[:, -number, None]
    is_high = values >= np.maximum(least, _LOWEST)
    is_high[:, :number] = True
    high = np.flatnonzero(is_high)
    rows, columns = np.divmod(high, values.shape[1])
    first = np.searchsorted(rows, np.arange(len(values) + 1))
    sorting = np.full((len(values), int(np.diff(first).max())), np.inf)
    sorting[rows, np.arange(len(high)) - first[rows]] = -values.take(high)
    best: Ints = columns[first[:-1, None] + np.argsort(sorting, axis=1, kind="stable")[:, :number]]
    return best


def extended(keys: npt.NDArray[np.uint64], labels: Ints) -> npt.NDArray[np.uint64]:
    """The key of a hypothesis (by its key) and one more label: a hash, as numpy compares numbers faster than tuples.

    Two different hypotheses get the same key in one case of 2 ** 64.
    """
    mixed = (keys + (labels + 1).astype(np.uint64) * _STEP).astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_MORE
    return mixed ^ (mixed >> np.uint64(31))


# StreamedSearch: the same search while frames come. What is said when, and what is final, is decided elsewhere.


class StreamedSearch:
    """The search of one utterance, some frames at a time. Its hypotheses are those of `search` over all frames, with
    the same scores to the last bit.

    It keeps the hypotheses, and of their labels those in which they may differ.

    Args:
        limits: what it looks at.
        words: what words are worth; None: only sounds count.
        labels: the vocabulary.

    Attributes:
        num_frames: that came.
        settled: labels that were taken out of the hypotheses by :meth:`settle` and :meth:`commit`.
    """

    def __init__(self, limits: SearchLimits, words: WordScores | None, labels: Sequence[str]) -> None:
        self._limits, self._words, self._labels = limits, words, labels
        written = [spelled(label) for label in labels]
        self._begins = [text.startswith(" ") for text in written]
        self._beams = _Beams(1, limits.beam_size, len(labels), words)
        self._blanks, self._skipped = Blanks(), np.full(1, np.nan)
        self._found = [_Kept([], []) for _ in range(limits.beam_size)]
        self.num_frames = 0
        self.settled: list[int] = []

    def accept(self, log_probs: npt.NDArray[np.floating]) -> None:
        """Go on over frames (T, classes) of natural logarithms.

        Raises:
            UsageError: the classes are not the labels and the blank.
        """
        _refuse_other_labels(log_probs.shape[1], self._labels)
        frames = FrameLabels(log_probs[None], np.array([len(log_probs)]), self._limits, self._blanks)
        for step in range(frames.num_steps):
            self._beams.advance(frames, step)
        self._blanks, self._skipped = frames.blanks, frames.skipped_at_end
        labels, places = self._beams.back(np.arange(self._limits.beam_size)[None])
        self._beams.forget()
        at = frames.frame_of[:, 0] + self.num_frames
        found = []
        for place, new in zip(places[0].tolist(), labels[:, 0].T, strict=True):
            ids, ats, past = self._found[place]
            found.append(_Kept(ids + new[new >= 0].tolist(), ats + at[new >= 0].tolist(), past))
        self._found = found
        self.num_frames += len(log_probs)

    def best(self) -> tuple[list[int], list[int]]:
        """The labels of the best hypothesis behind the settled ones, and the frame in which each was found first. Its
        last word may be the beginning of one."""
        return self._found[0][:2]

    def finish(self, nbest: int = 1) -> list[Hypothesis]:
        """The best hypotheses if the utterance ends here, behind the settled labels; more frames may follow."""
        (hypotheses,) = self._beams.finish(self._skipped, nbest, self._labels, self._found)
        return hypotheses

    def settle(self, end: int) -> None:
        """Take labels before a frame out of all hypotheses, where all have them; not those of the last word."""
        alive = [self._found[place] for place in np.flatnonzero(self._beams.alive()[0])]
        columns = zip(*(one.ids for one in alive), strict=False)
        shared = [labels[0] for labels in itertools.takewhile(lambda labels: len(set(labels)) == 1, columns)]
        shared = shared[: min(bisect_left(one.at, end) for one in alive)]
        number = self._last_word(shared)
        self.settled += shared[:number]
        self._found = [one.behind(number) for one in self._found]

    def commit(self, end: int) -> None:
        """Take labels before about a frame out of all hypotheses, also where they differ; not those of the last word.

        The settled ones are those of the best hypothesis. The search goes on with the same hypotheses and scores, so
        the text is that of the whole unless one of them becomes the best that differs so far back.
        """
        best = self._found[0]
        # Where hypotheses find a word a frame earlier or later, a cut in the widest gap is between the same words.
        places = [place for place in range(1, bisect_left(best.at, end)) if 2 * best.at[place] >= best.at[0] + end]
        places = [place for place in places if self._begins[best.ids[place]]] or places
        if places:
            place = max(places, key=lambda place: best.at[place] - best.at[place - 1])
            end = (best.at[place - 1] + best.at[place] + 1) // 2
        kept = []
        for one in self._found:
            last_word = self._last_word(one.ids)
            is_word = len(one.ids) - last_word <= _LONGEST_WORD
            number = min(bisect_left(one.at, end), last_word if is_word else len(one.ids))
            past = hash((one.past, text_of(one.ids[:number], self._labels)))
            kept.append(one.behind(number)._replace(past=past))
        self.settled += best.ids[: len(best.ids) - len(kept[0].ids)]
        self._found = kept

    @property
    def oldest(self) -> int:
        """The frame of the first label that is not settled; that of the next frame, where all are."""
        return min((one.at[0] for one in self._found if one.at), default=self.num_frames)

    def _last_word(self, ids: Sequence[int]) -> int:
        """How many labels stand before the last word, which may go on."""
        if any(self._begins):
            return max((place for place, label in enumerate(ids) if self._begins[label]), default=0)
        return max(len(ids) - (self._words.tree.longest if self._words else 0), 0)
