"""Time of the beam search with hot phrases and without, and with a language model's words, in one run.

    python benchmarks/hotwords.py [--phrases 10000] [--quick]

Log-probabilities are drawn by seed 0, of another set of utterances in each round, so that what a search keeps from
earlier utterances helps no more than it would in use.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.prefix_beam_search import Limits, search
from nemo_asr.decoding.words import Spelling, WordScores

LETTERS = "abcdefghijklmnopqrstuvwxyz"
_UTTERANCES, _FRAMES = 32, 400


def drawn_speech(classes: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """(B, T, classes) log-probabilities; in three of five frames only the blank is probable."""
    values = rng.normal(scale=4.0, size=(_UTTERANCES, _FRAMES, classes))
    values[..., -1] += np.where(rng.random((_UTTERANCES, _FRAMES)) < 0.4, 0, 25)
    return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)))


def drawn_words(letters: str, number: int, least: int, most: int, rng: np.random.Generator) -> list[str]:
    """Words of some letters."""
    drawn = ("".join(rng.choice(list(letters), size=rng.integers(least, most))) for _ in range(2 * number))
    return list(dict.fromkeys(drawn))[:number]


def seconds(log_probs: npt.NDArray[np.float64], words: WordScores | None) -> float:
    """The time of one search."""
    start = time.perf_counter()
    search(log_probs, [_FRAMES] * len(log_probs), Limits(), words)
    return time.perf_counter() - start


def compare(name: str, labels: list[str], phrases: list[str], words: list[str], rounds: int) -> None:
    """Print the sums of all rounds."""
    rng, spelling = np.random.default_rng(0), Spelling(labels)
    searches = {"sounds alone": None, "1 phrase": WordScores(spelling, hotwords=phrases[:1])}
    start = time.perf_counter()
    searches[f"{len(phrases)} phrases"] = WordScores(spelling, hotwords=phrases)
    built = time.perf_counter() - start
    if words:
        searches["a lexicon"] = WordScores(spelling, words)
        searches[f"a lexicon and {len(phrases)} phrases"] = WordScores(spelling, words, hotwords=phrases)
    for each in searches.values():
        seconds(drawn_speech(len(labels) + 1, rng), each)
    times = np.zeros(len(searches))
    for _ in range(rounds):
        log_probs = drawn_speech(len(labels) + 1, rng)
        times += [seconds(log_probs, each) for each in searches.values()]
    told = ", ".join(f"{kind} {spent / times[0]:.2f}" for kind, spent in zip(searches, times, strict=True))
    print(f"{name}: sounds alone {times[0] / rounds:.3f} s, phrases are read in {built:.2f} s; ratios: {told}")


def main() -> None:
    """Letters, pieces of words, and labels without spaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phrases", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    args = parser.parse_args()
    rounds, number = (1, 50) if args.quick else (8, args.phrases)
    rng = np.random.default_rng(0)
    words = drawn_words(LETTERS, 2000, 3, 10, rng)
    phrases = list(dict.fromkeys(" ".join(rng.choice(words, size=2)) for _ in range(2 * number)))[:number]
    compare("letters", [*LETTERS, " "], phrases, words, rounds)
    parts = drawn_words(LETTERS, 970, 2, 6, rng)
    pieces = [
        *(f"\u2581{letter}" for letter in LETTERS),
        *LETTERS,
        *parts[::2],
        *(f"\u2581{one}" for one in parts[1::2]),
    ]
    compare("pieces", pieces, phrases, words, rounds)
    characters = "".join(chr(0x4E00 + place) for place in range(4000))
    compare("Chinese characters", list(characters), drawn_words(characters, number, 2, 6, rng), [], rounds)


if __name__ == "__main__":
    main()
