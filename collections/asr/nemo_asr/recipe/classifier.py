"""Classifier: the modules of a model that gives each recording a class, and their connection to a data layer."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_asr.recipe.wiring import connect_by_type, signals_of
from nemo_lite import DataLayerNM, NeuralModule, NmTensor
from nemo_lite.core import AudioSignal, LabelsType
from nemo_lite.errors import UsageError


@dataclass(frozen=True)
class Classifier:
    """The modules that all DAGs of a classifier share, by role: :func:`connect_classifier` makes DAGs of it.

    ``multiplier`` and ``augmentation`` are for training DAGs.
    """

    preprocessor: NeuralModule
    encoder: NeuralModule
    decoder: NeuralModule
    loss: NeuralModule
    multiplier: NeuralModule | None = None
    augmentation: NeuralModule | None = None


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


def connect_classifier(model: Classifier, data_layer: DataLayerNM, training: bool = False) -> ClassWires:
    """From a data layer to scores of the classes and the loss.

    Args:
        model: the modules, see ``Recipe.classifier``.
        data_layer: it gives audio, and the class of each recording.
        training: go through the model's multiplier and augmentation, where it has them.

    Raises:
        NeuralPortNmTensorMismatchError: two modules do not fit each other.
        UsageError: the data layer gives no audio or no classes.
    """
    data = {type(each.values.ntype.elements_type): each for each in signals_of(data_layer())}
    if AudioSignal not in data or LabelsType not in data:
        got = ", ".join(data_layer.output_ports)
        raise UsageError("the data layer does not give audio and classes", place=data_layer.label, got=got)
    classes = data[LabelsType]
    features, *_ = connect_by_type(model.preprocessor, data[AudioSignal])
    if training and model.multiplier:
        features, classes = connect_by_type(model.multiplier, features, classes)
    if training and model.augmentation:
        features, *_ = connect_by_type(model.augmentation, features)
    encoded, *_ = connect_by_type(model.encoder, features)
    logits, *others = connect_by_type(model.decoder, encoded)
    loss, *_ = connect_by_type(model.loss, logits, classes)
    return ClassWires(loss.values, logits.values, classes.values, others[0].values if others else None)
