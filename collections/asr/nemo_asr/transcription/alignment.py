"""Which label is in which frame, and how probable: modules behind the log-probabilities of a model. No words here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nemo_asr.decoding.texts import ctc_collapse
from nemo_asr.models.frames import valid_frames
from nemo_asr.transcription.transcript import refuse_no_probabilities
from nemo_asr.transcription.viterbi import align
from nemo_lite import NonTrainableNM
from nemo_lite.core.neural_types import LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


class PathScores(NonTrainableNM):
    """The log-probability of each frame's label: (B, T, classes) and ids (B, T) to (B, T).

    Raises:
        UsageError: a valid frame's probabilities do not add up to 1.
    """

    keep_uncompiled = True  # it reads values
    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "path": NeuralType("B T", PredictionsType()),
        "length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"scores": NeuralType("B T", LogprobsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"scores": shapes["log_probs"][:2]}

    def forward(self, log_probs: Tensor, path: Tensor, length: Tensor | None = None) -> Tensor:
        """Natural logarithms."""
        log_sums = log_probs.float().logsumexp(2)
        if length is not None:
            log_sums = log_sums[valid_frames(length, log_probs.shape[1]).squeeze(1)]
        if log_sums.numel():
            log_sums = log_sums.flatten()
            refuse_no_probabilities(float(log_sums[log_sums.abs().argmax()]))  # argmax takes NaN for the highest
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
