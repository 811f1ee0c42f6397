"""Student's t distribution for whole degrees of freedom, for means of few values. SciPy is no dependency of ours.

Source: M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import math
from statistics import NormalDist

# Beyond it the normal distribution is taken: its 97.5 % point is 0.05 % lower there.
_MOST_DEGREES = 2000


def two_sided_p_value(score: float, degrees: int) -> float:
    """How likely a value at least as far from 0 as ``score`` is, 0 to 1.

    Args:
        score: a mean divided by its standard error.
        degrees: of freedom: the number of values less 1; at least 1.
    """
    score = abs(score)
    if degrees > _MOST_DEGREES:
        return math.erfc(score / math.sqrt(2))
    angle = math.atan(score / math.sqrt(degrees))
    sine, squared = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2
    # The terms of the two series: each is the one before, times an odd by an even number (or the other way round).
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for number in range(degrees // 2):
        total += term
        term *= squared * ((2 * number + 2) / (2 * number + 3) if is_odd else (2 * number + 1) / (2 * number + 2))
    inside = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return max(0.0, 1.0 - inside)


def two_sided_score(confidence: float, degrees: int) -> float:
    """The distance from 0 that holds ``confidence`` of the values: 1.96 for 0.95 and many degrees of freedom."""
    if degrees > _MOST_DEGREES:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = 0.0, 1.0
    while two_sided_p_value(high, degrees) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p_value(middle, degrees) > 1 - confidence else (low, middle)
    return high
