"""A typed linear layer with a second one inside."""

from __future__ import annotations

import torch
from torch import nn

from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.core.neural_types import ChannelType, NeuralType

VECTOR = NeuralType("B D", ChannelType())


class Linear(TrainableNM):
    """A linear layer with a second one inside."""

    input_ports = {"x": VECTOR}
    output_ports = {"y": VECTOR}

    def __init__(self, width_in: int = 3, width_out: int = 3, name: str | None = None) -> None:
        super().__init__(name=name)
        self.inner = nn.Linear(width_in, width_out, bias=False)
        self.scale = nn.Parameter(torch.ones(width_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) * self.scale
        return out
