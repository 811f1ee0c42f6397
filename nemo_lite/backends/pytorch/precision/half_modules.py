"""HalfModules: modules compute in a half type while an action runs, and are float32 outside of it and in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nemo_lite.backends.pytorch.precision.dtypes import HALVES, cast, float32_parts, half_parts, takes_halves
from nemo_lite.backends.pytorch.precision.saved_weights import SavedWeights, own_tensors

# Any: arguments and results of modules.


class HalfModules:
    """Turns the weights of modules into halves for an action, and back.

    Parameters and buffers stay the same objects; only their values change their type. ``state_dict()`` gives float32
    tensors, and ``load_state_dict`` takes them, under the names of always.

    Args:
        dtype: the half type.
        norms_in_float32: normalisation layers stay in float32.
        keeps_masters: trained weights have a float32 value beside the half one; see :mod:`.master_weights`.

    Attributes:
        saved: the float32 values of the half weights.
    """

    def __init__(self, dtype: torch.dtype, norms_in_float32: bool, keeps_masters: bool) -> None:
        self._dtype, self._norms_in_float32, self._keeps_masters = dtype, norms_in_float32, keeps_masters
        self.saved = SavedWeights()
        self._modules: set[nn.Module] = set()

    @contextmanager
    def prepared(self, modules: Iterable[nn.Module], trained: bool) -> Iterator[None]:
        """Inside, the modules are half. Those that are so already stay as they are, also afterwards.

        Args:
            modules: the modules of a DAG; each takes float inputs of any type.
            trained: their weights change inside, and are float32 versions of the changed ones afterwards; otherwise
                exactly what they were.
        """
        new = [module for module in dict.fromkeys(modules) if module not in self._modules]
        parts = dict.fromkeys(part for module in new for part in half_parts(module, self._norms_in_float32))
        with ExitStack() as undo:
            undo.callback(self._widen, new, set(self.saved.wide))
            self._modules.update(new)
            for part in parts:
                self._narrow(part, trained)
            handles = chain.from_iterable(
                [*map(self._cast_inputs, new), *map(self._cast_around_float32, new), *map(self.saved.attach, parts)]
            )
            for handle in handles:
                undo.callback(handle.remove)
            yield

    def masters(self) -> dict[Tensor, nn.Parameter]:
        """The float32 weights that an optimizer may update, by the half parameters that are rounded from them."""
        return {half: wide for half, wide in self.saved.wide.items() if isinstance(wide, nn.Parameter)}

    def _narrow(self, part: nn.Module, trained: bool) -> None:
        for _, tensor in own_tensors(part):
            if tensor.dtype is torch.float32:
                wide: Tensor | None = tensor.data
                if trained and isinstance(tensor, nn.Parameter):
                    wide = nn.Parameter(tensor.data) if self._keeps_masters else None
                self.saved.wide[tensor] = wide
                tensor.grad, tensor.data = None, tensor.data.to(self._dtype)

    def _widen(self, modules: Iterable[nn.Module], but: Set[Tensor]) -> None:
        """Make modules float32 again, with all tensors but some."""
        self._modules.difference_update(modules)
        for tensor in [tensor for tensor in self.saved.wide if tensor not in but]:
            tensor.grad, tensor.data = None, self.saved.float32_of(tensor)
            del self.saved.wide[tensor]

    def _cast_inputs(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """A module of a DAG gets the inputs that its weights need; one without weights takes what comes."""
        if next(float32_parts(module, self._norms_in_float32), None) is module:
            yield casting_inputs(module, HALVES, torch.float32)
        elif any(tensor.is_floating_point() for tensor in chain(module.parameters(), module.buffers())):
            yield casting_inputs(module, (torch.float32,), self._dtype)

    def _cast_around_float32(self, module: nn.Module) -> Iterator[RemovableHandle]:
        for part in float32_parts(module, self._norms_in_float32):
            if part is not module and not takes_halves(part):
                yield casting_inputs(part, HALVES, torch.float32)
                yield part.register_forward_hook(lambda part, args, out: cast(out, (torch.float32,), self._dtype))


def casting_inputs(part: nn.Module, from_: tuple[torch.dtype, ...], to: torch.dtype) -> RemovableHandle:
    """Let a part get the inputs of some types in another type; what undoes it."""

    def take(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return cast(args, from_, to), cast(kwargs, from_, to)

    return part.register_forward_pre_hook(take, with_kwargs=True)
