"""Samples that are decoded once, as a whole, into an unnamed temporary file, from which any part of them is read.

MP4, WebM and other files that libsndfile does not read are decoded so by PyAV, which is no dependency: only decoding
tells how many samples there are, and a part begins at its sample to the bit. Where a container says when its sound is
heard, pauses of it are silence here. No choice of parts, channels or rates here.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.audio import kinds
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


REMEDY = "pip install av (the extra formats of nemo-lite); or convert it to 16-bit WAV or FLAC"
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
_HELD_SHARE, _HELD_SECONDS = 0.01, 0.1  # by which fewer seconds than promised are no damage


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
        DataError: PyAV is not installed, there is no audio, its codec is not allowed, it is damaged, or the watch
            ends it. Its text completes "a.m4a ...".
    """
    return kept(identity, lambda: _decode(handle, kind, watch, is_behind))


def _decode(
    handle: int | io.BufferedIOBase | io.RawIOBase, kind: str, watch: Watch | None, is_behind: bool = False
) -> Decoded:
    if not kinds.has_av():
        raise DataError(f"is {kind}, which only PyAV decodes", remedy=REMEDY)
    import av

    demuxer, samples = kinds.DEMUXERS[kind], DecodedWriter(watch=watch)
    source = os.fdopen(os.dup(handle), "rb") if isinstance(handle, int) else handle
    options: dict[str, Any] = {"format": demuxer, "options": {"codec_whitelist": _CODECS}}
    if int(av.__version__.partition(".")[0]) < 19:  # later ones read tags of any encoding
        options["metadata_errors"] = "replace"
    try:
        source.seek(0)
        with source, av.open(source, "r", **options) as container:
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
                layout = frame.decoded.sample_rate, frame.decoded.layout.nb_channels
                if not rate:
                    rate, num_channels = layout
                if layout != (rate, num_channels):
                    got = f"{layout[0]} Hz, {layout[1]} channels"
                    wanted = f"{rate} Hz, {num_channels} channels, as at its beginning"
                    raise DataError("changes its sample rate or channels", got=got, wanted=wanted)
                time = frame.time if demuxer in _TIMED else None
                samples.add_silence(clock.silence_before(time, frame.num_samples, rate) * num_channels)
                samples.add(frame.samples())
                if _LEAST_LEAD_SECONDS <= frame.num_lacking / max(rate, 1) <= _MOST_GAP_SECONDS:
                    samples.add_silence(round(frame.num_lacking) * num_channels)
            decoded = samples.decoded(rate, num_channels)
            decoded.jump = clock.jump
            held, promised = decoded.frames / rate, 0.0
            if demuxer == "mov" and stream.duration and stream.time_base:
                held, promised = held - clock.lead, float(stream.duration * stream.time_base)
            elif demuxer == "matroska" and container.duration and not container.streams.video:
                held, promised = held + clock.jump, container.duration / av.time_base
            if promised - held > max(_HELD_SECONDS, _HELD_SHARE * promised):
                raise DataError(f"is damaged: {promised:.3f} s promised, {held:.3f} s could be read")
            return decoded
    except av.error.FFmpegError as error:
        raise DataError(f"is damaged ({error.strerror or error})") from None


class _DecodedFrame(NamedTuple):
    """A decoded frame.

    Attributes:
        decoded: PyAV's.
        num_samples: how many samples a channel of it are sound.
        num_lacking: how many more its packet lasts.
    """

    decoded: Any
    num_samples: int
    num_lacking: float = 0.0

    @property
    def time(self) -> float | None:
        """Seconds of the container at which it is heard; None: it does not say."""
        is_timed = self.decoded.pts is not None and self.decoded.time_base
        return float(self.decoded.pts * self.decoded.time_base) if is_timed else None

    def samples(self) -> npt.NDArray[np.float32]:
        """(T, channels)."""
        values = self.decoded.to_ndarray()
        columns = values.T if self.decoded.format.is_planar else values.reshape(-1, self.decoded.layout.nb_channels)
        floats: npt.NDArray[np.float32] = columns.astype(np.float32)
        if values.dtype == np.uint8:
            floats = (floats - 128.0) / 128.0
        elif values.dtype.kind == "i":
            floats *= np.float32(2.0 ** (1 - 8 * values.dtype.itemsize))
        return floats[: self.num_samples]


def _frames(container: Any, stream: Any, *, is_mov: bool) -> Iterator[_DecodedFrame]:
    """The frames of a stream; the last one in MP4 with as many samples as its packet says to last, or what it lacks."""
    last, lasts = None, 0.0
    for packet in container.demux(stream):
        for frame in packet.decode():
            if last is not None:
                yield _DecodedFrame(last, last.samples)
            # Not the frame's duration: from PyAV 19 on that is of what is heard of it.
            last, lasts = frame, packet.duration * packet.time_base if packet.duration else lasts
    if last is None:
        return
    count, held = last.samples, last.samples
    if is_mov and lasts:
        held = lasts * last.sample_rate
        if held.denominator == 1 and 0 < held < count:
            count = int(held)
    yield _DecodedFrame(last, count, float(held - count))
