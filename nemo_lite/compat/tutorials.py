"""NeMo's first example: the smallest complete data layer, network and losses."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from nemo_lite.backends.pytorch.nm import DataLayerNM, LossNM, TrainableNM
from nemo_lite.base.aliases import tell_of_missing
from nemo_lite.base.errors import UnknownNameError
from nemo_lite.core.neural_types import ChannelType, LabelsType, LossType, NeuralType

_FUNCTIONS = {"sin": torch.sin, "cos": torch.cos}


class TaylorNet(TrainableNM):
    """A polynomial with learnt coefficients.

    Shapes: x ``(B, 1)``, y_pred ``(B, 1)``.

    Args:
        dim: its degree.
        name: its name.
    """

    input_ports = {"x": NeuralType("B D", ChannelType())}
    output_ports = {"y_pred": NeuralType("B D", ChannelType())}

    def __init__(self, dim: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self._dim = dim
        self.fc1 = nn.Linear(dim, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The polynomial's value: a learnt sum of x, x^2, ... x^dim, each over its factorial."""
        powers = [x**n / math.factorial(n) for n in range(1, self._dim + 1)]
        value: torch.Tensor = self.fc1(torch.cat(powers, dim=1))
        return value


class RealFunctionDataLayer(DataLayerNM):
    """Points of a real function.

    Args:
        batch_size: points in a batch.
        f_name: ``"sin"`` or ``"cos"``.
        n: number of points.
        x_lo: smallest x.
        x_hi: largest x.
        name: its name.

    Raises:
        UnknownNameError: another function.
    """

    output_ports = {"x": NeuralType("B D", ChannelType()), "y": NeuralType("B D", ChannelType())}

    def __init__(
        self,
        batch_size: int,
        f_name: str = "sin",
        n: int = 1000,
        x_lo: float = -4.0,
        x_hi: float = 4.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if f_name not in _FUNCTIONS:
            raise UnknownNameError("function", f_name, _FUNCTIONS)
        self.batch_size = batch_size
        x = torch.linspace(x_lo, x_hi, n).unsqueeze(1)
        self._points = TensorDataset(x, _FUNCTIONS[f_name](x))

    def __len__(self) -> int:
        return len(self._points)

    @property
    def dataset(self) -> Dataset[tuple[torch.Tensor, ...]]:
        return self._points


class MSELoss(LossNM):
    """Mean squared error."""

    input_ports = {"predictions": NeuralType("B D", ChannelType()), "target": NeuralType("B D", ChannelType())}
    output_ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(self, predictions: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(predictions, target)


class L1Loss(LossNM):
    """Mean absolute error."""

    input_ports = {"predictions": NeuralType("B D", ChannelType()), "target": NeuralType("B D", ChannelType())}
    output_ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(self, predictions: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.l1_loss(predictions, target)


class CrossEntropyLoss(LossNM):
    """Cross entropy of classes.

    Shapes: predictions ``(B, D)``, logits of D classes; labels ``(B,)``.
    """

    input_ports = {"predictions": NeuralType("B D", ChannelType()), "labels": NeuralType("B", LabelsType())}
    output_ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(self, predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(predictions, labels)


__getattr__ = tell_of_missing(__name__)
