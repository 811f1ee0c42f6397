"""A decoder of a user's own, in one file: prefix beam search for CTC, in the role of greedy decoding."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

import nemo_asr
from nemo_lite import NonTrainableNM
from nemo_lite.core.neural_types import LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports

Prefix = tuple[int, ...]


class PrefixBeamSearch(NonTrainableNM):
    """The most probable labels, all their alignments together, among ``width`` prefixes a frame.

    Source: Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
    DNNs", 2014, algorithm 1, without a language model.
    """

    input_ports: Ports = {
        "scores": NeuralType("B T D", LogprobsType()),
        "num_frames": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"predictions": NeuralType("B T", PredictionsType())}

    def __init__(self, width: int = 4, name: str | None = None) -> None:
        super().__init__(name)
        self._width = width

    def forward(self, scores: Tensor, num_frames: Tensor | None = None) -> Tensor:
        blank = scores.shape[2] - 1
        ends = [scores.shape[1]] * len(scores) if num_frames is None else num_frames.tolist()
        found = [self._search(frames[:end].exp().tolist(), blank) for frames, end in zip(scores, ends, strict=True)]
        rows = [[part for label in labels for part in (label, blank)] for labels in found]
        longest = max(1, *(len(row) for row in rows))
        return torch.tensor([row + [blank] * (longest - len(row)) for row in rows])

    def _search(self, frames: list[list[float]], blank: int) -> Prefix:
        beams: dict[Prefix, tuple[float, float]] = {(): (1.0, 0.0)}  # probability with a blank, a label at the end
        for frame in frames:
            grown: dict[Prefix, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for prefix, (with_blank, with_label) in beams.items():
                grown[prefix][0] += (with_blank + with_label) * frame[blank]
                for label, probability in enumerate(frame[:blank]):
                    repeats = prefix[-1:] == (label,)
                    grown[(*prefix, label)][1] += (with_blank + (0.0 if repeats else with_label)) * probability
                    if repeats:
                        grown[prefix][1] += with_label * probability
            best = sorted(grown, key=lambda prefix: -sum(grown[prefix]))[: self._width]
            total = math.fsum(sum(grown[prefix]) for prefix in best)
            beams = {prefix: (grown[prefix][0] / total, grown[prefix][1] / total) for prefix in best}
        return max(beams, key=lambda prefix: sum(beams[prefix]))


nemo_asr.register(PrefixBeamSearch)
