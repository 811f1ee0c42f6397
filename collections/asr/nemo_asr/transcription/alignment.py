"""Which label is in which frame, and how probable: modules behind the log-probabilities of a model. No words here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nemo_asr.decoding.texts import ctc_collapse
from nemo_asr.transcription.viterbi import align
from nemo_lite import NonTrainableNM
from nemo_lite.core.neural_types import LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


class PathScores(NonTrainableNM):
    """The log-probability of each frame's label: (B, T, classes) and ids (B, T) to (B, T)."""

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "path": NeuralType("B T", PredictionsType()),
    }
    output_ports: Ports = {"scores": NeuralType("B T", LogprobsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"scores": shapes["log_probs"][:2]}

    def forward(self, log_probs: Tensor, path: Tensor) -> Tensor:
        """Natural logarithms."""
        return log_probs.gather(2, path.unsqueeze(2)).squeeze(2)


class LabelAlignment(NonTrainableNM):
    """The most probable CTC path of the labels that a search has found, which says no frames: ids (B, U) to (B, T).

    On the CPU, frame by frame; memory and time grow with the frames.
    """

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "length": NeuralType("B", LengthsType()),
        "predictions": NeuralType("B T", PredictionsType()),
    }
    output_ports: Ports = {"path": NeuralType("B T", PredictionsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"path": shapes["log_probs"][:2]}

    def forward(self, log_probs: Tensor, length: Tensor, predictions: Tensor) -> Tensor:
        """Blank beyond each utterance's frames."""
        blank = log_probs.shape[2] - 1
        path = torch.full(log_probs.shape[:2], blank, dtype=torch.int64)
        found = ctc_collapse(predictions, None, blank)
        frames = log_probs.detach().float().cpu().numpy()
        for row, (labels, end) in enumerate(zip(found, length.tolist(), strict=True)):
            path[row, :end] = torch.from_numpy(align(frames[row, :end], labels))
        return path.to(log_probs.device)
