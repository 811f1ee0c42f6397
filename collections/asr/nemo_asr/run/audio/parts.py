"""A recording within a file: its bytes as stretches of the file, and these as a file of their own for a decoder."""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

ReadAt: TypeAlias = "Callable[[int, int], bytes]"  # (number of bytes, position) -> bytes, as os.pread
Stretch: TypeAlias = "bytes | range"  # bytes that stand in the place of others, or positions in the file

_SEARCH_BYTES = 1 << 20  # read at a time
_LACKING_SECONDS, _LACKING_SHARE = 0.1, 0.1  # that are no damage: recorders count their head, or a block not written


class FilePart(NamedTuple):
    """A recording in a file.

    Attributes:
        stretches: its bytes.
        start, end: where it begins in the file, and where another one does, or the file ends.
        is_changed: ``stretches`` are not just the bytes between both.
        is_longer: it holds more than its head counts.
    """

    stretches: tuple[Stretch, ...]
    start: int
    end: int
    is_changed: bool = False
    is_longer: bool = False


def whole(start: int, end: int) -> FilePart:
    """The recording that has all bytes of the file from ``start`` to ``end``."""
    return FilePart((range(start, end),), start, end)


def positions(read: ReadAt, pattern: re.Pattern[bytes], first: int, size: int, most: int = 128) -> Iterator[int]:
    """Where a pattern of at most so many bytes is in a file, between two positions."""
    position = first
    while position < size:
        content = read(min(_SEARCH_BYTES + most, size - position), position)
        if not content:
            return
        for match in pattern.finditer(content):
            if match.start() < _SEARCH_BYTES:
                yield position + match.start()
        position += _SEARCH_BYTES


def is_small_lack(lack: float, promised: float, in_a_second: float) -> bool:
    """Whether a file lacks so little of what its head promises that it is taken as it is: at most 0.1 s, and a tenth.

    Args:
        lack: bytes or samples that are missing; below 0: there are more.
        promised: by the head.
        in_a_second: how many of them last a second.
    """
    return lack <= 0 or lack <= min(_LACKING_SECONDS * in_a_second, _LACKING_SHARE * promised)


class Window(io.RawIOBase):
    """Stretches of a file as a file of their own, for a decoder.

    Args:
        read_at: reads the file.
        stretches: what it has, in this order.
    """

    def __init__(self, read_at: ReadAt, stretches: Sequence[Stretch]) -> None:
        super().__init__()
        self._read_at, self._stretches, self._position = read_at, list(stretches), 0
        self._ends = list(accumulate(map(len, stretches)))
        self.size = self._ends[-1] if self._ends else 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """As of a file; a place before the beginning leaves the position as it is, which libsndfile notices."""
        target = position + (0, self._position, self.size)[whence]
        if target >= 0:
            self._position = target
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill a buffer as far as there are bytes."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # Buffer has no name before 3.12
        content = self.read_at(len(view), self._position)
        view[: len(content)] = content
        self._position += len(content)
        return len(content)

    def read_at(self, count: int, position: int) -> bytes:
        """Bytes from a position on; fewer at the end."""
        content = b""
        while len(content) < count and 0 <= position < self.size:
            number = bisect_right(self._ends, position)
            stretch = self._stretches[number]
            first = position - self._ends[number] + len(stretch)
            num_bytes = min(count - len(content), len(stretch) - first)
            at = stretch[first : first + num_bytes]
            some = at if isinstance(at, bytes) else self._read_at(num_bytes, at.start)
            if not some:
                break
            content, position = content + some, position + len(some)
        return content
