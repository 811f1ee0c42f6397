"""Symbolic shapes: expressions of sizes, what the types say, and shapes along a DAG."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys.dags import Cutout, Decoder, Encoder, Layer, Loss, MelFeatures, SequenceLoss, SoundLayer, Source

from nemo_lite.base.errors import DagError, UsageError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import AxisKind, AxisType, ChannelType, LossType, NeuralType, NmTensor
from nemo_lite.core.shapes import (
    Expr,
    Shape,
    Size,
    ceil_div,
    definitions,
    floor_div,
    frames_of,
    named,
    shape_of,
    symbol,
    symbolic_shapes,
    symbols_of,
    written,
)

T, SAMPLES = symbol("T"), symbol("samples")


@pytest.mark.parametrize(
    ("size", "text", "at_7"),
    [
        (T, "T", 7),
        (T + 3, "T+3", 10),
        (3 + T, "T+3", 10),
        (T - 3, "T-3", 4),
        (T + 5 - 2, "T+3", 10),
        (T - 2 - 2, "T-4", 3),
        (T - 2 + 2, "T", 7),
        (T * 2, "T*2", 14),
        (2 * T, "T*2", 14),
        (T * 1, "T", 7),
        ((T + 1) * 2, "(T+1)*2", 16),
        (T - (T - 1), "T-(T-1)", 1),
        (ceil_div(T, 2), "T/2", 4),
        (ceil_div(ceil_div(T, 2), 3), "T/6", 2),
        (ceil_div(T, 1), "T", 7),
        (ceil_div(T + 1, 2), "(T+1)/2", 4),
        (floor_div(T, 2), "T//2", 3),
        (floor_div(T, 1), "T", 7),
        (named("U", ceil_div(T, 2)), "U", 4),
        (ceil_div(named("U", ceil_div(T, 2)), 2), "U/2", 2),
        (named("U", T), "U", 7),
        (named("U", 5), "U", 5),
    ],
)
def test_a_size_reads_as_it_computes(size: Expr, text: str, at_7: int) -> None:
    assert str(size) == text
    assert size.value(T=7) == at_7


def test_numbers_stay_numbers() -> None:
    assert (ceil_div(7, 2), floor_div(7, 2)) == (4, 3)


@given(st.integers(0, 10**9), st.integers(1, 1000), st.integers(1, 1000))
def test_nested_divisions_may_be_written_as_one(size: int, first: int, second: int) -> None:
    assert ceil_div(ceil_div(T, first), second).value(T=size) == math.ceil(math.ceil(size / first) / second)  # type: ignore[union-attr]


def test_a_size_whose_symbol_is_not_given_says_which() -> None:
    with pytest.raises(UsageError, match=r"size T is not known; give T=\.\.\."):
        (T + 1).value(samples=3)


def test_a_size_knows_its_symbols() -> None:
    assert symbols_of(named("U", T + SAMPLES)) == {"T", "samples"}
    assert symbols_of(64) == set()


def test_definitions_list_named_sizes_also_inside_others() -> None:
    frames = named("T", ceil_div(SAMPLES, 160))
    assert definitions([(symbol("B"), 64), (symbol("B"), ceil_div(frames, 2))]) == {"T": "samples/160"}


def test_a_name_with_two_meanings_gets_both() -> None:
    shapes = [(named("T", ceil_div(SAMPLES, hop)),) for hop in (160, 80, 160)]
    assert definitions(shapes) == {"T": "samples/160 or samples/80"}


def test_a_long_chain_of_changes_is_one_expression() -> None:
    size = T
    for _ in range(5000):
        size = size - 2
    assert (str(size), size.value(T=20000)) == ("T-10000", 10000)


def test_types_alone_give_fixed_sizes_the_batch_and_question_marks() -> None:
    axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, 64), AxisType(AxisKind.Time))
    assert written(shape_of(NeuralType(axes, ChannelType()))) == "B 64 T?"
    assert written(shape_of(NeuralType(elements_type=LossType()))) == "scalar"


def test_equal_sizes_are_equal() -> None:
    size: Size = ceil_div(T + 1, 2)
    assert size == ceil_div(T + 1, 2)
    assert len({size, ceil_div(T + 1, 2)}) == 1


# Along a DAG


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


class Failing(Layer):
    """A rule that asks for an input which it has not."""

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"y": shapes["z"]}


class Forgotten(Layer):
    """A rule without a return."""

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return None  # type: ignore[return-value]  # the mistake under test


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Failing, r"Failing: output_shapes fails: got KeyError: 'z' \(test_shapes\.py:\d+\)$"),
        (Forgotten, r"Forgotten: output_shapes gives no shapes: got NoneType, wanted a dictionary of shapes$"),
    ],
)
def test_a_rule_that_fails_is_told_with_its_module_and_line(module: type[Layer], told: str) -> None:
    with pytest.raises(UsageError, match=told):
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
