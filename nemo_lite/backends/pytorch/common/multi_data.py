"""MultiDataLayer: several data layers as one, item by item or in all combinations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any

from torch.utils.data import Dataset, default_collate

from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.config.ranges import Between, Items, Letters
from nemo_lite.core.graph.ports import Ports
from nemo_lite.errors import CountError, UsageError

# Any: items and batches are what data sets give.


class DataCombination(Enum):
    """How items of several data sets go together."""

    CROSSPRODUCT = 1
    ZIP = 2


class MultiDataset(Dataset[tuple[Any, ...]]):
    """Items of several data sets, joined to one tuple.

    Args:
        datasets: the data sets; an item that is no tuple is taken as one of one value.
        combination_mode: ZIP joins the items of one position; CROSSPRODUCT gives every combination once, the last data
            set's items changing fastest.

    Raises:
        UsageError: another mode, or data sets of different lengths for ZIP.
    """

    def __init__(
        self, datasets: Sequence[Dataset[Any]], combination_mode: DataCombination = DataCombination.CROSSPRODUCT
    ) -> None:
        if not isinstance(combination_mode, DataCombination):
            wanted = "DataCombination.CROSSPRODUCT or DataCombination.ZIP"
            raise UsageError("combination_mode is not known", got=repr(combination_mode), wanted=wanted)
        self._datasets, self._lengths = list(datasets), [len(each) for each in datasets]  # type: ignore[arg-type]
        self._is_zip = combination_mode is DataCombination.ZIP
        if self._is_zip and len(set(self._lengths)) > 1:
            got = ", ".join(map(str, self._lengths))
            raise UsageError("ZIP joins data sets of one length", got=got, remedy="use DataCombination.CROSSPRODUCT")

    def __len__(self) -> int:
        return self._lengths[0] if self._is_zip else math.prod(self._lengths)

    def positions(self, index: int) -> list[int]:
        """The position in each data set of the item at ``index``."""
        if self._is_zip:
            return [index] * len(self._lengths)
        found = []
        for length in reversed(self._lengths):
            index, position = divmod(index, length)
            found.append(position)
        return found[::-1]

    def parts(self, index: int) -> list[tuple[Any, ...]]:
        """The items of the data sets that make up one item."""
        items = [dataset[at] for dataset, at in zip(self._datasets, self.positions(index), strict=True)]
        return [tuple(item) if isinstance(item, (tuple, list)) else (item,) for item in items]

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(value for part in self.parts(index) for value in part)


class MultiDataLayer(DataLayerNM):
    """Several data layers as one. Each layer's values are collated by its own ``collate_fn``, where it has one.

    Args:
        data_layers: layers that have a ``dataset``.
        batch_size: items in a batch.
        shuffle: whether training takes the items in another order in each epoch.
        combination_mode: see :class:`MultiDataset`.
        port_names: new names of all ports, in the order of layers and ports. Without them a port whose name an earlier
            layer has is called ``PORT_LAYER``, with the number of its layer.
        name: its name.

    Raises:
        UsageError: a layer without a data set, another mode, or layers of different lengths for ZIP.
        CountError: an IndexError: not one name for each port.
    """

    def __init__(
        self,
        data_layers: Sequence[DataLayerNM],
        batch_size: Annotated[int, Between(1, 1_000_000, also=(-1,))],
        shuffle: bool = False,
        combination_mode: DataCombination = DataCombination.CROSSPRODUCT,
        port_names: Annotated[Sequence[Annotated[str, Letters(256)]], Items(0, 1_000)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._layers, self._batch_size, self._shuffle = list(data_layers), batch_size, shuffle
        datasets = [layer.dataset for layer in self._layers]
        for layer, dataset in zip(self._layers, datasets, strict=True):
            if dataset is None:
                raise UsageError("a data layer without a dataset cannot be joined", place=layer.label)
        self._dataset = MultiDataset([each for each in datasets if each is not None], combination_mode)
        self._widths = [len(layer.output_ports) for layer in self._layers]
        self._ports = self._named(port_names)
        self.collate_fn = self._collated

    def _named(self, port_names: Sequence[str] | None) -> Ports:
        ports: Ports = {}
        names = None if port_names is None else list(port_names)
        if names is not None and len(names) != sum(self._widths):
            raise CountError(
                "port_names names every port", place=self.label, got=str(len(names)), wanted=str(sum(self._widths))
            )
        for number, layer in enumerate(self._layers):
            for port, ntype in layer.output_ports.items():
                own = f"{port}_{number}" if port in ports else port
                ports[own if names is None else names[len(ports)]] = ntype
        return ports

    def _collated(self, items: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        batch: list[Any] = []
        for layer, width in zip(self._layers, self._widths, strict=True):
            start = len(batch)
            collate: Callable[[list[Any]], Any] = layer.setting("collate_fn", None) or default_collate
            batch += collate([item[start : start + width] for item in items])
        return tuple(batch)

    @property
    def output_ports(self) -> Ports:
        return self._ports

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def dataset(self) -> MultiDataset:
        return self._dataset
