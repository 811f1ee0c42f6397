"""Wav2VecEncoder: the encoders of wav2vec 2.0, HuBERT, WavLM and omniASR, which hear waveforms. No decoders.

They are settings of one encoder, with the weights' names of Hugging Face's transformers. Inside it tensors are
(B, T, D). The convolutions over samples add no padding, so no frame of an utterance sees what lies behind it; behind
them frames that do not belong to an utterance are 0 where a convolution reads them, and attention does not see them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.conformer import attention, hidden_frames
from nemo_asr.models.conformer.encoder import Probability
from nemo_asr.models.conformer.self_attention import FULL_CONTEXT, Hidden, blocks_of_queries
from nemo_asr.models.jasper.encoder import encoded_ports, spectrogram_ports
from nemo_asr.models.jasper.layers import Frames, MaskedGroupNorm, are_full, valid_frames
from nemo_asr.models.masks import Masks, masked, perhaps_left_out
from nemo_asr.run.arguments import Channels, refuse_remainder, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import larger
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between, Share
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, floor_div, named

_PLACE = "Wav2VecEncoder"


class Wav2VecEncoder(TrainableNM):
    """Convolutions over samples, and a Transformer over their frames, with positions by a convolution.

    Shapes: B utterances, T samples in, D channels, U frames out: one for each 320 samples with the usual strides.

    The arguments are those of transformers' configurations. ``gated_positions`` is what its WavLM has: scores of
    attention know how far two frames are apart, as much as the frame that looks lets them.

    Sources: Baevski et al., "wav2vec 2.0", NeurIPS 2020; Hsu et al., "HuBERT", 2021; Chen et al., "WavLM", 2022; of
    masks, Park et al., "SpecAugment", Interspeech 2019.

    Args:
        hidden_size: channels of the Transformer, and of the output.
        num_hidden_layers: its layers.
        num_attention_heads: heads of attention.
        intermediate_size: channels inside of a feed-forward module.
        conv_dim: channels of each convolution over samples.
        conv_kernel: samples, or frames of the one before, that each sees.
        conv_stride: its stride.
        conv_bias: whether these have biases.
        feat_extract_norm: group: the first convolution is normalised over the frames of the utterance; layer: each of
            them is over its channels.
        num_conv_pos_embeddings: frames that the convolution of positions sees.
        num_conv_pos_embedding_groups: its groups of channels.
        do_stable_layer_norm: normalise before attention and feed-forward modules, and behind the last layer; False:
            behind each, and before the first layer.
        gated_positions: WavLM's attention.
        num_buckets: of distances, in WavLM's attention.
        max_bucket_distance: frames from which on all distances are in the last bucket.
        layer_norm_eps: is added to variances.
        feat_proj_dropout: probability, behind the projection of what convolutions give.
        hidden_dropout: probability, behind modules.
        activation_dropout: probability, inside of feed-forward modules.
        attention_dropout: probability, of attention weights.
        final_dropout: probability, of the output.
        layerdrop: probability with which training leaves out a layer.
        mask_time_prob: the share of an utterance's frames that training replaces by one trained vector, in stretches;
            less where they overlap.
        mask_time_length: frames of a stretch.
        mask_time_min_masks: the fewest stretches of an utterance.
        mask_feature_prob: likewise the share of channels that training sets to 0, for all frames of an utterance.
        mask_feature_length: channels of a stretch.
        mask_feature_min_masks: the fewest stretches.
        freeze_feature_encoder: the convolutions over samples are not trained, which is how such models are fine-tuned.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: None: attention sees the whole utterance.

    Raises:
        UsageError: numbers that contradict each other; more weights than a model may have.
    """

    context_frames = None

    def __init__(
        self,
        hidden_size: Channels = 768,
        num_hidden_layers: Annotated[int, Between(1, 256)] = 12,
        num_attention_heads: Annotated[int, Between(1, 1_024)] = 12,
        intermediate_size: Channels = 3072,
        conv_dim: Sequence[Channels] = (512, 512, 512, 512, 512, 512, 512),
        conv_kernel: Sequence[Annotated[int, Between(1, 1_000)]] = (10, 3, 3, 3, 3, 2, 2),
        conv_stride: Sequence[Annotated[int, Between(1, 1_000)]] = (5, 2, 2, 2, 2, 2, 2),
        conv_bias: bool = False,
        feat_extract_norm: Literal["group", "layer"] = "group",
        num_conv_pos_embeddings: Annotated[int, Between(1, 1_000)] = 128,
        num_conv_pos_embedding_groups: Annotated[int, Between(1, 65_536)] = 16,
        do_stable_layer_norm: bool = False,
        gated_positions: bool = False,
        num_buckets: Annotated[int, Between(4, 65_536)] = 320,
        max_bucket_distance: Annotated[int, Between(2, 1_000_000)] = 800,
        layer_norm_eps: Annotated[float, Between(0, 1, above=True)] = 1e-5,
        feat_proj_dropout: Probability = 0.0,
        hidden_dropout: Probability = 0.1,
        activation_dropout: Probability = 0.1,
        attention_dropout: Probability = 0.1,
        final_dropout: Probability = 0.1,
        layerdrop: Probability = 0.1,
        mask_time_prob: Share = 0.05,
        mask_time_length: Annotated[int, Between(1, 10_000)] = 10,
        mask_time_min_masks: Annotated[int, Between(0, 1_000)] = 2,
        mask_feature_prob: Share = 0.0,
        mask_feature_length: Annotated[int, Between(1, 10_000)] = 10,
        mask_feature_min_masks: Annotated[int, Between(0, 1_000)] = 0,
        freeze_feature_encoder: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if not conv_dim or not len(conv_dim) == len(conv_kernel) == len(conv_stride):
            got = f"{len(conv_dim)}, {len(conv_kernel)} and {len(conv_stride)} numbers"
            problem = "conv_dim, conv_kernel and conv_stride must be equally long"
            raise UsageError(problem, place=_PLACE, got=got, wanted="one for each convolution")
        groups = num_conv_pos_embedding_groups
        refuse_remainder(_PLACE, "hidden_size", hidden_size, "num_attention_heads", num_attention_heads)
        refuse_remainder(_PLACE, "hidden_size", hidden_size, "num_conv_pos_embedding_groups", groups)
        if feat_extract_norm not in ("group", "layer"):
            wanted = "group or layer"
            raise UsageError("feat_extract_norm is not known", place=_PLACE, got=str(feat_extract_norm), wanted=wanted)
        of_convolutions = sum(k * a * b for k, a, b in zip(conv_kernel, (1, *conv_dim), conv_dim, strict=False))
        of_positions = hidden_size**2 // groups * num_conv_pos_embeddings
        of_layers = num_hidden_layers * hidden_size * (4 * hidden_size + 2 * intermediate_size)
        refuse_too_large(_PLACE, of_convolutions + of_positions + of_layers)
        self._size, self._layerdrop = hidden_size, layerdrop
        self._time_masks = Masks(mask_time_prob, mask_time_length, mask_time_min_masks)
        self._feature_masks = Masks(mask_feature_prob, mask_feature_length, mask_feature_min_masks)
        self.feature_extractor = _FeatureExtractor(conv_dim, conv_kernel, conv_stride, conv_bias, feat_extract_norm)
        self.feature_projection = _FeatureProjection(conv_dim[-1], hidden_size, layer_norm_eps, feat_proj_dropout)
        self.masked_spec_embed = nn.Parameter(torch.rand(hidden_size)) if mask_time_prob > 0 else None
        positions = _PositionalConv(hidden_size, num_conv_pos_embeddings, groups)
        layers = [
            _Layer(
                _Attention(
                    hidden_size,
                    num_attention_heads,
                    attention_dropout,
                    _Gate(num_attention_heads, hidden_size // num_attention_heads) if gated_positions else None,
                    # All layers have the table of the first one.
                    nn.Embedding(num_buckets, num_attention_heads) if gated_positions and not index else None,
                ),
                _FeedForward(hidden_size, intermediate_size, activation_dropout, hidden_dropout),
                nn.LayerNorm(hidden_size, eps=layer_norm_eps),
                nn.LayerNorm(hidden_size, eps=layer_norm_eps),
                hidden_dropout,
                do_stable_layer_norm,
            )
            for index in range(num_hidden_layers)
        ]
        self.encoder = _Transformer(positions, layers, nn.LayerNorm(hidden_size, eps=layer_norm_eps))
        self._is_stable, self._max_distance = do_stable_layer_norm, max_bucket_distance
        self._hidden_dropout, self._final_dropout = nn.Dropout(hidden_dropout), nn.Dropout(final_dropout)
        self._is_extractor_frozen = freeze_feature_encoder
        self.unfreeze()

    def unfreeze(self, weights: Iterable[str] | None = None) -> None:
        """See `TrainableNM`; with ``freeze_feature_encoder`` the convolutions over samples stay as they are."""
        super().unfreeze(weights)
        if weights is None and self._is_extractor_frozen:
            self.feature_extractor.requires_grad_(False)

    @property
    def input_ports(self) -> Ports:
        return spectrogram_ports(1)

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._size, None)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, frames = shapes["audio_signal"]
        seen, stride = self.feature_extractor.window
        num_frames = named("U", floor_div(frames - seen, stride) + 1)
        return {"outputs": (batch, self._size, num_frames), "encoded_lengths": (batch,)}

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (B, 1, T) and how many are valid (B,) -> (B, D, U) and valid frames (B,), int64.

        Frames of the output beyond the valid ones are undefined.
        """
        features, lengths = self.feature_extractor(audio_signal, length.long())
        num_frames = features.shape[1]
        x = self.feature_projection(features)
        if self.training:
            x = masked(x, lengths, self.masked_spec_embed, self._time_masks, self._feature_masks)
        if not are_full(lengths, num_frames):
            x = torch.where(valid_frames(lengths, num_frames).transpose(1, 2), x, 0.0)
        x = x + self.encoder.pos_conv_embed(x)
        if not self._is_stable:
            x = self.encoder.layer_norm(x)
        x = self._hidden_dropout(x)
        hidden = hidden_frames(lengths, num_frames, FULL_CONTEXT)
        layers = [layer for layer in self.encoder.layers if isinstance(layer, _Layer)]
        distances = self._distances(layers[0].attention.rel_attn_embed, num_frames, x.device)
        for layer in layers:
            out = layer(x, hidden, distances)
            x = perhaps_left_out(x, out, self._layerdrop) if self.training else out
        if self._is_stable:
            x = self.encoder.layer_norm(x)
        return self._final_dropout(x).transpose(1, 2), lengths

    def _distances(self, table: nn.Module | None, num_frames: int, device: torch.device) -> Tensor | None:
        """(2 * T - 1, heads): what is added to scores of frames that are 1 - T to T - 1 apart; None without a table."""
        if table is None:
            return None
        assert isinstance(table, nn.Embedding)
        apart = torch.arange(2 * num_frames - 1, device=device) - (num_frames - 1)
        biases: Tensor = table(_bucket(apart, table.num_embeddings, self._max_distance))
        return biases


def _bucket(apart: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance: half of them for frames behind; near ones exact, those further away by logarithms.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning", JMLR 2020.
    """
    half = num_buckets // 2
    exact = half // 2
    distance = apart.abs()
    logarithm = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + logarithm * (half - exact)).long().clamp(max=half - 1)
    return torch.where(apart > 0, half, 0) + torch.where(distance < exact, distance, far)


class _FeatureExtractor(nn.Module):
    """From samples to frames: convolutions without padding, with GELU behind each."""

    def __init__(
        self, channels: Sequence[int], kernels: Sequence[int], strides: Sequence[int], bias: bool, norm: str
    ) -> None:
        super().__init__()
        convolutions = [
            nn.Conv1d(*sizes, bias=bias) for sizes in zip((1, *channels[:-1]), channels, kernels, strides, strict=True)
        ]
        self.conv_layers = nn.ModuleList(
            _ConvLayer(conv, norm if norm == "layer" or conv is convolutions[0] else "") for conv in convolutions
        )
        seen, step = 1, 1
        for kernel, stride in zip(kernels, strides, strict=True):
            seen, step = seen + (kernel - 1) * step, step * stride
        self.window = seen, step  # samples that a frame sees, and from frame to frame

    def forward(self, samples: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, T) and valid samples (B,) -> (B, U, C) and valid frames (B,); U is 1 or more."""
        most = larger(samples.shape[2], self.window[0])
        x = F.pad(samples, (0, most - samples.shape[2]))
        for layer in self.conv_layers:
            x, lengths = layer(x, lengths)
        return x.transpose(1, 2), lengths


class _ConvLayer(nn.Module):
    def __init__(self, conv: nn.Conv1d, norm: str) -> None:
        super().__init__()
        size = conv.out_channels
        self.conv = conv
        self.layer_norm: nn.Module | None = None
        if norm:
            self.layer_norm = MaskedGroupNorm(size, size) if norm == "group" else nn.LayerNorm(size)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, T) and valid lengths (B,) to those of the output."""
        x = self.conv(x)
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        lengths = ((lengths - kernel) // stride + 1).clamp(min=0)
        if isinstance(self.layer_norm, MaskedGroupNorm):
            x = self.layer_norm(x, Frames(lengths, is_masking=not are_full(lengths, x.shape[2])))
        elif self.layer_norm is not None:
            x = self.layer_norm(x.transpose(1, 2)).transpose(1, 2)
        return F.gelu(x), lengths


class _FeatureProjection(nn.Module):
    def __init__(self, channels: int, size: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(channels, eps=eps)
        self.projection = nn.Linear(channels, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, D)."""
        projected: Tensor = self.dropout(self.projection(self.layer_norm(x)))
        return projected


class _Transformer(nn.Module):
    """Holds the weights by their names; `Wav2VecEncoder` computes."""

    def __init__(self, positions: nn.Module, layers: Sequence[nn.Module], norm: nn.LayerNorm) -> None:
        super().__init__()
        self.pos_conv_embed = positions
        self.layer_norm = norm
        self.layers = nn.ModuleList(layers)


class _PositionalConv(nn.Module):
    """A convolution over many frames, with GELU: where a frame is, told by its neighbours."""

    def __init__(self, size: int, kernel_size: int, groups: int) -> None:
        super().__init__()
        self.conv = _WeightNormConv1d(size, kernel_size, groups)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        positions: Tensor = F.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return positions


class _WeightNormConv1d(nn.Module):
    """A convolution of (B, D, T) to the same, whose weights at each tap have a trained norm.

    Source: Salimans and Kingma, "Weight Normalization", NeurIPS 2016.
    """

    def __init__(self, size: int, kernel_size: int, groups: int) -> None:
        super().__init__()
        self._groups = groups
        weights = torch.empty(size, size // groups, kernel_size)
        self.bias = nn.Parameter(torch.zeros(size))
        self.weight_v = nn.Parameter(nn.init.normal_(weights, std=2 / math.sqrt(kernel_size * size)))
        self.weight_g = nn.Parameter(torch.linalg.vector_norm(weights.detach(), dim=(0, 1), keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, T) to the same; an even number of taps sees one frame more before than behind."""
        norm = torch.linalg.vector_norm(self.weight_v, dim=(0, 1), keepdim=True)
        weight, num_taps = self.weight_v * (self.weight_g / norm), self.weight_v.shape[2]
        padded = F.pad(x, (num_taps // 2, (num_taps - 1) // 2))
        return F.conv1d(padded, weight.to(x.dtype), self.bias.to(x.dtype), groups=self._groups)


class _Layer(nn.Module):
    def __init__(
        self,
        attention: _Attention,
        feed_forward: nn.Module,
        layer_norm: nn.LayerNorm,
        final_layer_norm: nn.LayerNorm,
        dropout: float,
        is_stable: bool,
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.layer_norm, self.final_layer_norm = layer_norm, final_layer_norm
        self.dropout = nn.Dropout(dropout)
        self._is_stable = is_stable

    def forward(self, x: Tensor, hidden: Hidden | None, distances: Tensor | None) -> Tensor:
        """(B, T, D) to the same."""
        if self._is_stable:
            x = x + self.dropout(self.attention(self.layer_norm(x), hidden, distances))
            stable: Tensor = x + self.feed_forward(self.final_layer_norm(x))
            return stable
        x = self.layer_norm(x + self.dropout(self.attention(x, hidden, distances)))
        out: Tensor = self.final_layer_norm(x + self.feed_forward(x))
        return out


class _FeedForward(nn.Module):
    def __init__(self, size: int, hidden_size: int, inner_dropout: float, dropout: float) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(size, hidden_size)
        self.output_dense = nn.Linear(hidden_size, size)
        self._inner_dropout, self._dropout = nn.Dropout(inner_dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        inner = self._inner_dropout(F.gelu(self.intermediate_dense(x)))
        out: Tensor = self._dropout(self.output_dense(inner))
        return out


class _Gate(nn.Module):
    """WavLM's: how much each frame and head lets distances count."""

    def __init__(self, num_heads: int, head_size: int) -> None:
        super().__init__()
        self.gru_rel_pos_const = nn.Parameter(torch.ones(1, num_heads, 1, 1))
        self.gru_rel_pos_linear = nn.Linear(head_size, 8)

    def forward(self, x: Tensor) -> Tensor:
        """(B, heads, T, D / heads) to (B, heads, T, 1)."""
        parts: Tensor = self.gru_rel_pos_linear(x)
        update, reset = (part.sum(3, keepdim=True).sigmoid() for part in parts.chunk(2, dim=3))
        gate: Tensor = update * (reset * self.gru_rel_pos_const - 1.0) + 2.0
        return gate


class _Attention(nn.Module):
    """Multi-head attention; with a gate, scores have a bias by the distance of two frames."""

    def __init__(
        self, size: int, num_heads: int, dropout: float, gate: _Gate | None, rel_attn_embed: nn.Embedding | None
    ) -> None:
        super().__init__()
        self._num_heads, self._dropout = num_heads, dropout
        self.k_proj, self.v_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.q_proj, self.out_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.gate, self.rel_attn_embed = gate, rel_attn_embed

    def forward(self, x: Tensor, hidden: Hidden | None, distances: Tensor | None) -> Tensor:
        """(B, T, D) to the same; ``distances`` as :meth:`Wav2VecEncoder._distances` gives them."""
        query, key, value = (self._heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        query = query * query.shape[3] ** -0.5
        dropout = self._dropout if self.training else 0.0
        if self.gate is None or distances is None:
            out = attention(query, key, value, None, hidden, dropout)
        else:
            gate, outputs = self.gate(self._heads(x)), []
            frames = torch.arange(x.shape[1], device=x.device)
            for rows in blocks_of_queries(key):
                apart = frames - frames[rows].unsqueeze(1) + (x.shape[1] - 1)
                bias = gate[:, :, rows] * F.embedding(apart, distances).permute(2, 0, 1)
                outputs.append(attention(query[:, :, rows], key, value, bias.to(query.dtype), hidden, dropout))
            out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
        attended: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return attended

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, heads, T, D / heads)."""
        return x.view(*x.shape[:2], self._num_heads, -1).transpose(1, 2)
