"""Charts and media of the report page: curves, reliability, waveforms, spectrograms."""

from __future__ import annotations

import base64
import io
import math
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import soundfile
import torch

from nemo_asr.features.filterbank import mel_filterbank
from nemo_asr.features.framing import frame_count
from nemo_asr.features.spectra import centred, extended_signal, own_samples, power_spectra, window_function
from nemo_asr.run.audio.reading import Samples, read_audio
from nemo_asr.run.calibration import FILE_NAME, CalibrationRecord, MeasuredSet, Reliability
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, parse_json, read_bytes

# Line charts, most over steps: geometry and ticks only. How they look is in the page's template; no HTML in here.


WIDTH, HEIGHT = 480.0, 260.0  # user units of the picture
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 12.0, 34.0  # margins: numbers of the axes stand in them
NUM_COLOURS = 7
MOST_BUCKETS = 400  # a curve of more points is drawn by the extremes of so many stretches
MOST_DOTS = 60  # a curve of at most so many points has dots
_LEAST_SPAN = 1e-300  # smaller ones have no quarter that a float can hold
_LOG_FROM = 30.0  # a chart whose largest value is so many times its smallest gets a logarithmic axis, where allowed

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """A named curve: points (step, value), by rising step, and the number of its colour."""

    name: str
    points: Sequence[Point]
    colour: int = 0


@dataclass(frozen=True)
class Tick:
    """A number at an axis: where, in user units, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """A drawn curve: corners as an SVG polyline takes them; dots (x, y, text that appears under the pointer)."""

    name: str
    colour: int
    corners: str
    dots: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class Chart:
    """A drawn chart: its title, its curves, and the numbers at its axes; ``x_name`` says what the lower one shows."""

    title: str
    lines: Sequence[Line]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    x_name: str = "step"


def chart(
    title: str, curves: Iterable[Curve], *, may_be_log: bool = False, percent: bool = False, x_name: str = "step"
) -> Chart | None:
    """A chart of the curves that have points; None where none has.

    Args:
        title: what the values are.
        curves: to be drawn, the last one on top.
        may_be_log: the axis of values may be logarithmic; else it begins at 0.
        percent: values are fractions, written as percentages.
        x_name: what a step stands for.
    """
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return None
    values = [value for curve in drawn for _, value in curve.points]
    last = max(step for curve in drawn for step, _ in curve.points)
    x_ticks = nice_ticks(0.0, max(last, 1.0))
    is_log = may_be_log and min(values) > 0 and max(values) > _LOG_FROM * min(values)
    y_ticks = decades(min(values), max(values)) if is_log else nice_ticks(min(0.0, *values), max(values))
    end, bottom, top = max(last, 1.0), _axis(y_ticks[0], is_log), _axis(y_ticks[-1], is_log)

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / end, 1)

    def y(value: float) -> float:
        share = (_axis(value, is_log) - bottom) / (top - bottom)
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share, 1)

    def text(value: float) -> str:
        return f"{value * 100:.4g} %" if percent else f"{value:.4g}"

    lines = []
    for curve in drawn:
        corners = " ".join(f"{x(step)},{y(value)}" for step, value in thinned(curve.points))
        dotted = curve.points if len(curve.points) <= MOST_DOTS else ()
        dots = [(x(step), y(value), f"{curve.name}, {x_name} {step:g}: {text(value)}") for step, value in dotted]
        lines.append(Line(curve.name, curve.colour % NUM_COLOURS, corners, dots))
    return Chart(
        title if not is_log else f"{title} (logarithmic)",
        lines,
        [Tick(x(tick), f"{tick:g}") for tick in x_ticks if tick <= end],
        [Tick(y(tick), text(tick)) for tick in y_ticks],
        x_name,
    )


def nice_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from ``low`` or less to ``high`` or more; four to eight of them."""
    span = next(size for size in (high - low, abs(high), 1.0) if size > _LEAST_SPAN)
    power = 10.0 ** math.floor(math.log10(span / 4))
    width = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)
    first, last = math.floor(low / width + 1e-9), math.ceil((low + span) / width - 1e-9)
    return [number * width for number in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten, from ``low`` or less to ``high`` or more; of many decades every second, third, ..."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    width = max(1, math.ceil((last - first) / 8))
    return [10.0**exponent for exponent in range(first, last + width, width)]


def thinned(points: Sequence[Point]) -> list[Point]:
    """The points, or of many those that the eye would see: the lowest and the highest of each stretch."""
    if len(points) <= 2 * MOST_BUCKETS:
        return list(points)
    size = -(-len(points) // MOST_BUCKETS)
    kept: list[Point] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        kept += sorted({min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))})
    return kept


def _axis(value: float, is_log: bool) -> float:
    return math.log10(value) if is_log else value


# A recording as a player and a picture inside a page: data URLs of FLAC and PNG. No HTML in here.
# The picture is made with zlib alone, so that a report needs no library for drawing.


SAMPLE_RATE = 16000  # of the players; what speech recognition hears
MAX_SECONDS = 15.0  # of a recording; the rest is left out
NUM_MELS, N_FFT, WINDOW, HOP = 80, 512, 400, 160  # window and hop in samples: 25 and 10 ms
MAX_COLUMNS = 700  # of a picture; longer recordings get a longer hop
_RANGE_DB = 80.0  # below the loudest point; what is quieter is drawn as silence
_SHADES = 64
# Perceptually rising, readable by the colour-blind; between them it is mixed.
_COLOURS = ((13, 8, 35), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))


@dataclass(frozen=True)
class Clip:
    """A recording, ready for a page.

    Attributes:
        audio: data URL of a FLAC file, mono, 16 kHz.
        picture: data URL of a PNG: time from left to right, mel bands from low (below) to high.
        seconds: how much of it is there.
        is_cut: whether the recording goes on.
    """

    audio: str
    picture: str
    seconds: float
    is_cut: bool

    @property
    def num_bytes(self) -> int:
        """What it adds to a page."""
        return len(self.audio) + len(self.picture)


def make_clip(
    path: str | Path, offset: float | None = None, duration: float | None = None, channel: int | None = None
) -> Clip:
    """Read an utterance, at most its first 15 seconds.

    Args:
        path: WAV, FLAC or OGG.
        offset: seconds where it begins; None: the whole recording.
        duration: seconds; None: to the end.
        channel: which one, from 0; None: the average of all.

    Raises:
        DataError: the recording cannot be read.
    """
    is_long = duration is not None and duration > MAX_SECONDS
    # Of a recording without a duration a little more, to see whether it goes on; it may last an hour.
    seconds = MAX_SECONDS if is_long else MAX_SECONDS + 1.0 if duration is None else duration
    samples = read_audio(
        str(path), sample_rate=SAMPLE_RATE, offset=offset, duration=seconds, channel=channel, strict=False
    ).samples
    most = round(MAX_SECONDS * SAMPLE_RATE)
    is_cut = is_long or len(samples) > most
    samples = samples[:most]
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    picture = png(spectrogram(samples))
    seconds = len(samples) / SAMPLE_RATE
    return Clip(data_url("audio/flac", file.getvalue()), data_url("image/png", picture), seconds, is_cut)


def data_url(kind: str, content: bytes) -> str:
    """The content as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def spectrogram(samples: Samples) -> npt.NDArray[np.uint8]:
    """Log-mel energies as shades, 0 (quiet) to 63: (80 bands from high to low, columns)."""
    hop = max(HOP, math.ceil(len(samples) / MAX_COLUMNS))
    signal, length = torch.from_numpy(samples)[None], torch.tensor([len(samples)])
    extended = extended_signal(own_samples(signal, length), N_FFT)
    window = centred(window_function("hann", WINDOW, periodic=False), N_FFT)
    blocks = power_spectra(extended, window, hop, frame_count(len(samples), hop))
    power = torch.cat([block[0] for _, block in blocks]).numpy()  # (T, n_fft // 2 + 1)
    mel = mel_filterbank(SAMPLE_RATE, N_FFT, NUM_MELS, 0.0, SAMPLE_RATE / 2).numpy() @ power.T
    decibel = 10.0 * np.log10(np.maximum(mel, 1e-10))
    level = np.clip((decibel - decibel.max()) / _RANGE_DB + 1.0, 0.0, 1.0)
    shades: npt.NDArray[np.uint8] = np.rint(level[::-1] * (_SHADES - 1)).astype(np.uint8)
    return shades


def png(shades: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file with a palette of 64 colours; one row of (rows, columns) after the other, from above.

    Source: W3C, "Portable Network Graphics (PNG) Specification", third edition, 2025.
    """
    rows, columns = shades.shape
    unfiltered = np.concatenate([np.zeros((rows, 1), np.uint8), shades], axis=1)  # each row begins with its filter: 0
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),  # 8 bits a pixel, colours from a palette
        (b"PLTE", _palette().tobytes()),
        (b"IDAT", zlib.compress(unfiltered.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _palette() -> npt.NDArray[np.uint8]:
    """(64, 3) red, green and blue."""
    at = np.linspace(0, len(_COLOURS) - 1, _SHADES)
    mixed = [np.interp(at, range(len(_COLOURS)), part) for part in zip(*_COLOURS, strict=True)]
    return np.rint(np.stack(mixed, axis=1)).astype(np.uint8)


# Reliability plots: for confidences of about p, the share of right words; before calibration and after it.


_KIND = FileKind("the calibration", 1 << 24)
_DECODER = msgspec.json.Decoder(CalibrationRecord)


def reliability_charts(folder: Path) -> list[Chart]:
    """A plot for each set in ``calibration.json`` of a folder; none where there is no such file.

    Raises:
        DataError: it cannot be read.
    """
    path = folder / FILE_NAME
    if not os.path.lexists(path):
        return []
    content = read_bytes(path, _KIND)
    parse_json(content, path, _KIND)
    try:
        sets = _DECODER.decode(content).sets
    except msgspec.MsgspecError as error:
        raise DataError("the calibration is damaged", place=str(path), got=str(error)) from None
    return [drawn for scored_set in sets if (drawn := _plot(scored_set)) is not None]


def _plot(measured: MeasuredSet) -> Chart | None:
    curves = [
        Curve("equal", [(0.0, 0.0), (1.0, 1.0)]),
        Curve(f"before: {measured.before.error:.1%} off", _points(measured.before), 2),
        Curve(f"calibrated: {measured.after.error:.1%} off", _points(measured.after), 1),
    ]
    return chart(f"Share of right words, {measured.name}", curves, percent=True, x_name="confidence")


def _points(reliability: Reliability) -> list[tuple[float, float]]:
    return [(group.confidence, group.right) for group in reliability.bins]
