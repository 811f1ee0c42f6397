"""LasrEncoder: the encoder of LASR (MedASR), a Conformer with rotated queries and keys. No decoders.

Inside it tensors are (B, T, D). Subsampling adds no padding, so no frame of an utterance sees what lies behind it.
There convolutions of layers see zeros, and attention nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.conformer.convolution import ConvolutionModule
from nemo_asr.models.conformer.encoder import Probability
from nemo_asr.models.conformer.layer import ConformerLayer, Dropouts, Residuals
from nemo_asr.models.conformer.other_attention import RotaryAttention, rotations
from nemo_asr.models.conformer.self_attention import FULL_CONTEXT, hidden_frames
from nemo_asr.models.jasper.encoder import encoded_ports, spectrogram_ports
from nemo_asr.models.jasper.layers import Frames, are_full, set_batch_norm_momentum
from nemo_asr.models.masks import perhaps_left_out
from nemo_asr.run.arguments import Channels, refuse_even, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import larger
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, Size, floor_div, named

_PLACE = "LasrEncoder"
_KERNEL, _STRIDE, _CONVOLUTIONS = 5, 2, 2  # of subsampling

_Weight = Annotated[float, Between(0, 100)]


class LasrEncoder(TrainableNM):
    """A Conformer over every fourth frame: rotary positions, weighted residuals, no biases of normalisation.

    Shapes: B utterances, D features, T frames in, C channels, U frames out: (T - 5) // 2 + 1, and once more.

    The arguments are those of transformers' ``LasrEncoderConfig``, but for the depthwise convolutions: one with an even
    kernel is here one of the next odd one, whose first tap is 0 before training.

    Sources: Gulati et al., "Conformer", Interspeech 2020; Su et al., "RoFormer", 2021.

    Args:
        num_mel_bins: features of a frame.
        hidden_size: channels inside, and of the output.
        num_hidden_layers: Conformer layers.
        num_attention_heads: heads of attention.
        intermediate_size: channels inside of a feed-forward module.
        conv_kernel_size: frames that a depthwise convolution sees, odd, as many before as behind.
        subsampling_conv_channels: of the last convolution of subsampling.
        attention_bias: biases of attention and feed-forward modules.
        convolution_bias: biases of convolution modules.
        rope_theta: the base of the frequencies of rotary positions.
        feed_forward_residual_weights: of the input and the output of a feed-forward module, which are added.
        conv_residual_weights: likewise of a convolution module.
        layer_norm_eps: is added to variances.
        batch_norm_momentum: the weight of a batch in running means and variances.
        dropout: probability, behind subsampling.
        activation_dropout: probability, inside of feed-forward modules.
        attention_dropout: probability, of attention weights.
        layerdrop: probability with which training leaves out a layer.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: None: attention sees the whole utterance.

    Raises:
        UsageError: numbers that contradict each other; more weights than a model may have.
    """

    context_frames = None

    def __init__(
        self,
        num_mel_bins: Channels = 128,
        hidden_size: Channels = 512,
        num_hidden_layers: Annotated[int, Between(1, 256)] = 17,
        num_attention_heads: Annotated[int, Between(1, 1_024)] = 8,
        intermediate_size: Channels = 2048,
        conv_kernel_size: Annotated[int, Between(1, 1_001)] = 33,
        subsampling_conv_channels: Channels = 256,
        attention_bias: bool = False,
        convolution_bias: bool = False,
        rope_theta: Annotated[float, Between(1, 1e9, above=True)] = 10_000.0,
        feed_forward_residual_weights: tuple[_Weight, _Weight] = (1.5, 0.5),
        conv_residual_weights: tuple[_Weight, _Weight] = (2.0, 1.0),
        layer_norm_eps: Annotated[float, Between(0, 1, above=True)] = 1e-6,
        batch_norm_momentum: Annotated[float, Between(0, 1, above=True)] = 0.01,
        dropout: Probability = 0.1,
        activation_dropout: Probability = 0.1,
        attention_dropout: Probability = 0.1,
        layerdrop: Probability = 0.1,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if hidden_size % (2 * num_attention_heads):
            problem, got = "num_attention_heads does not fit", f"hidden_size {hidden_size}, {num_attention_heads} heads"
            raise UsageError(problem, place=_PLACE, got=got, wanted="an even number of channels for each head")
        refuse_even(_PLACE, "conv_kernel_size", conv_kernel_size)
        of_layer = hidden_size * (hidden_size * 7 + 4 * intermediate_size + conv_kernel_size)
        of_convolutions = _KERNEL * hidden_size * (hidden_size + subsampling_conv_channels)
        of_linear = hidden_size * (num_mel_bins + subsampling_conv_channels)
        refuse_too_large(_PLACE, num_hidden_layers * of_layer + of_convolutions + of_linear)
        self._feat_in, self._size, self._layerdrop = num_mel_bins, hidden_size, layerdrop
        self._head_size, self._base = hidden_size // num_attention_heads, rope_theta
        self.subsampler = _Subsampling(num_mel_bins, hidden_size, subsampling_conv_channels)
        norm = partial(nn.LayerNorm, eps=layer_norm_eps, bias=False)
        residuals = Residuals(_pair(feed_forward_residual_weights), _pair(conv_residual_weights))
        left = conv_kernel_size // 2
        self.layers = nn.ModuleList(
            ConformerLayer(
                hidden_size,
                intermediate_size,
                RotaryAttention(num_attention_heads, hidden_size, attention_dropout, attention_bias, attention_bias),
                ConvolutionModule(hidden_size, conv_kernel_size, "batch_norm", left, convolution_bias),
                Dropouts(activation_dropout),
                attention_bias,
                residuals,
                norm,
            )
            for _ in range(num_hidden_layers)
        )
        set_batch_norm_momentum([self.layers], batch_norm_momentum)
        self.out_norm = norm(hidden_size)
        self._dropout = nn.Dropout(dropout)

    @property
    def input_ports(self) -> Ports:
        return spectrogram_ports(self._feat_in)

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._size, None)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, frames = shapes["audio_signal"]
        return {"outputs": (batch, self._size, named("U", _num_frames(frames))), "encoded_lengths": (batch,)}

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, T) and valid frames (B,) -> (B, C, U) and valid frames (B,), int64.

        Frames of the output beyond the valid ones are undefined.
        """
        x = self._dropout(self.subsampler(audio_signal.transpose(1, 2)))
        num_frames, lengths = x.shape[1], length.long()
        for _ in range(_CONVOLUTIONS):
            lengths = ((lengths - _KERNEL) // _STRIDE + 1).clamp(min=0)
        frames = Frames(lengths, is_masking=not are_full(lengths, num_frames))
        positions = rotations(num_frames, self._head_size, self._base, x.device)
        hidden = hidden_frames(lengths, num_frames, FULL_CONTEXT)
        for layer in self.layers:
            out = layer(x, frames, positions, hidden)
            x = perhaps_left_out(x, out, self._layerdrop) if self.training else out
        return self.out_norm(x).transpose(1, 2), lengths


def _num_frames(frames: Size) -> Size:
    """Frames out for frames in."""
    for _ in range(_CONVOLUTIONS):
        frames = floor_div(frames - _KERNEL, _STRIDE) + 1
    return frames


def _pair(weights: Sequence[float]) -> tuple[float, float]:
    of_input, of_output = weights
    return of_input, of_output


class _Subsampling(nn.Module):
    """A layer on each frame, two convolutions over time without padding, a layer; ReLU behind all but the last."""

    def __init__(self, num_features: int, size: int, channels: int) -> None:
        super().__init__()
        self.dense_0, self.dense_1 = nn.Linear(num_features, size), nn.Linear(channels, size)
        self.conv_0 = nn.Conv1d(size, size, _KERNEL, _STRIDE)
        self.conv_1 = nn.Conv1d(size, channels, _KERNEL, _STRIDE)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, F) to (B, U, D); U is 1 or more."""
        least = _KERNEL + (_KERNEL - 1) * _STRIDE
        x = F.pad(x, (0, 0, 0, larger(least - x.shape[1], 0)))
        x = F.relu(self.dense_0(x)).transpose(1, 2)
        x = F.relu(self.conv_1(F.relu(self.conv_0(x))))
        encoded: Tensor = self.dense_1(x.transpose(1, 2))
        return encoded
