"""Which label is in which frame, and how probable: modules behind the log-probabilities of a model. No words here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nemo_asr.decoding.texts import ctc_collapse
from nemo_lite import NonTrainableNM
from nemo_lite.core.neural_types import LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape
from nemo_lite.errors import UsageError


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

    On the CPU, frame by frame: memory and time grow with frames x labels, so it is for recordings of minutes.
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


def align(log_probs: npt.NDArray[np.floating[Any]], labels: Sequence[int]) -> npt.NDArray[np.int64]:
    """The most probable path of some labels: Viterbi's algorithm over labels with a blank around each.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section 4.1; a maximum takes the place of
    each sum.

    Args:
        log_probs: (T, classes), of which the last is the blank.
        labels: ids.

    Returns:
        (T,) the label of each frame, or the blank.

    Raises:
        UsageError: the labels need more frames.
    """
    num_frames, num_classes = log_probs.shape
    states = np.full(2 * len(labels) + 1, num_classes - 1)
    states[1::2] = labels
    if num_frames < len(labels) + sum(a == b for a, b in itertools.pairwise(labels)):
        raise UsageError("the decoder found more labels than frames", got=f"{len(labels)} in {num_frames} frames")
    skips = np.zeros(len(states), bool)  # a label may follow another one without a blank between
    skips[3::2] = states[3::2] != states[1:-2:2]
    best = np.full(len(states), -np.inf)
    best[:2] = 0.0  # in front of the first frame
    steps = np.zeros((num_frames, len(states)), np.int8)
    for frame in range(num_frames):
        if frame:
            ways = np.full((3, len(states)), -np.inf)
            ways[0], ways[1, 1:], ways[2, 2:] = best, best[:-1], np.where(skips[2:], best[:-2], -np.inf)
            steps[frame] = ways.argmax(0)
            best = ways.max(0)
        best = best + log_probs[frame, states]
    state = len(states) - 1 if len(states) == 1 or best[-1] >= best[-2] else len(states) - 2
    path = np.empty(num_frames, np.int64)
    for frame in range(num_frames - 1, -1, -1):
        path[frame] = states[state]
        state -= steps[frame, state]
    return path
