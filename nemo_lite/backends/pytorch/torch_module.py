"""TorchModule: what all of NeMo's base classes of modules have in common. The classes themselves are in ``nm.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.weight_tying import weights_named
from nemo_lite.core.factory import DeviceType, NeuralModuleFactory
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.neural_graph import GraphInput, NeuralGraph
from nemo_lite.core.neural_types.nm_tensor import NmTensor
from nemo_lite.errors import NeuralPortNameMismatchError

# Any: values of wires are tensors, lists or numbers.

_SYMBOLS = frozenset((NmTensor, GraphInput, NeuralGraph))
"""What stands for values where modules are connected."""


class TorchModule(NeuralModule, nn.Module):
    """A NeuralModule that is an ``nn.Module``: called on wires it connects, on tensors it runs ``forward``."""

    _num_declared_outputs: int | None = None

    def __init__(self, name: str | None = None, **first_generation: object) -> None:
        nn.Module.__init__(self)
        NeuralModule.__init__(self, name, **first_generation)
        # Modules written for NeMo 0.x say self.to(self._device) in their constructor.
        factory = NeuralModuleFactory.get_default_factory()
        device = None if factory is None else factory.device
        self._device = device if isinstance(device, torch.device) else torch.device("cpu")

    def __call__(self, *args: Any, force_pt: bool = False, **kwargs: Any) -> Any:
        # NeMo's force_pt asked for running; what the arguments are says so already.
        if not force_pt and _is_connecting(args, kwargs):
            return self.connect(*args, **kwargs)
        return self.on_values(*args, **kwargs)

    def on_values(self, *args: Any, **kwargs: Any) -> Any:
        """What a call with values gives: the outputs of ``forward``, their number held against the ports."""
        if self.keep_float32 and (torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")):
            return self._in_float32(args, kwargs)
        outputs = nn.Module.__call__(self, *args, **kwargs)
        if self._num_declared_outputs == 1 and not isinstance(outputs, tuple):
            return outputs  # as most modules do, at every step
        return self._as_declared(outputs)

    def _as_declared(self, outputs: Any) -> Any:
        num_declared = self._num_declared_outputs
        if num_declared is None:
            num_declared = self.count_outputs()
        # One output may be a list: a batch of strings, say. A tuple always stands for several.
        several = isinstance(outputs, tuple) or (num_declared > 1 and isinstance(outputs, list))
        if not several and num_declared == 1:
            return outputs
        if several and len(outputs) == num_declared:
            return outputs if num_declared > 1 else outputs[0]
        got = f"{len(outputs)} outputs" if several else f"one {type(outputs).__name__}"
        ports = f"{num_declared} ({', '.join(self.output_ports)})"
        problem = f"{self.port_function} does not return its output ports"
        raise NeuralPortNameMismatchError(problem, place=self.label, got=got, wanted=ports)

    def count_outputs(self) -> int:
        """The number of output ports, counted once. Before compiling: code does not fit an attribute that changed."""
        self._num_declared_outputs = len(self.output_ports)
        return self._num_declared_outputs

    def _in_float32(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run outside autocast, halves widened: log-mel features and the CTC loss lose too much in them."""
        devices = {value.device.type for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
        # Lengths may lie on the CPU beside values on a GPU; autocast is the GPU's then.
        device = next(iter(devices - {"cpu"}), "cpu")
        if not torch.is_autocast_enabled(device):
            return self._as_declared(nn.Module.__call__(self, *args, **kwargs))
        with torch.autocast(device, enabled=False):
            widened = {key: _widened(value) for key, value in kwargs.items()}
            return self._as_declared(nn.Module.__call__(self, *map(_widened, args), **widened))

    @property
    def factory(self) -> NeuralModuleFactory | None:
        """The factory in force: the one made last."""
        return NeuralModuleFactory.get_default_factory()

    @property
    def placement(self) -> DeviceType:
        """Where the factory in force runs modules; without a factory, on the CPU."""
        factory = self.factory
        return DeviceType.CPU if factory is None else factory.placement

    @property
    def num_weights(self) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def freeze(self, weights: Iterable[str] | None = None) -> None:
        """Exclude weights from training; with none named, all, and the module stays in evaluation mode while training.

        Raises:
            UnknownNameError: a name that is no parameter of this module.
        """
        for parameter in weights_named(self, weights).values():
            parameter.requires_grad_(False)
        if weights is None:
            self.eval()

    def unfreeze(self, weights: Iterable[str] | None = None) -> None:
        """Include weights in training again; with none named, all, and the module goes to training mode."""
        for parameter in weights_named(self, weights).values():
            parameter.requires_grad_(True)
        if weights is None:
            self.train()

    def is_frozen(self) -> bool:
        """Whether it has weights and none of them is trained."""
        parameters = list(self.parameters())
        return bool(parameters) and not any(p.requires_grad for p in parameters)


def _is_connecting(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    # Loops, because a generator costs as much as the rest of the call.
    for value in kwargs.values():
        if type(value) in _SYMBOLS:
            return True
    for value in args:
        if type(value) in _SYMBOLS:
            return True
    return not (args or kwargs)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value
