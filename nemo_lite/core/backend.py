"""What the core asks of a backend, as protocols: its actions, its ranks, its devices. No torch, nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from nemo_lite.core.action_state import Inferred, TbWriter
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.run_options import CompileOptions, InferOptions, LrPolicy, RunOptions, Uneven
from nemo_lite.core.show import PrecisionReport
from nemo_lite.errors import UnknownNameError

T = TypeVar("T")
D = TypeVar("D", bound="Device")
C = TypeVar("C", bound="Comm")
Losses = Sequence[NmTensor] | Sequence[tuple[Any, Sequence[NmTensor]]]
"""Losses that one optimizer minimises, or ``(optimizer, losses)`` for each of several."""


class Backend(Enum):
    """What executes DAGs."""

    PyTorch = 1


class DeviceType(Enum):
    """Where modules run."""

    GPU = 1
    CPU = 2
    AllGpu = 3


class Optimization(Enum):
    """Precision, in the levels of apex amp; ``nothing`` is another name of O0.

    O0 is float32; O1 computes each operation in the type that it is safe in; O2 has half weights and activations, and
    float32 master weights and normalisation layers; O3 is half throughout.
    """

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


class DeploymentFormat(Enum):
    """As what a module is exported. ``AUTO`` cannot be written."""

    AUTO = 0
    PYTORCH = 1
    TORCHSCRIPT = 2
    ONNX = 3
    TRTONNX = 4
    JARVIS = 5


@dataclass(frozen=True)
class LaunchOptions:
    """How the ranks find each other, where the launcher's environment does not say it all.

    Attributes:
        launcher: ``auto``, ``pytorch``, ``slurm``, ``mpi`` or ``none``.
        init_method: ``tcp://host:port`` of rank 0.
        rank, world_size: with ``init_method``, where no launcher sets them.
        backend: ``nccl`` or ``gloo``.
        timeout_seconds: how long ranks wait for the slowest one in an exchange.
        start_seconds: how long they wait for each other at the start.
        silence_seconds: how long they wait for a sign of life from another machine; ``None``: it follows from
            ``timeout_seconds``.
    """

    launcher: str = "auto"
    init_method: str | None = None
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    timeout_seconds: float = 600.0
    start_seconds: float = 300.0
    silence_seconds: float | None = None


@dataclass(frozen=True)
class ActionSettings:
    """What the actions of a factory share.

    Attributes:
        optimization_level: the precision level.
        amp_dtype: half type of O1 to O3; ``auto`` or ``None`` for the device's best.
        amp_backend: what trains in O1 to O3: ``auto``, ``native`` or ``apex``.
        seed: base of every random draw, or ``None``.
        files: files that must be the same on all ranks, such as the configuration.
        shard_weights: divide weights, gradients and optimizer state among the ranks.
        compile: how DAGs are compiled, or ``False``.
    """

    optimization_level: Optimization
    amp_dtype: str | None
    amp_backend: str
    seed: int | None
    files: Sequence[str | Path]
    shard_weights: bool
    compile: CompileOptions | Literal[False] | None = None


class Device(Protocol):
    """Where modules run, as the backend names it; ``torch.device`` is one. ``type`` is ``cpu`` or ``cuda``."""

    type: str


class Comm(Protocol):
    """What the core asks of the group of ranks. All ranks call each method, in the same order.

    Attributes:
        rank: index of this process among all of the run.
        world_size: number of ranks.
        local_rank: index of this process on its machine; ``None`` for a single process.
    """

    rank: int
    world_size: int
    local_rank: int | None

    def share(self, value: T) -> T:
        """Rank 0's value, on all ranks."""

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives, called on rank 0 only; ``None`` on the others."""

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives, called on rank 0 only, on all ranks."""

    def all_agree(self, ok: bool) -> bool:
        """Whether ``ok`` holds on every rank; the same answer everywhere."""

    def guarded(self) -> AbstractContextManager[None]:
        """Around an action: an error that leaves it is sent to the other ranks, so that none waits for this one."""

    def close(self) -> None:
        """Leave the group. Closing twice does nothing."""


class Actions(Protocol):
    """Trains, evaluates and infers. ``NeuralModuleFactory`` explains the arguments.

    Any: optimizers, lowered modules and the values of wires are the backend's own.

    Attributes:
        first_generation: optimizer and parameters that ``get_trainer`` was given, as in the first NeMo.
    """

    first_generation: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Index of the step made last."""

    @property
    def epoch(self) -> int:
        """Index of the epoch."""

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers of the run."""

    @property
    def inferred(self) -> Inferred | None:
        """Which items the last :meth:`infer` computed; without any on ranks above 0."""

    def train(
        self,
        tensors_to_optimize: Losses | None = None,
        optimizer: Any = None,
        optimization_params: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
        lr_policy: LrPolicy | None = None,
        *,
        options: RunOptions | None = None,
    ) -> None:
        """Train. Without losses nothing is trained: only ``on_action_end`` of the callbacks runs."""

    def eval(self, callbacks: Sequence[Callback]) -> None:
        """Run each EvaluatorCallback once."""

    def infer(self, tensors: Sequence[NmTensor], *, options: InferOptions | None = None) -> list[list[Any]] | None:
        """The values of wires over their whole data layer."""

    def infer_batches(self, tensors: Sequence[NmTensor], *, options: InferOptions | None = None) -> Iterator[list[Any]]:
        """The values of wires, batch by batch."""

    def precision_check(
        self, tensors: Sequence[NmTensor], num_batches: int, checkpoint_dir: str | Path | None = None
    ) -> PrecisionReport | None:
        """How far each node of a DAG is from float32; ``None`` on ranks above 0."""

    def lower(self, tensors: Sequence[NmTensor]) -> Any:
        """The module that computes these wires from a batch of their data layer."""

    def create_optimizer(
        self, optimizer: Any, things_to_optimize: Sequence[Any], optimizer_params: Mapping[str, Any]
    ) -> Any:
        """An optimizer over modules, or over the modules behind wires."""

    def steps_per_epoch(self, data_layer: Any, batches_per_step: int = 1, uneven: Uneven = "pad") -> int | None:
        """Optimizer steps that an epoch of training over this data layer takes."""

    def save_state_to(self, path: str | Path) -> None:
        """Write step, epoch and optimizers to one file."""

    def restore_state_from(self, path: str | Path) -> None:
        """Read what :meth:`save_state_to` wrote."""

    def deployment_export(
        self,
        module: NeuralModule,
        output: str | Path,
        d_format: DeploymentFormat,
        input_example: Any = None,
        output_example: Any = None,
    ) -> None:
        """Write a module as files for other programs."""

    def clear_cache(self) -> None:
        """Forget what ``infer`` kept."""


class BackendAdapter(Protocol[D, C]):
    """What the factory asks of a backend, whose devices are ``D`` and whose groups of ranks are ``C``."""

    def join(self, placement: DeviceType | None, local_rank: int | None, launch: LaunchOptions) -> tuple[C, D, str]:
        """The group of ranks that this process belongs to, its device, and a text that names the device.

        Raises DeviceError when the placement cannot be had, UsageError when it is not clear which rank this process is,
        and DistributedError when the other ranks do not come.
        """

    def check_precision(self, device: D, level: Optimization, amp_dtype: str | None, amp_backend: str) -> None:
        """Raise UsageError when the device does not compute in this precision, or what should train in it is absent."""

    def seed(self, seed: int) -> None:
        """Seed every generator."""

    def set_cudnn(self, benchmark: bool, deterministic: bool) -> None:
        """Let the device library time its algorithms and keep the fastest, or take only repeatable ones."""

    def make_actions(self, device: D, comm: C, tb_writer: TbWriter | None, settings: ActionSettings) -> Actions:
        """A new actions object."""
