"""The family ``classification``: a class for each recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nemo_asr.tasks.families import (
    SPEECH_ROLES,
    Data,
    Family,
    Model,
    Modules,
    Role,
    augmented_features,
    connect,
)
from nemo_lite import DataLayerNM, NmTensor
from nemo_lite.core import AcousticEncodedRepresentation, LabelsType, LogitsType, LossType
from nemo_lite.errors import UsageError

Classifier = Model
"""The modules of a classifier, by role."""


@dataclass(frozen=True)
class ClassWires:
    """What a DAG of a classifier can be asked for: a score for each class, the true classes, and the loss.

    ``embeddings`` are what a decoder for speakers gives beside the scores.
    """

    loss: NmTensor
    logits: NmTensor
    classes: NmTensor
    embeddings: NmTensor | None = None

    @property
    def scored(self) -> list[NmTensor]:
        """What the classification functions of :mod:`nemo_asr.helpers` take, in their order."""
        return [self.loss, self.logits, self.classes]


class Classification(Family):
    """Encoder, a head of scores, and their loss."""

    task: ClassVar[str] = "classification"
    roles: ClassVar[Mapping[str, Role]] = {
        **SPEECH_ROLES,
        "decoder": Role((AcousticEncodedRepresentation,), (LogitsType,)),
        "loss": Role((LogitsType, LabelsType), (LossType,)),
    }

    def connect(self, modules: Modules, data: Data, training: bool) -> ClassWires:
        """From audio to scores of the classes and the loss.

        Raises:
            UsageError: the data layer gives no classes.
        """
        if data.labels is None:
            call = data.audio.values.call
            got = ", ".join(call.outputs)
            raise UsageError("the data layer gives no classes", place=call.module.label, got=got)
        features, classes = augmented_features(modules, data, training)
        assert classes is not None
        encoded, *_ = modules("encoder", features)
        logits, *others = modules("decoder", encoded)
        loss, *_ = modules("loss", logits, classes)
        return ClassWires(loss.values, logits.values, classes.values, others[0].values if others else None)


def connect_classifier(model: Classifier, data_layer: DataLayerNM, training: bool = False) -> ClassWires:
    """As ``connect``, of a classifier.

    Raises:
        NeuralPortNmTensorMismatchError: two modules do not fit each other.
        UsageError: the data layer gives no audio or no classes.
    """
    wires = connect(model, data_layer, training)
    assert isinstance(wires, ClassWires)
    return wires
