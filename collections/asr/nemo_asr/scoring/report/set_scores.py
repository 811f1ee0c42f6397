"""All scores of an evaluated set: rates with intervals, by speaker, by length and by word; as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from nemo_asr.scoring.bootstrap import Clusters, UtteranceErrors, bootstrap_interval, utterance_errors
from nemo_asr.scoring.breakdown import (
    SECONDS,
    WORDS,
    GroupRate,
    WordErrors,
    rates_by_length,
    rates_by_speaker,
    word_errors,
)
from nemo_asr.scoring.error_counts import ErrorCounts, count_errors
from nemo_asr.scoring.report.content import Rate
from nemo_asr.scoring.report.transcripts import ScoredUtterance, clusters_in, read_transcripts
from nemo_asr.text import main_metric
from nemo_lite.errors import UsageError
from nemo_lite.utils.files import write_atomically

MOST_SPEAKERS = 20  # of a table
MOST_WORDS = 15  # of each list of words in a table
SUFFIX = ".scores.json"

Json: TypeAlias = "str | int | float | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True)
class SetScores:
    """The scores of one set.

    Attributes:
        num_utterances: how many.
        clusters: in what the utterances were resampled.
        words, characters: the errors of all utterances.
        wer, cer: their rates with 95 % intervals; characters include spaces.
        unit: ``word`` or ``character``: what groups and words below are about.
        errors: (N,) of each utterance, in this unit.
        by_speaker: the one with the most errors first; empty where no speaker is known.
        by_length: by duration where all are known, otherwise by units of the reference.
        by_word: which were lost, inserted and confused.
    """

    num_utterances: int
    clusters: Clusters
    words: ErrorCounts
    characters: ErrorCounts
    wer: Rate
    cer: Rate
    unit: str
    errors: UtteranceErrors
    by_speaker: Sequence[GroupRate]
    by_length: Sequence[GroupRate]
    by_word: WordErrors

    def interval_line(self, metric: str = "wer") -> str:
        """``95 % intervals: WER 10.90 to 13.80 %, CER 3.10 to 4.40 %, by resampling 12 speakers``."""
        rates = sorted((("wer", self.wer), ("cer", self.cer)), key=lambda named: named[0] != metric)
        texts = [f"{name.upper()} {range_text(rate.interval.low, rate.interval.high)}" for name, rate in rates]
        return f"95 % intervals: {', '.join(texts)}, by resampling {self.clusters}"


def score_rows(rows: Sequence[ScoredUtterance]) -> SetScores:
    """The scores of a set's transcripts.

    Raises:
        UsageError: there are none.
    """
    if not rows:
        raise UsageError("a set without utterances has no scores")
    heard, said = [row.hypothesis for row in rows], [row.reference for row in rows]
    clusters, use_cer = clusters_in(rows), has_no_words(said)
    words, characters = (utterance_errors(heard, said, each, clusters) for each in (False, True))
    errors, unit = (characters, "character") if use_cer else (words, "word")
    seconds = [row.duration for row in rows if row.duration is not None]
    if len(seconds) == len(rows):
        by_length = rates_by_length(errors, np.array(seconds), SECONDS, "s")
    else:
        by_length = rates_by_length(errors, errors.lengths.astype(np.float64), WORDS, f"{unit}s")
    return SetScores(
        num_utterances=len(rows),
        clusters=clusters,
        words=count_errors(heard, said),
        characters=count_errors(heard, said, use_cer=True),
        wer=Rate(words.rate, bootstrap_interval(words)),
        cer=Rate(characters.rate, bootstrap_interval(characters)),
        unit=unit,
        errors=errors,
        by_speaker=rates_by_speaker(errors, [row.speaker for row in rows]),
        by_length=by_length,
        by_word=word_errors(heard, said, use_cer),
    )


def score_transcripts(path: Path) -> SetScores:
    """The scores of a file of transcripts.

    Raises:
        DataError: it cannot be read.
        UsageError: it is empty.
    """
    return score_rows(read_transcripts(path))


def has_no_words(texts: Sequence[str]) -> bool:
    """Whether most of the texts are in a script that puts no spaces between words, as Chinese."""
    return sum(main_metric([" ", *text]) == "cer" for text in texts) * 2 > len(texts)


def write_scores(path: Path, scores: SetScores) -> None:
    """Write the scores as JSON: everything that the table shows, without its limits. Rates are fractions.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(scores_as_json(scores), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    content = text.encode("utf-8", errors="replace")
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def scores_as_json(scores: SetScores) -> Mapping[str, Json]:
    """What :func:`write_scores` writes; a number that is not finite is ``null``."""

    def rate(found: Rate, counts: ErrorCounts) -> dict[str, Json]:
        low, high = found.interval.low, found.interval.high
        return {"rate": finite(found.value), "low": finite(low), "high": finite(high), **counts.as_dict()}

    def groups(found: Sequence[GroupRate]) -> list[Json]:
        return [
            {
                "name": group.name,
                "utterances": group.num_utterances,
                "units": group.num_units,
                "errors": group.num_errors,
                "rate": finite(group.rate),
                "low": finite(group.interval.low),
                "high": finite(group.interval.high),
            }
            for group in found
        ]

    words = scores.by_word
    return {
        "utterances": scores.num_utterances,
        "confidence": 0.95,
        "resampled": {"unit": scores.clusters.unit, "number": scores.clusters.number},
        "wer": rate(scores.wer, scores.words),
        "cer": rate(scores.cer, scores.characters),
        "unit": scores.unit,
        "by_speaker": groups(scores.by_speaker),
        "by_length": groups(scores.by_length),
        "lost": [[word, count, words.said[word]] for word, count in words.most_lost(len(words.lost))],
        "inserted": [[word, count] for word, count in words.most_inserted(len(words.inserted))],
        "confused": [[said, heard, count] for (said, heard), count in words.most_confused(len(words.confused))],
    }


def scores_table(scores: SetScores) -> str:
    """The scores by speaker, by length and by word as text, for a terminal."""
    parts = []
    for title, groups in (("speaker", scores.by_speaker), ("length", scores.by_length)):
        if groups:
            rows = [_cells(group) for group in groups[:MOST_SPEAKERS]]
            header = (title, "utterances", f"{scores.unit}s", "errors", "rate", "95 % interval")
            left_out = len(groups) - len(rows)
            more = [f"  and {left_out} more, with fewer errors"] if left_out else []
            parts.append("\n".join([*_aligned([header, *rows]), *more]))
    found = scores.by_word
    lists = {
        "lost (of those said)": [f"{word} {n}/{found.said[word]}" for word, n in found.most_lost(MOST_WORDS)],
        "inserted": [f"{word} {n}" for word, n in found.most_inserted(MOST_WORDS)],
        "confused (said > heard)": [f"{a} > {b} {n}" for (a, b), n in found.most_confused(MOST_WORDS)],
    }
    parts.append("\n".join(f"  {name}: {', '.join(words) or 'none'}" for name, words in lists.items()))
    return "\n\n".join(parts)


def range_text(low: float, high: float) -> str:
    """Two fractions as ``10.90 to 13.80 %``."""
    return f"{low * 100:.2f} to {high * 100:.2f} %"


def finite(value: float) -> float | None:
    """The number, or None for one that JSON has not."""
    return round(value, 8) if math.isfinite(value) else None


def _cells(group: GroupRate) -> tuple[str, ...]:
    sizes = (str(group.num_utterances), str(group.num_units), str(group.num_errors))
    return (group.name, *sizes, f"{group.rate:.2%}", range_text(group.interval.low, group.interval.high))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  " + "  ".join([first.ljust(widths[0]), *cells]))
    return lines
