"""LoRA: of a linear layer of attention a small update is trained, the product of two narrow matrices.

Checkpoints hold the update beside the weight; model folders and all readers have the sum, under the weight's own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from nemo_lite.backends.pytorch.checkpoint.fitting import shape_text
from nemo_lite.backends.pytorch.checkpoint.storage import ModuleWeights, save_module
from nemo_lite.base.errors import CheckpointError, UsageError, counted

QUERIES_AND_VALUES = ("linear_q", "linear_v", "q_proj", "v_proj")
"""The names of these layers in all attention here."""
_OF_WEIGHT = ".parametrizations.weight."  # as torch names what a weight is computed from


class LowRankUpdate(nn.Module):
    """A weight (out, in) to weight + up @ down, where up is (out, rank) and down (rank, in).

    ``up`` begins with zeros, so the layer begins as it is. There is no factor: it would do what the learning rate does.

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4.1.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        size_out, size_in = weight.shape
        self.up = nn.Parameter(weight.new_zeros(size_out, rank))
        self.down = nn.Parameter(torch.empty_like(weight[:1].expand(rank, -1)).uniform_(-1, 1) / size_in**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the layer uses."""
        return weight + self.up @ self.down


def add_lora(modules: Mapping[str, nn.Module], rank: int, layers: Sequence[str] = QUERIES_AND_VALUES) -> str:
    """Train updates of linear layers in the place of the modules that have these layers; other modules stay trained.

    Args:
        modules: of a model, by name; they are changed in place.
        rank: of the updates.
        layers: names of linear layers.

    Returns:
        A line: which layers, and how many numbers are trained.

    Raises:
        UsageError: no module has such a layer, or the rank is larger than a layer.
    """
    found = {
        name: [
            layer
            for path, layer in module.named_modules()
            if isinstance(layer, nn.Linear) and path.rpartition(".")[2] in layers
        ]
        for name, module in modules.items()
    }
    chosen = {name: of_module for name, of_module in found.items() if of_module}
    if not chosen:
        got, wanted = ", ".join(modules) or "no modules", f"linear layers {', '.join(layers)}"
        raise UsageError("no module has attention that LoRA can train", place="--lora", got=got, wanted=wanted)
    narrowest = min(min(layer.weight.shape) for of_module in chosen.values() for layer in of_module)
    if rank > narrowest:
        raise UsageError("the rank is larger than a layer", place="--lora", got=str(rank), wanted=f"1 to {narrowest}")
    for name, of_module in chosen.items():
        modules[name].requires_grad_(False)
        for layer in of_module:
            register_parametrization(layer, "weight", LowRankUpdate(layer.weight, rank))
    weights = [weight for module in modules.values() for weight in module.parameters()]
    trained, total = sum(each.numel() for each in weights if each.requires_grad), sum(map(torch.numel, weights))
    whole = [name for name, module in modules.items() if name not in chosen and [*module.parameters()]]
    beside = f", and {', '.join(whole)} as a whole" if whole else ""
    where = ", ".join(f"{counted(len(of_module), 'layer')} of {name}" for name, of_module in chosen.items())
    return f"LoRA of rank {rank} on {where}{beside}: {trained:,} of {total:,} numbers are trained"


def has_lora(module: nn.Module) -> bool:
    """Whether updates of its layers are trained."""
    return any(isinstance(part, LowRankUpdate) for part in module.modules())


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a module with each update added to its weight; of a module without LoRA, as they are.

    Raises:
        CheckpointError: an update does not fit its weight.
    """
    plain = {}
    for key, tensor in tensors.items():
        layer, _, part = key.partition(_OF_WEIGHT)
        up, down = (tensors.get(f"{layer}{_OF_WEIGHT}0.{name}") for name in ("up", "down"))
        if up is None or down is None:
            plain[key] = tensor
        elif part == "original":
            sizes = *up.shape, *down.shape
            if len(sizes) != 4 or sizes[1] != sizes[2] or (sizes[0], sizes[3]) != tuple(tensor.shape):
                got, wanted = f"{shape_text(up)} and {shape_text(down)}", shape_text(tensor)
                raise CheckpointError("an update does not fit its weight", place=layer, got=got, wanted=wanted)
            plain[f"{layer}.weight"] = tensor + up @ down
    return plain


def save_merged(name: str, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write the merged tensors of a module of this class; errors as of `save_module`."""
    save_module(ModuleWeights(name, merged(tensors)), path)
