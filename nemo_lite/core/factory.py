"""NeuralModuleFactory decides devices, precision, seeds and folders, and hands work to a backend's actions.

The backends register themselves here; this file imports none of them, and no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from nemo_lite.core.action_state import TbWriter
from nemo_lite.core.backend import Actions, BackendAdapter, C, Comm, D, Device, LaunchOptions, Losses
from nemo_lite.core.backend import Backend as Backend
from nemo_lite.core.backend import DeviceType as DeviceType
from nemo_lite.core.backend import Optimization as Optimization
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.core.graph.neural_module import NeuralModule, subclasses
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.core.run_options import InferOptions, LrPolicy, RunOptions, Uneven
from nemo_lite.errors import UnknownNameError, UsageError
from nemo_lite.utils import logging
from nemo_lite.utils.exp_logging import ExpManager
from nemo_lite.utils.nemo_logging import Logger

T = TypeVar("T")


class NeuralModuleFactory:
    """Decides where and how DAGs run, and runs them.

    Any: optimizers, lowered modules and the values of wires are the backend's own.

    Args:
        local_rank: index of this process on its machine, as the launcher gives it. Without it, the launcher's
            environment is read. Several ranks run on GPUs with nccl, or, where there is none, on the CPU with gloo.
        optimization_level: ``Optimization`` or ``"O0"``, ``"O1"``; ``None`` takes O1 on a GPU and O0 on a CPU.
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
        amp_dtype: ``"bfloat16"`` or ``"float16"`` for O1; by default what the device does best.
        launcher: what started the processes: ``auto`` (found out), ``pytorch``, ``slurm``, ``mpi`` or ``none``.
        init_method: ``tcp://host:port`` of rank 0, if the launcher does not give it.
        rank: index of this process among all, with ``init_method`` and without a launcher.
        world_size: number of ranks, with ``init_method`` and without a launcher.
        dist_backend: ``nccl`` or ``gloo``; by default what suits the device.
        dist_timeout: seconds that ranks wait for the slowest of them before the run ends with a report.
        dist_start_timeout: seconds that ranks wait for each other at the start.
        shard_weights: divide weights, gradients and optimizer state among the ranks (FSDP2) instead of keeping them
            whole on each: for models that are too large for one GPU.

    Raises:
        UsageError: a placement or seed of another kind, a seed together with ``cudnn_benchmark``, a precision that the
            device does not have, or a work directory that cannot be written.
        DeviceError: a GPU is asked for where there is none.
    """

    _default: ClassVar[NeuralModuleFactory | None] = None
    # Any: the devices and groups of a backend go back to the adapter that made them.
    _backends: ClassVar[dict[Backend, BackendAdapter[Any, Any]]] = {}

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
        dist_start_timeout: float = 60.0,
        shard_weights: bool = False,
    ) -> None:
        _check_arguments(placement, random_seed, cudnn_benchmark)
        self._adapter = self._backends[backend]
        launch = LaunchOptions(launcher, init_method, rank, world_size, dist_backend, dist_timeout, dist_start_timeout)
        self._comm: Comm
        self._device: Device
        self._comm, self._device, device_name = self._adapter.join(placement, local_rank, launch)
        self._placement = self._placed(placement)
        by_device = Optimization.mxprO0 if self._placement is DeviceType.CPU else Optimization.mxprO1
        self._level = by_device if optimization_level is None else Optimization.parse(optimization_level)
        self._adapter.check_precision(self._device, self._level, amp_dtype)
        if placement is None:
            logging.info("Running on %s (no placement was asked for)", device_name)
        self._adapter.set_benchmark(cudnn_benchmark)
        self._seed = random_seed
        if random_seed is not None:
            self._adapter.seed(random_seed)
        with self._comm.guarded():
            self._experiment = ExpManager(
                work_dir=log_dir,
                local_rank=self.local_rank,
                global_rank=self.global_rank,
                use_tb=create_tb_writer,
                ckpt_dir=checkpoint_dir,
                tb_dir=tensorboard_dir,
                files_to_copy=files_to_copy,
                add_time=add_time_to_log_dir,
                broadcast_func=self._comm.share,
            )
        self._files, self._shard_weights = tuple(files_to_copy or ()), shard_weights
        self._amp_dtype = amp_dtype
        self._actions: Actions | None = None
        if set_default:
            NeuralModuleFactory.set_default_factory(self)

    def _placed(self, placement: DeviceType | None) -> DeviceType:
        """Where it runs: ``AllGpu`` is rehearsed on CPUs without GPUs, and is what several ranks on GPUs do."""
        if str(self._device) == "cpu":
            return DeviceType.CPU
        return DeviceType.AllGpu if self.world_size > 1 else placement or DeviceType.GPU

    @classmethod
    def register_backend(cls, backend: Backend, adapter: BackendAdapter[D, C]) -> None:
        """Make a backend known; a backend does it when it is imported."""
        cls._backends[backend] = adapter

    @classmethod
    def get_default_factory(cls) -> NeuralModuleFactory | None:
        """The factory made last with ``set_default``."""
        return cls._default

    @classmethod
    def set_default_factory(cls, factory: NeuralModuleFactory) -> None:
        """Make this the default factory."""
        cls._default = factory

    @classmethod
    def reset_default_factory(cls) -> None:
        """Forget the default factory."""
        cls._default = None

    @property
    def placement(self) -> DeviceType:
        """Where modules run."""
        return self._placement

    @property
    def device(self) -> Device:
        """The backend's device."""
        return self._device

    @property
    def optim_level(self) -> Optimization:
        """The precision level."""
        return self._level

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._comm.world_size

    @property
    def global_rank(self) -> int | None:
        """Index of this process among all; ``None`` for a single process."""
        return None if self._comm.local_rank is None else self._comm.rank

    @property
    def local_rank(self) -> int | None:
        """Index of this process on its machine; ``None`` for a single process."""
        return self._comm.local_rank

    @property
    def tb_writer(self) -> TbWriter | None:
        """The TensorBoard writer, or ``None``."""
        return self._experiment.tb_writer

    @property
    def work_dir(self) -> Path | None:
        """The work directory, or ``None``."""
        return self._experiment.work_dir

    @property
    def checkpoint_dir(self) -> Path | None:
        """Where checkpoints go, or ``None``."""
        return self._experiment.ckpt_dir

    @property
    def logger(self) -> Logger:
        """The logger (``nemo_lite.logging``)."""
        return logging

    def get_trainer(self, tb_writer: TbWriter | None = None) -> Actions:
        """The actions object; the same one until :meth:`reset_trainer`."""
        if self._actions is None:
            self._actions = self._adapter.make_actions(
                device=self._device,
                comm=self._comm,
                level=self._level,
                amp_dtype=self._amp_dtype,
                seed=self._seed,
                tb_writer=tb_writer or self.tb_writer,
                files=self._files,
                shard_weights=self._shard_weights,
            )
        return self._actions

    def reset_trainer(self) -> None:
        """Forget the actions object: optimizers, step and epoch."""
        self._actions = None

    def get_module(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        collection: str | None = None,
        pretrained: bool = False,
    ) -> NeuralModule:
        """A module by the name of its class, as first-generation scripts make it; the class must have been imported.

        Args:
            name: the class.
            params: its constructor's arguments.
            collection: accepted and not needed: the class is looked up among all that are loaded.
            pretrained: refused: there are no pretrained weights to download.

        Raises:
            UnknownNameError: no loaded class has this name.
            UsageError: ``pretrained``.
        """
        if pretrained:
            raise UsageError(
                "there are no pretrained modules", place=name, remedy="restore weights with restore_from(path)"
            )
        known = {cls.__name__: cls for cls in subclasses(NeuralModule)}
        if name not in known:
            raise UnknownNameError("module", name, known, place=collection or "")
        return known[name](**(params or {}))

    def steps_per_epoch(self, data_layer: Any, batches_per_step: int = 1, uneven: Uneven = "pad") -> int:
        """Optimizer steps that an epoch of training over this data layer takes.

        Raises:
            UsageError: the data layer does not know how many batches it has.
        """
        return self.get_trainer().steps_per_epoch(data_layer, batches_per_step, uneven)

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives, called on rank 0 only; ``None`` on the others. For writing a file, say."""
        with self._comm.guarded():
            return self._comm.on_first(make)

    def create_optimizer(
        self, optimizer: Any, things_to_optimize: Sequence[Any], optimizer_params: Mapping[str, Any]
    ) -> Any:
        """An optimizer over modules, or over the modules behind wires. An instance is given back as it is.

        Raises:
            UnknownNameError: an optimizer of that name is not known.
            UsageError: nothing to optimize, or an option that the optimizer does not have.
        """
        return self.get_trainer().create_optimizer(optimizer, things_to_optimize, optimizer_params)

    def train(
        self,
        tensors_to_optimize: Losses | None = None,
        optimizer: Any = None,
        optimization_params: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
        lr_policy: LrPolicy | None = None,
        batches_per_step: int | None = None,
        stop_on_nan_loss: bool = False,
        synced_batchnorm: bool = False,
        synced_batchnorm_groupsize: int = 0,
        gradient_predivide: bool = False,
        amp_max_loss_scale: float = 2.0**24,
        reset: bool = False,
        max_nonfinite_steps: int = 25,
        uneven: Uneven = "pad",
    ) -> None:
        """Train.

        Args:
            tensors_to_optimize: losses, which are summed; or ``(optimizer, [losses])`` tuples, taken in turn; or
                ``None``: nothing is trained, only ``on_action_end`` of the callbacks runs.
            optimizer: a name, or an instance (not with tuples).
            optimization_params: ``lr`` and the optimizer's options, ``num_epochs`` or ``max_steps``,
                ``grad_norm_clip``, ``amp_min_loss_scale``.
            callbacks: NeMoCallbacks and ActionCallbacks, in any mix.
            lr_policy: learning rate from (initial rate, step, epoch).
            batches_per_step: micro-batches of a rank that make one step (1); the last step of an epoch may have fewer.
            stop_on_nan_loss: stop at the first loss that is not finite; otherwise its step is skipped.
            synced_batchnorm: share batch statistics between ranks; a single process has nothing to share.
            synced_batchnorm_groupsize: how many ranks share; must divide the world size. 0: all.
            gradient_predivide: refused: it was an option of apex' data parallelism.
            amp_max_loss_scale: upper bound of the loss scale (float16).
            reset: forget optimizers, step and epoch of earlier calls.
            max_nonfinite_steps: stop after so many steps in a row whose loss was not finite.
            uneven: what to do with the items of an epoch that do not fill a batch on every rank: ``pad`` (some come
                twice), ``drop`` (leave them out), ``join`` (ranks without data take part with weight zero), ``error``.

        Raises:
            UsageError: both or neither of ``num_epochs`` and ``max_steps``, or arguments that contradict each other.
            DagError: wires that do not form one DAG with one data layer.
            NonFiniteLossError: with ``stop_on_nan_loss``, or ``max_nonfinite_steps`` in a row.
            DistributedError: another rank failed, died or hangs.
        """
        if reset:
            self.reset_trainer()
        trainer = self.get_trainer()
        if tensors_to_optimize is None:
            return trainer.train(callbacks=callbacks)
        with self._comm.guarded():
            options = RunOptions.of(
                optimization_params,
                batches_per_step=batches_per_step,
                stop_on_nan_loss=stop_on_nan_loss,
                synced_batchnorm=synced_batchnorm,
                synced_batchnorm_groupsize=synced_batchnorm_groupsize,
                gradient_predivide=gradient_predivide,
                amp_max_loss_scale=amp_max_loss_scale,
                max_nonfinite_steps=max_nonfinite_steps,
                uneven=uneven,
            )
        trainer.train(tensors_to_optimize, optimizer, optimization_params, callbacks, lr_policy, options=options)

    def eval(self, callbacks: Sequence[Callback]) -> None:
        """Run each EvaluatorCallback once.

        Raises:
            UsageError: no callback, or one that does not evaluate.
        """
        self.get_trainer().eval(callbacks)

    def infer(
        self,
        tensors: Sequence[NmTensor],
        checkpoint_dir: str | Path | None = None,
        ckpt_pattern: str = "",
        verbose: bool = True,
        cache: bool = False,
        use_cache: bool = False,
        offload_to_cpu: bool = True,
        modules_to_restore: Sequence[NeuralModule] | None = None,
    ) -> list[list[Any]] | None:
        """The values of wires over their whole data layer: for each wire a list with one entry a batch, in data order.

        Each rank computes its part; rank 0 gets all values, in host memory, the others ``None``.

        Args:
            tensors: the wires.
            checkpoint_dir: restore the modules' weights from here first.
            ckpt_pattern: take the newest checkpoint whose name contains this.
            verbose: show progress on a terminal.
            cache: keep the values for later calls.
            use_cache: continue from values that were kept, instead of running the DAG from its data layer.
            offload_to_cpu: move each batch's values to host memory as soon as they are there.
            modules_to_restore: restore only these; by default all of the DAG that have weights.

        Raises:
            UsageError: both ``cache`` and ``use_cache``.
            CheckpointError: a module's weights are not in ``checkpoint_dir``, or do not fit.
            DagError: wires that do not form one DAG, or need more than what was kept.
        """
        options = InferOptions(
            checkpoint_dir, ckpt_pattern, verbose, cache, use_cache, offload_to_cpu, modules_to_restore
        )
        return self.get_trainer().infer(tensors, options=options)

    def lower(self, tensors: Sequence[NmTensor]) -> Any:
        """The module that computes these wires from a batch; ``print(factory.lower([loss]).code)`` shows it."""
        return self.get_trainer().lower(tensors)

    def close(self) -> None:
        """Leave the group of ranks; it also happens by itself when the script ends."""
        self._comm.close()

    def clear_cache(self) -> None:
        """Forget what ``infer(cache=True)`` kept."""
        self.get_trainer().clear_cache()

    def sync_all_processes(self, status: bool = True) -> bool:
        """Wait for all ranks; whether ``status`` is true on every one."""
        return self._comm.all_agree(status)


def _check_arguments(placement: object, random_seed: object, cudnn_benchmark: bool) -> None:
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
