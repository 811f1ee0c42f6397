"""FolderLock: one process writes the checkpoints of a folder; it also keeps the last serial number given there."""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sys
from pathlib import Path

from nemo_lite.backends.pytorch.checkpoint.store.commit import told_with
from nemo_lite.errors import CheckpointError, UsageError
from nemo_lite.untrusted import FileKind, parse_json
from nemo_lite.utils import logging

try:
    import fcntl
except ImportError:  # Windows: folders are not locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_MOST_BYTES = 4096
_OPENING = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_LOCK = FileKind("the lock", _MOST_BYTES, CheckpointError)


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
        with told_with(self._folder / LOCK):
            file = self._file
            if file is None:
                # Not through a link: a folder from elsewhere could have one to a file of the user's.
                file = os.open(self._folder / LOCK, _OPENING, 0o666)
            try:
                self._lock(file)
                self._write(file, _last_serial(file))
            except BaseException:
                os.close(file)
                self._file = None
                raise
            self._file = file

    def give_serial(self, above: int) -> int:
        """The next serial number: above every one that was given here, and above this one. The lock must be held."""
        assert self._file is not None
        serial = 1 + max(above, _last_serial(self._file))
        with told_with(self._folder / LOCK):
            self._write(self._file, serial)
        return serial

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

    def _write(self, file: int, serial: int) -> None:
        run = shlex.join(sys.argv)[:1000]
        content = {"host": socket.gethostname(), "pid": os.getpid(), "run": run, "last_serial": serial}
        text = json.dumps(content).encode()
        # Not cut first: a process killed in between would lose the number.
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))


def _last_serial(file: int) -> int:
    value = _content(file).get("last_serial")
    return value if type(value) is int and 0 <= value < 2**62 else 0


def _holder(file: int) -> str:
    content = _content(file)
    run = "".join(char for char in str(content.get("run", "")) if char.isprintable())
    return f"process {content.get('pid', '?')} on {content.get('host', '?')}: {run or '?'}"[:300]


def _content(file: int) -> dict[str, object]:
    # Through the descriptor that is open: closing another one of this file would free the lock.
    try:
        content = parse_json(os.pread(file, _MOST_BYTES, 0), "", _LOCK)
    except CheckpointError:
        return {}
    return dict(content) if isinstance(content, dict) else {}
