"""LossBalanceCallback: says at the first step how much of the gradient each part of a loss gives to what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from nemo_lite.core.callbacks.action_state import ActionState, LossGradients
from nemo_lite.core.callbacks.base import NeMoCallback
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.trackers import number
from nemo_lite.utils import logging

MOST_RATIO = 10.0
"""A part of a loss that gives so many times more gradient than another leaves that one without effect."""


class LossBalanceCallback(NeMoCallback):
    """At the first step of a run, compares the gradients of the parts of a loss on the wires where their ways part.

    A warning says where they differ by more than `MOST_RATIO`. It costs one more forward pass of that step, and no
    generator, statistic or weight differs from those of a run without it.

    Args:
        losses: the parts by name, each with its weight in the sum.
        record: called with "gradients" and what a record of this kind holds: ``Trackers.record``.
    """

    def __init__(
        self, losses: Mapping[str, tuple[NmTensor, float]], record: Callable[..., object] | None = None
    ) -> None:
        self._losses = {name: part for name, part in losses.items() if part[1]}
        self._record = record
        self._is_due = False

    def on_action_start(self, state: ActionState) -> None:
        """The next step is the first."""
        self._is_due = len(self._losses) > 1

    def on_batch_end(self, state: ActionState) -> None:
        """Compare, once. Weights are not updated yet."""
        if self._is_due:
            self._is_due = False
            state.on_first(lambda: self._compare(state))

    def _compare(self, state: ActionState) -> None:
        gradients = state.tensors.loss_gradients([wire for wire, _ in self._losses.values()])
        weights = {name: weight for name, (_, weight) in self._losses.items()}
        norms = tell_of_gradients(gradients, weights, weak_at_first(wire for wire, _ in self._losses.values()))
        if norms and self._record is not None:
            self._record("gradients", step=state.step + 1, norms=norms)


def weak_at_first(losses: Iterable[NmTensor]) -> list[str]:
    """Why a loss gives what it shares little gradient in the beginning, as its module says it; "" of others."""
    return [getattr(loss.producer, "why_weak_at_first", "") for loss in losses]


def tell_of_gradients(
    gradients: LossGradients | None, weights: Mapping[str, float], reasons: Sequence[str] = ()
) -> dict[str, float]:
    """Log how much gradient each part of a loss gives, as a warning where one outweighs another.

    Args:
        gradients: of the parts; None: they were not compared.
        weights: of the parts by name, in the same order.
        reasons: as :func:`weak_at_first` gives them: then a small gradient is no warning.

    Returns:
        The norms by name, each times its weight; empty where they were not compared.
    """
    if gradients is None:
        logging.debug("The gradients of %s were not compared", " and ".join(weights))
        return {}
    norms = {name: weight * norm for (name, weight), norm in zip(weights.items(), gradients.norms, strict=True)}
    shown = ", ".join(f"{name} {number(norm, 3)}" for name, norm in norms.items())
    least, most = min(norms, key=lambda name: norms[name]), max(norms, key=lambda name: norms[name])
    if not 0 < norms[least] <= norms[most] < float("inf"):
        text = "Gradients of the parts of the loss on %s, each times its weight: %s"
        logging.warning(text, gradients.place, shown)
        return norms
    ratio = norms[most] / norms[least]
    if ratio <= MOST_RATIO:
        text = "Gradients of the parts of the loss on %s, each times its weight: %s; %s : 1"
        logging.info(text, gradients.place, shown, number(ratio, 2))
        return norms
    if reason := dict(zip(weights, reasons, strict=False)).get(least):
        text = "Gradients of the parts of the loss on %s, each times its weight: %s; %s : 1, for %s"
        logging.info(text, gradients.place, shown, number(ratio, 2), reason)
        return norms
    text = (
        "The gradients of the parts of the loss on %s differ by a factor of %s, more than %s: %s, each times its "
        "weight; %s hardly trains what they share: reduce both losses alike (reduction), or change their weights"
    )
    logging.warning(text, gradients.place, number(ratio, 2), number(MOST_RATIO, 2), shown, least)
    return norms
