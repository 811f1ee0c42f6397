"""Error rates of a trained model on manifests."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.commands.scripts import run_script


def main(arguments: Sequence[str]) -> None:
    """Run ``examples/asr/jasper_eval.py``."""
    run_script("jasper_eval.py", "eval", arguments)
