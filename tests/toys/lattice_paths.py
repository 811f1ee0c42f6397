"""The paths through the lattice of a transducer, one by one: what its loss is defined to be."""

from __future__ import annotations

import math

import torch


def all_paths(blank, label, num_frames, num_labels, durations, frame=0, said=0):
    """The log-probability of each path through one utterance's lattice, from a node on."""
    for place, duration in enumerate(durations.blanks):
        arc, after = blank[frame, said, place], frame + duration
        if duration and after == num_frames and said == num_labels:
            yield arc
        elif duration and after < num_frames:
            rest = (num_frames, num_labels, durations, after, said)
            yield from (arc + path for path in all_paths(blank, label, *rest))
    for place, duration in enumerate(durations.labels):
        if said < num_labels and frame + duration < num_frames:
            rest = (num_frames, num_labels, durations, frame + duration, said + 1)
            yield from (label[frame, said, place] + path for path in all_paths(blank, label, *rest))


def losses_by_paths(blank, label, num_frames, num_labels, durations):
    losses = []
    for item in range(len(blank)):
        ends = int(num_frames[item]), int(num_labels[item])
        paths = [*all_paths(blank[item], label[item], *ends, durations)]
        none = blank.new_tensor(-math.inf) + 0.0 * blank.sum()
        losses.append(-(torch.stack(paths).logsumexp(0) if paths else none))
    return torch.stack(losses)
