"""A family of a user's own, in one file: CTC and attention together. The attention decoder chooses among CTC's texts.

Source: Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import nemo_asr
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.ctc import align, labels_of_path, path_scores
from nemo_asr.run.search.search import Hypotheses, SearchStream, States, TimedLabels
from nemo_asr.tasks.families import CTC
from nemo_asr.tasks.family import Data, Modules, Weighted, augmented_features
from nemo_lite import LossNM, NeuralModule, NonTrainableNM, TrainableNM
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    ElementType,
    LabelsType,
    LengthsType,
    LogprobsType,
    LossType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol

CTC_SHARE = 0.5
"""Of the loss."""


class NextLabelType(ElementType):
    """Logarithms of the probabilities of the next label behind each label, or of the end."""


class AttentionDecoder(TrainableNM):
    """Encoded frames (B, D, T) and labels (B, U) to log-probabilities (B, U + 1, labels and end) of what comes next."""

    input_ports: Ports = {
        "encoded": NeuralType("B D T", AcousticEncodedRepresentation()),
        "labels": NeuralType("B T", LabelsType()),
        "num_frames": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {"next_label": NeuralType("B T D", NextLabelType())}

    def __init__(self, feat_in: int, num_classes: int, hidden: int = 32, name: str | None = None) -> None:
        super().__init__(name)
        self.embedding = nn.Embedding(num_classes + 1, hidden)  # the last one is the beginning, and the end
        self.gru, self.keys = nn.GRU(hidden, hidden, batch_first=True), nn.Linear(feat_in, hidden)
        self.head = nn.Linear(2 * hidden, num_classes + 1)

    def forward(self, encoded: Tensor, labels: Tensor, num_frames: Tensor) -> Tensor:
        end = self.embedding.num_embeddings - 1
        begun = torch.cat([torch.full_like(labels[:, :1], end), labels], 1) if labels.shape[1] else labels
        states, _ = self.gru(self.embedding(begun.clamp(0, end)))
        frames = self.keys(encoded.transpose(1, 2))
        padding = torch.arange(frames.shape[1], device=frames.device) >= num_frames[:, None]
        scores = (states @ frames.transpose(1, 2)).masked_fill(padding[:, None], float("-inf"))
        log_probs: Tensor = self.head(torch.cat([states, scores.softmax(2) @ frames], 2)).log_softmax(2)
        return log_probs


class AttentionLoss(LossNM):
    """The mean over the batch of minus the logarithm of the probability of the labels and of the end behind them."""

    input_ports: Ports = {
        "next_label": NeuralType("B T D", NextLabelType()),
        "labels": NeuralType("B T", LabelsType()),
        "num_frames": NeuralType("B", LengthsType()),
        "num_labels": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(  # type: ignore[override]  # each loss has parameters of its own
        self, next_label: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor
    ) -> Tensor:
        return self.mean_over_items(-log_probs_of(next_label, labels, num_labels))


def log_probs_of(next_label: Tensor, labels: Tensor, num_labels: Tensor) -> Tensor:
    """(B,) the logarithm of the probability of all labels of each row, and of the end."""
    places = torch.arange(labels.shape[1] + 1, device=labels.device)
    end = next_label.shape[2] - 1
    wanted = torch.cat([labels, labels[:, :1]], 1).masked_fill(places >= num_labels[:, None], end)
    chosen = next_label.gather(2, wanted.long().unsqueeze(2)).squeeze(2)
    return chosen.masked_fill(places > num_labels[:, None], 0.0).sum(1)


class RescoringSearch(NonTrainableNM):
    """The most probable texts of a CTC beam search, in the order of the sum of both scores."""

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "encoded": NeuralType("B D T", AcousticEncodedRepresentation()),
        "num_frames": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {
        "hypotheses": NeuralType("B D T", nemo_asr.HypothesesType()),
        "scores": NeuralType("B D", LogprobsType()),
    }

    def __init__(
        self,
        labels: list[str],
        attention: Reference[AttentionDecoder],
        beam_size: int = 4,
        name: str | None = None,
        *,
        search: nemo_asr.BeamSearchCTCDecoder | None = None,
        nbest: int | None = None,
    ) -> None:
        super().__init__(name)
        self._labels, self._attention = labels, attention
        self._search = search or nemo_asr.BeamSearchCTCDecoder(labels, beam_size)
        self._nbest = nbest or self._search.beam_size

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        several = shapes["log_probs"][0], self._nbest
        return {"hypotheses": (*several, symbol("labels")), "scores": several}

    def several(self, nbest: int) -> RescoringSearch:
        return RescoringSearch(self._labels, self._attention, search=self._search, nbest=nbest)

    def forward(self, log_probs: Tensor, encoded: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        beam_size = self._search.beam_size
        found = self._search.search(log_probs, num_frames, beam_size)
        longest = max(1, *(len(each.ids) for row in found for each in row))
        ids = torch.full((len(found), beam_size, longest), -1)
        scores = torch.full((len(found), beam_size), float("-inf"))
        for row, hypotheses in enumerate(found):
            for rank, hypothesis in enumerate(hypotheses):
                ids[row, rank, : len(hypothesis.ids)] = torch.tensor(hypothesis.ids)
                scores[row, rank] = hypothesis.score
            end = num_frames[row : row + 1].expand(beam_size)
            texts = ids[row].to(encoded.device)
            next_label = self._attention(encoded[row].expand(beam_size, -1, -1), texts, end)
            scores[row] += log_probs_of(next_label, texts, (texts >= 0).sum(1)).cpu()
        order = scores.argsort(1, descending=True)[:, : self._nbest]
        sorted_ids = ids.gather(1, order.unsqueeze(2).expand(-1, -1, longest))
        return sorted_ids.to(encoded.device), scores.gather(1, order).to(encoded.device)

    @torch.no_grad()
    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        log_probs, encoded = states["log_probs"], states["encoded"]
        device = self._attention.module.embedding.weight.device
        frames, rows = (torch.from_numpy(each.copy())[None].to(device) for each in (log_probs, encoded.T))
        ids, scores = self.forward(frames, rows, torch.tensor([len(log_probs)], device=device))
        texts = [[label for label in row if label >= 0] for row in ids[0].tolist()]
        path = align(log_probs, texts[0])
        best = labels_of_path(path, path_scores(log_probs, path), len(self._labels))
        return Hypotheses(best, list(zip(texts, scores[0].tolist(), strict=True))[:nbest])

    def stream(self, most_frames: int) -> RescoredParts:
        return RescoredParts(self, self._search.stream(most_frames))


class RescoredParts:
    """A `SearchStream`: CTC's beams while a part is open; both scores where it ends."""

    def __init__(self, search: RescoringSearch, beams: SearchStream) -> None:
        self._search, self._beams = search, beams
        self._kept: dict[str, npt.NDArray[np.float32]] = {}  # of the open part
        self._ids: list[int] = []  # of the parts before

    def accept(self, states: States, ends: Callable[[bool], bool]) -> int:
        number = self._beams.accept(states, ends)
        taken = {name: values[:number] for name, values in states.items()}
        self._kept = {name: np.concatenate([self._kept.get(name, new[:0]), new]) for name, new in taken.items()}
        return number

    def best(self) -> TimedLabels:
        return self._beams.best()

    def end(self, num_frames: int) -> TimedLabels:
        self._beams.end(num_frames)
        if not num_frames:
            return TimedLabels([], [], [], [])
        part = {name: values[:num_frames] for name, values in self._kept.items()}
        self._kept = {name: values[num_frames:] for name, values in self._kept.items()}
        labels = self._search.recognise(part).best
        self._ids += labels.ids
        return labels

    def ids(self) -> list[int]:
        return [*self._ids, *(self.best().ids if self._kept and len(self._kept["log_probs"]) else [])]


class Hybrid(CTC):
    """As CTC, with a decoder that reads what has been said; the loss is the weighted sum of both."""

    roles: ClassVar[Mapping[str, nemo_asr.Role]] = {
        **CTC.roles,
        "attention": nemo_asr.Role((AcousticEncodedRepresentation, LabelsType), (NextLabelType,), needed=True),
        "attention loss": nemo_asr.Role((NextLabelType, LabelsType), (LossType,), needed=True),
        "search": nemo_asr.Role((LogprobsType, AcousticEncodedRepresentation), (nemo_asr.HypothesesType,)),
    }
    label_roles: ClassVar[Sequence[str]] = ("decoder", "attention")

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        search = super().search(labels, options, modules)
        if not isinstance(search, nemo_asr.BeamSearchCTCDecoder):
            return search
        return RescoringSearch(list(labels), Reference(modules["attention"]), search=search, nbest=1)

    def connect(self, modules: Modules, data: Data, training: bool) -> nemo_asr.Wires:
        features, labels = augmented_features(modules, data, training)
        encoded, *others = modules("encoder", features)
        log_probs, *_ = modules("decoder", encoded)
        of_ctc = self.losses(modules, log_probs, others, labels, training)
        losses = {name: Weighted(part.loss, part.weight * CTC_SHARE) for name, part in of_ctc.items()}
        if labels:
            next_label, *_ = modules("attention", encoded, labels)
            of_attention = modules("attention loss", next_label, labels)[0].values
            losses["attention"] = Weighted(of_attention, 1 - CTC_SHARE)
        return nemo_asr.Wires(
            predictions=modules("search", log_probs, encoded)[0].values,
            frames=log_probs.values,
            losses=losses,
            transcripts=labels and labels.values,
            transcript_lengths=labels and labels.lengths,
            features=features.values,
            feature_lengths=features.lengths,
            log_probs=log_probs.values,
            log_probs_lengths=log_probs.lengths,
        )


nemo_asr.register_family("own_hybrid", Hybrid())
nemo_asr.register(AttentionDecoder, role="attention", family="own_hybrid", default=True)
nemo_asr.register(AttentionLoss, role="attention loss", family="own_hybrid", default=True)
nemo_asr.register(RescoringSearch, role="search", family="own_hybrid", default=True)
