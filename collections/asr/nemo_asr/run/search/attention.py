"""The searches of attention decoders, in numpy: label after label with a beam, and rescoring of what CTC has found.

The states of a search are ``encoded`` (T, D), frames of the encoder, and of a model with a CTC head its ``log_probs``
(T, classes). What the decoder computes comes from a `LabelNetwork`. No torch in here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.search.ctc import LOG_PROBS, PathAligner, align, check_probabilities, labels_of_path
from nemo_asr.run.search.search import Hypotheses, SearchStream, States, TimedLabels, refuse_no_numbers
from nemo_asr.run.search.text_search import TextSearch
from nemo_lite.base.errors import UsageError

Array: TypeAlias = "npt.NDArray[Any]"
Memory: TypeAlias = Any  # of a runtime

ENCODED = "encoded"
"""The state that decoders read."""
BEAM_SIZE = 10
"""Hypotheses that go on, as in WeNet's recipes."""


class TextScores(NamedTuple):
    """What a decoder says of N texts, of which the longest has U labels.

    Attributes:
        from_left: (N, U + 1) natural logarithms: of each label, and behind the last one of the end; then 0.
        from_right: the same from the labels behind each, with the end in front of the first; None: it has no decoder
            that reads from the right.
    """

    from_left: Array
    from_right: Array | None


class LabelNetwork(Protocol):
    """An attention decoder, in some runtime."""

    @property
    def end(self) -> int:
        """The output behind the last label. Labels are the outputs before it."""

    @property
    def start(self) -> Sequence[int]:
        """What stands before the first label."""

    @property
    def num_silent(self) -> int:
        """Outputs behind the end that it may say and that no text has. Those behind them are never said."""

    @property
    def most_labels(self) -> int | None:
        """That it can say; None: any number."""

    @property
    def labels_beyond(self) -> int:
        """Labels that a text may have more than its recording has frames."""

    @property
    def times(self) -> range:
        """Outputs behind the end that may be found between labels: numbers of frames, from 0 on; empty: none."""

    @property
    def reverse_weight(self) -> float:
        """Share of what it says from the right to the left."""

    def begin(self, recordings: Sequence[Array], width: int) -> Memory:
        """In front of the start of ``width`` hypotheses for each recording (T, D)."""

    def after(self, labels: Array, memory: Memory) -> tuple[Array, Memory]:
        """Behind one more label (B, K) of each hypothesis: log-probabilities (B, K, outputs), and the memory."""

    def chosen(self, memory: Memory, recordings: Array, hypotheses: Array) -> Memory:
        """Of some recordings (B',), and of each some hypotheses (B', K)."""

    def of_texts(self, frames: Array, texts: Sequence[Sequence[int]]) -> TextScores:
        """What it says of texts for a recording (T, D)."""


class FoundText(NamedTuple):
    """A text of a recording.

    Attributes:
        ids: of its labels.
        log_probs: of each label, natural logarithms.
        score: by which texts are compared.
    """

    ids: list[int]
    log_probs: list[float]
    score: float


class AttentionBeam:
    """From label to label the most probable hypotheses, until they have ended. With a beam of 1 it is greedy.

    A text has at most as many labels as its recording has frames, and as many more as the network says.

    Args:
        network: the decoder.
        beam_size: hypotheses that go on.
        length_penalty: a text's log-probability is divided by its number of labels to the power of this; 0: it stays.
        temperature: above 0 each label is drawn, from probabilities to the power of 1 by this, and its log-probability
            stays that of the network. Draws begin anew with each call of `decode`, so that calls repeat.
    """

    def __init__(
        self,
        network: LabelNetwork,
        beam_size: int = BEAM_SIZE,
        length_penalty: float = 0.0,
        temperature: float = 0.0,
    ) -> None:
        self._network, self.beam_size, self._length_penalty = network, beam_size, length_penalty
        self._temperature = temperature

    def decode(self, recordings: Sequence[Array], nbest: int = 1) -> list[list[FoundText]]:
        """The best texts of recordings, each (T, D), the best first; none depends on the others.

        Raises:
            UsageError: more texts than the beam has; or the network gives no numbers.
        """
        if nbest > self.beam_size:
            raise UsageError("nbest is more than the beam", got=str(nbest), wanted=f"at most {self.beam_size}")
        network, width = self._network, self.beam_size
        draws = np.random.default_rng(0)
        found: list[list[FoundText]] = [[] for _ in recordings]
        limits = np.array([self._most_labels(len(each)) for each in recordings], np.int64)
        alive = np.flatnonzero(limits)
        for row in np.flatnonzero(limits == 0).tolist():
            found[row] = [FoundText([], [], 0.0)]
        if not len(alive):
            return found
        beams = [_Beam.first(width) for _ in alive]
        memory = network.begin([recordings[row] for row in alive.tolist()], width)
        for label in network.start:
            log_probs, memory = network.after(np.full((len(alive), width), label), memory)
        for number in range(int(limits.max()) + 1):
            refuse_no_numbers(log_probs)
            log_probs[:, :, max(network.end + 1 + network.num_silent, network.times.stop) :] = -np.inf
            is_last = limits[alive] <= number
            log_probs[is_last, :, : network.end] = log_probs[is_last, :, network.end + 1 :] = -np.inf
            if self._temperature:
                # The largest of logarithms with Gumbel's noise is a draw: https://arxiv.org/abs/1411.0030, section 2.
                noisy = log_probs / self._temperature + draws.gumbel(size=log_probs.shape)
                is_drawn = np.arange(noisy.shape[2]) == noisy.argmax(2)[:, :, None]
                log_probs = np.where(is_drawn, log_probs, -np.inf)
            beams = [beam.next(rows, network.end) for beam, rows in zip(beams, log_probs, strict=True)]
            goes_on = [
                place for place, beam in enumerate(beams) if not is_last[place] and not self._has_ended(beam, nbest)
            ]
            for place in set(range(len(beams))) - set(goes_on):
                found[int(alive[place])] = self._texts(beams[place], nbest)
            if not goes_on:
                break
            alive, beams = alive[goes_on], [beams[place] for place in goes_on]
            memory = network.chosen(memory, np.array(goes_on), np.stack([beam.parents for beam in beams]))
            log_probs, memory = network.after(np.stack([beam.labels for beam in beams]), memory)
        return found

    def _most_labels(self, num_frames: int) -> int:
        allowed = num_frames + self._network.labels_beyond if num_frames else 0
        return min(allowed, self._network.most_labels or allowed)

    def _has_ended(self, beam: _Beam, nbest: int) -> bool:
        # Without a penalty nothing that goes on gets better than it is.
        return bool(beam.has_ended[: None if self._length_penalty else nbest].all())

    def _texts(self, beam: _Beam, nbest: int) -> list[FoundText]:
        texts = [
            self._without_silent(ids, log_probs, float(score) / max(len(ids), 1) ** self._length_penalty)
            for ids, log_probs, score in zip(beam.ids, beam.log_probs, beam.scores, strict=True)
            if score > -np.inf
        ]
        return sorted(texts, key=lambda text: -text.score)[:nbest]  # sorted keeps the first of equal ones first

    def _without_silent(self, ids: list[int], log_probs: list[float], score: float) -> FoundText:
        network = self._network
        said = [place for place, label in enumerate(ids) if label < network.end or label in network.times]
        return FoundText([ids[place] for place in said], [log_probs[place] for place in said], score)


@dataclass(frozen=True)
class _Beam:
    """K hypotheses of a recording, the best first.

    Attributes:
        ids, log_probs: of each, its labels.
        scores: (K,) natural logarithms; minus infinity: there is none.
        has_ended: (K,).
        labels: (K,) what came last.
        parents: (K,) from which hypothesis before each has come.
    """

    ids: list[list[int]]
    log_probs: list[list[float]]
    scores: Array
    has_ended: Array
    labels: Array
    parents: Array

    @staticmethod
    def first(width: int) -> _Beam:
        """One hypothesis without a label."""
        scores = np.full(width, -np.inf)
        scores[0] = 0.0
        nothing = np.zeros(width, np.int64)
        empty: list[list[Any]] = [[] for _ in range(width)]
        return _Beam(empty, empty, scores, nothing > 0, nothing, nothing)

    def next(self, log_probs: Array, end: int) -> _Beam:
        """The best continuations by log-probabilities (K, outputs); hypotheses that have ended stay."""
        log_probs = log_probs.astype(np.float64)
        log_probs[self.has_ended] = -np.inf
        log_probs[self.has_ended, end] = 0.0
        totals = (self.scores[:, None] + log_probs).ravel()
        width, num_outputs = log_probs.shape
        candidates = np.argpartition(-totals, width - 1)[:width] if width < len(totals) else np.arange(len(totals))
        # Of equal ones those that were better before, and the first labels.
        candidates = np.flatnonzero(totals >= totals[candidates].min())
        best = candidates[np.argsort(-totals[candidates], kind="stable")[:width]]
        parents, labels = best // num_outputs, best % num_outputs
        has_ended = self.has_ended[parents] | (labels == end)
        ids, scores = list[list[int]](), list[list[float]]()
        for parent, label, ends in zip(parents.tolist(), labels.tolist(), has_ended, strict=True):
            ids.append(self.ids[parent] if ends else [*self.ids[parent], label])
            of_label = [] if ends else [float(log_probs[parent, label])]
            scores.append([*self.log_probs[parent], *of_label])
        return _Beam(ids, scores, totals[best], has_ended, labels, parents)


def timed(text: FoundText, num_frames: int, log_probs: Array | None) -> TimedLabels:
    """The labels of a text with their frames: by CTC's most probable path, where it has a head and they fit.

    Attention itself does not say when a label is said: without a CTC head they are spread evenly over the recording.

    Args:
        text: with a log-probability for each label, which holds for each frame of it.
        num_frames: T.
        log_probs: (T, classes), of the CTC head, if there is one.
    """
    ids = text.ids
    blank = 0 if log_probs is None else log_probs.shape[1] - 1
    if log_probs is not None and PathAligner(blank).frames_needed(ids) <= num_frames:
        _, starts, ends, _ = labels_of_path(align(log_probs, ids), np.zeros(num_frames), blank)
    else:
        starts = [number * num_frames // len(ids) for number in range(len(ids))]
        ends = [max(end, start + 1) for start, end in zip(starts, [*starts[1:], num_frames], strict=False)]
    spans = zip(text.log_probs, starts, ends, strict=True)
    return TimedLabels(ids, starts, ends, [log_prob * (end - start) for log_prob, start, end in spans])


def timed_by_outputs(text: FoundText, num_frames: int, first_time: int) -> TimedLabels:
    """The labels of a text in which outputs from ``first_time`` on are times, numbers of frames.

    Labels are spread evenly between the times around them; behind the last one, up to the end of the recording.

    Args:
        text: labels and times.
        num_frames: T.
        first_time: the output that is frame 0.
    """
    timed_labels, part, start = TimedLabels([], [], [], []), FoundText([], [], 0.0), 0
    for label, log_prob in [*zip(text.ids, text.log_probs, strict=True), (first_time + max(num_frames, 1), 0.0)]:
        if label < first_time:
            part.ids.append(label)
            part.log_probs.append(log_prob)
            continue
        end = max(label - first_time, start)
        of_part = timed(part, max(end - start, 1), None)
        frames = [[start + frame for frame in frames] for frames in of_part[1:3]]
        for kept, new in zip(timed_labels, (of_part.ids, *frames, of_part.log_probs), strict=True):
            kept.extend(new)  # type: ignore[attr-defined]  # made as lists here
        part, start = FoundText([], [], 0.0), end
    return timed_labels


class Rescoring:
    """The best texts of a CTC search, compared anew by what the attention decoder says of each.

    A text's score is that of the decoder from the left, plus that from the right with its weight, plus ``ctc_weight``
    times that of the first search, in natural logarithms. Of equal ones the first is taken.

    Source: Zhang et al., "Unified Streaming and Non-streaming Two-pass End-to-end Model for Speech Recognition", 2020.

    Args:
        network: the decoder.
        first: the search of CTC, with all that it knows of words.
        ctc_weight: of its scores.
        reverse_weight: share of the decoder from the right; None: that with which it was trained.
    """

    def __init__(
        self, network: LabelNetwork, first: TextSearch, ctc_weight: float = 0.5, reverse_weight: float | None = None
    ) -> None:
        self._network, self._first, self._ctc_weight = network, first, ctc_weight
        self._reverse_weight = network.reverse_weight if reverse_weight is None else reverse_weight

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        texts = self.texts(states, nbest)
        best = timed(texts[0], len(states[LOG_PROBS]), states[LOG_PROBS])
        return Hypotheses(best, [(text.ids, text.score) for text in texts] if nbest > 1 else [])

    def texts(self, states: States, nbest: int = 1) -> list[FoundText]:
        """The best texts of a recording, the best first."""
        log_probs = states[LOG_PROBS]
        check_probabilities(log_probs)
        width = self._first.beam_size
        if nbest > width:
            raise UsageError("nbest is more than the beam", got=str(nbest), wanted=f"at most {width}")
        (found,) = self._first.hypotheses(log_probs[None], np.array([len(log_probs)]), width)
        return self.rescored([(one.ids, one.score) for one in found], states)[:nbest]

    def rescored(self, texts: Sequence[tuple[list[int], float]], states: States) -> list[FoundText]:
        """Texts and their scores of the first search, the best of the second first."""
        of_decoder = self._network.of_texts(states[ENCODED], [ids for ids, _ in texts])
        from_left, from_right = of_decoder
        refuse_no_numbers(from_left)
        totals, of_labels = from_left.sum(1, dtype=np.float64), from_left
        if from_right is not None and self._reverse_weight:
            weight = self._reverse_weight
            totals = (1 - weight) * totals + weight * from_right.sum(1, dtype=np.float64)
            of_labels = np.logaddexp(from_left, from_right) - np.log(2)
        totals = totals + self._ctc_weight * np.array([score for _, score in texts])
        return [
            FoundText(texts[row][0], of_labels[row, : len(texts[row][0])].tolist(), float(totals[row]))
            for row in np.argsort(-totals, kind="stable")
        ]

    def stream(self, most_frames: int) -> RescoredStream:
        """See `nemo_asr.run.search.search.Search`."""
        return RescoredStream(self, self._first, most_frames)


class RescoredStream:
    """A `SearchStream` of two passes: while a part is said, what CTC hears; where it ends, the text of the second pass.

    Each part is searched for itself, as a recording would be.

    Args:
        search: of the second pass.
        first: that of the first.
        most_frames: as of `SearchStream`.
    """

    def __init__(self, search: Rescoring, first: TextSearch, most_frames: int) -> None:
        self._search, self._first, self._most_frames = search, first, most_frames
        self._stream: SearchStream = first.stream(most_frames)
        self._rows: dict[str, list[Array]] = {}
        self._ids: list[int] = []

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        """See `SearchStream`."""
        number = self._stream.accept(states, ends)
        for name, values in states.items():
            self._rows.setdefault(name, []).extend(values[:number])
        return number

    def best(self) -> TimedLabels:
        """See `SearchStream`: of the first pass."""
        return self._stream.best()

    def end(self, num_frames: int) -> TimedLabels:
        """See `SearchStream`: of the second pass."""
        part = {name: np.stack(rows[:num_frames]) for name, rows in self._rows.items() if num_frames}
        rest = {name: np.stack(rows[num_frames:]) for name, rows in self._rows.items() if len(rows) > num_frames}
        self._rows, self._stream = {}, self._first.stream(self._most_frames)
        if rest:
            self.accept(rest, lambda _: False)
        found = self._search.recognise(part).best if part else TimedLabels([], [], [], [])
        self._ids += found.ids
        return found

    def ids(self) -> list[int]:
        """See `SearchStream`."""
        return [*self._ids, *self.best().ids]
