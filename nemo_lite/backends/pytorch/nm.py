"""NeMo's base classes of neural modules (hence ``nm``): trainable or not, data layer, loss. Nothing runs here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from nemo_lite.backends.pytorch.checkpoint.storage import load_module, save_module
from nemo_lite.backends.pytorch.data import Batching, BatchLoader, DatasetLoader, IteratorLoader, Shard, plans
from nemo_lite.backends.pytorch.data.workers import SILENCE_SECONDS
from nemo_lite.backends.pytorch.distributed import Copied as Copied
from nemo_lite.backends.pytorch.torch_module import TorchModule
from nemo_lite.backends.pytorch.weight_tying import refuse_shape, tie, weights_named
from nemo_lite.config.ranges import Letters
from nemo_lite.core.graph.kinds import ModuleType, OperationMode
from nemo_lite.core.graph.kinds import WeightShareTransform as WeightShareTransform
from nemo_lite.errors import UsageError

# Any: values of wires are tensors, lists or numbers.

T = TypeVar("T")


def without_weights(yes: bool = True) -> AbstractContextManager[object]:
    """In this context modules get shapes but no values, which takes no time: to be shown, not run. Or do nothing."""
    return torch.device("meta") if yes else nullcontext()


class TrainableNM(TorchModule):
    """A module with weights. Subclasses implement ``forward`` with the input ports as parameters.

    Args:
        pretrained_model_name: kept for scripts of NeMo 0.x that pass it on; no weights are downloaded.
        name: its name, see :class:`NeuralModule`.
    """

    def __init__(
        self,
        pretrained_model_name: Annotated[str, Letters(256)] | None = None,
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

    @property
    def operation_mode(self) -> OperationMode:
        """What the graph that it was called in last is for: for evaluation it is in torch's evaluation mode."""
        return self._operation_mode

    @operation_mode.setter
    def operation_mode(self, operation_mode: OperationMode) -> None:
        self._operation_mode = operation_mode
        self.train(operation_mode is not OperationMode.evaluation and not self.is_frozen())

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
        tie(self, module, weight_names, name2name_and_transform or {})

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


def _no_loss_function(self: nn.Module, **kwargs: Any) -> torch.Tensor:
    raise NotImplementedError(f"{type(self).__name__} has no _loss_function")


class LossNM(_WithoutWeights):
    """A loss. Subclasses implement ``_loss_function`` with the input ports as parameters; it gives a scalar.

    Attributes:
        when_infinite: what it means that the loss of an item is infinite, for messages.
        item_losses: where a trainer wants the losses of a batch's items, see :meth:`mean_over_items`.
    """

    port_function = "_loss_function"
    keep_float32 = True
    when_infinite: ClassVar[str] = ""
    item_losses: list[torch.Tensor] | None = None

    # Declared so, and not as a method, because each subclass has parameters of its own.
    _loss_function: Callable[..., torch.Tensor] = _no_loss_function

    type: ClassVar[Any] = ModuleType.loss

    def restore_from(self, path: str | Path, local_rank: int = 0) -> None:
        """Raise NotImplementedError."""
        _refuse_to_restore(self)

    def forward(self, **kwargs: Any) -> torch.Tensor:
        """The loss of these values, by input port."""
        return self._loss_function(**kwargs)

    def mean_over_items(self, losses: torch.Tensor) -> torch.Tensor:
        """The mean of the losses (B,) of a batch's items.

        In training, items with an infinite loss are left out: value and gradient are those of a batch without them, and
        the trainer names them. Of a batch that has no other, the mean is infinite and the gradient 0. In evaluation it
        is the plain mean.

        The backward pass of an infinite loss must itself give 0 for the gradient 0.
        """
        if not self.training:
            return losses.mean()
        if self.item_losses is not None:
            self.item_losses.append(losses.detach())
        is_infinite = losses.isinf()
        count = losses.numel() - is_infinite.sum()
        mean = torch.where(is_infinite, 0.0, losses).sum() / count.clamp(min=1)
        return mean + torch.where(count > 0, 0.0, torch.inf)


class _LoaderSetting(Generic[T]):
    """An attribute ``x`` of a data layer that is read from ``_x`` and set there; ``default`` where it was not set."""

    def __init__(self, default: Callable[[], T]) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is None:
            return self
        value = getattr(layer, self.name, None)
        return self.default() if value is None else value

    def __set__(self, layer: Any, value: T | None) -> None:
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

    def compared_in_evaluation(self) -> Mapping[str, Any]:
        """None: other data are read in another way. Subclasses name what decides on the meaning of a batch."""
        return {}

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say how many items it has")

    def __bool__(self) -> bool:
        return True  # an empty data layer is still a module

    @property
    def dataset(self) -> Dataset[Any] | None:
        """A map-style data set whose items are tuples in port order."""
        return None

    @property
    def data_iterator(self) -> Iterable[Any] | None:
        """An iterable over batches, where there is no ``dataset``; it is read anew for each epoch."""
        return None

    def setting(self, name: str, default: Any) -> Any:
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

    def _batches(self) -> Iterable[Any]:
        iterator = self.data_iterator
        assert iterator is not None
        return iterator
