"""TransducerSearch: the searches of `nemo_asr.run.search.transducer` as a module, with networks in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from nemo_asr.decoding.greedy import HypothesesType
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import PredictionNetwork
from nemo_asr.run.search.search import FrameByFrame, Hypotheses, States
from nemo_asr.run.search.transducer import MAX_SYMBOLS, Array, Decoded, GreedyTransducer, Memory
from nemo_lite.backends.pytorch.nm import NonTrainableNM
from nemo_lite.base.ranges import Between
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    IntType,
    LengthsType,
    LogprobsType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol


class TorchNetworks:
    """The networks of a transducer in torch: `TransducerNetworks`. What the joint reads is projected by it already."""

    def __init__(self, prediction: PredictionNetwork, joint: RNNTJoint) -> None:
        self._prediction, self._joint = prediction, joint
        self.blank, self.durations = joint.blank, joint.durations
        self.big_blank_durations = joint.big_blank_durations

    @torch.inference_mode()
    def beginning(self, number: int) -> Memory:
        """See `TransducerNetworks`."""
        device = self._joint.pred.weight.device
        blanks = torch.full((number,), self._prediction.vocab_size, device=device)
        return self._behind(blanks, self._prediction.beginning(number))

    @torch.inference_mode()
    def after(self, labels: Array, memory: Memory) -> Memory:
        """See `TransducerNetworks`."""
        device = self._joint.pred.weight.device
        of_network = tuple(torch.from_numpy(part).to(device) for part in memory[1:])
        return self._behind(torch.from_numpy(labels).to(device), of_network)

    @torch.inference_mode()
    def scores(self, frames: Array, memory: Memory) -> Array:
        """See `TransducerNetworks`."""
        device = self._joint.pred.weight.device
        both = torch.from_numpy(frames).to(device) + torch.from_numpy(memory[0]).to(device)
        scores: Array = self._joint.joint_net(both).float().cpu().numpy()
        return scores

    def _behind(self, labels: Tensor, memory: tuple[Tensor, ...]) -> Memory:
        states, new = self._prediction.after(labels, memory)
        return tuple(part.cpu().numpy() for part in (self._joint.pred(states), *new))


class TransducerSearch(NonTrainableNM):
    """Greedy search of a transducer: at each frame the most probable output, labels until a blank.

    Args:
        prediction, joint: the networks of the model.
        max_symbols: most labels at one frame.
        name: its name in DAGs, messages and checkpoints.
    """

    keep_uncompiled = True  # it reads values
    output_ports: Ports = {
        "hypotheses": NeuralType("B D T", HypothesesType()),
        "scores": NeuralType("B D", LogprobsType()),
        "starts": NeuralType("B D T", IntType()),
        "ends": NeuralType("B D T", IntType()),
        "log_probs": NeuralType("B D T", LogprobsType()),
    }
    input_ports: Ports = {
        "frames": NeuralType("B T D", AcousticEncodedRepresentation()),
        "num_frames": NeuralType("B", LengthsType()),
    }

    def __init__(
        self,
        prediction: Reference[PredictionNetwork],
        joint: Reference[RNNTJoint],
        max_symbols: Annotated[int, Between(1, 1_000)] = MAX_SYMBOLS,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._prediction, self._joint, self._max_symbols = prediction, joint, max_symbols

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """How many labels there are, is not known before."""
        several = shapes["frames"][0], 1
        return {**dict.fromkeys(self.output_ports, (*several, symbol("labels"))), "scores": several}

    def forward(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, ...]:
        """(B, T, joint_hidden) and valid frames (B,) to hypotheses (B, 1, U), and what is said of them."""
        values = frames.detach().float().cpu().numpy()
        decoded = self._search().decode([row[:end] for row, end in zip(values, num_frames.tolist(), strict=True)])
        longest = max([1, *(len(found.labels.ids) for found in decoded)])
        padded = torch.full((4, len(decoded), 1, longest), -1.0, dtype=torch.float64)
        for row, found in enumerate(decoded):
            padded[:, row, 0, : len(found.labels.ids)] = torch.tensor(found.labels, dtype=torch.float64)
        scores = torch.tensor([[found.score] for found in decoded], dtype=torch.float64)
        ids, starts, ends = padded[:3].long().to(frames.device)
        return ids, scores.to(frames.device), starts, ends, padded[3].to(frames.device)

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search().recognise(states, nbest)

    def stream(self, most_frames: int = 0) -> FrameByFrame[Decoded]:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search().stream(most_frames)

    def _search(self) -> GreedyTransducer:
        return GreedyTransducer(TorchNetworks(self._prediction.module, self._joint.module), self._max_symbols)
