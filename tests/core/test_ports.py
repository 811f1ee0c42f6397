"""Ports: held against forward when the class is made, and against wires when a module is connected."""

from __future__ import annotations

import re
from typing import Any

import pytest
from toys.dags import Cutout, Encoder, Layer, MelFeatures, SequenceLoss, SoundLayer, Source, Toy, features_of

from nemo_lite.base.errors import NeuralPortNameMismatchError, NeuralPortNmTensorMismatchError, NeuralTypeError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AudioSignal,
    AxisKind,
    AxisType,
    ChannelType,
    LabelsType,
    LogprobsType,
    MaskType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports

CHANNELS = NeuralType("B D", ChannelType())


# When the class is made


def test_an_optional_port_whose_parameter_has_no_default_is_refused() -> None:
    with pytest.raises(
        NeuralPortNameMismatchError,
        match='Wrong: the optional input port "mask" is a parameter of forward without a default; give the parameter',
    ):

        class Wrong(Toy):
            input_ports = {"x": CHANNELS, "mask": NeuralType("B D", ChannelType(), optional=True)}

            def forward(self, x: Any, mask: Any) -> Any: ...


def test_a_port_that_forward_lacks_is_refused_with_the_nearest_parameter() -> None:
    with pytest.raises(
        NeuralPortNameMismatchError,
        match=r'Wrong: input port "lenght" is not a parameter of forward; parameters: length, x \(did you mean length',
    ):

        class Wrong(Toy):
            input_ports = {"x": CHANNELS, "lenght": CHANNELS}

            def forward(self, x: Any, length: Any) -> Any: ...


def test_a_parameter_without_a_port_is_refused() -> None:
    with pytest.raises(NeuralPortNameMismatchError, match=r'Wrong: parameter "y" of forward has no input port; add'):

        class Wrong(Toy):
            input_ports = {"x": CHANNELS}

            def forward(self, x: Any, y: Any) -> Any: ...


def test_ports_declared_as_a_property_are_checked_when_the_class_is_made() -> None:
    with pytest.raises(NeuralPortNameMismatchError, match='"z" is not a parameter'):

        class Wrong(Toy):
            @property
            def input_ports(self) -> Ports:
                return {"z": CHANNELS}

            def forward(self, x: Any) -> Any: ...


def test_ports_that_need_the_object_are_checked_when_it_is_made() -> None:
    class Wrong(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.ports = {"z": CHANNELS}

        @property
        def input_ports(self) -> Ports:
            return self.ports

        def forward(self, x: Any) -> Any: ...

    with pytest.raises(NeuralPortNameMismatchError, match='Wrong: input port "z" is not a parameter of forward'):
        Wrong()


def test_output_ports_that_need_the_object_are_checked_when_it_is_made() -> None:
    class Wrong(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.ports: Any = ["y"]

        @property
        def output_ports(self) -> Ports:
            return self.ports  # type: ignore[no-any-return]  # the mistake under test

    with pytest.raises(NeuralTypeError, match=r"Wrong: ports must be a dictionary of NeuralTypes: got \['y'\]"):
        Wrong()


def test_inherited_ports_are_held_against_the_new_forward() -> None:
    with pytest.raises(NeuralPortNameMismatchError, match='Wrong: input port "x" is not a parameter'):

        class Wrong(Layer):
            def forward(self, signal: Any) -> Any: ...


def test_a_parameter_with_a_default_needs_no_port() -> None:
    class Right(Toy):
        input_ports = {"x": CHANNELS}

        def forward(self, x: Any, scale: float = 1.0) -> Any: ...

    assert list(Right().input_ports) == ["x"]


def test_a_forward_that_takes_everything_is_not_checked_by_name() -> None:
    class Right(Toy):
        input_ports = {"x": CHANNELS}

        def forward(self, **wires: Any) -> Any: ...

    assert list(Right().input_ports) == ["x"]


@pytest.mark.parametrize("ports", [["x"], {"x": ChannelType()}, {"x": "B D"}])
def test_ports_that_are_no_dictionary_of_types_are_refused(ports: Any) -> None:
    with pytest.raises(NeuralTypeError, match="Wrong: ports must be a dictionary of NeuralTypes"):
        type("Wrong", (Toy,), {"output_ports": ports})


@pytest.mark.parametrize("port", ["class", "two words", "_hidden"])
def test_a_port_needs_a_name_that_a_parameter_could_have(port: str) -> None:
    with pytest.raises(NeuralTypeError, match=f'Wrong: "{port}" cannot name a port'):
        type("Wrong", (Toy,), {"output_ports": {port: CHANNELS}})


def test_outputs_may_be_numbered_and_inputs_may_not() -> None:
    numbered: Any = type("Numbered", (Toy,), {"output_ports": {"1": CHANNELS, "2": CHANNELS}})
    assert list(numbered().output_ports) == ["1", "2"]
    with pytest.raises(NeuralTypeError, match='Wrong: "1" cannot name a port'):
        type("Wrong", (Toy,), {"input_ports": {"1": CHANNELS}, "forward": lambda self, x: x})


# When a module is connected


def test_a_superfluous_input_is_refused_with_the_known_ports() -> None:
    with pytest.raises(NeuralPortNameMismatchError, match=r'layer: "xx" is not an input port; input ports: x$'):
        Layer()(xx=Source()())


def test_a_missing_input_is_refused_with_its_type_when_the_dag_is_made() -> None:
    audio, *_ = SoundLayer()()
    with pytest.raises(
        NeuralPortNameMismatchError, match=r"input ports are not connected: got signal, wanted length \(B Lengths\)"
    ):
        Dag([MelFeatures()(signal=audio).spectrogram])
    with pytest.raises(NeuralPortNameMismatchError, match="input ports are not connected: got nothing"):
        MelFeatures()()


def test_a_missing_preprocessor_is_named() -> None:
    audio, length, *_ = SoundLayer(name="data")()
    with pytest.raises(NeuralPortNmTensorMismatchError) as caught:
        Encoder(name="encoder")(spectrogram=audio, length=length)
    *ends, remedy = str(caught.value).splitlines()
    assert ends == [
        "encoder.spectrogram cannot take data.audio:",
        "  got    B T AudioSignal(16000)",
        "  wanted B D=64 T Spectrogram",
    ]
    # Other tests of the same process may have brought more preprocessors.
    assert re.fullmatch(
        r"  AudioSignal\(16000\) is not Spectrogram; 2 axes instead of 3\. "
        r"A preprocessor is missing: (\w+ or )*MelFeatures( or \w+)* turns one into the other\.",
        remedy,
    )


def test_transposed_axes_are_named_with_the_order_that_is_wanted() -> None:
    class Features(Toy):
        output_ports = {"frames": NeuralType("B T D", SpectrogramType())}

    with pytest.raises(
        NeuralPortNmTensorMismatchError,
        match=r"cutout\.spectrogram cannot take features\.frames:\n"
        r"  got    B T D Spectrogram\n  wanted B D T Spectrogram\n"
        r"  the axes are B T D, not B D T\. Transpose the axes to B D T\.",
    ):
        Cutout()(Features()())


def test_a_transposed_special_case_is_still_told_to_transpose() -> None:
    class Mel(Toy):
        output_ports = {"frames": NeuralType("B T D", MelFeatures().output_ports["spectrogram"].elements_type)}

    with pytest.raises(NeuralPortNmTensorMismatchError, match=r"got    B T D MelSpectrogram\n.*\n.*Transpose the axes"):
        Cutout()(Mel()())


def test_another_sample_rate_is_named_with_both_ways_out() -> None:
    audio, length, *_ = SoundLayer(sample_rate=8000)()
    with pytest.raises(
        NeuralPortNmTensorMismatchError,
        match=r"freq is 8000, not 16000\. Use one sample rate for both: resample to 16000 Hz, or .* for 8000 Hz",
    ):
        MelFeatures()(audio, length)


def test_another_number_of_features_is_named_with_both_sizes() -> None:
    audio, length, *_ = SoundLayer()()
    with pytest.raises(
        NeuralPortNmTensorMismatchError,
        match=r"got    B D=80 T MelSpectrogram\n  wanted B D=64 T Spectrogram\n  D is 80, not 64\. Give both modules",
    ):
        Encoder(feat_in=64)(*MelFeatures(features=80)(audio, length))


def test_lists_instead_of_tensors_are_told_to_convert() -> None:
    class Lists(Toy):
        axes = (AxisType(AxisKind.Batch, is_list=True), AxisType(AxisKind.Dimension))
        output_ports = {"x": NeuralType(axes, ChannelType())}

    with pytest.raises(NeuralPortNmTensorMismatchError, match=r"Convert between lists and tensors to B D\."):
        Layer()(Lists()())


def test_a_more_general_wire_is_told_both_ways_out() -> None:
    class Labels(Toy):
        output_ports = {"labels": NeuralType("B", LabelsType())}

    class Masked(Toy):
        input_ports = {"mask": NeuralType("B", MaskType())}

        def forward(self, mask: Any) -> Any: ...

    with pytest.raises(
        NeuralPortNmTensorMismatchError,
        match=r"Labels is more general than Mask\. Declare the output as Mask, or let the port take Labels\.",
    ):
        Masked()(Labels()())


def test_a_mismatch_without_a_known_remedy_gives_its_reason_only() -> None:
    class Codes(Toy):
        output_ports = {"codes": NeuralType("B T D", AcousticEncodedRepresentation())}

    _, length, labels, labels_length = SoundLayer()()
    with pytest.raises(NeuralPortNmTensorMismatchError) as caught:
        SequenceLoss()(Codes()(), labels, length, labels_length)
    assert str(caught.value).endswith("\n  AcousticEncodedRepresentation is not Logprobs.")


def test_an_any_axis_of_a_port_does_not_open_the_others() -> None:
    class Wrong(Toy):
        output_ports = {"x": NeuralType("T D", LogprobsType())}

    class Port(Toy):
        input_ports = {"x": NeuralType("B Any", LogprobsType())}

        def forward(self, x: Any) -> Any: ...

    with pytest.raises(NeuralPortNmTensorMismatchError, match="T instead of B"):
        Port()(Wrong()())


def test_a_wire_of_unknown_size_may_go_where_a_size_is_wanted() -> None:
    audio, length, *_ = SoundLayer()()
    frames, num_frames = MelFeatures()(audio, length)
    augmented = Cutout()(frames)
    assert Encoder()(augmented, num_frames).encoded.ntype == NeuralType(
        features_of(1024), AcousticEncodedRepresentation()
    )


def test_a_tensor_among_wires_is_refused() -> None:
    with pytest.raises(NeuralPortNameMismatchError, match=r'"length" must be connected to a wire: got int; give wires'):
        MelFeatures()(signal=SoundLayer()().audio, length=3)


def test_audio_of_the_right_rate_is_taken() -> None:
    assert NeuralType("B T", AudioSignal(16000)).takes(SoundLayer().output_ports["audio"]).fits
