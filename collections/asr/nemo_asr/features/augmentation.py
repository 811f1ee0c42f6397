"""Augmentation of spectrograms and batches: masks, copies, repetition, fixed lengths. Of waveforms: `augmentation`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import numpy as np
import torch

from nemo_asr.rng import NumbersRng, seed_from
from nemo_lite import NonTrainableNM
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between, Share
from nemo_lite.core.neural_types import AxisKind, AxisType, LabelsType, LengthsType, NeuralType, SpectrogramType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape

Rng: TypeAlias = torch.Generator | NumbersRng
Masks: TypeAlias = Annotated[int, Between(0, 1_000)]  # memory grows with masks x frames of a batch
Width: TypeAlias = Annotated[int, Between(0, 65_536)]


class SpectrogramAugmentation(NonTrainableNM):
    """Set random bands, stretches and rectangles of spectrograms to 0, drawn anew for each utterance. Training only.

    A mask's width is drawn evenly from 0 to the largest width (inclusive), then its place from all where it fits.
    Widths are cut to the size of the axis, so short input is no special case. With ``length`` connected, masks in time
    fall on an utterance's valid frames; without it, on all frames of the batch. Copies come behind the masks: a stretch
    of frames in the place of a later one, or of itself.

    Sources: Park et al., "SpecAugment", Interspeech 2019; DeVries and Taylor, "Improved Regularization of Convolutional
    Neural Networks with Cutout", 2017; Wu et al., "U2++", 2021, section 3.2.3 (copies).

    Args:
        freq_masks: bands of features to mask.
        time_masks: stretches of frames to mask; a float is a share, 0 to 1: so many for each frame of an utterance
            (0.02: two in 100 frames), at most ``max_time_masks``.
        freq_width: features of the widest band.
        time_width: frames of the widest stretch; a float is a share, 0 to 1, of each utterance's frames (at least one).
        rect_masks: rectangles to mask.
        rect_time: frames of the widest rectangle.
        rect_freq: features of the widest rectangle.
        rng: generator of the draws, torch's, Python's or NumPy's; by default torch's own on the input's device.
        max_time_masks: most stretches where ``time_masks`` is a share.
        time_copies: stretches of frames that earlier ones, drawn evenly, take the place of.
        copy_width: frames of the widest of these.

    Raises:
        UsageError: a negative number, a share outside 0 to 1, or an rng that is no generator.
    """

    training_only = True
    input_ports: Ports = {
        "input_spec": NeuralType("B D T", SpectrogramType()),
        "length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"augmented_spec": NeuralType("B D T", SpectrogramType())}

    def __init__(
        self,
        freq_masks: Masks = 0,
        time_masks: Masks | Share = 0,
        freq_width: Width = 10,
        time_width: Width | Share = 10,
        rect_masks: Masks = 0,
        rect_time: Width = 5,
        rect_freq: Width = 20,
        rng: Rng | None = None,
        name: str | None = None,
        max_time_masks: Masks = 20,
        time_copies: Masks = 0,
        copy_width: Width = 30,
    ) -> None:
        super().__init__(name)
        place = type(self).__name__
        self.max_time_masks = max_time_masks
        self.freq_masks, self.time_masks, self.rect_masks = freq_masks, time_masks, rect_masks
        self.freq_width, self.time_width = freq_width, time_width
        self.rect_time, self.rect_freq = rect_time, rect_freq
        self.time_copies, self.copy_width = time_copies, copy_width
        self._rng = None if rng is None else _torch_generator(rng, place)
        if isinstance(time_width, float) and time_width > 1.0:
            wanted = "a float from 0 to 1 (a share of the frames) or an int (frames)"
            raise UsageError("time_width is no share", place=place, got=str(time_width), wanted=wanted)
        if isinstance(time_masks, float) and time_masks > 1.0:
            wanted = "a float from 0 to 1 (masks for each frame) or an int (masks)"
            raise UsageError("time_masks is no share", place=place, got=str(time_masks), wanted=wanted)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"augmented_spec": shapes["input_spec"]}

    @torch.no_grad()
    def forward(self, input_spec: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """Spectrograms (B, D, T) with masks and copies: new ones in training, the given ones in evaluation."""
        if not self.training or self.freq_masks + self.time_masks + self.rect_masks + self.time_copies == 0:
            return input_spec
        num_rows, num_features, num_frames = input_spec.shape
        device = input_spec.device
        features = torch.full((num_rows,), num_features, device=device)
        if length is None:
            length = torch.full((num_rows,), num_frames, device=device)
        frames = length.to(device, torch.int64)
        bands = self._intervals(self.freq_masks, self.freq_width, features, num_features).any(1)
        stretches = self._stretches(frames, num_frames)
        heights = self._intervals(self.rect_masks, self.rect_freq, features, num_features)
        widths = self._intervals(self.rect_masks, self.rect_time, frames, num_frames)
        # A product of 0/1 matrices counts the rectangles over each point, with no (B, masks, D, T) in between.
        rectangles = heights.transpose(1, 2).float() @ widths.float() > 0
        masked = input_spec.masked_fill(bands[:, :, None] | stretches[:, None, :] | rectangles, 0.0)
        return self._with_copies(masked, frames) if self.time_copies else masked

    def _with_copies(self, spec: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        """With earlier frames in the place of stretches; where these overlap, the last one counts."""
        widths = self._draw(self.time_copies, torch.minimum(torch.full_like(frames, self.copy_width), frames)[:, None])
        starts = self._draw(self.time_copies, frames[:, None] - widths)
        shifts = self._draw(self.time_copies, starts)
        positions = torch.arange(spec.shape[2], device=spec.device)
        sources = positions.expand(len(spec), -1)
        for start, width, shift in zip(starts.T[..., None], widths.T[..., None], shifts.T[..., None], strict=True):
            sources = torch.where((positions >= start) & (positions < start + width), positions - shift, sources)
        return spec.gather(2, sources[:, None, :].expand_as(spec))

    def _stretches(self, frames: torch.Tensor, num_frames: int) -> torch.Tensor:
        """(B, num_frames) true where a mask in time is."""
        if not isinstance(self.time_masks, float):
            return self._intervals(self.time_masks, self.time_width, frames, num_frames).any(1)
        intervals = self._intervals(self.max_time_masks, self.time_width, frames, num_frames)
        wanted = (frames * self.time_masks).long()[:, None]
        return (intervals & (torch.arange(self.max_time_masks, device=frames.device) < wanted)[..., None]).any(1)

    def _intervals(self, number: int, widest: int | float, sizes: torch.Tensor, axis_size: int) -> torch.Tensor:
        """Random intervals, (B, number, axis_size) true inside, each within the first ``sizes`` (B,) positions."""
        share = isinstance(widest, float)
        most = (sizes * widest).long().clamp(min=1) if share else torch.full_like(sizes, widest)
        widths = self._draw(number, torch.minimum(most, sizes)[:, None])
        starts = self._draw(number, sizes[:, None] - widths)
        positions = torch.arange(axis_size, device=sizes.device)
        return (positions >= starts[..., None]) & (positions < (starts + widths)[..., None])

    def _draw(self, number: int, most: torch.Tensor) -> torch.Tensor:
        """Integers (B, number), even from 0 to ``most`` (B, 1) or (B, number), inclusive."""
        most = most.expand(-1, number)
        source = most.device if self._rng is None else self._rng.device
        shares = torch.rand(most.shape, generator=self._rng, device=source).to(most.device)
        # The largest share times the number can round up to the number itself.
        return torch.minimum((shares * (most + 1)).long(), most)


def _torch_generator(rng: Rng, place: str) -> torch.Generator:
    """The generator itself, or torch's with a seed that another one draws."""
    if isinstance(rng, torch.Generator):
        return rng
    if not isinstance(rng, (random.Random, np.random.RandomState, np.random.Generator)):
        remedy = "pass torch.Generator().manual_seed(seed), or random.Random(seed)"
        raise UsageError("rng is no generator", place=place, got=type(rng).__name__, remedy=remedy)
    return torch.Generator().manual_seed(seed_from(rng))


class MultiplyBatch(NonTrainableNM):
    """Repeat a batch, so that augmentation behind it acts on each copy differently. Training only.

    Args:
        mult_batch: how many copies.

    Raises:
        UsageError: less than one.
    """

    training_only = True
    input_ports: Ports = {
        "in_x": NeuralType("B D T", SpectrogramType()),
        "in_x_len": NeuralType("B", LengthsType()),
        "in_y": NeuralType("B T", LabelsType()),
        "in_y_len": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {port.replace("in", "out"): ntype for port, ntype in input_ports.items()}

    def __init__(self, mult_batch: Annotated[int, Between(1, 100)] = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.mult_batch = mult_batch

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Those of the inputs; the batch of training is ``mult_batch`` times as large."""
        return {port: shapes[port.replace("out", "in")] for port in self.output_ports}

    @torch.no_grad()
    def forward(
        self, in_x: torch.Tensor, in_x_len: torch.Tensor, in_y: torch.Tensor, in_y_len: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The whole batch, ``mult_batch`` times one after the other."""
        copies = self.mult_batch if self.training else 1
        return in_x.repeat(copies, 1, 1), in_x_len.repeat(copies), in_y.repeat(copies, 1), in_y_len.repeat(copies)


class CropOrPadSpectrogramAugmentation(NonTrainableNM):
    """Bring every spectrogram to one number of frames: a random part of a longer one, zeros around a shorter one.

    In evaluation the part is the middle one. What counts as an utterance's frames is its length, not the batch's.

    Args:
        audio_length: frames of the output.

    Raises:
        UsageError: less than one.
    """

    input_ports: Ports = {
        "input_signal": NeuralType("B D T", SpectrogramType()),
        "length": NeuralType("B", LengthsType()),
    }

    def __init__(self, audio_length: Annotated[int, Between(1, 65_536)], name: str | None = None) -> None:
        super().__init__(name)
        self.audio_length = audio_length

    @property
    def output_ports(self) -> Ports:
        axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension), AxisType(AxisKind.Time, self.audio_length))
        return {
            "processed_signal": NeuralType(axes, SpectrogramType()),
            "processed_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """``B D audio_length``."""
        batch, features, _ = shapes["input_signal"]
        return {"processed_signal": (batch, features, self.audio_length), "processed_length": (batch,)}

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Spectrograms (B, D, audio_length) and that length for each."""
        length = length.to(input_signal.device, torch.int64)
        surplus = length - self.audio_length
        starts = torch.div(surplus, 2, rounding_mode="trunc")
        if self.training:
            shares = torch.rand(surplus.shape, device=surplus.device)
            starts = torch.where(surplus > 0, torch.minimum((shares * (surplus + 1)).long(), surplus), starts)
        frames = starts[:, None] + torch.arange(self.audio_length, device=surplus.device)
        outside = (frames < 0) | (frames >= length[:, None])
        picked = frames.clamp(0, max(input_signal.shape[2] - 1, 0))[:, None, :].expand(-1, input_signal.shape[1], -1)
        cropped = input_signal.gather(2, picked).masked_fill(outside[:, None, :], 0.0)
        return cropped, torch.full_like(length, self.audio_length)
