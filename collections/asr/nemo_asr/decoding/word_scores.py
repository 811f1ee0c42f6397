"""WordScores: what a hypothesis gains or loses by its words: a lexicon, a language model, hot words. No search here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.language_model import UNKNOWN, BatchedLanguageModel, Ids, Scores
from nemo_asr.decoding.lexicon import LEFT, NO_WORD, ROOT, Lexicon, check_spellable, read_words
from nemo_asr.decoding.ngram import load_language_model
from nemo_asr.decoding.spelling import Spelling
from nemo_asr.search_options import ALPHAS, BETAS, HOTWORD_WEIGHTS
from nemo_lite.config.ranges import Between, refuse_out_of_range
from nemo_lite.errors import UsageError

_LN10 = math.log(10)


Alpha: TypeAlias = Annotated[float, ALPHAS]
Beta: TypeAlias = Annotated[float, BETAS]
HotwordWeight: TypeAlias = Annotated[float, HOTWORD_WEIGHTS]
UnknownScore: TypeAlias = Annotated[float, Between(-1_000, 0)]


@dataclass(frozen=True)
class Weights:
    """How much words count beside the sounds. All are natural logarithms, as the log-probabilities of a model are.

    Attributes:
        alpha: factor of the language model's logarithms.
        beta: added for each word; above 0 it favours more and shorter words.
        hotword_weight: added for each hot word.
        unknown_score: added for each word that the language model does not know.

    Raises:
        UsageError: a weight is out of range.
    """

    alpha: Alpha = 0.5
    beta: Beta = 1.0
    hotword_weight: HotwordWeight = 6.0
    unknown_score: UnknownScore = -10.0

    def __post_init__(self) -> None:
        refuse_out_of_range(type(self).__init__, vars(self), type(self).__name__)


class WordScores:
    """The score of each word, while it is being spelled and when it ends.

    Args:
        spelling: of the model's labels.
        lexicon: the only words that there may be; None: any.
        model: the language model; None: none.
        hotwords: words, or phrases whose words count each, that are more probable here than elsewhere.
        weights: what each of them counts.
        place: where the lexicon is, for errors.

    Attributes:
        spelling: as given.
        tree: the words that are told apart.
        is_closed: whether a lexicon says which words there are.
        so_far: (nodes,) what a word that is not complete is worth, by its node in the tree.

    Raises:
        UsageError: the labels cannot spell a word of the lexicon or a hot word, or no word of the language model; or
            the lexicon has not all hot words.
    """

    def __init__(
        self,
        spelling: Spelling,
        lexicon: Sequence[str] | None = None,
        model: BatchedLanguageModel | None = None,
        hotwords: Sequence[str] = (),
        weights: Weights | None = None,
        place: str = "lexicon",
    ) -> None:
        self.spelling, self._model, self._weights = spelling, model, weights or Weights()
        self.is_closed = lexicon is not None
        hot = list(dict.fromkeys(word for phrase in hotwords for word in phrase.split()))
        check_spellable(lexicon or [], spelling, place)
        check_spellable(hot, spelling, "hot words")
        if lexicon is not None and (outside := set(hot).difference(lexicon)):
            remedy = "add them to the list, or leave them out"
            raise UsageError("the lexicon lacks hot words", got=", ".join(sorted(outside)[:5]), remedy=remedy)
        known = list(model.words) if model else []
        self.tree = Lexicon([*(known if lexicon is None else lexicon), *hot], spelling)
        positions = {word: position for position, word in enumerate(known)}
        self._in_model: Ids = np.array([positions.get(word, UNKNOWN) for word in self.tree.words] + [UNKNOWN], np.int64)
        if model and (self._in_model == UNKNOWN).all():
            _refuse(known, spelling, lexicon is None)
        self._word_bonus = self._bonus_of_words(set(hot))
        self.so_far = self._bonus_so_far(hot)

    def with_weights(self, weights: Weights) -> WordScores:
        """The same words with other weights."""
        other = object.__new__(WordScores)
        other.__dict__.update(self.__dict__)
        other._weights = weights
        hot = [self.tree.words[row] for row in np.flatnonzero(self._is_hot)]
        other._word_bonus = other._bonus_of_words(set(hot))
        other.so_far = other._bonus_so_far(hot)
        return other

    def _bonus_of_words(self, hot: set[str]) -> Scores:
        """(words + 1,) what each word is worth beside the language model; the last is that of unknown words."""
        weights = self._weights
        self._is_hot: npt.NDArray[np.bool_] = np.array([word in hot for word in self.tree.words] + [False])
        bonus = np.full(len(self._is_hot), float(weights.beta))
        bonus[self._is_hot] += weights.hotword_weight
        if self._model:
            bonus[(self._in_model == UNKNOWN) & ~self._is_hot] += weights.unknown_score
        if self.is_closed:
            bonus[-1] = -np.inf
        return bonus

    def _bonus_so_far(self, hot: Sequence[str]) -> Scores:
        bonus = np.zeros(len(self.tree.word_at))
        # As soon as no word goes on like this, what the unknown word will cost counts, so that it takes no places.
        bonus[LEFT] = self._word_bonus[-1] - self._weights.beta
        for word in hot:
            nodes = self.tree.nodes_of(word, self.spelling)
            share = self._weights.hotword_weight * np.arange(1, len(nodes) + 1) / len(nodes)
            bonus[nodes] = np.maximum(bonus[nodes], share)
        return bonus

    def start(self) -> int:
        """The state of the language model in front of a text."""
        return self._model.start() if self._model else 0

    def close(self, nodes: npt.NDArray[np.int64], states: Ids) -> tuple[Scores, Ids]:
        """A word ends: its scores and the states behind it.

        Args:
            nodes: (N,) nodes in the tree, none of them the root.
            states: (N,) of the language model in front of the word.

        Returns:
            (N,) natural logarithms, minus infinity where the lexicon has no such word; (N,) states.
        """
        words = self.tree.word_at[nodes]  # NO_WORD is the last place, that of unknown words
        scores = self._word_bonus[words]
        if self._model is None:
            return scores, states
        log10, following = self._model.score_batch(states, self._in_model[words])
        return scores + self._weights.alpha * _LN10 * log10, following

    def end(self, states: Ids) -> Scores:
        """The text ends: (N,) states to (N,) scores."""
        return self._weights.alpha * _LN10 * self._model.end_batch(states) if self._model else np.zeros(len(states))

    def complete(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether a word may end at a node; without a lexicon it may anywhere."""
        if not self.is_closed:
            return np.ones(nodes.shape, bool)
        complete: npt.NDArray[np.bool_] = (nodes == ROOT) | (self.tree.word_at[nodes] != NO_WORD)
        return complete


def word_scores(
    labels: Sequence[str],
    lexicon: str | Path | None,
    lm: str | Path | None,
    hotwords: Sequence[str],
    weights: Weights,
) -> WordScores | None:
    """What words are worth to a search; None where only sounds count.

    Raises:
        UsageError: as of `WordScores`; or a weight is out of range.
        DataError: a file cannot be read.
    """
    if lexicon is None and lm is None and not hotwords:
        return None
    model: BatchedLanguageModel | None = None if lm is None else load_language_model(lm)
    words = None if lexicon is None else read_words(lexicon)
    return WordScores(Spelling(labels), words, model, hotwords, weights, place=str(lexicon or ""))


def _refuse(known: Sequence[str], spelling: Spelling, is_open: bool) -> None:
    example = next(iter(known), "")
    if is_open or not any(spelling.can_spell(word) for word in known):
        problem, wanted = "the language model is of another vocabulary", "words in the labels' letters and case"
        raise UsageError(
            problem, got=f"{len(known)} words such as {example!r}, which the labels cannot spell", wanted=wanted
        )
    raise UsageError("the language model knows no word of the lexicon", got=f"{len(known)} words such as {example!r}")
