"""An audio file, opened and checked, and its samples in pieces. Which part of it is wanted: `reading`.

Two checks come before the decoder sees anything: that it is a regular file, and its head (`headers`). Then what was
read is compared with what was promised: libsndfile may hand out fewer samples without an error.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile

from nemo_asr.audio.headers import REMEDY, Header, ReadAt, check_header, check_rate
from nemo_lite.errors import DataError
from nemo_lite.untrusted import FileKind, open_descriptor

Samples: TypeAlias = "npt.NDArray[np.float32]"

# libsndfile's names of the allowed codecs, and the bytes of a sample where each has as many.
SAMPLE_BYTES = {"PCM_S8": 1, "PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
SAMPLE_BYTES |= {"ULAW": 1, "ALAW": 1}
SUBTYPES = frozenset({*SAMPLE_BYTES, "VORBIS", "OPUS", "MPEG_LAYER_III", "MS_ADPCM", "IMA_ADPCM"})

# Samples of all channels that one read may decode: an hour of two channels at 96 kHz, or of twelve at 16 kHz.
MAX_VALUES = 2 * 96000 * 3600
# Floats of full scale 1 never come near; 32-bit whole numbers that were stored as floats reach it. The powers of larger
# ones leave the range of float32 in a spectrum.
MAX_AMPLITUDE = 2.0**31
_AUDIO_FILE = FileKind("the audio file", 1 << 40)  # of any size: what counts is how much of it is decoded
_PIECE_VALUES = 1 << 21  # samples of all channels that are decoded at a time: 2 minutes of one channel at 16 kHz
# libsndfile's SFE_BAD_FILE. By then it is known that there is such a file, and that it is a regular one.
_REASONS = {7: "no samples can be found in it"}


class AudioFile:
    """An open audio file.

    Args:
        file: libsndfile's.
        header: what its head says.
        path: what messages call it.
        place: where it is named.

    Attributes:
        kind: WAV, FLAC, ...: see `headers`.
        rate: samples a second.
        num_channels: channels.
        frames: samples a channel, as its head promises.

    Raises:
        DataError: its codec, rate or number of samples is not usable, or libsndfile and the head disagree.
    """

    def __init__(self, file: soundfile.SoundFile, header: Header, path: str, place: str) -> None:
        self._file, self.kind, self.path, self.place = file, header.kind, path, place
        self.rate, self.num_channels, self.frames = file.samplerate, file.channels, file.frames
        self._subtype = subtype = file.subtype  # once: it is looked up anew each time
        if subtype not in SUBTYPES:
            raise self.refusal(f"has the codec {subtype}", remedy=REMEDY)
        check_rate(self.rate, path, place)
        frame_bytes = self.num_channels * SAMPLE_BYTES.get(subtype, 0)
        if header.frame_bytes not in (None, frame_bytes):
            got, wanted = f"{header.frame_bytes} bytes", f"{frame_bytes}, as {subtype} has"
            raise self.refusal("is damaged: its samples have another size (block align)", got=got, wanted=wanted)
        if header.frames is not None:
            if self.frames < header.frames:
                raise self.refusal(f"is damaged: {header.frames} samples promised, {self.frames} are there")
            self.frames = header.frames
        if self.frames <= 0:
            raise self.refusal("holds no samples")

    @property
    def seconds(self) -> float:
        """How long it is."""
        return float(self.frames / self.rate)

    def refusal(self, problem: str, *, got: str = "", wanted: str = "", remedy: str = "") -> DataError:
        """The error about this file."""
        return DataError(f"{self.path} {problem}", place=self.place, got=got, wanted=wanted, remedy=remedy)

    def pieces(self, first: int, count: int, *, int_values: bool = False) -> Iterator[Samples]:
        """Mono samples from ``first`` on, ``count`` in all, a piece at a time; few are one piece.

        Args:
            first: the first sample.
            count: how many, within the file.
            int_values: read through 32-bit integers.

        Raises:
            DataError: there are fewer, or some are NaN, infinite or beyond ``MAX_AMPLITUDE``.
        """
        if first:
            self._file.seek(first)
        are_floats = self._subtype in ("FLOAT", "DOUBLE")
        # numpy makes the same floats of 16-bit samples as libsndfile does; reading a batch then takes half the time.
        dtype = "int16" if self._subtype == "PCM_16" else "int32" if int_values else "float32"
        most, done = max(1, _PIECE_VALUES // self.num_channels), 0
        while done < count:
            wanted = min(most, count - done)
            if are_floats and int_values:  # of NaN the decoder makes a whole number
                self._check_range(self._read(wanted, "float32"))
                self._file.seek(first + done)
            read = self._read(wanted, dtype)
            done += len(read)
            if len(read) < wanted:
                raise self.refusal(f"is damaged: {count} samples promised, {done} could be read")
            piece = _scaled(read)
            if self.num_channels > 1:
                with np.errstate(over="ignore", invalid="ignore"):  # told by the check of their range
                    piece = piece.mean(axis=1)
            if are_floats:
                self._check_range(piece)
            yield piece

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


def _scaled(samples: npt.NDArray[Any]) -> Samples:
    """Integers as floats of full scale 1; floats as they are."""
    floats: Samples = samples.astype(np.float32, copy=False)
    if samples.dtype.kind == "i":
        floats *= np.float32(2.0 ** (1 - 8 * samples.dtype.itemsize))
    return floats


@contextmanager
def open_audio(source: str | bytes, path: str, place: str) -> Iterator[AudioFile]:
    """The path or the content of an audio file, opened by libsndfile after a look at what it is.

    Args:
        source: path or content.
        path: what messages call it.
        place: where it is named.

    Raises:
        DataError: it is missing, empty, damaged or of another kind; also inside the block.
    """
    try:
        with _opened(source, place) as (handle, read_at, size):
            header = check_header(read_at, size, path, place)
            with soundfile.SoundFile(handle, closefd=False) as file:
                yield AudioFile(file, header, path, place)
    except (soundfile.SoundFileError, OSError) as error:
        # The whole text of a libsndfile error would name our descriptor as the file.
        text = getattr(error, "error_string", str(error)).rstrip(".")
        reason = _REASONS.get(getattr(error, "code", 0), text)
        raise DataError(f"{path} is damaged ({reason})", place=place) from None


class _Content(io.BytesIO):
    """Bytes as a file for libsndfile, which is called from C: an error here would be a traceback on stderr."""

    def seek(self, position: int, whence: int = 0) -> int:
        """As of a file: a place before the beginning leaves the position as it is, which libsndfile notices."""
        with suppress(ValueError, OverflowError):
            super().seek(position, whence)
        return self.tell()


@contextmanager
def _opened(source: str | bytes, place: str) -> Iterator[tuple[int | io.BytesIO, ReadAt, int]]:
    """What the decoder opens, a function that reads bytes without moving the decoder's position, and its size."""
    if isinstance(source, bytes):
        yield _Content(source), lambda size, start: source[start : start + size], len(source)
        return
    try:
        descriptor = open_descriptor(source, _AUDIO_FILE)
    except DataError as error:
        problem = error.problem.replace(_AUDIO_FILE.name, f"{_AUDIO_FILE.name} {source}", 1)
        raise DataError(problem, place=place, got=error.got, wanted=error.wanted) from None
    try:
        yield descriptor, partial(os.pread, descriptor), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
