"""Where a hypothesis differs from its reference, piece by piece, to be shown. Counts are in ``error_counts``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from rapidfuzz.distance import Levenshtein

from nemo_asr.scoring.error_counts import units_of

Kind: TypeAlias = Literal["equal", "replace", "delete", "insert"]


@dataclass(frozen=True)
class Piece:
    """Neighbouring words (or characters) of one kind.

    Attributes:
        kind: ``delete``: only said; ``insert``: only heard; ``replace``: as many words said as heard, all different.
        said: the part of the reference.
        heard: the part of the hypothesis.
    """

    kind: Kind
    said: str
    heard: str


def differences(reference: str, hypothesis: str, use_cer: bool = False) -> list[Piece]:
    """The pieces of an alignment with the fewest edits, in order: the edits that the error counts count.

    Args:
        reference: what was said.
        hypothesis: what was recognised.
        use_cer: align characters instead of words.
    """
    said, heard = units_of(reference, use_cer), units_of(hypothesis, use_cer)
    join = ("" if use_cer else " ").join
    return [
        Piece(
            cast(Kind, code.tag),
            join(said[code.src_start : code.src_end]),
            join(heard[code.dest_start : code.dest_end]),
        )
        for code in Levenshtein.opcodes(said, heard)
    ]
