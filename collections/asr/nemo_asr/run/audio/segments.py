"""Segments: the parts of a recording in which somebody speaks, by the levels of its frames. No files, no torch.

A frame lasts 10 ms. Its level is its power around its mean, since cheap microphones have an offset, in dB of full
scale. Levels are computed a piece at a time: those of an hour take 1.4 MB. Frames are speech above a threshold between
the recording's own quiet and loud levels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import soxr

from nemo_lite.base.ranges import Between, refuse_out_of_range

Samples: TypeAlias = "npt.NDArray[np.float32]"
Levels: TypeAlias = "npt.NDArray[np.float32]"
Decisions: TypeAlias = "npt.NDArray[np.bool_]"
Detector: TypeAlias = "Callable[[Iterable[Samples], int], tuple[Decisions, float]]"
"""From pieces of samples (T,) and their rate to a decision for each frame (N,) and the seconds of a frame."""

FRAME_SECONDS = 0.01
_SMOOTHED_FRAMES = 5  # of the mean power: single periods of a low voice are no pauses
_LOWEST = -120.0  # dB; digital silence
SILENT = -90.0  # dB of full scale; below is the rounding of 16 bits
_LOUD_SECONDS = 0.3  # the loud level is reached for this long in all: a click is shorter, a word is longer
_QUIET_SHARE = 0.1  # of the frames with sound, the quiet level is that of this share
_LEAST_CONTRAST = 12.0  # dB between the quiet and the loud level: a recording with less has no pauses that are known
_ABOVE_QUIET, _BELOW_LOUD = 5.0, 50.0  # dB; speech is above both
# 0.3 s in which the level hardly changes is noise: speech changes with each syllable. Not where it is this
# near to the loud level (a held note), nor once in a long recording (a breath).
_STEADY_SECONDS, _STEADY_RANGE, _STEADY_BELOW_LOUD, _STEADY_SHARE = 0.3, 6.0, 30.0, 0.05
# An average of channels with less than this share of the energy that unrelated sounds leave: of two equally loud ones a
# correlation below -0.8. Unrelated sounds have 1, equal ones as many as there are channels.
_CANCELLED = 0.2
_MOST_DB = 120.0  # of a loss; there may be nothing left


class Span(NamedTuple):
    """A part of a recording, in seconds from its beginning."""

    start: float
    end: float


@dataclass(frozen=True)
class Cutting:
    """How recordings are cut into segments. All values are seconds.

    Attributes:
        min_pause: a shorter pause does not end a segment.
        min_segment: shorter sounds are left out: clicks, a door.
        max_segment: longer segments are cut where they are quietest, in their last half.
        padding: what is kept before and behind the speech of a segment; at most half of the pause there.

    Raises:
        UsageError: a value is out of range.
    """

    min_pause: Annotated[float, Between(0.05, 3600, unit="s")] = 0.4
    min_segment: Annotated[float, Between(0, 3600, unit="s")] = 0.1
    max_segment: Annotated[float, Between(1, 3600, unit="s")] = 600.0
    padding: Annotated[float, Between(0, 3600, unit="s")] = 0.15

    def __post_init__(self) -> None:
        refuse_out_of_range(type(self).__init__, vars(self), types_too=True)

    def within(self, longest: float | None) -> Cutting:
        """The same, with no segment longer than a model hears: so many seconds, or any number."""
        if longest is None:
            return self
        return replace(self, max_segment=min(self.max_segment, longest - 2 * FRAME_SECONDS))  # samples are rounded


DEFAULT_CUTTING = Cutting()
LONG_PAUSE = 1.0  # seconds; models that have heard no silence fail from about here on (recipes.md has the rates)


def frame_samples(sample_rate: int) -> int:
    """Samples of a frame: 10 ms, as nearly as whole samples allow."""
    return max(1, round(FRAME_SECONDS * sample_rate))


def frame_levels(pieces: Iterable[Samples], sample_rate: int) -> Levels:
    """The level of each frame of a recording, in dB of full scale.

    Args:
        pieces: its samples (T,), one piece after the other, of any lengths.
        sample_rate: samples a second.

    Returns:
        (N,) for frames of ``frame_samples``; the last one may be shorter.
    """
    frame = frame_samples(sample_rate)
    powers: list[npt.NDArray[np.float64]] = []
    rest = np.zeros(0, np.float32)
    for piece in pieces:
        signal = np.concatenate([rest, piece])
        whole = len(signal) // frame * frame
        powers.append(signal[:whole].reshape(-1, frame).var(axis=1, dtype=np.float64))
        rest = signal[whole:]
    if len(rest):
        powers.append(np.array([rest.var(dtype=np.float64)]))
    power = np.concatenate([*powers, np.zeros(0)])
    levels: Levels = (10.0 * np.log10(power + 10.0 ** (_LOWEST / 10.0))).astype(np.float32)
    return levels


class ChannelEnergies:
    """Energies of several channels, and of their average: whether they cancel each other (opposite phases)."""

    def __init__(self) -> None:
        self._channels = self._average = 0.0
        self._num_channels = 1

    def add(self, samples: Samples) -> None:
        """Count some samples (T, channels)."""
        self._num_channels = samples.shape[1]
        flat, summed = samples.ravel(), samples @ np.ones(self._num_channels, np.float32)
        self._channels += float(flat @ flat) / self._num_channels
        self._average += float(summed @ summed) / self._num_channels**2

    @property
    def lost_db(self) -> float:
        """By how much the average is below the channels, in dB; 0 where it is not below that of unrelated sounds."""
        if self._average >= _CANCELLED * self._channels / self._num_channels:
            return 0.0
        return min(10.0 * math.log10(self._channels / max(self._average, 1e-30)), _MOST_DB)


def speech_threshold(levels: Levels) -> float:
    """The level above which a frame is speech; minus infinity where all frames are, infinity where none is."""
    with_sound = levels[levels > SILENT]
    num_loud = round(_LOUD_SECONDS / FRAME_SECONDS)
    if not len(with_sound):
        return float("inf")
    # With digital silence around, all sound is speech, unless it has pauses of its own.
    num_loud = min(num_loud, len(with_sound))
    loud = float(np.partition(with_sound, -num_loud)[-num_loud])
    # As np.quantile, which imports numpy.ma: that takes longer than all segments of a short recording.
    quiet = float(np.interp(_QUIET_SHARE * (len(with_sound) - 1), np.arange(len(with_sound)), np.sort(with_sound)))
    if loud - quiet < _LEAST_CONTRAST:
        return SILENT
    return max(quiet + _ABOVE_QUIET, loud - _BELOW_LOUD, _steady_level(with_sound, loud) + _ABOVE_QUIET)


def _steady_level(levels: Levels, loud: float) -> float:
    """The level of the loudest noise in the pauses; minus infinity where there is none.

    Recordings of several sources have several quiet levels: the quietest one says nothing about the others.
    """
    size = round(_STEADY_SECONDS / FRAME_SECONDS)
    blocks = levels[: len(levels) // size * size].reshape(-1, size)
    means = blocks.mean(axis=1)
    steady = means[(np.ptp(blocks, axis=1) <= _STEADY_RANGE) & (means <= loud - _STEADY_BELOW_LOUD)]
    return float(np.quantile(steady, 0.9)) if len(steady) > _STEADY_SHARE * len(blocks) else float("-inf")


def speech_spans(levels: Levels, frame_seconds: float, cutting: Cutting) -> list[Span]:
    """Where somebody speaks, by the levels of the frames; see `spans_of_frames`."""
    if not len(levels):
        return []
    smooth = smoothed(levels)
    return spans_of_frames(smooth > speech_threshold(smooth), smooth, frame_seconds, cutting)


def smoothed(levels: Levels) -> Levels:
    """The level of the mean power of 5 frames around each; of one frame at least."""
    power = np.power(10.0, levels.astype(np.float64) / 10.0)
    half = _SMOOTHED_FRAMES // 2  # np.pad takes longer than all the rest
    power = np.concatenate([*[power[:1]] * half, power, *[power[-1:]] * half])
    mean_power = np.convolve(power, np.full(_SMOOTHED_FRAMES, 1 / _SMOOTHED_FRAMES), mode="valid")
    smooth: Levels = (10.0 * np.log10(mean_power)).astype(np.float32)
    return smooth


def pauses(levels: Levels, frame_seconds: float) -> list[float]:
    """Seconds of each part in which nobody speaks, the two ends included; empty where nobody speaks at all."""
    spans = speech_spans(levels, frame_seconds, Cutting(padding=0.0))
    if not spans:
        return []
    edges = [0.0, *(second for span in spans for second in span), len(levels) * frame_seconds]
    return [end - start for start, end in zip(edges[::2], edges[1::2], strict=True)]


def longest_pause(levels: Levels, frame_seconds: float) -> float:
    """Seconds of the longest of them; 0 where nobody speaks at all."""
    return max(pauses(levels, frame_seconds), default=0.0)


def spans_of_frames(is_speech: Decisions, levels: Levels, frame_seconds: float, cutting: Cutting) -> list[Span]:
    """Segments from a decision for each frame.

    Args:
        is_speech: (N,) whether somebody speaks.
        levels: (N,) by which long segments are cut where they are quietest.
        frame_seconds: of a frame.
        cutting: pauses, lengths and padding.

    Returns:
        The segments in their order; they do not overlap. Empty where nobody speaks.
    """
    found = spans_of(is_speech, levels, frame_seconds, cutting)
    return [Span(start * frame_seconds, end * frame_seconds) for start, end in found]


def spans_of(is_speech: Decisions, levels: Levels, frame_seconds: float, cutting: Cutting) -> list[tuple[int, int]]:
    """As `spans_of_frames`, in frames."""
    min_pause, min_segment, longest, padding = (
        round(seconds / frame_seconds)
        for seconds in (cutting.min_pause, cutting.min_segment, cutting.max_segment, cutting.padding)
    )
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_speech, [False]]).astype(np.int8)))
    segments: list[list[int]] = []  # start, end, frames of speech
    for start, end in edges.reshape(-1, 2).tolist():
        if segments and start - segments[-1][1] < min_pause:
            segments[-1][1:] = [end, segments[-1][2] + end - start]
        else:
            segments.append([start, end, end - start])
    spoken = [(start, end) for start, end, num_frames in segments if num_frames >= min_segment]
    # Half of each pause at most; all of the recording in front of the first segment and behind the last one.
    middles = [(before[1] + behind[0]) // 2 for before, behind in itertools.pairwise(spoken)]
    limits = itertools.pairwise([0, *middles, len(is_speech)])
    spans = []
    for (start, end), (first, last) in zip(spoken, limits, strict=False):
        start, end = max(first, start - padding), min(last, end + padding)
        while end - start > longest:
            half = start + longest // 2
            cut = half + int(levels[half : start + longest].argmin())
            spans.append((start, cut))
            start = cut
        spans.append((start, end))
    return spans


def in_chunks(
    pieces: Iterable[Samples], sample_rate: int, wanted_rate: int, size: int, whole: bool = True
) -> Iterator[Samples]:
    """Samples at another rate in chunks of one size; the last one is padded with zeros, or shorter."""
    stream = None if sample_rate == wanted_rate else soxr.ResampleStream(sample_rate, wanted_rate, 1)
    rest = np.zeros(0, np.float32)
    resampled = pieces if stream is None else itertools.chain(map(stream.resample_chunk, pieces), _last_of(stream))
    for piece in resampled:
        rest = np.concatenate([rest, piece])
        for first in range(0, len(rest) - size + 1, size):
            yield rest[first : first + size]
        rest = rest[len(rest) // size * size :]
    if len(rest):
        yield np.pad(rest, (0, size - len(rest))) if whole else rest


def _last_of(stream: soxr.ResampleStream) -> Iterator[Samples]:
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
