"""Decoders of the ASR collection: from log-probabilities to each frame's best label. No text and no metrics here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nemo_asr.models.frames import valid_frames
from nemo_lite.backends.pytorch.nm import NonTrainableNM
from nemo_lite.core.neural_types import LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


class GreedyCTCDecoder(NonTrainableNM):
    """The most probable class of each frame; repeats and blanks (the last class) are left in.

    Where ``log_probs_length`` is connected, frames behind the end of an utterance are blank, so that its transcript
    does not depend on its neighbours in the batch.
    """

    is_ctc = True
    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "log_probs_length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"predictions": NeuralType("B T", PredictionsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, time, _ = shapes["log_probs"]
        return {"predictions": (batch, time)}

    def forward(self, log_probs: Tensor, log_probs_length: Tensor | None = None) -> Tensor:
        """(B, T, classes) and valid frames (B,) -> (B, T), int64."""
        best = log_probs.argmax(dim=-1)
        if log_probs_length is None:
            return best
        blank = log_probs.shape[2] - 1
        return torch.where(valid_frames(log_probs_length, best.shape[1]).squeeze(1), best, blank)
