"""An attention decoder as WeNet defines it, written anew: one text at a time, without masks, caches and batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention with WeNet's names."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        for name in ("linear_q", "linear_k", "linear_v", "linear_out"):
            setattr(self, name, nn.Linear(size, size))

    def forward(self, query: Tensor, seen: Tensor) -> Tensor:
        """(D,) over (S, D)."""
        parts = []
        for q, k, v in zip(
            self.linear_q(query).chunk(self.heads),
            self.linear_k(seen).chunk(self.heads, 1),
            self.linear_v(seen).chunk(self.heads, 1),
            strict=True,
        ):
            parts.append((k @ q / math.sqrt(len(q))).softmax(0) @ v)
        return self.linear_out(torch.cat(parts))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Pre-norm: labels, frames, feed-forward."""

    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn, self.src_attn = Attention(size, heads), Attention(size, heads)
        self.feed_forward = nn.ModuleDict({"w_1": nn.Linear(size, inner), "w_2": nn.Linear(inner, size)})
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(size) for _ in range(3))

    def forward(self, rows: Sequence[Tensor], frames: Tensor) -> list[Tensor]:
        """(D,) of each input, over frames (T, D)."""
        normed = [self.norm1(row) for row in rows]
        found = []
        for place, row in enumerate(rows):
            x = row + self.self_attn(normed[place], torch.stack(normed[: place + 1]))
            x = x + self.src_attn(self.norm2(x), frames)
            found.append(x + self.feed_forward["w_2"](self.feed_forward["w_1"](self.norm3(x)).relu()))
        return found


class OneDirection(nn.Module):
    """Inputs to log-probabilities of what comes next."""

    def __init__(self, outputs: int, size: int, heads: int, inner: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(outputs, size))
        self.decoders = nn.ModuleList(Layer(size, heads, inner) for _ in range(layers))
        self.after_norm, self.output_layer = nn.LayerNorm(size), nn.Linear(size, outputs)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, frames: Tensor, inputs: Sequence[int]) -> Tensor:
        """(T, D) and U inputs to (U, outputs)."""
        size = frames.shape[1]
        rows: list[Any] = []
        for place, number in enumerate(inputs):
            angles = [place / 10000 ** (2 * k / size) for k in range(size // 2)]
            position = torch.tensor([wave(angle) for angle in angles for wave in (math.sin, math.cos)])
            rows.append(self.embed[0].weight[number] * math.sqrt(size) + position)
        for layer in self.decoders:
            rows = layer(rows, frames)
        return self.output_layer(self.after_norm(torch.stack(rows))).log_softmax(1)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """One or two directions. Inputs and outputs are labels, the end, which also begins texts, and perhaps others."""

    def __init__(self, outputs: int, end: int, size: int, heads: int = 4, inner: int = 24, layers: int = 2) -> None:
        super().__init__()
        self.end = end
        self.left_decoder = OneDirection(outputs, size, heads, inner, layers)
        self.right_decoder = OneDirection(outputs, size, heads, inner, layers)

    def from_left(self, frames: Tensor, labels: Sequence[int]) -> Tensor:
        """(U + 1, outputs) of frames (T, D)."""
        return self.left_decoder(frames, [self.end, *labels])  # type: ignore[no-any-return]

    def from_right(self, frames: Tensor, labels: Sequence[int]) -> Tensor:
        """The same, row k of label k, the last one of the end in front of the text."""
        rows = self.right_decoder(frames, [self.end, *reversed(labels)])
        return torch.cat([rows[:-1].flip(0), rows[-1:]])

    def score(self, frames: Tensor, labels: Sequence[int], reverse_weight: float = 0.0) -> float:
        """The logarithm of the probability of a text, as rescoring counts it."""
        sides = self.from_left(frames, labels), self.from_right(frames, labels)
        left, right = (sum(rows[place, out].item() for place, out in enumerate([*labels, self.end])) for rows in sides)
        return (1 - reverse_weight) * left + reverse_weight * right
