"""FileSpans: bytes from their places in large files, such as tar shards. It does not know what the bytes are."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from nemo_asr.run.manifest import ByteRange
from nemo_lite.base.errors import DataChangedError, DataError

_MOST_OPEN = 8  # files at a time in one process


class FileSpans:
    """Reads stretches of some files. Can be sent to another process, which opens the files anew.

    A few files stay open, so that one that is read from front to back is opened once.

    Args:
        paths: of the files, which are what they are now until the run ends.
        kind: what messages call one of them.
    """

    def __init__(self, paths: Sequence[str], kind: str) -> None:
        self.paths, self._kind = tuple(paths), kind
        self._identities = [_identity(os.stat(path)) for path in self.paths]
        self._open: OrderedDict[int, _Descriptor] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    @property
    def sizes(self) -> list[int]:
        """Bytes of each file."""
        return [size for size, _ in self._identities]

    def read(self, span: ByteRange) -> bytes:
        """The bytes of a stretch.

        Raises:
            DataChangedError: the file cannot be opened any more, or its size or time of change is another one.
            DataError: it cannot be read.
        """
        descriptor = self._descriptor(span.file)
        try:
            content = os.pread(descriptor.number, span.size, span.first)
        except OSError as error:
            problem = f"the {self._kind} cannot be read ({error.strerror})"
            raise DataError(problem, place=self.paths[span.file]) from None
        if len(content) < span.size:
            self._refuse_changed(span.file)
        return content

    def _descriptor(self, file: int) -> _Descriptor:
        if file in self._open:
            self._open.move_to_end(file)
            return self._open[file]
        try:
            opened = _Descriptor(self.paths[file])
        except OSError as error:
            problem = f"the {self._kind} cannot be opened any more ({error.strerror})"
            raise DataChangedError(problem, place=self.paths[file]) from None
        if _identity(os.fstat(opened.number)) != self._identities[file]:
            self._refuse_changed(file)
        while len(self._open) >= _MOST_OPEN:
            self._open.popitem(last=False)
        self._open[file] = opened
        return opened

    def _refuse_changed(self, file: int) -> None:
        problem, remedy = f"the {self._kind} changed while it was in use", "start the run again"
        raise DataChangedError(problem, place=self.paths[file], remedy=remedy)


class _Descriptor:
    """An open file, closed when nothing refers to it any more."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that took the file's place must not block
        weakref.finalize(self, os.close, self.number)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.number, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the system reads further ahead


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
