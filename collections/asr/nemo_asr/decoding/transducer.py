"""The searches of transducers as modules, with networks in torch: greedy, and with a beam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import torch
from torch import Tensor

from nemo_asr.decoding.beam_search import WordSearchNM
from nemo_asr.decoding.hypotheses import FoundLabels, NBest, SearchOfStates
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import PredictionNetwork
from nemo_asr.run.search.prefix_beam_search import BeamSize, LogProb, SearchLimits
from nemo_asr.run.search.search import FrameByFrame, Hypotheses, States
from nemo_asr.run.search.transducer import FRAMES, MAX_SYMBOLS, Array, Decoded, GreedyTransducer, Memory
from nemo_asr.run.search.transducer_align import TransducerAligner
from nemo_asr.run.search.transducer_beam import TransducerBeam, TransducerStream
from nemo_asr.run.search.words import Alpha, Beta, HotwordWeight, UnknownScore, Weights
from nemo_lite.base.ranges import Between
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    LengthsType,
    NeuralType,
)
from nemo_lite.core.ports import Ports

MaxSymbols: TypeAlias = Annotated[int, Between(1, 1_000)]


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
        parts = (self._joint.pred(states), *new)  # in half under autocast, which NumPy does not have
        return tuple((part.float() if part.is_floating_point() else part).cpu().numpy() for part in parts)


class _SearchOfFrames(SearchOfStates):
    """Frames (B, T, joint_hidden) to hypotheses."""

    input_ports: Ports = {
        "frames": NeuralType("B T D", AcousticEncodedRepresentation()),
        "num_frames": NeuralType("B", LengthsType()),
    }


class TransducerSearch(_SearchOfFrames):
    """Greedy search of a transducer: at each frame the most probable output, labels until a blank.

    Args:
        prediction, joint: the networks of the model.
        max_symbols: most labels at one frame.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        max_symbols: as given.
    """

    def __init__(
        self,
        prediction: Reference[PredictionNetwork],
        joint: Reference[RNNTJoint],
        max_symbols: MaxSymbols = MAX_SYMBOLS,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._prediction, self._joint, self.max_symbols = prediction, joint, max_symbols

    def found(self, recordings: Sequence[States], nbest: int = 1) -> Sequence[Sequence[FoundLabels]]:
        """See `SearchOfStates`: one each."""
        found = self._search().decode([states[FRAMES] for states in recordings])
        return [[FoundLabels(decoded.labels, decoded.score)] for decoded in found]

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search().recognise(states, nbest)

    def aligner(self) -> TransducerAligner:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search().aligner()

    def stream(self, most_frames: int = 0) -> FrameByFrame[Decoded]:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search().stream(most_frames)

    def _search(self) -> GreedyTransducer:
        return GreedyTransducer(TorchNetworks(self._prediction.module, self._joint.module), self.max_symbols)


class TransducerBeamSearch(_SearchOfFrames, WordSearchNM):
    """Search of a transducer with a beam: labels alone, or with a lexicon, a language model or hot words, words.

    Scores are natural logarithms: that of all paths together, plus ``alpha`` times that of the language model, plus
    ``beta`` for each word.

    Args:
        prediction, joint: the networks of the model.
        labels: the vocabulary, without blanks.
        beam_size: hypotheses that go on at each frame.
        lexicon: the only words that there may be: a text file with a word a line.
        lm: a language model: an ARPA file, perhaps compressed by gzip, or a binary of KenLM.
        hotwords: words and phrases that are more probable here than elsewhere.
        alpha: factor of the language model's logarithms.
        beta: added for each word.
        hotword_weight: added for each hot word or phrase.
        unknown_score: added for each word that the language model does not know.
        min_log_prob: natural logarithm; a less probable label goes on no hypothesis.
        max_symbols: most labels at one frame.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        max_symbols: as given.

    Raises:
        UsageError: a number is out of range; the labels cannot spell a word of the lexicon, a hot word, or any word of
            the language model.
        DataError: a file cannot be read.
    """

    def __init__(
        self,
        prediction: Reference[PredictionNetwork],
        joint: Reference[RNNTJoint],
        labels: Sequence[str],
        beam_size: BeamSize = SearchLimits.beam_size,
        lexicon: str | None = None,
        lm: str | None = None,
        hotwords: Sequence[str] = (),
        alpha: Alpha = Weights.alpha,
        beta: Beta = Weights.beta,
        hotword_weight: HotwordWeight = Weights.hotword_weight,
        unknown_score: UnknownScore = Weights.unknown_score,
        min_log_prob: LogProb = SearchLimits.min_log_prob,
        max_symbols: MaxSymbols = MAX_SYMBOLS,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._prediction, self._joint, self.max_symbols = prediction, joint, max_symbols
        weights = alpha, beta, hotword_weight, unknown_score
        of_words = labels, beam_size, lexicon, lm, hotwords, *weights, min_log_prob
        networks = TorchNetworks(prediction.module, joint.module)
        self._search: TransducerBeam = TransducerBeam(networks, *of_words, max_symbols)

    def several(self, nbest: BeamSize) -> NBest:
        """A module that gives so many hypotheses of this search."""
        return NBest(self, nbest)

    def texts(self, frames: Array, nbest: int) -> Sequence[FoundLabels]:
        """The best hypotheses for a recording (T, joint_hidden), the best first."""
        texts = self._search.texts({FRAMES: frames}, nbest)
        return [FoundLabels(labels, text.score) for text, labels in texts]

    def found(self, recordings: Sequence[States], nbest: int = 1) -> Sequence[Sequence[FoundLabels]]:
        """See `SearchOfStates`."""
        return [self.texts(states[FRAMES], nbest) for states in recordings]

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search.recognise(states, nbest)

    def aligner(self) -> TransducerAligner:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search.aligner()

    def stream(self, most_frames: int = 0) -> TransducerStream:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search.stream(most_frames)
