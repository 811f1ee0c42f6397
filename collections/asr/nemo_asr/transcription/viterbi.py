"""align: the most probable CTC path of known labels, in numpy. Modules that use it are in ``alignment``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nemo_lite.errors import UsageError


def align(log_probs: npt.NDArray[np.floating[Any]], labels: Sequence[int]) -> npt.NDArray[np.int64]:
    """The most probable path of some labels: Viterbi's algorithm over labels with a blank around each.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section 4.1; a maximum takes the place of
    each sum.

    Args:
        log_probs: (T, classes), of which the last is the blank.
        labels: ids.

    Returns:
        (T,) the label of each frame, or the blank.

    Raises:
        UsageError: the labels need more frames.
    """
    num_frames, num_classes = log_probs.shape
    states = np.full(2 * len(labels) + 1, num_classes - 1)
    states[1::2] = labels
    if num_frames < len(labels) + sum(a == b for a, b in itertools.pairwise(labels)):
        raise UsageError("the decoder found more labels than frames", got=f"{len(labels)} in {num_frames} frames")
    skips = np.zeros(len(states), bool)  # a label may follow another one without a blank between
    skips[3::2] = states[3::2] != states[1:-2:2]
    best = np.full(len(states), -np.inf)
    best[:2] = 0.0  # in front of the first frame
    steps = np.zeros((num_frames, len(states)), np.int8)
    for frame in range(num_frames):
        if frame:
            ways = np.full((3, len(states)), -np.inf)
            ways[0], ways[1, 1:], ways[2, 2:] = best, best[:-1], np.where(skips[2:], best[:-2], -np.inf)
            steps[frame] = ways.argmax(0)
            best = ways.max(0)
        best = best + log_probs[frame, states]
    state = len(states) - 1 if len(states) == 1 or best[-1] >= best[-2] else len(states) - 2
    path = np.empty(num_frames, np.int64)
    for frame in range(num_frames - 1, -1, -1):
        path[frame] = states[state]
        state -= int(steps[frame, state])
    return path
