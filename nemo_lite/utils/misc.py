"""Small arithmetic that NeMo keeps under ``nemo.utils.misc``."""

from __future__ import annotations

from nemo_lite.errors import UsageError


def pad_to(x: int, k: int = 8) -> int:
    """The smallest multiple of ``k`` that is at least ``x``."""
    if k < 1:
        raise UsageError("k is out of range", place="pad_to", got=str(k), wanted="1 or more")
    return -(-x // k) * k
