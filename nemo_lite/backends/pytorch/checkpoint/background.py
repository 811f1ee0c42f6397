"""Writes checkpoints in a thread while training goes on: one at a time. What is written is not decided here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from nemo_lite.backends.pytorch.checkpoint.fitting import identity

T = TypeVar("T")

# Any: a tree of tensors, numbers and texts, see `tensor_codec`.


class BackgroundWriter:
    """One thread at a time. An error in it is raised by the next :meth:`is_idle` or :meth:`finish`.

    The interpreter waits for the thread before it ends. Forked processes do not have it: it holds no lock that they
    could wait for, only files.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Run a job in the thread, after what was given before. An error drops what comes after it."""
        before = self._thread

        def run() -> None:
            if before is not None:
                before.join()
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error

        self._thread = Thread(target=run, name="checkpoint writer", daemon=False)
        self._thread.start()

    def is_idle(self) -> bool:
        """Whether all jobs are done.

        Raises:
            Exception: that of a job; once.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def finish(self) -> None:
        """Wait for all jobs.

        Raises:
            Exception: that of a job; once.
        """
        if self._thread is not None:
            self._thread.join()
        self.is_idle()


def copied_to_host(tree: T) -> T:
    """The same tree with copies of its tensors in host memory. Tensors that are one stay one."""
    copies: dict[tuple[object, ...], Tensor] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            key = identity(value)
            if key not in copies:
                copies[key] = _on_host(value)
            return copies[key]
        if isinstance(value, Mapping):
            return {key: copied(each) for key, each in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(copied, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(copied, value))
        return value

    result: T = copied(tree)
    return result


def num_bytes_of(tree: object) -> int:
    """The bytes of the tensors of a tree."""
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, Mapping):
        return sum(map(num_bytes_of, tree.values()))
    return sum(map(num_bytes_of, tree)) if isinstance(tree, (list, tuple)) else 0


def _on_host(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()
