"""Tying weights: one module uses parameters of another as its own, as they are or transposed. No module class here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nemo_lite.core.graph.kinds import WeightShareTransform
from nemo_lite.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from nemo_lite.backends.pytorch.nm import TrainableNM
    from nemo_lite.backends.pytorch.torch_module import TorchModule


def tie(
    module: TrainableNM,
    other: TrainableNM,
    names: Iterable[str],
    other_names: Mapping[str, tuple[str, WeightShareTransform]],
) -> None:
    """Let ``module`` use parameters of ``other``: see ``TrainableNM.tie_weights_with``."""
    for name in names:
        other_name, transform = other_names.get(name, (name, WeightShareTransform.SAME))
        (mine,), (shared,) = weights_named(module, [name]).values(), weights_named(other, [other_name]).values()
        transposed = transform is WeightShareTransform.TRANSPOSE
        if mine.shape != (shared.t().shape if transposed else shared.shape):
            refuse_shape(f"{module.label}.{name}", shared, mine)
        owner_path, _, leaf = name.rpartition(".")
        owner_module = module.get_submodule(owner_path)
        delattr(owner_module, leaf)
        if transposed:
            _install_transposed(owner_module, leaf, shared)
        else:
            setattr(owner_module, leaf, shared)


def weights_named(module: TorchModule, names: Iterable[str] | None) -> dict[str, nn.Parameter]:
    """The parameters of these names; all of them for ``None``.

    Raises:
        UnknownNameError: a name that is no parameter of this module.
    """
    known = dict(module.named_parameters())
    chosen = list(known if names is None else names)
    for name in chosen:
        if name not in known:
            raise UnknownNameError("weight", name, known, place=module.label)
    return {name: known[name] for name in chosen}


def refuse_shape(place: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise UsageError for a weight of another shape."""
    raise UsageError("the shapes differ", place=place, got=str(tuple(got.shape)), wanted=str(tuple(wanted.shape)))


def _install_transposed(owner: nn.Module, leaf: str, shared: nn.Parameter) -> None:
    """Make ``owner.<leaf>`` the transpose of a shared parameter, made when it is read; the gradient flows to that one.

    The parameter stays out of the owner's own ones. It is kept in the object, so that copying both modules together
    copies the tie.
    """

    def transposed(module: nn.Module) -> torch.Tensor:
        parameter: nn.Parameter = module.__dict__["_shared_transposed"][leaf]
        return parameter.t()

    owner.__dict__.setdefault("_shared_transposed", {})[leaf] = shared
    cls = type(owner)
    metaclass: Any = type(cls)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    owner.__class__ = metaclass(cls.__name__, (cls,), {**names, leaf: property(transposed), "of_one_object": True})
