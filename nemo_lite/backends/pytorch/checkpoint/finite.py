"""Weights that are not finite are not saved: a checkpoint of them would take the place of a good one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from nemo_lite.backends.pytorch.distributed import Piece
from nemo_lite.errors import CheckpointError

_MAX_LISTED = 3
_STATISTICS = ("running_mean", "running_var")  # torch's names in normalisation layers


def refuse_not_finite(module: nn.Module, tensors: Mapping[str, object]) -> None:
    """Raise CheckpointError if a parameter or a running statistic is not finite, or a buffer NaN.

    Other buffers may hold infinities: masks do.

    Args:
        module: says which of the tensors are parameters.
        tensors: its ``state_dict()``, or this rank's pieces of it.
    """
    finite = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    # Features of 1e30 give a finite loss and an infinite variance, with which nothing is recognised any more.
    finite |= {name for name in tensors if name.rpartition(".")[2] in _STATISTICS}
    values = {name: value.tensor if isinstance(value, Piece) else value for name, value in tensors.items()}
    bad = [name for name, value in values.items() if isinstance(value, Tensor) and _is_bad(value, name in finite)]
    if bad:
        more = f" and {len(bad) - _MAX_LISTED} more" if len(bad) > _MAX_LISTED else ""
        raise CheckpointError(
            "weights that are not finite are not saved",
            place=type(module).__name__,
            got=f"NaN or infinity in {', '.join(bad[:_MAX_LISTED])}{more}",
            remedy="the checkpoints saved before stay: go on from one of them with a lower learning rate",
        )


def _is_bad(tensor: Tensor, must_be_finite: bool) -> bool:
    if not tensor.is_floating_point():
        return False
    return not bool(tensor.isfinite().all()) if must_be_finite else bool(tensor.isnan().any())
