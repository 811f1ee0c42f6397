"""Word and character errors of hypotheses: their counts, the rate, and where they are in a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Literal, TypeAlias, cast

from rapidfuzz.distance import Levenshtein

from nemo_lite.base.errors import UsageError


@dataclass(frozen=True)
class ErrorCounts:
    """What an alignment of hypotheses with references found, summed over a corpus.

    ``insertions``, ``deletions``, ``substitutions`` and ``correct`` count words (or characters); ``utterances`` counts
    pairs. Counts add up with ``+``, so a corpus may be scored in parts, on several machines.
    """

    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    correct: int = 0
    utterances: int = 0

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions: the edit distance."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def reference_length(self) -> int:
        """Words (or characters) of the references."""
        return self.correct + self.deletions + self.substitutions

    @property
    def rate(self) -> float:
        """Errors by reference length: 0.05 is 5 %. Infinite where the references have no words."""
        return self.errors / self.reference_length if self.reference_length else float("inf")

    def __str__(self) -> str:
        return f"{self.insertions} insertions, {self.deletions} deletions, {self.substitutions} substitutions"

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def as_dict(self) -> dict[str, int]:
        """The five counts by name; ``ErrorCounts(**counts)`` is the way back."""
        return asdict(self)


def count_errors(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> ErrorCounts:
    """Align each hypothesis with its reference by the fewest edits, and sum what was found.

    Args:
        hypotheses: what was recognised.
        references: what was said, in the same order.
        use_cer: count characters, spaces among them, instead of words.

    Raises:
        UsageError: the lists differ in length.
    """
    check_pairs(hypotheses, references)
    edits: Counter[str] = Counter()
    length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        said, heard = units_of(reference, use_cer), units_of(hypothesis, use_cer)
        edits.update(edit.tag for edit in Levenshtein.editops(said, heard))
        length += len(said)
    deleted, replaced = edits["delete"], edits["replace"]
    return ErrorCounts(edits["insert"], deleted, replaced, length - deleted - replaced, len(references))


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> float:
    """Errors by words (``use_cer``: characters) of the references, pooled over all utterances: 0.05 is 5 %.

    Infinite when the references have no words. See :func:`count_errors` for the arguments and errors.
    """
    return count_errors(hypotheses, references, use_cer).rate


def check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise UsageError where the lists differ in length."""
    if len(hypotheses) != len(references):
        got = f"{len(hypotheses)} hypotheses and {len(references)} references"
        raise UsageError("hypotheses and references must pair up", got=got)


def units_of(text: str, use_cer: bool) -> Sequence[str]:
    """What errors are counted in: words, or characters with the spaces among them."""
    return text if use_cer else text.split()


Kind: TypeAlias = Literal["equal", "replace", "delete", "insert"]


@dataclass(frozen=True)
class AlignedWords:
    """Neighbouring words (or characters) of one kind.

    Attributes:
        kind: ``delete``: only said; ``insert``: only heard; ``replace``: as many words said as heard, all different.
        said: the part of the reference.
        heard: the part of the hypothesis.
    """

    kind: Kind
    said: str
    heard: str


def differences(reference: str, hypothesis: str, use_cer: bool = False) -> list[AlignedWords]:
    """The pieces of an alignment with the fewest edits, in order: the edits that the error counts count.

    Args:
        reference: what was said.
        hypothesis: what was recognised.
        use_cer: align characters instead of words.
    """
    said, heard = units_of(reference, use_cer), units_of(hypothesis, use_cer)
    join = ("" if use_cer else " ").join
    return [
        AlignedWords(
            cast(Kind, code.tag),
            join(said[code.src_start : code.src_end]),
            join(heard[code.dest_start : code.dest_end]),
        )
        for code in Levenshtein.opcodes(said, heard)
    ]
