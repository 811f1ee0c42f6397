"""Attention of other published Conformers: distances with a vector each (Shaw), rotated queries and keys, none of both.

That of NVIDIA's and WeNet's models: `self_attention`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.conformer.self_attention import Hidden, attention, blocks_of_queries, of_rows, shifted


class PlainAttention(nn.Module):
    """Multi-head attention that knows nothing of positions.

    Args:
        num_heads: heads.
        size: channels.
        dropout: probability, of attention weights.
        use_bias: biases of queries, keys and values.
        out_bias: bias of the output.
    """

    def __init__(self, num_heads: int, size: int, dropout: float, use_bias: bool = True, out_bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self._dropout = num_heads, dropout
        self.linear_q = nn.Linear(size, size, bias=use_bias)
        self.linear_k = nn.Linear(size, size, bias=use_bias)
        self.linear_v = nn.Linear(size, size, bias=use_bias)
        self.linear_out = nn.Linear(size, size, bias=out_bias)

    def forward(self, x: Tensor, positions: Tensor | None, hidden: Hidden | None) -> Tensor:
        """(B, T, D) to the same."""
        projections = self.linear_q, self.linear_k, self.linear_v
        query, key, value = (
            projection(x).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for projection in projections
        )
        out = self._attended(query * query.shape[3] ** -0.5, key, value, positions, hidden)
        attended: Tensor = self.linear_out(out.transpose(1, 2).flatten(2))
        return attended

    def _attended(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor | None, hidden: Hidden | None
    ) -> Tensor:
        """Scaled queries, keys and values (B, heads, T, D / heads) to the same."""
        return attention(query, key, value, None, hidden, self._dropout if self.training else 0.0)


class RotaryAttention(PlainAttention):
    """Queries and keys are rotated by an angle that grows with the frame; ``positions`` are of :func:`rotations`.

    Source: Su et al., "RoFormer", 2021.
    """

    def _attended(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor | None, hidden: Hidden | None
    ) -> Tensor:
        assert positions is not None
        return super()._attended(_rotated(query, positions), _rotated(key, positions), value, None, hidden)


def rotations(num_frames: int, size: int, base: float, device: torch.device) -> Tensor:
    """(2, T, size / 2): cosines and sines for each frame, for heads of so many channels."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    angles = torch.arange(num_frames, dtype=torch.float32, device=device).unsqueeze(1) * frequencies
    return torch.stack([angles.cos(), angles.sin()])


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """(B, heads, T, D): channel i is rotated with channel i + D / 2."""
    cosines, sines = positions.to(x.dtype)
    first, second = x.chunk(2, dim=3)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=3)


class ShawAttention(PlainAttention):
    """``score = q (k + p) / sqrt(d)``, with a trained p for each distance; those further away have that of the border.

    Source: Shaw et al., "Self-Attention with Relative Position Representations", NAACL 2018.

    Args:
        num_heads: heads.
        size: channels.
        num_distances: vectors.
        dropout: probability, of attention weights.
        use_bias: biases of queries, keys and values.
        block: frames of a block, beyond which none sees; ``hidden`` is then that of :func:`in_blocks`. None: there are
            no blocks.
    """

    def __init__(
        self,
        num_heads: int,
        size: int,
        num_distances: int,
        dropout: float,
        use_bias: bool = True,
        block: int | None = None,
    ) -> None:
        super().__init__(num_heads, size, dropout, use_bias)
        self.distance_embedding = nn.Embedding(num_distances, size // num_heads)
        self._block = block

    def forward(self, x: Tensor, positions: Tensor | None, hidden: Hidden | None) -> Tensor:
        """(B, T, D) to the same; ``positions`` are those of :func:`distances` of T, or of a block."""
        if self._block is None:
            return super().forward(x, positions, hidden)
        num_frames = x.shape[1]
        blocks = in_blocks(x, self._block)
        attended = super().forward(blocks, positions, hidden)
        return attended.reshape(x.shape[0], -1, x.shape[2])[:, :num_frames]

    def _attended(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor | None, hidden: Hidden | None
    ) -> Tensor:
        assert positions is not None
        places: Tensor = self.distance_embedding(positions).transpose(0, 1)
        dropout, outputs = self._dropout if self.training else 0.0, []
        for rows in blocks_of_queries(key):
            bias = shifted(query[:, :, rows] @ of_rows(places, rows))
            hidden_here = None if hidden is None else hidden.of_rows(rows)
            outputs.append(attention(query[:, :, rows], key, value, bias, hidden_here, dropout))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def distances(num_frames: int, before: int, behind: int, device: torch.device) -> Tensor:
    """(2 * T,): the vector of each distance from ``-T`` to ``T - 1`` between a frame and one that it sees.

    Frames ``before`` or more before have vector 0, those ``behind`` or more behind have the last one.
    """
    apart = torch.arange(2 * num_frames, device=device) - num_frames
    return apart.clamp(-before, behind) + before


def in_blocks(x: Tensor, block: int) -> Tensor:
    """(B, T, D) to (B * ceil(T / block), block, D), filled up with zeros."""
    filled = F.pad(x, (0, 0, 0, -x.shape[1] % block))
    return filled.reshape(-1, block, x.shape[2])


def lengths_of_blocks(lengths: Tensor, num_frames: int, block: int) -> Tensor:
    """(B,) valid frames of T to those of each block of :func:`in_blocks`, (B * ceil(T / block),)."""
    firsts = torch.arange(0, num_frames, block, device=lengths.device)
    return (lengths.unsqueeze(1) - firsts).clamp(0, block).flatten()
