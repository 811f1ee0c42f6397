"""Between: a range of numbers. `nemo_lite.base.config` checks with it; options need it without what reads YAML."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

LARGE = 2**62
"""An end of a range from here on is not worth telling."""


@dataclass(frozen=True)
class Between:
    """Numbers from ``least`` to ``most``. NaN is in no range, infinity only where it is an end.

    Args:
        least: the first number of the range.
        most: the last one.
        above: ``least`` itself does not belong.
        below: ``most`` itself does not belong.
        also: single numbers that mean something else, such as -1 for all.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()

    def __str__(self) -> str:
        start = f"above {self.least}" if self.above else f"from {self.least}"
        if self.most >= LARGE:  # such an end is what fits into a number here, and nobody meets it
            end = "" if self.above else " on"
        elif self.below:
            end = f", below {self.most}"
        elif self.above:
            end = f", up to {self.most}"
        else:
            end = f" to {self.most}"
        return " or ".join([start + end, *map(str, self.also)])

    def refuses(self, value: object) -> bool:
        """Whether it is a number outside of the range."""
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        number: Any = value  # whole numbers stay whole: they may be too large for a float
        above_least = number > self.least if self.above else number >= self.least
        below_most = number < self.most if self.below else number <= self.most
        return not (above_least and below_most) and number not in self.also


WAITING_SECONDS = Between(0, 604_800, above=True)
"""How long processes may wait for each other: up to a week."""
