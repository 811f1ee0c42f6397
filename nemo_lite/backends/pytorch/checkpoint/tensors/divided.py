"""Which values of modules and training states are divided among the ranks, and this rank's piece of them in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.checkpoint.tensors.stored import StoredTensors
from nemo_lite.backends.pytorch.distributed import Piece, divided_as, is_divided, piece_of

# Any: a tree of tensors, numbers and texts.


def read_for(target: Tensor | None, stored: StoredTensors, name: str) -> Tensor:
    """A stored tensor: this rank's piece, divided as the target is, or whole where the target is not divided."""
    piece = None if target is None else piece_of(target)
    if target is None or not isinstance(piece, Piece) or target.shape != stored.outlines[name].shape:
        return stored.read(name)
    stop = piece.start + piece.tensor.shape[piece.dim]
    return divided_as(stored.read_slice(name, piece.dim, piece.start, stop), target)


def params_by_place(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The divided parameters by the place in a training state of what is kept for them."""
    found: dict[str, Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        places = {f"state.optimizers.{number}.state.{key}": param for key, param in enumerate(params)}
        found.update((place, param) for place, param in places.items() if is_divided(param))
    return found


def key_of(name: str) -> str:
    """``state.optimizers.0.state.3`` of ``7:state.optimizers.0.state.3.exp_avg``; parts have no number before it."""
    return name.rpartition(":")[2].rpartition(".")[0]


def without_pieces(value: Any, pieces: dict[int, Piece]) -> Any:
    """A state with the tensors of its pieces; the pieces are noted by the identity of their tensor."""
    if isinstance(value, Piece):
        pieces[id(value.tensor)] = value
        return value.tensor
    if isinstance(value, Mapping):
        return {key: without_pieces(each, pieces) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        made = [without_pieces(each, pieces) for each in value]
        return tuple(made) if isinstance(value, tuple) else made
    return value
