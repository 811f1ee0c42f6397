"""Small modules: an embedding of token ids, and zeros like another tensor."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.nm import NonTrainableNM, TrainableNM
from nemo_lite.config.ranges import Between
from nemo_lite.core.neural_types import ChannelType, NeuralType, VoidType


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
        voc_size: Annotated[int, Between(1, 10_000_000)],
        hidden_size: Annotated[int, Between(1, 65_536)],
        dropout: Annotated[float, Between(0, 1)] = 0.0,
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
