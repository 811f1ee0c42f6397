"""The options of training, inference and compilation, checked; marks on classes of modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from nemo_lite.base.choices import Backend as Backend
from nemo_lite.base.choices import DeploymentFormat as DeploymentFormat
from nemo_lite.base.choices import DeviceType as DeviceType
from nemo_lite.base.choices import Optimization as Optimization
from nemo_lite.base.errors import UnknownNameError, UsageError, counted
from nemo_lite.base.ranges import Between, PositiveInt, refuse_out_of_range
from nemo_lite.core.neural_types import NmTensor

if TYPE_CHECKING:  # a command that shows its options starts sooner without it
    from nemo_lite.core.neural_module import NeuralModule


C = TypeVar("C", bound=type)


def skip_in_data_parallel(cls: C) -> C:
    """Mark a class whose modules torch's DataParallel does not wrap: ``cls.skip_in_data_parallel`` is True."""
    cls.skip_in_data_parallel = True  # type: ignore[attr-defined]  # new with this line
    return cls


def run_only_on_device(device_type: DeviceType = DeviceType.CPU) -> Callable[[C], C]:
    """Mark a class whose modules run on one kind of device only: ``cls.run_only_on_device`` is that kind."""

    def mark(cls: C) -> C:
        cls.run_only_on_device = device_type  # type: ignore[attr-defined]  # new with this line
        return cls

    return mark


INDUCTOR = "inductor"
MODES = ("default", "lite", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
"""Those of torch's inductor; a test compares them."""
_WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
WITHOUT_CUDA_GRAPHS = "max-autotune-no-cudagraphs"

Compile = Mapping[str, object] | bool | None
"""``True``, or options by name; ``False`` does not compile; ``None`` is what the factory was told."""


@dataclass(frozen=True)
class CompileOptions:
    """How the modules of a DAG are compiled.

    Attributes:
        backend: what makes code of a graph: ``inductor``, or for tests ``eager`` and ``aot_eager``.
        mode: of inductor: ``default``, ``reduce-overhead`` (CUDA graphs), ``max-autotune`` and others.
        dynamic: whether one graph serves all shapes; ``None``: all sizes of a batch and all lengths, by the ports.
        fullgraph: end the run where a module does not compile as a whole.

    Raises:
        UnknownNameError: an unknown mode.
        UsageError: a value of the wrong type, or a mode with a backend that has none.
    """

    backend: str = INDUCTOR
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("dynamic", (True, False, None)), ("fullgraph", (True, False))):
            if not any(getattr(self, name) is choice for choice in choices):
                got, expected = repr(getattr(self, name)), " or ".join(map(str, choices))
                raise UsageError(f"{name} is out of range", place="compile", got=got, wanted=expected)
        if self.mode is None:
            return
        if self.mode not in MODES:
            raise UnknownNameError("mode", str(self.mode), MODES, place="compile")
        if self.backend != INDUCTOR:
            remedy = f"leave mode out, or take backend {INDUCTOR}"
            raise UsageError(f"backend {self.backend} has no mode", place="compile", got=self.mode, remedy=remedy)

    @property
    def has_cuda_graphs(self) -> bool:
        """Whether the mode records CUDA graphs on a GPU: the next call then writes over what the last one gave."""
        return self.mode in _WITH_CUDA_GRAPHS

    @classmethod
    def of(cls, given: Compile | CompileOptions) -> CompileOptions | Literal[False] | None:
        """The options from what a script gives; ``None`` and ``False`` as they are.

        Raises:
            UnknownNameError: a key that is none of the attributes.
            UsageError: neither a truth value nor a dict.
        """
        if given is None or given is False or isinstance(given, cls):
            return given
        if given is True:
            return cls()
        if not isinstance(given, Mapping):
            raise UsageError("compile is not understood", got=repr(given), wanted="True, False or a dict of options")
        names = [field.name for field in fields(cls)]
        for key in given:
            if key not in names:
                raise UnknownNameError("key", str(key), names, place="compile")
        options: dict[str, object] = dict(given)
        return cls(**options)  # type: ignore[arg-type]  # their types are checked there


# Any: values that a script gives are checked when the options are made.

Uneven = Literal["pad", "drop", "join", "error"]
"""What becomes of a training step for which only some ranks have items or batches left.

- ``pad``: the others repeat items that came before, so some items come twice.
- ``drop``: what is left is left out; the epoch ends for all ranks.
- ``join``: the others take part with a zero-weight batch.
- ``error``: the run ends; where it can be told from the number of items, it does not start.
"""
GradientCompression = Literal["bfloat16"]
"""The type in which gradients travel between ranks, where it is not their own."""
LrPolicy = Callable[[float, int, int], float]
"""Learning rate from (initial rate, step, epoch)."""


@dataclass(frozen=True)
class Objective:
    """Losses that one optimizer minimises, with data and a turn of their own: for several tasks, or a GAN.

    Attributes:
        losses: wires of one DAG, which are summed. Other objectives may have other data layers; one that they share
            is read by each for itself.
        optimizer: its name, or an instance; None: that of ``train``.
        lr: its learning rate; None: that of ``train``.
        every: it is updated at every so many steps; the first objective of a run at each.
        batches: micro-batches of a rank in an update; None: ``batches_per_step`` of ``train``.
        modules: those that the optimizer updates; None: all that the losses depend on.
        params: other options of the optimizer, which count before those of ``train``.

    Raises:
        UsageError: no losses, or a number out of range.
    """

    losses: Sequence[NmTensor]
    optimizer: Any = None
    lr: float | None = None
    every: PositiveInt = 1
    batches: PositiveInt | None = None
    modules: Sequence[NeuralModule] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_list = isinstance(self.losses, (list, tuple)) and all(isinstance(loss, NmTensor) for loss in self.losses)
        if not is_list or not self.losses:
            raise UsageError("losses must be a list of wires", place="Objective", got=type(self.losses).__name__)
        refuse_out_of_range(type(self).__init__, vars(self), "Objective", types_too=True)

    def optimizer_params(self, params: Mapping[str, object]) -> dict[str, object]:
        """Options of its optimizer: those of ``train``, and its own."""
        return {**params, **self.params, **({} if self.lr is None else {"lr": self.lr})}


Losses = Sequence[NmTensor] | Sequence[tuple[Any, Sequence[NmTensor]]] | Sequence[Objective]
"""Losses that one optimizer minimises, ``(optimizer, losses)`` for each of several, or objectives."""

# Options that NeMo's scripts give in ``optimization_params``.
_IN_PARAMS = ("num_epochs", "max_steps", "grad_norm_clip", "amp_min_loss_scale", "ema_decay")


@dataclass(frozen=True)
class RunOptions:
    """How a training run computes its steps, and when it ends. ``NeuralModuleFactory.train`` explains each option.

    Raises:
        UsageError: neither ``num_epochs`` nor ``max_steps``, or a number out of range.
        UnknownNameError: ``uneven`` is not one of the known policies.
    """

    num_epochs: PositiveInt | None = None
    max_steps: PositiveInt | None = None
    grad_norm_clip: Annotated[float, Between(0, math.inf, above=True)] | None = None
    amp_min_loss_scale: float | None = None
    ema_decay: Annotated[float, Between(0, 1, above=True, below=True)] | None = None
    batches_per_step: PositiveInt = 1
    stop_on_nan_loss: bool = False
    synced_batchnorm: bool = False
    synced_batchnorm_groupsize: int = 0
    gradient_predivide: bool = False
    amp_max_loss_scale: float | None = 2.0**24
    max_nonfinite_steps: PositiveInt = 25
    uneven: Uneven = "pad"
    static_graph: bool = False
    gradient_compression: GradientCompression | None = None
    compile: CompileOptions | Literal[False] | None = None

    def __post_init__(self) -> None:
        if self.num_epochs is None and self.max_steps is None:
            raise UsageError("how long to train must be said", got="neither", wanted="num_epochs or max_steps")
        if self.uneven not in get_args(Uneven):
            raise UnknownNameError("uneven", self.uneven, get_args(Uneven))
        if self.gradient_compression not in (None, *get_args(GradientCompression)):
            choices = get_args(GradientCompression)
            raise UnknownNameError("gradient_compression", str(self.gradient_compression), choices)
        refuse_out_of_range(type(self).__init__, vars(self), types_too=True)
        if self.gradient_predivide:
            raise UsageError("gradient_predivide was an option of apex' data parallelism", remedy="leave it out")

    @classmethod
    def of(cls, optimization_params: Mapping[str, object] | None, **flat: Any) -> RunOptions:
        """The options from the arguments of NeMo's ``train``.

        Args:
            optimization_params: may hold ``num_epochs``, ``max_steps``, ``grad_norm_clip``, ``amp_min_loss_scale``,
                ``ema_decay``.
            flat: the others.

        Raises:
            UnknownNameError: an argument that ``train`` does not have.
        """
        if flat.get("batches_per_step") is None:
            flat["batches_per_step"] = 1
        _refuse_unknown("train", flat, [field.name for field in fields(cls) if field.name not in _IN_PARAMS])
        flat["compile"] = CompileOptions.of(flat.get("compile"))
        params: Mapping[str, Any] = optimization_params or {}
        return cls(**{name: params[name] for name in _IN_PARAMS if name in params}, **flat)

    def is_reached(self, steps: int, epochs: int) -> bool:
        """Whether so many steps, or so many epochs, are all that were asked for."""
        has_all_steps = self.max_steps is not None and steps >= self.max_steps
        return has_all_steps or (self.num_epochs is not None and epochs >= self.num_epochs)

    def nothing_left(self, steps: int, epochs: int) -> UsageError | None:
        """The error for a run that goes on after so many steps and epochs; ``None`` where some are left."""
        if not self.is_reached(steps, epochs):
            return None
        by_steps = self.max_steps is not None and steps >= self.max_steps
        total, done = (self.max_steps or 0, steps) if by_steps else (self.num_epochs or 0, epochs)
        name = "max_steps" if by_steps else "num_epochs"
        return UsageError(
            "there is nothing left to train",
            got=f"{counted(steps, 'step')} ({counted(epochs, 'epoch')}) done before",
            wanted=f"a larger --{name} than {total}",
            remedy=f"--{name} is a total; use --{name} {done + total}, --init_from or another --exp_name",
        )

    def check_world_size(self, world_size: int) -> None:
        """Raise UsageError when the ranks cannot be divided into groups that share batch statistics."""
        if self.synced_batchnorm and self.synced_batchnorm_groupsize and world_size % self.synced_batchnorm_groupsize:
            got = f"{self.synced_batchnorm_groupsize} and {world_size}"
            raise UsageError("synced_batchnorm_groupsize must divide the number of processes", got=got)


@dataclass(frozen=True)
class InferOptions:
    """How an inference runs. ``NeuralModuleFactory.infer`` explains each option.

    Raises:
        UsageError: both ``cache`` and ``use_cache``.
    """

    checkpoint_dir: str | Path | None = None
    ckpt_pattern: str = ""
    verbose: bool = True
    cache: bool = False
    use_cache: bool = False
    offload_to_cpu: bool = True
    modules_to_restore: Sequence[NeuralModule] | None = None
    compile: CompileOptions | Literal[False] | None = None

    def __post_init__(self) -> None:
        if self.cache and self.use_cache:
            raise UsageError("cache and use_cache were both set", place="infer", remedy="leave one out")

    @classmethod
    def of(cls, **flat: Any) -> InferOptions:
        """The options from the arguments of NeMo's ``infer``.

        Raises:
            UnknownNameError: an argument that ``infer`` does not have.
        """
        _refuse_unknown("infer", flat, [field.name for field in fields(cls)])
        return cls(**{**flat, "compile": CompileOptions.of(flat.get("compile"))})


def _refuse_unknown(function: str, arguments: Iterable[str], names: Sequence[str]) -> None:
    for argument in arguments:
        if argument not in names:
            raise UnknownNameError("argument", argument, names, place=function)
