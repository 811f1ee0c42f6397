"""The lattice of a transducer: from the log-probabilities of its arcs to the loss of each utterance. No joint here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_lite.backends.pytorch.iterations import iterations

# Float32 does not show such a posterior beside 1. Its products with small probabilities are denormal numbers, with
# which a CPU multiplies matrices ten times as slowly.
_NEGLIGIBLE = 1e-15


class Durations(NamedTuple):
    """How many frames the arcs of a lattice take, 0 or more.

    RNNT has blanks (1) and labels (0), multi-blank RNNT several blanks, TDT the same ones for both. A blank that takes
    no frame would lead nowhere: it is no arc.
    """

    blanks: Sequence[int]
    labels: Sequence[int]


def lattice_losses(
    blank: Tensor, label: Tensor, num_frames: Tensor, num_labels: Tensor, durations: Durations
) -> Tensor:
    """Minus the logarithm of the sum over all paths of the product of their arcs' probabilities.

    Node (t, u) means: frame t is next, u labels are said. A blank arc of duration d leads to (t + d, u), a label arc
    to (t + d, u + 1). A path begins at (0, 0) and ends with a blank arc that leads to (number of frames, number of
    labels); no other arc leads behind the last frame.

    Sources: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012; Xu et al., "Multi-blank Transducers
    for Speech Recognition", ICASSP 2023; Xu et al., "Efficient Sequence Transduction by Jointly Predicting Tokens and
    Durations", ICML 2023.

    Args:
        blank: log-probabilities (B, T, U + 1, blanks' durations) of the blank arcs that leave each node.
        label: (B, T, U + 1, labels' durations), of the label that follows; behind the last label they do not count.
        num_frames: (B,), from 1 to T.
        num_labels: (B,), from 0 to U.
        durations: of the arcs.

    Returns:
        (B,), of the arcs' type; summed in float64. Infinite where no path fits: the gradient is 0 there.
    """
    losses: Tensor = _Lattice.apply(blank, label, num_frames, num_labels, durations)
    return losses


class _Lattice(torch.autograd.Function):
    """Sums over diagonals, whose nodes have the same t + u: no arc stays within one.

    Minus the gradient of an arc is its posterior: the share of the paths' probability that goes over it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        blank: Tensor,
        label: Tensor,
        num_frames: Tensor,
        num_labels: Tensor,
        durations: Durations,
    ) -> Tensor:
        num_blanks, num_columns = len(durations.blanks), blank.shape[2]
        # How many diagonals further each arc leads.
        steps = [*durations.blanks, *(duration + 1 for duration in durations.labels)]
        arcs = _skewed(_allowed(blank, label, num_frames, num_labels, durations))
        num_diagonals = len(arcs) + 1
        column = torch.arange(num_columns, device=blank.device)
        last_column, last_diagonal = num_labels.long().unsqueeze(1), (num_frames + num_labels).long().unsqueeze(1)

        # From the start: the logarithm of the probability of all paths to a node.
        nowhere = torch.full((len(blank), num_columns), -torch.inf, dtype=torch.float64, device=blank.device)
        alphas = nowhere.new_empty(num_diagonals, *nowhere.shape)
        alphas[0] = torch.where(column == 0, 0.0, nowhere)
        leaving = deque[Tensor](maxlen=max(steps))  # over each arc of a diagonal, in the column of its target
        until_full = max(steps) + 3  # iterations, until both queues are full and hold no more
        for diagonal in iterations(range(1, num_diagonals), blank, until_full):
            over = alphas[diagonal - 1] + arcs[diagonal - 1]
            # No label arc leaves the last column, so it may come round to the first.
            leaving.append(torch.cat([over[:num_blanks], over[num_blanks:].roll(1, -1)]))
            arriving = [leaving[-step][arc] for arc, step in enumerate(steps) if 0 < step <= len(leaving)]
            alphas[diagonal] = torch.stack(arriving).logsumexp(0) if arriving else nowhere
        at_end = alphas.gather(0, last_diagonal.expand(1, -1, num_columns))
        total = at_end.squeeze(0).gather(1, last_column)
        losses = -total.squeeze(1).to(blank.dtype)
        if not any(ctx.needs_input_grad):
            return losses

        # From the end: that of all paths from a node; and with both, the posteriors.
        posteriors = torch.empty_like(arcs)
        betas = deque([nowhere] * (max(steps) + 1), maxlen=max(steps) + 1)  # of a diagonal and of those behind it
        scale = torch.where(total.isinf(), torch.inf, total)  # where no path fits, all posteriors are 0
        for diagonal in iterations(range(num_diagonals)[::-1], blank, until_full):
            is_end = (column == last_column) & (last_diagonal == diagonal)
            betas.appendleft(torch.where(is_end, 0.0, nowhere))
            if diagonal < len(arcs):
                targets = torch.stack([betas[step] for step in steps])
                over = arcs[diagonal] + torch.cat([targets[:num_blanks], targets[num_blanks:].roll(-1, -1)])
                posteriors[diagonal] = F.threshold((over + (alphas[diagonal] - scale)).exp(), _NEGLIGIBLE, 0.0)
                betas[0] = torch.logaddexp(betas[0], over.logsumexp(0))
        ctx.num_blanks = num_blanks
        ctx.save_for_backward(_unskewed(posteriors, blank.shape[1]))
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (posteriors,) = ctx.saved_tensors
        of_arcs = posteriors * -gradient[:, None, None, None]
        return of_arcs[..., : ctx.num_blanks], of_arcs[..., ctx.num_blanks :], None, None, None


def _allowed(blank: Tensor, label: Tensor, num_frames: Tensor, num_labels: Tensor, durations: Durations) -> Tensor:
    """(B, T, U + 1, arcs): minus infinity for arcs that lead out of an utterance's lattice, or nowhere."""
    left = (num_frames.unsqueeze(1) - torch.arange(blank.shape[1], device=blank.device))[:, :, None, None]
    has_label = (torch.arange(blank.shape[2], device=blank.device) < num_labels.unsqueeze(1))[:, None, :, None]
    ends_in_time = torch.cat([(left >= duration) & (duration > 0) for duration in durations.blanks], -1)
    goes_on = torch.cat([left > duration for duration in durations.labels], -1)
    return torch.cat(
        [torch.where(ends_in_time, blank, -torch.inf), torch.where(goes_on & has_label, label, -torch.inf)], -1
    )


def _skewed(arcs: Tensor) -> Tensor:
    """(B, T, U + 1, arcs) -> (T + U, arcs, B, U + 1): row n has node (n - u, u) in column u, minus infinity outside."""
    num_items, _, num_columns, num_arcs = arcs.shape
    # Rows of T + U + 1 read as rows of T + U: each begins one place later than the one before.
    columns = F.pad(arcs.permute(3, 0, 2, 1), (0, num_columns), value=-torch.inf).flatten(2)[..., :-num_columns]
    return columns.view(num_arcs, num_items, num_columns, -1).permute(3, 0, 1, 2).contiguous()


def _unskewed(diagonals: Tensor, num_frames: int) -> Tensor:
    """The inverse of :func:`_skewed`."""
    num_arcs, num_items, num_columns = diagonals.shape[1:]
    columns = F.pad(diagonals.permute(1, 2, 3, 0).flatten(2), (0, num_columns))
    return columns.view(num_arcs, num_items, num_columns, -1)[..., :num_frames].permute(1, 3, 2, 0)
