"""The families ``ctc`` and ``classification``. What a family is, and what a user's is made of: `family`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.models.losses import AuxiliaryCTCLoss, IntermediateDecoderForCTC, ctc_frames_needed
from nemo_asr.run.options import SearchOptions
from nemo_asr.tasks.family import (
    SPEECH_ROLES,
    Data,
    Exported,
    Family,
    Model,
    Modules,
    Role,
    Signal,
    Weighted,
    Wires,
    augmented_features,
    connect,
)
from nemo_lite import DataLayerNM, NeuralModule, NmTensor
from nemo_lite.base.errors import UsageError
from nemo_lite.core import (
    AcousticEncodedRepresentation,
    LabelsType,
    LogitsType,
    LogprobsType,
    LossType,
    PredictionsType,
)


class CTC(Family):
    """Encoder, a head of log-probabilities, a loss of them, and a search: greedy, or any other.

    With the modules ``intermediate_decoder`` and ``intermediate_loss`` training has a second CTC loss, of an output in
    the middle of the encoder: the layers before it learn to tell labels apart. The total is ``(1 - w)`` times the loss
    of the encoder's end and ``w``, the decoder's ``share``, times that of the middle.

    Source: Lee and Watanabe, "Intermediate Loss Regularization for CTC-based Speech Recognition", ICASSP 2021.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        **SPEECH_ROLES,
        "decoder": Role((AcousticEncodedRepresentation,), (LogprobsType,)),
        "loss": Role((LogprobsType, LabelsType), (LossType,)),
        "search": Role((LogprobsType,), (PredictionsType,)),
    }
    heads: ClassVar[Mapping[str, str]] = {"ctc": "ctc"}

    def connect(self, modules: Modules, data: Data, training: bool) -> Wires:
        """From audio to log-probabilities, predictions and, where there are texts, the loss."""
        features, labels = augmented_features(modules, data, training)
        encoded, *others = modules("encoder", features)
        log_probs, *_ = modules("decoder", encoded)
        losses = self.losses(modules, log_probs, others, labels, training)  # first: plans list readers in this order
        predictions, *_ = modules("search", log_probs)
        return Wires.of(predictions, log_probs, features, labels, losses, log_probs)

    def losses(
        self, modules: Modules, log_probs: Signal, others: Sequence[Signal], labels: Signal | None, training: bool
    ) -> dict[str, Weighted]:
        """The losses of the head: one, or in training with intermediate CTC two. Without texts there is none.

        Args:
            modules, training: as of :meth:`connect`.
            log_probs: of the head.
            others: what the encoder gives beside its frames.
            labels: of the texts.
        """
        if labels is None:
            return {}
        loss = modules("loss", log_probs, labels)[0].values
        if not training or "intermediate_decoder" not in modules:
            return {"ctc": Weighted(loss, 1.0)}
        middle, *_ = modules("intermediate_decoder", *others)
        of_middle = modules("intermediate_loss", middle, labels)[0].values
        decoder = middle.values.producer
        assert isinstance(decoder, IntermediateDecoderForCTC)
        return {"ctc": Weighted(loss, 1 - decoder.share), "intermediate": Weighted(of_middle, decoder.share)}

    def exported(self, wires: Wires, modules: Mapping[str, NeuralModule]) -> dict[str, Exported]:
        """One file, of log-probabilities."""
        assert wires.log_probs is not None
        assert wires.log_probs_lengths is not None
        outputs = {"log_probs": wires.log_probs, "log_probs_length": wires.log_probs_lengths}
        return {"model": Exported(outputs, search="ctc")}

    def frames_needed(self, labels: Sequence[int]) -> int:
        """One for each label, and one for the blank between equal neighbours."""
        return ctc_frames_needed(labels)

    def intermediate(
        self, channels: int, num_classes: int, weight: float, loss: Callable[[], NeuralModule]
    ) -> dict[str, Any]:
        """A head of an output in the middle of the encoder, and its loss."""
        decoder = IntermediateDecoderForCTC(channels, num_classes, share=weight)
        return {"intermediate_decoder": decoder, "intermediate_loss": loss()}

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        """A beam search, where something is asked for."""
        if options is None:
            return super().search(labels, options, modules)
        return BeamSearchCTCDecoder(labels, **options.arguments())

    def problem(self, classes: Mapping[str, type[NeuralModule]], in_file: Iterable[str]) -> tuple[str, str]:
        """The default search is for CTC heads alone: those that say ``is_ctc``, or that a CTC loss trains."""
        decoder, loss, search = (classes[role] for role in ("decoder", "loss", "search"))
        if "search" in in_file or getattr(loss, "is_ctc", False) or getattr(decoder, "is_ctc", False):
            return "", ""
        return (
            "decoder",
            f"there is no section of a search for {decoder.__name__}, which {loss.__name__} trains; name the search "
            f"that it needs, or the family of the model; of a CTC head, {search.__name__}: {{}}",
        )


class BesideCTC(CTC):
    """What families have in common with a head of CTC beside another head, on one encoder. Their search reads either.

    Attributes:
        ctc_roles: beside those of the other head.
    """

    ctc_roles: ClassVar[Mapping[str, Role]] = {
        "decoder": CTC.roles["decoder"],
        "ctc_loss": Role((LogprobsType, LabelsType), (LossType,)),
        "search": Role((), (PredictionsType,)),
    }

    def intermediate(
        self, channels: int, num_classes: int, weight: float, loss: Callable[[], NeuralModule]
    ) -> dict[str, Any]:
        """There is none: the head of CTC is the second loss."""
        return Family.intermediate(self, channels, num_classes, weight, loss)

    def ctc_loss(self, modules: Modules, log_probs: Signal, labels: Signal) -> Weighted:
        """The loss of the head of CTC, with its share of the total."""
        loss = modules("ctc_loss", log_probs, labels)[0].values
        module = loss.producer
        assert isinstance(module, AuxiliaryCTCLoss)
        return Weighted(loss, module.weight)


# The family ``classification``: a class for each recording.


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
        """What an evaluation scores, in the order of ``ScoredClasses``."""
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
