"""Outputs: files that commands write where a user says, and the only place that deletes what an earlier run wrote.

Nothing of a user's is overwritten or deleted. What a command has written is listed in a record beside it, with a
digest: a file is ours while it is listed and unchanged. How a file is written whole or not at all: ``files``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from nemo_lite.base.errors import DataError, FileInTheWayError, UsageError
from nemo_lite.base.files import (
    AppendedFile,
    FileKind,
    FilePath,
    JsonLimits,
    check_replaceable,
    digest_of_file,
    kind_unless_file,
    open_file,
    parse_json,
    write_atomically,
)

RECORD = ".nemo_lite_outputs"
"""The record of a folder: an object of JSON a line, with a file's name from there on, its SHA-256 and what wrote it."""
_KIND = FileKind("the record of outputs", 1 << 28)
_LIMITS = JsonLimits(depth=2, values=10, surrogates=True)  # of a line; names of files may be no UTF-8
_MOST_NAMED = 3
_REMEDY = "give another name, or --overwrite"


class InputFiles:
    """The files that a command reads, whatever they are called where it writes: by links, or by another path.

    Args:
        paths: of files. What is no file, or is not there, says nothing. They are looked at when they are needed.
    """

    def __init__(self, paths: Iterable[FilePath]) -> None:
        self._paths = paths
        self._names: dict[tuple[int, int], str] | None = None

    def name_of(self, path: Path) -> str:
        """What a file is called among the inputs; "" where it is none of them."""
        if self._names is None:
            identities = ((input_path, _identity(input_path)) for input_path in self._paths)
            self._names = {identity: os.fspath(name) for name, identity in identities if identity is not None}
        identity = _identity(path)
        return "" if identity is None else self._names.get(identity, "")


def _identity(path: FilePath) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character
        return None
    return status.st_dev, status.st_ino


def check_output(
    path: FilePath,
    kind: str,
    *,
    inputs: InputFiles | None = None,
    overwrite: bool = False,
    remedy: str = _REMEDY,
) -> None:
    """See that a command may write a file, before it computes anything.

    Args:
        path: the file.
        kind: what writes such files, as :func:`write_output` has it.
        inputs: what the command reads. None of it is overwritten, whatever it is called here.
        overwrite: other files may be replaced.
        remedy: what the user can do about a file that is in the way.

    Raises:
        FileInTheWayError: it is an input, or there is such a file that is not listed as one of this kind, or has
            changed since.
        UsageError: there is a folder, a device or a pipe of this name.
    """
    path = Path(path)
    check_replaceable(path)
    if not os.path.lexists(path):
        return
    if inputs is not None and (name := inputs.name_of(path)):
        other_name = "" if name == str(path) else f" ({name})"
        problem = f"this is an input of the command{other_name}, which is never overwritten"
        raise FileInTheWayError(problem, place=str(path), remedy="give another name")
    if overwrite:
        return
    digests = {digest for by, digest in _listed(path.parent).get(path.name, set()) if by == kind}
    if not digests:
        raise FileInTheWayError(f"the file was not written by {kind}", place=str(path), remedy=remedy)
    if _digest(path) not in digests:
        raise FileInTheWayError(f"the file was changed since {kind} wrote it", place=str(path), remedy=remedy)


def write_output(
    path: FilePath,
    write: Callable[[Path], object],
    kind: str,
    *,
    overwrite: bool = False,
    remedy: str = _REMEDY,
) -> None:
    """Write a file whole or not at all, and list it in the record of its folder.

    Args:
        path: the file to create; one that is listed under this kind and unchanged is replaced.
        write: as of :func:`~nemo_lite.base.files.write_atomically`.
        kind: what writes such files: ``nemo-lite transcribe``.
        overwrite, remedy: as of :func:`check_output`.

    Raises:
        FileInTheWayError, UsageError: as :func:`check_output`, and where the file cannot be written.
    """
    path = Path(path)
    check_output(path, kind, overwrite=overwrite, remedy=remedy)

    def write_and_list(temporary: Path) -> None:
        write(temporary)
        check_output(path, kind, overwrite=overwrite, remedy=remedy)  # the writing may take hours
        entry = path.name, kind, _digest(temporary)
        # Before it has its name: else a process that is killed in between leaves a file that nobody takes for ours.
        if not os.path.lexists(path) or entry[1:] not in _listed(path.parent).get(path.name, set()):
            _append(path.parent, [entry])

    write_atomically(path, write_and_list)


# Folders that a command makes anew: all that it wrote is listed in the record of the folder, which it may then empty.


def list_outputs(folder: Path, kind: str, patterns: Iterable[str] = ("**/*",)) -> None:
    """List what lies in a folder and has names of these patterns: files, folders and links, from the folder on."""
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    _append(folder, [(path.relative_to(folder).as_posix(), kind, _digest(path)) for path in paths])


def foreign_in(folder: Path, kind: str) -> Iterator[str]:
    """The names of what a folder holds and its record does not list under this kind, or has changed since."""
    listed = _listed(folder)
    for path in _below(folder):
        name = path.relative_to(folder).as_posix()
        digests = {digest for by, digest in listed.get(name, set()) if by == kind}
        if not digests or _digest(path) not in digests:  # what is not listed is not read: it may be a whole disk
            yield name


def check_ours(folder: Path, kind: str) -> None:
    """See that a folder, if it is there, holds nothing but what its record lists.

    Raises:
        UsageError: it holds something else, or it is no folder.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        problem = "there is a file where a folder is wanted"
        raise UsageError(problem, place=str(folder), remedy="choose another folder")
    if foreign := list(islice(foreign_in(folder, kind), _MOST_NAMED + 1)):
        not_listed = f"that {kind} has not listed as its own (if it is killed, it lists none)"
        problem = f"the folder holds files {not_listed}, or that were changed since"
        got = ", ".join([*foreign[:_MOST_NAMED], *(["..."] if len(foreign) > _MOST_NAMED else [])])
        remedy = "nothing has been deleted; choose another folder, or move them away"
        raise UsageError(problem, place=str(folder), got=got, remedy=remedy)


def remove_outputs(folder: Path, kind: str) -> bool:
    """Delete what the record of a folder lists under a kind and is unchanged; then the folder, if nothing is left.

    Returns:
        Whether the folder is gone.
    """
    foreign = set(foreign_in(folder, kind))
    for path in sorted(_below(folder), reverse=True):  # what is in a folder before the folder
        if path.relative_to(folder).as_posix() not in foreign:
            with suppress(OSError):  # a folder that still holds something
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    if not foreign:
        (folder / RECORD).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
    return not os.path.lexists(folder)


def _below(folder: Path) -> Iterator[Path]:
    """All that a folder holds but its records; no link is followed."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        yield from (path for name in sorted([*folders, *files]) if (path := Path(place, name)) != folder / RECORD)


def _digest(path: Path) -> str:
    """Of a file's content, or of where a link leads; of all else its kind."""
    if path.is_symlink():
        return hashlib.sha256(b"link " + os.fsencode(os.readlink(path))).hexdigest()
    return digest_of_file(path) if path.is_file() else kind_unless_file(path.stat())


_Listed = dict[str, set[tuple[str, str]]]


class _Records:
    """Records as they were read, of which only what was appended is read again: a command may write many files."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[int, int, _Listed]] = {}  # by folder: inode, bytes that were read, what they list

    def of(self, folder: Path) -> _Listed:
        """By name, the kinds and digests under which it is listed. A line that is damaged says nothing."""
        try:
            with open_file(folder / RECORD, _KIND) as file:
                inode = os.fstat(file.fileno()).st_ino
                place = os.path.abspath(folder)
                last_inode, start, listed = self._read.get(place, (0, 0, {}))
                size = file.seek(0, os.SEEK_END)
                if inode != last_inode or size < start:
                    start, listed = 0, {}
                file.seek(start)
                text = file.read(min(size - start, _KIND.max_bytes))  # Python sets aside what is asked for
        except (DataError, OSError):  # there is none, or it is no file
            return {}
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.split(b"\n"):
            with suppress(DataError):
                match parse_json(line, folder / RECORD, _KIND, _LIMITS):
                    case {"file": str(name), "by": str(kind), "sha256": str(digest)}:
                        listed.setdefault(name, set()).add((kind, digest))
        self._read[place] = inode, start + len(whole), listed
        return listed


_listed = _Records().of


def _append(folder: Path, entries: Iterable[tuple[str, str, str]]) -> None:
    """Add to a record. Where it cannot be written, files are taken for somebody else's from there on."""
    lines = "".join(json.dumps({"file": name, "sha256": digest, "by": kind}) + "\n" for name, kind, digest in entries)
    if lines:
        AppendedFile(folder / RECORD, lambda line: None).append(lines.encode())
