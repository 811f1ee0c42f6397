"""Tar shards: the tar files that hold a set's recordings. Their paths, and what is in them.

Nothing is unpacked to disk. What the members are is read from their headers, once, when the shards are opened; later a
member's bytes are read from their place in the shard (`file_spans`). No manifests in this file.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import bracex

from nemo_asr.audio.reading import kind_unless_file
from nemo_lite.errors import DataError, UsageError

# One path, perhaps with braces, or a sequence of such paths.
ShardPaths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MOST_SHARDS = 100_000  # of one pattern: a typing error must not fill the memory
_BLOCK = 512  # bytes: the unit of tar files
_AGAIN = "copy it or make it again"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# NeMo's spellings of a range for shells that expand braces themselves.
_OTHER_BRACES = re.compile(r"[(\[<](\d+\.\.\d+)[)\]>]")


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
    found = [path for pattern in patterns for path in _expanded(os.path.expanduser(os.fspath(pattern)))]
    for path, count in Counter(found).items():
        if count > 1:
            raise DataError(f"the tar shard is given {count} times", place=path, remedy="name it once")
    missing = [path for path in found if not os.path.exists(path)]
    if missing:
        others = f" ({len(missing)} of {len(found)} are missing)" if len(missing) > 1 else ""
        raise DataError(f"the tar shard does not exist{others}", place=missing[0], remedy="mend the list of tar shards")
    for path in found:
        if kind := kind_unless_file(os.stat(path)):
            raise DataError(f"the tar shard is {kind}", place=path, wanted="a tar file")
    return found


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


def members_of(path: str) -> Iterator[Member]:
    """The files in a shard, in order. Only their headers are read.

    Raises:
        DataError: it cannot be opened, is empty, compressed or damaged, or ends early: within a member, or without the
            blocks of zeros that end a tar file.
    """
    try:
        with open(path, "rb") as file:
            _check_start(file.read(8), path)
            file.seek(0)
            yield from _regular_members(file, path)
    except OSError as error:
        raise DataError(f"the tar shard cannot be read ({error.strerror})", place=path) from None


def _check_start(start: bytes, path: str) -> None:
    if not start:
        raise DataError("the tar shard is empty (0 bytes)", place=path, remedy=_AGAIN)
    for magic, kind in _COMPRESSED.items():
        if start.startswith(magic):
            problem, remedy = f"the tar shard is compressed ({kind})", "decompress it, and compress the recordings"
            raise DataError(problem, place=path, wanted="a plain tar file", remedy=remedy)


def _regular_members(file: Any, path: str) -> Iterator[Member]:
    end, name = 0, ""
    size = os.fstat(file.fileno()).st_size
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
                end, name = member.offset_data + -(-member.size // _BLOCK) * _BLOCK, member.name
                if member.isreg() and not member.issparse():
                    yield Member(member.name, member.offset_data, member.size)
            end = archive.offset
    except tarfile.TarError as error:
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
