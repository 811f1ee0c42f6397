"""Small things that NeMo keeps under ``nemo.utils.misc``."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

from nemo_lite.errors import UsageError


def pad_to(x: int, k: int = 8) -> int:
    """The smallest multiple of ``k`` that is at least ``x``."""
    if k < 1:
        raise UsageError("k is out of range", place="pad_to", got=str(k), wanted="1 or more")
    return -(-x // k) * k


class Config(UserDict[str, Any]):
    """A dictionary whose sections ``optimization``, ``input``, ``target`` and ``inference`` are there, if only empty.

    Args:
        data: its values.
    """

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        super().__init__({"optimization": {}, "input": {}, "target": {}, "inference": {}} | dict(data or {}))
