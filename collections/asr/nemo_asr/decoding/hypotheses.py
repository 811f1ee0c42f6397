"""SearchOfStates: a search that gives hypotheses with times, over what a model computes of whole utterances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nemo_asr.decoding.greedy import HypothesesType
from nemo_asr.run.search.search import States, TimedLabels
from nemo_lite import NeuralModule
from nemo_lite.backends.pytorch.nm import NonTrainableNM
from nemo_lite.core.neural_types import AxisKind, IntType, LogprobsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol


class FoundLabels(NamedTuple):
    """A hypothesis for a recording: its labels, and the natural logarithm of its weight."""

    labels: TimedLabels
    score: float


class SearchOfStates(NonTrainableNM):
    """States of whole utterances to hypotheses (B, N, U), the best first. Derive, say ``input_ports``, write ``found``.

    The last input is the number of valid frames; the others are the states. Where fewer texts were found, the others
    have a score of minus infinity.
    """

    keep_uncompiled = True  # it reads values
    num_hypotheses = 1
    hears_padding: bool = False
    """``found`` gets whole padded rows, and the number of valid frames as one more state, named as that input."""
    output_ports: Ports = {
        "hypotheses": NeuralType("B D T", HypothesesType()),
        "scores": NeuralType("B D", LogprobsType()),
        "starts": NeuralType("B D T", IntType()),
        "ends": NeuralType("B D T", IntType()),
        "log_probs": NeuralType("B D T", LogprobsType()),
    }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """How many labels there are, is not known before."""
        several = next(iter(shapes.values()))[0], self.num_hypotheses
        return {**dict.fromkeys(self.output_ports, (*several, symbol("labels"))), "scores": several}

    def found(self, recordings: Sequence[States], nbest: int = 1) -> Sequence[Sequence[FoundLabels]]:
        """The best hypotheses for each recording, at most ``nbest``."""
        raise NotImplementedError

    def forward(self, *values: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        """States of a padded batch and valid frames (B,) to hypotheses (B, N, U), and what is said of them."""
        inputs |= dict(zip(self.input_ports, values, strict=False))
        *names, of_lengths = self.input_ports
        ends, device = inputs[of_lengths].tolist(), inputs[of_lengths].device
        arrays = {
            name: inputs[name].detach().movedim(time_axis(self.input_ports[name]), 1).float().cpu().numpy()
            for name in names
        }
        recordings: list[States] = [
            {**{name: values[row] for name, values in arrays.items()}, of_lengths: np.array([end], np.float32)}
            if self.hears_padding
            else {name: values[row, :end] for name, values in arrays.items()}
            for row, end in enumerate(ends)
        ]
        found = self.found(recordings, self.num_hypotheses)
        longest = max([1, *(len(one.labels.ids) for several in found for one in several)])
        padded = torch.full((4, len(found), self.num_hypotheses, longest), -1.0, dtype=torch.float64)
        scores = torch.full(padded.shape[1:3], float("-inf"), dtype=torch.float64)
        for row, several in enumerate(found):
            for place, one in enumerate(several):
                padded[:, row, place, : len(one.labels.ids)] = torch.tensor(one.labels, dtype=torch.float64)
                scores[row, place] = one.score
        ids, starts, ends_of_labels = padded[:3].long().to(device)
        return ids, scores.to(device), starts, ends_of_labels, padded[3].to(device)


class NBest(SearchOfStates):
    """Several hypotheses of each recording: one search of another module.

    Args:
        search: searches.
        nbest: most hypotheses of a recording, at most its beam.
        name: its name in DAGs, messages and checkpoints.
    """

    def __init__(self, search: SearchOfStates, nbest: int, name: str | None = None) -> None:
        super().__init__(name)
        self._search, self.num_hypotheses = search, nbest
        self.hears_padding = search.hears_padding

    @property
    def input_ports(self) -> Ports:
        return self._search.input_ports

    @property
    def referenced(self) -> list[NeuralModule]:
        """Those of the search."""
        return self._search.referenced

    def found(self, recordings: Sequence[States], nbest: int = 1) -> Sequence[Sequence[FoundLabels]]:
        """See `SearchOfStates`."""
        return self._search.found(recordings, nbest)


def time_axis(ntype: NeuralType) -> int:
    """The position of the time axis among the axes of a wire or a port, which has one."""
    return [axis.kind for axis in ntype.axes or ()].index(AxisKind.Time)
