"""The buffers of each rank, such as its own running statistics: a checkpoint's weights hold one value for all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.errors import CheckpointError


def own_buffers(modules: Mapping[str, object], comm: Comm) -> dict[str, Tensor]:
    """Copies, on the CPU, of the buffers that checkpoints hold and that differ between the ranks, by module and name.

    What is equal on all ranks is left to the weights: they hold rank 0's buffers, and of statistics the mean over the
    ranks, which for equal numbers is that number. All ranks call it, and get the same names.
    """
    own: dict[str, Tensor] = {}
    is_rounded: dict[str, bool] = {}
    for name, part, buffer in _buffers(modules):
        own[name] = buffer.detach().to("cpu", copy=True)
        # The mean over the ranks is computed in float64, where that of equal float64 numbers may be rounded.
        is_rounded[name] = isinstance(part, _NormBase) and buffer.dtype == torch.float64
    if not own:
        return {}
    of_first = comm.share(own)
    differs = [is_rounded[name] or not torch.equal(buffer, of_first[name]) for name, buffer in own.items()]
    num_differing = comm.sum([float(each) for each in differs])
    return {name: buffer for (name, buffer), count in zip(own.items(), num_differing, strict=True) if count}


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
