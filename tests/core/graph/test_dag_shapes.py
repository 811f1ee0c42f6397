"""Symbolic shapes along a DAG, and lengths computed from them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys.dags import Cutout, Decoder, Encoder, Layer, Loss, MelFeatures, SequenceLoss, SoundLayer, Source

from nemo_lite.core.graph.dag import Dag
from nemo_lite.core.graph.dag_shapes import frames_of, symbolic_shapes
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.core.graph.shapes import Shape, symbol, written
from nemo_lite.core.neural_types import AxisKind
from nemo_lite.errors import DagError, UsageError


def recogniser() -> tuple[Dag, dict[str, NmTensor]]:
    audio, audio_length, labels, labels_length = SoundLayer()()
    frames, num_frames = MelFeatures()(audio, audio_length)
    encoded, encoded_length = Encoder()(Cutout()(frames), num_frames)
    log_probs = Decoder()(encoded)
    loss = SequenceLoss()(log_probs, labels, encoded_length, labels_length)
    wires = {
        "audio": audio,
        "labels": labels,
        "frames": frames,
        "encoded": encoded,
        "log_probs": log_probs,
        "loss": loss,
    }
    return Dag([loss]), wires


def test_shapes_follow_the_rules_of_the_modules_node_by_node() -> None:
    dag, wires = recogniser()
    shapes = symbolic_shapes(dag)
    assert {name: written(shapes[wire]) for name, wire in wires.items()} == {
        "audio": "B samples",
        "labels": "B U",
        "frames": "B 64 T",
        "encoded": "B 1024 T/2",
        "log_probs": "B T/2 29",
        "loss": "scalar",
    }
    assert len(shapes) == 4 + 2 + 1 + 2 + 1 + 1


def test_modules_without_a_rule_give_what_their_types_say() -> None:
    wire = Layer()(Source()())
    assert written(symbolic_shapes(Dag([wire]))[wire]) == "B D?"


class TooFew(Layer):
    """A rule that forgets its output."""

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {}


class TooShort(Layer):
    """A rule that forgets an axis."""

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"y": (symbol("B"),)}


@pytest.mark.parametrize(("module", "got"), [(TooFew, "nothing"), (TooShort, "B")])
def test_a_rule_that_does_not_follow_the_ports_is_refused_by_name(module: type[Layer], got: str) -> None:
    with pytest.raises(
        UsageError,
        match=rf"{module.__name__}\.y: output_shapes does not follow the ports: got {got}, wanted B D Channel",
    ):
        symbolic_shapes(Dag([module()(Source()())]))


@given(st.integers(0, 10**7))
def test_frames_are_those_that_the_expression_gives(samples: int) -> None:
    dag, wires = recogniser()
    frames = -(-samples // 160)
    assert frames_of(dag, wires["frames"])(samples) == frames
    assert frames_of(dag, wires["encoded"])(samples) == -(-frames // 2)
    assert frames_of(dag, wires["log_probs"])(samples) == -(-frames // 2)
    assert frames_of(dag, wires["audio"])(samples) == samples


def test_another_axis_may_be_asked_for_also_a_fixed_one() -> None:
    dag, wires = recogniser()
    assert frames_of(dag, wires["encoded"], AxisKind.Dimension)(5) == 1024


def test_a_length_that_does_not_follow_from_the_data_is_refused_with_the_module_that_hides_it() -> None:
    audio, audio_length, *_ = SoundLayer()()
    frames, num_frames = MelFeatures()(audio, audio_length)

    class Silent(Encoder):
        def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
            return super(Encoder, self).output_shapes(shapes)

    encoded, _ = Silent()(frames, num_frames)
    log_probs = Decoder()(encoded)
    with pytest.raises(
        UsageError,
        match=r"the time axis of decoder\.log_probs does not follow from one size of the data: got B T\? 29; "
        r"give an output_shapes to Silent",
    ):
        frames_of(Dag([log_probs]), log_probs)


def test_a_data_layer_without_a_rule_does_not_make_unknown_sizes_known() -> None:
    class Bare(SoundLayer):
        def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
            return super(SoundLayer, self).output_shapes(shapes)

    audio, audio_length, *_ = Bare()()
    frames, _ = MelFeatures()(audio, audio_length)
    with pytest.raises(UsageError, match="give an output_shapes to Bare"):
        frames_of(Dag([frames]), frames)


def test_a_wire_without_the_axis_or_of_another_dag_is_refused() -> None:
    dag, wires = recogniser()
    with pytest.raises(UsageError, match=r"sequence_loss\.loss does not have one time axis: got Loss"):
        frames_of(dag, wires["loss"])
    with pytest.raises(DagError, match=r"loss\.loss is not in this DAG"):
        frames_of(dag, Loss()(Source()()))
