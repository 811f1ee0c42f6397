"""ZerosDataLayer: a data layer of zeros of any types, for trying modules out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.config.ranges import Between, Items
from nemo_lite.core.graph.ports import Ports
from nemo_lite.core.neural_types import AxisKind, NeuralType
from nemo_lite.errors import UsageError

Sizes: TypeAlias = Annotated[Sequence[Annotated[int, Between(0, 10_000_000)]], Items(0, 16)]
DType = torch.dtype | type[Tensor] | None


def neuralType2TensorShape(  # noqa: N802  # NeMo's name
    neural_type: NeuralType, default_dim: int = 32, skip_batch_axis: bool = True
) -> list[int]:
    """A shape for a type: the sizes of its axes, and for those without one a default."""
    axes = neural_type.axes or ()
    return [axis.size or default_dim for axis in axes if not (skip_batch_axis and axis.kind == AxisKind.Batch)]


class _Zeros(Dataset[tuple[Tensor, ...]]):
    def __init__(self, size: int, shapes: Sequence[Sequence[int]], dtypes: Sequence[DType]) -> None:
        self._size, self._shapes, self._dtypes = size, shapes, dtypes

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        zeros = [torch.zeros(tuple(shape)) for shape in self._shapes]
        return tuple(z if t is None else _of_type(z, t) for z, t in zip(zeros, self._dtypes, strict=True))


def _of_type(values: Tensor, dtype: torch.dtype | type[Tensor]) -> Tensor:
    return values.type(dtype)  # type: ignore[arg-type]  # it takes types of tensors too


class ZerosDataLayer(DataLayerNM):
    """Items of zeros.

    Args:
        size: number of items.
        output_ports: types by port.
        dtype: torch's type of the tensors, such as ``torch.long`` or ``torch.LongTensor``, or one for each port; by
            default float32.
        batch_size: items in a batch.
        shapes: of an item, one for each port, in their order; by default those of the types, with 32 for axes without
            a size.
        name: its name.

    Raises:
        UsageError: not one type or shape for each port.
    """

    def __init__(
        self,
        size: Annotated[int, Between(0, 2**62)],
        output_ports: Ports,
        dtype: DType | Sequence[DType] = None,
        batch_size: Annotated[int, Between(1, 1_000_000, also=(-1,))] = 1,
        shapes: Annotated[Sequence[Sizes], Items(0, 100)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._ports, self._batch_size, self._shuffle = dict(output_ports), batch_size, False
        dtypes: list[DType] = list(dtype) if isinstance(dtype, Sequence) else [dtype] * len(self._ports)
        given = [neuralType2TensorShape(ntype) for ntype in self._ports.values()] if shapes is None else list(shapes)
        for what, values in (("dtype", dtypes), ("shapes", given)):
            if len(values) != len(self._ports):
                wanted = f"{len(self._ports)}, one for each of {', '.join(self._ports)}"
                raise UsageError(
                    f"{what} does not fit the ports", place=self.label, got=str(len(values)), wanted=wanted
                )
        self._zeros = _Zeros(size, given, dtypes)

    @property
    def output_ports(self) -> Ports:
        return self._ports

    def __len__(self) -> int:
        return len(self._zeros)

    @property
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        return self._zeros
