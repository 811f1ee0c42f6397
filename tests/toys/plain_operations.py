"""Jasper and Conformer without the operations that were written for CPUs, to compare them with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch


@contextmanager
def plainly() -> Iterator[None]:
    """Operations that all devices have, and no others: each file that asks for the device hears that it is no CPU."""
    with ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("nemo_asr.models.") and hasattr(module, "runs_on_cpu"):
                patches.enter_context(patch.object(module, "runs_on_cpu", return_value=False))
        yield
