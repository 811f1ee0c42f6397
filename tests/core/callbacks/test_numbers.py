"""Numbers of a step: out of tensors, and as curves."""

import pytest
from toys.fake_action_state import FakeState, Scalar, Vector, Writer

from nemo_lite.base.errors import UsageError
from nemo_lite.core.trackers import curves_of, fetch_number, is_number


def test_a_number_is_plain_or_in_a_tensor_of_one_element_which_is_read_once():
    reads: list[float] = []
    scalar = Scalar(0.5, reads)
    assert [is_number(value) for value in (1, 0.5, scalar, Vector(), "1", None)] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert reads == []
    assert [fetch_number(value, "loss", "") for value in (1, scalar)] == [1.0, 0.5]
    assert reads == [0.5]


def test_anything_else_is_refused_with_its_shape_or_type():
    with pytest.raises(UsageError, match=r'log: "loss" is not a single number: got shape \(3,\); take its mean'):
        fetch_number(Vector(), "loss", "log", "take its mean")
    with pytest.raises(UsageError, match="got str"):
        fetch_number("1", "loss", "log")


def test_curves_go_to_the_callback_s_writer_else_to_the_factory_s_else_nowhere():
    own, factory = Writer(), Writer()
    state = FakeState(tb_writer=factory)
    curves_of(own, state).write_numbers({"loss": 1.0, "note": "good"}, 3)
    curves_of(None, state).write_numbers({"loss": 2.0}, 4)
    curves_of(None, FakeState()).write_numbers({"loss": 3.0}, 5)
    assert (own.scalars, own.texts) == ([("loss", 1.0, 3)], [("note", "good", 3)])
    assert factory.scalars == [("loss", 2.0, 4)]
    curves_of(None, FakeState()).close()
