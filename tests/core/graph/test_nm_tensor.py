"""Wires: what they know about where they come from and who reads them."""

from __future__ import annotations

from toys.dags import Add, Layer, MelFeatures, SoundLayer, Source

from nemo_lite.core.neural_types import ChannelType, NeuralType


def test_a_wire_knows_its_producer_port_and_type() -> None:
    source = Source(name="numbers")
    x = source()
    assert x.producer is source
    assert (x.producer_name, x.output_port_name, x.place) == ("numbers", "x", "numbers.x")
    assert x.ntype == NeuralType("B D", ChannelType())
    assert x.producer_args == {}


def test_a_wire_knows_all_who_read_it() -> None:
    x, layer, add = Source()(), Layer(), Add()
    layer(x)
    add(x, x)
    assert x.consumers == [(layer, "x"), (add, "a"), (add, "b")]
    assert x.connections() == [("source.x", "layer.x"), ("source.x", "add.a"), ("source.x", "add.b")]


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
    assert one.spectrogram.unique_name.startswith("spectrogram~~~mel_features~~~")


def test_the_wires_of_two_calls_are_two_wires() -> None:
    layer, x = Layer(), Source()()
    assert len({layer(x), layer(x)}) == 2
