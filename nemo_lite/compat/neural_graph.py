"""NeuralGraph: the calls inside `with graph:`, their inputs and outputs, nesting, files, weights, and running them.

The calls and wires are those of every DAG: a graph notes them, `dag.py` cuts them, `lowering.py` makes them run. As in
NeMo 0.10 and 0.11.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import fx, nn
from torch.utils.data import DataLoader, Dataset

from nemo_lite.backends.pytorch.checkpoint.fitting import fitted
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state, save_training_state
from nemo_lite.backends.pytorch.engine.module_state import evaluating, set_training
from nemo_lite.backends.pytorch.lowering import Unit, lower, units_of
from nemo_lite.backends.pytorch.nm import DataLayerNM, TrainableNM
from nemo_lite.backends.pytorch.placement import choose_device, to_device
from nemo_lite.base.config import load_config
from nemo_lite.base.errors import (
    CheckpointError,
    ConfigStructureError,
    ConfigurationError,
    DagError,
    GraphConnectionError,
    GraphKeyError,
    GraphTypeError,
    NeuralPortNameMismatchError,
    UsageError,
    did_you_mean,
)
from nemo_lite.core.app_state import AppState, Connection, StepModulePort
from nemo_lite.core.dag import Node, Slice, slice_between
from nemo_lite.core.neural_module import (
    NeuralModule,
    Recorder,
    active_recorder,
    refuse_unconnected,
    write_configuration,
)
from nemo_lite.core.neural_types import LossType, ModuleCall, NestedUse, NeuralType, NmTensor
from nemo_lite.core.ports import NeuralInterface, OperationMode
from nemo_lite.core.run_options import DeviceType
from nemo_lite.utils import logging

# Any: values of wires are tensors, lists or numbers; configurations are what YAML holds.

G = TypeVar("G", bound="NeuralGraph")
Names = Sequence[str] | set[str] | None

NEMO_VERSION = "0.11.0"  # the version of NeMo whose graph files these are
_MODES = {OperationMode.training: "training", OperationMode.evaluation: "inference", OperationMode.both: "both"}
_SECTIONS = {"header": dict, "modules": dict, "steps": dict, "connections": list, "inputs": list, "outputs": dict}
_PORT = r"(\d+)\.(.+)\.([^.]+)"
_CONNECTION = re.compile(rf"{_PORT}->{_PORT} \| (.*)")
_INPUT = re.compile(rf"(.+?)->{_PORT} \| (.*)")
_OUTPUT = re.compile(rf"{_PORT}->(.+) \| (.*)")


class GraphInput(NmTensor):
    """A wire whose values the graph is given.

    Args:
        ntype: its type.
        name: its name in the graph.
        graph: the graph, or None for an input by itself.
    """

    is_graph_input = True

    def __init__(self, ntype: NeuralType, name: str = "", graph: NeuralGraph | None = None) -> None:
        super().__init__(None, None, name, ntype)
        self._graph = None if graph is None else weakref.ref(graph)

    @property
    def graph(self) -> NeuralGraph | None:
        return None if self._graph is None else self._graph()

    @property
    def place(self) -> str:
        """``input.NAME``, for messages."""
        return f"input.{self.output_port_name}"

    def bind(self, step_module_ports: StepModulePort | Sequence[StepModulePort]) -> None:
        """Note one port that takes it, or several; calls on the input do so by themselves."""
        ports = [step_module_ports] if isinstance(step_module_ports, StepModulePort) else step_module_ports
        for port in ports:
            self.add_consumer(port)


def _refuse_to_delete(kind: str, name: str, remedy: str) -> NoReturn:
    raise GraphTypeError(f'the {kind} "{name}" of a graph cannot be deleted', remedy=remedy)


class GraphInputs(Mapping[str, GraphInput]):
    """The inputs of a graph by name; ``inputs["x"] = NeuralType(...)`` makes one. None can be taken out.

    Args:
        graph: whose inputs they are, or None.
    """

    def __init__(self, graph: NeuralGraph | None = None) -> None:
        self._graph = None if graph is None else weakref.ref(graph)
        self._inputs: dict[str, GraphInput] = {}

    def __setitem__(self, name: str, value: NeuralType | GraphInput) -> None:
        """Make an input of a type, or of the type of another graph's input.

        Raises:
            GraphTypeError: neither of them.
            GraphKeyError: there is an input of this name with this very type; with another type, the first one stays.
        """
        if not isinstance(value, NeuralType):
            wanted = "a NeuralType, such as module.input_ports[...], or a GraphInput"
            raise GraphTypeError(f'input "{name}" is no type', got=type(value).__name__, wanted=wanted)
        ntype = value.ntype if isinstance(value, GraphInput) else value
        if name not in self._inputs:
            self._inputs[name] = GraphInput(ntype, name, None if self._graph is None else self._graph())
        elif self._inputs[name].ntype is ntype:
            raise GraphKeyError(f'there is an input "{name}" already', remedy="give this one another name")

    def __delitem__(self, name: str) -> None:
        """Raise GraphTypeError, a TypeError as in NeMo: an input stays."""
        _refuse_to_delete("input", name, "make another graph without it")

    def __getitem__(self, name: str) -> GraphInput:
        return self._inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def definitions(self) -> Mapping[str, NeuralType]:
        """Types by name; read-only."""
        return MappingProxyType({name: wire.ntype for name, wire in self._inputs.items()})

    def has_binding(self, step_number: int, port_name: str) -> str | None:
        """The name of the input that a port takes, or None."""
        for name, wire in self._inputs.items():
            if any((port.step_number, port.port_name) == (step_number, port_name) for port in wire.consumers):
                return name
        return None

    def serialize(self) -> list[str]:
        """``length->1.encoder.length | TYPE`` for each port that takes an input."""
        return [f"{name}->{_dotted(p)} | {wire.ntype}" for name, wire in self._inputs.items() for p in wire.consumers]


class GraphOutput(NamedTuple):
    """One output: its type, and the port that gives it."""

    ntype: NeuralType
    producer_step_module_port: StepModulePort


class GraphOutputs(Mapping[str, GraphOutput]):
    """The outputs of a graph by name: every output of its steps, until ``outputs["loss"] = wire`` chooses the first.

    Args:
        tensors: the wires of the graph, by step and port.
    """

    def __init__(self, tensors: Mapping[int, Mapping[str, NmTensor]]) -> None:
        self._default: dict[str, NmTensor] = {}
        self._manual: dict[str, NmTensor] = {}

    @property
    def are_manual(self) -> bool:
        """Whether they were chosen."""
        return bool(self._manual)

    @property
    def tensors(self) -> Mapping[str, NmTensor]:
        """Wires by name; read-only."""
        return MappingProxyType(self._manual or self._default)

    @property
    def tensor_list(self) -> list[NmTensor]:
        """The wires."""
        return list(self.tensors.values())

    def __setitem__(self, name: str, wire: NmTensor) -> None:
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

    def __delitem__(self, name: str) -> None:
        """Raise GraphTypeError, a TypeError as in NeMo: an output stays."""
        _refuse_to_delete("output", name, "choose the outputs in another graph")

    def __getitem__(self, name: str) -> GraphOutput:
        wire = self.tensors[name]
        return GraphOutput(wire.ntype, wire.producer_step_module_port)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

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
        return MappingProxyType({name: wire.ntype for name, wire in self.tensors.items()})

    def serialize(self) -> dict[str, str | list[str]]:
        """``type``: default or manual; ``mappings``: ``STEP.MODULE.PORT->NAME | TYPE`` for each."""
        mappings = [
            f"{_dotted(wire.producer_step_module_port)}->{name} | {wire.ntype}" for name, wire in self.tensors.items()
        ]
        return {"type": "manual" if self.are_manual else "default", "mappings": mappings}


class NeuralGraph(Recorder, NeuralInterface):
    """Calls of modules as numbered steps, recorded inside ``with graph:``, that can be repeated, written and run.

    Args:
        operation_mode: what it is for: ``OperationMode.training``, ``.evaluation`` or ``.both``.
        name: its name; by default ``neuralgraph`` and the first free number.

    Raises:
        NameTakenError: another living graph has this name.
    """

    def __init__(self, operation_mode: OperationMode = OperationMode.both, name: str | None = None) -> None:
        self._name = AppState().register_graph(self, name)
        self._operation_mode = operation_mode
        self.calls: list[ModuleCall] = []
        self._kept_modules: list[NeuralModule] = []  # of the calls, which do not keep them
        self.inputs = GraphInputs(self)
        self.outputs = GraphOutputs({})
        self._active_before: list[Recorder | None] = []
        self._device: torch.device | None = None
        self._is_parallel = False
        self._loader: Iterable[Any] | None = None
        self._slice: Slice | None = None
        self._lowered: fx.GraphModule | None = None
        self._last_losses: list[torch.Tensor] = []

    # Recording

    def activate(self) -> None:
        """Record calls from here on, until :meth:`deactivate`."""
        self._active_before.append(active_recorder())
        AppState().active_graph = self

    def deactivate(self) -> None:
        """Record no more; the graph that was active before is so again."""
        AppState().active_graph = self._active_before.pop() if self._active_before else None

    def __enter__(self: G) -> G:
        self.activate()
        return self

    def __exit__(self, *exception: object) -> None:
        self.deactivate()

    def input_for(self, owner: str, port: str, ntype: NeuralType) -> NmTensor:
        if active_recorder() is not self:
            remedy = f"call {owner} inside `with` of it"
            raise GraphConnectionError(f"graph {self.name} is not active", place=f"{owner}.{port}", remedy=remedy)
        if port not in self.inputs:
            self.inputs[port] = ntype
        return self.inputs[port]

    def record(self, call: ModuleCall) -> None:
        call.step_number = len(self.calls)
        call.module.operation_mode = self._operation_mode
        self.calls.append(call)
        self._kept_modules.append(call.module)
        call.leave_module_to_graph()
        if not call.nested_in:  # of a nested graph its own outputs are published, when all its steps are here
            self.outputs.bind(call.outputs.values())

    # Its parts

    @property
    def name(self) -> str:
        """Its name, which no other living graph has."""
        return self._name

    @property
    def operation_mode(self) -> OperationMode:  # type: ignore[override]  # read-only, as in NeMo
        """The purpose of the graph."""
        return self._operation_mode

    @property
    def input_ports(self) -> Mapping[str, NeuralType]:  # type: ignore[override]  # read-only, as in NeMo
        """Types of the inputs."""
        return self.inputs.definitions

    @property
    def output_ports(self) -> Mapping[str, NeuralType]:  # type: ignore[override]
        """Types of the outputs."""
        return self.outputs.definitions

    @property
    def output_tensors(self) -> Mapping[str, NmTensor]:
        """Wires of the outputs."""
        return self.outputs.tensors

    @property
    def default_output_binding(self) -> bool:
        """Whether every output of every step is an output of the graph."""
        return not self.outputs.are_manual

    @property
    def modules(self) -> dict[str, NeuralModule]:
        """Its modules by name."""
        return {call.module.name: call.module for call in self.calls}

    @property
    def steps(self) -> dict[int, str]:
        """The module's name of each step."""
        return {number: call.module.name for number, call in enumerate(self.calls)}

    @property
    def step_number(self) -> int:
        """The number of the last step; -1 without any."""
        return len(self.calls) - 1

    @property
    def tensors(self) -> dict[int, dict[str, NmTensor]]:
        """Wires by step and port."""
        return {number: call.outputs for number, call in enumerate(self.calls)}

    @property
    def tensor_list(self) -> list[NmTensor]:
        """All wires that its steps give."""
        return [wire for call in self.calls for wire in call.outputs.values()]

    @property
    def connections(self) -> list[Connection]:
        """From step to step, in the order of the calls."""
        return [
            Connection(wire.producer_step_module_port, StepModulePort(number, call.module.name, port), wire.ntype)
            for number, call in enumerate(self.calls)
            for port, wire in call.inputs.items()
            if self._gives(wire)
        ]

    def _gives(self, wire: NmTensor) -> bool:
        """Whether a wire comes from one of its steps, and not from outside."""
        number = wire.call.step_number
        return number is not None and number < len(self.calls) and self.calls[number] is wire.call

    def __getitem__(self, name: str) -> NeuralModule:
        self._refuse_unknown([name])
        return self.modules[name]

    def __len__(self) -> int:
        return len(self.modules)

    def __bool__(self) -> bool:
        return True  # a graph without modules is still a graph

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        modules = self.modules
        for name in names:
            if name not in modules:
                remedy = f"modules: {', '.join(modules) or 'none'}{did_you_mean(name, modules)}"
                raise GraphKeyError(f'graph {self.name} has no module "{name}"', remedy=remedy)

    @property
    def data_layer_call(self) -> ModuleCall | None:
        """Step 0, where it is the one data layer and the graph needs nothing else."""
        sources = [call for call in self.calls if not call.module.input_ports]
        is_complete = len(sources) == 1 and sources[0] is self.calls[0] and not self.inputs
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

    def losses_to_train(self) -> list[NmTensor]:
        """The wires that training minimises: the outputs that were chosen, or else every loss among the default ones.

        Raises:
            ConfigurationError: the graph is not trainable, or has no such output.
        """
        losses = self.losses
        outputs = self.outputs.tensor_list
        chosen = outputs if self.outputs.are_manual else [wire for wire in outputs if wire in losses]
        if not chosen or not self.is_trainable:
            got = f"mode {self.operation_mode.name}, outputs {', '.join(self.outputs) or 'none'}"
            remedy = 'give a graph of OperationMode.training with graph.outputs["loss"] = loss'
            raise ConfigurationError("the graph cannot be trained", place=self.name, got=got, remedy=remedy)
        return chosen

    def slice(self) -> Slice:
        """From the data layer's wires, or the inputs, to the outputs and the losses.

        Raises:
            DagError: the steps take wires from outside of the graph.
        """
        source = self.data_layer_call
        inputs = self.inputs.values() if source is None else source.outputs.values()
        # A loss counts where it can be computed: in a graph that is given inputs too.
        return slice_between(inputs, list(dict.fromkeys([*self.outputs.tensor_list, *self.losses])))

    def summary(self) -> str:
        """Name, mode, COMPLETE and TRAINABLE or not; modules, steps, connections, inputs and outputs, each counted."""
        complete = "COMPLETE" if self.is_complete else "INCOMPLETE"
        trainable = "TRAINABLE" if self.is_trainable else "NON-TRAINABLE"
        sections = {
            "Modules": [f"{name} ({type(module).__name__}){_state(module)}" for name, module in self.modules.items()],
            "Steps": [f"{number}. {name}" for number, name in self.steps.items()],
            "Connections": [f"{_dotted(giver)} -> {_dotted(taker)}" for giver, taker, _ in self.connections],
            "Graph Inputs": [
                f"{name} -> {', '.join(map(_dotted, wire.consumers)) or 'nothing'} | {wire.ntype}"
                for name, wire in self.inputs.items()
            ],
            f"Graph Outputs ({'manual' if self.outputs.are_manual else 'default'})": [
                f"{_dotted(port)} -> {name} | {ntype}" for name, (ntype, port) in self.outputs.items()
            ],
        }
        lines = [f"{type(self).__name__} {self.name}: {self.operation_mode.name}, {complete}, {trainable}"]
        for title, entries in sections.items():
            lines += [f"{title} [{len(entries)}]:", *(f"  {entry}" for entry in entries)]
        return "\n".join(lines) + "\n"

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
        use = NestedUse(self.name)
        repeated: dict[NmTensor, NmTensor] = {}
        for call in self.calls:
            inputs = {
                port: self._argument(call, port, wire, ports) if wire.is_graph_input else repeated.get(wire, wire)
                for port, wire in call.inputs.items()
            }
            new = call.module.called_on(inputs, (use, *call.nested_in))
            repeated |= {wire: new.outputs[port] for port, wire in call.outputs.items()}
        outputs = {name: repeated.get(wire, wire) for name, wire in self.outputs.tensors.items()}
        if isinstance(outer, NeuralGraph):
            outer.outputs.bind(outputs.values(), list(outputs))
        return _as_outputs(list(outputs), list(outputs.values()))

    def _argument(
        self, call: ModuleCall, port: str, wire: NmTensor, ports: Mapping[str, NmTensor | Recorder]
    ) -> NmTensor:
        """The wire for a port that takes the input ``wire``, when the step is repeated."""
        if wire.name not in ports:
            place = f"{call.module.name}.{port}"
            raise GraphKeyError(f'the input "{wire.name}" of graph {self.name} is not given', place=place)
        value = ports[wire.name]
        if isinstance(value, Recorder):
            return value.input_for(call.module.name, port, call.module.input_ports[port])
        return value

    def _check_nesting(self, outer: Recorder | None, ports: Mapping[str, object]) -> None:
        if outer is self:
            raise GraphConnectionError(f"graph {self.name} cannot be nested in itself", remedy="leave its `with` first")
        for name, value in ports.items():
            if name not in self.inputs:
                remedy = f"inputs: {', '.join(self.inputs) or 'none'}{did_you_mean(name, self.inputs)}"
                raise NeuralPortNameMismatchError(f'"{name}" is not an input', place=self.name, remedy=remedy)
            if not isinstance(value, (NmTensor, Recorder)):
                problem = f'the input "{name}" is given neither a wire nor a graph'
                raise GraphTypeError(problem, place=self.name, got=type(value).__name__)
        if outer is not None and self._operation_mode not in (OperationMode.both, outer.operation_mode):
            problem = f"graph {self.name} cannot be nested in one of another mode"
            got = f"{self._operation_mode.name} in {outer.operation_mode.name}"
            raise GraphTypeError(problem, got=got, remedy="make the inner one with OperationMode.both")

    # Its file

    def serialize(self) -> dict[str, Any]:
        """The content of a graph file: ``header``, ``modules``, ``steps``, ``connections``, ``inputs``, ``outputs``.

        Raises:
            ConfigError: a constructor argument of a module that YAML cannot hold.
            DagError: a step that takes a wire from outside of the graph.
        """
        for number, call in enumerate(self.calls):
            for port, wire in call.inputs.items():
                if not wire.is_graph_input and not self._gives(wire):
                    place = f"{number}.{call.module.name}.{port}"
                    remedy = "make the wire inside `with` of the graph, or an input of it"
                    raise DagError(f"graph {self.name} takes a wire from outside", place=place, remedy=remedy)
        mode = _MODES[self.operation_mode]
        full_spec = "nemo.core.neural_graph.NeuralGraph"
        return {
            "header": {"nemo_core_version": NEMO_VERSION, "full_spec": full_spec, "operation_mode": mode},
            "modules": {name: module.serialize() for name, module in self.modules.items()},
            "steps": self.steps,
            "connections": [f"{_dotted(giver)}->{_dotted(taker)} | {kind}" for giver, taker, kind in self.connections],
            "inputs": [
                f"{name}->{_dotted(port)} | {self.calls[port.step_number].module.input_ports[port.port_name]}"
                for name, wire in self.inputs.items()
                for port in wire.consumers
            ],
            "outputs": self.outputs.serialize(),
        }

    def export_to_config(self, config_file: str | Path) -> None:
        """Write :meth:`serialize` as YAML; raises as it does."""
        write_configuration(self.serialize(), Path(config_file).expanduser())

    @classmethod
    def deserialize(
        cls: type[G],
        configuration: Mapping[str, object],
        reuse_existing_modules: bool = False,
        name: str | None = None,
        overwrite_params: Mapping[str, Mapping[str, object]] | None = None,
    ) -> G:
        """A graph made from the result of :meth:`serialize`. It is not left active.

        Args:
            configuration: the six sections.
            reuse_existing_modules: take living modules of the same names, weights and all.
            name: the graph's name.
            overwrite_params: constructor arguments that replace those of the file, by the modules' names.

        Raises:
            ConfigStructureError: an ImportError: a section is missing or does not describe a graph.
            GraphKeyError: there is a module of a name already, and it is not to be taken.
        """
        sections = _sections(configuration)
        graph = cls(_mode(sections["header"]), name)
        modules = _modules(sections["modules"], reuse_existing_modules, overwrite_params or {})
        steps = {int(number): str(module) for number, module in sections["steps"].items()}
        sources = _sources(sections, steps)
        with graph:
            for number in sorted(steps):
                if steps[number] not in modules:
                    problem = f"steps: step {number} is {steps[number]}, which is not among the modules"
                    raise ConfigStructureError(problem)
                if number != len(graph.calls):
                    problem = f"steps: step {number} is the {len(graph.calls) + 1}th; number them from 0"
                    raise ConfigStructureError(problem)
                module = modules[steps[number]]
                wires = {port: graph._wire(module, port, source) for port, source in sources.get(number, {}).items()}
                # In port order, as calls of a script are.
                module.called_on({port: wires[port] for port in {**module.input_ports, **wires} if port in wires})
        graph._publish(sections["outputs"])
        return graph

    @classmethod
    def import_from_config(
        cls: type[G],
        config_file: str | Path,
        reuse_existing_modules: bool = False,
        overwrite_params: Mapping[str, Mapping[str, object]] | None = None,
        name: str | None = None,
    ) -> G:
        """A graph made from a YAML file; for arguments and errors see :meth:`deserialize`."""
        configuration = load_config(Path(config_file).expanduser(), number_keys=True)  # the steps are numbered
        return cls.deserialize(configuration, reuse_existing_modules, name, overwrite_params)

    def _wire(self, module: NeuralModule, port: str, source: _PortSource) -> NmTensor:
        """The wire for a port of a module: of an earlier step, or the graph's input of this name."""
        origin, type_text, line = source
        if isinstance(origin, tuple):
            wire = self._wire_of_step(*origin, line)
            _check_type(type_text, wire.ntype, line)
            return wire
        ntype = module.input_ports.get(port)
        if ntype is None:
            raise ConfigStructureError(f"{line}: {module.name} has no input port {port}")
        _check_type(type_text, ntype, line)
        if origin not in self.inputs:
            self.inputs[origin] = ntype
        return self.inputs[origin]

    def _wire_of_step(self, step: int, port: str, line: str) -> NmTensor:
        wires = self.tensors.get(step, {})
        if port not in wires:
            raise ConfigStructureError(f"{line}: an earlier step {step} with an output port {port} is not there")
        return wires[port]

    def _publish(self, outputs: Mapping[str, object]) -> None:
        kind = outputs.get("type")
        if kind not in ("default", "manual"):
            raise ConfigStructureError(f"outputs: type is {kind}, wanted default or manual")
        wires: dict[str, NmTensor] = {}
        for line in _expected(list, outputs.get("mappings"), "outputs.mappings"):
            step, _, port, name, type_text = _matched(_OUTPUT, line, "outputs.mappings")
            wires[name] = self._wire_of_step(int(step), port, line)
            _check_type(type_text, wires[name].ntype, line)
        if kind == "default":
            self.outputs.replace_default(wires)
            return
        for name, wire in wires.items():
            self.outputs[name] = wire

    # Its weights

    def save_to(self, filename: str | Path, module_names: Names = None) -> None:
        """Write the weights of its trainable modules, or of some, to one file, atomically.

        The file has a ``header``, and under ``modules`` a state dictionary for each, as in NeMo; ``torch.load`` reads
        .pt, .pth and .ckpt.

        Raises:
            GraphKeyError: a name that no module has.
        """
        modules = {name: dict(module.state_dict()) for name, module in self._trainable(module_names).items()}
        header = {"nemo_core_version": NEMO_VERSION, "name": self.name}
        save_training_state(Path(filename).expanduser(), {"header": header, "modules": modules})

    def restore_from(self, filename: str | Path, module_names: Names = None) -> None:
        """Read weights from such a file: of all modules, or of none. Those that are not in both get one warning.

        Raises:
            CheckpointError: the file is missing, damaged or something else, or weights do not fit their module.
        """
        path = Path(filename).expanduser()
        stored = load_training_state(path).get("modules")
        if not isinstance(stored, Mapping):
            raise CheckpointError("these are no weights of a graph", place=str(path), wanted="modules by name")
        modules = self._trainable(None)
        names = list(modules if module_names is None else module_names)
        in_both = [name for name in names if name in stored and name in modules]
        fitting = {name: fitted(modules[name], stored[name], f"{path}: {name}") for name in in_both}
        for name, tensors in fitting.items():
            modules[name].load_state_dict(tensors, strict=True)
        missing = [name for name in names if name not in in_both]
        if missing:
            places = {name: "the file" if name in self.modules else f"graph {self.name}" for name in missing}
            listed = ", ".join(f"{name} (not in {place})" for name, place in places.items())
            logging.warning("%s: modules without weights, which stay as they are: %s", path, listed)

    def freeze(self, module_names: Names = None) -> None:
        """Exclude the weights of its trainable modules, or of some, from training.

        Raises:
            GraphKeyError: a name that no module has.
        """
        for module in self._trainable(module_names).values():
            module.freeze()

    def unfreeze(self, module_names: Names = None) -> None:
        """Include them in training again; raises as :meth:`freeze` does."""
        for module in self._trainable(module_names).values():
            module.unfreeze()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of its trainable modules, in the order of the modules."""
        return (parameter for _, parameter in self.named_parameters(recurse))

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """The same with their names in the modules."""
        for module in self._trainable(None).values():
            yield from module.named_parameters(recurse=recurse)

    def _trainable(self, names: Names) -> dict[str, TrainableNM]:
        modules = self.modules
        self._refuse_unknown(names or ())
        chosen = modules if names is None else {name: modules[name] for name in names}
        return {name: module for name, module in chosen.items() if isinstance(module, TrainableNM)}

    # Running without a factory

    def to(self: G, device_type: DeviceType, use_dataparallel: bool = False) -> G:
        """Move its modules, and from now on its batches, to a device.

        Args:
            device_type: ``DeviceType.CPU``, ``.GPU`` or ``.AllGpu``.
            use_dataparallel: divide each batch among all GPUs.

        Raises:
            ConfigurationError: there is no GPU, or only one to divide among.
        """
        is_gpu = device_type is not DeviceType.CPU
        if is_gpu and not torch.cuda.is_available():
            remedy = "use DeviceType.CPU"
            raise ConfigurationError("there is no GPU", place=self.name, got=device_type.name, remedy=remedy)
        num_gpus = torch.cuda.device_count() if is_gpu else 0
        if use_dataparallel and num_gpus < 2:
            problem = "use_dataparallel divides batches among GPUs"
            raise ConfigurationError(problem, place=self.name, got=f"{num_gpus} to use", wanted="2 or more")
        self._device = choose_device(device_type)
        self._is_parallel = use_dataparallel
        self._lowered = None
        for module in self._torch_modules():
            module.to(self._device)
        return self

    def configure_data_loader(self, batch_size: int = 1, shuffle: bool = False, **options: Any) -> None:
        """Make the loader of its data layer's items anew; ``options`` are those of ``torch.utils.data.DataLoader``.

        The data layer's own batch size is not used.

        Raises:
            ConfigurationError: the graph is not complete.
        """
        layer = self._data_layer()
        dataset = layer if isinstance(layer, Dataset) else layer.dataset
        if dataset is None:
            assert layer.data_iterator is not None, "a data layer has a dataset or a data_iterator"
            self._loader = layer.data_iterator
            return
        options.setdefault("collate_fn", layer.setting("collate_fn", None))
        self._loader = DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, **options)

    def get_batch(self, yield_dict: bool = False) -> Iterator[Any]:
        """The batches of one epoch, on the graph's device.

        Args:
            yield_dict: dictionaries by port, instead of named tuples, or of the values of the only port.

        Raises:
            ConfigurationError: the graph is not complete.
        """
        layer = self._data_layer()
        if self._loader is None:
            self.configure_data_loader()
        assert self._loader is not None
        return self._batches(layer, self._loader, yield_dict)

    def _batches(self, layer: DataLayerNM, loader: Iterable[Any], yield_dict: bool) -> Iterator[Any]:
        ports = list(layer.output_ports)
        output = namedtuple(f"{type(layer).__name__}Output", ports)  # type: ignore[misc]  # ports are known at run time
        for batch in loader:
            is_several = isinstance(batch, (tuple, list)) and (len(ports) > 1 or len(batch) == 1)
            values: Sequence[Any] = tuple(batch) if is_several else (batch,)
            if self._device is not None:
                values = to_device(values, self._device)
            if yield_dict:
                yield dict(zip(ports, values, strict=True))
            else:
                yield output(*values) if len(ports) > 1 else values[0]

    def forward(self, *batch: Any, **ports: Any) -> Any:
        """Run on one batch. A graph for evaluation runs in evaluation mode and without gradients, one for training in
        training mode, another one in the modes that its modules have.

        Args:
            *batch: a batch of :meth:`get_batch`.
            **ports: or each value by its port: the data layer's output ports, or the graph's inputs.

        Returns:
            The value of the one output, or a named tuple ``NeuralGraphOutput``.

        Raises:
            UsageError: a ValueError: several batches, both forms at once, or names that are not exactly the ports.
        """
        values_by_port = self._by_port(batch, ports)
        part, lowered = self._run_on()
        if self._operation_mode is OperationMode.training:
            set_training(self._torch_modules())  # another graph may have put shared modules into evaluation mode
        with ExitStack() as around:
            if self._operation_mode is OperationMode.evaluation:
                around.enter_context(evaluating(self._torch_modules()))
                around.enter_context(torch.no_grad())
            values = lowered(*(values_by_port[wire.output_port_name] for wire in part.inputs))
        by_wire: dict[NmTensor, Any] = dict(zip(part.outputs, values, strict=True))
        self._last_losses = [by_wire[wire] for wire in self.losses]
        return _as_outputs(list(self.outputs), [by_wire[wire] for wire in self.outputs.tensor_list])

    def backward(self, losses: Sequence[Any] = ()) -> None:
        """Add the gradients of these losses, or of all that the last :meth:`forward` gave, to the parameters.

        Raises:
            ConfigurationError: the graph is not trainable, or nothing has been run.
        """
        if not self.is_trainable:
            got = f"mode {self.operation_mode.name}, {len(self.losses)} losses"
            raise ConfigurationError("the graph cannot be trained", place=self.name, got=got)
        chosen = list(losses) or self._last_losses
        if not chosen:
            raise ConfigurationError("there is no loss to take gradients of", place=self.name, remedy="call forward")
        torch.autograd.backward(chosen)  # in one pass, so that common parts are passed once

    def _torch_modules(self) -> list[nn.Module]:
        return [module for module in self.modules.values() if isinstance(module, nn.Module)]

    def _data_layer(self) -> DataLayerNM:
        layer = self.data_layer_call.module if self.data_layer_call else None
        if not isinstance(layer, DataLayerNM):
            got = f"inputs {', '.join(self.inputs)}" if self.inputs else "no data layer as step 0, or several"
            remedy = "run it with forward(port=values)"
            raise ConfigurationError("the graph has no data of its own", place=self.name, got=got, remedy=remedy)
        return layer

    def _run_on(self) -> tuple[Slice, fx.GraphModule]:
        """The graph's slice and its fx module; made again when the graph has grown."""
        part = self.slice()
        wires = (part.inputs, part.outputs)
        if self._lowered is None or self._slice is None or wires != (self._slice.inputs, self._slice.outputs):
            for node in part.nodes:
                refuse_unconnected(node.name, node.module.input_ports, node.inputs)
            self._slice = part
            self._lowered = lower(part, self.name, self._units)
        return self._slice, self._lowered

    def _units(self, nodes: Sequence[Node]) -> Iterator[Unit]:
        for unit in units_of(nodes):
            is_divided = self._is_parallel and not getattr(unit.module, "skip_in_data_parallel", False)
            if is_divided and any(parameter.requires_grad for parameter in unit.module.parameters()):
                unit = unit._replace(module=nn.DataParallel(unit.module))
            yield unit

    def _by_port(self, batches: Sequence[object], ports: Mapping[str, object]) -> Mapping[str, Any]:
        """Values by the names of the ports that the graph is given.

        Raises:
            UsageError: several batches, a batch and ports, or not exactly these names.
        """
        if len(batches) > 1 or (batches and ports):
            got = f"{len(batches)} batches and {len(ports)} ports"
            raise UsageError("forward takes one batch, or ports by name", place=self.name, got=got)
        source = self.data_layer_call
        names = list(self.inputs if source is None else source.outputs)
        wanted = ", ".join(names)
        if batches:
            batch = batches[0]
            if hasattr(batch, "_asdict"):
                ports = batch._asdict()
            elif isinstance(batch, Mapping):
                ports = batch
            elif len(names) == 1:
                ports = {names[0]: batch}
            elif isinstance(batch, (tuple, list)) and len(batch) == len(names):
                ports = dict(zip(names, batch, strict=True))
            else:
                raise UsageError("the batch does not have the graph's ports", place=self.name, wanted=wanted)
        if set(ports) != set(names):
            got = ", ".join(ports) or "nothing"
            raise UsageError("forward takes exactly the graph's ports", place=self.name, got=got, wanted=wanted)
        return ports


def _as_outputs(names: list[str], values: Sequence[object]) -> Any:
    """The one value, or a named tuple ``NeuralGraphOutput``; a name that Python cannot have becomes ``_POSITION``."""
    return values[0] if len(values) == 1 else _output_tuple(tuple(names))(*values)


@cache
def _output_tuple(names: tuple[str, ...]) -> type[Any]:
    return namedtuple("NeuralGraphOutput", names, rename=True)


def _dotted(port: StepModulePort) -> str:
    return ".".join(map(str, port))


def _state(module: NeuralModule) -> str:
    return " [FROZEN]" if isinstance(module, TrainableNM) and module.is_frozen() else ""


# Reading a graph's configuration.


class _PortSource(NamedTuple):
    """Where a port's wire comes from: the port of an earlier step, or an input of the graph by name."""

    origin: tuple[int, str] | str
    type_text: str
    line: str


def _sections(configuration: Mapping[str, object]) -> dict[str, Any]:
    missing = [section for section in _SECTIONS if section not in configuration]
    if missing:
        problem = f"a graph's configuration lacks {', '.join(missing)}; wanted {', '.join(_SECTIONS)}"
        raise ConfigStructureError(problem)
    return {section: _expected(kind, configuration[section], section) for section, kind in _SECTIONS.items()}


def _expected(kind: type, value: object, section: str) -> Any:
    if not value:  # an empty section may be written as nothing
        return kind()
    if not isinstance(value, Mapping if kind is dict else kind):
        raise ConfigStructureError(f"{section} is a {type(value).__name__}, wanted a {kind.__name__}")
    return value


def _mode(header: Mapping[str, object]) -> OperationMode:
    full_spec, mode = header.get("full_spec"), header.get("operation_mode")
    if str(full_spec).rpartition(".")[2] != "NeuralGraph":
        raise ConfigStructureError(f"header: full_spec is {full_spec}, wanted that of a NeuralGraph")
    modes = {text: mode for mode, text in _MODES.items()}
    if mode not in modes:
        raise ConfigStructureError(f"header: operation_mode is {mode}, wanted {', '.join(modes)}")
    return modes[mode]


def _modules(
    configurations: Mapping[str, Any], reuse: bool, overwritten: Mapping[str, Mapping[str, Any]]
) -> dict[str, NeuralModule]:
    for name in overwritten:
        if name not in configurations:
            problem = f'overwrite_params: "{name}" is no module of the graph'
            raise GraphKeyError(problem, remedy=", ".join(configurations))
    alive = AppState().modules
    if not reuse and any(map(alive.has, configurations)):
        gc.collect()  # wires and calls refer to each other, so that modules outlive the last use of them
    living = {name: alive[name] for name in configurations if alive.has(name)}
    if living and not reuse:
        remedy = "give reuse_existing_modules=True to take the living ones, or other names"
        raise GraphKeyError(f"there are modules named {', '.join(living)} already", remedy=remedy)
    return {
        name: living[name] if name in living else NeuralModule.deserialize(configuration, name, overwritten.get(name))
        for name, configuration in configurations.items()
    }


def _sources(sections: Mapping[str, Any], steps: Mapping[int, str]) -> dict[int, dict[str, _PortSource]]:
    """By step and port."""
    sources: dict[int, dict[str, _PortSource]] = {number: {} for number in steps}
    for section, form in (("connections", _CONNECTION), ("inputs", _INPUT)):
        for line in sections[section]:
            *origin, to, name, to_port, type_text = _matched(form, line, section)
            if steps.get(int(to)) != name:
                raise ConfigStructureError(f"{line}: step {to} is {steps.get(int(to), 'missing')}, not {name}")
            from_step = (int(origin[0]), origin[2]) if section == "connections" else None
            sources[int(to)][to_port] = _PortSource(from_step or origin[0], type_text, line)
    return sources


def _matched(form: re.Pattern[str], line: object, section: str) -> tuple[str, ...]:
    match = form.fullmatch(str(line))
    if match is None:
        problem = f"{section}: {line} is no line of a graph file, such as 0.layer.x->1.net.x | axes: ..."
        raise ConfigStructureError(problem)
    return match.groups()


def _check_type(text: str, ntype: NeuralType, line: str) -> None:
    if text != str(ntype):
        raise ConfigStructureError(f"{line}: the port has another type: {ntype}")
