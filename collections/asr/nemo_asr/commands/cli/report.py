"""Write report.html of a run or an evaluation: curves, rates, the worst utterances."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_asr.run.text.labels import SCORE_NORMALIZERS
from nemo_asr.scoring.report.comparison import (
    COMPARE,
    COMPARED,
    COMPARISON_FILE,
    compare_folders,
    comparison_table,
    write_comparison,
)
from nemo_asr.scoring.report.page import PAGE_FILE, REPORT, write_report
from nemo_lite.base.options import OneLineParser
from nemo_lite.base.outputs import check_output


def main(arguments: Sequence[str]) -> None:
    """Write the page, and say where it is."""
    parser = OneLineParser(prog="nemo-lite report", description="One page about a run or an evaluation")
    parser.add_argument("folder", help="a run's folder, or what --out of an evaluation named")
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html in the folder)")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is no report, or was changed")
    parsed = parser.parse_args(arguments)
    folder = Path(parsed.folder).expanduser()
    second = folder / COMPARED if (folder / COMPARISON_FILE).is_file() and (folder / COMPARED).is_dir() else None
    facts = None if second is None else {"A": str(folder), "B": str(second)}
    page = write_report(folder, parsed.out, facts=facts, overwrite=parsed.overwrite, beside=second)
    print(f"Report: {page}")


def compare(arguments: Sequence[str]) -> None:
    """Compare two models by their transcripts of the same utterances."""
    parser = OneLineParser(prog="nemo-lite compare", description="A paired test of two models; no model is run")
    for name in ("a", "b"):
        parser.add_argument(name, help=f"transcripts of model {name.upper()}: a run, or --out of an evaluation")
    parser.add_argument(
        "--score_normalizer", choices=SCORE_NORMALIZERS, help="what both models' texts go through before they compare"
    )
    parser.add_argument("--out", metavar="FOLDER", help="write comparison.json and report.html with both models there")
    parser.add_argument("--overwrite", action="store_true", help="replace files in OUT that are not of such a command")
    parsed = parser.parse_args(arguments)
    files = ((COMPARISON_FILE, COMPARE), (PAGE_FILE, REPORT)) if parsed.out is not None else ()
    for name, kind in files:
        check_output(Path(parsed.out) / name, kind, overwrite=parsed.overwrite)
    compared = compare_folders(parsed.a, parsed.b, normalizer=parsed.score_normalizer)
    print(comparison_table(compared, parsed.a, parsed.b))
    if not files:
        return
    path = write_comparison(parsed.out, compared, parsed.a, parsed.b, overwrite=parsed.overwrite)
    page = write_report(
        parsed.a,
        Path(parsed.out) / PAGE_FILE,
        facts={"A": parsed.a, "B": parsed.b},
        overwrite=parsed.overwrite,
        beside=parsed.b,
        normalizer=parsed.score_normalizer,
    )
    print(f"\nThe comparison is in {path}, both models side by side in {page}")
