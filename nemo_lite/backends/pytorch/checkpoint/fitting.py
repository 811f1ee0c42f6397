"""Whether stored tensors are those of a module: their names, shapes and kinds. It reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nemo_lite.errors import CheckpointError
from nemo_lite.utils import logging

_MAX_LISTED = 8
_WRAPPED = "module."  # what DataParallel and DDP put before each name of the module in them
_COUNT = "num_batches_tracked"


@runtime_checkable
class RenamesWeights(Protocol):
    """A module whose tensors had other names in older files."""

    def renamed_weights(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The same tensors by today's names; names that are not known stay."""


def fitted(module: nn.Module, tensors: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    """The tensors for ``module.load_state_dict()``: all of them, by today's names.

    Older names become today's, counters of batch norm that a file of long ago lacks are the module's own, and what
    DataParallel put before the names is taken away. The log says which tensors change their type.

    Args:
        module: stays as it is.
        tensors: by name.
        place: where they come from, for messages.

    Raises:
        CheckpointError: names, shapes or kinds differ: all differences at once.
    """
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    tensors = with_todays_names(module, tensors)
    counts = {name: value for name, value in own.items() if name.endswith(_COUNT) and name not in tensors}
    found = {**tensors, **counts} if own.keys() & tensors.keys() else dict(tensors)
    check_fit(module, found, place)
    _tell_conversions(found, own, place)
    return found


def with_todays_names(module: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same tensors by the names that ``module`` has for them today."""
    if tensors and all(name.startswith(_WRAPPED) for name in tensors) and not hasattr(module, _WRAPPED[:-1]):
        tensors = {name.removeprefix(_WRAPPED): value for name, value in tensors.items()}
    return module.renamed_weights(tensors) if isinstance(module, RenamesWeights) else tensors


def _tell_conversions(found: Mapping[str, Tensor], own: Mapping[str, Tensor], place: str) -> None:
    kinds = {(value.dtype, own[name].dtype) for name, value in found.items() if value.is_floating_point()}
    for stored, wanted in sorted(kinds, key=str):
        if stored != wanted:
            logging.info("%s: its weights are %s; converted to %s", place, _plain(stored), _plain(wanted))


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_fit(module: nn.Module, tensors: Mapping[str, Tensor], place: str) -> None:
    """See that the tensors are those of ``module.state_dict()``: names, shapes, and whether they are floating.

    Args:
        module: stays as it is.
        tensors: by name.
        place: where they come from, for the message.

    Raises:
        CheckpointError: they are not: all differences at once.
    """
    wanted = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    name_of_module = type(module).__name__
    if wanted and tensors and not wanted.keys() & tensors.keys():
        raise CheckpointError(
            f"none of its {len(tensors)} tensors belongs to {name_of_module}",
            place=place,
            got=next(iter(tensors)),
            wanted=next(iter(wanted)),
            remedy="this is another module's file",
        )
    both = wanted.keys() & tensors.keys()
    problems = [
        _listed("missing", [f"{name} {_shape(wanted[name])}" for name in wanted if name not in tensors]),
        _listed("unexpected", [f"{name} {_shape(tensors[name])}" for name in tensors if name not in wanted]),
        _listed("different", [_difference(name, tensors[name], wanted[name]) for name in wanted if name in both]),
        _listed("tied in the module but not in the file", _wrongly_untied(wanted, tensors)),
    ]
    if any(problems):
        raise CheckpointError(
            f"does not fit {name_of_module}: " + "; ".join(filter(None, problems)),
            place=place,
            remedy="make the module with the configuration that the checkpoint was trained with",
        )


def _difference(name: str, got: Tensor, wanted: Tensor) -> str:
    if got.shape != wanted.shape:
        return f"{name} is {_shape(got)}, the module has {_shape(wanted)}"
    if got.is_floating_point() != wanted.is_floating_point():
        return f"{name} is {got.dtype}, the module has {wanted.dtype}"
    return ""


def _wrongly_untied(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    first_names: dict[tuple[object, ...], str] = {}
    untied = []
    for name, tensor in wanted.items():
        first = first_names.setdefault(identity(tensor), name)
        if first != name and name in tensors and first in tensors and not torch.equal(tensors[name], tensors[first]):
            untied.append(f"{first} and {name}")
    return untied


def _listed(title: str, entries: list[str]) -> str:
    entries = [entry for entry in entries if entry]
    if not entries:
        return ""
    more = f" and {len(entries) - _MAX_LISTED} more" if len(entries) > _MAX_LISTED else ""
    return f"{title}: {', '.join(entries[:_MAX_LISTED])}{more}"


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor. One without memory (empty, or divided among ranks) is only itself."""
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
