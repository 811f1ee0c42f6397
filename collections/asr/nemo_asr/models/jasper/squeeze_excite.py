"""Squeeze-and-excitation over the valid frames of each utterance."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.jasper.layers import Frames
from nemo_asr.run.arguments import look_up
from nemo_lite.backends.pytorch.streaming import SlidingWindow


class SqueezeExcite(nn.Module):
    """Scales each channel by what its mean over the valid frames, or over a window of them, says.

    Source: Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018; windows: Han et al., "ContextNet", Interspeech
    2020.

    Args:
        channels: channels.
        reduction_ratio: channels for one hidden unit.
        context_window: frames of the window; below 1 it is the whole utterance.
        interpolation_mode: how the averages of windows are stretched to the number of frames: nearest, linear, area.
            Where a frame's window lies then depends on the length of the utterance. ``causal``: it ends with the frame;
            frames before the first one count as 0.
        activation: between the two linear layers.
    """

    def __init__(
        self,
        channels: int,
        reduction_ratio: int,
        context_window: int = -1,
        interpolation_mode: str = "nearest",
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.is_causal = interpolation_mode == "causal" and context_window > 0
        self._stretch = look_up("se_interpolation_mode", interpolation_mode, _INTERPOLATIONS)
        self.context_window = context_window
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction_ratio, bias=False),
            activation or nn.ReLU(),
            nn.Linear(channels // reduction_ratio, channels, bias=False),
        )

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        num_frames = x.shape[2]
        if frames.is_masking:
            lengths, x = frames.lengths.clamp(1, num_frames), frames.masked(x)
        else:
            lengths = torch.full((x.shape[0],), num_frames, device=x.device)
        if self.context_window < 1:
            mean = x.sum(2, dtype=torch.promote_types(x.dtype, torch.float32)) / lengths.unsqueeze(1)
            return x * torch.sigmoid(self.fc(mean.to(x.dtype))).unsqueeze(2)
        if self.is_causal:
            return self.of_window(F.pad(x, (self.context_window - 1, 0)))
        scores = self.fc(self._window_means(x, lengths).transpose(1, 2)).transpose(1, 2)
        num_windows = (lengths - self.context_window + 1).clamp(min=1)
        frame = torch.arange(num_frames, device=x.device).unsqueeze(0)
        stretch = self._stretch(frame, num_windows.unsqueeze(1), lengths.unsqueeze(1))
        return x * torch.sigmoid(_stretched(scores, *stretch))

    @property
    def window(self) -> SlidingWindow:
        """The frames that a frame's mean is taken over, where it is causal."""
        return SlidingWindow(self.context_window, 1, self.context_window - 1)

    def of_window(self, x: Tensor) -> Tensor:
        """The same without padding, where it is causal: frames of :attr:`window` (B, C, T), or none, to (B, C, U)."""
        if not x.shape[2]:
            return x
        means = F.avg_pool1d(x, self.context_window, stride=1)
        scores = self.fc(means.transpose(1, 2)).transpose(1, 2)
        return x[:, :, self.context_window - 1 :] * torch.sigmoid(scores)

    def _window_means(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, C, windows in T frames), valid within the utterance; one shorter than a window has one."""
        missing = max(self.context_window - x.shape[2], 0)
        means = F.avg_pool1d(F.pad(x, (0, missing)), self.context_window, stride=1)
        share = lengths.clamp(max=self.context_window) / self.context_window
        return means / share.to(means.dtype)[:, None, None]


Stretch = tuple[Tensor, Tensor, Tensor]


def _stretched(values: Tensor, low: Tensor, high: Tensor, weight: Tensor) -> Tensor:
    """(B, C, N) -> (B, C, T): at frame t, ``(1 - weight[t]) * values[low[t]] + weight[t] * values[high[t]]``."""
    shape = (-1, values.shape[1], -1)
    at_low = values.gather(2, low.unsqueeze(1).expand(shape))
    at_high = values.gather(2, high.unsqueeze(1).expand(shape))
    return torch.lerp(at_low, at_high, weight.unsqueeze(1).to(values.dtype))


def _nearest(frame: Tensor, counts: Tensor, spans: Tensor) -> Stretch:
    index = (frame * counts // spans).minimum(counts - 1)
    return index, index, torch.zeros_like(index)


def _linear(frame: Tensor, counts: Tensor, spans: Tensor) -> Stretch:
    position = ((frame + 0.5) * (counts / spans) - 0.5).clamp(min=0).minimum(counts - 1)
    low = position.long()
    return low, (low + 1).minimum(counts - 1), position - low


def _area(frame: Tensor, counts: Tensor, spans: Tensor) -> Stretch:
    # There are no more values than frames, so a frame overlaps two of them at most.
    low = (frame * counts // spans).minimum(counts - 1)
    high = (((frame + 1) * counts + spans - 1) // spans - 1).minimum(counts - 1)
    return low, high, torch.full_like(low, 0.5, dtype=torch.float32)


# From frames (1, T), and N values and L frames of each utterance (B, 1) each: the values that a frame lies between, and
# the weight of the second, as F.interpolate places them; that function knows one length for the whole batch only.
_INTERPOLATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Stretch]] = {
    "nearest": _nearest,
    "linear": _linear,
    "area": _area,
    "causal": _nearest,  # there are as many windows as frames
}
