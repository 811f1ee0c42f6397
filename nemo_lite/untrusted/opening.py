"""Opening and reading a file that others may have made: regular files only, and no more bytes than a kind has."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

from nemo_lite.errors import DataError, NemoLiteError

FilePath: TypeAlias = str | os.PathLike[str]

MAX_LINE_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A tab and the ends of lines are no control characters here. str.splitlines takes some of the others for ends of lines.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class FileKind:
    """A kind of file, as its reader declares it.

    Attributes:
        name: with its article, for messages: ``the lexicon``.
        max_bytes: the largest that such a file can be.
        error: makes the error; it takes what :class:`NemoLiteError` takes.
        remedy: what the user can do about a file that cannot be used.
    """

    name: str
    max_bytes: int
    error: Callable[..., NemoLiteError] = DataError
    remedy: str = ""

    def refusal(self, problem: str, place: FilePath, *, got: str = "", wanted: str = "") -> NemoLiteError:
        """The error about a file of this kind, or about a place in one."""
        return self.error(problem, place=os.fspath(place), got=got, wanted=wanted, remedy=self.remedy)

    def too_large(self, place: FilePath, num_bytes: int | None = None) -> NemoLiteError:
        """The error about a file that has more bytes than its kind may have."""
        got = "" if num_bytes is None else f"{num_bytes} bytes"
        return self.refusal(f"{self.name} is too large", place, got=got, wanted=f"at most {self.max_bytes} bytes")


def kind_unless_file(status: os.stat_result) -> str:
    """What something is that is no file, in words; "" for a file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"


def open_descriptor(path: FilePath, kind: FileKind, *, place: FilePath = "") -> int:
    """A descriptor of a regular file, for reading. The caller closes it.

    Args:
        path: the file.
        kind: of the file.
        place: its name for messages, by default the path: ``train.json:17: words.txt``.

    Raises:
        NemoLiteError: of the kind: it cannot be opened; it is a folder, a pipe, a socket or a device; it is too large.
    """
    place = place or path
    try:
        # Without waiting: the opening of a named pipe would last until somebody writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise kind.refusal(f"{kind.name} cannot be opened ({reason})", place) from error
    try:
        status = os.fstat(descriptor)
        if other := kind_unless_file(status):
            raise kind.refusal(f"{kind.name} is {other}", place, wanted="a regular file")
        if status.st_size > kind.max_bytes:
            raise kind.too_large(place, status.st_size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: FilePath, kind: FileKind, *, place: FilePath = "") -> BinaryIO:
    """The same as a file object. It may grow later: a reader of all of it takes :func:`read_bytes`.

    Raises:
        NemoLiteError: as :func:`open_descriptor`.
    """
    return os.fdopen(open_descriptor(path, kind, place=place), "rb")


def read_bytes(path: FilePath, kind: FileKind, *, place: FilePath = "") -> bytes:
    """All of a file.

    Raises:
        NemoLiteError: as :func:`open_descriptor`, or it cannot be read, or grew beyond its kind's size.
    """
    with open_file(path, kind, place=place) as file:
        try:
            data = file.read(kind.max_bytes + 1)  # allocates what is there, not what is asked for
        except OSError as error:
            raise kind.refusal(f"{kind.name} cannot be read ({error.strerror})", place or path) from error
    if len(data) > kind.max_bytes:
        raise kind.too_large(place or path)
    return data


def read_text(path: FilePath, kind: FileKind, *, place: FilePath = "") -> str:
    """All of a file of UTF-8 text. A byte order mark is left out.

    Raises:
        NemoLiteError: as :func:`read_bytes` and :func:`decode_text`.
    """
    return decode_text(read_bytes(path, kind, place=place), place or path, kind)


def numbered_lines(path: FilePath, kind: FileKind) -> Iterator[tuple[str, bytes]]:
    """The lines of a file that hold something, one by one, each after its place: ``train.json:17``.

    Raises:
        NemoLiteError: as :func:`open_descriptor`, or a line is longer than MAX_LINE_BYTES, or it cannot be read.
    """
    with open_file(path, kind) as file:
        number = 0
        while True:
            number += 1
            place = f"{os.fspath(path)}:{number}"
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
            except OSError as error:
                raise kind.refusal(f"{kind.name} cannot be read ({error.strerror})", place) from error
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise kind.refusal(f"{kind.name} has a line of more than {MAX_LINE_BYTES} bytes", place)
            line = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if line := line.strip():
                yield place, line


def decode_text(data: bytes, place: FilePath, kind: FileKind, *, controls: bool = False) -> str:
    """The text that some bytes are.

    Args:
        data: the bytes.
        place: of them, for messages.
        kind: of the file.
        controls: control characters may be in it.

    Raises:
        NemoLiteError: of the kind, with the line: they are not UTF-8, or hold control characters, which a terminal
            would obey.
    """
    data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"the byte {data[error.start]:#04x}"
        line = data.count(b"\n", 0, error.start) + 1
        raise kind.refusal(f"{kind.name} is not UTF-8", f"{os.fspath(place)}:{line}", got=got) from None
    if not controls and (found := _CONTROLS.search(text)):
        line = text.count("\n", 0, found.start()) + 1
        got = f"U+{ord(found[0]):04X}"
        raise kind.refusal(f"{kind.name} has a control character", f"{os.fspath(place)}:{line}", got=got)
    return text
