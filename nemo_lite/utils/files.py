"""Writing files and folders so that a crash, a kill or a full disk leaves nothing half-written. No formats in here."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nemo_lite.errors import UsageError

_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
_TEMPORARY = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]*)\.(?P<pid>[0-9]+)\.[0-9a-f]{8}\.tmp")
_ABANDONED_AFTER_SECONDS = 86_400
# What torch.save and safetensors say when the disk is full, instead of the system's error number.
_FULL_DISK = re.compile(r"unexpected pos [0-9]+ vs [0-9]+|No space left on device|PytorchStreamWriter failed writing")


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it there in one step.

    Whatever happens, ``path`` holds either what it held before or all of the new content: the temporary lies in the
    same folder, is synchronised to the disk, renamed, and the folder synchronised. A temporary left behind by a
    killed process is removed by the next write into the folder.

    Args:
        path: the file to create or replace.
        write: receives the temporary's path and writes the whole content to it.

    Raises:
        UsageError: the folder cannot be written to, or the disk is full; nothing is left behind.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        sweep_temporaries(path.parent)
        write(temporary)
        _synchronise(temporary)
        os.replace(temporary, path)
        _synchronise(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        explained = _explained(error, path)
        if explained is not None:
            raise explained from error
        raise


def sweep_temporaries(folder: Path) -> None:
    """Remove the temporaries of :func:`write_atomically` whose process has ended (on another host: after a day)."""
    for entry in list(os.scandir(folder)):
        match = _TEMPORARY.fullmatch(entry.name)
        if match is None:
            continue
        with suppress(FileNotFoundError):
            if match["host"] == _HOST:
                stale = not _is_running(int(match["pid"]))
            else:
                stale = time.time() - entry.stat().st_mtime > _ABANDONED_AFTER_SECONDS
            if stale:
                os.unlink(entry.path)


def make_writable_folder(folder: str | Path, *, exist_ok: bool = True) -> Path:
    """Create ``folder`` and its parents, and prove that a file can be written there.

    Raises:
        UsageError: it cannot be created or written to, or it exists and ``exist_ok`` is false.
    """
    folder = Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
        probe = folder / f".{secrets.token_hex(8)}.probe"
        probe.touch()
        probe.unlink()
    except FileExistsError:
        problem = "the folder exists already" if folder.is_dir() else "there is a file where a folder is wanted"
        raise UsageError(problem, place=str(folder), remedy="choose another folder, or move this one away") from None
    except OSError as error:
        raise UsageError(
            "the folder is not writable",
            place=str(folder),
            got=_reason(error),
            remedy="choose another folder, or correct its permissions",
        ) from None
    return folder


def _synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _explained(error: BaseException, path: Path) -> UsageError | None:
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if is_full or (isinstance(error, Exception) and _FULL_DISK.search(str(error))):
        return UsageError(
            "the disk is full", place=str(path), remedy="free some space; what the file held before is untouched"
        )
    if isinstance(error, OSError):
        return UsageError(
            "the file cannot be written",
            place=str(path),
            got=_reason(error),
            remedy="choose another folder, or correct its permissions",
        )
    return None


def _reason(error: OSError) -> str:
    return f'"{error.strerror or error}"'
