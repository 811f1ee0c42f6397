"""NeuralGraph: the calls inside `with graph:`, its inputs and outputs, nested graphs, graph files."""

from __future__ import annotations

import gc
import re
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from nemo_lite.config import load_config
from nemo_lite.core import module_config
from nemo_lite.core.dag import Slice, slice_between
from nemo_lite.core.neural_module import NeuralModule, Recorder, active_recorder, set_active_recorder
from nemo_lite.core.neural_types import LossType, ModuleCall, NestedUse, NeuralType, NmTensor
from nemo_lite.core.ports import NeuralInterface, OperationMode
from nemo_lite.errors import (
    ConfigStructureError,
    ConfigurationError,
    DagError,
    GraphConnectionError,
    GraphKeyError,
    GraphTypeError,
    NemoLiteError,
    NeuralPortNameMismatchError,
    did_you_mean,
)
from nemo_lite.utils.alive import AppState
from nemo_lite.utils.alive import Connection as Connection
from nemo_lite.utils.alive import StepModulePort as StepModulePort

if TYPE_CHECKING:
    from nemo_lite.core.backend import DeviceType


# GraphInput and GraphInputs: the wires that come into a graph from outside, by name.


class Outside(NeuralModule):
    """Stands where a wire has the module that gives it: what is outside of the graph."""

    name = label = "input"


class GraphInput(NmTensor):
    """A wire whose values the graph is given.

    Args:
        ntype: its type.
        name: its name in the graph.
        graph: the graph, or None for an input by itself.

    Attributes:
        ntype: its type.
    """

    is_graph_input = True

    def __init__(self, ntype: NeuralType, name: str = "", graph: Recorder | None = None) -> None:
        # Made without the constructor, so that it takes no module's name.
        outside: Outside = object.__new__(Outside)
        call = ModuleCall(outside, {}, {})
        super().__init__(outside, {}, name, ntype, call=call)
        call.outputs[name] = self
        self._graph = None if graph is None else weakref.ref(graph)
        self._bound: list[StepModulePort] = []

    @property
    def graph(self) -> Recorder | None:
        return None if self._graph is None else self._graph()

    @property
    def consumers(self) -> list[StepModulePort]:
        """The ports of the graph that take it, in the order of the calls."""
        return list(self._bound)

    def bind(self, step_module_ports: StepModulePort | Sequence[StepModulePort]) -> None:
        """Note one port that takes it, or several."""
        if isinstance(step_module_ports, StepModulePort):
            step_module_ports = [step_module_ports]
        self._bound += step_module_ports


class GraphInputs(MutableMapping[str, GraphInput]):
    """The inputs of a graph by name; ``inputs["x"] = NeuralType(...)`` makes one.

    Args:
        graph: whose inputs they are, or None.
    """

    def __init__(self, graph: Recorder | None = None) -> None:
        self._graph = None if graph is None else weakref.ref(graph)
        self._inputs: dict[str, GraphInput] = {}

    def __setitem__(self, name: str, value: NeuralType | GraphInput) -> None:
        """Make an input of a type, or of the type of another graph's input.

        Raises:
            GraphTypeError: neither of them.
            GraphKeyError: there is an input of this name with this very type; with another type, the first one stays.
        """
        if not isinstance(value, (NeuralType, GraphInput)):
            wanted = "a NeuralType, such as module.input_ports[...], or a GraphInput"
            raise GraphTypeError(f'input "{name}" is no type', got=type(value).__name__, wanted=wanted)
        ntype = value.ntype if isinstance(value, GraphInput) else value
        if name not in self._inputs:
            self._inputs[name] = GraphInput(ntype, name, None if self._graph is None else self._graph())
        elif self._inputs[name].ntype is ntype:
            raise GraphKeyError(f'there is an input "{name}" already', remedy="give this one another name")

    def __getitem__(self, name: str) -> GraphInput:
        return self._inputs[name]

    def __delitem__(self, name: str) -> None:
        raise GraphTypeError(f'the input "{name}" of a graph cannot be taken out', remedy="make another graph")

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def definitions(self) -> Mapping[str, NeuralType]:
        """Types by name; read-only."""
        return MappingProxyType({name: each.ntype for name, each in self._inputs.items()})

    def has_binding(self, step_number: int, port_name: str) -> str | None:
        """The name of the input that a port takes, or None."""
        for name, each in self._inputs.items():
            if any((port.step_number, port.port_name) == (step_number, port_name) for port in each.consumers):
                return name
        return None

    def serialize(self) -> list[str]:
        """``length->1.encoder.length | TYPE`` for each port that takes an input."""
        return [
            f"{name}->{port.step_number}.{port.module_name}.{port.port_name} | {each.ntype}"
            for name, each in self._inputs.items()
            for port in each.consumers
        ]


# GraphOutputs: which wires a graph gives, under which names: chosen ones, or else every output of its steps.


class GraphOutput(NamedTuple):
    """One output: its type, and the port that gives it."""

    ntype: NeuralType
    producer_step_module_port: StepModulePort


class GraphOutputs(MutableMapping[str, GraphOutput]):
    """The outputs of a graph by name. The first ``outputs["loss"] = wire`` hides the default ones.

    Args:
        tensors: the wires of the graph, by step and port.
    """

    def __init__(self, tensors: Mapping[int, Mapping[str, NmTensor]]) -> None:
        self._all = tensors
        self._default: dict[str, NmTensor] = {}
        self._manual: dict[str, NmTensor] = {}

    @property
    def are_manual(self) -> bool:
        """Whether they were chosen."""
        return bool(self._manual)

    @property
    def _bound(self) -> dict[str, NmTensor]:
        return self._manual or self._default

    def __setitem__(self, name: str, wire: NmTensor) -> None:  # type: ignore[override]  # a wire comes in, NeMo's way
        """Choose an output.

        Raises:
            GraphTypeError: not a wire.
            GraphKeyError: a name that has been given.
        """
        if not isinstance(wire, NmTensor):
            raise GraphTypeError(f'output "{name}" is no wire', got=type(wire).__name__, wanted="an NmTensor")
        if name in self._manual:
            raise GraphKeyError(f'there is an output "{name}" already', remedy="give this one another name")
        self._manual[name] = wire

    def __getitem__(self, name: str) -> GraphOutput:
        wire = self._bound[name]
        return GraphOutput(wire.ntype, wire.producer_step_module_port)

    def __delitem__(self, name: str) -> None:
        raise GraphTypeError(f'the output "{name}" of a graph cannot be taken out', remedy="make another graph")

    def __iter__(self) -> Iterator[str]:
        return iter(self._bound)

    def __len__(self) -> int:
        return len(self._bound)

    def bind(self, tensors_ref: Iterable[NmTensor], port_names: Sequence[str] | None = None) -> None:
        """Add default outputs, under the names of their ports or under others.

        A second wire of a name is called ``STEP_MODULE_PORT``.
        """
        for number, wire in enumerate(tensors_ref):
            name = wire.output_port_name if port_names is None else port_names[number]
            if name in self._default:
                name = "_".join(map(str, wire.producer_step_module_port))
            self._default[name] = wire

    def replace_default(self, wires: Mapping[str, NmTensor]) -> None:
        """Take these as the default outputs, by name."""
        self._default = dict(wires)

    @property
    def definitions(self) -> Mapping[str, NeuralType]:
        """Types by name; read-only."""
        return MappingProxyType({name: wire.ntype for name, wire in self._bound.items()})

    @property
    def tensors(self) -> Mapping[str, NmTensor]:
        """Wires by name; read-only."""
        return MappingProxyType(self._bound)

    @property
    def tensor_list(self) -> list[NmTensor]:
        """The wires."""
        return list(self._bound.values())

    def serialize(self) -> dict[str, str | list[str]]:
        """``type``: default or manual; ``mappings``: ``STEP.MODULE.PORT->NAME | TYPE`` for each."""
        lines = [
            f"{'.'.join(map(str, wire.producer_step_module_port))}->{name} | {wire.ntype}"
            for name, wire in self._bound.items()
        ]
        return {"type": "manual" if self.are_manual else "default", "mappings": lines}


# RecordedGraph: the calls made inside ``with graph:``, their inputs and outputs, and how another graph repeats them.
# The calls and wires are those of every DAG: the graph notes them, and `dag.py` orders and cuts them. No files and no
# execution in here.


RecordedG = TypeVar("RecordedG", bound="RecordedGraph")


class RecordedGraph(Recorder, NeuralInterface):
    """Calls of modules as numbered steps.

    Args:
        operation_mode: what the graph is for.
        name: its name; by default ``neuralgraph`` and the first free number.

    Raises:
        NameTakenError: another living graph has this name.
    """

    def __init__(self, operation_mode: OperationMode = OperationMode.both, name: str | None = None) -> None:
        self._name = AppState().register_graph(self, name)
        self._operation_mode = operation_mode
        self.calls: list[ModuleCall] = []
        self._names: dict[NeuralModule, str] = {}
        self._tensors: dict[int, dict[str, NmTensor]] = {}
        self._inputs = GraphInputs(self)
        self._outputs = GraphOutputs(self._tensors)
        self._active_before: list[Recorder | None] = []

    # Recording

    def activate(self) -> None:
        """Record calls from here on, until :meth:`deactivate`."""
        self._active_before.append(active_recorder())
        set_active_recorder(self)

    def deactivate(self) -> None:
        """Record no more; the graph that was active before is so again."""
        set_active_recorder(self._active_before.pop() if self._active_before else None)

    def __enter__(self: RecordedG) -> RecordedG:
        self.activate()
        return self

    def __exit__(self, *exception: object) -> None:
        self.deactivate()

    def input_for(self, owner: str, port: str, ntype: NeuralType) -> NmTensor:
        if active_recorder() is not self:
            raise GraphConnectionError(
                f"graph {self.name} is not active", place=f"{owner}.{port}", remedy=f"call {owner} inside `with` of it"
            )
        if port not in self._inputs:
            self._inputs[port] = ntype
        return self._inputs[port]

    def record(self, call: ModuleCall) -> None:
        name = self._name_in_graph(call.module)
        call.step_number = len(self.calls)
        call.module.operation_mode = self._operation_mode
        self.calls.append(call)
        self._tensors[call.step_number] = call.outputs
        for port, wire in call.inputs.items():
            if wire.is_graph_input:
                self._inputs[wire.name].bind(StepModulePort(call.step_number, name, port))
        if not call.nested_in:  # of a nested graph its own outputs are published, when all its steps are here
            self._outputs.bind(call.outputs.values())

    def _name_in_graph(self, module: NeuralModule) -> str:
        if module not in self._names:
            if module.name in self._names.values():
                problem = f'graph {self.name} has another module named "{module.name}"'
                raise GraphKeyError(problem, remedy="give each its own name=")
            self._names[module] = module.name
        return self._names[module]

    # What it is made of

    @property
    def name(self) -> str:
        """Its name, which no other living graph has."""
        return self._name

    @property
    def operation_mode(self) -> OperationMode:  # type: ignore[override]  # read-only, as in NeMo
        """What the graph is for."""
        return self._operation_mode

    @property
    def inputs(self) -> GraphInputs:
        """Its inputs by name."""
        return self._inputs

    @property
    def outputs(self) -> GraphOutputs:
        """Its outputs by name."""
        return self._outputs

    @property
    def input_ports(self) -> Mapping[str, NeuralType]:  # type: ignore[override]  # read-only, as in NeMo
        """Types of the inputs."""
        return self._inputs.definitions

    @property
    def output_ports(self) -> Mapping[str, NeuralType]:  # type: ignore[override]
        """Types of the outputs."""
        return self._outputs.definitions

    @property
    def output_tensors(self) -> Mapping[str, NmTensor]:
        """Wires of the outputs."""
        return self._outputs.tensors

    @property
    def default_output_binding(self) -> bool:
        """Whether every output of every step is an output of the graph."""
        return not self._outputs.are_manual

    @property
    def modules(self) -> dict[str, NeuralModule]:
        """Its modules by name."""
        return {name: module for module, name in self._names.items()}

    @property
    def steps(self) -> dict[int, str]:
        """The module's name of each step."""
        return {number: self._names[call.module] for number, call in enumerate(self.calls)}

    @property
    def step_number(self) -> int:
        """The number of the last step; -1 without any."""
        return len(self.calls) - 1

    @property
    def tensors(self) -> dict[int, dict[str, NmTensor]]:
        """Wires by step and port."""
        return self._tensors

    @property
    def tensor_list(self) -> list[NmTensor]:
        """All wires that its steps give."""
        return [wire for call in self.calls for wire in call.outputs.values()]

    @property
    def connections(self) -> list[Connection]:
        """From step to step, in the order of the calls."""
        return [
            Connection(
                StepModulePort(step, self._names[wire.producer], wire.output_port_name),
                StepModulePort(number, self._names[call.module], port),
                wire.ntype,
            )
            for number, call in enumerate(self.calls)
            for port, wire in call.inputs.items()
            if (step := self.step_of(wire)) is not None
        ]

    def step_of(self, wire: NmTensor) -> int | None:
        """The step that gives a wire; None for a wire from outside."""
        number = wire.call.step_number
        is_mine = number is not None and number < len(self.calls) and self.calls[number] is wire.call
        return number if is_mine else None

    def __getitem__(self, name: str) -> NeuralModule:
        return self.modules[self.known_names([name])[0]]

    def __len__(self) -> int:
        return len(self._names)

    def __bool__(self) -> bool:
        return True  # a graph without modules is still a graph

    def known_names(self, names: list[str] | set[str] | tuple[str, ...] | None) -> list[str]:
        """Names of modules, checked; without any, all.

        Raises:
            GraphKeyError: a name that no module has.
        """
        known = self.modules
        for name in (name for name in names or () if name not in known):
            remedy = f"modules: {', '.join(known) or 'none'}{did_you_mean(name, known)}"
            raise GraphKeyError(f'graph {self.name} has no module "{name}"', remedy=remedy)
        return list(known if names is None else names)

    @property
    def data_layer_call(self) -> ModuleCall | None:
        """Step 0, where it is the one data layer and the graph needs nothing else."""
        sources = [call for call in self.calls if not call.module.input_ports]
        is_complete = len(sources) == 1 and sources[0] is self.calls[0] and not self._inputs
        return sources[0] if is_complete else None

    @property
    def is_complete(self) -> bool:
        """Whether step 0 is the only data layer, and there is no input: it runs on its own data."""
        return self.data_layer_call is not None

    @property
    def losses(self) -> list[NmTensor]:
        """Every wire that is a loss."""
        return [wire for wire in self.tensor_list if isinstance(wire.ntype.elements_type, LossType)]

    @property
    def is_trainable(self) -> bool:
        """Whether it has a loss and is not for evaluation only."""
        return self._operation_mode is not OperationMode.evaluation and bool(self.losses)

    def slice(self) -> Slice:
        """What a backend lowers: from the data layer's wires, or the inputs, to the outputs and the losses.

        Raises:
            DagError: the steps take wires from outside of the graph.
        """
        source = self.data_layer_call
        given = self._inputs.values() if source is None else source.outputs.values()
        # A loss counts where it can be computed: in a graph that is given inputs too.
        return slice_between(given, list(dict.fromkeys([*self._outputs.tensor_list, *self.losses])))

    # Nesting

    def __call__(self, **ports: NmTensor | Recorder) -> Any:
        """Repeat the steps on other wires, in the graph that is active, with the same modules.

        Args:
            **ports: for each input a wire, or the active graph, which then gets an input of the module's port's name.

        Returns:
            The wire of the one output, or a named tuple ``NeuralGraphOutput`` of all.

        Raises:
            NeuralPortNameMismatchError: not an input of this graph.
            GraphKeyError: an input is left out.
            GraphTypeError: the active graph has another mode: training does not fit evaluation nor both, nor evaluation
                training or both.
            GraphConnectionError: a graph that is not active.
        """
        outer = active_recorder()
        self._check_nesting(outer, ports)
        use, repeated = NestedUse(self.name), dict[NmTensor, NmTensor]()
        for call in self.calls:
            inputs = {
                port: self._given(call, port, wire, ports) if wire.is_graph_input else repeated.get(wire, wire)
                for port, wire in call.inputs.items()
            }
            new = call.module.called_on(inputs, (use, *call.nested_in))
            repeated |= {wire: new.outputs[port] for port, wire in call.outputs.items()}
        outputs = {name: repeated.get(wire, wire) for name, wire in self._outputs.tensors.items()}
        if isinstance(outer, RecordedGraph):
            outer.outputs.bind(outputs.values(), list(outputs))
        return as_outputs(list(outputs), list(outputs.values()))

    def _given(self, call: ModuleCall, port: str, wire: NmTensor, ports: Mapping[str, NmTensor | Recorder]) -> NmTensor:
        """What a port that takes the input ``wire`` gets when the step is repeated."""
        if wire.name not in ports:
            place = f"{self._names[call.module]}.{port}"
            raise GraphKeyError(f'the input "{wire.name}" of graph {self.name} is not given', place=place)
        value = ports[wire.name]
        if isinstance(value, Recorder):
            return value.input_for(self._names[call.module], port, call.module.input_ports[port])
        return value

    def _check_nesting(self, outer: Recorder | None, ports: Mapping[str, object]) -> None:
        if outer is self:
            raise GraphConnectionError(f"graph {self.name} cannot be nested in itself", remedy="leave its `with` first")
        for name in (name for name in ports if name not in self._inputs):
            remedy = f"inputs: {', '.join(self._inputs) or 'none'}{did_you_mean(name, self._inputs)}"
            raise NeuralPortNameMismatchError(f'"{name}" is not an input', place=self.name, remedy=remedy)
        for name, value in ports.items():
            if not isinstance(value, (NmTensor, Recorder)):
                problem = f'the input "{name}" is given neither a wire nor a graph'
                raise GraphTypeError(problem, place=self.name, got=type(value).__name__)
        if outer is not None and self._operation_mode not in (OperationMode.both, outer.operation_mode):
            mine, theirs = self._operation_mode.name, outer.operation_mode.name
            problem = f"graph {self.name} cannot be nested in one of another mode"
            remedy = "make the inner one with OperationMode.both"
            raise GraphTypeError(problem, got=f"{mine} in {theirs}", remedy=remedy)


def as_outputs(names: list[str], values: list[Any]) -> Any:
    """The one value, or a named tuple ``NeuralGraphOutput``; a name that Python cannot have becomes ``_POSITION``."""
    return values[0] if len(values) == 1 else _output_tuple(tuple(names))(*values)


@cache
def _output_tuple(names: tuple[str, ...]) -> type[Any]:
    return namedtuple("NeuralGraphOutput", names, rename=True)


# A graph as a configuration and back, in the form of NeMo's graph files. Modules are made by `module_config`.


# Any: what YAML holds.

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
    cls: type[RecordedG], configuration: Mapping[str, Any], reuse: bool, name: str | None, overwritten: Overwritten
) -> RecordedG:
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


# The summary of a graph as plain text.


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


# GraphRunner: what a graph asks of a backend, to run without a factory. Nothing runs in here.


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


# NeuralGraph: a recorded graph with its file, its weights and, through a backend's runner, its execution.


# Any: values of wires are the backend's own; configurations are what YAML holds.

G = TypeVar("G", bound="NeuralGraph")
Names = Sequence[str] | set[str] | None


class NeuralGraph(RecordedGraph):
    """Calls of modules, recorded inside ``with graph:``, that can be repeated, written to a file and run.

    Args:
        operation_mode: what it is for: ``OperationMode.training``, ``.evaluation`` or ``.both``.
        name: its name; by default ``neuralgraph`` and the first free number.

    Raises:
        NameTakenError: another living graph has this name.
    """

    make_runner: ClassVar[MakeRunner | None] = None
    """What runs graphs; a backend sets it when it is imported."""

    def __init__(self, operation_mode: OperationMode = OperationMode.both, name: str | None = None) -> None:
        super().__init__(operation_mode, name)
        self._runner: GraphRunner | None = None

    def summary(self) -> str:
        """Name, mode, COMPLETE and TRAINABLE or not; modules, steps, connections, inputs and outputs, each counted."""
        return summary_of(self)

    # Its file

    def serialize(self) -> dict[str, Any]:
        """What a graph file holds: ``header``, ``modules``, ``steps``, ``connections``, ``inputs`` and ``outputs``.

        Raises:
            ConfigError: a constructor argument of a module that YAML cannot hold.
            DagError: a step that takes a wire from outside of the graph.
        """
        return serialize(self)

    def export_to_config(self, config_file: str | Path) -> None:
        """Write :meth:`serialize` as YAML; raises as it does."""
        module_config.write(self.serialize(), Path(config_file).expanduser())

    @classmethod
    def deserialize(
        cls: type[G],
        configuration: Mapping[str, Any],
        reuse_existing_modules: bool = False,
        name: str | None = None,
        overwrite_params: Overwritten | None = None,
    ) -> G:
        """A graph made from what :meth:`serialize` gave. It is not left active.

        Args:
            configuration: the six sections.
            reuse_existing_modules: take living modules of the same names, weights and all.
            name: the graph's name.
            overwrite_params: constructor arguments that replace those of the file, by the modules' names.

        Raises:
            ConfigStructureError: an ImportError: a section is missing or does not describe a graph.
            GraphKeyError: there is a module of a name already, and it is not to be taken.
        """
        return deserialize(cls, configuration, reuse_existing_modules, name, overwrite_params or {})

    @classmethod
    def import_from_config(
        cls: type[G],
        config_file: str | Path,
        reuse_existing_modules: bool = False,
        overwrite_params: Overwritten | None = None,
        name: str | None = None,
    ) -> G:
        """A graph made from a YAML file; for arguments and errors see :meth:`deserialize`."""
        read = load_config(Path(config_file).expanduser(), number_keys=True)  # the steps are numbered
        return cls.deserialize(read, reuse_existing_modules, name, overwrite_params)

    # Its weights

    def save_to(self, filename: str | Path, module_names: Names = None) -> None:
        """Write the weights of its trainable modules, or of some, to one file.

        Raises:
            GraphKeyError: a name that no module has.
        """
        self._run().save_to(self, Path(filename).expanduser(), self._trainable(module_names))

    def restore_from(self, filename: str | Path, module_names: Names = None) -> None:
        """Read weights from such a file. Modules that are not in it, or not in the graph, are told in one warning.

        Raises:
            CheckpointError: the file is missing or damaged, or weights do not fit their module.
        """
        wanted = self._trainable(None) if module_names is None else list(module_names)
        self._run().restore_from(self, Path(filename).expanduser(), wanted)

    def freeze(self, module_names: Names = None) -> None:
        """Exclude the weights of its trainable modules, or of some, from training.

        Raises:
            GraphKeyError: a name that no module has.
        """
        for name in self._trainable(module_names):
            self[name].freeze()  # type: ignore[attr-defined]  # trainable modules have it

    def unfreeze(self, module_names: Names = None) -> None:
        """Include them in training again; raises as :meth:`freeze` does."""
        for name in self._trainable(module_names):
            self[name].unfreeze()  # type: ignore[attr-defined]

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """The parameters of its trainable modules, in the order of the modules."""
        return (parameter for _, parameter in self._run().parameters(self, recurse))

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Any]]:
        """The same with their names in the modules."""
        return self._run().parameters(self, recurse)

    def _trainable(self, names: Names) -> list[str]:
        known = self.known_names(None if names is None else list(names))
        return [name for name in known if self[name].is_trainable()]

    # Running without a factory

    def to(self: G, device_type: DeviceType, use_dataparallel: bool = False) -> G:
        """Move its modules, and from now on its batches, to a device.

        Args:
            device_type: ``DeviceType.CPU``, ``.GPU`` or ``.AllGpu``.
            use_dataparallel: divide each batch among all GPUs.

        Raises:
            ConfigurationError: there is no GPU, or only one to divide among.
        """
        self._run().to(self, device_type, use_dataparallel)
        return self

    def configure_data_loader(self, batch_size: int = 1, shuffle: bool = False, **options: Any) -> None:
        """Make the loader of its data layer's items anew; ``options`` are those of ``torch.utils.data.DataLoader``.

        The data layer's own batch size is not used.

        Raises:
            ConfigurationError: the graph is not complete.
        """
        self._run().configure_data_loader(self, batch_size=batch_size, shuffle=shuffle, **options)

    def get_batch(self, yield_dict: bool = False) -> Iterator[Any]:
        """The batches of one epoch, on the graph's device.

        Args:
            yield_dict: dictionaries by port, instead of named tuples, or of the values of the only port.

        Raises:
            ConfigurationError: the graph is not complete.
        """
        self._complete_or_refuse()
        return self._run().get_batch(self, yield_dict)

    def forward(self, *batch: Any, **ports: Any) -> Any:
        """Run on one batch. A graph for evaluation runs in evaluation mode and without gradients, one for training in
        training mode, another one in the modes that its modules have.

        Args:
            *batch: what :meth:`get_batch` gave.
            **ports: or each value by its port: the data layer's output ports, or the graph's inputs.

        Returns:
            The value of the one output, or a named tuple ``NeuralGraphOutput``.

        Raises:
            UsageError: a ValueError: several batches, both forms at once, or names that are not exactly the ports.
        """
        values = self._run().forward(self, batch, ports)
        return as_outputs(list(self.outputs), values)

    def backward(self, losses: Sequence[Any] = ()) -> None:
        """Add the gradients of these losses, or of all that the last :meth:`forward` gave, to the parameters.

        Raises:
            ConfigurationError: the graph is not trainable, or nothing has been run.
        """
        if not self.is_trainable:
            got = f"mode {self.operation_mode.name}, {len(self.losses)} losses"
            raise ConfigurationError("the graph cannot be trained", place=self.name, got=got)
        self._run().backward(self, losses)

    def losses_to_train(self) -> list[NmTensor]:
        """What training minimises: the outputs that were chosen, or else every loss among the default ones.

        Raises:
            ConfigurationError: the graph is not trainable, or has no such output.
        """
        losses = self.losses
        outputs = self.outputs.tensor_list
        wanted = outputs if self.outputs.are_manual else [wire for wire in outputs if wire in losses]
        if not wanted or not self.is_trainable:
            got = f"mode {self.operation_mode.name}, outputs {', '.join(self.outputs) or 'none'}"
            remedy = 'give a graph of OperationMode.training with graph.outputs["loss"] = loss'
            raise ConfigurationError("the graph cannot be trained", place=self.name, got=got, remedy=remedy)
        return wanted

    def _complete_or_refuse(self) -> None:
        if not self.is_complete:
            got = f"inputs {', '.join(self.inputs)}" if self.inputs else "no data layer as step 0, or several"
            remedy = "run it with forward(port=values)"
            raise ConfigurationError("the graph has no data of its own", place=self.name, got=got, remedy=remedy)

    def _run(self) -> GraphRunner:
        if self._runner is None:
            if NeuralGraph.make_runner is None:
                raise NemoLiteError("no backend runs graphs", remedy="import nemo_lite")
            self._runner = NeuralGraph.make_runner()
        return self._runner
