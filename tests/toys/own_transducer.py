"""A small transducer of a user's own, in one file: ``--import`` it, and YAML has ``family: own_transducer``.

Source: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

import nemo_asr
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.search import FrameByFrame, Hypotheses, States, TimedLabels
from nemo_asr.tasks.family import SPEECH_ROLES, Data, Exported, Modules, StandIn, augmented_features
from nemo_lite import LossNM, NeuralModule, NonTrainableNM, TrainableNM
from nemo_lite.base.errors import UsageError
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


class PredictionStep(NonTrainableNM):
    """The prediction network in an exported file, label by label: its memory goes in and comes out."""

    input_ports: Ports = {
        "label": NeuralType("B T", LabelsType()),
        "memory": NeuralType("D B D", EncodedRepresentation()),
    }
    output_ports: Ports = {
        "states": NeuralType("B T D", EncodedRepresentation()),
        "new_memory": NeuralType("D B D", EncodedRepresentation()),
    }

    def __init__(self, prediction: Reference[Prediction], name: str | None = None) -> None:
        super().__init__(name)
        self._prediction = prediction

    def forward(self, label: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self._prediction.module.continued(label, memory)


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


class Said(NamedTuple):
    """What was said up to a frame, and the prediction network behind it."""

    labels: TimedLabels
    score: float
    states: Tensor
    memory: Tensor | None

    def text(self, labels: Sequence[str]) -> str:
        return "".join(labels[number] for number in self.labels.ids)


class OwnTransducerSearch(NonTrainableNM):
    """Frame by frame: up to ``max_symbols`` labels in each, until the blank is more probable.

    With a beam, or hot words, several texts are kept. Hot words, whole or begun, make a text more probable.
    """

    input_ports: Ports = {
        "encoded": NeuralType("B D T", AcousticEncodedRepresentation()),
        "num_frames": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {
        "hypotheses": NeuralType("B D T", nemo_asr.HypothesesType()),
        "scores": NeuralType("B D", LogprobsType()),
        "starts": NeuralType("B D T", IntType()),
        "ends": NeuralType("B D T", IntType()),
        "log_probs": NeuralType("B D T", LogprobsType()),
    }

    def __init__(
        self,
        prediction: Reference[Prediction],
        joint: Reference[Joint],
        max_symbols: int = 4,
        name: str | None = None,
        *,
        labels: Sequence[str] = (),
        beam_size: int = 1,
        hotwords: Sequence[str] = (),
        hotword_weight: float = 6.0,
        nbest: int = 1,
    ) -> None:
        super().__init__(name)
        self._prediction, self._joint, self._max_symbols = prediction, joint, max_symbols
        self._labels, self._beam_size, self._nbest = labels, beam_size, nbest
        self._hotwords, self._hotword_weight = hotwords, hotword_weight

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        several = shapes["encoded"][0], self._nbest
        of_labels = dict.fromkeys(self.output_ports, (*several, symbol("labels")))
        return {**of_labels, "scores": several}

    def several(self, nbest: int) -> OwnTransducerSearch:
        if nbest > self._beam_size:
            raise UsageError("a search cannot give so many hypotheses", got=f"nbest {nbest}", remedy="raise beam_size")
        return OwnTransducerSearch(
            *(self._prediction, self._joint, self._max_symbols),
            labels=self._labels,
            beam_size=self._beam_size,
            hotwords=self._hotwords,
            hotword_weight=self._hotword_weight,
            nbest=nbest,
        )

    def forward(self, encoded: Tensor, num_frames: Tensor) -> tuple[Tensor, ...]:
        rows = []
        for row, end in zip(encoded, num_frames.tolist(), strict=True):
            stream = self.stream()
            stream.recognise({"encoded": row[:, :end].T.cpu().numpy()})
            rows.append(stream.hypotheses[: self._nbest])
        longest = max(1, *(len(said.labels.ids) for row in rows for said in row))
        padded = torch.full((4, len(rows), self._nbest, longest), -1.0, dtype=torch.float64)
        scores = torch.full((len(rows), self._nbest), float("-inf"), dtype=torch.float64)
        for place, row in enumerate(rows):
            for rank, said in enumerate(row):
                scores[place, rank] = said.score
                padded[:, place, rank, : len(said.labels.ids)] = torch.tensor(said.labels, dtype=torch.float64)
        ids, starts, ends = padded[:3].long().to(encoded.device)
        return ids, scores.to(encoded.device), starts, ends, padded[3].to(encoded.device)

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        return self.stream().recognise(states, nbest)

    @torch.no_grad()
    def stream(self, most_frames: int = 0) -> FrameByFrame[Said]:
        blank = self._prediction.module.embedding.num_embeddings - 1
        start = Said(TimedLabels([], [], [], []), 0.0, *self._behind(blank, None))
        return FrameByFrame(start, self._greedy if self._beam_size == 1 else self._beam)

    @torch.no_grad()
    def _greedy(self, states: States, frame: int, before: Sequence[Said]) -> Sequence[Said]:
        (said,) = before
        for _ in range(self._max_symbols):
            log_probs = self._log_probs(states, said)
            log_prob, best = log_probs.max(0)
            if int(best) == len(log_probs) - 1:
                break
            said = self._with(said, int(best), float(log_prob), frame)
        return [said]

    @torch.no_grad()
    def _beam(self, states: States, frame: int, before: Sequence[Said]) -> Sequence[Said]:
        ended = dict[str, Said]()
        growing = list(before)
        for number in range(self._max_symbols + 1):
            grown = []
            for said in growing:
                log_probs = self._log_probs(states, said)
                after, text = said._replace(score=said.score + float(log_probs[-1])), said.text(self._labels)
                if text not in ended or after.score > ended[text].score:
                    ended[text] = after
                if number < self._max_symbols:
                    values, labels = log_probs[:-1].topk(min(self._beam_size, len(log_probs) - 1))
                    pairs = zip(labels.tolist(), values.tolist(), strict=True)
                    grown += [self._with(said, label, log_prob, frame) for label, log_prob in pairs]
            growing = sorted(grown, key=self._worth, reverse=True)[: self._beam_size]
        return sorted(ended.values(), key=self._worth, reverse=True)[: self._beam_size]

    def _worth(self, said: Said) -> float:
        *words, last = said.text(self._labels).split(" ")
        begun = max((len(last) / len(word) for word in self._hotwords if word.startswith(last)), default=0.0)
        return said.score + self._hotword_weight * (sum(word in self._hotwords for word in words) + begun)

    def _log_probs(self, states: States, said: Said) -> Tensor:
        encoded = torch.from_numpy(states["encoded"].copy()).to(said.states.device)
        log_probs: Tensor = self._joint(encoded[None, :, None], said.states)[0, 0, 0]
        return log_probs

    def _with(self, said: Said, label: int, log_prob: float, frame: int) -> Said:
        new = ([label], [frame], [frame + 1], [log_prob])
        labels = TimedLabels(*([*kept, *more] for kept, more in zip(said.labels, new, strict=True)))
        return Said(labels, said.score + log_prob, *self._behind(label, said.memory))

    def _behind(self, label: int, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        prediction = self._prediction.module
        return prediction.continued(torch.tensor([[label]], device=prediction.embedding.weight.device), memory)


class Transducer(nemo_asr.Family):
    """Encoder, prediction network, joint network, and a search that calls the last two."""

    roles: ClassVar[Mapping[str, nemo_asr.Role]] = {
        **SPEECH_ROLES,
        "prediction": nemo_asr.Role((LabelsType,), (EncodedRepresentation,), needed=True),
        "joint": nemo_asr.Role((AcousticEncodedRepresentation, EncodedRepresentation), (LatticeType,), needed=True),
        "loss": nemo_asr.Role((LatticeType, LabelsType), (LossType,), needed=True),
        "search": nemo_asr.Role((AcousticEncodedRepresentation,), (nemo_asr.HypothesesType,), needed=True),
    }
    label_roles: ClassVar[Sequence[str]] = ("prediction", "joint")

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        if options is None:
            return modules["search"]
        options.refuse_others(("beam_size", "hotwords", "hotword_weight"), f"family {self.name}")
        arguments = {"beam_size": 4, **options.arguments()}
        references = Reference(modules["prediction"]), Reference(modules["joint"])
        return OwnTransducerSearch(*references, labels=labels, **arguments)

    def exported(self, wires: nemo_asr.Wires, modules: Mapping[str, NeuralModule]) -> dict[str, Exported]:
        encoder = super().exported(wires, modules)["model"]
        joint = modules["joint"]
        assert isinstance(joint, Joint)
        memory = NeuralType("D B D", EncodedRepresentation())
        said = StandIn({"label": NeuralType("B T", LabelsType()), "memory": memory})
        step = PredictionStep(Reference(modules["prediction"]))
        states, new_memory = step(*said())
        both = StandIn({"encoded": joint.input_ports["encoded"], "states": joint.input_ports["states"]})
        sizes = joint.of_frames.in_features, joint.head.in_features
        return {
            "encoder": encoder,
            "prediction": Exported(
                {"states": states, "new_memory": new_memory},
                [torch.zeros(2, 2, dtype=torch.int64), torch.randn(1, 2, sizes[1])],
            ),
            "joint": Exported({"lattice": joint(*both())}, [torch.randn(2, sizes[0], 2), torch.randn(2, 3, sizes[1])]),
        }

    def connect(self, modules: Modules, data: Data, training: bool) -> nemo_asr.Wires:
        features, labels = augmented_features(modules, data, training)
        encoded, *_ = modules("encoder", features)
        loss = None
        if labels:
            states, *_ = modules("prediction", labels)
            lattice, *_ = modules("joint", encoded, states)
            loss = modules("loss", lattice, labels)[0].values
        return nemo_asr.Wires(
            predictions=modules("search", encoded)[0].values,
            frames=encoded.values,
            loss=loss,
            transcripts=labels and labels.values,
            transcript_lengths=labels and labels.lengths,
            features=features.values,
            feature_lengths=features.lengths,
        )


nemo_asr.register_family("own_transducer", Transducer())
nemo_asr.register(Prediction, role="prediction", family="own_transducer", default=True)
nemo_asr.register(Joint, role="joint", family="own_transducer", default=True)
nemo_asr.register(TransducerLoss, family="own_transducer", default=True)
nemo_asr.register(OwnTransducerSearch, role="search", family="own_transducer", default=True)
