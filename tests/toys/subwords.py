"""A small vocabulary of subwords for tests."""

from __future__ import annotations

from functools import cache

from nemo_asr.run.text.subword_training import train_subwords
from nemo_asr.run.text.subwords import Subwords

TEXTS = ("three four five", "one two nine zero", "the cat sat on the mat")
NUM_PIECES = 24


@cache
def small_subwords(algorithm: str = "unigram") -> Subwords:
    """Pieces of the letters and words of TEXTS, and ``<noise>``."""
    return train_subwords(TEXTS * 50, NUM_PIECES, algorithm=algorithm, symbols=["<noise>"])
