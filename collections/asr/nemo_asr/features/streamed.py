"""Frames of a stream: samples come in chunks, and a frame is cut as soon as all its samples are there."""

from __future__ import annotations

import torch

from nemo_asr.features.framing import Framing
from nemo_lite.backends.pytorch.streaming import State


def first_samples(batch: int, window: torch.Tensor) -> State:
    """What :func:`next_samples` keeps between chunks, before the first one; on the device of ``window``."""
    zeros = torch.zeros(1, dtype=torch.int64, device=window.device)
    samples = window.new_zeros(batch, 0)
    # Samples after pre-emphasis: those from the start of the next frame on; and all before the first frame.
    return {"samples": samples, "previous": samples.new_zeros(batch, 1), "num_samples": zeros, "num_frames": zeros}


def next_samples(
    input_signal: torch.Tensor,
    state: State,
    last: bool,
    n_fft: int,
    hop: int,
    preemph: float | None,
    framing: Framing,
) -> tuple[torch.Tensor, int, State]:
    """The samples of the frames that a chunk completes: those that `spectra.extended_signal` gives of the whole.

    Args:
        input_signal: (B, T) the next samples.
        state: of :func:`first_samples`, or what the chunk before kept.
        last: whether the recording ends with this chunk.
        n_fft: samples of a frame.
        hop: samples from frame to frame.
        preemph: as in `spectra.extended_signal`.
        framing: what stands at the ends, and which frames count.

    Returns:
        Samples (B, S), frame t of which begins at column t * hop; the number of frames; and what is kept.
    """
    signal = torch.cat([state["previous"], input_signal.to(torch.float32)], dim=1)
    body = signal[:, 1:]
    if preemph:
        body = torch.sub(body, signal[:, :-1], alpha=preemph)
    samples = torch.cat([state["samples"], body], dim=1)
    num_samples, num_frames = int(state["num_samples"]) + body.shape[1], int(state["num_frames"])
    margin = n_fft // 2
    if last:
        samples = torch.cat([samples, _behind(samples, signal[:, -1:], n_fft, preemph, framing)], dim=1)
    is_started = int(state["num_samples"]) > margin  # before, nobody knows what to mirror
    if not is_started and (last or num_samples > margin):
        start = samples[:, 1 : margin + 1].flip(1)
        samples = torch.cat([start if framing.mirrors_start else torch.zeros_like(start), samples], dim=1)
        is_started = True
    number = (samples.shape[1] - n_fft) // hop + 1 if is_started else 0
    number = max(min(number, framing.valid_frames(num_samples, hop) - num_frames), 0)
    new_state = {
        "samples": samples[:, number * hop :],
        "previous": signal[:, -1:],
        "num_samples": torch.full_like(state["num_samples"], num_samples),
        "num_frames": torch.full_like(state["num_frames"], num_frames + number),
    }
    return samples, number, new_state


def _behind(
    samples: torch.Tensor, last_sample: torch.Tensor, n_fft: int, preemph: float | None, framing: Framing
) -> torch.Tensor:
    """(B, n_fft): what frames see behind the last sample, which comes without pre-emphasis."""
    behind, margin = samples.new_zeros(samples.shape[0], n_fft), n_fft // 2
    if framing.mirrors_end:
        mirrored = samples[:, max(samples.shape[1] - 1 - margin, 0) : max(samples.shape[1] - 1, 0)].flip(1)
        behind[:, : mirrored.shape[1]] = mirrored
    elif preemph and not framing.is_masked:
        behind[:, :1] = -preemph * last_sample
    return behind
