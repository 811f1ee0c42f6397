"""What a report shows, as plain data: the page draws nothing else, and reads no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_asr.scoring.bootstrap import Interval
from nemo_asr.scoring.breakdown import GroupRate
from nemo_asr.scoring.differences import Piece
from nemo_asr.scoring.report.charts import Chart
from nemo_asr.scoring.report.media import Clip


@dataclass(frozen=True)
class Rate:
    """An error rate, a fraction, with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Utterance:
    """One of the worst utterances of a set.

    Attributes:
        place: the manifest and its line.
        pieces: its reference and its hypothesis, aligned.
        num_errors: insertions, deletions and substitutions.
        num_units: words (or characters) of the reference.
        clip: the recording, where there is one and it can be read.
        note: why there is no clip, or what it leaves out.
    """

    place: str
    pieces: Sequence[Piece]
    num_errors: int
    num_units: int
    clip: Clip | None = None
    note: str = ""


@dataclass(frozen=True)
class ScoredSet:
    """An evaluated set, as its file of transcripts gives it.

    Attributes:
        name: of the set.
        num_utterances: how many.
        num_words: words of the references.
        wer: word error rate.
        cer: character error rate, spaces included.
        insertions: words that were only heard.
        deletions: words that were only said.
        substitutions: words taken for others.
        unit: "word" or "character": what the worst utterances are aligned and sorted by.
        num_wrong: utterances with an error.
        worst: those with the most errors, the worst first.
        clusters: in what the utterances were resampled: ``12 speakers``.
        by_speaker: the rates of the speakers with the most errors.
        num_speakers: how many there are; 0 where none is known.
        by_length: the rates of utterances of similar length.
        lost: words, how often each was lost, and how often it was said.
        inserted: words, and how often each was inserted.
        confused: words that were said with those that were recognised for them, and how often.
    """

    name: str
    num_utterances: int
    num_words: int
    wer: Rate
    cer: Rate
    insertions: int
    deletions: int
    substitutions: int
    unit: str
    num_wrong: int
    worst: Sequence[Utterance]
    clusters: str
    by_speaker: Sequence[GroupRate] = ()
    num_speakers: int = 0
    by_length: Sequence[GroupRate] = ()
    lost: Sequence[tuple[str, int, int]] = ()
    inserted: Sequence[tuple[str, int]] = ()
    confused: Sequence[tuple[tuple[str, str], int]] = ()


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
