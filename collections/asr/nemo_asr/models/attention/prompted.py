"""PromptedDecoder: the attention decoder of Canary and of Cohere Transcribe, told languages and punctuation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor, nn

from nemo_asr.models.attention.decoder import (
    ACTIVATIONS,
    ActivationName,
    AttentionDecoder,
    DecoderState,
    Dropout,
    Heads,
    LabelLayers,
    Layers,
)
from nemo_asr.models.attention.layers import (
    DecoderLayer,
    LabelEmbedding,
    LearnedPositions,
    SinePositions,
    check_heads,
    check_sines,
)
from nemo_asr.models.attention.prompt import PromptName, TextPrompt
from nemo_asr.run.arguments import Channels, refuse_too_large
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between

PositionsName: TypeAlias = Literal["sines", "sines_in_halves", "learned"]
_PLACE = "PromptedDecoder"
_MOST_BEYOND = 50  # labels and prompt, more than frames: as NVIDIA's models decode


class PromptedDecoder(AttentionDecoder):
    """A transformer decoder that begins each text behind a prompt: languages, and whether there is punctuation.

    Outputs are the labels, the end, ``special_labels``, which it may say and no text has, and others that it never
    says. Training counts the labels of texts and their ends; the prompt is given.

    Source: Puvvada et al., "Less is More: Accurate Speech Recognition & Translation without Web-Scale Data",
    Interspeech 2024.

    Args:
        feat_in: channels of the encoder.
        labels: the vocabulary.
        special_labels: outputs behind the end, such as ``<|en|>``; the parts of the prompt are among them.
        languages: that can be asked for.
        prompt: its form: ``canary``, ``canary2``, or ``cohere``, which is the latter behind a space.
        language: that is spoken, until another one is set; by default ``en``, or the first one where that is not there.
        target_language: of the text, likewise; by default ``language``.
        punctuation: texts have punctuation marks and capital letters, likewise.
        timestamps: find times of words as well, likewise.
        d_model: channels of the decoder, to which a linear layer takes the encoder's; by default these are its own.
        n_layers: layers.
        n_heads: heads of attention, which divide the channels.
        inner_size: channels inside of feed-forward modules.
        activation: of feed-forward modules.
        positions: ``sines``: sines and cosines in turn; ``sines_in_halves``: first all sines; or ``learned``.
        max_positions: of prompt and labels together.
        tied: the output layer has the weights of the embedding.
        num_extra_outputs: outputs at the end that it never says.
        dropout: probability, of embedded labels and behind modules.
        dropout_att: probability, of attention weights.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        special_labels: as given.
        prompt: what stands before each text now.

    Raises:
        UsageError: heads that do not divide the channels, or an odd number of these with sines; a prompt with parts
            that are no outputs; a language that is not among these; times where the model has none; more weights than
            a model may have.
    """

    longest_seconds = 40.0
    """Seconds: these models were trained on shorter recordings."""

    def __init__(
        self,
        feat_in: Channels,
        labels: Sequence[str],
        special_labels: Sequence[str],
        languages: Sequence[str],
        prompt: PromptName = "canary2",
        language: str | None = None,
        target_language: str | None = None,
        punctuation: bool = True,
        timestamps: bool = False,
        d_model: Channels | None = None,
        n_layers: Layers = 8,
        n_heads: Heads = 8,
        inner_size: Channels = 4096,
        activation: ActivationName = "relu",
        positions: PositionsName = "sines",
        max_positions: Annotated[int, Between(16, 65_536)] = 1024,
        tied: bool = True,
        num_extra_outputs: Annotated[int, Between(0, 65_536)] = 0,
        dropout: Dropout = 0.1,
        dropout_att: Dropout = 0.0,
        name: str | None = None,
    ) -> None:
        num_outputs = len(labels) + 1 + len(special_labels) + num_extra_outputs
        super().__init__(feat_in, len(labels), num_outputs, name)
        size = d_model or feat_in
        check_heads(_PLACE, n_heads, size)
        if positions != "learned":
            check_sines(_PLACE, size)
        of_labels = size * (num_outputs * (1 if tied else 2) + max_positions * (positions == "learned"))
        refuse_too_large(_PLACE, n_layers * size * (8 * size + 2 * inner_size) + of_labels + feat_in * size)
        self.projection = nn.Linear(feat_in, size) if d_model else None
        vectors = (
            LearnedPositions(max_positions, size)
            if positions == "learned"
            else SinePositions(size, positions == "sines_in_halves")
        )
        embedding = LabelEmbedding(num_outputs, size, vectors, nn.LayerNorm(size), dropout)
        output_layer = nn.Linear(size, num_outputs)
        if tied:
            output_layer.weight = embedding.token_embedding.weight
        decoders = [
            DecoderLayer(size, n_heads, inner_size, ACTIVATIONS[activation], dropout, 0.0, dropout_att, dropout_att)
            for _ in range(n_layers)
        ]
        self.layers = LabelLayers(embedding, decoders, nn.LayerNorm(size), output_layer)
        tensors = "embed.token_embedding.weight", "output_layer.weight", "output_layer.bias"
        self.label_tensors = [f"layers.{tensor}" for tensor in tensors]
        self.special_labels = list(special_labels)
        self.num_silent, self._max_positions = len(special_labels), max_positions
        self._ids = {label: number for number, label in enumerate(labels)}
        self._ids |= {label: self.end + 1 + number for number, label in enumerate(special_labels)}
        first = self._ids.get("<|0|>", 0)
        numbers = range(len(special_labels) if first else 0)
        count = next((number for number in numbers if self._ids.get(f"<|{number}|>") != first + number), len(numbers))
        self._all_times = range(first, first + count)
        self.prompt = TextPrompt(prompt, self._ids, languages, _PLACE)
        self._tell(language, target_language, punctuation)
        self.set_timestamps(timestamps)

    @property
    def languages(self) -> list[str]:
        """Those that can be set."""
        return self.prompt.languages

    def set_language(self, language: str) -> None:
        """The language that is spoken, and that of the text, from now on; errors as of `TextPrompt.set`."""
        self._tell(language)

    def set_target_language(self, language: str) -> None:
        """The language of the text from now on; errors as of `TextPrompt.set`."""
        self._tell(target_language=language)

    def set_punctuation(self, punctuation: bool) -> None:
        """Whether texts have punctuation from now on; errors as of `TextPrompt.set`."""
        self._tell(punctuation=punctuation)

    def set_timestamps(self, timestamps: bool) -> None:
        """Whether times of words are found from now on.

        Raises:
            UsageError: the model has no labels of times, ``<|0|>`` and so on, or no such prompt.
        """
        if timestamps and not (self._all_times and self.prompt.name != "canary"):
            problem, remedy = "the model finds no times", "leave it out"
            raise UsageError(problem, place=_PLACE, got="timestamps", remedy=remedy)
        self._tell(timestamps=timestamps)
        self.times = self._all_times if timestamps else range(0)

    def _tell(
        self,
        language: str | None = None,
        target_language: str | None = None,
        punctuation: bool | None = None,
        timestamps: bool | None = None,
    ) -> None:
        self.prompt.set(language, target_language, punctuation, timestamps)
        self.start = [self._ids[label] for label in self.prompt.labels()]
        self.most_labels = self._max_positions - len(self.start)
        self.labels_beyond = _MOST_BEYOND - len(self.start)

    def forward(self, encoded: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor) -> Tensor:
        """See `AttentionDecoder`."""
        labels = labels.long().clamp(0, self.num_classes - 1)
        start = torch.tensor(self.start, device=labels.device).expand(len(labels), -1)
        log_probs: Tensor = self.layers(self._projected(encoded), torch.cat([start, labels], 1), num_frames)
        return log_probs[:, len(self.start) - 1 :]

    def begin(self, encoded: Tensor, num_frames: Tensor, width: int = 1) -> DecoderState:
        """See `AttentionDecoder`."""
        return self.layers.begin(self._projected(encoded), num_frames, width)

    def step(self, labels: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """See `AttentionDecoder`."""
        return self.layers.step(labels, state)

    def _projected(self, encoded: Tensor) -> Tensor:
        """(B, D, T) in the channels of the decoder."""
        return encoded if self.projection is None else self.projection(encoded.transpose(1, 2)).transpose(1, 2)
