"""Base classes of modules with ports: trainable ones, losses, data layers, wrapped and tied modules."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset, IterableDataset

from nemo_lite.backends.pytorch.checkpoint.storage import load_module, save_module
from nemo_lite.backends.pytorch.data.loaders import BatchLoader, DatasetLoader, IteratorLoader
from nemo_lite.backends.pytorch.data.order import Batching, Shard, plans
from nemo_lite.backends.pytorch.data.workers import SILENCE_SECONDS
from nemo_lite.backends.pytorch.distributed.replicas import Copied as Copied
from nemo_lite.base.errors import NeuralPortNameMismatchError, UnknownNameError, UsageError
from nemo_lite.core.neural_module import NeuralModule, Recorder
from nemo_lite.core.neural_types import NmTensor, Value
from nemo_lite.core.ports import ModuleType, OperationMode, Ports
from nemo_lite.core.ports import WeightShareTransform as WeightShareTransform
from nemo_lite.core.run_options import DeviceType


class Factory(Protocol):
    """The part of `NeuralModuleFactory`, which stands above the modules, that these ask for."""

    @property
    def device(self) -> torch.device:
        """Where it runs modules."""

    @property
    def placement(self) -> DeviceType:
        """The same as scripts say it."""


def weights_named(module: TorchModule, names: Iterable[str] | None) -> dict[str, nn.Parameter]:
    """The parameters of these names; all of them for ``None``.

    Raises:
        UnknownNameError: a name that is no parameter of this module.
    """
    parameters = dict(module.named_parameters())
    chosen = list(parameters if names is None else names)
    for name in chosen:
        if name not in parameters:
            raise UnknownNameError("weight", name, parameters, place=module.label)
    return {name: parameters[name] for name in chosen}


def refuse_shape(place: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise UsageError for a weight of another shape."""
    raise UsageError("the shapes differ", place=place, got=str(tuple(got.shape)), wanted=str(tuple(wanted.shape)))


def _install_transposed(owner: nn.Module, leaf: str, shared: nn.Parameter) -> None:
    """Make ``owner.<leaf>`` the transpose of a shared parameter, made when it is read; the gradient flows to that one.

    The parameter stays out of the owner's own ones. It is kept in the object, so that copying both modules together
    copies the tie.
    """

    def transposed(module: nn.Module) -> torch.Tensor:
        parameter: nn.Parameter = module.__dict__["_shared_transposed"][leaf]
        return parameter.t()

    owner.__dict__.setdefault("_shared_transposed", {})[leaf] = shared
    cls = type(owner)
    metaclass: Any = type(cls)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    owner.__class__ = metaclass(cls.__name__, (cls,), {**names, leaf: property(transposed), "of_one_object": True})


class TorchModule(NeuralModule, nn.Module):
    """A NeuralModule that is an ``nn.Module``: called on wires it connects, on tensors it runs ``forward``."""

    # The factory in force, which nemo_lite/factory.py sets.
    default_factory: ClassVar[Factory | None] = None
    _num_declared_outputs: int | None = None

    def __init__(self, name: str | None = None, **first_generation: object) -> None:
        nn.Module.__init__(self)
        NeuralModule.__init__(self, name, **first_generation)
        # Modules written for NeMo 0.x say self.to(self._device) in their constructor.
        factory = TorchModule.default_factory
        self._device = torch.device("cpu") if factory is None else factory.device

    def __call__(self, *args: Value, force_pt: bool = False, **kwargs: Value) -> Value:
        # NeMo's force_pt asked for running. Without it wires, graphs in their place, or nothing at all are connected.
        values = (*args, *kwargs.values())
        if not force_pt and (not values or any(isinstance(value, (NmTensor, Recorder)) for value in values)):
            return self.connect(*args, **kwargs)
        return self.on_values(*args, **kwargs)

    def on_values(self, *args: Value, **kwargs: Value) -> Value:
        """The result of a call with values: the outputs of ``forward``, their number held against the ports."""
        if self.keep_float32 and (torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")):
            return self._in_float32(args, kwargs)
        outputs = nn.Module.__call__(self, *args, **kwargs)
        if self._num_declared_outputs == 1 and not isinstance(outputs, tuple):
            return outputs  # as most modules do, at every step
        return self._as_declared(outputs)

    def _as_declared(self, outputs: Value) -> Value:
        num_declared = self._num_declared_outputs
        if num_declared is None:
            num_declared = self.count_outputs()
        # One output may be a list: a batch of strings, say. A tuple always stands for several.
        several = isinstance(outputs, tuple) or (num_declared > 1 and isinstance(outputs, list))
        if not several and num_declared == 1:
            return outputs
        if several and len(outputs) == num_declared:
            return outputs if num_declared > 1 else outputs[0]
        got = f"{len(outputs)} outputs" if several else f"one {type(outputs).__name__}"
        ports = f"{num_declared} ({', '.join(self.output_ports)})"
        problem = f"{self.port_function} does not return its output ports"
        raise NeuralPortNameMismatchError(problem, place=self.label, got=got, wanted=ports)

    def count_outputs(self) -> int:
        """The number of output ports, counted once. Before compiling: code does not fit an attribute that changed."""
        self._num_declared_outputs = len(self.output_ports)
        return self._num_declared_outputs

    def _in_float32(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Run outside autocast, halves widened: log-mel features and the CTC loss lose too much in them."""
        devices = {value.device.type for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
        # Lengths may lie on the CPU beside values on a GPU; autocast is the GPU's then.
        device = next(iter(devices - {"cpu"}), "cpu")
        if not torch.is_autocast_enabled(device):
            return self._as_declared(nn.Module.__call__(self, *args, **kwargs))
        with torch.autocast(device, enabled=False):
            widened = {key: _widened(value) for key, value in kwargs.items()}
            return self._as_declared(nn.Module.__call__(self, *map(_widened, args), **widened))

    @property
    def factory(self) -> Factory | None:
        """The factory in force: the one made last."""
        return TorchModule.default_factory

    @property
    def placement(self) -> DeviceType:
        """Where the factory in force runs modules; without a factory, on the CPU."""
        factory = self.factory
        return DeviceType.CPU if factory is None else factory.placement

    @property
    def num_weights(self) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def freeze(self, weights: Iterable[str] | None = None) -> None:
        """Exclude weights from training; with none named, all, and the module stays in evaluation mode while training.

        Raises:
            UnknownNameError: a name that is no parameter of this module.
        """
        for parameter in weights_named(self, weights).values():
            parameter.requires_grad_(False)
        if weights is None:
            self.eval()

    def unfreeze(self, weights: Iterable[str] | None = None) -> None:
        """Include weights in training again; with none named, all, and the module goes to training mode."""
        for parameter in weights_named(self, weights).values():
            parameter.requires_grad_(True)
        if weights is None:
            self.train()

    def is_frozen(self) -> bool:
        """Whether it has weights and none of them is trained."""
        parameters = list(self.parameters())
        return bool(parameters) and not any(p.requires_grad for p in parameters)


def _widened(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


T = TypeVar("T")


class _NothingDrawn(TorchFunctionMode):
    """Leaves out normal draws of tensors without values: for one of them torch imports its compiler, for seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, torch.Tensor.normal_):
            tensor: torch.Tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


@contextmanager
def without_weights(yes: bool = True) -> Iterator[None]:
    """In this context modules get shapes but no values, which takes no time: to be shown, not run. Or do nothing."""
    if not yes:
        yield
        return
    with torch.device("meta"), _NothingDrawn():
        yield


class TrainableNM(TorchModule):
    """A module with weights. Subclasses implement ``forward`` with the input ports as parameters.

    Args:
        pretrained_model_name: kept for scripts of NeMo 0.x that pass it on; no weights are downloaded.
        name: its name, see :class:`NeuralModule`.
    """

    def __init__(
        self,
        pretrained_model_name: str | None = None,
        name: str | None = None,
        **first_generation: object,
    ) -> None:
        super().__init__(name, **first_generation)
        if pretrained_model_name is not None:
            raise UsageError(
                f'there is no pretrained model "{pretrained_model_name}"',
                place=type(self).__name__,
                remedy="build the module from its configuration and restore its weights with restore_from(path)",
            )

    type: ClassVar[Any] = ModuleType.trainable

    def _enter(self, operation_mode: OperationMode) -> None:
        """For a graph of evaluation it is in torch's evaluation mode."""
        training = operation_mode is not OperationMode.evaluation and not self.is_frozen()
        if not (training and self.training):  # so that parts which a user put into evaluation mode stay there
            self.train(training)

    def is_trainable(self) -> bool:
        """True: it has weights to train."""
        return True

    def get_weights(self) -> dict[str, tuple[torch.Tensor, bool]]:
        """Every parameter by name, each with whether it is trained."""
        return {name: (p, p.requires_grad) for name, p in self.named_parameters()}

    def set_weights(self, name2weight: Mapping[str, tuple[torch.Tensor, bool]]) -> None:
        """Copy values into parameters and say whether each is trained.

        Raises:
            UnknownNameError: a name that is no parameter of this module.
            UsageError: a value of another shape.
        """
        for name, parameter in weights_named(self, name2weight).items():
            value, trainable = name2weight[name]
            if parameter.shape != value.shape:
                refuse_shape(f"{self.label}.{name}", value, parameter)
            with torch.no_grad():
                parameter.copy_(value)
            parameter.requires_grad_(trainable)

    def tie_weights_with(
        self,
        module: TrainableNM,
        weight_names: Iterable[str],
        name2name_and_transform: Mapping[str, tuple[str, WeightShareTransform]] | None = None,
    ) -> None:
        """Use another module's parameters as our own: one Parameter, trained once.

        Args:
            module: the module whose parameters are used.
            weight_names: names of our parameters.
            name2name_and_transform: our name -> (its name, SAME or TRANSPOSE); by default the same name, SAME.

        Raises:
            UnknownNameError: a name that is no parameter.
            UsageError: shapes that differ.
        """
        for name in weight_names:
            other_name, transform = (name2name_and_transform or {}).get(name, (name, WeightShareTransform.SAME))
            own_weight = weights_named(self, [name])[name]
            shared = weights_named(module, [other_name])[other_name]
            transposed = transform is WeightShareTransform.TRANSPOSE
            if own_weight.shape != (shared.t().shape if transposed else shared.shape):
                refuse_shape(f"{self.label}.{name}", shared, own_weight)
            owner_path, _, leaf = name.rpartition(".")
            owner = self.get_submodule(owner_path)
            delattr(owner, leaf)
            if transposed:
                _install_transposed(owner, leaf, shared)
            else:
                setattr(owner, leaf, shared)

    def save_to(self, path: str | Path) -> None:
        """Write the weights, so that a crash in between leaves the old file.

        With the suffix .pt, .pth or .ckpt it is a state dictionary as NeMo 0.x writes it, else safetensors.
        """
        save_module(self, path)

    def restore_from(self, path: str | Path | BytesIO, local_rank: int = 0) -> None:
        """Read weights: what :meth:`save_to` or NeMo 0.x wrote. Where ``X.pt`` is missing, ``X.safetensors`` is read.

        Raises:
            CheckpointError: the file is missing or damaged, or its keys or shapes differ from the module's.
        """
        load_module(self, path)


class _WithoutWeights(TorchModule):
    """NeMo's methods for weights, where there are none: they do nothing."""

    @property
    def num_weights(self) -> int:
        return 0

    def get_weights(self) -> None:
        """No weights."""

    def set_weights(self, name2weight: object = None) -> None:
        """Nothing to set."""

    def save_to(self, path: str | Path) -> None:
        """Nothing to write."""

    def restore_from(self, path: str | Path, local_rank: int = 0) -> None:
        """Nothing to read."""

    def freeze(self, weights: Iterable[str] | None = None) -> None:
        """Nothing to freeze."""

    def unfreeze(self, weights: Iterable[str] | None = None) -> None:
        """Nothing to train again."""


class NonTrainableNM(_WithoutWeights):
    """A module without weights, e.g. a preprocessor. Subclasses implement ``forward``."""

    type: ClassVar[Any] = ModuleType.nontrainable


def _refuse_to_restore(module: _WithoutWeights) -> None:
    raise NotImplementedError(f"{module.label} ({module}) has no weights to restore")


def _no_loss_function(self: nn.Module, **kwargs: Value) -> torch.Tensor:
    raise NotImplementedError(f"{type(self).__name__} has no _loss_function")


class ItemLosses(NamedTuple):
    """The losses of a batch's items, as a loss tells them to the trainer.

    Attributes:
        losses: (B,).
        counts: (B,) whose sum over all items of a step divides the sum of their losses. None: the number of items.
        is_sum: nothing divides it.
    """

    losses: torch.Tensor
    counts: torch.Tensor | None = None
    is_sum: bool = False


class LossNM(_WithoutWeights):
    """A loss. Subclasses implement ``_loss_function`` with the input ports as parameters; it gives a scalar.

    Attributes:
        when_infinite: what it means that the loss of an item is infinite, for messages.
        why_weak_at_first: why it gives the modules before it little gradient until it has learned, for messages; "": it
            does not.
        item_losses: during a training, takes the losses of a batch's items, see :meth:`mean_over_items`; else None.
    """

    port_function = "_loss_function"
    keep_float32 = True
    when_infinite: ClassVar[str] = ""
    why_weak_at_first: ClassVar[str] = ""
    item_losses: list[ItemLosses] | None = None

    # Declared so, and not as a method, because each subclass has parameters of its own.
    _loss_function: Callable[..., torch.Tensor] = _no_loss_function

    type: ClassVar[Any] = ModuleType.loss

    def restore_from(self, path: str | Path, local_rank: int = 0) -> None:
        """Raise NotImplementedError."""
        _refuse_to_restore(self)

    def forward(self, **kwargs: Value) -> torch.Tensor:
        """The loss of these values, by input port."""
        return self._loss_function(**kwargs)

    def mean_over_items(self, losses: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
        """The mean of the losses (B,) of a batch's items; with counts (B,), their sum divided by the sum of the counts.

        In training, items with an infinite loss are left out: value and gradient are those of a batch without them, and
        the trainer names them. Of a batch that has no other, the mean is infinite and the gradient 0. In evaluation it
        is the plain mean. Of several micro-batches and ranks the trainer makes the mean of all items of a step.

        The backward pass of an infinite loss must itself give 0 for the gradient 0.
        """
        if not self.training:
            return losses.mean() if counts is None else losses.sum() / counts.sum().clamp(min=1)
        self._tell(ItemLosses(losses.detach(), counts))
        is_infinite = losses.isinf()
        count = losses.numel() - is_infinite.sum()
        divisor = count if counts is None else torch.where(is_infinite, 0, counts).sum()
        mean = torch.where(is_infinite, 0.0, losses).sum() / divisor.clamp(min=1)
        return mean + torch.where(count > 0, 0.0, torch.inf)

    def sum_over_items(self, losses: torch.Tensor) -> torch.Tensor:
        """The sum of the losses (B,) of a batch's items, over all micro-batches and ranks of a step.

        In training, items with an infinite loss are left out, as by :meth:`mean_over_items`.
        """
        if not self.training:
            return losses.sum()
        self._tell(ItemLosses(losses.detach(), is_sum=True))
        is_infinite = losses.isinf()
        return torch.where(is_infinite, 0.0, losses).sum() + torch.where(is_infinite.all(), torch.inf, 0.0)

    def _tell(self, losses: ItemLosses) -> None:
        if self.item_losses is not None:
            self.item_losses.append(losses)


class _LoaderSetting(Generic[T]):
    """An attribute ``x`` of a data layer that is read from ``_x`` and set there; ``default`` where it was not set."""

    def __init__(self, default: Callable[[], T]) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, layer: object, owner: type) -> Any:
        if layer is None:
            return self
        value = getattr(layer, self.name, None)
        return self.default() if value is None else value

    def __set__(self, layer: object, value: T | None) -> None:
        setattr(layer, self.name, value)


class DataLayerNM(_WithoutWeights):
    """The source of a DAG. Subclasses implement ``__len__`` and either ``dataset`` or ``data_iterator``.

    ``batch_size``, ``shuffle``, ``drop_last``, ``num_workers``, ``pin_memory``, ``worker_timeout``,
    ``multiprocessing_context`` and ``collate_fn`` are read from the attribute of that name, or of that name with an
    underscore. Without ``num_workers`` and ``pin_memory``, or with None, batches are loaded as it suits the factory's
    device. ``worker_timeout`` is how many seconds a batch of the workers may take before the run ends; 0: for ever.
    ``multiprocessing_context`` is how workers start, as torch's DataLoader takes it: ``fork``, ``spawn`` or
    ``forkserver``. Without it a server forks them, and this process those that need what only it has.
    """

    batch_size = _LoaderSetting(lambda: 1)
    shuffle = _LoaderSetting(lambda: False)
    num_workers = _LoaderSetting(lambda: os.cpu_count() or 1)
    pin_memory = _LoaderSetting(lambda: False)
    worker_timeout = _LoaderSetting(lambda: SILENCE_SECONDS)

    amount_unit: ClassVar[str] = "items"
    # Machines differ in processors and memory; items and their order do not depend on it.
    may_differ: ClassVar[tuple[str, ...]] = (
        "name",
        "num_workers",
        "pin_memory",
        "worker_timeout",
        "multiprocessing_context",
    )

    type: ClassVar[Any] = ModuleType.datalayer

    def restore_from(self, path: str | Path, local_rank: int = 0) -> None:
        """Raise NotImplementedError."""
        _refuse_to_restore(self)

    def compared_in_evaluation(self) -> Mapping[str, object]:
        """None: other data are read in another way. Subclasses name what decides on the meaning of a batch."""
        return {}

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say how many items it has")

    def __bool__(self) -> bool:
        return True  # an empty data layer is still a module

    @property
    def dataset(self) -> Dataset[Value] | None:
        """A map-style data set whose items are tuples in port order."""
        return None

    @property
    def data_iterator(self) -> Iterable[object] | None:
        """An iterable over batches, where there is no ``dataset``; it is read anew for each epoch."""
        return None

    def setting(self, name: str, default: object) -> Any:
        """The value of the attribute ``name`` or ``_name``."""
        if isinstance(inspect.getattr_static(type(self), name, None), _LoaderSetting):
            return getattr(self, f"_{name}", default)
        return getattr(self, name, getattr(self, f"_{name}", default))

    def place_of(self, item: int) -> str:
        """Where an item comes from, for messages."""
        return f"{self.label}[{item}]"

    def id_of(self, item: int) -> str:
        """A name of an item that is the same on every machine, wherever the data lie."""
        return str(item)

    def digest_of(self, items: Iterable[int]) -> str:
        """A hash of the names of items, repeated ones included: equal for equal sets, in any order."""
        names = "\n".join(map(self.id_of, sorted(items)))
        return hashlib.sha256(names.encode(errors="surrogatepass")).hexdigest()[:16]

    def largest_batch(self) -> Sequence[Value] | None:
        """A made-up batch, in port order, as large as any that training may read; None: it is not known."""
        return None

    def copied(self) -> Copied | None:
        """The files of its items, which are to be the same on all machines and are compared; by default none are.

        What :meth:`fingerprint` tells of is compared at the start.
        """
        return None

    def report_unusable(self) -> None:
        """List what could not be used: called at the end of training. By default nothing is skipped."""

    def loader(self, *, training: bool, shard: Shard) -> BatchLoader:
        """The batches of one rank. In evaluation nothing is shuffled, dropped or repeated.

        In evaluation on several ranks each reads all of a ``data_iterator`` and keeps every ``world_size``-th batch.

        Raises:
            UsageError: both or neither of ``dataset`` and ``data_iterator`` are there, ``dataset`` is an
                IterableDataset, or there is a ``data_iterator`` for training on several ranks: only the data layer
                itself could divide it.
        """
        dataset, iterator = self.dataset, self.data_iterator
        if (dataset is None) == (iterator is None):
            got = "neither" if dataset is None else "both"
            raise UsageError("a data layer has a dataset or a data_iterator", place=self.label, got=got)
        ports = list(self.output_ports)
        if dataset is None:
            if training and shard.world_size > 1:
                remedy = "give it a dataset, or its own loader()"
                raise UsageError("a data_iterator is not divided among ranks", place=self.label, remedy=remedy)
            return IteratorLoader(self._batches, ports, shard, numbered=not training)
        if isinstance(dataset, IterableDataset):
            remedy = "give batches of it as data_iterator"
            raise UsageError("dataset is read by position", place=self.label, got="an IterableDataset", remedy=remedy)
        size, drop_last = self.setting("batch_size", 1), self.setting("drop_last", False)
        batching = Batching(size if size > 0 else -1, self.setting("shuffle", False), drop_last=drop_last)
        # The data set's own length: a layer's that differs would leave items out, or ask for some that are not there.
        num_items = len(dataset) if isinstance(dataset, Sized) else len(self)
        return DatasetLoader(
            dataset,
            plans(num_items, batching, shard, training=training),
            ports,
            shard,
            collate_fn=self.setting("collate_fn", None),
            num_workers=self.setting("num_workers", None),
            pin_memory=self.setting("pin_memory", None),
            device=self._device,
            worker_timeout=self.setting("worker_timeout", None),
            multiprocessing_context=self.setting("multiprocessing_context", None),
        )

    def _batches(self) -> Iterable[object]:
        iterator = self.data_iterator
        assert iterator is not None
        return iterator


class TrainableNeuralModuleWrapper(TrainableNM):
    """Makes a typed module of an ``nn.Module``.

    The inputs are handed to it in the order of ``input_ports_dict``. Its parameters keep their names in checkpoints.

    Args:
        pt_nn_module: the module.
        input_ports_dict: its inputs, in the order of its ``forward``.
        output_ports_dict: its outputs, in the order in which it returns them.
        name: its name.
    """

    def __init__(
        self, pt_nn_module: nn.Module, input_ports_dict: Ports, output_ports_dict: Ports, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self._input_ports, self._output_ports = dict(input_ports_dict), dict(output_ports_dict)
        self._pt_module = pt_nn_module

    @property
    def input_ports(self) -> Ports:
        return self._input_ports

    @property
    def output_ports(self) -> Ports:
        return self._output_ports

    def forward(self, **inputs: Value) -> Value:
        """The wrapped module's outputs for these values, by input port."""
        return self._pt_module(*(inputs[port] for port in self._input_ports if port in inputs))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's own."""
        return self._pt_module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the wrapped module."""
        return self._pt_module.load_state_dict(*args, **kwargs)
