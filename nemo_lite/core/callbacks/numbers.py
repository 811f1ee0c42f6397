"""Numbers of a step: read out of tensors of one element, and written as curves of TensorBoard."""

from __future__ import annotations

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks.action_state import ActionState, TbWriter
from nemo_lite.core.trackers import TensorboardTracker


def is_number(value: object) -> bool:
    """Whether it is one number, plain or in a tensor; the tensor is not read."""
    if isinstance(value, (int, float)):
        return True
    return hasattr(value, "item") and (value.numel() if hasattr(value, "numel") else getattr(value, "size", 0)) == 1


def fetch_number(value: object, name: str, place: str, remedy: str = "") -> float:
    """The number in a tensor of one element. A host sync: logging steps only.

    Raises:
        UsageError: it is not a single number.
    """
    if isinstance(value, (int, float)):
        return float(value)
    if is_number(value) and hasattr(value, "item"):
        return float(value.item())
    got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
    raise UsageError(f'"{name}" is not a single number', place=place, got=got, remedy=remedy)


def curves_of(tb_writer: TbWriter | None, state: ActionState) -> TensorboardTracker:
    """What writes curves: by the callback's own writer, or the factory's; without either it writes nothing."""
    return TensorboardTracker(state.tb_writer if tb_writer is None else tb_writer)
