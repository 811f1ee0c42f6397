"""All scores of an evaluated set: rates with intervals, by speaker, length and word; as a table and as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TypeAlias

import msgspec
import numpy as np

from nemo_asr.run.text.labels import METRICS, main_metric
from nemo_asr.scoring.breakdown import (
    SECONDS,
    WORDS,
    GroupRate,
    WordErrors,
    most_frequent,
    rates_by_length,
    rates_by_speaker,
    word_errors,
)
from nemo_asr.scoring.hotwords import HotwordScores
from nemo_asr.scoring.intervals import Clusters, Interval, UtteranceErrors, bootstrap_interval, utterance_errors
from nemo_asr.scoring.normalize import without_case, without_punctuation
from nemo_asr.scoring.rates import ErrorCounts, count_errors
from nemo_asr.scoring.report.transcripts import ScoredUtterance, clusters_in, read_transcripts
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, parse_json, read_bytes, write_atomically

MOST_SPEAKERS = 20  # of a table
MOST_WORDS = 15  # of each list of words in a table

Json: TypeAlias = "str | int | float | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True)
class RateWithInterval:
    """An error rate, a fraction, with its 95 % interval."""

    value: float
    interval: Interval


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
        variants: errors of words and of characters without case, without punctuation and without both; only those
            that change a text.
        by_source: by manifest, where the set has several.
    """

    num_utterances: int
    clusters: Clusters
    words: ErrorCounts
    characters: ErrorCounts
    wer: RateWithInterval
    cer: RateWithInterval
    unit: str
    errors: UtteranceErrors
    by_speaker: Sequence[GroupRate]
    by_length: Sequence[GroupRate]
    by_word: WordErrors
    variants: Mapping[str, tuple[ErrorCounts, ErrorCounts]] = field(default_factory=dict)
    by_source: Sequence[GroupRate] = ()

    @property
    def num_wrong(self) -> int:
        """Utterances with an error."""
        return int(np.count_nonzero(self.errors.errors))

    def interval_line(self, metric: str = "wer") -> str:
        """``95 % intervals: WER 10.90 to 13.80 %, CER 3.10 to 4.40 %, by resampling 12 speakers``; "" without words."""
        if not self.words.reference_length:
            return ""
        rates = sorted((("wer", self.wer), ("cer", self.cer)), key=lambda named: named[0] != metric)
        texts = [f"{name.upper()} {range_text(rate.interval.low, rate.interval.high)}" for name, rate in rates]
        return f"95 % intervals: {', '.join(texts)}, by resampling {self.clusters}"

    def variants_line(self, metric: str = "wer") -> str:
        """``WER without case 10.90 %, without punctuation 9.10 %``; an empty text where nothing changes."""
        place = METRICS.index(metric)
        rates = {name: counts[place].rate for name, counts in self.variants.items()}
        if all(rate == (self.words, self.characters)[place].rate for rate in rates.values()):
            return ""
        return f"{metric.upper()} {', '.join(f'{name} {rate_text(rate)}' for name, rate in rates.items())}"


def score_rows(rows: Sequence[ScoredUtterance]) -> SetScores:
    """The scores of a set's transcripts.

    Raises:
        UsageError: there are none.
    """
    if not rows:
        raise UsageError("a set without utterances has no scores")
    heard, said = [row.hypothesis for row in rows], [row.reference for row in rows]
    clusters, use_cer = clusters_in(rows), has_no_words(said)
    words, characters = (utterance_errors(heard, said, use_cer, clusters) for use_cer in (False, True))
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
        wer=RateWithInterval(words.rate, bootstrap_interval(words)),
        cer=RateWithInterval(characters.rate, bootstrap_interval(characters)),
        unit=unit,
        errors=errors,
        by_speaker=rates_by_speaker(errors, [row.speaker for row in rows]),
        by_length=by_length,
        by_word=word_errors(heard, said, use_cer),
        by_source=rates_by_speaker(errors, _sources_of(rows)),
        variants=_variants(heard, said),
    )


def _variants(heard: Sequence[str], said: Sequence[str]) -> dict[str, tuple[ErrorCounts, ErrorCounts]]:
    """Errors without case, without punctuation, and without both."""
    variants = {}
    for name, change in _VARIANTS.items():
        changed_heard, changed_said = list(map(change, heard)), list(map(change, said))
        if (changed_heard, changed_said) != (list(heard), list(said)):
            words = count_errors(changed_heard, changed_said)
            variants[name] = (words, count_errors(changed_heard, changed_said, use_cer=True))
    return variants if len(variants) == len(_VARIANTS) else dict(list(variants.items())[:1])


_VARIANTS: Mapping[str, Callable[[str], str]] = {
    "without case": without_case,
    "without punctuation": without_punctuation,
    "without case and punctuation": lambda text: without_punctuation(without_case(text)),
}


def _sources_of(rows: Sequence[ScoredUtterance]) -> Sequence[str | None]:
    """The manifest of each utterance, without folders where that is enough; None where all have the same."""
    paths = [row.place.rpartition(":")[0] for row in rows]
    if len({*paths}) == 1:
        return [None] * len(rows)
    names = {path: PurePath(path).name for path in paths}
    return [names[path] if len({*names.values()}) == len(names) else path for path in paths]


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


SCORES_SUFFIX = ".scores.json"
_SCORES_KIND = FileKind("the file of scores", 1 << 28)


class _StoredScores(msgspec.Struct, frozen=True):
    """Of a file of scores what is read again; all else follows from the transcripts."""

    hotwords: HotwordScores | None = None


_SCORES_DECODER = msgspec.json.Decoder(_StoredScores)


def read_hotwords(path: Path) -> HotwordScores | None:
    """The hot words of a file of scores; None where there is no such file, or no hot words in it.

    Raises:
        DataError: it cannot be read.
    """
    if not os.path.lexists(path):
        return None
    content = read_bytes(path, _SCORES_KIND)
    parse_json(content, path, _SCORES_KIND)
    try:
        return _SCORES_DECODER.decode(content).hotwords
    except msgspec.MsgspecError as error:
        raise DataError("the scores are damaged", place=str(path), got=str(error)) from None


def write_scores(path: Path, scores: SetScores, hotwords: HotwordScores | None = None) -> None:
    """Write the scores as JSON: everything that the table shows, without its limits. Rates are fractions.

    Args:
        path: the file.
        scores: of a set.
        hotwords: of the set.

    Raises:
        UsageError: the file cannot be written.
    """
    of_hotwords = {} if hotwords is None else {"hotwords": msgspec.to_builtins(hotwords)}
    text = json.dumps({**scores_as_json(scores), **of_hotwords}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    content = text.encode("utf-8", errors="replace")
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def scores_as_json(scores: SetScores) -> Mapping[str, Json]:
    """What :func:`write_scores` writes; a number that is not finite is ``null``."""

    def rate(rate_of_set: RateWithInterval, counts: ErrorCounts) -> dict[str, Json]:
        low, high = rate_of_set.interval.low, rate_of_set.interval.high
        return {"rate": finite(rate_of_set.value), "low": finite(low), "high": finite(high), **counts.as_dict()}

    def groups(rates: Sequence[GroupRate]) -> list[Json]:
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
            for group in rates
        ]

    words = scores.by_word
    return {
        "utterances": scores.num_utterances,
        "confidence": 0.95,
        "resampled": {"unit": scores.clusters.unit, "number": scores.clusters.number},
        "wer": rate(scores.wer, scores.words),
        "cer": rate(scores.cer, scores.characters),
        "variants": {
            name: {"wer": finite(words.rate), "cer": finite(characters.rate)}
            for name, (words, characters) in scores.variants.items()
        },
        "unit": scores.unit,
        "by_speaker": groups(scores.by_speaker),
        "by_length": groups(scores.by_length),
        "by_source": groups(scores.by_source),
        "lost": [[word, count, words.said[word]] for word, count in most_frequent(words.lost)],
        "inserted": [[word, count] for word, count in most_frequent(words.inserted)],
        "confused": [[said, heard, count] for (said, heard), count in most_frequent(words.confused)],
    }


def scores_table(scores: SetScores) -> str:
    """The scores by source, by speaker, by length and by word as text, for a terminal."""
    parts = []
    tables = (("source", scores.by_source), ("speaker", scores.by_speaker), ("length", scores.by_length))
    for title, groups in tables:
        if groups:
            header = (title, "utterances", f"{scores.unit}s", "errors", "rate", "95 % interval")
            rows = [
                (
                    group.name,
                    str(group.num_utterances),
                    str(group.num_units),
                    str(group.num_errors),
                    rate_text(group.rate),
                    range_text(group.interval.low, group.interval.high) if group.num_units else "",
                )
                for group in groups[:MOST_SPEAKERS]
            ]
            lines = aligned([header, *rows], num_left=1)
            left_out = len(groups) - len(lines) + 1
            more = [f"and {left_out} more, with fewer errors"] if left_out else []
            parts.append("\n".join(f"  {line}" for line in [*lines, *more]))
    errors = scores.by_word
    lists = {
        "lost (of those said)": [f"{w} {n}/{errors.said[w]}" for w, n in most_frequent(errors.lost, MOST_WORDS)],
        "inserted": [f"{word} {n}" for word, n in most_frequent(errors.inserted, MOST_WORDS)],
        "confused (said > heard)": [f"{a} > {b} {n}" for (a, b), n in most_frequent(errors.confused, MOST_WORDS)],
    }
    parts.append("\n".join(f"  {name}: {', '.join(words) or 'none'}" for name, words in lists.items()))
    return "\n\n".join(parts)


def rate_text(rate: float) -> str:
    """A fraction as ``12.40%``, or ``no words`` where it is infinite."""
    return f"{rate:.2%}" if math.isfinite(rate) else "no words"


def range_text(low: float, high: float) -> str:
    """Two fractions as ``10.90 to 13.80 %``."""
    return f"{low * 100:.2f} to {high * 100:.2f} %"


def finite(value: float) -> float | None:
    """The number, or None for one that JSON has not."""
    return round(value, 8) if math.isfinite(value) else None


def aligned(rows: Sequence[Sequence[str]], num_left: int, rule: bool = False) -> list[str]:
    """A table of text: the first columns to the left, the others to the right; with a rule below its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<" * num_left + ">" * (len(widths) - num_left)
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]] if rule else lines
