"""Lowering: a slice of a DAG becomes an ordinary ``torch.fx.GraphModule`` whose submodules are the user's own objects.

Everything else (devices, precision, data parallelism) is applied to that module from outside.
"""

from __future__ import annotations

import operator
import re

from torch import fx, nn

from nemo_lite.core.graph.dag import Slice
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.errors import DagError


def lower(part: Slice, name: str = "Dag") -> fx.GraphModule:
    """A new fx module over the slice's module objects, in their present mode and on their present device.

    Its forward takes the slice's input wires as positional arguments, in their order and unused ones too, and returns a
    tuple of the output wires, also for a single one. ``print(lowered.code)`` reads as a script. Each intermediate is
    freed as soon as its last reader has run.

    Raises:
        DagError: a node whose module does not run on torch, or a wire that the slice does not produce.
    """
    graph = fx.Graph()
    values: dict[NmTensor, fx.Node] = {wire: graph.placeholder(_identifier(wire.name)) for wire in part.inputs}
    targets: dict[nn.Module, str] = {}
    for node in part.nodes:
        if not isinstance(node.module, nn.Module):
            raise DagError(
                f"{node.name} ({type(node.module).__name__}) does not run on torch", remedy="derive it from TrainableNM"
            )
        target = targets.setdefault(node.module, _identifier(node.name))
        called = graph.call_module(target, kwargs={port: values[wire] for port, wire in node.inputs.items()})
        several = len(node.outputs) > 1
        for position, wire in enumerate(node.outputs.values()):
            values[wire] = graph.call_function(operator.getitem, (called, position)) if several else called
    missing = [wire.place for wire in part.outputs if wire not in values]
    if missing:
        raise DagError(f"{', '.join(missing)} cannot be computed from what the slice takes")
    graph.output(tuple(values[wire] for wire in part.outputs))
    graph.eliminate_dead_code(is_impure_node=lambda fx_node: fx_node.op in ("placeholder", "output", "call_module"))
    return fx.GraphModule({target: module for module, target in targets.items()}, graph, name)


def _identifier(name: str) -> str:
    identifier = re.sub(r"\W", "_", name)
    return identifier if identifier.isidentifier() else f"_{identifier}"
