"""Snapshot: values of tensors, kept to be put back; also where only the device knows whether to. No engine in here.

``replace_where`` is ``torch.where`` for lists of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_LARGE = 2**20
"""Elements from which on a tensor is worth an operation of its own. Smaller ones are replaced together."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element."""


class Snapshot:
    """Keeps the values of tensors.

    Args:
        tensors: without repetitions, on any devices and of any dtypes; they are remembered, not yet their values.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = list(tensors)
        self._kept = [torch.empty_like(tensor) for tensor in self._tensors]
        # One call copies all tensors of one kind.
        kinds: dict[object, list[int]] = {}
        for index, tensor in enumerate(self._tensors):
            kinds.setdefault((tensor.device, tensor.dtype), []).append(index)
        self._kinds = list(kinds.values())
        self._pairs = [(_of(self._tensors, kind), _of(self._kept, kind)) for kind in self._kinds]

    def keep(self) -> None:
        """Remember the values as they are."""
        for tensors, kept in self._pairs:
            with torch.no_grad():  # in here: it costs more than all else where there is nothing to keep
                torch._foreach_copy_(kept, tensors)

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the tensors the values that they had when :meth:`keep` was called."""
        for tensors, kept in self._pairs:
            torch._foreach_copy_(tensors, kept)

    @torch.no_grad()
    def put_back_where(self, flag: Tensor, tensors: Sequence[Tensor] | None = None) -> None:
        """The same if ``flag`` is not 0; otherwise nothing changes. The host does not learn which.

        Where it is 0, the kept values are lost: call :meth:`keep` before anything is put back again.

        Args:
            flag: one number on the device of the tensors.
            tensors: what gets the values, where it is not what they were kept of: tensors alike, in the same order.
        """
        tensors, chosen = self._tensors if tensors is None else tensors, flag != 0
        for kind in self._kinds:
            replace_where(chosen, _of(tensors, kind), _of(self._kept, kind))


def _of(tensors: Sequence[Tensor], indices: Iterable[int]) -> list[Tensor]:
    return [tensors[index] for index in indices]


@torch.no_grad()
def replace_where(flag: Tensor, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give tensors other values if ``flag`` is True; otherwise nothing changes. The host does not learn which.

    Values that are not finite do no harm: what is multiplied with 1 and 0 are integers of the same bits. Three
    operations serve all tensors but the large ones; torch has no ``where`` for lists.

    Args:
        flag: one truth value on the device of the tensors.
        tensors: of one device and dtype.
        values: tensors alike, in the same order. They are used up: where ``flag`` is False, they are lost.
    """
    if not tensors:
        return
    integer = _INTEGERS.get(tensors[0].element_size())
    least = 0 if integer is None else _LARGE
    small, small_values = [], []
    for tensor, value in zip(tensors, values, strict=True):
        if tensor.numel() >= least:
            torch.where(flag, value, tensor, out=tensor)
        elif integer is not None:
            small.append(tensor.view(integer))
            small_values.append(value.view(integer))
    if integer is not None and small:
        taken = flag.to(integer)
        torch._foreach_mul_(small, 1 - taken)
        torch._foreach_mul_(small_values, taken)
        torch._foreach_add_(small, small_values)
