"""Tar shards: their paths, and their members by the headers. Contents are not read, and nothing is unpacked to disk."""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, TypeAlias, cast

import bracex

from nemo_asr.run.arguments import ManyPaths
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, kind_unless_file, open_file
from nemo_lite.base.tar_files import TarGuard, TarLimits

ShardPaths: TypeAlias = ManyPaths

_MOST_SHARDS = 100_000  # of one pattern: a typing error must not fill the memory
# NeMo's spellings of a range for shells that expand braces themselves.
_OTHER_BRACES = re.compile(r"[(\[<](\d+\.\.\d+)[)\]>]")


def expanded(paths: ShardPaths) -> list[str]:
    """The paths of the shards, in order: ``audio_{0..63}.tar``, or NeMo's ``audio__OP_0..63_CL_.tar``, are 64.

    Braces mean what they mean in bash (``{00..63}``, ``{a,b}``). A path that exists as it is written stays as it is.

    Raises:
        DataError: there is no path, one is given twice, or a shard is missing or no file: the first one, and how many.
        UsageError: a pattern of more than 100,000 shards.
    """
    patterns = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not patterns or not all(map(os.fspath, patterns)):
        raise DataError("the list of tar shards is empty or has an empty part", remedy="name tar files")
    shards = [path for pattern in patterns for path in _expanded(os.path.expanduser(os.fspath(pattern)))]
    for path, count in Counter(shards).items():
        if count > 1:
            raise DataError(f"the tar shard is given {count} times", place=path, remedy="name it once")
    missing = [path for path in shards if not os.path.exists(path)]
    if missing:
        share = f" ({len(missing)} of {len(shards)} are missing)" if len(missing) > 1 else ""
        raise DataError(f"the tar shard does not exist{share}", place=missing[0], remedy="mend the list of tar shards")
    for path in shards:
        if kind := kind_unless_file(os.stat(path)):
            raise DataError(f"the tar shard is {kind}", place=path, wanted="a tar file")
    return shards


def _expanded(pattern: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    with_braces = _OTHER_BRACES.sub(r"{\1}", pattern.replace("_OP_", "{").replace("_CL_", "}"))
    try:
        return bracex.expand(with_braces, limit=_MOST_SHARDS)
    except bracex.ExpansionLimitException:
        raise UsageError(
            "the pattern has too many tar shards", got=pattern, wanted=f"{_MOST_SHARDS} or fewer"
        ) from None


SHARD = FileKind("the tar shard", 1 << 42)
_LIMITS = TarLimits(members=1 << 22, expanded_bytes=1 << 42)  # it is not compressed: the file's size bounds it
_BLOCK = 512  # bytes: the unit of tar files
CHUNK_BYTES = 1 << 20
_AGAIN = "copy it or make it again"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# Places in a header, see the POSIX description of ustar.
_NAME, _SIZE, _CHECKSUM = slice(0, 100), slice(124, 136), slice(148, 156)
_KIND, _MAGIC, _PREFIX = 156, slice(257, 263), slice(345, 500)
_OCTAL = re.compile(rb"[0-7]{1,12}")
_REGULAR_FILE = b"0\0"


class Member(NamedTuple):
    """A file in a shard.

    Attributes:
        name: its path in the tar file.
        first: byte of the tar file at which its content starts.
        size: bytes of its content.
    """

    name: str
    first: int
    size: int

    @property
    def end(self) -> int:
        """Where the next header starts: contents are filled up to whole blocks."""
        return self.first + -(-self.size // _BLOCK) * _BLOCK


def members_of(path: str) -> Iterator[Member]:
    """The files in a shard, in order. Only their headers are read.

    Raises:
        DataError: it cannot be opened, is empty, compressed or damaged, or ends early: within a member, or without the
            blocks of zeros that end a tar file.
    """
    with open_file(path, SHARD) as file:
        try:
            start = file.read(8)
            if not start:
                raise DataError("the tar shard is empty (0 bytes)", place=path, remedy=_AGAIN)
            for magic, kind in _COMPRESSED.items():
                if start.startswith(magic):
                    problem = f"the tar shard is compressed ({kind})"
                    remedy = "decompress it, and compress the recordings"
                    raise DataError(problem, place=path, wanted="a plain tar file", remedy=remedy)
            file.seek(0)
            yield from _regular_members(file, path)
        except OSError as error:
            raise DataError(f"the tar shard cannot be read ({error.strerror})", place=path) from None


def _regular_members(file: BinaryIO, path: str) -> Iterator[Member]:
    end, name = 0, ""
    size = os.fstat(file.fileno()).st_size
    # Nearly all shards have plain headers only. Reading them here takes a quarter of tarfile's time.
    while (plain := _plain_member(os.pread(file.fileno(), _BLOCK, end), end)) is not None:
        if plain.end > size:
            break
        yield plain
        end, name = plain.end, plain.name
    file.seek(end)
    try:
        guard = TarGuard(file, path, SHARD, _LIMITS)
        with tarfile.TarFile(fileobj=cast("BinaryIO", guard)) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
                content = Member(member.name, member.offset_data, member.size)
                end, name = content.end, content.name
                if member.isreg() and not member.issparse():
                    yield content
            end = archive.offset
    except (tarfile.TarError, ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        if end > size:
            problem, got = f"the tar shard ends early, within {name}", f"{size} bytes"
            raise DataError(problem, place=path, got=got, wanted=f"at least {end}", remedy=_AGAIN) from None
        raise DataError(f"this is no tar file, or a damaged one ({error})", place=path, remedy=_AGAIN) from None
    # tarfile takes the end of the file, and a header that is damaged, for the end of the archive.
    last = os.pread(file.fileno(), _BLOCK, end)
    if len(last) < _BLOCK:
        after = f", after {name}" if name else ""
        problem, got = f"the tar shard ends early{after}, without the blocks of zeros that end it", f"{size} bytes"
        raise DataError(problem, place=path, got=got, remedy=_AGAIN)
    if any(last):
        raise DataError(f"the tar shard is damaged at byte {end}, after {name}", place=path, remedy=_AGAIN)


def _plain_member(header: bytes, start: int) -> Member | None:
    """The file that a header describes; None where tarfile has to look at it: another kind, long names, damage."""
    if len(header) < _BLOCK or header[_KIND] not in _REGULAR_FILE:
        return None
    texts = [header[place].strip(b" \0") for place in (_SIZE, _CHECKSUM)]
    if not all(map(_OCTAL.fullmatch, texts)):  # int() takes a sign and underscores as well
        return None
    size, checksum = (int(text, 8) for text in texts)
    # The sum of all bytes, in which its own eight count as blanks.
    if sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ") != checksum:
        return None
    name, _, _ = header[_NAME].partition(b"\0")
    prefix, _, _ = header[_PREFIX].partition(b"\0") if header[_MAGIC] == b"ustar\0" else (b"", b"", b"")
    if not name or name.endswith(b"/"):
        return None
    whole = b"/".join([prefix, name]) if prefix else name
    return Member(whole.decode("utf-8", "surrogateescape"), start + _BLOCK, size)
