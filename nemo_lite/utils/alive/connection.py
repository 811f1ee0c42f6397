"""Who gives and who takes a wire, as plain tuples. Nothing is connected here."""

from __future__ import annotations

from typing import Any, NamedTuple


class StepModulePort(NamedTuple):
    """A port of a module in one step of a graph."""

    step_number: int
    module_name: str
    port_name: str


class Connection(NamedTuple):
    """A wire between two ports. Any: ``ntype`` is its :class:`~nemo_lite.core.neural_types.NeuralType`."""

    producer: StepModulePort
    consumer: StepModulePort
    ntype: Any
