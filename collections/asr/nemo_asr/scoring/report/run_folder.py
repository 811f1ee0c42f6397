"""From a folder to what a report shows: a run of jasper.py, or what jasper_eval.py wrote. Reads only."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import median

from nemo_asr.scoring.report.charts import Chart, Curve, Point, chart
from nemo_asr.scoring.report.content import History, Picture, Report
from nemo_asr.scoring.report.media import data_url
from nemo_asr.scoring.report.records import FILE_NAME, RunRecords, number_of, read_records
from nemo_asr.scoring.report.reliability_charts import reliability_charts
from nemo_asr.scoring.report.scored_sets import ClipMaker, scored_sets
from nemo_asr.scoring.report.transcripts import find_transcripts, read_transcripts
from nemo_lite.core.tracking import Record, duration_text
from nemo_lite.errors import UsageError
from nemo_lite.untrusted import FileKind, read_bytes

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
    has_records = (folder / FILE_NAME).is_file()
    if not paths and not has_records:
        raise UsageError(
            "there is nothing to report",
            place=str(folder),
            wanted=f"{FILE_NAME} or *.transcripts.jsonl",
            remedy="give the folder of a run or of an evaluation",
        )
    records = read_records(folder / FILE_NAME) if has_records else RunRecords()
    scored = scored_sets({name: read_transcripts(path) for name, path in paths.items()}, ClipMaker())
    options = _options(records.start)
    # A run says what counts; of an evaluation the texts decide.
    metric = str(options.get("eval_metric") or ("cer" if scored and scored[0].unit == "character" else "wer"))
    starts_trained = bool(options.get("init_from"))
    return Report(
        title=folder.resolve().name,
        facts=[*(facts or {}).items(), *_facts(records)],
        notes=list(_notes(records, has_records)),
        sets=scored,
        history=[_history(name, items, metric, starts_trained) for name, items in records.evaluations.items() if items],
        charts=[*_charts(records, metric), *reliability_charts(folder)],
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


def _model_text(model: Record) -> str:
    value, metric = number_of(model, "value"), str(model.get("metric", "")).upper()
    rate = f" {value:.2%}" if value is not None else ""
    return f"{model.get('path')}: step {model.get('step')}, {model.get('set')} {metric}{rate}"


def _notes(records: RunRecords, has_records: bool) -> Iterator[str]:
    if has_records and records.end is None:
        yield f"The run has not ended, or was killed: {FILE_NAME} has no end."
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
    return [each for each in drawn if each is not None]


def _points(records: Mapping[int, Record], key: str) -> list[Point]:
    values = ((step, number_of(record, key)) for step, record in sorted(records.items()))
    return [(float(step), value) for step, value in values if value is not None]


def _options(start: Record | None) -> Mapping[str, object]:
    arguments = (start or {}).get("arguments")
    return arguments if isinstance(arguments, dict) else {}


def _history(name: str, evaluations: Mapping[int, Record], metric: str, starts_trained: bool) -> History:
    """The evaluations of a set; what is the best is decided as in the log and for the best model."""
    metrics = sorted(("wer", "cer"), key=lambda each: each != metric)
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
    return [(str(name), _value_text(value)) for name, value in pairs]


def _value_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


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
