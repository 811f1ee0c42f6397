"""Self-attention: which frames see which, how far they are apart, and the attention itself; the layers' dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

from nemo_asr.models.jasper.layers import are_full, runs_on_cpu, valid_frames


class Hidden(NamedTuple):
    """Which frames do not see which, made once a batch.

    Attributes:
        keys: (B or 1, 1, T or 1, T), what is added to scores: 0 where a frame (third axis) sees another (last axis).
        rows: (B or 1, 1, T or 1, 1), True where a frame sees none.
    """

    keys: Tensor
    rows: Tensor

    def of_rows(self, rows: slice) -> Hidden:
        """The same for some frames."""
        return Hidden(*(part if part.shape[2] == 1 else part[:, :, rows] for part in self))


class AttentionContext(NamedTuple):
    """How far frames see: whole numbers, or tensors that were drawn.

    Frames are in chunks of ``chunk``. A frame sees its own chunk, ``left`` chunks before it and ``right`` behind it.
    """

    chunk: int | Tensor
    left: int | Tensor
    right: int | Tensor

    @property
    def is_full(self) -> bool:
        """Whether each frame sees all others; tensors are not looked at."""
        return all(isinstance(side, int) and side >= ALL for side in (self.left, self.right))


ALL = 1 << 30  # chunks: as many as there are
FULL_CONTEXT = AttentionContext(1, ALL, ALL)
HIDDEN_SCORE = -3e4  # a score whose exponential is 0 in every type, half types too, and which they can hold


def hidden_frames(lengths: Tensor, num_frames: int, context: AttentionContext) -> Hidden | None:
    """What each frame does not see: other than the frames of its utterance, within its context. None: it sees all.

    Args:
        lengths: (B,), valid frames.
        num_frames: T.
        context: how far frames see.
    """
    if context.is_full and are_full(lengths, num_frames):
        return None
    sees = valid_frames(lengths, num_frames).unsqueeze(1)
    if not context.is_full:
        chunk = torch.arange(num_frames, device=lengths.device) // context.chunk
        chunks_back = chunk.unsqueeze(1) - chunk
        sees = sees & (chunks_back <= context.left) & (chunks_back >= -context.right)
    is_hidden = sees.logical_not()
    return Hidden(is_hidden * HIDDEN_SCORE, is_hidden.all(-1, keepdim=True))


def drawn_context(num_frames: int, draws_left: bool, device: torch.device) -> AttentionContext:
    """WeNet's draw: c from 1 to T - 1; above T / 2 frames see all, else chunks of c % 25 + 1 frames.

    Args:
        num_frames: T, of the batch.
        draws_left: draw the chunks before a frame's own that it sees, else it sees all.
        device: of the draws.
    """
    drawn = torch.randint(1, max(num_frames, 2), (), device=device)
    is_full = drawn > num_frames // 2
    chunk = torch.where(is_full, num_frames, drawn % 25 + 1)
    if not draws_left:
        return AttentionContext(chunk, ALL, 0)
    most = (num_frames - 1) // chunk
    return AttentionContext(chunk, (torch.rand((), device=device) * most).long(), 0)


def position_embeddings(first: int | Tensor, count: int, step: int, size: int, device: torch.device) -> Tensor:
    """(count, size): sines and cosines, in turn, of the positions first, first + step, ...

    For several ``first`` (B, 1) it is (B, count, size).

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5.
    """
    positions = first + step * torch.arange(count, dtype=torch.float32, device=device)
    frequencies = torch.exp(torch.arange(0, size, 2, dtype=torch.float32, device=device) * (-math.log(1e4) / size))
    angles = positions.unsqueeze(-1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


_ALL_ROWS = slice(None)
_MOST_SCORES = 1 << 24  # 64 MB in float32; an hour of speech at once would have 2 ** 32 for each head


def blocks_of_queries(key: Tensor) -> list[slice]:
    """The queries in blocks, so that without gradients memory grows with the frames and not with their square."""
    num_utterances, num_heads, num_frames, _ = key.shape
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._is_tracing():
        return [_ALL_ROWS]
    size = max(_MOST_SCORES // (num_utterances * num_heads * num_frames), 1)
    if size >= num_frames:
        return [_ALL_ROWS]
    return [slice(start, min(start + size, num_frames)) for start in range(0, num_frames, size)]


def of_rows(places: Tensor, rows: slice) -> Tensor:
    """Of the distances T, ..., 1 - T (the last axis) those between the frames ``rows`` and all T."""
    if rows == _ALL_ROWS:
        return places
    num_frames = places.shape[-1] // 2
    return places[..., num_frames - rows.stop : 2 * num_frames - rows.start]


class RelPositionAttention(nn.Module):
    """Multi-head attention whose scores know how far two frames are apart.

    ``score = ((q + u) k + (q + v) p) / sqrt(d)``, with p of the distance (``is_shifted``), or, as WeNet has it, of the
    position of the key from the start of the utterance. A frame that sees none gets 0 from attention.

    Source: Dai et al., "Transformer-XL", ACL 2019, section 3.3.

    Args:
        num_heads: heads.
        size: channels.
        dropout: probability, of attention weights.
        use_bias: biases of queries, keys, values and output.
        is_shifted: p is that of the distance.
        pos_biases: u and v (heads, size / heads) of all layers together; None: the layer's own.
    """

    def __init__(
        self,
        num_heads: int,
        size: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        is_shifted: bool = True,
        pos_biases: Sequence[nn.Parameter] | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self._is_shifted = num_heads, dropout, is_shifted
        self.linear_q = nn.Linear(size, size, bias=use_bias)
        self.linear_k = nn.Linear(size, size, bias=use_bias)
        self.linear_v = nn.Linear(size, size, bias=use_bias)
        self.linear_out = nn.Linear(size, size, bias=use_bias)
        self.linear_pos = nn.Linear(size, size, bias=False)
        self.pos_bias_u, self.pos_bias_v = pos_biases or new_pos_biases(num_heads, size)

    def forward(self, x: Tensor, positions: Tensor, hidden: Hidden | None, context: Tensor | None = None) -> Tensor:
        """(B, T, D) to the same; positions (P, D) or (B, P, D) as :meth:`ConformerEncoder.positions` gives them.

        ``context`` (B, S, D) are the frames that are seen, of which x are the last; None: x alone.
        """
        seen = x if context is None else context
        query, key, value = (
            self._heads(self.linear_q(x)),
            self._heads(self.linear_k(seen)),
            self._heads(self.linear_v(seen)),
        )
        scale = query.shape[3] ** -0.5
        query = query * scale
        placed = self.linear_pos(positions)
        places = self._heads(placed if placed.dim() == 3 else placed.unsqueeze(0)).transpose(2, 3)
        pos_bias_u, pos_bias_v = ((bias * scale).unsqueeze(1) for bias in (self.pos_bias_u, self.pos_bias_v))
        with_u, with_v = query + pos_bias_u, query + pos_bias_v
        dropout = self.dropout if self.training else 0.0
        outputs = []
        for rows in blocks_of_queries(key):
            bias = with_v[:, :, rows] @ (of_rows(places, rows) if self._is_shifted else places)
            if self._is_shifted:
                bias = shifted(bias)
            hidden_here = None if hidden is None else hidden.of_rows(rows)
            outputs.append(attention(with_u[:, :, rows], key, value, bias, hidden_here, dropout))
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
        attended: Tensor = self.linear_out(out.transpose(1, 2).flatten(2))
        return attended

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, heads, T, D / heads)."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


def new_pos_biases(num_heads: int, size: int) -> tuple[nn.Parameter, nn.Parameter]:
    """u and v, (heads, size / heads), zeros."""
    shape = num_heads, size // num_heads
    return nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, hidden: Hidden | None, dropout: float
) -> Tensor:
    """``softmax(query key + bias) value`` over the keys that a query sees; 0 where it sees none.

    Args:
        query: (B, H, T, D), scaled.
        key, value: (B, H, S, D).
        bias: (B, H, T, S), or None.
        hidden: what queries do not see.
        dropout: probability, of attention weights.
    """
    if bias is not None and bias.requires_grad and runs_on_cpu(query):
        # No kernel on CPU gives gradients of a bias.
        hidden_keys = None if hidden is None else hidden.keys
        out: Tensor = _Attention.apply(query, key, value, bias, hidden_keys, dropout)
    else:
        added = bias
        if hidden is not None:
            added = hidden.keys.to(query.dtype) if bias is None else bias + hidden.keys.to(bias.dtype)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout, scale=1.0)
    return out if hidden is None else out.masked_fill(hidden.rows, 0.0)


class _Attention(torch.autograd.Function):
    """Of the tensors that are as large as all scores, the weights are kept, and a byte for each that dropout keeps."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # torch's
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, hidden: Tensor | None, dropout: float
    ) -> Tensor:
        flat_query, flat_key, flat_value = (x.flatten(0, 1) for x in (query, key, value))
        scores = torch.baddbmm(bias.flatten(0, 1), flat_query, flat_key.transpose(1, 2)).view(bias.shape)
        if hidden is not None:
            scores.add_(hidden)
        weights, kept = scores.softmax(3).flatten(0, 1), None
        used = weights
        if dropout:
            kept, ctx.scale = kept_at_random(weights.shape, dropout)
            used = torch.mul(weights, kept)
        out = used @ flat_value
        ctx.save_for_backward(flat_query, flat_key, flat_value, weights, kept)
        return (out.mul_(ctx.scale) if dropout else out).view(query.shape)

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # torch's
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, kept = ctx.saved_tensors
        shape, gradient = gradients[0].shape, gradients[0].flatten(0, 1)
        used = weights
        if kept is not None:
            gradient, used = gradient * ctx.scale, torch.mul(weights, kept)
        of_value = used.transpose(1, 2) @ gradient
        del used
        of_weights = gradient @ value.transpose(1, 2)
        if kept is not None:
            of_weights.mul_(kept)
        of_scores = torch._softmax_backward_data(of_weights, weights, 2, weights.dtype)
        of_query, of_key = of_scores @ key, of_scores.transpose(1, 2) @ query
        of_inputs = (x.unflatten(0, shape[:2]) for x in (of_query, of_key, of_value, of_scores))
        return *of_inputs, None, None


def shifted(scores: Tensor) -> Tensor:
    """From scores of distances (..., T, S + T) to scores of keys (..., T, S): ``out[i, j] = scores[i, T - i + j]``.

    The distances are S, ..., 1 - T; the last T of the S keys stand where the queries do. No value is copied.
    """
    if runs_on_cpu(scores) and scores.requires_grad:
        view: Tensor = _Shifted.apply(scores)
        return view
    return _shifted(scores)


def _shifted(scores: Tensor) -> Tensor:
    num_queries, num_distances = scores.shape[-2:]
    flat = scores.flatten(-2)[..., num_queries:]
    return flat.view(*scores.shape[:-1], num_distances - 1)[..., : num_distances - num_queries]


class _Shifted(torch.autograd.Function):
    """:func:`_shifted` whose gradient is written once."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.shape = scores.shape
        return _shifted(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].new_zeros(ctx.shape)
        _shifted(gradient).copy_(gradients[0])
        return gradient


def kept_at_random(shape: torch.Size, probability: float) -> tuple[Tensor, float]:
    """Bytes on CPU, 0 with a probability rounded to a multiple of 2 ** -16, else 1; and by what to multiply then.

    torch's generator of Bernoulli numbers draws 64 bits for each, which is a fifth of a training step; 16 bits do.
    """
    count, threshold = shape.numel(), round(probability * 2**16)
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = (bits[:count] >= threshold - 2**15).view(shape)
    return kept.view(torch.uint8), 2**16 / (2**16 - threshold)


def add_dropped(x: Tensor, y: Tensor, probability: float, factor: float = 1.0) -> Tensor:
    """``x + factor * dropout(y)``, of one shape."""
    if probability and runs_on_cpu(x):
        out: Tensor = _AddDropped.apply(x, y, probability, factor)
        return out
    return torch.add(x, F.dropout(y, probability) if probability else y, alpha=factor)


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, probability: float, factor: float) -> Tensor:
        kept, scale = kept_at_random(y.shape, probability)
        ctx.save_for_backward(kept)
        ctx.factor = factor * scale
        return torch.add(x, torch.mul(y, kept), alpha=ctx.factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return gradients[0], torch.mul(gradients[0], kept).mul_(ctx.factor), None, None
