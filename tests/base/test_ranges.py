"""Ranges beside parameters: what they hold, and the line that a file and a script get for a value outside of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from nemo_lite.base.config import Checked, Config, check_call, parse_config
from nemo_lite.base.errors import OutOfRangeError
from nemo_lite.base.ranges import (
    Between,
    PositiveInt,
    StepsBetween,
    WaitingSeconds,
    annotations_of,
    numbers_checked,
    refuse_out_of_range,
    wanted,
)
from nemo_lite.core.neural_module import NeuralModule


def all_even(section: Config) -> list[str]:
    return [f"{section.place(key)}: {section.path_of(key)} is odd" for key, value in section.items() if value % 2]


class Layer(NeuralModule):
    """A stand-in with a range of each kind."""

    def __init__(
        self,
        size: Annotated[int, Between(1, 64, also=(-1,))] = 8,
        share: Annotated[float, Between(0, 1, below=True)] = 0.5,
        step: Annotated[float, Between(0, 10, above=True)] | None = None,
        width: Annotated[int, Between(0, 100)] | Literal["max"] = 0,
        kernel: Annotated[int, Between(1, 9)] | tuple[Annotated[int, Between(1, 9)]] = 1,
        means: Mapping[str, Annotated[float, Between(0, 1)]] | None = None,
        level: Annotated[float, Between(-math.inf, 0)] = -1.0,
        plain: float = 0.0,
        evens: Annotated[Mapping[str, int], Checked(all_even)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)


# Each: keys of the file, the same as arguments, and what both are told.
OUTSIDE: list[tuple[str, dict[str, Any], str]] = [
    ("size: 0", {"size": 0}, "Layer.size is 0, wanted int from 1 to 64 or -1"),
    ("size: 65", {"size": 65}, "Layer.size is 65, wanted int from 1 to 64 or -1"),
    ("share: 1", {"share": 1}, "Layer.share is 1, wanted float from 0, below 1"),
    ("share: .nan", {"share": math.nan}, "Layer.share is NaN, wanted float from 0, below 1"),
    ("step: 0", {"step": 0}, "Layer.step is 0, wanted float above 0, up to 10 or null"),
    ("step: .inf", {"step": math.inf}, "Layer.step is Infinity, wanted float above 0, up to 10 or null"),
    ("width: -1", {"width": -1}, 'Layer.width is -1, wanted int from 0 to 100 or "max"'),
    ("kernel: 0", {"kernel": 0}, "Layer.kernel is 0, wanted int from 1 to 9 or a list of 1: int from 1 to 9"),
    ("level: .inf", {"level": math.inf}, "Layer.level is Infinity, wanted float from -inf to 0"),
]


@pytest.mark.parametrize(("text", "arguments", "line"), OUTSIDE, ids=[each[0] for each in OUTSIDE])
def test_a_file_and_a_script_get_the_same_line(text, arguments, line):
    section = parse_config(f"Layer:\n  {text}\n", "a.yaml")["Layer"]
    (problem,) = check_call(section, Layer)
    place, told = problem.split(": ", 1)
    assert (place.startswith("a.yaml:2:"), told) == (True, line)
    with pytest.raises(OutOfRangeError) as raised:
        Layer(**arguments)
    assert str(raised.value) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("means: {low: 2}", "Layer.means.low is 2, wanted float from 0 to 1"),
        ("kernel: [0]", "Layer.kernel[0] is 0, wanted int from 1 to 9"),
        ("kernel: [3, 5]", "Layer.kernel is [3, 5], wanted int from 1 to 9 or a list of 1: int from 1 to 9"),
    ],
)
def test_numbers_inside_lists_and_mappings_of_a_file_have_ranges_too(text, line):
    section = parse_config(f"Layer: {{{text}}}\n", "a.yaml")["Layer"]
    (problem,) = check_call(section, Layer)
    assert problem.split(": ", 1)[1] == line


def test_what_is_inside_of_the_ranges_is_taken():
    text = "size: -1, share: 0.999, step: 10, width: max, kernel: [3], means: {low: 1}, level: -.inf, evens: {a: 2}"
    section = parse_config(f"Layer: {{{text}}}\n", "a.yaml")["Layer"]
    assert check_call(section, Layer) == []
    assert Layer(**section.plain()).init_params["level"] == -math.inf


def test_numbers_that_are_none_fit_only_where_a_range_has_them():
    text = "Layer: {plain: .nan}\nAny: {x: [1, {y: -.inf}]}\n"
    config = parse_config(text, "a.yaml")
    assert check_call(config["Layer"], Layer) == ["a.yaml:1:9: Layer.plain is NaN, wanted float that is finite"]

    def untyped(x=None): ...

    assert check_call(config["Any"], untyped) == ["a.yaml:2:15: Any.x[1].y is -Infinity, wanted float that is finite"]


def test_a_function_may_check_the_keys_of_a_mapping():
    section = parse_config("Layer:\n  evens: {a: 2, b: 3}\n", "a.yaml")["Layer"]
    assert check_call(section, Layer) == ["a.yaml:2:17: Layer.evens.b is odd"]


def test_types_of_a_script_do_not_count():
    refuse_out_of_range(Layer.__init__, {"size": "8", "share": None, "unknown": -1}, "Layer")


def test_a_number_of_thousands_of_digits_is_told_in_a_line():
    with pytest.raises(OutOfRangeError, match=r"^Layer\.size is a number of thousands of digits, wanted int"):
        Layer(size=10**5000)


def test_a_range_is_written_in_plain_words():
    assert wanted(Annotated[float, Between(0, 1, above=True, below=True)]) == "float above 0, below 1"


def test_an_annotation_that_cannot_be_resolved_hides_no_other():
    def function(a: NotThere, b: Annotated[int, Between(0, 1)]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert [*annotations_of(function)] == ["b", "return"]


@pytest.mark.parametrize(
    ("within", "told"),
    [
        (Between(1, 2**63 - 1), "from 1 on"),
        (Between(0, 3.4e38, above=True), "above 0"),
        (Between(-1, 2**63 - 1, also=(-7,)), "from -1 on or -7"),
        (Between(1, 10), "from 1 to 10"),
    ],
)
def test_an_end_that_nobody_meets_is_not_told(within, told):
    assert str(within) == told


def test_a_call_is_refused_for_a_number_of_another_type_too():
    @numbers_checked
    def make(count: PositiveInt, seconds: WaitingSeconds | None = None, name: str = "a") -> tuple[object, ...]:
        """Words."""
        return count, seconds, name

    assert (make(2, seconds=0.5), make.__doc__) == ((2, 0.5, "a"), "Words.")
    for arguments, told in (
        ({"count": "2"}, 'make.count is "2", wanted int from 1 on'),
        ({"count": 1.5}, "make.count is 1.5, wanted int from 1 on"),
        ({"count": True}, "make.count is true, wanted int from 1 on"),
        ({"count": 1, "seconds": 0}, "make.seconds is 0, wanted float above 0, up to 604800 seconds (a week) or null"),
    ):
        with pytest.raises(OutOfRangeError) as raised:
            make(**arguments)
        assert str(raised.value) == told
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        make()  # type: ignore[call-arg]


@pytest.mark.parametrize("whole", [4.0, np.float64(4), np.float32(4), np.int64(4), 4])
def test_a_whole_float_is_passed_on_as_an_int_where_an_int_belongs(whole):
    @numbers_checked
    def make(count: PositiveInt, steps: StepsBetween | None = -1, seconds: WaitingSeconds = 1.0) -> tuple[object, ...]:
        return count, steps, seconds

    count, steps, seconds = make(whole, steps=whole, seconds=whole)
    assert (count, steps) == (4, 4)
    assert all(isinstance(number, Integral) for number in (count, steps))
    assert seconds is whole
    for number in (0.0, 2.5, np.float64(-1), math.inf, math.nan):
        with pytest.raises(OutOfRangeError, match=r"make\.count is .*, wanted int from 1 on"):
            make(number)


def test_equal_ranges_are_written_alike():
    """Python makes one object of equal annotations, of whichever came first."""
    assert str(Between(0.0, 1.0, also=(-1.0,))) == str(Between(0, 1, also=(-1,))) == "from 0 to 1 or -1"
