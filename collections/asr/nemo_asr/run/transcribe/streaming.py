"""``nemo-lite transcribe --stream``: audio as it arrives, partial and final texts as JSON lines."""

from __future__ import annotations

import itertools
import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from nemo_asr.run.audio.growing import growing_audio
from nemo_asr.run.audio.heads import kind_of_start
from nemo_asr.run.audio.segments import Samples, in_chunks
from nemo_asr.run.engines import FrameModel, TranscriptionSettings, open_engines, open_stream_engine
from nemo_asr.run.options import search_options
from nemo_asr.run.transcribe.driver import segment_stream
from nemo_asr.run.transcribe.frame_stream import EndpointRules, FrameStream
from nemo_asr.run.transcribe.inputs import MICROPHONE, STDIN, one_channel, recordings_of, stdin_of_audio
from nemo_asr.run.transcribe.stream import Partial, Stream, message_of
from nemo_lite.base.errors import UsageError

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
        return _run(FrameStream(model, rate, rules, streams.calibration, decoder=search), chunks, rate)


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
