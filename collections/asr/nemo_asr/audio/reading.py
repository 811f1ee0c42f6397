"""Audio from files or bytes: one mono float32 array at the wanted rate, checked before use. No manifests in here.

WAV, FLAC, OGG (Vorbis and Opus), MP3, AIFF, AU, CAF, W64 and NIST SPHERE, decoded by libsndfile. Two checks come before
the decoder sees anything: the kind of file and its codec (`headers`), and what the header promises. A FLAC file of
silence expands more than a thousand times.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from nemo_asr.audio.headers import REMEDY, ReadAt, check_header
from nemo_lite.errors import DataError

Samples: TypeAlias = "npt.NDArray[np.float32]"

SUBTYPES = frozenset(
    {"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS", "OPUS"}
    | {"MPEG_LAYER_III", "MS_ADPCM", "IMA_ADPCM"}
)  # libsndfile's names of the allowed codecs

TOLERANCE_SECONDS = 0.1
TOLERANCE_SHARE = 0.01
_ROUNDING_SECONDS = 0.01
MAX_SECONDS = 3600.0
_RATES = (1000, 768000)
_BLOCK_FRAMES = 1 << 16
_TRIM_HOP, _TRIM_WINDOW_HOPS = 512, 4
_TRIM_FLOOR = 1e-5  # amplitude below which librosa takes everything for equally silent


@dataclass(frozen=True)
class Audio:
    """What was read.

    Attributes:
        samples: (T,) mono, full scale is 1.
        source_rate: samples a second in the file, before resampling.
        num_channels: channels in the file, before averaging.
        excess: seconds by which the file is longer (below 0: shorter) than its stated duration; 0 within the tolerance,
            and where a part that lies inside the file was asked for.
    """

    samples: Samples
    source_rate: int
    num_channels: int
    excess: float = 0.0


def tolerance(seconds: float) -> float:
    """Seconds by which a promised duration may differ from the file: 0.1 s or 1 %, whichever is more."""
    return max(TOLERANCE_SECONDS, TOLERANCE_SHARE * seconds)


def excess_of(held: float, said: float) -> float:
    """Seconds by which a file of ``held`` seconds is longer than it is said to be; 0 within the tolerance."""
    return held - said if abs(held - said) > tolerance(said) else 0.0


def read_audio(
    source: str | bytes,
    *,
    sample_rate: int | None,
    offset: float | None = None,
    duration: float | None = None,
    int_values: bool = False,
    trim_silence: bool = False,
    strict: bool = True,
    name: str = "the audio",
    place: str = "",
) -> Audio:
    """Read a recording, or a part of it, as mono at ``sample_rate``.

    Args:
        source: path or content of an audio file. Any rate; channels are averaged.
        sample_rate: samples a second wanted; another rate in the file is resampled. None: the file's own.
        offset: seconds where to start. None: at the beginning, and where ``duration`` is that of the file, but for
            rounding (10 ms; ``strict``: the tolerance), it is read as a whole.
        duration: seconds to read; where the file has less, at most an hour. None: to the end, at most an hour.
        int_values: read through 32-bit integers, as NeMo does under this name: floats beyond full scale are clipped.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends.
        strict: a whole file that is not ``duration`` long is an error, and a part beyond the end of the file. Otherwise
            ``duration`` is the most that is read, as in NeMo, and ``Audio.excess`` has the difference.
        name: what messages call a source that is no path.
        place: where the source is named (``manifest:line``), for messages.

    Raises:
        DataError: the file is missing, empty, damaged, of another kind, shorter or longer than allowed, or has samples
            that are not finite.
    """
    path = name if isinstance(source, bytes) else source
    with _sound_file(source, path, place) as file:
        excess = 0.0
        if duration is not None:
            excess = _excess(file, path, offset, duration, strict, place)
        longer = duration is not None and file.frames / file.samplerate - duration > _ROUNDING_SECONDS
        if offset is None and duration is not None and (strict or not longer):
            first, count = 0, file.frames
        else:
            first, count = _part(file, path, offset, duration, place)
        samples = _decode(file, first, count, int_values)
        rate, channels, subtype = file.samplerate, file.channels, file.subtype
    _check_decoded(samples, count, subtype, path, place)
    if sample_rate not in (None, rate):
        samples = soxr.resample(samples, rate, sample_rate)
    return Audio(trimmed(samples) if trim_silence else samples, rate, channels, excess)


def audio_seconds(source: str | bytes, *, name: str = "the audio", place: str = "") -> float:
    """How long a recording is, by its header; nothing is decoded.

    Args:
        source: as `read_audio` takes it.
        name: what messages call a source that is no path.
        place: where the source is named, for messages.

    Raises:
        DataError: the file is missing, empty, damaged or of another kind.
    """
    path = name if isinstance(source, bytes) else source
    with _sound_file(source, path, place) as file:
        return float(file.frames / file.samplerate)


@contextmanager
def _sound_file(source: str | bytes, path: str, place: str) -> Iterator[soundfile.SoundFile]:
    """The source, opened by libsndfile after a look at what it is; its format is checked."""
    try:
        with _opened(source, place) as (handle, read_at):
            check_header(read_at, path, place)
            with soundfile.SoundFile(handle, closefd=False) as file:
                _check_format(file, path, place)
                yield file
    except (soundfile.SoundFileError, OSError) as error:
        # The whole text of a libsndfile error would name our descriptor as the file.
        reason = getattr(error, "error_string", str(error)).rstrip(".")
        raise DataError(f"{path} is damaged ({reason})", place=place) from None


@contextmanager
def _opened(source: str | bytes, place: str) -> Iterator[tuple[int | io.BytesIO, ReadAt]]:
    """What the decoder opens, and a function that reads bytes without moving the decoder's position."""
    if isinstance(source, bytes):
        yield io.BytesIO(source), lambda size, start: source[start : start + size]
        return
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe must not make us wait for a writer
    except OSError as error:
        raise DataError(f"the audio file {source} cannot be opened ({error.strerror})", place=place) from None
    try:
        kind = kind_unless_file(os.fstat(descriptor))
        if kind:
            raise DataError(f"the audio file {source} is {kind}", place=place)
        yield descriptor, partial(os.pread, descriptor)
    finally:
        os.close(descriptor)


def kind_unless_file(status: os.stat_result) -> str:
    """What something is that is no file, in words; "" for a file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"


def _excess(
    file: soundfile.SoundFile,
    path: str,
    offset: float | None,
    duration: float,
    strict: bool,
    place: str,
) -> float:
    """See `Audio.excess`. DataError where no difference is allowed, or the header claims more than an hour."""
    whole = file.frames / file.samplerate
    held = whole - (offset or 0.0)
    excess = excess_of(held, duration) if offset is None else min(excess_of(held, duration), 0.0)
    if excess and strict and offset is not None:
        problem = f"offset {offset:g} s + duration {duration:g} s is beyond the end of {path}"
        raise DataError(problem, place=place, got=f"{whole:.3f} s in the file")
    if excess and strict:
        problem = f"duration {duration:g} s disagrees with {path}, which holds {held:.3f} s"
        remedy = f"correct the duration (within {tolerance(duration):.2g} s), or add an offset to take a part"
        raise DataError(problem, place=place, remedy=remedy)
    if excess < 0 and held > MAX_SECONDS:
        problem = f"{path} holds {held:.3f} s, and its line says {duration:g} s"
        raise DataError(problem, place=place, wanted=f"at most {MAX_SECONDS:g} s", remedy="correct the duration")
    return excess


def _part(
    file: soundfile.SoundFile, path: str, offset: float | None, duration: float | None, place: str
) -> tuple[int, int]:
    """First frame and number of frames to decode, from the header alone."""
    rate, frames = file.samplerate, file.frames
    first = round((offset or 0.0) * rate)
    count = frames - first
    if duration is not None:
        count = min(round(duration * rate), count)
    elif count > MAX_SECONDS * rate:
        problem = f"{path} claims {count / rate:.0f} s of audio"
        raise DataError(problem, place=place, wanted=f"at most {MAX_SECONDS:.0f} s")
    if count <= 0:
        got = f"{frames / rate:.3f} s"
        raise DataError(f"offset {offset or 0.0:g} s leaves nothing of {path} ({got})", place=place)
    return first, count


def _check_format(file: soundfile.SoundFile, path: str, place: str) -> None:
    if file.subtype not in SUBTYPES:
        raise DataError(f"{path} has the codec {file.subtype}", place=place, remedy=REMEDY)
    if not _RATES[0] <= file.samplerate <= _RATES[1]:
        wanted = f"{_RATES[0]} to {_RATES[1]}"
        raise DataError(f"{path} claims {file.samplerate} samples a second", place=place, wanted=wanted)
    if file.frames <= 0:
        raise DataError(f"{path} holds no samples", place=place)


def _decode(file: soundfile.SoundFile, first: int, count: int, int_values: bool) -> Samples:
    """(count,) mono; fewer when the file ends early."""
    if first:
        file.seek(first)
    # numpy makes the same floats of 16-bit samples as libsndfile does; reading a batch then takes half the time.
    dtype = "int16" if file.subtype == "PCM_16" else "int32" if int_values else "float32"
    if file.channels == 1:
        return _scaled(file.read(count, dtype=dtype))
    # In blocks, so that a file of many channels needs no more memory than one.
    blocks = file.blocks(_BLOCK_FRAMES, frames=count, dtype=dtype, always_2d=True)
    mono: Samples = np.concatenate([_scaled(block).mean(axis=1) for block in blocks])
    return mono


def _scaled(samples: npt.NDArray[Any]) -> Samples:
    """Integers as floats of full scale 1; floats as they are."""
    floats: Samples = samples.astype(np.float32, copy=False)
    if samples.dtype.kind == "i":
        floats *= np.float32(2.0 ** (1 - 8 * samples.dtype.itemsize))
    return floats


def _check_decoded(samples: Samples, count: int, subtype: str, path: str, place: str) -> None:
    if len(samples) < count:
        raise DataError(f"{path} is damaged: {count} samples promised, {len(samples)} could be read", place=place)
    if subtype in ("FLOAT", "DOUBLE") and not np.isfinite(samples).all():
        raise DataError(f"{path} has samples that are NaN or infinite", place=place)


def trimmed(samples: Samples, top_db: float = 60.0) -> Samples:
    """Leave out both ends where the energy of 2048-sample windows is over ``top_db`` below the loudest window's.

    Windows are centred on every 512th sample; equal to `librosa.effects.trim` with its defaults.
    """
    num_windows = 1 + len(samples) // _TRIM_HOP
    half = _TRIM_WINDOW_HOPS // 2
    padded = np.zeros((num_windows + _TRIM_WINDOW_HOPS - 1) * _TRIM_HOP)
    padded[half * _TRIM_HOP : half * _TRIM_HOP + len(samples)] = samples
    per_hop = np.square(padded).reshape(-1, _TRIM_HOP).sum(axis=1)
    energy = sum(per_hop[shift : shift + num_windows] for shift in range(_TRIM_WINDOW_HOPS))
    power = np.maximum(energy / (_TRIM_WINDOW_HOPS * _TRIM_HOP), _TRIM_FLOOR**2)
    loud = np.flatnonzero(power > power.max() * 10.0 ** (-top_db / 10.0))
    return samples[loud[0] * _TRIM_HOP : min(len(samples), (loud[-1] + 1) * _TRIM_HOP)]
