"""TrainableNeuralModuleWrapper: any ``nn.Module`` with ports put on it. Nothing else in this file."""

from __future__ import annotations

from typing import Any

from torch import nn

from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.core.graph.ports import Ports


class TrainableNeuralModuleWrapper(TrainableNM):
    """Makes a typed module of an ``nn.Module``.

    The inputs are handed to it in the order of ``input_ports_dict``. Its parameters keep their names in checkpoints.

    Args:
        pt_nn_module: the module.
        input_ports_dict: its inputs, in the order of its ``forward``.
        output_ports_dict: its outputs, in the order in which it returns them.
        name: its name.
    """

    def __init__(
        self, pt_nn_module: nn.Module, input_ports_dict: Ports, output_ports_dict: Ports, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self._input_ports, self._output_ports = dict(input_ports_dict), dict(output_ports_dict)
        self._pt_module = pt_nn_module

    @property
    def input_ports(self) -> Ports:
        return self._input_ports

    @property
    def output_ports(self) -> Ports:
        return self._output_ports

    def forward(self, **inputs: Any) -> Any:
        """What the wrapped module gives for these values, by input port."""
        return self._pt_module(*(inputs[port] for port in self._input_ports if port in inputs))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's own."""
        return self._pt_module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the wrapped module."""
        return self._pt_module.load_state_dict(*args, **kwargs)
