"""The states of all ranks as one tree: each rank gets its own back, and little of it grows with the ranks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.engine.resuming import stacked, unstacked
from nemo_lite.backends.pytorch.generators import generator_states

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-3, 3), st.floats(), st.text(max_size=3)
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)


def shown(value: Any) -> str:
    """NaN is NaN here, and 1 is not True."""
    return repr(value)


@pytest.mark.slow
@given(st.lists(TREES, min_size=1, max_size=4))
def test_each_rank_gets_its_own_state_back(states: list[Any]) -> None:
    tree = stacked(states)
    assert [shown(unstacked(tree, rank)) for rank in range(len(states))] == [shown(state) for state in states]


def test_tensors_of_one_shape_and_type_are_one_tensor_and_others_stay_apart() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])]
    assert stacked(rows)["stack"].tolist() == [[1.0, 2.0], [1.0, 3.0]]
    assert list(stacked([rows[0], rows[0].clone()])) == ["same"]
    assert list(stacked([rows[0], rows[0].double()])) == list(stacked([rows[0], rows[0][:1]])) == ["each"]
    first = unstacked(stacked(rows), 0)
    assert first.untyped_storage().nbytes() == 8, "of its own, not a part of all ranks' tensor"


def test_numbers_that_differ_are_a_tensor_and_keep_every_bit() -> None:
    tree = stacked([{"count": 2**62 + 1, "share": 0.1}, {"count": 3, "share": math.pi}])
    assert tree["fields"]["count"]["numbers"].dtype == torch.int64
    assert unstacked(tree, 0) == {"count": 2**62 + 1, "share": 0.1}


@pytest.mark.long
@pytest.mark.slow
def test_the_text_of_a_state_does_not_grow_with_the_ranks() -> None:
    def characters(num_ranks: int) -> int:
        states = []
        for rank in range(num_ranks):
            torch.manual_seed(rank)
            states.append(
                {"generators": generator_states(torch.device("cpu"), {}), "mean": torch.full((4,), 1.0 * rank)}
            )
        return len(json.dumps(tensor_codec.encode(stacked(states), lambda tensor, path: 0, exact=False)))

    assert characters(1000) == characters(2)


def test_a_node_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="of the kind 'other'"):
        unstacked({"other": 1}, 0)
