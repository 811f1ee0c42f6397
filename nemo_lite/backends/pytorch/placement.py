"""Devices: copies of batches to them, numbers back from them, values that may be put back."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from nemo_lite.base.errors import DeviceError, counted
from nemo_lite.core.neural_types import Value
from nemo_lite.core.run_options import DeviceType

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


_GPUS_OF_TASK = "SLURM_GPUS_PER_TASK"
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_EXPANDABLE = "expandable_segments:True"
_KERNELS_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
_DESCRIPTIONS_VARIABLE = "LRU_CACHE_CAPACITY"
NUM_KERNELS = 64
"""Of oneDNN that are kept. For one length of batches Jasper 10x5, QuartzNet 15x5 and ContextNet make 60 or fewer."""


def choose_device(placement: DeviceType | None, local_rank: int | None = None) -> torch.device:
    """The device for a placement; without one, the GPU if there is one, else the CPU.

    Args:
        placement: what was asked for. ``AllGpu`` for one of several ranks runs on the CPU where there are no GPUs.
        local_rank: index of this process on its machine, if a launcher started it.

    Raises:
        DeviceError: a GPU is asked for where there is none, or none for this local rank.
    """
    has_gpu = torch.cuda.is_available()
    rehearses = placement is DeviceType.AllGpu and local_rank is not None
    if placement is DeviceType.CPU or (not has_gpu and (placement is None or rehearses)):
        _keep_few_kernels()
        return torch.device("cpu")
    if not has_gpu:
        assert placement is not None
        raise DeviceError(
            f"placement {placement.name} asks for a GPU, and there is none",
            got=f"torch {torch.__version__}, CUDA not available",
            remedy="use DeviceType.CPU (--placement CPU), or leave the placement out",
        )
    _let_segments_expand()
    index, count = local_rank or 0, torch.cuda.device_count()
    if index >= count and _GPUS_OF_TASK in os.environ:
        index = 0  # Slurm shows each of its tasks its own GPUs, counted from 0
    if index >= count:
        names = ", ".join(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise DeviceError(
            f"more processes than GPUs: local_rank {index} has none",
            place=socket.gethostname(),
            got=names + ("" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"),
            wanted=f"at most {count} processes on this machine",
            remedy="if the launcher shows each process its own GPU only, ask for the GPUs of the machine "
            "(--gpus-per-node), or, with srun, for those of a task (--gpus-per-task)",
        )
    return torch.device("cuda", index)


def _let_segments_expand() -> None:
    """Before CUDA starts: batches of many lengths leave gaps in segments of fixed size, until memory runs out late."""
    chosen = any(name in os.environ for name in _ALLOCATOR_VARIABLES)
    is_late = torch.cuda.is_initialized()
    if not chosen and not is_late and sys.platform.startswith("linux"):
        os.environ[_ALLOCATOR_VARIABLES[0]] = _EXPANDABLE  # for processes that this one starts
        torch._C._accelerator_setAllocatorSettings(_EXPANDABLE)  # torch may have read the variables already


def _keep_few_kernels() -> None:
    """Before oneDNN's first kernel: of each length of batches it makes others and keeps 1,024, some 400 KiB each.

    For bfloat16 products torch keeps as many descriptions of kernels beside, of 270 KiB.
    """
    if not any(name in os.environ for name in _KERNELS_VARIABLES):
        os.environ[_KERNELS_VARIABLES[0]] = str(NUM_KERNELS)
    os.environ.setdefault(_DESCRIPTIONS_VARIABLE, str(NUM_KERNELS))


def describe(device: torch.device) -> str:
    """The name of a device, for the log."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({counted(torch.get_num_threads(), 'thread')})"


def to_device(values: Iterable[object], device: torch.device) -> tuple[Value, ...]:
    """Move the tensors among these values; copies from pinned memory overlap with what the device is doing."""
    if device.type == "cpu":
        return values if isinstance(values, tuple) else tuple(values)
    return tuple(v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v for v in values)


def place(module: nn.Module, device: torch.device) -> None:
    """Move a module to a device, unless all of it is there: torch writes each weight anew, moved or not."""
    devices = {tensor.device for tensor in chain(module.parameters(), module.buffers())}
    if devices != {device}:
        module.to(device)


class AheadOfUse:
    """Copies batches to a device ahead of their use, on a GPU beside what it computes.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_host = device, device.type == "cpu"
        self._beside: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._beside = torch.cuda.Stream(device)

    def start(self, values: Iterable[object]) -> tuple[Value, ...]:
        """The values with their tensors on the way to the device. From pageable memory the host waits for them."""
        if self._is_host:
            return tuple(values)
        if self._beside is None:
            return to_device(values, self._device)
        with torch.cuda.stream(self._beside):
            return to_device(values, self._device)

    def arrive(self, values: Iterable[object]) -> None:
        """Before these values are computed with: let the device wait for what was started. The host does not wait."""
        if self._beside is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_stream(self._beside)
            for value in values:
                if isinstance(value, torch.Tensor):
                    # Their memory belongs to the other stream, whose next copy must not get it before this use ends.
                    value.record_stream(computing)


class ReadBeside:
    """Lets the host read what a GPU has computed beside what it computes next; elsewhere it does nothing.

    A read waits for all that its stream has queued. Here it gets a stream of its own, which waits for one place only.

    Args:
        device: that computes.

    Attributes:
        is_of_use: whether the device computes beside the host.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.is_of_use = device, device.type == "cuda"
        self._beside: torch.cuda.Stream | None = None
        if self.is_of_use:
            self._beside = torch.cuda.Stream(device)

    def mark(self) -> torch.cuda.Event | None:
        """The place behind all that is queued now."""
        if self._beside is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def reading(self, values: Iterable[object], mark: torch.cuda.Event | None) -> Iterator[None]:
        """Inside, reads of values that were there at a mark do not wait for what was queued behind it.

        What is computed inside is done before what is queued later.

        Args:
            values: tensors, or lists of them, and others.
            mark: behind them.
        """
        if self._beside is None or mark is None:
            yield
            return
        computing = torch.cuda.current_stream(self._device)
        self._beside.wait_event(mark)
        for tensor in _tensors_in(values):
            # Their memory belongs to the computing stream, which must not get it back before this use ends.
            tensor.record_stream(self._beside)
        try:
            with torch.cuda.stream(self._beside):
                yield
        finally:
            computing.wait_stream(self._beside)


def _tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


class HostCopy:
    """Numbers on their way from a device to the host; nothing waits until they are read.

    Args:
        numbers: a tensor of one axis; it must not change any more.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self._numbers = numbers
        self._event: torch.cuda.Event | None = None
        if numbers.device.type == "cuda":
            # Without page-locked memory the copy itself would wait.
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(numbers.device))

    def values(self) -> list[float]:
        """The numbers. Waits for what the device had queued before them, not for what came later."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._numbers.tolist()
        return values


def to_cpu(values: Iterable[object]) -> list[Value]:
    """The same values with tensors detached and in host memory."""
    return [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in values]
