"""NeuralModuleFactory: trains, evaluates and infers through a backend's actions. No torch, no loop here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nemo_lite.core.action_state import TbWriter
from nemo_lite.core.backend import Actions, Losses
from nemo_lite.core.backend import Backend as Backend
from nemo_lite.core.backend import DeploymentFormat as DeploymentFormat
from nemo_lite.core.backend import DeviceType as DeviceType
from nemo_lite.core.backend import Optimization as Optimization
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.core.compile_options import Compile, CompileOptions
from nemo_lite.core.environment import RunEnvironment
from nemo_lite.core.graph.neural_module import NeuralModule, classes_by_name
from nemo_lite.core.neural_graph import NeuralGraph
from nemo_lite.core.neural_types.nm_tensor import NmTensor
from nemo_lite.core.run_options import GradientCompression, InferOptions, LrPolicy, RunOptions, Uneven
from nemo_lite.core.show import PrecisionReport
from nemo_lite.errors import UnknownNameError, UsageError

T = TypeVar("T")
_TRAINER_PARAMS = ("optimizer_kind", "optimization_params")


class NeuralModuleFactory(RunEnvironment):
    """Runs DAGs. Where and how they run is decided when it is made: see :class:`RunEnvironment` for its arguments.

    Any: optimizers, lowered modules and the values of wires are the backend's own.
    """

    _actions: Actions | None = None

    def get_trainer(self, tb_writer: TbWriter | None = None, params: Mapping[str, Any] | None = None) -> Actions:
        """The actions object; the same one until :meth:`reset_trainer`.

        Args:
            tb_writer: where callbacks write curves; by default the factory's.
            params: of the first NeMo: ``optimizer_kind`` and ``optimization_params`` of its ``train``.

        Raises:
            UnknownNameError: another key in ``params``.
        """
        if self._actions is None:
            writer = tb_writer or self.tb_writer
            self._actions = self._adapter.make_actions(self.device, self._comm, writer, self._settings)
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
        """A module by the name of its class, as first-generation scripts make it; the class must have been imported.

        Args:
            name: the class.
            params: its constructor's arguments.
            collection: accepted and not needed: the class is looked up among all that are loaded.
            pretrained: refused: weights of a published model come by ``ASRConvCTCModel.from_pretrained``.

        Raises:
            UnknownNameError: no loaded class has this name.
            UsageError: ``pretrained``.
        """
        if pretrained:
            raise UsageError(
                "there are no pretrained modules", place=name, remedy="restore weights with restore_from(path)"
            )
        known = classes_by_name(NeuralModule)
        if name not in known:
            raise UnknownNameError("module", name, known, place=collection or "")
        return known[name](**(params or {}))

    def steps_per_epoch(self, data_layer: Any, batches_per_step: int = 1, uneven: Uneven = "pad") -> int | None:
        """Optimizer steps that an epoch of training over this data layer takes.

        None where the data layer does not know how many batches it has, as with a ``data_iterator`` without a length.
        """
        return self.get_trainer().steps_per_epoch(data_layer, batches_per_step, uneven)

    def on_first(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives, called on rank 0 only; ``None`` on the others. For writing a file, say."""
        with self._comm.guarded():
            return self._comm.on_first(make)

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives on rank 0, on all ranks: a tree of tensors, numbers and texts. For reading files, say.

        ``make`` is called on rank 0 only; an error in it ends all ranks.
        """
        with self._comm.guarded():
            return self._comm.from_first(make)

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
        training_graph: NeuralGraph | None = None,
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
        compile: Compile = None,  # noqa: A002  # torch's name
        static_graph: bool = False,
        gradient_compression: GradientCompression | None = None,
    ) -> None:
        """Train; without losses only ``on_action_end`` of the callbacks runs. ``PtActions.train`` does the work.

        Args:
            tensors_to_optimize: losses, which are summed; or ``(optimizer, [losses])`` tuples, taken in turn.
            training_graph: a graph whose outputs are the losses, instead of ``tensors_to_optimize``. Arguments by
                position in the order of NeMo 0.9, which has the optimizer here, are accepted.
            optimizer: a name, or an instance (not with tuples).
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
        given = (tensors_to_optimize, training_graph, optimizer, optimization_params, callbacks, lr_policy)
        tensors_to_optimize, optimizer, optimization_params, callbacks, lr_policy = _asked_to_train(*given)
        trainer = self.get_trainer()
        if tensors_to_optimize is None:
            return trainer.train(callbacks=callbacks)
        with self._comm.guarded():
            flat: dict[str, Any] = {"batches_per_step": batches_per_step, "stop_on_nan_loss": stop_on_nan_loss}
            flat |= {"synced_batchnorm": synced_batchnorm, "synced_batchnorm_groupsize": synced_batchnorm_groupsize}
            flat |= {"gradient_predivide": gradient_predivide, "amp_max_loss_scale": amp_max_loss_scale}
            flat |= {"max_nonfinite_steps": max_nonfinite_steps, "uneven": uneven, "compile": compile}
            flat |= {"static_graph": static_graph, "gradient_compression": gradient_compression}
            options = RunOptions.of(optimization_params, **flat)
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
        compile: Compile = None,  # noqa: A002
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
            compile: for this call, instead of the factory's.

        Raises:
            UsageError: both ``cache`` and ``use_cache``, ``cache`` while values are kept, or ``use_cache`` without any.
            CheckpointError: a module's weights are not in ``checkpoint_dir``, or do not fit.
            DagError: wires that do not form one DAG, or need more than what was kept.
        """
        how = CompileOptions.of(compile)
        options = InferOptions(
            checkpoint_dir, ckpt_pattern, verbose, cache, use_cache, offload_to_cpu, modules_to_restore, how
        )
        return self.get_trainer().infer(tensors, options=options)

    def infer_batches(
        self,
        tensors: Sequence[NmTensor],
        checkpoint_dir: str | Path | None = None,
        ckpt_pattern: str = "",
        verbose: bool = True,
        offload_to_cpu: bool = True,
        modules_to_restore: Sequence[NeuralModule] | None = None,
        compile: Compile = None,  # noqa: A002
    ) -> Iterator[list[Any]]:
        """The same as :meth:`infer`, batch by batch: a list with one value for each wire, in data order.

        Memory holds one batch of each rank. All ranks iterate to the end; the values come out on rank 0, nothing on the
        others. It runs while it is iterated, so nothing runs before the first batch is asked for.
        """
        options = InferOptions(
            checkpoint_dir,
            ckpt_pattern,
            verbose,
            offload_to_cpu=offload_to_cpu,
            modules_to_restore=modules_to_restore,
            compile=CompileOptions.of(compile),
        )
        return self.get_trainer().infer_batches(tensors, options=options)

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

    def lower(self, tensors: Sequence[NmTensor]) -> Any:
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
        input_example: Any = None,
        output_example: Any = None,
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


def _asked_to_train(
    losses: Losses | None, graph: Any, optimizer: Any, params: Any, callbacks: Any, policy: Any
) -> tuple[Losses | None, Any, Any, Any, Any]:
    """Losses, optimizer, its parameters, callbacks and policy, also from a call by position in the order of NeMo 0.9.

    That order has no graph: each argument by position is one place too far back, each by keyword where it belongs.
    """
    if graph is None:
        return losses, optimizer, params, callbacks, policy
    if isinstance(graph, NeuralGraph):
        if losses is not None:
            got = "both tensors_to_optimize and training_graph"
            raise UsageError("train takes losses or a graph", got=got, remedy="give one of them")
        return graph.losses_to_train(), optimizer, params, callbacks, policy
    if not isinstance(optimizer, Mapping):
        return losses, graph, params, callbacks, policy
    if not isinstance(params, Sequence):
        return losses, graph, optimizer, callbacks, policy
    return losses, graph, optimizer, params, callbacks if callable(callbacks) else policy
