"""The states of the generators that a training step draws from, as a tree of tensors and numbers. Nothing is seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

# Any: a tree of tensors and numbers.

_NUMPY = "MT19937"  # the only one of numpy.random, unless a user has put in another


def generator_states(device: torch.device, modules: Mapping[str, object]) -> dict[str, Any]:
    """The states of the generators of Python, NumPy and torch, of the device, and those that modules hold.

    Args:
        device: on which the run computes; a GPU has a generator of its own. No host sync: its state is on the host.
        modules: by name.
    """
    version, words, gauss = random.getstate()
    numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
    states: dict[str, Any] = {
        "python": [version, torch.tensor(words), gauss],
        "numpy": _without_array(numpy) if numpy["bit_generator"] == _NUMPY else None,
        "torch": torch.get_rng_state(),
        "modules": {name: generator.get_state() for name, generator in _held(modules)},
    }
    if (own := _of_device(device)) is not None:
        states["device"] = own.get_state()
    return states


def set_generator_states(states: Mapping[str, Any], device: torch.device, modules: Mapping[str, object]) -> None:
    """Put back what :func:`generator_states` gave. What the states lack (a GPU's, from a run on a CPU) stays."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    if (numpy := states.get("numpy")) is not None:
        key = numpy["key"].numpy().astype(np.uint32)
        np.random.set_state((_NUMPY, key, numpy["position"], numpy["has_gauss"], numpy["gauss"]))
    torch.set_rng_state(states["torch"])
    own, saved = _of_device(device), states.get("device")
    if own is not None and saved is not None:
        own.set_state(saved)
    held = states.get("modules", {})
    for name, generator in _held(modules):
        if name in held:
            generator.set_state(held[name])


@contextmanager
def generators_set_aside(device: torch.device, modules: Mapping[str, object]) -> Iterator[None]:
    """Inside, what is drawn leaves the generators of the run as they are."""
    states = generator_states(device, modules)
    try:
        yield
    finally:
        set_generator_states(states, device, modules)


def _without_array(numpy: Mapping[str, Any]) -> dict[str, Any]:
    key = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    position, has_gauss = int(numpy["state"]["pos"]), int(numpy["has_gauss"])
    return {"key": key, "position": position, "has_gauss": has_gauss, "gauss": float(numpy["gauss"])}


def _of_device(device: torch.device) -> torch.Generator | None:
    """The default generator of a device, ``None`` for the CPU's, which is torch's."""
    # The CPU and the meta device have none there.
    generators: Any = getattr(getattr(torch, device.type, None), "default_generators", None)
    if device.type == "cpu" or not generators:
        return None
    generator: torch.Generator = generators[device.index or 0]
    return generator


def _held(modules: Mapping[str, object]) -> Iterator[tuple[str, torch.Generator]]:
    """The generators that are attributes of modules or of their parts, by name."""
    for name, module in modules.items():
        for path, part in module.named_modules() if isinstance(module, nn.Module) else ():
            for attribute, value in vars(part).items():
                if isinstance(value, torch.Generator):
                    yield ".".join(filter(None, (name, path, attribute))), value
