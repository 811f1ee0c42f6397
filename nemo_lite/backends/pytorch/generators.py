"""The generators of random numbers of this process: seeds, and their states, which are stored or set aside."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from nemo_lite.backends.pytorch.tensor_codec import Tree


def seed_of(base: int, *, rank: int = 0, epoch: int = 0) -> int:
    """The seed of one stream of draws, from 0 to 2**63 - 1; another stream for each combination.

    Args:
        base: of the run, 0 or more.
        rank: which process.
        epoch: which epoch.
    """
    words = np.random.SeedSequence([base, rank, epoch, 0]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch in this process, each with a stream of its own."""
    random.seed(seed)
    # Spread first: of the same words NumPy's Mersenne twister would make the very draws of Python's.
    np.random.seed(np.random.SeedSequence(seed).generate_state(4))
    torch.manual_seed(seed)


GENERATORS = threading.RLock()
"""Held by whoever reads or writes the states of this process's generators: one thread at a time.

Of two that set them aside for a moment, one would put back what the other had seeded. And torch waits for the lock of a
generator with Python's own lock held, which can be a deadlock.
"""
_training_threads: list[int] = []


@contextmanager
def training_draws() -> Iterator[None]:
    """Around a training: other threads leave this process's generators alone.

    What they put back would make the steps of the training draw the same numbers again.
    """
    thread = threading.get_ident()
    _training_threads.append(thread)
    try:
        yield
    finally:
        _training_threads.remove(thread)


def another_thread_trains() -> bool:
    """Whether the generators of this process are those of a training in another thread."""
    return any(thread != threading.get_ident() for thread in _training_threads)


_NUMPY = "MT19937"  # the only one of numpy.random, unless a user has put in another


def generator_states(device: torch.device, modules: Mapping[str, object]) -> dict[str, object]:
    """The states of the generators of Python, NumPy and torch, of the device, and those that modules hold.

    Args:
        device: on which the run computes; a GPU has a generator of its own. No host sync: its state is on the host.
        modules: by name.
    """
    with GENERATORS:
        version, words, gauss = random.getstate()
        numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
        states: dict[str, Tree] = {
            "python": [version, torch.tensor(words), gauss],
            "numpy": _without_array(numpy) if numpy["bit_generator"] == _NUMPY else None,
            "torch": torch.get_rng_state(),
            "modules": {name: generator.get_state() for name, generator in _held(modules)},
        }
        if (own := _of_device(device)) is not None:
            states["device"] = own.get_state()
    return states


def set_generator_states(states: Mapping[str, Tree], device: torch.device, modules: Mapping[str, object]) -> None:
    """Put back what :func:`generator_states` gave. What the states lack (a GPU's, from a run on a CPU) stays."""
    with GENERATORS:
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


Before: TypeAlias = "dict[Any, Any]"
"""What a context will put back, by what it is of: a generator or a module."""
_generators_aside: list[Before] = []
_OF_PROCESS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "python": (random.getstate, random.setstate),
    "numpy": (lambda: np.random.get_state(legacy=False), np.random.set_state),
    "torch": (torch.get_rng_state, torch.set_rng_state),
}


@contextmanager
def generators_set_aside(device: torch.device, modules: Mapping[str, object]) -> Iterator[None]:
    """Inside, what is drawn leaves the generators of the run as they are.

    Several may be open at once, one inside the other or in several threads, and end in any order. While another thread
    trains, only those of the modules are put back.
    """
    own = _of_device(device)
    with GENERATORS:
        before: Before = {name: read() for name, (read, _) in _OF_PROCESS.items()}
        for generator in (own, *(held for _, held in _held(modules))):
            if generator is not None:
                before[generator] = generator.get_state()
        _leave_to_training(before, own)
        _generators_aside.append(before)
    try:
        yield
    finally:
        with GENERATORS:
            _leave_to_training(before, own)
            for generator, state in to_put_back(_generators_aside, before).items():
                put_back = generator.set_state if isinstance(generator, torch.Generator) else _OF_PROCESS[generator][1]
                put_back(state)


def _leave_to_training(before: Before, of_device: torch.Generator | None) -> None:
    """Forget the states of the generators from which another thread's training draws."""
    if another_thread_trains():
        for generator in (*_OF_PROCESS, of_device):
            before.pop(generator, None)


def to_put_back(entries: list[Before], before: Before) -> Before:
    """End one of the entries that are open, which stand in the order in which they began.

    Returns:
        What no other entry has. Of the rest, the next one that began gets what this one has, to put it back.
    """
    place = next(index for index, entry in enumerate(entries) if entry is before)
    del entries[place]
    later, own = entries[place:], {}
    for key, value in before.items():
        heir = next((entry for entry in later if key in entry), None)
        if heir is None:
            own[key] = value
        else:
            heir[key] = value
    return own


def _without_array(numpy: Mapping[str, Any]) -> dict[str, object]:
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
