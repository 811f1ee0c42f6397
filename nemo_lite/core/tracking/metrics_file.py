"""MetricsFile: the records of a run as lines of JSON, and how they are read again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_lite.core.tracking.records import Record, Tracker
from nemo_lite.errors import UsageError
from nemo_lite.untrusted import FileKind, JsonLimits, numbered_lines, parse_json
from nemo_lite.utils import logging
from nemo_lite.utils.run_files import AppendedFile

_KIND = FileKind("the file of metrics", 1 << 36, UsageError)  # read line by line
_LIMITS = JsonLimits(digits=300, surrogates=True, constants=True)  # float() takes numbers of 300 digits


class MetricsFile(Tracker):
    """Appends each record to a file, one JSON object a line, as it comes. A run that goes on appends to its file.

    Numbers that are not finite become ``null``, as JSON has none. What JSON cannot hold (a path) becomes a text.
    Where the file cannot be written, one warning says so, and each further record is tried.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = AppendedFile(path, logging.warning)
        self._has_written = False

    def write(self, record: Record) -> None:
        """Append one line."""
        line = json.dumps(_plain(record), ensure_ascii=False, default=str, allow_nan=False)
        # A process that was killed may have left half a line.
        lead = "" if self._has_written or _ends_a_line(self._file.path) else "\n"
        self._has_written |= self._file.append(f"{lead}{line}\n".encode())


def read_metrics(path: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a file that :class:`MetricsFile` wrote; a line cut off by a kill is passed over.

    Raises:
        UsageError: there is no such file.
    """
    for place, line in numbered_lines(path, _KIND):
        try:
            record = parse_json(line, place, _KIND, _LIMITS)
        except UsageError:
            continue
        if isinstance(record, dict) and "kind" in record:
            yield record


def _ends_a_line(path: Path) -> bool:
    """Whether the next line can begin at the end of the file."""
    try:
        # Not waiting for the other end of a pipe, which is no regular file and cannot be sought in.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            return file.seek(0, os.SEEK_END) == 0 or (file.seek(-1, os.SEEK_END) >= 0 and file.read(1) == b"\n")
    except OSError:
        return True


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
