"""Which checkpoints are the best by their evaluations. No files in here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_lite.backends.pytorch.checkpoint.store.record import CheckpointSet
from nemo_lite.core.action_state import Best

# Any: results of evaluations are JSON.


def best_of(sets: Sequence[CheckpointSet], best: Best) -> list[CheckpointSet]:
    """The best of some sets, the best first; of equals the newer one. Those without a rate of their own are no best."""
    scored = [(score, -found.serial, found) for found in sets if (score := score_of(found, best)) is not None]
    return [found for _, _, found in sorted(scored, key=lambda each: each[:2])][: best.keep]


def score_of(found: CheckpointSet, best: Best) -> float | None:
    """The value by which a set is judged, lower ones better; None where its weights were not evaluated so."""
    return score_in(found.evaluations, found.step, best)


def score_in(evaluations: Sequence[Mapping[str, Any]], step: int | None, best: Best) -> float | None:
    """The same of evaluations. Those of another step say nothing about the weights of this one."""
    for each in evaluations:
        values = each.get("values")
        value = values.get(best.metric) if isinstance(values, Mapping) else None
        is_asked_for = each.get("name") == best.evaluation and each.get("step") == step
        if is_asked_for and isinstance(value, (int, float)) and math.isfinite(value):
            return -value if best.highest else value
    return None
