"""A data layer, a loss and a decoder whose ports have names of their own, as a user would write them."""

from __future__ import annotations

from torch import Tensor

import nemo_asr
from nemo_lite import LossNM
from nemo_lite.core.neural_types import LabelsType, LengthsType, LogprobsType, LossType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports


class OtherDataLayer(nemo_asr.AudioToTextDataLayer):
    """Gives its audio as ``sound`` and its labels as ``text``."""

    @property
    def output_ports(self) -> Ports:
        names = ("sound", "sound_len", "text", "text_len")
        return dict(zip(names, super().output_ports.values(), strict=True))


class OtherLoss(LossNM):
    """The CTC loss from the port ``nll``."""

    input_ports: Ports = {
        "scores": NeuralType("B T D", LogprobsType()),
        "text": NeuralType("B T", LabelsType()),
        "num_frames": NeuralType("B", LengthsType()),
        "text_len": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {"nll": NeuralType(None, LossType())}

    def __init__(self, num_classes: int, name: str | None = None) -> None:
        super().__init__(name)
        self._loss = nemo_asr.CTCLossNM(num_classes=num_classes)

    def _loss_function(  # type: ignore[override]  # each loss has parameters of its own
        self, scores: Tensor, text: Tensor, num_frames: Tensor, text_len: Tensor
    ) -> Tensor:
        loss: Tensor = self._loss._loss_function(scores, text, num_frames, text_len)
        return loss


class OtherGreedy(nemo_asr.GreedyCTCDecoder):
    """Gives its labels as ``hypotheses``."""

    output_ports: Ports = {"hypotheses": NeuralType("B T", PredictionsType())}

    def output_shapes(self, shapes):  # type: ignore[no-untyped-def]
        return {"hypotheses": super().output_shapes(shapes)["predictions"]}


nemo_asr.register(OtherDataLayer)
nemo_asr.register(OtherLoss)
nemo_asr.register(OtherGreedy)
