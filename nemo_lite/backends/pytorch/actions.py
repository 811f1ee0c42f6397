"""PtActions: composes DAG, lowering, data, precision and loop into train, eval and infer. The work is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.data import BatchLoader, Shard, Uneven, length_of
from nemo_lite.backends.pytorch.data.seeds import seed_all, seed_of
from nemo_lite.backends.pytorch.distributed import Comm, SingleProcess, effective_batch, fingerprint_of
from nemo_lite.backends.pytorch.engine import arguments
from nemo_lite.backends.pytorch.engine.evaluation import (
    Evaluation,
    InferenceCache,
    ItemsComputed,
    in_data_order,
    torch_data_layer,
)
from nemo_lite.backends.pytorch.engine.module_state import make_statistics_equal, modules_of, set_training
from nemo_lite.backends.pytorch.engine.objectives import Objectives
from nemo_lite.backends.pytorch.engine.run_state import RunState, named_weighted_modules, read_on_first
from nemo_lite.backends.pytorch.engine.step_values import StepValues
from nemo_lite.backends.pytorch.engine.stopping import interruption_text
from nemo_lite.backends.pytorch.engine.training import Training
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import choose_device, to_cpu
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.action_state import TbWriter
from nemo_lite.core.backend import Losses, Optimization
from nemo_lite.core.callbacks.base import Callback, CallbackList
from nemo_lite.core.callbacks.progress import ProgressBar
from nemo_lite.core.graph.dag import Dag
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.core.run_options import InferOptions, LrPolicy, RunOptions
from nemo_lite.errors import CheckpointError, UsageError
from nemo_lite.interruption import Interrupted, StopSignals, flags_of, signal_in, stop_signals
from nemo_lite.utils import logging

# Any: values of wires are tensors, lists or numbers; options of optimizers are torch's.


class PtActions:
    """Trains, evaluates and infers on PyTorch.

    Args:
        local_rank: index of this process on its machine, or ``None``.
        global_rank: index of this process among all; ``comm`` knows it, so it is only checked.
        tb_writer: TensorBoard writer that callbacks without their own use.
        optimization_level: O0 or O1.
        device: where to run; by default the GPU if there is one.
        comm: the ranks; by default this process alone.
        amp_dtype: dtype of O1.
        seed: base of every random draw; None leaves torch's generators as they are, and the data in order 0.
        files: files that must be the same on all ranks, such as the configuration.
        shard_weights: divide weights, gradients and optimizer state among the ranks.

    Attributes:
        inferred: which items the last :meth:`infer` computed; without any on ranks above 0.
    """

    def __init__(
        self,
        local_rank: int | None = None,
        global_rank: int | None = None,
        tb_writer: TbWriter | None = None,
        optimization_level: Optimization | str = Optimization.mxprO0,
        *,
        device: torch.device | None = None,
        comm: Comm | None = None,
        amp_dtype: str | None = None,
        seed: int | None = None,
        files: Sequence[str | Path] = (),
        shard_weights: bool = False,
    ) -> None:
        self._comm: Comm = comm or SingleProcess()
        if global_rank not in (None, self._comm.rank):
            raise UsageError(
                "global_rank differs from the process group", got=str(global_rank), wanted=str(self._comm.rank)
            )
        self._device = device or choose_device(None, local_rank)
        self._level, self._amp_dtype = Optimization.parse(optimization_level), amp_dtype
        self._tb_writer, self._seed, self._files, self._shard_weights = tb_writer, seed, files, shard_weights
        self._state = RunState(self._comm, self._device, self._precision())
        self._objectives = Objectives(self._comm, self._device, shard_weights)
        self._cache = InferenceCache()
        self.inferred: ItemsComputed | None = None

    @property
    def step(self) -> int:
        """Index of the step made last."""
        return self._state.step

    @property
    def epoch(self) -> int:
        """Index of the epoch."""
        return self._state.epoch

    epoch_num = epoch

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the run."""
        return self._state.optimizers

    def save_state_to(self, path: str | Path) -> None:
        """Write step, epoch and optimizers to one file."""
        self._state.save_state_to(path)

    def restore_state_from(self, path: str | Path) -> None:
        """Read what :meth:`save_state_to` wrote."""
        self._state.restore_state_from(path)

    def lower(self, tensors: Sequence[NmTensor]) -> fx.GraphModule:
        """The module that computes these wires from a batch of their data layer."""
        return lower(Dag(tensors).slice())

    def steps_per_epoch(self, data_layer: DataLayerNM, batches_per_step: int = 1, uneven: Uneven = "pad") -> int:
        """See :meth:`NeuralModuleFactory.steps_per_epoch`."""
        count = length_of(self._loader(data_layer, uneven))
        if count is None:
            raise UsageError(f"{data_layer.name} does not know its number of batches", remedy="train for max_steps")
        return math.ceil(count / batches_per_step)

    def create_optimizer(
        self, optimizer: str | Optimizer, things_to_optimize: Sequence[Any], optimizer_params: Mapping[str, Any]
    ) -> Optimizer:
        """See :meth:`NeuralModuleFactory.create_optimizer`."""
        return self._objectives.create_optimizer(optimizer, things_to_optimize, optimizer_params)

    def train(
        self,
        tensors_to_optimize: Losses | None = None,
        optimizer: str | Optimizer | None = None,
        optimization_params: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
        lr_policy: LrPolicy | None = None,
        *,
        options: RunOptions | None = None,
        **flat: Any,
    ) -> None:
        """Train: see :meth:`NeuralModuleFactory.train`, whose other arguments are ``options``, or taken as they are."""
        params = dict(optimization_params or {})
        called = CallbackList(_with_bar(arguments.check_callbacks(callbacks)))
        with self._comm.guarded():
            if tensors_to_optimize is None:
                self._only_end(called)
                return
            options = options or RunOptions.of(params, **flat)
            options.check_world_size(self._comm.world_size)
            arguments.check_policy(lr_policy)
            precision = self._precision(options.amp_min_loss_scale, options.amp_max_loss_scale)
            arguments.check_sharding(self._shard_weights, self._comm, precision)
            pairs = arguments.optimizers_and_losses(tensors_to_optimize, optimizer, options.batches_per_step)
            dag = Dag([loss for _, losses in pairs for loss in losses])
            # Check before weights are exchanged, so that modules of different sizes are reported by name.
            self._check_equal_start({"training DAG": dag}, called)
            statistics = (self._comm if options.synced_batchnorm else SingleProcess()).synced_batchnorm
            with (
                self._stopping_in_order() as signals,
                statistics(modules_of(dag), options.synced_batchnorm_groupsize),
                closing(called),
            ):
                training = self._prepare(dag, pairs, params, called, options, lr_policy, precision)
                self._state.stop_signals = signals
                training.run()
                for data_layer in self._data_layers(dag, called):
                    data_layer.report_unusable()
                make_statistics_equal(modules_of(dag), self._comm)
            self._comm.at_step(None)
            # A signal that came after the last step, to one rank perhaps: all leave, so that none waits for another.
            self._state.agree_on_signal(signal_in(self._comm.sum(flags_of(signals.received))))
            number = self._state.interrupted_by or signals.received
            if number:
                self._say(interruption_text(self._state, number))
        if number:
            self._comm.close()  # in order: no rank is to blame
            raise Interrupted(number, is_told=True)

    @contextmanager
    def _stopping_in_order(self) -> Iterator[StopSignals]:
        """Inside, a stop signal waits for the end of the step."""
        with stop_signals() as signals, signals.deferred(self._say):
            yield signals

    def _say(self, text: str) -> None:
        self._comm.on_first(lambda: logging.warning("%s", text))

    def _prepare(
        self,
        dag: Dag,
        pairs: Sequence[tuple[str | Optimizer, Sequence[NmTensor]]],
        params: Mapping[str, Any],
        called: CallbackList,
        options: RunOptions,
        lr_policy: LrPolicy | None,
        precision: Precision,
    ) -> Training:
        """Lower the DAGs, make the optimizers, and see that all ranks are about to do the same."""
        tensors = StepValues(dag, precision)
        extra = tensors.extra_wires([*called.wires, *(tensors.wire(name) for name in called.names)])
        set_training(modules_of(dag))
        objectives = [self._objectives.make(dag, chosen, losses, extra, params) for chosen, losses in pairs]
        optimizers = list(dict.fromkeys(objective.optimizer for objective in objectives))
        state = RunState(self._comm, self._device, precision, optimizers, dag.modules, self._tb_writer, tensors, called)
        self._state = state
        data_layer = torch_data_layer(dag)
        loader = self._loader(data_layer, options.uneven)
        state.total_steps = _total_steps(loader, options)
        logging.info("Precision %s", precision.describe())
        state.clock.total.amount_unit = data_layer.amount_unit
        for wires in called.eval_wires:
            state.prepare_evaluation(wires)
        trained = {parameter for objective in objectives for parameter in objective.parameters}
        length = "" if state.total_steps is None else f", {state.total_steps} steps"
        logging.info("Training %s parameters%s", f"{sum(map(torch.numel, trained)):,}", length)
        batch_size = data_layer.setting("batch_size", 1)
        if batch_size > 0:
            most = "at most " if data_layer.setting("max_batch_seconds", None) else ""
            batch = effective_batch(batch_size, self._comm.world_size, options.batches_per_step, "items")
            logging.info("%s%s", most, batch)
        reseed = _reseeding(self._seed, self._comm)
        return Training(objectives, loader, data_layer.place_of, state, tensors, called, lr_policy, options, reseed)

    def eval(self, callbacks: Sequence[Callback]) -> None:
        """Evaluate: see :meth:`NeuralModuleFactory.eval`."""
        if not arguments.check_callbacks(callbacks):
            raise UsageError("eval needs at least one EvaluatorCallback")
        called = CallbackList(callbacks)
        if len(called.eval_wires) != len(callbacks):
            raise UsageError("eval takes EvaluatorCallbacks only", got=", ".join(type(c).__name__ for c in callbacks))
        with self._comm.guarded():
            self._only_end(called)

    def infer(
        self, tensors: Sequence[NmTensor], *, options: InferOptions | None = None, **flat: Any
    ) -> list[list[Any]] | None:
        """Infer: see :meth:`NeuralModuleFactory.infer`, whose other arguments are ``options``, or taken as they are."""
        options = options or InferOptions.of(**flat)
        with self._comm.guarded():
            dag = Dag(tensors)
            self._check_equal_start({"inference DAG": dag})
            self._objectives.shard(dag)
            if options.checkpoint_dir is not None:
                modules = options.modules_to_restore or dag.modules.values()
                self._restore(modules, options.checkpoint_dir, options.ckpt_pattern)
            if options.use_cache:
                rows = self._cache.rows(tensors, self._device, self._precision())
            else:
                rows = Evaluation(tensors, self._device, self._precision()).rows(self._comm)
            if options.offload_to_cpu:
                rows = (row._replace(values=to_cpu(row.values)) for row in rows)
            if options.cache:
                rows = self._cache.keeping(tensors, rows)
            verbose = options.verbose and self._comm.on_first(lambda: True) is True
            with ProgressBar.over(rows, verbose, "infer") as shown:
                in_order = in_data_order(self._comm.rounds(map(tuple, shown)))
            self.inferred = ItemsComputed(torch_data_layer(dag))
            for row in in_order:
                self.inferred.note(row.ids)
            columns = list(zip(*(row.values for row in in_order), strict=True)) or [() for _ in tensors]
            return self._comm.on_first(lambda: [list(column) for column in columns])

    def clear_cache(self) -> None:
        """Forget what ``infer(cache=True)`` kept."""
        self._cache.clear()

    def _restore(self, modules: Iterable[NeuralModule], folder: str | Path, pattern: str) -> None:
        named = named_weighted_modules(modules)
        if not named:
            raise CheckpointError("no module of the DAG has weights to restore", place=str(folder))
        contents = read_on_first(self._comm, lambda: CheckpointFolder(folder).read(named, pattern))
        assert contents is not None
        contents.fill(named)

    def _data_layers(self, dag: Dag, called: CallbackList) -> Iterable[DataLayerNM]:
        """Those of a run: what it trains on, and what its callbacks evaluate."""
        evaluated = [self._state.prepare_evaluation(wires).data_layer for wires in called.eval_wires]
        return dict.fromkeys([torch_data_layer(dag), *evaluated])

    def _loader(self, data_layer: DataLayerNM, uneven: Uneven = "pad") -> BatchLoader:
        shard = Shard(self._comm.rank, self._comm.world_size, self._seed or 0, uneven)
        return data_layer.loader(training=True, shard=shard)

    def _check_equal_start(self, dags: dict[str, Dag], called: CallbackList | None = None) -> None:
        wires = called.eval_wires if called else ()
        dags |= {f"evaluation DAG {number}": Dag(each) for number, each in enumerate(wires, 1)}
        self._comm.check_equal_start(lambda: fingerprint_of(dags, self._files))

    def _only_end(self, called: CallbackList) -> None:
        state = RunState(self._comm, self._device, self._precision(), tb_writer=self._tb_writer, callbacks=called)
        self._check_equal_start({}, called)
        for wires in called.eval_wires:
            self._objectives.shard(state.prepare_evaluation(wires).dag)
        called.notify("on_action_end", state)

    def _precision(self, min_loss_scale: float | None = None, max_loss_scale: float | None = 2.0**24) -> Precision:
        return Precision(self._level, self._device, self._amp_dtype, min_loss_scale, max_loss_scale)


def _with_bar(callbacks: Sequence[Callback]) -> list[Callback]:
    return [*callbacks, *([] if any(isinstance(each, ProgressBar) for each in callbacks) else [ProgressBar()])]


def _reseeding(seed: int | None, comm: Comm) -> Callable[[int], None]:
    """A function that seeds torch, NumPy and Python before an epoch, differently on each rank, for dropout.

    Without a seed, it does nothing in a single process.
    """
    base = comm.random_seed() if seed is None else seed
    if base is None:
        return lambda epoch: None
    return lambda epoch: seed_all(seed_of(base, rank=comm.rank, epoch=epoch))


def _total_steps(loader: BatchLoader, options: RunOptions) -> int | None:
    if options.num_epochs is None or (count := length_of(loader)) is None:
        return options.max_steps
    return math.ceil(count / options.batches_per_step) * options.num_epochs
