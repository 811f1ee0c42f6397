"""What machines compare of their copies of recordings. No exchange between ranks here."""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nemo_asr.run.manifest import UtteranceReader, Utterances
from nemo_lite.backends.pytorch.nm import Copied
from nemo_lite.base.errors import NemoLiteError
from nemo_lite.base.files import digest_of, digest_of_file, digest_of_files

_ROWS = 256  # at a time
# After each so many rows the thread sleeps this many times as long as they took: it takes turns with the thread that
# trains, and would slow the first steps down to a third.
_PAUSE = 5.0


class CopiedRecordings(Copied):
    """The recordings of some utterances, to be read by another thread, which opens their files anew.

    Args:
        utterances: those of a data layer.
    """

    def __init__(self, utterances: Utterances[Any]) -> None:
        self._utterances = utterances
        self._reader: UtteranceReader[Any] = copy.deepcopy(utterances.reader)  # opens its files anew

    def seed(self) -> str:
        """A digest of the manifests."""
        return digest_of(sorted(digest_of_files(self._utterances.paths).values()))

    def sizes(self) -> npt.NDArray[np.int64]:
        """(N,) bytes of each recording; -1 where it cannot be read."""
        sizes = np.empty(len(self._utterances), np.int64)
        for first in range(0, len(sizes), _ROWS):
            started, rows = time.perf_counter(), range(first, min(first + _ROWS, len(sizes)))
            sizes[first : rows.stop] = [self._size(ref) for ref in self._utterances.refs(rows)]
            if rows.stop < len(sizes):
                time.sleep(_PAUSE * (time.perf_counter() - started))
        return sizes

    def digest(self, item: int) -> str:
        """The sha256 of a recording; "" where it cannot be read."""
        try:
            audio = self._reader.audio(self._reader.utterance(self._utterances.refs([item])[0]))
            return hashlib.sha256(audio).hexdigest() if isinstance(audio, bytes) else digest_of_file(audio)
        except (NemoLiteError, OSError):
            return ""

    def _size(self, ref: Any) -> int:
        span = getattr(ref, "span", None)
        if span is not None:  # of an archive, whose head was read
            return int(span.size)
        try:
            return os.stat(self._reader.utterance(ref).audio_path).st_size
        except (NemoLiteError, OSError):
            return -1


class CopiedFiles(Copied):
    """Files, one for each item.

    Args:
        paths: of the files.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def seed(self) -> str:
        """The number of files."""
        return str(len(self._paths))

    def sizes(self) -> npt.NDArray[np.int64]:
        """(N,) bytes of each."""
        return np.array([_size_of(path) for path in self._paths], np.int64)

    def digest(self, item: int) -> str:
        """The sha256 of one; "" where it cannot be read."""
        try:
            return digest_of_file(self._paths[item])
        except NemoLiteError:
            return ""


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
