"""Features brought to mean 0 and deviation 1: over an utterance, its speech, or the frames before."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from nemo_asr.features.framing import fill_beyond_

STD_FLOOR = 1e-5
"""Added to every standard deviation, as in NeMo: the scale that silence is divided by."""


def normalize_(
    features: torch.Tensor, num_valid: torch.Tensor, over: tuple[int, ...], least: float = 0.0
) -> torch.Tensor:
    """Bring the valid frames of each utterance to mean 0 and standard deviation 1, in place; the others become 0.

    The deviation is the unbiased one plus 1e-5. A single frame becomes 0, and so does a feature that never changes: the
    first frame is subtracted before anything is averaged, or the division would blow up the rounding of the mean.

    Args:
        features: (B, D, T).
        num_valid: (B,) valid frames.
        over: the axes that share mean and deviation: ``(2,)`` for each feature, ``(1, 2)`` for a whole utterance.
        least: a smaller deviation counts as this one, so that what hardly changes stays small.
    """
    shared_features = features.shape[1] if 1 in over else 1
    count = num_valid[:, None, None] * shared_features
    if features.shape[2]:
        # By its number: the slice ``:1`` has min(1, T) frames, which an exporter cannot broadcast.
        features -= features[:, : features.shape[1] // shared_features, 0].unsqueeze(2).clone()
    fill_beyond_(features, num_valid, 0.0)
    features -= features.sum(over, keepdim=True) / count
    fill_beyond_(features, num_valid, 0.0)
    deviation = torch.linalg.vector_norm(features, dim=over, keepdim=True) / (count - 1).clamp(min=1).sqrt()
    features /= (deviation + STD_FLOOR).clamp(min=least)
    return features


def with_squares(features: torch.Tensor) -> torch.Tensor:
    """(B, D, T) of mean 0 and deviation 1 on average, and their squares less 1: (B, 2 * D, T), 0 on average."""
    return torch.cat([features, features.square() - 1.0], dim=1)


def normalized_by_window(seen: torch.Tensor, num_frames: int) -> torch.Tensor:
    """Features less the mean of the last frames, in units of their deviation.

    Sums are of float64, so that they are the same wherever a chunk begins.

    Args:
        seen: (B, 2 * D, num_frames - 1 + T): of :func:`with_squares`, with the frames before the first one.
        num_frames: of the window, the own frame included.

    Returns:
        (B, D, T). A deviation below a tenth of that on average counts as a tenth.
    """
    sums = F.pad(seen.double().cumsum(2), (1, 0))
    mean, square = ((sums[:, :, num_frames:] - sums[:, :, :-num_frames]) / num_frames).chunk(2, dim=1)
    values = seen[:, : mean.shape[1], num_frames - 1 :]
    return ((values - mean) / (1.0 + square - mean.square()).clamp_(min=0.01).sqrt()).float()


def normalize_by_speech_(
    features: torch.Tensor, num_valid: torch.Tensor, levels: torch.Tensor, least_share: float, least: float = 0.0
) -> torch.Tensor:
    """The same for each feature, with mean and deviation of the loud frames alone, in place: (B, D, T).

    So the silence around speech, however long, changes nothing in the features of the speech.

    Args:
        features: (B, D, T).
        num_valid: (B,) valid frames.
        levels: (B, T) of each frame, 0 or more; free to be changed.
        least_share: of the loudest frame's level; frames of this level or more are loud.
        least: a smaller deviation counts as this one.
    """
    fill_beyond_(levels, num_valid, -1.0)
    loudest = levels.amax(1, keepdim=True) if levels.shape[1] else levels.new_zeros(levels.shape[0], 1)
    is_loud = (levels >= loudest.clamp(min=0.0) * least_share).unsqueeze(1)
    count = is_loud.sum(2, keepdim=True)
    if features.shape[2]:
        features -= features[:, :, 0].unsqueeze(2).clone()  # see `normalize_`
    features -= (features * is_loud).sum(2, keepdim=True) / count.clamp(min=1)
    deviation = torch.linalg.vector_norm(features * is_loud, dim=2, keepdim=True) / (count - 1).clamp(min=1).sqrt()
    features /= (deviation + STD_FLOOR).clamp(min=least)
    return fill_beyond_(features, num_valid, 0.0)
