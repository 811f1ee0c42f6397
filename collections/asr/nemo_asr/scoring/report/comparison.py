"""Two models on the same utterances: error rates, their difference and how sure it is; as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_asr.scoring.intervals import CONFIDENCE, PairedTest, paired_test, utterance_errors
from nemo_asr.scoring.report.set_scores import aligned, finite
from nemo_asr.scoring.report.transcripts import (
    ScoredUtterance,
    clusters_in,
    find_transcripts,
    normalized,
    read_transcripts,
)
from nemo_lite.base.errors import UsageError, counted, did_you_mean
from nemo_lite.base.files import Json, make_writable_folder
from nemo_lite.base.outputs import write_output

COMPARE = "nemo-lite compare"
"""What writes comparisons, also from within an evaluation."""
COMPARISON_FILE = "comparison.json"
COMPARED = "compared"  # the folder of a second model in that of a first
FEW_CLUSTERS = 10  # with fewer, a comparison says that it rests on few
_REMEDY = "evaluate both models on the same manifests"


@dataclass(frozen=True)
class Comparison:
    """Model B beside model A.

    Attributes:
        wer: of word errors.
        cer: of character errors.
        num_better: utterances in which B has fewer word errors.
        num_worse: utterances in which B has more.
    """

    wer: PairedTest
    cer: PairedTest
    num_better: int
    num_worse: int

    @property
    def tests(self) -> tuple[tuple[str, PairedTest], ...]:
        """Both tests with the names of their rates."""
        return ("WER", self.wer), ("CER", self.cer)


def compare(rows_a: Sequence[ScoredUtterance], rows_b: Sequence[ScoredUtterance]) -> Comparison:
    """Compare two models by their transcripts of one set.

    Args:
        rows_a: transcripts of the first model.
        rows_b: transcripts of the second model, of the same utterances in any order.

    Raises:
        UsageError: the utterances are not the same, by place and reference; or there are none.
    """
    by_place = matched(rows_a, rows_b)
    said = [row.reference for row in rows_a]
    heard_a = [row.hypothesis for row in rows_a]
    heard_b = [by_place[row.place].hypothesis for row in rows_a]
    # One of the manifests may name no speakers.
    clusters = clusters_in([row if row.speaker is not None else by_place[row.place] for row in rows_a])
    words_a, words_b = (utterance_errors(heard, said, clusters=clusters) for heard in (heard_a, heard_b))
    characters = (utterance_errors(heard, said, use_cer=True, clusters=clusters) for heard in (heard_a, heard_b))
    return Comparison(
        wer=paired_test(words_a, words_b),
        cer=paired_test(*characters),
        num_better=int(np.count_nonzero(words_b.errors < words_a.errors)),
        num_worse=int(np.count_nonzero(words_b.errors > words_a.errors)),
    )


def rows_of_folders(
    folder_a: str | Path,
    folder_b: str | Path,
    *,
    sets: Collection[str] | None = None,
    normalizer: str | None = None,
) -> dict[str, tuple[list[ScoredUtterance], list[ScoredUtterance]]]:
    """By set, the transcripts of two folders with ``<set>.transcripts.jsonl``, which must be the same sets.

    Args:
        folder_a: the run's, or the evaluation's, of the first model.
        folder_b: of the second model.
        sets: only these sets; None: all.
        normalizer: a score normaliser that both models' texts go through; None: the texts as they were scored.

    Raises:
        UsageError: a folder has no transcripts, or the sets differ.
        DataError: a file is damaged.
    """
    a, b = (
        {name: path for name, path in find_transcripts(Path(folder)).items() if sets is None or name in sets}
        for folder in (folder_a, folder_b)
    )
    for folder, paths in ((folder_a, a), (folder_b, b)):
        if not paths:
            remedy = "give a run's folder, or what --out of an evaluation named"
            raise UsageError("the folder has no *.transcripts.jsonl", place=str(folder), remedy=remedy)
    for name, other, folder in [*((n, b, folder_b) for n in a), *((n, a, folder_a) for n in b)]:
        if name not in other:
            got = ", ".join(other) + did_you_mean(name, other)
            raise UsageError(f"the set {name} is not there", place=str(folder), got=got, remedy=_REMEDY)

    def rows_of(path: Path) -> list[ScoredUtterance]:
        return normalized(read_transcripts(path), normalizer)

    return {name: (rows_of(a[name]), rows_of(b[name])) for name in a}


def compare_folders(
    folder_a: str | Path,
    folder_b: str | Path,
    *,
    sets: Collection[str] | None = None,
    normalizer: str | None = None,
) -> dict[str, Comparison]:
    """Compare the sets of two folders, by the arguments of `rows_of_folders`.

    Raises:
        UsageError: as there, or the utterances of a set differ.
        DataError: a file is damaged.
    """
    rows_of_sets = rows_of_folders(folder_a, folder_b, sets=sets, normalizer=normalizer)
    return {name: compare_set(name, *rows) for name, rows in rows_of_sets.items()}


def compare_set(name: str, rows_a: Sequence[ScoredUtterance], rows_b: Sequence[ScoredUtterance]) -> Comparison:
    """As `compare`; its errors name the set."""
    try:
        return compare(rows_a, rows_b)
    except UsageError as error:
        raise UsageError(error.problem, place=name, got=error.got, remedy=error.remedy) from None


def comparison_table(compared: Mapping[str, Comparison], name_a: str = "A", name_b: str = "B") -> str:
    """The comparisons of sets as a table of text, with a sentence for each set that says what it means."""
    header = ("set", "", "A", "B", "B - A", "95 % interval", "B better", "p-value")
    rows = [
        (name if metric == "WER" else "", metric, *cells_of(test))
        for name, comparison in compared.items()
        for metric, test in comparison.tests
    ]
    meanings = [f"{name}: {meaning_of(comparison)}." for name, comparison in compared.items()]
    drawn = ", ".join(dict.fromkeys(comparison.wer.clusters for comparison in compared.values()))
    legend = (
        f"B - A and its interval: percentage points, by resampling {drawn}. B better: share of the resampled sets in "
        "which B has fewer errors. p-value: matched pairs, two-sided."
    )
    return "\n".join(
        [f"A: {name_a}", f"B: {name_b}", "", *aligned([header, *rows], len(header), rule=True), "", *meanings, legend]
    )


def write_comparison(
    folder: str | Path, compared: Mapping[str, Comparison], name_a: str, name_b: str, *, overwrite: bool = False
) -> Path:
    """Write ``comparison.json``: all that `comparison_table` shows, as numbers; rates are fractions. Its path.

    Args:
        folder: where; made if it is missing.
        compared: by set.
        name_a, name_b: of the models, or of the folders with their transcripts.
        overwrite: replace also a file that no comparison wrote, or that was changed since.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: it cannot be written.
    """
    path = make_writable_folder(folder) / COMPARISON_FILE
    values = {"a": name_a, "b": name_b, "confidence": CONFIDENCE, "sets": {n: _as_json(c) for n, c in compared.items()}}
    text = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    content = text.encode("utf-8", errors="replace")
    write_output(path, lambda temporary: temporary.write_bytes(content), COMPARE, overwrite=overwrite)
    return path


def _as_json(compared: Comparison) -> dict[str, Json]:
    rates: dict[str, Json] = {
        metric.lower(): {
            "a": finite(test.rate_a),
            "b": finite(test.rate_b),
            "difference": finite(test.difference),
            "low": finite(test.interval.low),
            "high": finite(test.interval.high),
            "b_better": finite(test.probability),
            "p_value": test.p_value,
            "is_sure": test.is_sure,
        }
        for metric, test in compared.tests
    }
    return {
        "utterances": compared.wer.num_utterances,
        "b_better": compared.num_better,
        "b_worse": compared.num_worse,
        "resampled": {"unit": compared.wer.unit, "number": compared.wer.num_clusters},
        **rates,
        "meaning": meaning_of(compared),
    }


def matched(rows_a: Sequence[ScoredUtterance], rows_b: Sequence[ScoredUtterance]) -> dict[str, ScoredUtterance]:
    """The rows of B by place.

    Raises:
        UsageError: they are not the utterances of A.
    """
    a, b = ({row.place: row for row in rows} for rows in (rows_a, rows_b))
    for name, rows, matching in (("A", rows_a, a), ("B", rows_b, b)):
        if len(matching) < len(rows):
            raise UsageError(f"the transcripts of {name} have a place twice; they cannot be matched", remedy=_REMEDY)
    only_a, only_b = [place for place in a if place not in b], [place for place in b if place not in a]
    if only_a or only_b:
        parts = [
            f"{len(only)} only of {name}, first {only[0]}" for name, only in (("A", only_a), ("B", only_b)) if only
        ]
        raise UsageError(
            "the two models were not scored on the same utterances", got=" and ".join(parts), remedy=_REMEDY
        )
    differing = [place for place in a if a[place].reference != b[place].reference]
    if differing:
        first = differing[0]
        got = f'{len(differing)} differ, first {first}: "{a[first].reference}" of A and "{b[first].reference}" of B'
        names = [rows[0].score_normalizer or "the default" for rows in (rows_a, rows_b)]
        normalizers = f" (score normalisers: {names[0]} and {names[1]})" if names[0] != names[1] else ""
        remedy = f"if they differ in spelling, nemo-lite compare A B --score_normalizer basic; else {_REMEDY}"
        raise UsageError(f"the references of the two models differ{normalizers}", got=got, remedy=remedy)
    return b


def cells_of(test: PairedTest) -> tuple[str, ...]:
    """Rates of A and B, their difference in percentage points, its interval, how often B is better, the p-value."""
    if not test.has_words:
        return "no words", "no words", "", "", "", ""
    low, high = test.interval.low * 100, test.interval.high * 100
    interval = f"{low:+.2f} to {high:+.2f}"
    return (
        f"{test.rate_a:.2%}",
        f"{test.rate_b:.2%}",
        f"{test.difference * 100:+.2f}",
        interval,
        f"{test.probability:.1%}",
        f"{test.p_value:.2g}" if test.p_value >= 0.0001 else "< 0.0001",
    )


def meaning_of(compared: Comparison) -> str:
    """Sentences: how often each is better, which has the lower rate, and how far that can be chance."""
    test = compared.wer
    changed = (
        f"B is better on {compared.num_better} and worse on {compared.num_worse} of "
        f"{counted(test.num_utterances, 'utterance')}"
    )
    if not test.has_words:
        return f"{changed}; the references have no words, so there are no rates to compare"
    if not test.difference:
        return f"{changed}; both have the same WER"
    lower, points = ("B" if test.difference < 0 else "A"), abs(test.difference) * 100
    verdict = "has the lower WER" if test.is_sure else "has the lower WER here, but the difference may be chance"
    if test.p_value < 0.0001:
        share = "less than 0.01 %"
    else:
        digits = 0 if test.p_value >= 0.1 else 1 if test.p_value >= 0.01 else 2
        share = f"{test.p_value:.{digits}%}".replace("%", " %")
    chance = f"two equally good models differ as much in {share} of such comparisons"
    few = (
        f"; {test.clusters} {'is' if test.num_clusters == 1 else 'are'} few, so others may decide otherwise"
        if test.num_clusters < FEW_CLUSTERS
        else ""
    )
    return f"{changed}; {lower} {verdict}: by {points:.2f} points, and {chance}{few}"
