"""Wav2VecBertEncoder: the encoder of wav2vec2-BERT, a Conformer over Kaldi's filter banks. No decoders.

Inside it tensors are (B, T, D). Its convolutions see no frames behind their own, attention sees the whole utterance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.conformer.convolution import ConvolutionModule
from nemo_asr.models.conformer.encoder import Probability
from nemo_asr.models.conformer.layer import ConformerLayer, Dropouts
from nemo_asr.models.conformer.other_attention import PlainAttention, ShawAttention, distances
from nemo_asr.models.conformer.self_attention import FULL_CONTEXT, Hidden, hidden_frames
from nemo_asr.models.jasper.encoder import encoded_ports, spectrogram_ports
from nemo_asr.models.jasper.layers import Frames, are_full
from nemo_asr.models.masks import Masks, masked, perhaps_left_out
from nemo_asr.run.arguments import Channels, refuse_even, refuse_remainder, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import larger
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between, Share
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div, named

_PLACE = "Wav2VecBertEncoder"
_STACKED = 2  # frames of features in one of the encoder


class Wav2VecBertEncoder(TrainableNM):
    """A Conformer over pairs of frames; attention has a vector for each distance, convolutions see what was before.

    Shapes: B utterances, D features, T frames in, C channels, U frames out: ceil(T / 2), and half of that, rounded up,
    behind each layer of the adapter.

    The last one of an odd number of frames makes no valid pair. The convolutions of the adapter see that pair all the
    same, as those of transformers do in a recording on its own, and behind it zeros.

    The arguments are those of transformers' configurations. Its adapter's layers are never left out in training.

    Sources: Barrault et al., "Seamless", 2023; Gulati et al., "Conformer", Interspeech 2020; Shaw et al.,
    "Self-Attention with Relative Position Representations", NAACL 2018.

    Args:
        feature_projection_input_dim: features of a pair of frames.
        hidden_size: channels of the Conformer, and of the output.
        num_hidden_layers: its layers.
        num_attention_heads: heads of attention.
        intermediate_size: channels inside of a feed-forward module.
        left_max_position_embeddings: frames before a frame from which on all have the same vector.
        right_max_position_embeddings: likewise behind it.
        conv_depthwise_kernel_size: frames that a depthwise convolution sees, odd.
        num_adapter_layers: layers behind the Conformer that halve the number of frames; 0: there is no adapter.
        feat_proj_dropout: probability, behind the projection of the features.
        hidden_dropout: probability, behind feed-forward modules and before the first layer.
        activation_dropout: probability, inside of feed-forward modules.
        attention_dropout: probability, of attention weights and behind attention.
        conformer_conv_dropout: probability, behind convolutions.
        final_dropout: probability, of the output.
        layerdrop: probability with which training leaves out a layer of the Conformer.
        mask_time_prob: the share of an utterance's frames that training replaces by one trained vector, in stretches;
            less where they overlap.
        mask_time_length: frames of a stretch.
        mask_time_min_masks: the fewest stretches of an utterance.
        mask_feature_prob: likewise the share of channels that training sets to 0, for all frames of an utterance.
        mask_feature_length: channels of a stretch.
        mask_feature_min_masks: the fewest stretches.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: None: attention sees the whole utterance.

    Raises:
        UsageError: numbers that contradict each other; more weights than a model may have.
    """

    context_frames = None

    def __init__(
        self,
        feature_projection_input_dim: Annotated[int, Between(2, 65_536)] = 160,
        hidden_size: Channels = 1024,
        num_hidden_layers: Annotated[int, Between(1, 256)] = 24,
        num_attention_heads: Annotated[int, Between(1, 1_024)] = 16,
        intermediate_size: Channels = 4096,
        left_max_position_embeddings: Annotated[int, Between(0, 65_536)] = 64,
        right_max_position_embeddings: Annotated[int, Between(0, 65_536)] = 8,
        conv_depthwise_kernel_size: Annotated[int, Between(1, 1_001)] = 31,
        num_adapter_layers: Annotated[int, Between(0, 16)] = 0,
        feat_proj_dropout: Probability = 0.0,
        hidden_dropout: Probability = 0.0,
        activation_dropout: Probability = 0.0,
        attention_dropout: Probability = 0.0,
        conformer_conv_dropout: Probability = 0.1,
        final_dropout: Probability = 0.1,
        layerdrop: Probability = 0.1,
        mask_time_prob: Share = 0.05,
        mask_time_length: Annotated[int, Between(1, 10_000)] = 10,
        mask_time_min_masks: Annotated[int, Between(0, 1_000)] = 2,
        mask_feature_prob: Share = 0.0,
        mask_feature_length: Annotated[int, Between(1, 10_000)] = 10,
        mask_feature_min_masks: Annotated[int, Between(0, 1_000)] = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if feature_projection_input_dim % _STACKED:
            problem, got = "feature_projection_input_dim is odd", str(feature_projection_input_dim)
            raise UsageError(problem, place=_PLACE, got=got, wanted="features of two frames")
        refuse_remainder(_PLACE, "hidden_size", hidden_size, "num_attention_heads", num_attention_heads)
        refuse_even(_PLACE, "conv_depthwise_kernel_size", conv_depthwise_kernel_size)
        of_layer = hidden_size * (hidden_size * 7 + 4 * intermediate_size + conv_depthwise_kernel_size)
        of_adapter = num_adapter_layers * hidden_size * (hidden_size * 16 + 2 * intermediate_size)
        refuse_too_large(_PLACE, num_hidden_layers * of_layer + of_adapter + feature_projection_input_dim * hidden_size)
        self._feat_in, self._size, self._layerdrop = feature_projection_input_dim // _STACKED, hidden_size, layerdrop
        self._before, self._behind = left_max_position_embeddings, right_max_position_embeddings
        self._time_masks = Masks(mask_time_prob, mask_time_length, mask_time_min_masks)
        self._feature_masks = Masks(mask_feature_prob, mask_feature_length, mask_feature_min_masks)
        self.feature_projection = _FeatureProjection(feature_projection_input_dim, hidden_size)
        self.masked_spec_embed = nn.Parameter(torch.rand(hidden_size)) if mask_time_prob > 0 else None
        dropouts = Dropouts(activation_dropout, hidden_dropout, attention_dropout, conformer_conv_dropout)
        num_distances, kernel_size = self._before + self._behind + 1, conv_depthwise_kernel_size
        self.layers = nn.ModuleList(
            ConformerLayer(
                hidden_size,
                intermediate_size,
                ShawAttention(num_attention_heads, hidden_size, num_distances, attention_dropout),
                ConvolutionModule(hidden_size, kernel_size, "layer_norm", kernel_size - 1, use_bias=False),
                dropouts,
            )
            for _ in range(num_hidden_layers)
        )
        self.adapter = nn.ModuleList(
            _AdapterLayer(
                hidden_size,
                intermediate_size,
                PlainAttention(num_attention_heads, hidden_size, attention_dropout),
                dropouts,
            )
            for _ in range(num_adapter_layers)
        )
        self._feat_proj_dropout, self._hidden_dropout = nn.Dropout(feat_proj_dropout), nn.Dropout(hidden_dropout)
        self._final_dropout = nn.Dropout(final_dropout)

    @property
    def input_ports(self) -> Ports:
        return spectrogram_ports(self._feat_in)

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._size, None)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, frames = shapes["audio_signal"]
        num_frames = ceil_div(frames, _STACKED * 2 ** len(self.adapter))
        return {"outputs": (batch, self._size, named("U", num_frames)), "encoded_lengths": (batch,)}

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, T) and valid frames (B,) -> (B, C, U) and valid frames (B,), int64.

        Frames of the output beyond the valid ones are undefined.
        """
        lengths = length.long() // _STACKED
        x = self._feat_proj_dropout(self.feature_projection(_stacked(audio_signal.transpose(1, 2))))
        if self.training:
            x = masked(x, lengths, self.masked_spec_embed, self._time_masks, self._feature_masks)
        num_frames = x.shape[1]
        frames, started = Frames(lengths, not are_full(lengths, num_frames)), Frames((length.long() + 1) // _STACKED)
        x = self._hidden_dropout(frames.masked(x.transpose(1, 2)).transpose(1, 2))
        positions = distances(num_frames, self._before, self._behind, x.device)
        hidden = hidden_frames(lengths, num_frames, FULL_CONTEXT)
        for layer in self.layers:
            out = layer(x, frames, positions, hidden)
            x = perhaps_left_out(x, out, self._layerdrop) if self.training else out
        for layer in self.adapter:
            frames = frames.strided(2)
            x = layer(x, started, hidden_frames(frames.lengths, (x.shape[1] + 1) // 2, FULL_CONTEXT))
            started = started.strided(2)
        return self._final_dropout(x).transpose(1, 2), frames.lengths


def _stacked(features: Tensor) -> Tensor:
    """(B, T, D) to pairs (B, ceil(T / 2), 2 * D), at least one; the last one may be half filled with zeros."""
    missing = larger(features.shape[1] % _STACKED, _STACKED - features.shape[1])
    features = F.pad(features, (0, 0, 0, missing))
    return features.reshape(features.shape[0], features.shape[1] // _STACKED, _STACKED * features.shape[2])


class _FeatureProjection(nn.Module):
    def __init__(self, num_features: int, size: int) -> None:
        super().__init__()
        self.layer_norm, self.projection = nn.LayerNorm(num_features), nn.Linear(num_features, size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, F) to (B, T, D)."""
        projected: Tensor = self.projection(self.layer_norm(x))
        return projected


class _AdapterLayer(nn.Module):
    """A layer of a Transformer behind two gated convolutions that halve the frames: of its input and of attention's."""

    def __init__(self, size: int, feed_forward_size: int, attention: PlainAttention, dropouts: Dropouts) -> None:
        super().__init__()
        self.residual_layer_norm, self.residual_conv = nn.LayerNorm(size), _halving(size)
        self.self_attn_layer_norm, self.self_attn_conv = nn.LayerNorm(size), _halving(size)
        self.self_attn, self.ffn_layer_norm = attention, nn.LayerNorm(size)
        self.ffn = _FeedForward(size, feed_forward_size, dropouts)
        self._dropout = nn.Dropout(dropouts.convolution)

    def forward(self, x: Tensor, frames: Frames, hidden: Hidden | None) -> Tensor:
        """(B, T, D) to (B, ceil(T / 2), D), of frames that convolutions see; ``hidden`` is that of the output."""
        residual = _halved(self.residual_layer_norm(x), frames, self.residual_conv)
        pooled = _halved(self.self_attn_layer_norm(x), frames, self.self_attn_conv)
        x = residual + self._dropout(self.self_attn(pooled, None, hidden))
        out: Tensor = x + self.ffn(self.ffn_layer_norm(x))
        return out


def _halving(size: int) -> nn.Conv1d:
    return nn.Conv1d(size, 2 * size, 3, stride=2, padding=1)


def _halved(x: Tensor, frames: Frames, conv: nn.Module) -> Tensor:
    """(B, T, D) to (B, ceil(T / 2), D); the convolution sees zeros behind the frames."""
    return F.glu(conv(frames.masked(x.transpose(1, 2))), dim=1).transpose(1, 2)


class _FeedForward(nn.Module):
    def __init__(self, size: int, hidden_size: int, dropouts: Dropouts) -> None:
        super().__init__()
        self.intermediate_dense, self.output_dense = nn.Linear(size, hidden_size), nn.Linear(hidden_size, size)
        self._inner_dropout, self._dropout = nn.Dropout(dropouts.inside), nn.Dropout(dropouts.feed_forward)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        out: Tensor = self._dropout(self.output_dense(self._inner_dropout(F.relu(self.intermediate_dense(x)))))
        return out
