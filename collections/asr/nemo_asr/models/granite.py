"""GraniteSpeechEncoder: the encoder of Granite Speech TurboCTC, a Conformer with attention in blocks. No decoders.

Inside it tensors are (B, T, D). Behind an utterance convolutions see zeros, and attention nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.conformer.encoder import Probability
from nemo_asr.models.conformer.layer import ConformerLayer, Dropouts
from nemo_asr.models.conformer.other_attention import ShawAttention, distances, lengths_of_blocks
from nemo_asr.models.conformer.self_attention import FULL_CONTEXT, Hidden, add_dropped, hidden_frames
from nemo_asr.models.jasper.encoder import encoded_ports, spectrogram_ports
from nemo_asr.models.jasper.layers import BatchNorm, Frames, TimeConv1d, are_full
from nemo_asr.run.arguments import Channels, refuse_even, refuse_remainder, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import larger
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, floor_div, named

_PLACE = "GraniteSpeechEncoder"


class GraniteSpeechEncoder(TrainableNM):
    """A Conformer of which some layers halve the frames, and whose middle hears what it would write so far.

    Shapes: B utterances, D features, T frames in, C channels, U frames out: T halved, rounded down, in each of the
    ``subsample_layers``.

    Attention sees the frames of its own block, with a trained vector for each distance. Of what the first half of the
    layers gives, probabilities of ``vocab_size`` outputs are computed and added to it (self-conditioned CTC).

    The arguments are those of transformers' ``GraniteSpeech5EncoderConfig``.

    Sources: Gulati et al., "Conformer", Interspeech 2020; Shaw et al., "Self-Attention with Relative Position
    Representations", NAACL 2018; Nozaki and Komatsu, "Relaxing the Conditional Independence Assumption of CTC-based
    ASR by Conditioning on Intermediate Predictions", Interspeech 2021.

    Args:
        feat_in: features of a frame.
        vocab_size: outputs in the middle: labels and the blank of the published model, also where one that is
            fine-tuned has other labels.
        hidden_size: channels inside, and of the output.
        num_hidden_layers: Conformer layers.
        num_attention_heads: heads of attention.
        intermediate_size: channels inside of a feed-forward module.
        context_size: frames of a block, counted from the start of the utterance.
        max_position_embeddings: frames before and behind, up to which distances have vectors.
        conv_kernel_size: frames that a depthwise convolution sees, odd.
        conv_expansion_factor: channels inside of a convolution module for one outside.
        subsample_layers: layers that halve the frames, counted from 0.
        attention_bias: biases of feed-forward modules.
        attention_dropout: probability, of attention weights.
        activation_dropout: probability, inside of feed-forward modules.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: None: the frames that one sees depend on its place in its block.

    Raises:
        UsageError: numbers that contradict each other; more weights than a model may have.
    """

    context_frames = None

    def __init__(
        self,
        feat_in: Channels = 320,
        vocab_size: Annotated[int, Between(2, 1_000_000)] = 16_384,
        hidden_size: Channels = 1024,
        num_hidden_layers: Annotated[int, Between(2, 256)] = 16,
        num_attention_heads: Annotated[int, Between(1, 1_024)] = 8,
        intermediate_size: Channels = 4096,
        context_size: Annotated[int, Between(1, 65_536)] = 128,
        max_position_embeddings: Annotated[int, Between(1, 65_536)] = 512,
        conv_kernel_size: Annotated[int, Between(1, 1_001)] = 7,
        conv_expansion_factor: Annotated[int, Between(1, 64)] = 2,
        subsample_layers: Sequence[Annotated[int, Between(0, 255)]] = (0, 1),
        attention_bias: bool = True,
        attention_dropout: Probability = 0.0,
        activation_dropout: Probability = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        refuse_remainder(_PLACE, "hidden_size", hidden_size, "num_attention_heads", num_attention_heads)
        refuse_even(_PLACE, "conv_kernel_size", conv_kernel_size)
        if context_size > max_position_embeddings:
            got, wanted = str(context_size), f"at most max_position_embeddings, {max_position_embeddings}"
            raise UsageError("context_size is too large", place=_PLACE, got=got, wanted=wanted)
        inner = hidden_size * conv_expansion_factor
        of_layer = hidden_size * (4 * hidden_size + 4 * intermediate_size + 3 * inner) + inner * conv_kernel_size
        refuse_too_large(_PLACE, num_hidden_layers * of_layer + 2 * vocab_size * hidden_size)
        self._feat_in, self._size, self._block = feat_in, hidden_size, context_size
        self._most_distance = max_position_embeddings
        self.input_linear = nn.Linear(feat_in, hidden_size)
        self.layers = nn.ModuleList(
            (_HalvingLayer if index in subsample_layers else ConformerLayer)(
                hidden_size,
                intermediate_size,
                ShawAttention(
                    num_attention_heads,
                    hidden_size,
                    2 * max_position_embeddings + 1,
                    attention_dropout,
                    use_bias=False,
                    block=context_size,
                ),
                _Convolution(hidden_size, inner, conv_kernel_size, 2 if index in subsample_layers else 1),
                Dropouts(activation_dropout),
                attention_bias,
            )
            for index in range(num_hidden_layers)
        )
        self._middle = num_hidden_layers // 2 - 1
        self.out, self.out_mid = nn.Linear(hidden_size, vocab_size), nn.Linear(vocab_size, hidden_size)

    @property
    def input_ports(self) -> Ports:
        return spectrogram_ports(self._feat_in)

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._size, None)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, frames = shapes["audio_signal"]
        num_frames = named("U", floor_div(frames, self._stride))
        return {"outputs": (batch, self._size, num_frames), "encoded_lengths": (batch,)}

    @property
    def _stride(self) -> int:
        """Frames in for one out."""
        return 1 << sum(isinstance(layer, _HalvingLayer) for layer in self.layers)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, T) and valid frames (B,) -> (B, C, U) and valid frames (B,), int64.

        Frames of the output beyond the valid ones are undefined.
        """
        missing = larger(self._stride - audio_signal.shape[2], 0)
        x, lengths = self.input_linear(F.pad(audio_signal, (0, missing)).transpose(1, 2)), length.long()
        positions = distances(self._block, self._most_distance, self._most_distance, x.device)
        frames, hidden = self._of_rate(lengths, x.shape[1])
        for index, layer in enumerate(self.layers):
            x = layer(x, frames, positions, hidden)
            if isinstance(layer, _HalvingLayer):
                lengths = lengths // 2
                frames, hidden = self._of_rate(lengths, x.shape[1])
            if index == self._middle:
                x = x + self.out_mid(self.out(x).softmax(2))
        return x.transpose(1, 2), lengths

    def _of_rate(self, lengths: Tensor, num_frames: int) -> tuple[Frames, Hidden | None]:
        """Which frames convolutions see, and which those of a block do not see, at one frame rate."""
        frames = Frames(lengths, is_masking=not are_full(lengths, num_frames))
        of_blocks = lengths_of_blocks(lengths, num_frames, self._block)
        return frames, hidden_frames(of_blocks, self._block, FULL_CONTEXT)


class _HalvingLayer(ConformerLayer):
    """Its convolution gives every second frame, which are added to the means of pairs of its input."""

    def _convolved(self, x: Tensor, frames: Frames, dropout: float) -> Tensor:
        number = x.shape[1] // 2
        means = x[:, : 2 * number].reshape(x.shape[0], number, 2, x.shape[2]).mean(2)
        return add_dropped(means, self.conv(self.norm_conv(x), frames)[:, :number], dropout)


class _Convolution(nn.Module):
    """A wide convolution module: gate, depthwise convolution, batch normalisation, SiLU, linear."""

    def __init__(self, size: int, inner: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.pointwise_lin1, self.pointwise_lin2 = nn.Linear(size, 2 * inner), nn.Linear(inner, size)
        self.depthwise_conv = TimeConv1d(inner, inner, kernel_size, stride, groups=inner)
        self.norm = BatchNorm(inner)

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        """(B, T, D) to (B, ceil(T / stride), D)."""
        gated = frames.masked(F.glu(self.pointwise_lin1(x), dim=2).transpose(1, 2))
        convolved = F.silu(self.norm(self.depthwise_conv(gated)))
        projected: Tensor = self.pointwise_lin2(convolved.transpose(1, 2))
        return projected
