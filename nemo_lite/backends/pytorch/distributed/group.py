"""ProcessGroup: the ranks that a launcher started, as one Comm. It composes what the other files of the package do.

Any: states of optimizers hold tensors, numbers and lists.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import Store
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from nemo_lite.backends.pytorch.distributed.batchnorm import is_sharded, make_groups, synced_batchnorm
from nemo_lite.backends.pytorch.distributed.comm import PLAIN_REPLICA, Comm, Exchange, Replica, ReplicaOptions
from nemo_lite.backends.pytorch.distributed.contract import RunContract, check_equal_exchange, rank_table
from nemo_lite.backends.pytorch.distributed.failures import (
    print_each_once,
    raise_descriptor_limit,
    tell_now,
    torch_errors_named,
)
from nemo_lite.backends.pytorch.distributed.health import WRITES, HealthMonitor
from nemo_lite.backends.pytorch.distributed.process import end_process, log_cpp_errors_only, print_stack_of_crash
from nemo_lite.backends.pytorch.distributed.rendezvous import announce_failures_by, meet, names_of_run
from nemo_lite.base.errors import UsageError
from nemo_lite.base.launch import ProcessInfo
from nemo_lite.core.neural_types import Value
from nemo_lite.utils import logging

T = TypeVar("T")

# How long torch's groups get to end after an error.
_LEAVING_SECONDS = 2.0
# How often a rank at most asks whether the others have written their checkpoint.
_POLL_SECONDS = 0.25
_USE_GLOO = "use gloo (--dist_backend gloo, dist_backend='gloo')"


@dataclass(frozen=True)
class Patience:
    """How long ranks wait for each other.

    Attributes:
        start_seconds: until all have joined.
        timeout_seconds: in a collective, for the slowest.
        silence_seconds: for a heartbeat of a rank on another machine: so long may a link be down. By default a tenth of
            ``timeout_seconds``, but from 6 to 60 seconds.
    """

    start_seconds: float = 300.0
    timeout_seconds: float = 600.0
    silence_seconds: float | None = None

    @property
    def silence(self) -> float:
        """Seconds without a heartbeat after which a rank on another machine is gone."""
        return min(max(self.timeout_seconds / 10, 6.0), 60.0) if self.silence_seconds is None else self.silence_seconds


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

    def __call__(self, *values: Value) -> tuple[Value, ...]:
        """The module's outputs."""
        outputs: tuple[Value, ...] = (self._ddp or self._module)(*values)
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
            _LastFirst(self._module),
            device_ids=self._device_ids,
            init_sync=not are_equal,
            gradient_as_bucket_view=True,
            static_graph=self._options.static_graph,
        )
        made.broadcast_buffers = False  # at each step. The argument would also leave them as they are at the start
        # DDP would exchange the first step's gradients as one bucket, and those of all others in buckets by the order
        # in which the gradients of the first came. How gradients lie in buckets decides in which order those of three
        # and more ranks are added, and so a resumed run would differ. This gives it the order before the first step.
        made.reducer._push_all_rebuilt_params()
        # A static graph is learnt in an exchange: torch ends with an internal error where the first pass has none. The
        # mean of the first micro-batch is then taken before the others are added: the same sum, but for rounding.
        self._must_exchange = self._options.static_graph
        if self._options.gradient_compression is not None:
            made.register_comm_hook(None, bf16_compress_hook)
        return made


class _LastFirst(nn.Module):
    """A module whose parts are listed from the last to the first: about the order in which their gradients come.

    A part with a weight of an earlier one stands where that one does, as the gradient is whole only there: DDP sends
    gradients in this order, so all behind one that comes late would wait for it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *values: Value) -> Value:
        return self.module(*values)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        listed = list(super().named_modules(*args, **kwargs))
        first: dict[nn.Parameter, int] = {}
        places = []
        for place, (_, module) in enumerate(listed):
            of_weights = [first.setdefault(weight, place) for weight in module.parameters(recurse=False)]
            places.append(min(of_weights, default=place))
        for place in sorted(range(len(listed)), key=places.__getitem__, reverse=True):
            yield listed[place]


class _Sending:
    """Around forward and backward of the last micro-batch. No generator: this runs at each step."""

    def __init__(self, sent: Callable[[], None]) -> None:
        self._sent = sent

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self._sent()


class ProcessGroup(Comm):
    """The ranks of a run.

    Gradients are exchanged by nccl on GPUs and by gloo on CPUs, all else by a second group, on gloo.

    Args:
        info: who this process is.
        choose_device: gives this rank's device; called after the rendezvous, so that an error stops all ranks.
        backend: ``nccl`` or ``gloo``; by default what suits the device.
        patience: how long to wait.

    Raises:
        UsageError: this process has or had a group; this torch lacks the backend, or it needs GPUs.
        DistributedError: not all ranks came, or another one failed.
        DeviceError: from ``choose_device``.
    """

    # The store keeps its keys: a second rendezvous would read those of the first.
    _has_joined: ClassVar[bool] = False

    def __init__(
        self,
        info: ProcessInfo,
        choose_device: Callable[[], torch.device],
        backend: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        if ProcessGroup._has_joined:
            raise UsageError("a process joins its group once", remedy="make one NeuralModuleFactory in a script")
        ProcessGroup._has_joined = True
        self.rank, self.world_size = info.rank, info.world_size
        self.local_rank: int | None = info.local_rank
        if backend is not None:
            check_available(backend)  # before the meeting, after which the ranks would report each other's errors, too
        patience = patience or Patience()
        log_cpp_errors_only()
        print_stack_of_crash()
        raise_descriptor_limit(info.world_size)
        meeting = meet(info, patience.start_seconds)
        self.run_id, self.attempt_id = meeting.run_id, meeting.attempt_id
        self.label = f"rank {info.rank} ({meeting.members[info.rank].host})"
        self._monitor = HealthMonitor(meeting, info, patience.timeout_seconds, silence_seconds=patience.silence)
        announce_failures_by(self._monitor.report_own_error)
        self._is_closed = self._has_failed = False
        self._exchange: Exchange | None = None  # over the second group, on gloo, for all but gradients
        self._sharding: Any = None  # the module, once weights are divided: FSDP2 is slow to import
        self._num_writes = 0
        self._store, self._connect = meeting.store, meeting.connect
        self._groups: dict[int, dist.ProcessGroup | None] = {}
        self._timeout = timedelta(seconds=patience.timeout_seconds)
        atexit.register(self.close)
        with self.guarded():
            self.device = choose_device()
            self.backend = usable_backend(backend, self.device)
            # torch leaves a store that it is given with the timeout of the start.
            self._store.set_timeout(self._timeout)
            with self._monitor.collective("comparing how ranks exchange"):
                contract: RunContract = {
                    "run": names_of_run(info),
                    "arguments": {"dist_backend": self.backend, "dist_timeout": patience.timeout_seconds},
                }
                check_equal_exchange(self._store, self.rank, self.world_size, contract)
            self._join()
            devices = self.gather(_described(self.device))
            if devices is not None:
                logging.info("%s", rank_table(self.backend, meeting.members, devices))

    def _join(self) -> None:
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        self._monitor.is_asynchronous = self.backend == "nccl"
        # nccl ends the process by itself: give our report, which names the rank to blame, time to come first.
        self._timeout_of_device = self._timeout + timedelta(seconds=10 if self.backend == "nccl" else 0)
        dist.init_process_group(
            self.backend,
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=self._timeout_of_device,
            device_id=self.device if on_gpu else None,
        )
        print_each_once()  # after torch, which marks each line of a traceback with the rank
        group: Any = dist.new_group(backend="gloo", timeout=self._timeout)  # for torch it may be none of this rank's
        self._exchange = Exchange(group, self.rank, self.world_size, mark=self._monitor.collective)

    def replicate(self, module: nn.Module, options: ReplicaOptions = PLAIN_REPLICA) -> Replica:
        """In DistributedDataParallel, with rank 0's weights; sharded modules average their gradients themselves."""
        if is_sharded([module]):
            from nemo_lite.backends.pytorch.distributed import sharding

            return sharding.ShardedReplica(module)
        if options.gradient_compression is not None and self.backend != "nccl":
            raise UsageError(
                f"gradient_compression={options.gradient_compression} needs nccl",
                got=f"dist_backend={self.backend}",
                remedy="leave it out; it is for GPUs",
            )
        with self._together("making weights equal"):
            return DataParallel(module, self.device, self._monitor.gradients_sent, options)

    def make_equal(self, tensors: Iterable[torch.Tensor]) -> None:
        """Broadcast each tensor of rank 0's."""
        with self._together("making weights equal"), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().contiguous()
                dist.broadcast(sent, src=0)
                tensor.copy_(sent)

    def shard(
        self,
        modules: Iterable[nn.Module],
        device: torch.device,
        half: torch.dtype | None = None,
        float32_parts: Iterable[nn.Module] = (),
    ) -> None:
        """Shard the weights of modules among the ranks, in place."""
        from nemo_lite.backends.pytorch.distributed import sharding

        self._sharding = sharding
        with self._together("dividing weights"):
            sharding.shard(modules, device, half=half, float32_parts=float32_parts)

    def whole(self, state: T) -> T:
        """A state with its sharded tensors made whole on rank 0, ``None`` on the others."""
        if self._sharding is None:
            return state
        with self._together("putting weights together"):
            together: T = self._sharding.whole(state)
        return together

    def pieces(self, state: T) -> T:
        """A state with this rank's piece in the place of each sharded tensor."""
        if self._sharding is None:
            return state
        with self._together("finding this rank's part of the weights"):
            own_part: T = self._sharding.pieces(state)
        return own_part

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, object]) -> None:
        """``optimizer.load_state_dict`` of a whole state."""
        if self._sharding is None:
            super().load_optimizer_state(optimizer, state)
        else:
            self._sharding.load_optimizer_state(optimizer, state)

    def synced_batchnorm(self, modules: Iterable[nn.Module], group_size: int) -> AbstractContextManager[None]:
        """Inside, batch normalisation takes its statistics over groups of ranks."""
        if group_size not in self._groups:
            self._groups[group_size] = make_groups(self.world_size, group_size, self._timeout_of_device)
        return synced_batchnorm(modules, self._groups[group_size])

    def random_seed(self) -> int | None:
        """A random number of rank 0's."""
        return self.share(secrets.randbits(63))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in one collective."""
        total = torch.tensor(values, dtype=torch.float64)
        with self._together("sum of per-rank numbers"):
            dist.all_reduce(total, group=self._open.group)
        summed: list[float] = total.tolist()
        return summed

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """:meth:`sum`, begun now; what is given back waits for it."""
        total, label = torch.tensor(values, dtype=torch.float64), "sum of per-rank numbers"
        with self._together(label):
            work = dist.all_reduce(total, group=self._open.group, async_op=True)

        def finish() -> list[float]:
            with self._together(label):
                try:
                    work.wait()
                except RuntimeError as error:  # gloo's have no type, and this one is not raised by torch's functions
                    raise dist.DistBackendError(str(error)) from error
            summed: list[float] = total.tolist()
            return summed

        return finish

    def all_same(self, digest: bytes | None, label: str) -> bool:
        """Whether all ranks that give a digest give the same one, by its first seven bytes."""
        nothing = torch.iinfo(torch.int64).min
        number = nothing if digest is None else int.from_bytes(digest[:7], "big")
        # The largest number, and the smallest with its sign changed.
        extremes = torch.tensor([number, nothing if digest is None else -number])
        with self._together(label):
            dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self._open.group)
        largest, smallest_negated = extremes.tolist()
        return bool(largest == -smallest_negated or largest == nothing)

    def any_on_device(self, flag: torch.Tensor) -> None:
        """Make a flag that of any rank, by the group of the gradients."""
        with self._together("verdict on the step"):
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)

    def sum_on_device(self, number: torch.Tensor) -> None:
        """Make a number its sum over the ranks, by the group of the gradients."""
        with self._together("items that the step leaves out"):
            dist.all_reduce(number)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make each tensor its mean over the ranks, in place, all in one collective."""
        if not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1).double().cpu() for tensor in tensors])
        with self._together("averaging batch-norm statistics"):
            dist.all_reduce(flat, group=self._open.group)
        parts = torch.split(flat / self.world_size, [tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value, on rank 0."""
        return self._open.gather(value)

    def rounds(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """The ranks' rows, round by round, on rank 0."""
        return self._open.rounds(rows)

    def share(self, value: T) -> T:
        """Rank 0's value."""
        return self._open.share(value)

    def barrier(self) -> None:
        """Wait for all ranks; an error names those that do not come."""
        with self._together("barrier"):
            dist.monitored_barrier(self._open.group, self._timeout, wait_all_ranks=True)

    def written_by_all(self, write: Callable[[], T]) -> T:
        """What ``write`` gives, when all ranks are done with theirs.

        Ranks wait by asking the store, not in an exchange: gloo and nccl end theirs after the timeout, also where a
        slow disk still gets bytes. Here the timeout begins anew whenever some rank has written more.
        """
        self._end_rounds()
        value = write()
        self._num_writes += 1
        key, pause = f"written/{self._num_writes}", 0.001
        with self._monitor.collective("waiting for the checkpoint of all ranks"):
            num_done, num_writes = self._store.add(key, 1), self._store.add(WRITES, 0)
            while num_done < self.world_size:
                self._monitor.check()
                time.sleep(pause)
                pause = min(1.5 * pause, _POLL_SECONDS)
                num_done, before, num_writes = self._store.add(key, 0), num_writes, self._store.add(WRITES, 0)
                if num_writes != before:
                    self._monitor.wait_anew()
        return value

    def leave_note(self, key: str, text: str) -> None:
        """Leave a text for another rank, in the store."""
        with suppress(dist.DistError):  # the rank that serves the store has ended: nobody is left to take it
            self._notes.set(f"note/{key}", text)

    def take_note(self, key: str) -> str | None:
        """The text that some rank left under this key, once; ``None`` as long as there is none.

        Raises:
            DistError: the store is lost.
        """
        name = f"note/{key}"
        if not self._notes.check([name]):
            return None
        text: str = self._notes.get(name).decode()
        self._notes.delete_key(name)
        return text

    @cached_property
    def _notes(self) -> Store:
        """A connection of their own, made at the first use: calls of one connection wait for each other."""
        return self._connect()

    def at_step(self, step: int | None) -> None:
        """Reports name this step from now on. Rounds that rank 0 left early are ended first."""
        self._end_rounds()
        begins = self._monitor.step is None and step is not None
        self._monitor.step = step
        if begins:
            self._monitor.beat_soon()  # a rank that dies in its first steps was last seen there

    def _together(self, label: str) -> AbstractContextManager[None]:
        self._end_rounds()
        return self._monitor.collective(label)

    def _end_rounds(self) -> None:
        """Tell the other ranks that no further rounds come, where rank 0 left an iteration early.

        Not called from the generator's close: it may be closing because of an error, and then the other ranks must get
        the error, not a normal end of rounds.
        """
        if self._exchange is not None:
            self._exchange.end_rounds()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """If the block raises: print the error, then report it to the other ranks; the group is of no use any more.

        If it only follows from another rank's failure (e.g. "connection closed"), raise that rank's error instead. The
        group is left when the script ends: leaving may take long, and meanwhile a launcher may end this process.
        """
        try:
            with torch_errors_named(self.label):
                yield
                self._end_rounds()
        except BaseException as error:
            cause = self._monitor.wait_for_cause(error)
            tell_now(cause)
            self._monitor.report_own_error(cause)
            self._exchange, self._has_failed = None, True
            if cause is error:
                raise
            raise cause from error

    def close(self) -> None:
        """Leave the group. Closing twice does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._monitor.leave()
        self._exchange = None
        self._groups.clear()
        if dist.is_initialized():
            self._destroy()

    def _destroy(self) -> None:
        """Leave torch's groups. After an error that may wait for ranks that are gone: then the process ends at once."""
        if not self._has_failed:
            dist.destroy_process_group()
            return
        # nccl has to abort what it waits for; destroying would wait for it.
        leave = dist.distributed_c10d._abort_process_group if self.backend == "nccl" else dist.destroy_process_group
        leaving = threading.Thread(target=leave, daemon=True, name="leave the group")
        leaving.start()
        leaving.join(_LEAVING_SECONDS)
        if leaving.is_alive():
            end_process(self._monitor.exit_code)

    @property
    def _open(self) -> Exchange:
        if self._exchange is None:
            raise UsageError(
                "this process has left its group",
                got="a run that ended with an error, or close()",
                remedy="start all processes anew",
            )
        return self._exchange


def usable_backend(backend: str | None, device: torch.device) -> str:
    """The backend that exchanges gradients: the one asked for, or what suits the device.

    Raises:
        UsageError: this torch lacks it, or it exchanges nothing on this device.
    """
    name = backend or ("nccl" if device.type == "cuda" else "gloo")
    check_available(name)
    if name == "nccl" and device.type != "cuda":
        problem = f"nccl works between GPUs, and this rank runs on the {device}"
        raise UsageError(problem, place=f"dist_backend={name}", remedy=_USE_GLOO)
    return name


def check_available(backend: str) -> None:
    """Raise UsageError where this torch lacks it. torch itself judges one for each device: "cpu:gloo,cuda:nccl"."""
    if ":" not in backend and not dist.is_backend_available(backend):
        raise UsageError(f"this torch has no {backend}", place=f"dist_backend={backend}", remedy=_USE_GLOO)


def _described(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)
