"""TextSearch: log-probabilities of CTC to texts by prefix beam search, of whole utterances and of streams. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nemo_asr.run.search.ctc import LOG_PROBS, align, check_probabilities, labels_of_path, number_taken, path_scores
from nemo_asr.run.search.prefix_beam_search import (
    BeamSize,
    Ints,
    LogProb,
    SearchLimits,
    StreamedSearch,
    search,
)
from nemo_asr.run.search.search import Hypotheses, States, TimedLabels
from nemo_asr.run.search.word_beams import Hypothesis
from nemo_asr.run.search.words import Alpha, Beta, HotwordWeight, SearchOfWords, UnknownScore, Weights


class TextSearch(SearchOfWords):
    """The most probable labels of utterances; with a lexicon, a language model or hot words, the most probable words.

    Arguments and errors are those of `nemo_asr.BeamSearchCTCDecoder`, but for the name.

    Attributes:
        labels: as given.
        weights: those that it uses now.
        beam_size: as given.
    """

    def __init__(
        self,
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
    ) -> None:
        self.labels, self.beam_size = list(labels), beam_size
        self._limits = SearchLimits(beam_size, min_log_prob)
        super().__init__(labels, lexicon, lm, hotwords, Weights(alpha, beta, hotword_weight, unknown_score))

    def hypotheses(self, log_probs: npt.NDArray[np.floating], lengths: Ints, nbest: int = 1) -> list[list[Hypothesis]]:
        """The best hypotheses of each utterance, best first.

        Args:
            log_probs: (B, T, classes) natural logarithms.
            lengths: (B,) valid frames.
            nbest: most hypotheses of an utterance.

        Raises:
            UsageError: the classes are not the labels and the blank, or ``nbest`` is not from 1 to ``beam_size``.
        """
        self._limits.refuse_nbest(nbest)
        return search(log_probs, lengths, self._limits, self._words, nbest, self.labels)

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `Search`. The frames of the labels are those of their most probable path."""
        log_probs = states[LOG_PROBS]
        (hypotheses,) = self.hypotheses(log_probs[None], np.array([len(log_probs)]), nbest)
        path = align(log_probs, hypotheses[0].ids)
        best = labels_of_path(path, path_scores(log_probs, path), len(self.labels))
        return Hypotheses(best, [(text.ids, text.score) for text in hypotheses] if nbest > 1 else [])

    def stream(self, most_frames: int) -> StreamedBeams:
        """See `Search`."""
        return StreamedBeams(StreamedSearch(self._limits, self._words, self.labels), len(self.labels), most_frames)


class StreamedBeams:
    """A beam search of one stream: a `SearchStream`. Where a part ends, the search goes on with all its hypotheses: the
    whole text is that of the whole recording, also where words that come later change it.

    Args:
        search: of the stream.
        blank: the blank's number.
        most_frames: longer than two parts. After so many, at most twice as many, labels are settled as the best
            hypothesis has them.
    """

    def __init__(self, search: StreamedSearch, blank: int, most_frames: int) -> None:
        self._search, self._blank, self._most_frames = search, blank, most_frames
        self._rows: list[npt.NDArray[np.float32]] = []  # log-probabilities, by which labels get their times
        self._start = 0  # frames before the part

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        """See `SearchStream`."""
        log_probs = states[LOG_PROBS]
        check_probabilities(log_probs)
        number = number_taken(log_probs.argmax(axis=1).tolist(), log_probs.shape[1] - 1, ends)
        self._search.accept(log_probs[:number])
        if self._search.num_frames - self._search.oldest > 2 * self._most_frames:
            self._search.commit(self._search.num_frames - self._most_frames)
        self._rows.extend(log_probs[:number])
        return number

    def best(self) -> TimedLabels:
        """Each label has the frame in which it was found first; the whole frames are known in the end."""
        ids, frames = self._own(*self._search.best())
        scores = [float(self._rows[frame][label]) for label, frame in zip(ids, frames, strict=True)]
        return TimedLabels(ids, frames, [frame + 1 for frame in frames], scores)

    def end(self, num_frames: int) -> TimedLabels:
        """See `SearchStream`."""
        (best,) = self._search.finish()
        ids, frames = self._own(best.ids, best.frames)
        ids = [label for label, frame in zip(ids, frames, strict=True) if frame < num_frames]
        rows = np.stack(self._rows[:num_frames]) if num_frames else np.zeros((0, self._blank + 1), np.float32)
        del self._rows[:num_frames]
        self._start += num_frames
        self._search.settle(self._start)
        path = align(rows, ids)
        return labels_of_path(path, rows[np.arange(num_frames), path], self._blank)

    def ids(self) -> list[int]:
        """See `SearchStream`."""
        ids = self._search.best()[0] if self._rows else self._search.finish()[0].ids
        return [*self._search.settled, *ids]

    def _own(self, ids: Sequence[int], frames: Sequence[int]) -> tuple[list[int], list[int]]:
        """Labels of the part, and their frames in it."""
        pairs = [(label, frame - self._start) for label, frame in zip(ids, frames, strict=True) if frame >= self._start]
        return [label for label, _ in pairs], [frame for _, frame in pairs]
