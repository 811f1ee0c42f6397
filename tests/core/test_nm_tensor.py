"""Wires: what they know about where they come from and who reads them."""

from __future__ import annotations

import gc
import pickle
from copy import deepcopy
from weakref import ref

import pytest
from toys.dags import Add, Layer, MelFeatures, SoundLayer, Source

from nemo_lite.base.errors import DagError
from nemo_lite.core.app_state import StepModulePort
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import ChannelType, NeuralType, NeuralTypeComparisonResult, NmTensor


def test_a_wire_knows_its_producer_port_and_type() -> None:
    source = Source(name="numbers")
    x = source()
    assert x.producer is source
    assert (x.producer_name, x.output_port_name, x.place) == ("numbers", "x", "numbers.x")
    assert x.ntype == NeuralType("B D", ChannelType())
    assert x.producer_args == {}


def test_a_wire_knows_all_who_read_it() -> None:
    x, layer, add = Source()(), Layer(), Add()
    behind = layer(x), add(x, x)
    taken = [(1, layer.name, "x"), (2, add.name, "a"), (2, add.name, "b")]
    assert x.consumers == taken
    assert x.consumers[0].module_name == layer.name
    given = (0, x.producer_name, "x")
    assert x.producer_step_module_port == given
    assert x.connections() == [(given, consumer, x.ntype) for consumer in taken]
    x.add_consumer(StepModulePort(7, "elsewhere", "port"))
    assert x.consumers[-1] == (7, "elsewhere", "port")
    del behind
    gc.collect()
    assert x.consumers == [(7, "elsewhere", "port")]


def test_models_on_a_shared_wire_are_gone_when_nobody_holds_them_and_so_are_their_names() -> None:
    x, layers = Source()(), []
    for _ in range(3):
        layer = Layer()
        y = layer(x)
        y.rename("of this model")
        layers.append(ref(layer))
        del layer, y
    gc.collect()
    assert [layer() for layer in layers] == [None, None, None]
    assert x.readers == []


def test_a_renamed_wire_is_there_as_long_as_its_module() -> None:
    x, layer = Source()(), Layer()
    layer(x).rename("kept by its module")
    gc.collect()
    (reader, port), *others = x.readers
    assert (reader.module, port, others) == (layer, "x", [])
    del reader
    assert [wire.name for wire in Dag([Layer()(x)]).wires_by_name().values()] == ["kept by its module"]
    other = Layer()(x)
    other.rename("kept by its module")  # nobody could ask for the first one any more
    assert list(Dag([other]).wires_by_name().values()) == [other]


def test_a_copy_of_a_module_has_no_wires() -> None:
    layer = Layer()
    y = layer(Source()())
    y.rename("of the first")
    copied = deepcopy(layer.__dict__["_named_wires"]), pickle.loads(pickle.dumps(layer.__dict__["_named_wires"]))
    assert copied == ({}, {})
    assert layer.__dict__["_named_wires"] == {"of the first": y}


def test_steps_are_counted_among_connected_calls_in_the_order_of_recording() -> None:
    other = Source()()
    x = Source()()
    y = Layer()(x)
    assert [wire.producer_step_number for wire in (other, x, y)] == [0, 0, 1]
    y.call.step_number = 7  # what a graph that records calls says
    assert y.producer_step_number == 7


def test_a_wire_can_be_made_by_hand_and_belongs_to_no_dag() -> None:
    wire = NmTensor(None, {}, "x", NeuralType("B D", ChannelType()))
    assert wire.producer_name == "None"
    assert wire.producer_args == {}
    with pytest.raises(DagError, match="x: a wire was made by hand; get it from a call of a module"):
        Dag([wire])


def test_a_wire_is_its_type() -> None:
    x = Source()()
    assert (x.axes, x.elements_type, x.optional) == (x.ntype.axes, x.ntype.elements_type, False)
    assert x.compare(x.ntype) is NeuralType("B D", ChannelType()).compare(x) is NeuralTypeComparisonResult.SAME
    assert issubclass(NmTensor, NeuralType)
    assert str(x) == "axes: (batch, dimension); elements_type: ChannelType"
    assert x != Source()()


def test_a_name_is_given_to_one_living_wire_only() -> None:
    x, y = Source()(), Source()()
    x.rename("the one")
    x.rename("the one")
    with pytest.raises(KeyError) as caught:
        y.rename("the one")
    assert str(caught.value) == 'the name "the one" is in use by another tensor; choose another'
    with pytest.raises(KeyError, match="loss"):
        y.rename("loss")
    x.rename("another")
    y.rename("the one")
    assert y.name == "the one"


def test_a_wire_is_named_after_its_port_until_it_is_renamed() -> None:
    x = Source()()
    assert (x.name, x.is_renamed) == ("x", False)
    x.rename("numbers")
    assert (x.name, x.is_renamed, x.output_port_name) == ("numbers", True, "x")


def test_unique_names_differ_and_stay() -> None:
    audio, length, *_ = SoundLayer()()
    one, two = MelFeatures()(audio, length), MelFeatures()(audio, length)
    assert one.spectrogram.unique_name != two.spectrogram.unique_name
    assert one.spectrogram.unique_name == one.spectrogram.unique_name
    assert one.spectrogram.unique_name.startswith(f"spectrogram~~~{one.spectrogram.producer_name}~~~")


def test_the_wires_of_two_calls_are_two_wires() -> None:
    layer, x = Layer(), Source()()
    assert len({layer(x), layer(x)}) == 2
