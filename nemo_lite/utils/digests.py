"""Digests of values, files and packages, which ranks compare to find out whether they run the same. No network."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from nemo_lite.errors import UsageError

Plain = str | int | float | bool | None

_PIECE_BYTES = 2**20
_MOST_CHARACTERS = 120  # of a value that is shown as it is
_MISSING = "none"


class Content(str):
    """A digest of data that each machine has a copy of: of a file, or of what was read from files."""


def plain_values(name: str, value: Any) -> Iterator[tuple[str, Plain]]:
    """A value under a name, to be compared and shown; a mapping is an entry for each of its keys (``name.key``).

    Numbers, texts and None are themselves, other short values JSON, long ones a digest. What counts of a value is as in
    :func:`digest_of`.
    """
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        for key, inner in value.items():
            yield from plain_values(f"{name}.{key}", inner)
        return
    described = _described(value)
    if isinstance(described, dict) and described.keys() == {"object"}:
        described = described["object"]
    is_plain = isinstance(described, (str, int, type(None)))  # a bool is an int
    if not is_plain and not (isinstance(described, float) and math.isfinite(described)):
        described = _as_json(described)
    yield name, described if len(str(described)) <= _MOST_CHARACTERS else digest_of(value)


def digest_of(value: Any) -> str:
    """The sha256 of a value: texts, bytes, numbers, enumerations, None, and lists, sets and mappings of these.

    Of a path only the file name counts, because folders may differ between machines. Of any other object only the
    class counts, because most have no content that is the same in two processes.
    """
    return hashlib.sha256(_as_json(_described(value)).encode()).hexdigest()


def digest_of_files(paths: Iterable[str | Path]) -> dict[str, str]:
    """The sha256 of each file's content by its file name; the second file of the same name gets `` (2)``.

    Args:
        paths: files. One that is given twice counts once. A missing one has the digest ``none``, so that a comparison
            can say which rank lacks it.

    Raises:
        UsageError: a file that cannot be read.
    """
    found: dict[str, str] = {}
    for path in dict.fromkeys(os.path.realpath(path) for path in paths):
        found[unused_name(os.path.basename(path), found)] = digest_of_file(path) if os.path.exists(path) else _MISSING
    return found


def unused_name(name: str, used: Mapping[str, Any]) -> str:
    """``name``, or ``name (2)``, ``name (3)``, ... where that is used already."""
    number, free = 1, name
    while free in used:
        number += 1
        free = f"{name} ({number})"
    return free


def digest_of_package(folder: str | Path) -> str:
    """The sha256 of the names and contents of the Python files of a package and of its sub-packages."""
    digest = hashlib.sha256()
    for path in _source_files(Path(folder)):
        digest.update(f"{path.relative_to(folder).as_posix()}\n{digest_of_file(path)}\n".encode())
    return digest.hexdigest()


def _source_files(folder: Path) -> Iterable[Path]:
    yield from sorted(folder.glob("*.py"))
    # Only packages: a folder of code may also hold a corpus of a million files.
    for inner in sorted(folder.glob("*/__init__.py")):
        yield from _source_files(inner.parent)


def digest_of_file(path: str | Path) -> str:
    """The sha256 of a file's content.

    Raises:
        UsageError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
    except OSError as error:
        raise UsageError("the file cannot be read", place=str(path), got=f'"{error.strerror}"') from None
    return digest.hexdigest()


def _as_json(described: Any) -> str:
    return json.dumps(described, sort_keys=True, separators=(",", ":"))


def _described(value: Any) -> Any:
    """A JSON value that is different for different values."""
    if isinstance(value, Enum):
        return {type(value).__qualname__: value.name}
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Real):  # NumPy's numbers too
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(digest_of(item) for item in value)}
    if isinstance(value, Mapping):
        return {"mapping": {f"{type(key).__name__} {key}": _described(item) for key, item in value.items()}}
    if isinstance(value, os.PathLike):
        return {"file": os.path.basename(os.fspath(value))}
    if isinstance(value, partial):
        return {"partial": _described([value.func, value.args, value.keywords])}
    kind = value if isinstance(value, type) or callable(value) else type(value)
    return {"object": f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"}
