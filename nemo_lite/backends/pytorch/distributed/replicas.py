"""What ranks hold in copies: the files of data layers on their machines, and the weights. Copies are compared."""

from __future__ import annotations

import hashlib
import platform
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.distributed.comm import Comm, is_divided
from nemo_lite.backends.pytorch.distributed.contract import grouped, named_ranks
from nemo_lite.base.errors import DistributedError, UsageError, counted
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.utils import logging

NUM_CONTENTS = 16
FEW_BYTES = 512 * 2**20
"""A set of at most so many bytes is read as a whole: about a second, and an evaluation reads it anyway."""
_LABEL = "comparing files"

Sizes: TypeAlias = "npt.NDArray[np.int64]"


class Copied(Protocol):
    """Files of which each machine has a copy, item by item. Its methods are called in another thread."""

    def seed(self) -> str:
        """A text that is the same on all machines: from it the items are drawn whose contents are compared."""

    def sizes(self) -> Sizes:
        """(N,) bytes of each item; -1 where it cannot be read."""

    def digest(self, item: int) -> str:
        """The sha256 of an item's content; "" where it cannot be read."""


class CopyComparison:
    """Compares the copies of one data layer once. All ranks call each method.

    Sizes of all files, contents of few. One process of each machine reads them, in a thread. The results are compared
    at an exchange that comes anyway, not at the start, which waits for nothing.

    Args:
        comm: the ranks.
        copied: what is compared; None: nothing.
        name: of the data, for messages.
        place_of: where an item comes from, for messages.
        few_bytes: contents of all items are compared where they have no more bytes together.
    """

    def __init__(
        self,
        comm: Comm,
        copied: Copied | None,
        name: str,
        place_of: Callable[[int], str],
        few_bytes: int = FEW_BYTES,
    ) -> None:
        self._comm, self._copied, self._name, self._place_of, self._few_bytes = comm, copied, name, place_of, few_bytes
        self._thread: threading.Thread | None = None
        self._found: tuple[Sizes, dict[int, str]] | None = None
        self._error: BaseException | None = None
        self._is_over = copied is None or comm.world_size == 1
        if self._is_over:
            return
        reads = comm.local_rank == 0
        if comm.sum([float(reads)]) == [1.0]:  # one machine
            self._is_over = True
        elif reads:
            self._thread = threading.Thread(target=self._read, daemon=True, name="read copies")
            self._thread.start()

    def compare(self, wait_seconds: float = 0.0) -> None:
        """Compare them if all machines have read theirs; otherwise they are compared when this is called again.

        Args:
            wait_seconds: for this rank's thread.

        Raises:
            UsageError: they differ; the same error on every rank.
        """
        if self._is_over:
            return
        if self._thread is not None:
            self._thread.join(wait_seconds)
        if not self._comm.all_agree(self._thread is None or not self._thread.is_alive()):
            if wait_seconds:
                late = "%s: the files of the machines are not compared yet: reading their sizes takes long"
                self._comm.on_first(lambda: logging.info(late, self._name))
            return
        if self._error is not None:
            raise self._error
        self._is_over = True
        if self._comm.all_same(self._digest(), _LABEL):
            return
        mine = None
        if self._found is not None:
            sizes, digests = self._found
            mine = (platform.node(), torch.from_numpy(sizes), digests)
        gathered = self._comm.gather(mine)
        problem = self._comm.share(None if gathered is None else self._difference(gathered))
        error = UsageError(problem or "", place="the ranks do not agree", remedy="copy the same data to all machines")
        error.is_common = True
        raise error

    def _read(self) -> None:
        try:
            assert self._copied is not None
            sizes = self._copied.sizes()
            items: Sequence[int] = range(len(sizes))
            if sizes.sum() > self._few_bytes:
                items = random.Random(self._copied.seed()).sample(items, min(NUM_CONTENTS, len(items)))
            self._found = sizes, {item: self._copied.digest(item) for item in items}
        except BaseException as error:
            self._error = error

    def _digest(self) -> bytes | None:
        if self._found is None:
            return None
        sizes, digests = self._found
        return hashlib.sha256(sizes.tobytes() + repr(sorted(digests.items())).encode()).digest()

    def _difference(self, gathered: Sequence[Any]) -> str:
        """``train.json:11: rank 0 (node1) has 32044 bytes, rank 1 (node2) has 31044 bytes, and 2 more items``"""
        machines = [(rank, *result) for rank, result in enumerate(gathered) if result is not None]
        sizes = np.stack([of_machine.numpy() for _, _, of_machine, _ in machines])
        items: list[int] = np.flatnonzero((sizes != sizes[0]).any(axis=0)).tolist()
        if items:
            values = ["no file" if size < 0 else counted(int(size), "byte") for size in sizes[:, items[0]]]
        else:
            digests = [of_machine for _, _, _, of_machine in machines]
            items = sorted(item for item in digests[0] if len({of_machine.get(item) for of_machine in digests}) > 1)
            values = [f"content {of_machine[items[0]][:8]}" for of_machine in digests]
        named = [(value, (rank, host)) for value, (rank, host, *_) in zip(values, machines, strict=True)]
        parts = []
        for value, places in grouped(named):
            ranks, hosts = zip(*places, strict=True)
            verb = "has" if len(ranks) == 1 else "have"
            parts.append(f"{named_ranks(ranks)} ({', '.join(dict.fromkeys(hosts))}) {verb} {value}")
        more = f", and {counted(len(items) - 1, 'more item')}" if len(items) > 1 else ""
        return f"{self._place_of(items[0])}: {', '.join(parts)}{more}"


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def refuse_drifted_weights(modules: Iterable[nn.Module], comm: Comm) -> None:
    """Compare the weights of all ranks, which all call it: one exchange of a few bytes, and one wait for the device.

    Gradients are averaged, so copies that start equal stay equal. They drift apart where one rank's memory or device
    fails, or where code changes weights or learning rates on one rank only. Buffers are not compared: running
    statistics are each rank's own. Nor are weights that are divided among the ranks, as each rank has other ones.

    Raises:
        DistributedError: they differ; the same error on every rank.
    """
    if comm.world_size == 1:
        return
    tensors = dict(_replicated(modules))
    sums = bit_sums(tensors.values())
    digest = hashlib.sha256(repr(sums).encode()).digest()
    if comm.all_same(digest, "comparing weights"):
        return
    gathered = comm.gather((platform.node(), sums))
    details = comm.share(None if gathered is None else _drifted([*tensors], *zip(*gathered, strict=True)))
    error = DistributedError(
        "the weights of the ranks have drifted apart",
        got=details or "",
        wanted="the same bits on all ranks",
        remedy="start again from the last checkpoint, whose weights were equal; if it happens again, look for code "
        "that changes weights, gradients or learning rates on some ranks only, and test the memory of that machine "
        "(processors of different kinds may round differently: use one kind)",
    )
    error.is_common = True
    raise error


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """The sum of each tensor's bits, read as integers: other ones where a bit of one differs. Waits for each device."""
    on_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        on_device.setdefault(tensor.device, []).append((index, _bit_sum(tensor)))
    sums: dict[int, int] = {}
    for there in on_device.values():
        indices, values = zip(*there, strict=True)
        sums.update(zip(indices, torch.stack(values).tolist(), strict=True))
    return [sums[index] for index in sorted(sums)]


def _bit_sum(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    narrow = plain.reshape(-1).view(_INTEGERS[plain.element_size()])
    in_a_word = 8 // plain.element_size()
    if narrow.storage_offset() % in_a_word:
        narrow = narrow.clone()
    # Whole words of 8 bytes: the sum of narrower integers takes ten times as long.
    end = len(narrow) // in_a_word * in_a_word
    return narrow[:end].view(torch.int64).sum() + narrow[end:].sum()


def _replicated(modules: Iterable[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """The weights that all ranks have in full, by name, with the float32 ones of which half weights are rounded."""
    for module in dict.fromkeys(modules):
        label = module.label if isinstance(module, NeuralModule) else type(module).__name__
        weights = {
            name: weight
            for name, weight in module.named_parameters()
            if weight.layout is torch.strided and not is_divided(weight) and not nn.parameter.is_lazy(weight)
        }
        halves = [name for name, weight in weights.items() if weight.is_floating_point() and weight.element_size() < 4]
        state: Mapping[str, object] = module.state_dict() if halves else {}
        for name, weight in weights.items():
            yield f"{label}.{name}", weight
        for name in halves:
            wide = state.get(name)
            if isinstance(wide, Tensor) and wide.dtype != weights[name].dtype:
                yield f"{label}.{name} ({str(wide.dtype).removeprefix('torch.')})", wide


def _drifted(names: Sequence[str], hosts: Sequence[str], sums: Sequence[Sequence[int]]) -> str:
    """``encoder.conv.weight of rank 1 (node2) unlike that of the other ranks, and 3 more tensors``"""
    differing = [index for index in range(len(names)) if len({of_rank[index] for of_rank in sums}) > 1]
    alike = [ranks for _, ranks in grouped((of_rank[differing[0]], rank) for rank, of_rank in enumerate(sums))]
    most = max(alike, key=len)  # of equally many the first, with rank 0
    drifted = sorted(rank for ranks in alike if ranks is not most for rank in ranks)
    machines = ", ".join(dict.fromkeys(hosts[rank] for rank in drifted))
    more = f", and {counted(len(differing) - 1, 'more tensor')}" if len(differing) > 1 else ""
    unlike = f"that of {named_ranks(most)}" if len(alike) == 2 else f"each other and that of {named_ranks(most)}"
    return f"{names[differing[0]]} of {named_ranks(drifted)} ({machines}) unlike {unlike}{more}"
