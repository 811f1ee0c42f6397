"""Symbolic sizes: how they read, and that they compute what they read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_lite.core.graph.shapes import (
    Expr,
    Size,
    ceil_div,
    definitions,
    floor_div,
    named,
    shape_of,
    symbol,
    symbols_of,
    written,
)
from nemo_lite.core.neural_types import AxisKind, AxisType, ChannelType, LossType, NeuralType
from nemo_lite.errors import UsageError

T, SAMPLES = symbol("T"), symbol("samples")


@pytest.mark.parametrize(
    ("size", "text", "at_7"),
    [
        (T, "T", 7),
        (T + 3, "T+3", 10),
        (3 + T, "T+3", 10),
        (T - 3, "T-3", 4),
        (T + 5 - 2, "T+3", 10),
        (T - 2 - 2, "T-4", 3),
        (T - 2 + 2, "T", 7),
        (T * 2, "T*2", 14),
        (2 * T, "T*2", 14),
        (T * 1, "T", 7),
        ((T + 1) * 2, "(T+1)*2", 16),
        (T - (T - 1), "T-(T-1)", 1),
        (ceil_div(T, 2), "T/2", 4),
        (ceil_div(ceil_div(T, 2), 3), "T/6", 2),
        (ceil_div(T, 1), "T", 7),
        (ceil_div(T + 1, 2), "(T+1)/2", 4),
        (floor_div(T, 2), "T//2", 3),
        (floor_div(T, 1), "T", 7),
        (named("U", ceil_div(T, 2)), "U", 4),
        (ceil_div(named("U", ceil_div(T, 2)), 2), "U/2", 2),
        (named("U", T), "U", 7),
        (named("U", 5), "U", 5),
    ],
)
def test_a_size_reads_as_it_computes(size: Expr, text: str, at_7: int) -> None:
    assert str(size) == text
    assert size.value(T=7) == at_7


def test_numbers_stay_numbers() -> None:
    assert (ceil_div(7, 2), floor_div(7, 2)) == (4, 3)


@given(st.integers(0, 10**9), st.integers(1, 1000), st.integers(1, 1000))
def test_nested_divisions_may_be_written_as_one(size: int, first: int, second: int) -> None:
    assert ceil_div(ceil_div(T, first), second).value(T=size) == math.ceil(math.ceil(size / first) / second)  # type: ignore[union-attr]


def test_a_size_whose_symbol_is_not_given_says_which() -> None:
    with pytest.raises(UsageError, match=r"size T is not known; give T=\.\.\."):
        (T + 1).value(samples=3)


def test_a_size_knows_its_symbols() -> None:
    assert symbols_of(named("U", T + SAMPLES)) == {"T", "samples"}
    assert symbols_of(64) == set()


def test_definitions_list_named_sizes_also_inside_others() -> None:
    frames = named("T", ceil_div(SAMPLES, 160))
    assert definitions([(symbol("B"), 64), (symbol("B"), ceil_div(frames, 2))]) == {"T": "samples/160"}


def test_a_name_with_two_meanings_gets_both() -> None:
    shapes = [(named("T", ceil_div(SAMPLES, hop)),) for hop in (160, 80, 160)]
    assert definitions(shapes) == {"T": "samples/160 or samples/80"}


def test_a_long_chain_of_changes_is_one_expression() -> None:
    size = T
    for _ in range(5000):
        size = size - 2
    assert (str(size), size.value(T=20000)) == ("T-10000", 10000)


def test_types_alone_give_fixed_sizes_the_batch_and_question_marks() -> None:
    axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, 64), AxisType(AxisKind.Time))
    assert written(shape_of(NeuralType(axes, ChannelType()))) == "B 64 T?"
    assert written(shape_of(NeuralType(elements_type=LossType()))) == "scalar"


def test_equal_sizes_are_equal() -> None:
    size: Size = ceil_div(T + 1, 2)
    assert size == ceil_div(T + 1, 2)
    assert len({size, ceil_div(T + 1, 2)}) == 1
