"""Dag: which nodes some wires need, in which order, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys.dags import (
    Add,
    Cutout,
    Decoder,
    Encoder,
    Layer,
    Loss,
    MelFeatures,
    SequenceLoss,
    SoundLayer,
    Source,
    Split,
    Toy,
)

from nemo_lite.base.errors import DagError
from nemo_lite.core.dag import Dag, Node, Slice, slice_between
from nemo_lite.core.neural_types import ChannelType, NeuralType, NmTensor


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def in_order(part: Slice | Dag) -> bool:
    """Whether every node takes only what inputs and earlier nodes give."""
    known = set(part.inputs)
    for node in part.nodes:
        if not known.issuperset(node.inputs.values()):
            return False
        known.update(node.outputs.values())
    return known.issuperset(part.outputs)


def speech() -> dict[str, NmTensor]:
    """The wires of a small recogniser."""
    audio, audio_length, labels, labels_length = SoundLayer()()
    frames, num_frames = MelFeatures()(audio, audio_length)
    encoded, encoded_length = Encoder()(Cutout()(frames), num_frames)
    log_probs = Decoder()(encoded)
    loss = SequenceLoss()(log_probs, labels, encoded_length, labels_length)
    return {"audio": audio, "frames": frames, "encoded": encoded, "log_probs": log_probs, "loss": loss}


# From the wires asked for back to the data layer


def test_a_dag_holds_the_nodes_that_its_wires_need_in_order() -> None:
    wires = speech()
    dag = Dag([wires["loss"]])
    assert dag.data_node.name == "sound_layer"
    assert isinstance(dag.data_layer, SoundLayer)
    assert names(dag.nodes) == ["mel_features", "cutout", "encoder", "decoder", "sequence_loss"]
    assert dag.outputs == (wires["loss"],)
    assert [wire.name for wire in dag.inputs] == ["audio", "audio_length", "labels", "labels_length"]
    assert in_order(dag)


def test_what_is_not_asked_for_is_not_in_the_dag() -> None:
    wires = speech()
    dag = Dag([wires["frames"]])
    assert names(dag.nodes) == ["mel_features"]
    assert wires["frames"] in dag
    assert wires["encoded"] not in dag


def test_several_outputs_share_their_nodes() -> None:
    wires = speech()
    dag = Dag([wires["log_probs"], wires["loss"], wires["audio"], wires["loss"]])
    assert dag.outputs == (wires["log_probs"], wires["loss"], wires["audio"], wires["loss"])
    assert names(dag.nodes).count("decoder") == 1
    assert in_order(dag)


def test_a_wire_may_be_read_by_many() -> None:
    x = Source()()
    y = Layer()(x)
    dag = Dag([Loss()(Add()(Add()(x, y), Add()(y, y)))])
    assert names(dag.nodes) == ["layer", "add", "add_2", "add_3", "loss"]
    assert in_order(dag)


def test_a_module_that_is_called_twice_is_two_nodes_and_one_module() -> None:
    layer, x = Layer(), Source()()
    dag = Dag([layer(layer(x))])
    assert names(dag.nodes) == ["layer", "layer_2"]
    assert dag.modules == {"layer": layer}


def test_a_wire_of_the_data_layer_alone_is_a_dag_without_nodes() -> None:
    dag = Dag([Source()()])
    assert dag.nodes == ()
    assert in_order(dag)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20))
def test_nodes_always_stand_behind_those_they_take_wires_from(inputs: list[tuple[int, int]]) -> None:
    wires = [Source()()]
    for first, second in inputs:
        wires.append(Add()(wires[first % len(wires)], wires[second % len(wires)]))
    dag = Dag([wires[-1]])
    assert in_order(dag)
    assert len({node.name for node in dag.nodes}) == len(dag.nodes)


# What is refused


def test_nothing_asked_for_is_refused() -> None:
    with pytest.raises(DagError, match="made from the wires asked for: got nothing, wanted NmTensors"):
        Dag([])


def test_something_else_than_wires_is_refused() -> None:
    with pytest.raises(DagError, match="got NmTensor, float, wanted NmTensors"):
        Dag([Source()(), 3.0])  # type: ignore[list-item]  # the mistake under test


def test_one_wire_instead_of_a_list_is_refused() -> None:
    with pytest.raises(DagError, match="got one NmTensor, wanted a list of them"):
        Dag(Source()())


class Free(Toy):
    """A module that may be called without any wire, and is no data layer."""

    input_ports = {"x": NeuralType("B D", ChannelType(), optional=True)}
    output_ports = {"y": NeuralType("B D", ChannelType())}

    def forward(self, x: Any = None) -> Any:
        raise NotImplementedError


def test_no_data_layer_is_refused() -> None:
    with pytest.raises(DagError, match=r"layer\.y: no data layer leads to free: got no inputs; connect it to a wire"):
        Dag([Layer()(Free()())])


def test_a_module_that_nothing_leads_to_is_named_also_beside_a_data_layer() -> None:
    with pytest.raises(DagError, match="no data layer leads to free"):
        Dag([Add()(Source()(), Free()())])


def test_two_data_layers_are_refused_by_name() -> None:
    one, two = Source(name="one")(), Source(name="two")()
    with pytest.raises(
        DagError,
        match=r"add\.total: two data layers lead to these wires: got one and two, wanted one; make one DAG for each",
    ):
        Dag([Add()(one, two)])


def test_a_data_layer_that_is_called_twice_is_refused_with_the_remedy() -> None:
    source = Source()
    with pytest.raises(DagError, match=r"two data layers .*; call the data layer once and use its wires for all"):
        Dag([Add()(source(), source())])


def test_two_modules_of_one_given_name_are_refused() -> None:
    twin, other = Layer(name="twin"), Layer()
    other._name = "twin"  # a name that is in use cannot be given: this is a copy of a module, say
    with pytest.raises(DagError, match='two modules are named "twin"; give each its own name='):
        Dag([twin(other(Source()()))])


# Names of nodes


def test_modules_without_a_name_are_numbered_from_the_second() -> None:
    x = Source()()
    assert names(Dag([Layer()(Layer()(Layer()(x)))]).nodes) == ["layer", "layer_2", "layer_3"]


def test_given_names_stay_and_others_give_way() -> None:
    x = Source()()
    own, second = Layer(name="layer"), Layer(name="layer_2")
    assert names(Dag([second(own(Layer()(x)))]).nodes) == ["layer_3", "layer", "layer_2"]


def test_the_data_layer_keeps_its_name_too() -> None:
    dag = Dag([Layer(name="source")(Source()())])
    assert (dag.data_node.name, names(dag.nodes)) == ("source_2", ["source"])


# Parts of a DAG


def test_a_slice_holds_what_leads_to_its_outputs() -> None:
    wires = speech()
    dag = Dag([wires["loss"]])
    part = dag.slice([wires["encoded"]])
    assert names(part.nodes) == ["mel_features", "cutout", "encoder"]
    assert part.inputs == dag.inputs
    assert in_order(part)
    assert dag.slice() == Slice(dag.inputs, dag.nodes, dag.outputs)


def test_a_continuation_holds_only_what_the_dag_lacks() -> None:
    wires = speech()
    further = Layer
    predicted = type("Argmax", (Toy,), {**vars(further), "input_ports": {"x": wires["log_probs"].ntype}})()
    dag = Dag([wires["loss"]])
    wire = predicted(wires["log_probs"])
    part = dag.continuation([wire, wires["audio"]])
    assert part.inputs == (wires["log_probs"], wires["audio"])
    assert names(part.nodes) == ["argmax"]
    assert in_order(part)


def test_a_wire_of_another_dag_is_refused_by_name() -> None:
    mine, other = Dag([Loss()(Source(name="mine")())]), Layer()(Source(name="other")())
    for ask in (mine.slice, mine.continuation):
        with pytest.raises(
            DagError,
            match=r"layer\.y belongs to another DAG: got a wire from other, wanted one from this DAG's call of mine",
        ):
            ask([other])


def test_another_call_of_the_same_data_layer_is_another_dag() -> None:
    source = Source()
    dag = Dag([Loss()(source())])
    with pytest.raises(DagError, match="belongs to another DAG"):
        dag.slice([source()])


def test_a_slice_between_wires_starts_where_it_is_told() -> None:
    wires = speech()
    part = slice_between([wires["encoded"]], [wires["log_probs"], wires["encoded"]])
    assert (names(part.nodes), part.inputs) == (["decoder"], (wires["encoded"],))
    assert in_order(part)


def test_a_slice_that_needs_more_than_its_inputs_is_refused() -> None:
    wires = speech()
    with pytest.raises(
        DagError,
        match=r"sequence_loss\.loss needs more than the wires that are there: got decoder\.log_probs, "
        r"wanted also what sound_layer gives",
    ):
        slice_between([wires["log_probs"]], [wires["loss"]])


def test_renamed_wires_are_found_by_name_also_beyond_the_dag() -> None:
    x = Source()()
    y, beyond = Layer()(x), Layer()(x)
    dag = Dag([y])
    assert dag.wires_by_name() == {}
    y.rename("inside")
    beyond.rename("outside")
    assert dag.wires_by_name() == {"inside": y, "outside": beyond}


def test_two_wires_of_one_name_are_refused() -> None:
    left, right = Split()(Source()())
    left.rename("half")
    right._new_name = "half"  # a name that is in use cannot be given
    with pytest.raises(DagError, match=r'two wires are named "half": got split\.left and split\.right; rename one'):
        Dag([left]).wires_by_name()


# Size


@pytest.mark.parametrize("shared", [False, True], ids=["2,000 modules", "one module 2,000 times"])
def test_two_thousand_chained_modules_build_in_under_two_seconds(shared: bool) -> None:
    one = Add()
    start = time.process_time()
    wire = x = Source()()
    for _ in range(2000):
        wire = (one if shared else Add())(wire, x)
    dag = Dag([Loss()(wire)])
    part = dag.slice()
    assert time.process_time() - start < 2
    assert len(part.nodes) == 2001
    assert dag.nodes[-2].name == "add_2000"


@pytest.mark.slow
def test_a_wire_read_two_thousand_times_builds_in_under_two_seconds() -> None:
    start = time.process_time()  # other tests run beside this one
    left, right = Split()(Source()())
    for _ in range(2000):
        left, right = Add()(left, right), Add()(right, left)
    assert len(Dag([left]).nodes) == 4000
    assert time.process_time() - start < 2
