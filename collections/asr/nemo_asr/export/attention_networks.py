"""An attention decoder as two networks: the encoder with what the decoder asks of frames, and labels behind labels.

Programs hand the arrays of one to the other, and back to it, without looking into them. So these are keys and values of
all layers, and a frame and a label are projected once: of frames (B, 2 * layers, heads, U, channels / heads), and of
labels side by side, (B, T, size). A text ends where the model's own search ends it: the scores say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nemo_asr.export.runner_export import SEED, attention_decoder
from nemo_asr.models.attention.decoder import DecoderState, LabelLayers
from nemo_asr.models.attention.layers import DecoderLayer, Seen
from nemo_asr.models.attention.prompted import PromptedDecoder
from nemo_asr.models.conformer.self_attention import HIDDEN_SCORE
from nemo_asr.tasks.family import family_of
from nemo_asr.trained.model import TrainedModel
from nemo_asr.trained.prompted_models import END
from nemo_lite.base.errors import UsageError

NEVER = -1e30  # the score of a label that may not come


class Memory:
    """Keys and values of labels in all layers as one array (B, T, size), and back.

    Args:
        layers: of a decoder.

    Attributes:
        shape: of a label: 2 * layers, heads, channels / heads.
        size: the product of these.
    """

    def __init__(self, layers: LabelLayers) -> None:
        layer, *_ = layers.decoders
        assert isinstance(layer, DecoderLayer)
        heads, channels = layer.self_attn.num_heads, layer.self_attn.linear_k.out_features
        self.shape = 2 * len(layers.decoders), heads, channels // heads
        self.size = math.prod(self.shape)

    def packed(self, parts: Sequence[Seen]) -> Tensor:
        """Of keys and values (B, heads, T, channels / heads) of each layer."""
        return torch.cat([each.transpose(1, 2).flatten(2) for part in parts for each in part[:2]], 2)

    def unpacked(self, packed: Tensor) -> tuple[Seen, ...]:
        """Keys and values of each layer."""
        return in_layers(packed.view(*packed.shape[:2], *self.shape).permute(0, 2, 3, 1, 4))


def in_layers(frames: Tensor, hidden: Tensor | None = None) -> tuple[Seen, ...]:
    """Keys and values (B, 2 * layers, heads, U, channels / heads) of each layer; ``hidden`` is added to scores."""
    rows = frames.unbind(1)
    return tuple(Seen(keys, values, hidden) for keys, values in zip(rows[0::2], rows[1::2], strict=True))


def of_frames(layers: Sequence[Seen]) -> Tensor:
    """The other way round."""
    return torch.stack([each for layer in layers for each in layer[:2]], 1)


class Listener(nn.Module):
    """From features (B, D, T) and lengths to keys and values of frames, and 1 for each frame, else 0: (B, U).

    Args:
        rest: from features and their lengths to encoded frames (B, C, U) and theirs.
        decoder: of the model.
    """

    def __init__(self, rest: nn.Module, decoder: PromptedDecoder) -> None:
        super().__init__()
        self.rest, self.decoder = rest, decoder

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """What stands behind a recording is padding."""
        encoded, num_frames = self.rest(audio_signal, length)
        is_valid = torch.arange(encoded.shape[2], device=encoded.device) < num_frames.unsqueeze(1)
        frames = of_frames(self.decoder.begin(encoded, num_frames).frames)
        return frames * is_valid[:, None, None, :, None], is_valid.long()


class Speaker(nn.Module):
    """Labels (B, N) behind a memory (B, T, size) to scores (B, 1, outputs) of the next label, and the longer memory.

    The program begins each text with a prompt of its own, whose languages and marks are labels of the model.

    Args:
        decoder: of the model.
        num_prompt: labels of the program's prompt, which is the model's but for the space in front of it.
    """

    def __init__(self, decoder: PromptedDecoder, num_prompt: int) -> None:
        super().__init__()
        self.layers, self.memory = decoder.layers, Memory(decoder.layers)
        self.end, self.num_special = decoder.end, decoder.num_silent
        self.num_outputs = decoder.end + 1 + self.num_special
        assert decoder.most_labels is not None
        self.most_labels, self._labels_beyond = decoder.most_labels, decoder.labels_beyond
        own = len(decoder.start)
        self._num_prompt, self._left_out = num_prompt, max(num_prompt - own, 0)
        self._first = decoder.start[: max(own - num_prompt, 0)]

    def examples(self) -> list[tuple[Tensor, ...]]:
        """Inputs: of two texts with several labels, of prompts, and of a text with one label behind others."""
        random, (layers, heads, channels) = torch.Generator().manual_seed(SEED), self.memory.shape
        sizes = ((2, 3, 2), (2, self._num_prompt, 0), (1, self._num_prompt, 0), (1, 1, self._num_prompt + 4))
        return [
            (
                torch.randint(self.end, (batch, num_labels), generator=random),
                torch.randn(batch, layers, heads, 7, channels, generator=random),
                (torch.arange(7) < torch.tensor([[7], [5]]))[:batch].long(),
                torch.randn(batch, before, self.memory.size, generator=random),
            )
            for batch, num_labels, before in sizes
        ]

    def forward(self, labels: Tensor, frames: Tensor, mask: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Frames and their mask as a `Listener` gives them."""
        hidden = (1 - mask)[:, None, None] * HIDDEN_SCORE
        state = DecoderState(in_layers(frames, hidden), self.memory.unpacked(memory))
        if self._first:  # it is not in the program's memory, so it is computed each time
            first = torch.tensor(self._first, device=labels.device).expand(labels.shape[0], -1)
            _, beginning = self.layers.continued(first, state._replace(labels=self.memory.unpacked(memory[:, :0])))
            longer = self.memory.packed(beginning.labels), memory
            state = state._replace(labels=self.memory.unpacked(torch.cat(longer, 1)))
        log_probs, after = self.layers.continued(labels, state, self._left_out)
        new_memory = self.memory.packed(after.labels)[:, len(self._first) :]
        scores, number = log_probs[:, -1, : self.num_outputs], new_memory.shape[1] - self._num_prompt
        most = (mask.sum(1) + self._labels_beyond).clamp(max=self.most_labels)
        # A text that has ended says nothing more: onnx-asr goes on until all texts of a batch have.
        is_over = (number >= most) | ((labels[:, -1] == self.end) & (number > 0))
        is_end = torch.arange(self.num_outputs, device=scores.device) == self.end
        scores = scores.masked_fill(is_over.unsqueeze(1) & ~is_end, NEVER)
        return scores.unsqueeze(1), new_memory


def prompted_decoder(model: TrainedModel, program: str) -> PromptedDecoder:
    """The decoder of a model of the kind of Canary, whose prompt a program gives.

    Raises:
        UsageError: it is another one.
    """
    decoder = attention_decoder(model)
    if not isinstance(decoder, PromptedDecoder):
        has_ctc = "ctc" in family_of(model.modules.family).heads
        remedy = "give --head ctc, or use the model folder" if has_ctc else "use the model folder"
        problem, got = f"{program} does not run this attention decoder", type(decoder).__name__
        raise UsageError(problem, place=model.place, got=got, remedy=remedy)
    if decoder.times:
        problem, remedy = f"{program} asks for texts without times", "leave --timestamps out"
        raise UsageError(problem, place=model.place, got="timestamps", remedy=remedy)
    if decoder.prompt.name == "canary":
        problem = f"{program} has no prompts of the first Canary models"
        wanted = "canary2 or cohere"
        raise UsageError(problem, place=model.place, got="prompt canary", wanted=wanted, remedy="use the model folder")
    return decoder


def other_symbols(decoder: PromptedDecoder) -> list[str]:
    """The symbols of the outputs behind labels: the end and special labels, none of which is a part of texts."""
    return [END, *(label if label.startswith("<|") else f"<|{label}|>" for label in decoder.special_labels)]
