"""Compare two models by their transcripts of the same utterances."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.scoring.report.page import compare_folders, comparison_table
from nemo_lite.options import OneLineParser


def main(arguments: Sequence[str]) -> None:
    """Print rates, their difference and how sure it is."""
    parser = OneLineParser(prog="nemo-lite compare", description="A paired test of two models; no model is run")
    for name in ("a", "b"):
        parser.add_argument(name, help=f"transcripts of model {name.upper()}: a run, or --out of an evaluation")
    parsed = parser.parse_args(arguments)
    print(comparison_table(compare_folders(parsed.a, parsed.b), parsed.a, parsed.b))
