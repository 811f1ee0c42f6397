"""HostReads: notes the operations for which a host waits for its device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import nemo_lite as nemo

aten = torch.ops.aten

# They give a number to the host, or a tensor whose size depends on values.
READING = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten.repeat_interleave,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
COPYING = {aten._to_copy, aten.copy_}


class HostReads(TorchDispatchMode):
    """While it is entered, ``found`` gets a line for each such operation.

    A copy between two devices counts too, unless it is asked not to wait: also one to the device, as of a tensor that
    was made from a list.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, given = func.overloadpacket, kwargs or {}
        result = func(*args, **given)
        if packet in READING or (packet in INDEXING and _has_mask(args[1])) or _waits(packet, result, args, given):
            self.found.append(str(func))
        return result


def _has_mask(indices: Any) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _waits(packet: Any, result: Any, args: Any, kwargs: Any) -> bool:
    if packet not in COPYING:
        return False
    source = args[1] if packet is aten.copy_ else args[0]
    does_not_wait = kwargs.get("non_blocking", len(args) > 2 and args[2])
    return source.device != result.device and not does_not_wait


class BetweenLoggingSteps(nemo.NeMoCallback):
    """Notes host reads from the second step of a run to the end of step ``last``: logging steps may read."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.reads, self.last = HostReads(), last

    def on_step_start(self, state: Any) -> None:
        if state.step == 1:
            self.reads.__enter__()

    def on_step_end(self, state: Any) -> None:
        if state.step == self.last:
            self.reads.__exit__(None, None, None)
