"""Which apex is installed: NVIDIA's, with which parts, or another package of that name. Nothing is imported here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

REPOSITORY = "github.com/NVIDIA/apex"


def problem_with_apex(part: str) -> tuple[str, str]:
    """Why ``apex.<part>`` cannot be had, and what to do about it; two empty texts if it is there.

    Args:
        part: ``amp``, which apex had until 2025-05-08, or ``optimizers``.
    """
    spec = find_spec("apex")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        return "apex is not installed", f"install tag 24.04.01 of {REPOSITORY}"
    # The package of that name on the Python package index has nothing to do with NVIDIA's, and is best not imported.
    if not Path(folders[0], "optimizers").is_dir():
        remedy = f"pip uninstall apex, then install tag 24.04.01 of {REPOSITORY}"
        return f"the package apex that is installed is not NVIDIA's ({folders[0]})", remedy
    if not Path(folders[0], part).is_dir():
        return f"the apex that is installed has no {part}, which it lost in 2025", "install tag 24.04.01"
    return "", ""
