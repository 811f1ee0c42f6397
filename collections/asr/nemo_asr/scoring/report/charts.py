"""Line charts, most over steps: geometry and ticks only. How they look is in the page's template; no HTML in here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

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
class DrawnCurve:
    """A drawn curve: corners as an SVG polyline takes them; dots (x, y, text that appears under the pointer)."""

    name: str
    colour: int
    corners: str
    dots: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class Chart:
    """A drawn chart: its title, its curves, and the numbers at its axes; ``x_name`` says what the lower one shows."""

    title: str
    lines: Sequence[DrawnCurve]
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
        lines.append(DrawnCurve(curve.name, curve.colour % NUM_COLOURS, corners, dots))
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
