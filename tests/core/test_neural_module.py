"""NeuralModule: names, recorded constructor arguments, and what a connecting call returns."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from toys.dags import Add, Encoder, Layer, MelFeatures, SoundLayer, Source, Split, Toy

from nemo_lite.base.errors import NeuralPortNameMismatchError
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import AxisKind, AxisType, BatchTag, ChannelTag, ChannelType, NeuralType, NmTensor
from nemo_lite.core.ports import ModuleType, NeuralInterface, OperationMode
from nemo_lite.core.shapes import symbol

# Names


@pytest.mark.parametrize(
    ("class_name", "name"),
    [
        ("AudioToTextDataLayer", "audio_to_text_data_layer"),
        ("CTCLossNM", "ctc_loss"),
        ("AudioToMFCCPreprocessor", "audio_to_mfcc_preprocessor"),
        ("JasperEncoder", "jasper_encoder"),
        ("NM", "nm"),
    ],
)
def test_messages_call_a_module_without_a_name_after_its_class(class_name: str, name: str) -> None:
    module = type(class_name, (Toy,), {})()
    assert module.label == name
    assert not module.has_own_name


def test_a_module_without_a_name_gets_the_first_free_number() -> None:
    class Free(Toy):
        pass

    modules = [Free(), Free(), Free()]
    assert [module.name for module in modules] == ["free0", "free1", "free2"]
    del modules[1]
    assert Free().name == "free1"


def test_a_name_in_use_is_refused_and_free_again_when_its_module_is_gone() -> None:
    module = Layer(name="only one")
    with pytest.raises(NameError, match='the name "only one" is in use by another module; give another name='):
        Layer(name="only one")
    del module
    assert Layer(name="only one").name == "only one"


def test_the_signature_of_a_class_is_that_of_its_constructor() -> None:
    parameters = inspect.signature(Recorded).parameters
    assert [*parameters] == ["a", "b", "labels", "others"]
    assert parameters["b"].default == "default"


def test_modules_have_nemos_attributes() -> None:
    module = Layer()
    assert str(module) == "Layer"
    assert (module.type, module.operation_mode) == (ModuleType.module, OperationMode.both)
    assert module.local_parameters == module.init_params
    assert module.unique_instance_id == module.unique_instance_id != Layer().unique_instance_id
    assert isinstance(module, NeuralInterface)


def test_a_name_can_be_given_and_changed() -> None:
    module = Layer(name="first")
    assert (module.name, module.label, module.has_own_name) == ("first", "first", True)
    module.name = "second"
    assert (module.name, module.label) == ("second", "second")


# Constructor arguments


class Recorded(NeuralModule):
    def __init__(self, a: int, *, b: str = "default", labels: list[str] | None = None, **others: Any) -> None:
        super().__init__()


def test_arguments_are_recorded_with_defaults_keyword_only_and_further_ones() -> None:
    assert Recorded(1).init_params == {"a": 1, "b": "default", "labels": None}
    assert Recorded(a=1, b="x", c=3).init_params == {"a": 1, "b": "x", "labels": None, "c": 3}


def test_a_base_need_not_be_told_the_arguments() -> None:
    class Middle(Recorded):
        def __init__(self, width: int) -> None:
            a = width + 1
            super().__init__(a)

    # A walk over the frames would find the base's own ``a`` here.
    assert Middle(3).init_params == {"width": 3}


def test_a_class_without_a_constructor_records_those_of_its_base() -> None:
    class Same(Recorded):
        pass

    assert Same(2, b="y").init_params["b"] == "y"


def test_the_record_does_not_change_with_what_was_given() -> None:
    class Greedy(NeuralModule):
        def __init__(self, labels: list[str]) -> None:
            super().__init__()
            labels.append("<blank>")

    labels = ["a"]
    module = Greedy(labels)
    labels.append("b")
    assert module.init_params == {"labels": ["a"]}
    module.init_params["labels"] = None
    assert module.init_params == {"labels": ["a"]}


def test_objects_are_recorded_as_they_are() -> None:
    thing = object()
    assert Recorded(1, thing=thing).init_params["thing"] is thing


def test_wrong_arguments_are_refused_in_pythons_own_words() -> None:
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'a'"):
        Recorded()  # type: ignore[call-arg]  # the mistake under test


def test_the_keywords_of_the_first_nemo_are_accepted_by_every_constructor() -> None:
    assert Layer(factory=object(), placement=None).init_params == {"name": None}  # type: ignore[call-arg]


def test_a_keyword_that_a_constructor_does_not_have_is_left_out_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert Layer(nam="x", width=2).init_params == {"name": None}  # type: ignore[call-arg]
    told = capsys.readouterr().err
    assert "Layer: nam is not an argument (did you mean name?); it is left out" in told
    assert "Layer: width is not an argument" in told


def test_a_constructor_that_takes_any_keyword_gets_them() -> None:
    class Any(NeuralModule):
        def __init__(self, **kwargs: object) -> None:
            super().__init__()
            self.given = kwargs

    assert Any(feat_type="logfbank").given == {"feat_type": "logfbank"}


def test_a_constructor_may_hand_on_the_keywords_of_the_first_nemo(capsys: pytest.CaptureFixture[str]) -> None:
    class HandsOn(NeuralModule):
        def __init__(self, *, width: int, **kwargs: Any) -> None:
            super().__init__(factory=None, placement=None, **kwargs)

    assert HandsOn(width=3, factory=object()).init_params == {"width": 3}
    HandsOn(width=3, nam="x")
    assert "HandsOn: nam is not an argument (did you mean name?); it is left out" in capsys.readouterr().err


def test_ports_may_come_from_create_ports_as_in_nemo_0_8() -> None:
    class Old(Toy):
        @staticmethod
        def create_ports(channels: int = 1) -> tuple[Any, Any]:
            tagged = NeuralType({0: AxisType(BatchTag), 1: AxisType(ChannelTag, channels)})
            return {"x": tagged}, {"y": tagged}

        def __init__(self, *, channels: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)

        def forward(self, x: Any) -> Any:
            return x

    module = Old(channels=3)
    assert (list(module.input_ports), list(module.output_ports)) == (["x"], ["y"])
    assert module.output_ports["y"].axes == (AxisType(AxisKind.Batch, tag=BatchTag), AxisType(ChannelTag, 3))


def test_a_constructor_that_asks_for_such_a_keyword_gets_it() -> None:
    class Wants(NeuralModule):
        def __init__(self, factory: str) -> None:
            super().__init__()
            self.made_by = factory

    assert Wants(factory="mine").made_by == "mine"


# What ranks compare


def test_a_fingerprint_is_the_class_and_the_arguments_under_the_modules_name() -> None:
    class Other(Recorded):
        may_differ = ("name", "a")

    found = Recorded(1, c=3).fingerprint()
    assert found["recorded"] == "Recorded"
    assert (found["recorded.a"], found["recorded.c"]) == (1, 3)
    assert Recorded(1).fingerprint() == Recorded(a=1).fingerprint() != Recorded(2).fingerprint()
    assert Other(1).fingerprint() == Other(2).fingerprint()


# Connecting


def test_one_output_is_a_wire() -> None:
    wire = Layer()(Source()())
    assert isinstance(wire, NmTensor)
    assert repr(wire) == "NmTensor(layer.y: B D Channel)"


def test_several_outputs_are_a_named_tuple_in_port_order() -> None:
    outputs = Split()(Source()())
    assert type(outputs).__name__ == "SplitOutput"
    assert outputs._fields == ("left", "right")
    left, right = outputs
    assert (left, right) == (outputs.left, outputs.right)
    assert (left.place, right.place) == ("split.left", "split.right")


def test_wires_may_be_given_in_port_order_or_by_name() -> None:
    audio, length, *_ = SoundLayer()()
    features = MelFeatures()
    for frames, _ in (
        features(audio, length),
        features(audio, length=length),
        features(length=length, signal=audio),
    ):
        assert frames.producer_args == {"signal": audio, "length": length}
        assert list(frames.producer_args) == ["signal", "length"]


def test_too_many_inputs_are_refused() -> None:
    x = Source()()
    with pytest.raises(NeuralPortNameMismatchError, match=r"layer: 2 inputs are given: wanted at most 1 \(x\)"):
        Layer()(x, x)


def test_an_input_given_twice_is_refused() -> None:
    x = Source()()
    with pytest.raises(NeuralPortNameMismatchError, match='add: input port "a" is given twice'):
        Add()(x, a=x)


def test_an_optional_input_may_stay_unconnected() -> None:
    x = Source()()
    assert Add()(x).producer_args == {"a": x}
    assert Add()(x, x).producer_args == {"a": x, "b": x}


def test_a_module_can_be_called_many_times() -> None:
    layer, x = Layer(), Source()()
    first = layer(x)
    second = layer(first)
    assert first.producer is second.producer is layer
    assert first.call is not second.call


def test_ports_may_be_a_class_attribute_or_a_property() -> None:
    assert list(Layer.input_ports) == ["x"]
    assert list(Encoder(feat_in=3).input_ports) == ["spectrogram", "length"]


# Shapes


def test_without_a_rule_of_its_own_a_module_knows_what_its_types_say() -> None:
    class Fixed(Toy):
        output_ports = {"y": NeuralType("B T D", ChannelType())}

    assert Fixed().output_shapes({}) == {"y": (symbol("B"), symbol("T?"), symbol("D?"))}
