"""Comm: what ranks do together, as one object; exchanges of values between ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.distributed.failures import torch_errors_named
from nemo_lite.backends.pytorch.tensor_codec import EncodeError, Json, Tree
from nemo_lite.base.errors import DistributedError, UsageError
from nemo_lite.core.neural_types import Value
from nemo_lite.core.run_options import GradientCompression

T = TypeVar("T")
Parcel: TypeAlias = "list[torch.Tensor]"

_PIECE_BYTES = 4 * 2**20
_LENGTH_BYTES = 8


def encode(value: object) -> Parcel:
    """A value as buffers: one-dimensional uint8 tensors on the CPU, to be sent one after the other.

    The buffers of contiguous tensors on the CPU share their memory: send them before the tensors change.

    Args:
        value: a tensor (its gradient stays behind), a NumPy array or scalar, text, bytes, an integer, a float, a bool,
            None, or a list, a tuple or a dictionary (with texts or integers as keys) of such values.

    Raises:
        UsageError: something else, with its place in the value.
    """
    buffers: Parcel = []

    def put(tensor: torch.Tensor, path: tensor_codec.Path) -> list[object]:
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


def decode(parcel: torch.Tensor, rank: int = 0) -> object:
    """The value of a parcel: the buffers of :func:`encode`, joined. Its tensors are on the CPU, in memory of their own.

    Raises:
        DistributedError: not what :func:`encode` writes; it names the rank that sent it.
    """
    length = int.from_bytes(parcel[:_LENGTH_BYTES].numpy().tobytes(), "little")
    start = _LENGTH_BYTES + length

    def take(num_bytes: int) -> torch.Tensor:
        nonlocal start
        if not 0 <= num_bytes <= len(parcel) - start:
            raise ValueError(f"a buffer of {num_bytes} bytes, {len(parcel) - start} are left")
        start += num_bytes
        # A copy: a small tensor that is kept would keep all others of its parcel.
        return parcel[start - num_bytes : start].clone()

    with _refusals_name(rank):
        if length > len(parcel) - _LENGTH_BYTES:
            raise ValueError(f"a header of {length} bytes in a parcel of {len(parcel)}")
        return _decoded(parcel[_LENGTH_BYTES:start], take)


class Exchange:
    """Sends values between ranks. All ranks call each method, in the same order.

    A value becomes a JSON header and the raw bytes of its tensors; nothing is pickled, and what arrives runs no code.
    Ranks that fail are dealt with elsewhere.

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
        mark: Callable[[str, int | None], AbstractContextManager[object]] = lambda name, partner: nullcontext(),
    ) -> None:
        self.group, self._rank, self._world_size = group, rank, world_size
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
            dist.broadcast(size, group=self.group, group_src=0)
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

    def _goes_on(self, name: str, goes_on: bool = True) -> bool:
        """Whether rank 0 asks for the round."""
        with self._mark(f"{name}: rank 0 asks for the next", None):
            flag = torch.tensor([int(goes_on)])
            dist.broadcast(flag, group=self.group, group_src=0)
        return bool(flag)

    def _round(self, source: Iterator[T], name: str) -> list[T] | None:
        """One round's rows (none on ranks above 0); None when there are no more."""
        parcel = next((torch.cat(encode(row)) for row in source), torch.empty(0, dtype=torch.uint8))
        sizes = self._sizes(len(parcel), name)
        return self._arrived(parcel, sizes, name) if any(sizes) else None

    def _broadcast(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer, filled with rank 0's."""
        for piece in self._pieces(buffer):
            dist.broadcast(piece, group=self.group, group_src=0)
        return buffer

    def _from_rank_0(self, num_bytes: int) -> torch.Tensor:
        return self._broadcast(torch.empty(num_bytes, dtype=torch.uint8))

    def _sizes(self, mine: int, name: str) -> list[int]:
        with self._mark(f"{name}: sizes of all ranks", None):
            sizes = list(torch.zeros(self._world_size, 1, dtype=torch.int64).unbind())
            dist.all_gather(sizes, torch.tensor([mine]), group=self.group)
        return [int(size) for size in sizes]

    def _arrived(self, parcel: torch.Tensor, sizes: list[int], name: str) -> list[Tree]:
        """The values of all ranks that sent one, on rank 0; its own is decoded too, so that all have the same types."""
        if self._rank != 0 and len(parcel):
            with self._mark(f"{name}: rank {self._rank} to rank 0", 0):
                for piece in self._pieces(parcel):
                    dist.send(piece, group=self.group, group_dst=0)
        if self._rank != 0:
            return []
        values = [decode(parcel)] if len(parcel) else []
        for rank in (rank for rank in range(1, len(sizes)) if sizes[rank]):
            arrived = torch.empty(sizes[rank], dtype=torch.uint8)
            with self._mark(f"{name}: rank {rank} to rank 0", rank):
                for piece in self._pieces(arrived):
                    dist.recv(piece, group=self.group, group_src=rank)
            values.append(decode(arrived, rank))
        return values

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


def _decoded(header: torch.Tensor, take: Callable[[int], torch.Tensor]) -> Tree:
    """The value of a header.

    Args:
        take: gives the next buffer: so many bytes, in memory of their own.
    """

    def tensor_of(described: Sequence[Json]) -> torch.Tensor:
        name, *shape = described
        dtype = tensor_codec.dtype_named(name)
        return take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    try:
        return tensor_codec.decode(json.loads(header.numpy().tobytes().decode("utf-8", "surrogatepass")), tensor_of)
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError, RuntimeError) as error:
        raise ValueError(f"no header of a parcel ({type(error).__name__}: {error})") from None


class TensorPiece(NamedTuple):
    """A slice of a whole tensor.

    Attributes:
        tensor: this rank's values; empty where there are fewer rows than ranks.
        dim: the dimension along which the whole is divided.
        start: its first index in that dimension of the whole.
        size: of that dimension in the whole.
    """

    tensor: torch.Tensor
    dim: int
    start: int
    size: int


def is_divided(tensor: object) -> bool:
    """Whether a tensor's values are divided among the ranks: a DTensor, whose class is slow to import."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "device_mesh")


def piece_of(tensor: torch.Tensor) -> TensorPiece | torch.Tensor:
    """This rank's piece of a divided tensor; the tensor itself where every rank has all of it.

    All ranks call it, in the same order: where each rank holds a summand, they are added up. Nothing else is exchanged.
    """
    if not is_divided(tensor):
        return tensor
    from torch.distributed.tensor import DTensor, Shard

    assert isinstance(tensor, DTensor)
    (placement,) = tensor.placements
    if not isinstance(placement, Shard):
        full: torch.Tensor = tensor.full_tensor()
        return full.detach()
    size, mesh = tensor.shape[placement.dim], tensor.device_mesh
    rows = -(-size // mesh.size())  # as torch.chunk divides
    return TensorPiece(tensor.to_local().detach(), placement.dim, min(mesh.get_local_rank() * rows, size), size)


def divided_as(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A tensor divided as ``target`` is, of this rank's piece of its values."""
    from torch.distributed.tensor import DTensor

    assert isinstance(target, DTensor)
    piece = tensor.to(target.device).contiguous()
    shape, stride = target.shape, target.stride()
    return DTensor.from_local(piece, target.device_mesh, target.placements, run_check=False, shape=shape, stride=stride)


class ReplicaOptions(NamedTuple):
    """How the gradients of a replica are exchanged; see ``NeuralModuleFactory.train``."""

    static_graph: bool = False
    gradient_compression: GradientCompression | None = None


PLAIN_REPLICA = ReplicaOptions()


class Replica(Protocol):
    """A module whose gradients are averaged over the ranks. Keep it for as long as the module trains.

    Attributes:
        needs_reach_check: DDP waits for the gradient of every trained weight; if the loss does not depend on one, it
            waits for ever. True until this is checked.
    """

    needs_reach_check: bool

    def __call__(self, *values: Value) -> tuple[Value, ...]:
        """The module's outputs."""

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch: gradients are averaged on the last one only."""


class Alone:
    """A replica in a single process. It calls ``forward`` directly, without torch's machinery for hooks."""

    needs_reach_check = False

    def __init__(self, module: nn.Module) -> None:
        self._forward, self._nothing = module.forward, nullcontext()
        # At every step each is found at once, where torch would search for it, and need not ask whether it connects.
        calls = {name: getattr(child, "on_values", child) for name, child in module.named_children()}
        vars(module).update(calls)

    def __call__(self, *values: Value) -> tuple[Value, ...]:
        """The module's outputs."""
        outputs: tuple[Value, ...] = self._forward(*values)
        return outputs

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """No gradients to average."""
        return self._nothing


class Comm:
    """What the engine asks of the group of ranks: here as a process alone does it, which is all ranks.

    No network calls here: a group of several ranks is in group.py.

    All ranks call each method, in the same order. ``gather``, ``rounds`` and ``share`` take tensors, numbers, texts,
    ``None``, and lists, tuples and dictionaries of them.

    Attributes:
        rank: index of this process among all of the run.
        world_size: number of ranks.
        local_rank: index of this process on its machine; ``None`` for a single process.
        run_id: of the run, the same on all ranks; "" for a single process.
        attempt_id: of this start of the run, likewise.
        label: what messages call this rank: ``rank 1 (node2)``; "" for a single process.
    """

    rank = 0
    world_size = 1
    local_rank: int | None = None
    run_id = ""
    attempt_id = ""
    label = ""

    def replicate(self, module: nn.Module, options: ReplicaOptions = PLAIN_REPLICA) -> Replica:
        """The module with rank 0's weights on all ranks, ready to train."""
        return Alone(module)

    def make_equal(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give all ranks the values of rank 0, in place."""

    def shard(
        self,
        modules: Iterable[nn.Module],
        device: torch.device,
        half: torch.dtype | None = None,
        float32_parts: Iterable[nn.Module] = (),
    ) -> None:
        """Shard the weights of modules among the ranks, in place; make optimizers afterwards.

        Args:
            modules: they become whole one block at a time.
            device: where they run.
            half: the type of autocast, in which whole weights are; ``None``: in their own.
            float32_parts: the parts whose whole weights are float32 all the same.
        """

    def whole(self, state: T) -> T:
        """A state with its sharded tensors made whole on rank 0, ``None`` on the others."""
        return state

    def pieces(self, state: T) -> T:
        """A state with this rank's :class:`TensorPiece` in the place of each sharded tensor."""
        return state

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, object]) -> None:
        """``optimizer.load_state_dict`` of a whole state, whether the parameters are sharded or not."""
        optimizer.load_state_dict(dict(state))

    def synced_batchnorm(self, modules: Iterable[nn.Module], group_size: int) -> AbstractContextManager[None]:
        """Inside, batch normalisation takes its statistics over ``group_size`` ranks (0: all)."""
        return nullcontext()

    def random_seed(self) -> int | None:
        """A random number, the same on all ranks; ``None`` for a single process."""
        return None

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in one collective."""
        return list(values)

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """:meth:`sum`, begun now; what is given back waits for it. Other collectives may run in between."""
        return lambda: self.sum(values)

    def all_agree(self, ok: bool) -> bool:
        """Whether ``ok`` holds on every rank; the same answer everywhere."""
        return self.sum([float(not ok)]) == [0.0]

    def all_same(self, digest: bytes | None, label: str) -> bool:
        """Whether all ranks give the same digest, of seven bytes or more.

        Args:
            digest: this rank's; None: it has none, and the others are compared.
            label: what is compared, for reports about ranks that hang.
        """
        return True

    def any_on_device(self, flag: torch.Tensor) -> None:
        """Make a flag, 0 or 1, that of any rank, in place. It stays on its device: on a GPU the host does not wait."""

    def sum_on_device(self, number: torch.Tensor) -> None:
        """Make a number its sum over the ranks, in place, likewise."""

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make each floating-point tensor its mean over the ranks, in place."""

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value in order of the ranks, on rank 0; ``None`` on the others."""
        return [value]

    def rounds(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """The ranks' rows, on rank 0: in each round one row of every rank that still has one, in order of the ranks.

        On the others nothing comes out, and their rows are consumed. Memory holds one round.
        """
        return ([row] for row in rows)

    def share(self, value: T) -> T:
        """Rank 0's value, on all ranks."""
        return value

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives, called on rank 0 only; ``None`` on the others."""
        return make() if self.rank == 0 else None

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives, called on rank 0 only, on all ranks."""
        value: Any = self.on_first(make)
        shared: T = self.share(value)
        return shared

    def share_work(self, num_items: int, work: Callable[[range], T]) -> list[T]:
        """What ``work`` gives for each rank's part of ``range(num_items)``, in order, on all ranks."""
        first, end = (rank * num_items // self.world_size for rank in (self.rank, self.rank + 1))
        parts: Any = self.gather(work(range(first, end)))
        shared: list[T] = self.share(parts)
        return shared

    def barrier(self) -> None:
        """Wait for all ranks; an error names those that do not come."""

    def written_by_all(self, write: Callable[[], T]) -> T:
        """What ``write`` gives, when all ranks are done with theirs: later than the timeout, if one still writes."""
        return write()

    def leave_note(self, key: str, text: str) -> None:
        """Leave a text for another rank, which takes it. At any time, also in another thread: nobody is waited for."""

    def take_note(self, key: str) -> str | None:
        """The text that some rank left under this key, once; ``None`` as long as there is none. As ``leave_note``."""
        return None

    def at_step(self, step: int | None) -> None:
        """Note the training step (or none) for reports about ranks that fail or hang."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Around an action: an error that leaves it is sent to the other ranks, so that none waits for this one."""
        with torch_errors_named():
            yield

    def close(self) -> None:
        """Leave the group. Closing twice does nothing."""


class SingleProcess(Comm):
    """A process without others."""
