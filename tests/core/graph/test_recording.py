"""Calls are recorded by the active graph only, and nothing is active outside of one."""

import threading

import pytest
from toys.dags import Layer, Source

from nemo_lite.core.app_state import StepModulePort
from nemo_lite.core.neural_module import Recorder, active_recorder, set_active_recorder
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.ports import OperationMode
from nemo_lite.errors import NeuralPortNameMismatchError


class ListOfCalls(Recorder):
    operation_mode = OperationMode.both

    def __init__(self):
        self.calls = []

    def input_for(self, owner, port, ntype):
        return OpenWire(self, ntype)

    def record(self, call):
        call.step_number = len(self.calls)
        self.calls.append(call)


class OpenWire(NmTensor):
    is_graph_input = True

    def __init__(self, graph, ntype):
        super().__init__(Source(), {}, "x", ntype)
        self.of = graph

    @property
    def graph(self):
        return self.of


@pytest.fixture
def recorder():
    set_active_recorder(made := ListOfCalls())
    yield made
    set_active_recorder(None)


def test_calls_are_numbered_by_the_recorder_that_is_active(recorder):
    wire = Layer(name="layer")(x=Source()())
    assert [type(call.module) for call in recorder.calls] == [Source, Layer]
    assert wire.producer_step_module_port == StepModulePort(1, "layer", "y")


def test_nothing_is_recorded_outside():
    assert active_recorder() is None
    wire = Source()()
    assert wire.producer_step_number == 0
    assert wire.producer_step_module_port.step_number == 0


def test_another_thread_has_no_active_recorder(recorder):
    seen: list[Recorder | None] = []
    thread = threading.Thread(target=lambda: seen.append(active_recorder()))
    thread.start()
    thread.join()
    assert seen == [None]


def test_a_recorder_in_place_of_a_wire_gives_its_input(recorder):
    call = Layer()(x=recorder).call
    assert type(call.inputs["x"]) is OpenWire


def test_the_input_of_a_graph_is_refused_where_that_graph_is_not_active(recorder):
    wire = recorder.input_for("layer", "x", Layer.input_ports["x"])
    set_active_recorder(None)
    with pytest.raises(NeuralPortNameMismatchError, match='layer: "x" is given the input of a graph that is not activ'):
        Layer()(x=wire)
