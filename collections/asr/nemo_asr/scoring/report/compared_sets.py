"""What a report shows of two models side by side: their rates, and the utterances that tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_asr.scoring.intervals import PairedTest
from nemo_asr.scoring.rates import count_errors, differences
from nemo_asr.scoring.report.comparison import Comparison, cells_of, compare_set, matched, meaning_of
from nemo_asr.scoring.report.scored_sets import ClipMaker, ShownUtterance, TextPart
from nemo_asr.scoring.report.set_scores import has_no_words
from nemo_asr.scoring.report.transcripts import ScoredUtterance

MOST_DIFFERING = 20  # utterances of all sets together that are shown in full


@dataclass(frozen=True)
class ComparedSet:
    """Models A and B on a set.

    Attributes:
        name: of the set.
        comparison: their rates and whether they differ.
        unit: ``word`` or ``character``: what the errors of the utterances are counted in.
        differing: utterances whose texts differ, the largest difference of errors first.
        num_differing: how many there are in all.
    """

    name: str
    comparison: Comparison
    unit: str
    differing: Sequence[ShownUtterance]
    num_differing: int

    @property
    def rates(self) -> Sequence[tuple[str, Sequence[str]]]:
        """WER and CER with the cells of a table."""
        return [(metric, cells_of(test)) for metric, test in self.comparison.tests]

    @property
    def meaning(self) -> str:
        """Sentences about the comparison."""
        return meaning_of(self.comparison)

    @property
    def test(self) -> PairedTest:
        """That of word errors."""
        return self.comparison.wer


def compared_sets(
    rows_of_sets: Mapping[str, tuple[Sequence[ScoredUtterance], Sequence[ScoredUtterance]]], clips: ClipMaker
) -> list[ComparedSet]:
    """What a report shows of two models.

    Args:
        rows_of_sets: the transcripts of A and of B by set.
        clips: makes the recordings.

    Raises:
        UsageError: the utterances of a set differ, or there are none.
    """
    most = max(1, MOST_DIFFERING // max(len(rows_of_sets), 1))
    return [_compared_set(name, *rows, most, clips) for name, rows in rows_of_sets.items()]


def _compared_set(
    name: str, rows_a: Sequence[ScoredUtterance], rows_b: Sequence[ScoredUtterance], most: int, clips: ClipMaker
) -> ComparedSet:
    comparison, by_place = compare_set(name, rows_a, rows_b), matched(rows_a, rows_b)
    use_cer = has_no_words([row.reference for row in rows_a])
    counted = []
    for a in rows_a:
        b = by_place[a.place]
        if a.hypothesis != b.hypothesis:
            errors = [count_errors([row.hypothesis], [a.reference], use_cer) for row in (a, b)]
            counted.append((a, b, errors))
    counted.sort(key=lambda each: -abs(each[2][0].errors - each[2][1].errors))
    shown = []
    for a, b, (errors_a, errors_b) in counted[:most]:
        clip, note = clips.clip_of(a)
        texts = {
            "said": [TextPart(a.reference, "equal")],
            "A": _heard(a.reference, a.hypothesis, use_cer),
            "B": _heard(a.reference, b.hypothesis, use_cer),
        }
        shown.append(
            ShownUtterance(
                a.place, texts, errors_a.errors, errors_a.reference_length, clip, note, errors_b=errors_b.errors
            )
        )
    return ComparedSet(name, comparison, "character" if use_cer else "word", shown, len(counted))


def _heard(reference: str, hypothesis: str, use_cer: bool) -> Sequence[TextPart]:
    """What was recognised, with what is missing in it."""
    pieces = differences(reference, hypothesis, use_cer)
    return [TextPart(piece.said if piece.kind == "delete" else piece.heard, piece.kind) for piece in pieces]
