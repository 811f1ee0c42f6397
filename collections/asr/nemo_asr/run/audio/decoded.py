"""Samples that are decoded once, as a whole, into an unnamed temporary file, from which any part of them is read."""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_lite.base.errors import DataError

Watch: TypeAlias = "Callable[[int], None]"
"""Told how many samples of all channels of a file are decoded, or are about to be; ends it by a DataError."""

DISK_PROBLEM = "cannot be decoded into a temporary file"
"""In the message about a disk that is full."""
_SAMPLE_BYTES = 4
_MOST_BYTES = 1 << 35  # of one file, decoded: 25 hours of two channels at 48 kHz
KEPT_BYTES = 1 << 32  # of decoded files that are kept, as a recording is measured, cut and read one after the other
KEPT_FILES = 256


@dataclass
class Decoded:
    """The samples of a file, all decoded.

    Attributes:
        rate: samples a second.
        num_channels: channels.
        frames: samples a channel.
        file: where they are, all channels of a moment together; closed with the last reference to it.
        dtype: of a sample, which has four bytes: float32 or int32.
        jump: seconds by which times of its container jump, which are no silence.
    """

    rate: int
    num_channels: int
    frames: int
    file: IO[bytes]
    dtype: str = "float32"
    jump: float = 0.0

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        """(count, channels) from a sample on; fewer at the end. Several threads may read."""
        size = _SAMPLE_BYTES * self.num_channels
        content = bytearray()
        while len(content) < count * size:
            some = os.pread(self.file.fileno(), count * size - len(content), first * size + len(content))
            if not some:
                break
            content += some
        return np.frombuffer(content, self.dtype).reshape(-1, self.num_channels)


class DecodedWriter:
    """The temporary file while it is written.

    Args:
        dtype: of the samples.
        watch: may end it.
    """

    def __init__(self, dtype: str = "float32", watch: Watch | None = None) -> None:
        self.dtype, self._watch = dtype, watch
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="nemo-lite.")  # noqa: SIM115 - `Decoded` keeps it
        self.num_bytes = 0

    def add(self, samples: npt.NDArray[Any]) -> None:
        """Append (T, channels).

        Raises:
            DataError: it is too much, or the watch ends it. Its text completes "a.m4a ...".
            OSError: the disk is full.
        """
        self._count(samples.size)
        self.file.write(np.ascontiguousarray(samples, self.dtype).tobytes())

    def add_silence(self, size: int) -> None:
        """Append so many values of 0 in front of others; they take no place on most disks. Errors as of `add`."""
        if size:
            self._count(size)
            self.file.seek(size * _SAMPLE_BYTES, os.SEEK_CUR)

    def _count(self, size: int) -> None:
        self.num_bytes += size * _SAMPLE_BYTES
        if self._watch is not None:
            self._watch(self.num_bytes // _SAMPLE_BYTES)
        if self.num_bytes > _MOST_BYTES:
            wanted = f"at most {_MOST_BYTES >> 30} GiB of samples"
            raise DataError("is too long", wanted=wanted, remedy="convert it to FLAC, or cut it")

    def decoded(self, rate: int, num_channels: int) -> Decoded:
        """The whole file. DataError where there are no samples."""
        self.file.flush()
        self.file.truncate(self.num_bytes)  # longer, where it ends in silence
        if not self.num_bytes:
            raise DataError("holds no samples")
        return Decoded(rate, num_channels, self.num_bytes // (_SAMPLE_BYTES * num_channels), self.file, self.dtype)


_kept: OrderedDict[Hashable, Decoded] = OrderedDict()
_lock = Lock()


def num_bytes(frames: int, num_channels: int) -> int:
    """Of the temporary file of so many samples a channel."""
    return frames * num_channels * _SAMPLE_BYTES


def decode_pieces(
    pieces: Callable[[], Iterable[npt.NDArray[Any]]], rate: int, num_channels: int, dtype: str, identity: Hashable
) -> Decoded:
    """All samples of a file that something else decodes, decoded now or a moment ago.

    Args:
        pieces: gives the samples (T, channels) from the first one on; called where they are not kept.
        rate: samples a second.
        num_channels: channels.
        dtype: float32 or int32.
        identity: of the content: another one where it is changed.

    Raises:
        DataError: there are too many, or the disk is full. Its text completes "a.mp3 ...".
    """

    def written() -> Decoded:
        samples = DecodedWriter(dtype)
        for piece in pieces():
            samples.add(piece)
        return samples.decoded(rate, num_channels)

    return kept((identity, dtype), written)


def kept(identity: Hashable, decode: Callable[[], Decoded]) -> Decoded:
    """The samples of a file that were decoded a moment ago, or are now.

    Args:
        identity: of the content: another one where it is changed.
        decode: decodes them.

    Raises:
        DataError: the disk is full, or ``decode`` raises it. Its text completes "a.m4a ...".
    """
    with _lock:
        if identity in _kept:
            _kept.move_to_end(identity)
            return _kept[identity]
    try:
        decoded = decode()
    except OSError as error:
        problem = f"{DISK_PROBLEM} in {tempfile.gettempdir()} ({error.strerror})"
        raise DataError(problem, remedy="free space there, or set TMPDIR to another folder") from None
    with _lock:
        _kept[identity] = decoded
        sizes = [num_bytes(samples.frames, samples.num_channels) for samples in _kept.values()]
        while len(_kept) > KEPT_FILES or (len(_kept) > 1 and sum(sizes) > KEPT_BYTES):
            _kept.popitem(last=False)
            del sizes[0]
    return decoded


def forget(identity: Hashable) -> None:
    """Drop the samples of a content that is not needed any more; see `kept` and `decode_pieces`."""
    with _lock:
        for key in [key for key in _kept if key == identity or (isinstance(key, tuple) and key[0] == identity)]:
            del _kept[key]
