"""A graph as a configuration and back, in the form of NeMo's graph files. Modules are made by `module_config`."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.graph.recording import OperationMode
from nemo_lite.core.neural_graph.recorded_graph import RecordedGraph
from nemo_lite.core.neural_types import NeuralType
from nemo_lite.core.neural_types.nm_tensor import NmTensor, StepModulePort
from nemo_lite.errors import ConfigStructureError, DagError, GraphKeyError
from nemo_lite.utils.alive import AppState

# Any: what YAML holds.

G = TypeVar("G", bound=RecordedGraph)
Overwritten = Mapping[str, Mapping[str, Any]]

NEMO_VERSION = "0.11.0"  # the version of NeMo whose graph files these are
SECTIONS = ("header", "modules", "steps", "connections", "inputs", "outputs")
_MODES = {OperationMode.training: "training", OperationMode.evaluation: "inference", OperationMode.both: "both"}
_PORT = r"(\d+)\.(.+)\.([^.]+)"
_CONNECTION = re.compile(rf"{_PORT}->{_PORT} \| (.*)")
_INPUT = re.compile(rf"(.+?)->{_PORT} \| (.*)")
_OUTPUT = re.compile(rf"{_PORT}->(.+) \| (.*)")


def serialize(graph: RecordedGraph) -> dict[str, Any]:
    """The six sections of a graph file.

    Raises:
        ConfigError: a constructor argument of a module that YAML cannot hold.
        DagError: a step that takes a wire from outside of the graph.
    """
    for number, call in enumerate(graph.calls):
        for port, wire in call.inputs.items():
            if not wire.is_graph_input and graph.step_of(wire) is None:
                place = f"{number}.{graph.steps[number]}.{port}"
                remedy = "make the wire inside `with` of the graph, or an input of it"
                raise DagError(f"graph {graph.name} takes a wire from outside", place=place, remedy=remedy)
    mode = _MODES[graph.operation_mode]
    full_spec = "nemo.core.neural_graph.NeuralGraph"
    return {
        "header": {"nemo_core_version": NEMO_VERSION, "full_spec": full_spec, "operation_mode": mode},
        "modules": {name: module.serialize() for name, module in graph.modules.items()},
        "steps": graph.steps,
        "connections": [
            f"{_dotted(each.producer)}->{_dotted(each.consumer)} | {each.ntype}" for each in graph.connections
        ],
        "inputs": [
            f"{name}->{_dotted(port)} | {_taken_type(graph, port)}"
            for name, each in graph.inputs.items()
            for port in each.consumers
        ],
        "outputs": graph.outputs.serialize(),
    }


def deserialize(
    cls: type[G], configuration: Mapping[str, Any], reuse: bool, name: str | None, overwritten: Overwritten
) -> G:
    """A graph made from a configuration; see ``NeuralGraph.deserialize``."""
    missing = [section for section in SECTIONS if section not in configuration]
    if missing:
        raise ConfigStructureError(f"a graph's configuration lacks {', '.join(missing)}; wanted {', '.join(SECTIONS)}")
    graph = cls(_mode(configuration["header"]), name)
    modules = _modules(_as(dict, configuration["modules"], "modules"), reuse, overwritten)
    steps = {int(number): str(each) for number, each in _as(dict, configuration["steps"], "steps").items()}
    sources = _sources(configuration, steps)
    with graph:
        for number in sorted(steps):
            if steps[number] not in modules:
                raise ConfigStructureError(f"steps: step {number} is {steps[number]}, which is not among the modules")
            _repeat(graph, modules[steps[number]], sources.get(number, {}), number)
    _publish(graph, _as(dict, configuration["outputs"], "outputs"))
    return graph


class _Source:
    """Where a port's wire comes from: the port of an earlier step, or an input of the graph; and its type's text."""

    def __init__(self, place: str, text: str, port: tuple[int, str] | None, graph_input: str = "") -> None:
        self.place, self.text, self.port, self.graph_input = place, text, port, graph_input


def _sources(configuration: Mapping[str, Any], steps: Mapping[int, str]) -> dict[int, dict[str, _Source]]:
    """By step and port."""
    found: dict[int, dict[str, _Source]] = {}
    for line in _as(list, configuration["connections"], "connections"):
        step, _, port, to, name, to_port, text = _matched(_CONNECTION, line, "connections")
        _check_step(steps, int(to), name, line)
        found.setdefault(int(to), {})[to_port] = _Source(line, text, (int(step), port))
    for line in _as(list, configuration["inputs"], "inputs"):
        graph_input, to, name, to_port, text = _matched(_INPUT, line, "inputs")
        _check_step(steps, int(to), name, line)
        found.setdefault(int(to), {})[to_port] = _Source(line, text, None, graph_input)
    return found


def _repeat(graph: RecordedGraph, module: NeuralModule, sources: Mapping[str, _Source], number: int) -> None:
    inputs: dict[str, NmTensor] = {}
    for port, source in sources.items():
        if source.port is None:
            ntype = module.input_ports.get(port)
            if ntype is None:
                raise ConfigStructureError(f"{source.place}: {module.name} has no input port {port}")
            _check_type(source.text, ntype, source.place)
            if source.graph_input not in graph.inputs:
                graph.inputs[source.graph_input] = ntype
            inputs[port] = graph.inputs[source.graph_input]
        else:
            inputs[port] = _wire(graph, *source.port, source.place)
            _check_type(source.text, inputs[port].ntype, source.place)
    # In port order, as calls of a script are.
    module.called_on({port: inputs[port] for port in {**module.input_ports, **inputs} if port in inputs})
    if graph.step_number != number:
        raise ConfigStructureError(f"steps: step {number} is the {graph.step_number + 1}th; number them from 0")


def _publish(graph: RecordedGraph, outputs: Mapping[str, Any]) -> None:
    if outputs.get("type") not in ("default", "manual"):
        raise ConfigStructureError(f"outputs: type is {outputs.get('type')}, wanted default or manual")
    wires: dict[str, NmTensor] = {}
    for line in _as(list, outputs.get("mappings"), "outputs.mappings"):
        step, _, port, name, text = _matched(_OUTPUT, line, "outputs.mappings")
        wires[name] = _wire(graph, int(step), port, line)
        _check_type(text, wires[name].ntype, line)
    if outputs["type"] == "manual":
        for name, wire in wires.items():
            graph.outputs[name] = wire
    else:
        graph.outputs.replace_default(wires)


def _modules(configurations: Mapping[str, Any], reuse: bool, overwritten: Overwritten) -> dict[str, NeuralModule]:
    for name in (name for name in overwritten if name not in configurations):
        raise GraphKeyError(f'overwrite_params: "{name}" is no module of the graph', remedy=", ".join(configurations))
    if not reuse and any(map(AppState().modules.has, configurations)):
        gc.collect()  # wires and calls refer to each other, so that modules outlive the last use of them
    taken = _living(configurations)
    if taken and not reuse:
        remedy = "give reuse_existing_modules=True to take the living ones, or other names"
        raise GraphKeyError(f"there are modules named {', '.join(taken)} already", remedy=remedy)
    return {
        name: taken[name] if name in taken else NeuralModule.deserialize(each, name, overwritten.get(name))
        for name, each in configurations.items()
    }


def _living(names: Iterable[str]) -> dict[str, NeuralModule]:
    modules = AppState().modules
    return {name: modules[name] for name in names if modules.has(name)}


def _mode(section: object) -> OperationMode:
    header = _as(dict, section, "header")
    if str(header.get("full_spec")).rpartition(".")[2] != "NeuralGraph":
        raise ConfigStructureError(f"header: full_spec is {header.get('full_spec')}, wanted that of a NeuralGraph")
    modes = {text: mode for mode, text in _MODES.items()}
    if header.get("operation_mode") not in modes:
        got = header.get("operation_mode")
        raise ConfigStructureError(f"header: operation_mode is {got}, wanted {', '.join(modes)}")
    return modes[header["operation_mode"]]


def _wire(graph: RecordedGraph, step: int, port: str, place: str) -> NmTensor:
    wires = graph.tensors.get(step, {})
    if port not in wires:
        raise ConfigStructureError(f"{place}: an earlier step {step} with an output port {port} is not there")
    return wires[port]


def _check_step(steps: Mapping[int, str], number: int, name: str, line: str) -> None:
    if steps.get(number) != name:
        raise ConfigStructureError(f"{line}: step {number} is {steps.get(number, 'missing')}, not {name}")


def _check_type(text: str, ntype: NeuralType, place: str) -> None:
    if text != str(ntype):
        raise ConfigStructureError(f"{place}: the port has another type: {ntype}")


def _matched(form: re.Pattern[str], line: object, section: str) -> tuple[str, ...]:
    match = form.fullmatch(str(line))
    if match is None:
        raise ConfigStructureError(
            f"{section}: {line} is no line of a graph file, such as 0.layer.x->1.net.x | axes: ..."
        )
    return match.groups()


def _as(kind: type[Any], value: object, section: str) -> Any:
    wanted = Mapping if kind is dict else kind
    if value is None or not isinstance(value, wanted):
        if not value:  # an empty section may be written as nothing
            return kind()
        raise ConfigStructureError(f"{section} is a {type(value).__name__}, wanted a {kind.__name__}")
    return value


def _taken_type(graph: RecordedGraph, port: StepModulePort) -> NeuralType:
    return graph.calls[port.step_number].module.input_ports[port.port_name]


def _dotted(port: StepModulePort) -> str:
    return ".".join(map(str, port))
