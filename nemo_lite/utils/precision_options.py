"""The options of scripts about precision, and what they mean together. Which device has what is decided elsewhere."""

from __future__ import annotations

import argparse
from typing import Any

AMP_LEVELS = ("O0", "O1", "O2", "O3")
AMP_DTYPES = ("auto", "bfloat16", "float16")
AMP_BACKENDS = ("auto", "native", "apex")


def add_precision_options(parser: argparse.ArgumentParser) -> None:
    """``--amp_opt_level`` and ``--amp_dtype``, of every script that runs a model."""
    level_help = "float32 (O0), mixed (O1; default on a GPU), half with float32 master weights (O2), half (O3)"
    parser.add_argument("--amp_opt_level", choices=AMP_LEVELS, help=level_help)
    dtype_help = "half type of O1 to O3; asks for O1 (default: auto, bfloat16 where the device has it in hardware)"
    parser.add_argument("--amp_dtype", choices=AMP_DTYPES, help=dtype_help)


def add_training_precision_options(parser: argparse.ArgumentParser, count: Any) -> None:
    """Those of scripts that train.

    Args:
        parser: of the script.
        count: the type of a whole number from 1.
    """
    parser.add_argument("--disable_mixed_precision", action="store_true", help="older spelling of --amp_opt_level O0")
    backend_help = "what trains in O1 to O3: torch (native), or apex.amp where an apex with amp is installed"
    parser.add_argument("--amp_backend", choices=AMP_BACKENDS, default="auto", help=backend_help)
    check_help = (
        "do not train: run N batches in float32 and in the level of --amp_opt_level, and show each node's error"
    )
    parser.add_argument("--precision_check", type=count, metavar="N", help=check_help)


def fold_precision(parser: argparse.ArgumentParser, parsed: Any) -> None:
    """Set the level that the options ask for together; end the script where they contradict each other."""
    if getattr(parsed, "disable_mixed_precision", False):
        if parsed.amp_opt_level not in (None, "O0"):
            parser.error(f"--disable_mixed_precision contradicts --amp_opt_level {parsed.amp_opt_level}; leave one out")
        parsed.amp_opt_level = "O0"
    if parsed.amp_dtype and parsed.amp_opt_level == "O0":
        parser.error("--amp_dtype has no effect in float32 (O0); leave it out")
    if parsed.amp_dtype and parsed.amp_dtype != "auto":
        parsed.amp_opt_level = parsed.amp_opt_level or "O1"
    if getattr(parsed, "amp_backend", "auto") == "apex" and parsed.amp_opt_level == "O0":
        parser.error("--amp_backend has no effect in float32 (O0); leave it out")
    if getattr(parsed, "precision_check", None) and parsed.amp_opt_level in (None, "O0"):
        parser.error("--precision_check compares a level with float32; give --amp_opt_level O1, O2 or O3")
