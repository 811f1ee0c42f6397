"""GraphRunner: what a graph asks of a backend, to run without a factory. Nothing runs in here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nemo_lite.core.backend import DeviceType
    from nemo_lite.core.neural_graph.neural_graph import NeuralGraph

# Any: values of wires, and weights, are the backend's own.


class GraphRunner(Protocol):
    """Runs one graph; :class:`NeuralGraph` explains the methods. It keeps no reference to the graph."""

    def to(self, graph: NeuralGraph, device_type: DeviceType, use_dataparallel: bool) -> None:
        """Move the modules to a device."""

    def configure_data_loader(self, graph: NeuralGraph, **options: Any) -> None:
        """Make the loader of the data layer's items."""

    def get_batch(self, graph: NeuralGraph, yield_dict: bool) -> Iterator[Any]:
        """The batches of an epoch."""

    def forward(self, graph: NeuralGraph, batches: Sequence[Any], ports: Mapping[str, Any]) -> list[Any]:
        """The values of the graph's outputs."""

    def backward(self, graph: NeuralGraph, losses: Sequence[Any]) -> None:
        """Gradients of the losses."""

    def parameters(self, graph: NeuralGraph, recurse: bool) -> Iterator[tuple[str, Any]]:
        """Names and parameters of the trainable modules."""

    def save_to(self, graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
        """Write the weights of modules to one file."""

    def restore_from(self, graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
        """Read weights of modules from such a file."""


MakeRunner = Callable[[], GraphRunner]
