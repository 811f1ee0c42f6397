"""The buffers of each rank, such as its own running statistics: a checkpoint's weights hold one value for all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.errors import CheckpointError


def own_buffers(modules: Mapping[str, object]) -> dict[str, Tensor]:
    """Copies of this rank's buffers that checkpoints hold, by module and name."""
    return {name: buffer.detach().clone() for name, _, buffer in _buffers(modules)}


def without_common(ranks: Sequence[dict[str, Tensor]], modules: Mapping[str, object]) -> list[dict[str, Tensor]]:
    """The buffers of the ranks without those that are equal on all of them, which the weights hold.

    Statistics of normalisation stay: the weights hold their mean, and even a mean of equal numbers may be rounded.
    """
    statistics = {name for name, part, _ in _buffers(modules) if isinstance(part, _NormBase)}
    first = ranks[0]
    common = {name for name in first if all(torch.equal(own[name], first[name]) for own in ranks)} - statistics
    return [{name: buffer for name, buffer in own.items() if name not in common} for own in ranks]


def set_own_buffers(modules: Mapping[str, object], saved: Mapping[str, Tensor], place: str) -> None:
    """Fill buffers with what :func:`own_buffers` gave. Names that the modules do not have are passed over.

    Raises:
        CheckpointError: a buffer of another shape, or integers for floats; nothing is filled then.
    """
    pairs = [(name, buffer, saved[name]) for name, _, buffer in _buffers(modules) if name in saved]
    for name, buffer, value in pairs:
        # Floating types differ between levels of precision, and are converted as weights are.
        if (buffer.shape, buffer.is_floating_point()) != (value.shape, value.is_floating_point()):
            got, wanted = f"{tuple(value.shape)} {value.dtype}", f"{tuple(buffer.shape)} {buffer.dtype}"
            raise CheckpointError(f"a rank's own {name} does not fit", place=place, got=got, wanted=wanted)
    for _, buffer, value in pairs:
        buffer.copy_(value)


def _buffers(modules: Mapping[str, object]) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The buffers that a ``state_dict`` holds, each with its name and the part it belongs to."""
    for name, module in modules.items():
        for path, part in module.named_modules() if isinstance(module, nn.Module) else ():
            for own, buffer in part.named_buffers(recurse=False):
                if own not in part._non_persistent_buffers_set:
                    yield ".".join(filter(None, (name, path, own))), part, buffer
