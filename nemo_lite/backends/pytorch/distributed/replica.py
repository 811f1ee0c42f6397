"""DataParallel: a module on all ranks whose gradients torch's DistributedDataParallel averages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from nemo_lite.backends.pytorch.distributed.comm import PLAIN_REPLICA, ReplicaOptions


class DataParallel:
    """A lowered DAG in one DistributedDataParallel, which starts from rank 0's weights.

    Buffers are not exchanged at each step: running statistics are averaged where they are read. When other weights are
    trained than before, the wrapper is made anew.

    Args:
        module: the lowered DAG, on its device.
        device: of the module.
        sent: called when the gradients of a step are on their way.
        options: how they are exchanged.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        sent: Callable[[], None] = lambda: None,
        options: ReplicaOptions = PLAIN_REPLICA,
    ) -> None:
        self._module, self._parameters, self._options = module, list(module.parameters()), options
        self._device_ids = [device] if device.type == "cuda" else None
        self._trained: list[bool] = []
        self._must_exchange = False
        self._ddp = self._wrapped(are_equal=False)
        self._nothing, self._sending = nullcontext(), _Sending(sent)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """The module's outputs."""
        outputs: tuple[Any, ...] = (self._ddp or self._module)(*values)
        return outputs

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch."""
        if [p.requires_grad for p in self._parameters] != self._trained:
            self._ddp = self._wrapped(are_equal=True)  # and each rank's statistics are its own
        if self._ddp is None:
            return self._nothing
        if is_last or self._must_exchange:
            self._must_exchange = False
            return self._sending
        return self._ddp.no_sync()

    def _wrapped(self, are_equal: bool) -> DistributedDataParallel | None:
        """The wrapper around the trained weights; ``None`` where none is trained.

        Args:
            are_equal: the weights are those of rank 0 already; otherwise they become so, and buffers likewise.
        """
        self._trained = [p.requires_grad for p in self._parameters]
        self.needs_reach_check = any(self._trained)
        if not self.needs_reach_check:
            return None
        made = DistributedDataParallel(
            self._module,
            device_ids=self._device_ids,
            init_sync=not are_equal,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=self._options.static_graph,
        )
        # A static graph is learnt in an exchange: torch ends with an internal error where the first pass has none. The
        # mean of the first micro-batch is then taken before the others are added, which gives the same sum.
        self._must_exchange = self._options.static_graph
        if self._options.gradient_compression is not None:
            made.register_comm_hook(None, bf16_compress_hook)
        return made


class _Sending:
    """Around forward and backward of the last micro-batch. No generator: this runs at each step."""

    def __init__(self, sent: Callable[[], None]) -> None:
        self._sent = sent

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self._sent()
