"""Geometry of line charts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_asr.scoring.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_BUCKETS,
    RIGHT,
    TOP,
    WIDTH,
    Curve,
    chart,
    decades,
    nice_ticks,
    thinned,
)

VALUES = st.floats(-1e9, 1e9, allow_nan=False)


def corners(line):
    return [tuple(map(float, pair.split(","))) for pair in line.corners.split()]


def test_points_stand_where_the_axes_say():
    drawn = chart("Loss", [Curve("a", [(0, 0.0), (50, 5.0), (100, 10.0)], colour=2)])
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    assert corners(drawn.lines[0]) == [(LEFT, floor), ((LEFT + right) / 2, (floor + TOP) / 2), (right, TOP)]
    assert (drawn.lines[0].name, drawn.lines[0].colour) == ("a", 2)
    assert [tick.text for tick in drawn.x_ticks] == ["0", "20", "40", "60", "80", "100"]
    assert [(tick.text, tick.at) for tick in drawn.y_ticks][::5] == [("0", floor), ("10", TOP)]
    assert drawn.lines[0].dots[1][2] == "a, step 50: 5"


def test_values_that_span_decades_get_a_logarithmic_axis_where_allowed():
    curves = [Curve("a", [(1, 1.0), (2, 10.0), (3, 1000.0)])]
    drawn = chart("Loss", curves, may_be_log=True)
    assert drawn.title == "Loss (logarithmic)"
    assert [tick.text for tick in drawn.y_ticks] == ["1", "10", "100", "1000"]
    (_, first), (_, second), (_, third) = corners(drawn.lines[0])
    assert second - third == pytest.approx(2 * (first - second), abs=0.2)
    assert chart("Loss", curves).title == "Loss"
    assert chart("Loss", [Curve("a", [(1, 0.0), (2, 500.0)])], may_be_log=True).title == "Loss"


def test_fractions_are_written_as_percentages():
    drawn = chart("WER", [Curve("dev", [(10, 0.5)])], percent=True)
    assert drawn.y_ticks[-1].text == "50 %"
    assert drawn.lines[0].dots[0][2] == "dev, step 10: 50 %"


def test_curves_without_points_are_left_out():
    assert [line.name for line in chart("Loss", [Curve("a", []), Curve("b", [(1, 2.0)])]).lines] == ["b"]
    assert chart("Loss", [Curve("a", [])]) is None


@given(VALUES, VALUES)
@example(0.0, 5e-324)
@example(-9e-303, 0.0)
def test_ticks_hold_all_values_and_are_few(one, other):
    low, high = sorted((one, other))
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    slack = max(1e-6 * max(abs(low), abs(high)), 1e-300)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(1, 1000, [1, 10, 100, 1000]), (0.5, 3, [0.1, 1, 10]), (2, 2.5, [1, 10])]
)
def test_decades_hold_all_values(low, high, ticks):
    assert decades(low, high) == pytest.approx(ticks)


def test_many_decades_have_few_ticks():
    assert len(decades(1e-9, 1e12)) <= 10


def test_a_long_curve_keeps_its_extremes():
    points = [(float(step), float(step % 97)) for step in range(50_000)]
    points[12_345] = (12_345.0, 1e6)
    points[33_333] = (33_333.0, -1e6)
    kept = thinned(points)
    assert len(kept) <= 2 * MOST_BUCKETS
    assert {(12_345.0, 1e6), (33_333.0, -1e6)} <= set(kept)
    assert kept == sorted(kept)
    assert thinned(points[:100]) == points[:100]


def test_a_curve_of_one_point_at_step_0_can_be_drawn():
    drawn = chart("Loss", [Curve("a", [(0, 0.0)])])
    assert corners(drawn.lines[0]) == [(LEFT, HEIGHT - BOTTOM)]
