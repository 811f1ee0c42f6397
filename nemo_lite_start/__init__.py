"""The start of the command ``nemo-lite``: without torch where it is not needed. What it does is in `nemo_lite.cli`.

``import nemo_lite`` imports torch, which takes seconds and a gigabyte, and is of no use to ``nemo-lite transcribe
model.onnx``. So this is a package of its own, and takes care that the two others stay empty in that case: their files
are imported one by one, by their full names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec

_PACKAGES = ("nemo_lite", "nemo_asr")


def main() -> int:
    """Run the subcommand that the command line names; its exit code."""
    if needs_no_torch(sys.argv[1:]):
        for package in _PACKAGES:
            leave_empty(package)
    code: int = import_module("nemo_lite.cli.dispatch").main()
    return code


def needs_no_torch(arguments: Sequence[str]) -> bool:
    """Whether the command line begins with ``transcribe FILE.onnx``, and runs no file of the user's."""
    name, *rest = arguments or [""]
    is_onnx = name == "transcribe" and bool(rest) and rest[0].endswith(".onnx")
    return is_onnx and not any(each.startswith("--import") for each in rest)


def leave_empty(package: str) -> None:
    """Import a package without running its ``__init__.py``: it has no names of its own, and all of its files."""
    spec = find_spec(package)
    assert spec is not None
    sys.modules.setdefault(package, module_from_spec(spec))
