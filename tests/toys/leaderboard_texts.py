"""200 pairs of texts, what the public leaderboard's normaliser makes of them, and the errors that its code counts.

``PYTHONPATH=tests python -m toys.leaderboard_texts CHECKOUT > tests/asr/scoring/leaderboard.jsonl`` writes the stored
lines anew; CHECKOUT is one of https://github.com/huggingface/open_asr_leaderboard. The texts are made here.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

STORED = Path(__file__).parents[1] / "asr/scoring/leaderboard.jsonl"
VERSION = "d1e99b2"
"""The commit whose code counted."""

OPENINGS = (
    "Well, I think", "Um, you know", "Honestly,", "She said", "[noise] And then", "Dr. Shaw told us", "Uh-huh, so",
    "Mr. Macdonald wrote", "In the 1990s", "He's been saying", "They'd gone where", "It's clear", "We won't see how",
    "(laughs) Maybe", "Katherine and Jon asked if", "The C.E.O. of the B B C hopes", "Hmm, yes:", "Y'all know",
)  # fmt: skip
MIDDLES = (
    "the colour of the harbour has changed", "twenty five dollars and seven cents were paid", "it's $3.50 per kilo",
    "the theatre's programme isn't ready", "one oh one people can't come", "it grew by 4.5 percent",
    "we're gonna organise three hundred and sixty five tests", "the wi-fi at number double five is slow",
    "two and a half million litres got lost", "she paid £20 million", "the e-mail came at 7:30 a.m.",
    "he'd been travelling since the 21st", "they analysed nine hundred thousand words", "no one knew, not even I",
    "minus ten degrees are normal there", "a grey catalogue, ok?", "the naïve café owner let's him in",
    "the x ray was taken on the second of May", "I'm the 3rd of 10,000 visitors", "we could've recognised 5 G",
)  # fmt: skip
ENDINGS = (
    "", "today.", "and that's it!", "- all right?", "after the white paper", "et cetera", "for a long time, mm",
    "in the neighbourhood", "per cent", "I guess...", "on the first try", "with Prof. Lee and St. Mary's",
)  # fmt: skip


def texts() -> list[tuple[str, str]]:
    """References and hypotheses."""
    draw = random.Random(40)
    pairs = []
    for number in range(198):
        parts = draw.choice(OPENINGS), MIDDLES[number % len(MIDDLES)], draw.choice(ENDINGS)
        pairs.append((" ".join(parts).strip(), _heard(" ".join(parts).split(), draw)))
    return [*pairs, ("uh [noise] (coughs)", "the"), ("ignore time segment in scoring", "something")]


def _heard(words: list[str], draw: random.Random) -> str:
    """Words with errors, or written otherwise."""
    heard: list[str] = []
    for word in words:
        match draw.randrange(16):
            case 0:
                continue
            case 1:
                heard += [word, "the"]
            case 2:
                heard.append(draw.choice(MIDDLES).split()[0])
            case 3:
                heard.append(word.lower().strip(".,:!?"))
            case 4 if len(word) > 5:
                heard += [word[:3], word[3:]]
            case 5 if heard:
                heard[-1] += word
            case _:
                heard.append(word)
    return " ".join(heard)


def main(checkout: str) -> None:
    """Print the lines, by the leaderboard's own code alone."""
    sys.path.insert(0, checkout)
    from kaldialign import batch_error_rate
    from normalizer import EnglishTextNormalizer  # type: ignore[import-not-found, unused-ignore]

    normalize = EnglishTextNormalizer()
    for said, heard in texts():
        normal = normalize(said), normalize(heard)
        counts = batch_error_rate([tuple(normal[0].split())], [tuple(normal[1].split())], merge_compounds=True)
        errors = [counts[name] for name in ("ins", "del", "sub")]
        print(json.dumps({"texts": [said, heard], "normalized": normal, "errors": errors}, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
