"""Notes: short texts that ranks leave for each other in the store, at any time and from any thread. No collectives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist
from torch.distributed import Store


class Notes:
    """Texts by key in the store of the ranks.

    They have a connection of their own, made at the first use: calls of one connection wait for each other.

    Args:
        connect: makes a connection.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect
        self._made: Store | None = None

    def leave(self, key: str, text: str) -> None:
        """Leave a text. It is lost where the rank that serves the store has ended: nobody is left to take it."""
        with suppress(dist.DistError):
            self._store.set(f"note/{key}", text)

    def take(self, key: str) -> str | None:
        """The text that some rank left under this key, once; ``None`` as long as there is none.

        Raises:
            DistError: the store is lost.
        """
        name = f"note/{key}"
        if not self._store.check([name]):
            return None
        text: str = self._store.get(name).decode()
        self._store.delete_key(name)
        return text

    @property
    def _store(self) -> Store:
        if self._made is None:
            self._made = self._connect()
        return self._made
