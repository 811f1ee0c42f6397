"""Audio from files or bytes: one mono float32 array at the wanted rate, checked before use.

WAV, FLAC, OGG (Vorbis and Opus), MP3, AIFF, AU, CAF, W64 and NIST SPHERE, decoded by libsndfile a piece at a time: a
FLAC file of silence expands more than a thousand times. How much of it may be read is decided here, by its head. Other
kinds are decoded by PyAV.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soxr

from nemo_asr.run.audio.decoded import Watch
from nemo_asr.run.audio.files import MAX_VALUES, AudioFile, Samples, check_channel, open_audio
from nemo_lite.base.errors import DataError

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
    """The part that is asked for, of which the head alone is read; see `read_audio`."""
    check_channel(channel, file.num_channels, file.path, file.place)
    excess = 0.0 if duration is None else _excess(file, offset, duration, strict)
    longer = duration is not None and file.seconds - duration > _ROUNDING_SECONDS
    first, count = 0, file.frames
    if offset is not None or duration is None or (longer and not strict):
        start = offset or 0.0
        # Compared before it becomes a whole number: 1e308 s is a number, and has infinitely many samples.
        first = round(start * file.rate) if 0.0 <= start < file.seconds else file.frames
        count = file.frames - first
        if duration is not None and duration < file.seconds:
            count = min(round(duration * file.rate), count)
        if count <= 0:
            problem = f"offset {start:g} s leaves nothing of {file.path} ({file.seconds:.3f} s)"
            raise DataError(problem, place=file.place)
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
