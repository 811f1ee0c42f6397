"""Sharding by FSDP2: weights, gradients and optimizer states divided among the ranks, for models larger than one GPU.

Which modules are sharded and saved is decided elsewhere. Any: states hold tensors, numbers, lists and dictionaries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_lite.backends.pytorch.distributed.batchnorm import SHARDED
from nemo_lite.backends.pytorch.distributed.comm import piece_of
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import Value


def shard(
    modules: Iterable[nn.Module],
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    half: torch.dtype | None = None,
    float32_parts: Iterable[nn.Module] = (),
) -> None:
    """Shard the weights of each module among the ranks, in place, and move the modules to ``device``.

    Every parameter becomes a new object: make optimizers afterwards. Otherwise a module stays as it was: its class has
    the same name, it connects wires and runs tensors, ``load_state_dict`` takes whole tensors.

    While a module runs, one block of it is whole at a time, and the next one is being fetched. A block is a child with
    weights of an ``nn.Sequential`` or ``nn.ModuleList``. What is outside of the blocks is whole while the module runs.

    A module that was given others by reference calls parts of them, whose weights are not whole by themselves: while it
    runs, all of the others is whole, and so it is for the gradients.

    Weights and buffers are first made equal to rank 0's. If the modules are on another device, at most one block at a
    time is whole on ``device``. Modules that are sharded already stay as they are. All ranks call this, with the same
    modules in the same order.

    Under autocast alone, every whole weight would be cast, and the autograd graph would keep the casts of all weights
    from forward to backward. With ``half``, weights travel and become whole in this type; each rank's shards, gradients
    between ranks and optimizer states stay in float32.

    Args:
        modules: none is part of another one. Those without weights stay as they are.
        device: where they run; for CUDA, the current device.
        group: the ranks; ``None``: all.
        half: the type of autocast, which the modules then run under, whoever calls them.
        float32_parts: the parts of the modules whose weights are float32 all the same.

    Raises:
        UsageError: a weight that two modules share, or one without dimensions.
    """
    given = list(dict.fromkeys(modules))
    weighted = [module for module in given if any(True for _ in module.parameters())]
    roots = [module for module in weighted if not isinstance(module, FSDPModule)]
    _refuse_what_stays_whole(roots)
    ranks = group or dist.group.WORLD
    assert ranks is not None
    mesh = DeviceMesh.from_group(ranks, device.type)
    wide = dict.fromkeys(float32_parts)
    # Autocast casts the inputs, of each operation as it needs them.
    in_half = MixedPrecisionPolicy(half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    as_they_are = MixedPrecisionPolicy()
    for root in roots:
        for unit in [*_blocks(root), root]:
            unit.to(device)
            _make_equal(unit, group)
            if half is not None and unit not in wide:
                whole = [
                    part
                    for part in unit.modules()
                    if part in wide and not all(isinstance(parameter, DTensor) for parameter in part.parameters())
                ]
                _divide(whole, mesh, as_they_are)
            if any(True for _ in unit.parameters()):
                _divide([unit], mesh, as_they_are if half is None or unit in wide else in_half)
        if half is not None and root not in wide:
            # Its whole weights are half, and its caller may not have entered autocast. Of this object: modules of one
            # class share the class that torch makes of it.
            vars(root)["forward"] = torch.autocast(device.type, half)(root.forward)
        for part in root.modules():
            part.register_load_state_dict_pre_hook(_take_own_parts)
    for holder in given:
        _make_whole_what_it_calls(holder, device, half)


class ShardedReplica:
    """A module over sharded ones; see :class:`~nemo_lite.backends.pytorch.distributed.comm.Replica`.

    Args:
        module: its weights are in modules that :func:`shard` was called with.
    """

    needs_reach_check = False

    def __init__(self, module: nn.Module) -> None:
        self._module, self._nothing = module, nullcontext()

    def __call__(self, *values: Value) -> tuple[Value, ...]:
        """The module's outputs."""
        outputs: tuple[Value, ...] = self._module(*values)
        return outputs

    def sync_only_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Nothing: gradients are averaged, and sharded, after every micro-batch.

        To wait for the last one, each rank would have to hold them whole, beside weights that do not fit.
        """
        return self._nothing


def whole(value: object) -> object:
    """A state with its sharded tensors made whole, in host memory, on rank 0; ``None`` on the others.

    All ranks call it, with states of the same structure. One tensor at a time is whole on the device.

    Args:
        value: nested dictionaries, lists and tuples of tensors and anything else, such as a ``state_dict()``.
    """
    is_first = dist.get_rank() == 0

    def gather(tensor: Tensor) -> Tensor | None:
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
        return full.cpu() if is_first else None

    with torch.no_grad():
        gathered = _mapped(gather, value)
    return gathered if is_first else None


def pieces(value: object) -> object:
    """A state with this rank's ``Piece`` in the place of each sharded tensor. Nothing is copied.

    All ranks call it, with states of the same structure.

    Args:
        value: as of :func:`whole`.
    """
    return _mapped(piece_of, value)


def _mapped(function: Callable[[Tensor], object], value: object) -> object:
    """A state with the result of a function in the place of each tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _mapped(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, item) for item in value])
    return value


def like(tensor: Tensor, target: object) -> Tensor:
    """This rank's shard of a whole tensor, sharded as ``target`` is; the tensor itself if the shapes differ."""
    if not isinstance(target, DTensor) or isinstance(tensor, DTensor) or tensor.shape != target.shape:
        return tensor
    return _distributed(tensor, target, target.placements)


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Tree]) -> None:
    """``optimizer.load_state_dict`` for a whole state, whether the optimizer's parameters are sharded or not.

    Raises:
        ValueError, KeyError: the state is of other parameters, as torch says it.
    """
    params: dict[int, Tensor] = {}
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=False):
        params.update(zip(saved["params"], group["params"], strict=False))
    parts = {
        index: {key: _state_like(key, value, params.get(index)) for key, value in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": parts})


def _state_like(key: str, value: object, param: Tensor | None) -> object:
    if not isinstance(value, Tensor) or not isinstance(param, DTensor):
        return value
    # A number for each parameter, such as NovoGrad's second moment, is the same on all ranks; torch's count of steps
    # is an ordinary tensor.
    if value.dim() == 0 and key != "step":
        return _distributed(value, param, [Replicate()])
    return like(value, param)


def _distributed(tensor: Tensor, target: DTensor, placements: Sequence[Placement]) -> DTensor:
    # Without a source rank nothing is sent: each rank cuts its part out of its own copy.
    return distribute_tensor(tensor.detach(), target.device_mesh, placements, src_data_rank=None)


def _divide(units: list[nn.Module], mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    """Shard what is still whole in modules, which become whole together.

    torch changes their classes; the new ones get the old ones' names.
    """
    if not units:
        return
    before = [type(unit) for unit in units]
    # Also for the unit that runs first: by default it would stay whole after its forward, and in its state_dict.
    fully_shard(units, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    for unit, original in zip(units, before, strict=True):
        made: Any = type(unit)
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(made, name, getattr(original, name))
        made.of_one_object = True  # so that the list of neural modules has the old class only (see subclasses())
        setattr(made, SHARDED, True)


def _make_whole_what_it_calls(holder: nn.Module, device: torch.device, half: torch.dtype | None) -> None:
    """Let the sharded modules that a module refers to be whole while it runs.

    For torch it is then a method of theirs that runs, and what a ``forward`` needs is done, for gradients too.
    """
    referenced = holder.referenced if isinstance(holder, NeuralModule) else []
    others: list[Any] = [other for other in referenced if isinstance(other, FSDPModule)]
    if not others or isinstance(vars(holder).get("forward"), partial):
        return
    forward: Any = holder.forward if half is None else torch.autocast(device.type, half)(holder.forward)
    for other in others:
        if "run_whole" not in vars(other):
            other.run_whole = _call
            register_fsdp_forward_method(other, "run_whole")
        forward = partial(other.run_whole, forward)
    vars(holder)["forward"] = forward


def _call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    return function(*args, **kwargs)


def _make_equal(unit: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give all ranks rank 0's weights and buffers, except those that are sharded already."""
    for tensor in chain(unit.parameters(), unit.buffers()):
        if not isinstance(tensor, DTensor):
            sent = tensor.detach().contiguous()  # FSDP2 takes no others
            dist.broadcast(sent, group_src=0, group=group)
            tensor.data = sent


def _blocks(root: nn.Module) -> list[nn.Module]:
    """The parts of a module that are sharded one by one: the outermost members of its containers that have weights.

    A member that shares a weight with another part of the module is no block. Nor is batch normalisation: it is small.
    """
    everywhere = _counted(root)
    members = [member for member in dict.fromkeys(_members(root)) if not isinstance(member, _BatchNorm)]
    counted = [(member, _counted(member)) for member in members]
    blocks = [member for member, weights in counted if weights and all(everywhere[w] == n for w, n in weights.items())]
    return blocks if len(blocks) > 1 else []


def _members(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        # A list has no forward before which it could become whole.
        is_list = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if isinstance(module, (nn.Sequential, nn.ModuleList)) and not is_list:
            yield child
        else:
            yield from _members(child)


def _counted(module: nn.Module) -> Counter[nn.Parameter]:
    """Its weights and how often each occurs."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def _refuse_what_stays_whole(roots: Iterable[nn.Module]) -> None:
    places: dict[nn.Parameter, tuple[nn.Module, str]] = {}
    for root in roots:
        for name, parameter in root.named_parameters():
            place = f"{type(root).__name__}.{name}"
            other, its_place = places.setdefault(parameter, (root, place))
            if other is not root:
                _refuse_tied(place, its_place)
            if parameter.dim() == 0:
                raise UsageError(
                    "a weight without dimensions cannot be sharded", place=place, remedy="give it the shape (1,)"
                )
        for name, part in root.named_modules():
            for key, held in vars(part).items():
                # A weight tied as a transpose is kept as the other module's parameter, outside of _parameters.
                if key != "_parameters" and isinstance(held, dict):
                    for leaf in (leaf for leaf, value in held.items() if isinstance(value, nn.Parameter)):
                        _refuse_tied(".".join(filter(None, [type(root).__name__, name, leaf])), "another one")


def _refuse_tied(place: str, other: str) -> None:
    raise UsageError(
        "weights that modules share cannot be sharded",
        place=place,
        got=f"the same as {other}",
        remedy="train without FSDP2, or do not tie them",
    )


def _take_own_parts(module: nn.Module, state: dict[str, Tree], prefix: str, *unused: object) -> None:
    """Runs before a module loads a state: whole tensors become this rank's shards."""
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        key = prefix + name
        if isinstance(state.get(key), Tensor):
            state[key] = like(state[key], parameter)
