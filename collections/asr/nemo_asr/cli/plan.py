"""Show the DAGs and the schedule of a training, and train nothing."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.cli import train


def main(arguments: Sequence[str]) -> None:
    """The same as ``nemo-lite train --plan``."""
    train.main([*arguments, "--plan"], "nemo-lite plan")
