"""Checkpoints of version 1: files beside each other, with an index ``checkpoint-STEP-<n>.json``. They are only read.

A process killed while it moved the files to their place left some in the folder that ``staged_in`` names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_lite.backends.pytorch.checkpoint.store.record import (
    KIND,
    CheckpointSet,
    StoredFile,
    check_version,
    read_json_text,
    set_of,
)
from nemo_lite.errors import CheckpointError
from nemo_lite.untrusted import parse_json

# Any: JSON.

_VERSION = 1
_STAGED = re.compile(r"\.(STEP|EPOCH)-[0-9]+\.[A-Za-z0-9-]*\.[0-9]+\.[0-9a-f]{8}\.staged")


def read_index(path: Path) -> CheckpointSet:
    """The checkpoint that an index lists.

    Raises:
        CheckpointError: it is damaged, is no index, lists what is not in its folder, or a later version wrote it.
    """
    text = read_json_text(path)
    try:
        content = parse_json(text, path, KIND)
        if not isinstance(content, dict):
            raise TypeError("no object")
        check_version(content, _VERSION, path)
        files = _files(content, path.parent)
        found = set_of(content, path, files)
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        got = f"{type(error).__name__}: {error}"[:160]
        raise CheckpointError("this is no index of a checkpoint, or it is damaged", place=str(path), got=got) from None
    if path.stem != f"checkpoint-{found.tag}":
        raise CheckpointError("the index is of another checkpoint", place=str(path), got=found.tag)
    return found


def _files(content: Mapping[str, Any], folder: Path) -> dict[str, StoredFile]:
    places = [folder]
    staged_in = content["staged_in"]
    if not isinstance(staged_in, str) or (staged_in and not _STAGED.fullmatch(staged_in)):
        raise ValueError(f"staged_in {staged_in!r}")
    if staged_in and not (folder / staged_in).is_symlink():
        places.insert(0, folder / staged_in)
    found = {}
    for name, size in content["files"].items():
        if type(size) is not int or size < 0 or Path(name).name != name:
            raise ValueError(f"a file {name!r} of {size!r} bytes")
        found[name] = StoredFile(next((p for p in places if os.path.isfile(p / name)), folder) / name, size)
    return found
