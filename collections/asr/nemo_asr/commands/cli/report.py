"""Write report.html of a run or an evaluation: curves, rates, the worst utterances."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.run.text.labels import SCORE_NORMALIZERS
from nemo_asr.scoring.report.comparison import compare_folders, comparison_table
from nemo_asr.scoring.report.page import write_report
from nemo_lite.base.options import OneLineParser


def main(arguments: Sequence[str]) -> None:
    """Write the page, and say where it is."""
    parser = OneLineParser(prog="nemo-lite report", description="One page about a run or an evaluation")
    parser.add_argument("folder", help="a run's folder, or what --out of an evaluation named")
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html in the folder)")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is no report, or was changed")
    parsed = parser.parse_args(arguments)
    print(f"Report: {write_report(parsed.folder, parsed.out, overwrite=parsed.overwrite)}")


def compare(arguments: Sequence[str]) -> None:
    """Compare two models by their transcripts of the same utterances."""
    parser = OneLineParser(prog="nemo-lite compare", description="A paired test of two models; no model is run")
    for name in ("a", "b"):
        parser.add_argument(name, help=f"transcripts of model {name.upper()}: a run, or --out of an evaluation")
    parser.add_argument(
        "--score_normalizer", choices=SCORE_NORMALIZERS, help="what both models' texts go through before they compare"
    )
    parsed = parser.parse_args(arguments)
    compared = compare_folders(parsed.a, parsed.b, normalizer=parsed.score_normalizer)
    print(comparison_table(compared, parsed.a, parsed.b))
