"""Plain torch modules that modules with ports are built of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nemo_lite.errors import UnknownNameError


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
            known = ("relu", "tanh", "sigmoid", "selu")
            raise UnknownNameError("activation", activation, known, place=type(self).__name__)
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
