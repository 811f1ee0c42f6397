"""Time of the beam search with hot phrases and without: on sounds alone, beside a lexicon, beside a language model.

    python benchmarks/hotwords.py [--phrases 10000] [--rounds 5] [--labels letters pieces characters] [--quick]

The lexicon of letters and pieces has 2,000 words, that of Chinese characters two words for each phrase.

Log-probabilities are drawn by seed 0, of another set of utterances in each round, so that what a search keeps from
earlier utterances helps no more than it would in use.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt

from nemo_asr.run.search.ngram import NgramCounter, NgramModel, estimate
from nemo_asr.run.search.prefix_beam_search import SearchLimits, search
from nemo_asr.run.search.words import Spelling, WordScores

LETTERS = "abcdefghijklmnopqrstuvwxyz"
_UTTERANCES, _FRAMES = 32, 400


def drawn_speech(classes: int, rng: np.random.Generator, utterances: int = _UTTERANCES) -> npt.NDArray[np.float64]:
    """(B, T, classes) log-probabilities; in three of five frames only the blank is probable."""
    values = rng.normal(scale=4.0, size=(utterances, _FRAMES, classes))
    values[..., -1] += np.where(rng.random((utterances, _FRAMES)) < 0.4, 0, 25)
    return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)))


def drawn_words(letters: str, number: int, least: int, most: int, rng: np.random.Generator) -> list[str]:
    """Words of some letters."""
    each = np.array(list(letters))
    drawn = ("".join(rng.choice(each, size=rng.integers(least, most))) for _ in range(2 * number))
    return list(dict.fromkeys(drawn))[:number]


def drawn_model(words: list[str], rng: np.random.Generator) -> NgramModel:
    """A trigram model of sentences of ten of the words, some of which are frequent."""
    counter = NgramCounter(3)
    for _ in range(len(words)):
        drawn = (rng.beta(0.5, 2.0, size=10) * len(words)).astype(np.int64)
        counter.add([words[place] for place in drawn])
    return NgramModel(estimate(counter).tables)


def seconds(log_probs: npt.NDArray[np.float64], words: WordScores | None) -> float:
    """Seconds of the processor for one search: what else runs on the machine counts less than on a clock."""
    start = time.process_time()
    search(log_probs, [_FRAMES] * len(log_probs), SearchLimits(), words)
    return time.process_time() - start


def compare(
    name: str, labels: list[str], phrases: list[str], words: list[str], rounds: int, utterances: int = _UTTERANCES
) -> None:
    """Print the fastest of all rounds, in each of which every search takes its turn, and medians of their ratios."""
    rng, spelling = np.random.default_rng(0), Spelling(labels)
    model = drawn_model(words, rng)
    start = time.process_time()
    hot = WordScores(spelling, hotwords=phrases)
    built = time.process_time() - start
    lexicon = words if spelling.has_words else [*words, *labels]  # which has to hold the phrases
    searches = {
        "sounds": (None, hot),
        "a lexicon": (WordScores(spelling, lexicon), WordScores(spelling, lexicon, hotwords=phrases)),
        "a language model": (WordScores(spelling, None, model), WordScores(spelling, None, model, phrases)),
    }
    every = [one for pair in searches.values() for one in pair]
    for one in every:
        seconds(drawn_speech(len(labels) + 1, rng, utterances), one)
    times = []
    for _ in range(rounds):
        log_probs = drawn_speech(len(labels) + 1, rng, utterances)
        times.append([seconds(log_probs, one) for one in every])
    # The searches of one round had one machine, fast or slow.
    rounds_alone, rounds_with = np.moveaxis(np.reshape(times, (rounds, 3, 2)), 2, 0)
    print(f"{name}: {len(phrases)} phrases are read in {built:.2f} s")
    for place, kind in enumerate(searches):
        alone, with_phrases = rounds_alone[:, place], rounds_with[:, place]
        more, ratio = np.median(alone / rounds_alone[:, 0]), np.median(with_phrases / alone)
        print(
            f"  {kind:16} {alone.min():6.3f} s ({more:.2f}); with phrases {with_phrases.min():6.3f} s ({ratio:.2f})",
            flush=True,
        )


def main() -> None:
    """Letters, pieces of words, and labels without spaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phrases", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each search is timed (default: 5)")
    kinds = ["letters", "pieces", "characters"]
    parser.add_argument("--labels", choices=kinds, nargs="+", default=kinds, help="which labels (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    args = parser.parse_args()
    rounds, number, utterances = (1, 50, 1) if args.quick else (args.rounds, args.phrases, _UTTERANCES)
    rng = np.random.default_rng(0)
    words = drawn_words(LETTERS, 2000, 3, 10, rng)
    phrases = list(dict.fromkeys(" ".join(rng.choice(words, size=2)) for _ in range(2 * number)))[:number]
    if "letters" in args.labels:
        compare("letters", [*LETTERS, " "], phrases, words, rounds, utterances)
    parts = drawn_words(LETTERS, 970, 2, 6, rng)
    pieces = [
        *(f"\u2581{letter}" for letter in LETTERS),
        *LETTERS,
        *parts[::2],
        *(f"\u2581{one}" for one in parts[1::2]),
    ]
    if "pieces" in args.labels:
        compare("pieces", pieces, phrases, words, rounds, utterances)
    if "characters" not in args.labels:
        return
    characters = "".join(chr(0x4E00 + place) for place in range(4000))
    words = drawn_words(characters, 2 * number, 2, 5, rng)
    phrases = drawn_words(characters, number, 2, 6, rng)
    compare("Chinese characters", list(characters), phrases, words, rounds, utterances)


if __name__ == "__main__":
    main()
