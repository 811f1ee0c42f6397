"""Audio files to samples: decoding, resampling, parts of files, recordings in memory."""

from __future__ import annotations

import ctypes
import io
import math
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from nemo_asr.run.audio import containers
from nemo_asr.run.audio.containers import Decoded, Watch, check_boxes, decode, decode_pieces, kind_of_container
from nemo_asr.run.audio.joined import Part, Window, is_small_lack, mp3_frame, parts_of
from nemo_lite.base.errors import DataError, counted
from nemo_lite.base.files import FileKind, open_descriptor
from nemo_lite.base.files import kind_unless_file as kind_unless_file
from nemo_lite.base.nemo_logging import LogMode, logging

Samples: TypeAlias = "npt.NDArray[np.float32]"
ReadAt: TypeAlias = "Callable[[int, int], bytes]"  # (number of bytes, position) -> bytes, as os.pread

# What libsndfile does not refuse by itself: looks at the head of a file before it is opened.
# The kind of a file, by its first bytes, and the sizes in heads of ADPCM. Other codecs, lengths and rates are checked
# when libsndfile has opened the file.

REMEDY = "convert it to 16-bit WAV or FLAC"
# MP3 starts with an ID3 tag, or with the header of an MPEG frame of layer III.
_FIRST_BYTES = {
    "WAV": rb"(?:RIFF|RIFX|RF64)....WAVE",
    "FLAC": rb"fLaC",
    "OGG": rb"OggS",
    "MP3": rb"ID3|\xff[\xe2\xe3\xea\xeb\xf2\xf3\xfa\xfb]",
    "AIFF": rb"FORM....AIF[FC]",
    "AU": rb"\.snd|dns\.",
    "CAF": rb"caff",
    "W64": rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00",
    "SPHERE": rb"NIST_1A",
}


def _one_of(kinds: Sequence[str]) -> str:
    return f"{', '.join(kinds[:-1])} or {kinds[-1]}"


# The one list of what is read, for help and messages.
KINDS, CONTAINER_KINDS = _one_of(tuple(_FIRST_BYTES)), _one_of(containers.KINDS)
ALL_KINDS = f"{KINDS}; with PyAV or ffmpeg {CONTAINER_KINDS}"
_KIND = re.compile(b"|".join(b"(?P<%b>%b)" % (kind.encode(), start) for kind, start in _FIRST_BYTES.items()), re.DOTALL)
_MS_ADPCM, _IMA_ADPCM, _EXTENSIBLE = 0x0002, 0x0011, 0xFFFE
_HEAD_BYTES = 4096  # read at once; most heads end within them
_MAX_CHUNKS = 64
_MOST_BYTES = 1 << 62  # beyond this no file has a byte: W64 says so where a size was not known
_FMT_BYTES = 26  # of a format: up to the codec of an extensible one


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
    match = _KIND.match(start)
    if match is None:
        problem = f"{path} is not a {KINDS} file, nor {CONTAINER_KINDS}"
        raise DataError(problem, place=place, remedy=REMEDY)
    kind = str(match.lastgroup)
    try:
        if kind == "FLAC":
            check_flac(read_at)
        elif kind in ("WAV", "W64"):
            _check_adpcm(read_at, start)
    except DataError as error:
        raise DataError(f"{path} {error.problem}", place=place, got=error.got, wanted=error.wanted) from None
    return kind


# Whose first bytes may as well be samples.
_SHORT_MARKS = ("MP3", "AAC", "AC-3", "E-AC-3", "MP2", "MPEG-TS")
_TS_BYTES = 188  # of a packet


def kind_of_start(start: bytes) -> str | None:
    """The kind of file that begins so, where samples without a header are wanted; None: these may be samples.

    Args:
        start: the first bytes; of kinds with short marks, as MP3 and AAC, enough for a frame and the next one's mark.
    """
    match = _KIND.match(start)
    kind = str(match.lastgroup) if match else kind_of_container(start)
    if kind not in _SHORT_MARKS or start.startswith(b"ID3"):
        return kind
    frame = mp3_frame(start[:4]) if kind == "MP3" else None
    num_bytes = frame.num_bytes if frame else 0
    if kind == "AAC" and len(start) > 5:
        num_bytes = (start[3] & 3) << 11 | start[4] << 3 | start[5] >> 5
    if kind == "MPEG-TS":
        return kind if set(start[: 4 * _TS_BYTES : _TS_BYTES]) == {start[0]} and len(start) > 3 * _TS_BYTES else None
    return kind if num_bytes > 4 and start[num_bytes : num_bytes + 2] == start[:2] else None


def _check_adpcm(read_at: ReadAt, start: bytes) -> None:
    """See that the samples of an ADPCM block are those that its bytes can hold, for one or two channels."""
    order = ">" if start.startswith(b"RIFX") else "<"
    formats = list(_formats(read_at, order, is_w64=start.startswith(b"riff")))
    if not formats:
        raise DataError("is damaged: a WAV file without a format")
    for content in formats:
        tag, channels, _, _, block_bytes, bits, _, samples = struct.unpack_from(f"{order}HHIIHHHH", content)
        if tag == _EXTENSIBLE:
            tag = struct.unpack_from(f"{order}H", content, 24)[0]
        if tag in (_MS_ADPCM, _IMA_ADPCM):
            head, first = (7, 2) if tag == _MS_ADPCM else (4, 1)  # bytes and samples at a block's head, per channel
            codes = block_bytes - head * channels
            if channels not in (1, 2) or bits != 4 or codes <= 0 or samples != 2 * codes // channels + first:
                raise DataError("is damaged: its ADPCM header contradicts itself")


def _formats(read_at: ReadAt, order: str, *, is_w64: bool) -> Iterator[bytes]:
    """The first bytes of all format chunks, padded with zeros: a decoder may obey the last of several."""
    position, head_bytes, unit = (40, 24, 8) if is_w64 else (12, 8, 2)
    for _ in range(_MAX_CHUNKS):
        chunk = read_at(head_bytes + _FMT_BYTES, position)
        if len(chunk) < head_bytes:
            return
        if chunk[:4] == b"fmt ":
            yield chunk[head_bytes:].ljust(_FMT_BYTES, b"\0")
        if is_w64:  # the size of a chunk of W64 counts these 24 bytes as well
            size = max(head_bytes, struct.unpack_from("<Q", chunk, 16)[0])
        else:
            size = head_bytes + struct.unpack_from(f"{order}I", chunk, 4)[0]
        position += size + -size % unit
        if position > _MOST_BYTES:
            return


# Whether the head of a FLAC file agrees with its first frame. Source: RFC 9639, sections 8 and 9.1.
# libsndfile reports no error where bytes are lost from the head, and then reads nothing; nor where the head states
# other sizes of blocks, and then reads zeros.


_MAX_BLOCKS = 128
_STREAM_INFO_BYTES = 34
_FRAME_BYTES = 16  # of the longest header of a frame
# By the codes in the header of a frame; code 0 says that the head has it.
_FLAC_RATES = {1: 88200, 2: 176400, 3: 192000, 4: 8000, 5: 16000, 6: 22050, 7: 24000, 8: 32000, 9: 44100, 10: 48000}
_FLAC_RATES[11] = 96000
_RATE_UNITS = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}  # bytes behind the header, and Hz for each unit
_SIZES = {1: 192, **{2 + n: 576 << n for n in range(4)}, **{8 + n: 256 << n for n in range(8)}}
_BITS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24, 7: 32}
_STEREO_CODES = (8, 9, 10)  # as left and side, side and right, mid and side


def check_flac(read_at: ReadAt) -> None:
    """Compare the rate, the channels, the bits and the size of blocks of the head with those of the first frame.

    Args:
        read_at: (number of bytes, position) -> bytes, as ``os.pread``.

    Raises:
        DataError: no frame follows the blocks of the head, or it says something else. Its text completes "a.flac ...".
    """
    info = read_at(4 + _STREAM_INFO_BYTES, 4)
    if len(info) < 4 + _STREAM_INFO_BYTES or info[0] & 0x7F or info[1:4] != _STREAM_INFO_BYTES.to_bytes(3, "big"):
        raise DataError("is damaged: a FLAC file that does not begin with its properties")
    header = read_at(_FRAME_BYTES, _first_frame(read_at))
    if len(header) < _FRAME_BYTES - 4 or header[0] != 0xFF or header[1] & 0xFE != 0xF8:
        raise DataError("is damaged: no frame of samples follows the head of the FLAC file")
    frame_rate, frame_channels, frame_bits, size = _parsed(header)
    packed = int.from_bytes(info[14:22], "big")  # 20 bits of rate, 3 of channels, 5 of bits, 36 of samples
    rate, channels, bits = packed >> 44, (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1
    in_frame = (frame_rate or rate, frame_channels, frame_bits or bits)
    problem = "is damaged: its head and its first frame of samples disagree"
    if in_frame != (rate, channels, bits):
        raise DataError(problem, got=_in_words(*in_frame), wanted=_in_words(rate, channels, bits))
    least, most = int.from_bytes(info[4:6], "big"), int.from_bytes(info[6:8], "big")
    is_only_one = 0 < packed & (1 << 36) - 1 <= size
    if size > most or (size < least and not is_only_one):  # the last one may be smaller
        raise DataError(problem, got=f"a frame of {size} samples", wanted=f"{least} to {most}")


def _first_frame(read_at: ReadAt) -> int:
    """The byte behind the blocks of the head; each says whether it is the last one, and its size."""
    position = 4
    for _ in range(_MAX_BLOCKS):
        block = read_at(4, position)
        position += 4 + int.from_bytes(block[1:4], "big")
        if len(block) < 4 or block[0] & 0x80:
            break
    return position


def _parsed(header: bytes) -> tuple[int | None, int, int | None, int]:
    """Of a frame its rate, channels, bits, and samples a channel; None for what it leaves to the head."""
    size_code, rate_code, channel_code = header[2] >> 4, header[2] & 15, header[3] >> 4
    # Behind four bytes comes the frame's number, as long as the ones at its beginning say; then what has no code.
    at = 4 + max(1, 8 - (header[4] ^ 0xFF).bit_length())
    if size_code in (6, 7):
        size, at = int.from_bytes(header[at : at + size_code - 5], "big") + 1, at + size_code - 5
    else:
        size = _SIZES.get(size_code, 0)
    num_bytes, hertz = _RATE_UNITS.get(rate_code, (0, 0))
    rate = int.from_bytes(header[at : at + num_bytes], "big") * hertz if num_bytes else _FLAC_RATES.get(rate_code)
    num_channels = 2 if channel_code in _STEREO_CODES else channel_code + 1
    return rate, num_channels, _BITS.get(header[3] >> 1 & 7), size


def _in_words(rate: int, channels: int, bits: int) -> str:
    return f"{rate} Hz, {counted(channels, 'channel')}, {bits} bits"


# An audio file, opened and checked, and its samples in pieces.
# Before the decoder sees anything, the file has to be a regular one with a sound head (`check_head`). libsndfile takes
# the end of a file for the end of the samples and may hand out fewer without an error: what was read is compared with
# what the head promises, which its log of the head has.


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
_AUDIO_FILE = FileKind("the audio file", 1 << 40)  # of any size: what counts is how much of it is decoded
_PIECE_VALUES = 1 << 21  # samples of all channels that are decoded at a time: 2 minutes of one channel at 16 kHz
_RATES = (1000, 768_000)
# A size in libsndfile's log of the head, and the one that the file has where that is another.
_SIZE = re.compile(r"^ *(data|SSND|Data [Ss]ize|Block Align|Samples/Block) *: (\d+)(?: \(should be (\d+)\))?$", re.M)
# A program that writes into a pipe cannot know the size. sox writes 0x7FFFF000, arecord 0x80000000, ffmpeg 0xFFFFFFFF.
_LEAST_UNKNOWN_SIZE, _MOST_UNKNOWN_SIZE = 0x7F000000, 0xFFFFFFFF
_SPHERE_COUNT = re.compile(rb"\nsample_count -i (\d{1,18})\n")
_SPHERE_BYTES = 1024
_W64_CHUNK_BYTES = 24  # of the head of a chunk, which its size counts as well
_OGG_HEAD_BYTES, _OGG_PAGE_BYTES, _OGG_LAST = 27, 65307, 4  # of a page: its head at least, all of it at most; a flag
# libsndfile's SFE_BAD_FILE. By then it is known that there is such a file, and that it is a regular one.
_REASONS = {7: "no samples can be found in it"}


class _SoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """Of soundfile, which seeks behind each read to where it is; decoders of MP3 then give other samples."""

    def seekable(self) -> bool:
        """False: read on as libsndfile does. `seek` works all the same."""
        return False


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

    def check_channel(self, channel: int | None) -> None:
        """Raise DataError if there is no such channel, counted from 0; None is the average of all."""
        check_channel(channel, self.num_channels, self.path, self.place)

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
            piece = scaled(_of_channel(read, channel))
            if piece.ndim > 1:
                with np.errstate(over="ignore", invalid="ignore"):  # told by the check of their range
                    piece = piece.mean(axis=1)
            if are_floats:
                self._check_range(piece)
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

    def _check_range(self, samples: npt.NDArray[Any]) -> None:
        least, most = float(samples.min()), float(samples.max())  # NaN where one is
        if not (np.isfinite(least) and np.isfinite(most)):
            raise self.refusal("has samples that are NaN or infinite")
        if max(-least, most) > MAX_AMPLITUDE:
            got, wanted = f"{max(-least, most):.3g}", "floats of full scale 1, or whole numbers of 32 bits"
            raise self.refusal("has samples that are too large", got=got, wanted=wanted)


class _ExactFile(AudioFile):
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
            self.decoded_bytes = containers.num_bytes(self.frames, self.num_channels)

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
    """A file of a kind that libsndfile does not read: see `nemo_asr.run.audio.containers`. All of it is decoded.

    Args:
        decoded: its samples.
        kind: MP4, WebM, ...
        path: what messages call it.
        place: where it is named.
    """

    def __init__(self, decoded: Decoded, kind: str, path: str, place: str) -> None:
        self._decoded, self.kind, self.path, self.place = decoded, kind, path, place
        self.rate, self.num_channels, self.frames = decoded.rate, decoded.num_channels, decoded.frames
        self.decoded_bytes = containers.num_bytes(self.frames, self.num_channels)
        self._subtype, self.has_16_bits, self._position = "FLOAT", False, 0
        self._check_rate()

    def _seek(self, first: int) -> None:
        self._position = first

    def _read(self, count: int, dtype: str) -> npt.NDArray[Any]:
        samples = self._decoded.read(self._position, count)
        self._position += len(samples)
        return samples[:, 0] if self.num_channels == 1 else samples


class _JoinedFile(AudioFile):
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
        parts: Sequence[Part],
        open_one: Callable[[Part, int], AbstractContextManager[AudioFile]],
        stack: ExitStack,
        path: str,
        place: str,
    ) -> None:
        self._parts: list[Part] = []
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


def _of_channel(samples: npt.NDArray[Any], channel: int | None) -> npt.NDArray[Any]:
    """(T,) samples of one channel of several; all of them where there is one, or for None."""
    return samples if channel is None or samples.ndim == 1 else np.ascontiguousarray(samples[:, channel])


def scaled(samples: npt.NDArray[Any]) -> Samples:
    """Integers as floats of full scale 1; floats as they are."""
    floats: Samples = samples.astype(np.float32, copy=False)
    if samples.dtype.kind == "i":
        floats *= np.float32(2.0 ** (1 - 8 * samples.dtype.itemsize))
    return floats


@contextmanager
def open_audio(
    source: str | bytes, path: str, place: str, exact: bool = False, watch: Watch | None = None
) -> Iterator[AudioFile]:
    """The path or the content of an audio file, opened after a look at what it is.

    By libsndfile; MP4, WebM and others are decoded as a whole, see `nemo_asr.run.audio.containers`. Where recordings
    begin and end in it, and which heads cannot be right: see `nemo_asr.run.audio.joined`.

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

                def open_one(part: Part, num_before: int) -> AbstractContextManager[AudioFile]:
                    behind = None if watch is None else lambda count: watch(num_before + count)
                    return _opened_one(opened.part(part), path, place, exact, behind)

                joined = _JoinedFile(parts, open_one, stack, path, place)
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
        decoded = DecodedFile(_decoded(opened, container, path, place, watch), container, path, place)
        decoded.watch = watch
        yield decoded
        return
    kind = check_head(read_at, path, place)
    with _quiet(kind), _SoundFile(handle, closefd=False) as file:
        if kind == "OGG" and not _ends_ogg(read_at, size):
            problem = "ends without its last page: what is there is read, the rest was cut off"
            logging.warning(f"{path} {problem}", mode=LogMode.ONCE)
        about = file, kind, read_at, size, path, place
        audio = _ExactFile(*about, identity) if exact else AudioFile(*about)
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


def _ends_ogg(read_at: ReadAt, size: int) -> bool:
    """Whether the last page is whole and says that it is the last one. Source: RFC 3533, section 6."""
    end = read_at(min(size, _OGG_PAGE_BYTES), max(0, size - _OGG_PAGE_BYTES))
    page = end[end.rfind(b"OggS") :]
    if len(page) < _OGG_HEAD_BYTES + 1 or len(page) < _OGG_HEAD_BYTES + page[26] + sum(page[27 : 27 + page[26]]):
        return False
    return bool(page[5] & _OGG_LAST)


def forget_audio(source: str | bytes) -> None:
    """Drop the temporary file of an audio file that was decoded as a whole, if there is one: it is not read again.

    Args:
        source: as `read_audio` takes it; it must still be there.
    """
    with _opened(source, "") as opened:
        containers.forget(opened.identity)


def _decoded(opened: _Opened, kind: str, path: str, place: str, watch: Watch | None) -> Decoded:
    try:
        if kind == "MP4":
            check_boxes(opened.read_at, opened.size)
        decoded = decode(opened.handle, kind, opened.identity, watch, is_behind=opened.is_behind)
        if decoded.jump:
            problem = f"{path}: times in it jump by {decoded.jump:.0f} s, which is no silence: it is read without them"
            logging.warning(problem, mode=LogMode.ONCE)
        return decoded
    except DataError as error:
        problem = f"{path} {error.problem}"
        raise DataError(problem, place=place, got=error.got, wanted=error.wanted, remedy=error.remedy) from None


class _Content(io.BytesIO):
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

    def part(self, part: Part | None = None) -> _Opened:
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
        yield _Opened(_Content(source), lambda size, start: source[start : start + size], len(source), identity)
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


# Audio from files or bytes: one mono float32 array at the wanted rate, checked before use.
# WAV, FLAC, OGG (Vorbis and Opus), MP3, AIFF, AU, CAF, W64 and NIST SPHERE, decoded by libsndfile a piece at a time:
# a FLAC file of silence expands more than a thousand times. How much of it may be read is decided here, by its head.


def audio_suffixes() -> frozenset[str]:
    """The ends of names of audio files in small letters: of all that can be read with what is installed."""
    return AUDIO_SUFFIXES | containers.SUFFIXES if containers.has_decoder() else AUDIO_SUFFIXES


AUDIO_SUFFIXES = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64", ".sph"}
)
TOLERANCE_SECONDS = 0.1
TOLERANCE_SHARE = 0.01
_ROUNDING_SECONDS = 0.01
MAX_SECONDS = 3600.0
MAX_CONTENT_BYTES = 1 << 27  # of a recording that is held in memory as it came; an hour of 16 bits at 16 kHz has 115 MB
_MOST_FRAMES = 1 << 48  # libsndfile's count for a file of unknown length is beyond it
_TRIM_HOP, _TRIM_WINDOW_HOPS = 512, 4
_TRIM_HOPS = 1024  # at a time
_TRIM_FLOOR = 1e-5  # amplitude below which librosa takes everything for equally silent


@dataclass(frozen=True)
class Audio:
    """Samples that were read.

    Attributes:
        samples: (T,) mono, full scale is 1.
        source_rate: samples a second in the file, before resampling.
        num_channels: channels in the file, before averaging.
        excess: seconds by which the file is longer (below 0: shorter) than its stated duration; 0 within the tolerance,
            and where a part that lies inside the file was asked for.
        start: how many samples were left out before the first, because they are quiet.
    """

    samples: Samples
    source_rate: int
    num_channels: int
    excess: float = 0.0
    start: int = 0


def tolerance(seconds: float) -> float:
    """Seconds by which a promised duration may differ from the file: 0.1 s or 1 %, whichever is more."""
    return max(TOLERANCE_SECONDS, TOLERANCE_SHARE * seconds)


def excess_of(held: float, said: float) -> float:
    """Seconds by which a file of ``held`` seconds is longer than it is said to be; 0 within the tolerance."""
    return held - said if abs(held - said) > tolerance(said) else 0.0


class AudioPart:
    """A part of an open audio file, or all of it.

    Attributes:
        num_samples: at the file's rate.
        channel: which one is read, from 0; None: the average of all.
        kind: of the file: WAV, FLAC, ...
        source_rate, num_channels, excess: see `Audio`.
        has_16_bits, decoded_bytes: see `AudioFile`.
    """

    def __init__(
        self,
        file: AudioFile,
        first: int,
        num_samples: int,
        excess: float,
        claimed: float | None = None,
        channel: int | None = None,
    ) -> None:
        self._file, self._first, self.num_samples, self.excess = file, first, num_samples, excess
        self.channel = channel
        self._claimed = claimed  # the duration that somebody wrote for it
        self.kind, self.source_rate, self.num_channels = file.kind, file.rate, file.num_channels
        self.has_16_bits, self.decoded_bytes = file.has_16_bits, file.decoded_bytes

    @property
    def seconds(self) -> float:
        """How long it is."""
        return float(self.num_samples / self.source_rate)

    def check_size(self) -> None:
        """Raise DataError if these are more samples than one array may hold; `pieces` has no such limit."""
        file, count = self._file, self.num_samples
        if self.excess < 0 and self.seconds > MAX_SECONDS:
            problem = f"holds {self.seconds:.3f} s, and its line says {self._claimed:g} s"
            raise file.refusal(problem, wanted=f"at most {MAX_SECONDS:g} s", remedy="correct the duration")
        if count > MAX_SECONDS * file.rate:
            raise file.refusal(f"claims {count / file.rate:.0f} s of audio", wanted=f"at most {MAX_SECONDS:.0f} s")
        if count * file.num_channels > MAX_VALUES:
            problem = f"claims {count / file.rate:.0f} s of {file.num_channels} x {file.rate} samples a second"
            raise file.refusal(problem, wanted=f"at most {MAX_VALUES} samples in all", remedy="resample it")

    def pieces(
        self, *, int_values: bool = False, observe: Callable[[Samples], None] | None = None
    ) -> Iterator[Samples]:
        """Mono samples at the file's rate; see `AudioFile.pieces`. Of a part of any length, in bounded memory."""
        return self._file.pieces(
            self._first, self.num_samples, channel=self.channel, int_values=int_values, observe=observe
        )

    def samples(
        self,
        sample_rate: int | None,
        *,
        int_values: bool = False,
        observe: Callable[[Samples], None] | None = None,
    ) -> Samples:
        """(T,) mono samples at ``sample_rate``, or at the file's rate.

        Pieces that are resampled one after the other are, to the bit, what they are if resampled at once.

        Raises:
            DataError: there are too many, see `check_size`, or one is not usable, see `AudioFile.pieces`.
        """
        self.check_size()
        pieces = self.pieces(int_values=int_values, observe=observe)
        rate = self.source_rate if sample_rate is None else sample_rate
        piece = next(pieces)
        if len(piece) == self.num_samples:
            whole: Samples = piece if rate == self.source_rate else soxr.resample(piece, self.source_rate, rate)
            return whole
        stream = None if rate == self.source_rate else soxr.ResampleStream(self.source_rate, rate, 1)
        samples = np.empty(math.ceil(self.num_samples * rate / self.source_rate) + 1, np.float32)
        num_read = num_filled = 0
        while True:
            num_read += len(piece)
            is_last = num_read == self.num_samples
            ready = piece if stream is None else stream.resample_chunk(piece, is_last)
            samples[num_filled : num_filled + len(ready)] = ready
            num_filled += len(ready)
            if is_last:
                return samples[:num_filled]
            piece = next(pieces)


def read_audio(
    source: str | bytes,
    *,
    sample_rate: int | None,
    offset: float | None = None,
    duration: float | None = None,
    channel: int | None = None,
    int_values: bool = False,
    trim_silence: bool = False,
    strict: bool = True,
    exact: bool = False,
    name: str = "the audio",
    place: str = "",
    watch: Watch | None = None,
) -> Audio:
    """Read a recording, or a part of it, as mono at ``sample_rate``.

    Args:
        source: path or content of an audio file of any rate.
        sample_rate: samples a second wanted; another rate in the file is resampled. None: the file's own.
        offset: seconds where to start. None: at the beginning, and where ``duration`` is that of the file, but for
            rounding (10 ms; ``strict``: the tolerance), it is read as a whole.
        duration: seconds to read. None: to the end. At most an hour in both cases.
        channel: which one, from 0; None: the average of all.
        int_values: read through 32-bit integers, as NeMo does under this name: floats beyond full scale are clipped.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends.
        strict: a whole file that is not ``duration`` long is an error, and a part beyond the end of the file. Otherwise
            ``duration`` is the most that is read, as in NeMo, and ``Audio.excess`` has the difference.
        exact: parts of MP3, Vorbis and Opus are to the bit those of the whole, which is decoded once for all of them;
            otherwise they are sought, and the first moments of a part may differ.
        name: what messages call a source that is no path.
        place: where the source is named (``manifest:line``), for messages.
        watch: may end it.

    Raises:
        DataError: the file is missing, empty, damaged, of another kind, shorter or longer than allowed, has no such
            channel, or has samples that are not finite, are too large or too many; or the watch ends it.
    """
    with open_audio(source, name if isinstance(source, bytes) else source, place, exact, watch) as file:
        part = _chosen(file, offset, duration, channel, strict)
        samples = part.samples(sample_rate, int_values=int_values)
    loud = loud_part(samples) if trim_silence else slice(0, len(samples))
    return Audio(samples[loud], part.source_rate, part.num_channels, part.excess, loud.start)


@contextmanager
def open_part(
    source: str | bytes,
    *,
    offset: float | None = None,
    duration: float | None = None,
    channel: int | None = None,
    strict: bool = True,
    exact: bool = False,
    name: str = "the audio",
    place: str = "",
    watch: Watch | None = None,
) -> Iterator[AudioPart]:
    """A recording, or a part of it, of any length, whose samples are not decoded yet.

    Arguments and errors as `read_audio`; that a part is too long for one array is told by `AudioPart.samples`.
    """
    with open_audio(source, name if isinstance(source, bytes) else source, place, exact, watch) as file:
        yield _chosen(file, offset, duration, channel, strict)


def audio_seconds(source: str | bytes, *, name: str = "the audio", place: str = "") -> float:
    """How long a recording is, by its header; nothing is decoded.

    Args:
        source: as `read_audio` takes it.
        name: what messages call a source that is no path.
        place: where the source is named, for messages.

    Raises:
        DataError: the file is missing, empty, damaged or of another kind.
    """
    with open_audio(source, name if isinstance(source, bytes) else source, place) as file:
        return file.seconds


def _chosen(
    file: AudioFile, offset: float | None, duration: float | None, channel: int | None, strict: bool
) -> AudioPart:
    """The part that is asked for; see `read_audio`."""
    file.check_channel(channel)
    excess = 0.0 if duration is None else _excess(file, offset, duration, strict)
    longer = duration is not None and file.seconds - duration > _ROUNDING_SECONDS
    is_whole = offset is None and duration is not None and (strict or not longer)
    first, count = (0, file.frames) if is_whole else _part(file, offset, duration)
    if count > _MOST_FRAMES:
        remedy = "write it again with a program that says it in the head"
        raise file.refusal("does not say how long it is", remedy=remedy)
    return AudioPart(file, first, count, excess, duration, channel)


def _excess(file: AudioFile, offset: float | None, duration: float, strict: bool) -> float:
    """See `Audio.excess`. DataError where no difference is allowed."""
    held = file.seconds - (offset or 0.0)
    excess = excess_of(held, duration) if offset is None else min(excess_of(held, duration), 0.0)
    if excess and strict and offset is not None:
        problem = f"offset {offset:g} s + duration {duration:g} s is beyond the end of {file.path}"
        raise DataError(problem, place=file.place, got=f"{file.seconds:.3f} s in the file")
    if excess and strict:
        problem = f"duration {duration:g} s disagrees with {file.path}, which holds {held:.3f} s"
        remedy = f"correct the duration (within {tolerance(duration):.2g} s), or add an offset to take a part"
        raise DataError(problem, place=file.place, remedy=remedy)
    return excess


def _part(file: AudioFile, offset: float | None, duration: float | None) -> tuple[int, int]:
    """First frame and number of frames to decode, from the header alone."""
    start = offset or 0.0
    # Compared before it becomes a whole number: 1e308 s is a number, and has infinitely many samples.
    first = round(start * file.rate) if 0.0 <= start < file.seconds else file.frames
    count = file.frames - first
    if duration is not None and duration < file.seconds:
        count = min(round(duration * file.rate), count)
    if count <= 0:
        raise DataError(f"offset {start:g} s leaves nothing of {file.path} ({file.seconds:.3f} s)", place=file.place)
    return first, count


def trimmed(samples: Samples, top_db: float = 60.0) -> Samples:
    """The samples of :func:`loud_part`."""
    return samples[loud_part(samples, top_db)]


def loud_part(samples: Samples, top_db: float = 60.0) -> slice:
    """All but both ends where the energy of 2048-sample windows is over ``top_db`` below the loudest window's.

    Windows are centred on every 512th sample; equal to `librosa.effects.trim` with its defaults.
    """
    num_windows = 1 + len(samples) // _TRIM_HOP
    half = _TRIM_WINDOW_HOPS // 2
    per_hop = np.zeros(num_windows + _TRIM_WINDOW_HOPS - 1)
    for first in range(0, num_windows, _TRIM_HOPS):  # not all at once: in float64 an hour takes 0.5 GB
        part = samples[first * _TRIM_HOP : (first + _TRIM_HOPS) * _TRIM_HOP].astype(np.float64)
        part = np.pad(part, (0, -len(part) % _TRIM_HOP))
        hops = np.square(part).reshape(-1, _TRIM_HOP).sum(axis=1)
        per_hop[half + first : half + first + len(hops)] = hops
    energy = sum(per_hop[shift : shift + num_windows] for shift in range(_TRIM_WINDOW_HOPS))
    power = np.maximum(energy / (_TRIM_WINDOW_HOPS * _TRIM_HOP), _TRIM_FLOOR**2)
    loud = np.flatnonzero(power > power.max() * 10.0 ** (-top_db / 10.0))
    return slice(int(loud[0]) * _TRIM_HOP, min(len(samples), (int(loud[-1]) + 1) * _TRIM_HOP))
