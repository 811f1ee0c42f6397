"""RecordedGraph: the calls made inside ``with graph:``, their inputs and outputs, and how another graph repeats them.

The calls and wires are those of every DAG: the graph notes them, and `dag.py` orders and cuts them. No files and no
execution in here.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from nemo_lite.core.graph.dag import Slice, slice_between
from nemo_lite.core.graph.neural_interface import NeuralInterface
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.graph.recording import OperationMode, Recorder, active_recorder, set_active_recorder
from nemo_lite.core.neural_graph.graph_inputs import GraphInputs
from nemo_lite.core.neural_graph.graph_outputs import GraphOutputs
from nemo_lite.core.neural_types import LossType, NeuralType
from nemo_lite.core.neural_types.nm_tensor import Connection, ModuleCall, NestedUse, NmTensor, StepModulePort
from nemo_lite.errors import (
    GraphConnectionError,
    GraphKeyError,
    GraphTypeError,
    NeuralPortNameMismatchError,
    did_you_mean,
)
from nemo_lite.utils.alive import AppState

G = TypeVar("G", bound="RecordedGraph")


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

    def __enter__(self: G) -> G:
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
