"""A bigram language model in a dictionary."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_asr.run.search.ngram import WordByWord


class BigramModel(WordByWord):
    """log10 P(word | previous word), from a table; what is not in it has ``other``. A state is the previous word.

    Args:
        scores: log10 of the probability by (previous word, word), with ``<s>`` and ``</s>`` for the ends of a text.
        other: the score of all other pairs.
    """

    def __init__(self, scores: Mapping[tuple[str, str], float], other: float = -3.0) -> None:
        super().__init__()
        self.scores, self._other = dict(scores), other
        self.words = sorted({word for pair in scores for word in pair} - {"<s>", "</s>"})
        self._contexts = ["<s>", "", *self.words]

    def start(self) -> int:
        return 0

    def score(self, state: int, word: str) -> tuple[float, int]:
        following = self._contexts.index(word) if word in self.words else 1
        return self.scores.get((self._contexts[state], word), self._other), following

    def end(self, state: int) -> float:
        return self.scores.get((self._contexts[state], "</s>"), self._other)
