"""AppendedFile: a file that a run appends to, and can do without. What its lines mean is elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# A folder from elsewhere could have a pipe there, whose opening waits for ever, or a link to a file of the user's.
_CAREFUL = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_OPENING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | _CAREFUL


class AppendedFile:
    """Appends each piece whole or not at all. A piece that cannot be written is lost; the first failure is told.

    The disk may be full for an hour of a run of weeks: each piece is tried, so the file goes on when there is space.
    The file is opened for each piece, so it may be moved away and starts anew. A pipe or a symbolic link of its name is
    left alone, as what cannot be written.

    Args:
        path: the file.
        tell: called once, with a line for the user.
    """

    def __init__(self, path: str | Path, tell: Callable[[str], object]) -> None:
        self.path = Path(path)
        self._tell, self._is_told = tell, False

    def append(self, data: bytes) -> bool:
        """Append a piece; whether it is in the file now."""
        try:
            descriptor = os.open(self.path, _OPENING, 0o666)
            try:
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "it is a pipe")
                _append(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                reason = error.strerror or str(error)
                self._tell(f"{self.path}: cannot be written: {reason}; the run goes on, and what is to come is tried")
            return False
        return True


def _append(descriptor: int, data: bytes) -> None:
    size = os.fstat(descriptor).st_size
    rest = memoryview(data)
    try:
        while rest:
            num_written = os.write(descriptor, rest)
            if not num_written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[num_written:]
    except OSError:
        with suppress(OSError):  # a device cannot be cut
            os.ftruncate(descriptor, size)
        raise
