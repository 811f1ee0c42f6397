"""Tar files: their members within limits. Nothing is written to disk here.

The standard library reads the headers, through :class:`TarGuard` and with a check of each member. By itself tarfile
follows a member out of its folder, takes one twice, takes a damaged header for the end, reads a pax header of any size
into memory, takes the square of a header's length to search it (CVE-2024-6232) and goes round for ever at a size below
zero (CVE-2025-8194).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Self, cast

from nemo_lite.base.errors import NemoLiteError
from nemo_lite.base.files import FileKind, FilePath, open_file

_BLOCK = 512  # bytes: the unit of tar files
_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 64 << 10  # of one extended header: a path has at most 4096 bytes
_LONG_NUMBER = re.compile(rb"[0-9]{256}")  # tarfile searches such headers from each digit on
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, KeyError, RecursionError)


@dataclass(frozen=True)
class TarLimits:
    """How large an archive can be.

    Attributes:
        members: files and folders.
        expanded_bytes: of the archive when it is decompressed.
    """

    members: int
    expanded_bytes: int


class Tar:
    """An archive that is open. :meth:`members` gives what is in it, once, and :meth:`chunks` the content of a file."""

    def __init__(self, guard: TarGuard, place: str, kind: FileKind, limits: TarLimits) -> None:
        self._archive, self._guard = tarfile.TarFile(fileobj=cast("BinaryIO", guard), tarinfo=TarHeader), guard
        self._place, self._kind, self._limits = place, kind, limits

    def members(self) -> Iterator[tarfile.TarInfo]:
        """The files and folders, in order.

        Raises:
            NemoLiteError: of the kind: a member that is a link, a device or sparse, that leads out of its folder or is
                there twice; more members or bytes than allowed; damage.
        """
        names: set[str] = set()
        num_bytes = 0
        while (member := self._next()) is not None:
            num_bytes += member.size
            self._check(member, names, num_bytes)
            names.add(str(PurePosixPath(member.name)))
            yield member
        with _refusing_damage(self._place, self._kind):
            self._guard.read_to_the_end()

    def chunks(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        place, end = member.offset_data, member.offset_data + member.size
        while place < end:
            with _refusing_damage(self._place, self._kind):
                self._guard.seek(place)
                chunk = self._guard.content(min(end - place, _CHUNK_BYTES))
            if not chunk:
                raise self._refusal("a member ends early", member.name)
            place += len(chunk)
            yield chunk

    def _next(self) -> tarfile.TarInfo | None:
        with _refusing_damage(self._place, self._kind):
            member = self._archive.next()
            self._archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
            return member

    def _check(self, member: tarfile.TarInfo, names: set[str], num_bytes: int) -> None:
        if problem := problem_of_name(member.name):
            raise self._refusal(problem, member.name)
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise self._refusal("a member is no file: it is a link, a device or sparse", member.name)
        if member.isreg() and str(PurePosixPath(member.name)) in names:
            raise self._refusal("a member is there twice", member.name)
        if member.size < 0 or num_bytes > self._limits.expanded_bytes:
            wanted = f"at most {self._limits.expanded_bytes} bytes in all"
            raise self._refusal("the members are too large", f"{num_bytes} bytes up to {member.name}", wanted)
        if len(names) >= self._limits.members:
            raise self._refusal("there are too many members", wanted=f"at most {self._limits.members}")

    def _refusal(self, problem: str, got: str = "", wanted: str = "") -> Exception:
        got = got if len(got) <= 200 else f"{got[:200]}... ({len(got)} characters)"
        return self._kind.refusal(problem, self._place, got=got, wanted=wanted)


@contextmanager
def open_tar(path: FilePath, kind: FileKind, limits: TarLimits) -> Iterator[Tar]:
    """Open a tar file: plain, or compressed with gzip, bzip2 or xz.

    Raises:
        NemoLiteError: of the kind: as :func:`open_file`, or it is no tar file, or a damaged one.
    """
    place = os.fspath(path)
    with open_file(path, kind) as file:
        with _refusing_damage(place, kind):
            guard = TarGuard(_decompressed(file), place, kind, limits)
            tar = Tar(guard, place, kind, limits)
        yield tar


@contextmanager
def _refusing_damage(place: str, kind: FileKind) -> Iterator[None]:
    try:
        yield
    except NemoLiteError:
        raise
    except _DAMAGED as error:
        got = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise kind.refusal(f"{kind.name} is no tar file, or a damaged one", place, got=got) from None


def problem_of_name(name: str) -> str:
    """Why a member of this name must not be used below a folder, in words; "" where it may."""
    path = PurePosixPath(name)
    is_outside = path.is_absolute() or ".." in path.parts or "\\" in name
    return "a member lies outside its folder" if is_outside else ""


def _decompressed(file: BinaryIO) -> BinaryIO:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return cast("BinaryIO", bz2.BZ2File(file))
    return cast("BinaryIO", lzma.LZMAFile(file)) if start.startswith(b"\xfd7zXZ\0") else file


class TarHeader(tarfile.TarInfo):
    """A header whose damage is an error wherever it is; tarfile takes it for the end, and drops what follows."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next header.

        Raises:
            tarfile.ReadError: it is damaged.
        """
        try:
            return super().fromtarfile(archive)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]  # typeshed lacks it
            raise tarfile.ReadError(str(error)) from None


class TarGuard:
    """The stream that tarfile reads from: headers of a bounded size, and no place beyond the largest archive.

    Args:
        stream: the archive, decompressed.
        place: its name, for messages.
        kind: of the file.
        limits: of the archive.
    """

    def __init__(self, stream: BinaryIO, place: str, kind: FileKind, limits: TarLimits) -> None:
        self._stream, self._place, self._kind = stream, place, kind
        # Each member has a header, often an extended one, and is filled up to a block.
        self._end = limits.expanded_bytes + limits.members * 8 * _BLOCK + _MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """Bytes of headers."""
        if not 0 <= size <= _MAX_HEADER_BYTES:
            wanted = f"at most {_MAX_HEADER_BYTES}"
            raise self._kind.refusal("a header is too long", self._place, got=f"{size} bytes", wanted=wanted)
        data = self._stream.read(size)
        if size > _BLOCK and _LONG_NUMBER.search(data):
            raise self._kind.refusal("a header has an endless number", self._place)
        return data

    def content(self, size: int) -> bytes:
        """Bytes of a file."""
        return self._stream.read(size)

    def seek(self, position: int) -> int:
        """Go to a place; what lies before it is decompressed."""
        if not 0 <= position <= self._end:
            raise self._kind.refusal("the archive grows too large", self._place, got=f"{position} bytes")
        return self._stream.seek(position)

    def read_to_the_end(self) -> None:
        """Read what is left of a compressed archive: its checksum comes last."""
        while not isinstance(self._stream, io.BufferedReader) and self.content(_CHUNK_BYTES):
            self.seek(self.tell())

    def tell(self) -> int:
        """The place that is read next."""
        return self._stream.tell()
