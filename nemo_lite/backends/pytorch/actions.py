"""PtActions: train, evaluate, infer, export and compare."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary, finalize, ref

import torch
from torch import fx, nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.data.loaders import BatchLoader
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.distributed.comm import Comm, ReplicaOptions, SingleProcess
from nemo_lite.backends.pytorch.distributed.contract import (
    Agreement,
    RunContract,
    inference_arguments,
    training_arguments,
)
from nemo_lite.backends.pytorch.engine import arguments
from nemo_lite.backends.pytorch.engine.checkpoints import Checkpoints, restore_weights
from nemo_lite.backends.pytorch.engine.evaluation import (
    BatchResult,
    Evaluation,
    Evaluations,
    InferenceCache,
    InferenceRun,
    arriving,
    torch_data_layer,
)
from nemo_lite.backends.pytorch.engine.lanes import Lane
from nemo_lite.backends.pytorch.engine.loss_gradients import loss_gradients
from nemo_lite.backends.pytorch.engine.module_state import make_statistics_equal, modules_of, set_training
from nemo_lite.backends.pytorch.engine.objectives import Objectives
from nemo_lite.backends.pytorch.engine.rehearsal import tried_bytes
from nemo_lite.backends.pytorch.engine.state import NoValues, RunState, StepValues, ValuesOfLanes
from nemo_lite.backends.pytorch.engine.step_memory import StepMemory, evaluation_memory, step_memory
from nemo_lite.backends.pytorch.engine.training import Training, total_steps
from nemo_lite.backends.pytorch.export import DeploymentExport
from nemo_lite.backends.pytorch.generators import training_draws
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import AheadOfUse, choose_device, to_cpu, to_device
from nemo_lite.backends.pytorch.precision import Precision, choose_precision
from nemo_lite.backends.pytorch.precision_check import check_precision
from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.files import unused_name
from nemo_lite.base.interruption import Interrupted, flags_of, signal_in, stop_signals
from nemo_lite.core.callbacks.action_state import EvaluationResult, LossGradients, TbWriter
from nemo_lite.core.callbacks.base import Callback, CallbackList
from nemo_lite.core.callbacks.tracking import ProgressBar
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor, Value
from nemo_lite.core.run_options import (
    Compile,
    CompileOptions,
    InferOptions,
    Losses,
    LrPolicy,
    Objective,
    Optimization,
    RunOptions,
    Uneven,
)
from nemo_lite.core.show import PrecisionReport
from nemo_lite.utils import logging

if TYPE_CHECKING:
    from nemo_lite.backends.pytorch.compiling import Compiler


_COPIES_SECONDS = 10.0
"""How long a training waits at its end until the files that it read are compared; long ones have them read by then."""


class PtActions(DeploymentExport):
    """Trains, evaluates and infers on PyTorch.

    Args:
        local_rank: index of this process on its machine, or ``None``.
        global_rank: index of this process among all; ``comm`` knows it, so it is only checked.
        tb_writer: TensorBoard writer that callbacks without their own use.
        optimization_level: O0 to O3.
        device: where to run; by default the GPU if there is one.
        comm: the ranks; by default this process alone.
        amp_dtype: half type of O1 to O3.
        amp_backend: what trains in O1 to O3: ``auto``, ``native`` or ``apex``.
        seed: base of every random draw; None leaves torch's generators as they are, and the data in order 0.
        files: files that must be the same on all ranks, such as the configuration.
        shard_weights: divide weights, gradients and optimizer state among the ranks.
        compile: whether and how DAGs are compiled.

    Attributes:
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
        amp_backend: str = "auto",
        seed: int | None = None,
        files: Sequence[str | Path] = (),
        shard_weights: bool = False,
        compile: Compile | CompileOptions = False,  # noqa: A002  # torch's name
    ) -> None:
        self._comm: Comm = comm or SingleProcess()
        if global_rank not in (None, self._comm.rank):
            raise UsageError(
                "global_rank differs from the process group", got=str(global_rank), wanted=str(self._comm.rank)
            )
        self._device = device or choose_device(None, local_rank)
        self._level, self._amp_dtype, self._amp_backend = Optimization.parse(optimization_level), amp_dtype, amp_backend
        self._tb_writer, self._seed, self._shard_weights = tb_writer, seed, shard_weights
        precision = self._precision()
        settings = {
            "optimization_level": self._level.short,
            "amp_dtype": amp_dtype,
            "amp_backend": amp_backend,
            "computes in": str(precision.dtype),
            "random_seed": seed,
            "shard_weights": shard_weights,
            "compile": CompileOptions.of(compile),
            "device": self._device.type,
        }
        self._agreement = Agreement(self._comm, settings, files)
        self._state = RunState(self._comm)
        self._checkpoints: Checkpoints | None = None  # of the last training
        self._lowerings = Lowerings(compile)
        self._objectives = Objectives(self._comm, self._device, shard_weights, precision.autocast_dtype)
        self._cache = InferenceCache()
        self.first_generation: Mapping[str, Any] = {}

    @property
    def step(self) -> int:
        """Index of the step made last."""
        return self._state.step

    @step.setter
    def step(self, step: int) -> None:
        self._state.step = step

    @property
    def epoch(self) -> int:
        """Index of the epoch."""
        return self._state.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._state.epoch = epoch

    epoch_num = epoch

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the run, and those that were created."""
        return self._state.optimizers

    def save_state_to(self, path: str | Path) -> None:
        """Write step, epoch and optimizers to one file."""
        self._training_state().save_state_to(path)

    def restore_state_from(self, path: str | Path) -> None:
        """Read what :meth:`save_state_to` wrote."""
        self._training_state().restore_state_from(path)

    def _training_state(self) -> Checkpoints:
        if self._checkpoints is None:
            _, self._checkpoints = self._offer_services(self._state, CallbackList([]))
        return self._checkpoints

    def _offer_services(
        self, state: RunState, called: CallbackList, precision: Precision | None = None
    ) -> tuple[Evaluations, Checkpoints]:
        """Let callbacks evaluate and save although nothing is trained."""
        precision = precision or self._precision()
        evaluations = Evaluations(self._comm, self._device, precision, self._lowerings(None), state, called)
        checkpoints = Checkpoints(self._comm, state, evaluations, precision, called)
        return evaluations, checkpoints

    def precision_check(
        self, tensors: Sequence[NmTensor], num_batches: int = 1, checkpoint_dir: str | Path | None = None
    ) -> PrecisionReport | None:
        """See :meth:`NeuralModuleFactory.precision_check`."""
        with self._comm.guarded():
            if checkpoint_dir is not None:
                restore_weights(self._comm, Dag(tensors).modules.values(), checkpoint_dir, "")
            return self._comm.on_first(lambda: check_precision(Dag(tensors), self._precision(), num_batches))

    def loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        """See :meth:`NeuralModuleFactory.loss_gradients`."""
        with self._comm.guarded():
            return self._comm.on_first(lambda: self._loss_gradients(losses))

    def step_memory(
        self,
        losses: Sequence[NmTensor],
        batch: Sequence[Value],
        optimizer: str,
        params: Mapping[str, object],
        batches_per_step: int = 1,
    ) -> StepMemory:
        """See :meth:`NeuralModuleFactory.step_memory`."""
        return step_memory(losses, batch, self._counted_precision(), optimizer, params, batches_per_step)

    def evaluation_memory(self, wires: Sequence[NmTensor], batch: Sequence[Value]) -> int:
        """See :meth:`NeuralModuleFactory.evaluation_memory`."""
        return evaluation_memory(wires, batch, self._counted_precision())

    def _counted_precision(self) -> Precision:
        # A CPU has no float16 under autocast; bfloat16 takes as much.
        return choose_precision(self._level, torch.device("cpu"), "bfloat16", amp_backend="native")

    def tried_bytes(
        self,
        losses: Sequence[NmTensor],
        batch: Sequence[Value],
        optimizer: str,
        params: Mapping[str, object],
        batches_per_step: int = 1,
    ) -> int | None:
        """See :meth:`NeuralModuleFactory.tried_bytes`."""
        return tried_bytes(losses, batch, self._precision(), optimizer, params, batches_per_step)

    def _loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        dag = Dag(losses)
        modules = modules_of(dag)
        for module in modules:
            module.to(self._device)
        set_training(modules)
        batches = torch_data_layer(dag).loader(training=True, shard=Shard()).epoch(0)
        batch = next(iter(batches), None)
        if batch is None:
            raise UsageError(f"{dag.data_layer.label} gives no batch", place="loss_gradients")
        return loss_gradients(losses, to_device(batch.values, self._device), self._precision())

    def lower(self, tensors: Sequence[NmTensor]) -> fx.GraphModule:
        """The module that computes these wires from a batch of their data layer."""
        return lower(Dag(tensors).slice())

    def steps_per_epoch(self, data_layer: DataLayerNM, batches_per_step: int = 1, uneven: Uneven = "pad") -> int | None:
        """See :meth:`NeuralModuleFactory.steps_per_epoch`."""
        count = self._loader(data_layer, uneven).num_rounds
        return None if count is None else math.ceil(count / batches_per_step)

    def create_optimizer(
        self, optimizer: str | Optimizer, things_to_optimize: Sequence[object], optimizer_params: Mapping[str, object]
    ) -> Optimizer:
        """See :meth:`NeuralModuleFactory.create_optimizer`."""
        if self._shard_weights:  # weights travel here
            self._agreement.reached_on("create_optimizer", {"optimizer": optimizer, **optimizer_params}, {})
        made = self._objectives.create_optimizer(optimizer, things_to_optimize, optimizer_params)
        self._state.optimizers.append(made)
        return made

    def train(
        self,
        tensors_to_optimize: Losses | None = None,
        optimizer: str | Optimizer | None = None,
        optimization_params: Mapping[str, object] | None = None,
        callbacks: Sequence[Callback] | None = None,
        lr_policy: LrPolicy | None = None,
        *,
        tensors_to_evaluate: Sequence[NmTensor] | None = None,
        **flat: Any,
    ) -> None:
        """Train: see :meth:`NeuralModuleFactory.train`, whose other arguments are ``flat``.

        Args:
            tensors_to_optimize, optimizer, optimization_params, callbacks, lr_policy, flat: as there.
            tensors_to_evaluate: the wires that ``SimpleLossLoggerCallback(tensor_list2string_evl=...)`` prints, as in
                the first NeMo.
        """
        optimizer = self.first_generation.get("optimizer_kind") if optimizer is None else optimizer
        params = {**self.first_generation.get("optimization_params", {}), **(optimization_params or {})}
        called = CallbackList(arguments.with_bar(callbacks, tensors_to_evaluate))
        with self._comm.guarded():
            if tensors_to_optimize is None:
                self._only_end("train", called)
                return
            options = RunOptions.of(params, **flat)
            options.check_world_size(self._comm.world_size)
            arguments.check_policy(lr_policy)
            precision = self._precision(options.amp_min_loss_scale, options.amp_max_loss_scale)
            arguments.check_sharding(self._shard_weights, self._comm, precision, options)
            lanes = arguments.lanes_of(tensors_to_optimize, optimizer, options.batches_per_step)
            dags = [Dag([loss for objective in lane for loss in objective.losses]) for lane in lanes]
            modules = list(dict.fromkeys(module for dag in dags for module in modules_of(dag)))
            pairs = [(objective.optimizer, objective.losses) for lane in lanes for objective in lane]
            terms = training_arguments(pairs, {**params, **arguments.terms_of_lanes(lanes)}, lr_policy, options)
            names = ["training DAG"] if len(dags) == 1 else [f"training DAG {i}" for i, _ in enumerate(dags, 1)]
            # Before weights are exchanged, so that modules of different sizes are reported by name.
            contract = self._agreement.reached_on("train", terms, dict(zip(names, dags, strict=True)), called)
            statistics = (self._comm if options.synced_batchnorm else SingleProcess()).synced_batchnorm
            with (
                stop_signals() as signals,
                signals.deferred(self._say),  # until the end of the step
                self._objectives.prepared(modules, precision),
                statistics(modules, options.synced_batchnorm_groupsize),
                training_draws(),
                closing(called),
            ):
                training = self._prepare(dags, lanes, params, called, options, lr_policy, precision, contract)
                self._state.stop_signals = signals
                try:
                    training.run()
                finally:
                    self._let_go(self._state, precision, training.evaluations.results)
                evaluated = [Dag(wires) for wires in called.eval_wires]
                for data_layer in dict.fromkeys(map(torch_data_layer, [*dags, *evaluated])):
                    data_layer.report_unusable()
                make_statistics_equal(modules, self._comm)
                training.compare_copies(_COPIES_SECONDS)
                self._lowerings.report()
            self._comm.at_step(None)
            # A signal that came after the last step, to one rank perhaps: all leave, so that none waits for another.
            self._state.agree_on_signal(signal_in(self._comm.sum(flags_of(signals.received))))
            number = self._state.interrupted_by or signals.received
            if number:
                self._say(training.interruption_text(number))
        if number:
            self._comm.close()  # in order: no rank is to blame
            raise Interrupted(number, is_told=True)

    def _let_go(self, state: RunState, precision: Precision, results: Mapping[str, EvaluationResult]) -> None:
        """After a training keep its counters, optimizers, loss scale and results, but neither modules nor wires.

        So a model that nobody else holds leaves memory, and the next one may have the names of its modules and wires.
        Its optimizers, which hold its weights, leave with the last of its modules.
        """
        state.tensors, state.averaging, state.modules = NoValues(), None, WeakValueDictionary(state.modules)
        for module in state.modules.values():
            finalize(module, _forget_optimizers, ref(state)).atexit = False
        evaluations, self._checkpoints = self._offer_services(state, CallbackList([]), precision)
        evaluations.results = dict(results)

    def _say(self, text: str) -> None:
        self._comm.on_first(lambda: logging.info("%s", text))

    def _prepare(
        self,
        dags: Sequence[Dag],
        lanes: Sequence[Sequence[Objective]],
        params: Mapping[str, object],
        called: CallbackList,
        options: RunOptions,
        lr_policy: LrPolicy | None,
        precision: Precision,
        contract: Callable[[], RunContract],
    ) -> Training:
        """Lower the DAGs, make the optimizers, and see that all ranks are about to do the same."""
        gc.collect()  # wires that nobody holds any more can be asked for by no name
        values = [StepValues(dag, precision) for dag in dags]
        tensors = values[0] if len(values) == 1 else ValuesOfLanes(values)
        wires = [*called.wires, *(tensors.wire(name) for name in called.names)]
        modules = _by_unique_names(dags)
        torch_modules = [module for module in modules.values() if isinstance(module, nn.Module)]
        set_training(torch_modules)
        lowering = self._lowerings(options.compile)
        goals = [
            (objective, dag, of_lane.extra_wires([wire for wire in wires if tensors.lane_of(wire) is of_lane]))
            for lane, dag, of_lane in zip(lanes, dags, values, strict=True)
            for objective in lane
        ]
        replication = ReplicaOptions(options.static_graph, options.gradient_compression)
        objectives = self._objectives.make_all(torch_modules, goals, params, precision, lowering, replication)
        if compiled := self._lowerings.options(options.compile):
            most = max(lane[0].batches or options.batches_per_step for lane in lanes)
            arguments.check_cuda_graphs(compiled, self._device, most, objectives)
        ahead = AheadOfUse(self._device)
        in_order, training_lanes = iter(objectives), []
        for lane, dag, of_lane in zip(lanes, dags, values, strict=True):
            data_layer = torch_data_layer(dag)
            training_lanes.append(
                Lane(
                    self._comm,
                    [next(in_order) for _ in lane],
                    self._loader(data_layer, options.uneven),
                    data_layer,
                    of_lane,
                    lane[0].every,
                    lane[0].batches or options.batches_per_step,
                    options.uneven,
                    ahead,
                )
            )
        optimizers = list(dict.fromkeys(objective.optimizer for objective in objectives))
        self._state = state = RunState(self._comm, optimizers, modules, self._tb_writer, tensors)
        state.total_steps = total_steps(training_lanes[0], options)
        state.clock.total.amount_unit = training_lanes[0].data_layer.amount_unit
        training = Training(
            self._comm,
            self._device,
            precision,
            training_lanes,
            state,
            tensors,
            ahead,
            called,
            lr_policy,
            options,
            lowering,
            contract,
            self._seed,
            self._shard_weights,
        )
        self._checkpoints = training.checkpoints
        logging.info("Precision %s", precision.describe())
        for callback in called:
            evaluated = {*Dag(callback.evaluated_wires()).modules.values()} if callback.evaluated_wires() else set()
            # Of several training DAGs the one that trains most of what the callback evaluates.
            callback.compare_with_training(max(dags, key=lambda dag: len(evaluated & {*dag.modules.values()})))
        for eval_wires in called.eval_wires:
            self._objectives.shard(Dag(eval_wires))  # what is divided already is made whole for what refers to it
            training.evaluations.prepare(eval_wires)
        weights = {weight for objective in objectives for weight in objective.halves or objective.parameters}
        total = sum(map(torch.numel, weights))
        num_trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        count = f"{num_trained:,}" if num_trained == total else f"{num_trained:,} of {total:,}"
        length = "" if state.total_steps is None else f", {counted(state.total_steps, 'step')}"
        logging.info("Training %s parameters%s", count, length)
        for made in training_lanes:
            label = f"{made.data_layer.label}: " if len(training_lanes) > 1 else ""
            arguments.tell_batch_size(made.data_layer, self._comm, made.batches_per_step, label)
        return training

    def eval(self, callbacks: Sequence[Callback]) -> None:
        """Evaluate: see :meth:`NeuralModuleFactory.eval`."""
        if not arguments.check_callbacks(callbacks):
            raise UsageError("eval needs at least one EvaluatorCallback")
        called = CallbackList(callbacks)
        if len(called.eval_wires) != len(callbacks):
            raise UsageError("eval takes EvaluatorCallbacks only", got=", ".join(type(c).__name__ for c in callbacks))
        with self._comm.guarded():
            self._only_end("eval", called)

    def infer(self, tensors: Sequence[NmTensor], **flat: Any) -> list[list[Value]] | None:
        """Infer: see :meth:`NeuralModuleFactory.infer`, whose other arguments are ``flat``."""
        # Sorted again: of kept values each rank may have another number of batches.
        in_order = sorted(self._inferred_rows(tensors, InferOptions.of(**flat)), key=lambda row: row.number)
        columns = list(zip(*(row.values for row in in_order), strict=True)) or [() for _ in tensors]
        return self._comm.on_first(lambda: [list(column) for column in columns])

    def infer_batches(self, tensors: Sequence[NmTensor], **flat: Any) -> InferenceRun:
        """Infer batch by batch: see :meth:`NeuralModuleFactory.infer_batches`."""
        with self._comm.guarded():
            data_layer = torch_data_layer(Dag(tensors))
        return InferenceRun(data_layer, self._inferred_rows(tensors, InferOptions.of(**flat)))

    def runner(self, tensors: Sequence[NmTensor]) -> Callable[[Sequence[Value]], list[Value]]:
        """See :meth:`NeuralModuleFactory.runner`."""
        evaluation = Evaluation(tensors, self._device, self._precision(), self._lowerings(None))
        evaluation.place()
        return evaluation.compute

    def _inferred_rows(self, tensors: Sequence[NmTensor], options: InferOptions) -> Iterator[BatchResult]:
        """The batches of all ranks on rank 0, block by block; none on the others."""
        with self._comm.guarded():
            dag, lowering = Dag(tensors), self._lowerings(options.compile)
            self._agreement.reached_on("infer", inference_arguments(options), {"inference DAG": dag})
            self._cache.check(options.cache, options.use_cache)
            self._objectives.shard(dag)
            if options.checkpoint_dir is not None:
                modules = options.modules_to_restore or dag.modules.values()
                restore_weights(self._comm, modules, options.checkpoint_dir, options.ckpt_pattern)
            if options.use_cache:
                blocks = self._cache.blocks(tensors, self._device, self._precision(), lowering)
            else:
                blocks = Evaluation(tensors, self._device, self._precision(), lowering).blocks(self._comm)
            if options.offload_to_cpu:
                blocks = ([row._replace(values=to_cpu(row.values)) for row in block] for block in blocks)
            if options.cache:
                blocks = self._cache.keeping(tensors, blocks)
            verbose = options.verbose and self._comm.on_first(lambda: True) is True
            rows = (row for block in arriving(blocks, self._comm) for row in block)
            with ProgressBar.over(rows, verbose, "infer") as shown:
                yield from shown
            self._lowerings.report()

    def clear_cache(self) -> None:
        """Forget what ``infer(cache=True)`` kept."""
        self._cache.clear()

    def _loader(self, data_layer: DataLayerNM, uneven: Uneven = "pad") -> BatchLoader:
        shard = Shard(self._comm.rank, self._comm.world_size, self._seed or 0, uneven)
        return data_layer.loader(training=True, shard=shard)

    def _only_end(self, action: str, called: CallbackList) -> None:
        state = RunState(self._comm, tb_writer=self._tb_writer)
        evaluations, _ = self._offer_services(state, called)
        self._agreement.reached_on(action, {}, {}, called)
        for wires in called.eval_wires:
            self._objectives.shard(Dag(wires))  # before it is lowered: what is divided is not compiled
            evaluations.prepare(wires)
        try:
            called.notify("on_action_end", state)
        finally:
            evaluations.close()
        self._lowerings.report()

    def _precision(self, min_loss_scale: float | None = None, max_loss_scale: float | None = 2.0**24) -> Precision:
        return choose_precision(
            self._level, self._device, self._amp_dtype, min_loss_scale, max_loss_scale, self._amp_backend
        )


def _forget_optimizers(state: ref[RunState]) -> None:
    """Let go of the optimizers of a run that is over once none of its modules is left."""
    ended = state()
    if ended is not None and not [*ended.modules.values()]:
        ended.optimizers.clear()


def _by_unique_names(dags: Sequence[Dag]) -> dict[str, NeuralModule]:
    """The modules of some DAGs, by names that no two of them share."""
    named: dict[str, NeuralModule] = {}
    for dag in dags:
        for name, module in dag.modules.items():
            if module not in named.values():
                named[unused_name(name, named)] = module
    return named


class Lowerings:
    """The lowerings of a factory's actions. What was compiled for one action serves the later ones.

    Args:
        default: for actions that do not say it themselves.
    """

    def __init__(self, default: Compile | CompileOptions) -> None:
        self._default: CompileOptions | Literal[False] | None = CompileOptions.of(default)
        self._compilers: dict[CompileOptions, Compiler] = {}

    def __call__(self, options: CompileOptions | Literal[False] | None) -> Lowering:
        """The lowering by these options.

        Raises:
            UnknownNameError: a backend that torch does not have.
        """
        chosen = self.options(options)
        if not chosen:
            return lower
        if chosen not in self._compilers:
            from nemo_lite.backends.pytorch.compiling import Compiler

            self._compilers[chosen] = Compiler(chosen)
        return self._compilers[chosen].lower

    def options(self, options: CompileOptions | Literal[False] | None) -> CompileOptions | Literal[False] | None:
        """These options, or the default ones for None."""
        return self._default if options is None else options

    def report(self) -> None:
        """Say what was compiled since the last report, in one line."""
        for compiler in self._compilers.values():
            compiler.report()
