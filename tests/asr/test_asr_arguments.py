"""Checks of arguments that several modules of the collection share."""

import pytest

from nemo_asr.arguments import check_least
from nemo_lite.errors import UsageError


def test_the_first_number_below_its_least_is_refused_with_its_name():
    check_least("Layer", workers=(0, 0), rate=(2, 1))
    with pytest.raises(UsageError, match=r"^Layer: rate is too small: got 0, wanted 1 or more$"):
        check_least("Layer", workers=(0, 0), rate=(0, 1), size=(-1, 0))
