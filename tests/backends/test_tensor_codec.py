"""The one codec for trees of tensors: what it writes to the letter, what it reads, what it refuses."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.tensor_codec import EncodeError, decode, encode

# What a training state looked like in its file when the format was decided: it must stay readable for ever.
STORED = {
    "step": 3,
    "lr": 0.1,
    "worst": {"$float": "-inf"},
    "none": None,
    "flag": True,
    "betas": {"$tuple": [0.95, 0.25]},
    "nested": [[], {}, {"$tuple": []}, [1, [2.5]]],
    "by_number": {"$items": [[0, {"exp_avg": {"$tensor": "0:state.by_number.0.exp_avg"}}], [7, {}]]},
    "dollar": {"$items": [["$tensor", "not one"]]},
    "rng": {"$tensor": "1:state.rng"},
}
TENSORS = {"0:state.by_number.0.exp_avg": torch.arange(3.0), "1:state.rng": torch.tensor([1, 2])}
STATE = {
    "step": 3,
    "lr": 0.1,
    "worst": -math.inf,
    "none": None,
    "flag": True,
    "betas": (0.95, 0.25),
    "nested": [[], {}, (), [1, [2.5]]],
    "by_number": {0: {"exp_avg": TENSORS["0:state.by_number.0.exp_avg"]}, 7: {}},
    "dollar": {"$tensor": "not one"},
    "rng": TENSORS["1:state.rng"],
}


def put_into(tensors: dict[str, Tensor]) -> tensor_codec.Put:
    def put(tensor: Tensor, path: tensor_codec.Path) -> str:
        name = ".".join([f"{len(tensors)}:state", *map(str, path)])
        tensors[name] = tensor
        return name

    return put


@pytest.mark.parametrize("exact", [False, True])
def test_a_tree_is_written_and_read_to_the_letter(exact: bool) -> None:
    tensors: dict[str, Tensor] = {}
    assert encode(STATE, put_into(tensors), exact=exact) == STORED
    assert list(tensors) == list(TENSORS)
    assert all(tensors[name] is TENSORS[name] for name in TENSORS)
    assert decode(STORED, TENSORS.__getitem__) == STATE


def test_what_only_travels_is_marked_too() -> None:
    tensors: dict[str, Tensor] = {}
    tree = [10**700, b"ab", np.float32(1.5), np.arange(2, dtype=">i2")]
    encoded = encode(tree, put_into(tensors), exact=True)
    assert encoded[1:] == [
        {"$bytes": "0:state.1"},
        {"$scalar": ["<f4", [], "1:state.2"]},
        {"$array": [">i2", [2], "2:state.3"]},
    ]
    assert encoded[0] == {"$int": hex(10**700)}
    number, text, scalar, array = decode(encoded, tensors.__getitem__)
    assert (number, text, scalar, type(scalar)) == (10**700, b"ab", 1.5, np.float32)
    assert array.dtype == np.dtype(">i2")
    assert array.tolist() == [0, 1]


def test_subclasses_become_plain_or_are_refused() -> None:
    tree = OrderedDict(a=np.float64(0.5), b=nn.Parameter(torch.ones(1)))
    plain = encode(tree, put_into({}), exact=False)
    assert plain == {"a": 0.5, "b": {"$tensor": "0:state.b"}}
    assert type(plain["a"]) is float
    with pytest.raises(EncodeError, match=r"^collections\.OrderedDict$"):
        encode(tree, put_into({}), exact=True)


@pytest.mark.parametrize("value", [b"x", np.zeros(2), np.float32(1), {1, 2}, object()])
def test_what_is_no_tree_is_refused_with_its_type_and_path(value: Any) -> None:
    with pytest.raises(EncodeError) as refused:
        encode({"a": [0, value]}, put_into({}), exact=False)
    assert refused.value.path == ("a", 1)
    assert refused.value.what.endswith(type(value).__name__)
    assert not refused.value.too_deep


@pytest.mark.parametrize("dtype", ["O", "f3", "V8", "i4,O"])
def test_arrays_of_objects_and_of_unknown_types_are_not_read(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"an array of '{dtype}'"):
        decode({"$array": [dtype, [1], None]}, lambda ref: torch.zeros(8, dtype=torch.uint8))


def test_torch_dtypes_are_read_by_name_and_nothing_else_of_torch_is() -> None:
    assert tensor_codec.dtype_named("bfloat16") is torch.bfloat16
    for name in ("load", "float33", "__class__"):
        with pytest.raises(ValueError, match=f"a tensor of '{name}'"):
            tensor_codec.dtype_named(name)


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    for exact in (True, False):
        with pytest.raises(EncodeError) as refused:
            encode(tree, put_into({}), exact=exact)
        assert refused.value.too_deep
