"""What recognises, and the ground below it, needs no torch: each module is imported where torch cannot be."""

from __future__ import annotations

import subprocess
import sys

import pytest
from toys.sources import MODULES, is_inside

SCRIPT = """
import importlib, sys
sys.modules["torch"] = None  # importing it fails
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module}: {error}")
"""
WITHOUT_TORCH = ("nemo_lite.base", "nemo_asr.run")


def problems(modules: list[str]) -> str:
    return subprocess.run([sys.executable, "-c", SCRIPT, *modules], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_what_recognises_is_imported_where_there_is_no_torch() -> None:
    for package in ("starlette", "uvicorn", "websockets", "onnxruntime"):
        pytest.importorskip(package)
    modules = [module for module in MODULES if any(is_inside(module, package) for package in WITHOUT_TORCH)]
    assert {"nemo_asr.run.engines", "nemo_asr.run.serve.app", "nemo_lite.base.files"} <= {*modules}
    assert problems(modules) == ""


@pytest.mark.slow
def test_what_trains_is_not_imported_there() -> None:
    """The test above can fail."""
    assert problems(["nemo_asr.trained.model"]).startswith("nemo_asr.trained.model: import of torch halted")
