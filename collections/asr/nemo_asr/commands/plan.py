"""Show the DAGs and the schedule of a training, and train nothing."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.shipped import run_script


def main(arguments: Sequence[str]) -> None:
    """Run ``examples/asr/jasper.py``."""
    run_script("jasper.py", "plan", [*arguments, "--plan"])
