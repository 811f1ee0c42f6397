"""Snapshot: values of tensors, kept to be put back; also where only the device knows whether to. No engine in here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_LARGE = 2**16
"""Elements from which on a tensor is worth an operation of its own. Smaller ones are put back together."""


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

        Values that are not finite do no harm: they are chosen, not multiplied by 0.

        Args:
            flag: one number on the device of the tensors.
            tensors: what gets the values, where it is not what they were kept of: tensors alike, in the same order.
        """
        tensors, chosen = self._tensors if tensors is None else tensors, flag != 0
        for kind in self._kinds:
            for index in kind:
                if tensors[index].numel() >= _LARGE:
                    torch.where(chosen, self._kept[index], tensors[index], out=tensors[index])
            small = [index for index in kind if tensors[index].numel() < _LARGE]
            if small:
                now, kept = _of(tensors, small), _of(self._kept, small)
                parts = torch.split(torch.where(chosen, _joined(kept), _joined(now)), [each.numel() for each in now])
                torch._foreach_copy_(now, [part.view_as(each) for part, each in zip(parts, now, strict=True)])


def _of(tensors: Sequence[Tensor], indices: Iterable[int]) -> list[Tensor]:
    return [tensors[index] for index in indices]


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
