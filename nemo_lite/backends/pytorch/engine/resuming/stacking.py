"""The states of all ranks as one tree, whose tensors have the ranks as their first axis. No checkpoints in here.

A node of the tree is a dictionary with one key::

    {"same": VALUE}           equal on all ranks
    {"fields": {KEY: NODE}}   dictionaries with the same keys
    {"items": [NODE, ...]}    lists of the same length
    {"stack": TENSOR}         tensors of the same shape and type: (W, ...)
    {"numbers": TENSOR}       integers, or floats: (W,)
    {"each": [VALUE, ...]}    anything else, rank by rank

So the number of tensors and the text around them do not grow with the ranks, where these have states alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Any: a state is a tree of tensors, numbers and texts.


def stacked(states: Sequence[Any]) -> dict[str, Any]:
    """The states of all ranks, in order of the ranks, as one tree."""
    first = states[0]
    if all(_are_equal(state, first) for state in states):
        return {"same": first}
    if all(isinstance(state, dict) and isinstance(first, dict) and state.keys() == first.keys() for state in states):
        return {"fields": {key: stacked([state[key] for state in states]) for key in first}}
    if all(isinstance(state, list) and isinstance(first, list) and len(state) == len(first) for state in states):
        return {"items": [stacked(items) for items in zip(*states, strict=True)]}
    if all(_are_alike(state, first) for state in states):
        return {"stack": torch.stack(list(states))}
    if all(type(state) is int and -(2**63) <= state < 2**63 for state in states):
        return {"numbers": torch.tensor(states, dtype=torch.int64)}
    if all(type(state) is float for state in states):
        return {"numbers": torch.tensor(states, dtype=torch.float64)}
    return {"each": list(states)}


def unstacked(tree: Mapping[str, Any], rank: int) -> Any:
    """The state of one rank.

    Raises:
        ValueError: a node that :func:`stacked` does not make.
    """
    ((kind, content),) = tree.items()
    match kind:
        case "same":
            return content
        case "fields":
            return {key: unstacked(node, rank) for key, node in content.items()}
        case "items":
            return [unstacked(node, rank) for node in content]
        case "stack":
            return content[rank].clone()
        case "numbers":
            return content[rank].item()
        case "each":
            return content[rank]
    raise ValueError(f"a state of ranks of the kind {kind!r}")


def _are_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return _are_alike(one, other) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool(one == other)


def _are_alike(one: Any, other: Any) -> bool:
    are_tensors = isinstance(one, Tensor) and isinstance(other, Tensor)
    return are_tensors and (one.shape, one.dtype) == (other.shape, other.dtype)
