"""How a subcommand runs one of the scripts of ``examples/asr``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from nemo_asr.shipped import examples_folder


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
