"""JasperDecoderForSpkrClass: pools an utterance into one vector, and maps it to an embedding and to speakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.jasper import frames_type, init_weights, valid_frames
from nemo_asr.run.arguments import Channels, Classes, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AxisKind,
    AxisType,
    ElementType,
    LengthsType,
    LogitsType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape
from nemo_lite.utils import logging

_PLACE = "JasperDecoderForSpkrClass"
_MODES = ("xvector", "gram", "superVector")


class JasperDecoderForSpkrClass(TrainableNM):
    """Statistics of an utterance's frames, two embedding layers, and one score for each speaker.

    Shapes: B utterances, C channels, U frames, E numbers of an embedding. The pooled vector has 2C numbers (xvector),
    C * C (gram) or C * C + 2C (superVector). The embedding of an utterance is what the first layer gives before its
    ReLU; two utterances are compared by the cosine of the angle between their embeddings.

    Source: Snyder et al., "X-vectors", ICASSP 2018.

    Args:
        feat_in: channels of the encoder's output.
        num_classes: speakers.
        emb_sizes: sizes of the two embedding layers; numbers, or texts of numbers as in "1024,1024".
        pool_mode: ``xvector``: mean and standard deviation of each channel over time; ``gram``: the products of all
            pairs of channels, averaged over time; ``superVector``: both. Another text counts as xvector, with a
            warning.
        init_mode: xavier_uniform, xavier_normal, kaiming_uniform or kaiming_normal.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: ``emb_sizes`` are not two whole numbers of at least 1.
        UnknownNameError: an unknown initialisation.
    """

    def __init__(
        self,
        feat_in: Channels,
        num_classes: Classes,
        emb_sizes: Sequence[int | str] | str = (1024, 1024),
        pool_mode: str = "xvector",
        init_mode: str = "xavier_uniform",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if pool_mode not in _MODES:
            logging.warning(
                f'{_PLACE}: pool_mode "{pool_mode}" is not known and counts as xvector: {", ".join(_MODES)}'
            )
            pool_mode = "xvector"
        self._feat_in, self._num_classes, self._pool_mode = feat_in, num_classes, pool_mode
        first, second = self._emb_sizes = _two_sizes(emb_sizes)
        width = {"xvector": 2 * feat_in, "gram": feat_in**2, "superVector": feat_in**2 + 2 * feat_in}[pool_mode]
        refuse_too_large(_PLACE, width * first + first * second + second * num_classes)
        self.mid1, self.mid2 = _layer(width, first), _layer(first, second)
        self.final = nn.Linear(second, num_classes)
        init_weights(self, init_mode, _PLACE)

    @property
    def input_ports(self) -> Ports:
        return {
            "encoder_output": frames_type(self._feat_in, AcousticEncodedRepresentation()),
            "encoded_lengths": NeuralType("B", LengthsType(), optional=True),
        }

    @property
    def output_ports(self) -> Ports:
        return {
            "logits": _vectors(self._num_classes, LogitsType()),
            "embs": _vectors(self._emb_sizes[0], AcousticEncodedRepresentation()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch = shapes["encoder_output"][0]
        return {"logits": (batch, self._num_classes), "embs": (batch, self._emb_sizes[0])}

    def forward(self, encoder_output: Tensor, encoded_lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, C, U) and valid frames (B,), all where they are not given -> logits (B, num_classes), embs (B, E)."""
        linear, norm, relu = self.mid1
        embeddings: Tensor = norm(linear(pooled(encoder_output, encoded_lengths, self._pool_mode)))
        return self.final(self.mid2(relu(embeddings))), embeddings


def pooled(x: Tensor, lengths: Tensor | None, mode: str) -> Tensor:
    """One vector of statistics over the valid frames (B,) of (B, C, U), all where they are not given.

    Args:
        x: the frames.
        lengths: how many are valid.
        mode: as ``pool_mode`` of `JasperDecoderForSpkrClass`.
    """
    # Sums over hundreds of frames do not fit into halves.
    frames = x.to(torch.promote_types(x.dtype, torch.float32))
    if lengths is None:
        lengths = torch.full((x.shape[0],), x.shape[2], device=x.device)
    valid = valid_frames(lengths, x.shape[2])
    frames, counts = torch.where(valid, frames, 0.0), lengths.clamp(min=1).unsqueeze(1).to(frames.dtype)
    vectors = []
    if mode != "gram":
        mean = frames.sum(2) / counts
        squares = torch.where(valid, frames - mean.unsqueeze(2), 0.0).square().sum(2)
        # The gradient of a root is infinite at 0, where a channel is constant (or the utterance has one frame).
        deviation = (squares / (counts - 1).clamp(min=1)).clamp(min=1e-10).sqrt()
        vectors += [mean, deviation]
    if mode != "xvector":
        vectors.append((frames @ frames.transpose(1, 2)).flatten(1) / counts)
    return torch.cat(vectors, dim=1).to(x.dtype)


class _EmbeddingNorm(nn.BatchNorm1d):
    """Batch normalisation that takes a batch of one, the last of an epoch say, as evaluation does."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, E) -> (B, E)."""
        if self.training and len(x) == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
        return super().forward(x)


def _layer(size_in: int, size_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size_in, size_out), _EmbeddingNorm(size_out, affine=False), nn.ReLU())


def _vectors(size: int, element: ElementType) -> NeuralType:
    return NeuralType((AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, size)), element)


def _two_sizes(sizes: Sequence[int | str] | str) -> tuple[int, int]:
    try:
        first, second = [int(size) for size in (sizes.split(",") if isinstance(sizes, str) else sizes)]
    except (TypeError, ValueError):
        first = second = 0
    if first < 1 or second < 1:
        wanted = "two whole numbers of at least 1, such as 1024,1024"
        raise UsageError("emb_sizes are the sizes of two layers", place=_PLACE, got=repr(sizes), wanted=wanted)
    return first, second
