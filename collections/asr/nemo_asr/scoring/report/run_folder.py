"""From a folder to what a report shows: a run of jasper.py, or what jasper_eval.py wrote. Reads only."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from nemo_asr.run.calibration import FILE_NAME, CalibrationRecord, MeasuredSet, Reliability
from nemo_asr.scoring.report.charts import Chart, Curve, Point, chart
from nemo_asr.scoring.report.compared_sets import ComparedSet, compared_sets
from nemo_asr.scoring.report.comparison import rows_of_folders
from nemo_asr.scoring.report.media import data_url
from nemo_asr.scoring.report.records import METRICS_FILE, GuardedSet, RunRecords, number_of, read_records
from nemo_asr.scoring.report.scored_sets import ClipMaker, ShownSet, scored_sets
from nemo_asr.scoring.report.set_scores import SCORES_SUFFIX, read_hotwords
from nemo_asr.scoring.report.transcripts import ScoredUtterance, find_transcripts, normalized, read_transcripts
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, parse_json, read_bytes
from nemo_lite.core.trackers import Record, duration_text

MAX_TEXT = 200_000  # characters of a configuration that are shown
MAX_PICTURE_BYTES = 500_000  # larger pictures of DAGs are left out
MOST_DAGS = 6
_CONFIGURATION = FileKind("the configuration", 1 << 24)
_PICTURE = FileKind("the picture", MAX_PICTURE_BYTES)
_TIME_IN_NAME = re.compile(r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$")  # what a run adds to the names of copied files
_CALIBRATION = FileKind("the calibration", 1 << 24)
_CALIBRATION_DECODER = msgspec.json.Decoder(CalibrationRecord)


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
class Guarded:
    """What a model of a fine-tuning has won and forgotten.

    Attributes:
        model: its folder.
        before: the model that training started from.
        metric: of the rates.
        sets: those to be learnt, then those not to be forgotten.
    """

    model: str
    before: str
    metric: str
    sets: Sequence[GuardedSet]


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
        compared: the same sets by this model, A, and another one, B.
        sets: evaluated sets with their transcripts.
        history: evaluations in training.
        guards: what its models have won and forgotten.
        charts: curves over steps.
        arguments: options and their values.
        configuration: names and texts of the configuration files.
        dags: pictures of the DAGs.
        metric: ``wer`` or ``cer``, the rate that comes first.
    """

    title: str
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    compared: Sequence[ComparedSet] = ()
    sets: Sequence[ShownSet] = ()
    history: Sequence[History] = ()
    guards: Sequence[Guarded] = ()
    charts: Sequence[Chart] = ()
    arguments: Sequence[tuple[str, str]] = ()
    configuration: Sequence[tuple[str, str]] = ()
    dags: Sequence[Picture] = ()
    metric: str = "wer"


def read_run(
    folder: str | Path,
    *,
    sets: Collection[str] | None = None,
    facts: Mapping[str, str] | None = None,
    beside: str | Path | None = None,
    normalizer: str | None = None,
) -> Report:
    """What is known about a run or an evaluation.

    Args:
        folder: has ``metrics.jsonl`` and ``transcripts/<set>.transcripts.jsonl``, the configuration (``*.yaml``),
            pictures of the DAGs (``*.svg``) and ``calibration.json``, or ``<set>.transcripts.jsonl`` alone. Everything
            may be missing.
        sets: only these sets; None: all.
        facts: names and values that come first.
        beside: a folder with the transcripts of a second model on the same sets.
        normalizer: a score normaliser that all texts go through; None: the texts as they were scored.

    Raises:
        UsageError: the folder has neither records nor transcripts, or the two have not the same utterances.
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
    rows_of_sets = {name: normalized(read_transcripts(path), normalizer) for name, path in paths.items()}
    clips = ClipMaker()
    both = rows_of_folders(folder, beside, sets=sets, normalizer=normalizer) if beside is not None else {}
    compared = compared_sets(both, clips)
    hotwords = {
        name: read_hotwords(paths[name].with_name(f"{name}{SCORES_SUFFIX}"))
        for name, rows in rows_of_sets.items()
        if any(row.without_hotwords is not None for row in rows)
    }
    scored = scored_sets(rows_of_sets, clips, hotwords)
    options = (records.start or {}).get("arguments")
    options = options if isinstance(options, dict) else {}
    # A run says what counts; of an evaluation the texts decide.
    metric = str(options.get("eval_metric") or ("cer" if scored and scored[0].scores.unit == "character" else "wer"))
    starts_trained = bool(options.get("init_from"))
    # The pictures that ``write_svg`` made, the training DAG first.
    pictures = sorted(folder.glob("*.svg"), key=lambda path: (path.stem != "training", path.stem))
    small = [path for path in pictures if path.stat().st_size <= MAX_PICTURE_BYTES][:MOST_DAGS]
    dags = [Picture(path.stem, data_url("image/svg+xml", read_bytes(path, _PICTURE))) for path in small]
    notes = []
    if has_records and records.end is None:
        notes.append(f"The run has not ended, or was killed: {METRICS_FILE} has no end.")
    if records.num_starts > 1:
        starts = f"The run was started {records.num_starts} times"
        notes.append(f"{starts}; arguments and versions are those of the last start.")
    return Report(
        title=folder.resolve().name,
        facts=[*(facts or {}).items(), *_facts(records, rows_of_sets, [] if compared else scored, metric)],
        notes=notes,
        compared=compared,
        sets=scored,
        history=[_history(name, items, metric, starts_trained) for name, items in records.evaluations.items() if items],
        guards=[*map(_guarded, records.guards.values())],
        charts=[*_charts(records, metric), *_segment_charts(scored), *reliability_charts(folder)],
        arguments=_arguments(records.start),
        configuration=_configuration(folder),
        dags=dags,
        metric=metric,
    )


def _facts(
    records: RunRecords, rows_of_sets: Mapping[str, Sequence[ScoredUtterance]], scored: Sequence[ShownSet], metric: str
) -> Iterator[tuple[str, str]]:
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
    if model := records.model:
        value, name = number_of(model, "value"), str(model.get("metric", "")).upper()
        rate = f" {value:.2%}" if value is not None else ""
        yield "best model", f"{model.get('path')}: step {model.get('step')}, {model.get('set')} {name}{rate}"
    names = {row.score_normalizer for rows in rows_of_sets.values() for row in rows[:1]} - {None}
    if names:
        yield "score normaliser", ", ".join(sorted(map(str, names)))
    for scored_set in scored:
        if line := scored_set.scores.variants_line("cer" if metric == "cer" else "wer"):
            yield scored_set.name, line


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


def _segment_charts(scored: Sequence[ShownSet]) -> list[Chart]:
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


def _guarded(record: Record) -> Guarded:
    sets = record.get("sets")
    kept = []
    for each in sets if isinstance(sets, list) else []:
        with suppress(msgspec.ValidationError):  # a set without words has no rates
            kept.append(msgspec.convert(each, GuardedSet))
    path, before, metric = (str(record.get(key, "")) for key in ("path", "init_from", "metric"))
    return Guarded(path, before, metric, kept)


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


def reliability_charts(folder: Path) -> list[Chart]:
    """A plot for each set in ``calibration.json`` of a folder; none where there is no such file.

    Raises:
        DataError: it cannot be read.
    """
    path = folder / FILE_NAME
    if not os.path.lexists(path):
        return []
    content = read_bytes(path, _CALIBRATION)
    parse_json(content, path, _CALIBRATION)
    try:
        sets = _CALIBRATION_DECODER.decode(content).sets
    except msgspec.MsgspecError as error:
        raise DataError("the calibration is damaged", place=str(path), got=str(error)) from None
    return [drawn for scored_set in sets if (drawn := _reliability_chart(scored_set)) is not None]


def _reliability_chart(measured: MeasuredSet) -> Chart | None:
    """For confidences of about p, the share of right words; before calibration and after it."""

    def points(reliability: Reliability) -> list[Point]:
        return [(group.confidence, group.right) for group in reliability.bins]

    curves = [
        Curve("equal", [(0.0, 0.0), (1.0, 1.0)]),
        Curve(f"before: {measured.before.error:.1%} off", points(measured.before), 2),
        Curve(f"calibrated: {measured.after.error:.1%} off", points(measured.after), 1),
    ]
    return chart(f"Share of right words, {measured.name}", curves, percent=True, x_name="confidence")


def _configuration(folder: Path) -> list[tuple[str, str]]:
    """The configuration files of the folder; of several copies of one, the newest."""
    newest: dict[str, Path] = {}
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        newest[_TIME_IN_NAME.sub("", path.stem)] = path  # sorted by the time in the name
    texts = {path.name: read_bytes(path, _CONFIGURATION).decode("utf-8", "replace") for path in newest.values()}
    return [(name, text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n...") for name, text in texts.items()]
