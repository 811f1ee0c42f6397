"""Train a model; --plan shows what would be trained."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.shipped import run_script
from nemo_asr.transcribe.fine_tuning import training_script


def main(arguments: Sequence[str]) -> None:
    """Run ``examples/asr/jasper.py``, or ``classify.py`` where the configuration is that of a classifier."""
    run_script(training_script(arguments), "train", arguments)
