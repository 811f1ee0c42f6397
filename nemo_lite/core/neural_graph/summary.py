"""The summary of a graph as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.neural_graph.recorded_graph import RecordedGraph
from nemo_lite.core.neural_types.nm_tensor import StepModulePort


def summary_of(graph: RecordedGraph) -> str:
    """Name, mode, whether it is complete and trainable; then modules, steps, connections, inputs and outputs."""
    complete = "COMPLETE" if graph.is_complete else "INCOMPLETE"
    trainable = "TRAINABLE" if graph.is_trainable else "NON-TRAINABLE"
    modules = [f"{name} ({type(module).__name__}){_state(module)}" for name, module in graph.modules.items()]
    steps = [f"{number}. {name}" for number, name in graph.steps.items()]
    connections = [f"{_port(each.producer)} -> {_port(each.consumer)}" for each in graph.connections]
    inputs = [
        f"{name} -> {', '.join(map(_port, each.consumers)) or 'nothing'} | {each.ntype}"
        for name, each in graph.inputs.items()
    ]
    outputs = [
        f"{_port(each.producer_step_module_port)} -> {name} | {each.ntype}" for name, each in graph.outputs.items()
    ]
    kind = "manual" if graph.outputs.are_manual else "default"
    lines = [
        f"{type(graph).__name__} {graph.name}: {graph.operation_mode.name}, {complete}, {trainable}",
        *_section("Modules", modules),
        *_section("Steps", steps),
        *_section("Connections", connections),
        *_section("Graph Inputs", inputs),
        *_section(f"Graph Outputs ({kind})", outputs),
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title} [{len(lines)}]:", *(f"  {line}" for line in lines)]


def _state(module: NeuralModule) -> str:
    is_frozen = getattr(module, "is_frozen", None)  # modules that a backend runs have it
    return " [FROZEN]" if is_frozen is not None and module.is_trainable() and is_frozen() else ""


def _port(port: StepModulePort) -> str:
    return ".".join(map(str, port))
