"""AppState is one object; registries name what is alive, and keep nothing alive."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from toys.dags import Layer, Source

from nemo_lite.base.errors import NemoLiteError
from nemo_lite.core.app_state import AppState, NeuralGraphManager, NmTensorNameRegistry, ObjectRegistry, Singleton


class Thing:
    """Something that can be registered."""


class Wire:
    def __init__(self, unique_name):
        self.unique_name = unique_name


def test_an_object_gets_the_first_free_number_of_its_class():
    registry = ObjectRegistry("thing")
    things = [Thing(), Thing(), Thing()]
    assert [registry.register(thing, None) for thing in things] == ["thing0", "thing1", "thing2"]
    assert registry.register(things[1], "another name") == "thing1"
    del things[0]
    assert registry.register(Thing(), None) == "thing0"


@pytest.mark.slow
def test_a_name_is_one_living_objects():
    registry, one, other = ObjectRegistry("thing"), Thing(), Thing()
    registry.register(one, "x")
    with pytest.raises(NameError, match='the name "x" is in use by another thing'):
        registry.register(other, "x")
    registry.register(other, "y")
    with pytest.raises(NameError):
        registry.rename(other, "x")
    registry.rename(one, "z")
    registry.rename(other, "x")
    assert (registry["z"], registry["x"], registry.has("y")) == (one, other, False)


def test_threads_get_names_that_no_other_object_has():
    registry = ObjectRegistry("thing")
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: (thing := Thing(), registry.register(thing, None)), range(2000)))
    finally:
        sys.setswitchinterval(switching)
    assert len({name for _, name in made}) == len(registry) == 2000


def test_what_only_a_cycle_holds_gives_its_name_back():
    registry, one = ObjectRegistry("thing"), Thing()
    registry.register(one, "x")
    one.__dict__["itself"] = one
    del one
    registry.register(Thing(), "x")


def test_a_registry_is_a_set_with_names():
    registry, one, other = ObjectRegistry("thing"), Thing(), Thing()
    registry.register(one, None)
    assert one in registry
    assert other not in registry
    assert (len(registry), list(registry)) == (1, [one])
    assert registry == {one}
    assert registry.summary() == "Objects of kind thing: 1\n * thing0 (Thing)"
    with pytest.raises(KeyError) as caught:
        registry["thing1"]
    assert isinstance(caught.value, NemoLiteError)
    assert str(caught.value) == 'thing "thing1" is not known; known: thing0 (did you mean thing0?)'
    registry.clear()
    assert len(registry) == 0


def test_the_manager_of_graphs_knows_the_active_one():
    manager, graph = NeuralGraphManager(), Thing()
    assert manager.active_graph is None
    manager.active_graph = graph
    assert manager.register(graph, None) == "thing0"
    assert manager.active_graph is graph


def test_names_of_wires_lead_to_their_unique_names():
    names, wire = NmTensorNameRegistry(), Wire("x~~~0")
    names.register(wire)
    assert names.unique_names == {"loss", "x~~~0"}
    names.rename_NmTensor(wire, "mine")
    assert (names["mine"], names["loss"], names["x~~~0"]) == ("x~~~0", "loss", "x~~~0")
    names.rename_NmTensor(wire, "yours")
    with pytest.raises(KeyError, match='tensor "mine" is not known'):
        names["mine"]
    del wire
    assert names.unique_names == {"loss"}


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
