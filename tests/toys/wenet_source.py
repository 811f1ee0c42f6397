"""WeNet's own classes, for comparison: from a checkout of its repository, whose other packages are not needed.

    git clone https://github.com/wenet-e2e/wenet /tmp/wenet
    WENET_SOURCE=/tmp/wenet python -m pytest -k wenet_source

Nothing of it is shipped, or copied.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Optional, Union

import pytest
from torch.nn.modules import conv

VARIABLE = "WENET_SOURCE"
FOLDER = Path(os.environ.get(VARIABLE, ""), "wenet")
HAS_WENET = bool(os.environ.get(VARIABLE)) and (FOLDER / "models" / "transformer").is_dir()
needs_wenet = pytest.mark.skipif(
    not HAS_WENET, reason=f"{VARIABLE} names no checkout of WeNet: see tests/toys/wenet_source.py"
)
# Packages that its modules import, and which none of the classes here uses.
_OTHERS = ("torchaudio", "torchaudio.functional", "whisper", "whisper.tokenizer")


def wenet_module(name: str) -> Any:
    """A module of WeNet's, by its name below ``wenet``."""
    if "wenet" not in sys.modules:
        package: Any = ModuleType("wenet")  # without its __init__, which imports all of it
        package.__path__ = [str(FOLDER)]
        sys.modules["wenet"] = package
        for other in _OTHERS:
            made: Any = ModuleType(other)
            made.__path__, made.LANGUAGES = [], {}
            sys.modules.setdefault(other, made)
        for hint, older in (("Union", Union), ("Optional", Optional)):  # one of its modules takes them from there
            vars(conv).setdefault(hint, older)
    return importlib.import_module(f"wenet.{name}")
