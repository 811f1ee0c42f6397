"""SavedWeights: parts whose weights are half give float32 tensors to a ``state_dict``, and take them from one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# Any: a state_dict may hold anything.


class SavedWeights:
    """The float32 values of half tensors, for as long as modules compute with the halves.

    Attributes:
        wide: the float32 value of each half tensor; None where the half one is the only one.
    """

    def __init__(self) -> None:
        self.wide: dict[Tensor, Tensor | None] = {}

    def attach(self, part: nn.Module) -> Iterable[RemovableHandle]:
        """Let a part save and load float32 values of its own tensors; what undoes it."""
        # Partials, because torch notes something in the functions that it is given.
        return (
            part.register_state_dict_post_hook(partial(self._widen_state)),  # type: ignore[no-untyped-call]  # torch's
            part.register_load_state_dict_pre_hook(partial(self._take_state)),  # type: ignore[no-untyped-call]  # torch's
        )

    def master_of(self, parameter: Tensor) -> Tensor:
        """The float32 weight that a half parameter is rounded from; the parameter itself where there is none."""
        master = self.wide.get(parameter)
        return parameter if master is None else master

    def float32_of(self, tensor: Tensor) -> Tensor:
        """The float32 value of a half tensor; of a buffer that changed, the changed value."""
        wide = self.wide[tensor]
        if wide is None:
            return tensor.detach().float()
        is_buffer = not isinstance(tensor, nn.Parameter) and not tensor.is_meta
        if is_buffer and not torch.equal(tensor, wide.to(tensor.dtype)):
            return tensor.detach().float()
        return wide.detach()

    def _widen_state(self, part: nn.Module, state: dict[str, Any], prefix: str, *unused: object) -> None:
        """Runs after a part has put its tensors into a ``state_dict``."""
        for name, tensor in own_tensors(part):
            if prefix + name in state and tensor in self.wide:
                state[prefix + name] = self.float32_of(tensor)

    def _take_state(self, part: nn.Module, state: Mapping[str, Any], prefix: str, *unused: object) -> None:
        """Runs before a part loads a state: the float32 values take it in full, the halves by torch right after."""
        for name, tensor in own_tensors(part):
            wide, given = self.wide.get(tensor), state.get(prefix + name)
            if wide is not None and isinstance(given, Tensor) and given.shape == wide.shape:
                wide.detach().copy_(given.detach())


def own_tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A part's own parameters and buffers by name, without those of the parts in it."""
    return chain(
        part.named_parameters(recurse=False, remove_duplicate=False),
        part.named_buffers(recurse=False, remove_duplicate=False),
    )
