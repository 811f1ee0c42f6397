"""The weights of a NeuralGraph in one file: ``header`` and ``modules``, a state dictionary for each, as in NeMo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from nemo_lite.backends.pytorch.checkpoint.fitting import fitted
from nemo_lite.backends.pytorch.checkpoint.storage import fill_module, load_training_state, save_training_state
from nemo_lite.core.neural_graph import NeuralGraph
from nemo_lite.core.neural_graph.configuration import NEMO_VERSION
from nemo_lite.errors import CheckpointError
from nemo_lite.utils import logging


def save_graph(graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
    """Write the state dictionaries of modules to one file, atomically; ``torch.load`` reads .pt, .pth and .ckpt."""
    modules = {name: dict(_module(graph, name).state_dict()) for name in module_names}
    header = {"nemo_core_version": NEMO_VERSION, "name": graph.name}
    save_training_state(path, {"header": header, "modules": modules})


def restore_graph(graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
    """Fill modules from such a file, all or none; those that are not in both are told in one warning.

    Raises:
        CheckpointError: the file is missing, damaged or something else, or tensors do not fit.
    """
    stored = load_training_state(path).get("modules")
    if not isinstance(stored, Mapping):
        raise CheckpointError("these are no weights of a graph", place=str(path), wanted="modules by name")
    in_both = [name for name in module_names if name in stored and name in graph.modules]
    fitting = {name: fitted(_module(graph, name), stored[name], f"{path}: {name}") for name in in_both}
    for name, tensors in fitting.items():
        fill_module(_module(graph, name), tensors)
    missing = [name for name in module_names if name not in in_both]
    if missing:
        places = {name: "the file" if name in graph.modules else f"graph {graph.name}" for name in missing}
        listed = ", ".join(f"{name} (not in {place})" for name, place in places.items())
        logging.warning("%s: modules without weights, which stay as they are: %s", path, listed)


def _module(graph: NeuralGraph, name: str) -> nn.Module:
    module = graph[name]
    assert isinstance(module, nn.Module), "only modules that run on torch are trainable"
    return module
