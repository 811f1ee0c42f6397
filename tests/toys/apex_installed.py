"""The fake apex as if it were installed, or parts of it."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_lite.backends.pytorch import optimizers as from_apex
from nemo_lite.backends.pytorch import precision as apex_amp
from nemo_lite.utils import logging

FOLDER = Path(__file__).parent / "fake_apex"


@contextmanager
def apex_from(folder: Path = FOLDER) -> Iterator[Any]:
    """Inside, ``import apex`` finds the package in this folder, as it is before its first call; also on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(apex_amp.ApexPrecision, "_has_initialized", False)
        patch.setattr(apex_amp, "_DEVICES", ("cpu", "cuda"))
        patch.setattr(from_apex, "_DEVICES", ("cpu", "cuda"))
        patch.setattr(logging, "_once", set())
        _forget()
        try:
            yield importlib.import_module("apex")
        finally:
            _forget()


def copy_without(part: str, folder: Path) -> Path:
    """A copy of the fake apex that lacks one of its folders; where ``import apex`` finds it."""
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns(part, "__pycache__"))
    return folder


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "apex"]:
        del sys.modules[name]
