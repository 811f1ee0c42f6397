"""Audio files that are still being written: WAV, and samples without a header. Finished files: `reading`."""

from __future__ import annotations

import io
import re
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import soundfile

from nemo_asr.run.audio.files import Samples, check_channel
from nemo_asr.run.audio.heads import kind_of_start
from nemo_asr.run.audio.kinds import audio_suffixes
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, open_file

_FILE = FileKind("the audio file", 1 << 40)
_REMEDY = "record 16-bit WAV, or samples of 16 bits without a header"
_CODECS = {(1, 8): "PCM_U8", (1, 16): "PCM_16", (1, 24): "PCM_24", (1, 32): "PCM_32", (6, 8): "ALAW", (7, 8): "ULAW"}
_EXTENSIBLE = 0xFFFE
_POLL_SECONDS = 0.05
_HEAD_BYTES = 12
_MOST_CHUNK_BYTES = 1 << 20  # of a chunk in front of the samples


class _Layout(NamedTuple):
    """How samples lie in a file.

    Attributes:
        sample_rate: samples a second.
        num_channels: samples of one moment.
        codec: libsndfile's name of it.
        frame_bytes: bytes of the samples of one moment.
    """

    sample_rate: int
    num_channels: int = 1
    codec: str = "PCM_16"
    frame_bytes: int = 2


class _Growing:
    """Reads on, and waits where nothing has been written yet."""

    def __init__(self, file: BinaryIO, patience: float) -> None:
        self._file, self._patience = file, patience

    def some(self, most: int) -> bytes:
        """The next bytes; none, if none came for as long as the patience lasts."""
        end = time.monotonic() + self._patience
        while not (content := self._file.read(most)):
            if time.monotonic() >= end:
                return b""
            time.sleep(_POLL_SECONDS)
        return content

    def exactly(self, number: int) -> bytes:
        """So many bytes; fewer, if no more came."""
        content = b""
        while len(content) < number and (more := self.some(number - len(content))):
            content += more
        return content


@contextmanager
def growing_audio(
    path: str, sample_rate: int, patience: float, size: int, channel: int | None = None
) -> Iterator[tuple[int, Iterable[Samples]]]:
    """The sample rate of a file that grows, and its samples of full scale 1 as they come.

    The file is over when nothing was written for a while. What a WAV header says of its length is not looked at: it is
    known at the end alone.

    Args:
        path: WAV of whole numbers, A-law or mu-law; else one channel of 16 bits, little-endian.
        sample_rate: of samples without a header.
        patience: seconds without a new sample, after which the file is over.
        size: most samples at a time.
        channel: one of several, from 0; None: their average.

    Raises:
        DataError: the file cannot be read, or is of another kind.
    """
    with open_file(Path(path).expanduser(), _FILE) as file:
        growing = _Growing(file, patience)
        head = growing.exactly(_HEAD_BYTES)
        layout = _Layout(sample_rate)
        if re.match(rb"RIFF....WAVE", head, re.DOTALL):
            head, layout = b"", _layout_of(growing, path)
        elif (suffix := Path(path).suffix.lower()) in audio_suffixes():
            got, wanted = f"{suffix}, which does not begin as WAV does", "WAV, or samples without a header"
            raise DataError(f"{path} cannot be read while it is being written", got=got, wanted=wanted, remedy=_REMEDY)
        elif (kind := kind_of_start(head)) is not None:
            problem = f"{path} cannot be read while it is being written"
            raise DataError(problem, got=kind, wanted="WAV, or samples without a header", remedy=_REMEDY)
        check_channel(channel, layout.num_channels, path)
        yield layout.sample_rate, _samples(growing, head, layout, size, channel)


def _layout_of(growing: _Growing, path: str) -> _Layout:
    """Of a WAV file, from behind its first bytes up to where samples begin.

    Raises:
        DataError: it has no samples that can be read here.
    """
    layout = None
    while len(chunk := growing.exactly(8)) == 8:
        name, num_bytes = struct.unpack("<4sI", chunk)
        if name == b"data":
            break
        content = growing.exactly(min(num_bytes + num_bytes % 2, _MOST_CHUNK_BYTES))
        if name == b"fmt " and len(content) >= 16:
            tag, num_channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", content)
            if tag == _EXTENSIBLE and len(content) >= 26:
                (tag,) = struct.unpack_from("<H", content, 24)
            codec = _CODECS.get((tag, bits))
            if codec is None or not num_channels or frame_bytes != num_channels * bits // 8:
                got = f"WAV of format {tag}, {bits} bits, {num_channels} channels"
                problem = f"{path} cannot be read while it is being written"
                raise DataError(problem, got=got, wanted="WAV of whole numbers", remedy=_REMEDY)
            layout = _Layout(rate, num_channels, codec, frame_bytes)
    if layout is None:
        raise DataError(f"{path} is damaged: a WAV file without a format", remedy=_REMEDY)
    return layout


def _samples(growing: _Growing, rest: bytes, layout: _Layout, size: int, channel: int | None) -> Iterator[Samples]:
    settings = {"samplerate": layout.sample_rate, "channels": layout.num_channels, "subtype": layout.codec}
    while content := growing.some(size * layout.frame_bytes):
        content = rest + content
        whole = len(content) // layout.frame_bytes * layout.frame_bytes
        content, rest = content[:whole], content[whole:]
        if content:
            raw = io.BytesIO(content)
            samples, _ = soundfile.read(raw, format="RAW", endian="LITTLE", dtype="float32", always_2d=True, **settings)
            yield samples.mean(axis=1) if channel is None else samples[:, channel]
