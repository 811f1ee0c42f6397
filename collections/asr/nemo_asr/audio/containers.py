"""Audio that is decoded once, as a whole, into an unnamed temporary file, from which any part of it is read.

MP4, WebM, AMR, AAC and WMA files, which libsndfile does not read, are decoded by PyAV, or else by ffmpeg: only decoding
tells how many samples there are, and a part begins at its sample to the bit. Neither decoder is a dependency. Files of
other kinds are kept here likewise (`decode_pieces`). No choice of parts, channels or rates here.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from threading import Lock
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_lite.errors import DataError

Frames: TypeAlias = "npt.NDArray[np.float32]"  # (T, channels)
Watch: TypeAlias = "Callable[[int], None]"
"""Told how many samples of all channels of a file are decoded, or are about to be; ends it by a DataError."""

SUFFIXES = frozenset({".m4a", ".m4b", ".mp4", ".mov", ".3gp", ".webm", ".mka", ".mkv", ".amr", ".awb", ".aac", ".wma"})
REMEDY = "pip install av (the extra formats of nemo-lite) or install ffmpeg; or convert it to 16-bit WAV or FLAC"
# By the name in messages: the first bytes, and ffmpeg's demuxer. It is named to it and never guessed: a guess may take
# a text for a playlist, and open the files and addresses in it.
_KINDS = {
    "MP4": (rb"....(?:ftyp|moov|mdat|wide|free|skip)", "mov"),
    "WebM": (rb"\x1a\x45\xdf\xa3", "matroska"),
    "AMR": (rb"#!AMR(?:-WB)?\n", "amr"),
    "AAC": (rb"\xff[\xf0\xf1\xf8\xf9]", "aac"),
    "WMA": (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
}
_CODECS = (
    "aac,aac_latm,alac,flac,mp3,mp3float,mp2,mp2float,opus,libopus,vorbis,libvorbis,amrnb,amrwb,libopencore_amrnb,"
    "libopencore_amrwb,wmav1,wmav2,wmapro,wmalossless,ac3,eac3,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s32le,pcm_f32le,"
    "pcm_alaw,pcm_mulaw,adpcm_ima_qt,adpcm_ms"
)
KINDS = tuple(_KINDS)
DISK_PROBLEM = "cannot be decoded into a temporary file"
"""In the message about a disk that is full."""
_SAMPLE_BYTES = 4
_MOST_BYTES = 1 << 35  # of one file, decoded: 25 hours of two channels at 48 kHz
KEPT_BYTES = 1 << 32  # of decoded files that are kept, as a recording is measured, cut and read one after the other
KEPT_FILES = 256
_AU_HEAD_BYTES = 24
_AU_FLOATS = 6
_READ_BYTES = 1 << 20
_MOST_FILLED = 4096  # values: a packet of AAC has 1,024 or 2,048 samples a channel
_PARTIAL = "partial file"  # ffmpeg's words for a file that ends early, which it takes for its end
_LENGTH = re.compile(r"Duration: (\d+):(\d\d):(\d\d\.\d+)")  # of the file: a film's pictures may last longer
_PICTURES = "Video:"
_MOST_BOXES = 1000  # of an MP4 file that are looked at; a fragmented one has two for each second, behind its index
_HELD_SHARE, _HELD_SECONDS = 0.01, 0.1  # by which fewer seconds than promised are no damage


def kind_of_container(start: bytes) -> str | None:
    """MP4, WebM, AMR, AAC or WMA, by the first bytes of a file; None: another kind."""
    return next((kind for kind, (pattern, _) in _KINDS.items() if re.match(pattern, start, re.DOTALL)), None)


def has_decoder() -> bool:
    """Whether PyAV or ffmpeg is installed."""
    return has_av() or shutil.which("ffmpeg") is not None


def has_av() -> bool:
    """Whether PyAV is installed."""
    return find_spec("av") is not None


@dataclass
class Decoded:
    """The samples of a file, all decoded.

    Attributes:
        rate: samples a second.
        num_channels: channels.
        frames: samples a channel.
        file: where they are, all channels of a moment together; closed with the last reference to it.
        dtype: of a sample, which has four bytes: float32 or int32.
    """

    rate: int
    num_channels: int
    frames: int
    file: IO[bytes]
    dtype: str = "float32"

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


class _Samples:
    """The temporary file while it is written."""

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
        self.num_bytes += samples.size * _SAMPLE_BYTES
        if self._watch is not None:
            self._watch(self.num_bytes // _SAMPLE_BYTES)
        if self.num_bytes > _MOST_BYTES:
            wanted = f"at most {_MOST_BYTES >> 30} GiB of samples"
            raise DataError("is too long", wanted=wanted, remedy="convert it to FLAC, or cut it")
        self.file.write(np.ascontiguousarray(samples, self.dtype).tobytes())

    def cut(self, size: int) -> None:
        """Forget samples behind so many values, where they are no more than an encoder fills its last packet with."""
        if 0 < self.num_bytes // _SAMPLE_BYTES - size < _MOST_FILLED:
            self.num_bytes = size * _SAMPLE_BYTES

    def decoded(self, rate: int, num_channels: int) -> Decoded:
        """The whole file. DataError where there are no samples."""
        self.file.flush()
        if not self.num_bytes:
            raise DataError("holds no samples")
        return Decoded(rate, num_channels, self.num_bytes // (_SAMPLE_BYTES * num_channels), self.file, self.dtype)


_kept: OrderedDict[Hashable, Decoded] = OrderedDict()
_lock = Lock()


def num_bytes(frames: int, num_channels: int) -> int:
    """Of the temporary file of so many samples a channel."""
    return frames * num_channels * _SAMPLE_BYTES


def decode(handle: int | io.BytesIO, kind: str, identity: Hashable, watch: Watch | None = None) -> Decoded:
    """All samples of a file, decoded now or a moment ago.

    Args:
        handle: a descriptor, or the content.
        kind: see `kind_of_container`.
        identity: of the content: another one where it is changed.
        watch: may end it.

    Raises:
        DataError: no decoder is installed, there is no audio, its codec is not allowed, it is damaged, or the watch
            ends it. Its text completes "a.m4a ...".
    """
    return _kept_or(identity, lambda: _decode(handle, kind, watch))


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
        samples = _Samples(dtype)
        for piece in pieces():
            samples.add(piece)
        return samples.decoded(rate, num_channels)

    return _kept_or((identity, dtype), written)


def _kept_or(identity: Hashable, decode: Callable[[], Decoded]) -> Decoded:
    with _lock:
        if identity in _kept:
            _kept.move_to_end(identity)
            return _kept[identity]
    with _disk_errors():
        decoded = decode()
    with _lock:
        _kept[identity] = decoded
        while len(_kept) > KEPT_FILES or (len(_kept) > 1 and _num_kept_bytes() > KEPT_BYTES):
            _kept.popitem(last=False)
    return decoded


def forget(identity: Hashable) -> None:
    """Drop the samples of a content that is not needed any more; see `decode` and `decode_pieces`."""
    with _lock:
        for key in [key for key in _kept if key == identity or (isinstance(key, tuple) and key[0] == identity)]:
            del _kept[key]


@contextmanager
def _disk_errors() -> Iterator[None]:
    """A full disk as DataError."""
    try:
        yield
    except OSError as error:
        problem = f"{DISK_PROBLEM} in {tempfile.gettempdir()} ({error.strerror})"
        raise DataError(problem, remedy="free space there, or set TMPDIR to another folder") from None


def _num_kept_bytes() -> int:
    return sum(num_bytes(decoded.frames, decoded.num_channels) for decoded in _kept.values())


def check_boxes(read_at: Callable[[int, int], bytes], size: int) -> None:
    """See that an MP4 file has its index, and the samples that its boxes promise. Source: ISO/IEC 14496-12, 4.2.

    The decoders say "invalid data" of both.

    Args:
        read_at: (number of bytes, position) -> bytes, as ``os.pread``.
        size: bytes of the file.

    Raises:
        DataError: one is missing. Its text completes "a.m4a ...".
    """
    position, has_index = 0, False
    for _ in range(_MOST_BOXES):
        if position >= size:
            break
        length, name, longer = struct.unpack(">I4sQ", read_at(16, position).ljust(16, b"\0"))
        length = {0: size - position, 1: longer}.get(length, length)
        if name in (b"moov", b"mdat") and position + length > size:
            problem = f"is damaged: {position + length} bytes promised, {size} are there"
            raise DataError(problem, remedy="copy it anew: its end is missing")
        has_index |= name == b"moov"
        position += max(length, 8)
    if position >= size and not has_index:
        problem = "is damaged: the index of its samples (moov) is missing"
        raise DataError(problem, remedy="copy it anew; a recording that was broken off may never have had it")


def _decode(handle: int | io.BytesIO, kind: str, watch: Watch | None) -> Decoded:
    _, demuxer = _KINDS[kind]
    if has_av():
        return _decode_with_av(handle, demuxer, watch)
    if (program := shutil.which("ffmpeg")) is not None:
        return _decode_with_ffmpeg(program, handle, demuxer, watch)
    raise DataError(f"is {kind}, which only PyAV and ffmpeg decode", remedy=REMEDY)


# PyAV: FFmpeg's libraries as a wheel.


def _decode_with_av(handle: int | io.BytesIO, demuxer: str, watch: Watch | None) -> Decoded:
    import av

    samples = _Samples(watch=watch)
    source = handle if isinstance(handle, io.BytesIO) else os.fdopen(os.dup(handle), "rb")
    options = {"codec_whitelist": _CODECS}
    try:
        source.seek(0)
        with source, av.open(source, "r", format=demuxer, options=options, metadata_errors="replace") as container:
            if not container.streams.audio:
                raise DataError("holds no audio")
            stream = container.streams.audio[0]
            if stream.codec_context is None or stream.codec_context.name not in _CODECS.split(","):
                name = stream.codec_context.name if stream.codec_context else "unknown"
                raise DataError(f"has the codec {name}", remedy="convert it to 16-bit WAV or FLAC")
            stream.codec_context.thread_count = 1
            rate, num_channels = 0, 0
            for frame in _frames(container, stream, is_mov=demuxer == "mov"):
                if not rate:
                    rate, num_channels = frame.rate, frame.num_channels
                if (frame.rate, frame.num_channels) != (rate, num_channels):
                    got = f"{frame.rate} Hz, {frame.num_channels} channels"
                    wanted = f"{rate} Hz, {num_channels} channels, as at its beginning"
                    raise DataError("changes its sample rate or channels", got=got, wanted=wanted)
                samples.add(frame.samples)
            decoded = samples.decoded(rate, num_channels)
            if demuxer == "mov" and stream.duration and stream.time_base:
                _check_promise(decoded.frames / rate, float(stream.duration * stream.time_base))
            elif demuxer == "matroska" and container.duration and not container.streams.video:
                _check_promise(decoded.frames / rate, container.duration / av.time_base)
            return decoded
    except av.error.FFmpegError as error:
        raise DataError(f"is damaged ({error.strerror or error})") from None


@dataclass
class _Frame:
    samples: Frames
    rate: int
    num_channels: int


def _frames(container: Any, stream: Any, *, is_mov: bool) -> Iterator[_Frame]:
    """The frames of a stream; of the last one in MP4 only as many samples as its packet says to last."""
    last = None
    for frame in container.decode(stream):
        if last is not None:
            yield _frame_of(last, last.samples)
        last = frame
    if last is None:
        return
    count = last.samples
    if is_mov and last.duration and last.time_base:
        held = last.duration * last.time_base * last.sample_rate
        if held.denominator == 1 and 0 < held < count:
            count = int(held)
    yield _frame_of(last, count)


def _frame_of(frame: Any, count: int) -> _Frame:
    values, num_channels = frame.to_ndarray(), frame.layout.nb_channels
    columns = values.T if frame.format.is_planar else values.reshape(-1, num_channels)
    floats = columns.astype(np.float32)
    if values.dtype == np.uint8:
        floats = (floats - 128.0) / 128.0
    elif values.dtype.kind == "i":
        floats *= np.float32(2.0 ** (1 - 8 * values.dtype.itemsize))
    return _Frame(floats[:count], frame.sample_rate, num_channels)


def _check_promise(held: float, promised: float) -> None:
    if promised - held > max(_HELD_SECONDS, _HELD_SHARE * promised):
        raise DataError(f"is damaged: {promised:.3f} s promised, {held:.3f} s could be read")


# The command ffmpeg, where PyAV is not installed. It writes an AU file of floats into a pipe.


def _decode_with_ffmpeg(program: str, handle: int | io.BytesIO, demuxer: str, watch: Watch | None) -> Decoded:
    samples = _Samples(watch=watch)
    temporary = tempfile.TemporaryFile
    with temporary() as content, temporary() as messages, temporary() as packets:
        if isinstance(handle, io.BytesIO):
            content.write(handle.getvalue())
            content.flush()
        descriptor = content.fileno() if isinstance(handle, io.BytesIO) else handle
        command = [
            program,
            "-nostdin",
            "-hide_banner",
            "-nostats",
            "-v",
            "level+info",
            "-xerror",
            "-threads",
            "1",
            "-protocol_whitelist",
            "file,pipe",
        ]
        command += ["-codec_whitelist", _CODECS, "-f", demuxer, "-i", f"file:/dev/fd/{descriptor}"]
        command += ["-map", "0:a:0", "-vn", "-c:a", "pcm_f32be", "-f", "au", "pipe:1"]
        if demuxer == "mov":  # beside the samples, a line for each packet
            command += ["-y", "-map", "0:a:0", "-c", "copy", "-f", "framecrc", f"file:/dev/fd/{packets.fileno()}"]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            pass_fds=(descriptor, packets.fileno()),
        ) as process:
            assert process.stdout is not None
            try:
                rate, num_channels = _copy_au(process.stdout, samples)
            except BaseException:
                process.kill()
                raise
        messages.seek(0)
        told = messages.read(_READ_BYTES).decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in told if "[error]" in line or "[fatal]" in line]
        if process.returncode or any(_PARTIAL in line for line in errors):
            reason = errors[0].rpartition("] ")[2] if errors else "ffmpeg failed"
            raise DataError(f"is damaged, or holds no audio ({reason})")
        if demuxer == "mov" and rate:
            samples.cut(_num_lasting(packets, rate) * num_channels)
    decoded = samples.decoded(rate, num_channels)
    length = next(filter(None, map(_LENGTH.search, told)), None)
    if demuxer in ("mov", "matroska") and length and not any(_PICTURES in line for line in told):
        hours, minutes, seconds = map(float, length.groups())
        _check_promise(decoded.frames / rate, hours * 3600 + minutes * 60 + seconds)
    return decoded


def _num_lasting(packets: IO[bytes], rate: int) -> int:
    """Samples that the packets of a stream last by their times; decoders before FFmpeg 6 fill the last packet.

    Args:
        packets: a file of ffmpeg's muxer framecrc, with a line "stream, dts, pts, duration, ..." for each packet.
        rate: samples a second.
    """
    size = packets.seek(0, os.SEEK_END)
    packets.seek(0)
    head = packets.read(_READ_BYTES).decode("ascii", "replace")
    packets.seek(max(size - _READ_BYTES, 0))
    last = packets.read().decode("ascii", "replace").splitlines()[-1:]
    unit = re.search(r"^#tb 0: (\d+/\d+)$", head, re.MULTILINE)
    first = re.search(r"^0, *-?\d+, *(-?\d+),", head, re.MULTILINE)
    end = re.match(r"0, *-?\d+, *(-?\d+), *(\d+),", last[0]) if last else None
    if not (unit and first and end):
        return 0
    # Times before 0 are what decoders leave out at the beginning.
    return round((int(end[1]) + int(end[2]) - max(int(first[1]), 0)) * Fraction(unit[1]) * rate)


def _copy_au(stream: IO[bytes], samples: _Samples) -> tuple[int, int]:
    """Copy the samples of an AU file; its rate and channels, 0 where it ends within its head."""
    head = stream.read(_AU_HEAD_BYTES)
    if len(head) < _AU_HEAD_BYTES:
        return 0, 0
    magic, first, _, encoding, rate, num_channels = struct.unpack(">4sIIIII", head)
    if magic != b".snd" or encoding != _AU_FLOATS or not rate or not num_channels:
        raise DataError("cannot be decoded (ffmpeg wrote no AU file of floats)")
    stream.read(first - _AU_HEAD_BYTES)
    frame_bytes, pending = _SAMPLE_BYTES * num_channels, b""
    while some := stream.read(_READ_BYTES):
        pending += some
        size = len(pending) // frame_bytes * frame_bytes
        samples.add(np.frombuffer(pending[:size], ">f4"))
        pending = pending[size:]
    return rate, num_channels
