"""Opens audio files, a path or the content of a file, after a look at what it is; and their samples in pieces.

Before the decoder sees anything, the file has to be a regular one with a sound head (`check_head`).

libsndfile takes the end of a file for the end of the samples and may hand out fewer without an error: what was read is
compared with what the head promises, which its log of the head has.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, partial
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile

from nemo_asr.run.audio.decoded import Decoded, Watch, decode, decode_pieces, forget, num_bytes
from nemo_asr.run.audio.flac import check_flac
from nemo_asr.run.audio.heads import check_adpcm, check_boxes, ends_ogg, parts_of
from nemo_asr.run.audio.kinds import (
    CONTAINER_KINDS,
    KINDS,
    FilePart,
    ReadAt,
    Stretch,
    is_small_lack,
    kind_of,
    kind_of_container,
)
from nemo_lite.base.errors import DataError, counted
from nemo_lite.base.files import FileKind, open_descriptor
from nemo_lite.base.nemo_logging import LogMode, logging

Samples: TypeAlias = "npt.NDArray[np.float32]"

REMEDY = "convert it to 16-bit WAV or FLAC"
# libsndfile's names of the allowed codecs, and the bytes of a sample where each has as many.
SAMPLE_BYTES = {"PCM_S8": 1, "PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
SAMPLE_BYTES |= {"ULAW": 1, "ALAW": 1}
_IN_BLOCKS = ("MS_ADPCM", "IMA_ADPCM")
# Their decoders have a memory: behind a seek, libsndfile gives samples that differ from those of the whole, by up to
# 4e-3 with libsndfile 1.2.2, and an MP3 file is searched from its beginning for each.
_WITH_MEMORY = frozenset({"VORBIS", "OPUS", "MPEG_LAYER_III"})
SUBTYPES = frozenset({*SAMPLE_BYTES, *_IN_BLOCKS, *_WITH_MEMORY})

# Samples of all channels that may be decoded into one array: an hour of two channels at 96 kHz, or of twelve at 16 kHz.
MAX_VALUES = 2 * 96000 * 3600
# Floats of full scale 1 never come near; 32-bit whole numbers that were stored as floats reach it. The powers of larger
# ones leave the range of float32 in a spectrum.
MAX_AMPLITUDE = 2.0**31
_PIECE_VALUES = 1 << 21  # samples of all channels that are decoded at a time: 2 minutes of one channel at 16 kHz
_RATES = (1000, 768_000)
# A size in libsndfile's log of the head, and the one that the file has where that is another.
_SIZE = re.compile(r"^ *(data|SSND|Data [Ss]ize|Block Align|Samples/Block) *: (\d+)(?: \(should be (\d+)\))?$", re.M)
# A program that writes into a pipe cannot know the size. sox writes 0x7FFFF000, arecord 0x80000000, ffmpeg 0xFFFFFFFF.
_LEAST_UNKNOWN_SIZE, _MOST_UNKNOWN_SIZE = 0x7F000000, 0xFFFFFFFF
_SPHERE_COUNT = re.compile(rb"\nsample_count -i (\d{1,18})\n")
_SPHERE_BYTES = 1024
_W64_CHUNK_BYTES = 24  # of the head of a chunk, which its size counts as well


class AudioFile:
    """An open audio file.

    Args:
        file: libsndfile's.
        kind: WAV, FLAC, ...: see `check_head`.
        read_at: reads its bytes.
        size: how many it has.
        path: what messages call it.
        place: where it is named.

    Attributes:
        rate: samples a second.
        num_channels: channels.
        frames: samples a channel.
        has_16_bits: its samples are whole numbers of 16 bits.
        decoded_bytes: of the temporary file from which its parts are read; 0: they are read from the file.
        watch: may end the reading; None: nothing does.

    Raises:
        DataError: its codec, rate or number of samples is not usable, or its head promises more than there is.
    """

    watch: Watch | None = None

    def __init__(self, file: soundfile.SoundFile, kind: str, read_at: ReadAt, size: int, path: str, place: str) -> None:
        self._file, self.kind, self.path, self.place = file, kind, path, place
        self.rate, self.num_channels, self.frames = file.samplerate, file.channels, file.frames
        self._subtype = file.subtype  # once: it is looked up anew each time
        self.has_16_bits = self._subtype == "PCM_16"
        self.decoded_bytes = 0
        if self._subtype not in SUBTYPES or (self._subtype in _IN_BLOCKS and kind not in ("WAV", "W64")):
            raise self.refusal(f"has the codec {self._subtype}", remedy=REMEDY)
        self._check_rate()
        self._compare_sizes(size)
        if kind == "SPHERE" and (count := _SPHERE_COUNT.search(read_at(_SPHERE_BYTES, 0))):
            self._promise(int(count[1]))
        if self.frames <= 0:
            raise self.refusal("holds no samples")

    def _check_rate(self) -> None:
        if not _RATES[0] <= self.rate <= _RATES[1]:
            raise self.refusal(f"claims {self.rate} samples a second", wanted=f"{_RATES[0]} to {_RATES[1]}")

    def _compare_sizes(self, file_bytes: int) -> None:
        """Compare the sizes in the head with those of the file and of its codec."""
        sizes = {
            name: (int(stated), int(held or stated)) for name, stated, held in _SIZE.findall(self._file.extra_info)
        }
        frame_bytes, _ = sizes.get("Block Align", (0, 0))
        samples_per_block, _ = sizes.get("Samples/Block", (1, 1))
        codec_bytes = self.num_channels * SAMPLE_BYTES.get(self._subtype, 0)
        if "Block Align" in sizes and codec_bytes not in (0, frame_bytes):
            got, wanted = f"{frame_bytes} bytes", f"{codec_bytes}, as {self._subtype} has"
            raise self.refusal("is damaged: its samples have another size (block align)", got=got, wanted=wanted)
        in_a_second = self.rate * (codec_bytes or frame_bytes / max(1, samples_per_block))
        for name in ("data", "SSND", "Data Size"):
            stated, held = sizes.get(name, (0, 0))
            is_unknown = _LEAST_UNKNOWN_SIZE <= stated <= _MOST_UNKNOWN_SIZE
            if held < stated and not is_unknown and not is_small_lack(stated - held, stated, in_a_second):
                raise self.refusal(f"is damaged: {stated} bytes of samples promised, {held} are there")
        in_rf64, _ = sizes.get("Data size", (0, 0))
        if in_rf64 > file_bytes:
            raise self.refusal(f"is damaged: {in_rf64} bytes of samples promised, {file_bytes} are there")
        if self.kind == "W64":  # of which libsndfile takes all to the end of the file for samples
            self._promise((sizes["data"][0] - _W64_CHUNK_BYTES) // frame_bytes * samples_per_block)
        elif self._subtype in _IN_BLOCKS:
            # Of a block that is not whole the decoder would make samples of what an earlier one left behind.
            self.frames = min(self.frames, sizes["data"][1] // frame_bytes * samples_per_block)

    def _promise(self, frames: int) -> None:
        """Take the number of samples from the head; DataError where libsndfile finds fewer, but for 0.1 s."""
        if not is_small_lack(frames - self.frames, frames, self.rate):
            raise self.refusal(f"is damaged: {frames} samples promised, {self.frames} are there")
        self.frames = min(self.frames, frames)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return float(self.frames / self.rate)

    def refusal(self, problem: str, *, got: str = "", wanted: str = "", remedy: str = "") -> DataError:
        """The error about this file."""
        return DataError(f"{self.path} {problem}", place=self.place, got=got, wanted=wanted, remedy=remedy)

    def pieces(
        self,
        first: int,
        count: int,
        *,
        channel: int | None = None,
        int_values: bool = False,
        observe: Callable[[Samples], None] | None = None,
    ) -> Iterator[Samples]:
        """Mono samples from ``first`` on, ``count`` in all, a piece at a time; few are one piece.

        Args:
            first: the first sample.
            count: how many, within the file.
            channel: which one, from 0; None: the average of all.
            int_values: read through 32-bit integers.
            observe: gets the samples (T, channels) of each piece before they become one channel.

        Raises:
            DataError: there are fewer, or some are NaN, infinite or beyond ``MAX_AMPLITUDE``; or the watch ends it.
        """
        if first:
            self._seek(first)
        are_floats = self._subtype in ("FLOAT", "DOUBLE")
        # numpy makes the same floats of 16-bit samples as libsndfile does; reading a batch then takes half the time.
        # Stored floats are never read as whole numbers: libsndfile does not scale them, and all below 1 would be 0.
        dtype = "int16" if self.has_16_bits else "int32" if int_values and not are_floats else "float32"
        most, done = max(1, _PIECE_VALUES // self.num_channels), 0
        while done < count:
            wanted = min(most, count - done)
            if self.watch is not None:
                self.watch((done + wanted) * self.num_channels)
            read = self._read(wanted, dtype)
            done += len(read)
            if len(read) < wanted:
                raise self.refusal(f"is damaged: {count} samples promised, {done} could be read")
            if observe is not None:
                observe(scaled(read).reshape(len(read), self.num_channels))
            if channel is not None and read.ndim > 1:
                read = np.ascontiguousarray(read[:, channel])
            piece = scaled(read)
            if piece.ndim > 1:
                with np.errstate(over="ignore", invalid="ignore"):  # told by the check of their range
                    piece = piece.mean(axis=1)
            if are_floats:
                lowest, highest = float(piece.min()), float(piece.max())  # NaN where one is
                if not (np.isfinite(lowest) and np.isfinite(highest)):
                    raise self.refusal("has samples that are NaN or infinite")
                if max(-lowest, highest) > MAX_AMPLITUDE:
                    right = "floats of full scale 1, or whole numbers of 32 bits"
                    got = f"{max(-lowest, highest):.3g}"
                    raise self.refusal("has samples that are too large", got=got, wanted=right)
            yield np.clip(piece, -1.0, 1.0) if are_floats and int_values else piece

    def _seek(self, first: int) -> None:
        """Go to a sample."""
        self._file.seek(first)

    def _read(self, count: int, dtype: str) -> npt.NDArray[Any]:
        """(count,) or (count, channels) samples; fewer where the decoder has no more, and never what it did not read.

        Not by `SoundFile.blocks`: where fewer are read, the rest of its blocks is uninitialised memory.
        """
        shape = count if self.num_channels == 1 else (count, self.num_channels)
        samples = np.empty(shape, dtype)
        return samples[: self._file.buffer_read_into(samples, dtype)]


class ExactFile(AudioFile):
    """A file whose codec has a memory: a part is read from the whole, which is decoded once into a temporary file.

    Arguments as of `AudioFile`, and the identity of the content.
    """

    def __init__(
        self,
        file: soundfile.SoundFile,
        kind: str,
        read_at: ReadAt,
        size: int,
        path: str,
        place: str,
        identity: Hashable,
    ) -> None:
        super().__init__(file, kind, read_at, size, path, place)
        self._identity, self._position = identity, 0
        if self._subtype in _WITH_MEMORY:
            self.decoded_bytes = num_bytes(self.frames, self.num_channels)

    def _seek(self, first: int) -> None:
        if self.decoded_bytes:
            self._position = first
        else:
            super()._seek(first)

    def _read(self, count: int, dtype: str) -> npt.NDArray[Any]:
        if not self._position:
            return super()._read(count, dtype)
        try:
            whole = decode_pieces(
                partial(self._whole, dtype), self.rate, self.num_channels, dtype, identity=self._identity
            )
        except DataError as error:
            raise self.refusal(error.problem, got=error.got, wanted=error.wanted, remedy=error.remedy) from None
        samples = whole.read(self._position, count)
        self._position += len(samples)
        return samples[:, 0] if self.num_channels == 1 else samples

    def _whole(self, dtype: str) -> Iterator[npt.NDArray[Any]]:
        """All samples, in pieces."""
        # A decoder of MP3 that goes back to the beginning gives other samples.
        assert self._file.tell() == 0, "of an open file either a part is read, or the whole"
        done, most = 0, max(1, _PIECE_VALUES // self.num_channels)
        while done < self.frames:
            if self.watch is not None:
                self.watch(done * self.num_channels)
            piece = super()._read(min(most, self.frames - done), dtype)
            if not len(piece):  # told where they are missing
                return
            done += len(piece)
            yield piece


class DecodedFile(AudioFile):
    """A file of a kind that libsndfile does not read: see `decode`. All of it is decoded.

    Args:
        decoded: its samples.
        kind: MP4, WebM, ...
        path: what messages call it.
        place: where it is named.
    """

    def __init__(self, decoded: Decoded, kind: str, path: str, place: str) -> None:
        self._decoded, self.kind, self.path, self.place = decoded, kind, path, place
        self.rate, self.num_channels, self.frames = decoded.rate, decoded.num_channels, decoded.frames
        self.decoded_bytes = num_bytes(self.frames, self.num_channels)
        self._subtype, self.has_16_bits, self._position = "FLOAT", False, 0
        self._check_rate()

    def _seek(self, first: int) -> None:
        self._position = first

    def _read(self, count: int, dtype: str) -> npt.NDArray[Any]:
        samples = self._decoded.read(self._position, count)
        self._position += len(samples)
        return samples[:, 0] if self.num_channels == 1 else samples


class JoinedFile(AudioFile):
    """Recordings behind each other in one file, as one. Those of another rate or number of channels are left out.

    Args:
        parts: where they are.
        open_one: opens one, behind so many samples of all channels of others.
        stack: closes the one that is open.
        path: what messages call the file.
        place: where it is named.
    """

    def __init__(
        self,
        parts: Sequence[FilePart],
        open_one: Callable[[FilePart, int], AbstractContextManager[AudioFile]],
        stack: ExitStack,
        path: str,
        place: str,
    ) -> None:
        self._parts: list[FilePart] = []
        self._open_one, self._stack, self.path, self.place = open_one, stack, path, place
        self._ends: list[int] = []
        self._number, self._position, self.decoded_bytes = 0, 0, 0
        self._open: AudioFile | None = None
        left_out: dict[tuple[int, int], float] = {}
        num_values = 0  # of all channels, of the parts before
        for part in parts:
            with open_one(part, num_values) as file:
                num_values += file.frames * file.num_channels
                if not self._parts:
                    self.kind, self.rate, self.num_channels = file.kind, file.rate, file.num_channels
                    self._subtype, self.has_16_bits, self.frames = file._subtype, file.has_16_bits, 0
                if (file.rate, file.num_channels) != (self.rate, self.num_channels):
                    layout = file.rate, file.num_channels
                    left_out[layout] = left_out.get(layout, 0.0) + file.seconds
                    continue
                self.frames += file.frames
                self.decoded_bytes += file.decoded_bytes
                self.has_16_bits &= file.has_16_bits
                self._subtype = file._subtype if file._subtype in ("FLOAT", "DOUBLE") else self._subtype
            self._parts.append(part)
            self._ends.append(self.frames)
        for (rate, num_channels), seconds in left_out.items():
            problem = f"{seconds:.3f} s of {rate} Hz, {counted(num_channels, 'channel')} are left out"
            begin = f"it begins with {self.rate} Hz, {counted(self.num_channels, 'channel')}"
            logging.warning(f"{path} holds {counted(len(parts), 'recording')}: {problem}; {begin}", mode=LogMode.ONCE)

    def _seek(self, first: int) -> None:
        number = bisect_right(self._ends, first)
        self._turn_to(number)
        if (begin := self._ends[number - 1] if number else 0) < first:
            assert self._open is not None
            self._open._seek(first - begin)
        self._position = first

    def _turn_to(self, number: int) -> None:
        self._stack.close()
        num_before = self._ends[number - 1] * self.num_channels if number else 0
        self._number, self._open = number, self._stack.enter_context(self._open_one(self._parts[number], num_before))

    def _read(self, count: int, dtype: str) -> npt.NDArray[Any]:
        pieces: list[npt.NDArray[Any]] = []
        while count > 0 and self._position < self.frames:
            if self._open is None or self._position >= self._ends[self._number]:
                self._turn_to(bisect_right(self._ends, self._position))
            assert self._open is not None
            wanted = min(count, self._ends[self._number] - self._position)
            piece = self._open._read(wanted, dtype)
            pieces.append(piece)
            self._position += len(piece)
            count -= len(piece)
            if len(piece) < wanted:
                break
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0,), dtype)


def check_channel(channel: int | None, num_channels: int, path: str, place: str = "") -> None:
    """Raise DataError if there is no such channel, counted from 0; None is the average of all.

    Args:
        channel: the channel.
        num_channels: how many there are.
        path: what messages call the recording.
        place: where it is named.
    """
    if channel is not None and not 0 <= channel < num_channels:
        wanted = "channel 0" if num_channels == 1 else f"a channel from 0 to {num_channels - 1}"
        problem = f"{path} has no channel {channel}"
        raise DataError(problem, place=place, wanted=f"{wanted}, or mix for the average of all")


def scaled(samples: npt.NDArray[Any]) -> Samples:
    """Integers as floats of full scale 1; floats as they are."""
    floats: Samples = samples.astype(np.float32, copy=False)
    if samples.dtype.kind == "i":
        floats *= np.float32(2.0 ** (1 - 8 * samples.dtype.itemsize))
    return floats


_AUDIO_FILE = FileKind("the audio file", 1 << 40)  # of any size: what counts is how much of it is decoded
_HEAD_BYTES = 4096  # read at once; most heads end within them
# libsndfile's SFE_BAD_FILE. By then it is known that there is such a file, and that it is a regular one.
_REASONS = {7: "no samples can be found in it"}


def check_head(read_at: ReadAt, path: str, place: str) -> str:
    """Refuse an audio file that libsndfile must not see, or would read wrongly without an error.

    That is: an empty one, all but ``KINDS``, FLAC whose head is damaged, and WAV and W64 whose sizes of ADPCM blocks
    contradict each other, which libsndfile believes (CVE-2026-37555).

    Args:
        read_at: reads the file.
        path: what messages call it.
        place: where it is named.

    Returns:
        The kind: WAV, FLAC, ...

    Raises:
        DataError: what is wrong with ``path``, at ``place``.
    """
    start = read_at(_HEAD_BYTES, 0)
    if not start:
        raise DataError(f"{path} is empty (0 bytes)", place=place)
    kind = kind_of(start)
    if kind is None:
        problem = f"{path} is not a {KINDS} file, nor {CONTAINER_KINDS}"
        raise DataError(problem, place=place, remedy=REMEDY)
    try:
        if kind == "FLAC":
            check_flac(read_at)
        elif kind in ("WAV", "W64"):
            check_adpcm(read_at, kind)
    except DataError as error:
        raise DataError(f"{path} {error.problem}", place=place, got=error.got, wanted=error.wanted) from None
    return kind


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


class _SoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """Of soundfile, which seeks behind each read to where it is; decoders of MP3 then give other samples."""

    def seekable(self) -> bool:
        """False: read on as libsndfile does. `seek` works all the same."""
        return False


@contextmanager
def open_audio(
    source: str | bytes, path: str, place: str, exact: bool = False, watch: Watch | None = None
) -> Iterator[AudioFile]:
    """The path or the content of an audio file, opened after a look at what it is.

    By libsndfile; MP4, WebM and others are decoded as a whole, see `decode`. Where recordings begin and end in it,
    and which heads cannot be right: see `parts_of`.

    Args:
        source: path or content.
        path: what messages call it.
        place: where it is named.
        exact: parts of MP3, Vorbis and Opus are to the bit those of the whole, which is decoded once for all of them.
        watch: may end the decoding, and the reading of pieces.

    Raises:
        DataError: it is missing, empty, damaged or of another kind; also inside the block.
    """
    try:
        with _opened(source, place) as opened:
            opened = opened.with_head(opened.read_at(_HEAD_BYTES, 0))
            parts = parts_of(opened.read_at, opened.size, opened.identity)
            if any(part.is_longer for part in parts):
                problem = "holds more than its head counts, as a file that grew: it is read to its end"
                logging.warning(f"{path} {problem}", mode=LogMode.ONCE)
            if parts and parts[-1].end < opened.size:
                rest = counted(opened.size - parts[-1].end, "byte")
                problem = f"is read up to byte {parts[-1].end}: the {rest} behind it are left out"
                logging.warning(f"{path} {problem}", mode=LogMode.ONCE)
            if len(parts) < 2:
                with _opened_one(opened.part(*parts), path, place, exact, watch) as file:
                    yield file
                return
            with ExitStack() as stack:

                def open_one(part: FilePart, num_before: int) -> AbstractContextManager[AudioFile]:
                    behind = None if watch is None else lambda count: watch(num_before + count)
                    return _opened_one(opened.part(part), path, place, exact, behind)

                joined = JoinedFile(parts, open_one, stack, path, place)
                joined.watch = watch
                yield joined
    except (soundfile.SoundFileError, OSError) as error:
        # The whole text of a libsndfile error would name our descriptor as the file.
        text = getattr(error, "error_string", str(error)).rstrip(".")
        reason = _REASONS.get(getattr(error, "code", 0), text)
        raise DataError(f"{path} is damaged ({reason})", place=place) from None


@contextmanager
def _opened_one(opened: _Opened, path: str, place: str, exact: bool, watch: Watch | None) -> Iterator[AudioFile]:
    """A file, or a part of one, that is one recording; see `open_audio`."""
    handle, read_at, size, identity, _ = opened
    if (container := kind_of_container(read_at(_HEAD_BYTES, 0))) is not None:
        file = DecodedFile(_decoded(opened, container, path, place, watch), container, path, place)
        file.watch = watch
        yield file
        return
    kind = check_head(read_at, path, place)
    with _quiet(kind), _SoundFile(handle, closefd=False) as sound:
        if kind == "OGG" and not ends_ogg(read_at, size):
            problem = "ends without its last page: what is there is read, the rest was cut off"
            logging.warning(f"{path} {problem}", mode=LogMode.ONCE)
        about = sound, kind, read_at, size, path, place
        audio = ExactFile(*about, identity) if exact else AudioFile(*about)
        audio.watch = watch
        yield audio


# libmpg123 tells of damage in words of its own, on the standard error of C, of which libsndfile has no switch. What is
# missing is told by us: the samples are compared with those that the head promises.
_LIBC = ctypes.CDLL(None)
_quiet_lock, _num_quiet, _loud = Lock(), 0, ctypes.c_void_p()


@contextmanager
def _quiet(kind: str) -> Iterator[None]:
    """While an MP3 file is open, C's ``stderr`` is /dev/null, in all threads; Python's is not touched."""
    global _num_quiet
    try:
        stderr = ctypes.c_void_p.in_dll(_LIBC, "stderr")
    except ValueError:  # another C library than those of Linux
        kind = ""
    if kind != "MP3":
        yield
        return
    with _quiet_lock:
        if not _num_quiet:
            _loud.value, stderr.value = stderr.value, _null_stream()
        _num_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _num_quiet -= 1
            if not _num_quiet:
                stderr.value = _loud.value


@cache
def _null_stream() -> int | None:
    """C's stream to /dev/null."""
    open_stream = _LIBC.fopen
    open_stream.restype = ctypes.c_void_p
    stream: int | None = open_stream(os.devnull.encode(), b"w")
    return stream


def forget_audio(source: str | bytes) -> None:
    """Drop the temporary file of an audio file that was decoded as a whole, if there is one: it is not read again.

    Args:
        source: as `read_audio` takes it; it must still be there.
    """
    with _opened(source, "") as opened:
        forget(opened.identity)


def _decoded(opened: _Opened, kind: str, path: str, place: str, watch: Watch | None) -> Decoded:
    try:
        if kind == "MP4":
            check_boxes(opened.read_at, opened.size)
        samples = decode(opened.handle, kind, opened.identity, watch, is_behind=opened.is_behind)
        if samples.jump:
            problem = f"{path}: times in it jump by {samples.jump:.0f} s, which is no silence: it is read without them"
            logging.warning(problem, mode=LogMode.ONCE)
        return samples
    except DataError as error:
        problem = f"{path} {error.problem}"
        raise DataError(problem, place=place, got=error.got, wanted=error.wanted, remedy=error.remedy) from None


class _BytesFile(io.BytesIO):
    """Bytes as a file for libsndfile, which is called from C: an error here would be a traceback on stderr."""

    def seek(self, position: int, whence: int = 0) -> int:
        """As of a file: a place before the beginning leaves the position as it is, which libsndfile notices."""
        with suppress(ValueError, OverflowError):
            super().seek(position, whence)
        return self.tell()


class _Opened(NamedTuple):
    """An open file, or content.

    Attributes:
        handle: for the decoder.
        read_at: reads bytes without moving the decoder's position.
        size: bytes.
        identity: of the content.
        is_behind: it follows another recording in the same file.
    """

    handle: int | io.BytesIO | Window
    read_at: ReadAt
    size: int
    identity: Hashable
    is_behind: bool = False

    def with_head(self, head: bytes) -> _Opened:
        """Itself, whose first bytes are read already: one call of the system in the place of four."""
        read_at, end = self.read_at, len(head)

        def read(size: int, start: int) -> bytes:
            return head[start : start + size] if start + size <= end else read_at(size, start)

        return _Opened(self.handle, read, self.size, self.identity, self.is_behind)

    def part(self, part: FilePart | None = None) -> _Opened:
        """One recording of it as a file of its own; without one, itself."""
        if part is None:
            return self
        window = Window(self.read_at, part.stretches)
        opened = _Opened(window, window.read_at, window.size, (self.identity, part.start), part.start > 0)
        return opened.with_head(window.read_at(_HEAD_BYTES, 0))


@contextmanager
def _opened(source: str | bytes, place: str) -> Iterator[_Opened]:
    identity: tuple[object, ...]
    if isinstance(source, bytes):
        identity = ("content", len(source), hash(source))  # Python keeps the hash of an object: many parts cost one
        yield _Opened(_BytesFile(source), lambda size, start: source[start : start + size], len(source), identity)
        return
    try:
        descriptor = open_descriptor(source, _AUDIO_FILE)
    except DataError as error:
        problem = error.problem.replace(_AUDIO_FILE.name, f"{_AUDIO_FILE.name} {source}", 1)
        raise DataError(problem, place=place, got=error.got, wanted=error.wanted, remedy=error.remedy) from None
    try:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        yield _Opened(descriptor, partial(os.pread, descriptor), status.st_size, identity)
    finally:
        os.close(descriptor)
