"""Small modules without torch: a sound source, features, an encoder, a loss. For the tests of the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AudioSignal,
    AxisKind,
    AxisType,
    ChannelType,
    LabelsType,
    LengthsType,
    LogprobsType,
    LossType,
    MelSpectrogramType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div, named, symbol


def features_of(size: int) -> tuple[AxisType, ...]:
    return (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, size), AxisType(AxisKind.Time))


class Toy(NeuralModule):
    """Connects when it is called, as every backend's modules do."""

    def __call__(self, *args: Any, **wires: Any) -> Any:
        return self.connect(*args, **wires)


class SoundLayer(Toy):
    """A data layer: sound and labels."""

    def __init__(self, sample_rate: int = 16000, name: str | None = None) -> None:
        super().__init__(name)
        self._sample_rate = sample_rate

    @property
    def output_ports(self) -> Ports:
        return {
            "audio": NeuralType("B T", AudioSignal(self._sample_rate)),
            "audio_length": NeuralType("B", LengthsType()),
            "labels": NeuralType("B T", LabelsType()),
            "labels_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch = symbol("B")
        return {
            "audio": (batch, symbol("samples")),
            "audio_length": (batch,),
            "labels": (batch, symbol("U")),
            "labels_length": (batch,),
        }


class MelFeatures(Toy):
    """Features of sound."""

    converts = (AudioSignal, MelSpectrogramType)
    input_ports = {"signal": NeuralType("B T", AudioSignal(16000)), "length": NeuralType("B", LengthsType())}

    def __init__(self, features: int = 64, hop: int = 160, name: str | None = None) -> None:
        super().__init__(name)
        self._features, self._hop = features, hop

    @property
    def output_ports(self) -> Ports:
        return {
            "spectrogram": NeuralType(features_of(self._features), MelSpectrogramType()),
            "num_frames": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, samples = shapes["signal"]
        return {
            "spectrogram": (batch, self._features, named("T", ceil_div(samples, self._hop))),
            "num_frames": (batch,),
        }

    def forward(self, signal: Any, length: Any) -> Any:
        raise NotImplementedError


class Cutout(Toy):
    """An augmentation that keeps whatever shape it is given."""

    training_only = True
    input_ports = {"spectrogram": NeuralType("B D T", SpectrogramType())}
    output_ports = {"augmented": NeuralType("B D T", SpectrogramType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"augmented": shapes["spectrogram"]}

    def forward(self, spectrogram: Any) -> Any:
        raise NotImplementedError


class Encoder(Toy):
    """An encoder with a stride of 2."""

    def __init__(
        self, feat_in: int = 64, channels: int = 1024, num_weights: int = 1000, name: str | None = None
    ) -> None:
        super().__init__(name)
        self._feat_in, self._channels, self._num_weights = feat_in, channels, num_weights

    @property
    def input_ports(self) -> Ports:
        return {
            "spectrogram": NeuralType(features_of(self._feat_in), SpectrogramType()),
            "length": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        return {
            "encoded": NeuralType(features_of(self._channels), AcousticEncodedRepresentation()),
            "encoded_length": NeuralType("B", LengthsType()),
        }

    @property
    def num_weights(self) -> int:
        return self._num_weights

    def is_trainable(self) -> bool:
        return True

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["spectrogram"]
        return {"encoded": (batch, self._channels, ceil_div(time, 2)), "encoded_length": (batch,)}

    def forward(self, spectrogram: Any, length: Any) -> Any:
        raise NotImplementedError


class Decoder(Toy):
    """Log-probabilities of 29 classes."""

    input_ports = {"encoded": NeuralType("B D T", AcousticEncodedRepresentation())}
    output_ports = {"log_probs": NeuralType("B T D", LogprobsType())}

    def is_trainable(self) -> bool:
        return True

    @property
    def num_weights(self) -> int:
        return 29

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["encoded"]
        return {"log_probs": (batch, time, 29)}

    def forward(self, encoded: Any) -> Any:
        raise NotImplementedError


class SequenceLoss(Toy):
    """A loss over log-probabilities and labels."""

    input_ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "targets": NeuralType("B T", LabelsType()),
        "input_length": NeuralType("B", LengthsType()),
        "target_length": NeuralType("B", LengthsType()),
    }
    output_ports = {"loss": NeuralType(elements_type=LossType())}

    def forward(self, log_probs: Any, targets: Any, input_length: Any, target_length: Any) -> Any:
        raise NotImplementedError


class Source(Toy):
    """A data layer with one wire."""

    output_ports = {"x": NeuralType("B D", ChannelType())}


class Layer(Toy):
    """One wire in, one wire out."""

    input_ports = {"x": NeuralType("B D", ChannelType())}
    output_ports = {"y": NeuralType("B D", ChannelType())}

    def forward(self, x: Any) -> Any:
        raise NotImplementedError


class Split(Toy):
    """One wire in, two wires out."""

    input_ports = {"x": NeuralType("B D", ChannelType())}
    output_ports = {"left": NeuralType("B D", ChannelType()), "right": NeuralType("B D", ChannelType())}

    def forward(self, x: Any) -> Any:
        raise NotImplementedError


class Add(Toy):
    """Two wires in, the second of them optional, one out."""

    input_ports = {
        "a": NeuralType("B D", ChannelType()),
        "b": NeuralType("B D", ChannelType(), optional=True),
    }
    output_ports = {"total": NeuralType("B D", ChannelType())}

    def forward(self, a: Any, b: Any = None) -> Any:
        raise NotImplementedError


class Loss(Toy):
    """A loss of one wire."""

    input_ports = {"x": NeuralType("B D", ChannelType())}
    output_ports = {"loss": NeuralType(elements_type=LossType())}

    def forward(self, x: Any) -> Any:
        raise NotImplementedError
