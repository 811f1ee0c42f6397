"""Modules of several uses at NeMo's places: losses, joined data layers, zeros, small networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Annotated, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from nemo_lite.backends.pytorch.nm import DataLayerNM, LossNM, NonTrainableNM, TrainableNM
from nemo_lite.base.errors import CountError, MissingOptionError, UnknownNameError, UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import (
    AxisKind,
    ChannelType,
    LabelsType,
    LogitsType,
    LogprobsType,
    LossType,
    MaskType,
    NeuralType,
    RegressionValuesType,
    Value,
    VoidType,
)
from nemo_lite.core.ports import Ports

LOSS = NeuralType(None, LossType())
Share: TypeAlias = Annotated[float, Between(0, 1)]
_REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(reduction: str, place: str) -> str:
    if reduction not in _REDUCTIONS:
        raise UnknownNameError("reduction", reduction, _REDUCTIONS, place=place)
    return reduction


class SequenceLoss(LossNM):
    """Cross-entropy of sequences with label smoothing: padding does not count.

    A position's loss is ``-((1 - s) * log p(target) + s * mean(log p))`` with s = ``smoothing_coef``.
    Source: Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016, section 7.

    Args:
        pad_id: positions with this target do not count.
        smoothing_coef: s.
        sample_wise: divide the sum by the number of sequences, instead of positions.
        aux_ctc: add the CTC loss of the same log-probabilities.
        ctc_initial_coef: its weight.
        ctc_blank_id: its blank.
        eps: added to the number of positions.
        name: its name.

    Raises:
        MissingOptionError: an AssertionError: ``aux_ctc`` without ``ctc_blank_id``.
    """

    input_ports = {"log_probs": NeuralType("B T D", LogprobsType()), "targets": NeuralType("B T", LabelsType())}
    output_ports = {"loss": LOSS}

    def __init__(
        self,
        pad_id: int = 0,
        smoothing_coef: Share = 0.0,
        sample_wise: bool = False,
        aux_ctc: bool = False,
        ctc_initial_coef: float = 0.1,
        ctc_blank_id: int | None = None,
        eps: float = 1e-5,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if aux_ctc and ctc_blank_id is None:
            raise MissingOptionError("aux_ctc needs the blank", place=self.label, remedy="give ctc_blank_id")
        self._pad, self._smoothing, self._sample_wise, self._eps = pad_id, smoothing_coef, sample_wise, eps
        self._blank, self._ctc_coef = ctc_blank_id if aux_ctc else None, ctc_initial_coef

    def _loss_function(self, log_probs: Tensor, targets: Tensor) -> Tensor:
        """(B, T, classes), (B, T) -> scalar."""
        targets = targets.long()
        counted = targets != self._pad
        chosen = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)
        gains = (1 - self._smoothing) * chosen + self._smoothing * log_probs.mean(2)
        # Not a product with the mask: a log-probability of minus infinity times 0 is not a number.
        total = -torch.where(counted, gains, 0.0).sum()
        loss = total / (len(targets) if self._sample_wise else counted.sum() + self._eps)
        if self._blank is None:
            return loss
        frames = torch.full((len(targets),), log_probs.shape[1], device=targets.device)
        ctc = F.ctc_loss(log_probs.transpose(0, 1), targets, frames, counted.sum(1), self._blank, zero_infinity=True)
        return loss + self._ctc_coef * ctc


class _MaskedLogitsLoss(LossNM):
    """A loss between logits and labels, over all positions or over those of a mask.

    Args:
        logits_ndim: axes of the logits.
        weight: one weight for each class.
        reduction: mean, sum or none.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: fewer axes than the loss needs.
        UnknownNameError: an unknown reduction.
    """

    _least_axes: ClassVar[int] = 0  # of the logits
    _weight: Tensor | None

    def __init__(
        self,
        logits_ndim: int = 2,
        weight: Sequence[float] | None = None,
        reduction: str = "mean",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._num_axes, self._reduction = logits_ndim, _check_reduction(reduction, type(self).__name__)
        weights = None if weight is None else torch.tensor(weight, dtype=torch.float32)
        self.register_buffer("_weight", weights, persistent=False)
        if logits_ndim < self._least_axes:
            problem, wanted = "logits have a batch and a class axis", f"{self._least_axes} or more"
            raise UsageError(problem, got=f"logits_ndim={logits_ndim}", wanted=wanted)

    @property
    def output_ports(self) -> Ports:
        return {"loss": LOSS}

    def _ports(self, num_label_axes: int) -> Ports:
        axes = ["B"] + ["ANY"] * (self._num_axes - 1)
        of_labels = axes[:num_label_axes]
        return {
            "logits": NeuralType(axes, LogitsType()),
            "labels": NeuralType(of_labels, LabelsType()),
            "loss_mask": NeuralType(of_labels, MaskType(), optional=True),
        }


class CrossEntropyLossNM(_MaskedLogitsLoss):
    """Cross-entropy between logits and labels, over all positions or over those of a mask.

    Args:
        logits_ndim: axes of the logits; the last one counts classes, labels and mask have the others.
        weight: one weight for each class.
        reduction: mean, sum or none.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: fewer than two axes.
        UnknownNameError: an unknown reduction.
    """

    _least_axes = 2

    @property
    def input_ports(self) -> Ports:
        return self._ports(self._num_axes - 1)

    def _loss_function(self, logits: Tensor, labels: Tensor, loss_mask: Tensor | None = None) -> Tensor:
        """(B, ..., classes), (B, ...), a mask (B, ...) whose values above 0.5 count -> scalar; 0 if nothing counts."""
        logits, labels = logits.flatten(0, -2), labels.flatten().long()
        if loss_mask is not None:
            counted = loss_mask.flatten() > 0.5
            logits, labels = logits[counted], labels[counted]
        if not len(labels) and self._reduction == "mean":
            return logits.sum()
        return F.cross_entropy(logits, labels, weight=self._weight, reduction=self._reduction)


class BCEWithLogitsLossNM(_MaskedLogitsLoss):
    """Binary cross-entropy between logits and labels of the same shape, over all values or over those of a mask.

    Args:
        logits_ndim: axes of logits, labels and mask.
        weight: a factor for each class: for the values along the last axis.
        reduction: mean, sum or none.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UnknownNameError: an unknown reduction.
    """

    @property
    def input_ports(self) -> Ports:
        return self._ports(self._num_axes)

    def _loss_function(self, logits: Tensor, labels: Tensor, loss_mask: Tensor | None = None) -> Tensor:
        """(B, ...), (B, ...), a mask (B, ...) whose values above 0.5 count -> scalar; 0 if nothing counts."""
        weight = None if self._weight is None else self._weight.expand_as(logits)
        if loss_mask is not None:
            counted = loss_mask > 0.5
            logits, labels = logits[counted], labels[counted]
            weight = None if weight is None else weight[counted]
        if not labels.numel() and self._reduction == "mean":
            return logits.sum()
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), weight, reduction=self._reduction)


class MSELoss(LossNM):
    """Mean squared error of one number for each item.

    Args:
        reduction: mean, sum or none.
        name: its name.

    Raises:
        UnknownNameError: an unknown reduction.
    """

    input_ports = {"preds": NeuralType("B", RegressionValuesType()), "labels": NeuralType("B", LabelsType())}
    output_ports = {"loss": LOSS}

    def __init__(self, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__(name=name)
        self._reduction = _check_reduction(reduction, "MSELoss")

    def _loss_function(self, preds: Tensor, labels: Tensor) -> Tensor:
        """(B,), (B,) -> scalar."""
        return F.mse_loss(preds, labels.to(preds.dtype), reduction=self._reduction)


class LossAggregatorNM(LossNM):
    """The sum of losses, each with a weight.

    Args:
        num_inputs: how many; their ports are ``loss_1``, ``loss_2``, ...
        weights: one for each; by default all are 1.
        name: its name.

    Raises:
        UsageError: not one weight for each loss.
    """

    def __init__(
        self,
        num_inputs: int = 2,
        weights: Sequence[float] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if weights is not None and len(weights) != num_inputs:
            got, wanted = f"{len(weights)} weights", f"{num_inputs}, one for each loss"
            raise UsageError("weights do not fit the losses", place=self.label, got=got, wanted=wanted)
        factors = [1.0] * num_inputs if weights is None else [float(weight) for weight in weights]
        self._weights = {f"loss_{number}": factor for number, factor in enumerate(factors, 1)}

    @property
    def input_ports(self) -> Ports:
        return dict.fromkeys(self._weights, LOSS)

    @property
    def output_ports(self) -> Ports:
        return {"loss": LOSS}

    def _loss_function(self, **losses: Tensor) -> Tensor:
        """Scalars -> scalar."""
        return torch.stack([self._weights[port] * loss for port, loss in losses.items()]).sum()


def char_lm_metrics(
    chars_log_probs_batches: Iterable[Tensor],
    chars_targets_batches: Iterable[Tensor],
    targets_texts_batches: Iterable[Sequence[str]],
    pad_id: int,
) -> tuple[list[float], list[float]]:
    """Bits per character and perplexity per word, for each batch.

    Args:
        chars_log_probs_batches: ``(B, T, classes)`` each, natural logarithms.
        chars_targets_batches: ``(B, T)`` each, ids of characters.
        targets_texts_batches: the texts of each batch, whose words are counted; no words at all count as one.
        pad_id: positions with this target do not count.
    """
    bits_per_character, perplexities = [], []
    for log_probs, targets, texts in zip(
        chars_log_probs_batches, chars_targets_batches, targets_texts_batches, strict=True
    ):
        counted = targets != pad_id
        nats = -float(log_probs.gather(2, targets.long().unsqueeze(2)).squeeze(2)[counted].sum())
        num_words = max(sum(len(text.split()) for text in texts), 1)
        bits_per_character.append(nats / math.log(2) / max(int(counted.sum()), 1))
        perplexities.append(math.exp(nats / num_words))
    return bits_per_character, perplexities


class DataCombination(Enum):
    """How items of several data sets go together."""

    CROSSPRODUCT = 1
    ZIP = 2


class MultiDataset(Dataset[tuple[Value, ...]]):
    """Items of several data sets, joined to one tuple.

    Args:
        datasets: the data sets; an item that is no tuple is taken as one of one value.
        combination_mode: ZIP joins the items of one position; CROSSPRODUCT gives every combination once, the last data
            set's items changing fastest.

    Raises:
        UsageError: another mode, or data sets of different lengths for ZIP.
    """

    def __init__(
        self, datasets: Sequence[Dataset[Value]], combination_mode: DataCombination = DataCombination.CROSSPRODUCT
    ) -> None:
        if not isinstance(combination_mode, DataCombination):
            wanted = "DataCombination.CROSSPRODUCT or DataCombination.ZIP"
            raise UsageError("combination_mode is not known", got=repr(combination_mode), wanted=wanted)
        self._datasets, self._lengths = list(datasets), [len(dataset) for dataset in datasets]  # type: ignore[arg-type]
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
        positions = []
        for length in reversed(self._lengths):
            index, position = divmod(index, length)
            positions.append(position)
        return positions[::-1]

    def parts(self, index: int) -> list[tuple[object, ...]]:
        """The items of the data sets that make up one item."""
        items = [dataset[at] for dataset, at in zip(self._datasets, self.positions(index), strict=True)]
        return [tuple(item) if isinstance(item, (tuple, list)) else (item,) for item in items]

    def __getitem__(self, index: int) -> tuple[Value, ...]:
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
        batch_size: int,
        shuffle: bool = False,
        combination_mode: DataCombination = DataCombination.CROSSPRODUCT,
        port_names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._layers, self._batch_size, self._shuffle = list(data_layers), batch_size, shuffle
        datasets = [layer.dataset for layer in self._layers]
        for layer, dataset in zip(self._layers, datasets, strict=True):
            if dataset is None:
                raise UsageError("a data layer without a dataset cannot be joined", place=layer.label)
        self._dataset = MultiDataset([dataset for dataset in datasets if dataset is not None], combination_mode)
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
                default = f"{port}_{number}" if port in ports else port
                ports[default if names is None else names[len(ports)]] = ntype
        return ports

    def _collated(self, items: Sequence[tuple[object, ...]]) -> tuple[object, ...]:
        batch: list[Value] = []
        for layer, width in zip(self._layers, self._widths, strict=True):
            start = len(batch)
            collate: Callable[[list[Value]], Value] = layer.setting("collate_fn", None) or default_collate
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


class SequenceEmbedding(TrainableNM):
    """A vector for each token, with dropout; nothing about positions.

    Shapes: input_seq ``(B, T)``, outputs ``(B, T, hidden_size)``.

    Args:
        voc_size: number of tokens.
        hidden_size: width of the vectors.
        dropout: share of the values that are dropped in training.
        name: its name.
    """

    input_ports = {"input_seq": NeuralType("B T", VoidType())}
    output_ports = {"outputs": NeuralType("B T C", ChannelType())}

    def __init__(
        self,
        voc_size: int,
        hidden_size: int,
        dropout: Share = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.embedding = nn.Embedding(voc_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_seq: Tensor) -> Tensor:
        """``(B, T)`` ids to ``(B, T, hidden_size)``."""
        outputs: Tensor = self.dropout(self.embedding(input_seq))
        return outputs


class ZerosLikeNM(NonTrainableNM):
    """Integer zeros in the shape of the input."""

    input_ports = {"input_type_ids": NeuralType("B T", VoidType())}
    output_ports = {"input_type_ids": NeuralType("B T", ChannelType())}

    def forward(self, input_type_ids: Tensor) -> Tensor:
        """``(B, T)`` to zeros ``(B, T)`` of type int64."""
        return torch.zeros_like(input_type_ids, dtype=torch.long)


class MultiLayerPerceptron(nn.Module):
    """Linear layers of one width with activations between them, and one to the classes.

    Shapes: ``(..., hidden_size)`` to ``(..., num_classes)``.

    Args:
        hidden_size: width.
        num_classes: outputs.
        device: where the weights are.
        num_layers: linear layers, the last one included.
        activation: name of a function of ``torch``: relu, tanh, ...
        log_softmax: give log-probabilities instead of logits.

    Raises:
        UnknownNameError: torch has no such function.
    """

    def __init__(
        self,
        hidden_size: int,
        num_classes: int,
        device: torch.device | str | None = None,
        num_layers: int = 2,
        activation: str = "relu",
        log_softmax: bool = True,
    ) -> None:
        super().__init__()
        if not callable(getattr(torch, activation, None)):
            names = ("relu", "tanh", "sigmoid", "selu")
            raise UnknownNameError("activation", activation, names, place=type(self).__name__)
        self.log_softmax = log_softmax
        self._activation, self._names = activation, [f"layer{2 * number}" for number in range(num_layers)]
        for name in self._names:  # in NeMo the activations between them have the odd numbers
            width = num_classes if name == self._names[-1] else hidden_size
            self.add_module(name, nn.Linear(hidden_size, width, device=device))

    @property
    def last_linear_layer(self) -> nn.Module:
        """The layer that gives the classes."""
        return self.get_submodule(self._names[-1])

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``(..., hidden_size)`` to ``(..., num_classes)``."""
        for name in self._names[:-1]:
            hidden_states = getattr(torch, self._activation)(self.get_submodule(name)(hidden_states))
        logits: Tensor = self.last_linear_layer(hidden_states)
        return logits.log_softmax(-1) if self.log_softmax else logits


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
        pairs = zip(zeros, self._dtypes, strict=True)
        return tuple(z if t is None else z.type(t) for z, t in pairs)  # type: ignore[arg-type]  # types of tensors too


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
        size: int,
        output_ports: Ports,
        dtype: DType | Sequence[DType] = None,
        batch_size: int = 1,
        shapes: Sequence[Sequence[int]] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._ports, self._batch_size, self._shuffle = dict(output_ports), batch_size, False
        dtypes: list[DType] = list(dtype) if isinstance(dtype, Sequence) else [dtype] * len(self._ports)
        item_shapes = (
            [neuralType2TensorShape(ntype) for ntype in self._ports.values()] if shapes is None else list(shapes)
        )
        for what, values in (("dtype", dtypes), ("shapes", item_shapes)):
            if len(values) != len(self._ports):
                wanted = f"{len(self._ports)}, one for each of {', '.join(self._ports)}"
                raise UsageError(
                    f"{what} does not fit the ports", place=self.label, got=str(len(values)), wanted=wanted
                )
        self._zeros = _Zeros(size, item_shapes, dtypes)

    @property
    def output_ports(self) -> Ports:
        return self._ports

    def __len__(self) -> int:
        return len(self._zeros)

    @property
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        return self._zeros
