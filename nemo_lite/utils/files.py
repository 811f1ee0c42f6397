"""Writing files and folders so that a crash, a kill or a full disk leaves nothing half-written. No formats in here."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from nemo_lite.errors import NemoLiteError, UsageError

_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<host>[A-Za-z0-9-]*)\.(?P<pid>[0-9]+)\.[0-9a-f]{8}\.(?P<suffix>[a-z]+)")
_ABANDONED_AFTER_SECONDS = 86_400
# How safetensors writes the system's error number.
_SYSTEM_NUMBER = re.compile(r"\(os error ([0-9]+)\)")
# What torch.save and safetensors say when the disk is full, instead of the number.
_FULL_DISK = re.compile(r"unexpected pos [0-9]+ vs [0-9]+|No space left on device|PytorchStreamWriter failed writing")


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file of the same name in a temporary sub-folder, then move it to ``path`` in one step.

    Whatever happens, ``path`` holds either what it held before or all of the new content: the temporary file lies on
    the same file system, is synchronised to the disk and renamed, then the folder is synchronised. The next write into
    the folder removes sub-folders that killed processes left behind.

    Args:
        path: the file to create or replace.
        write: takes the temporary path and writes the whole content to it.

    Raises:
        UsageError: the folder cannot be written to, the disk is full, or there is a folder, a device or a pipe of this
            name; nothing is left behind.
    """
    path = Path(path)
    temporary = path.with_name(temporary_name(path.name))
    try:
        check_replaceable(path)
        sweep_temporaries(path.parent)
        temporary.mkdir()
        write(temporary / path.name)
        # Some writers make their file readable by its owner only; the folder has the bits that the user's mask allows.
        os.chmod(temporary / path.name, temporary.stat().st_mode & 0o666)
        synchronise(temporary / path.name)
        os.replace(temporary / path.name, path)
        synchronise(path.parent)
    except Exception as error:
        explained = unwritable(error, path)
        if explained is not None:
            raise explained from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(path: Path) -> None:
    """See that there is nothing but a file under a name: a rename would put one in the place of ``/dev/stdout``.

    Raises:
        UsageError: there is a folder, a device or a pipe.
    """
    folder = os.path.realpath(path.parent)  # /dev/stdout is a link, perhaps to a file
    cannot_be = folder == "/dev" or folder.startswith("/proc/") or (path.exists() and not path.is_file())
    if cannot_be:
        problem = "this is a folder" if path.is_dir() else "this is a pipe or a device"
        raise UsageError(problem, place=str(path), wanted="the name of a file")


def path_in_list(path: str, folder: str) -> str:
    """A path as a list in ``folder`` names it, ready to open.

    A relative one starts at the folder; if it leads to something only in the working directory, it starts there.
    """
    path = os.path.expanduser(path)
    beside = os.path.join(folder, path)
    if not folder or os.path.isabs(path) or os.path.exists(beside) or not os.path.exists(path):
        return beside
    return path


def temporary_name(name: str, suffix: str = "tmp") -> str:
    """A hidden name that tells which process made it: ``.name.host.process.random.suffix``."""
    return f".{name}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}.{suffix}"


def name_in(temporary: str, suffix: str = "tmp") -> str | None:
    """The name for which :func:`temporary_name` made this one; None where it did not."""
    match = _TEMPORARY.fullmatch(temporary)
    return match["name"] if match and match["suffix"] == suffix else None


def is_abandoned(path: Path, suffix: str = "tmp") -> bool:
    """Whether a folder with a :func:`temporary_name` belongs to a process that ended (elsewhere: a day ago)."""
    match = _TEMPORARY.fullmatch(path.name)
    if match is None or match["suffix"] != suffix or not path.is_dir():
        return False
    if match["host"] == _HOST:
        return not _is_running(int(match["pid"]))
    return time.time() - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS


def sweep_temporaries(folder: Path) -> None:
    """Remove the abandoned temporaries of :func:`write_atomically`."""
    for name in os.listdir(folder):
        if is_abandoned(folder / name):
            shutil.rmtree(folder / name, ignore_errors=True)


def make_writable_folder(folder: str | Path, *, exist_ok: bool = True) -> Path:
    """Create ``folder`` and its parents, and prove that a file can be written there.

    Raises:
        UsageError: it cannot be created or written to, or it exists and ``exist_ok`` is false.
    """
    folder = Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
        probe = folder / temporary_name("probe")
        probe.mkdir()
        probe.rmdir()
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


def synchronise(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(error: BaseException, path: Path, problem: str = "the file cannot be written") -> UsageError | None:
    """What failed with a file, in our words: its path, and the system's text and number.

    Args:
        error: of the system, or of a writer that hides it (torch and safetensors do).
        path: of the file.
        problem: what was tried, unless the disk is full.

    Returns:
        None of an error that has other causes, or says itself what is wrong.
    """
    if isinstance(error, NemoLiteError):  # some are an OSError too
        return None
    number = error.errno if isinstance(error, OSError) else _number_in(str(error))
    name = f" ({errno.errorcode.get(number, f'errno {number}')})" if number else ""
    if number in (errno.ENOSPC, errno.EDQUOT) or (not isinstance(error, OSError) and _FULL_DISK.search(str(error))):
        remedy = f"free some space; nothing that was there before has been changed{name}"
        return UsageError("the disk is full", place=str(path), remedy=remedy)
    if number is None and not isinstance(error, OSError):
        return None
    got = f'"{os.strerror(number) if number else error}"{name}'
    is_gone = number in (errno.ENOENT, errno.ESTALE, errno.ENODEV)
    remedy = (
        "its folder is not there: was it deleted or unmounted?"
        if is_gone
        else "choose another folder, or correct its permissions"
    )
    return UsageError(problem, place=str(path), got=got, remedy=remedy)


def _number_in(text: str) -> int | None:
    match = _SYSTEM_NUMBER.search(text)
    return int(match[1]) if match else None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _reason(error: OSError) -> str:
    return f'"{error.strerror or error}"'
