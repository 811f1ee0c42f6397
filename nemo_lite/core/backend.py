"""What can be asked of a backend: where to run, in what precision, with how many processes. Nothing runs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from nemo_lite.errors import UnknownNameError


class Backend(Enum):
    """What executes DAGs."""

    PyTorch = 1


class DeviceType(Enum):
    """Where modules run."""

    GPU = 1
    CPU = 2
    AllGpu = 3


class Optimization(Enum):
    """Precision, in the levels of apex amp: O0 is float32, O1 mixed; ``nothing`` is another name of O0."""

    mxprO0 = 0  # noqa: N815  # NeMo's name
    mxprO1 = 1  # noqa: N815
    mxprO2 = 2  # noqa: N815
    mxprO3 = 3  # noqa: N815
    nothing = 0

    @property
    def short(self) -> str:
        """``O0`` to ``O3``."""
        return f"O{self.value}"

    @staticmethod
    def parse(level: Optimization | str) -> Optimization:
        """A level, or one of the strings ``"O0"`` to ``"O3"``.

        Raises:
            UnknownNameError: another string.
        """
        if isinstance(level, Optimization):
            return level
        known = {optimization.short: optimization for optimization in Optimization}
        if level not in known:
            raise UnknownNameError("optimization level", str(level), known)
        return known[level]


@dataclass(frozen=True)
class Launch:
    """How processes find each other, where the launcher's environment does not say it all.

    Attributes:
        launcher: ``auto``, ``pytorch``, ``slurm``, ``mpi`` or ``none``.
        init_method: ``tcp://host:port`` of the first process.
        rank, world_size: with ``init_method``, where no launcher sets them.
        backend: ``nccl`` or ``gloo``.
        timeout_seconds: how long processes wait for the slowest in an exchange.
        start_seconds: how long they wait for each other at the start.
    """

    launcher: str = "auto"
    init_method: str | None = None
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    timeout_seconds: float = 600.0
    start_seconds: float = 60.0


class BackendAdapter(Protocol):
    """What the factory asks of a backend."""

    def join(self, placement: DeviceType | None, local_rank: int | None, launch: Launch) -> tuple[Any, Any, str]:
        """The group of processes this one belongs to, its device, and in words what that is.

        Raises DeviceError when the placement cannot be had, UsageError when it is not clear who this process is, and
        DistributedError when the others do not come.
        """

    def check_precision(self, device: Any, level: Optimization, amp_dtype: str | None) -> None:
        """Raise UsageError when the device does not compute in this precision."""

    def seed(self, seed: int) -> None:
        """Seed every generator and ask for repeatable algorithms."""

    def set_benchmark(self, benchmark: bool) -> None:
        """Let the device library time its algorithms and keep the fastest."""

    def make_actions(
        self,
        *,
        device: Any,
        comm: Any,
        level: Optimization,
        amp_dtype: str | None,
        seed: int | None,
        tb_writer: Any,
        files: Sequence[str | Path],
        shard_weights: bool,
    ) -> Any:
        """A new actions object."""
