"""The family ``ctc``: log-probabilities of labels and a blank in each frame, trained by the CTC loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from nemo_asr.tasks.families import SPEECH_ROLES, Data, Family, Modules, Role, Wires, augmented_features
from nemo_lite import NeuralModule
from nemo_lite.core import AcousticEncodedRepresentation, LabelsType, LogprobsType, LossType, PredictionsType


class CTC(Family):
    """Encoder, a head of log-probabilities, a loss of them, and a search: greedy, or any other.

    With the modules ``intermediate_decoder``, ``intermediate_loss`` and ``intermediate_total`` training has a second
    CTC loss, of an output in the middle of the encoder: the layers before it learn to tell labels apart. The total is
    ``(1 - w)`` times the loss of the encoder's end and ``w`` times that of the middle.

    Source: Lee and Watanabe, "Intermediate Loss Regularization for CTC-based Speech Recognition", ICASSP 2021.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        **SPEECH_ROLES,
        "decoder": Role((AcousticEncodedRepresentation,), (LogprobsType,)),
        "loss": Role((LogprobsType, LabelsType), (LossType,)),
        "greedy": Role((LogprobsType,), (PredictionsType,)),
    }

    def connect(self, modules: Modules, data: Data, training: bool) -> Wires:
        """From audio to log-probabilities, predictions and, where there are texts, the loss."""
        features, labels = augmented_features(modules, data, training)
        encoded, *others = modules("encoder", features)
        log_probs, *_ = modules("decoder", encoded)
        loss = modules("loss", log_probs, labels)[0] if labels else None
        if training and "intermediate_decoder" in modules and loss and labels:
            middle, *_ = modules("intermediate_decoder", *others)
            loss_of_middle, *_ = modules("intermediate_loss", middle, labels)
            loss, *_ = modules("intermediate_total", loss, loss_of_middle)
        return Wires(
            predictions=modules("greedy", log_probs)[0].values,
            frames=log_probs.values,
            loss=loss and loss.values,
            transcripts=labels and labels.values,
            transcript_lengths=labels and labels.lengths,
            features=features.values,
            feature_lengths=features.lengths,
            log_probs=log_probs.values,
            log_probs_lengths=log_probs.lengths,
        )

    def problem(self, classes: Mapping[str, type[NeuralModule]], in_file: Iterable[str]) -> tuple[str, str]:
        """The default search is for CTC heads alone: those that say ``is_ctc``, or that a CTC loss trains."""
        decoder, loss, search = (classes[role] for role in ("decoder", "loss", "greedy"))
        if "greedy" in in_file or getattr(loss, "is_ctc", False) or getattr(decoder, "is_ctc", False):
            return "", ""
        return (
            "decoder",
            f"there is no section of a search for {decoder.__name__}, which {loss.__name__} trains; name the search "
            f"that it needs, or the family of the model; of a CTC head, {search.__name__}: {{}}",
        )
