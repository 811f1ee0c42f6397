"""AppState is one object, and shows what is alive."""

import pytest
from toys.dags import Layer, Source

from nemo_lite.utils.alive import AppState, Singleton


def test_there_is_one_object_and_scripts_may_set_attributes():
    AppState().of_this_test = 3
    assert AppState() is AppState()
    assert AppState().of_this_test == 3
    del AppState().of_this_test
    with pytest.raises(AttributeError, match=r"AppState\.of_this_test was not set"):
        AppState().of_this_test  # noqa: B018


def test_a_class_with_the_metaclass_has_one_object():
    class Only(metaclass=Singleton):
        def __init__(self, value):
            self.value = value

    assert Only(1) is Only(2)
    assert Only(3).value == 1


def test_modules_and_wires_that_are_alive_are_found_by_name():
    layer = Layer()
    assert AppState().modules[layer.name] is layer
    wire = layer(Source()())
    wire.rename("of this test")
    assert AppState().tensor_names["of this test"] == wire.unique_name
    assert "loss" in AppState().tensor_names.unique_names
    name = layer.name
    del layer, wire
    assert not AppState().modules.has(name) or AppState().modules[name].name == name


def test_graphs_are_registered_and_one_is_active():
    class Graph:
        pass

    graph, state = Graph(), AppState()
    assert state.register_graph(graph, "of this test") == "of this test"
    assert state.graphs["of this test"] is graph
    before, state.active_graph = state.active_graph, graph
    assert state.active_graph is state.graphs.active_graph is graph
    state.active_graph = before
