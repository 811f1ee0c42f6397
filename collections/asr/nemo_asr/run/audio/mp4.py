"""MP4: its boxes, of which each says its name and its size. Source: ISO/IEC 14496-12, 4.2."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from nemo_asr.run.audio.parts import FilePart, ReadAt, whole
from nemo_lite.base.errors import DataError

_MOST_BOXES = 1000  # that are looked at; a fragmented file has two for each second, behind its index
_MOST_JOINED_BOXES = 100_000


def _boxes(read: ReadAt, position: int, size: int, most: int) -> Iterator[tuple[bytes, int, int]]:
    """Of each box from a byte of the file on its name, where it begins, and its size."""
    for _ in range(most):
        if position >= size:
            return
        length, name, longer = struct.unpack(">I4sQ", read(16, position).ljust(16, b"\0"))
        length = {0: size - position, 1: longer}.get(length, length)
        yield name, position, length
        position += max(length, 8)


def check_boxes(read_at: ReadAt, size: int) -> None:
    """See that an MP4 file has its index, and the samples that its boxes promise: of both, decoders say "invalid data".

    Args:
        read_at: (number of bytes, position) -> bytes, as ``os.pread``.
        size: bytes of the file.

    Raises:
        DataError: one is missing. Its text completes "a.m4a ...".
    """
    end, has_index = 0, False
    for name, position, length in _boxes(read_at, 0, size, _MOST_BOXES):
        if name in (b"moov", b"mdat") and position + length > size:
            problem = f"is damaged: {position + length} bytes promised, {size} are there"
            raise DataError(problem, remedy="copy it anew: its end is missing")
        has_index |= name == b"moov"
        end = position + max(length, 8)
    if end >= size and not has_index:
        problem = "is damaged: the index of its samples (moov) is missing"
        raise DataError(problem, remedy="copy it anew; a recording that was broken off may never have had it")


def mp4_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of MP4, which ends where another one begins."""
    has_samples = False
    for name, position, _ in _boxes(read, start, size, _MOST_JOINED_BOXES):
        if name == b"ftyp" and has_samples:
            return whole(start, position)
        has_samples |= name in (b"mdat", b"moov")
    return whole(start, size)
