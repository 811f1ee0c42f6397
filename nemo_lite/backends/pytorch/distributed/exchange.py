"""Exchange: values as bytes, gathered on rank 0 or shared from it, in pieces of limited size.

A value becomes a JSON header and the raw bytes of its tensors; nothing is pickled, and what arrives runs no code. Ranks
that fail are dealt with elsewhere. Any: values of any type that tensor_codec knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.tensor_codec import EncodeError
from nemo_lite.errors import DistributedError, UsageError

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


def decode(parcel: torch.Tensor, rank: int = 0) -> Any:
    """The value of a parcel: the buffers of :func:`encode`, joined. Its tensors are on the CPU, in memory of their own.

    Raises:
        DistributedError: not what :func:`encode` writes; it names the rank that sent it.
    """
    with _refusals_name(rank):
        return _decode(parcel)


def _decode(parcel: torch.Tensor) -> Any:
    length = int.from_bytes(parcel[:_LENGTH_BYTES].numpy().tobytes(), "little")
    if length > len(parcel) - _LENGTH_BYTES:
        raise ValueError(f"a header of {length} bytes in a parcel of {len(parcel)}")
    start = _LENGTH_BYTES + length

    def take(num_bytes: int) -> torch.Tensor:
        nonlocal start
        if not 0 <= num_bytes <= len(parcel) - start:
            raise ValueError(f"a buffer of {num_bytes} bytes, {len(parcel) - start} are left")
        start += num_bytes
        # A copy: a small tensor that is kept would keep all others of its parcel.
        return parcel[start - num_bytes : start].clone()

    return _decoded(parcel[_LENGTH_BYTES:start], take)


class Exchange:
    """Sends values between ranks. All ranks call each method, in the same order.

    Args:
        group: all ranks, on gloo.
        rank, world_size: this process in the group.
        piece_bytes: no message is longer.
        mark: a context for each exchange, for reports about ranks that hang; it is given the exchange's name and, in a
            transfer between two ranks, the other one (else ``None``).
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        rank: int,
        world_size: int,
        piece_bytes: int = _PIECE_BYTES,
        mark: Callable[[str, int | None], AbstractContextManager[Any]] = lambda name, partner: nullcontext(),
    ) -> None:
        self._group, self._rank, self._world_size = group, rank, world_size
        self._piece_bytes, self._mark = piece_bytes, mark
        self._left_in: str | None = None

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value in order of the ranks, on rank 0; ``None`` on the others.

        Raises:
            UsageError: a value that cannot be sent, on the rank that has it.
        """
        self.end_rounds()
        parcel = torch.cat(encode(value))
        arrived = self._arrived(parcel, self._sizes(len(parcel), "gather"), "gather")
        return arrived if self._rank == 0 else None

    def share(self, value: T) -> T:
        """Rank 0's value, on all ranks: itself on rank 0, a copy on the others, whose own values are ignored.

        The tensors of the copy are received in place: sharing takes the memory of the value once.

        Raises:
            UsageError: a value that cannot be sent, on rank 0.
        """
        self.end_rounds()
        header, *buffers = encode(value) if self._rank == 0 else [torch.empty(0, dtype=torch.uint8)]
        with self._mark("share: rank 0 to all ranks", None):
            size = torch.tensor([len(header)])
            dist.broadcast(size, group=self._group, group_src=0)
            if self._rank == 0:
                for buffer in (header, *buffers):
                    self._broadcast(buffer)
                return value
            text = self._from_rank_0(int(size))[_LENGTH_BYTES:]
            with _refusals_name(0):
                shared: T = _decoded(text, self._from_rank_0)
        return shared

    def rounds(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """The ranks' rows, on rank 0: in each round one row of every rank that still has one, in order of the ranks.

        On the others nothing comes out. All ranks take their next row when rank 0 asks for a round, so all take equally
        many. Where rank 0 leaves the iteration early, also with an error, it sends nothing: the others wait until
        :meth:`end_rounds` or the next exchange tells them, or until they are told of the error by other means.

        Raises:
            UsageError: a row that cannot be sent, on the rank that has it; the others wait then, as above.
        """
        self.end_rounds()
        source = iter(rows)
        for number in count(1):
            name = f"evaluation results, round {number}"
            arrived = self._round(source, name) if self._goes_on(name) else None
            if arrived is None:
                return
            if self._rank == 0:
                try:
                    yield arrived
                except GeneratorExit:
                    # Do not end the rounds here: the generator may be closing because of an error, and then the other
                    # ranks must get the error, not a normal end of rounds.
                    self._left_in = f"evaluation results, round {number + 1}"
                    raise
            del arrived  # before the next round is there

    def end_rounds(self) -> None:
        """Tell the other ranks that no further rounds come, if rank 0 left an iteration of them early.

        Not called from the generator's close, see :meth:`rounds`. Only rank 0 does anything: the others are still in
        that iteration, or in whatever comes after it.
        """
        if self._left_in is not None:
            name, self._left_in = self._left_in, None
            self._goes_on(name, False)

    def _goes_on(self, name: str, wanted: bool = True) -> bool:
        """Whether rank 0 asks for the round."""
        with self._mark(f"{name}: rank 0 asks for the next", None):
            flag = torch.tensor([int(wanted)])
            dist.broadcast(flag, group=self._group, group_src=0)
        return bool(flag)

    def _round(self, source: Iterator[T], name: str) -> list[T] | None:
        """One round's rows (none on ranks above 0); None when there are no more."""
        parcel = next((torch.cat(encode(row)) for row in source), torch.empty(0, dtype=torch.uint8))
        sizes = self._sizes(len(parcel), name)
        return self._arrived(parcel, sizes, name) if any(sizes) else None

    def _broadcast(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer, filled with rank 0's."""
        for piece in self._pieces(buffer):
            dist.broadcast(piece, group=self._group, group_src=0)
        return buffer

    def _from_rank_0(self, num_bytes: int) -> torch.Tensor:
        return self._broadcast(torch.empty(num_bytes, dtype=torch.uint8))

    def _sizes(self, mine: int, name: str) -> list[int]:
        with self._mark(f"{name}: sizes of all ranks", None):
            sizes = list(torch.zeros(self._world_size, 1, dtype=torch.int64).unbind())
            dist.all_gather(sizes, torch.tensor([mine]), group=self._group)
        return [int(size) for size in sizes]

    def _arrived(self, parcel: torch.Tensor, sizes: list[int], name: str) -> list[Any]:
        """The values of all ranks that sent one, on rank 0; its own is decoded too, so that all have the same types."""
        if self._rank != 0 and len(parcel):
            with self._mark(f"{name}: rank {self._rank} to rank 0", 0):
                for piece in self._pieces(parcel):
                    dist.send(piece, group=self._group, group_dst=0)
        if self._rank != 0:
            return []
        senders = [rank for rank in range(1, len(sizes)) if sizes[rank]]
        mine = [decode(parcel)] if len(parcel) else []
        return mine + [decode(self._received(rank, sizes[rank], name), rank) for rank in senders]

    def _received(self, rank: int, size: int, name: str) -> torch.Tensor:
        arrived = torch.empty(size, dtype=torch.uint8)
        with self._mark(f"{name}: rank {rank} to rank 0", rank):
            for piece in self._pieces(arrived):
                dist.recv(piece, group=self._group, group_src=rank)
        return arrived

    def _pieces(self, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(buffer, self._piece_bytes) if len(buffer) else ()


@contextmanager
def _refusals_name(rank: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise DistributedError(
            f"rank {rank} sent data that nemo_lite did not write",
            got=str(error)[:200],
            remedy="see that all ranks run the same nemo_lite, and that only they reach each other's ports",
        ) from None


def _decoded(header: torch.Tensor, take: Callable[[int], torch.Tensor]) -> Any:
    """The value of a header.

    Args:
        take: gives the next buffer: so many bytes, in memory of their own.
    """

    def tensor_of(described: list[Any]) -> torch.Tensor:
        name, *shape = described
        dtype = tensor_codec.dtype_named(name)
        return take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    try:
        return tensor_codec.decode(json.loads(header.numpy().tobytes().decode("utf-8", "surrogatepass")), tensor_of)
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError, RuntimeError) as error:
        raise ValueError(f"no header of a parcel ({type(error).__name__}: {error})") from None
