"""Values that travel between ranks: as bytes and back, gathered at the first rank or shared from it, in bounded pieces.

A value becomes a JSON header and the raw bytes of its tensors; nothing is pickled, and what arrives runs no code. Which
processes there are, and what becomes of one that fails, is not decided here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.tensor_codec import EncodeError
from nemo_lite.errors import UsageError

T = TypeVar("T")
Parcel: TypeAlias = "list[torch.Tensor]"

_PIECE_BYTES = 4 * 2**20
_LENGTH_BYTES = 8


def encode(value: Any) -> Parcel:
    """A value as buffers: one-dimensional uint8 tensors on the CPU, to be sent one after the other.

    The buffers of contiguous tensors on the CPU share their memory: send them before the tensors change.

    Args:
        value: a tensor (its gradient stays behind), a NumPy array or scalar, text, bytes, an integer, a float, a bool,
            None, or a list, a tuple or a dictionary (with texts or integers as keys) of such values.

    Raises:
        UsageError: something else, with its place in the value.
    """
    buffers: Parcel = []

    def put(tensor: torch.Tensor, path: tensor_codec.Path) -> list[Any]:
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
            raise EncodeError("a tensor that is sparse, nested, quantized or without data", path)
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        # Not reshape(-1): the stride of a dimension of size 1 is arbitrary, and view() minds it.
        buffers.append(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8))
        return [str(plain.dtype).removeprefix("torch."), *plain.shape]

    try:
        text = json.dumps(tensor_codec.encode(value, put, exact=True), ensure_ascii=False, separators=(",", ":"))
    except EncodeError as error:
        raise UsageError(
            f"{error.what} cannot travel between ranks",
            place="value" + "".join(f"[{key!r}]" for key in error.path if not error.too_deep),
            wanted="tensors, NumPy arrays, numbers, texts, bytes, None, and lists, tuples and dictionaries of them",
        ) from None
    header = text.encode("utf-8", "surrogatepass")
    content = bytearray(len(header).to_bytes(_LENGTH_BYTES, "little") + header)
    return [torch.frombuffer(content, dtype=torch.uint8), *buffers]


def decode(parcel: torch.Tensor) -> Any:
    """The value of a parcel: the buffers of :func:`encode`, joined. Its tensors are on the CPU, in memory of their own.

    Raises:
        ValueError: a header that :func:`encode` does not write.
    """
    length = int.from_bytes(parcel[:_LENGTH_BYTES].numpy().tobytes(), "little")
    start = _LENGTH_BYTES + length

    def take(num_bytes: int) -> torch.Tensor:
        nonlocal start
        start += num_bytes
        # A copy: a small tensor that is kept would keep all others of its parcel.
        return parcel[start - num_bytes : start].clone()

    return _decoded(parcel[_LENGTH_BYTES:start], take)


class Exchange:
    """The exchanges of values in a group of processes. Every method is called by all ranks, in the same order.

    Args:
        group: all ranks, on gloo.
        rank, world_size: this process in the group.
        piece_bytes: no message is longer.
        mark: what each exchange happens in: it is given the exchange's name, for reports about a rank that hangs.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        rank: int,
        world_size: int,
        piece_bytes: int = _PIECE_BYTES,
        mark: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._group, self._rank, self._world_size = group, rank, world_size
        self._piece_bytes, self._mark = piece_bytes, mark
        self._left_in: str | None = None

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value in order of the ranks, on the first; ``None`` on the others.

        Raises:
            UsageError: a value that cannot travel, on the rank that has it.
        """
        self.end_rounds()
        parcel = encode(value)
        arrived = self._arrived(parcel, self._sizes(_num_bytes(parcel), "gather"), "gather")
        return arrived if self._rank == 0 else None

    def share(self, value: T) -> T:
        """The first rank's value, on all: on the first itself, on the others a copy. What these give is not looked at.

        The tensors of the others are received where they stay: sharing takes the memory of the value once.

        Raises:
            UsageError: a value that cannot travel, on the first rank.
        """
        self.end_rounds()
        header, *buffers = encode(value) if self._rank == 0 else [torch.empty(0, dtype=torch.uint8)]
        with self._mark("share: rank 0 to all ranks"):
            size = torch.tensor([len(header)])
            dist.broadcast(size, group=self._group, group_src=0)
            if self._rank == 0:
                for buffer in (header, *buffers):
                    self._broadcast(buffer)
                return value
            text = self._from_first(int(size))[_LENGTH_BYTES:]
            shared: T = _decoded(text, self._from_first)
        return shared

    def rounds(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """The ranks' rows on the first: in each round one row of every rank that still has one, in order of the ranks.

        On the others nothing comes out. All ranks take their next row when the first one wants a round, so all take
        equally many. When the first rank leaves the iteration early, or an error does, nothing is exchanged then: the
        others wait until :meth:`end_rounds` or the next exchange here tells them, or someone tells them of the error.

        Raises:
            UsageError: a row that cannot travel, on the rank that has it. It leaves there, as an error of ``rows``
                does: the other ranks wait until someone tells them.
        """
        self.end_rounds()
        source = iter(rows)
        for number in count(1):
            name = f"rounds, round {number}"
            arrived = self._round(source, name) if self._goes_on(name) else None
            if arrived is None:
                return
            if self._rank == 0:
                try:
                    yield arrived
                except GeneratorExit:
                    # The iterator may be dropped because an error leaves: the others must not take that for the end.
                    self._left_in = f"rounds, round {number + 1}"
                    raise
            del arrived  # before the next round is there

    def end_rounds(self) -> None:
        """Tell the others that the first rank takes no further rounds, if it left an iteration of them early.

        For whoever drives the ranks, at a place that no error reaches. Only the first rank does anything: the others
        are still in that iteration, or in whatever comes after it.
        """
        if self._left_in is not None:
            name, self._left_in = self._left_in, None
            self._goes_on(name, False)

    def _goes_on(self, name: str, wanted: bool = True) -> bool:
        """Whether the first rank wants the round."""
        with self._mark(f"{name}: rank 0 asks for it"):
            flag = torch.tensor([int(wanted)])
            dist.broadcast(flag, group=self._group, group_src=0)
        return bool(flag)

    def _round(self, source: Iterator[T], name: str) -> list[T] | None:
        """One round's rows (none on other ranks than the first); None when there are no more."""
        parcel = next((encode(row) for row in source), [])
        sizes = self._sizes(_num_bytes(parcel), name)
        return self._arrived(parcel, sizes, name) if any(sizes) else None

    def _broadcast(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer, with what the first rank has in it."""
        for piece in _pieces([buffer], self._piece_bytes):
            dist.broadcast(piece, group=self._group, group_src=0)
        return buffer

    def _from_first(self, num_bytes: int) -> torch.Tensor:
        return self._broadcast(torch.empty(num_bytes, dtype=torch.uint8))

    def _sizes(self, mine: int, name: str) -> list[int]:
        with self._mark(f"{name}: sizes of all ranks"):
            sizes = list(torch.zeros(self._world_size, 1, dtype=torch.int64).unbind())
            dist.all_gather(sizes, torch.tensor([mine]), group=self._group)
        return [int(size) for size in sizes]

    def _arrived(self, parcel: Parcel, sizes: list[int], name: str) -> list[Any]:
        """The values of all ranks that sent one, on the first."""
        if self._rank != 0:
            if parcel:
                self._send(parcel, name)
            return []
        # The first rank's own value takes the same way, so that all have the same types and lie on the CPU.
        mine = [decode(_joined(parcel))] if parcel else []
        return mine + [decode(self._received(rank, sizes[rank], name)) for rank in range(1, len(sizes)) if sizes[rank]]

    def _send(self, parcel: Parcel, name: str) -> None:
        with self._mark(f"{name}: rank {self._rank} to rank 0"):
            for piece in _pieces(parcel, self._piece_bytes):
                dist.send(piece, group=self._group, group_dst=0)

    def _received(self, rank: int, size: int, name: str) -> torch.Tensor:
        arrived = torch.empty(size, dtype=torch.uint8)
        with self._mark(f"{name}: rank {rank} to rank 0"):
            for piece in _pieces([arrived], self._piece_bytes):
                dist.recv(piece, group=self._group, group_src=rank)
        return arrived


def _decoded(header: torch.Tensor, take: Callable[[int], torch.Tensor]) -> Any:
    """The value of a header.

    Args:
        take: gives the next buffer: so many bytes, in memory of their own.
    """

    def tensor_of(described: list[Any]) -> torch.Tensor:
        name, *shape = described
        dtype = tensor_codec.dtype_named(name)
        return take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    return tensor_codec.decode(json.loads(header.numpy().tobytes().decode("utf-8", "surrogatepass")), tensor_of)


def _num_bytes(parcel: Parcel) -> int:
    return sum(map(len, parcel))


def _joined(buffers: Parcel) -> torch.Tensor:
    return buffers[0] if len(buffers) == 1 else torch.cat(buffers)


def _pieces(parcel: Parcel, piece_bytes: int) -> Iterator[torch.Tensor]:
    """The joined buffers cut into pieces, all of the same length but the last: views, but where one crosses buffers."""
    pending: Parcel = []
    room = piece_bytes
    for buffer in parcel:
        start = 0
        while start < len(buffer):
            taken = buffer[start : start + room]
            pending.append(taken)
            start, room = start + len(taken), room - len(taken)
            if room == 0:
                yield _joined(pending)
                pending, room = [], piece_bytes
    if pending:
        yield _joined(pending)
