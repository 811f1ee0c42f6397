"""FolderLock: one process writes the checkpoints of a folder."""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sys
from contextlib import suppress
from pathlib import Path

from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import FileKind, parse_json, refusing_unwritable
from nemo_lite.utils import logging

try:
    import fcntl
except ImportError:  # Windows: folders are not locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
# Not through a link: a folder from elsewhere could have one to a file of the user's.
_OPENING = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_KIND = FileKind("the lock", 4096, CheckpointError)


class FolderLock:
    """Held by a process for as long as it may write; the system frees it when that process ends, also by a kill.

    A lock of POSIX: forked processes do not hold it, and within one process it keeps nobody out.

    Args:
        folder: exists when the lock is taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object has taken it."""
        return self._file is not None

    def take(self) -> None:
        """Take the lock; nothing happens if it is held already.

        Raises:
            UsageError: another process holds it: which one, where, and its command; or the file cannot be written.
        """
        if self._file is not None:
            return
        with refusing_unwritable(self._folder / LOCK):
            file = os.open(self._folder / LOCK, _OPENING, 0o666)
            try:
                self._lock(file)
                run = shlex.join(sys.argv)[:1000]
                holder = {"host": socket.gethostname(), "pid": os.getpid(), "run": run}
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(holder).encode(), 0)
            except BaseException:
                os.close(file)
                raise
            self._file = file

    def release(self) -> None:
        """Let others take it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self, file: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                raise UsageError(
                    "another process saves checkpoints in this folder",
                    place=str(self._folder),
                    got=_holder(file),
                    remedy="wait until it has ended, or give this run a folder of its own",
                ) from None
            if error.errno not in _NO_LOCKS:
                raise
            logging.warning("%s: its file system has no locks; see that only one run saves there", self._folder)


def _holder(file: int) -> str:
    # Through the descriptor that is open: closing another one of this file would free the lock.
    with suppress(CheckpointError):
        holder = parse_json(os.pread(file, _KIND.max_bytes, 0), "", _KIND)
        if isinstance(holder, dict):
            run = "".join(char for char in str(holder.get("run", "")) if char.isprintable())
            return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}: {run or '?'}"[:300]
    return "a process that has not said its name"
