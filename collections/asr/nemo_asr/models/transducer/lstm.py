"""Stacks of LSTM layers, as prediction networks have them: plain, with batch norm, with layer norm.

Names of weights are those of NVIDIA's classes since NeMo 1.0. What a stack is in: `prediction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Memory: TypeAlias = "tuple[Tensor, Tensor]"
"""Hidden states and cells behind a label, (N, layers, size) each."""


class LSTMStack(nn.Module):
    """Layers of LSTM. Values are (U, N, size), labels before hypotheses.

    Args:
        num_layers: of LSTM.
        hidden_size: of the hidden states, which are what a layer gives.
        cell_size: of the cells.
    """

    def __init__(self, num_layers: int, hidden_size: int, cell_size: int) -> None:
        super().__init__()
        self._num_layers, self._sizes = num_layers, (hidden_size, cell_size)

    def memory_shapes(self, number: int) -> list[tuple[int, int, int]]:
        """Of the memory of so many hypotheses."""
        return [(number, self._num_layers, size) for size in self._sizes]

    def biases(self) -> list[tuple[Tensor, Tensor]]:
        """Of each layer that has some, those of the input's gates and those of the hidden state's, (4 · cells,)."""
        raise NotImplementedError

    def forward(self, values: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """What the last layer gives, and the memory behind the last label."""
        raise NotImplementedError

    def step(self, values: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The same of one label each, (N, size). For searches, which train nothing."""
        new: list[tuple[Tensor, Tensor]] = []
        for layer, (hidden, cell) in enumerate(zip(memory[0].unbind(1), memory[1].unbind(1), strict=True)):
            values, cell = self.layer_step(layer, values, hidden, cell)
            new.append((values, cell))
        hiddens, cells = zip(*new, strict=True)
        return values, (torch.stack(hiddens, 1), torch.stack(cells, 1))

    def layer_step(self, layer: int, values: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden state and the cell of one layer behind a label, (N, size) each."""
        raise NotImplementedError


class PlainLSTM(LSTMStack):
    """torch's LSTM, and dropout between its layers and behind the last one.

    Args:
        size: of the values that come in, and of those that go out.
        cell_size: larger than ``size``: what a layer gives is projected.
        num_layers: of LSTM.
        dropout: probability.
    """

    def __init__(self, size: int, cell_size: int, num_layers: int, dropout: float) -> None:
        super().__init__(num_layers, size, cell_size)
        between = dropout if num_layers > 1 else 0.0
        projected = size if cell_size > size else 0
        self.lstm = nn.LSTM(size, cell_size, num_layers, dropout=between, proj_size=projected)
        self._dropout = nn.Dropout(dropout)

    def biases(self) -> list[tuple[Tensor, Tensor]]:
        return [(weights[2], weights[3]) for weights in self.lstm.all_weights]

    def forward(self, values: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        hidden, cell = (part.transpose(0, 1).contiguous() for part in memory)
        values, (hidden, cell) = self.lstm(values, (hidden, cell))
        return self._dropout(values), (hidden.transpose(0, 1), cell.transpose(0, 1))

    def layer_step(self, layer: int, values: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return _torch_step(self.lstm.all_weights[layer], values, hidden, cell)


class BatchNormLSTM(LSTMStack):
    """In front of each layer but the first, whose LSTM alone has biases, a batch norm; dropout between layers.

    In training all labels of a batch count for the norm, padding too.

    Args:
        size: of all values.
        num_layers: of LSTM.
        dropout: probability.
    """

    def __init__(self, size: int, num_layers: int, dropout: float) -> None:
        super().__init__(num_layers, size, size)
        self.layers = nn.ModuleList()
        for layer in range(num_layers):
            # Modules of dropout count in NVIDIA's names of weights, so with them there are other numbers.
            if layer and dropout:
                self.layers.append(nn.Dropout(dropout))
            norm = {"bn": nn.ModuleDict({"module": nn.BatchNorm1d(size)})} if layer else {}
            self.layers.append(nn.ModuleDict({**norm, "rnn": nn.LSTM(size, size, bias=not layer)}))

    def biases(self) -> list[tuple[Tensor, Tensor]]:
        first: Any = self.layers[0]
        return [(first["rnn"].bias_ih_l0, first["rnn"].bias_hh_l0)]

    def forward(self, values: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        before = zip(*(part.transpose(0, 1).contiguous().unsqueeze(1) for part in memory), strict=True)
        new: list[tuple[Tensor, Tensor]] = []
        module: Any
        for module in self.layers:
            if isinstance(module, nn.Dropout):
                values = module(values)
            else:
                values, memory_behind = module["rnn"](self._normalised(module, values), next(before))
                new.append(memory_behind)
        hiddens, cells = zip(*new, strict=True)
        return values, (torch.cat(hiddens).transpose(0, 1), torch.cat(cells).transpose(0, 1))

    def layer_step(self, layer: int, values: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        modules: list[Any] = [module for module in self.layers if isinstance(module, nn.ModuleDict)]
        weights = modules[layer]["rnn"].all_weights[0]
        return _torch_step(weights, self._normalised(modules[layer], values), hidden, cell)

    @staticmethod
    def _normalised(module: Any, values: Tensor) -> Tensor:
        if "bn" not in module:
            return values
        normalised: Tensor = module["bn"]["module"](values.flatten(0, -2))
        return normalised.view_as(values)


class LayerNormLSTM(LSTMStack):
    """Layer norms of the input's gates, of the hidden state's gates and of the cell.

    Source: Ba et al., "Layer Normalization", 2016, supplementary material.

    Args:
        size: of all values.
        num_layers: of LSTM.
    """

    def __init__(self, size: int, num_layers: int) -> None:
        super().__init__(num_layers, size, size)
        self.layers = nn.ModuleList(nn.ModuleDict({"cell": _LayerNormCell(size)}) for _ in range(num_layers))

    def biases(self) -> list[tuple[Tensor, Tensor]]:
        return [(cell.layernorm_i.bias, cell.layernorm_h.bias) for cell in self._cells()]

    def forward(self, values: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        new: list[tuple[Tensor, Tensor]] = []
        for layer, hidden, cell in zip(self._cells(), memory[0].unbind(1), memory[1].unbind(1), strict=True):
            outputs = []
            for of_input in layer.of_input(values).unbind(0):
                hidden, cell = layer(of_input, hidden, cell)
                outputs.append(hidden)
            values = torch.stack(outputs)
            new.append((hidden, cell))
        hiddens, cells = zip(*new, strict=True)
        return values, (torch.stack(hiddens, 1), torch.stack(cells, 1))

    def layer_step(self, layer: int, values: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        of_layer = self._cells()[layer]
        after: tuple[Tensor, Tensor] = of_layer(of_layer.of_input(values), hidden, cell)
        return after

    def _cells(self) -> list[_LayerNormCell]:
        layers: Any = self.layers
        return [layer["cell"] for layer in layers]


class _LayerNormCell(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh = (nn.Parameter(torch.empty(4 * size, size)) for _ in range(2))
        self.layernorm_i, self.layernorm_h = nn.LayerNorm(4 * size), nn.LayerNorm(4 * size)
        self.layernorm_c = nn.LayerNorm(size)
        most = size**-0.5
        # With biases of 0 the first label would leave cells of 0, whose norm multiplies gradients by 300.
        for values in (self.weight_ih, self.weight_hh, self.layernorm_i.bias, self.layernorm_h.bias):
            nn.init.uniform_(values, -most, most)

    def of_input(self, values: Tensor) -> Tensor:
        """The input's part of the gates."""
        gates: Tensor = self.layernorm_i(F.linear(values, self.weight_ih))
        return gates

    def forward(self, of_input: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        cell, let_out = _cell(of_input + self.layernorm_h(F.linear(hidden, self.weight_hh)), cell)
        cell = self.layernorm_c(cell)
        return let_out * cell.tanh(), cell


def _cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """The new cell and the gate of what it gives. The gates have torch's order."""
    let_in, kept, candidate, let_out = gates.chunk(4, -1)
    return kept.sigmoid() * cell + let_in.sigmoid() * candidate.tanh(), let_out.sigmoid()


def _torch_step(weights: Sequence[Tensor], values: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """A layer of torch's LSTM. Written out: torch takes eight times as long for one label on a CPU, as it brings all
    weights into another order each time."""
    # Of the input, of the hidden state, perhaps a bias of each, perhaps a projection.
    biases = weights[2:4] if len(weights) > 3 else [None, None]
    gates = F.linear(values, weights[0], biases[0]) + F.linear(hidden, weights[1], biases[1])
    cell, let_out = _cell(gates, cell)
    hidden = let_out * cell.tanh()
    return (F.linear(hidden, weights[4]) if len(weights) > 4 else hidden), cell
