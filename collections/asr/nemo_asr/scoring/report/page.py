"""The report page of a run, of several seeds, and of a comparison."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev

import jinja2
import numpy as np

from nemo_asr.scoring.rates import CONFIDENCE, PairedTest, most_frequent, paired_test, utterance_errors
from nemo_asr.scoring.report import charts, records
from nemo_asr.scoring.report.records import METRICS_FILE as FILE_NAME
from nemo_asr.scoring.report.records import (
    Report,
    ScoredUtterance,
    aligned,
    clusters_in,
    find_transcripts,
    normalized,
    number_of,
    read_records,
    read_run,
    read_transcripts,
)
from nemo_lite import Dag
from nemo_lite.base.errors import NemoLiteError, UsageError, did_you_mean
from nemo_lite.base.outputs import check_output, write_output
from nemo_lite.core.show import write_svg
from nemo_lite.core.trackers import duration_text
from nemo_lite.utils import logging

# Two models on the same utterances: error rates, their difference and how sure it is. Printed by commands.


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


def compare(rows_a: Sequence[ScoredUtterance], rows_b: Sequence[ScoredUtterance]) -> Comparison:
    """Compare two models by their transcripts of one set.

    Args:
        rows_a: transcripts of the first model.
        rows_b: transcripts of the second model, of the same utterances in any order.

    Raises:
        UsageError: the utterances are not the same, by place and reference; or there are none.
    """
    by_place = _matched(rows_a, rows_b)
    said = [row.reference for row in rows_a]
    heard_a = [row.hypothesis for row in rows_a]
    heard_b = [by_place[row.place].hypothesis for row in rows_a]
    # One of the files may be of an older version, which names no speakers.
    clusters = clusters_in([row if row.speaker is not None else by_place[row.place] for row in rows_a])
    words_a, words_b = (utterance_errors(heard, said, clusters=clusters) for heard in (heard_a, heard_b))
    characters = (utterance_errors(heard, said, use_cer=True, clusters=clusters) for heard in (heard_a, heard_b))
    return Comparison(
        wer=paired_test(words_a, words_b),
        cer=paired_test(*characters),
        num_better=int(np.count_nonzero(words_b.errors < words_a.errors)),
        num_worse=int(np.count_nonzero(words_b.errors > words_a.errors)),
    )


def compare_folders(
    folder_a: str | Path,
    folder_b: str | Path,
    *,
    sets: Collection[str] | None = None,
    normalizer: str | None = None,
) -> dict[str, Comparison]:
    """Compare the sets of two folders with ``<set>.transcripts.jsonl``, which must be the same sets.

    Args:
        folder_a: the run's, or the evaluation's, of the first model.
        folder_b: of the second model.
        sets: only these sets; None: all.
        normalizer: a score normaliser that both models' texts go through; None: the texts as they were scored.

    Raises:
        UsageError: a folder has no transcripts, the sets differ, or their utterances.
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
    compared = {}
    for name in a:
        try:
            rows_a, rows_b = (normalized(read_transcripts(paths[name]), normalizer) for paths in (a, b))
            compared[name] = compare(rows_a, rows_b)
        except UsageError as error:
            raise UsageError(error.problem, place=name, got=error.got, remedy=error.remedy) from None
    return compared


def comparison_table(compared: dict[str, Comparison], name_a: str = "A", name_b: str = "B") -> str:
    """The comparisons of sets as a table of text, with a sentence for each set that says what it means."""
    header = ("set", "", "A", "B", "B - A", "95 % interval", "B better", "p-value")
    rows = [
        (name if metric == "WER" else "", metric, *_cells(test))
        for name, comparison in compared.items()
        for metric, test in (("WER", comparison.wer), ("CER", comparison.cer))
    ]
    meanings = [f"{name}: {_meaning(comparison)}." for name, comparison in compared.items()]
    drawn = ", ".join(
        dict.fromkeys(f"{comparison.wer.num_clusters} {comparison.wer.unit}" for comparison in compared.values())
    )
    legend = (
        f"B - A and its interval: percentage points, by resampling {drawn}. B better: share of the resampled sets in "
        "which B has fewer errors. p-value: matched pairs, two-sided."
    )
    return "\n".join(
        [f"A: {name_a}", f"B: {name_b}", "", *aligned([header, *rows], len(header), rule=True), "", *meanings, legend]
    )


def _matched(rows_a: Sequence[ScoredUtterance], rows_b: Sequence[ScoredUtterance]) -> dict[str, ScoredUtterance]:
    """The rows of B by place, when they are the utterances of A."""
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
        told = f" (score normalisers: {names[0]} and {names[1]})" if names[0] != names[1] else ""
        raise UsageError(f"the references of the two models differ{told}", got=got, remedy=_REMEDY)
    return b


def _cells(test: PairedTest) -> tuple[str, ...]:
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


def _meaning(compared: Comparison) -> str:
    """Sentences: how often each is better, which has the lower rate, and how far that can be chance."""
    test = compared.wer
    changed = (
        f"B is better on {compared.num_better} and worse on {compared.num_worse} of {test.num_utterances} utterances"
    )
    if not test.difference:
        return f"{changed}; both have the same WER"
    lower, points = ("B" if test.difference < 0 else "A"), abs(test.difference) * 100
    # Both must agree: the p-value counts errors, the interval weighs them by words.
    is_sure = test.p_value < 1 - CONFIDENCE and not test.interval.low <= 0 <= test.interval.high
    verdict = "has the lower WER" if is_sure else "has the lower WER here, but the difference may be chance"
    chance = f"two equally good models differ as much in {_share(test.p_value)} of such comparisons"
    few = (
        f"; {test.num_clusters} {test.unit} are few, so others may decide otherwise"
        if test.num_clusters < FEW_CLUSTERS
        else ""
    )
    return f"{changed}; {lower} {verdict}: by {points:.2f} points, and {chance}{few}"


def _share(p_value: float) -> str:
    """``34 %``, ``2.1 %`` or ``less than 0.01 %``."""
    if p_value < 0.0001:
        return "less than 0.01 %"
    return f"{p_value:.{0 if p_value >= 0.1 else 1 if p_value >= 0.01 else 2}%}".replace("%", " %")


# Runs of one recipe with several seeds: the error rates of each, their mean and their spread. No training in here.


RATES = ("wer", "cer", "error")
"""What of an evaluation is an error rate."""


@dataclass(frozen=True)
class SeedResult:
    """What a run gave.

    Attributes:
        seed: of the run.
        folder: the run's.
        step: of its model: the best one by the first set; the last one where no set decides. None: it has none.
        rates: of that step, by set and then by name: fractions.
    """

    seed: int
    folder: str
    step: int | None
    rates: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Spread:
    """A rate over several seeds; fractions.

    Attributes:
        number: of seeds that have the rate.
        mean: of them.
        spread: their standard deviation (of a sample, with ``number - 1``); None for one seed.
        lowest, highest: of them.
    """

    number: int
    mean: float
    spread: float | None
    lowest: float
    highest: float


def read_result(seed: int, folder: Path) -> SeedResult:
    """The rates of a run's model.

    Raises:
        UsageError: the run has no records.
    """
    records = read_records(folder / FILE_NAME)
    at_model = number_of(records.model, "step")
    evaluated = [step for of_set in records.evaluations.values() for step in of_set]
    step = int(at_model) if at_model is not None else max(evaluated, default=None)
    rates = {
        name: {rate: value for rate in RATES if (value := number_of(of_set[step], rate)) is not None}
        for name, of_set in records.evaluations.items()
        if step in of_set
    }
    return SeedResult(seed, str(folder), step, rates)


def spreads(results: Sequence[SeedResult], first_rate: str = "wer") -> dict[str, dict[str, Spread]]:
    """Mean and spread by set and rate, as the results order them; the rate that counts comes first."""
    by_set: dict[str, dict[str, Spread]] = {}
    order = sorted(RATES, key=lambda rate: rate != first_rate)
    for name in dict.fromkeys(name for result in results for name in result.rates):
        for rate in order:
            values = [result.rates[name][rate] for result in results if rate in result.rates.get(name, {})]
            if values:
                mean_and_range = (fmean(values), stdev(values) if len(values) > 1 else None, min(values), max(values))
                by_set.setdefault(name, {})[rate] = Spread(len(values), *mean_and_range)
    return by_set


def seed_table(results: Sequence[SeedResult], first_rate: str = "wer") -> str:
    """The rates of each seed, mean and spread, as a table of text in percent."""
    header = ("set", "rate", *(f"seed {result.seed}" for result in results), "mean", "spread")
    rows = [header]
    for name, rates in spreads(results, first_rate).items():
        for number, (rate, spread) in enumerate(rates.items()):
            numbers = [*(result.rates.get(name, {}).get(rate) for result in results), spread.mean, spread.spread]
            cells = ["" if value is None else f"{100 * value:.2f}" for value in numbers]
            rows.append(("" if number else name, rate.upper(), *cells))
    return "\n".join(
        [
            *aligned(rows, 2, rule=True),
            "",
            "In percent, of each run's model. Spread: standard deviation over the seeds.",
        ]
    )


SEEDS = "nemo-lite train --seeds"


def write_seeds(path: Path, results: Sequence[SeedResult], failed: Mapping[int, int]) -> None:
    """Write what the table shows as JSON; rates are fractions.

    Args:
        path: the file.
        results: of the seeds that finished.
        failed: the exit code of each seed that did not.

    Raises:
        UsageError: the file cannot be written.
        FileInTheWayError: there is a file that was not written here, or was changed since.
    """
    sets = {name: {rate: asdict(spread) for rate, spread in rates.items()} for name, rates in spreads(results).items()}
    content = {
        "seeds": [asdict(result) for result in results],
        "failed": [{"seed": seed, "exit_code": code} for seed, code in failed.items()],
        "sets": sets,
    }
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), SEEDS)


# report.html: one page without outside files. How it looks is in page.html; every text in it is escaped.


PAGE_FILE = "report.html"
REPORT = "nemo-lite report"
"""What writes such pages, also from within a training or an evaluation."""


def render(report: Report) -> str:
    """The page as text of an HTML file."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["percent"] = _percent
    environment.filters["duration"] = duration_text
    source = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        report=report, size=charts, limits=records, most_frequent=most_frequent
    )


def write_report(
    run_folder: str | Path,
    path: str | Path | None = None,
    *,
    sets: Collection[str] | None = None,
    facts: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the report of a run, or of an evaluation, as one HTML page; its path.

    Args:
        run_folder: what :func:`~nemo_asr.scoring.report.records.read_run` reads.
        path: the page; by default ``report.html`` in the folder.
        sets: only these evaluated sets; None: all.
        facts: names and values that come first.
        overwrite: replace also a file that is no such page, or was changed since.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: the folder has nothing to report, the page cannot be written, or there is no space for it.
        DataError: a file of the folder is damaged.
    """
    path = Path(path).expanduser() if path is not None else Path(run_folder) / PAGE_FILE
    check_output(path, REPORT, overwrite=overwrite)
    # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
    content = render(read_run(run_folder, sets=sets, facts=facts)).encode("utf-8", errors="replace")
    write_output(path, lambda temporary: temporary.write_bytes(content), REPORT, overwrite=overwrite)
    return path


def try_report(
    run_folder: str | Path,
    *,
    sets: Collection[str] | None = None,
    facts: Mapping[str, str] | None = None,
    dags: Mapping[str, Dag] | None = None,
    overwrite: bool = False,
) -> Path | None:
    """As :func:`write_report`, for the end of a run: what goes wrong is one warning, and the result None.

    Args:
        run_folder: the run's folder.
        sets: only these evaluated sets; None: all.
        facts: names and values that come first.
        dags: pictures of them are saved in the folder first, as ``NAME.svg``.
        overwrite: as of :func:`write_report`.
    """
    try:
        for name, dag in (dags or {}).items():
            write = partial(write_svg, dag=dag, title=name)
            write_output(Path(run_folder) / f"{name}.svg", write, "nemo-lite plan", remedy="move it away")
        remedy = f"move it away, or {REPORT} {run_folder} --overwrite"  # a training has no such option
        check_output(Path(run_folder) / PAGE_FILE, REPORT, overwrite=overwrite, remedy=remedy)
        path = write_report(run_folder, sets=sets, facts=facts, overwrite=overwrite)
    except (NemoLiteError, OSError) as error:
        logging.warning("No report was written: %s", error)
        return None
    logging.info("Report: %s", path)
    return path


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2%}".replace("%", "\N{NO-BREAK SPACE}%")
