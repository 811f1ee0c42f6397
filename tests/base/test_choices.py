"""What a backend is asked: the levels of precision by name."""

from __future__ import annotations

import pytest

from nemo_lite.base.errors import UnknownNameError
from nemo_lite.core.run_options import Optimization


def test_a_level_is_read_from_its_short_name():
    assert Optimization.parse("O1") is Optimization.parse(Optimization.mxprO1) is Optimization.mxprO1
    assert (Optimization.nothing, Optimization.mxprO2.short) == (Optimization.mxprO0, "O2")
    with pytest.raises(UnknownNameError, match='optimization level "01" is not known; known: O0, O1, O2, O3'):
        Optimization.parse("01")
