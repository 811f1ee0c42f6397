"""The families ``transducer``, and ``hybrid``: a transducer and a head of CTC on one encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nemo_asr.decoding.greedy import HypothesesType
from nemo_asr.decoding.transducer import TransducerBeamSearch
from nemo_asr.models.transducer.exported_steps import JointStep, PredictionStep
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import PredictionNetwork
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.exported_transducer import JOINT, PREDICTION
from nemo_asr.run.search.transducer import MAX_SYMBOLS
from nemo_asr.tasks.families import CTC, BesideCTC
from nemo_asr.tasks.family import (
    FAMILIES,
    SPEECH_ROLES,
    Data,
    Exported,
    Family,
    Model,
    Modules,
    Role,
    Signal,
    StandIn,
    Weighted,
    Wires,
    augmented_features,
    signals_of,
)
from nemo_asr.tasks.registry import defaults_of
from nemo_lite import NeuralModule, NmTensor
from nemo_lite.core import (
    AcousticEncodedRepresentation,
    EncodedRepresentation,
    LabelsType,
    LogprobsType,
    LossType,
    Reference,
)

# Any: arguments of a constructor, by name.


class Transducer(Family):
    """The joint network projects the encoder's frames, which the search reads. Loss and search call it by reference.

    Source: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        **SPEECH_ROLES,
        "prompt": Role((AcousticEncodedRepresentation,), (AcousticEncodedRepresentation,)),
        "prediction": Role((LabelsType,), (EncodedRepresentation,), needed=True),
        "joint": Role((AcousticEncodedRepresentation,), (AcousticEncodedRepresentation,), needed=True),
        "loss": Role((AcousticEncodedRepresentation, EncodedRepresentation, LabelsType), (LossType,)),
        "search": Role((AcousticEncodedRepresentation,), (HypothesesType,)),
    }
    heads: ClassVar[Mapping[str, str]] = {"transducer": "transducer"}
    label_roles: ClassVar[Sequence[str]] = ("prediction", "joint")

    def connect(self, modules: Modules, data: Data, training: bool) -> Wires:
        """From audio to hypotheses and, where there are texts, the loss."""
        features, labels = augmented_features(modules, data, training)
        encoded = self.encoded(modules, features)
        frames, *_ = modules("joint", encoded)
        losses = {"transducer": Weighted(self.loss(modules, encoded, labels), 1.0)} if labels else {}
        predictions, *_ = modules("search", frames)
        return Wires.of(predictions, frames, features, labels, losses)

    def encoded(self, modules: Modules, features: Signal) -> Signal:
        """What the heads read: encoded frames, and where the model has a prompt, these with the language."""
        encoded, *_ = modules("encoder", features)
        if "prompt" in modules:
            encoded, *_ = modules("prompt", encoded)
        return encoded

    def exported(self, wires: Wires, modules: Mapping[str, NeuralModule]) -> dict[str, Exported]:
        """The encoder up to projected frames, a step of the prediction network, and the rest of the joint network."""
        prediction, joint = _networks(modules)
        step, scores = PredictionStep(Reference(prediction), Reference(joint)), JointStep(Reference(joint))
        memory = [
            {"shape": part.shape[1:], "fill": float(part.flatten()[0]), "is_labels": not part.is_floating_point()}
            for part in prediction.beginning(1)
        ]
        settings = {
            "durations": joint.durations,
            "big_blank_durations": joint.big_blank_durations,
            "max_symbols": getattr(modules["search"], "max_symbols", MAX_SYMBOLS),
            "memory": memory,
        }
        return {
            "encoder": Exported(dict(wires.predictions.call.inputs), search="transducer", settings=settings),
            PREDICTION: _part(step),
            JOINT: _part(scores),
        }

    def loss(self, modules: Modules, encoded: Signal, labels: Signal) -> NmTensor:
        """The loss of encoded frames and labels. States have the lengths of the labels: they are one more."""
        states, *_ = modules("prediction", labels)
        return modules("loss", encoded, states, labels)[0].values

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        """A search with a beam, where something is asked for."""
        own = modules["search"]
        if options is None:
            return own
        prediction, joint = _networks(modules)
        max_symbols = getattr(own, "max_symbols", MAX_SYMBOLS)
        arguments = {"max_symbols": max_symbols, **options.arguments()}
        return TransducerBeamSearch(Reference(prediction), Reference(joint), labels, **arguments)


def _networks(modules: Mapping[str, NeuralModule]) -> tuple[PredictionNetwork, RNNTJoint]:
    prediction, joint = modules["prediction"], modules["joint"]
    assert isinstance(prediction, PredictionNetwork)
    assert isinstance(joint, RNNTJoint)
    return prediction, joint


def _part(step: PredictionStep | JointStep) -> Exported:
    inputs = (signal.values for signal in signals_of(StandIn(step.input_ports)()))
    outputs = signals_of(step.connect(**dict(zip(step.input_ports, inputs, strict=True))))
    return Exported(
        {port: signal.values for port, signal in zip(step.output_ports, outputs, strict=True)}, step.examples()
    )


class Hybrid(Transducer, BesideCTC):
    """A transducer and a head of CTC on one encoder. The search says by its ports which of the two it reads."""

    roles: ClassVar[Mapping[str, Role]] = {**Transducer.roles, **BesideCTC.ctc_roles}
    heads: ClassVar[Mapping[str, str]] = {"transducer": "transducer", "ctc": "ctc"}
    label_roles: ClassVar[Sequence[str]] = ("prediction", "joint", "decoder")

    def with_head(self, head: str, model: Model, labels: Sequence[str]) -> Model:
        """With the search of the hybrid, if that reads the head; else with the default of a model of that head."""
        family = self.heads[head]
        roles = FAMILIES[family].roles
        modules = {role: module for role, module in model.modules.items() if role in roles}
        if head == "ctc":
            modules["loss"] = model.others["ctc_loss"]
        reads = {type(port.elements_type) for port in modules["search"].input_ports.values()}
        if not reads.issuperset(roles["search"].takes):
            networks: dict[str, Any] = {
                name: Reference(modules[name]) for name in ("prediction", "joint") if name in modules
            }
            modules["search"] = defaults_of(family)["search"](**networks)
        return Model.of(modules, family, {})

    def connect(self, modules: Modules, data: Data, training: bool) -> Wires:
        """As of a transducer, with log-probabilities, and with the weighted losses of both heads."""
        features, labels = augmented_features(modules, data, training)
        encoded = self.encoded(modules, features)
        frames, *_ = modules("joint", encoded)
        log_probs, *_ = modules("decoder", encoded)
        losses: dict[str, Weighted] = {}
        if labels:
            ctc = self.ctc_loss(modules, log_probs, labels)
            losses = {"transducer": Weighted(self.loss(modules, encoded, labels), 1 - ctc.weight), "ctc": ctc}
        predictions, *_ = modules("search", frames, log_probs)
        return Wires.of(predictions, frames, features, labels, losses, log_probs)

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        """Of the head that the model's own search reads."""
        return self._head_of(modules["search"]).search(self, labels, options, modules)

    def exported(self, wires: Wires, modules: Mapping[str, NeuralModule]) -> dict[str, Exported]:
        """Of the head that the search reads."""
        return self._head_of(wires.predictions.call.module).exported(self, wires, modules)

    @staticmethod
    def _head_of(search: NeuralModule) -> type[Family]:
        """The family whose only head a search reads."""
        reads_log_probs = any(isinstance(port.elements_type, LogprobsType) for port in search.input_ports.values())
        return CTC if reads_log_probs else Transducer
