"""``nemo-lite transcribe --stream``: audio as it arrives, partial and final texts as JSON lines.

From stdin, a microphone, or a file that is still being written: WAV, and samples without a header.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import struct
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import soundfile

from nemo_asr.run.audio.files import Samples, check_channel
from nemo_asr.run.audio.heads import kind_of_start
from nemo_asr.run.audio.kinds import audio_suffixes
from nemo_asr.run.audio.segments import in_chunks
from nemo_asr.run.engines import FrameModel, TranscriptionSettings, open_engines, open_stream_engine
from nemo_asr.run.options import search_options
from nemo_asr.run.transcribe.driver import segment_stream
from nemo_asr.run.transcribe.inputs import MICROPHONE, STDIN, one_channel, recordings_of, stdin_of_audio
from nemo_asr.run.transcribe.stream import EndpointRules, FrameStream, Partial, Stream, message_of
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, open_file

_START_BYTES = 4096  # of stdin that are looked at: a frame of MP3 or AAC, and the beginning of the next one
_REMEDY = "decode it into samples (ffmpeg -i FILE -f s16le -ac 1 -ar 16000 -), or name the file"

# Any: values of JSON, and of a package that may be missing.


def transcribe_stream(args: Namespace) -> int:
    """Write events as they come; at the end the whole text and how fast it was.

    Args:
        args: the options.

    Returns:
        0.

    Raises:
        UsageError: the model cannot stream, a chunk is shorter than a frame, or there is no such audio.
    """
    if args.stream == "segments":
        (engine,) = open_engines([args.model], args)
        search = engine.new_search(search_options(args))
        settings = TranscriptionSettings(search=search, calibration=engine.calibration)
        with _source(args) as (rate, chunks):
            return _run(segment_stream(engine, settings, rate), chunks, rate)
    streams = open_stream_engine(args.model, args)
    search = streams.new_search(search_options(args))
    try:
        model = streams.frame_model()
    except UsageError as error:
        remedy = "--stream segments is for every model"
        raise UsageError(str(error), place="--stream", remedy=remedy) from None
    rules = _rules(args, model)
    with _source(args) as (rate, chunks):
        stream = FrameStream(model, rate, rules, streams.calibration, decoder=search, domain=streams.domain)
        return _run(stream, chunks, rate)


def _rules(args: Namespace, model: FrameModel) -> EndpointRules:
    """When parts end.

    Raises:
        UsageError: a chunk is shorter than a frame.
    """
    hop = model.hop_samples / model.sample_rate
    if args.stream_chunk < hop:
        problem, got = "a chunk is shorter than a frame of features", f"--stream_chunk {args.stream_chunk:g} s"
        raise UsageError(problem, got=got, wanted=f"at least {hop:g} s")
    return EndpointRules(args.silence, args.pause, args.longest_part)


def _run(stream: Stream, chunks: Iterable[Samples], rate: int) -> int:
    num_samples, busy = 0, 0.0
    try:
        for chunk in chunks:
            start = time.perf_counter()
            events = stream.accept(chunk)
            busy += time.perf_counter() - start
            num_samples += len(chunk)
            _write(events)
    except KeyboardInterrupt:  # how a microphone is switched off
        pass
    start = time.perf_counter()
    _write(stream.finish())
    busy += time.perf_counter() - start
    seconds = num_samples / rate
    _line({"type": "done", "text": stream.text, "duration": round(seconds, 3)})
    print(f"{seconds:.1f} s of audio: real-time factor {busy / max(seconds, 1e-3):.2g}", file=sys.stderr)
    return 0


def _write(events: Sequence[Partial]) -> None:
    for event in events:
        _line(message_of(event))


def _line(values: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
    sys.stdout.flush()


@contextmanager
def _source(args: Namespace) -> Iterator[tuple[int, Iterable[Samples]]]:
    """The rate and the chunks of the audio."""
    (name,) = args.audio
    if name == STDIN:
        file = stdin_of_audio("pipe samples of 16 bits into the command, or name a file")
        yield args.stream_rate, _of_bytes(file, _chunk_samples(args, args.stream_rate))
    elif name == MICROPHONE:
        with _microphone(args.stream_rate, _chunk_samples(args, args.stream_rate)) as chunks:
            yield args.stream_rate, chunks
    elif args.follow is not None:
        channel = one_channel(args.channel)
        channel = channel if isinstance(channel, int) else None
        size = _chunk_samples(args, args.stream_rate)
        with growing_audio(name, args.stream_rate, args.follow, size, channel) as source:
            yield source
    else:
        recordings = recordings_of([name], args.channel)
        if len(recordings) != 1:
            raise UsageError("a stream is one recording", place=name, got=f"{len(recordings)} recordings")
        with recordings[0].pieces() as (_, pieces, rate):
            yield rate, in_chunks(pieces, rate, rate, _chunk_samples(args, rate), whole=False)


def _chunk_samples(args: Namespace, rate: int) -> int:
    return max(1, round(float(args.stream_chunk) * rate))


def _of_bytes(file: Any, size: int) -> Iterator[Samples]:
    """Samples of 16 bits, little-endian, as they come: at most ``size`` at a time, and never waiting for more."""
    rest = start = b""
    while content := file.read1(2 * size):  # read() would wait until all bytes are there
        if len(start) < _START_BYTES:
            start += content
            if (kind := kind_of_start(start)) is not None:
                wanted = "samples of 16 bits without a header, little-endian, one channel"
                raise UsageError("stdin is a file, not a stream", place=STDIN, got=kind, wanted=wanted, remedy=_REMEDY)
        content = rest + content
        whole = len(content) // 2 * 2
        rest = content[whole:]
        yield np.frombuffer(content[:whole], "<i2").astype(np.float32) / np.float32(32768)


@contextmanager
def _microphone(rate: int, size: int) -> Iterator[Iterable[Samples]]:
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        remedy = "pip install sounddevice; on Linux it needs the library PortAudio"
        raise UsageError("a microphone needs sounddevice", got=str(error), remedy=remedy) from None
    heard: SimpleQueue[Samples] = SimpleQueue()

    def take(samples: Any, *_: object) -> None:
        heard.put(samples[:, 0].copy())

    try:
        with sounddevice.InputStream(samplerate=rate, blocksize=size, channels=1, dtype="float32", callback=take):
            yield (heard.get() for _ in itertools.count())
    except sounddevice.PortAudioError as error:
        raise UsageError("the microphone cannot be opened", got=str(error)) from None


_FILE = FileKind("the audio file", 1 << 40)
_GROWING_REMEDY = "record 16-bit WAV, or samples of 16 bits without a header"
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
            raise DataError(
                f"{path} cannot be read while it is being written", got=got, wanted=wanted, remedy=_GROWING_REMEDY
            )
        elif (kind := kind_of_start(head)) is not None:
            problem = f"{path} cannot be read while it is being written"
            raise DataError(problem, got=kind, wanted="WAV, or samples without a header", remedy=_GROWING_REMEDY)
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
                raise DataError(problem, got=got, wanted="WAV of whole numbers", remedy=_GROWING_REMEDY)
            layout = _Layout(rate, num_channels, codec, frame_bytes)
    if layout is None:
        raise DataError(f"{path} is damaged: a WAV file without a format", remedy=_GROWING_REMEDY)
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
