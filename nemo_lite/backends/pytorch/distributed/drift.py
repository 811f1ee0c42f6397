"""Whether the ranks' copies of the weights still have the same bits; if not, the ranks and the first tensor by name.

Gradients are averaged, so copies that start equal stay equal. They drift apart where one rank's memory or device fails,
or where code changes weights or learning rates on one rank only. Buffers are not compared: running statistics are each
rank's own. Nor are weights that are divided among the ranks, as each rank has other ones.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.contract import grouped, ranges
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.errors import DistributedError, counted

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def refuse_drifted_weights(modules: Iterable[nn.Module], comm: Comm) -> None:
    """Compare the weights of all ranks, which all call it: one exchange of a few bytes, and one wait for the device.

    Raises:
        DistributedError: they differ; the same error on every rank.
    """
    if comm.world_size == 1:
        return
    tensors = dict(_replicated(modules))
    sums = bit_sums(tensors.values())
    digest = hashlib.sha256(repr(sums).encode()).digest()
    if comm.all_same(digest, "comparing weights"):
        return
    gathered = comm.gather((platform.node(), sums))
    details = comm.share(None if gathered is None else _differences([*tensors], *zip(*gathered, strict=True)))
    error = DistributedError(
        "the weights of the ranks have drifted apart",
        got=details or "",
        wanted="the same bits on all ranks",
        remedy="start again from the last checkpoint, whose weights were equal; if it happens again, look for code "
        "that changes weights, gradients or learning rates on some ranks only, and test the memory of that machine "
        "(processors of different kinds may round differently: use one kind)",
    )
    error.is_common = True
    raise error


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """The sum of each tensor's bits, read as integers: other ones where a bit of one differs. Waits for each device."""
    on_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        on_device.setdefault(tensor.device, []).append((index, _bit_sum(tensor)))
    sums: dict[int, int] = {}
    for there in on_device.values():
        indices, values = zip(*there, strict=True)
        sums.update(zip(indices, torch.stack(values).tolist(), strict=True))
    return [sums[index] for index in sorted(sums)]


def _bit_sum(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    narrow = plain.reshape(-1).view(_INTEGERS[plain.element_size()])
    in_a_word = 8 // plain.element_size()
    if narrow.storage_offset() % in_a_word:
        narrow = narrow.clone()
    # Whole words of 8 bytes: the sum of narrower integers takes ten times as long.
    end = len(narrow) // in_a_word * in_a_word
    return narrow[:end].view(torch.int64).sum() + narrow[end:].sum()


def _replicated(modules: Iterable[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """The weights that all ranks have in full, by name, with the float32 ones of which half weights are rounded."""
    for module in dict.fromkeys(modules):
        label = module.label if isinstance(module, NeuralModule) else type(module).__name__
        weights = {name: weight for name, weight in module.named_parameters() if _is_whole(weight)}
        halves = [name for name, weight in weights.items() if weight.is_floating_point() and weight.element_size() < 4]
        saved: Mapping[str, object] = module.state_dict() if halves else {}
        for name, weight in weights.items():
            yield f"{label}.{name}", weight
        for name in halves:
            wide = saved.get(name)
            if isinstance(wide, Tensor) and wide.dtype != weights[name].dtype:
                yield f"{label}.{name} ({str(wide.dtype).removeprefix('torch.')})", wide


def _is_whole(weight: Tensor) -> bool:
    return weight.layout is torch.strided and not hasattr(weight, "_local_tensor") and not nn.parameter.is_lazy(weight)


def _differences(names: Sequence[str], hosts: Sequence[str], sums: Sequence[Sequence[int]]) -> str:
    """``encoder.conv.weight of rank 1 (node2) unlike that of the other ranks, and 3 more tensors``"""
    differing = [index for index in range(len(names)) if len({own[index] for own in sums}) > 1]
    alike = [ranks for _, ranks in grouped((own[differing[0]], rank) for rank, own in enumerate(sums))]
    most = max(alike, key=len)  # of equally many the first, with rank 0
    others = sorted(rank for ranks in alike if ranks is not most for rank in ranks)
    machines = ", ".join(dict.fromkeys(hosts[rank] for rank in others))
    more = f", and {counted(len(differing) - 1, 'more tensor')}" if len(differing) > 1 else ""
    unlike = f"that of {_ranks(most)}" if len(alike) == 2 else f"each other and that of {_ranks(most)}"
    return f"{names[differing[0]]} of {_ranks(others)} ({machines}) unlike {unlike}{more}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(list(ranks))}"
