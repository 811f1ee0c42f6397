"""Show the DAGs and the schedule of a training, and train nothing."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.shipped import run_script
from nemo_asr.transcribe.fine_tuning import training_script


def main(arguments: Sequence[str]) -> None:
    """Run the script that ``nemo-lite train`` runs."""
    run_script(training_script(arguments), "plan", [*arguments, "--plan"])
