"""What the report is made of: records, transcripts and scored sets of a run folder."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from pathlib import Path, PurePath
from statistics import median
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from nemo_asr.run.text.labels import METRICS, main_metric
from nemo_asr.scoring.hotwords import HotwordScores, Places, phrase_finder
from nemo_asr.scoring.normalize import score_normalizer, without_case, without_punctuation
from nemo_asr.scoring.rates import (
    SECONDS,
    WORDS,
    Clusters,
    ErrorCounts,
    GroupRate,
    Interval,
    Kind,
    UtteranceErrors,
    WordErrors,
    bootstrap_interval,
    clusters_of,
    count_errors,
    differences,
    most_frequent,
    rates_by_length,
    rates_by_speaker,
    units_of,
    utterance_errors,
    word_errors,
)
from nemo_asr.scoring.report.charts import Chart, Clip, Curve, Point, chart, data_url, make_clip, reliability_charts
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, numbered_lines, parse_json, path_in_list, read_bytes, write_atomically
from nemo_lite.core.trackers import Record, duration_text, read_metrics

# What a report shows, as plain data: the page draws nothing else, and reads no files.


@dataclass(frozen=True)
class Part:
    """Neighbouring words (or characters) of a text that look the same.

    Attributes:
        text: they, with single spaces between words.
        kind: ``equal``, ``replace``, ``delete`` or ``insert``, as of `differences`.
        is_hot: they are of a hot word.
    """

    text: str
    kind: Kind
    is_hot: bool = False


@dataclass(frozen=True)
class Utterance:
    """An utterance that is shown.

    Attributes:
        place: the manifest and its line.
        texts: by name (``said``, ``heard``, ``without`` hot words) its reference and its hypotheses, aligned.
        num_errors: insertions, deletions and substitutions.
        num_units: words (or characters) of the reference.
        clip: the recording, where there is one and it can be read.
        note: why there is no clip, or what it leaves out.
        segments: of the recording; None: it was not cut.
        seconds: of the recording; None: not known.
        errors_without: its errors without hot words; None: there were none.
    """

    place: str
    texts: Mapping[str, Sequence[Part]]
    num_errors: int
    num_units: int
    clip: Clip | None = None
    note: str = ""
    segments: Sequence[Segment] | None = None
    seconds: float | None = None
    errors_without: int | None = None

    @property
    def seconds_cut_away(self) -> float:
        """Seconds that lie in no segment."""
        return max((self.seconds or 0.0) - sum(each.end - each.start for each in self.segments or ()), 0.0)

    @property
    def cut_away(self) -> Sequence[tuple[float, float]]:
        """What of the clip lies in no segment: from where to where, as shares of the clip."""
        if self.clip is None or self.segments is None or not self.clip.seconds:
            return ()
        edges = [0.0, *(second for each in self.segments for second in (each.start, each.end)), self.clip.seconds]
        shares = [min(second / self.clip.seconds, 1.0) for second in edges]
        gaps = zip(shares[::2], shares[1::2], strict=True)
        return [(start, end) for start, end in gaps if end > start]


@dataclass(frozen=True)
class History:
    """A set's evaluations in the course of training. Rates are fractions; steps are steps done.

    Attributes:
        last, best: the rates of the last and of the best evaluation by name, the one that decides first.
    """

    name: str
    num_evaluations: int
    last_step: int
    last: Mapping[str, float | None]
    best_step: int | None
    best: Mapping[str, float | None]


@dataclass(frozen=True)
class Picture:
    """A picture as a data URL."""

    name: str
    url: str


@dataclass(frozen=True)
class Report:
    """All of a page, from above.

    Attributes:
        title: its heading.
        facts: names and values: how long, how many steps, where the best model is.
        notes: what is missing or not as it should be, a sentence each.
        sets: evaluated sets with their transcripts.
        history: evaluations in training.
        charts: curves over steps.
        arguments: options and their values.
        configuration: names and texts of the configuration files.
        dags: pictures of the DAGs.
        metric: ``wer`` or ``cer``, the rate that comes first.
    """

    title: str
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    sets: Sequence[ScoredSet] = ()
    history: Sequence[History] = ()
    charts: Sequence[Chart] = ()
    arguments: Sequence[tuple[str, str]] = ()
    configuration: Sequence[tuple[str, str]] = ()
    dags: Sequence[Picture] = ()
    metric: str = "wer"


# Files of transcripts: one JSON object a line, an utterance with its reference and its hypothesis. Read only.


SUFFIX = ".transcripts.jsonl"
# An hour of fast speech has 80,000 characters. The time to compare two texts grows with the square of their lengths.
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=100_000)]


class Segment(msgspec.Struct, frozen=True):
    """A part of a recording that was transcribed alone.

    Attributes:
        start, end: seconds from the beginning of the utterance.
        text: what was recognised.
    """

    start: float
    end: float
    text: _Text = ""


class ScoredUtterance(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        place: the manifest and its line: ``dev.json:17``.
        reference: what was said.
        hypothesis: what was recognised.
        audio_filepath: the recording; None where the file does not say it.
        offset: seconds in the recording where the utterance begins; None: it is the whole recording.
        duration: seconds.
        channel: of the recording, from 0; None: the average of all.
        speaker: who says it; None where the file does not say it.
        text, recognised: both texts before a score normaliser changed them; None where there was none.
        score_normalizer: its name.
        segments: of a recording that was cut; none in which nobody speaks. None: it was not cut.
        without_hotwords: the hypothesis without hot words; None: there were none.
    """

    place: str
    reference: _Text
    hypothesis: _Text
    audio_filepath: str | None = None
    offset: float | None = None
    duration: float | None = None
    speaker: str | None = None
    text: _Text | None = None
    recognised: _Text | None = None
    score_normalizer: str | None = None
    channel: int | None = None
    segments: list[Segment] | None = None
    without_hotwords: _Text | None = None


_KIND = FileKind("the file of transcripts", 1 << 32)
_DECODER = msgspec.json.Decoder(ScoredUtterance)


def find_transcripts(folder: Path) -> dict[str, Path]:
    """The files of transcripts by the name of their set: those in ``folder/transcripts``, else those in ``folder``."""
    for place in (folder / "transcripts", folder):
        paths = {path.name.removesuffix(SUFFIX): path for path in sorted(place.glob(f"*{SUFFIX}"))}
        if paths:
            return paths
    return {}


def clusters_in(rows: Sequence[ScoredUtterance]) -> Clusters:
    """Which utterances belong together, by speaker or recording."""
    return clusters_of([row.speaker for row in rows], [row.audio_filepath for row in rows])


def read_transcripts(path: Path) -> list[ScoredUtterance]:
    """All lines of a file.

    Raises:
        DataError: it cannot be read, or a line is not such an object.
    """
    rows = []
    for place, line in numbered_lines(path, _KIND):
        parse_json(line, place, _KIND)
        try:
            rows.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            problem, wanted = "the line is not a transcript", "an object with place, reference and hypothesis"
            raise DataError(problem, place=place, got=str(error), wanted=wanted) from None
    return rows


def normalized(rows: Sequence[ScoredUtterance], normalizer: str | None) -> list[ScoredUtterance]:
    """The rows with texts as a score normaliser leaves them; those that it was not given before as they were scored.

    Args:
        rows: of a file of transcripts.
        normalizer: a name of `nemo_asr.scoring.normalize`; None: the rows as they are.
    """
    if normalizer is None:
        return list(rows)
    normalize = score_normalizer(normalizer)
    return [
        msgspec.structs.replace(
            row,
            reference=normalize(row.reference if row.text is None else row.text),
            hypothesis=normalize(row.hypothesis if row.recognised is None else row.recognised),
            score_normalizer=normalizer,
        )
        for row in rows
    ]


# metrics.jsonl of a run: its records, as the curves and the summary need them. Read only.


METRICS_FILE = "metrics.jsonl"


@dataclass
class RunRecords:
    """The records of a run, by kind.

    A run that is started again goes on in the same file. Where it goes on from an earlier step than it had reached, its
    records replace those of the later steps.

    Attributes:
        start: the last start: arguments, versions, precision, world_size.
        num_starts: how often the run was started.
        train: records about training, by step.
        evaluations: by set, records of its evaluations, by step.
        model: the last record about the best model.
        end: how the last start ended; None where it did not.
        seconds: how long all starts took together; one that was killed took until its last record.
    """

    start: Record | None = None
    num_starts: int = 0
    train: dict[int, Record] = field(default_factory=dict)
    evaluations: dict[str, dict[int, Record]] = field(default_factory=dict)
    model: Record | None = None
    end: Record | None = None
    seconds: float = 0.0
    _seconds_before: float = 0.0  # the last start
    _is_first_step: bool = True

    def add(self, record: Record) -> None:
        """Take one more record; kinds that are not known, and records without a step, are passed over."""
        kind, step = record.get("kind"), record.get("step")
        if kind == "start":
            self.start, self.end, self.num_starts = record, None, self.num_starts + 1
            self._is_first_step, self._seconds_before = True, self.seconds
        elif kind == "end":
            self.end = record
        elif kind == "model":
            self.model = record
        elif kind in ("train", "evaluation") and isinstance(step, int):
            if self._is_first_step:  # what an earlier start did from there on is done again
                self._is_first_step = False
                for records in (self.train, *self.evaluations.values()):
                    for later in [recorded for recorded in records if recorded >= step]:
                        del records[later]
            if kind == "train":
                self.train[step] = record
            else:
                self.evaluations.setdefault(str(record.get("set", "")), {})[step] = record
        took = number_of(record, "seconds") if kind == "end" else _seconds_between(self.start, record)
        self.seconds = self._seconds_before + (took or 0.0)


def number_of(record: Record | None, key: str) -> float | None:
    """A finite number of a record, or None."""
    value = (record or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _seconds_between(start: Record | None, record: Record) -> float | None:
    """The seconds from one record to another by their times, or None where one has none."""
    try:
        first, last = (datetime.fromisoformat(line["time"].replace("Z", "+00:00")) for line in (start or {}, record))
        return (last - first).total_seconds()
    except (KeyError, ValueError, AttributeError, TypeError):
        return None


def read_records(path: Path) -> RunRecords:
    """The records of a file.

    Raises:
        UsageError: the file cannot be read.
    """
    records = RunRecords()
    for record in read_metrics(path):
        records.add(record)
    return records


# All scores of an evaluated set: rates with intervals, by speaker, by length and by word; as a table and as JSON.


MOST_SPEAKERS = 20  # of a table
MOST_WORDS = 15  # of each list of words in a table

Json: TypeAlias = "str | int | float | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True)
class Rate:
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
    wer: Rate
    cer: Rate
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
        """``95 % intervals: WER 10.90 to 13.80 %, CER 3.10 to 4.40 %, by resampling 12 speakers``."""
        rates = sorted((("wer", self.wer), ("cer", self.cer)), key=lambda named: named[0] != metric)
        texts = [f"{name.upper()} {range_text(rate.interval.low, rate.interval.high)}" for name, rate in rates]
        return f"95 % intervals: {', '.join(texts)}, by resampling {self.clusters}"

    def variants_line(self, metric: str = "wer") -> str:
        """``WER without case 10.90 %, without punctuation 9.10 %``; an empty text where nothing changes."""
        place = METRICS.index(metric)
        rates = [f"{name} {counts[place].rate:.2%}" for name, counts in self.variants.items()]
        return f"{metric.upper()} {', '.join(rates)}" if rates else ""


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
        wer=Rate(words.rate, bootstrap_interval(words)),
        cer=Rate(characters.rate, bootstrap_interval(characters)),
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
    found = {}
    for name, change in _VARIANTS.items():
        changed_heard, changed_said = list(map(change, heard)), list(map(change, said))
        if (changed_heard, changed_said) != (list(heard), list(said)):
            words = count_errors(changed_heard, changed_said)
            found[name] = (words, count_errors(changed_heard, changed_said, use_cer=True))
    return found if len(found) == len(_VARIANTS) else dict(list(found.items())[:1])


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

    def rate(rate_of_set: Rate, counts: ErrorCounts) -> dict[str, Json]:
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
            lines = aligned([header, *map(_cells, groups[:MOST_SPEAKERS])], num_left=1)
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


def range_text(low: float, high: float) -> str:
    """Two fractions as ``10.90 to 13.80 %``."""
    return f"{low * 100:.2f} to {high * 100:.2f} %"


def finite(value: float) -> float | None:
    """The number, or None for one that JSON has not."""
    return round(value, 8) if math.isfinite(value) else None


def _cells(group: GroupRate) -> tuple[str, ...]:
    sizes = (str(group.num_utterances), str(group.num_units), str(group.num_errors))
    return (group.name, *sizes, f"{group.rate:.2%}", range_text(group.interval.low, group.interval.high))


def aligned(rows: Sequence[Sequence[str]], num_left: int, rule: bool = False) -> list[str]:
    """A table of text: the first columns to the left, the others to the right; with a rule below its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<" * num_left + ">" * (len(widths) - num_left)
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]] if rule else lines


# From transcripts to what a report shows of a set: rates with intervals, and the worst utterances to hear and see.


MOST_CHANGED = 10  # utterances of a set that hot words changed
MOST_PHRASES = 50  # hot words of a set in a table
MOST_SEGMENTS = 6  # of a recording that are shown at once
MOST_UTTERANCES = 20  # of all sets together, that are shown in full
FEWEST_OF_A_SET = 2  # also where there are many sets
MAX_CLIP_BYTES = 7_000_000  # of all clips together: with the rest, a page stays below 10 MB


class ClipMaker:
    """Makes clips until the page has enough of them."""

    def __init__(self, max_bytes: int = MAX_CLIP_BYTES) -> None:
        self._left = max_bytes

    def clip_of(self, row: ScoredUtterance) -> tuple[Clip | None, str]:
        """The recording of an utterance, and a note: what is left out, or why there is none."""
        if not row.audio_filepath:
            return None, "the transcripts do not say where the recording is"
        folder = os.path.dirname(row.place.rpartition(":")[0])  # place: the manifest and its line
        try:
            clip = make_clip(path_in_list(row.audio_filepath, folder), row.offset, row.duration, row.channel)
        except DataError as error:
            return None, str(error)
        if clip.num_bytes > self._left:
            return None, "the recording is left out to keep this page small"
        self._left -= clip.num_bytes
        return clip, f"the first {clip.seconds:.0f} s of the recording" if clip.is_cut else ""


@dataclass(frozen=True)
class CutSet:
    """The segments of a set whose recordings were cut. N recordings, S segments.

    Attributes:
        lengths: (S,) seconds of each segment, the shortest first.
        num_silent: recordings in which nobody speaks.
        seconds: of all recordings.
        shares: (N,) what was cut away of each recording, a fraction, the smallest first.
    """

    lengths: Sequence[float]
    num_silent: int
    seconds: float
    shares: Sequence[float]

    @property
    def extent(self) -> tuple[float, ...]:
        """The lengths of the shortest, the median and the longest segment; nothing where there is none."""
        return (self.lengths[0], median(self.lengths), self.lengths[-1]) if self.lengths else ()

    @property
    def cut_away(self) -> float:
        """Seconds of all recordings that lie in no segment."""
        return max(self.seconds - sum(self.lengths), 0.0)


def cut_set(rows: Sequence[ScoredUtterance]) -> CutSet | None:
    """The segments of a set; None where its recordings were not cut."""
    cut = [(row.duration, row.segments) for row in rows if row.segments is not None and row.duration]
    if not cut:
        return None
    lengths = [[max(each.end - each.start, 0.0) for each in segments] for _, segments in cut]
    seconds = [duration or 0.0 for duration, _ in cut]
    return CutSet(
        lengths=sorted(length for of_recording in lengths for length in of_recording),
        num_silent=sum(not of_recording for of_recording in lengths),
        seconds=sum(seconds),
        shares=sorted(max(1.0 - sum(own) / whole, 0.0) for own, whole in zip(lengths, seconds, strict=True)),
    )


@dataclass(frozen=True)
class ScoredSet:
    """An evaluated set.

    Attributes:
        name: of the set.
        scores: its error rates.
        worst: the utterances with the most errors, the worst first.
        segments: how its recordings were cut; None: they were not.
        hotwords: what hot words gained and cost; None: there were none.
        changed: utterances in which hot words changed the text, those whose errors changed most first.
        num_changed: how many there are in all.
    """

    name: str
    scores: SetScores
    worst: Sequence[Utterance]
    segments: CutSet | None = None
    hotwords: HotwordScores | None = None
    changed: Sequence[Utterance] = ()
    num_changed: int = 0


def scored_sets(
    transcripts: Mapping[str, Sequence[ScoredUtterance]],
    clips: ClipMaker,
    hotwords: Mapping[str, HotwordScores | None] | None = None,
) -> list[ScoredSet]:
    """What a report shows of the sets; those without utterances are left out.

    Args:
        transcripts: by set.
        clips: makes the recordings.
        hotwords: by set, where there are any.
    """
    by_name = {name: rows for name, rows in transcripts.items() if rows}
    most = max(FEWEST_OF_A_SET, MOST_UTTERANCES // max(len(by_name), 1))
    return [_scored_set(name, rows, most, clips, (hotwords or {}).get(name)) for name, rows in by_name.items()]


def _scored_set(
    name: str, rows: Sequence[ScoredUtterance], most: int, clips: ClipMaker, hotwords: HotwordScores | None
) -> ScoredSet:
    scores = score_rows(rows)
    counts, use_cer = scores.errors, scores.unit == "character"
    hot = phrase_finder(hotwords.all_phrases if hotwords else (), list if use_cer else str.split)
    # Of equally many errors, those with the shorter reference first.
    order = np.lexsort((counts.lengths, -counts.errors))[:most].tolist()
    worst = [_utterance(rows[item], counts, item, use_cer, hot, clips) for item in order if counts.errors[item]]
    changed = [item for item, row in enumerate(rows) if _changed_text(row) is not None]
    shown = [_utterance(rows[item], counts, item, use_cer, hot) for item in changed]
    shown.sort(key=lambda each: -abs(each.num_errors - (each.errors_without or 0)))
    return ScoredSet(name, scores, worst, cut_set(rows), hotwords, shown[:MOST_CHANGED], len(changed))


def _changed_text(row: ScoredUtterance) -> str | None:
    """The text without hot words, where it is another one."""
    return None if row.without_hotwords == row.hypothesis else row.without_hotwords


def _utterance(
    row: ScoredUtterance,
    counts: UtteranceErrors,
    item: int,
    use_cer: bool,
    hot: Callable[[Sequence[str]], Places],
    clips: ClipMaker | None = None,
) -> Utterance:
    clip, note = clips.clip_of(row) if clips else (None, "")
    pieces = differences(row.reference, row.hypothesis, use_cer)
    said, heard = [(piece.said, piece.kind) for piece in pieces], [(piece.heard, piece.kind) for piece in pieces]
    texts = {"said": _parts(said, use_cer, hot), "heard": _parts(heard, use_cer, hot)}
    errors_without, without = None, _changed_text(row)
    if without is not None:
        aligned_without = differences(row.reference, without, use_cer)
        texts["without"] = _parts([(piece.heard, piece.kind) for piece in aligned_without], use_cer, hot)
        errors_without = count_errors([without], [row.reference], use_cer).errors
    return Utterance(
        place=row.place,
        texts=texts,
        num_errors=int(counts.errors[item]),
        num_units=int(counts.lengths[item]),
        clip=clip,
        note=note,
        segments=row.segments if clips else None,
        seconds=row.duration,
        errors_without=errors_without,
    )


def _parts(pieces: Sequence[tuple[str, Kind]], use_cer: bool, hot: Callable[[Sequence[str]], Places]) -> Sequence[Part]:
    """One side of an alignment, parted also where hot words begin and end."""
    units = [(unit, kind) for text, kind in pieces for unit in units_of(text, use_cer)]
    hot_units = {place for _, places in hot([unit for unit, _ in units]) for place in places}
    looks = [(kind, place in hot_units) for place, (_, kind) in enumerate(units)]
    parts = []
    for (kind, is_hot), group in groupby(range(len(units)), key=lambda place: looks[place]):
        text = ("" if use_cer else " ").join(units[place][0] for place in group)
        parts.append(Part(text, kind, is_hot))
    return parts


# From a folder to what a report shows: a run of jasper.py, or what jasper_eval.py wrote. Reads only.


MAX_TEXT = 200_000  # characters of a configuration that are shown
MAX_PICTURE_BYTES = 500_000  # larger pictures of DAGs are left out
MOST_DAGS = 6
_CONFIGURATION = FileKind("the configuration", 1 << 24)
_PICTURE = FileKind("the picture", MAX_PICTURE_BYTES)
_TIME_IN_NAME = re.compile(r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$")  # what a run adds to the names of copied files


def read_run(
    folder: str | Path, *, sets: Collection[str] | None = None, facts: Mapping[str, str] | None = None
) -> Report:
    """What is known about a run or an evaluation.

    Args:
        folder: has ``metrics.jsonl`` and ``transcripts/<set>.transcripts.jsonl``, the configuration (``*.yaml``),
            pictures of the DAGs (``*.svg``) and ``calibration.json``, or ``<set>.transcripts.jsonl`` alone. Everything
            may be missing.
        sets: only these sets; None: all.
        facts: names and values that come first.

    Raises:
        UsageError: the folder has neither records nor transcripts.
        DataError: a file of it is damaged.
    """
    folder = Path(folder)
    paths = {name: path for name, path in find_transcripts(folder).items() if sets is None or name in sets}
    has_records = (folder / METRICS_FILE).is_file()
    if not paths and not has_records:
        raise UsageError(
            "there is nothing to report",
            place=str(folder),
            wanted=f"{METRICS_FILE} or *.transcripts.jsonl",
            remedy="give the folder of a run or of an evaluation",
        )
    records = read_records(folder / METRICS_FILE) if has_records else RunRecords()
    rows_of_sets = {name: read_transcripts(path) for name, path in paths.items()}
    hotwords = {
        name: read_hotwords(paths[name].with_name(f"{name}{SCORES_SUFFIX}"))
        for name, rows in rows_of_sets.items()
        if any(row.without_hotwords is not None for row in rows)
    }
    scored = scored_sets(rows_of_sets, ClipMaker(), hotwords)
    options = (records.start or {}).get("arguments")
    options = options if isinstance(options, dict) else {}
    # A run says what counts; of an evaluation the texts decide.
    metric = str(options.get("eval_metric") or ("cer" if scored and scored[0].scores.unit == "character" else "wer"))
    starts_trained = bool(options.get("init_from"))
    return Report(
        title=folder.resolve().name,
        facts=[*(facts or {}).items(), *_facts(records), *_facts_of_texts(rows_of_sets, scored, metric)],
        notes=list(_notes(records, has_records)),
        sets=scored,
        history=[_history(name, items, metric, starts_trained) for name, items in records.evaluations.items() if items],
        charts=[*_charts(records, metric), *_segment_charts(scored), *reliability_charts(folder)],
        arguments=_arguments(records.start),
        configuration=_configuration(folder),
        dags=_dags(folder),
        metric=metric,
    )


def _facts(records: RunRecords) -> Iterator[tuple[str, str]]:
    start, end = records.start or {}, records.end
    if start.get("time"):
        yield "started", str(start["time"])[:19].replace("T", " ") + " UTC"
    for name, key in (("precision", "precision"), ("processes", "world_size")):
        if start.get(key) is not None:
            yield name, str(start[key])
    if versions := start.get("versions"):
        yield "versions", ", ".join(f"{name} {value}" for name, value in _pairs(versions))
    if records.train or end:
        last = end or records.train[max(records.train)]
        epoch = number_of(last, "epoch")
        yield "steps", f"{number_of(last, 'step') or 0:.0f}" + (f", epoch {epoch:.0f}" if epoch is not None else "")
    if number_of(end, "seconds") is not None:
        starts = f", in {records.num_starts} starts" if records.num_starts > 1 else ""
        yield "duration", duration_text(records.seconds) + starts
    if end and end.get("reason"):
        yield "ended", str(end["reason"])
    if speeds := [s for r in records.train.values() if (s := number_of(r, "amount_per_second"))]:
        unit = next(iter(records.train.values())).get("amount_unit", "items")
        yield "speed", f"{median(speeds):.4g} {unit} a second (median)"
    if records.model:
        yield "best model", _model_text(records.model)


def _facts_of_texts(
    rows_of_sets: Mapping[str, Sequence[ScoredUtterance]], scored: Sequence[ScoredSet], metric: str
) -> Iterator[tuple[str, str]]:
    names = {row.score_normalizer for rows in rows_of_sets.values() for row in rows[:1]} - {None}
    if names:
        yield "score normaliser", ", ".join(sorted(map(str, names)))
    for scored_set in scored:
        if line := scored_set.scores.variants_line("cer" if metric == "cer" else "wer"):
            yield scored_set.name, line


def _model_text(model: Record) -> str:
    value, metric = number_of(model, "value"), str(model.get("metric", "")).upper()
    rate = f" {value:.2%}" if value is not None else ""
    return f"{model.get('path')}: step {model.get('step')}, {model.get('set')} {metric}{rate}"


def _notes(records: RunRecords, has_records: bool) -> Iterator[str]:
    if has_records and records.end is None:
        yield f"The run has not ended, or was killed: {METRICS_FILE} has no end."
    if records.num_starts > 1:
        yield f"The run was started {records.num_starts} times; arguments and versions are those of the last start."


def _charts(records: RunRecords, metric: str) -> list[Chart]:
    def of_sets(key: str) -> list[Curve]:
        named = enumerate(records.evaluations.items(), 1)
        return [Curve(name, _points(items, key), colour) for colour, (name, items) in named]

    rates = (
        chart("Word error rate", of_sets("wer"), percent=True),
        chart("Character error rate", of_sets("cer"), percent=True),
    )
    drawn = (
        chart("Loss", [Curve("training", _points(records.train, "loss")), *of_sets("loss")], may_be_log=True),
        *(rates if metric == "wer" else reversed(rates)),
        chart("Learning rate", [Curve("learning rate", _points(records.train, "lr"), 1)]),
    )
    return [chart for chart in drawn if chart is not None]


def _segment_charts(scored: Sequence[ScoredSet]) -> list[Chart]:
    """How long segments are, and what was cut away of each recording, as shares of all."""
    cut = [(colour, each.name, each.segments) for colour, each in enumerate(scored, 1) if each.segments]
    drawn = (
        chart(
            "Share of segments, by length",
            [Curve(name, _distribution(segments.lengths), colour) for colour, name, segments in cut],
            percent=True,
            x_name="at most so many seconds",
        ),
        chart(
            "Share of recordings, by what was cut away",
            [Curve(name, _distribution([100 * s for s in segments.shares]), colour) for colour, name, segments in cut],
            percent=True,
            x_name="at most so many % cut away",
        ),
    )
    return [chart for chart in drawn if chart is not None]


def _distribution(values: Sequence[float]) -> list[Point]:
    """(value, share of the values up to it) of sorted values, each once."""
    shares = {round(value, 3): number / len(values) for number, value in enumerate(values, 1)}
    return list(shares.items())


def _points(records: Mapping[int, Record], key: str) -> list[Point]:
    values = ((step, number_of(record, key)) for step, record in sorted(records.items()))
    return [(float(step), value) for step, value in values if value is not None]


def _history(name: str, evaluations: Mapping[int, Record], metric: str, starts_trained: bool) -> History:
    """The evaluations of a set; what is the best is decided as in the log and for the best model."""
    metrics = sorted(("wer", "cer"), key=lambda name: name != metric)
    ranks = {
        step: tuple(math.inf if (n := number_of(record, key)) is None else n for key in (*metrics, "loss"))
        for step, record in evaluations.items()
        if (step > 0 or starts_trained) and number_of(record, metrics[0]) is not None
    }
    best = min(ranks, key=lambda step: (ranks[step], step), default=None)
    last = max(evaluations)
    return History(
        name=name,
        num_evaluations=len(evaluations),
        last_step=last,
        last={metric: number_of(evaluations[last], metric) for metric in metrics},
        best_step=best,
        best={metric: None if best is None else number_of(evaluations[best], metric) for metric in metrics},
    )


def _arguments(start: Record | None) -> list[tuple[str, str]]:
    arguments = (start or {}).get("arguments")
    if isinstance(arguments, dict):
        return [(name, value) for name, value in _pairs(arguments) if value != ""]
    if isinstance(arguments, list):
        return [("command", " ".join(map(str, arguments)))]
    return [("command", str(arguments))] if arguments else []


def _pairs(values: object) -> list[tuple[str, str]]:
    """Names and values as texts; a list as its parts, None as nothing."""
    pairs = values.items() if isinstance(values, dict) else [("", values)]
    texts = [(name, ", ".join(map(str, value)) if isinstance(value, list) else value) for name, value in pairs]
    return [(str(name), "" if text is None else str(text)) for name, text in texts]


def _configuration(folder: Path) -> list[tuple[str, str]]:
    """The configuration files of the folder; of several copies of one, the newest."""
    newest: dict[str, Path] = {}
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        newest[_TIME_IN_NAME.sub("", path.stem)] = path  # sorted by the time in the name
    texts = {path.name: read_bytes(path, _CONFIGURATION).decode("utf-8", "replace") for path in newest.values()}
    return [(name, text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n...") for name, text in texts.items()]


def _dags(folder: Path) -> list[Picture]:
    """The pictures that ``write_svg`` made, the training DAG first."""
    paths = sorted(folder.glob("*.svg"), key=lambda path: (path.stem != "training", path.stem))
    small = [path for path in paths if path.stat().st_size <= MAX_PICTURE_BYTES][:MOST_DAGS]
    return [Picture(path.stem, data_url("image/svg+xml", read_bytes(path, _PICTURE))) for path in small]
