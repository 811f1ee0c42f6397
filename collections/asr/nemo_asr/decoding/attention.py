"""The searches of attention decoders as modules, with networks in torch: label after label, and rescoring of CTC's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from nemo_asr.decoding.beam_search import WordSearchNM
from nemo_asr.decoding.hypotheses import FoundLabels, NBest, SearchOfStates
from nemo_asr.models.attention.decoder import AttentionDecoder, DecoderState
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.attention import (
    BEAM_SIZE,
    ENCODED,
    Array,
    AttentionBeam,
    FoundText,
    RescoredStream,
    Rescoring,
    TextScores,
    timed,
    timed_by_outputs,
)
from nemo_asr.run.search.ctc import LOG_PROBS
from nemo_asr.run.search.prefix_beam_search import BeamSize, LogProb, SearchLimits
from nemo_asr.run.search.search import Hypotheses, States, TimedLabels, num_frames_of
from nemo_asr.run.search.text_search import TextSearch
from nemo_asr.run.search.words import Alpha, Beta, HotwordWeight, UnknownScore, Weights
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import AcousticEncodedRepresentation, LengthsType, LogprobsType, NeuralType
from nemo_lite.core.ports import Ports


class TorchLabels:
    """An attention decoder in torch: `LabelNetwork`."""

    def __init__(self, decoder: AttentionDecoder) -> None:
        self._decoder = decoder
        self.end, self.start, self.most_labels = decoder.end, decoder.start, decoder.most_labels
        self.num_silent, self.labels_beyond = decoder.num_silent, decoder.labels_beyond
        self.reverse_weight, self.times = decoder.reverse_weight, decoder.times

    @torch.inference_mode()
    def begin(self, recordings: Sequence[Array], width: int) -> DecoderState:
        """See `LabelNetwork`."""
        return self._decoder.begin(*self._padded(recordings), width)

    @torch.inference_mode()
    def after(self, labels: Array, memory: DecoderState) -> tuple[Array, DecoderState]:
        """See `LabelNetwork`."""
        log_probs, memory = self._decoder.step(torch.from_numpy(labels).to(self._device), memory)
        return log_probs.float().cpu().numpy(), memory

    @torch.inference_mode()
    def chosen(self, memory: DecoderState, recordings: Array, hypotheses: Array) -> DecoderState:
        """See `LabelNetwork`."""
        return memory.chosen(*(torch.from_numpy(each).to(self._device) for each in (recordings, hypotheses)))

    @torch.inference_mode()
    def of_texts(self, frames: Array, texts: Sequence[Sequence[int]]) -> TextScores:
        """See `LabelNetwork`."""
        device, longest = self._device, max(map(len, texts))
        encoded, num_frames = self._padded([frames])
        padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in texts], dtype=torch.long, device=device)
        num_labels = torch.tensor([len(ids) for ids in texts], device=device)
        number = len(texts)
        of_sides = self._decoder(
            encoded.expand(number, -1, -1), padded, num_frames.expand(number), num_labels, force_pt=True
        )
        targets = torch.nn.functional.pad(padded, (0, 1))
        places = torch.arange(longest + 1, device=device)
        targets = torch.where(places == num_labels.unsqueeze(1), self.end, targets).unsqueeze(2)
        is_padding = places > num_labels.unsqueeze(1)
        both = [
            side.float().gather(2, targets).squeeze(2).masked_fill(is_padding, 0.0).cpu().numpy()
            for side in (of_sides if isinstance(of_sides, tuple) else (of_sides,))
        ]
        return TextScores(both[0], both[1] if len(both) > 1 else None)

    @property
    def _device(self) -> torch.device:
        return next(self._decoder.parameters()).device

    def _padded(self, recordings: Sequence[Array]) -> tuple[Tensor, Tensor]:
        """Recordings (T, D) to (B, D, T), and valid frames (B,)."""
        rows = [torch.from_numpy(frames).to(self._device) for frames in recordings]
        encoded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2)
        return encoded, torch.tensor([len(row) for row in rows], device=self._device)


_ENCODED = NeuralType("B D T", AcousticEncodedRepresentation())
_LENGTHS = NeuralType("B", LengthsType())
_CTC = NeuralType("B T D", LogprobsType())


class AttentionSearch(SearchOfStates):
    """What an attention decoder says, label after label, with a beam.

    Attention does not say when a label is said. With ``has_ctc`` the CTC head of the model says it, by its most
    probable path of the text; else labels are spread evenly, over the recording or between the times that are found.

    Args:
        attention: the decoder.
        beam_size: hypotheses that go on behind each label; 1: greedy.
        length_penalty: a text's log-probability is divided by its number of labels to the power of this.
        has_ctc: the model has a CTC head too.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        beam_size, length_penalty: as given.
        temperature: above 0 labels are drawn, see `AttentionBeam`; each recording has draws of its own.
    """

    may_invent = True
    temperature: float = 0.0

    def __init__(
        self,
        attention: Reference[AttentionDecoder],
        beam_size: BeamSize = BEAM_SIZE,
        length_penalty: Annotated[float, Between(-10, 10)] = 0.0,
        has_ctc: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._attention, self._has_ctc = attention, has_ctc
        self.beam_size, self.length_penalty = beam_size, length_penalty
        self.hears_padding = attention.module.hears_padding

    @property
    def input_ports(self) -> Ports:
        return {"encoded": _ENCODED, **({LOG_PROBS: _CTC} if self._has_ctc else {}), "num_frames": _LENGTHS}

    def several(self, nbest: BeamSize) -> NBest:
        """A module that gives so many hypotheses of this search."""
        return NBest(self, nbest)

    def with_options(self, options: SearchOptions) -> AttentionSearch:
        """With the beam that is asked for; where its size is not said, with a usual one. Or with a temperature.

        Raises:
            UsageError: words are asked for, which this search does not know.
        """
        if options.temperature is not None:
            drawing = AttentionSearch(self._attention, 1, has_ctc=self._has_ctc)
            drawing.temperature = options.temperature
            return drawing
        options.refuse_others(["beam_size"], type(self).__name__)
        beam_size = options.beam_size or (self.beam_size if self.beam_size > 1 else BEAM_SIZE)
        return AttentionSearch(self._attention, beam_size, self.length_penalty, self._has_ctc)

    def found(self, recordings: Sequence[States], nbest: int = 1) -> Sequence[Sequence[FoundLabels]]:
        """See `SearchOfStates`."""
        decoder = self._attention.module
        search = AttentionBeam(TorchLabels(decoder), self.beam_size, self.length_penalty, self.temperature)
        encoded = [states[ENCODED] for states in recordings]
        if self.temperature:  # no text depends on its batch
            found = [texts for each in encoded for texts in search.decode([each], nbest)]
        else:
            found = search.decode(encoded, nbest)
        return [
            [FoundLabels(self._timed(text, states, decoder), text.score) for text in texts]
            for texts, states in zip(found, recordings, strict=True)
        ]

    @staticmethod
    def _timed(text: FoundText, states: States, decoder: AttentionDecoder) -> TimedLabels:
        valid = states.get("num_frames")
        num_frames = num_frames_of(states) if valid is None else int(valid[0])
        if decoder.times:
            return timed_by_outputs(text, num_frames, decoder.times.start)
        return timed(text, num_frames, states.get(LOG_PROBS))

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        (found,) = self.found([states], nbest)
        return Hypotheses(found[0].labels, [(one.labels.ids, one.score) for one in found] if nbest > 1 else [])


class AttentionRescoring(SearchOfStates, WordSearchNM):
    """A CTC search with a beam, whose texts the attention decoder compares anew: the second pass of U2.

    A text's score is the decoder's, from both sides if it has two, plus ``ctc_weight`` times that of the first pass:
    natural logarithms. Streams give texts of the first pass until a part ends, and that of the second pass then.

    Source: Zhang et al., "Unified Streaming and Non-streaming Two-pass End-to-end Model for Speech Recognition", 2020.

    Args:
        attention: the decoder.
        labels: the vocabulary, without the blank.
        beam_size: hypotheses of the first pass, and texts for the second one.
        ctc_weight: of the first pass.
        reverse_weight: share of the decoder from the right; None: that of its training.
        lexicon, lm, hotwords, alpha, beta, hotword_weight, unknown_score, min_log_prob: of the first pass, as of
            `nemo_asr.BeamSearchCTCDecoder`.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError, DataError: as of `nemo_asr.BeamSearchCTCDecoder`; also a share of a second decoder that is not there
            or was not trained.
    """

    input_ports: Ports = {"encoded": _ENCODED, LOG_PROBS: _CTC, "num_frames": _LENGTHS}

    def __init__(
        self,
        attention: Reference[AttentionDecoder],
        labels: Sequence[str],
        beam_size: BeamSize = BEAM_SIZE,
        ctc_weight: Annotated[float, Between(0, 100)] = 0.5,
        reverse_weight: Annotated[float, Between(0, 1)] | None = None,
        lexicon: str | None = None,
        lm: str | None = None,
        hotwords: Sequence[str] = (),
        alpha: Alpha = Weights.alpha,
        beta: Beta = Weights.beta,
        hotword_weight: HotwordWeight = Weights.hotword_weight,
        unknown_score: UnknownScore = Weights.unknown_score,
        min_log_prob: LogProb = SearchLimits.min_log_prob,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if reverse_weight and not attention.module.reverse_weight:
            problem, wanted = (
                "no second decoder was trained",
                f"reverse_weight 0, or null as {attention.module.label} has",
            )
            raise UsageError(problem, place=type(self).__name__, got=f"reverse_weight {reverse_weight}", wanted=wanted)
        self._attention, self._ctc_weight, self._reverse_weight = attention, ctc_weight, reverse_weight
        weights = alpha, beta, hotword_weight, unknown_score
        self._search: TextSearch = TextSearch(labels, beam_size, lexicon, lm, hotwords, *weights, min_log_prob)

    def several(self, nbest: BeamSize) -> NBest:
        """A module that gives so many hypotheses of this search."""
        return NBest(self, nbest)

    def with_options(self, labels: Sequence[str], options: SearchOptions) -> AttentionRescoring:
        """With another first pass."""
        arguments = {"beam_size": self.beam_size, **options.arguments()}
        weights = self._ctc_weight, self._reverse_weight
        return AttentionRescoring(self._attention, labels, arguments.pop("beam_size"), *weights, **arguments)

    def found(self, recordings: Sequence[States], nbest: int = 1) -> Sequence[Sequence[FoundLabels]]:
        """See `SearchOfStates`."""
        search = self._rescoring()
        return [
            [
                FoundLabels(timed(text, num_frames_of(states), states[LOG_PROBS]), text.score)
                for text in search.texts(states, nbest)
            ]
            for states in recordings
        ]

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        return self._rescoring().recognise(states, nbest)

    def stream(self, most_frames: int) -> RescoredStream:
        """See `nemo_asr.run.search.search.Search`."""
        return self._rescoring().stream(most_frames)

    def _rescoring(self) -> Rescoring:
        return Rescoring(TorchLabels(self._attention.module), self._search, self._ctc_weight, self._reverse_weight)
