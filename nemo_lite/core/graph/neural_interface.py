"""NeuralInterface: what modules and graphs have in common: ports, a name, and that they can be called."""

from __future__ import annotations

from typing import Any

from nemo_lite.core.neural_types import NeuralType


class NeuralInterface:
    """Base of modules and graphs. Any: calls connect wires or run values."""

    @property
    def name(self) -> str:
        """Its name, which no other living object of its kind has."""
        raise NotImplementedError(f"{type(self).__name__} has no name")

    @property
    def input_ports(self) -> dict[str, NeuralType]:
        """What it takes, by port."""
        raise NotImplementedError(f"{type(self).__name__} has no input_ports")

    @property
    def output_ports(self) -> dict[str, NeuralType]:
        """What it gives, by port."""
        raise NotImplementedError(f"{type(self).__name__} has no output_ports")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be called")
