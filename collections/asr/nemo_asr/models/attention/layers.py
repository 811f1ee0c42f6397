"""Layers of attention decoders: a label sees the labels before it, and all frames of its utterance.

The names of weights are WeNet's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.conformer.self_attention import HIDDEN_SCORE, position_embeddings
from nemo_lite.base.errors import UsageError


class Seen(NamedTuple):
    """What attention looks at.

    Attributes:
        keys, values: (B, heads, S, D / heads).
        hidden: what is added to scores, (B or 1, 1, U or 1, S): 0, or so little that it hides; None: all is seen.
    """

    keys: Tensor
    values: Tensor
    hidden: Tensor | None = None


def labels_before(num_labels: int, device: torch.device) -> Tensor:
    """(1, 1, U, U): added to scores, it hides labels that come later."""
    later = torch.ones(num_labels, num_labels, dtype=torch.bool, device=device).triu(1)
    return (later * HIDDEN_SCORE)[None, None]


def check_heads(place: str, num_heads: int, size: int) -> None:
    """Raise UsageError for heads that do not divide the channels."""
    if size % num_heads:
        got, wanted = f"{num_heads} of {size} channels", "a number that divides the channels"
        raise UsageError("its heads do not divide its channels", place=place, got=got, wanted=wanted)


def check_sines(place: str, size: int) -> None:
    """Raise UsageError for an odd number of channels: each sine of a position has its cosine."""
    if size % 2:
        problem, wanted = "positions as sines and cosines fit no odd number of channels", "an even number"
        raise UsageError(problem, place=place, got=str(size), wanted=wanted)


class MultiHeadAttention(nn.Module):
    """Attention over what `seen` has made.

    Args:
        num_heads: heads, which divide the channels.
        size: channels.
        dropout: probability, of attention weights.
        key_bias: the keys' layer has a bias.
    """

    def __init__(self, num_heads: int, size: int, dropout: float, key_bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.linear_q = nn.Linear(size, size)
        self.linear_k = nn.Linear(size, size, bias=key_bias)
        self.linear_v = nn.Linear(size, size)
        self.linear_out = nn.Linear(size, size)

    def seen(self, x: Tensor, hidden: Tensor | None = None) -> Seen:
        """Keys and values of (B, S, D)."""
        return Seen(self._heads(self.linear_k(x)), self._heads(self.linear_v(x)), hidden)

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        """(B, U, D) to the same."""
        dropout = self.dropout if self.training else 0.0
        hidden = None if seen.hidden is None else seen.hidden.to(seen.keys.dtype)
        query = self._heads(self.linear_q(x))
        out = F.scaled_dot_product_attention(query, seen.keys, seen.values, attn_mask=hidden, dropout_p=dropout)
        attended: Tensor = self.linear_out(out.transpose(1, 2).flatten(2))
        return attended

    def _heads(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, heads, S, D / heads)."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Linear, an activation, dropout, linear."""

    def __init__(self, size: int, hidden_size: int, dropout: float, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.w_1 = nn.Linear(size, hidden_size)
        self.w_2 = nn.Linear(hidden_size, size)
        self._dropout, self._activation = dropout, activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, U, D) to the same."""
        out: Tensor = self.w_2(F.dropout(self._activation(self.w_1(x)), self._dropout, self.training))
        return out


class DecoderLayer(nn.Module):
    """Attention to labels, attention to frames, a feed-forward module; each adds to its input, normalised before.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017.

    Args:
        size: channels.
        num_heads: heads of attention, which divide the channels.
        hidden_size: channels inside of the feed-forward module.
        activation: of the feed-forward module.
        dropout: probability, behind each module.
        inner_dropout: probability, inside of the feed-forward module.
        label_dropout, frame_dropout: probability, of attention weights to labels and to frames.
        key_bias: the keys' layers have biases.
    """

    def __init__(
        self,
        size: int,
        num_heads: int,
        hidden_size: int,
        activation: Callable[[Tensor], Tensor],
        dropout: float,
        inner_dropout: float,
        label_dropout: float,
        frame_dropout: float,
        key_bias: bool = True,
    ) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(num_heads, size, label_dropout, key_bias)
        self.src_attn = MultiHeadAttention(num_heads, size, frame_dropout, key_bias)
        self.feed_forward = FeedForward(size, hidden_size, inner_dropout, activation)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(size) for _ in range(3))
        self._dropout = dropout

    def forward(self, x: Tensor, hidden: Tensor, frames: Seen) -> Tensor:
        """All labels of texts at once.

        Args:
            x: (B, U, D).
            hidden: as of :func:`labels_before`.
            frames: keys and values of encoded frames, as ``src_attn`` makes them.
        """
        normed = self.norm1(x)
        x = x + self._dropped(self.self_attn(normed, self.self_attn.seen(normed, hidden)))
        return self._behind_labels(x, frames)

    def continued(self, x: Tensor, before: Seen, hidden: Tensor | None, frames: Seen) -> tuple[Tensor, Seen]:
        """Several more labels of each text at once, or the next label of K hypotheses for each utterance.

        Args:
            x: (B, U, D), or (B, K, D).
            before: keys and values of S labels before, of B texts or B * K hypotheses.
            hidden: (1, 1, U, S + U), added to scores: it hides labels that come later; None: of hypotheses.
            frames: of B utterances: their hypotheses look at them side by side, and nothing is copied.

        Returns:
            The same as x, and ``before`` with these labels.
        """
        normed = self.norm1(x)
        if hidden is None:
            normed = normed.flatten(0, 1).unsqueeze(1)
        new = self.self_attn.seen(normed)
        now = Seen(torch.cat([before.keys, new.keys], 2), torch.cat([before.values, new.values], 2))
        x = x + self.self_attn(normed, now._replace(hidden=hidden)).view(x.shape)
        return self._behind_labels(x, frames), now

    def _behind_labels(self, x: Tensor, frames: Seen) -> Tensor:
        x = x + self._dropped(self.src_attn(self.norm2(x), frames))
        return x + self._dropped(self.feed_forward(self.norm3(x)))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self._dropout, self.training)


class SinePositions(nn.Module):
    """Sines and cosines of positions, divided by the root of their number.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5.

    Args:
        size: channels.
        in_halves: first all sines, then all cosines; else they stand in turn.
    """

    def __init__(self, size: int, in_halves: bool = False) -> None:
        super().__init__()
        self._size, self._in_halves = size, in_halves

    def forward(self, first: int, count: int, like: Tensor) -> Tensor:
        """(count, size), of the positions from ``first`` on, with the type and the device of a tensor."""
        positions = position_embeddings(first, count, 1, self._size, like.device) / math.sqrt(self._size)
        if self._in_halves:
            positions = torch.cat([positions[:, 0::2], positions[:, 1::2]], 1)
        return positions.to(like.dtype)


class LearnedPositions(nn.Embedding):
    """A vector of weights for each position."""

    def forward(self, first: int, count: int, like: Tensor) -> Tensor:  # type: ignore[override]  # of no ids
        """(count, size), of the positions from ``first`` on."""
        return self.weight[first : first + count]


class LabelEmbedding(nn.Module):
    """Labels to vectors, plus those of their positions; then perhaps a layer norm.

    Args:
        num_labels: inputs.
        size: channels.
        positions: the first one, how many, and a tensor whose type they have, to (count, size).
        layer_norm: of the sum; None: there is none.
        dropout: probability, at the end.
    """

    def __init__(
        self, num_labels: int, size: int, positions: nn.Module, layer_norm: nn.Module | None, dropout: float
    ) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(num_labels, size), positions
        self.layer_norm, self._dropout = layer_norm, dropout

    def forward(self, labels: Tensor, first: int, num_positions: int) -> Tensor:
        """(B, U) -> (B, U, D), of U positions from ``first`` on, or of one that all have."""
        x: Tensor = self.token_embedding(labels)
        x = x + self.position_embedding(first, num_positions, x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return F.dropout(x, self._dropout, self.training)
