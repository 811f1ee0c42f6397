"""NeuralModuleFactory: ranks, device, precision, seed and folders of a run; training, evaluation and inference in it.

What runs is in `PtActions`; no loop in this file.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Never, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.distributed.comm import Comm, SingleProcess
from nemo_lite.backends.pytorch.distributed.group import Patience, ProcessGroup
from nemo_lite.backends.pytorch.engine.evaluation import InferenceRun
from nemo_lite.backends.pytorch.engine.step_memory import StepMemory
from nemo_lite.backends.pytorch.export import Example
from nemo_lite.backends.pytorch.nm import DataLayerNM, TorchModule
from nemo_lite.backends.pytorch.placement import choose_device, describe
from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.base.aliases import value_of_ours
from nemo_lite.base.errors import UnknownArgumentError, UnknownNameError, UsageError, did_you_mean
from nemo_lite.base.launch import forget_launcher, launch_line, who_am_i
from nemo_lite.base.nemo_logging import Logger
from nemo_lite.base.ranges import WaitingSeconds, numbers_checked
from nemo_lite.core.callbacks.action_state import LossGradients, TbWriter
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.core.neural_module import NeuralModule, classes_by_name
from nemo_lite.core.neural_types import NmTensor, Value
from nemo_lite.core.run_options import Backend as Backend
from nemo_lite.core.run_options import Compile, CompileOptions, GradientCompression, Losses, LrPolicy, Uneven
from nemo_lite.core.run_options import DeploymentFormat as DeploymentFormat
from nemo_lite.core.run_options import DeviceType as DeviceType
from nemo_lite.core.run_options import Optimization as Optimization
from nemo_lite.core.show import PrecisionReport
from nemo_lite.utils import logging
from nemo_lite.utils.exp_logging import ExpManager

T = TypeVar("T")
_TRAINER_PARAMS = ("optimizer_kind", "optimization_params")


@runtime_checkable
class TrainingGraph(Protocol):
    """What ``train`` takes in place of losses: a ``NeuralGraph``."""

    def losses_to_train(self) -> list[NmTensor]:
        """The losses that it gives."""


class NeuralModuleFactory:
    """Runs DAGs, on devices, with ranks and in a precision that are decided when it is made.

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
        backend: PyTorch; there is no other.
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
        others: none: what other engines call otherwise is refused with its name here.

    Attributes:
        placement: where modules run.
        device: where modules run, as torch names it.
        optim_level: the precision level.
        world_size: number of ranks.
        global_rank: index of this process among all; ``None`` for a single process.
        local_rank: index of this process on its machine; ``None`` for a single process.
        work_dir: the work directory, or ``None``.
        checkpoint_dir: where checkpoints go, or ``None``.
        tensorboard_dir: where TensorBoard's events go, or ``None``.
        logger: ``nemo_lite.logging``.

    Raises:
        UnknownArgumentError: an argument that there is not.
        UsageError: a placement or seed of another kind, a timeout that is no number of seconds, ``cudnn_benchmark``
            together with a seed or ``cudnn_deterministic``, a precision that the device does not have, or a work
            directory that cannot be written.
        DeviceError: a GPU is asked for where there is none.
    """

    logger: ClassVar[Logger] = logging

    @numbers_checked
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
        dist_timeout: WaitingSeconds = 600.0,
        dist_start_timeout: WaitingSeconds = 300.0,
        dist_silence_timeout: WaitingSeconds | None = None,
        shard_weights: bool = False,
        cudnn_deterministic: bool = False,
        amp_backend: str = "auto",
        compile: Compile = False,  # noqa: A002  # torch's name
        master_process: bool | None = None,
        **others: Never,
    ) -> None:
        _refuse_others(others)
        _check_arguments(placement, random_seed, cudnn_benchmark, cudnn_deterministic)
        compile_options = CompileOptions.of(compile)
        process = who_am_i(local_rank, launcher=launcher, init_method=init_method, rank=rank, world_size=world_size)
        self._comm: Comm
        if process is None:
            self._comm, self.device = SingleProcess(), _device_of_one_process(placement, launcher)
        else:
            patience = Patience(dist_start_timeout, dist_timeout, dist_silence_timeout)
            group = ProcessGroup(process, lambda: choose_device(placement, process.local_rank), dist_backend, patience)
            self._comm, self.device = group, group.device
        if placement is None:
            logging.info("Running on %s (no placement was asked for)", describe(self.device))
        self.world_size: Final = self._comm.world_size
        self.local_rank: Final = self._comm.local_rank
        self.global_rank: Final = None if self.local_rank is None else self._comm.rank
        # On the CPU where there is no GPU; AllGpu where several ranks run on GPUs.
        gpus = DeviceType.AllGpu if self.world_size > 1 else placement or DeviceType.GPU
        self.placement: Final = DeviceType.CPU if self.device.type == "cpu" else gpus
        if optimization_level is None:
            optimization_level = Optimization.mxprO0 if self.placement is DeviceType.CPU else Optimization.mxprO1
        self.optim_level: Final = Optimization.parse(optimization_level)
        # Raises where it cannot be had.
        choose_precision(self.optim_level, self.device, amp_dtype, amp_backend=amp_backend)
        set_cudnn(cudnn_benchmark, cudnn_deterministic)
        if random_seed is not None:
            seed_generators(random_seed)
        with self._comm.guarded():
            self._experiment = ExpManager(
                work_dir=log_dir,
                ckpt_dir=checkpoint_dir,
                use_tb=create_tb_writer,
                tb_dir=tensorboard_dir,
                local_rank=self.local_rank,
                global_rank=self.global_rank,
                files_to_copy=files_to_copy,
                add_time=add_time_to_log_dir,
                broadcast_func=self._comm.share,
            )
        self.work_dir: Final = _as_text(self._experiment.work_dir)
        self.checkpoint_dir: Final = _as_text(self._experiment.ckpt_dir)
        self.tensorboard_dir: Final = _as_text(self._experiment.tb_dir)
        self._exp_manager: Final = self._experiment  # the name by which scripts of NeMo read log_file and folders
        self._actions: PtActions | None = None
        self._make_actions = partial(
            PtActions,
            optimization_level=self.optim_level,
            device=self.device,
            comm=self._comm,
            amp_dtype=amp_dtype,
            amp_backend=amp_backend,
            seed=random_seed,
            files=files_to_copy or (),
            shard_weights=shard_weights,
            compile=compile_options,
        )
        if set_default:
            self.set_default_factory(self)

    @staticmethod
    def get_default_factory() -> NeuralModuleFactory | None:
        """The factory made last with ``set_default``."""
        factory = TorchModule.default_factory
        return factory if isinstance(factory, NeuralModuleFactory) else None

    @staticmethod
    def set_default_factory(factory: NeuralModuleFactory) -> None:
        """Make this the default factory."""
        TorchModule.default_factory = factory

    @staticmethod
    def reset_default_factory() -> None:
        """Forget the default factory."""
        TorchModule.default_factory = None

    @property
    def tb_writer(self) -> TbWriter | None:
        """The TensorBoard writer, or ``None``."""
        return self._experiment.tb_writer

    def get_trainer(self, tb_writer: TbWriter | None = None, params: Mapping[str, object] | None = None) -> PtActions:
        """The actions object; the same one until :meth:`reset_trainer`.

        Args:
            tb_writer: where callbacks write curves; by default the factory's.
            params: of the first NeMo: ``optimizer_kind`` and ``optimization_params`` of its ``train``.

        Raises:
            UnknownNameError: another key in ``params``.
        """
        if self._actions is None:
            self._actions = self._make_actions(tb_writer=tb_writer or self.tb_writer)
        if params is not None:
            for key in params:
                if key not in _TRAINER_PARAMS:
                    raise UnknownNameError("key", key, _TRAINER_PARAMS, place="get_trainer")
            self._actions.first_generation = params
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
        """A module by the name of its class, as first-generation scripts make it; others' must have been imported.

        Args:
            name: the class.
            params: its constructor's arguments.
            collection: the package of the class: ours, or one that was imported; the class need not have been used.
            pretrained: refused: weights of a published model come by ``ASRConvCTCModel.from_pretrained``.

        Raises:
            UnknownNameError: no loaded class has this name.
            UsageError: ``pretrained``.
        """
        if pretrained:
            raise UsageError(
                "there are no pretrained modules", place=name, remedy="restore weights with restore_from(path)"
            )
        getattr(sys.modules.get(collection or ""), name, None)  # a collection imports a class when it is asked for it
        value_of_ours(f"{collection}.{name}")
        classes = classes_by_name(NeuralModule)
        if name not in classes:
            raise UnknownNameError("module", name, classes, place=collection or "")
        return classes[name](**(params or {}))

    def steps_per_epoch(self, data_layer: DataLayerNM, batches_per_step: int = 1, uneven: Uneven = "pad") -> int | None:
        """Optimizer steps that an epoch of training over this data layer takes.

        None where the data layer does not know how many batches it has, as with a ``data_iterator`` without a length.
        """
        return self.get_trainer().steps_per_epoch(data_layer, batches_per_step, uneven)

    def on_first(self, make: Callable[[], T]) -> T | None:
        """The value that ``make`` gives, called on rank 0 only; ``None`` on the others. For writing a file, say."""
        with self._comm.guarded():
            return self._comm.on_first(make)

    def from_first(self, make: Callable[[], T]) -> T:
        """Rank 0's result of ``make``, on all ranks: a tree of tensors, numbers and texts. For reading files, say.

        ``make`` is called on rank 0 only; an error in it ends all ranks.
        """
        with self._comm.guarded():
            return self._comm.from_first(make)

    def share_work(self, num_items: int, work: Callable[[range], T]) -> list[T]:
        """Each rank does a part of a work on many items; what all gave, in the order of the items, on all ranks.

        Args:
            num_items: how many there are.
            work: called once on each rank, with the range of its items; gives a tree of tensors, numbers and texts. An
                error in it ends all ranks.
        """
        with self._comm.guarded():
            return self._comm.share_work(num_items, work)

    def create_optimizer(
        self,
        optimizer: str | Optimizer,
        things_to_optimize: Sequence[NeuralModule | NmTensor],
        optimizer_params: Mapping[str, object],
    ) -> Optimizer:
        """An optimizer over modules, or over the modules behind wires. An instance is given back as it is.

        Raises:
            UnknownNameError: an optimizer of that name is not known.
            UsageError: nothing to optimize, or an option that the optimizer does not have.
        """
        return self.get_trainer().create_optimizer(optimizer, things_to_optimize, optimizer_params)

    def train(
        self,
        tensors_to_optimize: Losses | None = None,
        training_graph: TrainingGraph | None = None,
        optimizer: str | Optimizer | None = None,
        optimization_params: Mapping[str, object] | None = None,
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
        compile: Compile = None,  # noqa: A002  # torch's name
        static_graph: bool = False,
        gradient_compression: GradientCompression | None = None,
    ) -> None:
        """Train; without losses only ``on_action_end`` of the callbacks runs. ``PtActions.train`` does the work.

        Args:
            tensors_to_optimize: losses, which are summed; or ``(optimizer, [losses])`` tuples, taken in turn; or
                objectives with their own data, optimizers and turns: :class:`~nemo_lite.core.run_options.Objective`.
            training_graph: a graph whose outputs are the losses, instead of ``tensors_to_optimize``. Arguments by
                position in the order of NeMo 0.9, which has the optimizer here, are accepted.
            optimizer: a name, or an instance (not with tuples); of objectives, for those without one.
            optimization_params: ``num_epochs``, ``max_steps`` (with both, what comes first), ``lr``, ``module_lr`` (by
                module name), ``decay_weights_only`` (biases and norms do not decay), other options of the optimizer,
                ``grad_norm_clip`` (the largest norm of the gradients), ``amp_min_loss_scale``, ``ema_decay`` (of a
                moving average of the weights: ``ActionState.averaging``).
            callbacks: NeMoCallbacks and ActionCallbacks, in the order in which they are called.
            lr_policy: called with (initial rate, step, epoch); returns the learning rate.
            batches_per_step: micro-batches of a rank that make one step (1); the last step of an epoch may have fewer.
            stop_on_nan_loss: stop at the first step whose loss or gradient is not finite; otherwise it is skipped.
            synced_batchnorm, synced_batchnorm_groupsize: share batch statistics, among so many ranks (0: all).
            amp_max_loss_scale: upper bound of the loss scale (float16).
            reset: forget optimizers, step and epoch of earlier calls.
            uneven: what becomes of the items of an epoch that do not fill a batch on every rank; see :data:`Uneven`.
            compile: for this training and its evaluations, instead of the factory's.
            static_graph: of torch's DistributedDataParallel: every step takes the same path through the modules.
            gradient_compression: ``bfloat16`` halves what ranks exchange of float32 gradients, and rounds them.

        Raises:
            UsageError: neither ``num_epochs`` nor ``max_steps``, ``gradient_predivide``, or a contradiction.
            DagError: wires that do not form one DAG with one data layer.
            NonFiniteLossError: with ``stop_on_nan_loss``, or ``max_nonfinite_steps`` in a row.
            DistributedError: another rank failed, died or hangs.
        """
        if reset:
            self.reset_trainer()
        tensors_to_optimize, optimizer, optimization_params, callbacks, lr_policy = _in_order_of_today(
            tensors_to_optimize, training_graph, optimizer, optimization_params, callbacks, lr_policy
        )
        self.get_trainer().train(
            tensors_to_optimize,
            optimizer,
            optimization_params,
            callbacks,
            lr_policy,
            batches_per_step=batches_per_step,
            stop_on_nan_loss=stop_on_nan_loss,
            synced_batchnorm=synced_batchnorm,
            synced_batchnorm_groupsize=synced_batchnorm_groupsize,
            gradient_predivide=gradient_predivide,
            amp_max_loss_scale=amp_max_loss_scale,
            max_nonfinite_steps=max_nonfinite_steps,
            uneven=uneven,
            compile=compile,
            static_graph=static_graph,
            gradient_compression=gradient_compression,
        )

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
        compile: Compile = None,  # noqa: A002
    ) -> list[list[Value]] | None:
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
            compile: for this call, instead of the factory's.

        Raises:
            UsageError: both ``cache`` and ``use_cache``, ``cache`` while values are kept, or ``use_cache`` without any.
            CheckpointError: a module's weights are not in ``checkpoint_dir``, or do not fit.
            DagError: wires that do not form one DAG, or need more than what was kept.
        """
        return self.get_trainer().infer(
            tensors,
            checkpoint_dir=checkpoint_dir,
            ckpt_pattern=ckpt_pattern,
            verbose=verbose,
            cache=cache,
            use_cache=use_cache,
            offload_to_cpu=offload_to_cpu,
            modules_to_restore=modules_to_restore,
            compile=compile,
        )

    def infer_batches(
        self,
        tensors: Sequence[NmTensor],
        checkpoint_dir: str | Path | None = None,
        ckpt_pattern: str = "",
        verbose: bool = True,
        offload_to_cpu: bool = True,
        modules_to_restore: Sequence[NeuralModule] | None = None,
        compile: Compile = None,  # noqa: A002
    ) -> InferenceRun:
        """The same as :meth:`infer`, batch by batch: a list with one value for each wire, in data order.

        Memory holds one batch of each rank. All ranks iterate to the end; the values come out on rank 0, nothing on the
        others. It runs while it is iterated, so nothing runs before the first batch is asked for. The iterator says
        which items it has computed: ``items``, ``num_items`` and ``digest``.
        """
        return self.get_trainer().infer_batches(
            tensors,
            checkpoint_dir=checkpoint_dir,
            ckpt_pattern=ckpt_pattern,
            verbose=verbose,
            offload_to_cpu=offload_to_cpu,
            modules_to_restore=modules_to_restore,
            compile=compile,
        )

    def runner(self, tensors: Sequence[NmTensor]) -> Callable[[Sequence[Value]], list[Value]]:
        """A function that computes wires as :meth:`infer` does, from batches that it is given; for servers.

        The DAG is lowered and its modules are put on the device here, once. Each call takes one value for each output
        port of the data layer, in port order, and gives one for each wire, in host memory. It runs on this rank alone,
        one call at a time.

        Raises:
            DagError: wires that do not form one DAG with one data layer.
        """
        return self.get_trainer().runner(tensors)

    def precision_check(
        self, tensors: Sequence[NmTensor], num_batches: int = 1, checkpoint_dir: str | Path | None = None
    ) -> PrecisionReport | None:
        """How far each node of a DAG is from float32 in the factory's precision, on the first batches. Nothing trains.

        The modules run in evaluation mode, with the weights that they have, and are left as they were.

        Args:
            tensors: the wires whose DAG runs.
            num_batches: how many batches.
            checkpoint_dir: restore the modules' weights from here first.

        Returns:
            the report, which ``nemo_lite.core.show.show_precision`` prints; ``None`` on ranks above 0.

        Raises:
            UsageError: the factory's precision is float32, the weights are sharded, or there is no batch.
            CheckpointError: a module's weights are not in ``checkpoint_dir``, or do not fit.
        """
        return self.get_trainer().precision_check(tensors, num_batches, checkpoint_dir)

    def loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        """How much gradient each of several losses gives to what they share, on the first batch. Nothing trains.

        Args:
            losses: parts of one loss; the modules are put into training mode, and are left as they were beside that.

        Returns:
            the norms, which ``nemo_lite.core.callbacks.loss_balance.tell_of_gradients`` tells; ``None`` on ranks above
            0, and where the losses share nothing with weights.

        Raises:
            UsageError: there is no batch.
        """
        return self.get_trainer().loss_gradients(losses)

    def step_memory(
        self,
        losses: Sequence[NmTensor],
        batch: Sequence[Any],
        optimizer: str,
        params: Mapping[str, object],
        batches_per_step: int = 1,
    ) -> StepMemory:
        """Bytes that the tensors of a training step take, counted by shapes: nothing is computed. This process alone.

        Kernels are chosen as on a CPU. What they take inside is not counted, nor what an allocator keeps.

        Args:
            losses: what is minimised; modules may be on the meta device.
            batch: values of the data layer's ports; of floating ones only the shapes are used.
            optimizer: its name.
            params: its options, as ``optimization_params`` of :meth:`train`.
            batches_per_step: as of :meth:`train`.

        Raises:
            RuntimeError: an operation on the way to the losses needs values.
        """
        return self.get_trainer().step_memory(losses, batch, optimizer, params, batches_per_step)

    def evaluation_memory(self, wires: Sequence[NmTensor], batch: Sequence[Any]) -> int:
        """Bytes that the tensors of an evaluation of a batch take beside weights, counted as by :meth:`step_memory`.

        Raises:
            RuntimeError: an operation on the way to the wires needs values, as a search for texts does.
        """
        return self.get_trainer().evaluation_memory(wires, batch)

    def tried_bytes(
        self,
        losses: Sequence[NmTensor],
        batch: Sequence[Any],
        optimizer: str,
        params: Mapping[str, object],
        batches_per_step: int = 1,
    ) -> int | None:
        """What a training step on a batch takes on the device, by trying; None: memory lacks. This process alone.

        Args:
            losses, batch, optimizer, params, batches_per_step: as of :meth:`step_memory`; modules have weights.

        Returns:
            bytes that torch's allocator held at most; 0 on a CPU, where nobody knows them.
        """
        return self.get_trainer().tried_bytes(losses, batch, optimizer, params, batches_per_step)

    def lower(self, tensors: Sequence[NmTensor]) -> torch.fx.GraphModule:
        """A new ``torch.fx`` module that computes these wires; ``print(factory.lower([loss]).code)`` shows it.

        It calls the same module objects, in their present mode and on their present device: nothing is moved, restored
        from a checkpoint or set to evaluation mode. Its positional inputs are all wires of the data layer in port
        order, unused ones too; it returns a tuple with one value for each of ``tensors``.

        Raises:
            DagError: wires that do not form one DAG with one data layer.
        """
        return self.get_trainer().lower(tensors)

    def deployment_export(
        self,
        module: NeuralModule,
        output: str | Path,
        d_format: DeploymentFormat,
        input_example: Example = None,
        output_example: object = None,
    ) -> None:
        """Write a module as files for other programs, in evaluation mode; the module itself is left as it was.

        An ONNX file holds the weights, takes batches of any size and length, and is compared with torch in ONNX Runtime
        on several of them; a file that differs is not written. Ports that the module disables are left out: the
        encoder takes no lengths, and every frame counts.

        Args:
            module: the module.
            output: the file; a new one, but for JARVIS.
            d_format: PYTORCH: the state dict, and ``output.json`` with the constructor's arguments. TORCHSCRIPT: traced
                on the example, or compiled where there is none. ONNX and TRTONNX: one file. JARVIS: what the module's
                ``deploy_to_jarvis(output=)`` writes.
            input_example: a tensor, or a tuple in port order; without it the module's own, where it has one.
            output_example: not needed.

        Raises:
            FileInTheWayError: the file exists; it is a FileExistsError too.
            UsageError: a format that cannot be written, no example for ONNX, a missing package, a module that torch
                cannot express in the format, or a file that differs from torch.
        """
        self.get_trainer().deployment_export(module, output, d_format, input_example, output_example)

    def close(self) -> None:
        """Leave the group of ranks; it also happens by itself when the script ends."""
        self._comm.close()

    def clear_cache(self) -> None:
        """Forget what ``infer(cache=True)`` kept."""
        self.get_trainer().clear_cache()

    def sync_all_processes(self, status: bool = True) -> bool:
        """Wait for all ranks; whether ``status`` is true on every one."""
        return self._comm.all_agree(status)


def _device_of_one_process(placement: DeviceType | None, launcher: str) -> torch.device:
    """The device of a process that no launcher started."""
    if launcher == "none" and (ignored := forget_launcher()):
        logging.warning(ignored)
    device = choose_device(placement)
    if placement is DeviceType.AllGpu and torch.cuda.device_count() > 1:
        line = launch_line(torch.cuda.device_count(), sys.argv)
        logging.warning("AllGpu: no launcher started this script, so it runs on one GPU; for all: %s", line)
    return device


def seed_generators(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_cudnn(benchmark: bool, deterministic: bool) -> None:
    """Let cuDNN time its algorithms, or take only those that repeat their results to the last bit."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic


def _as_text(folder: Path | None) -> str | None:
    """A folder as scripts of NeMo take it: they append to it."""
    return None if folder is None else str(folder)


# Arguments of MMEngine's Runner -> what says the same here.
_IN_PLACE_OF = {
    "optim_wrapper": "optimization_level=Optimization.mxprO1 (AmpOptimWrapper), and optimizer, optimization_params and "
    "batches_per_step of train",
    "cfg": "compile=True or compile={...}, and arguments of their own for all else",
    "work_dir": "log_dir",
    "resume": "nothing, the same script goes on with its run; or load_from_folder of CheckpointCallback",
}


def _refuse_others(others: Mapping[str, object]) -> None:
    for name in others:
        known = inspect.signature(NeuralModuleFactory).parameters
        remedy = f"in place of it: {_IN_PLACE_OF[name]}" if name in _IN_PLACE_OF else ""
        near = "" if remedy else did_you_mean(name, known)
        raise UnknownArgumentError(f"{name} is not an argument{near}", place="NeuralModuleFactory", remedy=remedy)


def _check_arguments(placement: object, random_seed: object, cudnn_benchmark: bool, cudnn_deterministic: bool) -> None:
    if placement is not None and not isinstance(placement, DeviceType):
        choices = ", ".join(f"DeviceType.{device.name}" for device in DeviceType)
        raise UsageError("placement must be a DeviceType", got=repr(placement), wanted=choices)
    if random_seed is not None and not (isinstance(random_seed, int) and 0 <= random_seed < 2**64):
        problem = "random_seed must be a whole number, at least 0"
        raise UsageError(problem, got=repr(random_seed)[:60], wanted="a number from 0, below 2**64")
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


def _in_order_of_today(
    losses: Losses | None, graph: object, optimizer: object, params: object, callbacks: object, policy: object
) -> tuple[Losses | None, Any, Any, Any, Any]:
    """Losses, optimizer, its parameters, callbacks and policy, also from a call by position in the order of NeMo 0.9.

    That order has no graph: each argument by position is one place too far back, each by keyword where it belongs.
    """
    if graph is None:
        return losses, optimizer, params, callbacks, policy
    if isinstance(graph, TrainingGraph):
        if losses is not None:
            got = "both tensors_to_optimize and training_graph"
            raise UsageError("train takes losses or a graph", got=got, remedy="give one of them")
        return graph.losses_to_train(), optimizer, params, callbacks, policy
    if not isinstance(optimizer, Mapping):
        return losses, graph, params, callbacks, policy
    if not isinstance(params, Sequence):
        return losses, graph, optimizer, callbacks, policy
    return losses, graph, optimizer, params, callbacks if callable(callbacks) else policy
