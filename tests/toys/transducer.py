"""A small transducer as a family of a user's own, in one file: ``--import`` it, and YAML has ``family: transducer``.

Source: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

import nemo_asr
from nemo_asr.tasks.families import SPEECH_ROLES, Data, Modules, augmented_features
from nemo_lite import LossNM, NonTrainableNM, TrainableNM
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    ElementType,
    EncodedRepresentation,
    IntType,
    LabelsType,
    LengthsType,
    LogprobsType,
    LossType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol


class LatticeType(ElementType):
    """Log-probabilities of the labels and the blank, at each frame behind each label: (B, T, U + 1, C)."""


class Prediction(TrainableNM):
    """Labels (B, U) to states (B, U + 1, hidden): what has been said so far. The first state is that of no label."""

    input_ports: Ports = {"labels": NeuralType("B T", LabelsType()), "num_labels": NeuralType("B", LengthsType())}
    output_ports: Ports = {"states": NeuralType("B T D", EncodedRepresentation())}

    def __init__(self, num_classes: int, hidden: int = 32, name: str | None = None) -> None:
        super().__init__(name)
        self.embedding = nn.Embedding(num_classes + 1, hidden)  # the last one, the blank, stands for the beginning
        self.gru = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, labels: Tensor, num_labels: Tensor) -> Tensor:
        start = torch.full_like(labels[:, :1], self.embedding.num_embeddings - 1)
        return self.continued(torch.cat([start, labels], 1), None)[0]

    def continued(self, labels: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """The states behind labels (B, U), and the memory with which it goes on."""
        states, memory = self.gru(self.embedding(labels.clamp(0, self.embedding.num_embeddings - 1)), memory)
        return states, memory


class Joint(TrainableNM):
    """Encoded frames (B, D, T) and states (B, U + 1, hidden) to log-probabilities (B, T, U + 1, labels and blank)."""

    input_ports: Ports = {
        "encoded": NeuralType("B D T", AcousticEncodedRepresentation()),
        "states": NeuralType("B T D", EncodedRepresentation()),
    }
    output_ports: Ports = {"lattice": NeuralType(None, LatticeType())}

    def __init__(self, feat_in: int, num_classes: int, hidden: int = 32, name: str | None = None) -> None:
        super().__init__(name)
        self.of_frames, self.head = nn.Linear(feat_in, hidden), nn.Linear(hidden, num_classes + 1)

    def forward(self, encoded: Tensor, states: Tensor) -> Tensor:
        frames = self.of_frames(encoded.transpose(1, 2))
        lattice: Tensor = self.head(torch.tanh(frames[:, :, None] + states[:, None])).log_softmax(-1)
        return lattice


class TransducerLoss(LossNM):
    """The mean over the batch of minus the logarithm of the probability of all alignments of the labels."""

    input_ports: Ports = {
        "lattice": NeuralType(None, LatticeType()),
        "labels": NeuralType("B T", LabelsType()),
        "num_frames": NeuralType("B", LengthsType()),
        "num_labels": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {"loss": NeuralType(None, LossType())}

    def frames_needed(self, labels: Sequence[int]) -> int:
        return 1

    def _loss_function(  # type: ignore[override]  # each loss has parameters of its own
        self, lattice: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor
    ) -> Tensor:
        rows = torch.arange(len(labels), device=labels.device)
        blanks = lattice[..., -1]
        before = blanks.cumsum(1) - blanks  # (B, T, U + 1): the blanks of all earlier frames
        alphas = [before[..., 0]]
        for u in range(labels.shape[1]):
            spoken = lattice[:, :, u].gather(2, labels[:, None, u : u + 1].expand(-1, lattice.shape[1], 1))[..., 0]
            reached = torch.logcumsumexp(alphas[u] + spoken - before[..., u + 1], 1)
            alphas.append(reached + before[..., u + 1])
        last, end = num_frames.long() - 1, num_labels.long()
        total = torch.stack(alphas, 2)[rows, last, end] + blanks[rows, last, end]
        return self.mean_over_items(-total)


class TransducerSearch(NonTrainableNM):
    """Greedy search: in each frame the most probable labels, one after the other, until the blank is more probable."""

    input_ports: Ports = {
        "encoded": NeuralType("B D T", AcousticEncodedRepresentation()),
        "num_frames": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {
        "hypotheses": NeuralType("B D T", nemo_asr.HypothesesType()),
        "starts": NeuralType("B D T", IntType()),
        "ends": NeuralType("B D T", IntType()),
        "log_probs": NeuralType("B D T", LogprobsType()),
    }

    def __init__(
        self, prediction: Reference[Prediction], joint: Reference[Joint], max_symbols: int = 4, name: str | None = None
    ) -> None:
        super().__init__(name)
        self._prediction, self._joint, self._max_symbols = prediction, joint, max_symbols

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {port: (shapes["encoded"][0], 1, symbol("labels")) for port in self.output_ports}

    def forward(self, encoded: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = [self._searched(row[:, :end]) for row, end in zip(encoded, num_frames.tolist(), strict=True)]
        longest = max(1, *(len(ids) for ids, _, _ in found))
        padded = [
            torch.tensor([[[*row[k], *[-1] * (longest - len(row[k]))]] for row in found], device=encoded.device)
            for k in range(3)
        ]
        ids, frames, log_probs = padded
        return ids, frames, frames + 1, log_probs.float()

    def _searched(self, encoded: Tensor) -> tuple[list[int], list[int], list[float]]:
        ids, frames, log_probs = list[int](), list[int](), list[float]()
        blank = self._prediction.module.embedding.num_embeddings - 1
        states, memory = self._behind(blank, None, encoded.device)
        for frame in range(encoded.shape[1]):
            for _ in range(self._max_symbols):
                log_prob, best = self._joint(encoded[None, :, frame : frame + 1], states)[0, 0, 0].max(0)
                if int(best) == blank:
                    break
                ids.append(int(best))
                frames.append(frame)
                log_probs.append(float(log_prob))
                states, memory = self._behind(ids[-1], memory, encoded.device)
        return ids, frames, log_probs

    def _behind(self, label: int, memory: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
        return self._prediction.module.continued(torch.tensor([[label]], device=device), memory)


class Transducer(nemo_asr.Family):
    """Encoder, prediction network, joint network, and a search that calls the last two."""

    roles: ClassVar[Mapping[str, nemo_asr.Role]] = {
        **SPEECH_ROLES,
        "prediction": nemo_asr.Role((LabelsType,), (EncodedRepresentation,), needed=True),
        "joint": nemo_asr.Role((AcousticEncodedRepresentation, EncodedRepresentation), (LatticeType,), needed=True),
        "loss": nemo_asr.Role((LatticeType, LabelsType), (LossType,), needed=True),
        "greedy": nemo_asr.Role((AcousticEncodedRepresentation,), (nemo_asr.HypothesesType,), needed=True),
    }
    label_roles: ClassVar[Sequence[str]] = ("prediction", "joint")

    def connect(self, modules: Modules, data: Data, training: bool) -> nemo_asr.Wires:
        features, labels = augmented_features(modules, data, training)
        encoded, *_ = modules("encoder", features)
        loss = None
        if labels:
            states, *_ = modules("prediction", labels)
            lattice, *_ = modules("joint", encoded, states)
            loss = modules("loss", lattice, labels)[0].values
        return nemo_asr.Wires(
            predictions=modules("greedy", encoded)[0].values,
            frames=encoded.values,
            loss=loss,
            transcripts=labels and labels.values,
            transcript_lengths=labels and labels.lengths,
            features=features.values,
            feature_lengths=features.lengths,
        )


nemo_asr.register_family("transducer", Transducer())
nemo_asr.register(Prediction, role="prediction", family="transducer", default=True)
nemo_asr.register(Joint, role="joint", family="transducer", default=True)
nemo_asr.register(TransducerLoss, family="transducer", default=True)
nemo_asr.register(TransducerSearch, role="greedy", family="transducer", default=True)
