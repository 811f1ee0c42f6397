"""Audio that is decoded once, as a whole, into an unnamed temporary file, from which any part of it is read.

MP4, WebM and other files that libsndfile does not read are decoded by PyAV, or else by ffmpeg: only decoding tells how
many samples there are, and a part begins at its sample to the bit. Neither decoder is a dependency. Where a container
says when its sound is heard, pauses of it are silence here. Files of other kinds are kept here likewise
(`decode_pieces`). No choice of parts, channels or rates here.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from threading import Lock
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_lite.base.errors import DataError

Frames: TypeAlias = "npt.NDArray[np.float32]"  # (T, channels)
Watch: TypeAlias = "Callable[[int], None]"
"""Told how many samples of all channels of a file are decoded, or are about to be; ends it by a DataError."""

# Not .ts and .mts, which are programs in most folders; a file that is named is read whatever its name is.
SUFFIXES = frozenset(
    {".m4a", ".m4b", ".mp4", ".mov", ".3gp", ".webm", ".mka", ".mkv", ".amr", ".awb", ".aac", ".wma"}
    | {".m2ts", ".avi", ".ac3", ".eac3", ".mp2"}
)
REMEDY = "pip install av (the extra formats of nemo-lite) or install ffmpeg; or convert it to 16-bit WAV or FLAC"
# By the name in messages: the first bytes, and ffmpeg's demuxer. It is named to it and never guessed: a guess may take
# a text for a playlist, and open the files and addresses in it.
_KINDS = {
    "MP4": (rb"....(?:ftyp|moov|mdat|wide|free|skip)", "mov"),
    "WebM": (rb"\x1a\x45\xdf\xa3", "matroska"),
    "AMR": (rb"#!AMR(?:-WB)?\n", "amr"),
    "AAC": (rb"\xff[\xf0\xf1\xf8\xf9]", "aac"),
    "WMA": (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    "MPEG-TS": (rb"\x47.{187}\x47|(?!RIF|ID3|\xff).{4}(?:\x47.{191}){2}\x47", "mpegts"),
    "AVI": (rb"RIFF....AVI ", "avi"),
    "AC-3": (rb"\x0b\x77...[\x00-\x57]", "ac3"),
    "E-AC-3": (rb"\x0b\x77...[\x58-\x87]", "eac3"),
    "MP2": (rb"\xff[\xe4\xe5\xf4\xf5\xfc\xfd]", "mp3"),
    # Of kinds that libsndfile reads: codecs that it does not.
    "CAF (ALAC and others)": (rb"caff....desc.{16}(?:alac|aac |ima4|samr|opus|flac|ac-3|\.mp[123])", "caf"),
    "OGG (FLAC or Speex)": (rb"OggS.{22}.{1,256}?(?:\x7fFLAC|Speex   )", "ogg"),
}
_TIMED = ("mov", "matroska", "asf", "mpegts", "avi")  # say when a packet is heard; the others are frames end to end
_FROM_ZERO = ("mov", "matroska")  # the time of the others begins anywhere
_LEAST_GAP_SECONDS = 0.015  # a lost packet lasts 20 ms; Matroska rounds to 1 ms, and clocks of recorders tremble
_LEAST_LEAD_SECONDS = 0.1  # encoders' delays are less
_MOST_GAP_SECONDS = 3600.0  # a longer one is a jump of the clock
_LEAST_JUMP_SECONDS = 1.0  # back in time, as of joined files
_CODECS = (
    "aac,aac_latm,alac,flac,mp3,mp3float,mp2,mp2float,opus,libopus,vorbis,libvorbis,amrnb,amrwb,libopencore_amrnb,"
    "libopencore_amrwb,wmav1,wmav2,wmapro,wmalossless,ac3,eac3,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s32le,pcm_f32le,"
    "pcm_alaw,pcm_mulaw,pcm_u8,adpcm_ima_qt,adpcm_ima_wav,adpcm_ms,speex,libspeex"
)
KINDS = tuple(kind for kind in _KINDS if "(" not in kind)
_KIND = re.compile(b"|".join(b"(%b)" % pattern for pattern, _ in _KINDS.values()), re.DOTALL)
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
# Of the file: a film's pictures may last longer.
_LENGTH = re.compile(r"Duration: (\d+):(\d\d):(\d\d\.\d+)(?:, start: (-?\d+\.\d+))?")
_FRAME = re.compile(rb"ashowinfo.* pts:(-?\d+|NOPTS) .* rate:(\d+) nb_samples:(\d+) ")
_MOST_TOLD = 10_000  # lines of messages
_PICTURES = "Video:"
_MOST_BOXES = 1000  # of an MP4 file that are looked at; a fragmented one has two for each second, behind its index
_HELD_SHARE, _HELD_SECONDS = 0.01, 0.1  # by which fewer seconds than promised are no damage


def kind_of_container(start: bytes) -> str | None:
    """MP4, WebM, AMR, ..., by the first bytes of a file; None: another kind, which libsndfile may read."""
    match = _KIND.match(start)
    return None if match is None else tuple(_KINDS)[(match.lastindex or 1) - 1]


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

    def cut(self, size: int) -> None:
        """Forget samples behind so many values, where they are no more than an encoder fills its last packet with."""
        if 0 < self.num_bytes // _SAMPLE_BYTES - size < _MOST_FILLED:
            self.num_bytes = size * _SAMPLE_BYTES
            self.file.seek(self.num_bytes)

    def decoded(self, rate: int, num_channels: int) -> Decoded:
        """The whole file. DataError where there are no samples."""
        self.file.flush()
        self.file.truncate(self.num_bytes)  # longer, where it ends in silence
        if not self.num_bytes:
            raise DataError("holds no samples")
        return Decoded(rate, num_channels, self.num_bytes // (_SAMPLE_BYTES * num_channels), self.file, self.dtype)


def _silence_behind(num_lacking: float, rate: int) -> int:
    """Samples of silence behind the last frame, where its packet lasts so many samples longer than it."""
    return round(num_lacking) if _LEAST_LEAD_SECONDS <= num_lacking / max(rate, 1) <= _MOST_GAP_SECONDS else 0


class _Clock:
    """Where the frames of a container lie, by its times.

    Args:
        zero: seconds of the container at which a recording begins; None: with its first sound.

    Attributes:
        lead: seconds of silence in front of the first sound.
        jump: seconds of times that jump, and are no silence.
    """

    def __init__(self, zero: float | None) -> None:
        self._zero, self._position, self._first = zero, 0, 0.0
        self._is_started = False
        self.lead = self.jump = 0.0

    def silence_before(self, time: float | None, count: int, rate: int) -> int:
        """How many samples of silence come before a frame.

        Args:
            time: seconds at which it is heard; None: the container does not say.
            count: samples in it.
            rate: samples a second.
        """
        gap = 0
        if time is not None:
            if not self._is_started:
                self._is_started = True
                lead = 0.0 if self._zero is None else time - self._zero
                self.lead = lead if _LEAST_LEAD_SECONDS <= lead <= _MOST_GAP_SECONDS else 0.0
                self.jump = max(lead - _MOST_GAP_SECONDS, 0.0) and lead
                gap = round(self.lead * rate)
                self._first = time - (self._position + gap) / rate
            else:
                late = time - self._first - self._position / rate
                if late > _MOST_GAP_SECONDS or late < -_LEAST_JUMP_SECONDS:
                    self.jump += max(late, 0.0)
                    self._first += late
                elif late >= _LEAST_GAP_SECONDS:
                    gap = round(late * rate)
        self._position += gap + count
        return gap


_kept: OrderedDict[Hashable, Decoded] = OrderedDict()
_lock = Lock()


def num_bytes(frames: int, num_channels: int) -> int:
    """Of the temporary file of so many samples a channel."""
    return frames * num_channels * _SAMPLE_BYTES


def decode(
    handle: int | io.BufferedIOBase | io.RawIOBase,
    kind: str,
    identity: Hashable,
    watch: Watch | None = None,
    *,
    is_behind: bool = False,
) -> Decoded:
    """All samples of a file, decoded now or a moment ago.

    Args:
        handle: a descriptor, or the content.
        kind: see `kind_of_container`.
        identity: of the content: another one where it is changed.
        watch: may end it.
        is_behind: it follows another recording, so it begins with its sound, whatever its time is.

    Raises:
        DataError: no decoder is installed, there is no audio, its codec is not allowed, it is damaged, or the watch
            ends it. Its text completes "a.m4a ...".
    """
    return _kept_or(identity, lambda: _decode(handle, kind, watch, is_behind))


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


def _decode(
    handle: int | io.BufferedIOBase | io.RawIOBase, kind: str, watch: Watch | None, is_behind: bool = False
) -> Decoded:
    _, demuxer = _KINDS[kind]
    if has_av():
        return _decode_with_av(handle, demuxer, watch, is_behind)
    if (program := shutil.which("ffmpeg")) is not None:
        return _decode_with_ffmpeg(program, handle, demuxer, watch, is_behind)
    raise DataError(f"is {kind}, which only PyAV and ffmpeg decode", remedy=REMEDY)


# PyAV: FFmpeg's libraries as a wheel.


def _decode_with_av(
    handle: int | io.BufferedIOBase | io.RawIOBase, demuxer: str, watch: Watch | None, is_behind: bool
) -> Decoded:
    import av

    samples = _Samples(watch=watch)
    source = os.fdopen(os.dup(handle), "rb") if isinstance(handle, int) else handle
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
            begin = (container.start_time or 0) / av.time_base
            clock = _Clock(None if is_behind else 0.0 if demuxer in _FROM_ZERO else begin)
            rate, num_channels = 0, 0
            for frame in _frames(container, stream, is_mov=demuxer == "mov"):
                if not rate:
                    rate, num_channels = frame.rate, frame.num_channels
                if (frame.rate, frame.num_channels) != (rate, num_channels):
                    got = f"{frame.rate} Hz, {frame.num_channels} channels"
                    wanted = f"{rate} Hz, {num_channels} channels, as at its beginning"
                    raise DataError("changes its sample rate or channels", got=got, wanted=wanted)
                time = frame.time if demuxer in _TIMED else None
                gap = clock.silence_before(time, len(frame.samples), rate)
                samples.add_silence(gap * num_channels)
                samples.add(frame.samples)
                samples.add_silence(_silence_behind(frame.num_lacking, rate) * num_channels)
            decoded = samples.decoded(rate, num_channels)
            decoded.jump = clock.jump
            held = decoded.frames / rate
            if demuxer == "mov" and stream.duration and stream.time_base:
                _check_promise(held - clock.lead, float(stream.duration * stream.time_base))
            elif demuxer == "matroska" and container.duration and not container.streams.video:
                _check_promise(held + clock.jump, container.duration / av.time_base)
            return decoded
    except av.error.FFmpegError as error:
        raise DataError(f"is damaged ({error.strerror or error})") from None


@dataclass
class _Frame:
    samples: Frames
    rate: int
    num_channels: int
    time: float | None
    num_lacking: float = 0.0


def _frames(container: Any, stream: Any, *, is_mov: bool) -> Iterator[_Frame]:
    """The frames of a stream; the last one in MP4 with as many samples as its packet says to last, or what it lacks."""
    last = None
    for frame in container.decode(stream):
        if last is not None:
            yield _frame_of(last, last.samples)
        last = frame
    if last is None:
        return
    count, held = last.samples, last.samples
    if is_mov and last.duration and last.time_base:
        held = last.duration * last.time_base * last.sample_rate
        if held.denominator == 1 and 0 < held < count:
            count = int(held)
    frame = _frame_of(last, count)
    frame.num_lacking = float(held - count)
    yield frame


def _frame_of(frame: Any, count: int) -> _Frame:
    values, num_channels = frame.to_ndarray(), frame.layout.nb_channels
    columns = values.T if frame.format.is_planar else values.reshape(-1, num_channels)
    floats = columns.astype(np.float32)
    if values.dtype == np.uint8:
        floats = (floats - 128.0) / 128.0
    elif values.dtype.kind == "i":
        floats *= np.float32(2.0 ** (1 - 8 * values.dtype.itemsize))
    time = None if frame.pts is None or not frame.time_base else float(frame.pts * frame.time_base)
    return _Frame(floats[:count], frame.sample_rate, num_channels, time)


def _check_promise(held: float, promised: float) -> None:
    if promised - held > max(_HELD_SECONDS, _HELD_SHARE * promised):
        raise DataError(f"is damaged: {promised:.3f} s promised, {held:.3f} s could be read")


# The command ffmpeg, where PyAV is not installed. It writes an AU file of floats into a pipe.


def _decode_with_ffmpeg(
    program: str,
    handle: int | io.BufferedIOBase | io.RawIOBase,
    demuxer: str,
    watch: Watch | None,
    is_behind: bool,
) -> Decoded:
    samples = _Samples(watch=watch)
    temporary = tempfile.TemporaryFile
    with temporary() as content, temporary() as messages, temporary() as packets:
        if not isinstance(handle, int):
            handle.seek(0)
            shutil.copyfileobj(handle, content, _READ_BYTES)
            content.flush()
        descriptor = handle if isinstance(handle, int) else content.fileno()
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
        command += ["-map", "0:a:0", "-vn", "-c:a", "pcm_f32be"]
        if demuxer in _TIMED:  # a line for each frame, with its time as the container has it
            command += ["-copyts", "-af", "ashowinfo"]
        command += ["-f", "au", "pipe:1"]
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
        told = _told(messages)
        errors = [line for line in told if "[error]" in line or "[fatal]" in line]
        if process.returncode or any(_PARTIAL in line for line in errors):
            reason = errors[0].rpartition("] ")[2] if errors else "ffmpeg failed"
            raise DataError(f"is damaged, or holds no audio ({reason})")
        begin = next((float(match[4]) for match in map(_LENGTH.search, told) if match and match[4]), 0.0)
        clock = _Clock(None if is_behind else 0.0 if demuxer in _FROM_ZERO else begin)
        gaps: list[tuple[int, int]] = []  # the sample in front of which silence belongs, and how much
        position = 0
        for time, count in _frame_times(messages):
            if gap := clock.silence_before(time, count, rate):
                gaps.append((position, gap))
            position += count
        if demuxer == "mov" and rate:
            lasting = _num_lasting(packets, rate) - sum(gap for at, gap in gaps if at) - round(clock.jump * rate)
            samples.cut(lasting * num_channels)
            samples.add_silence(_silence_behind(lasting - position, rate) * num_channels)
    decoded = samples.decoded(rate, num_channels)
    if gaps:
        decoded = _with_gaps(decoded, gaps)
    decoded.jump = clock.jump
    length = next(filter(None, map(_LENGTH.search, told)), None)
    if demuxer in ("mov", "matroska") and length and not any(_PICTURES in line for line in told):
        hours, minutes, seconds = (float(length[number]) for number in (1, 2, 3))
        _check_promise(decoded.frames / rate + decoded.jump, hours * 3600 + minutes * 60 + seconds)
    return decoded


def _told(messages: IO[bytes]) -> list[str]:
    """What ffmpeg wrote, without its lines about frames."""
    messages.seek(0)
    lines = (line for line in messages if not _FRAME.search(line))
    return [line.decode("utf-8", "replace").rstrip() for line in itertools.islice(lines, _MOST_TOLD)]


def _frame_times(messages: IO[bytes]) -> Iterator[tuple[float | None, int]]:
    """Of each frame that ffmpeg decoded its time in seconds, and its length."""
    messages.seek(0)
    for match in filter(None, map(_FRAME.search, messages)):
        yield None if match[1] == b"NOPTS" else int(match[1]) / int(match[2]), int(match[3])


def _with_gaps(decoded: Decoded, gaps: Sequence[tuple[int, int]]) -> Decoded:
    """The same with silence in front of some samples."""
    samples, first = _Samples(), 0
    for at, gap in (*gaps, (decoded.frames, 0)):
        while first < at:
            piece = decoded.read(first, min(at - first, _READ_BYTES))
            samples.add(piece)
            first += len(piece)
        samples.add_silence(gap * decoded.num_channels)
    decoded.file.close()
    return samples.decoded(decoded.rate, decoded.num_channels)


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
