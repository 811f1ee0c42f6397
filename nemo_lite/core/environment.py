"""RunEnvironment: where and how DAGs run: ranks, device, precision, seed and folders. It runs nothing.

The backends register themselves here; this file imports none of them, and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from nemo_lite.config.ranges import WAITING_SECONDS
from nemo_lite.core.action_state import TbWriter
from nemo_lite.core.backend import (
    ActionSettings,
    Backend,
    BackendAdapter,
    C,
    Comm,
    D,
    Device,
    DeviceType,
    LaunchOptions,
    Optimization,
)
from nemo_lite.core.compile_options import Compile, CompileOptions
from nemo_lite.errors import OutOfRangeError, UsageError
from nemo_lite.utils import logging
from nemo_lite.utils.exp_logging import ExpManager
from nemo_lite.utils.nemo_logging import Logger

if TYPE_CHECKING:
    from typing import Self


class RunEnvironment:
    """Decides on which devices, in what precision, with which ranks, seed and folders DAGs run.

    Args:
        local_rank: index of this process on its machine, as the launcher gives it. Without it, the launcher's
            environment is read. Several ranks run on GPUs with nccl, or, where there is none, on the CPU with gloo.
        optimization_level: ``Optimization`` or ``"O0"`` to ``"O3"``; ``None`` takes O1 on a GPU and O0 on a CPU.
        placement: where to run; by default on the GPU if there is one, else on the CPU. ``AllGpu`` is for a script that
            a launcher starts once for each GPU; alone it runs on one and says how to start them all.
        cudnn_benchmark: let cuDNN time its algorithms; it makes runs differ in the last bits.
        random_seed: seed of every random draw.
        set_default: become the factory that :meth:`get_default_factory` gives.
        log_dir: the work directory: logs, checkpoints, TensorBoard events.
        checkpoint_dir: where checkpoints go; by default ``log_dir/checkpoints``.
        tensorboard_dir: where events go; by default ``log_dir/tensorboard``.
        create_tb_writer: make a TensorBoard writer: :attr:`tb_writer`.
        files_to_copy: files to copy into the work directory.
        add_time_to_log_dir: put a folder named after the time between ``log_dir`` and the rest.
        backend: what executes the DAGs.
        amp_dtype: ``"bfloat16"`` or ``"float16"`` for O1 to O3; ``"auto"``, the default, is bfloat16 where the device
            has it in hardware, else float16.
        amp_backend: what trains in O1 to O3: ``"native"`` (torch), ``"apex"`` (apex.amp, where it is installed), or
            ``"auto"``: native.
        launcher: what started the processes: ``auto`` (found out), ``pytorch``, ``slurm``, ``mpi`` or ``none``.
        init_method: ``tcp://host:port`` of rank 0, if the launcher does not give it.
        rank: index of this process among all, with ``init_method`` and without a launcher.
        world_size: number of ranks, with ``init_method`` and without a launcher.
        dist_backend: ``nccl`` or ``gloo``; by default what suits the device.
        dist_timeout: seconds that ranks wait for the slowest of them before the run ends with a report.
        dist_start_timeout: seconds that ranks wait for each other at the start.
        dist_silence_timeout: seconds without a sign of life after which a rank on another machine is gone; a link may
            be down for so long. By default a tenth of ``dist_timeout``, but from 6 to 60.
        shard_weights: divide weights, gradients and optimizer state among the ranks (FSDP2) instead of keeping them
            whole on each: for models that are too large for one GPU.
        cudnn_deterministic: take only algorithms of cuDNN that give the same bits in each run; they are slower.
        compile: ``True``, or a dict with keys of :class:`CompileOptions` (``backend``, ``mode``, ``dynamic``,
            ``fullgraph``): ``torch.compile`` what trains, evaluates and infers; features and losses stay as they are.
        master_process: accepted and not used: the first NeMo's way to say which rank writes files.

    Attributes:
        placement: where modules run.
        device: the backend's device.
        optim_level: the precision level.
        world_size: number of ranks.
        global_rank: index of this process among all; ``None`` for a single process.
        local_rank: index of this process on its machine; ``None`` for a single process.
        work_dir: the work directory, or ``None``.
        checkpoint_dir: where checkpoints go, or ``None``.
        tensorboard_dir: where TensorBoard's events go, or ``None``.
        logger: ``nemo_lite.logging``.

    Raises:
        UsageError: a placement or seed of another kind, a timeout that is no number of seconds, ``cudnn_benchmark``
            together with a seed or ``cudnn_deterministic``, a precision that the device does not have, or a work
            directory that cannot be written.
        DeviceError: a GPU is asked for where there is none.
    """

    _default: ClassVar[Any] = None  # Any: a factory, which is made of this class
    # Any: the devices and groups of a backend go back to the adapter that made them.
    _backends: ClassVar[dict[Backend, BackendAdapter[Any, Any]]] = {}
    logger: ClassVar[Logger] = logging
    _comm: Comm

    def __init__(
        self,
        local_rank: int | None = None,
        optimization_level: Optimization | str | None = Optimization.mxprO0,
        placement: DeviceType | None = None,
        cudnn_benchmark: bool = False,
        random_seed: int | None = None,
        set_default: bool = True,
        log_dir: str | Path | None = None,
        checkpoint_dir: str | Path | None = None,
        tensorboard_dir: str | Path | None = None,
        create_tb_writer: bool = False,
        files_to_copy: Sequence[str] | None = None,
        add_time_to_log_dir: bool = False,
        backend: Backend = Backend.PyTorch,
        amp_dtype: str | None = None,
        launcher: str = "auto",
        init_method: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        dist_backend: str | None = None,
        dist_timeout: float = 600.0,
        dist_start_timeout: float = 300.0,
        dist_silence_timeout: float | None = None,
        shard_weights: bool = False,
        cudnn_deterministic: bool = False,
        amp_backend: str = "auto",
        compile: Compile = False,  # noqa: A002  # torch's name
        master_process: bool | None = None,
    ) -> None:
        _check_arguments(placement, random_seed, cudnn_benchmark, cudnn_deterministic)
        compiling = CompileOptions.of(compile)
        self._adapter = self._backends[backend]
        _check_seconds("dist_timeout", dist_timeout)
        _check_seconds("dist_start_timeout", dist_start_timeout)
        if dist_silence_timeout is not None:
            _check_seconds("dist_silence_timeout", dist_silence_timeout)
        waits = dist_timeout, dist_start_timeout, dist_silence_timeout
        launch = LaunchOptions(launcher, init_method, rank, world_size, dist_backend, *waits)
        self._comm, device, device_name = self._adapter.join(placement, local_rank, launch)
        self.device: Final[Device] = device
        self.world_size: Final = self._comm.world_size
        self.local_rank: Final = self._comm.local_rank
        self.global_rank: Final = None if self.local_rank is None else self._comm.rank
        self.placement: Final = self._placed(placement, device_name)
        self.optim_level: Final = self._level(optimization_level)
        amp = self.optim_level, amp_dtype, amp_backend
        self._adapter.check_precision(self.device, *amp)
        self._adapter.set_cudnn(cudnn_benchmark, cudnn_deterministic)
        if random_seed is not None:
            self._adapter.seed(random_seed)
        with self._comm.guarded():
            folders = {"work_dir": log_dir, "ckpt_dir": checkpoint_dir, "tb_dir": tensorboard_dir}
            self._experiment = self._make_folders(
                **folders, use_tb=create_tb_writer, files_to_copy=files_to_copy, add_time=add_time_to_log_dir
            )
        self.work_dir: Final = _as_text(self._experiment.work_dir)
        self.checkpoint_dir: Final = _as_text(self._experiment.ckpt_dir)
        self.tensorboard_dir: Final = _as_text(self._experiment.tb_dir)
        self._exp_manager: Final = self._experiment  # the name by which scripts of NeMo read log_file and folders
        self._settings = ActionSettings(*amp, random_seed, files_to_copy or (), shard_weights, compiling)
        if set_default:
            self.set_default_factory(self)

    def _make_folders(self, **folders: Any) -> ExpManager:
        share, local_rank, global_rank = self._comm.share, self.local_rank, self.global_rank
        return ExpManager(local_rank=local_rank, global_rank=global_rank, broadcast_func=share, **folders)

    def _placed(self, placement: DeviceType | None, device_name: str) -> DeviceType:
        """Where it really runs: on the CPU if there is no GPU; ``AllGpu`` if several ranks run on GPUs."""
        if placement is None:
            logging.info("Running on %s (no placement was asked for)", device_name)
        if str(self.device) == "cpu":
            return DeviceType.CPU
        return DeviceType.AllGpu if self.world_size > 1 else placement or DeviceType.GPU

    def _level(self, wanted: Optimization | str | None) -> Optimization:
        """The precision: what is wanted, or what suits the device."""
        if wanted is None:
            return Optimization.mxprO0 if self.placement is DeviceType.CPU else Optimization.mxprO1
        return Optimization.parse(wanted)

    @classmethod
    def register_backend(cls, backend: Backend, adapter: BackendAdapter[D, C]) -> None:
        """Make a backend known; a backend does it when it is imported."""
        cls._backends[backend] = adapter

    @classmethod
    def get_default_factory(cls) -> Self | None:
        """The factory made last with ``set_default``."""
        factory: Self | None = RunEnvironment._default
        return factory

    @classmethod
    def set_default_factory(cls, factory: Self) -> None:
        """Make this the default factory."""
        RunEnvironment._default = factory

    @classmethod
    def reset_default_factory(cls) -> None:
        """Forget the default factory."""
        RunEnvironment._default = None

    @property
    def tb_writer(self) -> TbWriter | None:
        """The TensorBoard writer, or ``None``."""
        return self._experiment.tb_writer


def _check_seconds(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or WAITING_SECONDS.refuses(value):
        raise OutOfRangeError(name, repr(value), f"a number of seconds {WAITING_SECONDS} (a week)")


def _as_text(folder: Path | None) -> str | None:
    """A folder as scripts of NeMo take it: they append to it."""
    return None if folder is None else str(folder)


def _check_arguments(placement: object, random_seed: object, cudnn_benchmark: bool, cudnn_deterministic: bool) -> None:
    if placement is not None and not isinstance(placement, DeviceType):
        wanted = ", ".join(f"DeviceType.{device.name}" for device in DeviceType)
        raise UsageError("placement must be a DeviceType", got=repr(placement), wanted=wanted)
    if random_seed is not None and not (isinstance(random_seed, int) and random_seed >= 0):
        raise UsageError("random_seed must be a whole number, at least 0", got=repr(random_seed))
    if random_seed is not None and cudnn_benchmark:
        raise UsageError(
            "random_seed and cudnn_benchmark contradict each other",
            remedy="leave one out: timed algorithms differ from run to run",
        )
    if cudnn_deterministic and cudnn_benchmark:
        raise UsageError(
            "cudnn_deterministic and cudnn_benchmark contradict each other",
            remedy="leave one out: timed algorithms differ from run to run",
        )
