"""report.html: one page without outside files. How it looks is in page.html; every text in it is escaped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path

import jinja2

from nemo_asr.scoring.breakdown import most_frequent
from nemo_asr.scoring.report import charts, scored_sets, set_scores
from nemo_asr.scoring.report.run_folder import Report, read_run
from nemo_lite import Dag
from nemo_lite.base.errors import NemoLiteError
from nemo_lite.base.outputs import check_output, write_output
from nemo_lite.core.show import write_svg
from nemo_lite.core.trackers import duration_text
from nemo_lite.utils import logging

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
        report=report, size=charts, tables=set_scores, limits=scored_sets, most_frequent=most_frequent
    )


def write_report(
    run_folder: str | Path,
    path: str | Path | None = None,
    *,
    sets: Collection[str] | None = None,
    facts: Mapping[str, str] | None = None,
    overwrite: bool = False,
    beside: str | Path | None = None,
    normalizer: str | None = None,
) -> Path:
    """Write the report of a run, or of an evaluation, as one HTML page; its path.

    Args:
        run_folder: what :func:`~nemo_asr.scoring.report.run_folder.read_run` reads.
        path: the page; by default ``report.html`` in the folder.
        sets: only these evaluated sets; None: all.
        facts: names and values that come first.
        overwrite: replace also a file that is no such page, or was changed since.
        beside, normalizer: a second model's transcripts, and how texts are compared; as of ``read_run``.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: the folder has nothing to report, the page cannot be written, or there is no space for it.
        DataError: a file of the folder is damaged.
    """
    path = Path(path).expanduser() if path is not None else Path(run_folder) / PAGE_FILE
    check_output(path, REPORT, overwrite=overwrite)
    # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
    report = read_run(run_folder, sets=sets, facts=facts, beside=beside, normalizer=normalizer)
    content = render(report).encode("utf-8", errors="replace")
    write_output(path, lambda temporary: temporary.write_bytes(content), REPORT, overwrite=overwrite)
    return path


def try_report(
    run_folder: str | Path,
    *,
    sets: Collection[str] | None = None,
    facts: Mapping[str, str] | None = None,
    dags: Mapping[str, Dag] | None = None,
    overwrite: bool = False,
    beside: str | Path | None = None,
) -> Path | None:
    """As :func:`write_report`, for the end of a run: what goes wrong is one warning, and the result None.

    Args:
        run_folder: the run's folder.
        sets: only these evaluated sets; None: all.
        facts: names and values that come first.
        dags: pictures of them are saved in the folder first, as ``NAME.svg``.
        overwrite, beside: as of :func:`write_report`.
    """
    try:
        for name, dag in (dags or {}).items():
            write = partial(write_svg, dag=dag, title=name)
            write_output(Path(run_folder) / f"{name}.svg", write, "nemo-lite plan", remedy="move it away")
        remedy = f"move it away, or {REPORT} {run_folder} --overwrite"  # a training has no such option
        check_output(Path(run_folder) / PAGE_FILE, REPORT, overwrite=overwrite, remedy=remedy)
        path = write_report(run_folder, sets=sets, facts=facts, overwrite=overwrite, beside=beside)
    except (NemoLiteError, OSError) as error:
        logging.warning("No report was written: %s", error)
        return None
    logging.info("Report: %s", path)
    return path


def _percent(rate: float | None) -> str:
    return "" if rate is None else set_scores.rate_text(rate).replace("%", "\N{NO-BREAK SPACE}%")
