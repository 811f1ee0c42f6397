"""Trees of tensors as JSON, with the tensors apart: for training states in files and for values sent between ranks.

A tree is made of None, bools, numbers, texts and tensors, in lists, tuples and dictionaries. A dictionary whose key
starts with $ marks what JSON lacks::

    {"$tensor": REF}    {"$float": "nan"}    {"$int": "0x1f"}    {"$tuple": [...]}    {"$items": [[KEY, VALUE], ...]}
    {"$bytes": REF}    {"$array": [DTYPE, SHAPE, REF]}    {"$scalar": [DTYPE, SHAPE, REF]}

REF is whatever the caller uses to find a tensor again. Nothing is pickled, and decoding runs no code. No files, no
network and no error texts for users in here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

# Any: JSON, and what it stands for, are values of many types.
Json: TypeAlias = Any
Tree: TypeAlias = Any
"""A tree as above, such as the state of an optimizer, a generator or a whole training."""
Path: TypeAlias = "tuple[str | int, ...]"
Put: TypeAlias = Callable[[Tensor, Path], Json]
Take: TypeAlias = Callable[[Json], Tensor]

MAX_DEPTH = 64
# Python refuses to write or read very long decimal numbers; integers of more bits than these are hexadecimal.
_DECIMAL_BITS = 2000
_NUMPY_KINDS = "biufcSUmM"
_PLAIN = (bool, int, float, str, Tensor, list, tuple)


class EncodeError(Exception):
    """A value that is no tree of tensors.

    Attributes:
        what: the value, in words.
        path: keys and positions that lead to it.
        too_deep: whether the tree is only nested too deeply.
    """

    def __init__(self, what: str, path: Path, too_deep: bool = False) -> None:
        super().__init__(what)
        self.what, self.path, self.too_deep = what, path, too_deep


def encode(value: Tree, put: Put, *, exact: bool, path: Path = ()) -> Json:
    """JSON for a tree.

    Args:
        put: takes a tensor and its path, and gives a JSON value from which the tensor can be found again.
        exact: every value must arrive as the type it is: NumPy arrays and scalars and bytes are allowed, subclasses
            of other types and keys other than texts and integers are not. Otherwise subclasses become plain, and NumPy
            and bytes are refused.
        path: of the value.

    Raises:
        EncodeError: the tree holds a value of another type, or is nested too deeply.
    """
    if len(path) > MAX_DEPTH:
        raise EncodeError("what is nested so deeply, or contains itself,", path, too_deep=True)

    def inner(key: str | int, item: object) -> Json:
        return encode(item, put, exact=exact, path=(*path, key))

    kind = type(value) if exact else next((plain for plain in _PLAIN if isinstance(value, plain)), type(value))
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return int(value) if value.bit_length() <= _DECIMAL_BITS else {"$int": hex(value)}
    if kind is float:
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if kind is Tensor or kind is nn.Parameter:
        return {"$tensor": put(value, path)}
    if kind is list or kind is tuple:
        items = [inner(index, item) for index, item in enumerate(value)]
        return items if kind is list else {"$tuple": items}
    if kind is dict or (not exact and isinstance(value, Mapping)):
        odd = [key for key in value if exact and type(key) not in (str, int)]
        if odd:
            raise EncodeError(f"a dictionary with the key {odd[0]!r}", path)
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: inner(key, item) for key, item in value.items()}
        return {"$items": [[inner("key", key), inner(key, item)] for key, item in value.items()]}
    if exact and kind is bytes:
        return {"$bytes": put(_buffer_of(value), path)}
    if exact and (kind is np.ndarray or isinstance(value, np.generic)):
        if value.dtype.kind not in _NUMPY_KINDS:
            raise EncodeError(f"a NumPy array of {value.dtype}", path)
        mark = "$array" if kind is np.ndarray else "$scalar"
        return {mark: [value.dtype.str, list(value.shape), put(_buffer_of(value.tobytes()), path)]}
    raise EncodeError(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), path)


def decode(encoded: Json, take: Take) -> Tree:
    """The tree that :func:`encode` was given.

    Args:
        take: the tensor of what ``put`` gave.

    Raises:
        ValueError: JSON that :func:`encode` does not write.
    """
    if isinstance(encoded, list):
        return [decode(item, take) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    mark = next(iter(encoded), "")
    if not mark.startswith("$"):
        return {key: decode(item, take) for key, item in encoded.items()}
    content = encoded[mark]
    match mark:
        case "$tensor":
            return take(content)
        case "$float":
            return float(content)
        case "$int":
            return int(content, 16)
        case "$tuple":
            return tuple(decode(item, take) for item in content)
        case "$items":
            return {decode(key, take): decode(item, take) for key, item in content}
        case "$bytes":
            return take(content).numpy().tobytes()
        case "$array":
            return _array(content, take)
        case "$scalar":
            return _array(content, take)[()]
    raise ValueError(f"unknown mark {mark}")


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of that name, such as ``float32``.

    Raises:
        ValueError: there is none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"a tensor of {name!r}")
    return dtype


def _array(content: Json, take: Take) -> Tree:
    dtype_name, shape, ref = content
    try:
        dtype = np.dtype(dtype_name)
    except (TypeError, SyntaxError):  # NumPy parses some names as Python's literals
        raise ValueError(f"an array of {dtype_name!r}") from None
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"an array of {dtype_name!r}")
    if not all(type(count) is int and count >= 0 for count in shape):
        raise ValueError(f"an array of the shape {shape!r}")
    content = take(ref).numpy()
    # NumPy would make texts of what no character is, which ends in an error of the interpreter.
    if dtype.kind == "U" and (content[: len(content) // 4 * 4].view(f"{dtype.str[0]}u4") > sys.maxunicode).any():
        raise ValueError("an array of texts with codes beyond Unicode")
    return np.ndarray(shape, dtype, content)


def _buffer_of(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
