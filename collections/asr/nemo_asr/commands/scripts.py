"""The scripts and configurations of ``examples/asr``: where they are, and how a subcommand runs one.

A wheel carries them inside the package (``setup.py``); in a checkout they are in ``examples/asr``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "examples", _PACKAGE.parents[2] / "examples" / "asr")


def examples_folder() -> Path:
    """The folder of the scripts; their configurations are in ``configs`` below it."""
    return next(place for place in _PLACES if (place / "configs").is_dir())


def run_script(script: str, subcommand: str, arguments: Sequence[str]) -> None:
    """Call ``main()`` of one of the scripts, as if its name were ``nemo-lite SUBCOMMAND``."""
    path = examples_folder() / script
    spec = importlib.util.spec_from_file_location(f"nemo_asr_script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before, sys.argv = sys.argv, [f"nemo-lite {subcommand}", *arguments]
    try:
        module.main()
    finally:
        sys.argv = before
