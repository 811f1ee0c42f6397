"""A small vocabulary of byte-level BPE, and what transformers 5.24 makes of texts and ids with it.

The numbers are made anew where transformers is installed:

    PYTHONPATH=tests python -m toys.byte_pairs
"""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemo_asr.run.text.byte_pairs import ALPHABET
from nemo_asr.run.text.subwords import BytePairs

STORED = Path(__file__).parents[1] / "data" / "byte_pairs.json"
CORPUS = (
    " the cat sat on the mat. The dog's here; they'll see 2024 and 12, or not? Приве́т мир, 你好世界 你们好 naïve café"
)
TEXTS = [
    "the cat sat on the mat.",
    " The dogs' dog's: THEY'LL they'll I'd don't you've 'twas",
    "2024½² Ⅷ 12,5 %",
    "  two  spaces\n\nand\tlines \r\n end  ",
    "Привет, мир! приве́т 你好世界\uff0c你们好。 สวัสดี こんにちは",
    "naïve café, cafe\u0301 🙂👍🏽 \u00a0\u3000\u2028x \x1c\x85 \ufeff",
    "▁ is a letter here, and so are \uefff and \uef80",
    "<|en|> is a text",
    "",
]
_MERGES = 60


@cache
def pieces_and_merges() -> tuple[list[str], list[tuple[str, str]]]:
    """The bytes, and what the most frequent neighbours in the words of ``CORPUS`` become."""
    words = [["".join(ALPHABET[byte] for byte in letter.encode()) for letter in f" {word}"] for word in CORPUS.split()]
    words = [[character for letter in word for character in letter] for word in words]
    pieces, merges = sorted(ALPHABET.values()), list[tuple[str, str]]()
    for _ in range(_MERGES):
        counts = Counter(pair for word in words for pair in pairwise(word))
        merges.append(max(counts, key=lambda pair: (counts[pair], pair)))
        pieces.append("".join(merges[-1]))
        for word in words:
            for place in range(len(word) - 2, -1, -1):
                if (*word[place : place + 2],) == merges[-1]:
                    word[place : place + 2] = [pieces[-1]]
    return pieces, merges


@cache
def small_byte_pairs() -> BytePairs:
    """The vocabulary."""
    return BytePairs.of(*pieces_and_merges(), "tokenizer")


def some_ids() -> list[list[int]]:
    """Ids as they come, whose bytes are letters, parts of letters or none."""
    draws, number = random.Random(0), len(pieces_and_merges()[0])
    return [[draws.randrange(256 if row % 2 else number) for _ in range(12)] for row in range(60)]


def transformers_case() -> dict[str, Any]:
    """Ids of ``TEXTS``, and the texts of :func:`some_ids`, with the tokenizer of transformers."""
    pieces, merges = pieces_and_merges()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = import_module("transformers").WhisperTokenizer(vocab=vocabulary, merges=merges)
    texts = [text for text in TEXTS if "<|" not in text]  # where it is a token there, it is a text here
    return {
        "ids": {text: tokenizer(text, add_special_tokens=False).input_ids for text in texts},
        "texts": [tokenizer.decode(ids) for ids in some_ids()],
    }


def stored_case() -> dict[str, Any]:
    """What :func:`transformers_case` gave."""
    case: dict[str, Any] = json.loads(STORED.read_text())
    return case


if __name__ == "__main__":
    STORED.write_text(json.dumps(transformers_case(), indent=0) + "\n")
