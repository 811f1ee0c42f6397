"""The folders of checkpoints: how one comes, is replaced and goes, which are there, and who alone may write.

At every moment the old or the new one is there, whole. A folder is made under a hidden name and renamed to its own.
Where one of its name is there, that one is set aside under a hidden name until the new one has its place. What is
deleted gets a hidden name first, so that a process killed halfway leaves nothing that looks like a damaged checkpoint.
Which checkpoints may go is not decided here.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from nemo_lite.backends.pytorch.checkpoint.record import CheckpointSet, read_record
from nemo_lite.backends.pytorch.distributed.process import note_write
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import FileKind, name_in, names_in, parse_json, refusing_unwritable, temporary_name
from nemo_lite.base.files import synchronise as to_disk
from nemo_lite.base.helpers import RECORD, tag_of_folder
from nemo_lite.base.verified import LaterVersionError, VerifiedFile, delete_listed, write_verified
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
_LOCK = FileKind("the lock", 4096, CheckpointError)
_MAKING, _ASIDE = "tmp", "aside"


Writers: TypeAlias = Mapping[str, Callable[[BinaryIO], None]]
"""For each file name, what writes its content."""


def write_set(
    wanted: CheckpointSet,
    writers: Writers,
    staged: Path | None = None,
    of_others: Callable[[], Mapping[str, VerifiedFile]] = dict,
) -> CheckpointSet:
    """Make the folder of a checkpoint; one of the same name is replaced.

    Args:
        wanted: what its record says; the files are filled in.
        writers: of this process.
        staged: what :func:`stage` gave, where other processes write into it too.
        of_others: waits for them, and gives their files.

    Returns:
        The same with its files.

    Raises:
        UsageError: a file cannot be written; what was there before is there.
        NemoLiteError: what ``of_others`` raises, likewise.
    """
    final, parent = wanted.path, wanted.path.parent
    making = staged or stage(final)
    aside: Path | None = None
    with refusing_unwritable(final):
        try:
            try:
                files = _written(making, writers)
            finally:
                files_elsewhere = of_others()  # also after an error: nobody writes when the folder is removed
            saved = replace(wanted, files={**files, **files_elsewhere})
            record = saved.record_text().encode()
            write_verified(making / RECORD, lambda file: file.write(record), note_write)
            synchronise(making)
            if os.path.lexists(final):
                aside = final.with_name(temporary_name(final.name, _ASIDE))
                os.rename(final, aside)
            os.rename(making, final)
            synchronise(parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            with suppress(OSError):
                _put_back(parent)
            raise
        if aside is not None:
            _drop(aside, final)
            _remove_dead_links(parent)
    return saved


def stage(final: Path) -> Path:
    """A folder into which several processes write the files of a checkpoint; :func:`write_set` gives it its name.

    Raises:
        UsageError: it cannot be made.
    """
    making = final.with_name(temporary_name(final.name, _MAKING))
    with refusing_unwritable(final):
        making.mkdir()
    return making


def write_part(making: Path, final: Path, writers: Writers) -> dict[str, VerifiedFile]:
    """Write this process's files into the folder of a checkpoint.

    Args:
        making: the folder, as :func:`stage` gave it.
        final: its name once it is complete.

    Raises:
        UsageError: a file cannot be written.
    """
    with refusing_unwritable(final):
        files = _written(making, writers)
        synchronise(making)
    return files


def _written(making: Path, writers: Writers) -> dict[str, VerifiedFile]:
    return {name: write_verified(making / name, write, note_write) for name, write in writers.items()}


def rewrite_record(checkpoint: CheckpointSet) -> None:
    """Write the record of a checkpoint again.

    Raises:
        UsageError: it cannot be written; the record is the one before.
    """
    text, making = checkpoint.record_text(), stage(checkpoint.path)
    with refusing_unwritable(checkpoint.path / RECORD):
        try:
            write_verified(making / RECORD, lambda file: file.write(text.encode()))
            os.replace(making / RECORD, checkpoint.path / RECORD)
            synchronise(checkpoint.path)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def delete_set(checkpoint: CheckpointSet) -> None:
    """Delete the files that a checkpoint lists, and their folder if nothing else is in it.

    Raises:
        UsageError: they cannot be deleted.
    """
    with refusing_unwritable(checkpoint.path, "cannot be deleted"):
        if {*names_in(checkpoint.path)} <= {RECORD, *checkpoint.files}:
            leaving = checkpoint.path.with_name(temporary_name(checkpoint.path.name, _MAKING))
            os.rename(checkpoint.path, leaving)
            shutil.rmtree(leaving, ignore_errors=True)
        else:  # somebody keeps files of their own in it
            delete_listed(checkpoint.path, (RECORD, *checkpoint.files))
        _remove_dead_links(checkpoint.path.parent)
        synchronise(checkpoint.path.parent)


def sweep(folder: Path) -> None:
    """Remove what ended processes left half-made or half-deleted, and put back what they had set aside.

    Raises:
        UsageError: the folder cannot be read or changed.
    """
    with refusing_unwritable(folder):
        _put_back(folder)
        for path in list(folder.iterdir()):
            if _is_ours(path, _MAKING):
                shutil.rmtree(path, ignore_errors=True)


def folders_of_sets(folder: Path) -> list[Path]:
    """The folders of a folder's checkpoints, each once: of one that was set aside, where no other has its place."""
    names = names_in(folder)
    there = {name for name in names if tag_of_folder(name)}
    aside = {made: name for name in names if tag_of_folder(made := name_in(name, _ASIDE) or "")}
    return [folder / name for name in sorted(there | {name for made, name in aside.items() if made not in there})]


def link_to_files(saved: CheckpointSet) -> None:
    """Give the files names beside their folder, where NeMo 0.x looks for them.

    Raises:
        UsageError: the folder's file system has no links.
    """
    with refusing_unwritable(saved.path):
        for name in saved.files:
            link = saved.path.parent / name
            if _is_own_link(link) and os.readlink(link) != f"{saved.path.name}/{name}":
                link.unlink()
            if not os.path.lexists(link):  # a file of NeMo's run, perhaps, which stays
                link.symlink_to(f"{saved.path.name}/{name}")
        synchronise(saved.path.parent)


def synchronise(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk; ranks that wait see it."""
    to_disk(path)
    note_write()


def _put_back(folder: Path) -> None:
    """Give what was set aside its place, or delete it where the new one has that already."""
    for path in list(folder.iterdir()):
        if _is_ours(path, _ASIDE):
            final = folder / str(name_in(path.name, _ASIDE))
            if os.path.lexists(final):
                _drop(path, final)
            else:
                os.rename(path, final)


def _drop(aside: Path, final: Path) -> None:
    """Delete a set whose place another has taken. Files of others that lay beside its own move to the new one."""
    ours = {RECORD}
    for folder in (aside, final):
        with suppress(CheckpointError):
            ours |= read_record(folder).files.keys()
    with suppress(OSError):  # then it is tried again when the folder is swept
        for path in list(aside.iterdir()):
            if path.name not in ours:
                os.rename(path, final / path.name)
        shutil.rmtree(aside, ignore_errors=True)


def _is_ours(path: Path, suffix: str) -> bool:
    return tag_of_folder(name_in(path.name, suffix) or "") is not None and path.is_dir() and not path.is_symlink()


def _remove_dead_links(folder: Path) -> None:
    """Remove the names of :func:`link_to_files` whose files are gone."""
    for path in list(folder.iterdir()):
        if not path.exists() and _is_own_link(path):
            path.unlink(missing_ok=True)


def _is_own_link(path: Path) -> bool:
    """Whether :func:`link_to_files` made it."""
    if not path.is_symlink():
        return False
    target = Path(os.readlink(path))
    return target.name == path.name and tag_of_folder(str(target.parent)) is not None


class Listing(NamedTuple):
    """The checkpoints in a folder.

    Attributes:
        sets: those whose files are there with their sizes, oldest first.
        damaged: the problem of each of the others, by the path of its folder.
        last_serial: at least that of every checkpoint, also of the damaged ones; 0 where there is none.
    """

    sets: Sequence[CheckpointSet]
    damaged: Mapping[Path, str]
    last_serial: int


def look(folder: Path) -> Listing:
    """The checkpoints of a folder, or the one that it is. Records are read and sizes compared, contents are not.

    Raises:
        CheckpointError: a later version wrote one of them.
        UsageError: the folder cannot be read.
    """
    sets: list[CheckpointSet] = []
    damaged: dict[Path, str] = {}
    serials, num_unreadable = [0], 0
    for path in [folder] if RECORD in names_in(folder) else folders_of_sets(folder):
        try:
            checkpoint = read_record(path)
        except LaterVersionError:
            raise
        except CheckpointError as error:
            damaged[path] = f"{error.problem} ({error.got})" if error.got else error.problem
            num_unreadable += 1
            continue
        serials.append(checkpoint.serial)
        if problem := checkpoint.problem(contents=False):
            damaged[path] = problem
        else:
            sets.append(checkpoint)
    return Listing(sorted(sets, key=lambda checkpoint: checkpoint.serial), damaged, max(serials) + num_unreadable)


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
        holder = parse_json(os.pread(file, _LOCK.max_bytes, 0), "", _LOCK)
        if isinstance(holder, dict):
            run = "".join(char for char in str(holder.get("run", "")) if char.isprintable())
            return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}: {run or '?'}"[:300]
    return "a process that has not said its name"
