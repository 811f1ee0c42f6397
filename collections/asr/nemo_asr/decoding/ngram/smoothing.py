"""From counts of n-grams to their probabilities: interpolated, modified Kneser-Ney. No texts and no files in here.

Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", TR-10-98, Harvard 1998:
sections 2.7 (Kneser-Ney), 3 (its modification: three discounts) and 2.5 (Witten-Bell). Unknown words share what the
single words leave over, as Heafield et al., "Scalable Modified Kneser-Ney Language Model Estimation", ACL 2013.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.ngram.counts import CountTable, NgramCounter
from nemo_asr.decoding.ngram.tables import NEVER, NgramTable, NgramTables
from nemo_lite.errors import DataError

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Discounts(NamedTuple):
    """What is taken from n-grams that were counted once, twice, and more often."""

    once: float
    twice: float
    more: float


class Estimated(NamedTuple):
    """A model, and how it was smoothed.

    Attributes:
        tables: its n-grams.
        discounts: for each order those of Kneser-Ney; None where the counts give none, so Witten-Bell took its place.
    """

    tables: NgramTables
    discounts: list[Discounts | None]


class _Smoothed(NamedTuple):
    """Of one order: the discounted probability of each n-gram, and what each history leaves to shorter ones."""

    probs: Floats
    left_over: Floats


def estimate(counter: NgramCounter, place: str = "") -> Estimated:
    """The model of the sentences that were counted. The probabilities after each history sum to 1.

    Args:
        counter: has counted them.
        place: where they come from, for the message.

    Raises:
        DataError: there is no sentence with a word in it.
    """
    if not counter.num_words:
        problem, got = "there are no words to make a language model of", f"{counter.num_sentences} texts with words"
        raise DataError(problem, place=place, got=got)
    counts = counter.tables()
    words = counter.words
    # A word that never ends a sentence, and <unk>, which never occurs, get their share from this.
    probs = np.full(len(words) + 3, 1.0 / (len(words) + 2))
    tables: list[NgramTable] = []
    discounts: list[Discounts | None] = []
    num_histories = 1
    for order, table in enumerate(counts, 1):
        adjusted = _adjusted(table, counts[order] if order < len(counts) else None)
        if order == 1:
            adjusted[table.starts] = 0  # no model predicts the start of a sentence
        found = discounts_of(adjusted)
        discounts.append(found)
        smoothed = _smooth(adjusted, table.prefixes, num_histories, found)
        if tables:
            backoffs = np.log10(smoothed.left_over).astype(np.float32)
            tables[-1] = tables[-1]._replace(backoffs=backoffs)
        below = probs if order == 1 else probs[table.suffixes]
        probs = smoothed.probs + smoothed.left_over[table.prefixes] * below
        log_probs = np.log10(probs).astype(np.float32)
        if order == 1:
            log_probs[table.starts] = NEVER
        tables.append(NgramTable(table.prefixes, table.words, log_probs, np.zeros(len(probs), np.float32)))
        num_histories = len(probs)
    return Estimated(NgramTables(words, tables), discounts)


def discounts_of(counts: Counts) -> Discounts | None:
    """The discounts of modified Kneser-Ney, from how many n-grams have each of the counts 1 to 4.

    Args:
        counts: (N,) of all n-grams of an order.

    Returns:
        None where they cannot be told: a small set has no n-gram with one of the counts, or more with a higher one.
    """
    one, two, three, four = (int(np.count_nonzero(counts == number)) for number in (1, 2, 3, 4))
    if not (one and two and three):
        return None
    scale = one / (one + 2 * two)
    found = Discounts(1 - 2 * scale * two / one, 2 - 3 * scale * three / two, 3 - 4 * scale * four / three)
    return found if all(0 < discount <= most for most, discount in enumerate(found, 1)) else None


def _adjusted(table: CountTable, above: CountTable | None) -> Counts:
    """The counts that Kneser-Ney smooths: in the highest order how often an n-gram occurs; in the others after how
    many different words. Nothing comes before the start of a sentence, so what begins with it keeps its count."""
    if above is None:
        return table.counts.copy()
    kinds = np.bincount(above.suffixes, minlength=len(table.counts))
    return np.where(table.starts, table.counts, kinds)


def _smooth(counts: Counts, histories: Counts, num_histories: int, discounts: Discounts | None) -> _Smoothed:
    """Probabilities (N,) and what is left over of each history (num_histories,), 1 of those that nothing follows."""
    totals = np.bincount(histories, counts, num_histories)
    if discounts is None:  # Witten-Bell: as much as there are different words is left over
        taken = np.zeros(len(counts))
        left = np.bincount(histories, counts > 0, num_histories)
        totals = totals + left
    else:
        taken = np.array([0.0, *discounts])[np.minimum(counts, 3)]
        left = np.bincount(histories, taken, num_histories)
    has_next = totals > 0
    totals = np.where(has_next, totals, 1.0)
    return _Smoothed((counts - taken) / totals[histories], np.where(has_next, left / totals, 1.0))
