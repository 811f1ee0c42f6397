"""Kaldi's binary matrices, plain and compressed: what a header says, and the values.

Layout as in kaldi/src/matrix/kaldi-matrix.cc and compressed-matrix.h. Packages that read it are no help here: kaldiio
unpickles what a file says it should, both it and kaldi-native-io run the commands that a list may hold, and kaldiio
takes six times the memory of the values, and four times our time, for compressed matrices.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_lite.base.errors import DataError

Features: TypeAlias = "npt.NDArray[np.float32]"  # (T, D)

HEADER_BYTES = 22  # of the longest header
# 58 minutes of 80 float32 features, one frame each 10 ms, have 112 MB. Compressed ones have up to four times as many
# values to a byte, and each column has its own table.
_MOST_BYTES, _MOST_VALUES, _MOST_COLUMNS = 1 << 27, 1 << 25, 1 << 15
_BINARY = b"\0B"
_COLUMN_HEADER_BYTES = 4 * 2
# By token: bytes of a value, and of what comes before a column's values. Compressed ones have a range for all values.
_PLAIN = {b"FM": 4, b"DM": 8}
_COMPRESSED = {b"CM": 1, b"CM2": 2, b"CM3": 1}
# (4, 256) how much of a column's least value, quartiles and largest value is in the value of each byte.
_SHARES = np.stack([np.interp(np.arange(256), [0, 64, 192, 255], level) for level in np.eye(4)]).astype(np.float32)


class Header(NamedTuple):
    """The kind and the size of a matrix.

    Attributes:
        kind: Kaldi's name: FM and DM are floats and doubles, CM, CM2 and CM3 compressed.
        num_rows, num_columns: frames, and features of each.
        first: byte behind the header.
        size: bytes in all.
        least, span: compressed ones: the smallest value, and how far the largest is from it.
    """

    kind: bytes
    num_rows: int
    num_columns: int
    first: int
    size: int
    least: float = 0.0
    span: float = 0.0


def header_of(content: bytes) -> Header:
    """The header at the start of a matrix; ``HEADER_BYTES`` of it are enough.

    Raises:
        DataError: there is no binary matrix, or one without values or of more than 128 MiB, 2 ** 25
            values or 32,768 features a frame.
    """
    kind, blank, _ = content[2:6].partition(b" ")
    if not content.startswith(_BINARY) or not blank or kind not in {**_PLAIN, **_COMPRESSED}:
        remedy = "write binary matrices (copy-feats ark:IN ark,scp:OUT.ark,OUT.scp)"
        raise DataError("there is no binary Kaldi matrix", got=repr(content[:8])[1:], remedy=remedy)
    first, least, span = 2 + len(kind) + 1, 0.0, 0.0
    try:
        if kind in _PLAIN:
            marks_and_sizes = struct.unpack_from("<bibi", content, first)
            num_rows, num_columns = marks_and_sizes[1], marks_and_sizes[3]
            first += 10
        else:
            least, span, num_rows, num_columns = struct.unpack_from("<ffii", content, first)
            first += 16
    except struct.error:
        raise DataError("the matrix ends within its header", got=f"{len(content)} bytes") from None
    size = first + num_rows * num_columns * (_PLAIN.get(kind) or _COMPRESSED[kind])
    size += num_columns * _COLUMN_HEADER_BYTES if kind == b"CM" else 0
    too_large = num_rows * num_columns > _MOST_VALUES or num_columns > _MOST_COLUMNS or size > _MOST_BYTES
    if num_rows < 1 or num_columns < 1 or too_large:
        got, wanted = f"{num_rows} x {num_columns}", f"at most {_MOST_VALUES} values, {_MOST_BYTES >> 20} MiB"
        raise DataError("the matrix has no usable size", got=got, wanted=wanted)
    return Header(kind, num_rows, num_columns, first, size, least, span)


def matrix_of(content: bytes) -> Features:
    """The values of a matrix (rows, columns).

    Raises:
        DataError: see `header_of`; or the matrix ends early, or has values that are NaN or infinite.
    """
    header = header_of(content)
    if len(content) < header.size:
        raise DataError("the matrix ends early", got=f"{len(content)} bytes", wanted=f"{header.size}")
    with np.errstate(over="ignore", invalid="ignore"):  # told below
        values = _values(header, content)
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise DataError("the matrix has values that are NaN or infinite")
    return values


def _values(header: Header, content: bytes) -> Features:
    shape, count = (header.num_rows, header.num_columns), header.num_rows * header.num_columns
    if header.kind in _PLAIN:
        plain = np.frombuffer(content, f"<f{_PLAIN[header.kind]}", count, header.first)
        return plain.reshape(shape).astype(np.float32)
    if header.kind == b"CM":
        return _by_percentiles(header, content)
    steps = np.frombuffer(content, f"<u{_COMPRESSED[header.kind]}", count, header.first)
    largest = np.float32(np.iinfo(steps.dtype).max)
    values = steps.reshape(shape).astype(np.float32)
    values *= np.float32(header.span) / largest
    values += np.float32(header.least)
    return values


def _by_percentiles(header: Header, content: bytes) -> Features:
    """Each column has its own least value, quartiles and largest value; a byte is a place between two of them."""
    num_rows, num_columns = header.num_rows, header.num_columns
    marks = np.frombuffer(content, "<u2", 4 * num_columns, header.first).reshape(num_columns, 4)
    levels = np.float32(header.least) + marks.astype(np.float32) * np.float32(header.span / 65535.0)
    first = header.first + num_columns * _COLUMN_HEADER_BYTES
    places = np.frombuffer(content, np.uint8, num_rows * num_columns, first).reshape(num_columns, num_rows)
    by_place = levels @ _SHARES
    values = np.empty((num_rows, num_columns), np.float32)
    for column in range(num_columns):  # all at once would take 8 bytes more a value
        values[:, column] = by_place[column][places[column]]
    return values
