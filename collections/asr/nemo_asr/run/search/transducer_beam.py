"""TransducerBeam: search of transducers with a beam of hypotheses, in numpy: n-best, and words as those of CTC.

A path goes over frames and labels: at its frame it says a label or a blank, and goes on by the frames of that::

                 RNN-T           TDT                           big blanks
    blank        1 frame         each duration above 0         1 frame, or those of a big blank
    label        0 frames        each duration                 0 frames

The score of a sequence of labels is the sum over all its paths, up to where they leave the recording. Hypotheses go on
frame by frame; those that a duration leads ahead wait. Two with the same labels at the same frame are one from there
on: their probabilities add up. A hypothesis is given up if so many others as the beam has have a better score and are
as far, or farther: it can only lose by going on.

Sources: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012; frame by frame with merged hypotheses:
Saon, Tueske and Audhkhasi, "Alignment-Length Synchronous Decoding for RNN Transducer", ICASSP 2020, whose section 2
has the time-synchronous search; durations: Xu et al., "Efficient Sequence Transduction by Jointly Predicting Tokens
and Durations", ICML 2023. No torch in here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nemo_asr.run.search.prefix_beam_search import BeamSize, LogProb, SearchLimits, extended
from nemo_asr.run.search.search import Hypotheses, States, TimedLabels, num_frames_of, refuse_no_numbers
from nemo_asr.run.search.transducer import FRAMES, MAX_SYMBOLS, Array, Memory, TransducerNetworks, last_label, take
from nemo_asr.run.search.transducer_align import TransducerAligner
from nemo_asr.run.search.word_beams import TABLES, Floats, Hypothesis, Ints, WordBeams, texts_of
from nemo_asr.run.search.words import Alpha, Beta, HotwordWeight, SearchOfWords, UnknownScore, Weights, WordScores

_NO_LABEL = -1


class TransducerBeam(SearchOfWords):
    """The most probable labels of recordings; with a lexicon, a language model or hot words, the most probable words.

    Args:
        networks: what computes.
        labels: the vocabulary.
        beam_size: hypotheses that go on at each frame.
        lexicon, lm, hotwords, alpha, beta, hotword_weight, unknown_score: as of `nemo_asr.BeamSearchCTCDecoder`.
        min_log_prob: natural logarithm; a less probable label goes on no hypothesis.
        max_symbols: most labels at one frame.

    Attributes:
        beam_size: as given.
        weights: those that it uses now.

    Raises:
        UsageError: a number is out of range; the labels cannot spell the words.
        DataError: a file cannot be read.
    """

    def __init__(
        self,
        networks: TransducerNetworks,
        labels: Sequence[str],
        beam_size: BeamSize = SearchLimits.beam_size,
        lexicon: str | Path | None = None,
        lm: str | Path | None = None,
        hotwords: Sequence[str] = (),
        alpha: Alpha = Weights.alpha,
        beta: Beta = Weights.beta,
        hotword_weight: HotwordWeight = Weights.hotword_weight,
        unknown_score: UnknownScore = Weights.unknown_score,
        min_log_prob: LogProb = SearchLimits.min_log_prob,
        max_symbols: int = MAX_SYMBOLS,
    ) -> None:
        self._networks, self._labels, self._max_symbols = networks, list(labels), max_symbols
        self.beam_size, self._limits = beam_size, SearchLimits(beam_size, min_log_prob)
        super().__init__(labels, lexicon, lm, hotwords, Weights(alpha, beta, hotword_weight, unknown_score))

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `Search`."""
        texts = self.texts(states, nbest)
        _, best = texts[0]
        return Hypotheses(best, [(text.ids, text.score) for text, _ in texts] if nbest > 1 else [])

    def texts(self, states: States, nbest: int = 1) -> list[tuple[Hypothesis, TimedLabels]]:
        """The best texts of an utterance with their labels, the best first; one at least.

        Raises:
            UsageError: ``nbest`` is not from 1 to the beam.
        """
        self._limits.refuse_nbest(nbest)
        stream = self.stream()
        stream.accept(states, lambda _: False)
        return stream.finish()[:nbest]

    def aligner(self) -> TransducerAligner:
        """See `Search`."""
        return TransducerAligner(self._networks, self._max_symbols)

    def stream(self, most_frames: int = 0) -> TransducerStream:
        """See `Search`. Hypotheses share the labels that they have in common, so old ones take little memory."""
        return TransducerStream(self._networks, self._labels, self._limits, self._words, self._max_symbols)


class _Said(NamedTuple):
    """A label of a hypothesis, which goes on the one before: several hypotheses share a beginning."""

    before: _Said | None
    label: int
    start: int
    step: int
    log_prob: float

    @property
    def end(self) -> int:
        """The frame behind it."""
        return self.start + max(self.step, 1)


@dataclass(frozen=True)
class _Live:
    """Hypotheses that go on, N of them, the best first.

    Attributes:
        times: (N,) at which frame each goes on.
        scores: (N,) natural logarithms, of all paths together that lead there.
        keys: (N,) numbers made of all labels, by which hypotheses are told apart.
        memory: behind the last label of each.
        words: (N, 1), likewise.
        said: the last label of each, on the most probable of the paths; None: nothing was said.
    """

    times: Ints
    scores: Floats
    keys: Array
    memory: Memory
    words: WordBeams
    said: Sequence[_Said | None]


class _Ways(NamedTuple):
    """Ways in which hypotheses go on, W of them.

    Attributes:
        rows: (W,) of the hypotheses.
        labels: (W,) that follow, or -1.
        times: (W,) at which they go on then.
        scores: (W,) of all paths together.
        worths: (W,) of the words.
        log_probs: (W,) of the labels alone.
    """

    rows: Ints
    labels: Ints
    times: Ints
    scores: Floats
    worths: Floats
    log_probs: Floats

    def taken(self, chosen: Array) -> _Ways:
        """Some of them."""
        return _Ways._make(each[chosen] for each in self)


class TransducerStream:
    """A search with a beam, of one stream: a `SearchStream`. Arguments are those of `TransducerBeam`, read.

    Where a part ends, the search goes on with all its hypotheses: the whole text is that of the whole recording, also
    where words that come later change it.
    """

    def __init__(
        self,
        networks: TransducerNetworks,
        labels: Sequence[str],
        limits: SearchLimits,
        words: WordScores | None,
        max_symbols: int,
    ) -> None:
        self._networks, self._labels, self._limits, self._max_symbols = networks, labels, limits, max_symbols
        self._has_words = words is not None
        self._live = _Live(
            np.zeros(1, np.int64),
            np.zeros(1),
            np.zeros(1, np.uint64),
            networks.beginning(1),
            WordBeams((1, 1), words),
            [None],
        )
        blanks = [*networks.big_blank_durations[::-1], 1]
        self._blank_steps = np.array([step for step in networks.durations if step] or blanks)
        self._label_steps = np.array(networks.durations or [0])
        self._start, self._num_frames = 0, 0  # of the open part in the stream, and of all frames

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        """See `SearchStream`."""
        for number, frame in enumerate(states[FRAMES], 1):
            self._advance(frame)
            last = self._live.said[0]
            if ends(last is not None and last.end >= self._num_frames):
                return number
        return num_frames_of(states)

    def best(self) -> TimedLabels:
        """See `SearchStream`."""
        return self._of_part(_labels_up_to(self._live.said[0], self._start))

    def end(self, num_frames: int) -> TimedLabels:
        """See `SearchStream`."""
        own = self._of_part(self.finish()[0][1])
        self._start += num_frames
        return own.part(0, sum(start < num_frames for start in own.starts))

    def ids(self) -> list[int]:
        """See `SearchStream`."""
        if self._start == self._num_frames:
            return list(self.finish()[0][0].ids)
        return list(_labels_up_to(self._live.said[0]).ids)

    def finish(self) -> list[tuple[Hypothesis, TimedLabels]]:
        """The texts if the recording ends here, with their labels, the best first; more frames may follow."""
        live = self._live
        of_words, is_whole, unfinished = (each[:, 0] for each in live.words.end(np.ones((len(live.times), 1), bool)))
        # Where the lexicon has no word as any of them ends, the words before that one are what was found.
        is_cut = not is_whole.any()
        totals = live.scores + of_words
        scored, timed = list[tuple[object, Hypothesis]](), dict[tuple[int, ...], TimedLabels]()
        for row in np.argsort(-totals, kind="stable").tolist():
            if is_whole[row] or is_cut:
                labels = _labels_up_to(live.said[row])
                ids = live.words.in_words(list(labels.ids), is_cut, int(unfinished[row]))
                timed.setdefault(tuple(ids), labels.part(0, len(ids)))
                scored.append((None, Hypothesis(ids, float(totals[row]), float(live.scores[row]))))
        return [(text, timed[tuple(text.ids)]) for text in texts_of(scored, self._labels)]

    def _of_part(self, labels: TimedLabels) -> TimedLabels:
        own = labels.part(bisect_left(labels.starts, self._start), len(labels.ids))
        starts, ends = ([frame - self._start for frame in frames] for frames in (own.starts, own.ends))
        return TimedLabels(own.ids, starts, ends, own.log_probs)

    def _advance(self, frame: Array) -> None:
        """Go over the next frame. First the hypotheses at it go on; then those that have said a label and stay, ..."""
        now = self._num_frames
        self._num_frames += 1
        here = np.flatnonzero(self._live.times == now)
        for number in range(self._max_symbols + 1):
            if not len(here):
                break
            ahead = np.flatnonzero(self._live.times > now)
            nothing = np.full(len(ahead), _NO_LABEL)
            worths = self._live.words.worth(len(self._live.times))[:, 0]
            waiting = _Ways(
                ahead, nothing, self._live.times[ahead], self._live.scores[ahead], worths[ahead], np.zeros(len(ahead))
            )
            self._go_on([waiting, *self._ways(frame, here, worths[here], number < self._max_symbols)])
            here = np.flatnonzero(self._live.times == now)

    def _ways(self, frame: Array, here: Ints, worths: Floats, may_say: bool) -> Iterator[_Ways]:
        """In which ways the hypotheses at this frame, some rows of all, go on."""
        now, number = self._num_frames - 1, len(here)
        networks, memory = self._networks, take(self._live.memory, here)
        scores = networks.scores(np.repeat(frame[None], number, axis=0), memory)
        refuse_no_numbers(scores)
        log_probs = _log_softmax(scores[:, : networks.blank + 1])
        of_steps = np.zeros((number, 1))
        of_blanks = log_probs[:, last_label(networks) + 1 :]  # the big ones too
        if networks.durations:
            of_steps = _log_softmax(scores[:, networks.blank + 1 :])
            of_blanks = of_blanks + of_steps[:, np.array(networks.durations) > 0]
        shape = of_blanks.shape
        before = self._live.scores[here]
        yield _Ways(
            np.repeat(here, shape[1]),
            np.full(of_blanks.size, _NO_LABEL),
            np.tile(now + self._blank_steps, number),
            (before[:, None] + of_blanks).ravel(),
            np.repeat(worths, shape[1]),
            np.zeros(of_blanks.size),
        )
        of_labels = log_probs[:, : last_label(networks) + 1]
        labels = np.argsort(-of_labels, axis=1, kind="stable")[:, : self._limits.max_labels]
        of_labels = np.take_along_axis(of_labels, labels, axis=1)
        counts = of_labels >= self._limits.min_log_prob
        if not may_say or not counts.any():
            return
        most = int(counts.sum(1).max())
        labels, of_labels, counts = labels[:, :most], of_labels[:, :most], counts[:, :most]
        words = np.zeros(labels.shape)
        if self._has_words:
            places = np.full((number, networks.blank + 1), -1, np.int32)
            np.put_along_axis(places, labels, np.arange(labels.shape[1], dtype=np.int32)[None], axis=1)
            with TABLES:
                words = self._live.words.taken(here).grow(labels, places, counts[:, None])[:, 0]
        all_scores = before[:, None, None] + of_labels[:, :, None] + of_steps[:, None, :]
        rows, at, steps = np.nonzero(np.broadcast_to(counts[:, :, None], all_scores.shape))
        yield _Ways(
            here[rows],
            labels[rows, at],
            now + self._label_steps[steps],
            all_scores[rows, at, steps],
            words[rows, at],
            of_labels[rows, at],
        )

    def _go_on(self, ways: Sequence[_Ways]) -> None:
        """Let the best of some ways be the hypotheses."""
        live = self._live
        every = _Ways._make(np.concatenate(parts) for parts in zip(*ways, strict=True))
        every = every.taken(every.scores + every.worths > -np.inf)
        keys = live.keys[every.rows]
        is_said = every.labels != _NO_LABEL
        keys[is_said] = extended(keys[is_said], every.labels[is_said])
        # Those with the same labels at the same frame beside one another, the most probable way first.
        order = np.lexsort((-every.scores, every.times, keys))
        keys, every = keys[order], every.taken(order)
        firsts = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]) | (every.times[1:] != every.times[:-1])))
        scores = np.logaddexp.reduceat(every.scores, firsts)
        keys, every = keys[firsts], every.taken(firsts)._replace(scores=scores)
        chosen = _best(every.times, every.scores + every.worths, self._limits.beam_size)
        keys, every = keys[chosen], every.taken(chosen)

        rows, labels, is_said = every.rows, every.labels, every.labels != _NO_LABEL
        memory, words = take(live.memory, rows), live.words.taken(rows)
        if is_said.any():
            pairs, of_pair = np.unique(np.stack([rows[is_said], labels[is_said]]), axis=1, return_inverse=True)
            after = self._networks.after(pairs[1], take(live.memory, pairs[0]))
            for kept, new in zip(memory, after, strict=True):
                kept[is_said] = new[of_pair.reshape(-1)]
            if self._has_words:
                chosen_labels = np.maximum(labels, 0)[:, None]
                places = np.full((len(rows), self._networks.blank + 1), -1, np.int32)
                np.put_along_axis(places, chosen_labels, np.int32(0), axis=1)
                with TABLES:
                    words.grow(chosen_labels, places, is_said[:, None, None])
                    words.keep(np.zeros_like(chosen_labels), np.zeros_like(chosen_labels), is_said[:, None])
        now = self._num_frames - 1
        said = [
            live.said[row] if label == _NO_LABEL else _Said(live.said[row], label, now, time - now, log_prob)
            for row, label, time, log_prob in zip(
                *(each.tolist() for each in (rows, labels, every.times, every.log_probs)), strict=True
            )
        ]
        self._live = _Live(every.times, every.scores, keys, memory, words, said)


def _best(times: Ints, totals: Floats, number: int) -> Ints:
    """Which hypotheses go on, the best first: those for which fewer than ``number`` others are better and as far."""
    order = np.argsort(-totals, kind="stable")
    kept = np.zeros(len(times), bool)
    for time in np.unique(times):
        farther = order[np.flatnonzero(times[order] >= time)[:number]]
        kept[farther[times[farther] == time]] = True
    return order[kept[order]]


def _log_softmax(scores: Array) -> Floats:
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    log_probs: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probs


def _labels_up_to(last: _Said | None, first_frame: int = 0) -> TimedLabels:
    """The labels from a frame to the last one."""
    said = list[_Said]()
    while last is not None and last.start >= first_frame:
        said.append(last)
        last = last.before
    said.reverse()
    return TimedLabels(
        [each.label for each in said],
        [each.start for each in said],
        [each.end for each in said],
        [(each.end - each.start) * each.log_prob for each in said],
    )
