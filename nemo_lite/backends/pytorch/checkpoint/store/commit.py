"""How a checkpoint's folder comes, is replaced and goes: at every moment the old or the new one is there, whole.

A folder is made under a hidden name and renamed to its own. Where one of its name is there, that one is set aside
under a hidden name until the new one has its place. What is deleted gets a hidden name first, so that a process killed
halfway leaves nothing that looks like a damaged checkpoint. Which checkpoints may go is not decided here.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from nemo_lite.backends.pytorch.checkpoint.store.record import CheckpointSet, StoredFile
from nemo_lite.backends.pytorch.distributed import note_write
from nemo_lite.errors import NemoLiteError
from nemo_lite.utils.files import name_in, temporary_name, unwritable, write_atomically
from nemo_lite.utils.files import synchronise as to_disk
from nemo_lite.utils.helpers import RECORD, tag_of_folder

_MAKING, _ASIDE = "tmp", "aside"
# So often what was written is sent to the disk: other ranks see that a slow one still takes it.
_SENT_BYTES = 64 * 2**20


Writers: TypeAlias = Mapping[str, Callable[[BinaryIO], None]]
"""For each file name, what writes its content."""


def write_set(
    wanted: CheckpointSet,
    writers: Writers,
    staged: Path | None = None,
    of_others: Callable[[], Mapping[str, StoredFile]] = dict,
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
    making = staged or staged_path(final)
    with told_with(final):
        try:
            if staged is None:
                making.mkdir()
            try:
                files = {name: _write(final / name, making / name, write) for name, write in writers.items()}
            finally:
                others = of_others()  # also after an error: nobody writes any more when the folder is removed
            saved = replace(wanted, files={**files, **others})
            (making / RECORD).write_text(saved.record_text(), encoding="utf-8")
            synchronise(making / RECORD)
            synchronise(making)
            aside = _set_aside(final)
            os.rename(making, final)
            synchronise(parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            with suppress(OSError):
                _put_back(parent)
            raise
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
            _remove_dead_links(parent)
    return saved


def stage(final: Path) -> Path:
    """A folder into which several processes write the files of a checkpoint; :func:`write_set` gives it its name.

    Raises:
        UsageError: it cannot be made.
    """
    making = staged_path(final)
    with told_with(final):
        making.mkdir()
    return making


def staged_path(final: Path) -> Path:
    """A hidden name for a checkpoint that is being made."""
    return final.parent / temporary_name(final.name, _MAKING)


def write_part(making: Path, final: Path, writers: Writers) -> dict[str, StoredFile]:
    """Write this process's files into the folder of a checkpoint that another one stages and completes.

    Args:
        making: the folder.
        final: its name once it is complete.

    Raises:
        UsageError: a file cannot be written.
    """
    with told_with(final):
        files = {name: _write(final / name, making / name, write) for name, write in writers.items()}
        synchronise(making)
    return files


def rewrite_record(found: CheckpointSet) -> None:
    """Write the record of a checkpoint again, with what is known now.

    Raises:
        UsageError: it cannot be written; the record is the one before.
    """
    text = found.record_text()
    write_atomically(found.path / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


def delete_set(found: CheckpointSet) -> None:
    """Delete the files that a checkpoint lists, and their folder if nothing else is in it.

    Raises:
        UsageError: they cannot be deleted.
    """
    with told_with(found.path, "cannot be deleted"):
        if found.is_flat:
            # The index goes first, so that a set is never listed without its files.
            for path in (found.path, *(file.path for file in found.files.values())):
                path.unlink(missing_ok=True)
        elif {path.name for path in found.path.iterdir()} <= {RECORD, *found.files}:
            leaving = found.path.with_name(temporary_name(found.path.name, _MAKING))
            os.rename(found.path, leaving)
            shutil.rmtree(leaving, ignore_errors=True)
        else:  # somebody keeps files of their own in it
            for name in (RECORD, *found.files):
                (found.path / name).unlink(missing_ok=True)
        _remove_dead_links(found.path.parent)
        synchronise(found.path.parent)


def sweep(folder: Path) -> None:
    """Remove what ended processes left half-made or half-deleted, and put back what they had set aside.

    Raises:
        UsageError: the folder cannot be read or changed.
    """
    with told_with(folder):
        _put_back(folder)
        for path in list(folder.iterdir()):
            if _is_ours(path, _MAKING):
                shutil.rmtree(path, ignore_errors=True)


def folders_of_sets(folder: Path) -> list[Path]:
    """The folders of a folder's checkpoints, each once: of one that was set aside, where no other has its place."""
    names = os.listdir(folder) if folder.is_dir() else []
    there = {name for name in names if tag_of_folder(name)}
    aside = {made: name for name in names if tag_of_folder(made := name_in(name, _ASIDE) or "")}
    return [folder / name for name in sorted(there | {name for made, name in aside.items() if made not in there})]


def link_to_files(saved: CheckpointSet) -> None:
    """Give the files names beside their folder, where NeMo 0.x looks for them.

    Raises:
        UsageError: the folder's file system has no links.
    """
    with told_with(saved.path):
        for name in saved.files:
            link = saved.path.parent / name
            if not link.is_symlink() or os.readlink(link) != f"{saved.path.name}/{name}":
                link.unlink(missing_ok=True)
                link.symlink_to(f"{saved.path.name}/{name}")
        synchronise(saved.path.parent)


@contextmanager
def told_with(place: Path, problem: str = "cannot be written") -> Iterator[None]:
    """Around work on files: an error of the system becomes ours, with its path and its number.

    Raises:
        UsageError: in the place of an OSError.
    """
    try:
        yield
    except NemoLiteError:
        raise
    except Exception as error:
        told = unwritable(error, place, problem)
        if told is None:
            raise
        raise told from error


class _Digested(io.RawIOBase):
    """A file to be written, with the digest and the size of what was given to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self.num_bytes, self._num_sent = file, hashlib.sha256(), 0, 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        self._file.write(content)
        self._digest.update(content)
        self.num_bytes += memoryview(content).nbytes
        if self.num_bytes - self._num_sent >= _SENT_BYTES:
            self.send()
        return memoryview(content).nbytes

    def send(self) -> None:
        """Wait until all of it has reached the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._num_sent = self.num_bytes
        note_write()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _write(final: Path, path: Path, write: Callable[[BinaryIO], None]) -> StoredFile:
    with open(path, "wb") as file:
        digested = _Digested(file)
        write(cast("BinaryIO", digested))
        digested.send()
    return StoredFile(final, digested.num_bytes, digested.sha256)


def synchronise(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk; ranks that wait see it."""
    to_disk(path)
    note_write()


def _set_aside(final: Path) -> Path | None:
    if not os.path.lexists(final):
        return None
    aside = final.with_name(temporary_name(final.name, _ASIDE))
    os.rename(final, aside)
    return aside


def _put_back(folder: Path) -> None:
    """Give what was set aside its place, or delete it where the new one has that already."""
    for path in list(folder.iterdir()):
        if _is_ours(path, _ASIDE):
            final = folder / str(name_in(path.name, _ASIDE))
            if os.path.lexists(final):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.rename(path, final)


def _is_ours(path: Path, suffix: str) -> bool:
    return tag_of_folder(name_in(path.name, suffix) or "") is not None and path.is_dir() and not path.is_symlink()


def _remove_dead_links(folder: Path) -> None:
    """Remove the names of :func:`link_to_files` whose files are gone."""
    for path in list(folder.iterdir()):
        if path.is_symlink() and not path.exists():
            target = Path(os.readlink(path))
            if target.name == path.name and tag_of_folder(str(target.parent)):
                path.unlink(missing_ok=True)
