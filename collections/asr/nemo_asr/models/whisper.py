"""WhisperEncoder: of windows of log-mel features. Its decoder: `attention.whisper_decoder`. Tensors are (B, T, D)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.attention.layers import FeedForward, MultiHeadAttention
from nemo_asr.models.conformer.encoder import Probability
from nemo_asr.models.jasper.encoder import encoded_ports, spectrogram_ports
from nemo_asr.run.arguments import Channels, Features, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div

_STRIDE = 2  # of the second convolution
_LONGEST_PERIOD = 10_000.0


class WhisperEncoder(TrainableNM):
    """Two convolutions, of which the second halves the frames, and a Transformer with sines for positions.

    It sees a whole window and hides nothing of it: silence behind the speech is heard too, as in training.

    Shapes: B windows, D bands in, T = 2 * ``max_source_positions`` frames in, C channels, T / 2 frames out.

    The arguments are those of transformers' configurations.

    Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022, section 2.2.

    Args:
        num_mel_bins: bands of the features.
        d_model: channels of the Transformer, and of the output.
        encoder_layers: its layers.
        encoder_attention_heads: heads of attention.
        encoder_ffn_dim: channels inside of a feed-forward module.
        max_source_positions: frames of the output.
        dropout: probability, behind modules.
        attention_dropout: probability, of attention weights.
        activation_dropout: probability, inside of feed-forward modules.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: None: attention sees the whole window.

    Raises:
        UsageError: heads that do not divide the channels, an odd number of channels, or more weights than a model may
            have; and of ``forward``, another number of frames.
    """

    context_frames = None

    def __init__(
        self,
        num_mel_bins: Features = 80,
        d_model: Channels = 384,
        encoder_layers: Annotated[int, Between(1, 256)] = 4,
        encoder_attention_heads: Annotated[int, Between(1, 1_024)] = 6,
        encoder_ffn_dim: Channels = 1536,
        max_source_positions: Annotated[int, Between(1, 65_536)] = 1500,
        dropout: Probability = 0.0,
        attention_dropout: Probability = 0.0,
        activation_dropout: Probability = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        check_sizes("WhisperEncoder", d_model, "encoder_attention_heads", encoder_attention_heads)
        refuse_too_large(
            "WhisperEncoder",
            d_model
            * (
                3 * (num_mel_bins + d_model)
                + max_source_positions
                + encoder_layers * 2 * (2 * d_model + encoder_ffn_dim)
            ),
        )
        self._num_bands, self._size = num_mel_bins, d_model
        self.conv1 = nn.Conv1d(num_mel_bins, d_model, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(d_model, d_model, kernel_size=3, stride=_STRIDE, padding=1)
        self.embed_positions = _Positions(sinusoids(max_source_positions, d_model))
        self.layers = nn.ModuleList(
            _EncoderLayer(
                MultiHeadAttention(encoder_attention_heads, d_model, attention_dropout, key_bias=False),
                FeedForward(d_model, encoder_ffn_dim, activation_dropout, F.gelu),
                d_model,
                dropout,
            )
            for _ in range(encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(d_model)
        self._dropout = nn.Dropout(dropout)

    @property
    def input_ports(self) -> Ports:
        return spectrogram_ports(self._num_bands)

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._size, None)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, frames = shapes["audio_signal"]
        return {"outputs": (batch, self._size, ceil_div(frames, _STRIDE)), "encoded_lengths": (batch,)}

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, D, T) and their valid frames (B,) -> (B, C, T / 2) and valid frames (B,), int64.

        Raises:
            UsageError: T is not that of a window.
        """
        wanted = _STRIDE * len(self.embed_positions.weight)
        if audio_signal.shape[2] != wanted:
            got, remedy = f"{audio_signal.shape[2]} frames", "take AudioToWhisperMelPreprocessor for the features"
            problem = "the encoder hears whole windows"
            raise UsageError(problem, place="WhisperEncoder", got=got, wanted=f"{wanted} frames", remedy=remedy)
        x = F.gelu(self.conv2(F.gelu(self.conv1(audio_signal)))).transpose(1, 2)
        x = self._dropout(x + self.embed_positions.weight.to(x.dtype))
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x).transpose(1, 2), (length.long() + _STRIDE - 1) // _STRIDE


class _Positions(nn.Module):
    """Positions that are stored, and not trained."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)


def check_sizes(place: str, size: int, argument: str, num_heads: int) -> None:
    """Raise UsageError for heads that do not divide the channels, and for channels that no sines fit."""
    if size % num_heads or size % 2 or size < 4:
        wanted = "an even number of channels, 4 or more, that the heads divide"
        raise UsageError(
            "the sizes do not fit", place=place, got=f"d_model {size}, {argument} {num_heads}", wanted=wanted
        )


def sinusoids(number: int, size: int) -> Tensor:
    """(number, size): the sines of all frequencies of each position, and behind them their cosines.

    The periods are 2 pi to 2 pi * 10,000, evenly on a logarithmic scale.
    """
    periods = torch.exp(torch.arange(size // 2).double() * (math.log(_LONGEST_PERIOD) / (size // 2 - 1)))
    angles = torch.arange(number).unsqueeze(1) / periods
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class _EncoderLayer(nn.Module):
    """Attention to all frames and a feed-forward module; each adds to its input, normalised before."""

    def __init__(self, self_attn: MultiHeadAttention, feed_forward: FeedForward, size: int, dropout: float) -> None:
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self._dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        normed = self.norm1(x)
        x = x + self._dropout(self.self_attn(normed, self.self_attn.seen(normed)))
        out: Tensor = x + self._dropout(self.feed_forward(self.norm2(x)))
        return out
